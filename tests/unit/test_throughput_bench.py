"""The load generator that dies or says something else, with programs that stand in for the interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from blackwell.errors import OperatorError
from blackwell.throughput.bench import Bench, BenchTimeout, Load, Report, report_of
from blackwell.throughput.prompts import Prompt

LOAD = Load([Prompt("a", "prose", "x")], concurrency=1, output_tokens=4, seed=1, chat_template=True)
GOOD: dict[str, Any] = {
    "duration": 1.0,
    "errors": [""],
    "output_lens": [4],
    "ttfts": [0.1],
    "itls": [[0.1, 0.1, 0.1]],
}
MODULE = Path(__file__).resolve().parents[2] / "plugins/module_utils"


@pytest.fixture
def python(tmp_path: Path) -> Callable[[str], str]:
    """An interpreter that reads one order and does this, instead of what it was told to do."""

    def write(body: str, read: bool = True) -> str:
        path = tmp_path / "python"
        order = "arguments, answer = json.loads(sys.stdin.readline())" if read else ""
        path.write_text(
            f"#!{sys.executable}\nimport json, os, signal, sys, time\n{order}\n"
            f"GOOD = {json.dumps(GOOD)!r}\n"
            "def say(text):\n    with open(answer, 'a', encoding='utf-8') as pipe: pipe.write(text)\n"
            f"{body}\n",
            encoding="utf-8",
        )
        path.chmod(0o755)
        return str(path)

    return write


def run(program: str, limit_s: float = 20.0) -> Report:
    with Bench(program, "http://127.0.0.1:1", "", "/") as bench:
        return bench.run(LOAD, limit_s)


KILLED = "os.kill(os.getpid(), signal.SIGKILL)"


@pytest.mark.parametrize(
    ("body", "named"),
    [
        pytest.param(KILLED, ("by SIGKILL in this run", "journalctl -k --grep=oom"), id="killed"),
        pytest.param("os.kill(os.getpid(), signal.SIGSEGV)", ("by SIGSEGV",), id="crashed"),
        pytest.param(
            "os._exit(137)", ("with status 137", "journalctl -k --grep=oom"), id="killed below a shell"
        ),
        pytest.param("print('no such option'); sys.exit(2)", ("with status 2", "no such option"), id="ended"),
        pytest.param("sys.exit(0)", ("with status 0", "nothing"), id="ended well without a result"),
        pytest.param(
            f"say('{{\"dura'); {KILLED}", ("after 6 bytes of its result",), id="killed in its result"
        ),
        pytest.param(
            "say('Traceback\\n'); time.sleep(60)", ("is not JSON", "--help must work"), id="garbage"
        ),
        pytest.param("say('[1]\\n'); time.sleep(60)", ("no JSON object",), id="no object"),
        pytest.param("say('[' * 100000 + '\\n'); time.sleep(60)", ("is not JSON",), id="too deep"),
        pytest.param("say(GOOD + '\\n' + GOOD + '\\n'); time.sleep(60)", ("is not JSON",), id="two results"),
        pytest.param("say('{}\\n'); time.sleep(60)", ("duration None",), id="an empty result"),
        pytest.param(
            "say(GOOD.replace('0.1', '0.2').replace('[4]', '[4, 4]') + '\\n'); time.sleep(60)",
            ("2 entries",),
            id="columns of unlike lengths",
        ),
        pytest.param(
            "empty = {**json.loads(GOOD), 'errors': [], 'output_lens': [], 'ttfts': [], 'itls': []}\n"
            "say(json.dumps(empty) + '\\n'); time.sleep(60)",
            ("0 requests of 1",),
            id="a request is missing",
        ),
    ],
)
def test_the_end_of_the_load_generator_is_told_with_what_to_look_at(
    python: Callable[[str], str], body: str, named: tuple[str, ...]
) -> None:
    with pytest.raises(OperatorError) as caught:
        run(python(body))
    assert not [text for text in named if text not in str(caught.value)], str(caught.value)


def test_one_that_is_killed_between_two_runs_is_told_and_the_next_run_starts_another(
    python: Callable[[str], str],
) -> None:
    with Bench(python(f"say(GOOD + '\\n'); {KILLED}"), "http://127.0.0.1:1", "", "/") as bench:
        assert bench.run(LOAD, 20.0).requests[0].problem == ""
        time.sleep(0.3)
        with pytest.raises(OperatorError, match="by SIGKILL before this run"):
            bench.run(LOAD, 20.0)
        assert bench.run(LOAD, 20.0).requests[0].problem == ""


def test_one_that_ends_before_it_reads_is_told(python: Callable[..., str]) -> None:
    with pytest.raises(OperatorError, match="with status 3"):
        run(python("sys.exit(3)", read=False))


def test_one_that_closes_its_pipe_and_stays_is_ended(python: Callable[[str], str], tmp_path: Path) -> None:
    body = f"""
open({str(tmp_path / "pid")!r}, "w").write(str(os.getpid()))
os.closerange(3, 64)
time.sleep(60)
"""
    with pytest.raises(OperatorError, match="did not end"):
        run(python(body))
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text("utf-8")), 0)


def test_a_result_without_end_is_not_read_for_ever(
    python: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("blackwell.throughput.bench._LONGEST_LINE", 1 << 20)
    with pytest.raises(OperatorError, match="no end"):
        run(python("while True: say('x' * 65536)"))


def test_one_that_hangs_is_a_timeout(python: Callable[[str], str]) -> None:
    with pytest.raises(BenchTimeout):
        run(python("time.sleep(60)"), limit_s=1.0)


def test_a_user_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(OperatorError, match="no-such-user"):
        Bench(sys.executable, "http://127.0.0.1:1", "", "/", "no-such-user")


@pytest.mark.parametrize(
    "changes",
    [
        {"duration": float("nan")},
        {"duration": -1},
        {"duration": "1.0"},
        {"duration": 10**400},
        {"errors": None},
        {"ttfts": [None]},
        {"ttfts": [float("inf")]},
        {"ttfts": [True]},
        {"output_lens": ["4"]},
        {"output_lens": [-4]},
        {"itls": [0.1]},
        {"itls": [["0.1"]]},
        {"itls": [[-0.1]]},
        {"errors": [{"message": "busy"}]},
    ],
)
def test_a_result_that_is_no_result_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(OperatorError, match="cannot be read"):
        report_of({**GOOD, **changes}, 4)


def test_an_error_of_blanks_is_an_error() -> None:
    assert report_of({**GOOD, "errors": [" \n "]}, 4).requests[0].problem


def test_the_load_generator_ends_in_the_middle_of_a_run_with_whoever_started_it(tmp_path: Path) -> None:
    """A check that was killed must not leave its load behind."""
    package = tmp_path / "sglang"
    package.mkdir()
    (package / "__init__.py").write_text("", encoding="utf-8")
    (package / "bench_serving.py").write_text(
        f"import os, time\nopen({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\ntime.sleep(60)\n",
        encoding="utf-8",
    )
    program = f"""
import sys
sys.path.insert(0, {str(MODULE)!r})
from blackwell.throughput.bench import Bench, Load
from blackwell.throughput.prompts import Prompt
with Bench(sys.executable, "http://127.0.0.1:1", "", "/", environment={{"PYTHONPATH": {str(tmp_path)!r}}}) as bench:
    bench.run(Load([Prompt("a", "prose", "x")], 1, 4, 1, True), 60.0)
"""
    with subprocess.Popen([sys.executable, "-c", program]) as check:
        load = _pid(tmp_path / "pid")
        check.kill()
        check.wait()
    deadline = time.monotonic() + 5
    while Path(f"/proc/{load}").exists() and _state(load) != "Z":
        assert time.monotonic() < deadline, "the load generator is still there"
        time.sleep(0.05)


def _pid(path: Path) -> int:
    deadline = time.monotonic() + 20
    while not (path.exists() and path.read_text("utf-8")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return int(path.read_text("utf-8"))


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "Z"
