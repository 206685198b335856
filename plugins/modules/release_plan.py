#!/usr/bin/python
"""Work out which release the inventory asks for."""

from __future__ import annotations

DOCUMENTATION = r"""
module: release_plan
short_description: Work out which release the inventory asks for
description:
  - Reads the lock, the patches and the engine's files on the controller and returns the id and the paths of
    the release that they make. Changes nothing; run it with C(delegate_to=localhost).
  - The id is the SGLang version plus 12 hex digits of a digest over contents, so it is the same on every
    controller.
options:
  root:
    description: Where releases live on the hosts.
    type: path
    required: true
  version:
    description: Wanted release of SGLang.
    type: str
    required: true
  engine:
    description: C(cuda), or C(cpu) for a sandbox.
    type: str
    choices: [cuda, cpu]
    required: true
  python:
    description: Python of the hosts, as C(major.minor).
    type: str
    required: true
  lock:
    description: Lock file on the controller.
    type: path
    required: true
  patches:
    description: For each kind of patches (V(model), V(guard)) their folder on the controller.
    type: dict
    default: {}
  enabled:
    description: For each kind, patch id to whether it is on, for those that do not follow their own default.
    type: dict
    default: {}
  summary:
    description:
      - Patch id to whether it is on, of all kinds. Refused if it says something else than O(enabled), which is what
        hosts get.
    type: dict
  engine_files:
    description: Tree on the controller that is copied into site-packages.
    type: path
  toolkit:
    description: Source of the CUDA toolkit.
    type: str
    default: none
attributes:
  check_mode:
    support: full
    description: The module never changes anything.
  diff_mode:
    support: none
    description: There is nothing to show.
author: Blackwell SGLang
"""

EXAMPLES = r"""
- name: Work out the release
  release_plan:
    root: /opt/sglang
    version: 0.5.9
    engine: cuda
    python: "3.12"
    lock: files/locks/sglang-0.5.9-cu130-py312.txt
    patches:
      model: files/patches
      guard: files/patches
  delegate_to: localhost
  register: plan
"""

RETURN = r"""
release:
  description: Id, paths (C(path), C(venv), C(python), C(site_packages)), C(sglang_version), C(engine),
    C(digests).
  returned: success
  type: dict
lock:
  description: Text of the lock.
  returned: success
  type: str
overlay:
  description: Text of the engine's files, by path below site-packages.
  returned: success
  type: dict
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.blackwell import environment, release
from ansible.module_utils.blackwell.errors import OperatorError


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "required": True},
            "version": {"type": "str", "required": True},
            "engine": {"type": "str", "choices": ["cuda", "cpu"], "required": True},
            "python": {"type": "str", "required": True},
            "lock": {"type": "path", "required": True},
            "patches": {"type": "dict", "default": {}},
            "enabled": {"type": "dict", "default": {}},
            "summary": {"type": "dict"},
            "engine_files": {"type": "path"},
            "toolkit": {"type": "str", "default": "none"},
        },
        supports_check_mode=True,
    )
    given = module.params
    patches = {kind: Path(folder) for kind, folder in given["patches"].items()}
    engine_files = Path(given["engine_files"]) if given["engine_files"] else None
    try:
        lock = release.read_lock(
            Path(given["lock"]), sglang=given["version"], engine=given["engine"], python=given["python"]
        )
        if given["summary"]:
            release.check_switches(patches, given["enabled"], given["summary"])
        planned = release.plan(
            root=given["root"],
            lock=lock,
            patches=patches,
            enabled=given["enabled"],
            engine_files=engine_files,
            toolkit=given["toolkit"],
        )
        overlay = release.overlay(engine_files)
    except OperatorError as error:
        module.fail_json(msg=str(error))
    # Said long before it is refused: the release may be there already, and a plan installs nothing.
    try:
        environment.check_lock(lock)
    except OperatorError as error:
        module.warn(str(error))
    module.exit_json(
        changed=False, release=planned, lock=Path(given["lock"]).read_text(encoding="utf-8"), overlay=overlay
    )


if __name__ == "__main__":
    main()
