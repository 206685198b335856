#!/usr/bin/python
"""Keep throughput checks and write the report about them."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: throughput_report
short_description: Keep throughput checks and write the report about them
description:
  - Stores each check as C(<folder>/<host>/<time>-<profile>.json) and writes C(<folder>/<host>/index.html),
    a page that needs nothing else, about all checks of that host that the folder holds.
  - Runs on the controller; use C(delegate_to=localhost).
options:
  folder:
    description: Where checks and pages are kept.
    type: path
    required: true
  records:
    description: >-
      Checks to add. Each has C(result), and, where there are such, C(verdict) and C(choice) as
      M(throughput_judge) returns them.
    type: list
    elements: dict
    default: []
  compare:
    description: >-
      Two stored checks (their files) to put side by side. The page of the second one's host gets a section
      about them, and C(lines) are about them.
    type: list
    elements: path
    default: []
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
    description: Shows the headlines of the checks that are added.
author: Blackwell SGLang contributors
"""

EXAMPLES = r"""
---
- name: Write the report
  throughput_report:
    folder: reports/throughput
    records:
      - result: "{{ measured.result }}"
        verdict: "{{ judged.verdict }}"
  delegate_to: localhost
  register: report

- name: Compare two checks
  throughput_report:
    folder: reports/throughput
    compare:
      - reports/throughput/gpu-1/2026-01-12T031500Z-eagle3.json
      - reports/throughput/gpu-1/2026-03-02T021400Z-eagle3.json
  delegate_to: localhost
"""

RETURN = r"""
---
pages:
  description: The pages, one a host.
  returned: success
  type: list
  elements: str
lines:
  description: The checks, or the comparison, as tables of plain text.
  returned: success
  type: list
  elements: str
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.blackwell.errors import OperatorError
from ansible.module_utils.blackwell.throughput import archive


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "folder": {"type": "path", "required": True},
            "records": {"type": "list", "elements": "dict", "default": []},
            "compare": {"type": "list", "elements": "path", "default": []},
        },
        supports_check_mode=True,
    )
    given = module.params
    folder = Path(given["folder"])
    try:
        plan = archive.plan(folder, given["records"], [Path(path) for path in given["compare"]])
        if not module.check_mode:
            archive.write(plan)
    except (OperatorError, ValueError, OSError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(
        changed=bool(plan.files),
        pages=[str(page) for page in plan.pages],
        lines=plan.lines,
        diff={"before": "", "after": "".join(f"{line}\n" for line in plan.added)},
    )


if __name__ == "__main__":
    main()
