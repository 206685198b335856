# Copyright the Blackwell SGLang contributors
# SPDX-License-Identifier: Apache-2.0
"""Fetch a published model, saying how far it is. Documented in plugins/modules/model_fetch.py."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

# To the controller, module_utils is something that is sent to hosts; it does not put it on its own import path.
sys.path.append(str(Path(__file__).resolve().parents[1] / "module_utils"))

from blackwell.progress import GB, progress

display = Display()

# Seconds between two lines.
SAY_EVERY = 30.0


class ActionModule(ActionBase):
    """Calls the module until everything is there; prints from here, which a module cannot."""

    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        task_vars = task_vars or {}
        given = {"seconds": SAY_EVERY, **self._task.args}
        host = task_vars.get("inventory_hostname", "host")
        had, since = 0, time.monotonic()
        while True:
            result: dict[str, Any] = self._execute_module(
                module_name="model_fetch", module_args=given, task_vars=task_vars
            )
            if result.get("failed") or result.get("done") or self._task.check_mode:
                return result
            now = time.monotonic()
            rate = (result["have"] - had) / (now - since) if had else 0
            had, since = result["have"], now
            far = f"{had / GB:.1f} GB, of how many is not known"
            if result["total"] is not None:
                far = progress(had, result["total"], rate)
            display.display(f"{host}: fetching {given['repository']}, {far}", color="bright gray")
            given["published"] = result["published"]
