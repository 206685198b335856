"""How long the status of the whole set of patches takes, beside one ``import sglang`` in the same environment.

Both run as processes of their own, in turn, so that neither gains from what the other has just read. The logic is
measured, without Ansible around it.

    python benchmarks/patch_status.py .cache/patch-environment-*/bin/python --runs 9

What it gave is in benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(PROJECT / "plugins" / "module_utils"))

from blackwell.patching import definition

# What the module source_patch does for state: status, with the patches as Ansible would hand them over.
STATUS = """
import json, sys
sys.path.insert(0, sys.argv[1])
from blackwell.patching import engine
installation = engine.Installation(sys.argv[2], json.load(open(sys.argv[3])))
print(json.dumps([one.describe() for one in engine.status(installation, installation.select())]))
"""


def seconds(*command: str) -> float:
    """Run a command and return how long it took, in seconds of the clock."""
    environment = {**os.environ, "SGLANG_USE_CPU_ENGINE": "1"}
    start = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, env=environment)
    return time.perf_counter() - start


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("python", help="interpreter of an environment with SGLang and all that it imports")
    parser.add_argument("--runs", type=int, default=9)
    given = parser.parse_args()
    with tempfile.NamedTemporaryFile("w", suffix=".json") as patches:
        json.dump(definition.load(PROJECT / "files" / "patches"), patches)
        patches.flush()
        status = [
            sys.executable,
            "-c",
            STATUS,
            str(PROJECT / "plugins" / "module_utils"),
            given.python,
            patches.name,
        ]
        compared = {"status of all patches": status, "import sglang": [given.python, "-c", "import sglang"]}
        for command in compared.values():
            seconds(*command)  # once for the file cache
        taken: dict[str, list[float]] = {name: [] for name in compared}
        for _ in range(given.runs):
            for name, command in compared.items():
                taken[name].append(seconds(*command))
    for name, values in taken.items():
        print(f"{name:24} median {statistics.median(values):6.2f} s   {min(values):.2f} to {max(values):.2f}")
    ours, theirs = (statistics.median(values) for values in taken.values())
    print(f"{'ratio':24} {ours / theirs:.2f}")


if __name__ == "__main__":
    main()
