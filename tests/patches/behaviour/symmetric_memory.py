# What it imports is only in the interpreter that runs it.
# mypy: ignore-errors
"""Make the real symmetric memory communicator on several compute capabilities; none has multicast memory."""

from __future__ import annotations

import json
import logging
from types import SimpleNamespace

import torch
import torch.distributed
from device import pretend
from sglang.srt.distributed.device_communicators import torch_symm_mem as module

warnings: list[str] = []


class Keep(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        warnings.append(record.getMessage())


module.logger.addHandler(Keep())
module.torch_symm_mem_available = True
module.torch_symm_mem = SimpleNamespace(
    empty=lambda *size, **options: "buffer",
    rendezvous=lambda buffer, name: SimpleNamespace(multicast_ptr=0),
)
torch.cuda.set_device = lambda device: None
torch.distributed.get_world_size = lambda group: 8

seen = {}
for major, minor in ((12, 0), (10, 0), (9, 0), (8, 9)):
    pretend(major, minor)
    warnings.clear()
    try:
        made = module.TorchSymmMemCommunicator(SimpleNamespace(group_name="tp"), 0)
        outcome = {"disabled": made.disabled, "warning": warnings[0]}
    except KeyError as error:
        outcome = {"KeyError": str(error)}
    seen[f"{major}.{minor}"] = outcome
print(json.dumps(seen))
