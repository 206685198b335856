"""What is known of the GPUs of a run, with programs that stand in for nvidia-smi."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from blackwell.throughput import gpu
from blackwell.throughput.gpu import Sampler

A, B = "GPU-aaaaaaaa-0000-0000-0000-000000000000", "GPU-bbbbbbbb-0000-0000-0000-000000000000"
WELL = "2430, 14001, 412.33, 61, 0x0000000000000004"
BRAKE = "2430, 14001, 412.33, 61, 0x0000000000000080"


@pytest.fixture
def smi(tmp_path: Path) -> Callable[[str], str]:
    """A program in Python that stands in for nvidia-smi."""

    def write(body: str) -> str:
        path = tmp_path / "nvidia-smi"
        path.write_text(
            f"#!{sys.executable}\nimport os, signal, sys, time\n"
            f"def say(text):\n    print(text, flush=True)\n{body}\n",
            encoding="utf-8",
        )
        path.chmod(0o755)
        return str(path)

    return write


def sample(sampler: Sampler, seconds: float = 0.5) -> list[gpu.Sample]:
    sampler.start()
    time.sleep(seconds)
    return sampler.stop()


def test_a_power_brake_is_seen_though_more_was_printed_before_than_a_pipe_holds(
    smi: Callable[[str], str],
) -> None:
    body = f"""
for second in range(400):
    for card in range(8):
        say(f"{{card}}, " + ("{BRAKE}" if second >= 390 else "{WELL}"))
time.sleep(60)
"""
    sampler = Sampler(smi(body))
    samples = sample(sampler, 2.0)
    assert (len(samples), sampler.unwatched) == (3200, [])
    assert gpu.throttles(samples) == ["hardware power brake on GPU 0, 1, 2, 3, 4, 5, 6, 7"]


def test_a_long_run_takes_no_more_memory_and_forgets_no_throttling() -> None:
    well, brake = (gpu.parse(f"0, {row}")[0] for row in (WELL, BRAKE))
    kept = gpu.thinned([well] * 999 + [brake] + [well] * 1000)
    assert len(kept) <= 1001
    assert gpu.throttles(kept) == ["hardware power brake on GPU 0"]


@pytest.mark.parametrize(
    ("body", "named"),
    [
        pytest.param("sys.exit(9)", "with status 9", id="ends at once"),
        pytest.param(f"say('0, {WELL}'); sys.exit(0)", "with status 0", id="ends well"),
        pytest.param(f"say('0, {WELL}'); os.kill(os.getpid(), signal.SIGKILL)", "by SIGKILL", id="killed"),
        pytest.param("time.sleep(60)", "no row of a card", id="says nothing"),
        pytest.param(f"say('0, {WELL}'); time.sleep(60)", "no row of GPU 0 for", id="falls silent"),
        pytest.param(
            f"say('0, {WELL}'); say('1, {WELL}')\nwhile True: time.sleep(0.05); say('0, {WELL}')",
            "no row of GPU 1 for",
            id="loses a card",
        ),
        pytest.param(
            "say('Unable to determine the device handle for GPU0000:01:00.0: Unknown Error'); time.sleep(60)",
            "Unable to determine the device handle",
            id="says why not",
        ),
        pytest.param(
            f"say('0, {WELL}')\nwhile True: time.sleep(0.05); say('0, {WELL}'); "
            "say('1, 2430, 14001, [N/A], 61, [GPU requires reset]')",
            "GPU 1 does not tell",
            id="a card that wants a reset",
        ),
        pytest.param(
            "print('x' * 10_000_000, end='', flush=True); time.sleep(60)", "no row of a card", id="no end"
        ),
    ],
)
def test_what_nobody_watched_is_not_known(smi: Callable[[str], str], body: str, named: str) -> None:
    sampler = Sampler(smi(body), silence_s=0.5, start_s=1.5)
    sample(sampler, 1.2)
    assert named in "; ".join(sampler.unwatched)


def test_the_program_that_cannot_be_run_is_named(tmp_path: Path) -> None:
    path = tmp_path / "nvidia-smi"
    path.write_text("#!/no/such/interpreter\n", encoding="utf-8")
    path.chmod(0o755)
    sampler = Sampler(str(path))
    assert sample(sampler, 0.0) == []
    assert str(path) in sampler.unwatched[0]


def test_odd_lines_are_tolerated_and_told(smi: Callable[[str], str]) -> None:
    warning = "WARNING: infoROM is corrupted at gpu 0000:01:00.0"
    sampler = Sampler(smi(f"while True: say('{warning}'); say('0, {WELL}'); time.sleep(0.05)"))
    assert sample(sampler)
    assert (sampler.unwatched, sampler.said) == ([], [warning])


def test_only_the_chosen_cards_count(smi: Callable[[str], str]) -> None:
    body = f"while True: say('0, {BRAKE}, {A}'); say('1, {WELL}, {B}'); time.sleep(0.05)"
    sampler = Sampler(smi(body), [B])
    samples = sample(sampler)
    assert {row.uuid for row in samples} == {B}
    assert (gpu.throttles(samples), sampler.unwatched) == ([], [])


def test_a_chosen_card_that_is_not_there_is_named(smi: Callable[[str], str]) -> None:
    sampler = Sampler(smi(f"while True: say('0, {WELL}, {A}'); time.sleep(0.05)"), [A, B])
    sample(sampler)
    assert B in "; ".join(sampler.unwatched)


def test_chosen_cards_need_a_program_and_no_cards_need_none() -> None:
    chosen, none = Sampler("no-such-program", [A]), Sampler("no-such-program")
    assert (sample(chosen, 0), sample(none, 0)) == ([], [])
    assert (len(chosen.unwatched), none.unwatched) == (1, [])


def test_a_run_that_is_over_at_once_waits_for_the_first_row(smi: Callable[[str], str]) -> None:
    sampler = Sampler(smi(f"time.sleep(0.7)\nwhile True: say('0, {WELL}'); time.sleep(0.05)"))
    assert sample(sampler, 0.0)
    assert sampler.unwatched == []


def test_nothing_is_left_running(smi: Callable[[str], str], tmp_path: Path) -> None:
    body = f"""
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open({str(tmp_path / "pid")!r}, "w").write(str(os.getpid()))
while True: say('0, {WELL}'); time.sleep(0.05)
"""
    sampler = Sampler(smi(body))
    sample(sampler)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text("utf-8")), 0)
