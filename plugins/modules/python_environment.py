#!/usr/bin/python
"""Install a lock into the virtual environment of a release."""

from __future__ import annotations

DOCUMENTATION = r"""
module: python_environment
short_description: Install a lock into the virtual environment of a release
description:
  - Makes I(path)/venv equal to a hashed lock, by uv, from a bundle of wheels or from indexes.
  - An environment that an interrupted run left half made is built again; one that drifted is mended where it
    differs.
  - The host needs a Python of the locked version, and neither pip nor uv.
options:
  path:
    description: Folder of the release.
    type: path
    required: true
  python:
    description: Interpreter of the host that the environment is made with, as a command or a path.
    type: str
    required: true
  lock:
    description: Text of the lock.
    type: str
    required: true
  uv:
    description: Text of the lock of uv.
    type: str
    required: true
  bundle:
    description: Folder with C(wheels/). Without it the wheels come from O(indexes) and O(links).
    type: path
  indexes:
    description: Simple indexes, in order.
    type: list
    elements: str
    default: []
  links:
    description: Pages with links to wheels that no index has.
    type: list
    elements: str
    default: []
  overlay:
    description: Text of files that belong into site-packages, by relative path.
    type: dict
    default: {}
  required_space:
    description: Space that has to be free before an installation, in GiB.
    type: float
    default: 0
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
    description: Shows the packages before and after.
author: Blackwell SGLang
"""

EXAMPLES = r"""
- name: Install the release's packages
  python_environment:
    path: "{{ sglang_stack_release.path }}"
    python: python3.12
    lock: "{{ lookup('ansible.builtin.file', 'files/locks/sglang-0.5.9-cu130-py312.txt') }}"
    uv: "{{ lookup('ansible.builtin.file', 'files/locks/uv.txt') }}"
    bundle: /srv/bundle
    required_space: 30
"""

RETURN = r"""
rebuilt:
  description: Whether the environment was (or would be) built from nothing.
  returned: success
  type: bool
packages:
  description: Number of packages of the lock.
  returned: success
  type: int
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.blackwell import installer, lock
from ansible.module_utils.blackwell.environment import Environment
from ansible.module_utils.blackwell.errors import OperatorError


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "python": {"type": "str", "required": True},
            "lock": {"type": "str", "required": True},
            "uv": {"type": "str", "required": True},
            "bundle": {"type": "path"},
            "indexes": {"type": "list", "elements": "str", "default": []},
            "links": {"type": "list", "elements": "str", "default": []},
            "overlay": {"type": "dict", "default": {}},
            "required_space": {"type": "float", "default": 0},
        },
        supports_check_mode=True,
    )
    given = module.params
    try:
        wanted = Environment(
            release=Path(given["path"]),
            lock=lock.parse(given["lock"], "lock"),
            lock_text=given["lock"],
            python=given["python"],
            uv=lock.parse_pins(given["uv"], "uv.txt")[0],
            bundle=Path(given["bundle"]) if given["bundle"] else None,
            indexes=tuple(given["indexes"]),
            links=tuple(given["links"]),
            overlay=given["overlay"],
            required_space=int(given["required_space"] * 2**30),
        )
        before, after = installer.ensure(wanted, dry_run=module.check_mode)
    except OperatorError as error:
        module.fail_json(msg=str(error))
    module.exit_json(
        changed=before is not after,
        rebuilt=not before.whole,
        packages=len(wanted.lock.pins),
        diff={
            "before_header": f"{wanted.venv} (now)",
            "after_header": f"{wanted.venv} (lock)",
            "before": before.listing(),
            "after": after.listing(),
        },
    )


if __name__ == "__main__":
    main()
