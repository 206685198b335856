"""Sizes of models: found where SGLang looks for them, and never taken for 0 where they are not found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from blackwell.draft import read_model, read_release
from blackwell.errors import OperatorError

from tests.models import Weights, write_model
from tests.unit.drafters import TEXT, Pair, published


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return Pair(tmp_path)


NESTED: list[dict[str, Any]] = [
    {"text_config": TEXT},
    {"llm_config": TEXT},
    {"language_config": TEXT},
    {"thinker_config": {"text_config": TEXT, "dtype": "bfloat16"}},
    {"thinker_config": TEXT},
    TEXT,
]


@pytest.mark.parametrize("config", NESTED, ids=lambda config: next(iter(config)))
def test_sizes_are_found_where_sglang_looks(pair: Pair, config: dict[str, Any]) -> None:
    pair.target = {"architectures": ["Qwen3OmniMoeForConditionalGeneration"], **config}
    assert pair.check() == []


@pytest.mark.parametrize("config", NESTED, ids=lambda config: next(iter(config)))
def test_sizes_that_are_found_there_are_compared(pair: Pair, config: dict[str, Any]) -> None:
    pair.target = {"architectures": ["Qwen3OmniMoeForConditionalGeneration"], **config}
    pair.draft["vocab_size"] = 31
    assert "vocabulary" in pair.ids()


def test_the_older_llava_keeps_its_sizes_at_the_top(pair: Pair) -> None:
    pair.target = {"architectures": ["LlavaLlamaForCausalLM"], **TEXT, "text_config": {"hidden_size": 4096}}
    assert pair.check() == []


@pytest.mark.parametrize(("version", "hidden"), [("0.5.9", 8), ("0.5.10.post1", 4096), ("0.5.23", 4096)])
def test_of_two_places_the_one_counts_that_the_release_asks_first(
    pair: Pair, version: str, hidden: int
) -> None:
    pair.release = published(version)
    pair.target = {**pair.target, "llm_config": {**TEXT, "hidden_size": 4096}}
    assert ("hidden_size" in pair.ids()) is (hidden != 8)


@pytest.mark.parametrize(
    "config",
    [
        {"decoder_config": TEXT},
        {"text_config": None, **TEXT},
        {"text_config": {}},
        {"n_embd": 8, "n_layer": 12, "n_head": 8},
        {"thinker_config": {"text_config": {}}},
    ],
)
def test_a_size_that_is_not_found_is_not_checked(pair: Pair, config: dict[str, Any]) -> None:
    pair.target = {"architectures": ["KimiK25ForConditionalGeneration"], **config, "dtype": "bfloat16"}
    findings = pair.check()
    assert {(finding.id, finding.severity) for finding in findings} == {("not_checked", "warning")}
    assert "hidden_size, vocab_size, num_attention_heads, num_hidden_layers" in findings[0].problem
    # Only the drafter's numbers are there to be compared.
    assert not [finding for finding in findings if "tokens" in finding.expected]


@pytest.mark.parametrize(
    "key",
    [
        "hidden_size",
        "vocab_size",
        "num_attention_heads",
        "num_hidden_layers",
        "max_position_embeddings",
        "intermediate_size",
    ],
)
def test_a_size_that_the_drafter_lacks_is_named_and_nothing_else(pair: Pair, key: str) -> None:
    del pair.draft[key]
    findings = [finding for finding in pair.check() if finding.id == "not_checked"]
    assert key in findings[0].problem
    errors = [finding for finding in pair.check() if finding.severity == "error"]
    # What says one layer says so, and nothing else does.
    assert [finding.id for finding in errors] == (["num_hidden_layers"] if key == "num_hidden_layers" else [])


@pytest.mark.parametrize("value", [0, -1, 1 << 60, 8.0, "8", True, [8]])
def test_a_size_that_is_none_is_refused(pair: Pair, value: object) -> None:
    pair.target["text_config"]["hidden_size"] = value
    with pytest.raises(OperatorError, match="values that mean nothing"):
        pair.check()


@pytest.mark.parametrize("place", ["text_config", "llm_config", "language_config", "thinker_config"])
def test_a_place_that_is_no_mapping_is_refused(tmp_path: Path, place: str) -> None:
    write_model(tmp_path, {"architectures": ["A"], place: 3}, {})
    with pytest.raises(OperatorError, match=f"{place} is 3, not a mapping"):
        read_model(tmp_path, tensors=False)


def test_a_factor_of_the_window_is_finite(tmp_path: Path) -> None:
    write_model(tmp_path, {**TEXT, "architectures": ["A"], "rope_scaling": {"factor": 1e308}}, {})
    with pytest.raises(OperatorError, match="factor is 1e\\+308, not a number above 0"):
        read_model(tmp_path, tensors=False)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda models: [path.unlink() for path in models.glob("*.py")], "there is no source of models in"),
        (lambda models: (models / "bad.py").write_text("EntryClass = [A\n"), "bad.py is not readable"),
        (lambda models: (models / "bad.py").write_bytes(b"EntryClass = \xff\n"), "bad.py is not readable"),
        (lambda models: (models / "bad.py").write_bytes(b"\nEntryClass = A\x00\n"), "bad.py is not readable"),
        (lambda models: (models / "bad.py").mkdir(), "bad.py is not readable"),
    ],
)
def test_a_release_that_cannot_be_read_is_said_to_be_unchecked(
    pair: Pair, tmp_path: Path, spoil: Any, reason: str
) -> None:
    models = tmp_path / "site" / "sglang" / "srt" / "models"
    models.mkdir(parents=True)
    (models / "kimi.py").write_text("EntryClass = LlamaForCausalLMEagle3\n")
    spoil(models)
    pair.release = read_release(tmp_path / "site", {})
    findings = pair.check()
    assert [finding for finding in findings if finding.id == "not_checked" and reason in finding.found]
    # Nobody knows whether the target's class is in what could not be read.
    assert not [finding for finding in findings if finding.severity == "error"]
    assert any("a class for the target is not checked" in finding.problem for finding in findings)


def test_a_package_of_models_that_is_not_there_is_said(pair: Pair) -> None:
    release = read_release(Path("/nowhere"), {"SGLANG_EXTERNAL_MODEL_PACKAGE": "my.models"})
    assert "there is no source of models in /nowhere/my/models" in release.unread


@pytest.mark.parametrize(
    "sizes",
    [
        {
            "kv_lora_rank": None,
            "q_lora_rank": None,
            "qk_nope_head_dim": 0,
            "qk_rope_head_dim": 0,
            "v_head_dim": 0,
        },
        {"kv_lora_rank": 0, "q_lora_rank": 0},
        {"intermediate_size": [16, 16, 32]},
        {"intermediate_size": 0, "num_key_value_heads": [8, 8]},
        {"max_position_embeddings": 4096.0},
    ],
    ids=["no latent attention", "latent attention of no rank", "a size for each layer", "none", "a float"],
)
def test_sizes_that_models_write_for_what_they_lack_are_taken(pair: Pair, sizes: dict[str, Any]) -> None:
    pair.target["text_config"] = {**TEXT, **sizes}
    assert [finding for finding in pair.check() if finding.severity == "error"] == []


@pytest.mark.parametrize("kind", ["qwen3", "llama4_text", "gpt_oss"])
def test_heads_whose_width_another_configuration_knows_are_not_judged(pair: Pair, kind: str) -> None:
    """transformers gives a Qwen3 heads of 128, whatever its hidden size is."""
    pair.draft["model_type"] = kind
    if kind == "llama4_text":
        pair.draft["intermediate_size_mlp"] = pair.draft["intermediate_size"]
    for name in "qkv":
        pair.tensors[f"midlayer.self_attn.{name}_proj.weight"] = Weights("BF16", (32, 16))
    pair.tensors["midlayer.self_attn.o_proj.weight"] = Weights("BF16", (8, 32))
    assert pair.check() == []
    pair.draft["model_type"] = "llama"
    assert "tensor_shapes" in pair.ids()


def test_a_gemma_in_float32_is_loaded_as_bfloat16(pair: Pair) -> None:
    pair.target["text_config"] = {**TEXT, "model_type": "gemma2_text", "dtype": "float32"}
    assert pair.check() == []
    pair.target["text_config"]["model_type"] = "kimi_k2"
    assert "dtype" in pair.ids()


def test_a_size_of_the_target_that_is_null_is_named(pair: Pair) -> None:
    pair.draft["target_hidden_size"] = None
    (finding,) = pair.check()
    assert (finding.id, finding.severity) == ("target_hidden_size", "error")
    # What the remedy says, done.
    del pair.draft["target_hidden_size"]
    assert pair.check() == []


@pytest.mark.parametrize("role", ["target", "draft"])
@pytest.mark.parametrize("name", ["torch.bfloat16", "bf16", "BFloat16", "fp16"])
def test_a_type_that_is_none_is_named(pair: Pair, role: str, name: str) -> None:
    config = pair.draft if role == "draft" else pair.target["text_config"]
    key = "torch_dtype" if role == "draft" else "dtype"
    config[key] = name
    (finding,) = pair.check()
    assert (finding.id, finding.severity) == ("dtype_name", "error")
    # What the remedy says, done.
    config[key] = "bfloat16"
    assert pair.check() == []


@pytest.mark.parametrize(
    "named",
    [
        {"rope_type": "default", "rope_theta": 1000000.0},
        {"rope_type": "yarn", "rope_theta": 50000.0, "factor": 4.0, "original_max_position_embeddings": 1024},
    ],
)
def test_positions_where_the_release_does_not_look_are_named(pair: Pair, named: dict[str, Any]) -> None:
    """transformers 5 writes them there, and SGLang 0.5.9 has transformers 4."""
    pair.draft["rope_parameters"] = named
    (finding,) = pair.check()
    assert (finding.id, finding.severity) == ("rope_parameters", "error")
    added = finding.remedy.removeprefix("add ").partition(" to /")[0]
    pair.draft |= json.loads(f"{{{added}}}")
    assert pair.check() == []
    del pair.draft["rope_theta"]
    pair.release = published("0.5.10.post1")
    assert "rope_parameters" not in pair.ids()


def test_positions_as_a_class_has_them_are_no_finding(pair: Pair) -> None:
    pair.draft["rope_parameters"] = {"rope_type": "default", "rope_theta": 10000.0}
    assert pair.check() == []
    pair.target["text_config"] = {**TEXT, "rope_parameters": {"rope_type": "default", "rope_theta": 50000}}
    assert [finding.severity for finding in pair.check()] == ["warning"]
