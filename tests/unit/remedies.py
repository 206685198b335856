"""Every remedy that the code can print: its place, and its text with a mark for each part that is known only then."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

UNKNOWN = "…"
_NAMED = re.compile(
    r"(^|_)(remedy|remedies|again|finish|damaged|mend|mends|other_python|(other|damaged)_drafter)$",
    re.IGNORECASE,
)
_PRINTED = re.compile(r"To mend it: +")
_ADVICE = re.compile(r"(?:; |\. )(?=see: |Run site|Remove what )")
# The argument that is the remedy, of what takes it by its position.
_POSITIONS = {"Check": 5, "Rule": 2, "Problem": 2}


class Remedy(NamedTuple):
    """A text, and the file and the line where it is written."""

    text: str
    file: str
    line: int

    @property
    def key(self) -> str:
        """What the table calls it: the file without the folders that all have, and the text."""
        return f"{self.file.removeprefix('plugins/module_utils/blackwell/')}: {self.text}"


def remedies(root: Path) -> list[Remedy]:
    """All remedies of the product, each text of a file once."""
    found: list[Remedy] = []
    for folder in ("plugins", "roles", "blackwell_cli"):
        for path in sorted((root / folder).rglob("*.py")):
            found += _Python(path, path.relative_to(root).as_posix()).remedies()
    for folder in ("roles", "playbooks"):
        for path in sorted((root / folder).rglob("*.yml")):
            found += _in_yaml(path, path.relative_to(root).as_posix())
    return list({each.key: each for each in reversed(found)}.values())[::-1]


class _Python:
    """The remedies of one file of Python."""

    def __init__(self, path: Path, file: str) -> None:
        self._file = file
        self._positions = {**_POSITIONS, "Finding": 5} if path.name.startswith("draft") else _POSITIONS
        self._tree = ast.parse(path.read_text(encoding="utf-8"))
        self._constants = {
            target.id: node.value
            for node in self._tree.body
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        self._functions = {node.name: node for node in self._tree.body if isinstance(node, ast.FunctionDef)}

    def remedies(self) -> Iterator[Remedy]:
        nodes = list(ast.walk(self._tree))
        parts = {part for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
        for node in nodes:
            for value in self._values(node):
                for text in self._texts(value):
                    if re.search(r"\w", text):
                        yield Remedy(_shortened(text), self._file, value.lineno)
            if isinstance(node, (ast.Constant, ast.JoinedStr)) and node not in parts:
                for text in self._texts(node):
                    printed = _PRINTED.split(text)[1:]
                    if self._file.startswith("roles/"):
                        printed += _ADVICE.split(text)[1:]
                    for each in printed:
                        yield Remedy(_shortened(each), self._file, node.lineno)

    def _values(self, node: ast.AST) -> list[ast.expr]:
        """The expressions of a node that are a remedy."""
        if isinstance(node, ast.Call):
            place = self._positions.get(getattr(node.func, "id", ""), len(node.args))
            return [word.value for word in node.keywords if word.arg == "remedy"] + node.args[
                place : place + 1
            ]
        if isinstance(node, ast.FunctionDef) and _NAMED.search(node.name):
            return [each.value for each in ast.walk(node) if isinstance(each, ast.Return) and each.value]
        if isinstance(node, ast.AugAssign):
            return [node.value] if _is_named(node.target) else []
        if not isinstance(node, ast.Assign):
            return []
        target = node.targets[0]
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            return [
                value for name, value in zip(target.elts, node.value.elts, strict=False) if _is_named(name)
            ]
        return [node.value] if _is_named(target) else []

    def _texts(self, value: ast.expr) -> list[str]:
        """The texts that an expression can be: both branches of a condition are texts of their own."""
        if isinstance(value, ast.IfExp):
            return self._texts(value.body) + self._texts(value.orelse)
        if isinstance(value, ast.BoolOp):
            return [text for each in value.values for text in self._texts(each)]
        if isinstance(value, ast.BinOp):
            return [a + b for a in self._texts(value.left) for b in self._texts(value.right)]
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            return [value.value]
        if isinstance(value, ast.FormattedValue):
            return self._texts(value.value) if isinstance(value.value, ast.Name) else [UNKNOWN]
        if isinstance(value, ast.JoinedStr):
            texts = [""]
            for part in value.values:
                texts = [text + more for text in texts for more in self._texts(part)]
            return texts
        if isinstance(value, ast.Call) and (function := self._functions.get(getattr(value.func, "id", ""))):
            returned = [
                each.value for each in ast.walk(function) if isinstance(each, ast.Return) and each.value
            ]
            return [text for each in returned for text in self._texts(each)]
        if isinstance(value, ast.Name) and isinstance(
            constant := self._constants.get(value.id), (ast.Constant, ast.JoinedStr)
        ):
            return self._texts(constant)
        return [UNKNOWN]


def _is_named(target: ast.expr) -> bool:
    return isinstance(target, ast.Name) and bool(_NAMED.search(target.id))


def _in_yaml(path: Path, file: str) -> Iterator[Remedy]:
    lines = path.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines):
        if "To mend it:" not in line:
            continue
        indent = len(line) - len(line.lstrip())
        text = [line.partition("To mend it:")[2]]
        for further in lines[number + 1 :]:
            if not further.strip() or len(further) - len(further.lstrip()) < indent:
                break
            text.append(further)
        remedy = _shortened(re.sub(r"\{\{.*?\}\}+", UNKNOWN, " ".join(text)))
        yield Remedy(remedy, file, number + 1)


def _shortened(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip().removesuffix(".")
