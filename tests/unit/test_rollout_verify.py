"""What verify.yml says of a host on which a rollout was broken off, with the host's tools replaced."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from blackwell import receipt
from blackwell.readiness import UNIT_PROPERTIES

PLAY = """
- hosts: all
  gather_facts: false
  tasks:
    - ansible.builtin.import_role:
        name: rollout
        tasks_from: verify
"""
RELEASE = {"id": "0.5.9-aaaaaaaaaaaa", "sglang_version": "0.5.9", "engine": "cpu", "digests": {}}
SHOWN = {
    **dict.fromkeys(UNIT_PROPERTIES, ""),
    **dict.fromkeys(
        ("MainPID", "NRestarts", "ActiveEnterTimestampMonotonic", "ExecMainCode", "ExecMainStatus"), "0"
    ),
}


def verify(repository: Path, folder: Path, *, refuses: bool) -> str:
    """Run the role's entry point on this machine, with a systemd that runs nothing."""
    shown = "".join(f"{name}={value}\\n" for name, value in SHOWN.items())
    tools = {"systemctl": f"printf '{shown}'", "nft": f"exit {0 if refuses else 1}"}
    for name, does in tools.items():
        tool = folder / name
        tool.write_text(f"#!/bin/sh\n{does}\n")
        tool.chmod(0o755)
    play = folder / "play.yml"
    play.write_text(PLAY)
    paths = dict.fromkeys(("venv", "python", "site_packages"), "/x")
    given = {
        "ansible_connection": "local",
        "ansible_python_interpreter": sys.executable,
        "sglang_stack_release": {**RELEASE, **paths, "path": str(folder / "releases" / "x")},
        "rollout_receipts": str(folder / "receipts"),
        "eagle3_server_config_directory": str(folder),
        "eagle3_server_model_path": "/srv/models/target",
        "eagle3_server_draft_model_path": "/srv/models/drafter",
    }
    command = [str(Path(sys.executable).with_name("ansible-playbook")), "--inventory=host,", str(play)]
    environment = {
        **os.environ,
        "ANSIBLE_CONFIG": str(repository / "ansible.cfg"),
        "PATH": f"{folder}:{os.environ['PATH']}",
    }
    done = subprocess.run(
        [*command, f"--extra-vars={json.dumps(given)}"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    return done.stdout + done.stderr


def test_what_a_rollout_that_was_broken_off_has_left_is_named(repository: Path, tmp_path: Path) -> None:
    receipts = tmp_path / "receipts"
    receipt.begin(receipts, "host", found=None, now=100.0)
    content = {
        "requested": {
            **{"sglang_version": "0.5.9", "engine": "cpu", "release": RELEASE["id"], "deployment": "d"},
            **{"profile": "eagle3", "digests": {}, "files": {}, "arguments": {}, "environment": {}},
        },
        "serves": {"deployment": "d", "profile": "eagle3", "release": RELEASE["id"], "history": []},
        "fingerprint": {},
        "result": None,
    }
    ended: dict[str, Any] = {
        "outcome": "accepted",
        "reason": "",
        "marks": [],
        "outage": None,
        "secrets": [],
        "keep": 9,
    }
    receipt.end(receipts, content=content, now=200.0, **ended)

    said = verify(repository, tmp_path, refuses=False)
    assert "nothing that was recorded runs, not d" in said
    assert "the machine starts nothing that was recorded at boot, not d" in said
    assert f"current is missing, not {RELEASE['id']}" in said
    assert "refuses new connections" not in said and "broken off" not in said

    receipt.begin(receipts, "host", found=None, now=1772014500.0)
    said = verify(repository, tmp_path, refuses=True)
    assert "it refuses new connections of clients (nft list table inet sglang_rollout)" in said
    assert "a rollout that began at 2026-02-25 10:15 UTC has not ended" in said
    assert (
        "To mend it: the command that was broken off; ansible-playbook site.yml -i host, deploys what" in said
    )

    receipt.begin(receipts, "host", found=None, now=1772014500.0, going_back_to="e")
    said = verify(repository, tmp_path, refuses=True)
    assert "To mend it: ansible-playbook playbooks/rollback.yml -i host," in said


def test_a_first_rollout_that_was_broken_off_is_named(repository: Path, tmp_path: Path) -> None:
    said = verify(repository, tmp_path, refuses=False)
    assert "no receipt in" in said and "broken off" not in said
    receipt.begin(tmp_path / "receipts", "host", found=None, now=100.0)
    said = " ".join(verify(repository, tmp_path, refuses=False).split())
    assert "one of a rollout that is under way or was broken off: its server may be starting" in said
    assert "To mend it: the command that was broken off; ansible-playbook site.yml -i host," in said
