"""Functions of Python itself that the interpreter knows, by dotted name, and methods of plain values, by type."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from .interpreter import Arguments, Interpreter, Known
from .model import Has
from .values import (
    FALSE,
    NONE,
    REST,
    TRUE,
    UNKNOWN,
    Bag,
    Bound,
    Class,
    Const,
    External,
    Function,
    Model,
    ModelMethod,
    Object,
    Super,
    Value,
    about,
    join,
    options,
    sequence,
)

KNOWN: dict[str, Known] = {}


def known(*names: str) -> Callable[[Known], Known]:
    def register(function: Known) -> Known:
        KNOWN.update(dict.fromkeys(names, function))
        return function

    return register


@known("builtins.super")
def _super(run: Interpreter, given: Arguments, node: ast.AST) -> Value:
    frame = run.method()
    return (
        Super(frame.receiver, frame.function.owner)
        if frame and frame.function and frame.function.owner
        else UNKNOWN
    )


@known("builtins.hasattr")
def _hasattr(run: Interpreter, given: Arguments, node: ast.AST) -> Value:
    name = given.text(1)
    return (
        UNKNOWN
        if name is None
        else join(*(_has(run, holder, name, node) for holder in options(given.get(0))))
    )


def _has(run: Interpreter, holder: Value, name: str, node: ast.AST) -> Value:
    if isinstance(holder, Model):
        return run.has_attribute(holder, name, node)
    if isinstance(holder, Object):
        return TRUE if name in holder.attributes or run.classes.find(holder.cls, name) else UNKNOWN
    return run.external.get(f"{holder.name}.{name}?", UNKNOWN) if isinstance(holder, External) else UNKNOWN


@known("builtins.getattr")
def _getattr(run: Interpreter, given: Arguments, node: ast.AST) -> Value:
    name = given.text(1)
    if name is None:
        return UNKNOWN
    default = given.get(2) if len(given.positional) > 2 else None
    return join(*(run.attribute(holder, name, node, default) for holder in options(given.get(0))))


@known("builtins.setattr")
def _setattr(run: Interpreter, given: Arguments, node: ast.AST) -> Value:
    name = given.text(1)
    for holder in options(given.get(0)) if name is not None else ():
        run.set_attribute(holder, str(name), given.get(2), node)
    return NONE


@known("builtins.isinstance")
def _isinstance(run: Interpreter, given: Arguments, node: ast.AST) -> Value:
    wanted = given.get(1)
    classes = run.iterate(wanted) if isinstance(wanted, Bag) else list(options(wanted))
    answers = {_is_instance(run, one, classes or [UNKNOWN]) for one in options(given.get(0))}
    answer = answers.pop() if len(answers) == 1 else None
    return UNKNOWN if answer is None else Const(answer)


def _is_instance(run: Interpreter, value: Value, classes: list[Value]) -> bool | None:
    if isinstance(value, (Object, Model)):
        order = run.classes.order(value.cls)
        if any(cls in order for cls in classes if isinstance(cls, Class)):
            return True
        if not all(isinstance(cls, Class) for cls in classes) or not run.classes.closed(value.cls):
            return None
        protocols = [cls for cls in classes if _is_protocol(run, cls)]
        return (
            any(_conforms(run, value, cls) for cls in protocols)
            if isinstance(value, Model)
            else None
            if protocols
            else False
        )
    if isinstance(value, Const):
        types = [
            getattr(builtins, c.name.rpartition(".")[2], None) if isinstance(c, External) else None
            for c in classes
        ]
        kinds = tuple(kind for kind in types if isinstance(kind, type))
        return isinstance(value.value, kinds) if len(kinds) == len(classes) or value == NONE else None
    return None


def _is_protocol(run: Interpreter, cls: Class) -> bool:
    return any(
        isinstance(base, External) and base.name.endswith(".Protocol") for base in run.classes.order(cls)
    )


def _conforms(run: Interpreter, model: Model, protocol: Class) -> bool:
    """Whether the model has what a protocol names: its instances need not name it as a base."""
    names = [name for name in run.classes.body(protocol) if not name.startswith("_")]
    return all(run.models.offer(model, name).has is not Has.NO for name in names)


@known("builtins.callable")
def _callable(run: Interpreter, given: Arguments, node: ast.AST) -> Value:
    answers = {
        False
        if isinstance(o, Const)
        else True
        if isinstance(o, (Bound, Function, Class, ModelMethod))
        else None
        for o in options(given.get(0))
    }
    answer = answers.pop() if len(answers) == 1 else None
    return UNKNOWN if answer is None else Const(answer, about(given.get(0)))


@known("builtins.type")
def _type(run: Interpreter, given: Arguments, node: ast.AST) -> Value:
    return join(*(o.cls if isinstance(o, (Object, Model)) else UNKNOWN for o in options(given.get(0))))


@known("builtins.bool")
def _bool(run: Interpreter, given: Arguments, node: ast.AST) -> Value:
    holds = run.holds(given.get(0))
    return UNKNOWN if holds is None else Const(holds, about(given.get(0)))


@known("builtins.any")
def _any(run: Interpreter, given: Arguments, node: ast.AST) -> Value:
    values = run.iterate(given.get(0))
    answers = [None] if values is None else [run.holds(value) for value in values]
    return TRUE if True in answers else UNKNOWN if None in answers else FALSE


@known("builtins.all")
def _all(run: Interpreter, given: Arguments, node: ast.AST) -> Value:
    values = run.iterate(given.get(0))
    answers = [None] if values is None else [run.holds(value) for value in values]
    return FALSE if False in answers else UNKNOWN if None in answers else TRUE


@known("builtins.len")
def _len(run: Interpreter, given: Arguments, node: ast.AST) -> Value:
    values = run.iterate(given.get(0))
    return UNKNOWN if values is None else Const(len(values))


@known("builtins.str")
def _str(run: Interpreter, given: Arguments, node: ast.AST) -> Value:
    value = given.get(0)
    return Const(str(value.value)) if isinstance(value, Const) else UNKNOWN


@known("builtins.int", "builtins.float")
def _number(run: Interpreter, given: Arguments, node: ast.AST) -> Value:
    value = given.get(0)
    number: Any = value.value if isinstance(value, Const) else None
    try:
        return Const(int(number))
    except (TypeError, ValueError):
        return UNKNOWN


@known("builtins.dict", "collections.OrderedDict")
def _dict(run: Interpreter, given: Arguments, node: ast.AST) -> Bag:
    bag = Bag({}, exact=bool(given.all), keyed=True)
    for argument in given.positional:
        run.merge(bag, argument)
    for name, value in given.named.items():
        run.put(bag, Const(name), value)
    return bag


@known("collections.defaultdict")
def _defaultdict(run: Interpreter, given: Arguments, node: ast.AST) -> Value:
    bag: Any = _dict(run, replace(given, positional=given.positional[1:]), node)
    bag.factory = given.get(0)
    return bag


@known(
    "builtins.list",
    "builtins.tuple",
    "builtins.set",
    "builtins.frozenset",
    "builtins.iter",
    "builtins.sorted",
    "builtins.reversed",
    "collections.deque",
)
def _list(run: Interpreter, given: Arguments, node: ast.AST) -> Value:
    values = run.iterate(given.get(0))
    return sequence(values) if values else sequence([run.element(given.get(0))], exact=False)


@known("builtins.next")
def _next(run: Interpreter, given: Arguments, node: ast.AST) -> Value:
    return join(run.element(given.get(0)), *given.positional[1:])


@known("functools.partial")
def _partial(run: Interpreter, given: Arguments, node: ast.AST) -> Value:
    # Called at once, with the arguments that are known.
    for function in options(given.get(0)):
        run.call(function, Arguments(given.positional[1:], given.named, more=True), node)
    return UNKNOWN


@known("os.getenv", "os.environ.get")
def _getenv(run: Interpreter, given: Arguments, node: ast.AST) -> Value:
    name = given.text(0)
    if name is None:
        return UNKNOWN
    default = given.get(1) if len(given.positional) > 1 else given.named.get("default", NONE)
    return Const(run.environment[name]) if name in run.environment else default


@known("inspect.signature")
def _signature(run: Interpreter, given: Arguments, node: ast.AST) -> Value:
    methods = [option for option in options(given.get(0)) if isinstance(option, ModelMethod)]
    return methods[0] if methods else UNKNOWN


@known(
    *(
        f"Const.{n}"
        for n in ("lower", "upper", "strip", "lstrip", "rstrip", "startswith", "endswith", "replace")
    )
)
def _text(run: Interpreter, given: Arguments, node: ast.AST) -> Value:
    texts = [given.text(i) for i in range(len(given.positional))]
    if None in texts or not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return UNKNOWN
    try:
        return Const(getattr(texts[0], node.func.attr)(*texts[1:]))
    except TypeError:
        return UNKNOWN


@known("Bag.append", "Bag.add", "Bag.appendleft")
def _append(run: Interpreter, given: Arguments, node: ast.AST) -> Value:
    run.put(given.get(0), UNKNOWN, given.get(1))
    return NONE


@known("Bag.extend", "Bag.update")
def _extend(run: Interpreter, given: Arguments, node: ast.AST) -> Value:
    bag: Bag = given.get(0)
    for argument in given.positional[1:]:
        if bag.keyed:
            run.merge(bag, argument)
        else:
            run.put(bag, UNKNOWN, run.element(argument))
    for name, value in given.named.items():
        run.put(bag, Const(name), value)
    return NONE


@known("Bag.get", "Bag.pop", "Bag.popleft", "Bag.setdefault")
def _get(run: Interpreter, given: Arguments, node: ast.AST) -> Value:
    bag: Bag = given.get(0)
    if not bag.keyed or len(given.positional) < 2:
        return run.element(bag)
    key, default = given.get(1), given.get(2) if len(given.positional) > 2 else NONE
    if key in bag.items:
        return run.entry(bag, key, node)
    return default if bag.exact and isinstance(key, Const) else join(run.entry(bag, key, node), default)


@known("Bag.values")
def _values(run: Interpreter, given: Arguments, node: ast.AST) -> Value:
    bag: Bag = given.get(0)
    return sequence(list(bag.items.values()), bag.exact)


@known("Bag.keys")
def _keys(run: Interpreter, given: Arguments, node: ast.AST) -> Value:
    bag: Bag = given.get(0)
    return sequence([UNKNOWN if key is REST else key for key in bag.items], bag.exact)


@known("Bag.items")
def _items(run: Interpreter, given: Arguments, node: ast.AST) -> Value:
    bag: Bag = given.get(0)
    return sequence(
        [sequence([UNKNOWN if k is REST else k, value]) for k, value in bag.items.items()], bag.exact
    )


@known("Bag.copy")
def _copy(run: Interpreter, given: Arguments, node: ast.AST) -> Value:
    bag: Bag = given.get(0)
    return Bag(dict(bag.items), bag.exact, bag.keyed, bag.factory)
