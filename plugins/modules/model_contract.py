#!/usr/bin/python
"""Hold a model class against what SGLang does with it."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: model_contract
short_description: Hold a model class against what SGLang does with it
description:
  - Follows the installed SGLang's source from its scheduler to the model, under the settings of a server, without
    importing it, and finds everything that the speculative workers and the model runner use of the target model.
  - Fails with all that the model's class lacks, with where it is used, before any weight is loaded. SGLang itself
    fails with the first of them, after it has loaded the weights.
  - Nothing but O(record) is written on the host.
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
  environment:
    description: The server's environment variables.
    type: dict
    default: {}
  remedy:
    description: What to do about a class that lacks something. Part of the message.
    type: str
    default: apply the patches that this release needs
  record:
    description:
      - File that remembers that the contract held. As long as neither the question, nor the sources, nor the check
        itself have changed, the answer is read from there, in a fraction of a second instead of several.
      - Without one the sources are followed every time, and nothing is changed on the host.
    type: path
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
    description: What is remembered is of no interest.
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
    environment:
      SGLANG_ENABLE_SPEC_V2: "1"
"""

RETURN = r"""
contract:
  description:
    - C(architecture), its C(place), C(version), the C(workers) that the settings select, everything C(asked) of the
      target, what is C(missing) with its C(callers), and the C(pairs) of missing names.
  returned: success
  type: dict
"""

import json
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.blackwell.contract import record
from ansible.module_utils.blackwell.contract.check import check
from ansible.module_utils.blackwell.contract.source import SourceTree, source_root
from ansible.module_utils.blackwell.errors import OperatorError
from ansible.module_utils.blackwell.files import replace


def architecture(model: Path) -> str:
    """The class that a model's config.json names."""
    try:
        names = json.loads((model / "config.json").read_text(encoding="utf-8"))["architectures"]
        return str(names[0])
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        raise OperatorError(
            f"{model / 'config.json'} does not say which class the model needs",
            found=f"{type(error).__name__}: {error}",
            expected='a list with a name under "architectures"',
            remedy="correct the model's path, or copy the model again",
        ) from error


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "python": {"type": "path", "required": True},
            "model": {"type": "path", "required": True},
            "arguments": {"type": "dict", "required": True},
            "environment": {"type": "dict", "default": {}},
            "remedy": {"type": "str", "default": "apply the patches that this release needs"},
            "record": {"type": "path"},
        },
        supports_check_mode=True,
    )
    given = module.params
    path = Path(given["record"]) if given["record"] else None
    before = record.read(path)
    try:
        tree = SourceTree(source_root(Path(given["python"])))
        asked = {
            "architecture": architecture(Path(given["model"])),
            "arguments": given["arguments"],
            "environment": given["environment"],
        }
        key = record.key(tree, asked)
        if before.get("key") == key:
            module.exit_json(changed=False, contract=before["contract"])
        found = check(tree, **asked)
    except OperatorError as error:
        module.fail_json(msg=str(error))
    if found.missing:
        module.fail_json(msg=found.message(given["remedy"]))
    if path and not module.check_mode:
        replace(path, record.text(key, found.report()))
    module.exit_json(changed=path is not None, contract=found.report())


if __name__ == "__main__":
    main()
