"""The tests on GPUs, as far as a machine without one can show that they work."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.gpu import __main__ as command
from tests.gpu import carry, drafting, judged, page, rig, rollout, servers, sizes, steps
from tests.gpu.models import ANSWERS
from tests.gpu.runner import FAIL, NOT_RUN, PASS, Failed, NotRun, Record, Step, run_steps

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def record(tmp_path: Path) -> Record:
    return Record(tmp_path / "results.json", {"date": "2026-12-01", "cards": ["a card"]})


def step(
    run: Callable[[], dict[str, Any]], name: str = "one", limit_s: float = 60, needs: tuple[str, ...] = ()
) -> Step:
    return Step(name, f"Step {name}", run, limit_s, needs)


def refuse(error: Exception) -> Callable[[], dict[str, Any]]:
    def run() -> dict[str, Any]:
        raise error

    return run


@pytest.mark.parametrize(
    ("run", "result", "reason"),
    [
        (lambda: {"seen": 1}, PASS, ""),
        (refuse(NotRun("there is one card")), NOT_RUN, "there is one card"),
        (refuse(Failed("it fell", {"seen": 2})), FAIL, "it fell"),
        (refuse(ValueError("a slip")), FAIL, "ValueError: a slip"),
    ],
)
def test_a_step_passes_fails_or_says_why_it_was_not_run(
    record: Record, run: Callable[[], dict[str, Any]], result: str, reason: str
) -> None:
    assert run_steps([step(run)], record, say=lambda line: None) is (result != FAIL)
    assert record.outcomes["one"].result == result
    assert record.outcomes["one"].reason.startswith(reason)


def test_a_step_that_takes_too_long_fails_and_the_next_one_runs(record: Record) -> None:
    def sleep() -> dict[str, Any]:
        subprocess.run(["sleep", "60"], check=True)
        return {}

    slow = step(sleep, "slow", 5.2)
    begun = time.monotonic()
    run_steps([slow, step(dict, "next")], record, say=lambda line: None)
    assert time.monotonic() - begun < 20
    assert (record.result("slow"), record.result("next")) == (FAIL, PASS)


def test_a_step_whose_need_did_not_pass_is_not_run(record: Record) -> None:
    run_steps(
        [step(refuse(Failed("no")), "first"), step(dict, "second", needs=("first",))],
        record,
        say=lambda line: None,
    )
    assert record.outcomes["second"].result == NOT_RUN
    assert "first" in record.outcomes["second"].reason


def test_no_step_begins_when_the_time_of_the_run_has_ended(record: Record) -> None:
    run_steps([step(dict)], record, deadline=time.monotonic(), say=lambda line: None)
    assert (record.outcomes["one"].result, record.outcomes["one"].reason) == (NOT_RUN, "no time was left")


def test_each_result_is_on_disk_before_the_next_step_begins(record: Record) -> None:
    def look() -> dict[str, Any]:
        assert Record.read(record.path).result("first") == PASS
        return {}

    assert run_steps([step(dict, "first"), step(look, "second")], record, say=lambda line: None)


def test_a_second_run_repeats_only_what_did_not_pass(record: Record) -> None:
    calls: list[str] = []

    def fail_once() -> dict[str, Any]:
        calls.append("second")
        if len(calls) < 3:
            raise Failed("not yet")
        return {}

    def pass_it() -> dict[str, Any]:
        calls.append("first")
        return {}

    both = [step(pass_it, "first"), step(fail_once, "second")]
    assert not run_steps(both, record, say=lambda line: None)
    again = Record.read(record.path)
    assert run_steps(both, again, say=lambda line: None)
    assert calls == ["first", "second", "second"]


def test_the_page_has_the_machine_the_results_the_reasons_and_the_figures(record: Record) -> None:
    table = [{"server": "v2", "at 1": 2.985}, {"server": "v1", "at 8": 3.027}]
    run_steps(
        [
            step(lambda: {"lengths": table, "noise": 0.01234, "said": "one\ntwo"}, "first"),
            step(refuse(NotRun("there is one card")), "second"),
        ],
        record,
        say=lambda line: None,
    )
    text = page.write(record)
    assert "| Cards | a card |" in text
    assert "| Step first | pass |" in text
    assert "* Step second: there is one card" in text
    assert "| v2 | 2.985 |  |" in text
    assert "| Driver | unknown |" in text
    assert "```\none\ntwo\n```" in text


def test_every_step_has_a_name_of_its_own_and_needs_what_comes_before(tmp_path: Path) -> None:
    seen: list[str] = []
    for each in steps.steps(rig.Rig(tmp_path, tmp_path / "none")):
        assert each.name not in seen
        assert set(each.needs) <= set(seen)
        seen.append(each.name)


def test_a_machine_without_a_card_is_told_so_and_nothing_else_is_tried(tmp_path: Path) -> None:
    given = [
        "--results",
        str(tmp_path / "results"),
        "--work",
        str(Path.home() / ".gpu-suite"),
        "--steps",
        "watchdog",
    ]
    arguments = command.arguments(given)
    arguments.work = tmp_path / "work"
    packages = tmp_path / "packages"
    (packages / "sglang-0.5.9.dist-info").mkdir(parents=True)
    arguments.packages = packages
    environment = {"PATH": str(tmp_path)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", environment["PATH"])
        patch.setattr(rig, "environment", lambda folder, paths: folder)
        command.run(arguments)
    said = Record.read(tmp_path / "results" / "results.json")
    assert said.result("train") == NOT_RUN
    assert "nvidia-smi" in said.outcomes["train"].reason
    assert said.result("watchdog") == NOT_RUN
    assert (tmp_path / "results" / "results.md").exists()


def test_an_unknown_step_is_refused_with_those_that_there_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = command.arguments(["--results", str(tmp_path), "--steps", "accept-lenght"])
    assert command.run(arguments) == 2
    assert "accept-length" in capsys.readouterr().err


def test_a_run_in_the_background_takes_relative_paths_and_can_be_watched(tmp_path: Path) -> None:
    suite = [sys.executable, "-m", "tests.gpu", "--results", str(tmp_path / "results")]
    # A name that is refused ends the run at once.
    given = ["--packages", "packages", "--steps", "none"]
    copy = tmp_path / "project"
    for name in ("tests/gpu", "plugins/module_utils", "files/patches", "roles/throughput_check"):
        shutil.copytree(ROOT / name, copy / name)
    begun = subprocess.run([*suite, *given, "--detach"], cwd=copy, capture_output=True, text=True, check=True)
    assert "runs" in begun.stdout
    watched = subprocess.run([*suite, "--watch", "60"], cwd=copy, capture_output=True, text=True, check=True)
    assert "There is no step none" in watched.stdout
    assert "The run has ended." in watched.stdout


def test_a_folder_that_a_namespace_hides_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        command.arguments(["--results", str(tmp_path), "--work", "/tmp/work"])


def test_accept_length_is_unknown_without_speculation() -> None:
    plain = servers.summary([{"meta_info": {"completion_tokens": 8}, "output_ids": [1]}])
    drafted = servers.summary([{"meta_info": {"completion_tokens": 9, "spec_verify_ct": 3}}])
    assert (plain["steps"], plain["accept_length"]) == (None, None)
    assert drafted["accept_length"] == 3


def rounds(lengths: dict[int, float], number: int = 5) -> dict[str, list[dict[str, Any]]]:
    """Samples as the servers' answers give them, through JSON, a little noisy."""
    samples = {
        at_once: [
            {
                "tokens": 3072,
                "steps": 1000,
                "accept_length": length * (1 + 0.002 * n),
                "seconds": 3.0,
                "outputs": [[1]] * 24,
            }
            for n in range(number)
        ]
        for at_once, length in lengths.items()
    }
    data: dict[str, list[dict[str, Any]]] = json.loads(json.dumps(samples))
    return data


def test_the_judge_is_asked_about_what_was_counted() -> None:
    even = judged.verdict(rounds({1: 2.985, 2: 2.985, 4: 2.985, 8: 3.032}))
    assert even.outcome == "pass"


def test_a_fall_of_accept_length_is_told_from_noise() -> None:
    fallen = {
        n: [{"accept_length": length}] for n, length in ((1, 2.985), (2, 2.674), (4, 2.286), (8, 2.054))
    }
    even = {n: [{"accept_length": length}] for n, length in ((1, 2.985), (2, 2.985), (4, 2.985), (8, 3.032))}
    assert drafting.spread(fallen) > drafting.NOISE > drafting.spread(even)
    assert drafting.worst(fallen, even) < -0.3


def test_kernels_are_told_apart_by_grid_and_counted_for_each_step(tmp_path: Path) -> None:
    events = [
        {"cat": "kernel", "name": "_fwd_kernel", "dur": 100.0, "args": {"grid": [1, 8, 1]}},
        {"cat": "kernel", "name": "_fwd_kernel", "dur": 300.0, "args": {"grid": [1, 8, 1]}},
        {"cat": "kernel", "name": "_fwd_kernel", "dur": 10.0, "args": {"grid": [2, 8, 1]}},
        {"cat": "cpu_op", "name": "aten::add", "dur": 9999.0},
    ]
    trace = tmp_path / "a.trace.json.gz"
    with gzip.open(trace, "wt", encoding="utf-8") as file:
        json.dump({"traceEvents": events}, file)
    first, second = drafting.heaviest(trace, steps=2, most=5)
    assert (first["us a step"], first["calls a step"], first["grid"]) == (200.0, 1.0, "1x8x1")
    assert second["us a step"] == 5.0


def test_a_recap_is_summed_and_a_failure_is_quoted() -> None:
    said = (
        "TASK [x]\nfatal: [a]: FAILED! =>\n    msg: no\n"
        "PLAY RECAP ***\na : ok=3 changed=1 failed=1\nb : ok=2 changed=0 failed=0\n"
    )
    play = rig.Play(2, said)
    assert play.counts() == {"ok": 5, "changed": 1, "failed": 1}
    with pytest.raises(Failed) as failure:
        play.require_success()
    assert failure.value.figures["said"].startswith("fatal: [a]")


def test_the_target_learns_the_answer_to_every_question_of_the_canary() -> None:
    defaults = yaml.safe_load((ROOT / "roles/throughput_check/defaults/main.yml").read_text(encoding="utf-8"))
    for question in defaults["throughput_check_questions"]:
        assert re.search(question["expect"], ANSWERS[question["prompt"]])


def test_the_inventory_names_only_variables_that_roles_know(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toolkit = tmp_path / "cuda"
    toolkit.mkdir()
    monkeypatch.setattr(rollout, "TOOLKITS", (toolkit,))
    known: set[str] = set()
    for spec in ROOT.glob("roles/*/meta/argument_specs.yml"):
        for entry in yaml.safe_load(spec.read_text(encoding="utf-8"))["argument_specs"].values():
            known |= set(entry.get("options") or {})
    host = rollout.Host._of_card("NVIDIA H200", "9.0")
    assert set({**rollout.settings(rig.Rig(tmp_path, tmp_path)), **host}) <= known


def test_the_lock_of_the_packages_is_one_that_the_project_reads(tmp_path: Path) -> None:
    from blackwell.release import read_lock

    suite = rig.Rig(tmp_path, tmp_path / "site")
    for name in ("sglang-0.5.9", "partial_json_parser-0.2.1.1.post7"):
        (suite.site / f"{name}.dist-info").mkdir(parents=True)
    rollout.write_lock(suite)
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    lock = read_lock(tmp_path / "lock.txt", sglang="0.5.9", engine="cuda", python=version)
    assert lock.versions == {"sglang": "0.5.9", "partial-json-parser": "0.2.1.1.post7"}
    assert not lock.unhashed


def test_what_is_carried_has_the_pins_and_an_ansible() -> None:
    wanted = carry.requirements()
    assert "sglang==0.5.9" in wanted
    assert any(line.startswith("ansible-core==") for line in wanted)


def test_packages_keep_the_kernels_of_their_architecture_only(tmp_path: Path) -> None:
    kept = ("sgl_kernel/sm90/common_ops.abi3.so", "sgl_kernel/moe.py", "transformers/lib/a.py")
    for name in (*kept, "sgl_kernel/sm100/common_ops.abi3.so", "sgl_kernel/flash_ops.abi3.so", "lib/a.a"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    carry.trim(tmp_path, "sm90")
    left = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert left == set(kept)


def test_the_drafter_reads_other_layers_than_sglang_takes_by_default() -> None:
    default = [2, sizes.FULL.layers // 2, sizes.FULL.layers - 3]
    assert [layer + 1 for layer in sizes.READ_LAYERS] != default
    assert sizes.FULL.draft_window < sizes.FULL.window
