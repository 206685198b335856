"""playbooks/rollback.yml by itself: nothing was staged, measured or looked at before it in the same run."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.rollout.fleet import ROOT, SETTINGS, Fleet, Run, podman, wait_until

# The canary is the project's own, not that of quick/; the stand-in knows this answer.
QUESTION = {"prompt": "What is the capital of France?", "expect": r"\bParis\b"}


def go_back(*arguments: str, **variables: Any) -> Run:
    """Run the playbook as an operator does."""
    return Run(
        ROOT / "playbooks" / "rollback.yml",
        list(arguments),
        {**SETTINGS, "throughput_check_questions": [QUESTION], **variables},
        quick=False,
    )


def test_an_operator_goes_back_to_what_was_accepted_before_and_names_a_release(fleet: Fleet) -> None:
    before = fleet.ready(alike=True)
    fleet.deploy(fleet.new_release())
    after = {host: fleet.current(host) for host in fleet.hosts}
    assert all(after[host] != before[host] for host in fleet.hosts)

    back = go_back().succeeded()
    for host in fleet.hosts:
        assert fleet.running(host) == fleet.current(host) == before[host]
        receipt = fleet.receipt(host)
        assert receipt["began"] > back.began and receipt["outcome"] == "accepted"
        assert receipt["requested"]["release"] == before[host]
    assert fleet.serving() == fleet.hosts

    # The same command again goes on where it was broken off; where it was not, there is nothing to do.
    starts = {host: fleet.invocation(host) for host in fleet.hosts}
    go_back().succeeded()
    assert {host: fleet.invocation(host) for host in fleet.hosts} == starts

    go_back(sglang_release=after[fleet.hosts[0]]).succeeded()
    assert {host: fleet.running(host) for host in fleet.hosts} == after

    # What was never accepted is refused before a host is taken out.
    starts = {host: fleet.invocation(host) for host in fleet.hosts}
    refused = go_back(sglang_release="0.0.0-000000000000").failed()
    assert "0.0.0-000000000000 was not accepted on this host" in refused.text
    assert {host: fleet.invocation(host) for host in fleet.hosts} == starts
    assert fleet.serving() == fleet.hosts


def test_where_a_rollout_reached_only_some_hosts_it_asks_for_the_name(fleet: Fleet) -> None:
    before = fleet.ready(alike=True)
    first, *others = fleet.hosts
    fleet.deploy(fleet.new_release())
    whole = {host: fleet.running(host) for host in fleet.hosts}
    fleet.deploy(fleet.new_release(), hosts=[first])
    half = fleet.running(first)
    starts = {host: fleet.invocation(host) for host in fleet.hosts}

    refused = go_back().failed()

    assert f"{first}: {half} -> {whole[first]}" in refused.text
    assert all(f"{host}: {whole[host]} -> {before[host]}" in refused.text for host in others)
    assert {host: fleet.invocation(host) for host in fleet.hosts} == starts

    go_back(sglang_release=whole[first]).succeeded()
    assert {host: fleet.running(host) for host in fleet.hosts} == whole
    assert {host: fleet.invocation(host) for host in others} == {host: starts[host] for host in others}


@pytest.mark.parametrize("phase", ["start", "prove", "restore"])
def test_a_way_back_that_is_killed_is_finished_by_the_same_command(fleet: Fleet, phase: str) -> None:
    before = fleet.ready(alike=True)
    fleet.deploy(fleet.new_release())
    run = go_back()
    run.until(f"{fleet.hosts[1]}: {phase}")
    run.kill()

    go_back().succeeded()

    assert {host: fleet.running(host) for host in fleet.hosts} == before
    assert {host: fleet.accepted(host)["release"] for host in fleet.hosts} == before
    assert fleet.serving() == fleet.hosts
    fleet.ssh(fleet.hosts[1], "test ! -e /var/lib/sglang/receipts/pending.json")


def test_a_run_that_cannot_take_its_host_out_leaves_a_broken_one_to_be_finished(fleet: Fleet) -> None:
    before = fleet.ready()
    first = fleet.hosts[0]
    fleet.deploy(fleet.new_release(), hosts=[first])
    broken = go_back(f"--limit={first}")
    broken.until(f"{first}: start")
    broken.kill()
    podman("pause", fleet.gateway)
    try:
        refused = go_back(f"--limit={first}").failed()
    finally:
        podman("unpause", fleet.gateway)
    assert "as the run left it that was broken off before" in " ".join(refused.text.split())
    fleet.ssh(first, "test -e /var/lib/sglang/receipts/pending.json")

    go_back(f"--limit={first}").succeeded()

    assert fleet.running(first) == fleet.current(first) == before[first]
    assert fleet.serving() == fleet.hosts and fleet.receipt(first)["outcome"] == "accepted"


def test_an_acceptance_that_was_broken_off_before_its_record_is_taken_back(fleet: Fleet) -> None:
    before = fleet.ready()
    first = fleet.hosts[0]
    record = fleet.accepted(first)
    fleet.deploy(fleet.new_release(), hosts=[first])
    # What make_accepted.yml leaves when it is killed before its record: the unit of the new one, the record of the old.
    fleet.ssh(first, f"cat > /etc/sglang/accepted.json <<< '{json.dumps(record)}'")

    go_back(f"--limit={first}").succeeded()

    assert fleet.running(first) == fleet.current(first) == before[first]
    fleet.ssh(first, "systemctl daemon-reload && systemctl restart sglang@eagle3")
    wait_until(lambda: fleet.answers(first), seconds=60, why="what the machine starts at boot")
    assert fleet.running(first) == before[first]


def test_an_acceptance_that_was_broken_off_after_its_record_is_ended(fleet: Fleet) -> None:
    before = fleet.ready()
    first = fleet.hosts[0]
    fleet.deploy(fleet.new_release(), hosts=[first])
    after = fleet.running(first)
    go_back(f"--limit={first}").succeeded()
    # What it leaves when it is killed between the record and the link: no receipt, and the link of the other one.
    start = fleet.invocation(first)
    fleet.ssh(first, "cd /var/lib/sglang/receipts && mv $(ls *Z-*.json | tail -1) pending.json")
    fleet.ssh(first, f"ln -sfn releases/{after} /opt/sglang/current")

    go_back(f"--limit={first}").succeeded()

    assert fleet.running(first) == fleet.current(first) == before[first]
    assert fleet.invocation(first) == start and fleet.serving() == fleet.hosts


def test_an_upgrade_that_was_broken_off_before_its_start_is_given_up(fleet: Fleet) -> None:
    fleet.ready()
    first = fleet.hosts[0]
    fleet.deploy(fleet.new_release(), hosts=[first])
    serves, start = fleet.running(first), fleet.invocation(first)
    broken = fleet.start(fleet.new_release(), hosts=[first])
    broken.until(f"{first}: wait")
    broken.kill()

    go_back(f"--limit={first}").succeeded()

    assert fleet.running(first) == fleet.current(first) == serves and fleet.invocation(first) == start
    assert fleet.serving() == fleet.hosts


def test_a_server_that_a_broken_way_back_has_just_started_is_waited_for(fleet: Fleet) -> None:
    fleet.ready()
    first = fleet.hosts[0]
    fleet.deploy(fleet.new_release(), {"start_s": 30}, hosts=[first])
    before = fleet.running(first)
    fleet.deploy(fleet.new_release(), hosts=[first])
    broken = go_back(f"--limit={first}")
    broken.until(f"{first}: start")
    wait_until(lambda: fleet.running(first) == before, seconds=60, why="systemd has started it")
    broken.kill()
    start = fleet.invocation(first)

    go_back(f"--limit={first}").succeeded()

    assert fleet.running(first) == fleet.current(first) == before and fleet.invocation(first) == start
    assert fleet.serving() == fleet.hosts


def test_what_has_died_is_not_started_again(fleet: Fleet) -> None:
    before = fleet.ready()
    first = fleet.hosts[0]
    fleet.deploy(fleet.new_release(), hosts=[first])
    fleet.ssh(first, "systemctl stop sglang@eagle3")

    go_back(f"--limit={first}").succeeded()

    assert fleet.running(first) == fleet.current(first) == before[first]
    assert fleet.serving() == fleet.hosts and fleet.answers(first)


def test_what_serves_is_put_back_when_the_older_release_does_not_start(fleet: Fleet) -> None:
    before = fleet.ready(alike=True)
    first, *others = fleet.hosts
    fleet.deploy(fleet.new_release())
    after, starts = fleet.running(first), {host: fleet.invocation(host) for host in others}
    behaviour = f"/opt/sglang/releases/{before[first]}/venv/lib/python3.11/site-packages/behaviour.json"
    fleet.ssh(first, f"echo '{{\"crash\": true}}' > {behaviour}")

    back = go_back().failed()

    assert "crashes at its start" in back.text and f"{after}-" in back.text
    assert fleet.running(first) == fleet.current(first) == fleet.accepted(first)["release"] == after
    receipt = fleet.receipt(first)
    assert (receipt["outcome"], receipt["requested"]["release"]) == ("returned", before[first])
    assert fleet.serving() == fleet.hosts and fleet.answers(first)
    assert {host: fleet.invocation(host) for host in others} == starts


def test_a_gateway_that_cannot_be_asked_stops_it_before_a_host_is_taken_out(fleet: Fleet) -> None:
    fleet.ready(alike=True)
    fleet.deploy(fleet.new_release())
    starts = {host: fleet.invocation(host) for host in fleet.hosts}
    podman("pause", fleet.gateway)
    try:
        back = go_back().failed()
    finally:
        podman("unpause", fleet.gateway)
    assert f"No ssh to {fleet.gateway}" in back.text and '"rollout_gateways": []' in back.text
    assert {host: fleet.invocation(host) for host in fleet.hosts} == starts
    assert fleet.serving() == fleet.hosts
