"""Models as files: what a check reads of them is real, the weights themselves are holes."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_SIZES = {"F32": 4, "BF16": 2, "I64": 8, "BOOL": 1}


@dataclass(frozen=True)
class Weights:
    """A tensor to write: without values it is a hole in the file, whatever its size."""

    dtype: str
    shape: tuple[int, ...]
    values: Sequence[int] = ()

    @property
    def size(self) -> int:
        return _SIZES[self.dtype] * math.prod(self.shape)


def write_safetensors(path: Path, tensors: Mapping[str, Weights]) -> None:
    """Write a safetensors file, sparse where it may be."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in tensors.items():
        header[name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [end, end + tensor.size],
        }
        end += tensor.size
    text = json.dumps(header).encode()
    with path.open("wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            if tensor.values:
                code = {"I64": "q", "BOOL": "?"}[tensor.dtype]
                out.write(struct.pack(f"<{len(tensor.values)}{code}", *tensor.values))
            else:
                out.seek(tensor.size, 1)
        out.truncate()


def write_model(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Weights]) -> Path:
    """Write a model of one file of weights."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    write_safetensors(folder / "model.safetensors", tensors)
    return folder
