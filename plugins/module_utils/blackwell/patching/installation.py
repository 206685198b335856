"""Where the sources are that an interpreter would run, and which release they are, without importing any."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import OperatorError
from ..interpreter import ask_interpreter
from .versions import is_version

# Runs in the interpreter in question. find_spec of a top-level name imports nothing, but follows path files,
# editable installs and whatever else that interpreter's site adds to its path.
_PROBE = """
import importlib.util, json, sys
from importlib import metadata
sys.path[:] = [entry for entry in sys.path if entry]
answer = {}
for package, distribution in json.loads(sys.argv[1]):
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None or not spec.submodule_search_locations:
        continue
    try:
        owner = metadata.distribution(distribution)
        version, record = owner.version, str(owner._path) if hasattr(owner, "_path") else None
    except metadata.PackageNotFoundError:
        version = record = None
    answer[package] = {"root": list(spec.submodule_search_locations)[0], "version": version, "record": record}
"""


@dataclass(frozen=True)
class Package:
    """One installed package: its folder, its release, and where pip wrote down the hashes of its files."""

    name: str
    root: Path
    version: str
    record: Path | None

    def published_sha256(self, file: str) -> str | None:
        """The hash (hex) that the wheel's RECORD gives for ``file`` (relative to the package), if it does."""
        if self.record is None:
            return None
        try:
            text = self.record.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None
        entry = f"\n{self.name}/{file},sha256="
        start = f"\n{text}".find(entry)
        if start < 0:
            return None
        encoded = text[start + len(entry) - 1 :].split(",", 1)[0]
        try:
            return base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)).hex()
        except ValueError:
            return None


def locate(python: str, packages: Sequence[tuple[str, str]]) -> Mapping[str, Package]:
    """The packages, given as (import name, name of the distribution), as ``python`` would find them.

    Absent ones are left out. As for a service, neither the working directory nor PYTHONPATH counts.

    Raises:
        OperatorError: the interpreter cannot be run, or a package has no version that can be read.
    """
    remedy = "name the python of the installation"
    found = {}
    # Isolated from the environment, but not from the user's own packages: a service may run from them.
    answer = ask_interpreter(python, _PROBE, json.dumps(list(packages)), flags=("-E",), remedy=remedy)
    for name, entry in answer.items():
        root = Path(entry["root"]).resolve()
        version = entry["version"] or _version_in_source(root)
        if version is None or not is_version(version):
            raise OperatorError(
                f"The release of {name} in {root} is not known",
                found=version or "no distribution metadata for this interpreter, and no _version.py",
                expected="a version number such as 0.5.9",
                remedy="install it with pip, or for a checkout with pip install --no-deps -e",
            )
        record = Path(entry["record"]) / "RECORD" if entry["record"] else None
        found[name] = Package(name, root, version, record)
    return found


def _version_in_source(root: Path) -> str | None:
    """The version that setuptools-scm wrote into a checkout that is on the path without being installed."""
    try:
        text = (root / "_version.py").read_text(encoding="utf-8")
    except OSError:
        return None
    match = re.search(r"^__version__ = (?:version = )?['\"]([^'\"]+)", text, re.MULTILINE)
    return match[1] if match else None
