# Copyright the Blackwell SGLang contributors
# SPDX-License-Identifier: Apache-2.0
"""Measure a server, saying how far it is. Documented in plugins/modules/throughput_measure.py."""

from __future__ import annotations

import base64
import time
from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

display = Display()

# A measurement may take an hour. This only ends one that nobody waits for any more.
LONGEST = 24 * 3600
LOOK_EVERY = 5.0


class ActionModule(ActionBase):
    """Runs the module in the background and prints what it says of its runs, which a module cannot.

    That it goes on when the connection is lost for a moment comes with it.
    """

    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        task_vars = task_vars or {}
        progress = self._task.args.get("progress")
        if self._task.check_mode or not progress:
            result: dict[str, Any] = self._execute_module(task_vars=task_vars)
            return result
        host = task_vars.get("inventory_hostname", "host")
        job = self._start(task_vars)
        said = ""
        while job.get("ansible_job_id") and not (job.get("finished") or job.get("failed")):
            time.sleep(LOOK_EVERY)
            read = self._execute_module(
                module_name="ansible.legacy.slurp", module_args={"src": progress}, task_vars=task_vars
            )
            line = base64.b64decode(read.get("content", "")).decode("utf-8", "replace").strip()
            if line and line != said:
                display.display(f"{host}: {line}", color="bright gray")
                said = line
            job = {**job, **self._status(job["ansible_job_id"], "status", task_vars)}
        if job.get("ansible_job_id"):
            self._status(job["ansible_job_id"], "cleanup", task_vars)
        return {name: value for name, value in job.items() if name not in self._OF_THE_JOB}

    _OF_THE_JOB = ("ansible_job_id", "finished", "started", "results_file")

    def _start(self, task_vars: dict[str, Any]) -> dict[str, Any]:
        self._task.async_val = LONGEST
        try:
            job: dict[str, Any] = self._execute_module(task_vars=task_vars, wrap_async=True)
        finally:
            self._task.async_val = 0
        return job

    def _status(self, job: str, mode: str, task_vars: dict[str, Any]) -> dict[str, Any]:
        folder = self._remote_expand_user(self.get_shell_option("async_dir", default="~/.ansible_async"))
        arguments = {"jid": job, "mode": mode, "_async_dir": folder}
        status: dict[str, Any] = self._execute_module(
            module_name="ansible.legacy.async_status", module_args=arguments, task_vars=task_vars
        )
        return status
