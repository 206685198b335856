"""A steady load that looks at every answer: half of it streamed, each one complete and correct, or lost.

    python3 tests/rollout/load.py URL --model NAME --text TEXT [--clients 8] [--requests 2000] [--until FILE]

Ends after so many requests, or, with --until, not before the file exists. Prints one line, ``requests N, lost 0``, and
what was wrong with each lost one.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

TIMEOUT = 120


@dataclass
class Load:
    """The load and what came of it."""

    url: str
    model: str
    text: str
    tokens: int
    done: int = 0
    streamed: int = 0
    lost: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def one(self, number: int) -> None:
        """Ask once, and note whether the whole right answer came."""
        streamed = number % 2 == 0
        began = time.time()
        try:
            problem = self._wrong(streamed, number)
        except Exception as error:  # whatever a client would see
            problem = f"{type(error).__name__}: {error}"
        with self.lock:
            self.done += 1
            self.streamed += streamed
            if problem:
                at = time.strftime("%H:%M:%S", time.gmtime(began))
                self.lost.append(f"{at} {'streamed' if streamed else 'plain'}: {problem}")

    def _wrong(self, streamed: bool, number: int) -> str:
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": f"Hello, who are you? ({number})"}],
            "max_tokens": self.tokens,
            "temperature": 0,
            "stream": streamed,
        }
        request = urllib.request.Request(
            f"{self.url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=TIMEOUT) as answer:
            if not streamed:
                choice = json.load(answer)["choices"][0]
                text, reason, ended = choice["message"]["content"], choice["finish_reason"], True
            else:
                text, reason, ended = "", "", False
                for line in map(bytes.decode, answer):
                    ended = ended or line.strip() == "data: [DONE]"
                    for choice in json.loads(line[6:])["choices"] if line.startswith("data: {") else []:
                        text += choice["delta"].get("content") or ""
                        reason = choice["finish_reason"] or reason
        if not reason or not ended:
            return f"cut after {len(text)} characters"
        return "" if text == self.text else f"another text: {text!r}"


def main() -> int:
    """Make the load; status 1 when a request was lost."""
    parser = argparse.ArgumentParser(description="A steady load that looks at every answer.")
    parser.add_argument("url")
    parser.add_argument("--model", required=True)
    parser.add_argument("--text", required=True, help="the whole answer")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--requests", type=int, default=2000, help="at least so many")
    parser.add_argument("--until", type=Path, help="go on until this file exists")
    given = parser.parse_args()
    load = Load(given.url.rstrip("/"), given.model, given.text, given.tokens)
    numbers = iter(range(1 << 62))
    taking = threading.Lock()

    def client() -> None:
        while True:
            with taking:
                number = next(numbers)
            if number >= given.requests and not (given.until and not given.until.exists()):
                return
            load.one(number)

    clients = [threading.Thread(target=client) for _ in range(given.clients)]
    for each in clients:
        each.start()
    for each in clients:
        each.join()
    for problem in load.lost:
        print(problem)
    print(f"requests {load.done} ({load.streamed} streamed), lost {len(load.lost)}")
    return 1 if load.lost else 0


if __name__ == "__main__":
    sys.exit(main())
