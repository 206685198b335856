"""Text of patches that no folder of patches has any more: found by its markers, and taken out by them.

A patch that left the folder is forgotten by everything that goes through the folder. Its text stays in installations
that were patched in place, and goes on doing what nobody decides about now.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import OperatorError
from . import transaction
from .engine import Installation, locks
from .installation import Package
from .sources import Conflict, Sources

UNKNOWN = "unknown"
REMOVED = "removed"

_MARKER = re.compile(rb"^[ \t]*# (?:BEGIN|END) blackwell patch: ([a-z0-9][a-z0-9-]*)[ \t\r]*$", re.MULTILINE)


@dataclass(frozen=True)
class Unknown:
    """The text of one such patch in one package: the files, relative to the package's folder."""

    id: str
    package: Package
    files: tuple[str, ...]

    def describe(self, *, removed: bool = False) -> dict[str, Any]:
        """What a report shows, with the keys that a patch of the folder has."""
        paths = [self.package.root / file for file in self.files]
        where = f"{self.files[0]}{f' and {len(self.files) - 1} more' if len(self.files) > 1 else ''}"
        return {
            "id": self.id,
            "title": "",
            "kind": UNKNOWN,
            "method": "",
            "package": self.package.name,
            "version": self.package.version,
            "enabled": False,
            "state": REMOVED if removed else UNKNOWN,
            "reason": f"its text was in {where}, and was taken out"
            if removed
            else f"its text is in {where}, and no folder of patches has it; -e patch_remove_unknown=true takes it out",
            "file": self.files[0],
            "path": str(paths[0]),
            "edited": None,
            "written": max(path.stat().st_mtime for path in paths),
            "text_file": None,
            "sha256": None,
            "before": UNKNOWN,
        }


@dataclass
class Outcome:
    """What was found, and what of it was, or in check mode would have been, taken out of which files.

    Attributes:
        changes: (path, old text, new text) of each file.
        recovered: files that a run which was cut off had left half done, and this one completed or took back.
    """

    found: list[Unknown]
    changes: list[tuple[str, str, str]] = field(default_factory=list)
    recovered: list[str] = field(default_factory=list)


def find(installation: Installation) -> list[Unknown]:
    """The text of patches that the set does not have, in every source file of the packages. Reads only.

    Raises:
        OperatorError: another run is changing the installation, or a file cannot be read.
    """
    with locks(installation, shared=True):
        return _find(installation)


def verify(installation: Installation) -> list[Unknown]:
    """Nothing, once it is certain that there is no such text.

    Raises:
        OperatorError: there is; the message names all of it.
    """
    if found := find(installation):
        raise OperatorError(
            "There is text of patches that no folder of patches has",
            found=", ".join(f"{one.id} in {one.package.root / file}" for one in found for file in one.files),
            expected="text of the patches in the folder alone",
            remedy="take it out: ansible-playbook playbooks/repatch.yml with -e patch_remove_unknown=true",
        )
    return found


def remove(installation: Installation, *, write: bool = True) -> Outcome:
    """Take all such text out of the files, all or none.

    Raises:
        OperatorError: a file cannot be given back or written; nothing was changed then.
    """
    with locks(installation, shared=not write):
        recovered = installation.recover() if write else []
        found = _find(installation)
        texts: dict[Path, bytes] = {}
        for one in found:
            source = installation.sources[one.package.name]
            for file in one.files:
                _take_out(source, file, one.id)
                texts[one.package.root / file] = source.text(file).encode()
        if write and texts:
            transaction.write(installation.roots[0], texts)
    return Outcome(found, installation.changes(), recovered)


def _take_out(source: Sources, file: str, patch: str) -> None:
    try:
        source.refuse_shared(file)
        source.refuse_read_only(file)
        source.change(file, source.without(file, [patch]))
    except Conflict as conflict:
        raise OperatorError(
            f"The text of the patch {patch}, which no folder of patches has, cannot be taken out; nothing was changed",
            found=f"{source.package.root / file} {conflict.reason}",
            expected="a file as it was patched",
            remedy=f"reinstall {source.package.name} {source.package.version} without its dependencies",
        ) from conflict


def _find(installation: Installation) -> list[Unknown]:
    known = {patch.id for patch in installation.patches}
    found: dict[tuple[str, str], list[str]] = {}
    for package in installation.packages.values():
        for file in _source_files(package.root):
            for patch in _ids_in(package.root / file) - known:
                found.setdefault((patch, package.name), []).append(file)
    return [
        Unknown(patch, installation.packages[name], tuple(sorted(files)))
        for (patch, name), files in sorted(found.items())
    ]


def _ids_in(path: Path) -> set[str]:
    try:
        data = path.read_bytes()
    except (FileNotFoundError, IsADirectoryError):
        return set()  # a link to nowhere, or to a folder
    except OSError as error:
        raise OperatorError(
            f"{path} cannot be searched for text of patches",
            found=error.strerror or str(error),
            expected="a readable file",
            remedy="run as a user who may read it",
        ) from error
    # Nearly no file has one, and this test is ten times as fast as the pattern.
    if b" blackwell patch: " not in data:
        return set()
    return {match[1].decode() for match in _MARKER.finditer(data)}


def _source_files(root: Path) -> Iterator[str]:
    for name, folders, files in os.walk(root):
        folders[:] = [one for one in folders if one != "__pycache__"]
        folder = Path(name)
        for file in files:
            if file.endswith(".py"):
                yield (folder / file).relative_to(root).as_posix()
