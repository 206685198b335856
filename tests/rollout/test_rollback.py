"""playbooks/rollback.yml by itself: nothing was staged, measured or looked at before it in the same run."""

from __future__ import annotations

from typing import Any

from tests.rollout.fleet import ROOT, SETTINGS, Fleet, Run

# The canary is the project's own, not that of quick/; the stand-in knows this answer.
QUESTION = {"prompt": "What is the capital of France?", "expect": r"\bParis\b"}


def go_back(**variables: Any) -> Run:
    """Run the playbook as an operator does."""
    return Run(
        ROOT / "playbooks" / "rollback.yml",
        [],
        {**SETTINGS, "throughput_check_questions": [QUESTION], **variables},
        quick=False,
    )


def test_an_operator_goes_back_to_what_was_accepted_before_and_names_a_release(fleet: Fleet) -> None:
    before = fleet.ready()
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

    go_back(sglang_release=after[fleet.hosts[0]]).succeeded()
    assert {host: fleet.running(host) for host in fleet.hosts} == after

    # What was never accepted is refused before a host is taken out.
    starts = {host: fleet.invocation(host) for host in fleet.hosts}
    refused = go_back(sglang_release="0.0.0-000000000000").failed()
    assert "0.0.0-000000000000 was not accepted on this host" in refused.text
    assert {host: fleet.invocation(host) for host in fleet.hosts} == starts
    assert fleet.serving() == fleet.hosts
