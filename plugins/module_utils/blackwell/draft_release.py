"""What an installed SGLang can load, from its files: it is not imported.

What cannot be read is said in :attr:`Release.unread`, so that nothing passes because it was not seen.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .draft_class import LLAMA_DRAFTER, MLA_DRAFTER
from .draft_model import PLACES

EXTERNAL_MODELS = "SGLANG_EXTERNAL_MODEL_PACKAGE"
# What the worker of EAGLE-3 reads from a drafter's class, and a target's class has no use for.
_MARKS = ("hot_token_id", "d2t")


@dataclass(frozen=True)
class Release:
    """The SGLang that is going to load them.

    Attributes:
        version: its three numbers; empty if unknown.
        architectures: the model classes it has; empty if unknown.
        drafters: the files of those that are EAGLE-3 drafters, by class.
        places: where it looks for the language model in a configuration, in its order.
        unread: why a part of it is unknown, as sentences.
    """

    version: tuple[int, ...] = ()
    architectures: frozenset[str] = frozenset()
    drafters: Mapping[str, Path] = field(default_factory=dict)
    places: tuple[str, ...] = PLACES
    unread: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """For messages."""
        return f"SGLang {'.'.join(map(str, self.version))}" if self.version else "SGLang"

    def before(self, version: tuple[int, ...]) -> bool:
        """Whether it is known to be older than ``version``."""
        return bool(self.version) and self.version < version


def read_release(site_packages: Path, environment: Mapping[str, Any]) -> Release:
    """What an installed SGLang can load.

    Args:
        site_packages: the folder that it is installed in.
        environment: the server's, which may name another package with models.
    """
    unread: list[str] = []
    architectures: set[str] = set()
    drafters: dict[str, Path] = {}
    for package in ["sglang.srt.models", *filter(None, [str(environment.get(EXTERNAL_MODELS) or "")])]:
        folder = site_packages / package.replace(".", "/")
        sources = sorted(folder.glob("*.py"))
        if not sources:
            unread.append(f"there is no source of models in {folder}")
        for path in sources:
            try:
                text = path.read_text(encoding="utf-8")
                names = entry_classes(text)
            except (OSError, ValueError, SyntaxError, RecursionError) as error:
                unread.append(f"{path} is not readable ({error})")
                continue
            architectures.update(names)
            marked = all(mark in text for mark in _MARKS)
            drafters |= {name: path for name in names if marked or name in (LLAMA_DRAFTER, MLA_DRAFTER)}
    versions = [
        re.match(r"sglang-(\d+)\.(\d+)\.(\d+)", path.name)
        for path in site_packages.glob("sglang-*.dist-info")
    ]
    numbers = [tuple(map(int, match.groups())) for match in versions if match]
    if not numbers:
        unread.append(f"no sglang-*.dist-info in {site_packages} tells the version")
    places = _read_places(site_packages)
    if not places:
        unread.append("the order in which it looks for sizes is not in its sources where it was so far")
    return Release(
        numbers[0] if numbers else (), frozenset(architectures), drafters, places or PLACES, tuple(unread)
    )


def _read_places(site_packages: Path) -> tuple[str, ...]:
    """The places that ``get_hf_text_config`` asks for, in its order; empty if it is not found."""
    utilities = site_packages / "sglang" / "srt" / "utils"
    for path in (utilities / "hf_transformers_utils.py", utilities / "hf_transformers" / "common.py"):
        try:
            text = path.read_text(encoding="utf-8")
            start = re.search(r"^def get_hf_text_config\(.*?(?=^\S)", text, re.MULTILINE | re.DOTALL)
            asked = list(_asked_of_config(ast.parse(start[0]))) if start else []
        except (OSError, ValueError, SyntaxError, RecursionError):
            continue
        if set(asked) == set(PLACES):
            return tuple(dict.fromkeys(asked))
    return ()


def _asked_of_config(tree: ast.Module) -> Iterator[str]:
    """X of each ``hasattr(config, "X")``, from top to bottom."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and len(node.args) == 2]
    for call in sorted(calls, key=lambda call: (call.lineno, call.col_offset)):
        holder, name = call.args
        if (
            isinstance(call.func, ast.Name)
            and (call.func.id == "hasattr")
            and isinstance(holder, ast.Name)
            and holder.id == "config"
            and isinstance(name, ast.Constant)
        ):
            yield str(name.value)


def entry_classes(source: str) -> list[str]:
    """The classes that a model file registers, from its ``EntryClass``.

    Only what follows that name is parsed: it stands at the end of each of some 200 files.

    Raises:
        SyntaxError, ValueError: what follows is no Python.
    """
    start = re.search(r"^EntryClass\b", source, re.MULTILINE)
    if not start:
        return []
    return [
        leaf.id
        for node in ast.parse(source[start.start() :]).body
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)) and node.value is not None
        for one in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if getattr(one, "id", "") == "EntryClass"
        for leaf in ast.walk(node.value)
        if isinstance(leaf, ast.Name)
    ]
