"""Hunks: the form in which a patch stands in a file, so that it can be taken out again to the byte.

A hunk is a run of whole lines between two markers. The lines it replaced stay in it as comments::

            # BEGIN blackwell patch: flashinfer-allreduce-guard
    #-        (_is_sm90_supported or _is_sm100_supported)
            (_is_sm90_supported or _is_sm100_supported or _is_sm120_supported)
            # END blackwell patch: flashinfer-allreduce-guard

So the file itself says what was there before, and any earlier version of a patch can be taken out without
knowing its text. ``ansible.builtin.blockinfile`` with :data:`MARKER` writes a hunk that replaced nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

MARKER = "# {mark} blackwell patch: "
"""What precedes the patch's id; ``{mark}`` is BEGIN or END, as in blockinfile."""

REPLACED = "#-"
"""What precedes a line that the hunk replaced."""

_MARKER = re.compile(r"[ \t]*# (BEGIN|END) blackwell patch: ([a-z0-9][a-z0-9-]*)")


class DamagedMarkers(Exception):
    """Markers that do not pair up: somebody edited the file between or around them."""


@dataclass(frozen=True)
class Change:
    """Lines ``start`` to ``end`` (from 0, end not included) become ``lines``; start == end inserts."""

    start: int
    end: int
    lines: tuple[str, ...]


def lines_of(text: str) -> list[str]:
    """The lines of ``text`` with their ends, counted as Python counts them: a form feed ends no line."""
    return [line for line in re.split(r"(?<=\n)", text) if line]


def ids_in(text: str) -> set[str]:
    """The ids of the patches that have markers in ``text``."""
    return {match[2] for line in text.split("\n") if (match := _MARKER.fullmatch(line))}


def without(text: str, patches: Iterable[str] | None = None) -> str:
    """``text`` as it was before the named patches (all patches if None) were put in.

    Raises:
        DamagedMarkers: a marker lacks its partner, or hunks are nested.
    """
    if " blackwell patch: " not in text:
        return text
    wanted = None if patches is None else set(patches)
    kept: list[str] = []
    inside: str | None = None
    for number, line in enumerate(lines_of(text), start=1):
        match = _MARKER.fullmatch(line.rstrip("\n"))
        ours = match is not None and (wanted is None or match[2] in wanted)
        if match is not None and inside is not None and match[2] != inside:
            raise DamagedMarkers(f"line {number}: a marker of {match[2]} inside the text of {inside}")
        if match is None or not ours:
            if inside is None:
                kept.append(line)
            elif line.startswith(REPLACED):
                kept.append(line[len(REPLACED) :])
        elif (match[1] == "BEGIN") == (inside is None):
            inside = match[2] if inside is None else None
        else:
            raise DamagedMarkers(f"line {number}: {match[1]} marker of {match[2]} without its partner")
    if inside is not None:
        raise DamagedMarkers(f"the BEGIN marker of {inside} has no END marker")
    return "".join(kept)


def with_changes(text: str, changes: Sequence[Change], patch: str | None = None) -> str:
    """``text`` with ``changes`` in it: as hunks of ``patch``, or bare if ``patch`` is None.

    Raises:
        ValueError: two changes overlap, or one touches the text of another patch.
    """
    lines = lines_of(text)
    ordered = sorted(changes, key=lambda change: (change.start, change.end))
    for before, after in zip(ordered, ordered[1:]):
        if after.start < before.end:
            raise ValueError(f"two edits overlap at line {after.start + 1}")
    for change in reversed(ordered):
        old = lines[change.start : change.end]
        new = [line + "\n" for line in change.lines]
        if patch is not None:
            if _inside_a_hunk(lines, change):
                raise ValueError(f"line {change.start + 1} is the text of another patch")
            sample = next((line for line in [*old, *new] if line.strip()), "")
            indent = sample[: len(sample) - len(sample.lstrip(" \t"))]
            marker = indent + MARKER + patch + "\n"
            new = [
                marker.replace("{mark}", "BEGIN"),
                *(REPLACED + line for line in old),
                *new,
                marker.replace("{mark}", "END"),
            ]
        lines[change.start : change.end] = new
    return "".join(lines)


def _inside_a_hunk(lines: Sequence[str], change: Change) -> bool:
    above = [match[1] for line in lines[: change.start] if (match := _MARKER.fullmatch(line.rstrip("\n")))]
    return above[-1:] == ["BEGIN"] or bool(ids_in("".join(lines[change.start : change.end])))
