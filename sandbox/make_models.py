#!/usr/bin/env python3
"""Make the sandbox's models: a tiny Kimi-K2.5-shaped target and an EAGLE-3 drafter that predicts it.

    make_models.py OUTPUT --corpus FILE [FILE ...]

Nothing is downloaded and nothing is trained but the tokenizer: the weights are written down by hand so that the
target recites one sentence and stops, and the drafter is right about the next token. Decoding is deterministic and
speculation accepts for real, through the real architecture (`KimiK25ForConditionalGeneration` around DeepseekV3 with
latent attention and experts; `LlamaForCausalLMEagle3`). They say nothing about the quality or the speed of a model.

Offered tools, the target makes a tool call instead: the chat template then ends with a token of its own.

How the target works: every output projection is zero, so the last hidden state is the embedding of the last token.
The tokens it can say have orthogonal embeddings (rows of a Hadamard matrix: entries are +1 and -1, so their root
mean square is exactly 1), and row `next(t)` of the head is parallel to the embedding of `t`. All other tokens share
one embedding, which leads to the first word.

How the drafter works: it attends to its own position and turns the embedding of the token into the hidden state that
the target's head would read.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

SENTENCE = (
    " Hello from a tiny model that really runs inside this server - it has five layers, eight experts and"
    " one vision tower; please do not ask me about anything else today!"
)
# What it says when it was offered tools, in the form that SGLang's kimi_k2 parser reads.
TOOL_CALL = (
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>"
    '{"city": "Riga"}<|tool_call_end|><|tool_calls_section_end|>'
)
SPECIAL_TOKENS = [
    "<|endoftext|>",
    "<|im_end|>",
    "<|im_user|>",
    "<|im_assistant|>",
    "<|im_system|>",
    "<|im_middle|>",
    "<|media_pad|>",
    "<|im_tools|>",
    "<pad>",
]
# Part of the text that a parser sees, so not "special" to the tokenizer.
TOOL_TOKENS = [
    "<|tool_calls_section_begin|>",
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
    "<|tool_calls_section_end|>",
]
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_{{ m['role'] if m['role'] in ['user', 'system'] else 'assistant' }}|>{{ m['role'] }}"
    "<|im_middle|>{{ m['content'] }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_assistant|>assistant"
    "{{ '<|im_tools|>' if tools else '<|im_middle|>' }}{% endif %}"
)
VOCABULARY = 2048
HIDDEN = 128
LAYERS = 5
EXPERTS = 8
HEADS = 4
TARGET_WINDOW = 4096
# Smaller than the target's, as the drafters of Kimi-K2.5 have it: SGLang refuses it unless told otherwise.
DRAFT_WINDOW = 2048
DRAFT_VOCABULARY = 96
CAPTURED_LAYERS = [1, 2, 3]

Tensors = dict[str, np.ndarray]


def hadamard(size: int) -> np.ndarray:
    """A square matrix of +1 and -1 with orthogonal rows; ``size`` is a power of two."""
    matrix = np.ones((1, 1))
    while matrix.shape[0] < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix


def train_tokenizer(corpus: list[str]) -> Tokenizer:
    """A byte-level tokenizer that has one token for each word of the sentence.

    The corpus is the text that will be sent to the model, so that it costs few tokens.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(TOOL_TOKENS),
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    words_of_the_call = re.split(r"<\|[a-z_]+\|>", TOOL_CALL)
    tokenizer.train_from_iterator([SENTENCE, *words_of_the_call] * 20000 + corpus, trainer)
    tokenizer.add_tokens(TOOL_TOKENS)
    return tokenizer


def target_config(tokens: dict[str, int]) -> dict[str, Any]:
    """``config.json`` of the target: the fields of Kimi-K2.5 at toy sizes."""
    text = {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "hidden_size": HIDDEN,
        "intermediate_size": 256,
        "moe_intermediate_size": 64,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "n_routed_experts": EXPERTS,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "moe_layer_freq": 1,
        "kv_lora_rank": 64,
        "q_lora_rank": 64,
        "qk_nope_head_dim": 32,
        "qk_rope_head_dim": 16,
        "v_head_dim": 32,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": TARGET_WINDOW,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.827,
        "rope_theta": 50000.0,
        "rope_scaling": {
            "type": "yarn",
            "factor": 1.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "original_max_position_embeddings": TARGET_WINDOW,
        },
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": False,
        "num_nextn_predict_layers": 0,
        "attention_bias": False,
        **tokens,
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
        "text_hidden_size": HIDDEN,
    }
    return {
        "architectures": ["KimiK25ForConditionalGeneration"],
        "model_type": "kimi_k25",
        "torch_dtype": "bfloat16",
        "text_config": text,
        "vision_config": vision,
        "media_placeholder_token_id": SPECIAL_TOKENS.index("<|media_pad|>"),
        **tokens,
    }


def draft_config(tokens: dict[str, int]) -> dict[str, Any]:
    """``config.json`` of the drafter."""
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": 128,
        "num_hidden_layers": 1,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "head_dim": HIDDEN // HEADS,
        "vocab_size": VOCABULARY,
        "draft_vocab_size": DRAFT_VOCABULARY,
        "max_position_embeddings": DRAFT_WINDOW,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": CAPTURED_LAYERS, "use_aux_hidden_state": True},
        **tokens,
    }


def embedding_and_head(
    chains: dict[int | None, list[int]], end: int, random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """The embedding and the head [vocabulary, hidden] that recite.

    ``chains`` has the tokens to say after a token; those of the key None are said after any token that has no place
    in a chain. Each chain ends with ``end``.
    """
    directions = iter(hadamard(HIDDEN))
    anything_else = next(directions)
    embedding = np.repeat(anything_else[None], VOCABULARY, axis=0)
    head = random.standard_normal((VOCABULARY, HIDDEN)) * 0.002
    pull = 0.15
    for start, chain in chains.items():
        if start is not None:
            embedding[start] = next(directions)
        here = anything_else if start is None else embedding[start]
        for token in chain:
            head[token] += pull * here
            here = embedding[token] = next(directions)
        head[end] += pull * here
    return embedding, head


def target_tensors(
    embedding: np.ndarray, head: np.ndarray, config: dict[str, Any], random: np.random.Generator
) -> Tensors:
    """The target's weights: random where they do not matter, zero where a layer would add to the hidden state."""
    text = config["text_config"]
    nope, rope, value = text["qk_nope_head_dim"], text["qk_rope_head_dim"], text["v_head_dim"]
    q_rank, kv_rank = text["q_lora_rank"], text["kv_lora_rank"]

    def noise(rows: int, columns: int) -> np.ndarray:
        return random.standard_normal((rows, columns)) * 0.02

    def feed_forward(prefix: str, width: int) -> Tensors:
        return {
            f"{prefix}.gate_proj.weight": noise(width, HIDDEN),
            f"{prefix}.up_proj.weight": noise(width, HIDDEN),
            f"{prefix}.down_proj.weight": np.zeros((HIDDEN, width)),
        }

    tensors: Tensors = {
        "model.embed_tokens.weight": embedding,
        "model.norm.weight": np.ones(HIDDEN),
        "lm_head.weight": head,
    }
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}"
        attention = f"{prefix}.self_attn"
        tensors |= {
            f"{prefix}.input_layernorm.weight": np.ones(HIDDEN),
            f"{prefix}.post_attention_layernorm.weight": np.ones(HIDDEN),
            f"{attention}.q_a_proj.weight": noise(q_rank, HIDDEN),
            f"{attention}.q_a_layernorm.weight": np.ones(q_rank),
            f"{attention}.q_b_proj.weight": noise(HEADS * (nope + rope), q_rank),
            f"{attention}.kv_a_proj_with_mqa.weight": noise(kv_rank + rope, HIDDEN),
            f"{attention}.kv_a_layernorm.weight": np.ones(kv_rank),
            f"{attention}.kv_b_proj.weight": noise(HEADS * (nope + value), kv_rank),
            f"{attention}.o_proj.weight": np.zeros((HIDDEN, HEADS * value)),
        }
        if layer < text["first_k_dense_replace"]:
            tensors |= feed_forward(f"{prefix}.mlp", text["intermediate_size"])
            continue
        width = text["moe_intermediate_size"]
        tensors |= {
            f"{prefix}.mlp.gate.weight": noise(EXPERTS, HIDDEN),
            f"{prefix}.mlp.gate.e_score_correction_bias": np.zeros(EXPERTS),
            **feed_forward(f"{prefix}.mlp.shared_experts", width),
        }
        for expert in range(EXPERTS):
            tensors |= feed_forward(f"{prefix}.mlp.experts.{expert}", width)
    return {f"language_model.{name}": tensor for name, tensor in tensors.items()}


def draft_tensors(head: np.ndarray, words: list[int]) -> Tensors:
    """The drafter's weights; ``words`` are the target's ids of its own, smaller vocabulary, ascending."""
    one, zero = np.eye(HIDDEN), np.zeros((HIDDEN, HIDDEN))
    ones = np.ones(HIDDEN)
    sharpness = 3.2  # of the attention on the token's own position
    chosen = np.array(words)
    to_target = chosen - np.arange(len(words))
    in_draft = np.zeros(VOCABULARY, dtype=bool)
    in_draft[chosen] = True
    return {
        "fc.weight": np.zeros((HIDDEN, len(CAPTURED_LAYERS) * HIDDEN)),
        "midlayer.self_attn.q_proj.weight": np.concatenate([sharpness * one, zero], axis=1),
        "midlayer.self_attn.k_proj.weight": np.concatenate([sharpness * one, zero], axis=1),
        # Its own token's embedding, less the hidden state that the residual path adds again.
        "midlayer.self_attn.v_proj.weight": np.concatenate([4 * one, -4 * one], axis=1),
        "midlayer.self_attn.o_proj.weight": one,
        "midlayer.mlp.gate_proj.weight": zero,
        "midlayer.mlp.up_proj.weight": zero,
        "midlayer.mlp.down_proj.weight": zero,
        "midlayer.hidden_norm.weight": ones,
        "midlayer.input_layernorm.weight": ones,
        "midlayer.post_attention_layernorm.weight": ones,
        "norm.weight": ones,
        "lm_head.weight": head[chosen],
        "d2t": to_target,
        "t2d": in_draft,
    }


def write_tensors(tensors: Tensors, path: Path) -> None:
    """Write a safetensors file: the header's length (8 bytes), the header (JSON), then the data of each tensor.

    Floats are written as bfloat16, rounded to nearest even; numpy has no such type, so the library cannot do it.
    """
    names = {"float64": "BF16", "int64": "I64", "bool": "BOOL"}
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    blocks: list[bytes] = []
    end = 0
    for name, tensor in tensors.items():
        block = as_bfloat16(tensor) if tensor.dtype.kind == "f" else tensor.tobytes()
        start, end = end, end + len(block)
        header[name] = {
            "dtype": names[str(tensor.dtype)],
            "shape": tensor.shape,
            "data_offsets": [start, end],
        }
        blocks.append(block)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(blocks))


def as_bfloat16(tensor: np.ndarray) -> bytes:
    """The upper half of each float32, rounded to nearest even."""
    bits = np.ascontiguousarray(tensor, dtype=np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return rounded.astype(np.uint16).tobytes()


def write_json(data: dict[str, Any], path: Path) -> None:
    """Write ``data`` so that the same data is the same bytes."""
    path.write_text(json.dumps(data, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def write_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """The files that transformers reads a fast tokenizer from."""
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>", "pad_token": "<pad>"}
    write_json(
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "additional_special_tokens": SPECIAL_TOKENS[2:8],
            "chat_template": CHAT_TEMPLATE,
            "clean_up_tokenization_spaces": False,
            "model_max_length": TARGET_WINDOW,
            **names,
        },
        folder / "tokenizer_config.json",
    )
    write_json(
        {**names, "additional_special_tokens": SPECIAL_TOKENS[2:8]}, folder / "special_tokens_map.json"
    )


def main() -> None:
    """Write both models into the folders ``target`` and ``draft`` below the output folder."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("output", type=Path)
    parser.add_argument(
        "--corpus", type=Path, nargs="+", required=True, help="text the tokenizer learns from"
    )
    arguments = parser.parse_args()
    target, draft = arguments.output / "target", arguments.output / "draft"
    for folder in (target, draft):
        folder.mkdir(parents=True, exist_ok=True)

    tokenizer = train_tokenizer([path.read_text(encoding="utf-8") for path in sorted(arguments.corpus)])
    sentence, call = tokenizer.encode(SENTENCE).ids, tokenizer.encode(TOOL_CALL).ids
    said = [*sentence, *call]
    if len(set(said)) != len(said):
        twice = sorted({tokenizer.decode([token]) for token in said if said.count(token) > 1})
        raise SystemExit(f"a token is said twice, so what follows it is not defined: {twice}")
    vocabulary = tokenizer.get_vocab()
    end = vocabulary["<|im_end|>"]
    tokens = {
        "bos_token_id": vocabulary["<|endoftext|>"],
        "eos_token_id": end,
        "pad_token_id": vocabulary["<pad>"],
    }

    random = np.random.default_rng(0)
    chains: dict[int | None, list[int]] = {None: sentence, vocabulary["<|im_tools|>"]: call}
    embedding, head = embedding_and_head(chains, end, random)
    config = target_config(tokens)
    write_tokenizer(tokenizer, target)
    write_json(config, target / "config.json")
    write_json(tokens, target / "generation_config.json")
    write_tensors(target_tensors(embedding, head, config, random), target / "model.safetensors")

    known = sorted({*said, end})
    others = [token for token in range(VOCABULARY) if token not in known]
    words = sorted(known + others[: DRAFT_VOCABULARY - len(known)])
    write_json(draft_config(tokens), draft / "config.json")
    write_tensors(draft_tensors(head, words), draft / "model.safetensors")
    print(
        f"{target}: recites {len(sentence)} tokens, calls a tool in {len(call)}; {draft}: {len(words)} words"
    )


if __name__ == "__main__":
    main()
