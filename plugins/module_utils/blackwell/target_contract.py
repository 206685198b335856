"""The contract between SGLang and the target model: what is used of the model's class, and what the class lacks.

Speculative workers and the model runner call methods on the target that its class need not have. SGLang finds out one
method at a time, after it has loaded the weights. This scan reads the release's sources, imports nothing, and names all
of them at once. It is flat: it collects the names that are used of the target, and does not follow the code. What only
a run can tell, a run has to tell.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable

from .errors import OperatorError
from .model_classes import ModelClasses, SourceTree

# How the target is spelled where it is used: by the workers, and by the model runner and its parts.
_IN_WORKERS = re.compile(r"(^|\.)_?target_(worker|model_runner)(\.\w+)*\.model$|(^|\.)target_model$")
_IN_RUNNER = re.compile(r"^model$|^self\.model$|(^|\.)model_runner\.model$")

# Workers of other algorithms than EAGLE and EAGLE3.
_OTHER_WORKERS = ("dflash", "dspark", "frozen", "multi_layer", "ngram", "standalone")

Settings = Mapping[str, Any]


def _algorithm(*names: str) -> Callable[[Settings], bool]:
    return lambda settings: str(settings.get("speculative_algorithm") or "").upper() in names


def _set(*names: str) -> Callable[[Settings], bool]:
    return lambda settings: any(
        str(settings.get(name)).lower() not in ("none", "false", "0") for name in names
    )


_NEVER = _set()
_CONTEXT_PARALLEL = _set("enable_prefill_context_parallel", "enable_nsa_prefill_context_parallel")

# Names that matter only under a setting, from reading the releases 0.5.8 to 0.5.23. A name that is not here counts.
_UNDER_A_SETTING: Mapping[str, Callable[[Settings], bool]] = {
    "set_eagle3_layers_to_capture": _algorithm("EAGLE3"),
    "set_dflash_layers_to_capture": _algorithm("DFLASH", "DSPARK"),
    "get_aux_hidden_states_width": _algorithm("DFLASH", "DSPARK"),
    "get_pp_proxy_dspark_hidden_size": _algorithm("DSPARK"),
    "forward_split_prefill": _set("enable_pdmux"),
    "routed_experts_weights_of_layer": _set("enable_eplb"),
    "generate_weight_name_filter": _set("elastic_ep_backend"),
    "model": _set("enable_piecewise_cuda_graph"),
    "lm_head": _CONTEXT_PARALLEL,
    "logits_processor": _CONTEXT_PARALLEL,
    "pp_group": _CONTEXT_PARALLEL,
    # The loader gives it to every model.
    "shared_experts_config": _NEVER,
    # One class has it, and its name is compared first.
    "thinker": _NEVER,
    # Only a client's own embeddings, or a client's request for weights, come here.
    "get_input_embeddings": _NEVER,
    "get_weights_by_name": _NEVER,
}


@dataclass(frozen=True)
class Caller:
    """One use of the target: ``FILE:LINE``, and the source of the call."""

    place: str
    use: str


@dataclass(frozen=True)
class Missing:
    """What the class lacks, what goes wrong, who needs it, and which parts of the model have it."""

    name: str
    problem: str
    callers: tuple[Caller, ...]
    offered_by: tuple[str, ...]


@dataclass(frozen=True)
class Contract:
    """What was found.

    ``asked`` are the names that these settings bring into play, ``pairs`` the setters or getters that go with a missing
    name, and ``unchecked`` says of which names nothing is known, and why.
    """

    architecture: str
    place: str
    version: str
    asked: tuple[str, ...]
    missing: tuple[Missing, ...] = ()
    pairs: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()

    def message(self, remedy: str = "") -> str:
        """What is missing, for people; empty when nothing is."""
        if not self.missing:
            return ""
        lines = []
        for one in self.missing:
            part = f"; {' and '.join(one.offered_by)} has it" if one.offered_by else ""
            lines.append(f"{one.name}: {one.problem}{part}. Used by:")
            lines += [f"  {caller.place}: {caller.use}" for caller in one.callers]
        if self.pairs:
            lines.append(
                f"With them goes {', '.join(self.pairs)}: offer it too, so that the pair is complete."
            )
        release = f"SGLang {self.version}".strip()
        head = OperatorError(
            f"{release} with these settings would fail on {self.architecture} ({self.place}) after it has loaded the "
            "weights",
            found=f"the class lacks {', '.join(one.name for one in self.missing)}",
            expected="all that the workers and the model runner use of the target",
            remedy=remedy,
        )
        return "\n".join([str(head), *lines])


# A name of the target, who uses it, and the call where it is called.
_Use = tuple[str, Caller, "ast.Call | None"]


def _uses(tree: SourceTree, path: Path, spelling: re.Pattern[str]) -> Iterator[_Use]:
    """The names that a file uses of the target, without those that it can do without."""
    nodes = list(ast.walk(tree.parse(path)))
    optional = _optional_names(nodes)
    calls = {id(node.func): node for node in nodes if isinstance(node, ast.Call)}
    for node in nodes:
        if not isinstance(node, ast.Attribute) or not isinstance(node.ctx, ast.Load):
            continue
        if node.attr.startswith("_") or node.attr in optional or not spelling.search(ast.unparse(node.value)):
            continue
        call = calls.get(id(node))
        yield (
            node.attr,
            Caller(f"{path.relative_to(tree.root)}:{node.lineno}", ast.unparse(call or node)),
            call,
        )


def _optional_names(nodes: list[ast.AST]) -> set[str]:
    """Names that a file asks for before it uses them.

    ``if not hasattr(model, NAME): raise`` is no such question: SGLang cannot do without.
    """
    optional, needed = set(), set()
    for node in nodes:
        if isinstance(node, ast.Call) and len(node.args) > 1 and isinstance(node.args[1], ast.Constant):
            if (ast.unparse(node.func), len(node.args)) in (("hasattr", 2), ("getattr", 3)):
                optional.add(str(node.args[1].value))
        elif isinstance(node, ast.If) and any(isinstance(leaf, ast.Raise) for leaf in node.body):
            needed |= set(re.findall(r"not hasattr\(.*?, '(\w+)'\)", ast.unparse(node.test)))
    return optional - needed


def _all_uses(tree: SourceTree, settings: Settings) -> dict[str, list[_Use]]:
    """Every use of the target under these settings, by name.

    Raises:
        OperatorError: a folder shows no use at all, so its code is written in a way that this scan does not know.
    """
    folders = [("model_executor", "**/*.py", _IN_RUNNER)]
    if settings.get("speculative_algorithm"):
        folders.append(("speculative", "*.py", _IN_WORKERS))
    found: dict[str, list[_Use]] = {}
    for folder, pattern, spelling in folders:
        paths = sorted((tree.srt / folder).glob(pattern))
        own = [path for path in paths if not path.name.startswith(_OTHER_WORKERS)]
        uses = [use for path in own for use in _uses(tree, path, spelling)]
        if not uses:
            raise OperatorError(
                f"Nothing in {tree.srt / folder} uses the target model in a way that is known",
                found=f"no use in {pattern}",
                expected="the calls of SGLang 0.5.8 to 0.5.23",
                remedy="set model_weights_contract_enabled to false to go without this check: the server then says "
                "itself what its model lacks, after it has loaded the weights",
            )
        for use in uses:
            if use[0] not in _UNDER_A_SETTING or _UNDER_A_SETTING[use[0]](settings):
                found.setdefault(use[0], []).append(use)
    return found


def check(tree: SourceTree, architecture: str, settings: Settings) -> Contract:
    """Hold a model class against what SGLang uses of the target under given settings.

    Args:
        tree: the source of the release.
        architecture: name of the class, as in ``architectures`` of the model's config.json.
        settings: the server's arguments: flags with underscores and without dashes.

    Raises:
        OperatorError: the release has no such class, or a file of it cannot be parsed.
    """
    classes = ModelClasses(tree)
    target = classes.find_model(architecture)
    uses = _all_uses(tree, settings)
    missing, unchecked, pairs = [], [], []
    for name, found in sorted(uses.items()):
        member, unread = classes.lookup(target, name)
        wrong = [caller for _, caller, call in found if not member or (call and not _takes(member, call))]
        if not wrong:
            continue
        if unread:
            unchecked.append(f"{name}: {', '.join(unread)} cannot be read")
            continue
        parts = [(part, cls) for part, cls in classes.parts(target) if classes.lookup(cls, name)[0]]
        problem = "takes other arguments than it is called with" if member else "the class does not have it"
        offered = tuple(dict.fromkeys(f"{part} ({cls.node.name})" for part, cls in parts if not member))
        missing.append(Missing(name, problem, tuple(wrong), offered))
        twin = {"get": "set", "set": "get"}.get(name[:3], name[:3]) + name[3:]
        if twin not in uses and not classes.lookup(target, twin)[0]:
            pairs += [twin] if any(classes.lookup(cls, twin)[0] for _, cls in parts) else []
    return Contract(
        architecture=architecture,
        place=f"{target.path.relative_to(tree.root)}:{target.node.lineno}",
        version=tree.version,
        asked=tuple(sorted(uses)),
        missing=tuple(missing),
        pairs=tuple(pairs),
        unchecked=tuple(unchecked),
    )


def _takes(member: ast.AST, call: ast.Call) -> bool:
    """Whether a method gets all arguments that it needs. Calls and signatures with stars are not judged."""
    signature = getattr(member, "args", None)
    starred = any(isinstance(argument, ast.Starred) for argument in call.args)
    if starred or not isinstance(signature, ast.arguments) or signature.vararg:
        return True
    names = [argument.arg for argument in signature.args][1:]
    given = {*names[: len(call.args)], *(keyword.arg for keyword in call.keywords)}
    return None in given or set(names[: len(names) - len(signature.defaults)]) <= given
