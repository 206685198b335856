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


def replace(path: Path, text: str, mode: int = 0o644) -> None:
    """Write a text file in one step: readers, and a run after a power loss, find the old text or the new one."""
    make_folder(path.parent)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "w") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        temporary.chmod(mode)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
