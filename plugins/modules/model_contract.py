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
  - Nothing is changed on the host.
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
attributes:
  check_mode:
    support: full
    description: The module never changes anything.
  diff_mode:
    support: none
    description: There is nothing to show.
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
import sys
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.blackwell.contract.check import check
from ansible.module_utils.blackwell.contract.source import SourceTree, source_root
from ansible.module_utils.blackwell.errors import OperatorError

# The source is followed by recursion, as deep as SGLang's own calls are nested.
DEPTH = 20000


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
        },
        supports_check_mode=True,
    )
    given = module.params
    sys.setrecursionlimit(DEPTH)
    try:
        tree = SourceTree(source_root(Path(given["python"])))
        found = check(tree, architecture(Path(given["model"])), given["arguments"], given["environment"])
    except OperatorError as error:
        module.fail_json(msg=str(error))
    if found.missing:
        module.fail_json(msg=found.message(given["remedy"]))
    module.exit_json(changed=False, contract=found.report())


if __name__ == "__main__":
    main()
