"""A filter that says what is wrong with the groups of an inventory."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

# To the controller, module_utils is something that is sent to hosts; it does not put it on its own import path.
sys.path.append(str(Path(__file__).resolve().parents[1] / "module_utils"))

from blackwell.errors import OperatorError
from blackwell.variables import nearest

DOCUMENTATION = r"""
name: inventory_problem
short_description: What is wrong with the groups of an inventory
description:
  - Says that no host is in the group C(sglang_servers), or that a group is a slip away from C(sglang_gateways), which
    is missing. Ansible would pass over both in silence, and end in success.
options:
  _input:
    description: The variable C(groups).
    type: dict
    required: true
  sources:
    description: Where the inventory was read from, C(ansible_inventory_sources).
    type: list
    elements: str
    required: true
"""

EXAMPLES = r"""
that: groups | inventory_problem(ansible_inventory_sources) == ''
"""

RETURN = r"""
_value:
  description: What is wrong and how it is mended; empty if nothing is.
  type: str
"""

SERVERS, GATEWAYS = "sglang_servers", "sglang_gateways"
# Groups of others are called all sorts of things; this close to ours is no chance.
SLIPS = 2


def inventory_problem(groups: Mapping[str, Sequence[str]], sources: Sequence[str]) -> str:
    named = sorted(set(groups) - {"all", "ungrouped"})
    read = " and ".join(sources) or "no inventory"
    if not groups.get(SERVERS):
        near = nearest(SERVERS, set(named) - {SERVERS}, SLIPS)
        hosts = len(groups.get("all", ()))
        found = f"{hosts} host{'s' if hosts > 1 else ''} and the groups {', '.join(named) or '(none)'}"
        problem = OperatorError(
            f"No host is in the group {SERVERS}; no host was touched",
            found=f"{found if hosts else 'no host'} in {read}",
            expected=f"an inventory with hosts in {SERVERS}",
            remedy=f"rename the group {near} to {SERVERS}"
            if near
            else f"name the inventory, for example -i inventory/blackwell, or put its hosts into {SERVERS}",
        )
        return str(problem)
    near = "" if GATEWAYS in groups else nearest(GATEWAYS, named, SLIPS)
    if near:
        problem = OperatorError(
            f"There is no group {GATEWAYS}; no host was touched",
            found=f"the group {near} in {read}",
            expected=f"{GATEWAYS}, or no group with nearly this name",
            remedy=f"rename the group {near} to {GATEWAYS}",
        )
        return str(problem)
    return ""


class FilterModule:
    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"inventory_problem": inventory_problem}
