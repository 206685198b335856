#!/usr/bin/python
"""Hold a model class against what SGLang does with it."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: model_contract
short_description: Hold a model class against what SGLang does with it
description:
  - Reads the installed SGLang's source, without importing it, and collects every name that the speculative workers and
    the model runner use of the target model under the settings of a server.
  - Fails with all that the model's class lacks, with where it is used, before any weight is loaded. SGLang itself
    fails with the first of them, after it has loaded the weights.
  - What cannot be read, such as a base class of another package, is a warning and never a pass.
  - Nothing is written on the host.
options:
  python:
    description: Interpreter that will run SGLang. It is asked only where its sglang is.
    type: path
    required: true
  model:
    description: Folder of the target model. Its C(config.json) names the class, under C(architectures).
    type: path
    required: true
  arguments:
    description: The server's arguments, SGLang's flags with underscores and without dashes.
    type: dict
    required: true
  remedy:
    description: What to do about a class that lacks something. Part of the message.
    type: str
    default: apply the patches that this release needs
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
    description: Nothing is changed.
author: Blackwell SGLang contributors
"""

EXAMPLES = r"""
---
- name: Hold Kimi-K2.5 against the EAGLE-3 workers
  model_contract:
    python: /opt/sglang/current/venv/bin/python
    model: /srv/models/Kimi-K2.5-NVFP4
    arguments:
      speculative_algorithm: EAGLE3
      speculative_draft_model_path: /srv/models/kimi-k2.5-eagle3
      speculative_num_steps: 3
      speculative_eagle_topk: 1
      speculative_num_draft_tokens: 4
      tp_size: 8
"""

RETURN = r"""
contract:
  description:
    - C(architecture), its C(place), C(version), everything C(asked) of the target, what is C(missing) with its
      C(callers), the C(pairs) of missing names, and what could not be read (C(unchecked)).
  returned: success
  type: dict
"""

from dataclasses import asdict
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.blackwell.errors import OperatorError
from ansible.module_utils.blackwell.json_reader import read_object
from ansible.module_utils.blackwell.model_classes import SourceTree, source_root
from ansible.module_utils.blackwell.target_contract import check


def architecture(model: Path) -> str:
    """The class that a model's config.json names."""
    remedy = "correct the model's path, or copy the model again"
    names = read_object(model / "config.json", remedy=remedy).get("architectures")
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        raise OperatorError(
            f"{model / 'config.json'} does not say which class the model needs",
            found=f"architectures: {names}",
            expected='a list with a name under "architectures"',
            remedy=remedy,
        )
    return names[0]


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "python": {"type": "path", "required": True},
            "model": {"type": "path", "required": True},
            "arguments": {"type": "dict", "required": True},
            "remedy": {"type": "str", "default": "apply the patches that this release needs"},
        },
        supports_check_mode=True,
    )
    given = module.params
    try:
        tree = SourceTree(source_root(Path(given["python"])))
        found = check(tree, architecture(Path(given["model"])), given["arguments"])
    except OperatorError as error:
        module.fail_json(msg=str(error))
    if found.missing:
        module.fail_json(msg=found.message(given["remedy"]))
    for gap in found.unchecked:
        module.warn(f"Whether {found.architecture} has what SGLang calls was not checked in full: {gap}")
    module.exit_json(changed=False, contract=asdict(found))


if __name__ == "__main__":
    main()
