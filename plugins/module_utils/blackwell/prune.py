"""Which releases of a host nothing needs any more."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from .seal import MANIFEST

# Where a unit that names a release may be: what the machine starts, and what runs until the next boot.
UNITS = (Path("/etc/systemd/system"), Path("/usr/local/lib/systemd/system"), Path("/run/systemd/system"))


@dataclass(frozen=True)
class Verdict:
    """One release, and why it stays; ``reason`` is empty for one that may go."""

    path: Path
    reason: str


def judge(
    root: Path,
    *,
    wanted: Iterable[str],
    keep: int,
    units: Iterable[Path] = UNITS,
    processes: Path = Path("/proc"),
) -> list[Verdict]:
    """Judge every release below ``root``.

    A release stays when it is current or wanted, when a unit or a process uses it, and as one of the ``keep`` most
    recently sealed of the rest. Those are what a rollback can go to. What is half made goes, unless it is wanted.

    Args:
        root: folder with ``releases/`` and ``current``.
        wanted: ids that stay, for example the planned one.
        keep: how many more to keep, at least 0.
        units: folders of systemd units.
        processes: the ``/proc`` to look at.
    """
    releases = sorted(
        path for path in (root / "releases").glob("*") if path.is_dir() and not path.is_symlink()
    )
    current = (root / "current").resolve()
    named = _named_by_units(units)
    used = _used_by_processes(processes, releases)
    reasons: dict[Path, str] = {}
    for path in releases:
        if path.resolve() == current:
            reasons[path] = "it is the accepted release"
        elif path.name in wanted:
            reasons[path] = "it is the planned release"
        elif path in used:
            reasons[path] = f"process {used[path]} uses it"
        elif any(f"{path}/" in text for text in named):
            reasons[path] = "a unit starts it"
    others = [path for path in releases if path not in reasons and (path / MANIFEST).exists()]
    others.sort(key=lambda path: (path / MANIFEST).stat().st_mtime_ns, reverse=True)
    for path in others[:keep]:
        reasons[path] = "one can go back to it"
    return [Verdict(path, reasons.get(path, "")) for path in releases]


def size(folder: Path) -> int:
    """Bytes on the disk below a folder; a file with several names counts once."""
    seen: dict[tuple[int, int], int] = {}
    for path in (folder, *folder.rglob("*")):
        found = path.lstat()
        seen[(found.st_dev, found.st_ino)] = found.st_blocks * 512
    return sum(seen.values())


def _named_by_units(folders: Iterable[Path]) -> list[str]:
    """The text of every unit and drop-in."""
    return [
        path.read_text(encoding="utf-8", errors="replace")
        for folder in folders
        if folder.is_dir()
        for path in folder.rglob("*")
        if path.is_file()
    ]


def _used_by_processes(processes: Path, releases: Iterable[Path]) -> dict[Path, int]:
    """One process for each release that any has files of in memory or was started from."""
    used: dict[Path, int] = {}
    for process in processes.glob("[0-9]*"):
        seen = ""
        for name in ("cmdline", "maps"):
            try:
                seen += (process / name).read_text(encoding="utf-8", errors="replace")
            except OSError:
                continue  # it has ended, or belongs to the kernel
        for path in releases:
            if f"{path}{os.sep}" in seen and int(process.name) != os.getpid():
                used[path] = int(process.name)
    return used
