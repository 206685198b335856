"""A run that is killed leaves nothing half done that the next one does not finish."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.rollout.fleet import Fleet, wait_until

# Runs on the host meanwhile: the link and every server must be of a release that is whole.
WATCH = """
import time
from pathlib import Path
root = Path("/opt/sglang")
said = Path("/run/half-made")
said.write_text("")
while True:
    seen = []
    if (root / "current").is_symlink() and not (root / "current" / "manifest.json").is_file():
        seen.append("current points to a release without a manifest")
    for line in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = line.read_text().split("\\0")
        except OSError:
            continue
        if words[0].startswith("/opt/sglang/releases/") and any(word.endswith("serve.py") for word in words):
            if not (Path(*Path(words[0]).parts[:5]) / "manifest.json").is_file():
                seen.append(f"{words[0]} serves, and has no manifest")
    if seen:
        said.write_text("; ".join(seen))
    time.sleep(0.1)
"""


@contextmanager
def watched(fleet: Fleet, host: str) -> Iterator[None]:
    """Nothing half made is served, or called current, at any time."""
    program = WATCH.replace("'", "'\\''")
    fleet.ssh(host, f"systemd-run --quiet --unit=watch-releases python3 -c '{program}'")
    try:
        yield
        assert fleet.ssh(host, "cat /run/half-made") == ""
        assert fleet.ssh(host, "systemctl is-active watch-releases") == "active"
    finally:
        fleet.ssh(host, "systemctl stop watch-releases", check=False)


# Where it is killed: after these words, and so many seconds later, in the middle of what they begin.
PHASES = {
    "stage": ("TASK [Install the stand-in]", 0.5),
    "drain": (": drain", 0.5),
    "wait": (": wait", 0.5),
    "start": (": start", 3.0),
    "prove": (": prove", 1.0),
    "accept": (": accept", 2.0),
    "restore": (": restore", 0.3),
}


@pytest.mark.parametrize("phase", PHASES)
def test_a_run_that_is_killed_is_finished_by_the_next_one(fleet: Fleet, phase: str) -> None:
    host = fleet.hosts[0]
    before = fleet.ready()[host]
    words, seconds = PHASES[phase]
    release = fleet.new_release()
    with watched(fleet, host):
        broken = fleet.start(release, {"start_s": 3}, hosts=[host])
        broken.until(words if phase == "stage" else f"{host}{words}")
        time.sleep(seconds)
        broken.kill()
        assert fleet.current(host) == before or phase in ("accept", "restore")
        again = fleet.deploy(release, {"start_s": 3}, hosts=[host])

    assert fleet.running(host) == fleet.current(host) == fleet.accepted(host)["release"]
    assert fleet.running(host).startswith(f"{release}-")
    assert fleet.serving() == fleet.hosts and fleet.answers(host)
    receipt = fleet.receipt(host)
    assert receipt["ended"] > again.began and receipt["outcome"] == "accepted"
    assert receipt["found"]["release"] == before
    assert not fleet.ssh(host, "ls /run/systemd/system/sglang@*.service", check=False), "no candidate is left"


def test_a_return_that_is_killed_is_finished_by_the_next_run(fleet: Fleet) -> None:
    host = fleet.hosts[0]
    before = fleet.ready()[host]
    with watched(fleet, host):
        broken = fleet.start(fleet.new_release(), {"crash": True}, hosts=[host])
        broken.until(f"{host}: return")
        time.sleep(1)
        broken.kill()
        release = fleet.new_release()
        fleet.deploy(release, hosts=[host])
    assert fleet.running(host).startswith(f"{release}-")
    assert fleet.serving() == fleet.hosts
    assert fleet.receipt(host)["found"]["release"] == before


def test_after_a_power_loss_the_accepted_release_starts_and_not_the_candidate(fleet: Fleet) -> None:
    host = fleet.hosts[0]
    before = fleet.ready()[host]
    candidate = fleet.start(fleet.new_release(), {"hang": True}, hosts=[host])
    candidate.until(f"{host}: start")
    wait_until(lambda: fleet.running(host) not in ("", before), seconds=60, why="the candidate runs")
    candidate.kill()
    container = f"blackwell-{host}"
    subprocess.run(["podman", "kill", "--signal=KILL", container], check=True, capture_output=True)
    subprocess.run(["podman", "start", container], check=True, capture_output=True)
    wait_until(lambda: fleet.answers(host), seconds=120, why="the host boots and serves")
    assert fleet.running(host) == before == fleet.current(host)
    # It was taken out, and the next run puts it back.
    fleet.deploy(fleet.new_release(), hosts=[host])
    assert fleet.serving() == fleet.hosts


def test_a_server_that_is_alive_and_answers_nothing_is_started_again(fleet: Fleet) -> None:
    host = fleet.hosts[0]
    fleet.ready()
    fleet.deploy(fleet.new_release(), hosts=[host], eagle3_server_silence_limit=10)
    before = fleet.invocation(host)
    url = f"http://{fleet.address[host]}:30000"
    Fleet.health(f"{url}/mute", timeout=1)
    assert not fleet.answers(host) and fleet.running(host), "it is alive and answers nothing"
    wait_until(lambda: fleet.answers(host), seconds=120, why="systemd's watchdog starts it again")
    assert fleet.invocation(host) != before
    assert "Watchdog timeout" in fleet.ssh(host, "journalctl --unit=sglang@eagle3 --no-pager")
