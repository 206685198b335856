"""The states of patches, for people: a table, and what of it somebody should look at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

State = Mapping[str, Any]
"""One entry of what the module ``source_patch`` returns as ``patches``."""

# The reason of a needed patch is why it is on, which says nothing about what happened.
_MEANING = {
    "needed": "{path} lacks it",
    "stale": "{path}: {reason}",
    "conflict": "{path} {reason}",
    "unknown": "{reason}",
}


def table(states: Sequence[State]) -> str:
    """A line for each patch: what it is, its state, the release it was held against, and why."""
    rows = [("patch", "state", "release", "because")]
    rows += [(one["id"], _state(one), _release(one), one["reason"]) for one in states]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = ["  ".join([*(cell.ljust(width) for cell, width in zip(row, widths)), row[3]]) for row in rows]
    return "\n".join(line.rstrip() for line in lines)


def drift(states: Sequence[State]) -> list[str]:
    """What is not as the project left it, a sentence each; empty if nothing drifted."""
    found = [
        f"{one['id']} is {one['state']}: {_MEANING[one['state']].format(**one)}"
        for one in states
        if one["state"] in _MEANING
    ]
    edited = dict.fromkeys(one["path"] for one in states if one["edited"])
    return found + [
        f"{path} was edited: it differs from the published file in more than our patches" for path in edited
    ]


def superfluous(states: Sequence[State]) -> list[str]:
    """The patches that the release has made unnecessary."""
    return [f"{one['id']}: {one['reason']}" for one in states if one["state"] == "upstream"]


def _state(one: State) -> str:
    before = one.get("before", one["state"])
    return str(one["state"]) if before == one["state"] else f"{before} -> {one['state']}"


def _release(one: State) -> str:
    return f"{one['package']} {one['version']}" if one["version"] else f"no {one['package']}"
