"""A filter that names the items of a loop whose hosts could not be reached."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

DOCUMENTATION = r"""
name: unreachable_items
short_description: The items of a loop whose hosts could not be reached
description:
  - Of a task with C(delegate_to), C(loop) and C(ignore_unreachable); none where it was skipped.
options:
  _input:
    description: What the task has registered.
    type: dict
    required: true
"""

EXAMPLES = r"""
that: asked | unreachable_items | length == 0
"""

RETURN = r"""
_value:
  description: The items.
  type: list
  elements: raw
"""


def unreachable_items(registered: Mapping[str, Any]) -> list[Any]:
    return [
        result[result.get("ansible_loop_var", "item")]
        for result in registered.get("results", [])
        if result.get("unreachable")
    ]


class FilterModule:
    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"unreachable_items": unreachable_items}
