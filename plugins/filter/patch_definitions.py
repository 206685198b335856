# Copyright the Blackwell SGLang contributors
# SPDX-License-Identifier: Apache-2.0
"""A filter that reads a folder of patches on the controller, so that hosts get them as data."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleFilterError

# To the controller, module_utils is something that is sent to hosts; it does not put it on its own import
# path.
sys.path.append(str(Path(__file__).resolve().parents[1] / "module_utils"))

from blackwell.errors import OperatorError
from blackwell.patching import definition

DOCUMENTATION = r"""
name: patch_definitions
short_description: The patches of folders on the controller
description:
  - Reads every C(<id>/patch.yml) of a folder with the texts that it names, checks it, and returns the
    patches as data
    for M(source_patch).
options:
  _input:
    description:
      - Path of a folder on the controller, or the folder of each kind (V(model), V(guard)), which then counts for
        patches of that kind alone.
    type: raw
    required: true
"""

EXAMPLES = r"""
patches: "{{ (playbook_dir ~ '/../files/patches') | patch_definitions }}"
"""

RETURN = r"""
_value:
  description: The contents of the files, in the order of their ids.
  type: list
  elements: dict
"""


def patch_definitions(folders: str | Mapping[str, str]) -> list[dict[str, Any]]:
    try:
        if isinstance(folders, Mapping):
            return definition.load_by_kind({kind: Path(folder) for kind, folder in folders.items()})
        return definition.load(Path(folders))
    except OperatorError as error:
        raise AnsibleFilterError(str(error)) from error


class FilterModule:
    def filters(self) -> dict[str, Callable[..., list[dict[str, Any]]]]:
        return {"patch_definitions": patch_definitions}
