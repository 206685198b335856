"""What the check leaves on a host, and what its timer's service says of a server that changed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from testinfra.host import Host

STATE = "/var/lib/sglang/throughput"
PAGES = Path(os.environ["MOLECULE_EPHEMERAL_DIRECTORY"]) / "reports"


def change(host: Host, **behaviour: Any) -> None:
    """Switch faults of the server on or off."""
    body = json.dumps(behaviour)
    host.check_output("curl --silent --fail --data '%s' http://127.0.0.1:30000/stand_in", body)


@pytest.fixture
def server(host: Host) -> Iterator[Host]:
    """The host, whose server is what it was after the test."""
    yield host
    change(host, nonsense=False, step_s=0.01, busy=False)


def stored(host: Host, path: str) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(host.file(f"{STATE}/{path}").content_string)
    return read


def test_the_accepted_result_is_the_baseline(host: Host) -> None:
    accepted = stored(host, "eagle3/accepted.json")
    assert accepted == stored(host, "eagle3/baseline.json")
    assert accepted["canary"]["passed"]


def test_both_points_have_five_runs_that_count(host: Host) -> None:
    points = stored(host, "eagle3/accepted.json")["points"]
    assert [point["concurrency"] for point in points] == [1, 2]
    for point in points:
        assert sum(run["valid"] for run in point["runs"]) == 5


def test_the_figures_are_those_of_the_server(host: Host) -> None:
    """Accept length is counted, so it is exact; the rate of 300 tokens a second is within what a busy machine does."""
    runs = [run for run in stored(host, "eagle3/accepted.json")["points"][0]["runs"] if run["valid"]]
    assert {run["accept_length"] for run in runs} == {3.0}
    assert all(run["output_tokens"] == 4 * 61 for run in runs)
    assert all(150 < run["decode_tok_s"] < 310 for run in runs)


def test_no_key_is_on_the_disk(host: Host) -> None:
    assert host.run(f"grep --recursive --files-with-matches planted- {STATE}").rc == 1
    written = "".join(path.read_text("utf-8") for path in PAGES.rglob("*") if path.is_file())
    assert written
    assert "planted-" not in written


def test_the_load_generator_ran_as_the_service_user_and_left_nothing(host: Host) -> None:
    assert host.run("ls -d /tmp/throughput-*").rc != 0


def test_the_timer_waits_for_the_night(host: Host) -> None:
    assert host.service("sglang-throughput.timer").is_running
    assert host.service("sglang-throughput.timer").is_enabled


def test_the_standing_check_passes_and_keeps_what_it_saw(server: Host) -> None:
    said = server.run("systemctl start sglang-throughput.service")
    assert said.rc == 0, server.check_output("journalctl --unit=sglang-throughput --no-pager --lines=50")
    kept = server.check_output(f"ls {STATE}/standing").split()
    assert kept


def test_the_standing_check_fails_when_the_server_is_wrong(server: Host) -> None:
    change(server, nonsense=True)
    assert server.run("systemctl start sglang-throughput.service").rc != 0
    assert "letters or digits" in server.check_output(
        "journalctl --unit=sglang-throughput --no-pager --lines=20"
    )


def test_the_standing_check_fails_when_the_server_is_slower(server: Host) -> None:
    change(server, step_s=0.04)
    assert server.run("systemctl start sglang-throughput.service").rc != 0
    assert "Decode" in server.check_output("journalctl --unit=sglang-throughput --no-pager --lines=60")


def test_the_standing_check_leaves_a_busy_server_alone(server: Host) -> None:
    change(server, busy=True)
    assert server.run("systemctl start sglang-throughput.service").rc == 0
    assert "at work" in server.check_output("journalctl --unit=sglang-throughput --no-pager --lines=5")
