# What it imports is only in the interpreter that runs it.
# mypy: ignore-errors
"""Load the real DeepGEMM configuration on several compute capabilities, with a DeepGEMM that can be imported."""

from __future__ import annotations

import importlib
import json
import sys
from types import ModuleType

from device import pretend
from sglang.srt.layers.deep_gemm_wrapper import configurer

sys.modules["deep_gemm"] = ModuleType("deep_gemm")

seen = {}
for major, minor in ((12, 0), (10, 0), (9, 0), (8, 9)):
    pretend(major, minor)
    module = importlib.reload(configurer)
    seen[f"{major}.{minor}"] = {
        "deep_gemm": module.ENABLE_JIT_DEEPGEMM,
        "ue8m0": bool(module.DEEPGEMM_SCALE_UE8M0),
    }
print(json.dumps(seen))
