# What it imports is only in the interpreter that runs it.
# mypy: ignore-errors
"""Ask the real guard of the fused allreduce, on several compute capabilities, with the server flag on."""

from __future__ import annotations

import importlib
import json
from types import SimpleNamespace

from device import pretend
from sglang.srt.layers import communicator

seen = {}
for major, minor in ((12, 0), (10, 0), (9, 0), (8, 9)):
    pretend(major, minor)
    module = importlib.reload(communicator)
    module.is_dp_attention_enabled = lambda: False
    for flag in (True, False):
        arguments = SimpleNamespace(enable_flashinfer_allreduce_fusion=flag)
        module.get_global_server_args = lambda arguments=arguments: arguments
        for batch in (1, 2048, 2049, 0):
            admitted = bool(module.apply_flashinfer_allreduce_fusion(batch))
            seen[f"{major}.{minor} flag={flag} batch={batch}"] = admitted
print(json.dumps(seen))
