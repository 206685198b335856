"""The standing check: a program on its own, made of the code that a rollout measures and judges with."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from blackwell.throughput import prompts
from blackwell.throughput.measure import Sizes, alone
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

    def check(self, **changes: Any) -> subprocess.CompletedProcess[str]:
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
        command = [sys.executable, "-I", str(self.program), str(path)]
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")

    @property
    def kept(self) -> list[Path]:
        return sorted((self.folder / "state/standing").glob("*.json"))


@pytest.fixture
def program(tmp_path: Path, run_module: Callable[..., dict[str, Any]]) -> Path:
    path = tmp_path / "check.pyz"
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


def test_without_a_baseline_there_is_nothing_to_do(host: Host) -> None:
    said = host.check()
    assert said.returncode == 0
    assert "no anchored measurement" in said.stdout


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
    assert not host.kept


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


def test_old_checks_go(host: Host) -> None:
    host.set_baseline(1)
    folder = host.folder / "state/standing"
    folder.mkdir()
    for day in (1, 2, 3):
        (folder / f"2025-01-0{day}T000000Z-eagle3.json").write_text("{}")
    host.check()
    assert len(host.kept) == 2
    assert host.kept[0].name.startswith("2025-01-03")
