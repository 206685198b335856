"""What a drafter and its target have to agree on before SGLang loads either of them.

Most of these disagreements show after minutes of loading, in a child process, and some never: a damaged vocabulary map
or a wrong layer only makes speculation slow. All of it can be read from two ``config.json`` and a few headers. The
rules are those of the published SGLang 0.5.9 to 0.5.23.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from .errors import OperatorError
from .safetensors import Tensor
from .weights import read_config, read_tensors

ALLOW_LONGER = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"
EXTERNAL_MODELS = "SGLANG_EXTERNAL_MODEL_PACKAGE"
# The drafter with multi-head attention, and the one with latent attention.
LLAMA_DRAFTER = "LlamaForCausalLMEagle3"
MLA_DRAFTER = "Eagle3DeepseekV2ForCausalLM"
# The first releases in which
MANY_STATES = (
    0,
    5,
    12,
)  # drafters may listen to another number of layers than three, or have latent attention,
LAYERS_AS_NAMED = (0, 5, 13)  # layers are taken as the drafter names them, unless the first is 1,
NO_EAGLE_CONFIG = (0, 5, 15)  # eagle_config may be null,
QUANTIZES_ITSELF = (0, 5, 18)  # modelopt_fp4 does without a description of the quantization.
# Attention back ends for one kind of attention only; all others serve both.
MLA_ONLY = ("cutedsl_mla", "cutlass_mla", "flashmla", "tokenspeed_mla", "trtllm_mla")
MHA_ONLY = ("trtllm_mha",)
# Flags with a second spelling, which the inventory may use.
_SPELLINGS = {
    "tp_size": "tensor_parallel_size",
    "dp_size": "data_parallel_size",
    "speculative_draft_model_path": "speculative_draft_model",
}
# In SGLang's order.
_WINDOW_KEYS = (
    "max_sequence_length",
    "seq_length",
    "max_seq_len",
    "model_max_length",
    "max_position_embeddings",
)

# What the rules count with, besides.
_NUMBERS = (
    *_WINDOW_KEYS,
    "draft_vocab_size",
    "hidden_size",
    "kv_lora_rank",
    "num_attention_heads",
    "num_aux_hidden_states",
    "num_hidden_layers",
    "num_key_value_heads",
    "target_hidden_size",
    "vocab_size",
)
_LAYER_IDS = "eagle_aux_hidden_state_layer_ids"


@dataclass(frozen=True)
class Finding:
    """One thing that does not fit.

    Attributes:
        id: a short name of the rule.
        severity: ``error`` or ``warning``.
        problem: one sentence, without a full stop.
        found: what is there.
        expected: what would be right.
        remedy: what to do.
    """

    id: str
    severity: str
    problem: str
    found: str
    expected: str
    remedy: str

    def __str__(self) -> str:
        return str(OperatorError(self.problem, found=self.found, expected=self.expected, remedy=self.remedy))


@dataclass(frozen=True)
class Model:
    """A model as its files describe it.

    Attributes:
        path: its folder.
        config: its ``config.json``.
        tensors: of all its safetensors files; of the drafter only, as nothing asks for the target's.
        quantization: contents of ``hf_quant_config.json``, which NVIDIA's quantized models have; empty if it has none.
    """

    path: str
    config: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    quantization: Mapping[str, Any]

    @property
    def text(self) -> Mapping[str, Any]:
        """The part about the language model, which models that see pictures have in ``text_config``."""
        nested = self.config.get("text_config")
        return nested if isinstance(nested, dict) else self.config

    @property
    def architecture(self) -> str:
        """Its class."""
        named = self.config.get("architectures") or [""]
        return str(named[0])

    @property
    def mla(self) -> bool:
        """Whether it has latent attention."""
        return self.text.get("kv_lora_rank") is not None

    @property
    def window(self) -> int:
        """Its context window in tokens, as SGLang derives it."""
        scaling = self.text.get("rope_scaling") or {}
        scaled = "original_max_position_embeddings" not in scaling and scaling.get("rope_type") != "llama3"
        factor = scaling.get("factor") or 1 if scaled else 1
        for key in _WINDOW_KEYS:
            if self.text.get(key) is not None:
                return int(factor * self.text[key])
        return 2048

    @property
    def hidden(self) -> int:
        return int(self.text.get("hidden_size") or 0)

    @property
    def vocabulary(self) -> int:
        return int(self.text.get("vocab_size") or 0)

    @property
    def dtype(self) -> str | None:
        """The type in its configuration, as SGLang reads it."""
        named = self.text.get("dtype") or self.text.get("torch_dtype")
        return str(named) if named else None

    @property
    def quantized(self) -> bool:
        """Whether it brings a description of its quantization."""
        return bool(
            self.config.get("quantization_config")
            or self.config.get("compression_config")
            or self.quantization
        )

    def tensor(self, suffix: str) -> Tensor | None:
        """The tensor with this name, wherever in the model it is."""
        for name, tensor in self.tensors.items():
            if name == suffix or name.endswith(f".{suffix}"):
                return tensor
        return None


def read_model(folder: Path, *, tensors: bool) -> Model:
    """Read a model's description.

    Raises:
        OperatorError: its configuration is missing or says nonsense, or a file is damaged.
    """
    config = read_config(folder)
    _check_kinds(folder, config)
    quantization = folder / "hf_quant_config.json"
    return Model(
        path=str(folder),
        config=config,
        tensors=read_tensors(folder) if tensors else {},
        quantization=json.loads(quantization.read_text()) if quantization.exists() else {},
    )


def _check_kinds(folder: Path, config: Mapping[str, Any]) -> None:
    """Refuse values of another kind than all readers take them for, by which a damaged or edited file shows."""
    wrong = []

    def expect(holder: Any, name: str, kind: str, right: Callable[[Any], bool]) -> Any:
        value = holder.get(name) if isinstance(holder, dict) else None
        if value is not None and not right(value):
            wrong.append(f"{name} is {json.dumps(value)}, not {kind}")
        return value

    def mapping(value: Any) -> bool:
        return isinstance(value, dict)

    def whole(value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool)

    def number(value: Any) -> bool:
        return whole(value) or (isinstance(value, float) and math.isfinite(value))

    def names(value: Any) -> bool:
        return isinstance(value, list) and all(isinstance(one, str) for one in value)

    def wholes(value: Any) -> bool:
        return isinstance(value, list) and all(map(whole, value))

    expect(config, "architectures", "a list of names", names)
    nested = expect(config, "text_config", "a mapping", mapping)
    text = nested if isinstance(nested, dict) else config
    for key in _NUMBERS:
        expect(text, key, "a whole number", whole)
    expect(expect(text, "rope_scaling", "a mapping", mapping), "factor", "a number", number)
    expect(config.get("eagle_config"), _LAYER_IDS, "a list of whole numbers", wholes)
    if wrong:
        raise OperatorError(
            f"{folder}/config.json has values that mean nothing",
            found="; ".join(wrong),
            remedy="copy the file again; if its publisher has it like this, use another model",
        )


@dataclass(frozen=True)
class Release:
    """The SGLang that is going to load them.

    Attributes:
        version: its three numbers; empty if unknown.
        architectures: the model classes it has; empty if unknown.
    """

    version: tuple[int, ...] = ()
    architectures: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        """For messages."""
        return f"SGLang {'.'.join(map(str, self.version))}" if self.version else "SGLang"

    def before(self, version: tuple[int, ...]) -> bool:
        """Whether it is known to be older than ``version``."""
        return bool(self.version) and self.version < version


def read_release(site_packages: Path, environment: Mapping[str, Any]) -> Release:
    """What an installed SGLang can load, from its files: it is not imported.

    Args:
        site_packages: the folder that it is installed in. Nothing is known of a release that is not there yet.
        environment: the server's, which may name another package with models.
    """
    packages = ["sglang.srt.models", *filter(None, [str(environment.get(EXTERNAL_MODELS) or "")])]
    architectures = frozenset(
        name
        for package in packages
        for path in sorted((site_packages / package.replace(".", "/")).glob("*.py"))
        for name in entry_classes(path.read_text(encoding="utf-8"))
    )
    versions = [
        re.match(r"sglang-(\d+)\.(\d+)\.(\d+)", path.name)
        for path in site_packages.glob("sglang-*.dist-info")
    ]
    numbers = [tuple(map(int, match.groups())) for match in versions if match]
    return Release(numbers[0] if numbers else (), architectures)


def entry_classes(source: str) -> list[str]:
    """The classes that a model file registers, from its ``EntryClass``.

    Only what follows that name is parsed: it stands at the end of each of some 200 files.
    """
    start = re.search(r"^EntryClass\b", source, re.MULTILINE)
    if not start:
        return []
    return [
        leaf.id
        for node in ast.parse(source[start.start() :]).body
        if isinstance(node, ast.Assign)
        and any(getattr(one, "id", "") == "EntryClass" for one in node.targets)
        for leaf in ast.walk(node.value)
        if isinstance(leaf, ast.Name)
    ]


def draft_path(arguments: Mapping[str, Any]) -> str:
    """The drafter's folder; empty for a server that does not speculate with one."""
    return str(_argument(arguments, "speculative_draft_model_path") or "")


def _argument(arguments: Mapping[str, Any], name: str) -> Any:
    value = arguments.get(name)
    return arguments.get(_SPELLINGS[name]) if value is None and name in _SPELLINGS else value


def _on(value: Any) -> bool:
    """A switch in the environment, as SGLang reads it."""
    return str(value).lower() in ("true", "1", "yes", "y")


@dataclass(frozen=True)
class Case:
    """Everything that a rule may look at."""

    target: Model
    draft: Model
    arguments: Mapping[str, Any]
    environment: Mapping[str, Any]
    release: Release

    def argument(self, name: str) -> Any:
        return _argument(self.arguments, name)

    def _number(self, name: str) -> int:
        value = self.argument(name)
        try:
            return int(value or 0)
        except (TypeError, ValueError):
            raise OperatorError(
                f"The server's {name} is no whole number",
                found=repr(value),
                remedy="correct it in the inventory",
            ) from None

    @property
    def is_llama(self) -> bool:
        return self.draft.architecture == LLAMA_DRAFTER

    @property
    def attention_ranks(self) -> int:
        """How many GPUs share the heads of a layer."""
        size = self._number("tp_size") or 1
        spread = self._number("dp_size") or 1 if self.arguments.get("enable_dp_attention") else 1
        return max(size // spread, 1)

    @property
    def draft_vocabulary(self) -> int:
        """How many tokens the drafter chooses from."""
        return int(self.draft.text.get("draft_vocab_size") or self.draft.vocabulary)

    @property
    def target_hidden(self) -> int:
        """The size of the target's hidden states, by the drafter's word."""
        return int(self.draft.text.get("target_hidden_size") or self.draft.hidden)

    @property
    def layers(self) -> Sequence[int] | None:
        """The target's layers that the drafter listens to, where SGLang looks for them."""
        named = self.draft.config.get("eagle_config")
        return named.get(_LAYER_IDS) if isinstance(named, dict) else None

    @property
    def states(self) -> int:
        """How many hidden states of the target the drafter takes, as SGLang builds it."""
        if self.release.before(MANY_STATES):
            return 3
        return int(self.draft.text.get("num_aux_hidden_states") or len(self.layers or (0, 0, 0)))

    @property
    def context(self) -> int:
        """The window that the server will have."""
        return self._number("context_length") or self.target.window

    @cached_property
    def d2t(self) -> Tensor | None:
        """From draft id to what has to be added to get the target's id."""
        return self.draft.tensor("d2t")

    @cached_property
    def t2d(self) -> Tensor | None:
        """For each target id, whether the drafter knows it."""
        return self.draft.tensor("t2d")

    @cached_property
    def chosen(self) -> Sequence[int]:
        """The target's id for each draft id; empty without a usable map."""
        return (
            [at + shift for at, shift in enumerate(self.d2t.values())] if self.d2t and self.d2t.whole else []
        )


Rule = Callable[[Case], Iterator[Finding]]
_RULES: list[Rule] = []


def _rule(rule: Rule) -> Rule:
    _RULES.append(rule)
    return rule


def check(case: Case) -> list[Finding]:
    """Everything that does not fit, errors first."""
    findings = [finding for rule in _RULES for finding in rule(case)]
    return sorted(findings, key=lambda finding: finding.severity != "error")


_OTHER_DRAFTER = "use a drafter that was trained for this target (eagle3_server_draft_model_path)"
_DAMAGED_DRAFTER = "copy the drafter again; if its publisher has it like this, use another one"


@_rule
def _same_folder(case: Case) -> Iterator[Finding]:
    if Path(case.draft.path).resolve() == Path(case.target.path).resolve():
        yield Finding(
            "same_folder",
            "error",
            "Drafter and target are the same folder, so the target would be loaded twice",
            case.draft.path,
            "a drafter of its own",
            "correct eagle3_server_draft_model_path",
        )


@_rule
def _architectures(case: Case) -> Iterator[Finding]:
    for role, model in (("target", case.target), ("drafter", case.draft)):
        if not case.release.architectures or model.architecture in case.release.architectures:
            continue
        remedy = f"use a release of SGLang that has it, or another {role}"
        if role == "drafter" and model.mla and case.release.before(MANY_STATES):
            remedy = "use a drafter without latent attention, or SGLang 0.5.12 (sglang_stack_version)"
        yield Finding(
            f"{role}_architecture",
            "error",
            f"{case.release.name} has no class for the {role}",
            model.architecture or f"no architectures in config.json of {model.path}",
            f"one of the {len(case.release.architectures)} classes of its models",
            remedy,
        )


@_rule
def _hidden_size(case: Case) -> Iterator[Finding]:
    if case.target_hidden != case.target.hidden:
        own = "target_hidden_size" if "target_hidden_size" in case.draft.text else "hidden_size"
        yield Finding(
            "hidden_size",
            "error",
            "The drafter takes hidden states of another size than the target has",
            f"{own} {case.target_hidden} in the drafter's config.json, hidden_size {case.target.hidden} in the "
            "target's",
            "the same size",
            _OTHER_DRAFTER,
        )
    elif case.draft.hidden != case.target.hidden and case.draft.tensor("embed_tokens.weight") is None:
        # With sizes of their own SGLang does not share the embedding.
        yield Finding(
            "embedding",
            "error",
            "The drafter has another hidden size than the target, so it needs an embedding, and has none",
            f"hidden_size {case.draft.hidden}, no tensor embed_tokens.weight",
            f"embed_tokens.weight of [{case.draft.vocabulary}, {case.draft.hidden}]",
            _DAMAGED_DRAFTER,
        )


@_rule
def _vocabulary(case: Case) -> Iterator[Finding]:
    if case.draft.vocabulary != case.target.vocabulary:
        yield Finding(
            "vocabulary",
            "error",
            "Drafter and target have different vocabularies",
            f"vocab_size {case.draft.vocabulary} in the drafter's config.json, {case.target.vocabulary} in the "
            "target's",
            "the same size, as the drafter uses the target's embedding",
            _OTHER_DRAFTER,
        )


@_rule
def _draft_vocabulary(case: Case) -> Iterator[Finding]:
    if case.draft.text.get("tie_word_embeddings", False) or not case.is_llama:
        return
    if "draft_vocab_size" not in case.draft.text:
        yield Finding(
            "draft_vocab_size",
            "error",
            "The drafter's config.json lacks draft_vocab_size, which SGLang reads without asking",
            "tie_word_embeddings is false, no draft_vocab_size",
            "the number of tokens that the drafter chooses from, or null for the target's head",
            f'add "draft_vocab_size": null, or the number of rows of lm_head.weight, to {case.draft.path}/config.json',
        )
    elif case.draft.text["draft_vocab_size"] is not None:
        wanted = (case.draft_vocabulary, case.draft.hidden)
        head = case.draft.tensor("lm_head.weight")
        if case.draft.tensors and (head is None or head.shape != wanted):
            yield Finding(
                "draft_head",
                "error",
                "The drafter's head does not fit its draft_vocab_size",
                f"lm_head.weight {list(head.shape)}" if head else "no lm_head.weight: it would be random",
                f"lm_head.weight {list(wanted)}",
                _DAMAGED_DRAFTER,
            )


@_rule
def _map(case: Case) -> Iterator[Finding]:
    smaller = case.draft_vocabulary < case.target.vocabulary
    if case.d2t is None:
        if smaller and case.draft.tensors:
            yield Finding(
                "d2t",
                "error",
                "The drafter has a vocabulary of its own and no map to the target's",
                f"draft_vocab_size {case.draft_vocabulary} of {case.target.vocabulary}, no tensor d2t",
                f"a tensor d2t of {case.draft_vocabulary} whole numbers",
                _DAMAGED_DRAFTER,
            )
        return
    if case.d2t.shape != (case.draft_vocabulary,):
        yield _bad_map(
            "d2t_length", f"d2t {list(case.d2t.shape)}", f"d2t {[case.draft_vocabulary]}, as draft_vocab_size"
        )
    if not case.d2t.whole or case.d2t.dtype == "BOOL":
        yield _bad_map("d2t_dtype", f"d2t of {case.d2t.dtype}", "whole numbers, as a rule I64")
        return
    outside = [token for token in case.chosen if not 0 <= token < case.target.vocabulary]
    if outside:
        yield _bad_map(
            "d2t_range",
            f"{len(outside)} tokens outside, the first is {outside[0]}",
            f"tokens 0 to {case.target.vocabulary - 1}",
        )
    if smaller and case.chosen == list(range(len(case.chosen))):
        yield _bad_map(
            "d2t_zero", "d2t is all zero", "the place of each draft token in the target's vocabulary"
        )
    elif len(set(case.chosen)) < len(case.chosen):
        twice = len(case.chosen) - len(set(case.chosen))
        yield _bad_map("d2t_twice", f"{twice} tokens are there more than once", "each token once")


@_rule
def _reverse_map(case: Case) -> Iterator[Finding]:
    if case.t2d is None:
        if case.d2t is not None:
            yield Finding(
                "t2d",
                "warning",
                "The drafter has no t2d, so its vocabulary map cannot be compared with anything",
                "no tensor t2d",
                f"a tensor t2d of {case.target.vocabulary} truth values",
                "nothing has to be done: SGLang does not read it",
            )
        return
    if case.t2d.shape != (case.target.vocabulary,):
        yield _bad_map(
            "t2d_length", f"t2d {list(case.t2d.shape)}", f"t2d {[case.target.vocabulary]}, as vocab_size"
        )
        return
    if not case.t2d.whole:
        yield _bad_map("t2d_dtype", f"t2d of {case.t2d.dtype}", "truth values, as a rule BOOL")
        return
    known = {token for token, flag in enumerate(case.t2d.values()) if flag}
    chosen = set(case.chosen)
    if chosen and known != chosen:
        yield _bad_map(
            "maps_differ",
            f"t2d names {len(known)} tokens, d2t {len(chosen)}, {len(known & chosen)} of them the same",
            "the same tokens in both",
        )


def _bad_map(id_: str, found: str, expected: str) -> Finding:
    return Finding(
        id_,
        "error",
        "The drafter's vocabulary map is damaged, so its tokens would be wrong",
        found,
        expected,
        _DAMAGED_DRAFTER,
    )


@_rule
def _eagle_config(case: Case) -> Iterator[Finding]:
    config = case.draft.config.get("eagle_config", {})
    if isinstance(config, dict) or (config is None and not case.release.before(NO_EAGLE_CONFIG)):
        return
    yield Finding(
        "eagle_config",
        "error",
        "eagle_config in the drafter's config.json is no mapping, and SGLang reads it as one",
        json.dumps(config),
        "a mapping, or no such key",
        f"remove eagle_config from {case.draft.path}/config.json",
    )


@_rule
def _layers(case: Case) -> Iterator[Finding]:
    depth = int(case.target.text.get("num_hidden_layers") or 0)
    layers = case.layers
    if layers is None:
        elsewhere, own = (
            case.draft.config.get(_LAYER_IDS),
            [1, depth // 2 - 1, depth - 4],
        )
        if elsewhere not in (None, own):
            yield Finding(
                "aux_layers_ignored",
                "warning",
                "The drafter names the layers it listens to where SGLang does not look, so it takes its own",
                f"{_LAYER_IDS} {elsewhere} outside eagle_config; SGLang takes {own}",
                "the layers that the drafter was trained with, inside eagle_config",
                f"move it into eagle_config in {case.draft.path}/config.json",
            )
        return
    named = f"{_LAYER_IDS} {list(layers)}"
    # SGLang takes what goes into a layer: into the one after the named one, or into the named one.
    after = case.release.before(LAYERS_AS_NAMED) or list(layers[:1]) == [1]
    last = depth - 2 if after else depth - 1
    if any(not 0 <= layer <= last for layer in layers):
        yield Finding(
            "aux_layers",
            "error",
            "The drafter listens to layers that the target does not have",
            f"{named}, {depth} layers in the target",
            f"layers 0 to {last}",
            _OTHER_DRAFTER,
        )
    elif sorted(set(layers)) != list(layers):
        yield Finding(
            "aux_layers_order",
            "error",
            "The drafter names layers twice or out of order, and SGLang hands them over once and in order",
            named,
            f"{sorted(set(layers))}",
            _OTHER_DRAFTER,
        )
    elif len(layers) != case.states:
        old = case.release.before(MANY_STATES)
        yield Finding(
            "aux_layers_number",
            "error",
            f"The drafter listens to another number of layers than it takes in {case.release.name}",
            named,
            f"{case.states} layers",
            f"use {'SGLang 0.5.12 (sglang_stack_version), or ' if old else ''}another drafter",
        )
    elif case.release.before(LAYERS_AS_NAMED) and layers[0] != 1:
        yield Finding(
            "aux_layers_shifted",
            "warning",
            f"{case.release.name} adds one to the layers that the drafter names; later ones than 0.5.12 do so only if "
            "the first is 1, so one of the two hands this drafter other layers than it was trained with",
            named,
            "layers that begin with 1, which all releases read alike",
            "compare the accept length with the one that is published for the drafter; if it is lower, subtract one "
            f"from each in {case.draft.path}/config.json",
        )


@_rule
def _window(case: Case) -> Iterator[Finding]:
    allowed = _on(case.environment.get(ALLOW_LONGER, ""))
    windows = f"window {case.draft.window} of the drafter, {case.context} of the server"
    if case.context > case.target.window:
        yield Finding(
            "target_window",
            "warning" if allowed else "error",
            "The server's window is larger than the target's",
            f"context_length {case.context}, window {case.target.window} of the target",
            f"at most {case.target.window}",
            "lower eagle3_server_context_length",
        )
    if case.context <= case.draft.window:
        return
    if allowed:
        yield Finding(
            "window_overridden",
            "warning",
            f"With {ALLOW_LONGER} SGLang runs the drafter beyond its window: there fewer tokens are accepted, while "
            "answers stay right, as the target checks each; it also lets context_length exceed the target's own window",
            windows,
            f"a drafter with a window of {case.context}",
            f"leave it if that is what you want, or set eagle3_server_context_length: {case.draft.window}",
        )
    else:
        yield Finding(
            "window",
            "error",
            "The drafter's window is smaller than the server's, which SGLang refuses while it loads",
            windows,
            f"a window of the drafter of at least {case.context}, or {ALLOW_LONGER}=1",
            "set eagle3_server_allow_overwrite_longer_context_len: true (beyond the drafter's window fewer tokens are "
            f"accepted), or eagle3_server_context_length: {case.draft.window}",
        )


@_rule
def _dtype(case: Case) -> Iterator[Finding]:
    if case.argument("dtype") not in (None, "auto"):
        return
    target, draft = (_loaded_as(model.dtype) for model in (case.target, case.draft))
    if target == draft:
        return
    reason = ", which SGLang loads as float16" if draft == "float16" and case.draft.dtype != "float16" else ""
    yield Finding(
        "dtype",
        "error",
        "Drafter and target would be loaded in different types, and they share an embedding",
        f"{case.draft.dtype or 'no dtype'} in the drafter's config.json{reason}; {target} for the target",
        "the same type",
        f"set dtype: {target} in eagle3_server_extra_arguments",
    )


def _loaded_as(dtype: str | None) -> str:
    """The type that SGLang makes of a configuration's, with ``--dtype auto``."""
    short = {"half": "float16", "float": "float32"}
    named = short.get(dtype or "float32", dtype or "float32")
    return "float16" if named == "float32" else named


@_rule
def _depth(case: Case) -> Iterator[Finding]:
    layers = case.draft.text.get("num_hidden_layers")
    one = case.draft.architecture == MLA_DRAFTER or (case.is_llama and case.release.before(MANY_STATES))
    if one and layers != 1:
        yield Finding(
            "num_hidden_layers",
            "error",
            f"The EAGLE-3 drafters of {case.release.name} have one layer",
            f"num_hidden_layers {layers} in the drafter's config.json",
            "1",
            "use an EAGLE-3 drafter; a small language model is none",
        )


@_rule
def _projection(case: Case) -> Iterator[Finding]:
    if not case.is_llama or not case.draft.tensors:
        return
    wanted = (case.draft.hidden, case.states * case.target_hidden)
    tensor = case.draft.tensor("fc.weight")
    if tensor is None or tensor.shape != wanted:
        yield Finding(
            "projection",
            "error",
            "The drafter's projection of the target's hidden states has the wrong shape",
            f"fc.weight {list(tensor.shape)}" if tensor else "no fc.weight",
            f"fc.weight {list(wanted)}: hidden size by {case.states} hidden states of {case.target_hidden}",
            _OTHER_DRAFTER,
        )


@_rule
def _quantization(case: Case) -> Iterator[Finding]:
    for role, model, named, setting in (
        ("target", case.target, case.argument("quantization"), "eagle3_server_quantization: null"),
        (
            "drafter",
            case.draft,
            case.argument("speculative_draft_model_quantization") or case.argument("quantization"),
            "eagle3_server_draft_quantization: unquant",
        ),
    ):
        # These read the scales of a quantized model; others quantize while they load.
        wanting = str(named).startswith("modelopt") and case.release.before(QUANTIZES_ITSELF)
        if wanting and not model.quantized:
            inherited = role == "drafter" and not case.argument("speculative_draft_model_quantization")
            yield Finding(
                f"{role}_quantization",
                "error",
                f"The {role} is not quantized, but would be loaded as if it were",
                f"{named}{', inherited from the target' if inherited else ''}; neither quantization_config nor "
                f"hf_quant_config.json in {model.path}",
                "no quantization",
                f"set {setting}",
            )


@_rule
def _backend(case: Case) -> Iterator[Finding]:
    named = case.argument("speculative_draft_attention_backend") or case.argument("attention_backend")
    for backends, wrong, kind, own in (
        (MLA_ONLY, not case.draft.mla, "latent", "multi-head"),
        (MHA_ONLY, case.draft.mla, "multi-head", "latent"),
    ):
        if named in backends and wrong:
            yield Finding(
                "attention_backend",
                "error",
                f"The drafter's attention back end is for {kind} attention, and the drafter has {own} attention",
                f"{named} for {case.draft.architecture}",
                "triton or flashinfer",
                "set eagle3_server_draft_attention_backend: triton",
            )


@_rule
def _heads(case: Case) -> Iterator[Finding]:
    ranks = case.attention_ranks
    for role, model in (("target", case.target), ("drafter", case.draft)):
        heads = int(model.text.get("num_attention_heads") or 0)
        # With fewer key and value heads than GPUs SGLang copies them, so either has to divide the other.
        pairs = int(model.text.get("num_key_value_heads") or heads)
        if heads % ranks or (not model.mla and pairs % ranks and ranks % pairs):
            yield Finding(
                f"{role}_heads",
                "error",
                f"The heads of the {role} cannot be shared out among the GPUs",
                f"{heads} heads and {pairs} of keys and values for {ranks} GPUs",
                "numbers that divide evenly",
                "correct eagle3_server_tensor_parallel_size",
            )


@_rule
def _format(case: Case) -> Iterator[Finding]:
    if not case.draft.tensors:
        yield Finding(
            "draft_format",
            "warning",
            "The drafter's weights are not in safetensors, so its shapes and its vocabulary map are not checked",
            f"no *.safetensors in {case.draft.path}",
            "safetensors",
            "nothing has to be done if it is known to work",
        )
