"""How long a release's packages take to install from a bundle, and how long pip takes for the same.

Both install the same lock from the same local wheels into a new virtual environment, without a cache and without
network, compare every checksum, and compile all byte code. The order alternates, so that neither gains from files that
the other has just read.

    python benchmarks/install.py .sandbox/bundle sglang-0.5.9-cpu-py311 --runs 3
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(PROJECT / "plugins" / "module_utils"))

from blackwell import environment, installer, lock


def ours(bundle: Path, text: str, folder: Path) -> None:
    """The installation that the role sglang_stack does."""
    wanted = lock.parse(text, "lock")
    installer.ensure(
        environment.Environment(
            release=folder,
            lock=wanted,
            lock_text=text,
            python=f"python{wanted.python}",
            uv=lock.parse_pins((PROJECT / "files/locks/uv.txt").read_text(), "uv.txt")[0],
            bundle=bundle,
        )
    )


def pip(bundle: Path, text: str, folder: Path) -> None:
    """The same with the means of Python itself."""
    python = f"python{lock.parse(text, 'lock').python}"
    folder.mkdir()
    (folder / "lock.txt").write_text(text)
    clean = {key: value for key, value in os.environ.items() if not key.startswith("PIP_")}
    subprocess.run([python, "-m", "venv", folder / "venv"], check=True)
    options = ["--quiet", "--no-cache-dir", "--no-index", "--no-deps", "--require-hashes", "--compile"]
    files = [f"--find-links={bundle / 'wheels'}", f"--requirement={folder / 'lock.txt'}"]
    subprocess.run(
        [folder / "venv/bin/python", "-m", "pip", "install", *options, *files],
        check=True,
        env={**clean, "PIP_CONFIG_FILE": os.devnull},
    )


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("lock", help="name of a lock in files/locks")
    parser.add_argument("--runs", type=int, default=3)
    given = parser.parse_args()
    text = (PROJECT / "files/locks" / f"{given.lock}.txt").read_text()
    ways = {"pip install": pip, "from a bundle": ours}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for run in range(given.runs):
        for name in list(ways) if run % 2 == 0 else reversed(list(ways)):
            with tempfile.TemporaryDirectory() as folder:
                began = time.monotonic()
                ways[name](given.bundle.resolve(), text, Path(folder) / "release")
                seconds[name].append(time.monotonic() - began)
            print(f"run {run + 1}, {name}: {seconds[name][-1]:.1f} s", flush=True)
    print(
        f"{given.lock}, {len(lock.parse(text, 'lock').pins)} packages, {os.cpu_count()} CPUs, {given.runs} runs each"
    )
    for name, taken in seconds.items():
        each = ", ".join(f"{value:.1f}" for value in taken)
        print(f"{name:14} median {statistics.median(taken):5.1f} s   ({each})")
    medians = [statistics.median(taken) for taken in seconds.values()]
    print(f"{'ratio':14} {medians[0] / medians[1]:.2f}")


if __name__ == "__main__":
    main()
