"""The form in which a patch stands in a file."""

from __future__ import annotations

import pytest
from blackwell.patching.hunks import Change, DamagedMarkers, ids_in, lines_of, with_changes, without
from hypothesis import given
from hypothesis import strategies as st

# Lines with everything that could be taken for something else: indentation, our own marks, form feeds.
LINE = st.one_of(
    st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), max_size=20),
    st.sampled_from(["", "    x = 1", "#-", "#-    x = 1", "# BEGIN", "\x0c", "\u2028"]),
).filter(lambda line: not ids_in(line))
TEXT = st.lists(LINE, min_size=1, max_size=12).map(lambda lines: "".join(line + "\n" for line in lines))


@st.composite
def changed(draw: st.DrawFn) -> tuple[str, list[Change]]:
    text = draw(TEXT)
    count = len(lines_of(text))
    borders = sorted(draw(st.lists(st.integers(0, count), max_size=6)))
    fresh = st.lists(LINE.filter(lambda line: not line.startswith("#-")), min_size=1, max_size=3).map(tuple)
    return text, [
        Change(start, end, draw(fresh)) for start, end in zip(borders[::2], borders[1::2], strict=False)
    ]


@given(changed())
def test_what_was_put_in_comes_out_to_the_byte(case: tuple[str, list[Change]]) -> None:
    text, changes = case
    patched = with_changes(text, changes, "some-patch")
    assert without(patched, ["some-patch"]) == text
    assert without(patched) == text
    assert without(patched, ["another-patch"]) == patched


@given(changed(), st.data())
def test_patches_come_out_in_any_order(case: tuple[str, list[Change]], data: st.DataObject) -> None:
    text, changes = case
    first = with_changes(text, changes, "first")
    row = data.draw(st.integers(0, len(lines_of(text))))
    try:
        both = with_changes(first, [Change(row, row + 1, ("new",))], "second")
    except ValueError:
        return  # it would have touched the text of the first patch
    assert without(without(both, ["second"]), ["first"]) == text
    assert without(without(both, ["first"]), ["second"]) == text


def test_the_file_says_what_was_there_before() -> None:
    text = "def f():\n    return [9, 10]\n"
    assert with_changes(text, [Change(1, 2, ("    return [9, 10, 12]",))], "list") == (
        "def f():\n"
        "    # BEGIN blackwell patch: list\n"
        "#-    return [9, 10]\n"
        "    return [9, 10, 12]\n"
        "    # END blackwell patch: list\n"
    )


@pytest.mark.parametrize(
    "lines",
    [
        ["# BEGIN blackwell patch: a", "x"],
        ["x", "# END blackwell patch: a"],
        ["# BEGIN blackwell patch: a", "# BEGIN blackwell patch: a", "# END blackwell patch: a"],
        ["# BEGIN blackwell patch: a", "# BEGIN blackwell patch: b", "# END blackwell patch: b"],
    ],
)
def test_damaged_markers_are_noticed(lines: list[str]) -> None:
    with pytest.raises(DamagedMarkers, match="marker"):
        without("\n".join(lines) + "\n", ["a"])


def test_a_patch_does_not_swallow_another() -> None:
    patched = with_changes("a\nb\nc\n", [Change(1, 2, ("B",))], "first")
    with pytest.raises(ValueError, match="another patch"):
        with_changes(patched, [Change(0, 6, ("x",))], "second")
