"""How large the trained models are, and the settings that say so to SGLang."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

# Layers whose output the drafter reads. Others than those SGLang takes by default, so that a drafter that is given
# other layers' states shows it.
READ_LAYERS = [0, 2, 5]


@dataclass(frozen=True)
class Size:
    """Sizes of target and drafter, in tokens, numbers and layers, and of a training batch.

    The drafter's window is the smaller one, as that of the published drafters is.
    """

    vocabulary: int = 4096
    draft_vocabulary: int = 2048
    hidden: int = 512
    layers: int = 8
    heads: int = 8
    latent: int = 512
    query_latent: int = 128
    head: int = 64
    experts: int = 8
    window: int = 32768
    draft_window: int = 16384
    sequence: int = 512
    batch: int = 64
    draft_sequence: int = 256
    draft_batch: int = 48
    corpus: int = 40_000_000


FULL = Size()
# For tests without a GPU.
TOY = Size(
    vocabulary=512,
    draft_vocabulary=128,
    hidden=32,
    heads=2,
    latent=16,
    query_latent=16,
    head=16,
    experts=2,
    window=512,
    draft_window=256,
    sequence=32,
    batch=2,
    draft_sequence=24,
    draft_batch=2,
    corpus=200_000,
)


def ends(tokens: dict[str, int]) -> dict[str, int]:
    """The tokens that begin, end and fill up a text."""
    return {
        "bos_token_id": tokens["<|endoftext|>"],
        "eos_token_id": tokens["<|im_end|>"],
        "pad_token_id": tokens["<pad>"],
    }


def target(size: Size, tokens: dict[str, int]) -> dict[str, Any]:
    """``config.json`` of a Kimi-K2.5 of this size."""
    text = {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "hidden_size": size.hidden,
        "intermediate_size": 2 * size.hidden,
        "moe_intermediate_size": size.hidden // 4,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "num_key_value_heads": size.heads,
        "n_routed_experts": size.experts,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "moe_layer_freq": 1,
        "kv_lora_rank": size.latent,
        "q_lora_rank": size.query_latent,
        "qk_nope_head_dim": size.head,
        "qk_rope_head_dim": size.head,
        "v_head_dim": size.head,
        "vocab_size": size.vocabulary,
        "max_position_embeddings": size.window,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": False,
        "num_nextn_predict_layers": 0,
        "attention_bias": False,
        **ends(tokens),
    }
    vision = {
        "patch_size": 14,
        "init_pos_emb_height": 8,
        "init_pos_emb_width": 8,
        "init_pos_emb_time": 4,
        "pos_emb_type": "divided_fixed",
        "num_attention_heads": 2,
        "num_hidden_layers": 1,
        "hidden_size": 64,
        "intermediate_size": 128,
        "merge_kernel_size": [2, 2],
        "video_attn_type": "spatial_temporal",
        "merge_type": "sd2_tpool",
        "mm_projector_type": "patchmerger",
        "mm_hidden_size": 64,
        "vt_hidden_size": 64,
        "vt_intermediate_size": 128,
        "vt_num_attention_heads": 2,
        "vt_num_hidden_layers": 1,
        "projector_hidden_act": "gelu",
        "projector_ln_eps": 1e-5,
        "text_hidden_size": size.hidden,
    }
    return {
        "architectures": ["KimiK25ForConditionalGeneration"],
        "model_type": "kimi_k25",
        "torch_dtype": "bfloat16",
        "text_config": text,
        "vision_config": vision,
        "media_placeholder_token_id": tokens["<|media_pad|>"],
        **ends(tokens),
    }


def drafter(size: Size, tokens: dict[str, int]) -> dict[str, Any]:
    """``config.json`` of an EAGLE-3 drafter for it."""
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": size.hidden,
        "intermediate_size": 2 * size.hidden,
        "num_hidden_layers": 1,
        "num_attention_heads": size.heads,
        "num_key_value_heads": size.heads // 2,
        "head_dim": size.head,
        "vocab_size": size.vocabulary,
        "draft_vocab_size": size.draft_vocabulary,
        "max_position_embeddings": size.draft_window,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": READ_LAYERS, "use_aux_hidden_state": True},
        **ends(tokens),
    }
