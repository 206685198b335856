"""Print, as JSON, which of the named units run a process that was started before a time.

started_before.py SECONDS UNIT [UNIT...]     seconds since the epoch
"""

from __future__ import annotations

import json
import subprocess
import sys
import time


def started(unit: str) -> float | None:
    """When the unit's process was started, in seconds since the epoch; None if none runs."""
    show = ["systemctl", "show", "--value", unit]
    if (
        subprocess.run(
            [*show, "--property=MainPID"], capture_output=True, text=True, check=True
        ).stdout.strip()
        == "0"
    ):
        return None
    since_boot = subprocess.run(
        [*show, "--property=ExecMainStartTimestampMonotonic"], capture_output=True, text=True, check=True
    ).stdout
    return time.time() - time.clock_gettime(time.CLOCK_MONOTONIC) + int(since_boot) / 1e6


if __name__ == "__main__":
    written, units = float(sys.argv[1]), sys.argv[2:]
    json.dump([unit for unit in units if (at := started(unit)) is not None and at < written], sys.stdout)
