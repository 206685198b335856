"""Where the sources are that an interpreter would run, and which release they are, without importing any."""

from __future__ import annotations

import base64
import json
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import OperatorError
from .versions import is_version

# Runs in the interpreter in question. find_spec of a top-level name imports nothing, but follows path files,
# editable installs and whatever else that interpreter's site adds to its path.
_PROBE = """
import importlib.util, json, sys
from importlib import metadata
sys.path[:] = [entry for entry in sys.path if entry]
found = {}
for package, distribution in json.loads(sys.argv[1]):
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        continue
    try:
        owner = metadata.distribution(distribution)
        version, record = owner.version, str(owner._path) if hasattr(owner, "_path") else None
    except metadata.PackageNotFoundError:
        version = record = None
    found[package] = {"root": list(spec.submodule_search_locations)[0], "version": version, "record": record}
print("\\n" + json.dumps(found))
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
    # Made absolute, because it is not run from here; links stay, for a virtual environment is one.
    interpreter = str(Path(python).absolute()) if "/" in python else python
    command = [interpreter, "-E", "-c", _PROBE, json.dumps(list(packages))]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd="/", check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise OperatorError(
            f"The interpreter {python!r} cannot be run",
            found=str(error),
            remedy="name the python of the installation",
        ) from error
    # A line of its own: what the interpreter's site runs may print as well.
    answer = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0 or not answer:
        raise OperatorError(
            f"The interpreter {python} failed while it looked for {', '.join(name for name, _ in packages)}",
            found=(done.stderr.strip().splitlines() or ["no message"])[-1],
            remedy="name the python of the installation",
        )
    found = {}
    for name, entry in json.loads(answer[-1]).items():
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
