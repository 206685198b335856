# Copyright the Blackwell SGLang contributors
# SPDX-License-Identifier: Apache-2.0
"""Measure a server, saying how far it is. Documented in plugins/modules/throughput_measure.py."""

from __future__ import annotations

import os
import shlex
import time
import uuid
from typing import Any

from ansible.errors import AnsibleConnectionFailure, AnsibleError
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

display = Display()

# A measurement may take an hour. One that nobody waits for any more ends by itself, long before this.
LONGEST = 24 * 3600
LOOK_EVERY = 5.0
# By then the measurement has ended for want of somebody who waits for it.
LONGEST_SILENCE = 45.0


class ActionModule(ActionBase):
    """Runs the module in the background and prints what it says of its runs, which a module cannot.

    That it goes on when the connection is lost for a moment comes with it. Each look tells the module that somebody
    still waits.
    """

    TRANSFERS_FILES = False
    _OF_THE_JOB = ("ansible_job_id", "finished", "started", "results_file")

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        task_vars = task_vars or {}
        progress = self._task.args.get("progress")
        if self._task.check_mode or not progress:
            result: dict[str, Any] = self._execute_module(task_vars=task_vars)
            return result
        play, parent = uuid.uuid4().hex, os.getppid()
        job = self._start(play, task_vars)
        said, heard = "", time.monotonic()
        while job.get("ansible_job_id") and not (job.get("finished") or job.get("failed")):
            time.sleep(LOOK_EVERY)
            if os.getppid() != parent:
                # This worker would go on for its play, which was killed.
                raise AnsibleError("The play has ended, so nobody waits for the measurement.")
            try:
                line = self._look(progress, play)
                job = {**job, **self._status(job["ansible_job_id"], "status", task_vars)}
            except AnsibleConnectionFailure:
                if time.monotonic() - heard > LONGEST_SILENCE:
                    raise
                continue
            heard = time.monotonic()
            if line and line != said:
                display.display(f"{task_vars.get('inventory_hostname', 'host')}: {line}", color="bright gray")
                said = line
        if job.get("ansible_job_id"):
            self._status(job["ansible_job_id"], "cleanup", task_vars)
        return {name: value for name, value in job.items() if name not in self._OF_THE_JOB}

    def _look(self, progress: str, play: str) -> str:
        """What the measurement said last. It hears of it that the play still waits."""
        beat = shlex.quote(f"{progress}.{play}.beat")
        read = self._low_level_execute_command(f"touch -c {beat}; cat {shlex.quote(progress)}")
        lines = str(read.get("stdout", "")).strip().splitlines()
        return lines[-1] if lines and read.get("rc") == 0 else ""

    def _start(self, play: str, task_vars: dict[str, Any]) -> dict[str, Any]:
        self._task.async_val = LONGEST
        arguments = {**self._task.args, "play": play}
        try:
            job: dict[str, Any] = self._execute_module(
                module_args=arguments, task_vars=task_vars, wrap_async=True
            )
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
