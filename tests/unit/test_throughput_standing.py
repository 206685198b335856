"""The standing check: a program on its own, made of the code that a rollout measures and judges with."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from blackwell.throughput import prompts, standing
from blackwell.throughput.alone import alone
from blackwell.throughput.measure import Sizes
from blackwell.throughput.record import Record
from blackwell.throughput.result import Point, Result, Run

from tests.stand_in.client import environment
from tests.stand_in.server import Behaviour, StandIn

PROMPTS = Path(__file__).resolve().parents[2] / "roles/throughput_check/files/prompts/prompts.jsonl"
QUICK = Behaviour(ttft_s=0.02, step_s=0.002, accept_length=3.0)
SIZES = Sizes(least=2, per_slot=1, long_per_slot=1)
RELEASE = {"id": "0.5.9-0123456789ab", "sglang_version": "0.5.9", "python": sys.executable}


class Host:
    """A host with an accepted server, in a folder."""

    def __init__(self, folder: Path, program: Path, server: StandIn) -> None:
        self.folder, self.program, self.server = folder, program, server
        deployment = folder / "etc/d-1"
        deployment.mkdir(parents=True)
        (deployment / "eagle3.yaml").write_text(f'host: "127.0.0.1"\nport: {server.url.rpartition(":")[2]}\n')
        accepted = {"deployment": "d-1", "profile": "eagle3", "release": RELEASE["id"]}
        (folder / "etc/accepted.json").write_text(json.dumps(accepted))
        release = folder / "opt/releases" / RELEASE["id"]
        release.mkdir(parents=True)
        (release / "manifest.json").write_text(json.dumps(RELEASE))
        (folder / "state/eagle3").mkdir(parents=True)

    def set_baseline(self, decode_tok_s: float) -> None:
        """A baseline whose decode rate is beyond all doubt on one side of the server's; its TTFT is always worse."""
        run = Run(
            valid=True,
            requests=2,
            failures=0,
            duration_s=1.0,
            output_tokens=56,
            decode_tok_s=decode_tok_s,
            output_tok_s=decode_tok_s / 2,
            ttft_s=60.0,
            ttft_p99_s=60.0,
            itl_p50_ms=1.0,
            itl_p95_ms=1.0,
            itl_p99_ms=1.0,
            accept_length=3.0,
            step_rate=decode_tok_s / 3,
            graph_share=1.0,
        )
        runs = [dataclasses.replace(run, decode_tok_s=decode_tok_s * (1 + i / 1000)) for i in range(20)]
        load = {
            "requests": dataclasses.asdict(SIZES),
            "output_tokens": 28,
            "chat_template": True,
            "seed": 1,
            "temperature": 0,
            "ignore_eos": True,
        }
        baseline = Result(
            host="gpu-1",
            taken_at="2026-03-02T02:14:00+00:00",
            release="0.5.9-ba9876543210",
            sglang_version="0.5.9",
            profile="eagle3",
            fingerprint="f00d",
            prompts_sha256=prompts.load(PROMPTS).sha256,
            client="sglang.bench_serving 0.5.9",
            conditions={"load": load},
            points=[Point(1, runs), Point(8, runs)],
        )
        (self.folder / "state/eagle3/baseline.json").write_text(json.dumps(baseline.to_json()))

    def check(
        self,
        _environment: dict[str, str] | None = None,
        _isolated: bool = True,
        _here: pytest.CaptureFixture[str] | None = None,
        **changes: Any,
    ) -> subprocess.CompletedProcess[str]:
        settings = {
            "state": str(self.folder / "state"),
            "root": str(self.folder / "opt"),
            "config_directory": str(self.folder / "etc"),
            "quiet_s": 0.1,
            "keep": 2,
            "prompts": str(PROMPTS),
            "questions": [{"prompt": "What is the capital of France?", "expect": "Paris"}],
            "answer_tokens": 32,
            "transcript_prompts": 2,
            "transcript_tokens": 28,
            "reference": None,
            "exact": False,
            "policy": {"min_runs": 5, "max_runs": 5},
            "concurrency": [1],
            "long_concurrency": [],
            "load": {
                "output_tokens": 28,
                "requests_least": SIZES.least,
                "requests_per_slot": SIZES.per_slot,
                "long_requests_per_slot": SIZES.long_per_slot,
                "chat_template": True,
                "seed": 1,
            },
            "disturbed_limit": 1,
            "run_timeout": 60,
            "idle_timeout": 1,
            "stall": 5,
            "tokenizer": None,
            "progress": None,
            "user": "",
            "environment": environment("0.5.9"),
            "nvidia_smi": "no-such-program",
        }
        path = self.folder / "standing.json"
        path.write_text(json.dumps({**settings, **changes}))
        if _here:
            status = standing.main([str(path)])
            return subprocess.CompletedProcess([], status, _here.readouterr().out, "")
        command = [sys.executable, *(["-I"] if _isolated else []), str(self.program), str(path)]
        env = {**os.environ, **(_environment or {})}
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd="/", env=env)

    @property
    def kept(self) -> list[Path]:
        return sorted((self.folder / "state/standing").glob("*.json"))


@pytest.fixture
def program(tmp_path: Path, run_module: Callable[..., dict[str, Any]]) -> Path:
    path = tmp_path / "program/check.pyz"
    assert run_module("standing_check_program", {"path": str(path)})["changed"]
    return path


@pytest.fixture
def host(tmp_path: Path, program: Path) -> Iterator[Host]:
    with StandIn(QUICK) as server:
        yield Host(tmp_path / "host", program, server)


def test_the_program_has_all_that_it_needs_and_no_report(program: Path) -> None:
    names = zipfile.ZipFile(program).namelist()
    assert "blackwell/throughput/judge.py" in names
    assert "blackwell/throughput/report.py" not in names
    assert "blackwell/bundle.py" not in names


def test_the_program_is_written_once(program: Path, run_module: Callable[..., dict[str, Any]]) -> None:
    before = program.read_bytes()
    assert not run_module("standing_check_program", {"path": str(program)})["changed"]
    assert program.read_bytes() == before


def test_check_mode_writes_nothing(tmp_path: Path, run_module: Callable[..., dict[str, Any]]) -> None:
    path = tmp_path / "other.pyz"
    assert run_module("standing_check_program", {"path": str(path)}, check=True)["changed"]
    assert not path.exists()


def test_a_server_that_became_slower_fails(host: Host) -> None:
    host.set_baseline(1_000_000)
    said = host.check()
    assert said.returncode == 1, said.stderr
    assert "Decode" in said.stdout
    assert json.loads(host.kept[0].read_text("utf-8"))["verdict"]["outcome"] == "fail"


def test_a_server_that_is_no_slower_passes(host: Host) -> None:
    host.set_baseline(1)
    said = host.check()
    assert said.returncode == 0, said.stdout + said.stderr
    assert len(host.kept) == 1


def test_a_server_that_became_wrong_fails_and_is_not_measured(host: Host) -> None:
    host.set_baseline(1)
    host.server.change(nonsense=True)
    said = host.check()
    assert said.returncode == 1
    assert "letters or digits" in said.stdout
    assert not host.kept


@pytest.mark.parametrize(
    "work",
    [pytest.param({"busy": True}, id="one request"), pytest.param({"others_end": 1}, id="many requests")],
)
def test_a_server_at_work_is_left_alone(host: Host, work: dict[str, Any]) -> None:
    host.set_baseline(1_000_000)
    host.server.change(**work)
    said = host.check()
    assert said.returncode == 0, said.stderr
    assert "at work" in said.stdout
    assert not host.kept


def _recorded(host: Host) -> dict[str, Any]:
    assert len(host.kept) == 1
    kept = json.loads(host.kept[0].read_text("utf-8"))
    assert Record.from_json(kept).to_json() == kept
    verdict: dict[str, Any] = kept["verdict"]
    return verdict


def test_without_a_baseline_there_is_nothing_to_do(host: Host) -> None:
    said = host.check()
    assert said.returncode == 0
    assert "no anchored measurement" in said.stdout
    verdict = _recorded(host)
    assert (verdict["outcome"], verdict["accepted"]) == ("undecidable", False)
    assert "no anchored measurement" in verdict["headline"]


DAMAGE = {
    "empty": b"",
    "cut off": b'{"release": "0.5',
    "no object": b"[1]",
    "other fields": b'{"schema": 1}',
    "other types": b'{"release": 5, "deployment": ["d-1"], "profile": null, "id": 1, "schema": 1, "points": 7}',
    "no text": b"\xff\xfe\x00",
    "too deep": b"[" * 100_000,
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize(
    "path",
    [
        "etc/accepted.json",
        f"opt/releases/{RELEASE['id']}/manifest.json",
        "state/eagle3/baseline.json",
        "etc/d-1/eagle3.yaml",
    ],
)
def test_what_is_damaged_on_the_host_makes_the_check_undecidable(
    host: Host, path: str, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    host.set_baseline(1)
    (host.folder / path).write_bytes(DAMAGE[damage])
    said = host.check(_here=capsys)
    assert said.returncode == 1
    assert said.stderr == ""
    assert str(host.folder / path) in said.stdout and "To mend it" in said.stdout
    verdict = _recorded(host)
    assert verdict["outcome"] == "undecidable"
    assert str(host.folder / path) in verdict["headline"]


@pytest.mark.parametrize("path", ["etc/accepted.json", f"opt/releases/{RELEASE['id']}/manifest.json"])
def test_what_is_missing_on_the_host_makes_the_check_undecidable(host: Host, path: str) -> None:
    host.set_baseline(1)
    (host.folder / path).unlink()
    said = host.check()
    assert (said.returncode, said.stderr) == (1, "")
    assert _recorded(host)["outcome"] == "undecidable"


@pytest.mark.parametrize(
    "figure",
    [
        {"decode_tok_s": "fast"},
        {"valid": "yes"},
        {"failures": None},
        {"invalid_because": "busy"},
        {"gpu": {"clock_mhz": "high"}},
        {"colour": "red"},
    ],
)
def test_an_anchor_with_a_figure_that_is_none_is_named(
    host: Host, figure: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    host.set_baseline(1)
    path = host.folder / "state/eagle3/baseline.json"
    content = json.loads(path.read_text("utf-8"))
    content["points"][0]["runs"][3].update(figure)
    path.write_text(json.dumps(content), encoding="utf-8")
    said = host.check(_here=capsys)
    assert (said.returncode, said.stderr) == (1, "")
    assert str(path) in said.stdout and next(iter(figure)) in said.stdout


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e300, None])
def test_an_anchor_with_a_run_that_lacks_a_figure_decides_nothing(
    host: Host, value: float | None, capsys: pytest.CaptureFixture[str]
) -> None:
    host.set_baseline(1)
    path = host.folder / "state/eagle3/baseline.json"
    content = json.loads(path.read_text("utf-8"))
    content["points"][0]["runs"][3]["decode_tok_s"] = value
    path.write_text(json.dumps(content), encoding="utf-8")
    said = host.check(_here=capsys)
    assert (said.returncode, said.stderr) == (1, "")
    assert _recorded(host)["outcome"] == "undecidable"
    assert "Decode" in said.stdout and "To mend it" in said.stdout


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{}", b'{"state": 5}', b'{"state": "/nowhere", "config_directory": 1}']
)
def test_damaged_settings_are_named(
    tmp_path: Path, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "standing.json"
    path.write_bytes(content)
    assert standing.main([str(path)]) == 1
    said = capsys.readouterr().out
    assert str(path) in said and "run site.yml" in said


@pytest.mark.parametrize(
    "path", ["/metrics", "/server_info", "/generate", "/v1/chat/completions", "/flush_cache"]
)
def test_a_server_that_dies_in_the_middle_of_an_answer_is_told(host: Host, path: str) -> None:
    host.set_baseline(1)
    host.server.change(breaks_off=path)
    said = host.check()
    assert (said.returncode, said.stderr) == (1, "")
    assert "in the middle of the answer" in said.stdout


def test_a_server_whose_count_of_requests_is_no_number_is_not_taken_for_idle(host: Host) -> None:
    host.set_baseline(1)
    host.server.change(nan_counter="num_requests_total", others_end=1)
    said = host.check()
    assert (said.returncode, said.stderr) == (1, "")
    assert "num_requests_total" in said.stdout


def test_what_the_server_says_is_printed_in_any_locale(host: Host) -> None:
    host.set_baseline(1)
    host.server.change(tool_choice={"message": {"tool_calls": None, "content": "→ \ud800 ä"}})
    said = host.check(
        _environment={"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}, _isolated=False
    )
    assert (said.returncode, said.stderr) == (1, "")
    assert "no tool was called" in said.stdout


def test_a_host_without_an_accepted_server_is_told_what_to_do(host: Host) -> None:
    (host.folder / "etc/accepted.json").unlink()
    said = host.check()
    assert said.returncode == 1
    assert "site.yml" in said.stdout


def test_edited_prompts_are_named_before_anything_is_measured(host: Host, tmp_path: Path) -> None:
    host.set_baseline(1)
    edited = tmp_path / "prompts.jsonl"
    edited.write_text(PROMPTS.read_text("utf-8").replace("ring buffer", "queue"))
    said = host.check(prompts=str(edited))
    assert said.returncode == 1
    assert "prompts" in said.stdout and "new anchor" in said.stdout
    assert _recorded(host)["outcome"] == "undecidable"
    (kept,) = host.kept
    assert json.loads(kept.read_text("utf-8"))["result"]["points"] == [], "nothing was measured"


def test_a_baseline_that_was_cut_is_named_with_the_way_out(host: Host) -> None:
    host.set_baseline(1)
    path = host.folder / "state/eagle3/baseline.json"
    path.write_text(path.read_text("utf-8")[:1000])
    said = host.check()
    assert said.returncode == 1
    assert str(path) in said.stdout and "remove the file" in said.stdout


def test_a_check_beside_another_one_leaves_the_server_alone(host: Host) -> None:
    host.set_baseline(1_000_000)
    with alone(host.folder / "etc/d-1/eagle3.yaml", 0.0):
        said = host.check(idle_timeout=0.2)
    assert said.returncode == 0, said.stdout
    assert "one check at a time" in said.stdout
    assert not host.kept


def test_a_full_disk_is_told(host: Host) -> None:
    host.set_baseline(1)
    (host.folder / "state/standing").write_text("a file where the folder should be")
    said = host.check()
    assert said.returncode == 1
    assert "standing" in said.stdout and "Traceback" not in said.stderr


@pytest.mark.parametrize(("keep", "kept"), [(0, 0), (1, 1), (2, 2), (3, 3), (9, 4)])
def test_old_checks_go(host: Host, keep: int, kept: int, capsys: pytest.CaptureFixture[str]) -> None:
    folder = host.folder / "state/standing"
    folder.mkdir()
    for day in (1, 2, 3):
        (folder / f"2025-01-0{day}T000000Z-eagle3.json").write_text("{}")
    host.check(keep=keep, _here=capsys)
    assert len(host.kept) == kept
    assert [path.name[:10] for path in host.kept[:-1]] == [f"2025-01-0{day}" for day in range(5 - kept, 4)]
