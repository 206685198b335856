"""What the filters of rollouts make of a task's result."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "plugins" / "filter"


def filter_named(name: str) -> Callable[..., Any]:
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: Callable[..., Any] = module.FilterModule().filters()[name]
    return found


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
    assert filter_named("failure_reason")(result) == said


def test_the_items_whose_hosts_cannot_be_reached_are_named() -> None:
    lost = {"ansible_loop_var": "gateway", "gateway": "gateway-2", "unreachable": True}
    there = {"ansible_loop_var": "gateway", "gateway": "gateway-1", "changed": True}
    unreachable_items = filter_named("unreachable_items")
    assert unreachable_items({"results": [there, lost]}) == ["gateway-2"]
    assert unreachable_items({"results": [there]}) == []
    assert unreachable_items({"skipped": True}) == []
