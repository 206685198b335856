"""A small installed package and a patch for it."""

from __future__ import annotations

import base64
import hashlib
import shutil
import subprocess
import venv
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from blackwell.patching.engine import Installation

GREETING = '''"""Says hello."""

FRIENDS = ["Ada"]


class Greeter:
    def greet(self, name):
        return self.format("Hello", name)

    def format(self, word, name):
        return f"{word}, {name}"


def friends():
    return FRIENDS[:1]
'''

PATCH: dict[str, Any] = {
    "id": "greet-warmly",
    "title": "Greet warmly",
    "purpose": "Say more than hello.",
    "references": ["https://example.org/1"],
    "verified": "1.0",
    "kind": "guard",
    "method": "edit",
    "package": "demo",
    "file": "greeting.py",
    "switch": {"default": True, "reason": "It is kinder."},
    "variants": [
        {
            "releases": ">=1.0,<2.0",
            "edits": [{"at": "Greeter.greet", "find": '"Hello"', "replace": '"Welcome"'}],
        }
    ],
    "postconditions": [{"at": "Greeter.greet", "has": 'self.format("Welcome", name)'}],
    "upstream": [
        {
            "releases": ">=2.0",
            "because": "The greeting is warm since 2.0.",
            "when": [{"at": "Greeter.greet", "lacks": '"Hello"'}],
        }
    ],
}

TWO_FILES = {
    "id": "two-files",
    "needs": ["greet-warmly"],
    "variants": [
        {
            "releases": ">=1.0,<2.0",
            "edits": [
                {"at": "Greeter.format", "find": 'f"{word}, {name}"', "replace": 'f"{word} {name}!"'},
                {"file": "parting.py", "at": "part", "find": '"Bye"', "replace": '"Farewell"'},
            ],
        }
    ],
    "postconditions": [
        {"at": "Greeter.format", "has": 'f"{word} {name}!"'},
        {"file": "parting.py", "at": "part", "has": 'return "Farewell"'},
    ],
    "upstream": [],
}

PARTING = 'def part():\n    return "Bye"\n'


def patch(**changes: Any) -> dict[str, Any]:
    """The definition of ``greet-warmly`` with some keys changed."""
    return {**deepcopy(PATCH), **deepcopy(changes)}


@dataclass
class Site:
    """A virtual environment with the package ``demo`` in it, as a wheel would have put it there."""

    folder: Path
    version: str = "1.0"

    @property
    def python(self) -> str:
        return str(self.folder / "bin" / "python")

    @property
    def packages(self) -> Path:
        return next(self.folder.glob("lib/python3*/site-packages"))

    def path(self, file: str = "greeting.py") -> Path:
        return self.packages / "demo" / file

    def installation(self, *definitions: dict[str, Any], **options: Any) -> Installation:
        return Installation(self.python, definitions or [patch()], **options)

    def state(self, *definitions: dict[str, Any], **options: Any) -> str:
        installation = self.installation(*definitions, **options)
        return installation.status(installation.select())[0].state


def python(version: str) -> str | None:
    """An interpreter of this version that can be run, if there is one."""
    found = shutil.which(f"python{version}")
    runs = found and subprocess.run([found, "-c", ""], capture_output=True, check=False).returncode == 0
    return found if runs else None


def install(folder: Path, version: str = "1.0", greeting: str = GREETING, python: str | None = None) -> Site:
    if python is None:
        venv.create(folder, symlinks=True, with_pip=False)
    else:
        subprocess.run([python, "-m", "venv", "--symlinks", "--without-pip", str(folder)], check=True)
    site = Site(folder, version)
    files = {"demo/__init__.py": "", "demo/greeting.py": greeting, "demo/parting.py": PARTING}
    record = []
    for name, text in files.items():
        file = site.packages / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        record.append(f"{name},sha256={digest},{len(text)}")
    metadata = site.packages / f"demo-{version}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: demo\nVersion: {version}\n")
    (metadata / "RECORD").write_text("\n".join([*record, ""]))
    return site


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """``demo`` 1.0, which ``greet-warmly`` is for."""
    return install(tmp_path / "environment")
