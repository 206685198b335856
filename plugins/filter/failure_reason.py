"""A filter that says why a task failed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

DOCUMENTATION = r"""
name: failure_reason
short_description: Why a task failed
description:
  - The message of a failed task. Ansible says of a loop only that items failed; then it is that of the first one.
options:
  _input:
    description: The variable C(ansible_failed_result) of a rescue.
    type: dict
    required: true
"""

EXAMPLES = r"""
rescue:
  - ansible.builtin.debug:
      msg: "{{ ansible_failed_result | failure_reason }}"
"""

RETURN = r"""
_value:
  description: The message, or where to find one.
  type: str
"""


def failure_reason(result: Mapping[str, Any]) -> str:
    said = [item.get("msg") for item in result.get("results") or [] if item.get("failed")]
    return str(next(filter(None, [*said, result.get("msg")]), "see the failed task above"))


class FilterModule:
    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"failure_reason": failure_reason}
