"""A real smg of the lock, with the role's own launcher, on this machine."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.wheels import CACHE

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "files" / "locks" / f"gateway-1.13.0-py{sys.version_info.major}{sys.version_info.minor}.txt"
KEY = "control-plane-key-of-the-tests"


def free_port() -> int:
    """A port of the loopback that nobody has now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def python() -> Path:
    """The interpreter of an environment with what the lock names; made once."""
    folder = CACHE.parent / LOCK.stem
    if not folder.is_dir():
        CACHE.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(dir=CACHE.parent))
        subprocess.run(["uv", "venv", "--quiet", "--python", sys.executable, str(fresh / "venv")], check=True)
        install = ["uv", "pip", "install", "--quiet", "--require-hashes", "--no-deps", "-r", str(LOCK)]
        subprocess.run([*install, "--python", str(fresh / "venv" / "bin" / "python")], check=True)
        fresh.rename(folder)
    return folder / "venv" / "bin" / "python"


class Gateway:
    """A running one. ``config`` and ``state`` are the folders that the role would make."""

    def __init__(self, folder: Path) -> None:
        self.config, self.state = folder / "etc", folder / "state"
        self.config.mkdir()
        self.state.mkdir()
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        settings = {
            "host": "127.0.0.1", "port": self.port, "policy": "round_robin", "api_key": None,
            "discovery_provider": "file", "discovery_file": str(self.state / "workers.json"),
            "discovery_check_interval_secs": 5, "shutdown_grace_period_secs": 30, "remove_unhealthy_workers": False,
            "health_check_interval_secs": 1, "health_failure_threshold": 2, "health_success_threshold": 1,
            "worker_startup_check_interval": 1, "prometheus_host": "127.0.0.1", "prometheus_port": free_port(),
            "disable_tokenizer_autoload": True, "history_backend": "none", "log_level": "warn",
        }  # fmt: skip
        (self.config / "settings.json").write_text(json.dumps(settings))
        (self.config / "control.key").write_text(KEY + "\n")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it answers."""
        program = ROOT / "roles" / "gateway" / "files" / "serve.py"
        files = [self.config / "settings.json", self.config / "control.key"]
        environment = {**os.environ, "RUNTIME_DIRECTORY": str(self.state)}
        with (self.state / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [python(), "-I", program, *files, "digest"], env=environment, stdout=log, stderr=log
            )
        for _ in range(200):
            try:
                urllib.request.urlopen(f"{self.url}/liveness", timeout=2).close()
                return
            except (urllib.error.URLError, OSError):
                assert self._process.poll() is None, (self.state / "log").read_text()
                time.sleep(0.1)
        raise AssertionError((self.state / "log").read_text())

    def stop(self) -> None:
        """End it as systemd would."""
        assert self._process
        self._process.terminate()
        self._process.wait(60)


@contextmanager
def running(folder: Path) -> Iterator[Gateway]:
    """A gateway without hosts."""
    gateway = Gateway(folder)
    gateway.start()
    try:
        yield gateway
    finally:
        gateway.stop()
