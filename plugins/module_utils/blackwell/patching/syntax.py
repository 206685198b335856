"""Places in a source file, found by its syntax tree: patterns, definitions, occurrences.

A pattern is a piece of Python in which ``...`` stands for anything: ``layer(...)`` is a call of ``layer``
with any arguments, ``if x: ...`` an ``if`` with any body. Comments, line breaks and brackets do not matter.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Union

Definition = Union[ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef]
_DEFINITIONS = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_IRRELEVANT = {"ctx", "kind", "type_comment"}


class NotFound(Exception):
    """A place that is not there, or there more than once: the message says which."""


@dataclass(frozen=True)
class Found:
    """One occurrence of a pattern: an expression, or successive statements. Lines count from 1."""

    first: ast.AST
    last: ast.AST

    @property
    def line(self) -> int:
        return int(getattr(self.first, "lineno", 1))

    @property
    def end_line(self) -> int:
        return int(getattr(self.last, "end_lineno", self.line))


@cache
def expression(pattern: str) -> ast.expr | None:
    """``pattern`` as an expression, or None if it is none.

    Raises:
        SyntaxError: ``pattern`` is not Python at all.
    """
    body = ast.parse(pattern).body
    if len(body) == 1 and isinstance(body[0], ast.Expr):
        return body[0].value
    return None


@cache
def statements(pattern: str) -> tuple[ast.stmt, ...]:
    """``pattern`` as statements that follow one another."""
    return tuple(ast.parse(pattern).body)


def definitions(tree: ast.Module, name: str) -> list[Definition]:
    """Every class, function or method called ``name`` (``Class.method``), in the order of the file."""
    scopes: list[ast.Module | Definition] = [tree]
    found: list[Definition] = []
    for part in name.split("."):
        found = [
            node
            for scope in scopes
            for node in scope.body
            if isinstance(node, _DEFINITIONS) and node.name == part
        ]
        scopes = list(found)
    return found


def definition(tree: ast.Module, name: str) -> Definition:
    """The class, function or method called ``name``, which must be defined exactly once.

    Raises:
        NotFound: it is not there, or a later definition of the same name would win over an earlier one.
    """
    parts = name.split(".")
    found: list[Definition] = []
    for depth in range(1, len(parts) + 1):
        prefix = ".".join(parts[:depth])
        found = definitions(tree, prefix)
        if not found:
            raise NotFound(f"{prefix} is not defined")
        if len(found) > 1:
            lines = ", ".join(str(node.lineno) for node in found)
            raise NotFound(f"{prefix} is defined {len(found)} times (lines {lines})")
    return found[0]


def occurrences(tree: ast.Module, pattern: str, at: str | None, *, whole: bool = False) -> list[Found]:
    """Where ``pattern`` occurs within the definition ``at``, or outside every definition if ``at`` is None.

    Args:
        whole: only as statements of their own, even if the pattern is an expression.

    Raises:
        NotFound: ``at`` is not defined, or more than once.
    """
    scope: ast.AST = tree if at is None else definition(tree, at)
    wanted = None if whole else expression(pattern)
    if wanted is not None:
        return [
            Found(node, node)
            for node in _walk(scope, into_definitions=at is not None)
            if isinstance(node, ast.expr) and _same(wanted, node)
        ]
    sequence = statements(pattern)
    found: list[Found] = []
    for node in _walk(scope, into_definitions=at is not None):
        for block in _blocks(node):
            for start in range(len(block) - len(sequence) + 1):
                window = block[start : start + len(sequence)]
                if all(_same(one, other) for one, other in zip(sequence, window)):
                    found.append(Found(window[0], window[-1]))
    return found


def only(tree: ast.Module, pattern: str, at: str | None, *, whole: bool = False) -> Found:
    """The one occurrence of ``pattern``.

    Raises:
        NotFound: there is none, or there are several.
    """
    found = occurrences(tree, pattern, at, whole=whole)
    shown = " ".join(pattern.split())
    where = f" in {at}" if at else " outside functions and classes"
    if not found:
        raise NotFound(f"`{shown}` does not occur{where}")
    if len(found) > 1:
        lines = ", ".join(str(one.line) for one in found)
        raise NotFound(f"`{shown}` occurs {len(found)} times{where} (lines {lines})")
    return found[0]


def imports(tree: ast.Module, name: str) -> list[tuple[ast.ImportFrom | ast.Import, ast.alias]]:
    """Where ``name`` is imported outside functions and classes: the statements, and what in them names it."""
    return [
        (node, alias)
        for node in _walk(tree, into_definitions=False)
        if isinstance(node, (ast.ImportFrom, ast.Import))
        for alias in node.names
        if (alias.asname or alias.name) == name
    ]


def callable_without_arguments(function: Definition) -> bool:
    """Whether a method can be called on an instance with no arguments: all but ``self`` have defaults."""
    if isinstance(function, ast.ClassDef):
        return False
    arguments = function.args
    positional = len(arguments.posonlyargs) + len(arguments.args)
    return positional - len(arguments.defaults) <= 1 and None not in arguments.kw_defaults


def _walk(scope: ast.AST, *, into_definitions: bool) -> Iterator[ast.AST]:
    pending = [scope]
    while pending:
        node = pending.pop()
        yield node
        for child in ast.iter_child_nodes(node):
            if into_definitions or not isinstance(child, _DEFINITIONS):
                pending.append(child)


def _blocks(node: ast.AST) -> Iterator[list[ast.stmt]]:
    for field in ("body", "orelse", "finalbody"):
        block = getattr(node, field, None)
        if isinstance(block, list) and block and isinstance(block[0], ast.stmt):
            yield block


def _anything(node: object) -> bool:
    if isinstance(node, ast.Expr):
        node = node.value
    return isinstance(node, ast.Constant) and node.value is Ellipsis


def _same(pattern: object, node: object) -> bool:
    if isinstance(node, ast.expr) and _anything(pattern):
        return True
    if isinstance(pattern, list):
        return isinstance(node, list) and _same_list(pattern, node)
    if not isinstance(pattern, ast.AST):
        return pattern == node
    if type(pattern) is not type(node):
        return False
    fields = [field for field in pattern._fields if field not in _IRRELEVANT]
    if isinstance(pattern, ast.Call) and len(pattern.args) == 1 and _anything(pattern.args[0]):
        fields = ["func"]
    return all(_same(getattr(pattern, field, None), getattr(node, field, None)) for field in fields)


def _same_list(pattern: Sequence[object], nodes: Sequence[object]) -> bool:
    if len(pattern) == 1 and isinstance(pattern[0], ast.Expr) and _anything(pattern[0]):
        return bool(nodes)
    return len(pattern) == len(nodes) and all(_same(one, other) for one, other in zip(pattern, nodes))
