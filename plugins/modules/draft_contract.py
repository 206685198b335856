#!/usr/bin/python
# Copyright the Blackwell SGLang contributors
# SPDX-License-Identifier: Apache-2.0
"""Check that a drafter, its target and the server's settings fit together."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: draft_contract
short_description: Check that a drafter, its target and the server's settings fit together
description:
  - Reads C(config.json) of both models, the headers of the drafter's weights with its vocabulary map, and the model
    classes of the installed SGLang, and reports everything that does not fit at once. Loads and imports nothing.
  - Fails if there is an error. Warnings are returned.
author: Blackwell SGLang contributors
options:
  arguments:
    description: SGLang's flags, with underscores. They name both models.
    type: dict
    required: true
  environment:
    description: Environment variables of the server.
    type: dict
    default: {}
  python:
    description: Interpreter that will run SGLang. It is asked only where its sglang is. Empty while there is none.
    type: str
    default: ""
attributes:
  check_mode:
    support: full
    description:
      - The module never changes anything. What cannot be checked because a play would put it there first is returned as
        RV(unchecked) in check mode, and is an error otherwise.
  diff_mode:
    support: none
    description: There is nothing to show.
"""

EXAMPLES = r"""
- name: Check the contract of the drafter
  draft_contract:
    arguments: "{{ eagle3_server_profiles.eagle3.arguments }}"
    environment: "{{ eagle3_server_profiles.eagle3.environment }}"
    python: "{{ sglang_stack_release.python }}"
"""

RETURN = r"""
findings:
  description:
    - What may not be meant, each with C(id), C(severity), C(problem), C(found), C(expected), C(remedy), and all of it
      as sentences in C(text).
  returned: success
  type: list
  elements: dict
unchecked:
  description: What could not be checked yet, as sentences.
  returned: success
  type: list
  elements: str
"""

from dataclasses import asdict
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.blackwell import draft
from ansible.module_utils.blackwell.errors import OperatorError
from ansible.module_utils.blackwell.model_classes import source_root


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "arguments": {"type": "dict", "required": True},
            "environment": {"type": "dict", "default": {}},
            "python": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )
    given = module.params
    drafter = draft.draft_path(given["arguments"])
    if not drafter:
        module.exit_json(changed=False, findings=[], unchecked=[])
    paths = [Path(str(given["arguments"].get("model_path") or "")), Path(drafter)]
    unchecked = [] if given["python"] else ["There is no SGLang yet to hold target and drafter against"]
    absent = [str(path) for path in paths if not path.is_dir()]
    if absent:
        unchecked.append(
            f"There is no model in {' and '.join(absent)}, so target and drafter are not compared"
        )
    if unchecked and not module.check_mode:
        module.fail_json(msg=f"{'. '.join(unchecked)}.")
    findings = []
    try:
        release = draft.Release()
        if given["python"]:
            release = draft.read_release(source_root(Path(given["python"])), given["environment"])
        if not absent:
            target, drafter_model = (draft.read_model(path, tensors=path == paths[1]) for path in paths)
            case = draft.Case(target, drafter_model, given["arguments"], given["environment"], release)
            findings = draft.check(case)
    except OperatorError as error:
        module.fail_json(msg=str(error))
    errors = [str(finding) for finding in findings if finding.severity == "error"]
    if errors:
        head = f"The drafter in {drafter} does not go with the target in {paths[0]}:"
        module.fail_json(msg="\n".join([head, *errors]))
    module.exit_json(
        changed=False,
        findings=[{**asdict(finding), "text": str(finding)} for finding in findings],
        unchecked=unchecked,
    )


if __name__ == "__main__":
    main()
