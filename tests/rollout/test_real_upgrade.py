"""The real SGLang from 0.5.9 to 0.5.10.post1 and back, without a request lost."""

from __future__ import annotations

import json
import re

import pytest

from tests.rollout import real
from tests.rollout.fleet import Fleet


def patches(fleet: Fleet, host: str) -> str:
    """How the delegation of EAGLE-3 stands in the release that serves, by the release's own file."""
    release = fleet.running(host)
    file = f"/opt/sglang/releases/{release}/venv/lib/python3.11/site-packages/sglang/srt/models/kimi_k25.py"
    return (
        "ours"
        if "blackwell patch: kimi-k25-eagle3-delegation" in fleet.ssh(host, f"cat {file}")
        else "upstream"
    )


def test_no_request_is_lost_in_the_real_upgrade(fleet: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
    # On hosts that have nothing yet, a gateway among them, it says what it would do.
    real.play("site.yml", "--check")
    real.play("site.yml")
    before = {host: fleet.running(host) for host in fleet.hosts}
    assert all(release.startswith(f"{real.OLD}-") for release in before.values())
    assert {patches(fleet, host) for host in fleet.hosts} == {"ours"}
    # Nothing is left to do, and a gateway in the inventory is no reason to fail.
    for name in ("preflight.yml", "repatch.yml", "verify.yml"):
        assert not re.search("changed=[1-9]", real.play(name).text), name

    load = real.load(fleet)
    with load.running(clients=4, at_least=2000):
        upgrade = real.play("upgrade.yml", sglang_version=real.NEW)
    with capsys.disabled():
        print(f"\n{load}\n\n{real.turns(fleet)}")

    assert not load.lost, load.lost[:10]
    assert len(load.requests) >= 2000 and load.streamed >= 1000
    for host in fleet.hosts:
        receipt = fleet.receipt(host)
        assert receipt["began"] > upgrade.began and receipt["outcome"] == "accepted"
        drained = receipt["phases"][0]
        assert drained["phase"] == "drain" and load.open_at(drained["began"]) > 0
        assert fleet.running(host).startswith(f"{real.NEW}-")
    assert {patches(fleet, host) for host in fleet.hosts} == {"upstream"}, "the patch has retired"
    assert fleet.serving() == fleet.hosts


def test_and_back_again(fleet: Fleet) -> None:
    load = real.load(fleet)
    with load.running(clients=4):
        back = real.play("rollback.yml")
    assert not load.lost, load.lost[:10]
    for host in fleet.hosts:
        assert fleet.running(host).startswith(f"{real.OLD}-") and fleet.current(host) == fleet.running(host)
        receipt = fleet.receipt(host)
        assert receipt["began"] > back.began and receipt["outcome"] == "accepted"
        assert json.dumps(receipt["requested"]["release"]).strip('"') == fleet.running(host)
    assert fleet.serving() == fleet.hosts
