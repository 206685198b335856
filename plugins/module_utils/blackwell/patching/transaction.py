"""Change several files together: all of them or none, even if the power fails in between.

Order of events: every new file is written beside its target and synced; a journal names them; one rename
each; the journal goes. Whoever finds a journal finishes what it says. Renaming never writes through a hard
link, so a cache that shares its files with the installation (uv, conda) keeps the published bytes.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from ..errors import OperatorError

JOURNAL = ".blackwell-patch.journal"
"""Name of the journal, in the folder of one of the packages."""

_FRESH = ".blackwell-patch"


def sha256(data: bytes) -> str:
    """The hash (hex) of ``data``."""
    return hashlib.sha256(data).hexdigest()


@contextlib.contextmanager
def locked(root: Path, *, shared: bool = False) -> Iterator[None]:
    """Hold the lock on the package in ``root``; only a shared one if nothing will be written.

    The lock is on the folder itself: it leaves no file behind and ends with the process.

    Raises:
        OperatorError: another run holds it, or the folder cannot be locked.
    """
    with contextlib.ExitStack() as stack:
        try:
            folder = os.open(root, os.O_RDONLY)
            stack.callback(os.close, folder)
            fcntl.flock(folder, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise OperatorError(
                f"Another run is patching {root} at this moment",
                remedy="wait until it is over, then run again",
            ) from error
        except OSError as error:
            raise OperatorError(
                f"{root} cannot be locked; nothing was changed",
                found=error.strerror or str(error),
                remedy="run as a user who may read it, on a file system that has locks",
            ) from error
        yield


def read_only(path: Path) -> str | None:
    """What to say if nobody but root may write ``path``: somebody took the permission away, and may have a reason."""
    mode = stat.S_IMODE(path.stat().st_mode)
    return None if mode & stat.S_IWUSR else f"is read-only (mode {mode:04o})"


def unfinished(root: Path) -> bool:
    """Whether a run was cut off in the middle of a change of the package in ``root``."""
    return (root / JOURNAL).exists()


def write(root: Path, files: Mapping[Path, bytes]) -> None:
    """Give every file its new bytes, all or none. The caller holds the locks; ``root`` takes the journal.

    A symbolic link stays one: its target changes. Mode and owner stay. The file's byte code goes.

    Raises:
        OperatorError: a file cannot be written; the tree is as it was.
    """
    targets = {Path(os.path.realpath(path)): data for path, data in files.items()}
    before: dict[Path, bytes] = {}
    try:
        for target, data in targets.items():
            before[target] = target.read_bytes()
            _write_beside(target, data)
        _write_journal(root, {path: (sha256(before[path]), sha256(data)) for path, data in targets.items()})
        _finish(root)
    except OSError as error:
        what = "nothing was changed"
        try:
            for target, data in before.items():
                if target.read_bytes() != data:
                    _write_beside(target, data)
                    _beside(target).replace(target)
                    _remove_byte_code(target)
            _sweep(root, targets)
        except OSError:
            what = "what was written before it could not be taken back, and the next run will complete it"
        raise OperatorError(
            f"{error.filename or root} cannot be written; {what}",
            found=error.strerror or str(error),
            remedy="make it writable and see that there is space, then run again",
        ) from error


def recover(root: Path, files: Iterable[Path]) -> list[str]:
    """Finish what a run that was cut off had begun. The caller holds the lock on ``root``.

    Args:
        files: the files beside which such a run may have left a new one that no journal names yet.

    Returns:
        The files that were completed.

    Raises:
        OperatorError: a file is neither what it was nor what it was to become.
    """
    completed = _finish(root) if unfinished(root) else []
    _sweep(root, (Path(os.path.realpath(file)) for file in files))
    return completed


def _finish(root: Path) -> list[str]:
    try:
        entries = json.loads((root / JOURNAL).read_text(encoding="utf-8"))
    except ValueError as error:
        raise OperatorError(
            f"A run was cut off while it changed {root}, and its journal was damaged since",
            found=str(error),
            remedy=f"reinstall the package of {root}, remove {root / JOURNAL}, then run again",
        ) from error
    completed = []
    for path, (old, new) in entries.items():
        target = Path(path)
        fresh = _beside(target)
        now = sha256(target.read_bytes()) if target.exists() else "missing"
        if now != new:
            if now != old or not fresh.exists() or sha256(fresh.read_bytes()) != new:
                raise OperatorError(
                    f"A run was cut off while it changed {target}, and the file was edited since",
                    found=f"sha256 {now}",
                    expected=f"{old} or {new}",
                    remedy=f"reinstall the package of {root}, remove {root / JOURNAL}, then run again",
                )
            fresh.replace(target)
            _sync(target.parent)
            completed.append(path)
        _remove_byte_code(target)
    _sweep(root, map(Path, entries))
    return completed


def _sweep(root: Path, targets: Iterable[Path]) -> None:
    """Remove the journal first: only while it is there do the files beside the targets mean anything."""
    (root / JOURNAL).unlink(missing_ok=True)
    _sync(root)
    (root / f"{JOURNAL}.new").unlink(missing_ok=True)
    for target in targets:
        _beside(target).unlink(missing_ok=True)


def _beside(target: Path) -> Path:
    # A leading dot and a suffix other than .py: no loader of models or plugins takes it for a module.
    return target.with_name(f".{target.name}{_FRESH}")


def _write_beside(target: Path, data: bytes) -> None:
    status = target.stat()
    if problem := read_only(target):
        raise PermissionError(0, problem, str(target))
    fresh = _beside(target)
    try:
        fresh.unlink(missing_ok=True)
        with fresh.open("xb") as stream:
            stream.write(data)
            os.fchmod(stream.fileno(), stat.S_IMODE(status.st_mode))
            if (status.st_uid, status.st_gid) != (os.geteuid(), os.getegid()):
                os.fchown(stream.fileno(), status.st_uid, status.st_gid)
            stream.flush()
            os.fsync(stream.fileno())
    except OSError as error:
        error.filename = str(target)  # the file that the operator knows
        raise


def _write_journal(root: Path, hashes: Mapping[Path, tuple[str, str]]) -> None:
    fresh = root / f"{JOURNAL}.new"
    with fresh.open("w", encoding="utf-8") as stream:
        json.dump({str(path): pair for path, pair in hashes.items()}, stream)
        stream.flush()
        os.fsync(stream.fileno())
    fresh.replace(root / JOURNAL)
    _sync(root)


def _remove_byte_code(target: Path) -> None:
    # Byte code is trusted by size and whole seconds of time, or not checked at all.
    folder = target.parent / "__pycache__"
    for file in folder.glob("*.pyc"):
        if file.name.split(".", 1)[0] == target.stem:
            file.unlink(missing_ok=True)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
