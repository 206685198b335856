"""What the class of an EAGLE-3 drafter takes from a checkpoint, from the sources of the release.

SGLang skips every tensor whose name it does not know, and leaves a parameter that no tensor fills as it was made:
random. So the names have to be known before. They follow from the parts that the classes make in ``__init__`` and from
the renaming in ``load_weights``; sources that have another part than those known here are not judged.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .draft_model import Model

# The drafter with multi-head attention, and the one with latent attention.
LLAMA_DRAFTER = "LlamaForCausalLMEagle3"
MLA_DRAFTER = "Eagle3DeepseekV2ForCausalLM"

# Parts without weights of their own.
_WEIGHTLESS = {"model", "logits_processor", "attn", "act_fn", "_fc_gatherer", "activation_quant", "dual_gemm"}
# Parts with weights, by file and class.
_PARTS = {
    "llama_eagle3.py": {
        "LlamaDecoderLayer": {"self_attn.qkv_proj", "mlp", "hidden_norm"},
        "LlamaModel": {"embed_tokens", "fc", "fc_norm", "input_norm", "midlayer", "layers", "norm"},
        "LlamaForCausalLMEagle3": {"lm_head"},
    },
    "kimi_k25_eagle3.py": {
        "Eagle3MLADecoderLayer": {
            "self_attn",
            "mlp",
            "input_layernorm",
            "hidden_norm",
            "post_attention_layernorm",
        },
        "Eagle3MLAModel": {"embed_tokens", "fc", "fc_norm", "midlayer", "norm"},
        "Eagle3DeepseekV2ForCausalLM": {"lm_head"},
    },
    "llama.py": {
        "LlamaDecoderLayer": {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"},
        "LlamaAttention": {"qkv_proj", "o_proj"},
        "LlamaMLP": {"gate_up_proj", "down_proj"},
    },
}
# A module that makes no parameters of its own is called in small letters, or is one of these.
_NO_MODULE = re.compile(r"[a-z_]|Optional$|AttentionInputs$")


class UnreadError(Exception):
    """The sources do not tell. The text says why, as a phrase."""


@dataclass(frozen=True)
class DrafterClass:
    """What a drafter's class takes.

    Attributes:
        shapes: of each parameter by its name in a checkpoint, without ``model.``; None for a dimension that the
            configuration does not tell. Parts of a stacked one are apart.
        optional: parameters that need not be there: they are shared with the target, or not used.
        stacked: for each suffix of a stacked parameter, those of its parts in order.
        renamed: older spellings of names, and what they stand for.
        strict: whether a name is renamed at its beginning only, and has no ``model.`` before it.
    """

    shapes: Mapping[str, tuple[int | None, ...]]
    optional: frozenset[str]
    stacked: Mapping[str, Sequence[str]]
    renamed: Mapping[str, str] = field(default_factory=dict)
    strict: bool = False

    def resolve(self, name: str) -> tuple[str, ...]:
        """The parameters that a tensor fills, by their names here; empty if SGLang skips it."""
        for old, new in self.renamed.items():
            if not self.strict or name.startswith(old):
                name = name.replace(old, new, 1 if self.strict else -1)
        if name.startswith("model.") and not self.strict and not name.startswith("model.lm_head."):
            name = name[len("model.") :]
        if name in self.shapes:
            return (name,)
        for whole, parts in self.stacked.items():
            if f"{whole}." in name:
                names = tuple(name.replace(f"{whole}.", f"{part}.") for part in parts)
                return names if all(one in self.shapes for one in names) else ()
        return ()


def read_class(path: Path, model: Model, states: int, *, uses_states: bool) -> DrafterClass:
    """What the class of a drafter takes for its configuration.

    Args:
        path: the file of the release that has the class.
        model: the drafter.
        states: how many hidden states of the target it takes.
        uses_states: whether it takes hidden states of several layers at all.

    Raises:
        UnreadError: the sources are not as they are known.
    """
    readers = {
        ("llama_eagle3.py", LLAMA_DRAFTER): _read_llama,
        ("kimi_k25_eagle3.py", MLA_DRAFTER): _read_mla,
    }
    read = readers.get((path.name, model.architecture))
    if not read:
        raise UnreadError(f"what {model.architecture} takes is known for no release")
    try:
        return read(path, model, states, uses_states=uses_states)
    except (TypeError, AttributeError, IndexError) as error:
        raise UnreadError(f"{path} is not as it was so far ({error})") from error


def _read_llama(path: Path, model: Model, states: int, *, uses_states: bool) -> DrafterClass:
    own = _parse(path)
    made = {
        **_made_parts(own, "llama_eagle3.py"),
        **_made_parts(_parse(path.with_name("llama.py")), "llama.py"),
    }
    parts = made["llama_eagle3.py", "LlamaModel"]
    if not {"embed_tokens", "fc", "norm"} <= parts or not parts & {"midlayer", "layers"}:
        raise UnreadError(f"LlamaModel in {path} lacks parts that it had so far")
    deep = "layers" in parts
    prefixes = (
        [f"layers.{at}" for at in range(model.size("num_hidden_layers") or 1)] if deep else ["midlayer"]
    )
    shapes = _model_shapes(model, states, parts)
    for at, prefix in enumerate(prefixes):
        shapes |= {f"{prefix}.{name}": shape for name, shape in _layer_shapes(model, first=at == 0).items()}
    return DrafterClass(shapes, _optional(model, shapes, uses_states), _stacked(own, path), _renamed(own))


def _read_mla(path: Path, model: Model, states: int, *, uses_states: bool) -> DrafterClass:
    own = _parse(path)
    parts = _made_parts(own, "kimi_k25_eagle3.py")["kimi_k25_eagle3.py", "Eagle3MLAModel"]
    texts = {
        node.value for node in ast.walk(own) if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    if not {r"^layers\.0\.", "midlayer.", "lm_head."} <= texts:
        raise UnreadError(f"load_weights in {path} renames otherwise than so far")
    found = _stacked(own, path, {".gate_up_proj": [".gate_proj", ".up_proj"]})
    layer = _mla_layer_shapes(model)
    shapes = {
        **_model_shapes(model, states, parts),
        **{f"midlayer.{name}": shape for name, shape in layer.items()},
    }
    return DrafterClass(
        shapes, _optional(model, shapes, uses_states), found, {"layers.0.": "midlayer."}, strict=True
    )


def _optional(
    model: Model, shapes: Mapping[str, tuple[int | None, ...]], uses_states: bool
) -> frozenset[str]:
    optional = {"embed_tokens.weight"}
    if model.text.get("draft_vocab_size") is None:
        optional.add("lm_head.weight")
    if not uses_states:
        optional |= {name for name in shapes if name.startswith(("fc.", "fc_norm.", "input_norm."))}
    return frozenset(optional)


def _parse(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError, RecursionError) as error:
        raise UnreadError(f"{path} is not readable ({error})") from error


def _made_parts(tree: ast.Module, file: str) -> dict[tuple[str, str], set[str]]:
    """The modules that the constructors of a file's classes make, by file and class."""
    found = {}
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    for name, known in _PARTS[file].items():
        if name not in classes:
            raise UnreadError(f"{file} has no class {name}")
        parts = {
            ast.unparse(target).removeprefix("self.")
            for method in classes[name].body
            if isinstance(method, ast.FunctionDef) and method.name == "__init__"
            for node in ast.walk(method)
            if isinstance(node, ast.Assign) and _makes_module(node.value)
            for target in node.targets
            if isinstance(target, ast.Attribute) and ast.unparse(target).startswith("self.")
        }
        unknown = parts - known - _WEIGHTLESS
        if unknown:
            raise UnreadError(f"{name} in {file} has parts that are not known: {', '.join(sorted(unknown))}")
        found[file, name] = parts
    return found


def _makes_module(value: ast.expr) -> bool:
    """Whether a value is a call of something with the name of a class."""
    return isinstance(value, ast.Call) and not _NO_MODULE.match(ast.unparse(value.func).rpartition(".")[2])


def _model_shapes(model: Model, states: int, parts: set[str]) -> dict[str, tuple[int | None, ...]]:
    """Shapes of everything outside the layers."""
    text, hidden = model.text, model.hidden
    source = model.size("target_hidden_size") or hidden
    wide = None if source is None else states * source
    eagle = model.config.get("eagle_config")
    eagle = eagle if isinstance(eagle, dict) else {}
    shapes: dict[str, tuple[int | None, ...]] = {
        "embed_tokens.weight": (model.vocabulary, hidden),
        "fc.weight": (hidden, wide),
        "norm.weight": (hidden,),
    }
    if text.get("bias", False):
        shapes["fc.bias"] = (hidden,)
    if not text.get("tie_word_embeddings", False):
        shapes["lm_head.weight"] = (model.size("draft_vocab_size") or model.vocabulary, hidden)
    if "fc_norm" in parts and (text.get("fc_norm") or text.get("use_aux_norm")):
        shapes |= {f"fc_norm.{at}.weight": (source,) for at in range(states)}
    if "input_norm" in parts and eagle.get("norm_before_fc", text.get("norm_before_fc", False)):
        shapes["input_norm.weight"] = (wide,)
    return shapes


def _layer_shapes(model: Model, *, first: bool) -> dict[str, tuple[int | None, ...]]:
    """Shapes of one layer; the first takes the embedding beside the hidden state."""
    text, hidden, width = model.text, model.hidden, model.head_dim
    heads = model.size("num_attention_heads")
    pairs = model.size("num_key_value_heads") or heads
    inner = model.size(
        "intermediate_size_mlp" if text.get("model_type") == "llama4_text" else "intermediate_size"
    )
    taken = hidden if hidden is None or not first else 2 * hidden
    queries = heads * width if heads and width else None
    keys = pairs * width if pairs and width else None
    shapes: dict[str, tuple[int | None, ...]] = {
        "self_attn.q_proj.weight": (queries, taken),
        "self_attn.k_proj.weight": (keys, taken),
        "self_attn.v_proj.weight": (keys, taken),
        "self_attn.o_proj.weight": (hidden, queries),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
        "hidden_norm.weight": (hidden,),
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
    }
    # The drafter makes its projection of queries, keys and values anew, without a bias.
    if text.get("attention_bias", False) or text.get("bias", False):
        shapes["self_attn.o_proj.bias"] = (hidden,)
    return shapes


def _mla_layer_shapes(model: Model) -> dict[str, tuple[int | None, ...]]:
    """Shapes of the layer with latent attention."""
    hidden, inner, heads = model.hidden, model.size("intermediate_size"), model.size("num_attention_heads")
    query, latent = model.size("q_lora_rank"), model.size("kv_lora_rank")
    nope, rope, value = (model.size(key) for key in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
    taken = None if hidden is None else 2 * hidden
    keys = None if latent is None or rope is None else latent + rope
    shapes: dict[str, tuple[int | None, ...]] = {
        "self_attn.q_a_proj.weight": (query, taken),
        "self_attn.q_a_layernorm.weight": (query,),
        "self_attn.q_b_proj.weight": (heads * (nope + rope) if heads and nope and rope else None, query),
        "self_attn.kv_a_proj_with_mqa.weight": (keys, taken),
        "self_attn.kv_a_layernorm.weight": (latent,),
        "self_attn.kv_b_proj.weight": (heads * (nope + value) if heads and nope and value else None, latent),
        "self_attn.o_proj.weight": (hidden, heads * value if heads and value else None),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
    }
    norms = ("hidden_norm", "input_layernorm", "post_attention_layernorm")
    return {**shapes, **{f"{name}.weight": (hidden,) for name in norms}}


_LLAMA_STACKED = {
    ".qkv_proj": [".q_proj", ".k_proj", ".v_proj"],
    ".gate_up_proj": [".gate_proj", ".up_proj"],
}


def _stacked(
    tree: ast.Module, path: Path, expected: Mapping[str, Sequence[str]] = _LLAMA_STACKED
) -> dict[str, list[str]]:
    """The parts of stacked parameters, from the list of triples in ``load_weights``."""
    found: dict[str, list[str]] = {}
    for value in _values(tree, "stacked_params_mapping"):
        for triple in value:
            found.setdefault(str(triple[0]), []).append(str(triple[1]))
    if found != expected:
        raise UnreadError(f"load_weights in {path} stacks other parameters than so far")
    return found


def _renamed(tree: ast.Module) -> dict[str, str]:
    """Older names that ``load_weights`` takes, and what they stand for."""
    return {str(old): str(new) for value in _values(tree, "legacy_name_map") for old, new in value.items()}


def _values(tree: ast.Module, name: str) -> list[Any]:
    """What is assigned to a variable anywhere, as far as it is written out."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and any(getattr(one, "id", "") == name for one in node.targets):
            try:
                found.append(ast.literal_eval(node.value))
            except ValueError as error:
                raise UnreadError(f"{name} is not written out") from error
    return found
