# Copyright the Blackwell SGLang contributors
# SPDX-License-Identifier: Apache-2.0
"""Filters that show the states of patches to people."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

# To the controller, module_utils is something that is sent to hosts; it does not put it on its own import path.
sys.path.append(str(Path(__file__).resolve().parents[1] / "module_utils"))

from blackwell.patching import report

DOCUMENTATION = r"""
name: patch_report
short_description: The states of patches as a table
description:
  - C(patch_report) makes a table of the states, C(patch_drift) a list of sentences on what is not as the project left
    it, C(patch_superfluous) a list of the patches that the release has made unnecessary.
options:
  _input:
    description: The states, as M(source_patch) returns them.
    type: list
    elements: dict
    required: true
"""

EXAMPLES = r"""
msg: "{{ (model_patches_states + sm120_guards_states) | patch_report }}"
"""

RETURN = r"""
_value:
  description: The table.
  type: str
"""


class FilterModule:
    def filters(self) -> dict[str, Callable[..., Any]]:
        return {
            "patch_report": report.table,
            "patch_drift": report.drift,
            "patch_superfluous": report.superfluous,
        }
