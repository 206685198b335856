#!/usr/bin/python
# Copyright the Blackwell SGLang contributors
# SPDX-License-Identifier: Apache-2.0
"""Choose the serving profile on a host."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: throughput_choice
short_description: Choose the serving profile on a host, or read which one was chosen
description:
  - Given what was measured of both profiles, chooses the one that is faster over all points, each with its weight, and
    keeps the choice on the host; a tie goes to C(baseline). What that gives up is said. A profile that
    M(throughput_judge) did not accept does not serve, however fast it is.
  - Given no results, returns the choice that is kept, if it was made on a host with this fingerprint.
  - How it chooses is in C(docs/judge.md).
author: Blackwell SGLang contributors
options:
  path:
    description: The file on the host in which the choice is kept. Its folder must exist.
    type: path
    required: true
  fingerprint:
    description: Digest of what the speed of the host depends on. A choice of another host is none.
    type: str
    required: true
  eagle3:
    description: What was measured with speculation.
    type: dict
    suboptions: &measured
      result:
        description: What M(throughput_measure) returned as C(result).
        type: dict
        required: true
      refused:
        description: The headline of the verdict where the result was not accepted, empty where it was.
        type: str
        default: ""
  baseline:
    description: What was measured without, of the same release on the same host.
    type: dict
    suboptions: *measured
  policy:
    description: The policy of the judge. Its C(weights) say how much each point counts.
    type: dict
    default: {}
attributes:
  check_mode:
    description: Chooses, and keeps nothing.
    support: full
  diff_mode:
    support: none
    description: There is nothing to show.
"""

EXAMPLES = r"""
- name: Read which profile was chosen
  throughput_choice:
    path: /var/lib/sglang/throughput/choice.json
    fingerprint: "{{ preflight_fingerprint.digest }}"
  register: chosen

- name: Choose
  throughput_choice:
    path: /var/lib/sglang/throughput/choice.json
    fingerprint: "{{ preflight_fingerprint.digest }}"
    eagle3: {result: "{{ with_speculation }}"}
    baseline: {result: "{{ without }}", refused: "Fail: kernels or communication at 1 request."}
"""

RETURN = r"""
choice:
  description: >-
    C(release), C(profile), C(reason), C(crossover), C(steps), C(gain), C(low), C(high) and C(given_up); empty where
    nothing was chosen yet.
  returned: success
  type: dict
outdated:
  description: >-
    How the weights of the kept choice differ from those of the policy, and how to choose anew; empty where they do not.
  returned: success
  type: str
lines:
  description: Both profiles side by side, and which one serves.
  returned: success
  type: list
  elements: str
"""

from pathlib import Path
from shlex import quote

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.blackwell.errors import OperatorError
from ansible.module_utils.blackwell.throughput.choice import (
    choose_profile,
    outdated,
    store_choice,
    stored_choice,
)
from ansible.module_utils.blackwell.throughput.policy import Policy
from ansible.module_utils.blackwell.throughput.result import Result
from ansible.module_utils.blackwell.throughput.table import choice_lines


def main() -> None:
    options = {
        "result": {"type": "dict", "required": True},
        "refused": {"type": "str", "default": ""},
    }
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "fingerprint": {"type": "str", "required": True},
            "eagle3": {"type": "dict", "options": options},
            "baseline": {"type": "dict", "options": options},
            "policy": {"type": "dict", "default": {}},
        },
        required_together=[["eagle3", "baseline"]],
        supports_check_mode=True,
    )
    given = module.params
    path = Path(given["path"])
    stale = ""
    try:
        policy = Policy.from_dict(given["policy"])
        before = stored_choice(path, given["fingerprint"])
        choice = before
        if given["eagle3"]:
            measured = {profile: given[profile] for profile in ("eagle3", "baseline")}
            refused = {profile: said["refused"] for profile, said in measured.items() if said["refused"]}
            speculative, plain = (Result.from_json(said["result"]) for said in measured.values())
            choice = choose_profile(speculative, plain, policy, refused)
            if choice != before and not module.check_mode:
                store_choice(path, given["fingerprint"], choice)
        elif choice and given["policy"] and (differing := outdated(choice, policy)):
            stale = f"{differing}. To choose anew: rm {quote(str(path))} on the host, and roll out again (site.yml)."
    except (OperatorError, OSError, ValueError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(
        changed=choice != before,
        choice=choice.to_json() if choice else {},
        outdated=stale,
        lines=choice_lines(choice) if choice else [],
    )


if __name__ == "__main__":
    main()
