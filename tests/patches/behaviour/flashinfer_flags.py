# mypy: ignore-errors  (what it imports is only in the interpreter that runs it)
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
    folder = spec.build_dir
    subprocess.run(
        ["ninja", "-v", "-C", folder, "trtllm_moe_allreduce_fusion.cuda.o"], check=True, stdout=sys.stderr
    )
    seen["object"] = str(folder / "trtllm_moe_allreduce_fusion.cuda.o")
print(json.dumps(seen))
