#!/usr/bin/python
"""Prove that a CUDA toolkit compiles and links for the GPUs."""

from __future__ import annotations

DOCUMENTATION = r"""
module: cuda_toolkit_proof
short_description: Prove that a CUDA toolkit compiles and links for the GPUs
description:
  - Checks the release of C(nvcc), compiles a small kernel for the architecture, and links it as FlashInfer
    does.
  - The result is recorded, and the proof is repeated only when a compiler or the test has changed.
options:
  home:
    description: Folder of the toolkit. A link is refused.
    type: path
    required: true
  version:
    description: Wanted CUDA release, as C(major.minor).
    type: str
    required: true
  architecture:
    description: What to compile for.
    type: str
    default: sm_120a
  headers:
    description: Headers that have to be there.
    type: list
    elements: str
    default: [cuda_runtime.h]
  wheels:
    description: The toolkit is made of PyPI's wheels; the names that a linker looks for are added as links.
    type: bool
    default: false
  installed_by_play:
    description: An absent toolkit is no error in check mode, because the play would have installed it.
    type: bool
    default: false
  record:
    description: File that remembers the proof.
    type: path
    required: true
attributes:
  check_mode:
    support: full
    description: Nothing is compiled.
  diff_mode:
    support: full
    description: Shows the record.
author: Blackwell SGLang
"""

EXAMPLES = r"""
- name: Prove the toolkit
  cuda_toolkit_proof:
    home: /usr/local/cuda-13.0
    version: "13.0"
    record: "{{ sglang_stack_release.path }}/toolkit.json"
"""

RETURN = r"""
compiler:
  description: Full version of nvcc; empty in check mode when there is no proof yet.
  returned: success
  type: str
links:
  description: Links that were (or would be) added.
  returned: success
  type: list
"""

import json
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.blackwell import toolkit
from ansible.module_utils.blackwell.errors import OperatorError
from ansible.module_utils.blackwell.files import replace


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "home": {"type": "path", "required": True},
            "version": {"type": "str", "required": True},
            "architecture": {"type": "str", "default": "sm_120a"},
            "headers": {"type": "list", "elements": "str", "default": ["cuda_runtime.h"]},
            "wheels": {"type": "bool", "default": False},
            "installed_by_play": {"type": "bool", "default": False},
            "record": {"type": "path", "required": True},
        },
        supports_check_mode=True,
    )
    given = module.params
    wanted = toolkit.Toolkit(
        home=Path(given["home"]),
        version=given["version"],
        architecture=given["architecture"],
        headers=tuple(given["headers"]),
        wheels=given["wheels"],
    )
    path = Path(given["record"])
    before = after = toolkit.read_record(path)
    links: list[str] = []
    try:
        wanted.check_path()
        links = [str(link) for link in wanted.missing_links()]
        if not module.check_mode:
            wanted.make_links()
        if links or not wanted.present or before.get("digest") != wanted.digest():
            if module.check_mode and (wanted.present or given["installed_by_play"]):
                after = {"home": given["home"]}
            else:
                after = {"home": given["home"], "compiler": wanted.prove(), "digest": wanted.digest()}
                replace(path, json.dumps(after, indent=2) + "\n")
    except OperatorError as error:
        module.fail_json(msg=str(error))
    module.exit_json(
        changed=bool(links) or before != after,
        compiler=after.get("compiler", ""),
        links=links,
        diff={
            "before_header": str(path),
            "after_header": str(path),
            "before": json.dumps(before, indent=2) + "\n" if before else "",
            "after": json.dumps(after, indent=2) + "\n",
        },
    )


if __name__ == "__main__":
    main()
