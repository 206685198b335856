# What it imports is only in the interpreter that runs it.
# mypy: ignore-errors
"""Ask the real FlashInfer for its communication module with nothing but SM120, and compile one source on request."""

from __future__ import annotations

import json
import subprocess
import sys

from flashinfer.jit import comm

seen: dict[str, object] = {}
try:
    spec = comm.gen_trtllm_comm_module()
    seen["flags"] = [flag for flag in spec.extra_cuda_cflags if "sm_" in flag]
except RuntimeError as error:
    seen["error"] = str(error)
if "--compile" in sys.argv:
    spec.write_ninja()
    target = str(spec.build_dir / "trtllm_moe_allreduce_fusion.cuda.o")
    subprocess.run(["ninja", "-v", "-C", spec.build_dir, target], check=True, stdout=sys.stderr)
    seen["object"] = target
print(json.dumps(seen))
