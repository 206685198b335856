"""An installed package as syntax trees: found and parsed, never imported."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ..errors import OperatorError

# A name can be bound more than once, under conditions: (statement, ((test, wanted), ...)).
Guards = tuple[tuple[ast.expr, bool], ...]
Binding = tuple[ast.AST, Guards]


@dataclass(eq=False)
class Module:
    """One source file.

    Attributes:
        name: dotted name.
        path: the file.
        is_package: whether it is an ``__init__.py``: relative imports start one level deeper.
        mentions_model: whether it reads an attribute ``model`` of anything.
    """

    name: str
    path: Path
    tree: ast.Module
    is_package: bool
    mentions_model: bool = False

    @cached_property
    def bindings(self) -> dict[str, list[Binding]]:
        """Every statement of the top level that binds a name, in order."""
        return bindings(self.tree.body)

    @cached_property
    def star_imports(self) -> list[str]:
        return [
            self.absolute(node)
            for node in self.tree.body
            if isinstance(node, ast.ImportFrom) and node.names[0].name == "*"
        ]

    def absolute(self, node: ast.ImportFrom) -> str:
        """The dotted name that a ``from ... import`` of this module refers to."""
        if not node.level:
            return node.module or ""
        parts = self.name.split(".")
        keep = len(parts) - node.level + (1 if self.is_package else 0)
        return ".".join([*parts[:keep], *([node.module] if node.module else [])])


def bindings(body: list[ast.stmt], guards: Guards = ()) -> dict[str, list[Binding]]:
    """The names that these statements bind, following ``if``, ``try`` and ``with`` but not functions."""
    found: dict[str, list[Binding]] = {}
    for name, binding in _bindings(body, guards):
        found.setdefault(name, []).append(binding)
    return found


def _bindings(body: list[ast.stmt], guards: Guards) -> Iterator[tuple[str, Binding]]:
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name, (node, guards)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                yield alias.asname or alias.name.split(".")[0], (node, guards)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                for leaf in ast.walk(target):
                    if isinstance(leaf, ast.Name) and isinstance(leaf.ctx, ast.Store):
                        yield leaf.id, (node, guards)
        elif isinstance(node, ast.If):
            yield from _bindings(node.body, (*guards, (node.test, True)))
            yield from _bindings(node.orelse, (*guards, (node.test, False)))
        elif isinstance(node, ast.Try):
            # The body is what happens normally; a handler only binds what the body does not.
            bound = set()
            for name, binding in _bindings([*node.body, *node.orelse, *node.finalbody], guards):
                bound.add(name)
                yield name, binding
            for handler in node.handlers:
                yield from (b for b in _bindings(handler.body, guards) if b[0] not in bound)
        elif isinstance(node, ast.With):
            yield from _bindings(node.body, guards)


class SourceTree:
    """The packages below one folder, such as a ``site-packages`` or the ``python`` folder of a checkout.

    Args:
        root: the folder that holds ``sglang``.

    Raises:
        OperatorError: there is no ``sglang`` package in it.
    """

    def __init__(self, root: Path) -> None:
        self.root = Path(root)
        self._modules: dict[str, Module | None] = {}
        if not (self.root / "sglang" / "srt").is_dir():
            raise OperatorError(
                "No SGLang source to read the contract from",
                found=f"no folder {self.root / 'sglang' / 'srt'}",
                expected="the folder that holds the installed package sglang",
                remedy="stage the release first, or name its interpreter or source root",
            )

    def module(self, name: str) -> Module | None:
        """The module of this dotted name, or None when this folder does not hold its source."""
        if name not in self._modules:
            self._modules[name] = self._load(name)
        return self._modules[name]

    def loaded(self) -> list[Module]:
        """The modules that were asked for so far."""
        return [module for module in self._modules.values() if module]

    @cached_property
    def version(self) -> str:
        """The release, from the metadata beside the package or the package's own file; empty when neither says."""
        for metadata in sorted(self.root.glob("sglang-*.dist-info")):
            return metadata.name[len("sglang-") : -len(".dist-info")]
        own = self.root / "sglang" / "_version.py"
        found = (
            re.search(r"^__version__ = .*?['\"]([^'\"]+)['\"]", own.read_text(), re.MULTILINE)
            if own.is_file()
            else None
        )
        return found[1] if found else ""

    def submodules(self, name: str) -> list[str]:
        """The dotted names of a package's modules, without those of its packages."""
        return [
            f"{name}.{path.stem}"
            for path in sorted(self.folder(name).glob("*.py"))
            if path.stem != "__init__"
        ]

    def folder(self, name: str) -> Path:
        return self.root.joinpath(*name.split("."))

    def relative(self, path: Path) -> str:
        return str(path.relative_to(self.root))

    def _load(self, name: str) -> Module | None:
        base = self.folder(name)
        for path, is_package in ((base / "__init__.py", True), (base.with_name(base.name + ".py"), False)):
            if path.is_file():
                source = path.read_bytes()
                try:
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")  # about the style of other people's strings
                        tree = ast.parse(source)
                except SyntaxError as error:
                    raise OperatorError(
                        f"Cannot parse {path}",
                        found=f"line {error.lineno}: {error.msg}",
                        expected="source that this Python understands",
                        remedy="run the check with the release's own Python, or reinstall the package",
                    ) from error
                return Module(name, path, tree, is_package, bool(re.search(rb"\.model\b", source)))
        if base.is_dir():
            return Module(name, base, ast.Module(body=[], type_ignores=[]), True)
        return None


def source_root(python: Path) -> Path:
    """The folder that holds the ``sglang`` which this interpreter would import.

    The interpreter is asked, so a virtual environment, an editable install and a checkout all work; ``sglang``
    itself is not imported.

    Raises:
        OperatorError: there is no such interpreter, or it has no ``sglang``.
    """
    code = (
        "import importlib.util, json; spec = importlib.util.find_spec('sglang');"
        "print(json.dumps(list(spec.submodule_search_locations) if spec else []))"
    )
    remedy = "name the interpreter of a release that is staged, or stage it"
    try:
        # -I: neither the working folder nor PYTHONPATH of whoever runs this decides.
        done = subprocess.run([str(python), "-I", "-c", code], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise OperatorError(
            f"Cannot ask {python} where its sglang is",
            found=getattr(error, "stderr", "") or str(error),
            expected="an interpreter that runs",
            remedy=remedy,
        ) from error
    for place in json.loads(done.stdout.strip().splitlines()[-1]):
        if (Path(place) / "srt").is_dir():
            return Path(place).parent
    raise OperatorError(
        f"{python} has no sglang",
        found="no module of that name",
        expected="an installed sglang",
        remedy=remedy,
    )
