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
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from ..errors import OperatorError
from ..json_reader import parse_object
from .process import ending
from .prompts import Prompt

# Importing torch and transformers takes the load generator 8 s of CPU time, a run may take less: so one
# process makes all runs of a check, each through the program's own command line. It ends in the middle of a run when
# whoever wants the results has ended.
_DRIVER = """
import json, os, queue, runpy, sys, threading, traceback
lines = queue.Queue()
def read():
    for line in sys.stdin:
        lines.put(line)
    os._exit(0)
threading.Thread(target=read, daemon=True).start()
while True:
    arguments, answer = json.loads(lines.get())
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

# A result of 512 requests with 4096 tokens each takes 60 MB.
_LONGEST_LINE = 1 << 28
_LONGEST_TIME_S = 1e8
# Of what the program printed, so much is looked at.
_LOG_TAIL = 1 << 20


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
        self._account = _account(user) if user and os.geteuid() == 0 else None
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
            OperatorError: the load generator itself failed, or was killed. The next run starts a new process.
        """
        dataset = Path(self._scratch.name) / "prompts.jsonl"
        dataset.write_text("".join(_conversation(prompt) for prompt in load.prompts), encoding="utf-8")
        process = self._running()
        self._log_start = os.fstat(self._log).st_size
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps([self._arguments(load, dataset), self._answer]) + "\n")
            process.stdin.flush()
        except OSError as error:
            raise self._death(process, "before this run") from error
        said = parse_object(
            self._read_line(process, limit_s),
            "The result of the load generator sglang.bench_serving",
            remedy=self._remedy(),
        )
        if "driver_error" in said:
            if _ALL_FAILED in self._output():
                raise AllFailed(self._output().partition("output.error=")[2][:200])
            raise self._failure(str(said["driver_error"]))
        report = report_of(said, load.output_tokens)
        if len(report.requests) != len(load.prompts):
            raise self._failure(f"it reports {len(report.requests)} requests of {len(load.prompts)}")
        return report

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
        line = bytearray()
        while not line.endswith(b"\n"):
            if not select.select([self._results], [], [], max(0.0, deadline - time.monotonic()))[0]:
                self._stop()
                raise BenchTimeout(f"no result after {limit_s:.0f} s")
            part = os.read(self._results, 1 << 20)
            if not part:
                raise self._death(process, f"in this run, after {len(line)} bytes of its result")
            line += part
            if len(line) > _LONGEST_LINE:
                self._stop()
                raise self._failure(f"its result has no end after {len(line)} bytes")
        return bytes(line)

    def _death(self, process: subprocess.Popen[str], when: str) -> OperatorError:
        """The error for a process that is not there any more, or will not be after this."""
        try:
            status = process.wait(5.0)
        except subprocess.TimeoutExpired:
            failure = self._failure(f"it closed its pipes {when}, and did not end")
        else:
            failure = self._failure(f"it ended {ending(status)} {when}", killed=status in (-9, 128 + 9))
        self._stop()
        return failure

    def _stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            os.close(self._results)
            if self._process.stdin is not None:
                # What was not read any more is still to be sent.
                with suppress(OSError):
                    self._process.stdin.close()
            self._process = None

    def _output(self) -> str:
        """The end of what the program printed in this run."""
        size = os.fstat(self._log).st_size
        start = max(self._log_start, size - _LOG_TAIL)
        return os.pread(self._log, size - start, start).decode("utf-8", "replace")

    def _failure(self, what: str, *, killed: bool = False) -> OperatorError:
        return OperatorError(
            "The load generator sglang.bench_serving failed",
            found=f"{what}; it said last: {self._output()[-1500:].strip() or 'nothing'}",
            expected="a result",
            remedy="free memory on the host, if the kernel ended it for want of that: journalctl -k --grep=oom"
            if killed
            else self._remedy(),
        )

    def _remedy(self) -> str:
        return f"{self._python} -m sglang.bench_serving --help must work on this host"


def _account(user: str) -> pwd.struct_passwd:
    try:
        return pwd.getpwnam(user)
    except KeyError:
        raise OperatorError(
            "The load generator has no account to run as",
            found=f"no user {user} on this host",
            expected="the user of the service, which site.yml makes",
            remedy="run site.yml, or correct throughput_check_user",
        ) from None


def report_of(said: dict[str, Any], output_tokens: int) -> Report:
    """Read one line of ``--output-file`` written with ``--output-details``.

    Raises:
        OperatorError: it is something else.
    """
    duration: Any = said.get("duration")
    if not _is_time(duration):
        raise _unreadable(f"duration {duration!r:.100}")
    return Report(duration_s=float(duration), requests=requests_of(said, output_tokens))


def requests_of(said: dict[str, Any], output_tokens: int) -> list[Request]:
    """The requests of one run, each with what was wrong with it.

    Raises:
        OperatorError: the columns are missing, of unlike lengths, or hold something else.
    """
    columns = [said.get(name) for name in ("errors", "output_lens", "ttfts", "itls")]
    if (
        not all(isinstance(column, list) for column in columns)
        or len({len(column or []) for column in columns}) > 1
    ):
        found = ", ".join(f"{len(c)} entries" if isinstance(c, list) else repr(c)[:40] for c in columns)
        raise _unreadable(f"errors, output_lens, ttfts and itls: {found}")
    return [_request(row, output_tokens) for row in zip(*(column or [] for column in columns))]


def _request(row: tuple[Any, ...], output_tokens: int) -> Request:
    error, tokens, ttft, gaps = row
    if not (
        isinstance(error, (str, type(None)))
        and type(tokens) is int
        and tokens >= 0
        and _is_time(ttft)
        and isinstance(gaps, list)
        and all(map(_is_time, gaps))
    ):
        raise _unreadable(f"a request {row!r:.200}")
    if error:
        problem = (error.strip().splitlines() or ["an error without a word"])[-1][:200]
    elif ttft <= 0:
        problem, tokens = "the stream ended without a token", 0
    elif tokens < output_tokens:
        problem = f"{tokens} of {output_tokens} tokens"
    else:
        problem = ""
    return Request(output_tokens=tokens, ttft_s=ttft, gaps_s=gaps, problem=problem)


def _is_time(value: Any) -> bool:
    """Whether it is a number of seconds: not below 0, and not of years."""
    return type(value) in (int, float) and 0 <= value < _LONGEST_TIME_S


def _unreadable(found: str) -> OperatorError:
    return OperatorError(
        "The result of the load generator sglang.bench_serving cannot be read",
        found=found,
        expected="a line of --output-file with --output-details, as SGLang 0.5.9 and later releases write it",
        remedy="measure with a release that this project knows: sglang_version",
    )


def _conversation(prompt: Prompt) -> str:
    turns = [{"role": "user", "content": prompt.text}, {"role": "assistant", "content": ""}]
    return json.dumps({"conversations": turns}) + "\n"
