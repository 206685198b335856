"""Each way in which a drafter can fail to go with its target, from the files to the message."""

from __future__ import annotations

import contextlib
import copy
import json
import tempfile
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from blackwell.draft import Case, Release, check, entry_classes, read_model, read_release
from blackwell.errors import OperatorError
from hypothesis import given as given_any
from hypothesis import settings
from hypothesis import strategies as st

from tests.models import Weights, write_model
from tests.wheels import unpacked

Run = Callable[..., dict[str, Any]]

VOCABULARY, KNOWN, HIDDEN, INNER = 163840, 32000, 7168, 18432
HEAD = HIDDEN // 64
# Kimi-K2.5 as far as its drafter is concerned.
TARGET: dict[str, Any] = {
    "architectures": ["KimiK25ForConditionalGeneration"],
    "quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"},
    "text_config": {
        "hidden_size": HIDDEN,
        "num_hidden_layers": 61,
        "num_attention_heads": 64,
        "num_key_value_heads": 64,
        "kv_lora_rank": 512,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 262144,
        "rope_scaling": {"type": "yarn", "factor": 64.0, "original_max_position_embeddings": 4096},
        "dtype": "bfloat16",
    },
}
DRAFT: dict[str, Any] = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "num_hidden_layers": 1,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "intermediate_size": INNER,
    "vocab_size": VOCABULARY,
    "draft_vocab_size": KNOWN,
    "max_position_embeddings": 262144,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 29, 57], "use_aux_hidden_state": True},
}
# The drafter knows every fifth token.
MAP = [4 * at for at in range(KNOWN)]
REVERSE = [int(token % 5 == 0 and token < 5 * KNOWN) for token in range(VOCABULARY)]
TENSORS = {
    "midlayer.self_attn.q_proj.weight": Weights("BF16", (HIDDEN, 2 * HIDDEN)),
    "midlayer.self_attn.k_proj.weight": Weights("BF16", (8 * HEAD, 2 * HIDDEN)),
    "midlayer.self_attn.v_proj.weight": Weights("BF16", (8 * HEAD, 2 * HIDDEN)),
    "midlayer.self_attn.o_proj.weight": Weights("BF16", (HIDDEN, HIDDEN)),
    "midlayer.mlp.gate_proj.weight": Weights("BF16", (INNER, HIDDEN)),
    "midlayer.mlp.up_proj.weight": Weights("BF16", (INNER, HIDDEN)),
    "midlayer.mlp.down_proj.weight": Weights("BF16", (HIDDEN, INNER)),
    "midlayer.hidden_norm.weight": Weights("BF16", (HIDDEN,)),
    "midlayer.input_layernorm.weight": Weights("BF16", (HIDDEN,)),
    "midlayer.post_attention_layernorm.weight": Weights("BF16", (HIDDEN,)),
    "norm.weight": Weights("BF16", (HIDDEN,)),
    "fc.weight": Weights("BF16", (HIDDEN, 3 * HIDDEN)),
    "lm_head.weight": Weights("BF16", (KNOWN, HIDDEN)),
    "d2t": Weights("I64", (KNOWN,), MAP),
    "t2d": Weights("BOOL", (VOCABULARY,), REVERSE),
}
ARGUMENTS = {
    "tp_size": 8,
    "quantization": "modelopt_fp4",
    "attention_backend": "triton",
    "speculative_algorithm": "EAGLE3",
    "speculative_draft_model_quantization": "unquant",
    "speculative_draft_attention_backend": "triton",
}


class Pair:
    """A target and a drafter that go together, to be spoilt; kept apart from those of other tests."""

    def __init__(self, folder: Path, run_module: Run) -> None:
        self.folder, self._run_module = folder, run_module
        self.target, self.draft = copy.deepcopy(TARGET), copy.deepcopy(DRAFT)
        self.tensors = dict(TENSORS)
        self.arguments: dict[str, Any] = dict(ARGUMENTS)
        self.environment: dict[str, str] = {}
        self.version = "0.5.9"
        self.models = {
            "kimi_k25": "KimiK25ForConditionalGeneration",
            "llama_eagle3": "LlamaForCausalLMEagle3",
        }

    def check(self, *, check: bool = False) -> dict[str, Any]:
        write_model(self.folder / "target", self.target, {})
        write_model(self.folder / "draft", self.draft, self.tensors)
        venv.create(self.folder / "venv", symlinks=True, with_pip=False)
        site = next((self.folder / "venv").glob("lib/python3*/site-packages"))
        models = site / "sglang" / "srt" / "models"
        models.mkdir(parents=True)
        (site / "sglang" / "__init__.py").write_text("raise SystemExit('was imported')\n")
        # The drafter's class is the published one; no model of a release is as large as it, so the others are made up.
        published = (
            unpacked("sglang", "0.5.9" if self.version in ("0.5.8", "0.5.9") else "0.5.14") / "sglang" / "srt"
        )
        (models / "llama.py").symlink_to(published / "models" / "llama.py")
        for name in ("hf_transformers_utils.py", "hf_transformers"):
            if (published / "utils" / name).exists():
                (models.parent / "utils").mkdir(exist_ok=True)
                (models.parent / "utils" / name).symlink_to(published / "utils" / name)
        for name, architecture in self.models.items():
            if (published / "models" / f"{name}.py").exists() and name != "kimi_k25":
                (models / f"{name}.py").symlink_to(published / "models" / f"{name}.py")
                continue
            (models / f"{name}.py").write_text(
                f"class {architecture}: ...\n\n\nEntryClass = [{architecture}]\n"
            )
        (site / f"sglang-{self.version}.dist-info").mkdir()
        return self.run(check=check)

    def run(self, *, check: bool = False, **changed: Any) -> dict[str, Any]:
        """Check what is there."""
        paths = {
            "model_path": str(self.folder / "target"),
            "speculative_draft_model_path": str(self.folder / "draft"),
        }
        given = {
            "arguments": {**paths, **self.arguments},
            "environment": self.environment,
            "python": str(self.folder / "venv" / "bin" / "python"),
        }
        return self._run_module("draft_contract", {**given, **changed}, check=check)

    def errors(self) -> list[str]:
        """The errors, with the folder of the test left out."""
        message = str(self.check().get("msg", ""))
        return message.replace(str(self.folder), "").splitlines()[1:]

    def warnings(self) -> list[str]:
        return [finding["text"].replace(str(self.folder), "") for finding in self.check()["findings"]]


@pytest.fixture
def pair(tmp_path: Path, run_module: Run) -> Pair:
    return Pair(tmp_path, run_module)


OTHER = " To mend it: use a drafter that was trained for this target (eagle3_server_draft_model_path)."
DAMAGED = " To mend it: copy the drafter again; if its publisher has it like this, use another one."
BAD_MAP = "The drafter's vocabulary map is damaged, so its tokens would be wrong."


def changed(**values: Any) -> Callable[[Pair], object]:
    return lambda pair: pair.draft.update(values)


def without(key: str) -> Callable[[Pair], object]:
    return lambda pair: pair.draft.pop(key)


def tensors(**values: Weights) -> Callable[[Pair], object]:
    return lambda pair: pair.tensors.update(
        {name.replace("__", "."): value for name, value in values.items()}
    )


def lacking(name: str) -> Callable[[Pair], object]:
    return lambda pair: pair.tensors.pop(name)


def given(**values: Any) -> Callable[[Pair], object]:
    return lambda pair: pair.arguments.update(values)


def narrow_layer(hidden: int) -> dict[str, Weights]:
    """The tensors of a layer of 64 heads with another hidden size."""
    keys = 8 * hidden // 64
    shapes = {
        "self_attn.q_proj": (hidden, 2 * hidden),
        "self_attn.k_proj": (keys, 2 * hidden),
        "self_attn.v_proj": (keys, 2 * hidden),
        "self_attn.o_proj": (hidden, hidden),
        "mlp.gate_proj": (INNER, hidden),
        "mlp.up_proj": (INNER, hidden),
        "mlp.down_proj": (hidden, INNER),
        **dict.fromkeys(("hidden_norm", "input_layernorm", "post_attention_layernorm"), (hidden,)),
    }
    layer = {f"midlayer.{name}.weight": Weights("BF16", shape) for name, shape in shapes.items()}
    return {**layer, "norm.weight": Weights("BF16", (hidden,))}


def layers(*ids: int) -> Callable[[Pair], object]:
    return changed(eagle_config={"eagle_aux_hidden_state_layer_ids": list(ids)})


CASES: list[tuple[str, Callable[[Pair], object], str]] = [
    (
        "target architecture",
        lambda pair: pair.models.pop("kimi_k25"),
        "SGLang 0.5.9 has no class for the target. Found: KimiK25ForConditionalGeneration. Expected: one of "
        "the 5 classes of its models. To mend it: use a release of SGLang that has it, or another target.",
    ),
    (
        "draft architecture",
        changed(architectures=["LlamaForCausalLMEagle4"]),
        "SGLang 0.5.9 has no class for the drafter. Found: LlamaForCausalLMEagle4. Expected: one of the 6 "
        "classes of its models. To mend it: use a release of SGLang that has it, or another drafter.",
    ),
    (
        "draft with latent attention",
        changed(architectures=["Eagle3DeepseekV2ForCausalLM"], kv_lora_rank=512),
        "SGLang 0.5.9 has no class for the drafter. Found: Eagle3DeepseekV2ForCausalLM. Expected: one of the "
        "6 classes of its models. To mend it: use a drafter without latent attention, or SGLang 0.5.12 "
        "(sglang_stack_version).",
    ),
    (
        "no architecture",
        without("architectures"),
        "SGLang 0.5.9 has no class for the drafter. Found: no architectures in config.json of /draft. "
        "Expected: one of the 6 classes of its models. To mend it: use a release of SGLang that has it, or "
        "another drafter.",
    ),
    (
        "target_hidden_size",
        lambda pair: (
            pair.draft.update(target_hidden_size=4096),
            pair.tensors.update({"fc.weight": Weights("BF16", (HIDDEN, 3 * 4096))}),
        ),
        "The drafter takes hidden states of another size than the target has. Found: target_hidden_size 4096 "
        "in the drafter's config.json, hidden_size 7168 in the target's. Expected: the same size." + OTHER,
    ),
    (
        "own hidden size without embedding",
        lambda pair: (
            (
                pair.draft.update(hidden_size=2048, target_hidden_size=HIDDEN),
                pair.tensors.update(narrow_layer(2048)),
                pair.tensors.update(
                    {
                        "fc.weight": Weights("BF16", (2048, 3 * HIDDEN)),
                        "lm_head.weight": Weights("BF16", (KNOWN, 2048)),
                    }
                ),
            )
        ),
        "The drafter has another hidden size than the target, so it needs an embedding, and has none. Found: "
        "hidden_size 2048, no tensor embed_tokens.weight. Expected: embed_tokens.weight of [163840, 2048]."
        + DAMAGED,
    ),
    (
        "vocabulary",
        changed(vocab_size=129280),
        "Drafter and target have different vocabularies. Found: vocab_size 129280 in the drafter's "
        "config.json, 163840 in the target's. Expected: the same size, as the drafter uses the target's embedding."
        + OTHER,
    ),
    (
        "no draft_vocab_size",
        lambda pair: (pair.draft.pop("draft_vocab_size"), pair.tensors.pop("d2t"), pair.tensors.pop("t2d")),
        "The drafter's config.json lacks draft_vocab_size, which SGLang reads without asking. Found: "
        "tie_word_embeddings is false, no draft_vocab_size. Expected: the number of tokens that the drafter "
        'chooses from, or null for the target\'s head. To mend it: add "draft_vocab_size": null, or the number of rows '
        "of lm_head.weight, to "
        "/draft/config.json.",
    ),
    (
        "no head",
        lacking("lm_head.weight"),
        "The drafter's head does not fit its draft_vocab_size. Found: no lm_head.weight: it would be random. "
        "Expected: lm_head.weight [32000, 7168]." + DAMAGED,
    ),
    (
        "head of another size",
        tensors(lm_head__weight=Weights("BF16", (KNOWN + 1, HIDDEN))),
        "The drafter's head does not fit its draft_vocab_size. Found: lm_head.weight [32001, 7168]. Expected: "
        "lm_head.weight [32000, 7168]." + DAMAGED,
    ),
    (
        "no d2t",
        lacking("d2t"),
        "The drafter has a vocabulary of its own and no map to the target's. Found: draft_vocab_size 32000 of "
        "163840, no tensor d2t. Expected: a tensor d2t of 32000 whole numbers." + DAMAGED,
    ),
    (
        "short d2t",
        lambda pair: pair.tensors.update(
            d2t=Weights("I64", (KNOWN - 1,), MAP[:-1]),
            t2d=Weights(
                "BOOL", (VOCABULARY,), [*REVERSE[: 5 * KNOWN - 5], *[0] * (VOCABULARY - 5 * KNOWN + 5)]
            ),
        ),
        f"{BAD_MAP} Found: d2t [31999]. Expected: d2t [32000], as draft_vocab_size." + DAMAGED,
    ),
    (
        "d2t of floats",
        tensors(d2t=Weights("F32", (KNOWN,))),
        f"{BAD_MAP} Found: d2t of F32. Expected: whole numbers, as a rule I64." + DAMAGED,
    ),
    (
        "d2t out of range",
        lambda pair: (
            (
                pair.tensors.pop("t2d"),
                pair.tensors.update(d2t=Weights("I64", (KNOWN,), [*MAP[:-1], VOCABULARY])),
            )
        ),
        f"{BAD_MAP} Found: 1 tokens outside, the first is 195839. Expected: tokens 0 to 163839." + DAMAGED,
    ),
    (
        "d2t of zeros",
        lambda pair: (pair.tensors.pop("t2d"), pair.tensors.update(d2t=Weights("I64", (KNOWN,)))),
        f"{BAD_MAP} Found: d2t is all zero. Expected: the place of each draft token in the target's vocabulary."
        + DAMAGED,
    ),
    (
        "d2t names a token twice",
        lambda pair: (
            (pair.tensors.pop("t2d"), pair.tensors.update(d2t=Weights("I64", (KNOWN,), [0, -1, *MAP[2:]])))
        ),
        f"{BAD_MAP} Found: 1 tokens are there more than once. Expected: each token once." + DAMAGED,
    ),
    (
        "short t2d",
        tensors(t2d=Weights("BOOL", (VOCABULARY - 1,))),
        f"{BAD_MAP} Found: t2d names 0 tokens, d2t 32000, 0 of them the same. Expected: the same tokens in both."
        + DAMAGED,
    ),
    (
        "maps that differ",
        tensors(t2d=Weights("BOOL", (VOCABULARY,), [*REVERSE[:-5], 1, 1, 1, 1, 1])),
        f"{BAD_MAP} Found: t2d names 32005 tokens, d2t 32000, 32000 of them the same. Expected: the same tokens in "
        "both." + DAMAGED,
    ),
    (
        "eagle_config null",
        changed(eagle_config=None),
        "eagle_config in the drafter's config.json is no mapping, and SGLang reads it as one. Found: null. "
        "Expected: a mapping, or no such key. To mend it: remove eagle_config from /draft/config.json.",
    ),
    (
        "layer beyond the target",
        layers(1, 29, 60),
        "The drafter listens to layers that the target does not have. Found: eagle_aux_hidden_state_layer_ids "
        "[1, 29, 60], 61 layers in the target. Expected: layers 0 to 59." + OTHER,
    ),
    (
        "layers out of order",
        layers(29, 1, 57),
        "The drafter names layers twice or out of order, and SGLang hands them over once and in order. Found: "
        "eagle_aux_hidden_state_layer_ids [29, 1, 57]. Expected: [1, 29, 57]." + OTHER,
    ),
    (
        "four layers",
        layers(1, 15, 29, 57),
        "The drafter listens to another number of layers than it takes in SGLang 0.5.9. Found: "
        "eagle_aux_hidden_state_layer_ids [1, 15, 29, 57]. Expected: 3 layers. To mend it: use SGLang "
        "0.5.12 (sglang_stack_version), or another drafter.",
    ),
    (
        "window",
        changed(max_position_embeddings=131072),
        "The drafter's window is smaller than the server's, which SGLang refuses while it loads. Found: "
        "window 131072 of the drafter, 262144 of the server. Expected: a window of the drafter of at least "
        "262144, or SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1. To mend it: set "
        "eagle3_server_allow_overwrite_longer_context_len: true (beyond the drafter's window fewer tokens are "
        "accepted), or eagle3_server_context_length: 131072.",
    ),
    (
        "window of the target",
        lambda pair: (
            (pair.arguments.update(context_length=300000), pair.draft.update(max_position_embeddings=300000))
        ),
        "The server's window is larger than the target's. Found: context_length 300000, window 262144 of the "
        "target. Expected: at most 262144. To mend it: lower eagle3_server_context_length.",
    ),
    (
        "no dtype",
        without("torch_dtype"),
        "Drafter and target would be loaded in different types, and they share an embedding. Found: no dtype "
        "in the drafter's config.json, which SGLang loads as float16; bfloat16 for the target. Expected: the "
        "same type. To mend it: set dtype: bfloat16 in eagle3_server_extra_arguments.",
    ),
    (
        "float32",
        changed(torch_dtype="float32"),
        "Drafter and target would be loaded in different types, and they share an embedding. Found: float32 "
        "in the drafter's config.json, which SGLang loads as float16; bfloat16 for the target. Expected: the "
        "same type. To mend it: set dtype: bfloat16 in eagle3_server_extra_arguments.",
    ),
    (
        "two layers",
        changed(num_hidden_layers=2),
        "The EAGLE-3 drafters of SGLang 0.5.9 have one layer. Found: num_hidden_layers 2 in the drafter's "
        "config.json. Expected: 1. To mend it: use an EAGLE-3 drafter; a small language model is none.",
    ),
    (
        "projection of another shape",
        tensors(fc__weight=Weights("BF16", (HIDDEN, 2 * HIDDEN))),
        "The drafter's projection of the target's hidden states has the wrong shape. Found: fc.weight [7168, "
        "14336]. Expected: fc.weight [7168, 21504]: hidden size by 3 hidden states of 7168." + OTHER,
    ),
    (
        "inherited quantization",
        lambda pair: pair.arguments.pop("speculative_draft_model_quantization"),
        "The drafter is not quantized, but would be loaded as if it were. Found: modelopt_fp4, inherited from "
        "the target; neither quantization_config nor hf_quant_config.json in /draft. Expected: no "
        "quantization. To mend it: set eagle3_server_draft_quantization: unquant.",
    ),
    (
        "target that is not quantized",
        lambda pair: pair.target.pop("quantization_config"),
        "The target is not quantized, but would be loaded as if it were. Found: modelopt_fp4; neither "
        "quantization_config nor hf_quant_config.json in /target. Expected: no quantization. To mend it: set "
        "eagle3_server_quantization: null.",
    ),
    (
        "back end for latent attention",
        given(speculative_draft_attention_backend="trtllm_mla"),
        "The drafter's attention back end is for latent attention, and the drafter has multi-head attention. "
        "Found: trtllm_mla for LlamaForCausalLMEagle3. Expected: triton or flashinfer. To mend it: set "
        "eagle3_server_draft_attention_backend: triton.",
    ),
    (
        "inherited back end",
        given(speculative_draft_attention_backend=None, attention_backend="cutlass_mla"),
        "The drafter's attention back end is for latent attention, and the drafter has multi-head attention. "
        "Found: cutlass_mla for LlamaForCausalLMEagle3. Expected: triton or flashinfer. To mend it: set "
        "eagle3_server_draft_attention_backend: triton.",
    ),
    (
        "heads of the target",
        lambda pair: pair.target["text_config"].update(num_attention_heads=60),
        "The heads of the target cannot be shared out among the GPUs. Found: 60 heads and 64 of keys and "
        "values for 8 GPUs. Expected: numbers that divide evenly. To mend it: correct "
        "eagle3_server_tensor_parallel_size.",
    ),
    (
        "heads of the drafter",
        lambda pair: (
            pair.draft.update(num_attention_heads=28, num_key_value_heads=4, head_dim=HEAD),
            pair.tensors.update(
                {
                    "midlayer.self_attn.q_proj.weight": Weights("BF16", (28 * HEAD, 2 * HIDDEN)),
                    "midlayer.self_attn.k_proj.weight": Weights("BF16", (4 * HEAD, 2 * HIDDEN)),
                    "midlayer.self_attn.v_proj.weight": Weights("BF16", (4 * HEAD, 2 * HIDDEN)),
                    "midlayer.self_attn.o_proj.weight": Weights("BF16", (HIDDEN, 28 * HEAD)),
                }
            ),
        ),
        "The heads of the drafter cannot be shared out among the GPUs. Found: 28 heads and 4 of keys and "
        "values for 8 GPUs. Expected: numbers that divide evenly. To mend it: correct "
        "eagle3_server_tensor_parallel_size.",
    ),
]


@pytest.mark.parametrize(("spoil", "message"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_what_does_not_fit_is_refused(pair: Pair, spoil: Callable[[Pair], object], message: str) -> None:
    spoil(pair)
    assert pair.errors() == [message]


def test_a_pair_that_goes_together_is_accepted(pair: Pair) -> None:
    result = pair.check()
    assert (result["changed"], result["findings"], result["unchecked"]) == (False, [], [])


def test_everything_is_reported_at_once(pair: Pair) -> None:
    pair.draft.update(vocab_size=1000, eagle_config=None, num_hidden_layers=2)
    pair.arguments.update(tp_size=3)
    result = pair.check()
    head, *errors = result["msg"].splitlines()
    assert head == f"The drafter in {pair.folder}/draft does not go with the target in {pair.folder}/target:"
    assert len(errors) == 5


def test_target_and_drafter_are_two(pair: Pair) -> None:
    (pair.folder / "draft").symlink_to(pair.folder / "target")
    pair.draft = pair.target
    assert pair.errors()[1] == (
        "Drafter and target are the same folder, so the target would be loaded twice. Found: /draft. "
        "Expected: a drafter of its own. To mend it: correct eagle3_server_draft_model_path."
    )


@pytest.mark.parametrize("value", ["1", "true", "YES"])
def test_the_variable_that_lifts_the_window_is_explained(pair: Pair, value: str) -> None:
    pair.draft["max_position_embeddings"] = 131072
    pair.environment["SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"] = value
    assert pair.warnings() == [
        "With SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN SGLang runs the drafter beyond its window: there "
        "fewer tokens are accepted, while answers stay right, as the target checks each; it also lets "
        "context_length exceed the target's own window. Found: window 131072 of the drafter, 262144 of the "
        "server. Expected: a drafter with a window of 262144. To mend it: leave it if that is what you want, "
        "or set eagle3_server_context_length: 131072."
    ]


def test_a_variable_that_is_off_lifts_nothing(pair: Pair) -> None:
    pair.draft["max_position_embeddings"] = 131072
    pair.environment["SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"] = "0"
    assert "131072" in pair.errors()[0]


def test_a_shorter_window_of_the_server_suits_the_drafter(pair: Pair) -> None:
    pair.draft["max_position_embeddings"] = 131072
    pair.arguments["context_length"] = 131072
    assert pair.warnings() == []


def test_layers_that_sglang_overlooks_are_told(pair: Pair) -> None:
    del pair.draft["eagle_config"]
    pair.draft["eagle_aux_hidden_state_layer_ids"] = [2, 30, 58]
    assert pair.warnings() == [
        "The drafter names the layers it listens to where SGLang does not look, so it takes its own. Found: "
        "eagle_aux_hidden_state_layer_ids [2, 30, 58] outside eagle_config; SGLang takes [1, 29, 57]. "
        "Expected: the layers that the drafter was trained with, inside eagle_config. To mend it: move it "
        "into eagle_config in /draft/config.json."
    ]


def test_a_drafter_without_reverse_map_works(pair: Pair) -> None:
    del pair.tensors["t2d"]
    assert pair.warnings() == [
        "The drafter has no t2d, so its vocabulary map cannot be compared with anything. Found: no tensor "
        "t2d. Expected: a tensor t2d of 163840 truth values. To mend it: nothing has to be done: SGLang does "
        "not read it."
    ]


def test_what_is_not_in_safetensors_is_not_judged(pair: Pair) -> None:
    pair.tensors.clear()
    assert [finding["id"] for finding in pair.check()["findings"]] == ["draft_format"]


@pytest.mark.parametrize(
    "allow",
    [
        lambda pair: (
            pair.draft.update(draft_vocab_size=None) or [pair.tensors.pop(name) for name in ("d2t", "t2d")]
        ),
        lambda pair: pair.arguments.update(dtype="bfloat16") or pair.draft.pop("torch_dtype"),
        lambda pair: pair.draft.pop("eagle_config"),
        lambda pair: (
            pair.draft.update(num_attention_heads=64, num_key_value_heads=4)
            or pair.tensors.update(
                {
                    f"midlayer.self_attn.{name}_proj.weight": Weights("BF16", (4 * HEAD, 2 * HIDDEN))
                    for name in "kv"
                }
            )
        ),
        lambda pair: (
            pair.draft.update(tie_word_embeddings=True, draft_vocab_size=VOCABULARY)
            or [pair.tensors.pop(name) for name in ("lm_head.weight", "d2t", "t2d")]
        ),
        lambda pair: pair.arguments.update(tp_size=16, dp_size=2, enable_dp_attention=True),
        lambda pair: pair.arguments.update(tensor_parallel_size=pair.arguments.pop("tp_size")),
    ],
    ids=[
        "the target's head",
        "a type for both",
        "layers that SGLang chooses",
        "fewer key and value heads than GPUs",
        "tied embeddings",
        "heads shared out among a part of the GPUs",
        "another spelling of a flag",
    ],
)
def test_what_sglang_takes_is_accepted(pair: Pair, allow: Callable[[Pair], object]) -> None:
    allow(pair)
    assert pair.errors() == []


def test_a_later_release_takes_latent_attention_and_more_layers(pair: Pair) -> None:
    pair.version = "0.5.12.post1"
    pair.models["kimi_k25_eagle3"] = "Eagle3DeepseekV2ForCausalLM"
    pair.draft.update(architectures=["Eagle3DeepseekV2ForCausalLM"], kv_lora_rank=512)
    pair.draft["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = [1, 15, 29, 57]
    pair.arguments["speculative_draft_attention_backend"] = "trtllm_mla"
    # Its tensors have a test of their own.
    pair.tensors.clear()
    assert pair.errors() == []


def test_a_later_release_takes_a_deeper_drafter_with_more_states(pair: Pair) -> None:
    pair.version = "0.5.12"
    pair.draft.update(num_hidden_layers=2, num_aux_hidden_states=4)
    layer = {name: tensor for name, tensor in pair.tensors.items() if name.startswith("midlayer.")}
    pair.tensors |= {name.replace("midlayer", "layers.1"): tensor for name, tensor in layer.items()}
    for name, rows in (("q", HIDDEN), ("k", 8 * HEAD), ("v", 8 * HEAD)):
        pair.tensors[f"layers.1.self_attn.{name}_proj.weight"] = Weights("BF16", (rows, HIDDEN))
    pair.draft["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = [1, 15, 29, 57]
    pair.tensors["fc.weight"] = Weights("BF16", (HIDDEN, 4 * HIDDEN))
    assert pair.errors() == []


def test_a_drafter_says_twice_how_many_states_it_takes(pair: Pair) -> None:
    pair.version = "0.5.12"
    pair.draft["num_aux_hidden_states"] = 4
    pair.tensors["fc.weight"] = Weights("BF16", (HIDDEN, 4 * HIDDEN))
    assert pair.errors() == [
        "The drafter listens to another number of layers than it takes in SGLang 0.5.12. Found: "
        "eagle_aux_hidden_state_layer_ids [1, 29, 57]. Expected: 4 layers. To mend it: use another drafter."
    ]


def test_layers_that_releases_read_differently_are_told(pair: Pair) -> None:
    pair.draft["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = [2, 30, 58]
    assert pair.warnings() == [
        "SGLang 0.5.9 adds one to the layers that the drafter names; later ones than 0.5.12 do so only if the "
        "first is 1, so one of the two hands this drafter other layers than it was trained with. Found: "
        "eagle_aux_hidden_state_layer_ids [2, 30, 58]. Expected: layers that begin with 1, which all releases "
        "read alike. To mend it: compare the accept length with the one that is published for the drafter; if "
        "it is lower, subtract one from each in /draft/config.json."
    ]


@pytest.mark.parametrize(
    ("layers", "version", "fits"),
    [
        ([2, 30, 60], "0.5.13", True),
        ([1, 30, 60], "0.5.13", False),
        ([2, 30, 60], "0.5.12", False),
        ([2, 30, 61], "0.5.13", False),
    ],
)
def test_the_last_layer_counts_where_layers_are_taken_as_named(
    pair: Pair, layers: list[int], version: str, fits: bool
) -> None:
    pair.version = version
    pair.draft["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = layers
    assert (pair.errors() == []) is fits


@pytest.mark.parametrize(("version", "accepted"), [("0.5.14", False), ("0.5.15", True)])
def test_a_later_release_takes_no_eagle_config(pair: Pair, version: str, accepted: bool) -> None:
    pair.version = version
    pair.draft["eagle_config"] = None
    assert (pair.errors() == []) is accepted


@pytest.mark.parametrize(("version", "accepted"), [("0.5.17", False), ("0.5.18", True)])
def test_a_later_release_quantizes_itself(pair: Pair, version: str, accepted: bool) -> None:
    pair.version = version
    del pair.arguments["speculative_draft_model_quantization"]
    assert (pair.errors() == []) is accepted


def test_a_back_end_for_multi_head_attention_does_not_suit_latent_attention(pair: Pair) -> None:
    pair.models["kimi_k25_eagle3"] = "Eagle3DeepseekV2ForCausalLM"
    pair.draft.update(architectures=["Eagle3DeepseekV2ForCausalLM"], kv_lora_rank=512)
    pair.arguments["speculative_draft_attention_backend"] = "trtllm_mha"
    assert "back end is for multi-head attention, and the drafter has latent attention" in pair.errors()[0]


def test_a_server_without_a_drafter_has_nothing_to_check(pair: Pair) -> None:
    result = pair.run(arguments={"model_path": "/no/target"})
    assert (result["changed"], result["findings"], result["unchecked"]) == (False, [], [])


def test_check_mode_says_what_is_not_there_yet(pair: Pair) -> None:
    result = pair.run(check=True, python="")
    assert result["unchecked"] == [
        "There is no SGLang yet to hold target and drafter against",
        f"There is no model in {pair.folder}/target and {pair.folder}/draft, so target and drafter are not compared",
    ]
    assert pair.run(python="")["msg"] == ". ".join(result["unchecked"]) + "."


def test_check_mode_compares_the_models_before_there_is_a_release(pair: Pair) -> None:
    pair.draft["max_position_embeddings"] = 131072
    pair.check()
    assert "window 131072 of the drafter, 262144 of the server" in pair.run(check=True, python="")["msg"]


def test_rules_of_a_release_wait_until_it_is_known(pair: Pair) -> None:
    pair.draft["eagle_config"] = None
    pair.check()
    assert pair.run(check=True, python="")["findings"] == []


def test_an_interpreter_without_sglang_is_named(pair: Pair) -> None:
    pair.check()
    assert pair.run(python="/no/python")["msg"].startswith("The interpreter /no/python does not work.")


def test_a_damaged_drafter_is_named(pair: Pair) -> None:
    pair.check()
    (pair.folder / "draft" / "model.safetensors").write_bytes(b"")
    assert "is no safetensors file" in pair.run()["msg"]


def test_the_classes_of_the_published_release_are_found_without_importing_it() -> None:
    release = read_release(unpacked("sglang", "0.5.9"), {})
    assert release.version == (0, 5, 9)
    assert {
        "KimiK25ForConditionalGeneration",
        "LlamaForCausalLMEagle3",
        "DeepseekV3ForCausalLM",
    } <= release.architectures
    assert "Eagle3DeepseekV2ForCausalLM" not in release.architectures


def test_models_of_another_package_count(tmp_path: Path) -> None:
    (tmp_path / "my_models").mkdir()
    (tmp_path / "my_models" / "one.py").write_text("EntryClass = Mine\n")
    environment = {"SGLANG_EXTERNAL_MODEL_PACKAGE": "my_models"}
    assert read_release(tmp_path, environment).architectures == {"Mine"}


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("import torch\nEntryClass = A\n", ["A"]),
        ("EntryClass = [\n    A,\n    B,\n]\n", ["A", "B"]),
        ("# EntryClass = A\nclass EntryClassOf: ...\n", []),
        ("EntryClasses = [A]\n", []),
    ],
)
def test_registered_classes(source: str, names: list[str]) -> None:
    assert entry_classes(source) == names


@pytest.mark.parametrize(
    ("spoil", "found"),
    [
        (changed(hidden_size="7168"), 'hidden_size is "7168", not a whole number'),
        (changed(num_attention_heads=64.5), "num_attention_heads is 64.5, not a whole number"),
        (changed(vocab_size=True), "vocab_size is true, not a whole number"),
        (
            changed(architectures="LlamaForCausalLMEagle3"),
            'architectures is "LlamaForCausalLMEagle3", not a list',
        ),
        (changed(text_config=[]), "text_config is [], not a mapping"),
        (changed(rope_scaling={"factor": "64"}), 'factor is "64", not a number'),
        (
            changed(eagle_config={"eagle_aux_hidden_state_layer_ids": "1"}),
            'layer_ids is "1", not a list of whole',
        ),
    ],
)
def test_values_that_mean_nothing_are_named(pair: Pair, spoil: Callable[[Pair], object], found: str) -> None:
    spoil(pair)
    message = pair.check()["msg"]
    assert message.startswith(f"{pair.folder}/draft/config.json has values that mean nothing. Found: ")
    assert found in message
    assert "To mend it: copy the file again; if its publisher has it like this, use another model." in message


def test_an_argument_that_is_no_number_is_named(pair: Pair) -> None:
    pair.arguments["tp_size"] = "all"
    assert pair.check()["msg"] == (
        "The server's tp_size is no whole number. Found: 'all'. Expected: a whole number. To mend it: correct it in "
        "the inventory."
    )


def values_of(config: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """The configuration with some values replaced by any other JSON, and some left out."""
    json_values = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
        max_leaves=4,
    )
    keys = sorted(
        {*config, "rope_scaling", "eagle_config", "text_config", "num_aux_hidden_states", "kv_lora_rank"}
    )
    changes = st.dictionaries(st.sampled_from(keys), json_values, max_size=3)
    left_out = st.sets(st.sampled_from(keys), max_size=2)
    return st.builds(
        lambda new, gone: {key: value for key, value in {**config, **new}.items() if key not in gone},
        changes,
        left_out,
    )


@settings(deadline=None)
@given_any(values_of(DRAFT), values_of(TARGET["text_config"]), st.sampled_from([(), (0, 5, 9), (0, 5, 23)]))
def test_whatever_the_configurations_say_it_ends_in_a_finding_or_an_error(
    draft: dict[str, Any], target: dict[str, Any], version: tuple[int, ...]
) -> None:
    """No traceback, whatever was edited or cut off."""
    with tempfile.TemporaryDirectory() as folder:
        models = []
        for name, config in (("target", {**TARGET, "text_config": target}), ("draft", draft)):
            path = Path(folder) / name
            path.mkdir()
            (path / "config.json").write_text(json.dumps(config))
            with contextlib.suppress(OperatorError):
                models.append(read_model(path, tensors=False))
        if len(models) == 2:
            check(Case(models[0], models[1], ARGUMENTS, {}, Release(version)))
