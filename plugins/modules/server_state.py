#!/usr/bin/python
# Copyright the Blackwell SGLang contributors
# SPDX-License-Identifier: Apache-2.0
"""One look at a server: its unit, what it was started with, and what it answers."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: server_state
short_description: Look at an SGLang server once
description:
  - Reads the state of a unit, the record of what the running process was started with, the end of its journal
    and, if asked, C(/health) and a real completion.
  - Address and API key are taken from the deployment's configuration file on the host, so no key travels to
    it.
  - Changes nothing.
author: Blackwell SGLang contributors
options:
  profile:
    description: The profile whose unit is looked at.
    type: str
    required: true
    choices: [eagle3, baseline]
  config:
    description: The configuration file of the deployment that should run, for address and key.
    type: path
  probe:
    description:
      - How far to ask the server. V(health) asks C(GET /health) while the unit is active.
      - V(completion) asks for a completion as soon as C(/health) answers 200.
    type: str
    choices: [none, health, completion]
    default: none
  start_limit:
    description:
      - How long a start may take, in seconds. A server that has been active for longer is asked three times, and
        C(hung) says that it has not answered.
      - V(0) for no limit.
    type: float
    default: 0
  tokens:
    description: The length of the completion, in tokens.
    type: int
    default: 16
  prompt:
    description: The prompt of the completion.
    type: str
    default: The capital of France is
  journal_lines:
    description: How many lines of the unit's journal to return, from the end.
    type: int
    default: 0
  journal_since:
    description: Leave out what was logged before this time, in seconds since the epoch.
    type: float
    default: 0
  records:
    description: Where starts are recorded.
    type: path
    default: /run/sglang
  folder:
    description: Where deployments live, and the record of the accepted one.
    type: path
    default: /etc/sglang
attributes:
  check_mode:
    description: Changes nothing, so it does the same in check mode.
    support: full
  diff_mode:
    description: Changes nothing, so there is no difference to show.
    support: none
"""

EXAMPLES = r"""
- name: Ask the server for a completion
  server_state:
    profile: eagle3
    config: /etc/sglang/0.5.9-0123456789ab-01234567/eagle3.yaml
    probe: completion
"""

RETURN = r"""
unit:
  description: Properties of the unit as systemd shows them.
  returned: always
  type: dict
started:
  description: What the running process was started with (deployment, SHA-256 of its files); null if unknown.
  returned: always
  type: dict
edited:
  description: Files that are no longer as they were when the running process was started with them.
  returned: always
  type: list
  elements: path
accepted:
  description:
    - The accepted deployment, with C(deployment), C(profile), C(release) and C(history), the same of those that were
      accepted before it, newest first. Null if none was.
  returned: always
  type: dict
accepted_damage:
  description:
    - What is wrong with the record of the accepted deployment, which then says nothing. Empty when it is well or
      there is none.
  returned: always
  type: str
deployments:
  description:
    - Every deployment that was accepted, the accepted one first, each with C(deployment), C(profile) and
      C(release).
  returned: always
  type: list
  elements: dict
health:
  description: Status of C(/health), 0 when nobody answers or nobody was asked.
  returned: always
  type: int
hung:
  description: Whether the unit has been active for longer than O(start_limit) and C(/health) is not 200.
  returned: always
  type: bool
completion:
  description: Tokens, text and error of a completion, null when none was asked for.
  returned: always
  type: dict
same_process:
  description: Whether the main process was the same before and after the probes.
  returned: always
  type: bool
journal:
  description: The end of the journal, without the API keys.
  returned: always
  type: list
  elements: str
now:
  description: The host's clock, in seconds since the epoch.
  returned: always
  type: float
"""

import time
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.blackwell.errors import OperatorError
from ansible.module_utils.blackwell.readiness import (
    HUNG_TRIES,
    UNIT_PROPERTIES,
    accepted_deployments,
    active_for,
    edited_since,
    get_completion,
    get_health,
    read_accepted,
    read_arguments,
    read_properties,
    read_started,
    server_url,
    tidy_journal,
)
from ansible.module_utils.blackwell.server import unit_name


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "profile": {"type": "str", "required": True, "choices": ["eagle3", "baseline"]},
            "config": {"type": "path"},
            "probe": {"type": "str", "choices": ["none", "health", "completion"], "default": "none"},
            "start_limit": {"type": "float", "default": 0},
            "tokens": {"type": "int", "default": 16},
            "prompt": {"type": "str", "default": "The capital of France is"},
            "journal_lines": {"type": "int", "default": 0},
            "journal_since": {"type": "float", "default": 0},
            "records": {"type": "path", "default": "/run/sglang"},
            "folder": {"type": "path", "default": "/etc/sglang"},
        },
        required_if=[("probe", "health", ["config"]), ("probe", "completion", ["config"])],
        supports_check_mode=True,
    )
    given = module.params
    name = unit_name(given["profile"])

    def show_unit() -> dict[str, str]:
        properties = ",".join(UNIT_PROPERTIES)
        _, out, _ = module.run_command(
            ["systemctl", "show", f"--property={properties}", "--", name], check_rc=True
        )
        try:
            properties_read: dict[str, str] = read_properties(out)
        except OperatorError as error:
            module.fail_json(msg=str(error))
        return properties_read

    unit = show_unit()
    config = Path(given["config"]) if given["config"] else None
    try:
        arguments = read_arguments(config) if config else {}
    except OperatorError as error:
        module.fail_json(msg=str(error))
    keys = [str(arguments[key]) for key in ("api_key", "admin_api_key") if arguments.get(key)]

    health, hung, completion = 0, False, None
    if given["probe"] != "none" and unit["ActiveState"] == "active":
        url = server_url(arguments)
        health = get_health(url)
        if 0 < given["start_limit"] < active_for(unit, time.monotonic()):
            again = (get_health(url) for _ in range(HUNG_TRIES - 1))
            hung = health != 200 and all(status != 200 for status in again)
        if health == 200 and given["probe"] == "completion":
            completion = get_completion(
                url, key=str(arguments.get("api_key", "")), prompt=given["prompt"], tokens=given["tokens"]
            )
    after = show_unit() if health else unit

    journal: list[str] = []
    if given["journal_lines"]:
        command = ["journalctl", f"--unit={name}", "--output=cat", "--no-pager", "--lines=400"]
        if given["journal_since"]:
            command.append(f"--since=@{int(given['journal_since'])}")
        _, out, _ = module.run_command(command)
        journal = tidy_journal(out, keys, given["journal_lines"])

    started = read_started(Path(given["records"]) / f"{given['profile']}.json", unit)
    edited = edited_since(started, Path(given["folder"]), Path(unit["FragmentPath"]))
    accepted, damage = read_accepted(Path(given["folder"]) / "accepted.json")
    module.exit_json(
        changed=False,
        unit=after,
        started=started,
        edited=[str(file) for file in edited],
        accepted=accepted,
        accepted_damage=damage,
        deployments=accepted_deployments(accepted),
        health=health,
        hung=hung,
        completion=completion,
        same_process=(unit["MainPID"], unit["NRestarts"]) == (after["MainPID"], after["NRestarts"]),
        journal=journal,
        now=time.time(),
    )


if __name__ == "__main__":
    main()
