"""Compile one of FlashInfer's kernel modules.

    prewarm.py trtllm_comm

It asks FlashInfer for the module's build specification and builds it without loading it, so it needs no GPU
and takes no memory from a server that runs meanwhile.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from typing import Any

import flashinfer.jit


def specification(module: str) -> Any:
    """What `gen_<module>_module` of any file in `flashinfer.jit` returns."""
    generator = f"gen_{module}_module"
    for found in pkgutil.walk_packages(flashinfer.jit.__path__, "flashinfer.jit."):
        part = importlib.import_module(found.name)
        if hasattr(part, generator):
            return getattr(part, generator)()
    raise SystemExit(f"FlashInfer has no {generator}: check eagle3_server_prewarm_modules")


specification(sys.argv[1]).build(verbose=True)
