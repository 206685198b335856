"""Finding places in a syntax tree."""

from __future__ import annotations

import ast

import pytest
from blackwell.patching import syntax

SOURCE = ast.parse(
    """
LIMIT = [9, 10]

def outer(layer):
    # [9, 10] in a comment, and in "a string [9, 10]"
    layer(
        1,
        key=[9, 10],
    )
    if layer:
        x = 1
        y = 2
    else:
        y = 3

class Wide:
    def f(self, a, b=1): ...
    def g(self, a=None, *, b=2): ...
    def h(self, *, b): ...
    @staticmethod
    def twice(): ...
    def twice(self): ...
"""
)


@pytest.mark.parametrize(
    ("pattern", "at", "lines"),
    [
        ("[9, 10]", None, [2]),
        ("[9, 10]", "outer", [8]),
        ("[10, 9]", "outer", []),
        ("layer(...)", "outer", [6]),
        ("layer(1, key=...)", "outer", [6]),
        ("layer()", "outer", []),
        ("if layer:\n    ...\nelse:\n    ...", "outer", [10]),
        ("if layer:\n    ...", "outer", []),
        ("x = 1\ny = 2", "outer", [11]),
        ("x = 1\ny = 3", "outer", []),
        ("y = ...", "outer", [12, 14]),
    ],
)
def test_occurrences(pattern: str, at: str | None, lines: list[int]) -> None:
    assert sorted(found.line for found in syntax.occurrences(SOURCE, pattern, at)) == lines


def test_an_expression_that_stands_alone_is_a_statement_too() -> None:
    assert len(syntax.occurrences(SOURCE, "layer(...)", "outer", whole=True)) == 1
    assert not syntax.occurrences(SOURCE, "[9, 10]", "outer", whole=True)


def test_a_place_has_to_be_there_once() -> None:
    with pytest.raises(syntax.NotFound, match=r"`y = \.\.\.` occurs 2 times in outer \(lines 1[24], 1[24]\)"):
        syntax.only(SOURCE, "y = ...", "outer")
    with pytest.raises(syntax.NotFound, match="`z` does not occur in outer"):
        syntax.only(SOURCE, "z", "outer")
    with pytest.raises(syntax.NotFound, match=r"Wide\.twice is defined 2 times"):
        syntax.only(SOURCE, "z", "Wide.twice")
    twice = ast.parse("class A:\n    def f(self): ...\ndef A(): ...\n")
    with pytest.raises(syntax.NotFound, match=r"A is defined 2 times \(lines 1, 3\)"):
        syntax.definition(twice, "A.f")
    with pytest.raises(syntax.NotFound, match=r"Narrow is not defined"):
        syntax.only(SOURCE, "z", "Narrow.f")


@pytest.mark.parametrize(("method", "free"), [("f", False), ("g", True), ("h", False)])
def test_what_can_be_called_without_arguments(method: str, free: bool) -> None:
    assert syntax.callable_without_arguments(syntax.definition(SOURCE, f"Wide.{method}")) is free
