"""A disk that is full while a release is staged costs nothing that was there before."""

from __future__ import annotations

import pytest

from tests.rollout.fleet import Fleet


@pytest.mark.parametrize(
    ("checked", "said"),
    [(4, "There is not enough space for a release"), (0, "No space left on device")],
    ids=["seen beforehand", "in the middle"],
)
def test_staging_without_room_leaves_the_service_and_the_old_release_alone(
    fleet: Fleet, checked: int, said: str
) -> None:
    host = fleet.hosts[0]
    release = fleet.ready()[host]
    content = f"cd /opt/sglang/releases/{release} && find . -type f -exec sha256sum {{}} + | sort"
    before = (fleet.invocation(host), fleet.current(host), fleet.ssh(host, content))
    staging = fleet.start(
        release, hosts=[host], playbook="no_room.yml", quick=False, sglang_stack_required_space=checked
    )
    try:
        staging.failed()
        assert said in staging.text.replace("\n", " "), staging.text[-3000:]
    finally:
        fleet.ssh(
            host, "umount /opt/sglang/releases/*/ 2>/dev/null; rmdir /opt/sglang/releases/* 2>/dev/null; true"
        )
    assert (fleet.invocation(host), fleet.current(host), fleet.ssh(host, content)) == before
    assert fleet.answers(host) and fleet.running(host) == release
    assert fleet.serving() == fleet.hosts
