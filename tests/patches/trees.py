"""Installations to patch: an interpreter with the real sources of one SGLang release and the FlashInfer it
pins.

Nothing is built or imported: the wheels are unpacked into an empty virtual environment, as ``pip install
    --no-deps``
would do, without what the patches never look at.
"""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

from tests.wheels import wheel

_PIN = re.compile(
    r"^Requires-Dist: flashinfer[-_]python(?:\[[^\]]*\])?\s*==\s*([^\s;]+)", re.MULTILINE | re.IGNORECASE
)


def pinned_flashinfer(sglang: str) -> str:
    """The FlashInfer release that an SGLang release asks for.

    Raises:
        LookupError: it pins none.
    """
    with zipfile.ZipFile(wheel("sglang", sglang)) as archive:
        metadata = archive.read(f"sglang-{sglang}.dist-info/METADATA").decode()
    match = _PIN.search(metadata)
    if match is None:
        raise LookupError(f"sglang {sglang} pins no flashinfer-python")
    return match[1]


def installation(folder: Path, sglang: str, flashinfer: str | None = None) -> Path:
    """Make an environment in ``folder`` with both packages and return its interpreter.

    Args:
        flashinfer: its release; the pinned one if None.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    for name, version in (("sglang", sglang), ("flashinfer-python", flashinfer or pinned_flashinfer(sglang))):
        _unpack(wheel(name, version), site_packages(folder))
    return folder / "bin" / "python"


def site_packages(folder: Path) -> Path:
    """The folder of an environment that packages are installed in."""
    return next(folder.glob("lib/python3*/site-packages"))


def _unpack(file: Path, target: Path) -> None:
    with zipfile.ZipFile(file) as archive:
        for member in archive.namelist():
            if member.endswith(".py") or ".dist-info/" in member:
                archive.extract(member, target)
