"""A steady load that looks at every answer: half of it streamed, each one complete and correct, or lost.

    python -m tests.rollout.load URL --model NAME --text TEXT [--clients 8] [--requests 2000]

Prints one line, ``requests N (M streamed), lost 0``, and before it what was wrong with each lost one.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count

# Longer than a request may wait behind others on a busy machine.
TIMEOUT = 300


@dataclass(frozen=True)
class Request:
    """One request as its client saw it; ``problem`` is empty when the whole right text came."""

    began: float
    ended: float
    streamed: bool
    problem: str


@dataclass
class Load:
    """What is asked, and what came of it.

    Attributes:
        url: of the gateway.
        model: name of the model.
        text: the whole answer; each question gets the same one.
        tokens: how many tokens an answer may have.
        requests: what came of each, in the order of their ends.
    """

    url: str
    model: str
    text: str
    tokens: int = 64
    requests: list[Request] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=count)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def lost(self) -> list[Request]:
        """Those without their complete, correct text."""
        return [request for request in self.requests if request.problem]

    @property
    def streamed(self) -> int:
        """How many were streamed."""
        return sum(request.streamed for request in self.requests)

    def open_at(self, moment: float) -> int:
        """How many requests had begun and not ended."""
        return sum(request.began < moment < request.ended for request in self.requests)

    def __str__(self) -> str:
        return f"requests {len(self.requests)} ({self.streamed} streamed), lost {len(self.lost)}"

    @contextmanager
    def running(self, *, clients: int, at_least: int = 0) -> Iterator[None]:
        """Ask all the time, each client one request after the other, and in the end until there are enough."""
        over = threading.Event()

        def client() -> None:
            while True:
                with self._lock:
                    number = next(self._numbers)
                if over.is_set() and number >= at_least:
                    return
                self._ask(number)

        threads = [threading.Thread(target=client, daemon=True) for _ in range(clients)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            over.set()
            for thread in threads:
                thread.join()

    def _ask(self, number: int) -> None:
        streamed = number % 2 == 0
        began = time.time()
        try:
            problem = self._wrong(streamed, number)
        except Exception as error:  # whatever a client would see
            problem = f"{type(error).__name__}: {error}"
        with self._lock:
            self.requests.append(Request(began, time.time(), streamed, problem))

    def _wrong(self, streamed: bool, number: int) -> str:
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": f"Hello, who are you? ({number})"}],
            "max_tokens": self.tokens,
            "temperature": 0,
            "stream": streamed,
        }
        text, reason, ended = ask(self.url, body)
        if not reason or not ended:
            return f"cut after {len(text)} characters"
        return "" if text == self.text else f"another text: {text!r}"


def ask(url: str, body: dict[str, object], *, timeout: float = TIMEOUT) -> tuple[str, str, bool]:
    """Ask for a chat completion; returns its text, its finish reason, and whether it came to its proper end."""
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=timeout) as answer:
        if not body["stream"]:
            choice = json.load(answer)["choices"][0]
            return choice["message"]["content"], choice["finish_reason"], True
        text, reason, ended = "", "", False
        for line in map(bytes.decode, answer):
            ended = ended or line.strip() == "data: [DONE]"
            for choice in json.loads(line[6:])["choices"] if line.startswith("data: {") else []:
                text += choice["delta"].get("content") or ""
                reason = choice["finish_reason"] or reason
        return text, reason, ended


def report(load: Load) -> int:
    """Say what came of a load; the exit status."""
    for request in load.lost:
        at = time.strftime("%H:%M:%S", time.gmtime(request.began))
        print(f"{at} {'streamed' if request.streamed else 'plain'}: {request.problem}")
    print(load)
    return 1 if load.lost else 0


def main() -> int:
    """Make the load; status 1 when a request was lost."""
    parser = argparse.ArgumentParser(description="A steady load that looks at every answer.")
    parser.add_argument("url")
    parser.add_argument("--model", required=True)
    parser.add_argument("--text", required=True, help="the whole answer")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--requests", type=int, default=2000)
    given = parser.parse_args()
    load = Load(given.url.rstrip("/"), given.model, given.text, given.tokens)
    with load.running(clients=given.clients, at_least=given.requests):
        pass
    return report(load)


if __name__ == "__main__":
    sys.exit(main())
