"""What a patch.yml may say; the loader and the schema agree."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]  # it is published without types
import pytest
import yaml
from blackwell.errors import OperatorError
from blackwell.patching import definition
from blackwell.patching.engine import switches, switches_by_kind
from blackwell.patching.versions import in_range

from .conftest import patch


@pytest.fixture(scope="module")
def schema() -> jsonschema.Draft202012Validator:
    text = (Path(__file__).parents[3] / "files" / "patches" / "schema.json").read_text()
    return jsonschema.Draft202012Validator(json.loads(text))


def folders() -> list[Path]:
    root = Path(__file__).parents[3]
    return sorted(
        file.parent
        for place in ("files/patches", "docs/examples/patches")
        for file in (root / place).glob("*/patch.yml")
    )


@pytest.mark.parametrize("folder", folders(), ids=lambda folder: folder.name)
def test_every_patch_of_the_project_is_well_written(
    folder: Path, schema: jsonschema.Draft202012Validator
) -> None:
    raw = yaml.safe_load((folder / "patch.yml").read_text())
    schema.validate(raw)
    assert raw["id"] == folder.name
    used = {file.name for file in folder.iterdir()} - {"patch.yml"}
    assert used == {
        edit["text_file"] for one in raw["variants"] for edit in one["edits"] if "text_file" in edit
    }
    definition.load(folder.parent)


POSTS = ("", ".post1", ".dev1", "rc1")


def test_no_release_has_two_variants() -> None:
    for folder in folders():
        raw = yaml.safe_load((folder / "patch.yml").read_text())
        for version in [
            f"0.{minor}.{micro}{post}" for minor in (5, 6) for micro in range(30) for post in POSTS
        ]:
            fitting = [one for one in raw["variants"] if in_range(version, one["releases"])]
            assert len(fitting) <= 1, (folder.name, version)


WRONG: dict[str, dict[str, Any]] = {
    "unknown key": {"colour": "red"},
    "bad id": {"id": "Greet Warmly"},
    "unknown kind": {"kind": "mood"},
    "unknown method": {"method": "sed"},
    "switch is no boolean": {"switch": {"default": "yes", "reason": "x"}},
    "no range": {"variants": [{"releases": "1.0", "edits": [{"find": "a", "replace": "b"}]}]},
    "no edit": {"variants": [{"releases": ">=1.0", "edits": []}]},
    "two kinds of edit": {"variants": [{"releases": ">=1.0", "edits": [{"find": "a", "text": "b"}]}]},
    "edit lacks its text": {"variants": [{"releases": ">=1.0", "edits": [{"before": "a"}]}]},
    "file outside the package": {"file": "../../../../etc/greeting.py"},
    "absolute file": {"postconditions": [{"file": "/etc/greeting.py", "has": "a"}]},
    "file that is no source": {"file": "greeting.so"},
    "check without a condition": {"postconditions": [{"at": "Greeter"}]},
    "check with two conditions": {"postconditions": [{"has": "a", "lacks": "b"}]},
}


@pytest.mark.parametrize("changes", WRONG.values(), ids=WRONG.keys())
def test_what_is_wrong_is_refused(changes: dict[str, Any], schema: jsonschema.Draft202012Validator) -> None:
    raw = patch(**changes)
    assert not schema.is_valid(raw)
    with pytest.raises(OperatorError, match=r"is not written as files/patches/README.md says"):
        definition.parse(raw)


def places(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where the values of a definition are."""
    children: list[Any] = []
    if isinstance(node, dict):
        children = list(node.items())
    elif isinstance(node, list):
        children = list(enumerate(node))
    return [path, *(place for key, value in children for place in places(value, (*path, key)))]


EVERYTHING = patch(
    needs=["other"],
    excluded=[{"releases": "<1.0", "reason": "It has no feelings."}],
    foreign=[
        {
            "because": "Somebody wrote it.",
            "when": [{"file": "greeting.py", "at": "Greeter.greet", "once": '"Welcome"', "why": "so"}],
            "restore": [{"at": "Greeter.greet", "find": '"Welcome"', "replace": '"Hello"'}],
        }
    ],
)


@pytest.mark.parametrize("place", places(EVERYTHING)[1:], ids=lambda place: ".".join(map(str, place)))
@pytest.mark.parametrize("value", [None, 1.0, True, "x", ["x"], {"x": "x"}], ids=repr)
def test_a_value_of_another_type_is_refused(
    place: tuple[Any, ...], value: Any, schema: jsonschema.Draft202012Validator
) -> None:
    raw = deepcopy(EVERYTHING)
    holder: Any = raw
    for key in place[:-1]:
        holder = holder[key]
    holder[place[-1]] = value
    prose = place[0] in ("purpose", "references", "verified")
    if not prose and any(error.validator == "type" for error in flattened(schema.iter_errors(raw))):
        with pytest.raises(OperatorError, match=r"is not written as files/patches/README.md says"):
            definition.parse(raw)
    else:
        with suppress(OperatorError):
            definition.parse(raw)


def flattened(errors: Iterable[Any]) -> Iterator[Any]:
    for error in errors:
        yield error
        yield from flattened(error.context)


def test_a_file_of_patches_that_is_no_mapping_is_refused(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    for text in ("- a\n", "", "id: one\nvariants: [{edits: [{text_file: 5}]}]\n", "a: [\n", "\xff"):
        (tmp_path / "one" / "patch.yml").write_text(text, encoding="latin-1")
        with pytest.raises(OperatorError, match=r"The patch in .*one cannot be read"):
            definition.load(tmp_path)


@pytest.mark.parametrize("key", ["purpose", "references", "verified", "switch", "variants", "postconditions"])
def test_what_is_missing_is_named(key: str) -> None:
    raw = patch()
    del raw[key]
    with pytest.raises(OperatorError, match=key):
        definition.parse(raw)


@pytest.mark.parametrize("pattern", ["def f(:", "x ="])
def test_a_pattern_has_to_be_python(pattern: str) -> None:
    edits = [{"find": pattern, "replace": "b"}]
    with pytest.raises(OperatorError, match="greet-warmly"):
        definition.parse(patch(variants=[{"releases": ">=1.0", "edits": edits}]))


def test_a_text_must_not_look_like_a_marker() -> None:
    edits = [{"before": "FRIENDS = ...", "text": "#- x = 1\n"}]
    with pytest.raises(OperatorError, match="marker"):
        definition.parse(patch(variants=[{"releases": ">=1.0", "edits": edits}]))


def test_blockinfile_only_inserts_before_entry_class() -> None:
    with pytest.raises(OperatorError, match="blockinfile can only insert"):
        definition.parse(patch(method="blockinfile"))


def test_the_id_is_the_name_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "another-name").mkdir()
    (tmp_path / "another-name" / "patch.yml").write_text(yaml.safe_dump(patch()))
    with pytest.raises(OperatorError, match="another-name"):
        definition.load(tmp_path)


def test_a_folder_without_patches_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match="There is no patch"):
        definition.load(tmp_path)


def parsed(*ids_and_needs: tuple[str, list[str]], default: bool = True) -> list[definition.Patch]:
    switch = {"default": default, "reason": "x"}
    return [definition.parse(patch(id=name, needs=needs, switch=switch)) for name, needs in ids_and_needs]


def test_a_patch_comes_after_what_it_needs() -> None:
    patches = parsed(("a", ["c"]), ("b", []), ("c", ["b"]))
    assert [one.id for one in definition.ordered(patches)] == ["b", "c", "a"]


def test_needs_in_a_circle_are_refused() -> None:
    with pytest.raises(OperatorError, match="circle"):
        definition.ordered(parsed(("a", ["b"]), ("b", ["a"])))


def test_a_need_has_to_exist() -> None:
    with pytest.raises(OperatorError, match="does not exist"):
        definition.ordered(parsed(("a", ["z"])))


def test_a_patch_that_is_on_turns_on_what_it_needs() -> None:
    patches = parsed(("a", ["b"]), ("b", ["c"]), ("c", []), ("d", []), default=False)
    assert switches(patches, {"a": True}) == {"a": True, "b": True, "c": True, "d": False}


def test_a_need_that_is_switched_off_is_refused() -> None:
    patches = parsed(("a", ["b"]), ("b", []))
    with pytest.raises(OperatorError, match="b, which it needs, is switched off"):
        switches(patches, {"b": False})


def test_a_switch_for_no_patch_is_refused() -> None:
    with pytest.raises(OperatorError, match="There is no patch kimi to switch"):
        switches(parsed(("a", [])), {"kimi": True})


@pytest.mark.parametrize("value", [None, "", "maybe", 2, [True], {"on": True}, float("nan")])
def test_a_switch_is_true_or_false(value: Any) -> None:
    with pytest.raises(OperatorError, match=r"switched on or off with true or false. Found: a: "):
        switches(parsed(("a", [])), {"a": value})


@pytest.mark.parametrize(
    ("value", "means"),
    [("false", False), ("No", False), (0, False), ("off", False), ("true", True), ("yes", True), (1, True)],
)
def test_a_switch_may_be_written_as_everything_else_in_an_inventory(value: Any, means: bool) -> None:
    assert switches(parsed(("a", []), default=not means), {"a": value}) == {"a": means}


def test_a_quoted_false_is_off_for_what_needs_it() -> None:
    with pytest.raises(OperatorError, match="b, which it needs, is switched off"):
        switches(parsed(("a", ["b"]), ("b", [])), {"b": "false"})


def test_a_switch_in_the_variable_of_the_other_kind_is_refused_with_the_right_one() -> None:
    patches = [definition.parse(patch(id=f"a-{kind}", kind=kind)) for kind in ("model", "guard")]
    for kind, other, wrong, right in (
        ("model", "guard", "model_patches_enabled", "sm120_guards_enabled"),
        ("guard", "model", "sm120_guards_enabled", "model_patches_enabled"),
    ):
        with pytest.raises(OperatorError) as raised:
            switches(patches, {f"a-{other}": False}, kind)
        assert raised.value.found == f"a-{other} in {wrong}"
        assert raised.value.remedy == f"move a-{other} to {right}"
        # What the remedy says.
        assert switches(patches, {f"a-{other}": False}, other)[f"a-{other}"] is False
    assert switches(patches, {"a-model": False, "a-guard": False}) == {"a-guard": False, "a-model": False}


@pytest.mark.parametrize(("needing", "needed"), [("model", "guard"), ("guard", "model")])
def test_a_patch_turns_on_what_it_needs_of_the_other_kind(needing: str, needed: str) -> None:
    """Both roles are told of both variables, for each alone would leave the one or the other out."""
    off = {"default": False, "reason": "For a test."}
    patches = [
        definition.parse(patch(id="a", kind=needing, needs=["b"], switch=off)),
        definition.parse(patch(id="b", kind=needed, switch=off)),
    ]
    assert switches_by_kind(patches, {needing: {"a": True}, needed: {}}) == {"a": True, "b": True}
    assert switches_by_kind(patches, {}) == {"a": False, "b": False}
    with pytest.raises(OperatorError, match="b, which it needs, is switched off"):
        switches_by_kind(patches, {needing: {"a": True}, needed: {"b": False}})


def test_two_kinds_may_not_share_an_id(tmp_path: Path) -> None:
    for kind in ("model", "guard"):
        folder = tmp_path / kind / "a"
        folder.mkdir(parents=True)
        (folder / "patch.yml").write_text(yaml.safe_dump(patch(id="a", kind=kind)), encoding="utf-8")
    with pytest.raises(OperatorError, match="Two patches have the id a"):
        definition.load_by_kind({kind: tmp_path / kind for kind in ("model", "guard")})
