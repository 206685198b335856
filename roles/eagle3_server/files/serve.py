"""Run SGLang as a service: keys out of its log, stale locks out of its way, systemd's watchdog on it.

    serve.py SILENCE --config FILE

SILENCE is how many seconds the server may go without answering /health once it has answered, 0 for ever. The
rest is `python -m sglang.launch_server` with the same arguments: it runs in this process, and the processes
that it spawns import `sglang.launch_server` as they always do.
"""

from __future__ import annotations

import glob
import json
import logging
import os
import runpy
import signal
import socket
import sys
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any


def read_config(config: Path) -> dict[str, Any]:
    """The arguments in a configuration file of ours: one `flag: value` a line, the value in JSON."""
    entries = (line.partition(": ") for line in config.read_text(encoding="utf-8").split("\n"))
    return {name: json.loads(value) for name, _, value in entries if value and not name.startswith("#")}


def redact_log_records(secrets: list[str]) -> None:
    """Replace the secrets in the message of every log record of this process.

    SGLang logs all of its arguments when it starts, keys included. The change is made where records are born,
    so it
    holds for every logger and every release.
    """
    make_record = logging.getLogRecordFactory()

    def make_redacted_record(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = make_record(*args, **kwargs)
        message = record.getMessage()
        if any(secret in message for secret in secrets):
            for secret in secrets:
                message = message.replace(secret, "********")
            record.msg, record.args = message, ()
        return record

    logging.setLogRecordFactory(make_redacted_record)


def remove_stale_locks(cache: Path) -> None:
    """Remove lock files that no process has open.

    A kernel build that was killed leaves its lock file behind, and a later start waits for it for ever
    ("Loading JIT ops"). A live holder keeps its file open, and it runs as this user, so /proc shows it.
    """
    held = set()
    for link in glob.iglob("/proc/[0-9]*/fd/*"):  # noqa: PTH207 - Path.glob fails when a process ends meanwhile
        try:
            held.add(Path(link).stat()[1:3])
        except OSError:  # another user's process, or one that has just ended
            continue
    for folder, _, names in os.walk(cache):
        for name in names:
            file = Path(folder, name)
            if (name == "lock" or name.endswith(".lock")) and file.stat()[1:3] not in held:
                print(f"Removing the stale lock file {file}", flush=True)
                file.unlink()


def workers() -> set[int]:
    """The live processes of this server that call themselves sglang::...: schedulers and the detokenizer."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            identity, _, rest = stat.read_text(encoding="utf-8", errors="replace").rpartition(")")
        except OSError:  # it has just ended
            continue
        state, parent = rest.split()[:2]
        if "(sglang::" in identity and state != "Z" and int(parent) == os.getpid():
            found.add(int(stat.parent.name))
    return found


def end_with_a_worker(known: set[int]) -> set[int]:
    """End this server when a worker has died: without it /health answers 503 for ever, and nothing else happens.

    Returns the workers that live now. SGLang itself notices a worker that fails, not one that is killed.
    """
    alive = workers()
    if dead := known - alive:
        print(
            f"Process {min(dead)} of the server is gone: the server ends, for systemd to start it again",
            flush=True,
        )
        os.kill(os.getpid(), signal.SIGKILL)
    return alive


def watch(url: str, silence: float) -> None:
    """Tell systemd's watchdog whenever the server answers; it restarts a server that is alive and answers
    nothing. A server that has answered and loses one of its processes ends at once.

    Until the first answer the unit's own limit holds, which is that of a start. /health is a real generation
    of one token, or the proof that others are under way.
    """
    address = os.environ["NOTIFY_SOCKET"].replace("@", "\0", 1)
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    answered = False
    alive: set[int] = set()
    ask_next = 0.0
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.connect(address)
        while True:
            time.sleep(min(1.0, silence / 10))
            if answered:
                alive = end_with_a_worker(alive)
            if time.monotonic() < ask_next:
                continue
            try:
                direct.open(f"{url}/health", timeout=silence / 10 + 25).close()
            except OSError:  # an HTTP error as well
                continue
            if not answered:
                systemd.send(f"WATCHDOG_USEC={int(silence * 1_000_000)}".encode())
                answered = True
            systemd.send(b"WATCHDOG=1")
            ask_next = time.monotonic() + silence / 10


def main() -> None:
    silence = float(sys.argv.pop(1))
    config = read_config(Path(sys.argv[sys.argv.index("--config") + 1]))
    secrets = [config[name] for name in ("api-key", "admin-api-key") if name in config]
    if secrets:
        redact_log_records(secrets)
    remove_stale_locks(Path.cwd())
    if silence and "NOTIFY_SOCKET" in os.environ:
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(config["host"], config["host"])
        threading.Thread(target=watch, args=(f"http://{host}:{config['port']}", silence), daemon=True).start()
    del sys.path[0]  # this file's folder, which holds no module for SGLang
    runpy.run_module("sglang.launch_server", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
