"""A model as its files describe it: the sizes, from the places where SGLang looks for them, and the tensors.

A size that is not found is None, never 0: SGLang then takes the default of a class of transformers, which these files
do not tell. The places are those of ``get_hf_text_config`` and ``ModelConfig`` in SGLang 0.5.8 to 0.5.23.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import OperatorError
from .model_check import read_config, read_json, read_tensors
from .safetensors import Tensor

# Where SGLang 0.5.9 looks for the language model, in its order; thinker_config may have a text_config in it.
PLACES = ("text_config", "llm_config", "language_config", "thinker_config")
LAYER_IDS = "eagle_aux_hidden_state_layer_ids"
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
    "head_dim",
    "hidden_size",
    "intermediate_size",
    "intermediate_size_mlp",
    "kv_lora_rank",
    "num_attention_heads",
    "num_aux_hidden_states",
    "num_hidden_layers",
    "num_key_value_heads",
    "q_lora_rank",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "v_head_dim",
    "target_hidden_size",
    "vocab_size",
)
# Of these a target has none, or one for each layer, and SGLang does not mind; a drafter that lacks one is told so.
_MAY_BE_NONE = (
    "intermediate_size",
    "intermediate_size_mlp",
    "kv_lora_rank",
    "num_key_value_heads",
    "q_lora_rank",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "v_head_dim",
)
# No size of a model comes near; beyond it a product of two is no number that anything can hold.
_LARGEST = 1 << 40


@dataclass(frozen=True)
class Model:
    """A model as its files describe it.

    Attributes:
        path: its folder.
        config: its ``config.json``.
        tensors: of all its safetensors files; of the drafter only, as nothing asks for the target's.
        quantization: contents of ``hf_quant_config.json``, which NVIDIA's quantized models have; empty if it has none.
        places: where the release looks for the language model, in its order.
    """

    path: str
    config: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    quantization: Mapping[str, Any]
    places: tuple[str, ...] = PLACES

    @property
    def place(self) -> str:
        """The key that has the part about the language model; empty if it is the whole configuration."""
        if self.architecture.startswith("Llava") and self.architecture.endswith("ForCausalLM"):
            return ""
        found = next((place for place in self.places if place in self.config), "")
        deeper = found == "thinker_config" and "text_config" in (self.config[found] or {})
        return f"{found}.text_config" if deeper else found

    @property
    def text(self) -> Mapping[str, Any]:
        """The part about the language model, which models that see pictures have in a place of its own."""
        part: Mapping[str, Any] = self.config
        for key in filter(None, self.place.split(".")):
            part = part[key] or {}
        return part

    @property
    def ambiguous(self) -> bool:
        """Whether it depends on the order of the places which of them counts."""
        return sum(place in self.config for place in PLACES) > 1

    @property
    def architecture(self) -> str:
        """Its class."""
        named = self.config.get("architectures") or [""]
        return str(named[0])

    @property
    def mla(self) -> bool:
        """Whether it has latent attention."""
        return self.size("kv_lora_rank") is not None and self.text.get("use_mla") is not False

    @property
    def window(self) -> int | None:
        """Its context window in tokens, as SGLang derives it."""
        scaling = self.text.get("rope_scaling") or {}
        scaled = "original_max_position_embeddings" not in scaling and scaling.get("rope_type") != "llama3"
        factor = scaling.get("factor", 1) if scaled else 1
        for key in _WINDOW_KEYS:
            if self.text.get(key) is not None:
                return int((1 if factor is None else factor) * self.text[key])
        return None

    def size(self, key: str) -> int | None:
        """A number of the language model; None if it is not found."""
        value = self.text.get(key)
        # 0 is what some models write for attention that they do not have, a list is one size for each layer.
        return int(value) if isinstance(value, int) and _size(value) else None

    @property
    def hidden(self) -> int | None:
        """The size of its hidden states."""
        return self.size("hidden_size")

    @property
    def vocabulary(self) -> int | None:
        """The number of its tokens."""
        return self.size("vocab_size")

    @property
    def head_dim(self) -> int | None:
        """The width of one head, which Llama models derive where it is not said; others have numbers of their own."""
        heads, hidden = self.size("num_attention_heads"), self.hidden
        derived = hidden // heads if hidden and heads and self.text.get("model_type") == "llama" else None
        return self.size("head_dim") or derived

    @property
    def dtype(self) -> str | None:
        """The type in its configuration, as SGLang reads it; None if there is none."""
        part: Mapping[str, Any] = self.text
        if self.place.startswith("thinker_config."):
            part = self.config["thinker_config"]
        named = part.get("dtype") or part.get("torch_dtype")
        return str(named) if named else None

    @property
    def dtype_elsewhere(self) -> bool:
        """Whether a part outside the language model names the type, which only some releases take over."""
        return self.dtype is None and bool(self.config.get("dtype") or self.config.get("torch_dtype"))

    @property
    def quantized(self) -> bool:
        """Whether it brings a description of its quantization."""
        return bool(
            self.config.get("quantization_config")
            or self.config.get("compression_config")
            or self.text.get("quantization_config")
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
        quantization=read_json(quantization) if quantization.exists() else {},
    )


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _LARGEST


def _size(value: Any) -> bool:
    return _whole(value) and value > 0


def _no_size(value: Any) -> bool:
    """Whether it is a size, or says that there is none, or not one alone."""
    return (_whole(value) and value >= 0) or (isinstance(value, list) and all(map(_whole, value)))


def _factor(value: Any) -> bool:
    number = _whole(value) or (isinstance(value, float) and math.isfinite(value))
    return bool(number and 0 < value <= _LARGEST)


def _mapping(value: Any) -> bool:
    return isinstance(value, dict)


def _names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _name(value: Any) -> bool:
    return isinstance(value, str)


def _wholes(value: Any) -> bool:
    return isinstance(value, list) and all(map(_whole, value))


def _check_kinds(folder: Path, config: Mapping[str, Any]) -> None:
    """Refuse values of another kind than all readers take them for, by which a damaged or edited file shows."""
    wrong = []

    def expect(holder: Any, name: str, kind: str, right: Callable[[Any], bool]) -> Any:
        value = holder.get(name) if isinstance(holder, dict) else None
        if value is not None and not right(value):
            wrong.append(f"{name} is {json.dumps(value)[:80]}, not {kind}")
        return value

    expect(config, "architectures", "a list of names", _names)
    parts: list[Any] = [config]
    for place in PLACES:
        parts.append(expect(config, place, "a mapping", _mapping))
        parts.append(expect(parts[-1], "text_config", "a mapping", _mapping))
    for part in parts:
        for key in _NUMBERS:
            right = _factor if key in _WINDOW_KEYS else _no_size if key in _MAY_BE_NONE else _size
            expect(part, key, "a whole number above 0", right)
        for key in ("dtype", "torch_dtype", "model_type"):
            expect(part, key, "a name", _name)
        expect(expect(part, "rope_scaling", "a mapping", _mapping), "factor", "a number above 0", _factor)
    expect(config.get("eagle_config"), LAYER_IDS, "a list of whole numbers", _wholes)
    if wrong:
        raise OperatorError(
            f"{folder}/config.json has values that mean nothing",
            found="; ".join(dict.fromkeys(wrong)),
            expected="sizes as whole numbers, and mappings and lists where SGLang reads them",
            remedy="copy the file again; if its publisher has it like this, use another model",
        )
