"""The published wheels that tests read: real sources, fetched once and unpacked into ``.cache/wheels``."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

CACHE = Path(__file__).resolve().parents[1] / ".cache" / "wheels"

# Releases from 0.5.11 on are built for manylinux_2_34; "any" is the pure-Python ones before.
PLATFORMS = ("manylinux_2_34_x86_64", "manylinux_2_28_x86_64", "manylinux2014_x86_64", "any")


def wheel(name: str, version: str, python: str = "3.12") -> Path:
    """The wheel file of one published version for x86-64 Linux, downloaded by pip unless it is there.

    Raises:
        subprocess.CalledProcessError: pip could not find or fetch it.
    """
    folder = CACHE / "files"
    folder.mkdir(parents=True, exist_ok=True)
    pattern = f"{name.replace('-', '_')}-{version}-*.whl"
    found = sorted(folder.glob(pattern))
    if not found:
        with tempfile.TemporaryDirectory(dir=CACHE) as fresh:
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
            command += [f"--python-version={python}", "--implementation=cp"]
            command += [f"--platform={platform}" for platform in PLATFORMS]
            subprocess.run([*command, f"--dest={fresh}", f"{name}=={version}"], check=True)
            for file in Path(fresh).glob(pattern):
                file.replace(folder / file.name)
        found = sorted(folder.glob(pattern))
    return found[0]


def unpacked(name: str, version: str) -> Path:
    """A folder with the wheel's files, as ``site-packages`` would have them. Shared: never write into it.

    Two test runs may ask at the same time, so the folder appears whole or not at all.
    """
    target = CACHE / f"{name}-{version}"
    if not target.is_dir():
        source = wheel(name, version)
        fresh = Path(tempfile.mkdtemp(dir=CACHE))
        with zipfile.ZipFile(source) as archive:
            archive.extractall(fresh)
        try:
            fresh.rename(target)
        except OSError:
            shutil.rmtree(fresh)
            if not target.is_dir():
                raise
    return target
