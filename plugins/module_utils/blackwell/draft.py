"""What a drafter and its target have to agree on before SGLang loads either of them.

Most of these disagreements show after minutes of loading, in a child process, and some never: a damaged vocabulary map
or a wrong layer only makes speculation slow. All of it can be read from two ``config.json`` and a few headers. The
rules are those of the published SGLang 0.5.9 to 0.5.23. A rule that lacks a number says nothing: ``_sizes`` says for
all of them which numbers are not found.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from . import draft_foreign, draft_tensors, draft_values
from .booleans import parse_environment_boolean
from .draft_case import (
    DAMAGED_DRAFTER,
    MANY_STATES,
    OTHER_DRAFTER,
    Case,
    Finding,
    Rule,
    find_argument,
    not_checked,
)
from .draft_class import MLA_DRAFTER
from .draft_model import LAYER_IDS, Model, read_model
from .draft_release import Release, entry_classes, read_release

__all__ = [
    "Case",
    "Finding",
    "Model",
    "Release",
    "check",
    "draft_path",
    "entry_classes",
    "read_model",
    "read_release",
]

ALLOW_LONGER = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"
# The first releases in which
LAYERS_AS_NAMED = (0, 5, 13)  # layers are taken as the drafter names them, unless the first is 1,
NO_EAGLE_CONFIG = (0, 5, 15)  # eagle_config may be null,
QUANTIZES_ITSELF = (0, 5, 18)  # modelopt_fp4 does without a description of the quantization.
# Attention back ends for one kind of attention only; all others serve both.
MLA_ONLY = ("cutedsl_mla", "cutlass_mla", "flashmla", "tokenspeed_mla", "trtllm_mla")
MHA_ONLY = ("trtllm_mha",)


def draft_path(arguments: Mapping[str, Any]) -> str:
    """The drafter's folder; empty for a server that does not speculate with one."""
    return str(find_argument(arguments, "speculative_draft_model_path") or "")


_RULES: list[Rule] = [draft_foreign.check_classes]


def _rule(rule: Rule) -> Rule:
    _RULES.append(rule)
    return rule


def check(case: Case) -> list[Finding]:
    """Everything that does not fit, errors first."""
    foreign = list(draft_foreign.check_foreign(case))
    if foreign:
        return foreign
    findings = [finding for rule in _RULES for finding in rule(case)]
    return sorted(findings, key=lambda finding: finding.severity != "error")


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
def _sizes(case: Case) -> Iterator[Finding]:
    """Say which numbers are not found, and what is not checked for want of them."""
    common = ("hidden_size", "vocab_size", "num_attention_heads", "num_hidden_layers")
    for role, model in case.roles:
        keys = (*common, "intermediate_size") if role == "drafter" and case.is_llama else common
        absent = [key for key in keys if model.size(key) is None]
        absent += [] if model.window else ["max_position_embeddings"]
        absent += ["dtype"] if model.dtype_elsewhere else []
        where = f"{model.path}/config.json" + (f", in {model.place}" if model.place else "")
        if absent:
            yield not_checked(
                f"What hangs on {', '.join(absent)} of the {role}",
                f"no such number in {where}; SGLang then takes what a class of transformers has as a rule",
                f"add the published values to {where}; nothing has to be done if the pair is known to work",
            )
        if model.ambiguous and any("order" in reason for reason in case.release.unread):
            yield not_checked(
                f"Which part of the configuration of the {role} counts",
                f"several of {', '.join(model.places)} in {model.path}/config.json",
                "nothing has to be done if the model is known to work",
            )


@_rule
def _hidden_size(case: Case) -> Iterator[Finding]:
    if case.is_llama and case.draft.config.get("target_hidden_size", 0) is None:
        yield Finding(
            "target_hidden_size",
            "error",
            "target_hidden_size in the drafter's config.json is null, and SGLang counts with it",
            "null",
            "the target's hidden_size, or no such key",
            f"remove target_hidden_size from {case.draft.path}/config.json",
        )
    if case.target_hidden is None or case.target.hidden is None or case.draft.hidden is None:
        return
    if not case.uses_states and case.draft.hidden != case.target.hidden:
        yield Finding(
            "hidden_size",
            "error",
            "The drafter takes the target's last hidden state as it is, and has another hidden size",
            f"use_aux_hidden_state off, hidden_size {case.draft.hidden} in the drafter's config.json, "
            f"{case.target.hidden} in the target's",
            "the same size",
            OTHER_DRAFTER,
        )
    elif case.target_hidden != case.target.hidden:
        own = "target_hidden_size" if "target_hidden_size" in case.draft.text else "hidden_size"
        yield Finding(
            "hidden_size",
            "error",
            "The drafter takes hidden states of another size than the target has",
            f"{own} {case.target_hidden} in the drafter's config.json, hidden_size {case.target.hidden} in the "
            "target's",
            "the same size",
            OTHER_DRAFTER,
        )
    elif case.draft.hidden != case.target.hidden and case.draft.tensor("embed_tokens.weight") is None:
        # With sizes of their own SGLang does not share the embedding.
        yield Finding(
            "embedding",
            "error",
            "The drafter has another hidden size than the target, so it needs an embedding, and has none",
            f"hidden_size {case.draft.hidden}, no tensor embed_tokens.weight",
            f"embed_tokens.weight of [{case.draft.vocabulary}, {case.draft.hidden}]",
            DAMAGED_DRAFTER,
        )


@_rule
def _vocabulary(case: Case) -> Iterator[Finding]:
    if None not in (case.draft.vocabulary, case.target.vocabulary) and (
        case.draft.vocabulary != case.target.vocabulary
    ):
        yield Finding(
            "vocabulary",
            "error",
            "Drafter and target have different vocabularies",
            f"vocab_size {case.draft.vocabulary} in the drafter's config.json, {case.target.vocabulary} in the "
            "target's",
            "the same size, as the drafter uses the target's embedding",
            OTHER_DRAFTER,
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
def _states(case: Case) -> Iterator[Finding]:
    config = case.draft.config.get("eagle_config")
    if (
        "use_aux_hidden_state" in case.draft.config
        and not case.draft.config["use_aux_hidden_state"]
        and case.uses_states
    ):
        yield Finding(
            "use_aux_hidden_state_ignored",
            "warning",
            "The drafter says where SGLang does not look that it takes no hidden states of several layers",
            "use_aux_hidden_state outside eagle_config",
            "the same inside eagle_config",
            f"move it into eagle_config in {case.draft.path}/config.json",
        )
    named = config.get("use_aux_hidden_state", True) if isinstance(config, dict) else True
    if not isinstance(named, bool):
        yield Finding(
            "use_aux_hidden_state",
            "warning",
            f"use_aux_hidden_state is no truth value, and SGLang takes it as {str(case.uses_states).lower()}",
            json.dumps(named)[:80],
            "true or false",
            f"write what is meant into {case.draft.path}/config.json",
        )


@_rule
def _layers(case: Case) -> Iterator[Finding]:
    depth = case.target.size("num_hidden_layers")
    layers = case.layers
    if depth is None or not case.uses_states:
        return
    if layers is None:
        elsewhere, own = case.draft.config.get(LAYER_IDS), [1, depth // 2 - 1, depth - 4]
        if elsewhere not in (None, own):
            yield Finding(
                "aux_layers_ignored",
                "warning",
                "The drafter names the layers it listens to where SGLang does not look, so it takes its own",
                f"{LAYER_IDS} {elsewhere} outside eagle_config; SGLang takes {own}",
                "the layers that the drafter was trained with, inside eagle_config",
                f"move it into eagle_config in {case.draft.path}/config.json",
            )
        return
    named = f"{LAYER_IDS} {list(layers)}"
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
            OTHER_DRAFTER,
        )
    elif sorted(set(layers)) != list(layers):
        yield Finding(
            "aux_layers_order",
            "error",
            "The drafter names layers twice or out of order, and SGLang hands them over once and in order",
            named,
            f"{sorted(set(layers))}",
            OTHER_DRAFTER,
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
            "compare the accept length with the one that is published for the drafter; if it is lower, "
            # There is no layer before the first.
            + (
                f"subtract one from each in {case.draft.path}/config.json"
                if layers[0]
                else "use a later SGLang than 0.5.12 (sglang_stack_version)"
            ),
        )


@_rule
def _window(case: Case) -> Iterator[Finding]:
    allowed = parse_environment_boolean(case.environment.get(ALLOW_LONGER, ""))
    if case.context is None:
        return
    windows = f"window {case.draft.window} of the drafter, {case.context} of the server"
    if case.target.window is not None and case.context > case.target.window:
        yield Finding(
            "target_window",
            "warning" if allowed else "error",
            "The server's window is larger than the target's",
            f"context_length {case.context}, window {case.target.window} of the target",
            f"at most {case.target.window}",
            "lower eagle3_server_context_length",
        )
    if case.draft.window is None or case.context <= case.draft.window:
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
def _depth(case: Case) -> Iterator[Finding]:
    layers = case.draft.text.get("num_hidden_layers")
    one = case.draft.architecture == MLA_DRAFTER or (case.is_llama and case.release.before(MANY_STATES))
    if layers is None and case.draft.text.get("model_type") != "llama":
        return
    if one and layers != 1:
        yield Finding(
            "num_hidden_layers",
            "error",
            f"The EAGLE-3 drafters of {case.release.name} have one layer",
            f"num_hidden_layers {layers} in the drafter's config.json"
            if layers is not None
            else "no num_hidden_layers in the drafter's config.json, which is 32 then",
            "1",
            "use an EAGLE-3 drafter; a small language model is none",
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
        heads = model.size("num_attention_heads")
        if heads is None:
            continue
        # With fewer key and value heads than GPUs SGLang copies them, so either has to divide the other.
        pairs = model.size("num_key_value_heads") or heads
        if heads % ranks or (not model.mla and pairs % ranks and ranks % pairs):
            yield Finding(
                f"{role}_heads",
                "error",
                f"The heads of the {role} cannot be shared out among the GPUs",
                f"{heads} heads and {pairs} of keys and values for {ranks} GPUs",
                "numbers that divide evenly",
                "correct eagle3_server_tensor_parallel_size",
            )


_RULES += [
    draft_values.check_overrides,
    draft_values.check_types,
    draft_values.check_rope,
    draft_tensors.check_format,
    draft_tensors.check_names,
    draft_tensors.check_draft_vocabulary,
    draft_tensors.check_projection,
    draft_tensors.check_map,
    draft_tensors.check_reverse_map,
]
