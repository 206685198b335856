# What it imports is only in the interpreter that runs it.
# mypy: ignore-errors
"""Call the real Kimi-K2.5 class as the EAGLE-3 worker and the graph runner do, with a stub as its inner model."""

from __future__ import annotations

import json
from typing import Any

import torch
from sglang.srt.models.kimi_k25 import KimiK25ForConditionalGeneration

calls: list[list[Any]] = []


class Inner(torch.nn.Module):
    def set_eagle3_layers_to_capture(self, layer_ids: Any) -> None:
        calls.append(["set_eagle3_layers_to_capture", layer_ids])

    def get_embed_and_head(self) -> tuple[str, str]:
        calls.append(["get_embed_and_head"])
        return "embed", "head"

    def set_embed_and_head(self, embed: Any, head: Any) -> None:
        calls.append(["set_embed_and_head", embed, head])


model = KimiK25ForConditionalGeneration.__new__(KimiK25ForConditionalGeneration)
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
