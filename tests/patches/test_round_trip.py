"""Patches of 0.5.9 on files that somebody strewed comments and blank lines into, anywhere."""

from __future__ import annotations

import ast
import zipfile
from functools import cache

import pytest
from blackwell.patching import checks, definition, edits, hunks
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.patches import trees
from tests.wheels import wheel

PATCHES = {raw["id"]: definition.parse(raw) for raw in definition.load(trees.PATCHES)}
VERSIONS = {"sglang": "0.5.9", "flashinfer": "0.6.3"}
STREWN = ["", "# a comment", "        # an indented comment", "#- what looks like a replaced line", "\x0c"]


@cache
def published(name: str) -> tuple[definition.Variant, str]:
    """The variant of a patch for 0.5.9, and the file that it changes."""
    patch = PATCHES[name]
    variant = patch.variant(VERSIONS[patch.package])
    assert variant is not None and len(variant.files) == 1
    with zipfile.ZipFile(wheel(patch.distribution, VERSIONS[patch.package])) as archive:
        return variant, archive.read(f"{patch.package}/{variant.files[0]}").decode()


@pytest.mark.parametrize("name", sorted(PATCHES))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(data=st.data())
def test_what_is_strewn_in_stays_and_the_patch_comes_out(name: str, data: st.DataObject) -> None:
    variant, text = published(name)
    lines = hunks.lines_of(text)
    places = data.draw(st.lists(st.integers(0, len(lines) - 1), max_size=12))
    for place in sorted(places, reverse=True):
        lines.insert(place, data.draw(st.sampled_from(STREWN)) + "\n")
    text = "".join(lines)
    try:
        tree = ast.parse(text)
    except SyntaxError:
        assume(False)  # it fell into a line that goes on in the next one
    assume(not checks.failures(variant.preconditions, lambda file: tree))
    patched = hunks.with_changes(text, edits.changes(text, tree, variant.edits), name)
    new = ast.parse(patched)
    assert checks.failures(variant.postconditions, lambda file: new) == []
    assert hunks.without(patched, [name]) == text
