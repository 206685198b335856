#!/usr/bin/python
# Copyright the Blackwell SGLang contributors
# SPDX-License-Identifier: Apache-2.0
"""Bring model files into the page cache."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: page_cache
short_description: Bring the weights of models into the page cache where memory allows
description:
  - Reads the C(*.safetensors) files of some folders to the end, so that a server that is started afterwards
    finds them in memory. The time that the disk takes then passes while the old server still answers.
  - Does nothing where they would not fit into the available memory, because they would only push each
    other out.
  - Nothing on the host is changed.
author: Blackwell SGLang contributors
options:
  folders:
    description: The model folders.
    type: list
    elements: path
    required: true
  reserve_gib:
    description: Memory to leave for everything else, in GiB.
    type: float
    default: 32
attributes:
  check_mode:
    description: Says whether they would fit, and reads nothing.
    support: full
  diff_mode:
    description: Changes nothing, so there is no difference to show.
    support: none
"""

EXAMPLES = r"""
- name: Read the weights ahead
  page_cache:
    folders: [/srv/models/target, /srv/models/draft]
"""

RETURN = r"""
size_gib:
  description: Size of the weights, in GiB.
  returned: always
  type: float
read_gib:
  description: How much was read, in GiB.
  returned: always
  type: float
seconds:
  description: How long that took, in seconds.
  returned: always
  type: float
msg:
  description: Why nothing was read, or what was.
  returned: always
  type: str
"""

import time
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.blackwell.page_cache import (
    GIB,
    available_memory,
    read_through,
    reason_against,
    weight_files,
)


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "folders": {"type": "list", "elements": "path", "required": True},
            "reserve_gib": {"type": "float", "default": 32},
        },
        supports_check_mode=True,
    )
    files = weight_files(Path(folder) for folder in module.params["folders"])
    size = sum(files.values())
    available = available_memory(Path("/proc/meminfo").read_text(encoding="ascii"))
    against = reason_against(size, available, int(module.params["reserve_gib"] * GIB))
    began = time.monotonic()
    count = 0 if against or module.check_mode else read_through(files)
    module.exit_json(
        changed=False,
        size_gib=round(size / GIB, 3),
        read_gib=round(count / GIB, 3),
        seconds=round(time.monotonic() - began, 1),
        msg=f"Read nothing: {against}" if against else f"Read {count / GIB:.1f} GiB of {len(files)} files",
    )


if __name__ == "__main__":
    main()
