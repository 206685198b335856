# What it imports is only in the interpreter that runs it.
# mypy: ignore-errors
"""Run the step of the real graph runner that tells the target what to capture, just before it captures.

The rest of the constructor needs a GPU, so the statement is taken out of it and run by itself.
"""

from __future__ import annotations

import ast
import importlib.util
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

spec = importlib.util.find_spec("sglang.srt.model_executor.cuda_graph_runner")
assert spec and spec.origin
tree = ast.parse(Path(spec.origin).read_text())
(runner,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "CudaGraphRunner")
(step,) = (
    node
    for node in ast.walk(runner)
    if isinstance(node, ast.If) and "set_eagle3_layers_to_capture" in ast.unparse(node)
)

calls: list[list[Any]] = []
model_runner = SimpleNamespace(
    spec_algorithm=SimpleNamespace(is_eagle3=lambda: True),
    eagle_use_aux_hidden_state=True,
    eagle_aux_hidden_state_layer_ids=[5, 11, 17],
    model=SimpleNamespace(set_eagle3_layers_to_capture=lambda *ids: calls.append(list(ids))),
)
code = compile(ast.fix_missing_locations(ast.Module([step], [])), spec.origin, "exec")
for ids in ([5, 11, 17], None):
    model_runner.eagle_aux_hidden_state_layer_ids = ids
    exec(code, {"model_runner": model_runner, "self": SimpleNamespace(model_runner=model_runner)})
print(json.dumps({"calls": calls}))
