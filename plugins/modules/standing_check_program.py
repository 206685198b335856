#!/usr/bin/python
# Copyright the Blackwell SGLang contributors
# SPDX-License-Identifier: Apache-2.0
"""Put the program of the standing throughput check on a host."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: standing_check_program
short_description: Put the program of the standing throughput check on a host
description:
  - Writes one file that the host's Python runs (a zip application, see PEP 441). It holds the very code with which the
    other modules of this project measure and judge, so that a timer does exactly what a rollout does.
author: Blackwell SGLang contributors
options:
  path:
    description: Where the program is written. A missing folder is made.
    type: path
    required: true
attributes:
  check_mode:
    support: full
  diff_mode:
    description: There is nothing to show of a zip file.
    support: none
"""

EXAMPLES = r"""
- name: Install the program
  standing_check_program:
    path: /usr/local/lib/sglang/throughput-check.pyz
"""

RETURN = r"""
parts:
  description: The Python modules that the program is made of.
  returned: always
  type: list
  elements: str
"""

import importlib
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.blackwell.files import replace
from ansible.module_utils.blackwell.throughput import standing
from ansible.module_utils.blackwell.throughput.program import application, parts_of


def main() -> None:
    module = AnsibleModule(
        argument_spec={"path": {"type": "path", "required": True}}, supports_check_mode=True
    )
    path = Path(module.params["path"])
    package = importlib.import_module(standing.__name__.rpartition(".throughput.")[0])
    parts = parts_of(package.__name__, standing.__name__)
    content = application(parts, "blackwell.throughput.standing")
    try:
        changed = not path.exists() or path.read_bytes() != content
        if changed and not module.check_mode:
            replace(path, content, 0o755)
    except OSError as error:
        module.fail_json(msg=f"The program of the standing check could not be written: {error}")
    module.exit_json(changed=changed, parts=sorted(parts))


if __name__ == "__main__":
    main()
