"""Read what a safetensors file says of itself, without loading its weights.

The format: eight bytes with the length of a header (little endian), a JSON header with type, shape and place of each
tensor, then the data (https://huggingface.co/docs/safetensors). A header is some kilobytes at the start of a file of
gigabytes, and it tells how long the file has to be.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import OperatorError

# The safetensors library refuses longer headers, too.
_LONGEST_HEADER = 100_000_000
# struct codes of the types that hold whole numbers or truth values.
_WHOLE = {
    "I64": "q",
    "I32": "i",
    "I16": "h",
    "I8": "b",
    "U64": "Q",
    "U32": "I",
    "U16": "H",
    "U8": "B",
    "BOOL": "?",
}
# Bits of one element of each type of the format.
_BITS = {
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
}
_DAMAGED = "copy the file again, from where it is whole"


@dataclass(frozen=True)
class Tensor:
    """One tensor of a file.

    Attributes:
        dtype: as the format writes it: ``BF16``, ``F32``, ``I64``, ``BOOL``.
        shape: its dimensions.
        file: where it is.
        start: its first byte in that file.
        size: its length in bytes.
    """

    dtype: str
    shape: tuple[int, ...]
    file: Path
    start: int
    size: int

    @property
    def whole(self) -> bool:
        """Whether it holds whole numbers or truth values."""
        return self.dtype in _WHOLE

    @property
    def known(self) -> bool:
        """Whether its type is one whose length can be held against its shape."""
        return self.dtype in _BITS

    def values(self) -> list[int]:
        """The numbers of a :attr:`whole` tensor, flat.

        Raises:
            OperatorError: the file cannot be read, or has become shorter.
        """
        try:
            with self.file.open("rb") as source:
                source.seek(self.start)
                data = source.read(self.size)
        except OSError as error:
            raise _unreadable(self.file, error) from error
        if len(data) < self.size:
            raise _cut_off(
                self.file, self.start + len(data), f"{self.start + self.size} bytes, by its header"
            )
        code = _WHOLE[self.dtype]
        return [int(value) for (value,) in struct.iter_unpack(f"<{code}", data)]


def read_header(path: Path) -> Mapping[str, Tensor]:
    """The tensors of a file, by name.

    Raises:
        OperatorError: the file is cut off, is longer than it says, or is no safetensors file, or its tensors are not
            as long as their shapes.
    """
    try:
        length, header = _read_start(path)
    except OSError as error:
        raise _unreadable(path, error) from error
    data = 8 + len(header)
    try:
        entries = json.loads(header.decode("utf-8"))
        tensors = {
            name: _tensor(path, data, entry) for name, entry in entries.items() if name != "__metadata__"
        }
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
        raise _foreign(path, "its header is not readable") from None
    expected = max((tensor.start + tensor.size for tensor in tensors.values()), default=data)
    if length < expected:
        raise _cut_off(path, length, f"{expected} bytes, by its header")
    if length > expected:
        raise OperatorError(
            f"{path} is longer than its header says",
            found=f"{length} bytes",
            expected=f"{expected} bytes",
            remedy=_DAMAGED,
        )
    _check_places(path, data, tensors)
    return tensors


def _read_start(path: Path) -> tuple[int, bytes]:
    """The length of a file and its header."""
    length = path.stat().st_size
    with path.open("rb") as source:
        start = source.read(8)
        header_length = int.from_bytes(start, "little")
        if len(start) < 8 or not 0 < header_length <= _LONGEST_HEADER:
            raise _foreign(path, "its first eight bytes are no length of a header")
        header = source.read(header_length)
    if len(header) < header_length:
        raise _cut_off(path, length, f"a header of {header_length} bytes and the weights after it")
    return length, header


def _tensor(path: Path, data: int, entry: Any) -> Tensor:
    """One entry of a header.

    Raises:
        ValueError, KeyError, TypeError: it is none.
    """
    shape, (start, end) = entry["shape"], entry["data_offsets"]
    if not isinstance(shape, list) or not isinstance(entry["dtype"], str):
        raise TypeError
    for number in (*shape, start, end):
        if type(number) is not int or number < 0:
            raise ValueError
    if end < start:
        raise ValueError
    return Tensor(entry["dtype"], tuple(shape), path, data + start, end - start)


def _check_places(path: Path, data: int, tensors: Mapping[str, Tensor]) -> None:
    """Each tensor as long as its shape, and one directly after the other, as the safetensors library wants it."""
    at = data
    for name, tensor in sorted(tensors.items(), key=lambda item: (item[1].start, item[1].size)):
        if tensor.start != at:
            raise OperatorError(
                f"{path} has tensors that overlap, or a gap between them",
                found=f"{name} begins at byte {tensor.start}",
                expected=f"byte {at}",
                remedy=_DAMAGED,
            )
        at += tensor.size
        bits = math.prod(tensor.shape) * _BITS.get(tensor.dtype, 0)
        if tensor.known and bits != 8 * tensor.size:
            raise OperatorError(
                f"{path} has a tensor of another length than its shape",
                found=f"{name} has {tensor.size} bytes",
                expected=f"{bits // 8} bytes for {tensor.dtype} {list(tensor.shape)}",
                remedy=_DAMAGED,
            )


def _unreadable(path: Path, error: OSError) -> OperatorError:
    return OperatorError(
        f"{path} cannot be read",
        found=error.strerror or str(error),
        expected="a readable file",
        remedy=_DAMAGED,
    )


def _cut_off(path: Path, length: int, expected: str) -> OperatorError:
    return OperatorError(f"{path} is cut off", found=f"{length} bytes", expected=expected, remedy=_DAMAGED)


def _foreign(path: Path, why: str) -> OperatorError:
    return OperatorError(f"{path} is no safetensors file", found=why, remedy=_DAMAGED)
