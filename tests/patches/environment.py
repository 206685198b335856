"""An environment in which the real SGLang 0.5.9 can be imported without a GPU: the sandbox's lock and its engine.

It is made once, in ``.cache``; what pip is set up to use (indexes, folders of wheels) counts.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

from tests.patches.trees import site_packages

ROOT = Path(__file__).resolve().parents[2]
LOCK = ROOT / "files" / "locks" / "sglang-0.5.9-cpu-py311.txt"
ENGINE = ROOT / "files" / "engines" / "cpu" / "site-packages"
# What FlashInfer imports. SGLang must not find it: it would go on to load CUDA.
MORE = ("apache-tvm-ffi==0.1.15.post2", "nvidia-ml-py==13.615.71")
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"


def python_of_the_lock() -> str | None:
    """An interpreter of the version that the lock is for, if this machine has one."""
    if sys.version_info[:2] == (3, 11):
        return sys.executable
    return shutil.which("python3.11")


def base(python: str) -> Path:
    """The environment with everything from the lock; made unless it is there.

    Raises:
        subprocess.CalledProcessError: pip could not install the lock.
    """
    digest = hashlib.sha256(LOCK.read_bytes()).hexdigest()[:12]
    folder = ROOT / ".cache" / f"patch-environment-{digest}"
    if not (folder / "complete").exists():
        subprocess.run([python, "-m", "venv", "--clear", str(folder)], check=True)
        install = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-deps"]
        install.append("--only-binary=:all:")
        locked = [*install, "--require-hashes", f"--requirement={LOCK}"]
        # The index is asked only if the wheels are nowhere that pip looks by itself.
        if subprocess.run(locked, check=False).returncode != 0:
            subprocess.run([*locked, f"--extra-index-url={TORCH_INDEX}"], check=True)
        subprocess.run([*install, f"--target={folder / 'more'}", *MORE], check=True)
        (folder / "complete").touch()
    return folder


def copy(base: Path, folder: Path, python: str) -> Path:
    """An environment like ``base`` with SGLang and FlashInfer of its own, to be patched; returns its interpreter.

    Everything else is the base's: a copy takes seconds and a few MiB instead of gigabytes.
    """
    subprocess.run([python, "-m", "venv", "--without-pip", str(folder)], check=True)
    source, target = site_packages(base), site_packages(folder)
    for name in ("sglang", "flashinfer"):
        shutil.copytree(source / name, target / name)
        for metadata in source.glob(f"{name}*.dist-info"):
            shutil.copytree(metadata, target / metadata.name)
    shutil.copytree(ENGINE, target, dirs_exist_ok=True)
    (target / "base.pth").write_text(f"{source}\n")
    return folder / "bin" / "python"
