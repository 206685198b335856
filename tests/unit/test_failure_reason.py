"""Why a task failed, as the filter of rescues says it."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

FILE = Path(__file__).resolve().parents[2] / "plugins" / "filter" / "failure_reason.py"


@pytest.mark.parametrize(
    ("result", "said"),
    [
        ({"msg": "no space left"}, "no space left"),
        (
            {
                "msg": "One or more items failed",
                "results": [{"msg": "done"}, {"failed": True, "msg": "too few"}],
            },
            "too few",
        ),
        ({"msg": "One or more items failed", "results": [{"failed": True}]}, "One or more items failed"),
        ({"msg": ""}, "see the failed task above"),
        ({}, "see the failed task above"),
    ],
)
def test_the_item_that_failed_is_heard(result: dict[str, Any], said: str) -> None:
    spec = importlib.util.spec_from_file_location("failure_reason", FILE)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.failure_reason(result) == said
