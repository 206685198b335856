"""Hostile patch.yml files, journals, sources and records: a state or an operator's error, and never a lost byte."""

from __future__ import annotations

import ast
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from blackwell.errors import OperatorError
from blackwell.patching import (
    definition,
    engine,
    hunks,
    installation,
    sources,
    transaction,
    unknown,
    versions,
)
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.attack.inputs import attack, hostile, value_or_operator_error
from tests.unit.patching.conftest import GREETING, PARTING, TWO_FILES, patch

ROOT = Path(__file__).resolve().parents[3]
DEFINITIONS = [file.read_bytes() for file in sorted((ROOT / "files/patches").glob("*/patch.yml"))]
DEFINITIONS.append(yaml.safe_dump(patch()).encode())
PATCHES = (patch(), patch(**TWO_FILES))
PATCHED = (
    GREETING.replace(
        '        return self.format("Hello", name)\n',
        "        # BEGIN blackwell patch: greet-warmly\n"
        '#-        return self.format("Hello", name)\n'
        '        return self.format("Welcome", name)\n'
        "        # END blackwell patch: greet-warmly\n",
    )
    + "# BEGIN blackwell patch: older\nOLD = 1\n# END blackwell patch: older\n"
)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@given(data=hostile(DEFINITIONS))
@attack
def test_a_patch_yml(data: bytes, folder: Path) -> None:
    file = folder / "patches" / "greet-warmly" / "patch.yml"
    file.parent.mkdir(parents=True, exist_ok=True)
    # The id has to be the folder's name, which would end most of them early.
    raw = data.replace(b"\nid: ", b"\nid: greet-warmly #", 1)
    file.write_bytes(raw)
    found = value_or_operator_error(lambda: definition.load(file.parents[1]))
    if not isinstance(found, OperatorError):
        assert [one["id"] for one in found] == ["greet-warmly"]
        assert isinstance(value_or_operator_error(lambda: definition.parse(found[0])), definition.Patch)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["0.5.9", ">=1.0"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["releases", "edits", "find", "at", "has", "when", "file", "text"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=8,
)


@given(key=st.sampled_from(sorted(definition._KEYS)), value=VALUES)
@attack
def test_a_definition_with_any_value_for_a_key(key: str, value: Any) -> None:
    found = value_or_operator_error(lambda: definition.parse(patch(**{key: value})))
    assert isinstance(found, (definition.Patch, OperatorError))


OLD = {"a.py": b"a = 1\n", "b.py": b"b = 1\n"}
DIGESTS = [transaction.sha256(data) for data in (b"a = 1\n", b"b = 1\n", b"a = 2\n", b"b = 2\n")]


def journals(root: Path) -> list[bytes]:
    """What a run that was cut off may have left: nothing done, half done, and files that are not there."""
    whole = {str(root / "a.py"): [DIGESTS[0], DIGESTS[2]], str(root / "b.py"): [DIGESTS[1], DIGESTS[3]]}
    elsewhere = {str(root / "missing.py"): [DIGESTS[0], DIGESTS[1]]}
    return [json.dumps(one).encode() for one in (whole, elsewhere, {**whole, **elsewhere}, {})]


@given(data=st.data())
@attack
def test_a_journal(data: st.DataObject, folder: Path) -> None:
    """Whatever it says: all files are what they were, or all what they were to become."""
    root = folder / "package"
    root.mkdir(exist_ok=True)
    for file in root.iterdir():
        file.unlink()
    begun = data.draw(st.integers(0, 2))
    for number, (name, old) in enumerate(OLD.items()):
        new = old.replace(b"1", b"2")
        (root / name).write_bytes(new if number < begun else old)
        if number >= begun:
            (root / f".{name}.blackwell-patch").write_bytes(new)
        (root / f".{name}.blackwell-patch-old").write_bytes(old)
    before = {name: (root / name).read_bytes() for name in OLD}
    journal = data.draw(hostile(journals(root)))
    (root / transaction.JOURNAL).write_bytes(journal)
    found = value_or_operator_error(lambda: transaction.recover(root, [root / name for name in OLD]))
    after = {name: (root / name).read_bytes() for name in OLD}
    wanted = {name: old.replace(b"1", b"2") for name, old in OLD.items()}
    if isinstance(found, OperatorError):
        assert found.remedy
        assert after == before
    elif journal == journals(root)[0]:
        assert after == wanted
    assert all(after[name] in (OLD[name], wanted[name]) for name in OLD)


def installed(root: Path, record: Path | None = None) -> engine.Installation:
    """An installation with the one package in ``root``, without an interpreter to ask."""
    made = engine.Installation.__new__(engine.Installation)
    made.patches = definition.ordered(definition.parse(one) for one in PATCHES)
    made.enabled = {one.id: True for one in made.patches}
    made.adopt, made.python = False, "python"
    made.packages = {"demo": installation.Package("demo", root, "1.0", record)}
    made.sources = {name: sources.Sources(package) for name, package in made.packages.items()}
    return made


@given(
    data=hostile([GREETING.encode(), PATCHED.encode(), b"\xef\xbb\xbf" + GREETING.encode(), PARTING.encode()])
)
@attack
def test_a_source_file(data: bytes, folder: Path) -> None:
    """A state; what can be patched becomes valid Python and gives its bytes back; what cannot is left alone."""
    root = folder / "demo"
    root.mkdir(exist_ok=True)
    file = root / "greeting.py"
    file.write_bytes(data)
    (root / "parting.py").write_text(PARTING, encoding="utf-8")

    here = installed(root)
    assert all(one.reason for one in engine.status(here, here.select()))
    here = installed(root)
    outcome = value_or_operator_error(lambda: engine.apply(here, here.select()))
    if isinstance(outcome, OperatorError):
        assert file.read_bytes() == data
    else:
        ast.parse(file.read_bytes())
        assert {one.state for one in outcome.after} <= set(engine.AT_REST)
        here = installed(root)
        value_or_operator_error(lambda: engine.revert(here, here.select()))
        if b"blackwell patch" not in data:
            assert file.read_bytes() == data
    here = installed(root)
    for one in value_or_operator_error(lambda: unknown.find(here)):
        assert one.describe()["state"] == "unknown"
    here, before = installed(root), file.read_bytes()
    if isinstance(value_or_operator_error(lambda: unknown.remove(here)), OperatorError):
        assert file.read_bytes() == before


@given(data=hostile([PATCHED.encode(), b"# BEGIN blackwell patch: a\n#-b\n# END blackwell patch: a\n"]))
@attack
def test_text_with_markers(data: bytes) -> None:
    text = data.decode("utf-8", "replace").replace("\r", "")
    try:
        bare = hunks.without(text)
    except hunks.DamagedMarkers as damage:
        assert str(damage)
        return
    assert hunks.without(hunks.with_changes(text, []), []) == text
    assert len(bare) <= len(text)


@given(data=hostile([b"demo/greeting.py,sha256=LPJNul-wow4m6DsqxbninhsWHlwfp0JecwQzYpOLmCQ,5\n"]))
@attack
def test_a_record(data: bytes, folder: Path) -> None:
    record = folder / "RECORD"
    record.write_bytes(data)
    found = installation.Package("demo", folder, "1.0", record).published_sha256("greeting.py")
    assert found is None or bytes.fromhex(found) is not None


VERSIONS = [
    b"0.5.9",
    b"v0.5.10rc0",
    b"0.6.7.post3",
    b"0.5.10.dev3+g1234abc",
    b"1.0b2.post1.dev4",
    b"1" * 5000,
]


@given(version=hostile(VERSIONS), releases=hostile([b">=0.5.8,<0.5.14", b"!=1.0"]))
@attack
def test_a_version_and_a_range(version: bytes, releases: bytes) -> None:
    text = version.decode("utf-8", "replace")
    known = versions.is_version(text)
    try:
        versions.in_range(text, releases.decode("utf-8", "replace"))
    except ValueError as problem:
        assert str(problem)
    if known:
        assert versions.in_range(text, f">={text},<={text}")
