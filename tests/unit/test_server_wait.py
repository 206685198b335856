"""Waiting for a server through Ansible: what it says meanwhile, and that it stops when there is nothing to wait for.

systemd's tools are replaced by recorded output, the server by the stand-in of the tests.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.test_server_state import KEY, SHOWN

PLAY = """
- hosts: localhost
  gather_facts: false
  tasks:
    - name: Wait
      server_wait:
        profile: eagle3
        config: {config}
        timeout: {timeout}
        interval: 0.2
        expected: 42
        restarts: 0
      register: waited
    - name: Say what came
      ansible.builtin.debug:
        msg: "answered {{{{ waited.completion | length > 0 }}}}"
"""

CRASH = f"""loading with {KEY}
AttributeError: 'KimiK25ForConditionalGeneration' object has no attribute 'set_eagle3_layers_to_capture'
RuntimeError: Initialization failed. Please see the error messages above.
sglang@eagle3.service: Main process exited, code=killed, status=9/KILL
"""


class Host:
    """This machine with a systemd of the test's making: the files `unit` and `journal` are what it says."""

    def __init__(self, folder: Path, repository: Path) -> None:
        self.folder, self.repository = folder, repository
        (folder / "bin").mkdir()
        for command, answer in (("systemctl", "unit"), ("journalctl", "journal")):
            file = folder / "bin" / command
            file.write_text(f"#!/bin/sh\ncat {folder}/{answer}\n")
            file.chmod(0o755)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        (folder / "eagle3.yaml").write_text(f'host: "127.0.0.1"\nport: {self.port}\napi-key: "{KEY}"\n')
        self.says(SHOWN, "Load weight begin.\n  indented\n")

    def says(self, unit: str, journal: str) -> None:
        (self.folder / "journal").write_text(journal)
        (self.folder / "unit").write_text(unit)

    def serve(self) -> subprocess.Popen[bytes]:
        program = str(self.repository / "tests/stand_in/server.py")
        behaviour = json.dumps({"api_key": KEY})
        return subprocess.Popen([sys.executable, program, "--port", str(self.port), "--behaviour", behaviour])

    def wait(self, timeout: float) -> subprocess.Popen[str]:
        play = self.folder / "play.yml"
        play.write_text(PLAY.format(config=self.folder / "eagle3.yaml", timeout=timeout))
        environment: dict[str, Any] = {
            **os.environ,
            "PATH": f"{self.folder}/bin:{os.environ['PATH']}",
            "ANSIBLE_CONFIG": str(self.repository / "ansible.cfg"),
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_PYTHON_INTERPRETER": sys.executable,
        }
        return subprocess.Popen(
            ["ansible-playbook", "--inventory=localhost,", "--connection=local", str(play)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )


@pytest.fixture
def host(tmp_path: Path, repository: Path) -> Host:
    return Host(tmp_path, repository)


def read_until(process: subprocess.Popen[str], text: str) -> str:
    assert process.stdout
    said = ""
    for line in process.stdout:
        said += line
        if text in line:
            return said
    raise AssertionError(f"{text!r} was never said:\n{said}")


def test_it_says_what_the_server_does_and_ends_with_its_answer(host: Host) -> None:
    waiting = host.wait(timeout=120)
    # It speaks while it waits, not afterwards: the server is started only then.
    said = read_until(waiting, "localhost: ")
    assert "of about 42 s, loading | Load weight begin." in said
    server = host.serve()
    rest, _ = waiting.communicate(timeout=120)
    server.terminate()
    server.wait()
    assert waiting.returncode == 0, rest
    assert "answered True" in rest
    assert KEY not in said + rest


@pytest.mark.parametrize(
    ("unit", "reason"),
    [
        (
            SHOWN.replace("=active", "=failed")
            .replace("=running", "=failed")
            .replace("=success", "=exit-code"),
            "the unit has failed (failed/failed, Result=exit-code)",
        ),
        (
            SHOWN.replace("NRestarts=0", "NRestarts=1"),
            "the server ended while it started and systemd restarts it",
        ),
    ],
)
def test_it_stops_at_once_when_the_start_failed(host: Host, unit: str, reason: str) -> None:
    waiting = host.wait(timeout=100_000)
    read_until(waiting, "localhost: ")
    host.says(unit, CRASH)
    said, _ = waiting.communicate(timeout=120)
    assert waiting.returncode != 0
    message = said[said.index("msg: ") :]
    assert (
        message.index("AttributeError: 'KimiK25") < message.index(reason) < message.index("loading with ****")
    )
    assert KEY not in said


def test_it_gives_up_after_the_time_that_it_has(host: Host) -> None:
    waiting = host.wait(timeout=1)
    said, _ = waiting.communicate(timeout=120)
    assert waiting.returncode != 0
    message = said[said.index("msg: ") :]
    assert message.index("allowed are 1: loading") < message.index("The last lines of its journal:")
