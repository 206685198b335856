"""Holds the variables of every host of a play against those that the roles declare. See the module's documentation.

An action plugin and not a module, because only the controller sees the variables of all hosts, and because values
have to be rendered host by host, some of which cannot be rendered yet.
"""

from __future__ import annotations

import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleError
from ansible.module_utils.common.parameters import DEFAULT_TYPE_VALIDATORS
from ansible.plugins.action import ActionBase
from ansible.utils.vars import load_extra_vars

# To the controller, module_utils is something that is sent to hosts; it does not put it on its own import path.
sys.path.append(str(Path(__file__).resolve().parents[1] / "module_utils"))

from blackwell import variables
from blackwell.contradictions import RULES
from blackwell.limits import LIMITS
from blackwell.patching import choice


class ActionModule(ActionBase):
    """Runs once for a play, on the controller."""

    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        task_vars = task_vars or {}
        _, args = self.validate_argument_spec(
            argument_spec={
                "roles": {"type": "path", "required": True},
                "playbooks": {"type": "path", "required": True},
                "foreign": {"type": "list", "elements": "str", "default": []},
            }
        )
        known = variables.load_known(Path(args["roles"]), Path(args["playbooks"]))

        hosts = list(task_vars["ansible_play_hosts_all"])
        rules = (*RULES, *LIMITS)
        wanted = variables.wanted_values(known, rules)
        names: dict[str, set[str]] = {}
        values: dict[str, dict[str, Any]] = {}
        unread: dict[str, dict[str, str]] = {}
        empty: dict[str, dict[str, list[str]]] = {}
        for host in hosts:
            own = task_vars["hostvars"][host]
            names[host], values[host], unread[host] = set(own), {}, {}
            for name in wanted.intersection(names[host]):
                try:
                    values[host][name] = own[name]
                except AnsibleError as error:
                    # It refers to something that is only known on the host, later, or to a secret that is missing.
                    unread[host][name] = str(error)
            # Only as it is written does a key tell an empty secret from one that is meant to be empty.
            raw = task_vars["hostvars"].raw_get(host)
            empty[host] = {
                name: [secret for secret in variables.secrets_of(raw[name]) if not raw.get(secret, "later")]
                for name in filter(variables.is_key, values[host])
            }

        files = variables.variable_files(
            [Path(source) for source in task_vars["ansible_inventory_sources"]],
            Path(task_vars["playbook_dir"]),
        )
        problems = variables.judge_hosts(hosts)
        problems += variables.judge_names(names, known, foreign=args["foreign"])
        problems += variables.judge_secrets(unread, files)
        problems += variables.judge_empty_secrets(empty)
        problems += variables.judge_values(values, known, rules, DEFAULT_TYPE_VALIDATORS)
        problems += choice.judge(values, unread, Path(args["roles"]).resolve().parent / "files" / "patches")
        # What the command line says goes before every file.
        given = load_extra_vars(self._loader)
        problems = [
            replace(item, places=("-e",) if item.name in given else variables.locate(item.name, files))
            for item in problems
        ]

        result: dict[str, Any] = {
            "changed": False,
            "problems": [asdict(item) for item in problems],
            "judged": {"hosts": len(hosts), "names": len(set().union(*names.values()))},
        }
        if problems:
            result.update(failed=True, msg=variables.report(problems, len(hosts)))
        return result
