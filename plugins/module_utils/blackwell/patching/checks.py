"""Checks on syntax trees: what must hold before and after a patch, and what shows that upstream has it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable

from . import syntax
from .definition import Check

Trees = Callable[[str], ast.Module]
"""Gives the syntax tree of a file of the package; raises FileNotFoundError if there is no such file."""


def failure(check: Check, trees: Trees) -> str | None:
    """None if ``check`` holds, else what is there instead, as a phrase."""
    try:
        tree = trees(check.file)
    except FileNotFoundError:
        return f"{check.file} is not there"
    try:
        problem = _problem(check, tree)
    except syntax.NotFound as missing:
        problem = str(missing)
    return (check.why or problem) if problem else None


def failures(checks: Iterable[Check], trees: Trees) -> list[str]:
    """What does not hold, in the order of ``checks``."""
    return [problem for check in checks if (problem := failure(check, trees)) is not None]


def _problem(check: Check, tree: ast.Module) -> str | None:
    if check.undefined is not None:
        there = syntax.definitions(tree, check.undefined)
        return f"{check.undefined} is defined already (line {there[0].lineno})" if there else None
    if check.defined is not None:
        syntax.definition(tree, check.defined)
        return None
    if check.imported is not None:
        return None if syntax.imports(tree, check.imported) else f"{check.imported} is not imported"
    if check.without_arguments is not None:
        function = syntax.definition(tree, check.without_arguments)
        free = syntax.callable_without_arguments(function)
        return None if free else f"{check.without_arguments} cannot be called without arguments"
    if check.once is not None:
        syntax.only(tree, check.once, check.at)
        return None
    pattern = check.has or check.lacks or ""
    found = syntax.occurrences(tree, pattern, check.at)
    where = check.at or "the module"
    if check.has is not None and not found:
        return f"{where} has no `{' '.join(pattern.split())}`"
    if check.lacks is not None and found:
        return f"{where} has `{' '.join(pattern.split())}` (line {found[0].line})"
    return None
