"""The drafter's tensors, held against what the class of the release takes, and against the target's vocabulary."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from .draft_case import DAMAGED_DRAFTER, OTHER_DRAFTER, Case, Finding, not_checked
from .draft_class import DrafterClass, UnreadError, read_class

# Tensors without a parameter that change nothing: SGLang computes the first itself, and does not read the second.
_HARMLESS = re.compile(r"(^|\.)(rotary_emb\.inv_freq|rotary_emb\.(cos|sin)_cached)$")
# Scales of an 8-bit cache, which the drafter's loader does not read: it takes 1.
_CACHE_SCALE = re.compile(r"\.self_attn\.(attn\.)?[kvq]_scale$")
_RULED = ("fc.weight", "fc.", "lm_head.weight")
_SHOWN = 4


def check_format(case: Case) -> Iterator[Finding]:
    """Whether the tensors can be seen."""
    if not case.draft.tensors:
        yield Finding(
            "draft_format",
            "warning",
            "The drafter's weights are not in safetensors, so its shapes and its vocabulary map are not checked",
            f"no *.safetensors in {case.draft.path}",
            "safetensors",
            "nothing has to be done if it is known to work",
        )
    odd = sorted({tensor.dtype for tensor in case.draft.tensors.values() if not tensor.known})
    if odd:
        yield not_checked(
            "The length of some of the drafter's tensors",
            f"types that this check does not know: {', '.join(odd)}",
            "nothing has to be done if the drafter is known to work",
        )


def check_names(case: Case) -> Iterator[Finding]:
    """Each parameter once, and no tensor left over: SGLang skips names that it does not know."""
    path = case.release.drafters.get(case.draft.architecture)
    if path is None or not case.draft.tensors:
        return
    try:
        takes = read_class(path, case.draft, case.states, uses_states=case.uses_states)
    except UnreadError as error:
        yield not_checked(
            "Whether the drafter has all tensors that its class takes, and no others,",
            f"{error}, in {case.release.name}",
            "compare the accept length with the one that is published for the drafter",
        )
        return
    if case.draft.quantized:
        takes = _by_module(takes)
    names = {
        _module(name) if case.draft.quantized else name
        for name in case.draft.tensors
        if not _CACHE_SCALE.search(name)
    }
    yield from _compare_names(case, takes, names)
    if not case.draft.quantized:
        yield from _compare_shapes(case, takes)


def _module(name: str) -> str:
    """A name without its last part: a quantized module has tensors of several names instead of ``weight``."""
    # bitsandbytes has parts of a weight below its name.
    module = re.sub(r"\.weight\..+", ".weight", name).rpartition(".")[0]
    return f"{module}." if module else name


def _by_module(takes: DrafterClass) -> DrafterClass:
    return DrafterClass(
        {_module(name): (None,) for name in takes.shapes},
        frozenset(map(_module, takes.optional)),
        takes.stacked,
        takes.renamed,
    )


def _compare_names(case: Case, takes: DrafterClass, names: set[str]) -> Iterator[Finding]:
    filled: Counter[str] = Counter()
    left = []
    for name in sorted(names):
        if "d2t" in name or "t2d" in name or _HARMLESS.search(name):
            continue
        parameters = takes.resolve(name)
        filled.update(parameters)
        if not parameters and not _repeats_embedding(case, name):
            left.append(name)
    missing = [name for name in takes.shapes if not filled[name] and name not in takes.optional]
    if case.is_llama:
        # A rule of its own says more about these.
        missing = [name for name in missing if name not in _RULED]
    if missing or left:
        yield Finding(
            "tensor_names",
            "error",
            "The drafter's tensors are not those that its class takes: SGLang skips a name that it does not know, and "
            "leaves what no tensor fills random",
            "; ".join(
                filter(
                    None,
                    (
                        f"{len(missing)} missing: {_some(missing)}" if missing else "",
                        f"{len(left)} that {case.draft.architecture} does not take: {_some(left)}"
                        if left
                        else "",
                    ),
                )
            ),
            f"each parameter of {case.draft.architecture} once, and nothing else",
            "convert the drafter to SGLang's names (its one layer is called midlayer), or use one that was published "
            "for this release"
            if missing and left
            else DAMAGED_DRAFTER,
        )
    twice = [name for name, count in filled.items() if count > 1]
    maps = [name for name in case.draft.tensors if "d2t" in name]
    if len(maps) > 1:
        twice += maps
    if twice:
        yield Finding(
            "tensors_twice",
            "error",
            "Several of the drafter's tensors fill the same parameter, and which one stays is left to chance",
            _some(twice),
            "each parameter once",
            DAMAGED_DRAFTER,
        )


def _repeats_embedding(case: Case, name: str) -> bool:
    """Whether a tensor is the head of a drafter whose head is its embedding, which SGLang skips rightly."""
    return name.startswith("lm_head.") and bool(case.draft.text.get("tie_word_embeddings", False))


def _some(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")


def _compare_shapes(case: Case, takes: DrafterClass) -> Iterator[Finding]:
    wrong = []
    for name, tensor in case.draft.tensors.items():
        parameters = takes.resolve(name)
        if "d2t" in name or "t2d" in name or not parameters or (case.is_llama and parameters[0] in _RULED):
            continue
        shapes = [takes.shapes[parameter] for parameter in parameters]
        rows = [shape[0] for shape in shapes]
        wanted = (None if None in rows else sum(row or 0 for row in rows), *shapes[0][1:])
        if len(wanted) != len(tensor.shape) or any(
            right is not None and right != there for right, there in zip(wanted, tensor.shape)
        ):
            right = f"[{', '.join('?' if one is None else str(one) for one in wanted)}]"
            wrong.append(f"{name} {list(tensor.shape)}, not {right}")
    if wrong:
        yield Finding(
            "tensor_shapes",
            "error",
            "Tensors of the drafter have other shapes than its config.json says",
            _some(wrong),
            "shapes that follow from the sizes in config.json",
            DAMAGED_DRAFTER,
        )


def check_draft_vocabulary(case: Case) -> Iterator[Finding]:
    """The size of the drafter's own vocabulary, and its head."""
    text = case.draft.text
    tied = bool(text.get("tie_word_embeddings", False))
    if not case.is_llama:
        return
    if "draft_vocab_size" not in text:
        # A head of its own may be the target's; one that is the embedding has a row for each token.
        value, rows = "null", ", or the number of rows of lm_head.weight"
        if tied:
            value, rows = str(case.draft.vocabulary or "(the number of vocab_size)"), ""
        yield Finding(
            "draft_vocab_size",
            "error",
            "The drafter's config.json lacks draft_vocab_size, which SGLang reads without asking",
            f"tie_word_embeddings is {str(tied).lower()}, no draft_vocab_size",
            "the number of tokens that the drafter chooses from"
            + ("" if tied else ", or null for the target's head"),
            f'add "draft_vocab_size": {value}{rows}, to {case.draft.path}/config.json',
        )
    elif tied:
        if None not in (case.draft.vocabulary, case.draft_vocabulary) and (
            case.draft.vocabulary != case.draft_vocabulary
        ):
            yield Finding(
                "tied_head",
                "error",
                "The drafter chooses from fewer tokens than its embedding has, and its head is that embedding",
                f"tie_word_embeddings is true, draft_vocab_size {case.draft_vocabulary}, vocab_size "
                f"{case.draft.vocabulary}",
                "a head of its own, or draft_vocab_size like vocab_size",
                OTHER_DRAFTER,
            )
    elif text["draft_vocab_size"] is not None and case.draft.hidden is not None:
        wanted = (case.draft_vocabulary, case.draft.hidden)
        head = case.draft.tensor("lm_head.weight")
        missing = head is None and not case.draft.quantized
        if case.draft.tensors and (missing or (head is not None and head.shape != wanted)):
            yield Finding(
                "draft_head",
                "error",
                "The drafter's head does not fit its draft_vocab_size",
                f"lm_head.weight {list(head.shape)}" if head else "no lm_head.weight: it would be random",
                f"lm_head.weight {list(wanted)}",
                DAMAGED_DRAFTER,
            )


def check_projection(case: Case) -> Iterator[Finding]:
    """The tensor that makes one hidden state of several."""
    if not case.is_llama or not case.draft.tensors:
        return
    tensor = case.draft.tensor("fc.weight")
    if (tensor is None and not case.uses_states) or case.draft.hidden is None or case.target_hidden is None:
        return
    wanted = (case.draft.hidden, case.states * case.target_hidden)
    if tensor is None or tensor.shape != wanted:
        yield Finding(
            "projection",
            "error",
            "The drafter's projection of the target's hidden states has the wrong shape",
            f"fc.weight {list(tensor.shape)}" if tensor else "no fc.weight",
            f"fc.weight {list(wanted)}: hidden size by {case.states} hidden states of {case.target_hidden}",
            OTHER_DRAFTER,
        )


def check_map(case: Case) -> Iterator[Finding]:
    """The map from the drafter's tokens to the target's."""
    own, whole = case.draft_vocabulary, case.target.vocabulary
    smaller = own is not None and whole is not None and own < whole
    if case.d2t is None:
        if smaller and case.draft.tensors:
            yield Finding(
                "d2t",
                "error",
                "The drafter has a vocabulary of its own and no map to the target's",
                f"draft_vocab_size {own} of {whole}, no tensor d2t",
                f"a tensor d2t of {own} whole numbers",
                DAMAGED_DRAFTER,
            )
        return
    if len(case.d2t.shape) != 1 or own not in (None, case.d2t.shape[0]):
        yield _bad_map("d2t_length", f"d2t {list(case.d2t.shape)}", f"d2t {[own]}, as draft_vocab_size")
    if not case.d2t.whole or case.d2t.dtype == "BOOL":
        yield _bad_map("d2t_dtype", f"d2t of {case.d2t.dtype}", "whole numbers, as a rule I64")
        return
    outside = [token for token in case.chosen if token < 0 or (whole is not None and token >= whole)]
    if outside:
        yield _bad_map(
            "d2t_range",
            f"{len(outside)} tokens outside, the first is {outside[0]}",
            "tokens from 0" if whole is None else f"tokens 0 to {whole - 1}",
        )
    if smaller and case.chosen == list(range(len(case.chosen))):
        yield _bad_map(
            "d2t_zero", "d2t is all zero", "the place of each draft token in the target's vocabulary"
        )
    elif len(set(case.chosen)) < len(case.chosen):
        twice = len(case.chosen) - len(set(case.chosen))
        yield _bad_map("d2t_twice", f"{twice} tokens are there more than once", "each token once")


def check_reverse_map(case: Case) -> Iterator[Finding]:
    """The map back, which SGLang does not read: damage to either map shows in it."""
    whole = case.target.vocabulary
    if case.t2d is None:
        if case.d2t is not None:
            yield Finding(
                "t2d",
                "warning",
                "The drafter has no t2d, so its vocabulary map cannot be compared with anything",
                "no tensor t2d",
                f"a tensor t2d of {'all' if whole is None else whole} truth values",
                "nothing has to be done: SGLang does not read it",
            )
        return
    if len(case.t2d.shape) != 1 or not case.t2d.whole:
        yield not_checked(
            "Whether the drafter's two vocabulary maps name the same tokens",
            f"t2d {list(case.t2d.shape)} of {case.t2d.dtype}, not one row of truth values",
            "nothing has to be done if the drafter is known to work: SGLang does not read t2d",
        )
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
        DAMAGED_DRAFTER,
    )
