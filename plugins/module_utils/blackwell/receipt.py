"""Receipts: one JSON file for each rollout on each host, on the host and on the controller.

A receipt says what was asked for and by whom, what was found, how each phase went and how long it took, what was
measured, what came of it, and for how long the host gave no answer. ``docs/schemas/rollout-receipt.schema.json``
describes every field. While a rollout runs its receipt is ``pending.json``; one that is found later belongs to a run
that was broken off, and the next receipt says so.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any

from .disclosure import shown_value
from .errors import OperatorError
from .files import replace
from .json_reader import parse_object, read_object
from .redaction import redact

SCHEMA = 1
PENDING = "pending.json"

# How a rollout on a host can end.
ACCEPTED = "accepted"
RETURNED = "returned"
DOWN = "down"
OUTCOMES = (ACCEPTED, RETURNED, DOWN)

# Expected times come from so many earlier receipts.
REMEMBERED = 10


def name_of(began: float, host: str) -> str:
    """The receipt's id, in the order of time: ``20260225T101500Z-gpu-1``."""
    return f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(began))}-{host}"


def begin(
    folder: Path, host: str, *, found: Mapping[str, Any] | None, now: float, going_back_to: str = ""
) -> dict[str, Any]:
    """Note that a rollout begins; returns the pending receipt.

    One that is pending already was broken off: the new one keeps its beginning and what it found, and counts it.

    Args:
        folder: where receipts are on the host.
        host: its name in the inventory.
        found: what is accepted on the host; None before a first deployment.
        now: seconds since the epoch.
        going_back_to: the deployment that a rollback goes to, so that one that is broken off can be resumed; empty for
            any other rollout.
    """
    broken = pending(folder) or {}
    begun = {
        "schema": SCHEMA,
        "id": name_of(now, host),
        "host": host,
        "found": broken.get("found", found),
        "began": now,
        "first_began": broken.get("first_began", now),
        "broken_runs": broken.get("broken_runs", -1) + 1,
        "going_back_to": going_back_to,
    }
    replace(folder / PENDING, _text(begun))
    return begun


def pending(folder: Path) -> dict[str, Any] | None:
    """The receipt of the rollout that runs now, or was broken off; None without one.

    Raises:
        OperatorError: it is damaged, so what the rollout found is not known.
        OSError: it cannot be read.
    """
    file = folder / PENDING
    remedy = (
        f"see what serves (systemctl status 'sglang@*'), remove the file (rm {quote(str(file))}) and run the rollout "
        "again"
    )
    try:
        content = parse_object(file.read_bytes(), str(file), remedy=remedy)
    except FileNotFoundError:
        return None
    if fault := _fault(content, _PENDING_FIELDS):
        raise OperatorError(
            f"{file} is no receipt of a rollout that is under way",
            found=fault,
            expected="the fields that docs/schemas/rollout-receipt.schema.json requires",
            remedy=remedy,
        )
    return content


def end(
    folder: Path,
    *,
    outcome: str,
    reason: str,
    marks: Sequence[Mapping[str, Any]],
    outage: Mapping[str, Any] | None,
    content: Mapping[str, Any],
    secrets: Iterable[str],
    keep: int,
    now: float,
) -> dict[str, Any]:
    """Write the receipt of the rollout that is pending.

    Args:
        folder: where receipts are on the host.
        outcome: one of ``OUTCOMES``.
        reason: why it was not accepted, or accepted and not put back; else empty.
        marks: the beginnings of phases, each with ``phase`` and ``at``, in seconds since the epoch.
        outage: what the probe wrote, ``last_good`` and ``first_good``; None without one.
        content: ``requested``, ``serves``, ``requests``, ``fingerprint``, ``result``, ``verdict``, ``choice``.
        secrets: texts that must not appear.
        keep: how many receipts stay.
        now: seconds since the epoch.

    Raises:
        OperatorError: no rollout is pending, or what is pending is damaged.
    """
    begun = pending(folder)
    if begun is None:
        raise OperatorError(
            "No rollout is pending on this host",
            found=f"no {folder / PENDING}",
            expected="a rollout that has begun",
            remedy="run site.yml or playbooks/upgrade.yml, which write receipts themselves",
        )
    phases = phases_of(marks, now)
    receipt = {
        **begun,
        "ended": now,
        "outcome": outcome,
        "reason": reason,
        "phases": phases,
        "outage": outage_of(outage),
        "rollback_s": next((phase["seconds"] for phase in phases if phase["phase"] == "return"), None),
        **content,
    }
    environment = receipt["requested"]["environment"]
    shown = {name: shown_value(name, str(value)) for name, value in environment.items()}
    receipt["requested"] = {**receipt["requested"], "environment": shown}
    receipt = {name: _redacted(value, list(secrets)) for name, value in receipt.items()}
    replace(folder / f"{receipt['id']}.json", _text(receipt))
    (folder / PENDING).unlink()
    for old in read_all(folder)[keep:]:
        (folder / f"{old['id']}.json").unlink(missing_ok=True)
    return receipt


def phases_of(marks: Sequence[Mapping[str, Any]], now: float) -> list[dict[str, Any]]:
    """Each phase with its beginning and its seconds: a phase ends where the next begins."""
    ends = [mark["at"] for mark in marks[1:]] + [now]
    return [
        {"phase": mark["phase"], "began": mark["at"], "seconds": round(ended - mark["at"], 1)}
        for mark, ended in zip(marks, ends)
    ]


def outage_of(seen: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """From the last good answer before to the first good one after, in seconds; None when one of them is not known."""
    last, first = (_time((seen or {}).get(name)) for name in ("last_good", "first_good"))
    # A clock that was set back meanwhile says nothing.
    if last is None or first is None or first < last:
        return None
    return {"last_good": last, "first_good": first, "seconds": round(first - last, 2)}


def _time(value: Any) -> float | None:
    known = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < math.inf
    return float(value) if known else None


def read(file: Path) -> dict[str, Any]:
    """One receipt.

    Raises:
        OperatorError: the file cannot be read, or is no whole receipt.
    """
    remedy = (
        f"take another copy (the host has its own in /var/lib/sglang/receipts, the controller in reports/receipts), or "
        f"put it away (mv {quote(str(file))} {quote(f'{file}.damaged')})"
    )
    content = read_object(file, remedy=remedy)
    if fault := _fault(content, _FIELDS):
        raise OperatorError(
            f"{file} is no receipt",
            found=fault,
            expected="the fields that docs/schemas/rollout-receipt.schema.json requires",
            remedy=remedy,
        )
    return content


def read_all(folder: Path, damaged: list[OperatorError] | None = None) -> list[dict[str, Any]]:
    """All receipts in a folder, newest first.

    Args:
        folder: where receipts are.
        damaged: takes an error for each file that should be a receipt and is none; they are passed over.
    """
    found = []
    for file in sorted(folder.glob("*Z-*.json"), reverse=True):
        try:
            found.append(read(file))
        except OperatorError as error:
            if damaged is not None:
                damaged.append(error)
    return found


def expected(receipts: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """What each phase usually takes on this host, and the outage: medians of the last accepted rollouts, in seconds."""
    accepted = [receipt for receipt in receipts if receipt["outcome"] == ACCEPTED][:REMEMBERED]
    seconds: dict[str, list[float]] = {}
    for receipt in accepted:
        for phase in receipt["phases"]:
            seconds.setdefault(phase["phase"], []).append(phase["seconds"])
        if receipt["outage"]:
            seconds.setdefault("outage", []).append(receipt["outage"]["seconds"])
    return {phase: round(statistics.median(values), 1) for phase, values in seconds.items()}


def differences(
    receipt: Mapping[str, Any], running: Mapping[str, Any], unfinished: Mapping[str, Any] | None = None
) -> list[str]:
    """What is not as it was when the receipt was written, a sentence each; empty when all is.

    Args:
        receipt: the last accepted one.
        running: what the option ``running`` of the module ``rollout_receipt`` says.
        unfinished: the rollout that is pending.
    """
    serves = receipt["serves"] or {}
    found = []
    if running.get("deployment") != serves.get("deployment"):
        found.append(
            f"{running.get('deployment') or 'nothing that was recorded'} runs, not {serves.get('deployment')}"
        )
    if running.get("health") not in (None, 200):
        found.append(f"its server does not answer (/health: {running['health'] or 'nothing'})")
    files, then = running.get("files") or {}, receipt["requested"]["files"]
    found += [
        f"{name} is another one" for name in sorted(set(files) & set(then)) if files[name] != then[name]
    ]
    if running.get("accepted") != serves.get("deployment"):
        found.append(
            f"the machine starts {running.get('accepted') or 'nothing that was recorded'} at boot, "
            f"not {serves.get('deployment')}"
        )
    if running.get("release") != serves.get("release"):
        found.append(f"current is {running.get('release') or 'missing'}, not {serves.get('release')}")
    if running.get("fingerprint") and receipt["fingerprint"].get("digest") not in (
        None,
        running["fingerprint"],
    ):
        found.append("the host is another one: hardware, driver or kernel settings changed (fingerprint)")
    found += [
        f"{file} was edited, or is gone, since the server was started with it"
        for file in running.get("edited") or []
    ]
    if unfinished:
        began = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(unfinished["began"]))
        found.append(f"a rollout that began at {began} has not ended: it is under way, or was broken off")
    if running.get("refuses"):
        found.append("it refuses new connections of clients (nft list table inet sglang_rollout)")
    found += [
        f"{gateway} sends it no requests until a rollout puts it back"
        for gateway in running.get("left_out_by") or []
    ]
    found += [
        f"{gateway} cannot be reached by ssh, so whether it sends it requests is not known"
        for gateway in running.get("unreachable") or []
    ]
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_map(value: Any) -> bool:
    return isinstance(value, dict)


def _has(**fields: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: _is_map(value) and not _fault(value, fields)


def _all(item: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(item, value))


def _or_null(item: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or item(value)


# What readers of receipts rely on; docs/schemas/rollout-receipt.schema.json says more.
_PENDING_FIELDS: Mapping[str, Callable[[Any], bool]] = {
    "id": _is_text,
    "host": _is_text,
    "found": _or_null(_is_map),
    "began": _is_number,
    "first_began": _is_number,
    "broken_runs": _is_number,
}
_FIELDS: Mapping[str, Callable[[Any], bool]] = {
    **_PENDING_FIELDS,
    "schema": lambda value: value == SCHEMA,
    "ended": _is_number,
    "outcome": lambda value: value in OUTCOMES,
    "reason": _is_text,
    "phases": _all(_has(phase=_is_text, seconds=_is_number)),
    "outage": _or_null(_has(seconds=_is_number)),
    "requested": _has(
        sglang_version=_or_null(_is_text),
        engine=_or_null(_is_text),
        release=_or_null(_is_text),
        deployment=_or_null(_is_text),
        profile=_or_null(_is_text),
        digests=_is_map,
        files=_is_map,
        arguments=_is_map,
        environment=_is_map,
    ),
    "serves": _or_null(_is_map),
    "fingerprint": _is_map,
    "result": _or_null(_is_map),
}


def _fault(content: Mapping[str, Any], fields: Mapping[str, Callable[[Any], bool]]) -> str:
    """What a receipt lacks, or has in another form; empty when it is whole."""
    missing = [name for name in fields if name not in content]
    if missing:
        return f"it lacks {', '.join(missing)}"
    odd = [name for name, fits in fields.items() if not fits(content[name])]
    return f"{', '.join(f'{name} is {str(content[name])[:60]!r}' for name in odd)}" if odd else ""


def _redacted(value: Any, secrets: Sequence[str]) -> Any:
    """A value as JSON knows them, with every secret replaced in each of its texts."""
    if isinstance(value, str):
        return redact(value, secrets)
    if isinstance(value, Mapping):
        return {redact(str(name), secrets): _redacted(item, secrets) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_redacted(item, secrets) for item in value]
    return value


def _text(content: Mapping[str, Any]) -> str:
    return json.dumps(content, indent=2, sort_keys=True) + "\n"
