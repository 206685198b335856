"""The last step of staging: prove that a release is what was asked for, then write its manifest.

A release without a manifest is half made. With one it is complete, and is not written to any more save to
mend it.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .errors import OperatorError
from .flavours import misfits
from .lock import parse

MANIFEST = "manifest.json"

_PROBE = """
import importlib, importlib.metadata, json, sys
failed = {}
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except BaseException as error:
        failed[name] = f"{type(error).__name__}: {error}"
print("probe " + json.dumps({"version": importlib.metadata.version("sglang"), "failed": failed}))
"""


def manifest(release: Mapping[str, Any]) -> str:
    """The manifest's text; ``release`` is what planning returned."""
    return json.dumps(dict(release), indent=2, sort_keys=True) + "\n"


def read_manifest(path: Path) -> str:
    """The manifest of the release at ``path``, or nothing."""
    try:
        return (path / MANIFEST).read_text()
    except FileNotFoundError:
        return ""


def prove(release: Mapping[str, Any], imports: Sequence[str], environment: Mapping[str, str]) -> None:
    """Check a staged release with its own interpreter.

    Args:
        release: what planning returned.
        imports: modules that have to be importable.
        environment: variables to set for that.

    Raises:
        OperatorError: another version than the planned one is installed, packages do not belong together, or a module
            cannot be imported.
    """
    lock = parse((Path(release["path"]) / "lock.txt").read_text(), "lock.txt")
    if problems := misfits(Path(release["site_packages"]), lock):
        raise OperatorError(
            f"The packages of release {release['id']} do not belong together",
            found="; ".join(problems),
            expected="builds of one kind",
            remedy="correct the recipe in files/locks and make the lock again; the release that serves was not touched",
        )
    with tempfile.TemporaryDirectory() as home:
        # Imported libraries make cache folders below HOME; these must not appear in root's.
        result = subprocess.run(
            [release["python"], "-I", "-c", _PROBE, *imports],
            env={"PATH": os.environ.get("PATH", ""), "HOME": home, **environment},
            capture_output=True,
            text=True,
            check=False,
        )
    answers = [line[len("probe ") :] for line in result.stdout.splitlines() if line.startswith("probe ")]
    if not answers:
        raise OperatorError(
            f"The interpreter of release {release['id']} does not work",
            found=(result.stderr.strip() or result.stdout.strip())[-2000:]
            or f"exit status {result.returncode}",
            remedy="run the playbook again: a release that is not sealed is built again",
        )
    answer = json.loads(answers[-1])
    if answer["version"] != release["sglang_version"]:
        raise OperatorError(
            "Another SGLang than the one that was asked for is installed",
            found=answer["version"],
            expected=release["sglang_version"],
            remedy=f"remove {release['path']} and run the playbook again",
        )
    if answer["failed"]:
        raise OperatorError(
            f"Release {release['id']} cannot import what its server imports",
            found="; ".join(f"{name} ({problem})" for name, problem in answer["failed"].items()),
            expected="no import error",
            remedy="correct the lock or the patch that is to blame; the release that serves was not touched",
        )
