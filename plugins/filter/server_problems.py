# Copyright the Blackwell SGLang contributors
# SPDX-License-Identifier: Apache-2.0
"""A filter that finds what in a profile's settings cannot work, on the controller, before a host is
touched."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

# To the controller, module_utils is something that is sent to hosts; it does not put it on its own import
# path.
sys.path.append(str(Path(__file__).resolve().parents[1] / "module_utils"))

from blackwell.server import problems

DOCUMENTATION = r"""
name: server_problems
short_description: What in a profile's settings cannot work
description:
  - Returns every problem as one sentence, an empty list when there is none.
positional: profile
options:
  _input:
    description: The profile, with C(arguments) and C(environment).
    type: dict
    required: true
  profile:
    description: V(eagle3) or V(baseline).
    type: str
    required: true
  engine:
    description: V(cuda) or V(cpu).
    type: str
    required: true
  keys:
    description: API keys by name; no problem repeats one.
    type: dict
"""

EXAMPLES = r"""
problems: "{{ eagle3_server_profiles.eagle3 | server_problems('eagle3', engine='cuda') }}"
"""

RETURN = r"""
_value:
  description: The problems.
  type: list
  elements: str
"""


def server_problems(
    settings: Mapping[str, Any], profile: str, *, engine: str, keys: Mapping[str, str] | None = None
) -> list[str]:
    return problems(profile, settings["arguments"], settings["environment"], engine=engine, keys=keys)


class FilterModule:
    def filters(self) -> dict[str, Callable[..., list[str]]]:
        return {"server_problems": server_problems}
