"""What an inventory says about patches: their folders and their switches, judged before any host is touched."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from ..errors import OperatorError
from ..release import check_switches
from ..variables import Problem
from .definition import load_by_kind, parse
from .engine import VARIABLES, switches_by_kind

COMMON = "sglang_stack_patches"
DIRECTORIES = {"model": "model_patches_directory", "guard": "sm120_guards_directory"}
"""The variable of each kind that goes before ``sglang_stack_patches``."""
SUMMARY = "sglang_stack_patches_enabled"


def folders(values: Mapping[str, Any], default: Path) -> dict[str, Path]:
    """The folder of each kind, as the roles and the plan of the release find it."""
    common = values.get(COMMON) or default
    return {kind: Path(values.get(name) or common) for kind, name in DIRECTORIES.items()}


def judge(
    values: Mapping[str, Mapping[str, Any]], unread: Mapping[str, Collection[str]], default: Path
) -> list[Problem]:
    """Find switches and folders that the roles or the plan of the release would refuse.

    Args:
        values: for each host the variables that it sets and that can be read now.
        unread: for each host the variables that cannot be read yet; one of ours among them leaves the host out.
        default: the project's own folder of patches.
    """
    ours = {COMMON, SUMMARY, *DIRECTORIES.values(), *VARIABLES.values()}
    found: dict[tuple[str, str, str], list[str]] = {}
    for host, own in values.items():
        given = {kind: own.get(name) or {} for kind, name in VARIABLES.items()}
        summary = own.get(SUMMARY) or {}
        # A value of another type is a problem of its own.
        readable = all(isinstance(switches, Mapping) for switches in (*given.values(), summary))
        if not readable or ours.intersection(unread.get(host, ())):
            continue
        try:
            _refuse(folders(own, default), given, summary)
        except OperatorError as error:
            name = next((one for one in sorted(ours & own.keys()) if one in str(error)), COMMON)
            text = f"{error.problem.removeprefix(f'{name} ')}. Found: {error.found or 'nothing'}"
            remedy = error.remedy or ""
            found.setdefault((name, text, remedy[:1].upper() + remedy[1:]), []).append(host)
    return [Problem(name, text, remedy, tuple(hosts)) for (name, text, remedy), hosts in found.items()]


def _refuse(
    chosen: Mapping[str, Path], given: Mapping[str, Mapping[str, Any]], summary: Mapping[str, Any]
) -> None:
    switches_by_kind([parse(raw) for raw in load_by_kind(chosen)], given)
    if summary:
        check_switches(chosen, given, summary)
