#!/usr/bin/python
# Copyright the Blackwell SGLang contributors
# SPDX-License-Identifier: Apache-2.0
"""Ask a server questions whose answers are known."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: correctness_canary
short_description: Check that an SGLang server says sensible things
description:
  - Asks questions with known answers, looks for empty, noisy and endlessly repeated text, makes a tool call where the
    server has a parser for them, and sends one prompt twice, so that the second finds the first in the cache.
  - Writes the greedy text of some fixed prompts to a transcript, and compares it with an earlier one.
  - Fails when any check fails, and names each that did.
author: Blackwell SGLang contributors
options:
  config:
    description: The configuration file that the server was started with; its address and keys are read from it.
    type: path
    required: true
  questions:
    description: Questions with known answers.
    type: list
    elements: dict
    default: []
    suboptions:
      prompt:
        description: The question.
        type: str
        required: true
      expect:
        description: A regular expression (case does not matter) that the answer or its reasoning must contain.
        type: str
        required: true
  answer_tokens:
    description: How long an answer may be, in tokens. A model that reasons needs room for it.
    type: int
    default: 512
  prompts:
    description: The prompt file on the host.
    type: path
    required: true
  transcript_prompts:
    description: How many prompts of the file the transcript has.
    type: int
    default: 8
  transcript_tokens:
    description: How many tokens each text of the transcript has.
    type: int
    default: 64
  transcript:
    description: Where the transcript is written.
    type: path
    required: true
  reference:
    description: The earlier transcript. A file that does not exist is no reference.
    type: path
  exact:
    description:
      - Whether a difference from the reference is a fault. It is where arithmetic is deterministic (the CPU engine).
        On GPUs the order of sums depends on the batch, so there it is only reported.
    type: bool
    default: false
  timeout:
    description: How long one answer may take, in seconds.
    type: float
    default: 300
attributes:
  check_mode:
    description: Asks nothing in check mode.
    support: partial
  diff_mode:
    description: There is nothing to show.
    support: none
"""

EXAMPLES = r"""
- name: Ask the questions of the canary
  correctness_canary:
    config: /etc/sglang/0.5.9-0123456789ab-01234567/eagle3.yaml
    questions:
      - prompt: What is the capital of France? Answer with one word.
        expect: Paris
    prompts: /var/lib/sglang/throughput/prompts.jsonl
    transcript: /var/lib/sglang/throughput/transcripts/0.5.9-0123456789ab-eagle3.json
"""

RETURN = r"""
canary:
  description: C(passed), C(checks) (each C(name), C(passed), C(detail)) and C(agreement) with the reference.
  returned: when the server was asked
  type: dict
"""

import json
from dataclasses import asdict
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.blackwell.errors import OperatorError
from ansible.module_utils.blackwell.files import replace
from ansible.module_utils.blackwell.throughput.canary import ask
from ansible.module_utils.blackwell.throughput.server import Server


def main() -> None:
    question = {"prompt": {"type": "str", "required": True}, "expect": {"type": "str", "required": True}}
    module = AnsibleModule(
        argument_spec={
            "config": {"type": "path", "required": True},
            "questions": {"type": "list", "elements": "dict", "default": [], "options": question},
            "answer_tokens": {"type": "int", "default": 512},
            "prompts": {"type": "path", "required": True},
            "transcript_prompts": {"type": "int", "default": 8},
            "transcript_tokens": {"type": "int", "default": 64},
            "transcript": {"type": "path", "required": True},
            "reference": {"type": "path"},
            "exact": {"type": "bool", "default": False},
            "timeout": {"type": "float", "default": 300.0},
        },
        supports_check_mode=True,
    )
    given = module.params
    if module.check_mode:
        module.exit_json(changed=False, skipped=True, msg="no question is asked in check mode")
    try:
        canary = ask(Server.of_deployment(Path(given["config"]), given["timeout"]), given)
    except (OperatorError, OSError, ValueError) as error:
        module.fail_json(msg=str(error))
    if canary.faults():
        module.fail_json(
            msg=f"The server answers, but not as it should: {'; '.join(canary.faults())}",
            canary=canary.to_json(),
        )
    path = Path(given["transcript"])
    text = json.dumps(asdict(canary.transcript), indent=1) + "\n"
    try:
        changed = not path.exists() or path.read_bytes() != text.encode()
        if changed:
            replace(path, text)
    except OSError as error:
        # The server has answered as it should: a full disk is no reason to take it from its clients.
        changed = False
        module.warn(f"The answers could not be kept in {path}: {error}")
    module.exit_json(changed=changed, canary=canary.to_json())


if __name__ == "__main__":
    main()
