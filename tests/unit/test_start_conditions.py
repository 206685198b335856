"""What is asked before a server is stopped, and what a start forgets: the tasks themselves, with stand-in programs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml


def read(file: Path) -> list[dict[str, Any]]:
    tasks: list[dict[str, Any]] = yaml.safe_load(file.read_text(encoding="utf-8"))
    return tasks


def included(tasks: list[dict[str, Any]]) -> list[str]:
    """What a list of tasks includes, in order, blocks as well."""
    names: list[str] = []
    for task in tasks:
        for word in ("ansible.builtin.include_role", "ansible.builtin.import_role"):
            if word in task:
                names.append(str(task[word].get("tasks_from", "main")))
        if "ansible.builtin.include_tasks" in task:
            names.append(str(task["ansible.builtin.include_tasks"]))
        names += included(task.get("block", []))
    return names


@pytest.mark.parametrize("name", ["main", "rollback"])
def test_whether_a_server_can_start_is_asked_before_anything_is_touched(repository: Path, name: str) -> None:
    order = included(read(repository / "roles" / "rollout" / "tasks" / f"{name}.yml"))
    asked = order.index("can_start")
    assert asked < order.index("begin.yml")
    for later in ("drain.yml", "start.yml", "rollback_start.yml", "preload"):
        assert later not in order or asked < order.index(later)


def test_all_hosts_of_a_rollback_are_asked_before_the_first_one_goes_back(repository: Path) -> None:
    assert "can_start" in included(read(repository / "roles" / "rollout" / "tasks" / "rollback_target.yml"))


def run(folder: Path, tasks: list[dict[str, Any]], programs: dict[str, str], **variables: Any) -> str:
    """The output of a play with these tasks, which ends with "failed=0" if they went well."""
    (folder / "bin").mkdir()
    for name, script in programs.items():
        (folder / "bin" / name).write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        (folder / "bin" / name).chmod(0o755)
    play = {
        "hosts": "localhost",
        "connection": "local",
        "gather_facts": False,
        "vars": {"ansible_python_interpreter": sys.executable, **variables},
        "tasks": tasks,
    }
    (folder / "play.yml").write_text(yaml.safe_dump([play]), encoding="utf-8")
    done = subprocess.run(
        [Path(sys.executable).with_name("ansible-playbook"), "-i", "localhost,", folder / "play.yml"],
        env={**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "ANSIBLE_NOCOLOR": "1"},
        capture_output=True,
        text=True,
    )
    return done.stdout + done.stderr


NOT_LOADED = (
    "Failed to reset failed state of unit sglang@baseline.service: Unit sglang@baseline.service not loaded."
)


@pytest.mark.parametrize(
    ("script", "went"),
    [
        ("exit 0", True),
        (f'[ "$*" = "reset-failed sglang@baseline.service" ] && echo "{NOT_LOADED}" >&2; exit 1', True),
        ("echo 'Failed to connect to bus: Connection refused' >&2; exit 1", False),
    ],
)
def test_a_unit_that_was_never_loaded_has_no_starts_to_forget(
    repository: Path, tmp_path: Path, script: str, went: bool
) -> None:
    tasks = read(repository / "roles" / "eagle3_server" / "tasks" / "start.yml")[:1]
    said = run(tmp_path, tasks, {"systemctl": script}, __eagle3_server_starting={"profile": "baseline"})
    assert ("failed=0" in said) is went, said
