# What it imports is only in the interpreter that runs it.
# mypy: ignore-errors
"""Answers for a GPU that is not there."""

from __future__ import annotations

import torch
from sglang.srt import utils
from sglang.srt.utils import common


def pretend(major: int, minor: int) -> None:
    """Let torch speak of a CUDA 13 device of this compute capability, and SGLang forget what it heard before."""
    torch.version.cuda = "13.0"
    torch.cuda.is_available = lambda: True
    torch.cuda.get_device_capability = lambda device=None: (major, minor)
    for module in (common, utils):
        for name in dir(module):
            clear = getattr(getattr(module, name), "cache_clear", None)
            if callable(clear) and name.startswith(("is_", "get_device")):
                clear()
