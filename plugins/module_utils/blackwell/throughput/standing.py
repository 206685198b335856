"""The standing check: is the accepted server still what it was accepted as?

A program for a systemd timer, on the host itself and without Ansible. It leaves a server alone that has anything
to do, asks the canary's questions, makes a short measurement and judges it against the anchor. A link that fell
back to half its width or a driver that was updated show here, days before somebody complains.
"""

from __future__ import annotations

import datetime
import io
import platform
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import OperatorError
from ..files import replace as replace_file
from ..json_reader import read_object
from . import canary
from .judge import BaselineRefused, judge
from .measure import load_result, take
from .policy import Policy
from .record import Record
from .result import Result
from .server import Server, ServerBusy
from .table import result_lines
from .verdict import FAIL, RULE, UNDECIDABLE, Finding, Verdict

PASSED, FAILED = 0, 1

_UNKNOWN = "unknown"


def main(arguments: list[str]) -> int:
    """Run the check whose settings are in the file ``arguments[0]``; 0 unless the server has become worse."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # What a server says may hold characters that the journal's locale does not have.
        sys.stdout.reconfigure(errors="backslashreplace")
    again = "run site.yml, which writes it"
    try:
        settings = read_object(Path(arguments[0]), remedy=again)
        return check(settings)
    except ServerBusy as busy:
        print(f"The server is at work, and left alone: {busy}")
        return PASSED
    except (OperatorError, OSError) as error:
        print(error)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        found = f"{type(error).__name__}: {error}"
        expected = f"settings in {arguments[0]} as site.yml writes them"
        print(OperatorError("The standing check cannot go on", found=found, expected=expected, remedy=again))
    return FAILED


def check(settings: Mapping[str, Any]) -> int:
    """Check the accepted server, and print what was found.

    Args:
        settings: those of the module ``throughput_measure`` without ``config``, ``release``, ``profile``, ``host``,
            ``fingerprint``, ``accepted``, ``baseline`` and ``canary``; those of ``correctness_canary``
            about questions and transcript; and ``state``, ``root``, ``config_directory``, ``quiet_s``, ``keep``.

    Raises:
        OperatorError: the server cannot be measured.
    """
    state = Path(settings["state"])
    served: dict[str, Any] = {}
    try:
        served = _served(Path(settings["config_directory"]), Path(settings["root"]))
        baseline = load_result(state / served["profile"] / "baseline.json")
        server = Server.of_deployment(Path(served["config"]))
    except OperatorError as error:
        return _undecided(settings, served, str(error), FAILED)
    if baseline is None:
        reason = (
            f"There is no anchored measurement of the profile {served['profile']}, so there is nothing to "
            "compare with. The next rollout anchors one, and playbooks/throughput.yml does so at once."
        )
        return _undecided(settings, served, reason, PASSED)
    if not _is_quiet(server, float(settings["quiet_s"]), float(settings["idle_timeout"])):
        print("The server is at work. It is left alone; the next check is the timer's next.")
        return PASSED
    asked = canary.ask(server, settings)
    if asked.faults():
        print("\n".join(asked.faults()))
        return FAILED
    paths = {name: str(state / served["profile"] / f"{name}.json") for name in ("accepted", "baseline")}
    asking = {
        **settings,
        **served,
        **paths,
        "host": baseline.host,
        "fingerprint": baseline.fingerprint,
        "reuse": False,
        "to_limit": False,
        "canary": asked.to_json(),
    }
    try:
        taken = take(asking)
        assert taken.result
        # A short check measures fewer points than the baseline has, and is held against those.
        points = [point for point in baseline.points if taken.result.point(point.concurrency, point.prompts)]
        verdict = judge(taken.result, replace(baseline, points=points), Policy.from_dict(settings["policy"]))
    except BaselineRefused as refused:
        return _undecided(settings, served, str(refused), FAILED)
    print("\n".join(result_lines(taken.result, verdict)))
    _keep(Record(taken.result, verdict), settings)
    return FAILED if verdict.outcome == FAIL else PASSED


def _undecided(settings: Mapping[str, Any], served: Mapping[str, Any], reason: str, status: int) -> int:
    """Say and record that nothing could be decided, because of what is missing or damaged on the host."""
    release = served.get("release", {})
    now = datetime.datetime.now(datetime.timezone.utc).replace(microsecond=0)
    result = Result(
        host=platform.node(),
        taken_at=now.isoformat(),
        release=release.get("id", _UNKNOWN),
        sglang_version=release.get("sglang_version", _UNKNOWN),
        profile=served.get("profile", _UNKNOWN),
        fingerprint=_UNKNOWN,
        prompts_sha256=_UNKNOWN,
        client=_UNKNOWN,
        conditions={},
        points=[],
    )
    headline = f"Undecidable: {reason}"
    verdict = Verdict(UNDECIDABLE, False, headline, [Finding("", "", UNDECIDABLE, RULE, reason)])
    print(headline)
    _keep(Record(result, verdict), settings)
    return status


def _served(config_directory: Path, root: Path) -> dict[str, Any]:
    """Profile, release and configuration of the accepted server.

    Raises:
        OperatorError: none was accepted, or its record or the manifest of its release is missing or damaged.
    """
    remedy = "deploy it (site.yml), or stop the timer: systemctl disable --now sglang-throughput.timer"
    accepted = _texts_of(config_directory / "accepted.json", ("release", "deployment", "profile"), remedy)
    manifest = root / "releases" / accepted["release"] / "manifest.json"
    release = _texts_of(manifest, ("id", "python", "sglang_version"), remedy)
    config = config_directory / accepted["deployment"] / f"{accepted['profile']}.yaml"
    return {"profile": accepted["profile"], "release": release, "config": str(config)}


def _texts_of(path: Path, names: tuple[str, ...], remedy: str) -> dict[str, Any]:
    """The object in a file, with a text under each of these names."""
    content = read_object(path, remedy=remedy)
    lacking = [name for name in names if not isinstance(content.get(name), str) or not content[name]]
    if lacking:
        raise OperatorError(
            f"{path} does not tell which server was accepted",
            found=f"no text for {', '.join(lacking)}",
            expected="the record of a deployment",
            remedy=remedy,
        )
    return content


def _is_quiet(server: Server, seconds: float, idle_limit_s: float) -> bool:
    """Whether no request ended in that time, and none runs: the cache can be flushed only then.

    Raises:
        OperatorError: the server's count of requests cannot be read.
    """
    before = server.counters()
    time.sleep(seconds)
    ended = server.counters().since(before)
    if "requests" in ended.unreadable:
        raise OperatorError(
            "The server does not tell whether anybody uses it",
            found=f"sglang:num_requests_total of {server.url}/metrics is no number",
            expected="a count of finished requests",
            remedy="read the unit's journal: journalctl -u 'sglang@*'",
        )
    # A counter appears with its first event: one that is not on the page has had none.
    if ended.requests:
        return False
    try:
        server.flush_cache(idle_limit_s)
    except ServerBusy:
        return False
    return True


def _keep(record: Record, settings: Mapping[str, Any]) -> None:
    """Keep the newest ``keep`` records, this one among them; none with 0."""
    folder, keep = Path(settings["state"]) / "standing", max(0, int(settings["keep"]))
    if keep:
        replace_file(folder / record.file_name(), record.text())
    kept = sorted(folder.glob("*.json"))
    for old in kept[: max(0, len(kept) - keep)]:
        old.unlink(missing_ok=True)
