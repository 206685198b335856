"""The contract between SGLang and the target model: what is asked of it, and what of that its class lacks."""

from __future__ import annotations

import ast
import re
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ..errors import OperatorError
from .interpreter import Arguments, Interpreter
from .known import KNOWN
from .source import Module, SourceTree
from .values import FALSE, NONE, UNKNOWN, Class, Const, Model, Object, Value, join, options, sequence, truth

RECURSION = 20_000
STACK = 512 << 20  # bytes of address space; what is not used takes no memory

MODELS = "sglang.srt.models"
# The process that holds the model, the settings that it is given, and the class whose attribute ``model`` is the model.
PROCESS = ("sglang.srt.managers.scheduler", "run_scheduler_process")
SETTINGS = ("sglang.srt.server_args", "ServerArgs")
RUNNER = ("sglang.srt.model_executor.model_runner", "ModelRunner")
LOADER = "sglang.srt.model_loader"
FIELDS = "sglang.srt.arg_groups.fields"  # where the fields of the settings are from 0.5.20 on


@dataclass(frozen=True)
class Caller:
    """One place that uses the target model.

    Attributes:
        place: file, relative to the package's parent folder, and line.
        function: the function, with its class.
        use: the source of the call, or the attribute that is read.
        conditions: the conditions inside the function that the use stands under.
        problem: what goes wrong there.
    """

    place: str
    function: str
    use: str
    conditions: tuple[str, ...]
    problem: str


@dataclass(frozen=True)
class Missing:
    """Something that the target's class lacks.

    Attributes:
        name: the attribute, with the path to it from the target.
        callers: who needs it.
        offered_by: parts of the model that have it: ``language_model (DeepseekV3ForCausalLM)``.
    """

    name: str
    callers: tuple[Caller, ...]
    offered_by: tuple[str, ...]


@dataclass(frozen=True)
class Contract:
    """What was found.

    Attributes:
        architecture: the target's class.
        place: file and line of that class.
        version: of SGLang; empty when the source does not say.
        workers: the classes of speculative workers that the settings select.
        asked: the attributes of the target that these settings bring into play; sorted.
        missing: those that the class lacks, in the order in which SGLang comes to them.
        pairs: setters or getters that go with a missing name, which the part that offers it has and the target lacks.
    """

    architecture: str
    place: str
    version: str
    workers: tuple[str, ...]
    asked: tuple[str, ...]
    missing: tuple[Missing, ...] = ()
    pairs: tuple[str, ...] = ()

    def report(self) -> dict[str, Any]:
        """The same as plain data."""
        return asdict(self)

    def message(self, remedy: str = "") -> str:
        """What is missing, for people; empty when nothing is."""
        if not self.missing:
            return ""
        lines = []
        for one in self.missing:
            first = f"{one.name}: {one.callers[0].problem}"
            part = f"; {' and '.join(one.offered_by)} has it" if one.offered_by else ""
            lines.append(f"{first}{part}. Used by:")
            for caller in one.callers:
                under = f" if {' and '.join(caller.conditions)}" if caller.conditions else ""
                lines.append(f"  {caller.place} {caller.function}: {caller.use}{under}")
        if self.pairs:
            lines.append(
                f"With them goes {', '.join(self.pairs)}: offer it too, so that the pair is complete."
            )
        names = ", ".join(one.name for one in self.missing)
        release = f"SGLang {self.version}".strip()
        head = OperatorError(
            f"{release} with these settings would fail on {self.architecture} ({self.place}) after it has loaded the "
            "weights",
            found=f"the class lacks {names}",
            expected="all that the workers and the model runner use of the target",
            remedy=remedy,
        )
        return "\n".join([str(head), *lines])


def check(
    tree: SourceTree, architecture: str, arguments: Mapping[str, Any], environment: Mapping[str, Any]
) -> Contract:
    """Hold a model class against what SGLang does with it under given settings.

    Args:
        tree: the source of the release.
        architecture: name of the class, as in ``architectures`` of the model's config.json.
        arguments: the server's arguments: flags with underscores and without dashes, in any of their spellings.
        environment: the server's environment variables.

    Raises:
        OperatorError: the release has no such class, or cannot be followed from its scheduler to the model.
    """
    model = Model(UNKNOWN)  # type: ignore[arg-type]
    interpreter = Interpreter(
        tree,
        environment={name: str(value) for name, value in environment.items() if value is not None},
        external=_platform(cuda=arguments.get("device", "cuda") == "cuda"),
        known=KNOWN,
        model_of=lambda holder, name: _target(interpreter, model, holder, name),
    )
    model.cls = model_class(interpreter, architecture)
    process = interpreter.named(*PROCESS)
    settings = _settings(interpreter, arguments, architecture)
    _deeply(
        lambda: interpreter.call(
            process, Arguments((settings,), more=True), ast.Module(body=[], type_ignores=[])
        )
    )
    return _contract(interpreter, model, arguments)


def _deeply(work: Callable[[], object]) -> None:
    """Run something that recurses further than Python and the stack of the main thread allow by default."""
    failure: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            failure.append(error)

    limit, size = sys.getrecursionlimit(), threading.stack_size(STACK)
    sys.setrecursionlimit(RECURSION)
    try:
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    finally:
        sys.setrecursionlimit(limit)
        threading.stack_size(size)
    if failure:
        raise failure[0]


def model_class(interpreter: Interpreter, architecture: str) -> Class:
    """The class that a release registers under this name.

    Raises:
        OperatorError: it registers none.
    """
    classes = model_classes(interpreter.tree, architecture)
    if architecture not in classes:
        raise OperatorError(
            f"SGLang {interpreter.tree.version} has no model class {architecture}".replace("  ", " "),
            found=f"{len(model_classes(interpreter.tree))} classes in {interpreter.tree.folder(MODELS)}",
            expected="the class that config.json names under architectures",
            remedy="use a release that has the model, or correct the model's path",
        )
    module, node = classes[architecture]
    return interpreter.classes.of(node, module)


def model_classes(tree: SourceTree, wanted: str = "") -> dict[str, tuple[Module, ast.ClassDef]]:
    """The model classes that a release registers, by name: those that ``EntryClass`` of a module names.

    Args:
        wanted: look only into modules that mention this name.
    """
    found: dict[str, tuple[Module, ast.ClassDef]] = {}
    for path in sorted(tree.folder(MODELS).rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if wanted not in text or not re.search(r"^EntryClass\b", text, re.MULTILINE):
            continue
        module = tree.module(".".join(path.relative_to(tree.root).with_suffix("").parts))
        assert module is not None
        entries = {
            leaf.id
            for node, _ in module.bindings["EntryClass"]
            for leaf in ast.walk(node)
            if isinstance(leaf, ast.Name)
        }
        for name in entries:
            for node, _ in module.bindings.get(name, ()):
                if isinstance(node, ast.ClassDef):
                    found[name] = (module, node)
    return found


def _platform(*, cuda: bool) -> dict[str, Value]:
    """What SGLang asks PyTorch about the machine, for an NVIDIA or a CPU machine."""
    absent = ("torch.npu?", "torch.hpu?", "torch.version.musa?")
    return {
        "typing.TYPE_CHECKING": FALSE,
        "torch.cuda.is_available": Const(cuda),
        "torch.version.cuda": Const("13.0") if cuda else NONE,
        "torch.version.hip": NONE,
        "torch.xpu.is_available": FALSE,
        **dict.fromkeys(absent, FALSE),
    }


def _target(interpreter: Interpreter, model: Model, holder: Object, name: str) -> Value | None:
    """The target model where the model runner of the target holds it; the drafter's is of no interest."""
    if name != "model" or interpreter.named(*RUNNER) not in interpreter.classes.order(holder.cls):
        return None
    draft = truth(holder.attributes.get("is_draft_worker", UNKNOWN))
    return UNKNOWN if draft else model if draft is False else join(model, UNKNOWN)


def _settings(interpreter: Interpreter, arguments: Mapping[str, Any], architecture: str) -> Object:
    """The server's settings as SGLang resolves them, as far as that can be worked out."""
    cls = interpreter.named(*SETTINGS)
    settings = Object(cls)
    spellings = _spellings(interpreter.tree)
    given = {
        spellings.get(name, name): Const(_plain(value))
        for name, value in arguments.items()
        if value is not None
    }
    for module in filter(None, map(interpreter.tree.module, interpreter.tree.submodules(FIELDS))):
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef):
                fields = Object(interpreter.classes.of(node, module))
                interpreter.fill(fields, Arguments())
                settings.attributes.update(fields.attributes)
    interpreter.fill(settings, Arguments(named=given))
    # What is known of the model's configuration and of settings that reach code by ways that cannot be followed.
    interpreter.facts["architectures"] = sequence([Const(architecture)])
    interpreter.facts.update(given)
    interpreter.special(settings, "__post_init__", Arguments(), cls.node)
    for name, value in given.items():
        if UNKNOWN in options(settings.attributes[name]):
            settings.attributes[name] = value
    for name, value in settings.attributes.items():
        if isinstance(value, Const) and isinstance(value.value, int):
            interpreter.facts.setdefault(name, value)
    return settings


def _plain(value: Any) -> Any:
    """A setting as Python has it: inventories give numbers as text; lists and mappings count by being there."""
    if isinstance(value, str) and re.fullmatch(r"-?\d+", value):
        return int(value)
    return value if isinstance(value, (str, int, float, bool)) else str(value)


def _spellings(tree: SourceTree) -> dict[str, str]:
    """Other spellings of SGLang's flags, as ``tensor_parallel_size`` of ``tp_size``."""
    found: dict[str, str] = {}
    modules = [tree.module(SETTINGS[0]), *map(tree.module, tree.submodules(FIELDS))]
    for module in filter(None, modules):
        fields = {node.target.id for node in ast.walk(module.tree) if _is_field(node)}  # type: ignore[attr-defined]
        for node in ast.walk(module.tree):
            names: list[str] = []
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument":
                names = [str(a.value) for a in node.args if isinstance(a, ast.Constant)]
            elif _is_field(node):
                own = node.target.id  # type: ignore[attr-defined]
                aliases = (
                    k.value for k in ast.walk(node) if isinstance(k, ast.keyword) and k.arg == "aliases"
                )
                names = [
                    own,
                    *(str(c.value) for a in aliases for c in ast.walk(a) if isinstance(c, ast.Constant)),
                ]
            names = [name.lstrip("-").replace("-", "_") for name in names]
            for name in names:
                if name in fields:
                    found.update(dict.fromkeys(names, name))
    return found


def _is_field(node: ast.AST) -> bool:
    return isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)


def _contract(interpreter: Interpreter, model: Model, arguments: Mapping[str, Any]) -> Contract:
    """Judge the uses."""
    tree = interpreter.tree
    # A condition on a mode that no code under these settings ever produces does not come about.
    seen = {member.cls for member in interpreter.produced}
    uses = [
        use
        for use in interpreter.uses
        if all(
            members & interpreter.produced or not {m.cls for m in members} <= seen for members in use.members
        )
    ]
    workers = {
        function.owner.name: None
        for function in interpreter.entered.values()
        if function.owner
        and function.name == "__init__"
        and function.module.name.startswith("sglang.srt.speculative.")
        and "target_worker" in {a.arg for a in (*function.node.args.args, *function.node.args.kwonlyargs)}
    }
    if not any(use.call for use in uses) or (arguments.get("speculative_algorithm") and not workers):
        raise OperatorError(
            f"Cannot follow SGLang {tree.version} from its scheduler to the model".replace("  ", " "),
            found=f"{len(uses)} uses of the target model, workers: {', '.join(workers) or 'none'}",
            expected="the calls that every server makes",
            remedy="this release is arranged in a way that the check does not know: switch the check off for it",
        )
    given = _given_by_the_loader(tree)
    callers: dict[str, list[Caller]] = {}
    for use in uses:
        if use.name in given:
            continue
        problem = use.refusal or (
            "" if use.optional else interpreter.models.complaint(use.model, use.name, use.call)
        )
        if problem:
            name = f"{use.model.path}.{use.name}".lstrip(".")
            source = ast.unparse(use.call) if use.call else use.name
            place = f"{tree.relative(use.module.path)}:{use.line}"
            caller = Caller(place, use.function, source, use.conditions, problem)
            if caller not in callers.setdefault(name, []):
                callers[name].append(caller)
    parts = {path: part for path, part in interpreter.models.parts(model).items() if "." not in path}
    missing = tuple(
        Missing(
            name,
            tuple(found),
            tuple(_described(path, part) for path, part in parts.items() if _has(interpreter, part, name)),
        )
        for name, found in callers.items()
    )
    return Contract(
        architecture=model.cls.name,
        place=f"{tree.relative(model.cls.module.path)}:{model.cls.node.lineno}",
        version=tree.version,
        workers=tuple(workers),
        asked=tuple(sorted({f"{use.model.path}.{use.name}".lstrip(".") for use in uses})),
        missing=missing,
        pairs=_pairs(interpreter, model, parts, list(callers)),
    )


def _given_by_the_loader(tree: SourceTree) -> set[str]:
    """Attributes that the code that loads a model puts on it, whatever its class."""
    texts = (path.read_text(encoding="utf-8") for path in tree.folder(LOADER).glob("*.py"))
    return {name for text in texts for name in re.findall(r"^ +(?!self\.)\w+\.(\w+) = ", text, re.MULTILINE)}


def _described(path: str, part: Model) -> str:
    return f"{path} ({part.cls.name})"


def _has(interpreter: Interpreter, part: Model, name: str) -> bool:
    return interpreter.models.offer(part, name).has.value == "yes"


def _pairs(
    interpreter: Interpreter, model: Model, parts: Mapping[str, Model], names: list[str]
) -> tuple[str, ...]:
    """Getters and setters that complete the missing ones: one that a part has beside the missing name."""
    found: dict[str, None] = {}
    for name in names:
        for prefix, other in (("get_", "set_"), ("set_", "get_")):
            partner = other + name[len(prefix) :]
            if name.startswith(prefix) and partner not in names and not _has(interpreter, model, partner):
                for part in parts.values():
                    if _has(interpreter, part, name) and _has(interpreter, part, partner):
                        found[partner] = None
    return tuple(found)
