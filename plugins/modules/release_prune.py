#!/usr/bin/python
"""Prune unused releases."""

from __future__ import annotations

DOCUMENTATION = r"""
module: release_prune
short_description: Prune unused releases
description:
  - Removes releases that are neither current nor planned, that no unit names and no process uses, except the most
    recently sealed ones.
options:
  root:
    description: Folder with C(releases/) and C(current).
    type: path
    required: true
  wanted:
    description: Ids of releases that stay.
    type: list
    elements: str
    default: []
  keep:
    description: How many sealed releases to keep besides.
    type: int
    default: 1
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
    description: Shows the releases before and after, each with the reason why it stays.
author: Blackwell SGLang
"""

EXAMPLES = r"""
- name: Remove old releases
  release_prune:
    root: /opt/sglang
    wanted: ["{{ sglang_stack_release.id }}"]
"""

RETURN = r"""
removed:
  description: Ids of the releases that were (or would be) removed.
  returned: success
  type: list
freed:
  description: The space on the disk that was (or would be) won, in bytes.
  returned: success
  type: int
kept:
  description: Id of each release that stays to the reason.
  returned: success
  type: dict
"""

import shutil
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.blackwell import prune
from ansible.module_utils.blackwell.seal import MANIFEST


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "required": True},
            "wanted": {"type": "list", "elements": "str", "default": []},
            "keep": {"type": "int", "default": 1},
        },
        supports_check_mode=True,
    )
    given = module.params
    if given["keep"] < 0:
        module.fail_json(msg=f"keep is {given['keep']}, and less than none cannot be kept")
    verdicts = prune.judge(Path(given["root"]), wanted=given["wanted"], keep=given["keep"])
    removed = [verdict.path for verdict in verdicts if not verdict.reason]
    freed = sum(prune.size(path) for path in removed)
    if not module.check_mode:
        for path in removed:
            # Without its manifest a release counts as half made, so a removal that is interrupted is safe.
            (path / MANIFEST).unlink(missing_ok=True)
            shutil.rmtree(path)
    kept = {verdict.path.name: verdict.reason for verdict in verdicts if verdict.reason}
    stay = "".join(f"{name}  # {reason}\n" for name, reason in kept.items())
    module.exit_json(
        changed=bool(removed),
        removed=[path.name for path in removed],
        freed=freed,
        kept=kept,
        diff={"before": stay + "".join(f"{path.name}\n" for path in removed), "after": stay},
    )


if __name__ == "__main__":
    main()
