"""Runs the start of an SGLang server on paper: which code would run, on which objects, under which conditions.

An abstract interpreter. It executes statements on values of which little is known; where a condition is unknown, both
branches run from the same state, and what they stored is joined afterwards. It serves one question, what the target
model is used for, and so it looks into too much code rather than too little.
"""

from __future__ import annotations

import ast
import builtins
import enum
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Optional

from .classes import Classes, decorated
from .model import Has, ModelClasses
from .source import Binding, Module, SourceTree
from .values import (
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
    Member,
    Method,
    Model,
    ModelMethod,
    Object,
    Package,
    Scope,
    Super,
    Unknown,
    Value,
    about,
    arithmetic,
    compare,
    join,
    options,
    sequence,
    truth,
)

# Code about tensors, memory, files, other machines and other hardware. A module of these packages is looked into only
# where its text mentions a ``.model`` at all, where it is handed the model, and where it answers a question of which
# code is to run.
OPAQUE = tuple(
    f"sglang.{name}."
    for name in (
        "jit_kernel",
        "kernels",
        "srt.connector",
        "srt.constrained",
        "srt.debug_utils",
        "srt.disaggregation",
        "srt.distributed",
        "srt.hardware_backend",
        "srt.layers",
        "srt.mem_cache",
        "srt.metrics",
        "srt.model_loader",
        "srt.multimodal",
        "srt.observability",
        "srt.sampling",
        "srt.tracing",
        "srt.utils.hf_transformers",
    )
)
DECIDES = ("sglang.srt.layers.cp.",)  # context parallelism: which way a batch takes
PREDICATES = ("is_", "enable_", "should_", "use_", "require_")
DEPTH = 120  # calls inside calls
UNROLL = 16  # a loop over more elements runs once, over any one of them
ROUNDS = 4  # of an endless loop
SMALL = (
    120  # syntax nodes: a function of this size runs at each call, a larger one twice with the same arguments
)
ENVIRON = External("os.environ")

Written = list[tuple[dict[Any, Any], Any, Value]]
Asked = frozenset[tuple[Model, str]]


@dataclass(frozen=True)
class Guard:
    """A condition that the code in question stands under.

    Attributes:
        text: the source of it; empty if it is an assertion, which is no choice.
        known: whether the flags decide it; if not, it is assumed to hold.
        reason: why it holds, where the target's class is the reason.
        members: the members of an enumeration for which it holds, where it asks for that.
        asked: attributes of the model whose presence it asks for.
    """

    text: str
    known: bool
    reason: str = ""
    members: frozenset[Member] = frozenset()
    asked: Asked = frozenset()


@dataclass(frozen=True)
class Use:
    """One use of the target model.

    Attributes:
        model: the model, or the part of it that is used.
        name: the attribute.
        call: the call made of it, if it is called.
        module: where.
        line: where.
        function: in which function, with its class.
        conditions: the conditions inside that function.
        members: for each condition that asks for members of an enumeration, those for which it holds.
        optional: whether its absence is provided for (hasattr, getattr with a default, except).
        refusal: what SGLang's own refusal says, where the use is a check that ends in an exception.
    """

    model: Model
    name: str
    call: ast.Call | None
    module: Module
    line: int
    function: str
    conditions: tuple[str, ...]
    members: frozenset[frozenset[Member]]
    optional: bool = False
    refusal: str = ""


@dataclass(frozen=True)
class Arguments:
    """Arguments of a call; ``more``: others follow that are not known."""

    positional: tuple[Value, ...] = ()
    named: dict[str, Value] = field(default_factory=dict)
    more: bool = False

    @property
    def all(self) -> tuple[Value, ...]:
        return (*self.positional, *self.named.values())

    def get(self, index: int) -> Value:
        """One positional argument."""
        return self.positional[index] if index < len(self.positional) else UNKNOWN

    def text(self, index: int) -> str | None:
        """One positional argument, if it is a known string."""
        value = self.get(index)
        return value.value if isinstance(value, Const) and isinstance(value.value, str) else None


class End(enum.Enum):
    """How a path of a function ended before the last statement."""

    LEFT = "return, break or continue"
    RAISED = "an exception"


@dataclass
class Frame:
    """One running function, or the top level of a module.

    Attributes:
        left: what was stored on paths that ended early; it may have happened.
        caught: for each ``try`` around the present statement, whether an AttributeError ends there.
    """

    module: Module
    function: Function | None = None
    receiver: Value = None
    scope: Scope = ()
    locals: dict[str, Value] = field(default_factory=dict)
    globals: set[str] = field(default_factory=set)
    returned: list[Value] = field(default_factory=list)
    left: list[Written] = field(default_factory=list)
    guards: list[Guard] = field(default_factory=list)
    caught: list[bool] = field(default_factory=list)
    end: End | None = None

    @property
    def name(self) -> str:
        if self.function is None:
            return self.module.name
        return (
            f"{self.function.owner.name}.{self.function.name}" if self.function.owner else self.function.name
        )


Known = Callable[["Interpreter", Arguments, ast.AST], Optional[Value]]


class Interpreter:
    """Executes functions of a source tree.

    Args:
        tree: the sources.
        environment: the server's environment variables.
        external: values by dotted name, of packages whose source is not read; ``torch.npu?`` is whether there is one.
        known: functions by dotted name that do not have to be read.
        model_of: the target model, where an attribute of an object holds it; else None.

    Attributes:
        facts: values by attribute name, for objects of which nothing is known.
        uses: every use of the target model that was seen.
        produced: the members of enumerations that some code that runs makes use of.
        entered: the functions that ran.
    """

    def __init__(
        self,
        tree: SourceTree,
        *,
        environment: dict[str, str],
        external: dict[str, Value],
        known: dict[str, Known],
        model_of: Callable[[Object, str], Value | None],
    ) -> None:
        self.tree = tree
        self.environment = environment
        self.external = external
        self.known = known
        self.model_of = model_of
        self.facts: dict[str, Value] = {}
        self.classes = Classes(self.lookup)
        self.models = ModelClasses(tree, self.classes, self.lookup)
        self.uses: dict[Use, None] = {}
        self.produced: set[Member] = set()
        self.entered: dict[ast.AST, Function] = {}
        self._globals: dict[Module, dict[str, Value]] = {}
        self._stack: list[Frame] = []
        self._trail: list[tuple[dict[Any, Any], Any, Value]] = []
        self._objects: dict[tuple[Any, ...], Object] = {}
        self._class_values: dict[tuple[Class, str], Value] = {}
        self._runs: dict[tuple[Any, ...], tuple[int, Value]] = {}
        self._comparing = False
        self._reasons: dict[str, tuple[Model, str]] = {}
        self._asked: set[tuple[Model, str]] = set()
        self._asks: dict[ast.expr, Asked] = {}
        self._parts: dict[ast.expr, Value] = {}
        self._texts: dict[ast.expr, str] = {}
        self._sizes: dict[ast.AST, int] = {}
        self._generators: dict[ast.AST, bool] = {}
        self._enum_methods: tuple[int, dict[str, list[Function]]] = (0, {})
        self._answers: dict[ast.AST, dict[Member, bool | None]] = {}

    # -- State: every store is remembered, so that a branch can be taken back and joined with another

    def store(self, where: dict[Any, Any], key: Any, value: Value) -> None:
        """Store a value in a dictionary that is part of the state."""
        self._trail.append((where, key, where.get(key)))
        where[key] = value

    def _take_back(self, mark: int) -> Written:
        """Undo what was stored since a mark, and return what the last values were."""
        written = {(id(where), key): (where, key, where[key]) for where, key, _ in self._trail[mark:]}
        for where, key, before in reversed(self._trail[mark:]):
            if before is None:
                del where[key]
            else:
                where[key] = before
        del self._trail[mark:]
        return list(written.values())

    def _weaken(self, written: Written) -> None:
        """Store that each of these may have been written."""
        for where, key, value in written:
            now = where.get(key)
            weaker = value if now is None else join(now, value)
            if weaker != now:
                self.store(where, key, weaker)

    def _fork(self, frame: Frame, *branches: Callable[[], None]) -> None:
        """Run branches of which any one may be taken, each from the present state."""
        mark, before, results = len(self._trail), frame.end, []
        for branch in branches:
            frame.end = before
            branch()
            results.append((self._take_back(mark), frame.end))
        alive = [written for written, end in results if end is None]
        frame.left += [written for written, end in results if end is End.LEFT]
        frame.end = None if alive else End.LEFT if any(end is End.LEFT for _, end in results) else End.RAISED
        if len(alive) == 1:
            for where, key, value in alive[0]:
                self.store(where, key, value)
            return
        merged: dict[tuple[int, Any], list[Any]] = {}
        for written in alive:
            for where, key, value in written:
                merged.setdefault((id(where), key), [where, key]).append(value)
        for where, key, *values in merged.values():
            if len(values) < len(alive) and where.get(key) is not None:
                values.append(where[key])
            self.store(where, key, join(*values))

    @contextmanager
    def _import_time(self, frame: Frame) -> Iterator[None]:
        """What happens once, when a module is imported: it does not depend on the branch that asks first."""
        trail, self._trail = self._trail, []
        self._stack.append(frame)
        try:
            yield
        finally:
            self._stack.pop()
            self._trail = trail

    # -- Names

    def lookup(self, expression: ast.expr, module: Module, scope: Scope = ()) -> Value:
        """The value of an expression at the top level of a module."""
        with self._import_time(Frame(module, scope=scope)):
            return self.evaluate(expression)

    def named(self, module: str, name: str) -> Value:
        """What ``from module import name`` gives."""
        source = self._readable(module, name)
        if source is None:
            return self._of_external(f"{module}.{name}")
        value = self.global_value(source, name)
        return UNKNOWN if value is None else value

    def global_value(self, module: Module, name: str) -> Value | None:
        """What a module's global name stands for, None when the module has no such name."""
        values = self._globals.setdefault(module, {})
        if name in values:
            return values[name]
        bound = module.bindings.get(name)
        if not bound:
            for source in filter(None, map(self.tree.module, module.star_imports)):
                value = self.global_value(source, name)
                if value is not None:
                    return value
            return self._submodule(module, name)
        values[name] = UNKNOWN  # while it is being found out
        with self._import_time(Frame(module)):
            values[name] = self._bound_value(bound, name)
        return values[name]

    def _bound_value(self, bound: Sequence[Binding], name: str) -> Value:
        value: Value | None = None
        for node, guards in bound:
            answers = {
                None if (held := truth(self.evaluate(test))) is None else held is wanted
                for test, wanted in guards
            }
            if False in answers:
                continue
            this = self._binding(node, name)
            if this is UNKNOWN and isinstance(value, (Class, Function)):
                continue  # wrapped by something that is not read: still itself
            value = this if value is None or None not in answers else join(value, this)
        return UNKNOWN if value is None else value

    def _binding(self, node: ast.AST, name: str) -> Value:
        """What one statement of a module's top level binds to a name."""
        module = self._stack[-1].module
        if isinstance(node, ast.ClassDef):
            return self.classes.of(node, module)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return Function(node, module)
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            return self._imported(node, name)
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            return self.evaluate(node.value) if any(isinstance(t, ast.Name) for t in targets) else UNKNOWN
        return UNKNOWN

    def _imported(self, node: ast.AST, name: str) -> Value:
        if isinstance(node, ast.Import):
            wanted = next(a for a in node.names if (a.asname or a.name.split(".")[0]) == name)
            source = wanted.name if wanted.asname else name
            module = self._readable(source)
            return Package(module) if module else External(source)
        assert isinstance(node, ast.ImportFrom)
        imported = next(a.name for a in node.names if (a.asname or a.name) == name)
        return self.named(self._stack[-1].module.absolute(node), imported)

    def _readable(self, name: str, wanted: str = "") -> Module | None:
        """The module of this name, if it is worth looking into, in general or for one name in it."""
        module = self.tree.module(name) if name.split(".")[0] == "sglang" else None
        if module is None or module.is_package or module.mentions_model or not name.startswith(OPAQUE):
            return module
        return module if name.startswith(DECIDES) or wanted.startswith(PREDICATES) else None

    def _submodule(self, module: Module, name: str) -> Value | None:
        inner = self.tree.module(f"{module.name}.{name}") if module.is_package else None
        return Package(inner) if inner else None

    def _of_external(self, name: str) -> Value:
        return self.external.get(name, External(name))

    # -- Statements

    def _block(self, body: Sequence[ast.stmt]) -> None:
        frame = self._stack[-1]
        standing = len(frame.guards)
        for statement in body:
            if frame.end:
                break
            execute = getattr(self, f"_do_{type(statement).__name__}", None)
            if execute:
                execute(statement, frame)
        del frame.guards[standing:]

    def _do_Expr(self, node: ast.Expr, frame: Frame) -> None:
        self.evaluate(node.value)

    def _do_Assign(self, node: ast.Assign, frame: Frame) -> None:
        value = self.evaluate(node.value)
        for target in node.targets:
            self._assign(target, value)

    def _do_AnnAssign(self, node: ast.AnnAssign, frame: Frame) -> None:
        if node.value is not None:
            self._assign(node.target, self.evaluate(node.value))

    def _do_AugAssign(self, node: ast.AugAssign, frame: Frame) -> None:
        left = self.evaluate(node.target)
        self._assign(node.target, arithmetic(node.op, left, self.evaluate(node.value)))

    def _do_Return(self, node: ast.Return, frame: Frame) -> None:
        frame.returned.append(NONE if node.value is None else self.evaluate(node.value))
        frame.end = End.LEFT

    def _do_Break(self, node: ast.stmt, frame: Frame) -> None:
        frame.end = End.LEFT

    _do_Continue = _do_Break

    def _do_Raise(self, node: ast.Raise, frame: Frame) -> None:
        if node.exc is not None:
            self.evaluate(node.exc)
        self._refuse(frame, node, node.exc)

    def _do_Assert(self, node: ast.Assert, frame: Frame) -> None:
        value = self._test(node.test)
        holds = self.holds(value)
        standing = len(frame.guards)
        if holds is not True:
            frame.guards += self._guards(node.test, value, False)
            self._refuse(frame, node, node.msg or node.test)
            del frame.guards[standing:]
        frame.end = None
        if holds is None:
            frame.guards += [replace(guard, text="") for guard in self._guards(node.test, value, True)]

    def _refuse(self, frame: Frame, node: ast.AST, message: ast.expr | None) -> None:
        """A path that ends in an exception. Where only flags lead to it, go on: all else is still of interest."""
        certain = all(guard.known for guard in frame.guards)
        reasons = [guard.reason for guard in frame.guards if guard.reason]
        if certain and reasons and not any(frame.caught):
            said = ast.unparse(message) if message else "an exception"
            self._use(*self._reasons[reasons[-1]], node, refusal=f"{reasons[-1]}: {said}"[:300])
        frame.end = None if certain else End.RAISED

    def _do_If(self, node: ast.If, frame: Frame) -> None:
        self._branch(node.test, lambda: self._block(node.body), lambda: self._block(node.orelse))

    def _branch(self, test: ast.expr, yes: Callable[[], None], no: Callable[[], None]) -> None:
        """Run one branch or both. Where one never comes back, what follows stands under the other's condition."""
        frame = self._stack[-1]
        value = self._test(test)
        holds = self.holds(value)
        guards = {wanted: self._guards(test, value, wanted) for wanted in (True, False)}
        ended: dict[bool, End | None] = {}

        def run(wanted: bool) -> None:
            standing = len(frame.guards)
            frame.guards += guards[wanted]
            (yes if wanted else no)()
            del frame.guards[standing:]
            ended[wanted] = frame.end

        if holds is not None:
            run(holds)
        else:
            self._fork(frame, lambda: run(True), lambda: run(False))
            if (ended[True] is None) != (ended[False] is None):
                frame.guards += guards[ended[True] is None]

    def _test(self, test: ast.expr) -> Value:
        """Evaluate a condition, and note which attributes of the model it asks for."""
        outer, self._asked = self._asked, set()
        value = self.evaluate(test)
        if self._asked:
            self._asks[test] = frozenset(self._asked)
        self._asked |= outer
        return value

    def _guards(self, test: ast.expr, value: Value, wanted: bool) -> list[Guard]:
        """The conditions that hold where a condition with this value is, or is assumed to be, as wanted."""
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            return self._guards(test.operand, value, not wanted)
        known = self.holds(value) is not None
        if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) and wanted and not known:
            return [
                g for part in test.values for g in self._guards(part, self._parts.get(part, UNKNOWN), True)
            ]
        text = self._texts.get(test) or self._texts.setdefault(test, ast.unparse(test))
        if not wanted:
            text = f"not {text}" if isinstance(test, (ast.Name, ast.Attribute, ast.Call)) else f"not ({text})"
        members = frozenset() if known else self._members(test, wanted)
        return [Guard(text, known, about(value), members, self._asks.get(test, frozenset()))]

    def _do_While(self, node: ast.While, frame: Frame) -> None:
        holds = self.holds(self.evaluate(node.test))
        # Of an endless loop, such as the event loop, a round finds what the one before has left.
        for _ in range(ROUNDS if holds else 1 if holds is None else 0):
            before = len(self.uses), len(self.produced)
            self._runs.clear()
            self._loop(frame, lambda: self._block(node.body), False)
            if before == (len(self.uses), len(self.produced)):
                break
        self._block(node.orelse)

    def _do_For(self, node: ast.For, frame: Frame) -> None:
        source = self.evaluate(node.iter)
        values = self.iterate(source)
        exact = values is not None and len(values) <= UNROLL

        def body(value: Value) -> None:
            self._assign(node.target, value)
            self._block(node.body)

        for value in values if values is not None and exact else [self.element(source)]:
            self._loop(frame, lambda value=value: body(value), exact)  # type: ignore[misc]
        self._block(node.orelse)

    _do_AsyncFor = _do_For

    def _loop(self, frame: Frame, body: Callable[[], None], always: bool) -> None:
        """Run a loop's body once; ways out of it in the middle may have been taken."""
        left, frame.left = frame.left, []
        if always:
            body()
        else:
            self._fork(frame, body, lambda: None)
        for written in frame.left:
            self._weaken(written)
        frame.left = left
        frame.end = None

    def _do_With(self, node: ast.With, frame: Frame) -> None:
        for item in node.items:
            value = self.evaluate(item.context_expr)
            if item.optional_vars is not None:
                self._assign(item.optional_vars, self.special(value, "__enter__", Arguments(), node))
        self._block(node.body)

    _do_AsyncWith = _do_With

    def _do_Try(self, node: ast.Try, frame: Frame) -> None:
        # What is outermost only reports the end of the process.
        frame.caught.append(len(self._stack) > 1 and any(_survives(handler) for handler in node.handlers))
        self._block(node.body)
        frame.caught.pop()
        ended, frame.end = frame.end, None

        def no_exception() -> None:
            frame.end = ended
            if not ended:
                self._block(node.orelse)

        # What was worked out to the last bit has not raised.
        exact = ended is End.LEFT and bool(frame.returned) and isinstance(frame.returned[-1], (Const, Member))
        handlers = [] if exact else node.handlers
        self._fork(frame, no_exception, *(lambda h=h: self._handler(h) for h in handlers))
        ended, frame.end = frame.end, None
        self._block(node.finalbody)
        frame.end = frame.end or ended

    _do_TryStar = _do_Try

    def _handler(self, handler: ast.ExceptHandler) -> None:
        frame = self._stack[-1]
        frame.guards.append(Guard("after an exception", False))
        if handler.name:
            self.store(frame.locals, handler.name, UNKNOWN)
        self._block(handler.body)
        frame.guards.pop()

    def _do_Import(self, node: ast.Import, frame: Frame) -> None:
        for alias in node.names:
            name = alias.asname or alias.name.split(".")[0]
            self.store(frame.locals, name, self._imported(node, name))

    def _do_ImportFrom(self, node: ast.ImportFrom, frame: Frame) -> None:
        for alias in node.names:
            name = alias.asname or alias.name
            self.store(frame.locals, name, self._imported(node, name))

    def _do_Global(self, node: ast.Global, frame: Frame) -> None:
        frame.globals |= set(node.names)

    def _do_FunctionDef(self, node: ast.FunctionDef, frame: Frame) -> None:
        self.store(frame.locals, node.name, Function(node, frame.module, (frame.locals, *frame.scope)))

    _do_AsyncFunctionDef = _do_FunctionDef

    def _do_ClassDef(self, node: ast.ClassDef, frame: Frame) -> None:
        self.store(frame.locals, node.name, self.classes.of(node, frame.module, (frame.locals, *frame.scope)))

    def _do_Match(self, node: Any, frame: Frame) -> None:
        self.evaluate(node.subject)
        cases = (lambda case=case: self._block(case.body) for case in node.cases)
        self._fork(frame, lambda: None, *cases)

    def _assign(self, target: ast.expr, value: Value) -> None:
        frame = self._stack[-1]
        if isinstance(target, ast.Name):
            names = self._globals.setdefault(frame.module, {}) if target.id in frame.globals else frame.locals
            self.store(names, target.id, value)
        elif isinstance(target, ast.Attribute):
            for option in options(self.evaluate(target.value)):
                self.set_attribute(option, target.attr, value, target)
        elif isinstance(target, ast.Subscript):
            key = self.evaluate(target.slice)
            for option in options(self.evaluate(target.value)):
                if isinstance(option, Bag):
                    self.put(option, key, value)
        elif isinstance(target, (ast.Tuple, ast.List)):
            values = self.iterate(value) or []
            exact = len(values) == len(target.elts) and not any(
                isinstance(e, ast.Starred) for e in target.elts
            )
            for i, element in enumerate(target.elts):
                self._assign(element, values[i] if exact else self.element(value))
        elif isinstance(target, ast.Starred):
            self._assign(target.value, sequence([value], exact=False))

    def set_attribute(self, holder: Value, name: str, value: Value, node: ast.AST) -> None:
        """Store an attribute of an object or a module."""
        if isinstance(holder, Object):
            setter = self.classes.find(holder.cls, name, setter=True)
            if setter:
                self.call(self._bound(setter, holder), Arguments((value,)), node)
            else:
                self.store(holder.attributes, name, value)
        elif isinstance(holder, Package):
            self.store(self._globals.setdefault(holder.module, {}), name, value)

    def put(self, bag: Bag, key: Value, value: Value) -> None:
        """Store an element of a container, under a key that may be unknown."""
        if isinstance(key, (Const, Member, Class)):
            self.store(bag.items, key, value)
        else:
            self.store(bag.items, REST, join(value, *([bag.items[REST]] if REST in bag.items else [])))
            bag.exact = False

    # -- Expressions

    def evaluate(self, node: ast.expr) -> Value:
        """What an expression of the running function gives."""
        method = getattr(self, f"_on_{type(node).__name__}", None)
        return UNKNOWN if method is None else method(node)

    def _on_Constant(self, node: ast.Constant) -> Value:
        return Const(node.value)

    def _on_Name(self, node: ast.Name) -> Value:
        frame = self._stack[-1]
        if node.id not in frame.globals:
            for names in (frame.locals, *frame.scope):
                if node.id in names:
                    return names[node.id]
        value = self.global_value(frame.module, node.id)
        if value is None:
            return External(f"builtins.{node.id}") if hasattr(builtins, node.id) else UNKNOWN
        return value

    def _on_Attribute(self, node: ast.Attribute) -> Value:
        return join(
            *(self.attribute(option, node.attr, node) for option in options(self.evaluate(node.value)))
        )

    def _on_NamedExpr(self, node: ast.NamedExpr) -> Value:
        value = self.evaluate(node.value)
        self._assign(node.target, value)
        return value

    def _on_Await(self, node: ast.Await) -> Value:
        return self.evaluate(node.value)

    _on_Starred = _on_Await

    def _on_Lambda(self, node: ast.Lambda) -> Value:
        frame = self._stack[-1]
        return Function(node, frame.module, (frame.locals, *frame.scope))

    def _on_IfExp(self, node: ast.IfExp) -> Value:
        values: list[Value] = []
        self._branch(
            node.test,
            lambda: values.append(self.evaluate(node.body)),
            lambda: values.append(self.evaluate(node.orelse)),
        )
        return join(*values)

    def _on_BoolOp(self, node: ast.BoolOp) -> Value:
        """``and``, ``or``: ends where the answer is known; what follows a part stands under it."""
        frame = self._stack[-1]
        stops = isinstance(node.op, ast.Or)
        standing = len(frame.guards)
        values: list[Value] = []
        for part in node.values:
            value = self._parts[part] = self._test(part)
            holds = self.holds(value)
            if holds is not (not stops) or part is node.values[-1]:
                values.append(value)
            if holds is stops:
                break
            frame.guards += self._guards(part, value, not stops)
        del frame.guards[standing:]
        if self.holds(values[-1]) is stops and all(isinstance(v, (Const, Unknown)) for v in values):
            return Const(stops, about(*values))  # whatever the unknown parts are
        return join(*values)

    def _on_UnaryOp(self, node: ast.UnaryOp) -> Value:
        value = self.evaluate(node.operand)
        if isinstance(node.op, ast.Not):
            holds = self.holds(value)
            return UNKNOWN if holds is None else Const(not holds, about(value))
        if (
            isinstance(node.op, ast.USub)
            and isinstance(value, Const)
            and isinstance(value.value, (int, float))
        ):
            return Const(-value.value)
        return UNKNOWN

    def _on_BinOp(self, node: ast.BinOp) -> Value:
        return arithmetic(node.op, self.evaluate(node.left), self.evaluate(node.right))

    def _on_Compare(self, node: ast.Compare) -> Value:
        outer, self._comparing = self._comparing, True
        operands = [self.evaluate(operand) for operand in (node.left, *node.comparators)]
        self._comparing = outer
        results = []
        for operator, left, right in zip(node.ops, operands, operands[1:]):
            answers = {self._compare(operator, a, b) for a in options(left) for b in options(right)}
            results.append(answers.pop() if len(answers) == 1 else None)
        if False in results:
            return Const(False, self._lacks_parameter(*operands[:2]) or about(*operands))
        return UNKNOWN if None in results else Const(True, about(*operands))

    def _compare(self, operator: ast.cmpop, left: Value, right: Value) -> bool | None:
        if isinstance(operator, (ast.In, ast.NotIn)) and right == ENVIRON and isinstance(left, Const):
            return (left.value in self.environment) is isinstance(operator, ast.In)
        if isinstance(left, Member) != isinstance(right, Member):
            left, right = self._plain(left), self._plain(right)
        return compare(operator, left, right)

    def _plain(self, value: Value) -> Value:
        """The string or number that a member of an enumeration of such is."""
        if isinstance(value, Member):
            plain = {"builtins.str", "builtins.int", "enum.StrEnum"}
            if any(
                isinstance(base, External) and base.name in plain for base in self.classes.order(value.cls)
            ):
                return self._class_value(
                    value.cls, value.name, self.classes.body(value.cls)[value.name][-1].value
                )
        return value

    def _on_JoinedStr(self, node: ast.JoinedStr) -> Value:
        parts = [self.evaluate(p.value if isinstance(p, ast.FormattedValue) else p) for p in node.values]
        known = all(isinstance(p, Const) and isinstance(p.value, (str, int)) for p in parts)
        return Const("".join(str(part.value) for part in parts)) if known else UNKNOWN

    def _on_Tuple(self, node: Any) -> Value:
        values: list[Value] = []
        exact = bool(node.elts) or isinstance(node, ast.Tuple)  # an empty list is there to be filled
        for element in node.elts:
            value = self.evaluate(element)
            inner = self.iterate(value) if isinstance(element, ast.Starred) else [value]
            exact = exact and inner is not None
            values += inner if inner is not None else [self.element(value)]
        return sequence(values, exact)

    _on_List = _on_Set = _on_Tuple

    def _on_Dict(self, node: ast.Dict) -> Value:
        bag = Bag({}, exact=bool(node.keys), keyed=True)
        for key, value in zip(node.keys, node.values):
            made = self.evaluate(value)
            if key is None:
                self.merge(bag, made)
            else:
                self.put(bag, self.evaluate(key), made)
        return bag

    def merge(self, bag: Bag, other: Value) -> None:
        """``bag.update(other)``, of a dictionary: with another one, or with pairs."""
        for option in options(other):
            bag.exact = bag.exact and isinstance(option, Bag) and option.exact
            for key, value in list(option.items.items()) if isinstance(option, Bag) else ():
                for pair in options(value) if not option.keyed else ():
                    both = self.iterate(pair) or [self.element(pair)]
                    self.put(bag, both[0], both[-1])
                if option.keyed:
                    self.store(bag.items, key, value)

    def _on_Subscript(self, node: ast.Subscript) -> Value:
        holders = self.evaluate(node.value)
        if isinstance(node.slice, ast.Slice):
            return sequence([self.element(holders)], exact=False)
        key = self.evaluate(node.slice)
        return join(*(self._item(holder, one, node) for holder in options(holders) for one in options(key)))

    def _item(self, holder: Value, key: Value, node: ast.AST) -> Value:
        if isinstance(holder, Bag):
            return self.entry(holder, key, node)
        if isinstance(holder, Class):
            if self.classes.is_enum(holder) and isinstance(key, Const):
                return self._member(holder, str(key.value)) or UNKNOWN
            return holder  # a generic type
        if isinstance(holder, Object):
            return self.special(holder, "__getitem__", Arguments((key,)), node)
        if holder == ENVIRON and isinstance(key, Const):
            return Const(self.environment.get(str(key.value)))
        return UNKNOWN

    def entry(self, bag: Bag, key: Value, node: ast.AST) -> Value:
        """``bag[key]``."""
        if (
            isinstance(key, Const)
            and isinstance(key.value, int)
            and key.value < 0
            and not bag.keyed
            and bag.exact
        ):
            key = Const(len(bag.items) + key.value)
        rest = [bag.items[REST]] if REST in bag.items else []
        if key in bag.items:
            return join(bag.items[key], *rest)
        made = [self.call(bag.factory, Arguments(), node)] if bag.factory is not None else []
        known = isinstance(key, (Const, Member, Class))
        return join(*(rest if known else bag.items.values()), *made) if rest or made or not known else UNKNOWN

    def _on_ListComp(self, node: Any) -> Value:
        results: list[Value] = []
        exact = self._comprehend(node.generators, lambda: results.append(self.evaluate(node.elt)))
        return sequence(results, exact)

    _on_SetComp = _on_GeneratorExp = _on_ListComp

    def _on_DictComp(self, node: ast.DictComp) -> Value:
        bag = Bag({}, keyed=True)
        exact = self._comprehend(
            node.generators, lambda: self.put(bag, self.evaluate(node.key), self.evaluate(node.value))
        )
        bag.exact = bag.exact and exact
        return bag

    def _comprehend(self, generators: Sequence[ast.comprehension], each: Callable[[], None]) -> bool:
        """Run a comprehension; gives whether its elements are exactly those that ``each`` saw."""
        frame = self._stack[-1]
        source = self.evaluate(generators[0].iter)
        values = self.iterate(source)
        exact = values is not None and len(values) <= UNROLL
        for value in values if values is not None and exact else [self.element(source)]:
            self._assign(generators[0].target, value)
            standing, answers = len(frame.guards), []
            for test in generators[0].ifs:
                answer = self._test(test)
                answers.append(self.holds(answer))
                frame.guards += self._guards(test, answer, True)
            exact = exact and None not in answers
            if False not in answers and len(generators) > 1:
                exact = self._comprehend(generators[1:], each) and exact
            elif False not in answers:
                each()
            del frame.guards[standing:]
        return exact

    def _on_Yield(self, node: ast.Yield) -> Value:
        self._stack[-1].returned.append(self.evaluate(node.value) if node.value is not None else NONE)
        return UNKNOWN

    def _on_YieldFrom(self, node: ast.YieldFrom) -> Value:
        self._stack[-1].returned.append(self.element(self.evaluate(node.value)))
        return UNKNOWN

    def _object_condition(self, thing: Object) -> Value:
        own = any(self.classes.find(thing.cls, name) for name in ("__bool__", "__len__"))
        return TRUE if not own and self.classes.closed(thing.cls) else UNKNOWN

    def holds(self, value: Value) -> bool | None:
        """Whether a condition on this value holds; None when that is not known."""
        if any(isinstance(option, Object) for option in options(value)):
            value = join(*(self._object_condition(o) if isinstance(o, Object) else o for o in options(value)))
        return truth(value)

    def method(self) -> Frame | None:
        """The running method: functions inside it do not count."""
        return next(
            (f for f in reversed(self._stack) if f.function is not None and f.function.owner is not None),
            None,
        )

    def iterate(self, value: Value) -> list[Value] | None:
        """The elements one by one, None when they are not known exactly."""
        if isinstance(value, Bag) and value.exact:
            return list(value.items) if value.keyed else list(value.items.values())
        return (
            list(self.classes.members(value))
            if isinstance(value, Class) and self.classes.is_enum(value)
            else None
        )

    def element(self, value: Value) -> Value:
        """Any one element."""
        found: list[Value] = []
        for option in options(value):
            inner = (
                (option.items if option.keyed else option.items.values()) if isinstance(option, Bag) else ()
            )
            found += [UNKNOWN if one is REST else one for one in inner] or [UNKNOWN]
        return join(*found)

    # -- Attributes

    def attribute(self, holder: Value, name: str, node: ast.AST, default: Value | None = None) -> Value:
        """Read an attribute. With a default, as getattr takes it, its absence is provided for."""
        if isinstance(holder, Model):
            return self._model_attribute(holder, name, node, default)
        if isinstance(holder, External):
            return self._of_external(f"{holder.name}.{name}")
        if isinstance(holder, (Bag, Const)):
            return Method(holder, name)
        if isinstance(holder, ModelMethod) and name == "parameters":
            return holder
        value: Value | None = None
        if isinstance(holder, Object):
            value = self._object_attribute(holder, name, node)
        elif isinstance(holder, (Class, Member)):
            value = self._class_attribute(holder, name, node)
        elif isinstance(holder, Package):
            value = self.global_value(holder.module, name) or self._submodule(holder.module, name)
        elif isinstance(holder, Super):
            start = (
                holder.receiver
                if isinstance(holder.receiver, Class)
                else getattr(holder.receiver, "cls", None)
            )
            found = self.classes.find(start, name, after=holder.after) if start else None
            value = self._bound(found, holder.receiver) if found else UNKNOWN
        if value is None:
            value = self.facts.get(name, UNKNOWN if default is None else join(UNKNOWN, default))
        return value

    def _object_attribute(self, holder: Object, name: str, node: ast.AST) -> Value | None:
        model = self.model_of(holder, name)
        if model is not None:
            return model
        if name in holder.attributes:
            return holder.attributes[name]
        if name == "__class__":
            return holder.cls
        found = self.classes.find(holder.cls, name)
        if found:
            return self._defined(found, name, holder, node)
        catch_all = self.classes.find(holder.cls, "__getattr__") if name not in self.facts else None
        return (
            self.call(self._bound(catch_all, holder), Arguments((Const(name),)), node) if catch_all else None
        )

    def _class_attribute(self, holder: Any, name: str, node: ast.AST) -> Value | None:
        """An attribute of a class, or of a member of an enumeration."""
        cls = holder.cls if isinstance(holder, Member) else holder
        if isinstance(holder, Member) and name == "name":
            return Const(holder.name)
        if isinstance(holder, Member) and name == "value":
            return self._class_value(cls, holder.name, self.classes.body(cls)[holder.name][-1].value)
        if name in ("__name__", "__qualname__"):
            return Const(cls.name)
        member = self._member(cls, name) if self.classes.is_enum(cls) else None
        found = self.classes.find(cls, name)
        return member or (self._defined(found, name, holder, node) if found else None)

    def _defined(self, found: tuple[Class, Any], name: str, receiver: Value, node: ast.AST) -> Value | None:
        """What a statement in a class body gives to whoever reads the attribute."""
        owner, statement = found
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
            decorators = decorated(statement)
            if decorators & {"property", "cached_property"} and not isinstance(receiver, Class):
                return self.call(self._bound(found, receiver), Arguments(), node)
            if "classmethod" in decorators:
                return self._bound(found, receiver if isinstance(receiver, Class) else receiver.cls)
            plain = isinstance(receiver, Class) or "staticmethod" in decorators
            return self._bound(found, receiver).function if plain else self._bound(found, receiver)
        if isinstance(statement, ast.ClassDef):
            return self.classes.of(statement, owner.module, owner.scope)
        if isinstance(statement, (ast.Assign, ast.AnnAssign)) and statement.value is not None:
            return self._class_value(owner, name, statement.value)
        return None

    def _bound(self, found: tuple[Class, Any], receiver: Value) -> Bound:
        owner, statement = found
        return Bound(Function(statement, owner.module, owner.scope, owner), receiver)

    def _class_value(self, owner: Class, name: str, expression: ast.expr) -> Value:
        """The value of an assignment in a class body; of a dataclass's ``field(...)`` its default."""
        if isinstance(expression, ast.Call) and getattr(expression.func, "id", "") == "field":
            given = {keyword.arg: keyword.value for keyword in expression.keywords}
            if "default_factory" in given:
                factory = self.lookup(given["default_factory"], owner.module, owner.scope)
                return self.call(factory, Arguments(), expression)
            return self.lookup(given["default"], owner.module, owner.scope) if "default" in given else UNKNOWN
        key = (owner, name)
        if key not in self._class_values:
            self._class_values[key] = UNKNOWN
            with self._import_time(Frame(owner.module, scope=owner.scope)):
                value = self.evaluate(expression)
                self.special(value, "__set_name__", Arguments((owner, Const(name))), expression)
            self._class_values[key] = value
        return self._class_values[key]

    # -- Enumerations

    def _member(self, cls: Class, name: str) -> Member | None:
        member = Member(cls, name)
        if member not in self.classes.members(cls):
            return None
        if not self._comparing:
            self.produced.add(member)
        return member

    def _member_of_value(self, cls: Class, value: Value) -> Value:
        """``Mode("decode")``."""
        for member in self.classes.members(cls) if isinstance(value, Const) else ():
            if self._class_value(cls, member.name, self.classes.body(cls)[member.name][-1].value) == value:
                return self._member(cls, member.name)
        return value if isinstance(value, Member) else UNKNOWN

    def _members(self, test: ast.expr, wanted: bool) -> frozenset[Member]:
        """The members for which a condition on an unknown member can be as wanted; empty if it asks no such thing."""
        answers: dict[Member, bool | None] = {}
        if isinstance(test, ast.Compare) and isinstance(test.ops[0], (ast.Eq, ast.Is, ast.NotEq, ast.IsNot)):
            outer, self._comparing = self._comparing, True
            other = self.evaluate(test.comparators[0])
            self._comparing = outer
            if isinstance(other, Member) and self._plain(other) is other:
                equal = isinstance(test.ops[0], (ast.Eq, ast.Is))
                answers = {member: (member == other) is equal for member in self.classes.members(other.cls)}
        elif isinstance(test, ast.Call) and isinstance(test.func, ast.Attribute) and not test.args:
            functions = self._methods_of_enums().get(test.func.attr, [])
            if len(functions) == 1:
                answers = self._answer_of_each(functions[0], test)
        return frozenset(member for member, holds in answers.items() if holds in (wanted, None))

    def _answer_of_each(self, method: Function, node: ast.AST) -> dict[Member, bool | None]:
        if method.node not in self._answers and method.owner:
            self._answers[method.node] = {
                member: truth(self.call(Bound(method, member), Arguments(), node))
                for member in self.classes.members(method.owner)
            }
        return self._answers[method.node]

    def _methods_of_enums(self) -> dict[str, list[Function]]:
        """Methods without arguments of the enumerations in all modules seen so far, by name."""
        loaded = self.tree.loaded()
        if self._enum_methods[0] != len(loaded):
            methods: dict[str, list[Function]] = {}
            for module in loaded:
                for node in module.tree.body:
                    if not isinstance(node, ast.ClassDef) or not node.bases:
                        continue
                    cls = self.classes.of(node, module)
                    for method in node.body if self.classes.is_enum(cls) else ():
                        if isinstance(method, ast.FunctionDef) and len(method.args.args) == 1:
                            methods.setdefault(method.name, []).append(Function(method, module, (), cls))
            self._enum_methods = (len(loaded), methods)
        return self._enum_methods[1]

    # -- Calls

    def _on_Call(self, node: ast.Call) -> Value:
        functions = self._callees(node)
        positional: list[Value] = []
        named: dict[str, Value] = {}
        more = False
        for argument in node.args:
            value = self.evaluate(argument)
            inner = self.iterate(value) if isinstance(argument, ast.Starred) else [value]
            more = more or inner is None
            positional += inner or []
        for keyword in node.keywords:
            value = self.evaluate(keyword.value)
            if keyword.arg is not None:
                named[keyword.arg] = value
                continue
            for option in options(value):
                known = option.items.items() if isinstance(option, Bag) else ()
                named.update({str(key.value): v for key, v in known if isinstance(key, Const)})
                more = more or not isinstance(option, Bag) or not option.exact
        arguments = Arguments(tuple(positional), named, more)
        return join(*(self.call(function, arguments, node) for function in functions))

    def _callees(self, node: ast.Call) -> list[Value]:
        """What is called. Of a method of the target model, the call itself is what has to be checked."""
        if not isinstance(node.func, ast.Attribute):
            return list(options(self.evaluate(node.func)))
        found: list[Value] = []
        for holder in options(self.evaluate(node.func.value)):
            if isinstance(holder, Model):
                self._use(holder, node.func.attr, node.func, call=node)
                found.append(UNKNOWN)
            else:
                found += options(self.attribute(holder, node.func.attr, node.func))
        return found

    def call(self, function: Value, arguments: Arguments, node: ast.AST) -> Value:
        """Call a value."""
        if isinstance(function, Bound):
            bound = replace(arguments, positional=(function.receiver, *arguments.positional))
            return self._run(function.function, function.receiver, bound, node)
        if isinstance(function, Function):
            return self._run(function, None, arguments, node)
        if isinstance(function, Class):
            return self._construct(function, arguments, node)
        if isinstance(function, Object):
            return self.special(function, "__call__", arguments, node)
        if isinstance(function, (Model, ModelMethod)):
            model, name = (
                (function.model, function.name)
                if isinstance(function, ModelMethod)
                else (function, "forward")
            )
            self._use(model, name, node, call=node if isinstance(node, ast.Call) else None)
            return UNKNOWN
        key = f"{type(function.receiver).__name__}." if isinstance(function, Method) else ""
        known = self.known.get(key + function.name) if isinstance(function, (External, Method)) else None
        if known:
            given = (
                replace(arguments, positional=(function.receiver, *arguments.positional))
                if key
                else arguments
            )
            value = known(self, given, node)
            if value is not None:
                return value
        return self._call_unread(function, arguments, node)

    def _call_unread(self, function: Value, arguments: Arguments, node: ast.AST) -> Value:
        """Call code that is not read: it may call what it is handed."""
        given = [option for argument in arguments.all for option in options(argument)]
        if isinstance(function, External):
            if function.name in self.external:
                return self.external[function.name]
            source, _, name = function.name.rpartition(".")
            module = self.tree.module(source) if source.startswith("sglang.") else None
            if module and any(isinstance(option, Model) for option in given):
                return self.call(self.global_value(module, name), arguments, node)
        for option in given:
            if isinstance(option, (Bound, Function)):
                self.call(option, Arguments(more=True), node)
        return UNKNOWN

    def special(self, holder: Value, name: str, arguments: Arguments, node: ast.AST) -> Value:
        """Call a special method of objects whose class has it."""
        results = []
        for option in options(holder):
            found = self.classes.find(option.cls, name) if isinstance(option, Object) else None
            if found and isinstance(found[1], (ast.FunctionDef, ast.AsyncFunctionDef)):
                results.append(self.call(self._bound(found, option), arguments, node))
        return join(*results)

    def _construct(self, cls: Class, arguments: Arguments, node: ast.AST) -> Value:
        if self.classes.is_enum(cls):
            return self._member_of_value(cls, arguments.get(0))
        # One object for each place that makes it and each object that does so: their number stays finite.
        makers = (frame.receiver for frame in reversed(self._stack) if isinstance(frame.receiver, Object))
        key = (node, cls, next(makers, None))
        known = key in self._objects
        made = self._objects.setdefault(key, Object(cls))
        if known:  # it stands for several: what is stored on one may or may not be on another
            self._fork(self._stack[-1], lambda: self._initialize(made, arguments, node), lambda: None)
        else:
            self._initialize(made, arguments, node)
        return made

    def _initialize(self, made: Object, arguments: Arguments, node: ast.AST) -> None:
        found = self.classes.find(made.cls, "__init__")
        if found:
            self.call(self._bound(found, made), arguments, node)
        else:
            self.fill(made, arguments)
            self.special(made, "__post_init__", Arguments(), node)

    def fill(self, made: Object, arguments: Arguments) -> None:
        """Store what the generated ``__init__`` of a dataclass, named tuple or structure stores."""
        names: dict[str, None] = {}
        for owner, statement, name in self.classes.fields(made.cls):
            names[name] = None
            if statement.value is not None:
                self.store(made.attributes, name, self._class_value(owner, name, statement.value))
        for name, value in (*zip(names, arguments.positional), *arguments.named.items()):
            self.store(made.attributes, name, value)

    def _run(self, function: Function, receiver: Value, arguments: Arguments, node: ast.AST) -> Value:
        """Run a function of the source tree."""
        active = sum(1 for f in self._stack if f.function is not None and f.function.node is function.node)
        if len(self._stack) > DEPTH or active > 2:
            return UNKNOWN
        names = self._bind(function, arguments)
        key = (function.node, *names.values())
        runs, result = self._runs.get(key, (0, UNKNOWN))
        if runs >= 2 and self._size(function.node) > SMALL:
            return result
        self.entered[function.node] = function
        frame = Frame(function.module, function, receiver, function.scope, names)
        self._stack.append(frame)
        mark = len(self._trail)
        comparing, self._comparing = self._comparing, False
        if isinstance(function.node, ast.Lambda):
            frame.returned.append(self.evaluate(function.node.body))
        else:
            self._block(function.node.body)
            if not frame.end:
                frame.returned.append(NONE)
        self._comparing = comparing
        self._stack.pop()
        # The names of a function that has ended are nobody's state any more.
        self._trail[mark:] = [entry for entry in self._trail[mark:] if entry[0] is not names]
        for written in frame.left:
            self._weaken([entry for entry in written if entry[0] is not names])
        result = sequence(frame.returned, False) if self._yields(function.node) else join(*frame.returned)
        self._runs[key] = (runs + 1, result)
        return result

    def _size(self, node: ast.AST) -> int:
        if node not in self._sizes:
            self._sizes[node] = sum(1 for _ in ast.walk(node))
        return self._sizes[node]

    def _yields(self, node: ast.AST) -> bool:
        """Whether the function is a generator: what functions inside it yield does not count."""
        if node not in self._generators:
            found, todo = False, list(ast.iter_child_nodes(node))
            while todo and not found:
                inner = todo.pop()
                found = isinstance(inner, (ast.Yield, ast.YieldFrom))
                if not isinstance(inner, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
                    todo += ast.iter_child_nodes(inner)
            self._generators[node] = found
        return self._generators[node]

    def _bind(self, function: Function, arguments: Arguments) -> dict[str, Value]:
        """The local names that a call gives a function."""
        a = function.node.args
        positional = [x.arg for x in (*a.posonlyargs, *a.args)]
        every = [*positional, *(x.arg for x in a.kwonlyargs)]
        defaults = dict(zip(reversed(positional), reversed(a.defaults)))
        defaults.update({x.arg: d for x, d in zip(a.kwonlyargs, a.kw_defaults) if d is not None})
        names = {
            **dict(zip(positional, arguments.positional)),
            **{n: v for n, v in arguments.named.items() if n in every},
        }
        for name in every:
            if name not in names:
                default = defaults.get(name)
                value = (
                    self.lookup(default, function.module, function.scope) if default is not None else UNKNOWN
                )
                names[name] = join(value, UNKNOWN) if arguments.more else value
        if a.vararg:
            names[a.vararg.arg] = sequence(arguments.positional[len(positional) :], not arguments.more)
        if a.kwarg:
            rest = {Const(name): value for name, value in arguments.named.items() if name not in every}
            names[a.kwarg.arg] = Bag(rest, exact=not arguments.more, keyed=True)
        return names

    # -- The target model

    def _model_attribute(self, model: Model, name: str, node: ast.AST, default: Value | None) -> Value:
        if name == "__class__":
            return model.cls
        self._use(model, name, node, optional=default is not None)
        offer = self.models.offer(model, name)
        if offer.has is Has.NO:
            return (
                replace(default, about=self._lacks(model, name))
                if isinstance(default, Const)
                else default or UNKNOWN
            )
        if offer.called and offer.function is not None:
            return ModelMethod(model, name, offer.function)
        return offer.value if offer.has is Has.YES or default is None else join(offer.value, default)

    def has_attribute(self, model: Model, name: str, node: ast.AST) -> Value:
        """``hasattr(model, name)``."""
        self._use(model, name, node, optional=True)
        has = self.models.offer(model, name).has
        return (
            Const(False, self._lacks(model, name)) if has is Has.NO else TRUE if has is Has.YES else UNKNOWN
        )

    def _lacks(self, model: Model, name: str) -> str:
        return self._reason(f"{model.cls.name} has no attribute {name}", model, name)

    def _lacks_parameter(self, name: Value, method: Value) -> str:
        if isinstance(method, ModelMethod) and isinstance(name, Const):
            text = f"{method.model.cls.name}.{method.name} has no parameter {name.value}"
            return self._reason(text, method.model, method.name)
        return ""

    def _reason(self, text: str, model: Model, name: str) -> str:
        self._reasons[text] = (model, name)
        return text

    def _use(
        self,
        model: Model,
        name: str,
        node: ast.AST,
        *,
        call: ast.Call | None = None,
        optional: bool = False,
        refusal: str = "",
    ) -> None:
        """Note a use of the target model by the running function."""
        frame = self._stack[-1]
        guards = [guard for each in self._stack for guard in each.guards]
        if optional:
            self._asked.add((model, name))
        caught = any(any(each.caught) for each in self._stack)
        use = Use(
            model,
            name,
            call,
            frame.module,
            getattr(node, "lineno", 0),
            frame.name,
            tuple(dict.fromkeys(guard.text for guard in frame.guards if guard.text)),
            frozenset(guard.members for guard in guards if guard.members),
            optional or caught or any((model, name) in guard.asked for guard in guards),
            refusal,
        )
        self.uses[use] = None


def _survives(handler: ast.ExceptHandler) -> bool:
    """Whether an AttributeError ends in this handler, and the program goes on."""
    if any(isinstance(node, ast.Raise) for statement in handler.body for node in ast.walk(statement)):
        return False
    types = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(
        t is None or getattr(t, "id", "") in ("AttributeError", "Exception", "BaseException") for t in types
    )
