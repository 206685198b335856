"""Run one of the project's playbooks against this machine."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.patches import trees

ENVIRONMENT = {
    "ANSIBLE_CONFIG": str(trees.ROOT / "ansible.cfg"),
    "ANSIBLE_NOCOLOR": "1",
}


def run(name: str, inventory: str, *options: str, **variables: Any) -> subprocess.CompletedProcess[str]:
    """Run ``playbooks/<name>.yml`` on the hosts of ``inventory``, each of which is this machine."""
    given = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable, **variables}
    command = [str(Path(sys.executable).with_name("ansible-playbook")), f"--inventory={inventory}", *options]
    command += [f"--extra-vars={json.dumps(given)}", str(trees.ROOT / "playbooks" / f"{name}.yml")]
    return subprocess.run(
        command, env={**os.environ, **ENVIRONMENT}, capture_output=True, text=True, check=False
    )


def changes(done: subprocess.CompletedProcess[str]) -> int:
    """How much a run on one host changed; it must not have failed."""
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    recap = re.search(r"changed=(\d+)", done.stdout)
    assert recap
    return int(recap[1])


def said(done: subprocess.CompletedProcess[str]) -> str:
    """What the run said, without its line breaks."""
    return " ".join((done.stdout + done.stderr).split())
