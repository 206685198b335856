"""What the check leaves on a host, and what its timer's service says of a server that changed."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from testinfra.host import Host

STATE = "/var/lib/sglang/throughput"
FOLDER = Path(os.environ["MOLECULE_EPHEMERAL_DIRECTORY"])
PAGES, RECEIPTS = FOLDER / "reports", FOLDER / "receipts"


def change(host: Host, **behaviour: Any) -> None:
    """Switch faults of the server on or off."""
    body = json.dumps(behaviour)
    host.check_output("curl --silent --fail --data %s http://127.0.0.1:30000/stand_in", body)


@pytest.fixture
def server(host: Host) -> Iterator[Host]:
    """The host, whose server is what it was after the test."""
    yield host
    change(host, nonsense=False, step_s=0.01, busy=False)


def roll_out(**variables: Any) -> dict[str, Any]:
    """Run the scenario's playbook with these variables, and return the receipt."""
    project = os.environ["MOLECULE_PROJECT_DIRECTORY"]
    command = ["ansible-playbook", f"--inventory={project}/inventory/molecule", "--limit=molecule-1"]
    command += ["--extra-vars", json.dumps(variables)]
    command += [f"{os.environ['MOLECULE_SCENARIO_DIRECTORY']}/converge.yml"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=project)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    return last_receipt()


def last_receipt() -> dict[str, Any]:
    """The newest receipt on the controller."""
    written = max(RECEIPTS.rglob("*.json"), key=lambda path: path.name)
    read: dict[str, Any] = json.loads(written.read_text("utf-8"))
    return read


def measured(host: Host) -> dict[str, int]:
    """How many results of each profile are kept on the host."""
    found = host.check_output(f"find {STATE}/results -name '*.json'").split()
    profiles = [Path(path).parent.name for path in found]
    return {profile: profiles.count(profile) for profile in ("eagle3", "baseline")}


def stored(host: Host, path: str) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(host.file(f"{STATE}/{path}").content_string)
    return read


def test_the_accepted_result_is_the_baseline(host: Host) -> None:
    accepted = stored(host, "eagle3/accepted.json")
    assert accepted == stored(host, "eagle3/baseline.json")
    assert accepted["canary"]["passed"]


def test_both_profiles_were_measured_once_and_the_faster_one_serves(host: Host) -> None:
    assert measured(host) == {"eagle3": 1, "baseline": 1}
    assert stored(host, "choice.json")["choice"]["profile"] == "eagle3"
    assert host.service("sglang@eagle3.service").is_running
    assert host.service("sglang@eagle3.service").is_enabled


def test_the_receipt_has_the_evidence(host: Host) -> None:
    receipt = json.loads(host.check_output("cat /var/lib/sglang/receipts/2*.json"))
    assert receipt == last_receipt()
    assert receipt["requested"]["profile"] == receipt["serves"]["profile"] == "eagle3"
    assert receipt["choice"]["profile"] == "eagle3"
    assert [step["concurrency"] for step in receipt["choice"]["steps"]] == [1, 2]
    assert all(step["eagle3"] > step["baseline"] for step in receipt["choice"]["steps"])
    assert receipt["result"]["profile"] == "eagle3"
    assert receipt["verdict"]["accepted"]


def test_the_page_says_which_profile_serves_and_why(host: Host) -> None:
    page = PAGES / host.backend.get_hostname() / "index.html"
    assert "eagle3 serves: speculation gives" in page.read_text("utf-8")


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
    for folder in (PAGES, RECEIPTS):
        written = "".join(path.read_text("utf-8") for path in folder.rglob("*") if path.is_file())
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


def test_a_later_rollout_measures_the_chosen_profile_alone(host: Host) -> None:
    before = measured(host)
    receipt = roll_out(eagle3_server_extra_arguments={"log_level": "warning"})
    assert measured(host) == {"eagle3": before["eagle3"] + 1, "baseline": before["baseline"]}
    assert receipt["requested"]["profile"] == "eagle3"
    assert receipt["choice"]["profile"] == "eagle3"


def test_with_a_new_load_generator_what_serves_is_measured_anew_and_stays_the_baseline(host: Host) -> None:
    serves = stored(host, "eagle3/accepted.json")
    before = measured(host)
    host.check_output(f"sed -i 's/bench_serving 0.5.9/bench_serving 0.5.8/' {STATE}/eagle3/baseline.json")
    receipt = roll_out(eagle3_server_extra_arguments={"log_level": "critical"})
    assert measured(host) == {"eagle3": before["eagle3"] + 2, "baseline": before["baseline"]}
    anchored, accepted = stored(host, "eagle3/baseline.json"), stored(host, "eagle3/accepted.json")
    assert anchored["client"] == "sglang.bench_serving 0.5.9"
    assert anchored["conditions"]["deployment"] == serves["conditions"]["deployment"]
    assert accepted["conditions"]["deployment"] == receipt["serves"]["deployment"]
    assert receipt["verdict"]["baseline"]["taken_at"] == anchored["taken_at"]


def test_a_new_deployment_is_measured_between_two_measurements_of_the_old_one(host: Host) -> None:
    serves = stored(host, "eagle3/accepted.json")["conditions"]["deployment"]
    before = measured(host)
    anchored = stored(host, "eagle3/baseline.json")
    receipt = roll_out(rollout_aba=True, eagle3_server_extra_arguments={"log_level": "debug"})
    assert receipt["serves"]["deployment"] != serves
    assert measured(host)["eagle3"] == before["eagle3"] + 3
    assert stored(host, "eagle3/baseline.json") == anchored
    newest = sorted(host.check_output(f"find {STATE}/results -path '*/eagle3/*.json'").split())[-3:]
    deployments = [
        stored(host, str(Path(path).relative_to(STATE)))["conditions"]["deployment"] for path in newest
    ]
    assert deployments == [serves, receipt["serves"]["deployment"], serves]
    assert any("before and after" in note for note in receipt["verdict"]["notes"])


def test_a_profile_that_became_slower_makes_way_when_the_profiles_are_compared_again(host: Host) -> None:
    """A drafter of a new release that costs more than it brings: 75 tokens a second against 100."""
    behaviour = {"ttft_s": 0.1, "step_s": 0.01, "start_s": 0, "eagle3": {"step_s": 0.04}}
    host.check_output("echo %s > /opt/stand-in/behaviour.json", json.dumps(behaviour))
    host.check_output(f"rm {STATE}/choice.json")
    receipt = roll_out(
        eagle3_server_extra_arguments={"log_level": "error"}, throughput_check_new_baseline=True
    )
    assert receipt["choice"]["profile"] == receipt["serves"]["profile"] == "baseline"
    assert all(step["gain"] < 0 for step in receipt["choice"]["steps"])
    assert receipt["result"]["profile"] == "baseline"
    assert host.service("sglang@baseline.service").is_running
    assert host.service("sglang@baseline.service").is_enabled
    assert not host.service("sglang@eagle3.service").is_running
