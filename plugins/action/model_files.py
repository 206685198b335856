# Copyright the Blackwell SGLang contributors
# SPDX-License-Identifier: Apache-2.0
"""Check the files of a model, saying how far it is. Documented in plugins/modules/model_files.py."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

# To the controller, module_utils is something that is sent to hosts; it does not put it on its own import path.
sys.path.append(str(Path(__file__).resolve().parents[1] / "module_utils"))

from blackwell.progress import progress

display = Display()

# Seconds between two lines, as far as files end in time.
SAY_EVERY = 20.0


class ActionModule(ActionBase):
    """Calls the module until everything is read; prints from here, which a module cannot."""

    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        task_vars = task_vars or {}
        given = dict(self._task.args)
        # In check mode nothing is kept from one call to the next.
        if not self._task.check_mode:
            given.setdefault("seconds", SAY_EVERY)
        host = task_vars.get("inventory_hostname", "host")
        began, unread = time.monotonic(), 0
        while True:
            result: dict[str, Any] = self._execute_module(
                module_name="model_files", module_args=given, task_vars=task_vars
            )
            if result.get("failed") or not result.get("unread") or self._task.check_mode:
                return result
            done = max(unread - result["unread"], 0)
            unread = unread or result["unread"]
            display.display(
                f"{host}: reading {given['path']}, "
                + progress(
                    result["bytes"] - result["unread"], result["bytes"], done / (time.monotonic() - began)
                ),
                color="bright gray",
            )
