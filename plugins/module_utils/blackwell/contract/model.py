"""What a model class offers to those who hold an instance of it, read from its source."""

from __future__ import annotations

import ast
import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Optional, Union

from .classes import Classes, Lookup, decorated
from .source import Module, SourceTree
from .values import UNKNOWN, Class, External, Model, Value

FunctionDef = Union[ast.FunctionDef, ast.AsyncFunctionDef]
Stored = dict[str, list[Optional[ast.expr]]]

# Public attributes of torch.nn.Module (PyTorch 2.9 to 2.13), for source trees that come without PyTorch.
NN_MODULE = frozenset(
    [
        "T_destination",
        "add_module",
        "apply",
        "bfloat16",
        "buffers",
        "call_super_init",
        "children",
        "compile",
        "cpu",
        "cuda",
        "double",
        "dump_patches",
        "eval",
        "extra_repr",
        "float",
        "forward",
        "get_buffer",
        "get_extra_state",
        "get_parameter",
        "get_submodule",
        "half",
        "ipu",
        "load_state_dict",
        "modules",
        "mtia",
        "named_buffers",
        "named_children",
        "named_modules",
        "named_parameters",
        "parameters",
        "register_backward_hook",
        "register_buffer",
        "register_forward_hook",
        "register_forward_pre_hook",
        "register_full_backward_hook",
        "register_full_backward_pre_hook",
        "register_load_state_dict_post_hook",
        "register_load_state_dict_pre_hook",
        "register_module",
        "register_parameter",
        "register_state_dict_post_hook",
        "register_state_dict_pre_hook",
        "requires_grad_",
        "set_extra_state",
        "set_submodule",
        "share_memory",
        "state_dict",
        "to",
        "to_empty",
        "train",
        "training",
        "type",
        "xpu",
        "zero_grad",
    ]
)
# Base classes that add no public attribute.
PLAIN = frozenset({"object", "abc.ABC", "typing.Generic", "typing.Protocol", "typing_extensions.Protocol"})


class Has(enum.Enum):
    """Whether an instance has an attribute; ``PERHAPS`` when the source does not tell."""

    YES = "yes"
    NO = "no"
    PERHAPS = "perhaps"


@dataclass
class Offer:
    """What reading one attribute of a model instance gives.

    Attributes:
        has: whether it is there.
        value: what it is, as far as known.
        function: the method or property behind it, if there is one.
        module: where that function is.
        called: whether ``function`` is a method, to be called, rather than a property.
        bound: whether the first parameter is already given.
    """

    has: Has
    value: Value = UNKNOWN
    function: FunctionDef | None = None
    module: Module | None = None
    called: bool = False
    bound: bool = True


class ModelClasses:
    """Answers what instances of model classes have, following bases, instance attributes and delegation."""

    def __init__(self, tree: SourceTree, classes: Classes, lookup: Lookup) -> None:
        self._classes = classes
        self._lookup = lookup
        self._instance: dict[Class, Stored] = {}
        self._open: dict[Class, bool] = {}
        self._parts: dict[tuple[Class, str], Model] = {}
        self._asking: set[tuple[Model, str]] = set()
        torch = tree.module("torch.nn.modules.module")
        modules = (
            [n for n in torch.tree.body if isinstance(n, ast.ClassDef) and n.name == "Module"]
            if torch
            else []
        )
        self._nn_module = NN_MODULE.union(*(_class_names(node) for node in modules))

    def offer(self, model: Model, name: str) -> Offer:
        """What reading this attribute of the model (or of a part of it) gives."""
        if name.startswith("_"):
            return Offer(Has.PERHAPS)  # private: no contract
        if (model, name) in self._asking:
            return Offer(Has.PERHAPS)  # attributes that are defined by each other
        self._asking.add((model, name))
        try:
            return self._offer(model, name)
        finally:
            self._asking.remove((model, name))

    def _offer(self, model: Model, name: str) -> Offer:
        delegates: list[str] = []
        unsure = False
        for base in self._classes.order(model.cls):
            if isinstance(base, Class):
                found = self._in_class(base, name, model)
                if found:
                    return found
                delegates += _getattr_delegates(base.node)
                unsure = unsure or self._sets_any_attribute(base)
            elif (
                isinstance(base, External)
                and base.name.startswith("torch.nn.")
                and base.name.endswith(".Module")
            ):
                if name in self._nn_module:
                    return Offer(Has.YES)
            elif not (isinstance(base, External) and base.name in PLAIN):
                unsure = True
        for delegate in delegates:
            inner = self.offer(model, delegate).value if delegate else UNKNOWN
            answer = self.offer(inner, name) if isinstance(inner, Model) else Offer(Has.PERHAPS)
            if answer.has is not Has.NO:
                return answer
        return Offer(Has.PERHAPS if unsure else Has.NO)

    def parts(self, model: Model) -> dict[str, Model]:
        """The parts of the model whose class is known, by attribute name."""
        names = [
            name
            for base in self._classes.order(model.cls)
            if isinstance(base, Class)
            for name in self._stored(base)
        ]
        values = {name: self.offer(model, name).value for name in dict.fromkeys(names)}
        return {name: value for name, value in values.items() if isinstance(value, Model)}

    def complaint(self, model: Model, name: str, call: ast.Call | None) -> str:
        """Why this use of an attribute would fail, or an empty string.

        Args:
            call: the call that is made of it, when it is called.
        """
        offer = self.offer(model, name)
        if offer.has is Has.NO:
            return f"{model.cls.name} has no attribute {name}"
        if offer.function is None:
            return ""
        if call is not None and offer.called:
            wrong = arity_error(offer.function, call, bound=offer.bound)
            if wrong:
                return f"{model.cls.name}.{name} {wrong}"
        return self._delegate_complaint(model, name, offer)

    def _delegate_complaint(self, model: Model, name: str, offer: Offer) -> str:
        """The same question to the part that a one-line method hands over to."""
        handed = _delegation(offer.function) if offer.function else None
        if not handed:
            return ""
        path, call = handed
        inner: Value = model
        for step in path[:-1]:
            found = self.offer(inner, step)
            if found.has is Has.NO:
                return f"{model.cls.name}.{name} reads {step}, and {inner.cls.name} has no attribute {step}"
            if not isinstance(found.value, Model):
                return ""
            inner = found.value
        reason = self.complaint(inner, path[-1], call) if inner is not model else ""
        return f"{model.cls.name}.{name} hands over to {'.'.join(path)}, but {reason}" if reason else ""

    def _in_class(self, cls: Class, name: str, model: Model) -> Offer | None:
        for node in reversed(self._classes.body(cls).get(name, ())):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                decorators = decorated(node)
                if decorators & {"setter", "deleter"}:
                    continue
                read = bool(decorators & {"property", "cached_property"})
                value = self._returned(node, model, cls) if read else UNKNOWN
                return Offer(
                    Has.YES, value, node, cls.module, called=not read, bound="staticmethod" not in decorators
                )
            if not isinstance(node, ast.AnnAssign) or node.value is not None:
                return Offer(Has.YES)
        stored = self._stored(cls).get(name)
        if stored is not None:
            values = {self._part(expression, model, cls, name) for expression in stored}
            known = [value for value in values if isinstance(value, Model)]
            return Offer(Has.YES, known[0] if len(values) == 1 and known else UNKNOWN)
        for statement in cls.module.tree.body:  # Class.name = ... beside the class
            if isinstance(statement, ast.Assign):
                for target in statement.targets:
                    if isinstance(target, ast.Attribute) and ast.unparse(target) == f"{cls.name}.{name}":
                        return Offer(Has.YES)
        return None

    def _returned(self, node: FunctionDef, model: Model, cls: Class) -> Value:
        body = _without_docstring(node.body)
        if len(body) == 1 and isinstance(body[0], ast.Return) and body[0].value is not None:
            return self._part(body[0].value, model, cls, "")
        return UNKNOWN

    def _part(self, expression: ast.expr | None, model: Model, cls: Class, name: str) -> Value:
        """The part of the model that an expression in its class stands for: a construction, or a path from self."""
        if isinstance(expression, ast.Call):
            made = self._lookup(expression.func, cls.module, cls.scope)
            if not isinstance(made, Class):
                return UNKNOWN
            path = f"{model.path}.{name}".strip(".")
            return self._parts.setdefault((made, path), Model(made, path))
        steps = _self_path(expression)
        value: Value = model
        for step in steps or ():
            if not isinstance(value, Model):
                return UNKNOWN
            value = self.offer(value, step).value
        return value if steps else UNKNOWN

    def _stored(self, cls: Class) -> Stored:
        """Instance attributes that the class's own methods store, with what they store where that is one value."""
        if cls not in self._instance:
            stored: Stored = {}
            for function in _functions(cls.node):
                for name, expression in _self_stores(function):
                    stored.setdefault(name, []).append(expression)
            self._instance[cls] = stored
        return self._instance[cls]

    def _sets_any_attribute(self, cls: Class) -> bool:
        """Whether the class stores attributes under names that are only known when it runs."""
        if cls not in self._open:
            self._open[cls] = any(
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id == "setattr"
                and len(node.args) == 3
                and _is_self(node.args[0])
                and not isinstance(node.args[1], ast.Constant)
                for function in _functions(cls.node)
                for node in ast.walk(function)
            )
        return self._open[cls]


def arity_error(function: FunctionDef, call: ast.Call, *, bound: bool = True) -> str:
    """Why Python would refuse to call the function like this, or an empty string."""
    if any(isinstance(a, ast.Starred) for a in call.args) or any(k.arg is None for k in call.keywords):
        return ""
    a = function.args
    positional = [x.arg for x in (*a.posonlyargs, *a.args)][1 if bound else 0 :]
    required = positional[: len(positional) - len(a.defaults)] if len(a.defaults) <= len(positional) else []
    given = {k.arg for k in call.keywords}
    if len(call.args) > len(positional) and not a.vararg:
        return f"takes {len(positional)} positional arguments, but the caller gives {len(call.args)}"
    missing = [name for name in required[len(call.args) :] if name not in given]
    missing += [
        x.arg for x, default in zip(a.kwonlyargs, a.kw_defaults) if default is None and x.arg not in given
    ]
    if missing:
        return f"needs {', '.join(missing)}, which the caller does not give (a default is missing)"
    names = {*positional, *(x.arg for x in a.kwonlyargs)}
    unknown = sorted(str(name) for name in given - names) if not a.kwarg else []
    return f"has no parameter {', '.join(unknown)}, which the caller gives" if unknown else ""


def _delegation(function: FunctionDef) -> tuple[list[str], ast.Call | None] | None:
    """``return self.a.b(...)`` or ``return self.a.b`` as the whole body: the path below self, and the call."""
    body = _without_docstring(function.body)
    if len(body) != 1 or not isinstance(body[0], (ast.Return, ast.Expr)) or body[0].value is None:
        return None
    expression = body[0].value
    call = expression if isinstance(expression, ast.Call) else None
    path = _self_path(call.func if call else expression)
    return (path, call) if path and len(path) > 1 else None


def _without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    first = body[0]
    if (
        isinstance(first, ast.Expr)
        and isinstance(first.value, ast.Constant)
        and isinstance(first.value.value, str)
    ):
        return body[1:]
    return body


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def _self_path(node: ast.expr | None) -> list[str] | None:
    """``["a", "b"]`` for ``self.a.b``."""
    path: list[str] = []
    while isinstance(node, ast.Attribute):
        path.append(node.attr)
        node = node.value
    return path[::-1] if path and node is not None and _is_self(node) else None


def _class_names(node: ast.ClassDef) -> Iterator[str]:
    for statement in node.body:
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield statement.name
        elif isinstance(statement, ast.Assign):
            yield from (t.id for t in statement.targets if isinstance(t, ast.Name))
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            yield statement.target.id


def _functions(node: ast.ClassDef) -> Iterator[FunctionDef]:
    for statement in ast.walk(node):
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield statement


REGISTERS = {"register_buffer", "register_parameter", "add_module", "register_module", "setattr"}


def _self_stores(function: FunctionDef) -> Iterator[tuple[str, ast.expr | None]]:
    """The names that a method stores on self, with the value where one expression is stored under one name."""
    values: dict[ast.expr, ast.expr] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            values.update((target, node.value) for target in node.targets)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            values[node.target] = node.value
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_self(node.value):
            yield node.attr, values.get(node)
        elif isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            arguments = node.args[1:] if called == "setattr" else node.args
            if called in REGISTERS and arguments and isinstance(arguments[0], ast.Constant):
                yield str(arguments[0].value), arguments[1] if len(arguments) > 1 else None


def _getattr_delegates(node: ast.ClassDef) -> list[str]:
    """Where the class's ``__getattr__`` looks: names below self, or an empty name when that is not plain."""
    for statement in node.body:
        if isinstance(statement, ast.FunctionDef) and statement.name == "__getattr__":
            asked = statement.args.args[-1].arg
            found = []
            for call in ast.walk(statement):
                if (
                    isinstance(call, ast.Call)
                    and isinstance(call.func, ast.Name)
                    and call.func.id == "getattr"
                ):
                    path = _self_path(call.args[0])
                    plain = (
                        path
                        and len(path) == 1
                        and isinstance(call.args[1], ast.Name)
                        and call.args[1].id == asked
                    )
                    found.append(path[0] if path and plain else "")
            return found or [""]
    return []
