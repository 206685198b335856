"""The standing check: is the accepted server still what it was accepted as?

A program for a systemd timer, on the host itself and without Ansible. It leaves a server alone that has anything
to do, asks the canary's questions, makes a short measurement and judges it against the anchor. A link that fell
back to half its width or a driver that was updated show here, days before somebody complains.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import OperatorError
from ..files import replace as replace_file
from . import canary
from .judge import judge
from .measure import load_result, take
from .policy import Policy
from .record import Record
from .server import Server, ServerBusy
from .table import result_lines
from .verdict import FAIL

PASSED, FAILED = 0, 1


def main(arguments: list[str]) -> int:
    """Run the check whose settings are in the file ``arguments[0]``; 0 unless the server has become worse."""
    settings = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    try:
        return check(settings)
    except ServerBusy as busy:
        print(f"The server is at work, and left alone: {busy}")
        return PASSED
    except (OperatorError, OSError) as error:
        print(error)
        return FAILED


def check(settings: Mapping[str, Any]) -> int:
    """Check the accepted server, and print what was found.

    Args:
        settings: those of the module ``throughput_measure`` without ``config``, ``release``, ``profile``, ``host``,
            ``fingerprint``, ``accepted``, ``baseline`` and ``canary``; those of ``correctness_canary``
            about questions and transcript; and ``state``, ``root``, ``config_directory``, ``quiet_s``, ``keep``.

    Raises:
        OperatorError: nothing was accepted, or the server cannot be measured.
    """
    state = Path(settings["state"])
    served = _served(Path(settings["config_directory"]), Path(settings["root"]))
    baseline = load_result(state / served["profile"] / "baseline.json")
    if baseline is None:
        print(
            f"There is no anchored measurement of the profile {served['profile']}, so there is nothing to "
            "compare with."
        )
        return PASSED
    server = Server.of_deployment(Path(served["config"]))
    if not _is_quiet(server, float(settings["quiet_s"]), float(settings["idle_timeout"])):
        print("The server is at work. It is left alone; the next check is the timer's next.")
        return PASSED
    asked = canary.ask(server, settings)
    if asked.faults():
        print("\n".join(asked.faults()))
        return FAILED
    paths = {name: str(state / served["profile"] / f"{name}.json") for name in ("accepted", "baseline")}
    taken = take(
        {
            **settings,
            **served,
            **paths,
            "host": baseline.host,
            "fingerprint": baseline.fingerprint,
            "reuse": False,
            "to_limit": False,
            "canary": asked.to_json(),
        }
    )
    assert taken.result
    # A short check measures fewer points than the baseline has, and is held against those.
    points = [point for point in baseline.points if taken.result.point(point.concurrency, point.prompts)]
    verdict = judge(taken.result, replace(baseline, points=points), Policy.from_dict(settings["policy"]))
    print("\n".join(result_lines(taken.result, verdict)))
    _keep(Record(taken.result, verdict), state / "standing", int(settings["keep"]))
    return FAILED if verdict.outcome == FAIL else PASSED


def _served(config_directory: Path, root: Path) -> dict[str, Any]:
    try:
        accepted = json.loads((config_directory / "accepted.json").read_text(encoding="utf-8"))
        manifest = root / "releases" / accepted["release"] / "manifest.json"
        release = json.loads(manifest.read_text(encoding="utf-8"))
    except (OSError, ValueError, KeyError) as error:
        raise OperatorError(
            "No accepted server is on this host",
            found=str(error),
            expected="the record of a deployment",
            remedy="deploy it (site.yml), or stop the timer: systemctl disable --now sglang-throughput.timer",
        ) from error
    config = config_directory / accepted["deployment"] / f"{accepted['profile']}.yaml"
    return {"profile": accepted["profile"], "release": release, "config": str(config)}


def _is_quiet(server: Server, seconds: float, idle_limit_s: float) -> bool:
    """Whether no request ended in that time, and none runs: the cache can be flushed only then."""
    before = server.counters()
    time.sleep(seconds)
    if server.counters().since(before).requests:
        return False
    try:
        server.flush_cache(idle_limit_s)
    except ServerBusy:
        return False
    return True


def _keep(record: Record, folder: Path, keep: int) -> None:
    replace_file(folder / record.file_name(), record.text())
    for old in sorted(folder.glob("*.json"))[:-keep]:
        old.unlink()
