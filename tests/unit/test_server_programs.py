"""The two programs that the unit runs: prepare.py and serve.py, as processes of their own."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.unit.vanishing import losing

KEY, ADMIN_KEY = "planted-key-0123456789", "planted-admin-0123456789"

# Logs its arguments as SGLang does, from its own process and from a spawned one, and prints what it was given.
LAUNCH_SERVER = """
import logging, multiprocessing, sys

def child():
    print("child is in", __name__, flush=True)

if __name__ == "__main__":
    logging.basicConfig(level="INFO", format="%(name)s %(message)s", stream=sys.stdout, force=True)
    config = open(sys.argv[2]).read()
    logging.getLogger("sglang.srt.entrypoints.engine").info(f"server_args={config!r}")
    logging.getLogger("other").warning("keys: %s and %s", "planted-key-0123456789", "planted-admin-0123456789")
    logging.getLogger("other").warning("half: %d%%", 50)
    print("path has", "a" if any(part.endswith("/deployment") for part in sys.path) else "no", "deployment", flush=True)
    process = multiprocessing.get_context("spawn").Process(target=child)
    process.start()
    process.join()
    raise SystemExit(process.exitcode)
"""

HEALTH_SERVER = """
import http.server, json, sys

answers = iter([503, 503, 200, 200, 200])

class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(next(answers, 503))
        self.end_headers()
    def log_message(self, *_):
        pass

config = dict(line.split(": ") for line in open(sys.argv[2]))
http.server.HTTPServer(("127.0.0.1", int(config["port"])), Health).serve_forever()
"""

# Answers for ever, and has a process that calls itself what SGLang's scheduler does; the kernel keeps 15 letters.
WORKED_SERVER = HEALTH_SERVER.replace("iter([503, 503, 200, 200, 200])", "iter([200] * 1000)").replace(
    "config =",
    """import subprocess
naming = "open('/proc/self/comm', 'w').write('sglang::scheduler'[:15]); import time; time.sleep(600)"
print(subprocess.Popen([sys.executable, "-c", naming]).pid, flush=True)
config =""",
)


@pytest.fixture
def programs(repository: Path) -> Path:
    return repository / "roles" / "eagle3_server" / "files"


def load(program: Path) -> ModuleType:
    """One of them as a module."""
    spec = importlib.util.spec_from_file_location(program.stem, program)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def served(programs: Path, tmp_path: Path) -> str:
    """What serve.py prints when it runs the stand-in above in a cache with a stale and a held lock."""
    package = tmp_path / "site" / "sglang"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "launch_server.py").write_text(LAUNCH_SERVER)
    deployment = tmp_path / "deployment"
    deployment.mkdir()
    (deployment / "serve.py").write_bytes((programs / "serve.py").read_bytes())
    config = deployment / "eagle3.yaml"
    config.write_text(f'# x\nport: 1\napi-key: "{KEY}"\nadmin-api-key: "{ADMIN_KEY}"\n')
    cache = tmp_path / "cache"
    (cache / "cached_ops").mkdir(parents=True)
    (cache / "cached_ops" / "lock").touch()
    (cache / "stale.lock").touch()
    (cache / "kernel.so").touch()
    with (cache / "held.lock").open("w"):
        done = subprocess.run(
            [sys.executable, str(deployment / "serve.py"), "0", "--config", str(config)],
            cwd=cache,
            env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0, done.stderr
    assert sorted(file.name for file in cache.rglob("*") if file.is_file()) == ["held.lock", "kernel.so"]
    return done.stdout + done.stderr


def test_no_log_line_has_a_key(served: str) -> None:
    assert "server_args=" in served
    assert KEY not in served
    assert ADMIN_KEY not in served
    assert "other keys: ******** and ********" in served


def test_other_log_lines_stay_as_they_are(served: str) -> None:
    assert "other half: 50%" in served


def test_spawned_processes_import_sglang_as_they_always_do(served: str) -> None:
    assert "child is in __mp_main__" in served


def test_the_deployment_is_no_place_for_modules(served: str) -> None:
    assert "path has no deployment" in served


def test_stale_locks_are_removed_by_name(served: str) -> None:
    assert "Removing the stale lock file" in served


def test_a_process_that_ends_while_locks_are_looked_for_is_passed_over(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve = load(programs / "serve.py")
    (tmp_path / "stale.lock").touch()
    other = subprocess.Popen(["sleep", "60"])
    monkeypatch.setattr(os, "scandir", losing(Path(f"/proc/{other.pid}/fd")))
    try:
        with (tmp_path / "held.lock").open("w"):
            serve.remove_stale_locks(tmp_path)
            assert [file.name for file in tmp_path.iterdir()] == ["held.lock"]
    finally:
        other.kill()
        other.wait()


class Served:
    """serve.py with a stand-in for SGLang, and what systemd hears of it."""

    def __init__(self, program: Path, folder: Path, server: str, **environment: str) -> None:
        package = folder / "site" / "sglang"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("")
        (package / "launch_server.py").write_text(server)
        config = folder / "eagle3.yaml"
        config.write_text(f'host: "0.0.0.0"\nport: {free_port()}\n')
        self.systemd = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.systemd.bind(str(folder / "notify"))
        self.systemd.settimeout(30)
        self.process = subprocess.Popen(
            [sys.executable, str(program), "1", "--config", str(config)],
            cwd=folder,
            env={
                **os.environ,
                "PYTHONPATH": str(folder / "site"),
                "NOTIFY_SOCKET": str(folder / "notify"),
                **environment,
            },
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Served:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        self.systemd.close()

    def heard(self, messages: int) -> list[str]:
        return [self.systemd.recv(100).decode() for _ in range(messages)]


def test_the_watchdog_hears_of_every_answer_and_of_nothing_else(programs: Path, tmp_path: Path) -> None:
    # Stands for SGLang: /health fails at first, answers three times, then fails for good.
    proxy = {"http_proxy": "http://127.0.0.1:9"}
    with Served(programs / "serve.py", tmp_path, HEALTH_SERVER, **proxy) as served:
        heard = served.heard(4)
        served.systemd.settimeout(1)
        with pytest.raises(TimeoutError):
            served.systemd.recv(100)
    assert heard == ["WATCHDOG_USEC=1000000", "WATCHDOG=1", "WATCHDOG=1", "WATCHDOG=1"]


def test_a_server_that_lost_a_process_ends(programs: Path, tmp_path: Path) -> None:
    with Served(programs / "serve.py", tmp_path, WORKED_SERVER) as served:
        assert served.process.stdout is not None
        worker = int(served.process.stdout.readline())
        heard = served.heard(5)  # it has answered for a while, and runs on
        os.kill(worker, signal.SIGKILL)
        said = served.process.communicate(timeout=30)[0]
    assert heard == ["WATCHDOG_USEC=1000000"] + ["WATCHDOG=1"] * 4
    assert served.process.returncode == -signal.SIGKILL
    assert f"Process {worker} of the server is gone" in said


@pytest.fixture
def prepare(programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = load(programs / "prepare.py")
    monkeypatch.setattr(module, "RECORDS", tmp_path / "run")
    monkeypatch.setattr(module, "UNIFIED_MEMORY", tmp_path / "nvidia-uvm")
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    return module


def put_command(folder: Path, name: str, script: str) -> None:
    file = folder / "bin" / name
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def test_a_host_without_gpus_needs_only_a_free_port(prepare: ModuleType) -> None:
    assert prepare.not_ready(free_port(), 0) == ""


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_a_port_that_somebody_listens_on(prepare: ModuleType, family: socket.AddressFamily) -> None:
    try:
        listener = socket.create_server(("", 0), family=family, dualstack_ipv6=family is socket.AF_INET6)
    except OSError:
        pytest.skip("this machine has no IPv6")
    with listener:
        assert "is taken" in prepare.not_ready(listener.getsockname()[1], 0)


def test_no_driver_yet(prepare: ModuleType) -> None:
    assert prepare.not_ready(free_port(), 8) == "nvidia-smi shows 0 of 8 GPUs"


def test_the_driver_shows_some_of_the_gpus(prepare: ModuleType, tmp_path: Path) -> None:
    put_command(tmp_path, "nvidia-smi", "printf '2\\n2\\n2\\n'")
    assert prepare.not_ready(free_port(), 8) == "nvidia-smi shows 3 of 8 GPUs"


def test_processes_of_the_last_server_hold_memory(prepare: ModuleType, tmp_path: Path) -> None:
    put_command(
        tmp_path,
        "nvidia-smi",
        "case $1 in *gpu=*) printf '2\\n74000\\n';; *) echo '42, python, 74000 MiB';; esac",
    )
    (tmp_path / "nvidia-uvm").touch()
    assert prepare.not_ready(free_port(), 2) == "1 GPUs are in use by another process: 42, python, 74000 MiB"


def test_the_module_of_unified_memory_is_loaded(prepare: ModuleType, tmp_path: Path) -> None:
    put_command(tmp_path, "nvidia-smi", "printf '2\\n2\\n'")
    assert "nvidia-uvm is missing" in prepare.not_ready(free_port(), 2)
    put_command(tmp_path, "nvidia-modprobe", f"touch {tmp_path / 'nvidia-uvm'}")
    assert prepare.not_ready(free_port(), 2) == ""


def test_a_start_waits_for_the_driver_and_records_what_it_uses(
    prepare: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Fails three times, as a driver does that is still loading.
    count = tmp_path / "count"
    put_command(
        tmp_path,
        "nvidia-smi",
        f"echo x >> {count}; [ $(wc -l < {count}) -gt 3 ] && printf '2\\n2\\n' || exit 9",
    )
    (tmp_path / "nvidia-uvm").touch()
    deployment = tmp_path / "0.5.9-x-12345678"
    deployment.mkdir()
    (deployment / "eagle3.yaml").write_text("port: 1\n")
    (deployment / "sglang@eagle3.service").write_text("as written\n")
    unit = tmp_path / "sglang@eagle3.service"
    unit.write_text("as loaded\n")
    put_command(tmp_path, "systemctl", f'[ "$5" = sglang@eagle3.service ] && echo {unit}')
    monkeypatch.setenv("INVOCATION_ID", "abc")
    monkeypatch.setattr(
        sys,
        "argv",
        f"prepare.py --profile eagle3 --deployment {deployment} --unit sglang@eagle3.service "
        f"--port {free_port()} --gpus 2 --timeout 60".split(),
    )
    assert prepare.main() == ""
    assert capsys.readouterr().out == "Waiting: nvidia-smi shows 0 of 2 GPUs\n"
    assert json.loads((tmp_path / "run" / "eagle3.json").read_text()) == {
        "deployment": "0.5.9-x-12345678",
        "invocation": "abc",
        "files": {
            "eagle3.yaml": hashlib.sha256(b"port: 1\n").hexdigest(),
            "sglang@eagle3.service": hashlib.sha256(b"as loaded\n").hexdigest(),
        },
    }


def test_a_start_is_given_up_with_the_reason(
    prepare: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        sys,
        "argv",
        f"prepare.py --profile eagle3 --deployment {tmp_path} --unit x --port {free_port()} --gpus 8 "
        "--timeout 0".split(),
    )
    assert prepare.main() == "Not started after waiting for 0 s: nvidia-smi shows 0 of 8 GPUs"
    assert not (tmp_path / "run").exists()
