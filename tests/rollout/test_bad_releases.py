"""A release that does not prove itself is gone again, and what served before serves and was proved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.rollout.fleet import OUTPUT, Fleet, podman, wait_until

BAD: dict[str, tuple[dict[str, Any], str]] = {
    "crashes at its start": ({"crash": True}, "the release of this test crashes at its start"),
    "hangs at its start": ({"hang": True}, "allowed are 45"),
    "answers nonsense": ({"nonsense": True}, "letters or digits"),
    "answers empty": ({"empty": True}, "empty"),
}


@pytest.mark.parametrize(("behaviour", "reason"), BAD.values(), ids=BAD)
def test_the_first_host_returns_and_the_others_were_never_touched(
    fleet: Fleet, behaviour: dict[str, Any], reason: str
) -> None:
    before = fleet.ready()
    starts = {host: fleet.invocation(host) for host in fleet.hosts}
    first, *others = fleet.hosts

    upgrade = fleet.start(fleet.new_release(), behaviour).failed()

    assert {host: fleet.invocation(host) for host in others} == {host: starts[host] for host in others}
    assert fleet.invocation(first) != starts[first]
    assert {host: fleet.running(host) for host in fleet.hosts} == before
    assert fleet.current(first) == fleet.accepted(first)["release"] == before[first]
    assert fleet.serving() == fleet.hosts and all(fleet.answers(host) for host in fleet.hosts)
    receipt = fleet.receipt(first)
    assert receipt["began"] > upgrade.began and receipt["outcome"] == "returned"
    assert reason in receipt["reason"].splitlines()[0], receipt["reason"]
    assert receipt["rollback_s"] > 0
    assert all(fleet.receipt(host)["ended"] < upgrade.began for host in others)
    assert reason in upgrade.text


def test_the_others_of_a_batch_end_their_turns(fleet: Fleet) -> None:
    before = fleet.ready()
    bad, good, after = fleet.hosts
    release = fleet.new_release()

    fleet.start(release, {"crash": f"{{{{ inventory_hostname == '{bad}' }}}}"}, rollout_serial=[2]).failed()

    assert fleet.running(bad) == before[bad] and fleet.receipt(bad)["outcome"] == "returned"
    assert fleet.running(good).startswith(f"{release}-") and fleet.receipt(good)["outcome"] == "accepted"
    assert fleet.running(after) == before[after]
    assert fleet.serving() == fleet.hosts and all(fleet.answers(host) for host in fleet.hosts)
    for host in fleet.hosts:
        fleet.ssh(host, "test ! -e /var/lib/sglang/receipts/pending.json")


def test_a_host_that_may_not_be_taken_out_serves_as_before(fleet: Fleet) -> None:
    fleet.ready()
    starts = {host: fleet.invocation(host) for host in fleet.hosts}

    upgrade = fleet.start(fleet.new_release(), rollout_min_available=3).failed()

    assert {host: fleet.invocation(host) for host in fleet.hosts} == starts
    assert fleet.serving() == fleet.hosts
    receipt = fleet.receipt(fleet.hosts[0])
    assert receipt["began"] > upgrade.began and receipt["outcome"] == "returned"
    assert (
        receipt["reason"].startswith("Too few hosts") and f"{fleet.hosts[0]} was not touched" in upgrade.text
    )


def test_where_nothing_answers_any_more_the_floor_is_in_nobodys_way(fleet: Fleet) -> None:
    fleet.ready()
    for host in fleet.hosts:
        fleet.ssh(host, "systemctl stop sglang@eagle3")
    wait_until(
        lambda: fleet.health(f"{fleet.gateway_url}/readiness") != 200,
        seconds=60,
        why="the gateway has noticed",
    )
    fleet.deploy(fleet.new_release())
    assert fleet.serving() == fleet.hosts and all(fleet.answers(host) for host in fleet.hosts)


def test_a_host_without_a_turn_that_does_not_answer_is_taken_out_and_put_back(fleet: Fleet) -> None:
    fleet.ready()
    first = fleet.hosts[0]
    # Long enough for a server that was just started to count as one that still starts.
    settings: dict[str, Any] = {"eagle3_server_start_timeout": 150, "rollout_inflight_timeout": 5}
    release = fleet.new_release()
    fleet.deploy(release, hosts=[first], **settings)
    fleet.ssh(first, "systemctl restart sglang@eagle3")
    wait_until(lambda: fleet.answers(first), seconds=60, why="it is started again")
    Fleet.health(f"http://{fleet.address[first]}:30000/mute", timeout=1)
    before = fleet.invocation(first)

    run = fleet.start(release, hosts=[first], **settings).failed()

    assert fleet.answers(first) and fleet.invocation(first) != before
    assert fleet.running(first).startswith(f"{release}-")
    receipt = fleet.receipt(first)
    assert receipt["began"] > run.began and receipt["outcome"] == "returned"
    assert receipt["phases"][0]["phase"] == "drain"
    assert fleet.serving() == fleet.hosts


@pytest.mark.parametrize("loss", ["rm", "truncate --size=40"])
def test_what_serves_comes_back_though_the_record_of_it_was_lost(fleet: Fleet, loss: str) -> None:
    before = fleet.ready()
    first = fleet.hosts[0]
    record = fleet.accepted(first)
    fleet.ssh(first, f"{loss} /etc/sglang/accepted.json")

    fleet.start(fleet.new_release(), {"crash": True}).failed()

    assert fleet.running(first) == before[first] and fleet.answers(first)
    assert fleet.accepted(first) == record
    assert fleet.receipt(first)["outcome"] == "returned"
    assert fleet.serving() == fleet.hosts


# The role throughput_check itself, with a load that a stand-in of known speed answers in a second.
MEASURED: dict[str, Any] = {
    "quick": False,
    "rollout_test_measured": True,
    "preflight_fingerprint": {"digest": "a stand-in"},
    "throughput_check_concurrency": [1],
    "throughput_check_long_concurrency": [],
    "throughput_check_output_tokens": 96,
    "throughput_check_requests_least": 4,
    "throughput_check_requests_per_slot": 4,
    "throughput_check_runs_min": 5,
    "throughput_check_runs_max": 8,
    "throughput_check_margin": 0.1,
    "throughput_check_floors": {"eagle3": {"1": {"decode_tok_s": 1}}},
    "throughput_check_accept_undecidable": False,
    "throughput_check_transcript_prompts": 2,
    "throughput_check_questions": [{"prompt": "What is the capital of France?", "expect": r"\bParis\b"}],
    "throughput_check_reports": str(OUTPUT / "reports"),
}


def test_a_release_that_is_thirty_percent_slower_is_not_accepted(fleet: Fleet) -> None:
    fleet.ready()
    first, *others = fleet.hosts
    # One version, so one load generator; what differs is the speed.
    fleet.deploy("0.5.9", {"step_s": 0.03, "noise": 0.01}, hosts=[first], **MEASURED)
    before, starts = fleet.running(first), {host: fleet.invocation(host) for host in others}

    upgrade = fleet.start("0.5.9", {"step_s": 0.03 / 0.7, "noise": 0.01}, **MEASURED).failed()

    receipt = fleet.receipt(first)
    assert receipt["began"] > upgrade.began and receipt["outcome"] == "returned"
    assert receipt["verdict"]["outcome"] == "fail" and receipt["reason"] == receipt["verdict"]["headline"]
    assert receipt["recheck"]["passed"], receipt["recheck"]["said"]
    assert fleet.running(first) == fleet.current(first) == before
    assert {host: fleet.invocation(host) for host in others} == starts
    assert fleet.serving() == fleet.hosts


def test_when_the_old_release_does_not_come_back_either_the_host_stays_out_and_it_is_said(
    fleet: Fleet,
) -> None:
    before = fleet.ready()
    first, *others = fleet.hosts
    behaviour = f"/opt/sglang/releases/{before[first]}/venv/lib/python3.11/site-packages/behaviour.json"
    fleet.ssh(first, f"cp {behaviour} /root/behaviour.json; echo '{{\"crash\": true}}' > {behaviour}")

    upgrade = fleet.start(fleet.new_release(), {"crash": True}).failed()

    assert "What was accepted before does not come back either" in upgrade.text
    receipt = fleet.receipt(first)
    assert (receipt["outcome"], receipt["serves"]) == ("down", None)
    assert fleet.serving() == others and not fleet.answers(first)
    assert all(fleet.running(host) == before[host] for host in others)
    assert all(fleet.receipt(host)["ended"] < upgrade.began for host in others)

    # What it says mends it: once there is something that works, the next run brings the host back.
    fleet.deploy(fleet.new_release(), hosts=[first])
    assert fleet.serving() == fleet.hosts


def test_a_host_that_answered_wrong_gets_no_requests_before_it_has_answered_right(fleet: Fleet) -> None:
    fleet.ready()
    first, *others = fleet.hosts
    release = fleet.new_release()
    fleet.deploy(release, hosts=[first])
    behaviour = (
        f"/opt/sglang/releases/{fleet.current(first)}/venv/lib/python3.11/site-packages/behaviour.json"
    )
    fleet.ssh(first, f"echo '{{\"nonsense\": true}}' > {behaviour}")
    fleet.start(fleet.new_release(), {"crash": True}, hosts=[first]).failed()
    # It runs, answers /health and was accepted once: nothing else speaks against it.
    assert fleet.receipt(first)["outcome"] == "down" and fleet.answers(first)

    podman("pause", fleet.gateway)
    try:
        fleet.start(release, hosts=[first]).failed()
    finally:
        podman("unpause", fleet.gateway)
    fleet.start(release, hosts=[first]).failed()
    assert fleet.receipt(first)["outcome"] == "down" and fleet.serving() == others

    fleet.ssh(first, "systemctl restart sglang@eagle3")
    wait_until(lambda: fleet.answers(first), seconds=60, why="it is started again, with nothing wrong")
    start = fleet.invocation(first)
    fleet.deploy(release, hosts=[first])
    assert fleet.receipt(first)["outcome"] == "accepted" and fleet.serving() == fleet.hosts
    assert fleet.invocation(first) == start


def test_what_happened_is_said_though_the_receipt_cannot_be_kept(fleet: Fleet, tmp_path: Path) -> None:
    before = fleet.ready()
    first, *others = fleet.hosts
    starts = {host: fleet.invocation(host) for host in others}
    (tmp_path / "receipts").write_text("in the way")

    upgrade = fleet.start(
        fleet.new_release(), {"crash": True}, rollout_controller_receipts=str(tmp_path / "receipts")
    ).failed()

    assert "crashes at its start" in upgrade.text and "serves again" in upgrade.text
    assert "could not be copied to the controller" in upgrade.text
    assert fleet.running(first) == before[first] and fleet.serving() == fleet.hosts
    assert {host: fleet.invocation(host) for host in others} == starts
