"""Installations to patch: an interpreter with the real sources of one SGLang release and the FlashInfer it pins.

The wheels are unpacked into an empty virtual environment, as ``pip install --no-deps`` would do, but only the
files that some patch names, and the metadata: nothing here looks at the others.
"""

from __future__ import annotations

import re
import venv
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from blackwell.patching import definition

from tests.wheels import wheel

ROOT = Path(__file__).resolve().parents[2]
PATCHES = ROOT / "files" / "patches"

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


def installation(folder: Path, sglang: str, patches: Path = PATCHES) -> Path:
    """Make an environment in ``folder`` with one SGLang and its FlashInfer, and return its interpreter."""
    named = {"sglang/__init__.py", "flashinfer/__init__.py"}
    for raw in definition.load(patches):
        named |= {f"{raw['package']}/{file}" for file in _files(raw)}
    venv.create(folder, symlinks=True, with_pip=False)
    for name, version in (("sglang", sglang), ("flashinfer-python", pinned_flashinfer(sglang))):
        _unpack(wheel(name, version), site_packages(folder), named)
    return folder / "bin" / "python"


def site_packages(folder: Path) -> Path:
    """The folder of an environment that packages are installed in."""
    return next(folder.glob("lib/python3*/site-packages"))


def _files(raw: Any) -> Iterator[str]:
    """Every file that a definition names, wherever it names it."""
    if isinstance(raw, dict):
        if "file" in raw:
            yield raw["file"]
        for value in raw.values():
            yield from _files(value)
    elif isinstance(raw, list):
        for value in raw:
            yield from _files(value)


def _unpack(file: Path, target: Path, named: Iterable[str]) -> None:
    with zipfile.ZipFile(file) as archive:
        for member in archive.namelist():
            if member in named or ".dist-info/" in member:
                archive.extract(member, target)
