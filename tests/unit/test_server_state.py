"""One look at a server, with systemd's tools replaced by recorded output, and Ansible's wait for it."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from blackwell.readiness import get_health

Run = Callable[..., dict[str, Any]]

# `systemctl show` of systemd 252 for a running server.
SHOWN = """LoadState=loaded
ActiveState=active
SubState=running
Result=success
MainPID=4711
NRestarts=0
InvocationID=8b2c
ActiveEnterTimestampMonotonic=1000000
ExecMainCode=0
ExecMainStatus=0
FragmentPath=/usr/local/lib/systemd/system/sglang@eagle3.service
UnitFileState=enabled
NeedDaemonReload=no
"""
KEY = "planted-key-0123456789"


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose files are what this host's systemd says: `unit`, `journal`."""
    (tmp_path / "bin").mkdir()
    for command, answer in (("systemctl", "unit"), ("journalctl", "journal")):
        file = tmp_path / "bin" / command
        file.write_text(f'#!/bin/sh\necho "{command} $*" >> {tmp_path}/asked\ncat {tmp_path}/{answer}\n')
        file.chmod(0o755)
    (tmp_path / "unit").write_text(SHOWN)
    (tmp_path / "journal").write_text(f"loading\n\nkey is {KEY}\n")
    (tmp_path / "eagle3.yaml").write_text(f'host: "127.0.0.1"\nport: 9\napi-key: "{KEY}"\n')
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    return tmp_path


@pytest.fixture
def stand_in(repository: Path, host: Path) -> Iterator[None]:
    """A server that speaks like SGLang, on the port that the configuration names."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (host / "eagle3.yaml").write_text(f'host: "127.0.0.1"\nport: {port}\napi-key: "{KEY}"\n')
    program = str(repository / "tests/stand_in/server.py")
    behaviour = json.dumps({"api_key": KEY})
    process = subprocess.Popen([sys.executable, program, "--port", str(port), "--behaviour", behaviour])
    while get_health(f"http://127.0.0.1:{port}") == 0 and process.poll() is None:
        time.sleep(0.1)
    yield
    process.terminate()
    process.wait()


def look(run_module: Run, host: Path, **changes: Any) -> dict[str, Any]:
    given = {
        "profile": "eagle3",
        "config": str(host / "eagle3.yaml"),
        "records": str(host),
        "folder": str(host),
        **changes,
    }
    return run_module("server_state", given)


def test_the_unit_and_what_it_was_started_with(run_module: Run, host: Path) -> None:
    record = {"deployment": "d", "invocation": "8b2c", "files": {"eagle3.yaml": "00"}}
    (host / "eagle3.json").write_text(json.dumps(record))
    seen = look(run_module, host)
    assert seen["unit"]["MainPID"] == "4711"
    assert seen["started"] == record
    assert (seen["health"], seen["completion"], seen["changed"]) == (0, None, False)


def test_files_that_were_edited_since_the_start_are_named(run_module: Run, host: Path) -> None:
    unit_file = host / "units" / "sglang@eagle3.service"
    files = [host / "d" / "eagle3.yaml", host / "d" / "eagle3.env", host / "d" / "serve.py", unit_file]
    for file in files:
        file.parent.mkdir(exist_ok=True)
        file.write_text(file.name)
    record = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
    (host / "eagle3.json").write_text(json.dumps({"deployment": "d", "invocation": "8b2c", "files": record}))
    (host / "unit").write_text(SHOWN.replace("/usr/local/lib/systemd/system", str(host / "units")))
    assert look(run_module, host)["edited"] == []
    (host / "d" / "eagle3.env").write_text("OMP_NUM_THREADS=1")
    (host / "d" / "serve.py").unlink()
    unit_file.write_text("RestartSec=60")
    assert look(run_module, host)["edited"] == [str(file) for file in sorted(files[1:])]


def test_a_record_of_another_start_is_not_taken(run_module: Run, host: Path) -> None:
    (host / "eagle3.json").write_text(json.dumps({"deployment": "d", "invocation": "other", "files": {}}))
    assert look(run_module, host)["started"] is None


def test_a_stopped_unit_runs_nothing(run_module: Run, host: Path) -> None:
    (host / "eagle3.json").write_text(json.dumps({"deployment": "d", "invocation": "8b2c", "files": {}}))
    (host / "unit").write_text(SHOWN.replace("ActiveState=active", "ActiveState=inactive"))
    seen = look(run_module, host, probe="completion")
    assert seen["started"] is None
    assert seen["health"] == 0


def test_the_journal_has_no_key(run_module: Run, host: Path) -> None:
    seen = look(run_module, host, journal_lines=5, journal_since=100.9)
    assert seen["journal"] == ["loading", "key is ********"]
    assert KEY not in json.dumps(seen)
    assert "--since=@100" in (host / "asked").read_text()


def test_what_was_accepted(run_module: Run, host: Path) -> None:
    seen = look(run_module, host)
    assert (seen["accepted"], seen["deployments"]) == (None, [])
    one = {"deployment": "d", "profile": "eagle3", "release": "r"}
    (host / "accepted.json").write_text(json.dumps(one))
    seen = look(run_module, host)
    assert (seen["accepted"], seen["deployments"], seen["accepted_damage"]) == (one, [one], "")
    two = {**one, "deployment": "e"}
    (host / "accepted.json").write_text(json.dumps({**two, "history": [one]}))
    assert look(run_module, host)["deployments"] == [two, one]


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "null",
        "{}",
        '{"deployment": "d", "profile": "eagle3"}',
        '{"deployment": "", "profile": "eagle3", "release": "r"}',
        '{"deployment": "d", "profile": "eagle3", "release": "r", "history": {}}',
        '{"deployment": "d", "profile": "eagle3", "release": "r", "history": [null]}',
        "\x00" * 20,
    ],
)
def test_a_damaged_record_of_what_was_accepted_is_not_taken_for_none(
    run_module: Run, host: Path, content: str
) -> None:
    (host / "accepted.json").write_text(content, encoding="utf-8")
    seen = look(run_module, host)
    assert seen["accepted"] is None and str(host / "accepted.json") in seen["accepted_damage"]


@pytest.mark.parametrize(
    "record", ["{", '{"invocation": "8b2c"}', '{"invocation": "8b2c", "deployment": "d", "files": 1}']
)
def test_a_damaged_record_of_a_start_says_nothing(run_module: Run, host: Path, record: str) -> None:
    (host / "eagle3.json").write_text(record)
    seen = look(run_module, host)
    assert seen["started"] is None and seen["edited"] == []


@pytest.mark.parametrize(
    ("shown", "odd"), [("", "LoadState"), (SHOWN.replace("NRestarts=0", "NRestarts=[not set]"), "[not set]")]
)
def test_odd_words_of_systemd_are_said(run_module: Run, host: Path, shown: str, odd: str) -> None:
    (host / "unit").write_text(shown)
    said = look(run_module, host)
    assert said["failed"] and odd in said["msg"] and "systemctl show" in said["msg"]


def test_a_damaged_configuration_is_named(run_module: Run, host: Path) -> None:
    (host / "eagle3.yaml").write_text('host: "127.0.0.1\n')
    said = look(run_module, host)
    assert said["failed"] and str(host / "eagle3.yaml") in said["msg"]


def test_nobody_listens_yet(run_module: Run, host: Path) -> None:
    seen = look(run_module, host, probe="completion")
    assert (seen["health"], seen["completion"]) == (0, None)


@pytest.mark.usefixtures("stand_in")
def test_a_completion_with_the_key_of_the_configuration(run_module: Run, host: Path) -> None:
    seen = look(run_module, host, probe="completion", tokens=16)
    assert seen["health"] == 200
    assert seen["completion"]["tokens"] == 16
    assert seen["same_process"] is True


@pytest.mark.usefixtures("stand_in")
def test_a_process_that_changes_meanwhile_is_seen(run_module: Run, host: Path) -> None:
    # Every look at the unit shows another process.
    (host / "bin" / "systemctl").write_text(f"#!/bin/sh\nsed s/4711/$$/ {host}/unit\n")
    assert look(run_module, host, probe="completion")["same_process"] is False


def test_a_probe_needs_the_configuration(run_module: Run, host: Path) -> None:
    assert run_module("server_state", {"profile": "eagle3", "probe": "health"})["failed"] is True


@contextmanager
def health_of(host: Path, *statuses: int) -> Iterator[list[int]]:
    """A server whose /health answers these, one after the other; yields those that nobody has asked for."""
    left = list(statuses)

    class Health(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(left.pop(0))
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Health) as server:
        (host / "eagle3.yaml").write_text(f'host: "127.0.0.1"\nport: {server.server_port}\n')
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield left
        server.shutdown()


def active_since(host: Path, seconds: float) -> None:
    began = int((time.monotonic() - seconds) * 1_000_000)
    (host / "unit").write_text(SHOWN.replace("Monotonic=1000000", f"Monotonic={began}"))


def test_a_server_that_has_had_its_time_and_is_silent_hangs(run_module: Run, host: Path) -> None:
    active_since(host, 100)
    assert look(run_module, host, probe="health", start_limit=90)["hung"] is True, "nobody listens"
    with health_of(host, 503, 503, 503) as left:
        seen = look(run_module, host, probe="health", start_limit=90)
    assert (seen["hung"], seen["health"], left) == (True, 503, [])


@pytest.mark.parametrize("late", [0, 1, 2])
def test_a_server_that_is_late_does_not_hang(run_module: Run, host: Path, late: int) -> None:
    active_since(host, 100)
    with health_of(host, *[503] * late, 200) as left:
        assert look(run_module, host, probe="health", start_limit=90)["hung"] is False
    assert left == []


def test_a_server_that_may_still_be_starting_does_not_hang(run_module: Run, host: Path) -> None:
    active_since(host, 80)
    with health_of(host, 503) as left:
        seen = look(run_module, host, probe="health", start_limit=90)
    assert (seen["hung"], seen["health"], left) == (False, 503, [])


def test_a_unit_that_does_not_run_does_not_hang(run_module: Run, host: Path) -> None:
    active_since(host, 100)
    unit = (host / "unit").read_text().replace("ActiveState=active", "ActiveState=failed")
    (host / "unit").write_text(unit)
    assert look(run_module, host, probe="health", start_limit=90)["hung"] is False
