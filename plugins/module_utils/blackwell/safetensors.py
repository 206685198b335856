"""Read what a safetensors file says of itself, without loading its weights.

The format: eight bytes with the length of a header (little endian), a JSON header with type, shape and place of each
tensor, then the data (https://huggingface.co/docs/safetensors). A header is some kilobytes at the start of a file of
gigabytes, and it tells how long the file has to be.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

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

    def values(self) -> list[int]:
        """The numbers of a :attr:`whole` tensor, flat."""
        with self.file.open("rb") as source:
            source.seek(self.start)
            data = source.read(self.size)
        code = _WHOLE[self.dtype]
        return [int(value) for (value,) in struct.iter_unpack(f"<{code}", data)]


def read_header(path: Path) -> Mapping[str, Tensor]:
    """The tensors of a file, by name.

    Raises:
        OperatorError: the file is cut off, is longer than it says, or is no safetensors file.
    """
    length = path.stat().st_size
    with path.open("rb") as source:
        start = source.read(8)
        header_length = int.from_bytes(start, "little")
        if len(start) == 8 and 0 < header_length <= min(_LONGEST_HEADER, length - 8):
            header = source.read(header_length)
        elif len(start) == 8 and 0 < header_length <= _LONGEST_HEADER:
            raise _cut_off(path, length, f"a header of {header_length} bytes and the weights after it")
        else:
            raise _foreign(path, "its first eight bytes are no length of a header")
    data = 8 + header_length
    try:
        entries = json.loads(header)
        tensors = {
            name: Tensor(
                dtype=entry["dtype"],
                shape=tuple(entry["shape"]),
                file=path,
                start=data + entry["data_offsets"][0],
                size=entry["data_offsets"][1] - entry["data_offsets"][0],
            )
            for name, entry in entries.items()
            if name != "__metadata__"
        }
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
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
    return tensors


def _cut_off(path: Path, length: int, expected: str) -> OperatorError:
    return OperatorError(f"{path} is cut off", found=f"{length} bytes", expected=expected, remedy=_DAMAGED)


def _foreign(path: Path, why: str) -> OperatorError:
    return OperatorError(f"{path} is no safetensors file", found=why, remedy=_DAMAGED)
