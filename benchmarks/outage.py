"""For how long a planned exchange of a release leaves a host without an answer, against a bare stop and start.

    python -m benchmarks.outage [--pairs 10] [--start 15] [--keep-hosts]

On one host of the rollout tests, with the stand-in server that takes ``--start`` seconds until it answers: what is
measured is what the rollout adds to a start, whatever that start is. In turn: ``systemctl restart``, and a rollout of
another release with all of its roles; both are watched by the same probe on the host, four times a second, from the
last good answer to the first good one. Prints each pair, the median of the ratios, how long the host was out of the
gateway, and what Ansible itself took of that.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "plugins" / "module_utils"))

from tests.rollout.fleet import Fleet, wait_until

PROBE = "/run/benchmark-outage.json"


def bare(fleet: Fleet, host: str) -> float:
    """Seconds without an answer when systemd restarts the server."""
    accepted = fleet.accepted(host)
    config = f"/etc/sglang/{accepted['deployment']}/{accepted['profile']}.yaml"
    program = (ROOT / "roles" / "rollout" / "files" / "outage_probe.py").read_text().replace("'", "'\\''")
    fleet.ssh(host, f"rm -f {PROBE}")
    fleet.ssh(
        host,
        f"systemd-run --quiet --collect --unit=benchmark-probe python3 -c '{program}' {PROBE} 600 {config}",
    )
    time.sleep(2)
    fleet.ssh(host, f"systemctl restart sglang@{accepted['profile']}")
    wait_until(
        lambda: fleet.ssh(host, "systemctl is-active benchmark-probe", check=False) != "active",
        seconds=600,
        why="the server answers again",
    )
    seen = json.loads(fleet.ssh(host, f"cat {PROBE}"))
    return float(seen["first_good"] - seen["last_good"])


def main() -> int:
    """Measure, and print; status 1 when the median ratio is above 1.15."""
    parser = argparse.ArgumentParser(description="A planned outage against a bare stop and start.")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--start", type=float, default=15, help="seconds that a start takes")
    parser.add_argument("--keep-hosts", action="store_true", help="take the hosts that are there")
    given = parser.parse_args()
    fleet = Fleet()
    if not given.keep_hosts:
        fleet.up()
    # One host is enough, and it is the only one that serves: it may be taken out all the same.
    host, behaviour = fleet.hosts[0], {"start_s": given.start}
    fleet.deploy(fleet.new_release(), behaviour, hosts=[host, fleet.gateway], rollout_min_available=0)
    ratios, outs, own = [], [], []
    for pair in range(1, given.pairs + 1):
        plain = bare(fleet, host)
        fleet.deploy(fleet.new_release(), behaviour, hosts=[host], rollout_min_available=0)
        receipt = fleet.receipt(host)
        outage = receipt["outage"]["seconds"]
        out = sum(phase["seconds"] for phase in receipt["phases"])
        ratios.append(outage / plain)
        outs.append(out)
        own.append(out - outage)
        print(
            f"{pair:2}: bare {plain:5.2f} s, planned {outage:5.2f} s, ratio {ratios[-1]:.3f}; "
            f"out of the gateway {out:5.1f} s, of which no outage {own[-1]:5.1f} s",
            flush=True,
        )
    median = statistics.median(ratios)
    print(
        f"median of {len(ratios)} pairs: ratio {median:.3f} ({min(ratios):.3f} to {max(ratios):.3f}); "
        f"drain to restore {statistics.median(outs):.1f} s, controller's own share {statistics.median(own):.1f} s"
    )
    if not given.keep_hosts:
        fleet.down()
    return 0 if median <= 1.15 else 1


if __name__ == "__main__":
    sys.exit(main())
