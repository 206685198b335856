# Copyright the Blackwell SGLang contributors
# SPDX-License-Identifier: Apache-2.0
"""A filter that finds what in a profile's settings is legal and known to go wrong on some hosts."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

# To the controller, module_utils is something that is sent to hosts; it does not put it on its own import
# path.
sys.path.append(str(Path(__file__).resolve().parents[1] / "module_utils"))

from blackwell.server import doubts

DOCUMENTATION = r"""
name: server_doubts
short_description: What in a profile's settings is legal and known to go wrong on some hosts
description:
  - Returns every doubt as one sentence, an empty list when there is none.
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
"""

EXAMPLES = r"""
doubts: "{{ eagle3_server_profiles.eagle3 | server_doubts('eagle3', engine='cuda') }}"
"""

RETURN = r"""
_value:
  description: The doubts.
  type: list
  elements: str
"""


def server_doubts(settings: Mapping[str, Any], profile: str, *, engine: str) -> list[str]:
    return doubts(profile, settings["arguments"], settings["environment"], engine=engine)


class FilterModule:
    def filters(self) -> dict[str, Callable[..., list[str]]]:
        return {"server_doubts": server_doubts}
