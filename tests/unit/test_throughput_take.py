"""What is measured anew, what is found, and what is refused before an hour is spent on it."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from blackwell.throughput import prompts
from blackwell.throughput.result import Result

from tests.unit.throughput_results import make_result

PROMPTS = Path(__file__).resolve().parents[2] / "roles/throughput_check/files/prompts/prompts.jsonl"
LOAD = {
    "output_tokens": 512,
    "requests_least": 16,
    "requests_per_slot": 4,
    "long_requests_per_slot": 4,
    "chat_template": True,
    "seed": 1,
}
# The form in which a result keeps it.
KEPT_LOAD = {
    "requests": {"least": 16, "per_slot": 4, "long_per_slot": 4},
    "output_tokens": 512,
    "chat_template": True,
    "seed": 1,
    "temperature": 0,
    "ignore_eos": True,
}


class Host:
    """A host whose server does not run, so that nothing but files can be looked at."""

    def __init__(self, folder: Path, run_module: Callable[..., dict[str, Any]]) -> None:
        self.folder, self.run_module = folder, run_module

    def keep(self, name: str, **changes: Any) -> Result:
        """Store a result of the server that runs, with changes."""
        result = make_result(
            identity={
                "prompts_sha256": prompts.load(PROMPTS).sha256,
                "conditions": {"load": KEPT_LOAD, "deployment": "d-1"},
            }
        )
        result = dataclasses.replace(result, **changes)
        (self.folder / f"{name}.json").write_text(json.dumps(result.to_json()))
        return result

    def measure(self, check: bool = True, **changes: Any) -> dict[str, Any]:
        given = {
            "config": str(self.folder / "d-1/eagle3.yaml"),
            "release": {"id": "0.5.9-3fa94c01d2be", "sglang_version": "0.5.9", "python": sys.executable},
            "profile": "eagle3",
            "host": "gpu-1",
            "fingerprint": "f0" * 32,
            "prompts": str(PROMPTS),
            "results": str(self.folder / "results"),
            "accepted": str(self.folder / "accepted.json"),
            "baseline": str(self.folder / "baseline.json"),
            "long_concurrency": [],
            "load": LOAD,
        }
        return self.run_module("throughput_measure", {**given, **changes}, check=check)


@pytest.fixture
def host(tmp_path: Path, run_module: Callable[..., dict[str, Any]]) -> Host:
    return Host(tmp_path, run_module)


def test_nothing_accepted_is_a_measurement_owed(host: Host) -> None:
    told = host.measure()
    assert (told["measured"], "result" in told, told["client_changed"]) == (False, False, False)


def test_the_accepted_result_of_this_server_is_found(host: Host) -> None:
    accepted = host.keep("accepted")
    anchored = host.keep("baseline", taken_at="2026-01-01T00:00:00+00:00")
    told = host.measure(check=False)
    assert (told["changed"], told["result"]) == (False, accepted.to_json())
    assert told["baseline"] == anchored.to_json()


def test_the_first_result_of_a_host_is_not_compared_with_itself(host: Host) -> None:
    host.keep("accepted")
    host.keep("baseline")
    assert host.measure()["baseline"] is None


@pytest.mark.parametrize(
    "changes",
    [
        {"release": "0.5.9-000000000000"},
        {"profile": "baseline"},
        {"fingerprint": "00" * 32},
        {"prompts_sha256": "00" * 32},
        {"client": "sglang.bench_serving 0.5.8"},
        {"conditions": {"load": KEPT_LOAD, "deployment": "d-2"}},
        {"conditions": {"load": {**KEPT_LOAD, "seed": 2}, "deployment": "d-1"}},
    ],
)
def test_an_accepted_result_of_anything_else_is_not_this_one(host: Host, changes: dict[str, Any]) -> None:
    host.keep("accepted", **changes)
    assert "result" not in host.measure()


def test_a_baseline_of_another_load_generator_is_told(host: Host) -> None:
    host.keep("baseline", client="sglang.bench_serving 0.5.8")
    assert host.measure()["client_changed"]


def test_what_the_judge_would_refuse_is_not_measured(host: Host) -> None:
    host.keep("baseline", fingerprint="00" * 32)
    told = host.measure(check=False)
    assert told["failed"]
    assert "host fingerprint" in told["msg"]
    assert "measure a new anchor" in told["msg"]


def test_a_new_baseline_needs_no_old_one(host: Host) -> None:
    """It goes on to the server, which is not there."""
    host.keep("baseline", fingerprint="00" * 32)
    told = host.measure(check=False, to_limit=True)
    assert "host fingerprint" not in told["msg"]
    assert "eagle3.yaml" in told["msg"]


@pytest.mark.parametrize("name", ["accepted", "baseline"])
@pytest.mark.parametrize("content", ["", '{"schema": 1, "host": "gp', "[]", '{"schema": 1}', '{"schema": 9}'])
def test_a_result_file_that_was_cut_is_named_with_the_way_out(host: Host, name: str, content: str) -> None:
    (host.folder / f"{name}.json").write_text(content)
    told = host.measure(check=False)
    assert told["failed"]
    assert f"{name}.json" in told["msg"]
    assert "remove the file" in told["msg"]
