"""What a shared library asks the loader for, read from the file: no ldd, which runs code, and no GPU."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import BinaryIO

_DYNAMIC, _NEEDED, _STRINGS, _END = 2, 1, 5, 0
_LOAD = 1


def needed(path: Path) -> list[str]:
    """The NEEDED entries of a 64-bit little-endian ELF file; empty for any other file.

    Raises:
        ValueError: it begins like one and is cut off or damaged.
    """
    with path.open("rb") as file:
        try:
            return _needed(file)
        except (struct.error, KeyError, IndexError, OSError, OverflowError, MemoryError, ValueError) as error:
            raise ValueError(f"{path} is not a whole ELF file") from error


def _needed(file: BinaryIO) -> list[str]:
    header = file.read(64)
    if header[:6] != b"\x7fELF\x02\x01":
        return []
    start, size, count = struct.unpack_from("<Q", header, 32)[0], *struct.unpack_from("<HH", header, 54)
    segments = []
    for number in range(count):
        file.seek(start + number * size)
        kind, _, offset, address, _, length = struct.unpack_from("<IIQQQQ", file.read(size))
        segments.append((kind, offset, address, length))

    entries: dict[int, list[int]] = {}
    for kind, offset, _, length in segments:
        if kind == _DYNAMIC:
            file.seek(offset)
            for tag, value in struct.iter_unpack("<qQ", file.read(length - length % 16)):
                if tag == _END:
                    break
                entries.setdefault(tag, []).append(value)
    if _NEEDED not in entries:
        return []
    table = entries[_STRINGS][0]
    for kind, offset, address, length in segments:
        if kind == _LOAD and address <= table < address + length:
            names = []
            for place in entries[_NEEDED]:
                file.seek(table - address + offset + place)
                names.append(file.read(256).split(b"\0")[0].decode())
            return names
    return []
