"""The last step of staging: prove that a release is what was asked for, then write its manifest.

A release without a manifest is half made. With one it is complete, and is not written to any more save to mend it.
A mended one is proved again.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .errors import OperatorError
from .files import replace, sync_folder
from .flavours import misfits
from .interpreter import ask_interpreter
from .json_reader import find_object
from .lock import parse

MANIFEST = "manifest.json"

# Written into an environment when its installation has ended, and removed before anything in it is changed.
MARKER = "installed.json"

# Imports of a whole server from a cold disk take a minute; ten are a hang.
PROOF_LIMIT = 600

_PROBE = """
import importlib, importlib.metadata, sys
failed = {}
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except BaseException as error:
        failed[name] = f"{type(error).__name__}: {error}"
answer = {"version": importlib.metadata.version("sglang"), "failed": failed}
"""


def read_marker(venv: Path) -> dict[str, Any]:
    """The marker of an environment; empty where an installation has not ended.

    ``lock`` is the digest of its lock, ``python`` the interpreter that it was made with, ``proved`` whether it was
    proved since. A marker without ``proved`` is of an older version of this project, which proved what it sealed.
    """
    return find_object(venv / MARKER) or {}


def write_marker(venv: Path, *, lock: str, python: str, proved: bool) -> None:
    """Note that an installation has ended."""
    replace(venv / MARKER, json.dumps({"lock": lock, "python": python, "proved": proved}) + "\n")


def remove_marker(venv: Path) -> None:
    """Note that an installation begins, so that a kill or a power loss leaves nothing that passes for whole."""
    if (venv / MARKER).exists():
        (venv / MARKER).unlink()
        sync_folder(venv)


def is_proved(release: Mapping[str, Any]) -> bool:
    """Whether a release was proved after its environment was last installed or mended."""
    return bool(read_marker(Path(release["path"]) / "venv").get("proved", True))


def seal(release: Mapping[str, Any], imports: Sequence[str], environment: Mapping[str, str]) -> None:
    """Prove a release, write its manifest, and note the proof.

    Raises:
        OperatorError: as :func:`prove` does; the manifest is as it was.
    """
    prove(release, imports, environment)
    path = Path(release["path"])
    replace(path / MANIFEST, manifest(release))
    if marker := read_marker(path / "venv"):
        replace(path / "venv" / MARKER, json.dumps({**marker, "proved": True}) + "\n")


def manifest(release: Mapping[str, Any]) -> str:
    """The manifest's text; ``release`` is what planning returned."""
    return json.dumps(dict(release), indent=2, sort_keys=True) + "\n"


def read_manifest(path: Path) -> str:
    """The manifest of the release at ``path``, or nothing."""
    try:
        return (path / MANIFEST).read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return ""


def prove(release: Mapping[str, Any], imports: Sequence[str], environment: Mapping[str, str]) -> None:
    """Check a staged release with its own interpreter.

    Args:
        release: what planning returned.
        imports: modules that have to be importable.
        environment: variables to set for that.

    Raises:
        OperatorError: another version than the planned one is installed, packages do not belong together, or a module
            cannot be imported.
    """
    lock = parse((Path(release["path"]) / "lock.txt").read_text(encoding="utf-8"), "lock.txt")
    if problems := misfits(Path(release["site_packages"]), lock):
        raise OperatorError(
            f"The packages of release {release['id']} do not belong together",
            found="; ".join(problems),
            expected="builds of one kind",
            remedy="correct the recipe in files/locks and make the lock again; the release that serves was not touched",
        )
    with tempfile.TemporaryDirectory() as home:
        # Imported libraries make cache folders below HOME; these must not appear in root's.
        answer = ask_interpreter(
            release["python"],
            _PROBE,
            *imports,
            timeout=PROOF_LIMIT,
            environment={"PATH": os.environ.get("PATH", ""), "HOME": home, **environment},
            remedy="run the playbook again: it mends an environment that a broken run left, and proves it again",
        )
    if answer["version"] != release["sglang_version"]:
        raise OperatorError(
            "Another SGLang than the one that was asked for is installed",
            found=answer["version"],
            expected=release["sglang_version"],
            remedy=f"remove {release['path']} and run the playbook again",
        )
    if answer["failed"]:
        raise OperatorError(
            f"Release {release['id']} cannot import what its server imports",
            found="; ".join(f"{name} ({problem})" for name, problem in answer["failed"].items()),
            expected="no import error",
            remedy="correct the lock or the patch that is to blame; the release that serves was not touched",
        )
