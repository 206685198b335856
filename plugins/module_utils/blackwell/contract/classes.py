"""Classes of a source tree: where a name of theirs is defined, and what kind of class they are."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import Any

from .source import Module, bindings
from .values import UNKNOWN, Class, External, Member, Scope, Value, options

Lookup = Callable[[ast.expr, Module, Scope], Value]
ENUMS = {"enum.Enum", "enum.IntEnum", "enum.StrEnum", "enum.Flag", "enum.IntFlag"}


class Classes:
    """Looks through classes and their bases.

    Args:
        lookup: the meaning of an expression at the top level of a module.
    """

    def __init__(self, lookup: Lookup) -> None:
        self._lookup = lookup
        self._classes: dict[ast.ClassDef, Class] = {}
        self._orders: dict[Class, list[Value]] = {}
        self._bodies: dict[Class, dict[str, list[Any]]] = {}
        self._enums: dict[Class, bool] = {}

    def of(self, node: ast.ClassDef, module: Module, scope: Scope = ()) -> Class:
        """The one class that this statement makes."""
        return self._classes.setdefault(node, Class(node, module, scope))

    def order(self, cls: Class) -> list[Value]:
        """The class and its bases as Python searches them: each base once, after all classes that name it."""
        if cls not in self._orders:
            self._orders[cls] = [cls]  # a class that names itself through its bases ends here
            order: list[Value] = [cls]
            for node in cls.node.bases:
                generic = node.value if isinstance(node, ast.Subscript) else node
                for base in options(self._lookup(generic, cls.module, cls.scope)):
                    order += self.order(base) if isinstance(base, Class) else [base]
            self._orders[cls] = [base for i, base in enumerate(order) if base not in order[i + 1 :]]
        return self._orders[cls]

    def body(self, cls: Class) -> dict[str, list[Any]]:
        """The statements of a class's own body by the name that they define."""
        if cls not in self._bodies:
            self._bodies[cls] = {
                name: [b[0] for b in bound] for name, bound in bindings(cls.node.body).items()
            }
        return self._bodies[cls]

    def find(
        self, cls: Class, name: str, *, setter: bool = False, after: Class | None = None
    ) -> tuple[Class, Any] | None:
        """The statement that defines a name in the class or its nearest base, and the class whose body holds it.

        Args:
            setter: look for the setter of a property; otherwise setters are passed over.
            after: look only behind this class, as ``super()`` does.
        """
        order = self.order(cls)
        start = order.index(after) + 1 if after in order else len(order) if after else 0
        for base in order[start:]:
            for statement in reversed(self.body(base).get(name, ())) if isinstance(base, Class) else ():
                suffixes = {d.attr for d in _decorators(statement) if isinstance(d, ast.Attribute)}
                if "deleter" not in suffixes and ("setter" in suffixes) is setter:
                    return base, statement
        return None

    def is_enum(self, cls: Class) -> bool:
        if cls not in self._enums:
            self._enums[cls] = any(isinstance(b, External) and b.name in ENUMS for b in self.order(cls))
        return self._enums[cls]

    def members(self, cls: Class) -> list[Member]:
        """The members of an enumeration."""
        assigned = (statement for statement in cls.node.body if isinstance(statement, ast.Assign))
        return [
            Member(cls, t.id) for statement in assigned for t in statement.targets if isinstance(t, ast.Name)
        ]

    def fields(self, cls: Class) -> Iterator[tuple[Class, ast.AnnAssign, str]]:
        """The annotated fields of a dataclass, named tuple or structure, those of its bases first."""
        for base in reversed(self.order(cls)):
            for statement in base.node.body if isinstance(base, Class) else ():
                if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                    yield base, statement, statement.target.id

    def closed(self, cls: Class) -> bool:
        """Whether all bases are known, so that what is not found is not there."""
        return UNKNOWN not in self.order(cls)


def decorated(statement: Any) -> set[str]:
    """The last parts of a function's decorators: ``lru_cache`` for ``@functools.lru_cache(maxsize=1)``."""
    calls = (d.func if isinstance(d, ast.Call) else d for d in _decorators(statement))
    return {d.attr if isinstance(d, ast.Attribute) else getattr(d, "id", "") for d in calls}


def _decorators(statement: Any) -> list[ast.expr]:
    return getattr(statement, "decorator_list", [])
