"""The load: ``sglang.bench_serving`` of the release under test, run on the host.

Why this back end and this data set, as read in bench_serving.py of SGLang 0.5.9 and 0.5.10.post1:

* ``--backend sglang`` talks to ``/generate``, whose every chunk carries the server's own count of completion
  tokens. The chat and completion back ends take the count from a ``usage`` field that the stream does not
  have (asking for it makes the last chunk one without ``choices``, on which they fail), so they report the
  *requested* length, spread chunk times over re-encoded text, and do not see reasoning text.
* ``--dataset-name custom`` reads prompts from a local file and takes the output length from
  ``--sharegpt-output-len``; nothing is downloaded. It wants a second turn in a conversation, and ignores it.
* ``ignore_eos`` and temperature 0 are its defaults on this back end.
* A request whose stream ends without a token counts as a success of the requested length. :func:`requests_of`
  does not believe that.
* Its result holds the answer of ``/server_info``, API keys included, so it is read through a pipe and never
  becomes a file.
"""

from __future__ import annotations

import json
import os
import pwd
import select
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from ..errors import OperatorError
from .prompts import Prompt

# Importing torch and transformers takes the load generator 8 s of CPU time, a run may take less: so one
# process makes all runs of a check, each through the program's own command line.
_DRIVER = """
import json, runpy, sys, traceback
for line in sys.stdin:
    arguments, answer = json.loads(line)
    sys.argv = ["sglang.bench_serving", *arguments]
    try:
        runpy.run_module("sglang.bench_serving", run_name="__main__", alter_sys=True)
    except BaseException as error:
        traceback.print_exc()
        with open(answer, "a") as pipe:
            pipe.write(json.dumps({"driver_error": f"{type(error).__name__}: {error}"}) + "\\n")
"""

# It then takes a percentile of nothing and ends with an IndexError.
_ALL_FAILED = "All requests failed"


@dataclass(frozen=True)
class Load:
    """One run: ``prompts`` with ``concurrency`` in flight, each answered with ``output_tokens`` tokens."""

    prompts: list[Prompt]
    concurrency: int
    output_tokens: int
    seed: int
    chat_template: bool


@dataclass(frozen=True)
class Request:
    """What the client saw of one request. Times in seconds.

    ``gaps_s`` has one entry for each token after the first chunk: the time since the chunk before, shared by
    the tokens of a chunk. ``problem`` is empty when the request delivered all its tokens.
    """

    output_tokens: int
    ttft_s: float
    gaps_s: list[float]
    problem: str


@dataclass(frozen=True)
class Report:
    """What one run of the load generator reported."""

    duration_s: float
    requests: list[Request]


class BenchTimeout(Exception):
    """The load generator did not end in time."""


class AllFailed(Exception):
    """Not one request succeeded, on which the load generator ends without a result."""


class Bench:
    """A process of the release's interpreter that runs the load generator, once for each :meth:`run`.

    Args:
        python: interpreter of the release.
        url: base address of the server.
        api_key: key of ordinary requests; passed in the environment, never on a command line.
        tokenizer: folder of the served model, whose tokenizer counts prompt tokens and has the chat template.
        user: account that runs it, because a tokenizer may bring code of its own; empty for the caller's.
        environment: further variables of the process.
    """

    def __init__(
        self,
        python: str,
        url: str,
        api_key: str,
        tokenizer: str,
        user: str = "",
        environment: dict[str, str] | None = None,
    ) -> None:
        self._python = python
        self._url = url
        self._tokenizer = tokenizer
        self._account = pwd.getpwnam(user) if user and os.geteuid() == 0 else None
        self._scratch = tempfile.TemporaryDirectory(prefix="throughput-")
        if self._account is not None:
            os.chown(self._scratch.name, self._account.pw_uid, self._account.pw_gid)
        self._environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            "LANG": "C.UTF-8",
            # Remote code of a tokenizer is copied here; there is no other cache and no network.
            "HF_HOME": self._scratch.name,
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
            **(environment or {}),
        }
        if api_key:
            self._environment["OPENAI_API_KEY"] = api_key
        self._process: subprocess.Popen[str] | None = None
        self._results = -1
        self._answer = ""
        # In memory: what the program prints is only wanted when it fails, and belongs on no disk.
        self._log = os.memfd_create("bench-log")
        self._log_start = 0

    def __enter__(self) -> Bench:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()
        os.close(self._log)
        self._scratch.cleanup()

    def run(self, load: Load, limit_s: float) -> Report:
        """Make one run.

        Raises:
            BenchTimeout: it was not over after ``limit_s`` seconds. The next run starts a new process.
            AllFailed: no request succeeded.
            OperatorError: the load generator itself failed.
        """
        dataset = Path(self._scratch.name) / "prompts.jsonl"
        dataset.write_text("".join(_conversation(prompt) for prompt in load.prompts), encoding="utf-8")
        process = self._running()
        self._log_start = os.fstat(self._log).st_size
        assert process.stdin is not None
        process.stdin.write(json.dumps([self._arguments(load, dataset), self._answer]) + "\n")
        process.stdin.flush()
        said = json.loads(self._read_line(process, limit_s))
        if "driver_error" in said:
            if _ALL_FAILED in self._output():
                raise AllFailed(self._output().partition("output.error=")[2][:200])
            raise self._failure(said["driver_error"])
        return report_of(said, load.output_tokens)

    def _arguments(self, load: Load, dataset: Path) -> list[str]:
        arguments = {
            "--backend": "sglang",
            "--base-url": self._url,
            "--model": self._tokenizer,
            "--tokenizer": self._tokenizer,
            "--dataset-name": "custom",
            "--dataset-path": str(dataset),
            "--num-prompts": str(len(load.prompts)),
            "--sharegpt-output-len": str(load.output_tokens),
            "--max-concurrency": str(load.concurrency),
            "--seed": str(load.seed),
            "--warmup-requests": "0",
            "--output-file": self._answer,
        }
        flags = ["--output-details", "--disable-tqdm"]
        if load.chat_template:
            flags.append("--apply-chat-template")
        return [part for pair in arguments.items() for part in pair] + flags

    def _running(self) -> subprocess.Popen[str]:
        if self._process is not None:
            return self._process
        self._results, send = os.pipe()
        self._answer = f"/proc/self/fd/{send}"
        account: dict[str, Any] = {}
        if self._account is not None:
            # The program opens the pipe by name, and the kernel checks that against the pipe's owner.
            os.fchown(send, self._account.pw_uid, self._account.pw_gid)
            account = {"user": self._account.pw_uid, "group": self._account.pw_gid, "extra_groups": []}
        try:
            self._process = subprocess.Popen(
                [self._python, "-c", _DRIVER],
                stdin=subprocess.PIPE,
                stdout=self._log,
                stderr=self._log,
                env=self._environment,
                cwd=self._scratch.name,
                text=True,
                pass_fds=[send],
                **account,
            )
        except OSError as error:
            os.close(self._results)
            raise self._failure(str(error)) from error
        finally:
            os.close(send)
        return self._process

    def _read_line(self, process: subprocess.Popen[str], limit_s: float) -> bytes:
        deadline = time.monotonic() + limit_s
        line = b""
        while not line.endswith(b"\n"):
            if not select.select([self._results], [], [], max(0.0, deadline - time.monotonic()))[0]:
                self._stop()
                raise BenchTimeout(f"no result after {limit_s:.0f} s")
            part = os.read(self._results, 1 << 20)
            if not part:
                failure = self._failure(f"it ended with status {process.wait()}")
                self._stop()
                raise failure
            line += part
        return line

    def _stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            os.close(self._results)
            if self._process.stdin is not None:
                self._process.stdin.close()
            self._process = None

    def _output(self) -> str:
        """What the program printed in this run."""
        size = os.fstat(self._log).st_size - self._log_start
        return os.pread(self._log, size, self._log_start).decode("utf-8", "replace")

    def _failure(self, what: str) -> OperatorError:
        return OperatorError(
            "The load generator sglang.bench_serving failed",
            found=f"{what}; it said last: {self._output()[-1500:].strip()}",
            expected="a result",
            remedy=f"{self._python} -m sglang.bench_serving --help must work on this host",
        )


def report_of(said: dict[str, Any], output_tokens: int) -> Report:
    """Read one line of ``--output-file`` written with ``--output-details``."""
    return Report(duration_s=float(said["duration"]), requests=requests_of(said, output_tokens))


def requests_of(said: dict[str, Any], output_tokens: int) -> list[Request]:
    """The requests of one run, each with what was wrong with it."""
    columns = zip(said["errors"], said["output_lens"], said["ttfts"], said["itls"])
    requests = []
    for error, tokens, ttft, gaps in columns:
        if error:
            problem = error.strip().splitlines()[-1][:200]
        elif ttft <= 0:
            problem, tokens = "the stream ended without a token", 0
        elif tokens < output_tokens:
            problem = f"{tokens} of {output_tokens} tokens"
        else:
            problem = ""
        requests.append(Request(output_tokens=tokens, ttft_s=ttft, gaps_s=gaps, problem=problem))
    return requests


def _conversation(prompt: Prompt) -> str:
    turns = [{"role": "user", "content": prompt.text}, {"role": "assistant", "content": ""}]
    return json.dumps({"conversations": turns}) + "\n"
