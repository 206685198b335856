"""What a patch is: the contents of ``files/patches/<id>/patch.yml``, checked and typed.

``files/patches/README.md`` describes every key for people, ``files/patches/schema.json`` for editors.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import OperatorError
from . import hunks, syntax
from .versions import in_range

KINDS = ("model", "guard")
METHODS = ("edit", "blockinfile")

_DOCUMENTATION = {"purpose", "references", "verified"}
_KEYS = {"id", "title", "kind", "method", "package", "distribution", "file", "switch", "needs", "variants"}
_KEYS |= {"preconditions", "postconditions", "excluded", "upstream", "foreign"}
_EDITS = (
    {"find", "replace"},
    {"before", "text"},
    {"after", "text"},
    {"into", "text"},
    {"parameter", "at"},
    {"call", "argument"},
    {"remove"},
)
_CHECKS = {"defined", "undefined", "without_arguments", "imported", "has", "once", "lacks"}
_TEXTS = ("id", "title", "kind", "method", "package", "distribution", "file")


@dataclass(frozen=True)
class Check:
    """Something that holds, or does not, on the syntax tree of one file.

    Exactly one of these is given: ``defined``, ``undefined``, ``without_arguments`` (names of a class,
    function or method), ``imported`` (a name), ``has``, ``once``, ``lacks`` (patterns, within the definition
    ``at``).
    ``why`` is what to say when it does not hold.
    """

    file: str
    defined: str | None = None
    undefined: str | None = None
    without_arguments: str | None = None
    imported: str | None = None
    has: str | None = None
    once: str | None = None
    lacks: str | None = None
    at: str | None = None
    why: str = ""


@dataclass(frozen=True)
class Edit:
    """One change in one file; the key that is given says which kind.

    ``find`` with ``replace``: an expression or statements become other ones. ``before`` or ``after`` with
    ``text``: lines beside a statement. ``into`` with ``text``: lines at the end of a class. ``parameter``: one
    more parameter of the function ``at``. ``call`` with ``argument``: one more argument of a call. ``remove``:
    a definition or an imported name goes (only to take out an edit of somebody else).
    """

    file: str
    at: str | None = None
    find: str | None = None
    replace: str | None = None
    before: str | None = None
    after: str | None = None
    into: str | None = None
    text: str | None = None
    text_file: str | None = None
    parameter: str | None = None
    call: str | None = None
    argument: str | None = None
    remove: str | None = None


@dataclass(frozen=True)
class Variant:
    """How the patch is made for a range of releases of its package."""

    releases: str
    edits: tuple[Edit, ...]
    preconditions: tuple[Check, ...]
    postconditions: tuple[Check, ...]

    @property
    def text_file(self) -> str | None:
        """The file in the patch's folder that holds the text of its first edit, if it has one of its own."""
        return self.edits[0].text_file

    @property
    def files(self) -> tuple[str, ...]:
        """The files that the edits change, relative to the package, each once."""
        return tuple(dict.fromkeys(edit.file for edit in self.edits))


@dataclass(frozen=True)
class Upstream:
    """From which releases on, and by what, one recognises that upstream has the patch or a replacement."""

    releases: str
    because: str
    when: tuple[Check, ...]


@dataclass(frozen=True)
class Foreign:
    """An edit that others make by hand to the same end, and how the published text comes back."""

    because: str
    when: tuple[Check, ...]
    restore: tuple[Edit, ...]


@dataclass(frozen=True)
class Patch:
    """One patch. Ranges of releases count releases of ``distribution``, which installs ``package``."""

    id: str
    title: str
    kind: str
    method: str
    package: str
    distribution: str
    default: bool
    reason: str
    needs: tuple[str, ...]
    variants: tuple[Variant, ...]
    excluded: tuple[tuple[str, str], ...]
    upstream: tuple[Upstream, ...]
    foreign: tuple[Foreign, ...]

    def variant(self, version: str) -> Variant | None:
        """The variant for ``version`` of the package, if there is one."""
        return next((one for one in self.variants if in_range(version, one.releases)), None)

    def exclusion(self, version: str) -> str | None:
        """Why this patch has no place in ``version``, if it has none."""
        return next((reason for releases, reason in self.excluded if in_range(version, releases)), None)

    @property
    def files(self) -> tuple[str, ...]:
        """Every file that some variant changes, relative to the package."""
        return tuple(dict.fromkeys(file for variant in self.variants for file in variant.files))


def parse(raw: Mapping[str, Any]) -> Patch:
    """A patch from the contents of its ``patch.yml``, the texts of its ``text_file`` already read.

    Raises:
        OperatorError: a key is missing, unknown or wrong; the message names patch and key.
    """
    name = str(raw.get("id", "without id"))
    try:
        return _patch(raw)
    except (KeyError, TypeError, ValueError, SyntaxError, RecursionError, MemoryError) as error:
        problem = f"key {error} is missing" if isinstance(error, KeyError) else str(error)
        raise OperatorError(
            f"The patch {name} is not written as files/patches/README.md says",
            found=problem,
            remedy=f"correct files/patches/{name}/patch.yml",
        ) from error


def load(folder: Path) -> list[dict[str, Any]]:
    """The raw definitions of every patch in ``folder``, in the order of their ids, ready for :func:`parse`.

    Runs where Ansible runs (it needs PyYAML); hosts get the result as data.

    Raises:
        OperatorError: no patch is there, or one cannot be read or is wrong.
    """
    import yaml

    found = []
    for file in sorted(folder.glob("*/patch.yml")):
        try:
            raw = yaml.safe_load(file.read_text(encoding="utf-8"))
            if not isinstance(raw, dict) or raw.get("id") != file.parent.name:
                raise ValueError(f"the id must be the folder's name, {file.parent.name}")
            _read_texts(raw, file.parent)
        except (OSError, TypeError, ValueError, RecursionError, yaml.YAMLError) as error:
            raise OperatorError(
                f"The patch in {file.parent} cannot be read",
                found=str(error),
                expected="a mapping, as files/patches/README.md says",
                remedy=f"correct {file}",
            ) from error
        parse(raw)
        found.append(raw)
    if not found:
        raise OperatorError(
            f"There is no patch in {folder}", expected="folders with a patch.yml", remedy="name the right one"
        )
    return found


def load_by_kind(folders: Mapping[str, Path]) -> list[dict[str, Any]]:
    """The one set of patches of an inventory: of each kind those in its folder, in the order of their ids.

    The release's id, the roles that patch and the check of the inventory all read the set through this function.

    Args:
        folders: the folder of each kind; often the same one.

    Raises:
        OperatorError: as for :func:`load`, or two kinds have a patch of the same id.
    """
    folders = {kind: folder.expanduser() for kind, folder in folders.items()}
    loaded = {folder: load(folder) for folder in set(folders.values())}
    found = [raw for kind, folder in folders.items() for raw in loaded[folder] if raw["kind"] == kind]
    ids = [raw["id"] for raw in found]
    if twice := sorted({name for name in ids if ids.count(name) > 1}):
        raise OperatorError(
            f"Two patches have the id {', '.join(twice)}",
            found=", ".join(f"{folder} for the kind {kind}" for kind, folder in folders.items()),
            expected="one patch of each id",
            remedy="rename one of them, or put all patches into one folder and name that in sglang_stack_patches",
        )
    return sorted(found, key=lambda raw: str(raw["id"]))


def ordered(patches: Iterable[Patch]) -> list[Patch]:
    """``patches`` such that each comes after those it needs.

    Raises:
        OperatorError: a patch needs itself, or one that does not exist.
    """
    by_id = {patch.id: patch for patch in patches}
    done: dict[str, Patch] = {}

    def visit(patch: Patch, path: tuple[str, ...]) -> None:
        if patch.id in path:
            raise OperatorError(
                "Patches need each other in a circle",
                found=" -> ".join((*path, patch.id)),
                remedy=f"take one of them out of needs in files/patches/{patch.id}/patch.yml",
            )
        for need in patch.needs:
            if need not in by_id:
                raise OperatorError(
                    f"The patch {patch.id} needs {need}, which does not exist",
                    found=", ".join(sorted(by_id)),
                    expected=f"a patch {need}",
                    remedy=f"correct needs in files/patches/{patch.id}/patch.yml",
                )
            visit(by_id[need], (*path, patch.id))
        done.setdefault(patch.id, patch)

    for patch in sorted(by_id.values(), key=lambda one: one.id):
        visit(patch, ())
    return list(done.values())


def _read_texts(node: Any, folder: Path) -> None:
    if isinstance(node, dict):
        if "text_file" in node:
            node["text"] = (folder / node["text_file"]).read_text(encoding="utf-8")
        for value in node.values():
            _read_texts(value, folder)
    elif isinstance(node, list):
        for value in node:
            _read_texts(value, folder)


def _patch(raw: Mapping[str, Any]) -> Patch:
    _no_others(raw, _KEYS | _DOCUMENTATION)
    for key in _DOCUMENTATION:
        raw[key]
    _texts({key: raw[key] for key in _TEXTS if key in raw})
    if re.fullmatch(r"[a-z0-9][a-z0-9-]*", raw["id"]) is None:
        raise ValueError(f"id {raw['id']!r}: only lower-case letters, digits and hyphens")
    if raw["kind"] not in KINDS or raw["method"] not in METHODS:
        raise ValueError(f"kind is one of {KINDS}, method one of {METHODS}")
    if not isinstance(raw["switch"]["default"], bool):
        raise ValueError("switch.default is true or false")
    needs = raw.get("needs", [])
    if not isinstance(needs, list):
        raise TypeError(f"needs is {needs!r}, not a list")
    file = _file(raw["file"])
    patch = Patch(
        id=raw["id"],
        title=raw["title"],
        kind=raw["kind"],
        method=raw["method"],
        package=raw["package"],
        distribution=raw.get("distribution", raw["package"]),
        default=raw["switch"]["default"],
        reason=_text("switch.reason", raw["switch"]["reason"]),
        needs=tuple(_text("needs", need) for need in needs),
        variants=tuple(_variant(one, raw, file) for one in raw["variants"]),
        excluded=tuple(
            (_range(one["releases"]), _text("reason", one["reason"])) for one in raw.get("excluded", ())
        ),
        upstream=tuple(
            Upstream(
                _range(one["releases"]),
                _text("because", one["because"]),
                _checks(one["when"], _file(one.get("file", file))),
            )
            for one in raw.get("upstream", ())
        ),
        foreign=tuple(
            Foreign(
                _text("because", one["because"]),
                _checks(one["when"], file),
                _edits(one.get("restore", ()), file),
            )
            for one in raw.get("foreign", ())
        ),
    )
    if patch.method == "blockinfile":
        edits = [edit for variant in patch.variants for edit in variant.edits]
        if any(edit.before != "EntryClass = ..." or not edit.text or not edit.text.strip() for edit in edits):
            raise ValueError("method blockinfile can only insert text before `EntryClass = ...`")
    return patch


def _variant(raw: Mapping[str, Any], patch: Mapping[str, Any], file: str) -> Variant:
    _no_others(raw, {"releases", "file", "edits", "preconditions", "postconditions"})
    file = _file(raw.get("file", file))
    variant = Variant(
        releases=_range(raw["releases"]),
        edits=_edits(raw["edits"], file),
        preconditions=_checks([*patch.get("preconditions", ()), *raw.get("preconditions", ())], file),
        postconditions=_checks([*patch.get("postconditions", ()), *raw.get("postconditions", ())], file),
    )
    if not variant.edits or not variant.postconditions:
        raise ValueError(f"releases {variant.releases}: edits and postconditions must not be empty")
    return variant


def _edits(raw: Iterable[Mapping[str, Any]], file: str) -> tuple[Edit, ...]:
    edits = []
    for one in raw:
        _no_others(one, {"file", "at", "text_file"}.union(*_EDITS))
        if not any(kind <= set(one) <= kind | {"file", "at", "text_file"} for kind in _EDITS):
            raise ValueError(f"edit with {sorted(one)}: not one of {[sorted(kind) for kind in _EDITS]}")
        edit = Edit(**{"file": file, **_texts(one)})
        _file(edit.file)
        for pattern in (edit.find, edit.before, edit.after, edit.call):
            if pattern is not None:
                syntax.statements(pattern)
        added = [edit.replace, edit.text, edit.parameter, edit.argument]
        for line in "\n".join(text for text in added if text).split("\n"):
            if line.startswith(hunks.REPLACED) or hunks.ids_in(line):
                raise ValueError(f"{line!r} would be read as a marker")
        edits.append(edit)
    return tuple(edits)


def _checks(raw: Iterable[Mapping[str, Any]], file: str) -> tuple[Check, ...]:
    checks = []
    for one in raw:
        _no_others(one, {*_CHECKS, "file", "at", "why"})
        if len(_CHECKS & set(one)) != 1:
            raise ValueError(f"check with {sorted(one)}: exactly one of {sorted(_CHECKS)}")
        check = Check(**{"file": file, **_texts(one)})
        _file(check.file)
        for pattern in filter(None, (check.has, check.once, check.lacks)):
            syntax.statements(pattern)
        checks.append(check)
    return tuple(checks)


def _range(releases: object) -> str:
    in_range("0", _text("releases", releases))
    return str(releases)


def _file(name: object) -> str:
    """``name`` as a file of the package: a host must not be led out of the package's folder."""
    parts = _text("file", name).split("/")
    if not parts[-1].endswith(".py") or {"", ".", ".."} & set(parts):
        raise ValueError(f"file {name!r} is not a Python file relative to the package's folder")
    return "/".join(parts)


def _texts(raw: Mapping[str, object]) -> dict[str, str]:
    return {key: _text(key, value) for key, value in raw.items()}


def _text(key: str, value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{key} is {value!r}, not text")
    return value


def _no_others(raw: Mapping[str, Any], known: set[str]) -> None:
    if not isinstance(raw, Mapping):
        raise TypeError(f"{raw!r} is not a mapping")
    if unknown := sorted(set(raw) - known):
        raise ValueError(f"unknown key {', '.join(unknown)}")
