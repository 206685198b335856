"""Model classes of a release, read from their sources: what an instance has, by its own body and by its bases."""

from __future__ import annotations

import ast
import re
import warnings
from dataclasses import dataclass
from pathlib import Path

from .errors import OperatorError
from .interpreter import ask_interpreter

_Function = (ast.FunctionDef, ast.AsyncFunctionDef)

# What SGLang uses of a model and every module of PyTorch has (torch.nn.Module, PyTorch 2.9 to 2.13).
_NN_MODULE = frozenset(
    {
        "forward",
        "modules",
        "named_modules",
        "named_parameters",
        "parameters",
        "buffers",
        "named_buffers",
        "to",
    }
    | {
        "state_dict",
        "load_state_dict",
        "eval",
        "train",
        "training",
        "apply",
        "get_parameter",
        "get_submodule",
    }
)
# Bases that add no public attribute. Every other base has to be read, or it is said that the class was not checked.
_PLAIN = frozenset({"nn.Module", "torch.nn.Module", "object", "ABC", "abc.ABC", "Generic", "Protocol"})

# The interpreter is asked, so a virtual environment, an editable install and a checkout all work.
_PROBE = """
import importlib.util
spec = importlib.util.find_spec("sglang")
answer = list(spec.submodule_search_locations) if spec else []
"""


def source_root(python: Path) -> Path:
    """The folder that holds the ``sglang`` which this interpreter would import.

    Raises:
        OperatorError: there is no such interpreter, or it has no ``sglang``.
    """
    remedy = "name the interpreter of a release that is staged, or stage it"
    for place in ask_interpreter(python, _PROBE, remedy=remedy):
        if (Path(place) / "srt").is_dir():
            return Path(place).parent
    raise OperatorError(
        f"{python} has no sglang",
        found="no module of that name",
        expected="an installed sglang",
        remedy=remedy,
    )


class SourceTree:
    """The packages below one folder, such as a ``site-packages`` or the ``python`` folder of a checkout.

    Args:
        root: the folder that holds ``sglang``.

    Raises:
        OperatorError: there is no ``sglang`` package in it.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.srt = root / "sglang" / "srt"
        self.version = next((m.name[7:-10] for m in sorted(root.glob("sglang-*.dist-info"))), "")
        self._parsed: dict[Path, ast.Module] = {}
        if not self.srt.is_dir():
            raise OperatorError(
                "No SGLang source to read the contract from",
                found=f"no folder {self.srt}",
                expected="the folder that holds the installed package sglang",
                remedy="stage the release first, or name its interpreter or source root",
            )

    def parse(self, path: Path) -> ast.Module:
        """The syntax tree of a file.

        Raises:
            OperatorError: the file is not source that this Python understands.
        """
        if path not in self._parsed:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # about the style of other people's strings
                    self._parsed[path] = ast.parse(path.read_bytes())
            except (OSError, SyntaxError, ValueError, RecursionError) as error:
                raise OperatorError(
                    f"Cannot parse {path}",
                    found=str(error),
                    expected="source that this Python understands",
                    remedy="run the check with the release's own Python, or stage the release anew",
                ) from error
        return self._parsed[path]


@dataclass(frozen=True)
class ModelClass:
    """A class, and the file that it is in."""

    path: Path
    node: ast.ClassDef


# Stands for attributes whose names are worked out while the program runs.
_ANY_NAME = "setattr with a computed name"
_STORES = re.compile(r"(self\.register_\w+|setattr)$")


class ModelClasses:
    """What classes of a release offer, by their own body and their bases."""

    def __init__(self, tree: SourceTree) -> None:
        self._tree = tree

    def find_model(self, architecture: str) -> ModelClass:
        """The class that the release registers under this name.

        Raises:
            OperatorError: the release registers none.
        """
        folder = self._tree.srt / "models"
        registers = re.compile(rf"^EntryClass\b[^#]*\b{re.escape(architecture)}\b".encode(), re.MULTILINE)
        for path in sorted(folder.rglob("*.py")):
            if registers.search(path.read_bytes()):
                for node in self._tree.parse(path).body:
                    if isinstance(node, ast.ClassDef) and node.name == architecture:
                        return ModelClass(path, node)
        raise OperatorError(
            f"SGLang {self._tree.version} has no model class {architecture}".replace("  ", " "),
            found=f"no EntryClass of that name in {folder}",
            expected="the class that config.json names under architectures",
            remedy="use a release that has the model, or correct the model's path",
        )

    def lineage(self, cls: ModelClass) -> list[ModelClass | str]:
        """A class and its bases, nearest first; a base that cannot be read is there by its name."""
        order: list[ModelClass | str] = [cls]
        for base in cls.node.bases:
            name = ast.unparse(base.value if isinstance(base, ast.Subscript) else base)
            if name in _PLAIN:
                continue
            found = self._resolve(cls.path, name)
            order += self.lineage(found) if found and found.node is not cls.node else [name]
        return order

    def members(self, cls: ModelClass) -> dict[str, ast.AST]:
        """What a class body and ``self.NAME = ...`` in its methods give, by name."""
        found: dict[str, ast.AST] = {}
        for node in cls.node.body:
            if isinstance(node, (ast.Assign, ast.AnnAssign)):
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    found.update({leaf.id: node for leaf in ast.walk(target) if isinstance(leaf, ast.Name)})
            elif isinstance(node, _Function):
                found[node.name] = node
        for leaf in ast.walk(cls.node):
            if isinstance(leaf, ast.Attribute) and isinstance(leaf.ctx, ast.Store) and _is_self(leaf.value):
                found.setdefault(leaf.attr, leaf)
            elif isinstance(leaf, ast.Call) and _STORES.match(ast.unparse(leaf.func)):
                names = [argument.value for argument in leaf.args[:2] if isinstance(argument, ast.Constant)]
                found.setdefault(str(names[0]) if names else _ANY_NAME, leaf)
        return found

    def parts(self, cls: ModelClass) -> list[tuple[str, ModelClass]]:
        """The modules that a model holds, as ``self.language_model = DeepseekV3ForCausalLM(...)`` says."""
        found: list[tuple[str, ModelClass]] = []
        for owner in self.lineage(cls):
            for node in ast.walk(owner.node) if isinstance(owner, ModelClass) else ():
                if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
                    continue
                made = self._resolve(owner.path, ast.unparse(node.value.func))  # type: ignore[union-attr]
                for target in node.targets:
                    if made and isinstance(target, ast.Attribute) and _is_self(target.value):
                        found.append((target.attr, made))
        return found

    def lookup(self, cls: ModelClass, name: str) -> tuple[ast.AST | None, list[str]]:
        """Where a class gets a name from, and what could not be read on the way where it does not have the name."""
        unread: list[str] = []
        for owner in self.lineage(cls):
            if isinstance(owner, str):
                unread.append(f"the base {owner}")
                continue
            members = self.members(owner)
            if name in members:
                return members[name], []
            unread += [f"{way} of {owner.node.name}" for way in ("__getattr__", _ANY_NAME) if way in members]
        return (cls.node, []) if name in _NN_MODULE else (None, unread)

    def _resolve(self, path: Path, name: str) -> ModelClass | None:
        """The class of this name as a file sees it: its own, or one that it imports from a package of the release."""
        head, _, attribute = name.partition(".")
        for node in ast.walk(self._tree.parse(path)):
            if isinstance(node, ast.ClassDef) and node.name == name:
                return ModelClass(path, node)
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    if (alias.asname or alias.name) != head:
                        continue
                    file = self._file(path, node, alias.name if attribute else "")
                    return self._resolve(file, attribute or alias.name) if file and file != path else None
        return None

    def _file(self, path: Path, node: ast.ImportFrom, submodule: str) -> Path | None:
        start = path.parents[node.level - 1] if node.level else self._tree.root
        base = start.joinpath(*[part for part in f"{node.module or ''}.{submodule}".split(".") if part])
        places = (base.with_name(f"{base.name}.py"), base / "__init__.py")
        return next((file for file in places if file.is_file()), None)


def _is_self(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"
