#!/usr/bin/python
"""Prove that a staged release is complete, and write its manifest."""

from __future__ import annotations

DOCUMENTATION = r"""
module: release_seal
short_description: Prove that a staged release is complete, and write its manifest
description:
  - Imports, with the release's own interpreter, what the server imports, compares the installed SGLang with
    the planned one, and writes C(manifest.json) into the release.
  - A release whose manifest is there and right is not proved again.
options:
  release:
    description: What M(release_plan) returned as RV(release_plan#module:release).
    type: dict
    required: true
  imports:
    description: Modules that have to be importable.
    type: list
    elements: str
    required: true
  environment:
    description: Environment variables of that import.
    type: dict
    default: {}
attributes:
  check_mode:
    support: full
    description: Nothing is imported, as nothing may be installed yet.
  diff_mode:
    support: full
    description: Shows the manifest.
author: Blackwell SGLang
"""

EXAMPLES = r"""
- name: Seal the release
  release_seal:
    release: "{{ sglang_stack_release }}"
    imports: [sglang.srt.entrypoints.http_server]
"""

RETURN = r"""
manifest:
  description: Path of the manifest.
  returned: success
  type: str
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.blackwell import seal
from ansible.module_utils.blackwell.errors import OperatorError


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "release": {"type": "dict", "required": True},
            "imports": {"type": "list", "elements": "str", "required": True},
            "environment": {"type": "dict", "default": {}},
        },
        supports_check_mode=True,
    )
    release = module.params["release"]
    path = Path(release["path"])
    before, after = seal.read_manifest(path), seal.manifest(release)
    changed = before != after or not seal.is_proved(release)
    if changed and not module.check_mode:
        environment = {key: str(value) for key, value in module.params["environment"].items()}
        try:
            seal.seal(release, module.params["imports"], environment)
        except OperatorError as error:
            module.fail_json(msg=str(error))
    name = str(path / seal.MANIFEST)
    module.exit_json(
        changed=changed,
        manifest=name,
        diff={"before_header": name, "after_header": name, "before": before, "after": after},
    )


if __name__ == "__main__":
    main()
