"""Servers of SGLang that a test starts by hand, and what is asked of them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import threading
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .rig import Rig
from .runner import Failed

SPEC_V2 = {"SGLANG_ENABLE_SPEC_V2": "1"}
SPEC_V1 = {"SGLANG_ENABLE_SPEC_V2": "0"}


def ask(url: str, body: Any = None, *, key: str = "", timeout: float = 120, method: str | None = None) -> Any:
    """POST a body as JSON, or GET; the answer as JSON where it is that, else as text."""
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, headers, method=method)
    with urllib.request.urlopen(request, timeout=timeout) as answer:
        text = answer.read().decode()
    try:
        return json.loads(text)
    except ValueError:
        return text


class Server:
    """A server of one tree with the tiny models."""

    def __init__(
        self,
        rig: Rig,
        name: str,
        tree: str,
        port: int,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        cards: str = "0",
    ) -> None:
        """Start it; :meth:`wait` waits until it answers."""
        self.name, self.url = name, f"http://127.0.0.1:{port}"
        self.log = rig.logs / f"server-{name}.log"
        command = [
            str(rig.tree(tree)), "-m", "sglang.launch_server",
            "--model-path", str(rig.models / "kimi"), "--served-model-name", "kimi",
            "--host", "127.0.0.1", "--port", str(port),
            "--attention-backend", "triton", "--sampling-backend", "pytorch", "--mm-attention-backend", "sdpa",
            "--grammar-backend", "none", "--enable-metrics", "--skip-server-warmup", "--trust-remote-code",
            "--mem-fraction-static", "0.3",
            *arguments,
        ]  # fmt: skip
        variables = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        variables |= {
            "CUDA_VISIBLE_DEVICES": cards,
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "PYTHONUNBUFFERED": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "SGLANG_SKIP_SGL_KERNEL_VERSION_CHECK": "1",
            "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1",
            "SGLANG_TORCH_PROFILER_DIR": str(rig.logs),
            **(environment or {}),
        }
        self.started = time.monotonic()
        with self.log.open("w", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, env=variables, start_new_session=True
            )

    def wait(self, limit_s: float = 200) -> float | None:
        """Seconds until it answered; None when it ended or did not answer in time."""
        while self.process.poll() is None:
            try:
                ask(self.url + "/health", timeout=25)
                return time.monotonic() - self.started
            except OSError:
                time.sleep(0.5)
            if time.monotonic() - self.started > limit_s:
                break
        return None

    def require(self, limit_s: float = 200) -> float:
        """Seconds until it answered.

        Raises:
            Failed: it does not.
        """
        seconds = self.wait(limit_s)
        if seconds is None:
            raise Failed(
                f"the server {self.name} does not answer after {limit_s:.0f} s", {"log": self.errors()}
            )
        return seconds

    def text(self) -> str:
        """Its log."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def errors(self, lines: int = 15) -> str:
        """The last lines of its log that tell of an error."""
        hits = [
            line for line in self.text().splitlines() if re.search(r"Error|Traceback|Exception|assert", line)
        ]
        return "\n".join(line[:300] for line in hits[-lines:])

    def generate(self, tokens: Sequence[int], wanted: int, timeout: float = 180) -> dict[str, Any]:
        """Greedy tokens after ``tokens``; ``seconds`` is how long that took."""
        sampling = {"temperature": 0, "max_new_tokens": wanted, "ignore_eos": True}
        started = time.perf_counter()
        answer = ask(
            self.url + "/generate", {"input_ids": list(tokens), "sampling_params": sampling}, timeout=timeout
        )
        answer["seconds"] = time.perf_counter() - started
        return dict(answer)

    def flush(self) -> None:
        """Empty the cache of prefixes."""
        ask(self.url + "/flush_cache", {})

    def draft(self, prompts: Sequence[Sequence[int]], wanted: int, at_once: int) -> dict[str, Any]:
        """Answer all prompts, ``at_once`` of them at a time.

        Returns:
            ``tokens``, ``steps`` (verify steps), ``accept_length`` (None without speculation), ``tok_s`` (of all
            requests together), ``seconds``, ``outputs`` (tokens of each answer).
        """
        answers: list[dict[str, Any] | None] = [None] * len(prompts)
        numbers, lock, errors = iter(range(len(prompts))), threading.Lock(), []

        def work() -> None:
            while True:
                with lock:
                    number = next(numbers, None)
                if number is None:
                    return
                try:
                    answers[number] = self.generate(prompts[number], wanted)
                except (OSError, ValueError) as error:
                    errors.append(repr(error))

        started = time.perf_counter()
        threads = [threading.Thread(target=work) for _ in range(at_once)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seconds = time.perf_counter() - started
        if errors:
            raise Failed(f"{len(errors)} requests of {self.name} failed: {errors[0]}", {"log": self.errors()})
        return {**summary([answer for answer in answers if answer]), "seconds": seconds}

    def stop(self, limit_s: float = 0.5) -> None:
        """End it and all its processes."""
        if self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(limit_s)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def summary(answers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Tokens, verify steps and accept length of answers; steps are None where the server counts none."""
    told = [answer["meta_info"] for answer in answers]
    tokens = sum(each["completion_tokens"] for each in told)
    counted = [each["spec_verify_ct"] for each in told if each.get("spec_verify_ct")]
    steps = sum(counted) if len(counted) == len(told) else None
    return {
        "tokens": tokens,
        "steps": steps,
        "accept_length": tokens / steps if steps else None,
        "outputs": [list(answer.get("output_ids") or []) for answer in answers],
    }


def speculative(rig: Rig, steps: int = 3) -> list[str]:
    """Arguments for the drafter."""
    return [
        "--speculative-algorithm", "EAGLE3",
        "--speculative-draft-model-path", str(rig.models / "eagle3"),
        "--speculative-draft-model-quantization", "unquant",
        "--speculative-num-steps", str(steps),
        "--speculative-eagle-topk", "1",
        "--speculative-num-draft-tokens", str(steps + 1),
    ]  # fmt: skip


def read_json(path: Path) -> Any:
    """A file of JSON."""
    return json.loads(path.read_text(encoding="utf-8"))
