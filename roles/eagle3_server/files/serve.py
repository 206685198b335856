"""Run SGLang with the API keys kept out of its log.

    serve.py --config FILE

SGLang logs all of its arguments when it starts, keys included. The change is made where log records are born,
so it holds for every logger and every release. Otherwise this is `python -m sglang.launch_server` with the
same arguments; the processes that SGLang spawns import `sglang.launch_server` as they always do.
"""

from __future__ import annotations

import json
import logging
import os
import runpy
import sys
from pathlib import Path
from typing import Any


def keys_in(config: Path) -> list[str]:
    """The API keys in a configuration file of ours: one `flag: "value"` a line."""
    entries = (line.partition(": ") for line in config.read_text(encoding="utf-8").splitlines())
    return [json.loads(value) for name, _, value in entries if name in ("api-key", "admin-api-key")]


def redact_log_records(secrets: list[str]) -> None:
    """Replace the secrets in the message of every log record of this process."""
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
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            held.add(link.stat()[1:3])
        except OSError:  # another user's process, or one that has just ended
            continue
    for folder, _, names in os.walk(cache):
        for name in names:
            file = Path(folder, name)
            if (name == "lock" or name.endswith(".lock")) and file.stat()[1:3] not in held:
                print(f"Removing the stale lock file {file}", flush=True)
                file.unlink()


if __name__ == "__main__":
    secrets = keys_in(Path(sys.argv[sys.argv.index("--config") + 1]))
    if secrets:
        redact_log_records(secrets)
    remove_stale_locks(Path.cwd())
    del sys.path[0]  # this file's folder, which holds no module for SGLang
    runpy.run_module("sglang.launch_server", run_name="__main__", alter_sys=True)
