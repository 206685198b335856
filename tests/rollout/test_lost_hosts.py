"""A host that becomes unreachable in the middle stops the rollout, however many hosts take their turn at once."""

from __future__ import annotations

from typing import Any

import pytest

from tests.rollout.fleet import Fleet, podman


@pytest.mark.parametrize("batch", [1, 2, 3])
def test_the_rollout_stops_and_a_later_run_finishes_it(fleet: Fleet, batch: int) -> None:
    before = fleet.ready()
    first, lost, last = fleet.hosts
    release = fleet.new_release()
    # Three at once leave none: that is allowed here, to see what the loss of one does to the others.
    settings: dict[str, Any] = {"rollout_serial": [batch], "rollout_min_available": 0 if batch == 3 else 1}

    upgrade = fleet.start(release, **settings)
    upgrade.until(f"{first}: start")
    podman("pause", lost)
    try:
        upgrade.failed()
    finally:
        podman("unpause", lost)

    assert f"{lost}: UNREACHABLE" in upgrade.text or f"[{lost}]: UNREACHABLE" in upgrade.text
    assert fleet.running(first).startswith(f"{release}-") and fleet.answers(first)
    if batch < 3:
        assert fleet.running(last) == before[last], "the host after the lost one was not touched"
    assert all(fleet.answers(host) for host in (first, last))

    fleet.deploy(release, **settings)
    assert all(fleet.running(host).startswith(f"{release}-") for host in fleet.hosts)
    assert fleet.serving() == fleet.hosts


def test_a_gateway_that_is_lost_in_a_turn_is_said_and_the_same_command_puts_the_host_back(
    fleet: Fleet,
) -> None:
    before = fleet.ready()
    first, *others = fleet.hosts
    release = fleet.new_release()
    upgrade = fleet.start(release, {"start_s": 3})
    upgrade.until(f"{first}: start")
    podman("pause", fleet.gateway)
    try:
        upgrade.failed()
    finally:
        podman("unpause", fleet.gateway)

    assert f"No ssh to {fleet.gateway}" in upgrade.text
    assert f"{first} was not put back everywhere, and may get no requests." in upgrade.text
    assert fleet.running(first) == fleet.current(first) and fleet.answers(first)
    receipt = fleet.receipt(first)
    assert receipt["outcome"] == "accepted" and receipt["reason"].startswith("No ssh to")
    assert {host: fleet.running(host) for host in others} == {host: before[host] for host in others}
    assert first not in fleet.serving()

    fleet.deploy(release, {"start_s": 3})
    assert all(fleet.running(host).startswith(f"{release}-") for host in fleet.hosts)
    assert fleet.serving() == fleet.hosts
