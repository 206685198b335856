"""The real ``sglang.bench_serving`` of a published release, able to run in the environment of the tests.

Its file is the published one. It imports much that it does not need for the load that is made here (transformers,
datasets, Pillow): ``packages/`` has those names, so that a test needs aiohttp and not gigabytes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.wheels import CACHE, unpacked

# What the program is made of in each release; all else of SGLang stays away.
PARTS = {
    "0.5.9": ["bench_serving.py"],
    "0.5.10.post1": ["bench_serving.py", "benchmark", "srt/utils/network.py"],
}
AIOHTTP = "aiohttp==3.12.15"
PACKAGES = Path(__file__).with_name("packages")


def environment(version: str) -> dict[str, str]:
    """Environment in which ``python -m sglang.bench_serving`` of this release runs with the tests' interpreter."""
    return {"PYTHONPATH": os.pathsep.join(str(path) for path in (_program(version), PACKAGES, _aiohttp()))}


def _program(version: str) -> Path:
    def fill(folder: Path) -> None:
        wheel = unpacked("sglang", version)
        for part in PARTS[version]:
            source, target = wheel / "sglang" / part, folder / "sglang" / part
            target.parent.mkdir(parents=True, exist_ok=True)
            (shutil.copytree if source.is_dir() else shutil.copy)(source, target)

    return _cached(f"bench-{version}", fill)


def _aiohttp() -> Path:
    def fill(folder: Path) -> None:
        command = [sys.executable, "-m", "pip", "install", "--quiet", f"--target={folder}", AIOHTTP]
        subprocess.run(command, check=True)

    return _cached(f"{AIOHTTP}-py{sys.version_info.major}.{sys.version_info.minor}", fill)


def _cached(name: str, fill: Callable[[Path], None]) -> Path:
    """A folder of the cache, filled once; it appears whole or not at all."""
    target = CACHE.parent / name
    if not target.is_dir():
        CACHE.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(dir=CACHE.parent))
        fill(fresh)
        try:
            fresh.rename(target)
        except OSError:
            shutil.rmtree(fresh)
            if not target.is_dir():
                raise
    return target
