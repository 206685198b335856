#!/usr/bin/python
"""Judge a throughput result."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: throughput_judge
short_description: Judge a throughput result against the anchored measurement or the floors
description:
  - Compares what M(throughput_measure) returned with the anchored measurement of the same host, profile,
    prompts, client and load, or, where there is none, with the floors of the policy. Says pass, fail
    or undecidable, what is to blame, and how many more runs would decide.
  - Changes nothing, and does not fail because of a bad verdict. Look at C(accepted).
  - The method and its simulated error rates are in C(docs/judge.md).
options:
  result:
    description: The result to judge.
    type: dict
    required: true
  baseline:
    description: >-
      The anchored result of the accepted release. The module fails when it is of another host, profile,
      prompt set, client or load. Without it the floors decide.
    type: dict
  baseline_again:
    description: >-
      A second result of the accepted release, taken after O(result) (A-B-A). Both are pooled; when they
      differ from each other by more than the margin, nothing is decided.
    type: dict
  policy:
    description: >-
      What a release has to keep. Keys are C(margin), C(margins), C(floors), C(min_runs), C(max_runs),
      C(error_rate), C(max_failure_share), C(min_accept_length), C(drafting_margin), C(min_graph_share),
      C(weights), which only M(throughput_choice) reads, and C(accept_undecidable). What is absent has its default.
    type: dict
    default: {}
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
- name: Judge the candidate
  throughput_judge:
    result: "{{ measured.result }}"
    baseline: "{{ baseline }}"
    policy:
      max_runs: 20
  register: judged

- name: Require the verdict
  ansible.builtin.assert:
    that: judged.accepted
    fail_msg: "{{ judged.verdict.headline }}"
"""

RETURN = r"""
---
verdict:
  description: >-
    C(outcome), C(accepted), C(headline), C(findings), C(culprits), C(notes), C(baseline), C(references).
  returned: success
  type: dict
accepted:
  description: Whether the release may take traffic.
  returned: success
  type: bool
lines:
  description: The result and the verdict as a table, a line each.
  returned: success
  type: list
  elements: str
differences:
  description: What makes the anchored measurement and the result incomparable.
  returned: when the anchored measurement was refused
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.blackwell.errors import OperatorError
from ansible.module_utils.blackwell.throughput.judge import BaselineRefused, differences, judge, judge_aba
from ansible.module_utils.blackwell.throughput.policy import Policy
from ansible.module_utils.blackwell.throughput.result import Result
from ansible.module_utils.blackwell.throughput.table import result_lines


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "result": {"type": "dict", "required": True},
            "baseline": {"type": "dict"},
            "baseline_again": {"type": "dict"},
            "policy": {"type": "dict", "default": {}},
        },
        required_by={"baseline_again": ["baseline"]},
        supports_check_mode=True,
    )
    given = module.params
    try:
        result = Result.from_json(given["result"])
        baseline, again = (
            Result.from_json(given[name]) if given[name] else None for name in ("baseline", "baseline_again")
        )
        policy = Policy.from_dict(given["policy"])
        between = baseline and again
        verdict = judge_aba(baseline, result, again, policy) if between else judge(result, baseline, policy)
    except BaselineRefused as error:
        others = [other for other in (baseline, again) if other]
        found = [line for other in others for line in differences(result, other)]
        module.fail_json(msg=str(error), differences=found)
    except (OperatorError, ValueError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(
        changed=False,
        verdict=verdict.to_json(),
        accepted=verdict.accepted,
        lines=result_lines(result, verdict),
    )


if __name__ == "__main__":
    main()
