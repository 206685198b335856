"""Bring model files into the page cache, so that a start reads them from memory and not from disk."""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

GIB = 2**30

# What other programs, and the server's own processes while they load, need besides the weights.
RESERVE = 32 * GIB

_BLOCK = 16 * 2**20


def weight_files(folders: Iterable[Path]) -> dict[Path, int]:
    """The files with weights in some model folders and their sizes in bytes, the largest first.

    Folders of the Hugging Face cache hold symbolic links; each file behind them counts once.
    """
    found = {file.resolve() for folder in folders for file in folder.glob("*.safetensors")}
    sizes = {file: file.stat().st_size for file in found}
    return dict(sorted(sizes.items(), key=lambda entry: (-entry[1], str(entry[0]))))


def available_memory(meminfo: str) -> int:
    """``MemAvailable`` of /proc/meminfo, in bytes: free memory and what the kernel can drop, caches included."""
    fields = dict(line.split(":", 1) for line in meminfo.splitlines() if ":" in line)
    return int(fields["MemAvailable"].split()[0]) * 1024


def reason_against(size: int, available: int, reserve: int = RESERVE) -> str:
    """Why weights of a size are not to be read ahead; empty if they may be. All in bytes."""
    if size + reserve <= available:
        return ""
    return (
        f"{size / GIB:.1f} GiB of weights and {reserve / GIB:.0f} GiB for the rest do not fit into "
        f"{available / GIB:.1f} GiB of available memory"
    )


def read_through(files: Iterable[Path], threads: int = 8) -> int:
    """Read files to the end and forget them, which leaves them in the page cache; returns the bytes read."""
    with ThreadPoolExecutor(threads) as pool:
        return sum(pool.map(_read_through, files))


def _read_through(file: Path) -> int:
    block, total = bytearray(_BLOCK), 0
    with file.open("rb", buffering=0) as source:
        os.posix_fadvise(source.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
        while count := source.readinto(block):
            total += count
    return total
