#!/usr/bin/python
# Copyright the Blackwell SGLang contributors
# SPDX-License-Identifier: Apache-2.0
"""Measure how fast a server is."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: throughput_measure
short_description: Measure the throughput of an SGLang server under fixed conditions
description:
  - Loads the running server with C(sglang.bench_serving) of its own release and a committed set of prompts, at
    temperature 0 and with outputs of one length, on a flushed cache and an otherwise idle server.
  - A run that was disturbed (other requests, throttled GPUs, failed or stalled requests, a warm cache, tokens that
    were miscounted) does not count and is repeated.
  - More runs are made until M(throughput_judge) could decide, or up to the limit of the policy.
  - Stores the result on the host, without any key. When the accepted result is of exactly this release, deployment
    and load, it is returned and nothing is measured.
  - The formulas are in C(docs/throughput.md).
author: Blackwell SGLang contributors
options:
  config:
    description: The configuration file that the server was started with; its address and keys are read from it.
    type: path
    required: true
  release:
    description: The release that runs, as the role C(sglang_stack) plans it (C(id), C(python), C(sglang_version)).
    type: dict
    required: true
  profile:
    description: The profile that runs.
    type: str
    required: true
  host:
    description: Name of the host in the result.
    type: str
    required: true
  fingerprint:
    description: Digest of what the speed of a host depends on. Results of unlike fingerprints are not compared.
    type: str
    required: true
  prompts:
    description: The prompt file on the host.
    type: path
    required: true
  results:
    description: The folder of results on the host.
    type: path
    required: true
  baseline:
    description: The anchored result that the judge will compare with. The file need not exist.
    type: path
    required: true
  policy:
    description: The policy of the judge, whose numbers of runs are used here.
    type: dict
    default: {}
  to_limit:
    description: Make as many runs as the policy allows, as is done where nothing is anchored yet.
    type: bool
    default: false
  accepted:
    description: The result with which the running release was accepted. The file need not exist.
    type: path
    required: true
  reuse:
    description: Return the accepted result, if it is of this measurement, instead of measuring again.
    type: bool
    default: true
  concurrency:
    description: Requests in flight; each is a point of the measurement.
    type: list
    elements: int
    default: [1, 8]
  long_concurrency:
    description: The same with long prompts. Empty leaves them out.
    type: list
    elements: int
    default: [1]
  load:
    description: What makes two measurements comparable, beside the prompts.
    type: dict
    suboptions:
      output_tokens:
        description: Tokens of each answer.
        type: int
        default: 512
      requests_least:
        description: Requests of a run with standard prompts, at least.
        type: int
        default: 16
      requests_per_slot:
        description: Requests of a run for each that is in flight at once, so that start and end weigh little.
        type: int
        default: 4
      long_requests_per_slot:
        description: The same with long prompts.
        type: int
        default: 4
      chat_template:
        description: Put the chat template of the model around each prompt, as the chat interface does.
        type: bool
        default: true
      seed:
        description: Seed of the load generator; it decides the order of the prompts.
        type: int
        default: 1
  disturbed_limit:
    description: How many disturbed runs of a point are repeated.
    type: int
    default: 5
  run_timeout:
    description: How long one run may take, in seconds, before the server counts as hung.
    type: float
    default: 1800
  idle_timeout:
    description: How long to wait for an idle server, in seconds.
    type: float
    default: 120
  stall:
    description: How long one request may wait for a token, in seconds, when the others do not.
    type: float
    default: 5
  tokenizer:
    description: Folder of the tokenizer. Left out, it is that of the served model.
    type: path
  user:
    description: Account that runs the load generator, because a tokenizer may bring code of its own.
    type: str
    default: ""
  environment:
    description: Further environment variables of the load generator.
    type: dict
    default: {}
  nvidia_smi:
    description: The program that samples the GPUs. Where it is not found, nothing is sampled.
    type: str
    default: nvidia-smi
  uuids:
    description:
      - The GPUs that count, by UUID. Empty for all. With them a run whose GPUs could not be watched does not count,
        even where there is no C(nvidia_smi).
    type: list
    elements: str
    default: []
  progress:
    description:
      - A file on the host in which the last thing that happened is kept, one line. With it the measurement runs in the
        background, the play shows these lines, and a connection that is lost for a moment does not end it.
    type: path
  play:
    description:
      - A name of the play that nothing else has. The action plugin gives one, and touches the file
        C(<progress>.<play>.beat) whenever it looks at C(progress).
    type: str
  patience:
    description:
      - For how long the play may not touch that file, in seconds, before the measurement ends by itself. A play that
        was killed leaves nothing behind.
    type: float
    default: 180
  canary:
    description: What M(correctness_canary) returned, to be kept in the result.
    type: dict
    default: {}
attributes:
  check_mode:
    description: Says whether it would measure.
    support: full
  diff_mode:
    description: There is nothing to show.
    support: none
"""

EXAMPLES = r"""
- name: Measure
  throughput_measure:
    config: /etc/sglang/0.5.9-0123456789ab-01234567/eagle3.yaml
    release: "{{ sglang_stack_release }}"
    profile: eagle3
    host: "{{ inventory_hostname }}"
    fingerprint: "{{ preflight_fingerprint.digest }}"
    prompts: /var/lib/sglang/throughput/prompts.jsonl
    results: /var/lib/sglang/throughput/results
    accepted: /var/lib/sglang/throughput/eagle3/accepted.json
    baseline: /var/lib/sglang/throughput/eagle3/baseline.json
  register: measured
"""

RETURN = r"""
result:
  description: The result, as M(throughput_judge) takes it.
  returned: when it is the accepted one or was measured
  type: dict
path:
  description: Where it is stored on the host.
  returned: when it is the accepted one or was measured
  type: str
baseline:
  description: The anchored result, null without one, and where C(result) is that one itself.
  returned: when C(result) is
  type: dict
measured:
  description: Whether it was measured now.
  returned: always
  type: bool
client_changed:
  description:
    - Whether the anchor was measured with the load generator of another release, so that it cannot be compared.
  returned: always
  type: bool
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.blackwell.errors import OperatorError
from ansible.module_utils.blackwell.throughput.measure import store, take
from ansible.module_utils.blackwell.throughput.result import Result

_LOAD = {
    "output_tokens": {"type": "int", "default": 512},
    "requests_least": {"type": "int", "default": 16},
    "requests_per_slot": {"type": "int", "default": 4},
    "long_requests_per_slot": {"type": "int", "default": 4},
    "chat_template": {"type": "bool", "default": True},
    "seed": {"type": "int", "default": 1},
}


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "config": {"type": "path", "required": True},
            "release": {"type": "dict", "required": True},
            "profile": {"type": "str", "required": True},
            "host": {"type": "str", "required": True},
            "fingerprint": {"type": "str", "required": True},
            "prompts": {"type": "path", "required": True},
            "results": {"type": "path", "required": True},
            "accepted": {"type": "path", "required": True},
            "baseline": {"type": "path", "required": True},
            "policy": {"type": "dict", "default": {}},
            "to_limit": {"type": "bool", "default": False},
            "reuse": {"type": "bool", "default": True},
            "concurrency": {"type": "list", "elements": "int", "default": [1, 8]},
            "long_concurrency": {"type": "list", "elements": "int", "default": [1]},
            "load": {"type": "dict", "options": _LOAD, "apply_defaults": True},
            "disturbed_limit": {"type": "int", "default": 5},
            "run_timeout": {"type": "float", "default": 1800.0},
            "idle_timeout": {"type": "float", "default": 120.0},
            "stall": {"type": "float", "default": 5.0},
            "tokenizer": {"type": "path"},
            "user": {"type": "str", "default": ""},
            "environment": {"type": "dict", "default": {}},
            "nvidia_smi": {"type": "str", "default": "nvidia-smi"},
            "uuids": {"type": "list", "elements": "str", "default": []},
            "progress": {"type": "path"},
            "play": {"type": "str"},
            "patience": {"type": "float", "default": 180.0},
            "canary": {"type": "dict", "default": {}},
        },
        supports_check_mode=True,
    )
    try:
        taken = take(module.params, dry=module.check_mode)
    except (OperatorError, OSError, ValueError) as error:
        module.fail_json(msg=str(error))
    if taken.result is None:
        module.exit_json(
            changed=True,
            measured=False,
            client_changed=taken.client_changed,
            msg="it would be measured",
        )
    path = _store(module, taken.result) if taken.measured else module.params["accepted"]
    module.exit_json(
        changed=taken.measured,
        measured=taken.measured,
        client_changed=taken.client_changed,
        path=path,
        result=taken.result.to_json(),
        baseline=taken.baseline.to_json() if taken.baseline else None,
    )


def _store(module: AnsibleModule, result: Result) -> str:
    try:
        return str(store(result, Path(module.params["results"])))
    except OSError as error:
        # Nobody should lose what took an hour.
        module.fail_json(
            msg=f"It was measured, and the result could not be kept: {error}",
            result=result.to_json(),
        )
        raise


if __name__ == "__main__":
    main()
