# What it imports is only in the interpreter that runs it.
# mypy: ignore-errors
"""Call a real wrapper class as the EAGLE-3 worker and the graph runner do, with a stub as its inner model.

The arguments are its module and its name.
"""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any

import torch

calls: list[list[Any]] = []


class Inner(torch.nn.Module):
    def set_eagle3_layers_to_capture(self, layer_ids: Any) -> None:
        calls.append(["set_eagle3_layers_to_capture", layer_ids])

    def get_embed_and_head(self) -> tuple[str, str]:
        calls.append(["get_embed_and_head"])
        return "embed", "head"

    def set_embed_and_head(self, embed: Any, head: Any) -> None:
        calls.append(["set_embed_and_head", embed, head])


wrapper = getattr(importlib.import_module(f"sglang.srt.models.{sys.argv[1]}"), sys.argv[2])
model = wrapper.__new__(wrapper)
torch.nn.Module.__init__(model)
model.language_model = Inner()

seen: dict[str, Any] = {}
try:
    model.set_eagle3_layers_to_capture()
    model.set_eagle3_layers_to_capture([1, 29, 57])
    seen["returned"] = model.get_embed_and_head()
    model.set_embed_and_head("embed", "head")
except AttributeError as error:
    seen["error"] = str(error)
print(json.dumps({**seen, "calls": calls}))
