"""A note that the contract held, so that the same sources are not followed again on every run."""

from __future__ import annotations

import hashlib
import json
import pkgutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .source import SourceTree


def key(tree: SourceTree, asked: Mapping[str, Any]) -> str:
    """A digest of all that the outcome depends on.

    These are what is asked, this code, every source file of SGLang, and which other packages are beside it. Of a file
    its size and the time of its last change of any kind count, which nobody sets back by accident.

    Args:
        tree: the sources.
        asked: class, arguments and environment.
    """
    digest = hashlib.sha256(json.dumps(asked, sort_keys=True, default=str).encode())
    beside = sorted(path.name for path in tree.root.iterdir())
    for line in (*_code(), *_sources(tree.root / "sglang"), *beside):
        digest.update(f"{line}\n".encode())
    return digest.hexdigest()


def read(path: Path | None) -> dict[str, Any]:
    """What was noted: ``key`` and ``contract``; empty if there is no readable note."""
    try:
        noted = json.loads(path.read_text(encoding="utf-8")) if path else {}
    except (OSError, ValueError):
        return {}
    return noted if isinstance(noted, dict) else {}


def text(key_: str, contract: Mapping[str, Any]) -> str:
    """The note, as :func:`read` reads it."""
    return json.dumps({"key": key_, "contract": contract}, indent=2) + "\n"


def _code() -> Iterator[str]:
    """This package. Ansible sends it to hosts in an archive, so its files are asked of the import system."""
    package = sys.modules[__name__.rpartition(".")[0]]
    for module in sorted(module.name for module in pkgutil.iter_modules(package.__path__)):
        code = pkgutil.get_data(package.__name__, f"{module}.py")
        yield f"{module} {hashlib.sha256(code or b'').hexdigest()}"


def _sources(folder: Path) -> Iterator[str]:
    for path in sorted(folder.rglob("*.py")):
        status = path.stat()
        yield f"{path} {status.st_size} {status.st_ctime_ns}"
