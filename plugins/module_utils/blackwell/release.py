"""What a release is, before it exists: its id and its paths, from the files that define it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from . import lock as locks
from .errors import OperatorError
from .lock import Lock
from .patching.definition import load_by_kind, parse
from .patching.engine import VARIABLES, switches, switches_by_kind

# What a patch's definition says to people; a better sentence makes no new release.
_PROSE = {"title", "purpose", "references", "verified", "switch"}


def read_lock(path: Path, *, sglang: str, engine: str, python: str) -> Lock:
    """The lock, if it is the one for what was asked.

    Args:
        path: the lock file on the controller.
        sglang: wanted release of SGLang.
        engine: ``cuda`` or ``cpu``.
        python: wanted Python, ``major.minor``.

    Raises:
        OperatorError: there is no such file, or it was made for something else.
    """
    if not path.is_file():
        others = ", ".join(sorted(entry.name for entry in path.parent.glob("sglang-*.txt")))
        raise OperatorError(
            f"There is no lock for SGLang {sglang}, engine {engine}, Python {python}",
            found=f"{others or 'no lock at all'} in {path.parent}",
            expected=str(path),
            remedy="make one with files/locks/make-lock, or correct sglang_stack_version, "
            "sglang_stack_engine or sglang_stack_python"
            # YAML's 3.10 is a number, and as such 3.1.
            + (' (in quotes: "3.10")' if python == "3.1" else ""),
        )
    lock = locks.parse(path.read_text(encoding="utf-8"), path.name)
    wanted = {"SGLang": sglang, "engine": engine, "Python": python}
    given = {"SGLang": lock.sglang, "engine": lock.engine, "Python": lock.python}
    wrong = [key for key in wanted if wanted[key] != given[key]]
    installs = lock.versions.get("sglang")
    if not wrong and installs != sglang:
        wrong, given["SGLang"] = ["SGLang"], f"{installs} among its packages"
    if wrong:
        raise OperatorError(
            f"The lock {path.name} does not match what was asked for",
            found=", ".join(f"{key} {given[key]}" for key in wrong),
            expected=", ".join(f"{key} {wanted[key]}" for key in wrong),
            remedy="set sglang_stack_lock to a lock for it, or make one with files/locks/make-lock",
        )
    return lock


def plan(
    *,
    root: str,
    lock: Lock,
    patches: Mapping[str, Path],
    enabled: Mapping[str, Mapping[str, Any]],
    engine_files: Path | None,
    toolkit: str,
) -> dict[str, Any]:
    """Id and paths of a release, and the digests that the id is made of.

    The id depends on contents only: not on the controller, on file times, or on the order of anything.

    Args:
        root: where releases live on the host.
        lock: what it is installed from.
        patches: for each kind of patches their folder; empty means no patches.
        enabled: for each kind, patch id to whether it is on, for those that do not follow their own default.
        engine_files: tree that is copied into site-packages.
        toolkit: source of the CUDA toolkit.
    """
    parts = {
        "lock": lock.digest,
        "patches": _patch_digest(patches, enabled),
        "engine": _tree_digest(engine_files),
        "toolkit": toolkit,
        "python": lock.python,
    }
    digest = hashlib.sha256("\n".join(f"{key} {parts[key]}" for key in sorted(parts)).encode()).hexdigest()
    name = f"{lock.sglang}-{digest[:12]}"
    path = f"{root.rstrip('/')}/releases/{name}"
    return {
        "id": name,
        "path": path,
        "venv": f"{path}/venv",
        "python": f"{path}/venv/bin/python",
        "site_packages": f"{path}/venv/lib/python{lock.python}/site-packages",
        "sglang_version": lock.sglang,
        "engine": lock.engine,
        "digests": parts,
    }


def overlay(engine_files: Path | None) -> dict[str, str]:
    """The engine's files, by path below site-packages."""
    if engine_files is None:
        return {}
    return {name: path.read_text(encoding="utf-8") for name, path in _files(engine_files)}


def check_switches(
    patches: Mapping[str, Path], enabled: Mapping[str, Mapping[str, Any]], summary: Mapping[str, Any]
) -> None:
    """Refuse a summary of the switches that says something else than the switches themselves.

    The roles that patch read the switches alone, so a difference would be one between a release's id and the release.

    Args:
        patches: for each kind of patches their folder.
        enabled: the switches of each kind.
        summary: ``sglang_stack_patches_enabled``, switches of all kinds.

    Raises:
        OperatorError: they differ, or either is wrong by itself.
    """
    known = [parse(raw) for raw in load_by_kind(patches)]
    on, said = switches_by_kind(known, enabled), switches(known, summary)
    different = [patch for patch in known if on[patch.id] != said[patch.id]]
    if different:
        raise OperatorError(
            "sglang_stack_patches_enabled switches what no role would do",
            found=", ".join(f"{one.id}: {str(said[one.id]).lower()}" for one in different),
            expected=", ".join(f"{one.id}: {str(on[one.id]).lower()}" for one in different)
            + ", as the variables of the roles say",
            remedy="remove sglang_stack_patches_enabled, and set what is meant in "
            + " and ".join(sorted({VARIABLES[one.kind] for one in different})),
        )


def _patch_digest(folders: Mapping[str, Path], enabled: Mapping[str, Mapping[str, Any]]) -> str:
    """Only patches that are on count."""
    definitions = load_by_kind(folders)
    on = switches_by_kind([parse(raw) for raw in definitions], enabled)
    return _digest(
        {
            raw["id"]: json.dumps({key: raw[key] for key in raw if key not in _PROSE}, sort_keys=True)
            for raw in definitions
            if on[raw["id"]]
        }
    )


def _tree_digest(folder: Path | None) -> str:
    if folder is None or not folder.is_dir():
        return _digest({})
    return _digest({name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in _files(folder)})


def _digest(parts: Mapping[str, str]) -> str:
    return hashlib.sha256("\n".join(f"{key} {parts[key]}" for key in sorted(parts)).encode()).hexdigest()


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Files that have a meaning on the host: no byte code, no notes for people, no editor backups."""
    for directory, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name != "__pycache__" and not name.startswith("."))
        for name in sorted(names):
            if not name.endswith((".pyc", ".md", "~")) and not name.startswith("."):
                path = Path(directory) / name
                yield path.relative_to(folder).as_posix(), path
