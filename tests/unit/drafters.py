"""A small target and a drafter that go together, for tests that spoil one thing."""

from __future__ import annotations

import copy
import functools
from pathlib import Path
from typing import Any

from blackwell.draft import Case, Finding, Release, check, read_model, read_release

from tests.models import Weights, write_model
from tests.wheels import unpacked

H, V, K, INNER = 8, 32, 4, 16
TEXT: dict[str, Any] = {
    "model_type": "kimi_k2",
    "hidden_size": H,
    "vocab_size": V,
    "num_hidden_layers": 12,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "max_position_embeddings": 4096,
    "dtype": "bfloat16",
}
TARGET: dict[str, Any] = {
    "architectures": ["KimiK25ForConditionalGeneration"],
    "dtype": "bfloat16",
    "text_config": {**TEXT, "kv_lora_rank": 4},
}
DRAFT: dict[str, Any] = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "hidden_size": H,
    "vocab_size": V,
    "draft_vocab_size": K,
    "num_hidden_layers": 1,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "intermediate_size": INNER,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 5, 8], "use_aux_hidden_state": True},
}
LAYER = {
    "self_attn.q_proj.weight": (H, 2 * H),
    "self_attn.k_proj.weight": (H, 2 * H),
    "self_attn.v_proj.weight": (H, 2 * H),
    "self_attn.o_proj.weight": (H, H),
    "mlp.gate_proj.weight": (INNER, H),
    "mlp.up_proj.weight": (INNER, H),
    "mlp.down_proj.weight": (H, INNER),
    "hidden_norm.weight": (H,),
    "input_layernorm.weight": (H,),
    "post_attention_layernorm.weight": (H,),
}
# The drafter knows tokens 3, 7, 11 and 15.
TENSORS: dict[str, Weights] = {
    "fc.weight": Weights("BF16", (H, 3 * H)),
    "norm.weight": Weights("BF16", (H,)),
    "lm_head.weight": Weights("BF16", (K, H)),
    "d2t": Weights("I64", (K,), [3, 6, 9, 12]),
    "t2d": Weights("BOOL", (V,), [int(token in (3, 7, 11, 15)) for token in range(V)]),
    **{f"midlayer.{name}": Weights("BF16", shape) for name, shape in LAYER.items()},
}
ARGUMENTS: dict[str, Any] = {"tp_size": 8, "attention_backend": "triton"}


@functools.cache
def published(version: str = "0.5.9") -> Release:
    """A published release, read from its wheel."""
    return read_release(unpacked("sglang", version), {})


class Pair:
    """Both models, to be spoilt."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.target, self.draft = copy.deepcopy(TARGET), copy.deepcopy(DRAFT)
        self.tensors = dict(TENSORS)
        self.release = published()

    def check(self) -> list[Finding]:
        """Everything that is found."""
        write_model(self.folder / "target", self.target, {})
        write_model(self.folder / "draft", self.draft, self.tensors)
        return self.look()

    def look(self) -> list[Finding]:
        """The same for the files as they are."""
        target, draft = (
            read_model(self.folder / name, tensors=name == "draft") for name in ("target", "draft")
        )
        return check(Case(target, draft, ARGUMENTS, {}, self.release))

    def ids(self) -> list[str]:
        """The short names of what is found."""
        return [finding.id for finding in self.check()]
