"""Files that are read by others: checksums of large ones, and writes that nobody sees half done."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path


def sha256(path: Path) -> str:
    """The checksum of a file that may be larger than memory."""
    digest = hashlib.sha256()
    with path.open("rb") as source:
        while block := source.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def make_folder(path: Path) -> None:
    """Make a folder and what it is in, where missing, readable for all whatever the umask is."""
    for folder in reversed([folder for folder in (path, *path.parents) if not folder.exists()]):
        folder.mkdir()
        folder.chmod(0o755)


def sync_folder(path: Path) -> None:
    """Make what was created, renamed or removed in a folder last through a power loss."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def replace(path: Path, content: str | bytes, mode: int = 0o644, *, group: int | None = None) -> None:
    """Write a file in one step: readers, and a run after a power loss, find the old content or the new one.

    Args:
        path: the file; missing folders are made.
        content: text, written as UTF-8, or bytes.
        mode: its permission bits.
        group: the numeric id of its group; None for that of this process.

    Raises:
        OSError: the file cannot be written; what was there before is still there.
    """
    make_folder(path.parent)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as out:
            if group is not None:
                os.fchown(out.fileno(), -1, group)
            os.fchmod(out.fileno(), mode)
            out.write(content.encode() if isinstance(content, str) else content)
            out.flush()
            os.fsync(out.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)
