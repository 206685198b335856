"""Get a host ready for one start of SGLang, then record what is being started. Run by the unit, as root.

    prepare.py --profile NAME --deployment FOLDER --unit NAME --port N --gpus N --timeout SECONDS

It waits, within the timeout, for what would otherwise be a puzzling crash later: GPUs that the driver shows
only some time after boot, memory that the processes of the last server still hold, a port that is not free
yet. It exits with status 1 and says what is missing. Then it writes /run/sglang/NAME.json with the SHA-256 of
every file that this start uses: by it a later run of Ansible knows whether the running process still is what
the files say.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

# A driver and its contexts hold some memory of every GPU; a server that has not gone holds much more.
GPU_MEMORY_LEFT_OVER = 2048  # MiB

RECORDS = Path("/run/sglang")

# CUDA needs it, and the service may not load the module itself: making device files is for root.
UNIFIED_MEMORY = Path("/dev/nvidia-uvm")


def lines_of(*command: str) -> list[str]:
    """The lines that a command prints, none if it fails or is not there."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [line for line in done.stdout.splitlines() if line.strip()]


def not_ready(port: int, gpus: int) -> str:
    """Why SGLang cannot be started yet; empty when it can."""
    if gpus:
        used = lines_of("nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits")
        if len(used) < gpus:
            return f"nvidia-smi shows {len(used)} of {gpus} GPUs"
        busy = sum(int(value) > GPU_MEMORY_LEFT_OVER for value in used)
        if len(used) - busy < gpus:
            holders = lines_of(
                "nvidia-smi", "--query-compute-apps=pid,name,used_memory", "--format=csv,noheader"
            )
            return (
                f"{busy} GPUs are in use by another process: {'; '.join(sorted(set(holders))) or 'not shown'}"
            )
        if not UNIFIED_MEMORY.exists():
            lines_of("nvidia-modprobe", "-u", "-c", "0")
        if not UNIFIED_MEMORY.exists():
            return f"{UNIFIED_MEMORY} is missing; see: nvidia-modprobe -u -c 0"
    with socket.socket() as probe:
        # As SGLang's web server does: connections of the last server in TIME_WAIT do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            return f"port {port} is taken ({error.strerror}); see: ss -ltnp 'sport = :{port}'"
    return ""


def record(profile: str, deployment: Path, unit: str) -> None:
    """Write down what this start uses, in one step: of the unit that is the file that systemd has loaded."""
    (loaded,) = lines_of("systemctl", "show", "--property=FragmentPath", "--value", "--", unit)
    files = [*deployment.iterdir(), Path(loaded)]
    digest = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
    entry = {
        "deployment": deployment.name,
        "invocation": os.environ.get("INVOCATION_ID", ""),
        "files": digest,
    }
    RECORDS.mkdir(mode=0o755, exist_ok=True)
    draft = RECORDS / f".{profile}.json"
    draft.write_text(json.dumps(entry, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    draft.replace(RECORDS / f"{profile}.json")


def main() -> str:
    parser = argparse.ArgumentParser(description="Get a host ready for one start of SGLang.")
    parser.add_argument("--profile", required=True)
    parser.add_argument("--deployment", required=True, type=Path)
    parser.add_argument("--unit", required=True)
    parser.add_argument("--port", required=True, type=int)
    parser.add_argument("--gpus", required=True, type=int)
    parser.add_argument("--timeout", required=True, type=float)
    given = parser.parse_args()
    deadline = time.monotonic() + given.timeout
    said = ""
    while reason := not_ready(given.port, given.gpus):
        if time.monotonic() > deadline:
            return f"Not started after waiting for {given.timeout:.0f} s: {reason}"
        if reason != said:
            print(f"Waiting: {reason}", flush=True)
            said = reason
        time.sleep(1)
    record(given.profile, given.deployment, given.unit)
    return ""


if __name__ == "__main__":
    sys.exit(main() or 0)
