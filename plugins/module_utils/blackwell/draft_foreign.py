"""Drafters of other programs and of other kinds, told by their config.json: one finding says all about them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from .draft_case import MANY_STATES, Case, Finding, not_checked
from .draft_class import LLAMA_DRAFTER, MLA_DRAFTER

# Keys that only one format has, an expression for its classes, its model_type, and its name.
_FORMATS: tuple[tuple[frozenset[str], str, str, str], ...] = (
    (
        frozenset(
            {
                "speculators_model_type",
                "speculators_config",
                "speculators_version",
                "transformer_layer_config",
            }
        ),
        r".*Speculator(Config)?|Eagle3DraftModel|.*SpeculatorModel",
        r"speculator_model|eagle3_speculator",
        'the format "speculators" of vLLM',
    ),
    (
        frozenset({"pretrained_config", "builder_config"}),
        r"EagleForCausalLM",
        r"",
        "a checkpoint of TensorRT-LLM",
    ),
    (
        frozenset({"medusa_num_heads", "medusa_num_layers"}),
        r"Medusa.*",
        r"medusa",
        "the format of Medusa",
    ),
    (
        frozenset(),
        r"MLPSpeculator.*",
        r"mlp_speculator",
        "the format of MLP speculators",
    ),
    (
        frozenset(),
        r"Eagle3?(Llama|Qwen|MiniCPM|Deepseek|Mistral).*ForCausalLM|DFlash.*|Hydra.*",
        r"eagle3?",
        "a format of another program than SGLang",
    ),
)
_CONVERT = (
    "convert it to SGLang's format (the layer as midlayer.*, sizes at the top of config.json, "
    f'"architectures": ["{LLAMA_DRAFTER}"]), or use a drafter that is published for SGLang '
    "(eagle3_server_draft_model_path)"
)


def check_foreign(case: Case) -> Iterator[Finding]:
    """Whether the drafter is in the format of another program. Nothing else that is said of it would be true."""
    config, named = case.draft.config, case.draft.architecture
    own = named in case.release.architectures or named in (LLAMA_DRAFTER, MLA_DRAFTER)
    # A converted drafter has SGLang's class, and sizes at the top; keys that tell where it is from may have stayed.
    if own and "transformer_layer_config" not in config and case.draft.hidden is not None:
        return
    formats = _FORMATS[:1] if own else _FORMATS
    for keys, classes, types, name in formats:
        there = sorted(keys & set(config))
        kind = str(config.get("model_type") or "")
        if there or re.fullmatch(classes, named) or (types and re.fullmatch(types, kind)):
            signs = [f"architectures {named}" if named else "", f"model_type {kind}" if kind else "", *there]
            yield Finding(
                "draft_of_another_program",
                "error",
                f"The drafter is in {name}, which SGLang does not load",
                f"{', '.join(filter(None, signs))} in {case.draft.path}/config.json",
                f"a drafter in SGLang's format, with the class {LLAMA_DRAFTER}",
                _CONVERT,
            )
            return


def check_classes(case: Case) -> Iterator[Finding]:
    """Whether the release has both classes, and the drafter's is one of EAGLE-3."""
    release = case.release
    for reason in release.unread:
        yield not_checked(
            "Whether the release fits both models in all respects",
            reason,
            "install the release again (site.yml), or tell of it where this project is kept",
        )
    for role, model in case.roles:
        if model.architecture in release.architectures:
            continue
        if release.unread or not release.architectures:
            if release.architectures or release.unread:
                yield not_checked(
                    f"Whether {release.name} has a class for the {role}",
                    f"{model.architecture or 'no class'} is not in the sources that could be read",
                    "see to what the warnings about the release say",
                )
            continue
        remedy = f"use a release of SGLang that has it, or another {role}"
        if role == "drafter" and model.mla and release.before(MANY_STATES):
            remedy = "use a drafter without latent attention, or SGLang 0.5.12 (sglang_stack_version)"
        yield Finding(
            f"{role}_architecture",
            "error",
            f"{release.name} has no class for the {role}",
            model.architecture or f"no architectures in config.json of {model.path}",
            f"one of the {len(release.architectures)} classes of its models",
            remedy,
        )
    named = case.draft.architecture
    kind = str(case.draft.config.get("model_type") or "")
    # Without it transformers takes the first of its types that the path has in it.
    known = case.draft.config.get("auto_map") or (
        not re.search(r"[A-Z]|eagle|speculator|draft", kind) if kind else "llama" in case.draft.path
    )
    if named == LLAMA_DRAFTER and not known:
        yield Finding(
            "model_type",
            "error",
            "The drafter's config.json has no model_type that transformers knows, by which it tells the class of a "
            "configuration",
            f"model_type {kind}" if kind else "no model_type",
            "llama",
            f'write "model_type": "llama" into {case.draft.path}/config.json',
        )
    if named in release.architectures and named not in release.drafters:
        renamed = _is_renamed(case)
        yield Finding(
            "drafter_class",
            "error",
            f"The drafter is no EAGLE-3 drafter, but {_kind(named)}"
            + (" by its class, while its parts are those of one" if renamed else ""),
            f"architectures {named} in {case.draft.path}/config.json",
            f"one of {', '.join(sorted(release.drafters)) or LLAMA_DRAFTER}",
            f'write "architectures": ["{LLAMA_DRAFTER}"] into {case.draft.path}/config.json'
            if renamed
            else "use an EAGLE-3 drafter that was trained for this target (eagle3_server_draft_model_path)",
        )


def _is_renamed(case: Case) -> bool:
    """Whether a drafter is published under the class of a language model, as those of EAGLE's authors are."""
    parts = ("fc.weight", "midlayer.input_layernorm.weight")
    by_tensors = all(case.draft.tensor(name) for name in parts)
    by_sizes = not case.draft.tensors and "draft_vocab_size" in case.draft.config
    return case.draft.architecture.startswith("Llama") and (by_tensors or by_sizes)


def _kind(architecture: str) -> str:
    if re.search(r"Eagle[12]?$", architecture):
        return "one of the first or second EAGLE"
    if re.search(r"NextN$|MTP$", architecture):
        return "layers for multi-token prediction (MTP) of a target"
    return "a language model of its own"
