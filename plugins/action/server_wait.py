# Copyright the Blackwell SGLang contributors
# SPDX-License-Identifier: Apache-2.0
"""Wait until an SGLang server answers, saying what it does meanwhile. Documented in
plugins/modules/server_wait.py."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

# To the controller, module_utils is something that is sent to hosts; it does not put it on its own import
# path.
sys.path.append(str(Path(__file__).resolve().parents[1] / "module_utils"))

from blackwell.readiness import Standing, judge, telling_line

display = Display()

# A line is printed when the state changes, and this often when it does not.
SAY_EVERY = 30.0
LAST_LINES = 30
# SGLang logs its arguments in one line of some 8000 characters.
LINE_LENGTH = 200


class ActionModule(ActionBase):
    """Polls the module ``server_state`` on the host; prints from here, which a module cannot."""

    TRANSFERS_FILES = False
    _VALID_ARGS = frozenset(
        ("profile", "config", "timeout", "interval", "expected", "tokens", "restarts", "since")
    )

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        task_vars = task_vars or {}
        _, given = self.validate_argument_spec(
            argument_spec={
                "profile": {"type": "str", "required": True, "choices": ["eagle3", "baseline"]},
                "config": {"type": "str", "required": True},
                "timeout": {"type": "float", "required": True},
                "interval": {"type": "float", "default": 5},
                "expected": {"type": "float", "default": 0},
                "tokens": {"type": "int", "default": 16},
                "restarts": {"type": "int", "required": True},
                "since": {"type": "float", "default": 0},
            }
        )
        host = task_vars.get("inventory_hostname", "host")
        began, said_at, said = time.monotonic(), 0.0, ""
        while True:
            look = self._look(given, task_vars)
            elapsed = time.monotonic() - began
            verdict = judge(look, restarts_before=given["restarts"], tokens=given["tokens"])
            late = verdict.standing is Standing.LOADING and elapsed > given["timeout"]
            if verdict.standing is Standing.FAILED or late:
                waited = (
                    f"not ready after {elapsed:.0f} s, allowed are {given['timeout']:.0f}: " if late else ""
                )
                said = f"sglang@{given['profile']}.service: {waited}{verdict.reason}"
                first = telling_line(look["journal"], late=said if late else "")
                raise AnsibleActionFail(
                    "\n".join(
                        [
                            first,
                            *([] if first == said else [f"{said}."]),
                            "The last lines of its journal:",
                            *(f"    {line[:LINE_LENGTH]}" for line in look["journal"]),
                        ]
                    )
                )
            if verdict.standing is Standing.READY:
                return {
                    "changed": False,
                    "msg": verdict.reason,
                    "seconds": round(elapsed, 1),
                    "completion": look["completion"]["text"],
                }
            line = next((line for line in reversed(look["journal"]) if not line[0].isspace()), "")[
                :LINE_LENGTH
            ]
            if verdict.reason != said or elapsed - said_at >= SAY_EVERY:
                usual = f" of about {given['expected']:.0f}" if given["expected"] else ""
                display.display(
                    f"{host}: {elapsed:.0f}{usual} s, {verdict.reason}{line and ' | '}{line}",
                    color="bright gray",
                )
                said, said_at = verdict.reason, elapsed
            time.sleep(given["interval"])

    def _look(self, given: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        look: dict[str, Any] = self._execute_module(
            module_name="server_state",
            module_args={
                "profile": given["profile"],
                "config": given["config"],
                "probe": "completion",
                "tokens": given["tokens"],
                "journal_lines": LAST_LINES,
                "journal_since": given["since"],
            },
            task_vars=task_vars,
        )
        if look.get("failed") or "unit" not in look:
            raise AnsibleActionFail(f"Cannot look at the server: {look.get('msg', look)}")
        return look
