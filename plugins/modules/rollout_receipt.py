#!/usr/bin/python
# Copyright the Blackwell SGLang contributors
# SPDX-License-Identifier: Apache-2.0
"""Begin and end the receipt of a rollout on a host, or read the last ones."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: rollout_receipt
short_description: Write the receipt of a rollout on a host
description:
  - A receipt says what was asked for, what was found, how long each phase took, what was measured and what came
    of it. See docs/rollout.md.
author: Blackwell SGLang contributors
options:
  folder:
    description: Where receipts are on the host.
    type: path
    default: /var/lib/sglang/receipts
  state:
    description:
      - V(begun) notes that a rollout begins. If one was broken off before, the receipt will say so.
      - V(ended) writes the receipt.
      - V(read) only reads the receipts that are there.
    type: str
    required: true
    choices: [begun, ended, read]
  host:
    description: The host's name in the inventory.
    type: str
  found:
    description: What is accepted on the host when a rollout begins.
    type: dict
  going_back_to:
    description: The deployment that a rollback goes to, with V(begun).
    type: str
    default: ""
  outcome:
    description: How it ended.
    type: str
    choices: [accepted, returned, down]
  reason:
    description: Why it was not accepted, or accepted and not put back.
    type: str
    default: ""
  marks:
    description: The beginnings of phases, each with C(phase) and C(at), in seconds since the epoch.
    type: list
    elements: dict
    default: []
  outage_file:
    description: What the probe of the outage wrote.
    type: path
  content:
    description: The other fields of the receipt.
    type: dict
    default: {}
  secrets:
    description: Texts that must not appear in it.
    type: list
    elements: str
    default: []
  running:
    description:
      - What runs now, to be compared with the newest accepted receipt, with C(deployment), C(files) and C(fingerprint),
        the deployment that the machine starts at boot as C(accepted), and the release that the link points to as
        C(release).
      - C(edited) are files that were changed since the server was started, C(refuses) says whether the host refuses
        clients, C(left_out_by) are gateways that send it no requests until a rollout puts it back, and C(unreachable)
        those that could not be asked.
      - C(health) is the status of C(/health) of a server that runs, 0 without an answer.
    type: dict
  keep:
    description: How many receipts stay on the host.
    type: int
    default: 50
attributes:
  check_mode:
    description: Only reads.
    support: full
  diff_mode:
    description: A receipt is a new file, so there is no difference to show.
    support: none
"""

EXAMPLES = r"""
- name: Read the receipts
  rollout_receipt:
    state: read
"""

RETURN = r"""
receipt:
  description: The receipt that was written, or the newest one.
  returned: unless O(state=begun); null if there is none
  type: dict
accepted:
  description: The newest receipt of a rollout that was accepted.
  returned: O(state=read), null if there is none
  type: dict
pending:
  description: What is known of the rollout that runs now, or was broken off.
  returned: unless O(state=ended), null if there is none
  type: dict
differences:
  description: What is not as that receipt says, each as one sentence.
  returned: with O(running)
  type: list
  elements: str
expected:
  description: What each phase and the outage usually take on this host, in seconds.
  returned: O(state=begun) and O(state=read)
  type: dict
"""

import time
from pathlib import Path
from shlex import quote
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.blackwell import receipt
from ansible.module_utils.blackwell.errors import OperatorError
from ansible.module_utils.blackwell.json_reader import find_object


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "folder": {"type": "path", "default": "/var/lib/sglang/receipts"},
            "state": {"type": "str", "required": True, "choices": ["begun", "ended", "read"]},
            "host": {"type": "str"},
            "found": {"type": "dict"},
            "going_back_to": {"type": "str", "default": ""},
            "outcome": {"type": "str", "choices": list(receipt.OUTCOMES)},
            "reason": {"type": "str", "default": ""},
            "marks": {"type": "list", "elements": "dict", "default": []},
            "outage_file": {"type": "path"},
            "content": {"type": "dict", "default": {}},
            "secrets": {"type": "list", "elements": "str", "default": [], "no_log": True},
            "running": {"type": "dict"},
            "keep": {"type": "int", "default": 50},
        },
        required_if=[("state", "begun", ["host"]), ("state", "ended", ["outcome"])],
        supports_check_mode=True,
    )
    given = module.params
    folder = Path(given["folder"])
    damaged: list[OperatorError] = []
    try:
        earlier = receipt.read_all(folder, damaged)
        for error in damaged:
            module.warn(f"A receipt is passed over. {error}")
        if module.check_mode or given["state"] == "read":
            module.exit_json(changed=given["state"] != "read", **_look(folder, earlier, given["running"]))
        if given["state"] == "begun":
            pending = receipt.begin(
                folder,
                given["host"],
                found=given["found"],
                now=time.time(),
                going_back_to=given["going_back_to"],
            )
            module.exit_json(changed=True, pending=pending, expected=receipt.expected(earlier))
        written = receipt.end(
            folder,
            outcome=given["outcome"],
            reason=given["reason"],
            marks=[{"phase": mark["phase"], "at": float(mark["at"])} for mark in given["marks"]],
            outage=find_object(Path(given["outage_file"])) if given["outage_file"] else None,
            content=given["content"],
            secrets=given["secrets"],
            keep=given["keep"],
            now=time.time(),
        )
    except OSError as error:
        module.fail_json(
            msg=f"No receipt can be written in {folder}. Found: {error}. Expected: a folder with free space that root "
            f"can write to. To mend it: look at df {quote(str(folder))}, and at what is in the way."
        )
    except OperatorError as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=True, receipt=written)


def _look(folder: Path, earlier: list[dict[str, Any]], running: dict[str, Any] | None) -> dict[str, Any]:
    pending = receipt.pending(folder)
    accepted = next((entry for entry in earlier if entry["outcome"] == receipt.ACCEPTED), None)
    return {
        "pending": pending,
        "receipt": earlier[0] if earlier else None,
        "accepted": accepted,
        "expected": receipt.expected(earlier),
        "differences": receipt.differences(accepted, running, pending) if accepted and running else [],
    }


if __name__ == "__main__":
    main()
