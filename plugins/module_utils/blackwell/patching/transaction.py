"""Change several files together: all of them or none, even if the power fails in between.

Order of events: the new and the old text of every file are written beside it and synced; a journal names them; one
rename each; the journal goes, and then what lies beside. Taking a change back is one rename each as well, so it can be
interrupted like the change itself: whoever finds a journal goes forward if every file can still get its new text, and
else back. Renaming never writes through a hard link, so a cache that shares its files with the installation (uv, conda)
keeps the published bytes.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from ..errors import OperatorError
from ..files import sync_folder
from ..json_reader import parse_object

JOURNAL = ".blackwell-patch.journal"
"""Name of the journal, in the folder of one of the packages."""

# What lies beside a file while it is changed: its new text and its old one.
_NEW = ".blackwell-patch"
_OLD = ".blackwell-patch-old"

_Hashes = Mapping[Path, tuple[str, str]]
"""The hash (hex) of the old and of the new text of each file."""


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
        OperatorError: a file cannot be written, and the tree is as it was; or the disk fails further, and the message
            says that the next run completes the change or takes it back.
    """
    targets = {Path(os.path.realpath(path)): data for path, data in files.items()}
    hashes: dict[Path, tuple[str, str]] = {}
    try:
        for target, data in targets.items():
            old = target.read_bytes()
            _write_beside(target, _OLD, old)
            _write_beside(target, _NEW, data)
            hashes[target] = (sha256(old), sha256(data))
        for folder in {target.parent for target in targets}:
            sync_folder(folder)
        _write_journal(root, hashes)
        _rename(targets, _NEW)
    except OSError as error:
        try:
            _rename([target for target, (old, _) in hashes.items() if _hash_of(target) != old], _OLD)
            _sweep(root, targets)
            what = "nothing was changed"
        except OSError:
            what = (
                "what was begun could not be cleared away, and the next run completes it for all files or takes it "
                "back for all"
            )
        raise OperatorError(
            f"{error.filename or root} cannot be written; {what}",
            found=error.strerror or str(error),
            remedy="make it writable and see that there is space, then run again",
        ) from error
    try:
        _sweep(root, targets)
    except OSError as error:
        raise _remains(root, error, "every file was changed") from error


def recover(root: Path, files: Iterable[Path]) -> list[str]:
    """Finish what a run that was cut off had begun, or take it back. The caller holds the lock on ``root``.

    Args:
        files: the files beside which such a run may have left others that no journal names yet.

    Returns:
        The files that were completed or taken back.

    Raises:
        OperatorError: a file is neither what it was nor what it was to become, the journal is damaged, or a file
            cannot be written.
    """
    targets = [Path(os.path.realpath(file)) for file in files]
    settled: list[Path] = []
    try:
        if unfinished(root):
            hashes = _read_journal(root)
            settled, suffix = _way_out(root, hashes)
            _rename(settled, suffix)
            for target in hashes:
                _remove_byte_code(target)
            targets += hashes
        _sweep(root, targets)
    except OSError as error:
        raise _remains(root, error, "a run that was cut off left it") from error
    return [str(target) for target in settled]


def _remains(root: Path, error: OSError, what: str) -> OperatorError:
    return OperatorError(
        f"{error.filename or root} cannot be replaced or removed; {what}, and the next run goes on with it",
        found=error.strerror or str(error),
        remedy="make it writable, then run again",
    )


def _read_journal(root: Path) -> _Hashes:
    journal = root / JOURNAL
    raw = parse_object(journal.read_bytes(), str(journal), remedy=_way_to_start_anew(root))
    hashes = {}
    for name, pair in raw.items():
        two = isinstance(pair, list) and len(pair) == 2 and all(isinstance(one, str) for one in pair)
        if not (two and all(re.fullmatch("[0-9a-f]{64}", one) for one in pair)) or not re.fullmatch(
            r"/[^\0]+", name
        ):
            raise OperatorError(
                f"{journal} was damaged since a run was cut off",
                found=f"{name[:200]!r}: {str(pair)[:200]}",
                expected="a file with the hashes of its old and its new text",
                remedy=_way_to_start_anew(root),
            )
        hashes[Path(name)] = (pair[0], pair[1])
    return hashes


def _way_out(root: Path, hashes: _Hashes) -> tuple[list[Path], str]:
    """The files still to be renamed, and from which of the texts beside them: forward, or if that is barred, back."""
    now = {target: _hash_of(target) for target in hashes}
    for target, known in hashes.items():
        if now[target] not in known:
            raise OperatorError(
                f"A run was cut off while it changed {target}, and the file was edited since",
                found=_shown(now[target]),
                expected=" or ".join(map(_shown, known)),
                remedy=_way_to_start_anew(root),
            )
    barred = []
    for goal, suffix in ((1, _NEW), (0, _OLD)):
        pending = [target for target, known in hashes.items() if now[target] != known[goal]]
        beside = {target: _hash_of(_beside(target, suffix)) for target in pending}
        wrong = [target for target in pending if beside[target] != hashes[target][goal]]
        if not wrong:
            return pending, suffix
        barred += [(_beside(target, suffix), beside[target], hashes[target][goal]) for target in wrong[:1]]
    raise OperatorError(
        f"A run was cut off while it changed {root}, and what it had prepared is no longer whole",
        found=", ".join(f"{path}: {_shown(found)}" for path, found, _ in barred),
        expected=" or ".join(f"{path}: {_shown(right)}" for path, _, right in barred),
        remedy=_way_to_start_anew(root),
    )


def _way_to_start_anew(root: Path) -> str:
    return f"reinstall the package of {root}, remove {root / JOURNAL}, then run again"


def _shown(digest: str | None) -> str:
    return f"sha256 {digest}" if digest else "no file"


def _hash_of(path: Path) -> str | None:
    """The hash of a file; None if it is not there."""
    try:
        return sha256(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None


def _rename(targets: Iterable[Path], suffix: str) -> None:
    """Put the text beside each file in its place, for good."""
    for target in targets:
        _beside(target, suffix).replace(target)
        sync_folder(target.parent)
        _remove_byte_code(target)


def _sweep(root: Path, targets: Iterable[Path]) -> None:
    """Remove the journal first: only while it is there do the files beside the targets mean anything."""
    (root / JOURNAL).unlink(missing_ok=True)
    sync_folder(root)
    (root / f"{JOURNAL}.new").unlink(missing_ok=True)
    for target in targets:
        for suffix in (_NEW, _OLD):
            with contextlib.suppress(NotADirectoryError):
                _beside(target, suffix).unlink(missing_ok=True)


def _beside(target: Path, suffix: str) -> Path:
    # A leading dot and a suffix other than .py: no loader of models or plugins takes it for a module.
    return target.with_name(f".{target.name}{suffix}")


def _write_beside(target: Path, suffix: str, data: bytes) -> None:
    status = target.stat()
    if problem := read_only(target):
        raise PermissionError(0, problem, str(target))
    fresh = _beside(target, suffix)
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


def _write_journal(root: Path, hashes: _Hashes) -> None:
    fresh = root / f"{JOURNAL}.new"
    with fresh.open("w", encoding="utf-8") as stream:
        json.dump({str(path): pair for path, pair in hashes.items()}, stream)
        stream.flush()
        os.fsync(stream.fileno())
    fresh.replace(root / JOURNAL)
    sync_folder(root)


def _remove_byte_code(target: Path) -> None:
    # Byte code is trusted by size and whole seconds of time, or not checked at all.
    folder = target.parent / "__pycache__"
    for file in folder.glob("*.pyc"):
        if file.name.split(".", 1)[0] == target.stem:
            file.unlink(missing_ok=True)
