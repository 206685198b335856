"""A measurement whose play is gone, with real processes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from blackwell.throughput.alone import beat_path, end_forgotten

from tests.stand_in.client import environment
from tests.stand_in.server import Behaviour, StandIn

ROOT = Path(__file__).resolve().parents[2]
MEASUREMENT = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from blackwell.throughput.alone import heard
try:
    with heard(Path(sys.argv[1]), "p", float(sys.argv[2])):
        print("measuring", flush=True)
        time.sleep(60)
except Exception as error:
    print(error, flush=True)
    sys.exit(3)
"""


class Measurements:
    """Processes that measure, as far as anybody can see."""

    def __init__(self, folder: Path) -> None:
        self.progress = folder / "progress"
        self.started: list[subprocess.Popen[str]] = []

    def start(self, patience_s: float = 60.0) -> subprocess.Popen[str]:
        place = str(ROOT / "plugins/module_utils")
        command = [sys.executable, "-c", MEASUREMENT, str(self.progress), str(patience_s), place]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.started.append(process)
        assert process.stdout and process.stdout.readline() == "measuring\n"
        return process


@pytest.fixture
def measurements(tmp_path: Path) -> Iterator[Measurements]:
    made = Measurements(tmp_path)
    yield made
    for process in made.started:
        process.kill()
        process.communicate()


def ended(process: subprocess.Popen[str], limit_s: float = 10.0) -> tuple[int, str]:
    said, _ = process.communicate(timeout=limit_s)
    return process.returncode, said


def test_a_measurement_ends_by_itself_when_its_play_is_silent(measurements: Measurements) -> None:
    status, said = ended(measurements.start(patience_s=1.0))
    assert status == 3
    assert "the play that asked for it is gone" in said and "run the play again" in said
    assert list(measurements.progress.parent.iterdir()) == []


def test_a_measurement_goes_on_while_its_play_waits(measurements: Measurements) -> None:
    process = measurements.start(patience_s=1.0)
    for _ in range(10):
        beat_path(measurements.progress, "p").touch()
        time.sleep(0.3)
    assert process.poll() is None


def test_the_next_play_ends_one_that_was_left_behind(measurements: Measurements) -> None:
    process = measurements.start()
    end_forgotten(measurements.progress, 0.5)
    assert ended(process)[0] == 3
    assert list(measurements.progress.parent.iterdir()) == []


def test_the_next_play_ends_one_that_does_not_listen(
    measurements: Measurements, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("blackwell.throughput.alone._END_S", 0.5)
    process = measurements.start()
    os.kill(process.pid, signal.SIGSTOP)
    end_forgotten(measurements.progress, 0.5)
    assert ended(process)[0] == -signal.SIGKILL
    measurements.start()


def test_a_measurement_whose_play_waits_is_left_alone(measurements: Measurements) -> None:
    process = measurements.start()
    beat = beat_path(measurements.progress, "p")
    with subprocess.Popen(["/bin/sh", "-c", f"while :; do touch -c {beat}; sleep 0.3; done"]) as play:
        end_forgotten(measurements.progress, 2.0)
        play.kill()
    assert process.poll() is None
    assert beat.exists()


def test_a_process_that_was_given_the_number_of_an_ended_one_is_left_alone(
    measurements: Measurements,
) -> None:
    record = measurements.progress.with_name("progress.owner")
    with subprocess.Popen(["sleep", "60"]) as other:
        record.write_text(
            json.dumps({"pid": other.pid, "started": "1", "beat": "/nowhere"}), encoding="utf-8"
        )
        end_forgotten(measurements.progress, 0.2)
        assert other.poll() is None
        other.kill()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[1]",
        b"\xff",
        b'{"pid": "1"}',
        b'{"pid": -1, "started": "1", "beat": "x"}',
        b'{"pid": 1, "beat": "x"}',
        b'{"pid": 0, "started": null, "beat": "x"}',
        b'{"pid": true, "started": null, "beat": 7}',
    ],
)
def test_a_damaged_record_ends_nothing(measurements: Measurements, content: bytes) -> None:
    measurements.progress.with_name("progress.owner").write_bytes(content)
    end_forgotten(measurements.progress, 0.2)


PLAY = """
- hosts: localhost
  gather_facts: false
  tasks:
    - throughput_measure: "{{ given }}"
      register: told
    - debug: var=told.result.points[0].runs[0].valid
"""


class Controller:
    """A play that measures a server on this machine."""

    def __init__(self, folder: Path, server: StandIn) -> None:
        self.folder = folder
        config = folder / "d-1/eagle3.yaml"
        config.parent.mkdir()
        config.write_text(f'host: "127.0.0.1"\nport: {server.url.rpartition(":")[2]}\n', encoding="utf-8")
        (folder / "play.yml").write_text(PLAY, encoding="utf-8")
        self.given: dict[str, Any] = {
            "config": str(config),
            "release": {"id": "r", "sglang_version": "0.5.9", "python": sys.executable},
            "profile": "eagle3",
            "host": "gpu-1",
            "fingerprint": "f",
            "prompts": str(ROOT / "roles/throughput_check/files/prompts/prompts.jsonl"),
            "results": str(folder / "results"),
            "accepted": str(folder / "accepted.json"),
            "baseline": str(folder / "baseline.json"),
            "policy": {"min_runs": 1, "max_runs": 1},
            "concurrency": [1],
            "long_concurrency": [],
            "load": {"output_tokens": 28, "requests_least": 2, "requests_per_slot": 1},
            "tokenizer": "/",
            "environment": environment("0.5.9"),
            "nvidia_smi": "no-such-program",
            "progress": str(folder / "progress"),
            "idle_timeout": 1,
            "patience": 15,
        }

    def start(self, **changes: Any) -> subprocess.Popen[str]:
        path = self.folder / "given.json"
        path.write_text(json.dumps({"given": {**self.given, **changes}}), encoding="utf-8")
        program = (
            shutil.which("ansible-playbook", path=str(Path(sys.executable).parent)) or "ansible-playbook"
        )
        command = [program, "-c", "local", "-i", "localhost,", "-e", f"@{path}", "play.yml"]
        env = {
            **os.environ,
            "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
            "ANSIBLE_ASYNC_DIR": str(self.folder / "async"),
            "ANSIBLE_LOCAL_TEMP": str(self.folder / "local"),
            "ANSIBLE_REMOTE_TEMP": str(self.folder / "remote"),
            "ANSIBLE_PYTHON_INTERPRETER": sys.executable,
        }
        return subprocess.Popen(
            [*command, "-e", f"ansible_python_interpreter={sys.executable}"],
            cwd=self.folder,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def owner(self) -> int:
        """The process that measures."""
        record = self.folder / "progress.owner"
        wait_for(record.exists, 60)
        return int(json.loads(record.read_text("utf-8"))["pid"])


def wait_for(holds: Callable[[], Any], limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_killed_play_leaves_no_measurement_and_is_run_again(tmp_path: Path) -> None:
    with StandIn(Behaviour(ttft_s=0.02, step_s=2.0, accept_length=3.0)) as server:
        controller = Controller(tmp_path, server)
        play = controller.start()
        pid = controller.owner()
        wait_for(lambda: server.state.running, 60)
        # The play itself, not its workers: those have to notice.
        play.kill()
        play.wait()
        server.change(step_s=0.002)
        again = controller.start(idle_timeout=60)
        said, _ = again.communicate(timeout=120)
    assert again.returncode == 0, said
    assert "valid: true" in said
    assert not Path(f"/proc/{pid}").exists()
    assert not list(tmp_path.glob("progress.*"))
