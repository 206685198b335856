"""What is known about a value: often nothing, sometimes the constant, the object or the function that it is."""

from __future__ import annotations

import ast
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Union

from .source import Module

Scope = tuple[dict[str, Any], ...]
FunctionNode = Union[ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda]


class Unknown:
    """Any value at all."""

    def __repr__(self) -> str:
        return "?"


UNKNOWN = Unknown()


@dataclass(frozen=True)
class Const:
    """A value that is known exactly.

    Attributes:
        value: a number, a string, a truth value or None.
        about: why it is so, where the target model's class is the reason ("... has no attribute x").
    """

    value: Hashable
    about: str = field(default="", compare=False)


NONE, TRUE, FALSE = Const(None), Const(True), Const(False)


@dataclass(frozen=True)
class External:
    """Something of a package whose source is not read, by its dotted name: ``torch.cuda``."""

    name: str


@dataclass(frozen=True)
class Package:
    """A module of the source tree, as a value."""

    module: Module


@dataclass(frozen=True, eq=False)
class Class:
    """A class statement; ``scope`` is what the function that holds it has as local names."""

    node: ast.ClassDef
    module: Module
    scope: Scope = ()

    @property
    def name(self) -> str:
        return self.node.name


@dataclass(frozen=True)
class Member:
    """One member of an enumeration."""

    cls: Class
    name: str


@dataclass(frozen=True, eq=False)
class Function:
    """A function or lambda; ``owner`` is the class whose body holds it."""

    node: FunctionNode
    module: Module
    scope: Scope = ()
    owner: Class | None = None

    @property
    def name(self) -> str:
        return getattr(self.node, "name", "<lambda>")


@dataclass(frozen=True)
class Bound:
    """A function with the object or class that it was taken from."""

    function: Function
    receiver: Any


@dataclass(frozen=True)
class Method:
    """A method of a constant or a container, such as ``append``."""

    receiver: Any
    name: str


@dataclass(frozen=True)
class Super:
    """``super()``: the attributes of ``receiver`` that come after a class in the order of bases."""

    receiver: Any
    after: Class


@dataclass(eq=False)
class Object:
    """An instance of a class of the source tree; ``attributes`` is what was stored on it."""

    cls: Class
    attributes: dict[str, Any] = field(default_factory=dict)


@dataclass(eq=False)
class Model:
    """The target model, or a part of it that its class names.

    Attributes:
        cls: the model class.
        path: how it is reached from the target model: empty for the target itself, else as ``language_model``.
    """

    cls: Class
    path: str = ""


@dataclass(frozen=True)
class ModelMethod:
    """A method of the target model that was taken, but not called; also its signature."""

    model: Model
    name: str
    function: ast.FunctionDef | ast.AsyncFunctionDef

    @property
    def parameters(self) -> set[str]:
        a = self.function.args
        return {x.arg for x in (*a.posonlyargs, *a.args, *a.kwonlyargs)}


REST = "*"


@dataclass(eq=False)
class Bag:
    """A list, tuple, set or dictionary.

    Attributes:
        items: entries by constant key (of a list: by index); ``REST`` joins those whose key is not known.
        exact: whether ``items`` is all that it holds.
        keyed: whether it is a dictionary.
        factory: what makes the value of a missing key, in a ``defaultdict``.
    """

    items: dict[Any, Any]
    exact: bool = True
    keyed: bool = False
    factory: Any = None


def sequence(values: Sequence[Any], exact: bool = True) -> Bag:
    """A list or tuple of these values; not ``exact``: of any number of them in any order."""
    if exact:
        return Bag({Const(i): value for i, value in enumerate(values)})
    return Bag({REST: join(*values)} if values else {}, exact=False)


class OneOf:
    """Several possible values, in the order in which they were found."""

    __slots__ = ("_set", "options")

    def __init__(self, options: tuple[Any, ...]) -> None:
        self.options = options
        self._set = frozenset(options)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OneOf) and self._set == other._set

    def __hash__(self) -> int:
        return hash(self._set)


Value = Any
FORGET = 24  # possible values: of more than this, constants are not kept apart
KEPT = (Object, Model, ModelMethod, Bound, Function, Class, Bag)


def options(value: Value) -> Iterable[Value]:
    """The possible values."""
    return value.options if isinstance(value, OneOf) else (value,)


def join(*values: Value) -> Value:
    """What is known of something that is any one of these."""
    if len(values) == 1:
        return values[0]
    merged = dict.fromkeys(option for value in values for option in options(value))
    if len(merged) == 1:
        return next(iter(merged))
    if len(merged) > FORGET:
        merged = dict.fromkeys(v for v in merged if isinstance(v, KEPT))
        merged[UNKNOWN] = None
    return OneOf(tuple(merged)) if len(merged) > 1 else UNKNOWN


def truth(value: Value) -> bool | None:
    """Whether the value counts as true; None when that is not known."""
    answers = {_truth(option) for option in options(value)}
    return answers.pop() if len(answers) == 1 else None


def _truth(value: Value) -> bool | None:
    if isinstance(value, Const):
        return bool(value.value)
    if isinstance(value, Bag) and value.exact:
        return bool(value.items)
    return True if isinstance(value, (Class, Function, Bound, Member, Package, Model, ModelMethod)) else None


def about(*values: Value) -> str:
    """Why the first of these values is what it is, where the target's class is the reason."""
    notes = (o.about for value in values for o in options(value) if isinstance(o, Const) and o.about)
    return next(notes, "")


def same(left: Value, right: Value) -> bool | None:
    """Whether two values are equal."""
    simple = (Const, Member, Class)
    if isinstance(left, simple) and isinstance(right, simple):
        # A member of an enumeration of strings or numbers may equal one.
        mixed = isinstance(left, Member) != isinstance(right, Member) and NONE not in (left, right)
        return None if mixed else left == right
    if NONE in (left, right):
        other = right if left == NONE else left
        return None if other is UNKNOWN or isinstance(other, (External, Method)) else False
    return True if left is right and isinstance(left, (Object, Model, Function)) else None


def contains(container: Value, element: Value) -> bool | None:
    """Whether ``element in container``."""
    if isinstance(container, ModelMethod) and isinstance(element, Const):
        return bool(container.function.args.kwarg) or element.value in container.parameters
    if isinstance(container, Bag):
        answers = [
            same(element, key) for key in (container.items if container.keyed else container.items.values())
        ]
        if True in answers:
            return True
        return False if container.exact and None not in answers else None
    if isinstance(container, Const) and isinstance(container.value, str) and isinstance(element, Const):
        return isinstance(element.value, str) and element.value in container.value
    return None


_ORDER: dict[type, Any] = {
    ast.Lt: lambda a, b: a < b,
    ast.LtE: lambda a, b: a <= b,
    ast.Gt: lambda a, b: a > b,
    ast.GtE: lambda a, b: a >= b,
}


def compare(operator: ast.cmpop, left: Value, right: Value) -> bool | None:
    """The answer of a comparison, None when it is not known."""
    if isinstance(operator, (ast.In, ast.NotIn)):
        answer = contains(right, left)
    elif isinstance(operator, (ast.Eq, ast.Is, ast.NotEq, ast.IsNot)):
        answer = same(left, right)
    else:
        if not isinstance(left, Const) or not isinstance(right, Const):
            return None
        try:
            return bool(_ORDER[type(operator)](left.value, right.value))
        except TypeError:
            return None
    negative = isinstance(operator, (ast.NotIn, ast.NotEq, ast.IsNot))
    return answer if answer is None or not negative else not answer


_ARITHMETIC: dict[type, Any] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.FloorDiv: lambda a, b: a // b,
    ast.Div: lambda a, b: a / b,
    ast.Mod: lambda a, b: a % b,
}


def arithmetic(operator: ast.operator, left: Value, right: Value) -> Value:
    """The result of an operator between two values."""
    if isinstance(left, Bag) and isinstance(right, Bag):
        return sequence([*left.items.values(), *right.items.values()], left.exact and right.exact)
    if isinstance(left, Const) and isinstance(right, Const) and type(operator) in _ARITHMETIC:
        if isinstance(operator, ast.Mult) and not isinstance(left.value, (int, float)):
            return UNKNOWN  # a repeated string can be very long
        try:
            return Const(_ARITHMETIC[type(operator)](left.value, right.value))
        except (TypeError, ValueError, ZeroDivisionError):
            return UNKNOWN
    return UNKNOWN
