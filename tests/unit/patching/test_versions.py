"""Ranges of releases."""

from __future__ import annotations

import pytest
from blackwell.patching.versions import in_range, version_key
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

RELEASES = st.lists(st.integers(0, 30), min_size=1, max_size=4).map(lambda parts: ".".join(map(str, parts)))
VERSIONS = st.builds(
    "{}{}{}{}".format,
    RELEASES,
    st.sampled_from(["", "a1", "b2", "rc1"]),
    st.sampled_from(["", ".post1", ".post12"]),
    st.sampled_from(["", ".dev0", ".dev7"]),
)


@given(VERSIONS, VERSIONS)
def test_versions_order_as_pip_orders_them(one: str, other: str) -> None:
    assert (version_key(one) < version_key(other)) == (Version(one) < Version(other))
    assert (version_key(one) == version_key(other)) == (Version(one) == Version(other))


@pytest.mark.parametrize(
    ("version", "inside"),
    [
        ("0.5.8", True),
        ("0.5.9", True),
        ("0.5.10.post1", True),
        ("0.5.13.post1+cu130", True),
        ("0.5.14.dev3", True),
        ("0.5.14", False),
        ("0.5.8rc1", False),
        ("0.6", False),
    ],
)
def test_range(version: str, inside: bool) -> None:
    assert in_range(version, ">=0.5.8,<0.5.14") is inside


@pytest.mark.parametrize("releases", ["0.5.9", "~=0.5", ">= ", ""])
def test_what_is_no_range_is_refused(releases: str) -> None:
    with pytest.raises(ValueError, match="is not a"):
        in_range("0.5.9", releases)
