"""A drafter's tensors against what its class takes: SGLang skips names that it does not know, without a word."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from blackwell.draft import Case, check, read_model
from blackwell.draft_class import UnreadError, read_class
from blackwell.draft_model import Model

from tests.models import Weights
from tests.unit.drafters import ARGUMENTS, DRAFT, INNER, LAYER, TENSORS, H, K, Pair, V, published
from tests.wheels import unpacked


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return Pair(tmp_path)


def rename(old: str, new: str) -> Callable[[Pair], object]:
    def spoil(pair: Pair) -> None:
        pair.tensors = {name.replace(old, new): tensor for name, tensor in pair.tensors.items()}

    return spoil


def add(name: str, *shape: int) -> Callable[[Pair], object]:
    return lambda pair: pair.tensors.update({name: Weights("BF16", shape)})


def lack(name: str) -> Callable[[Pair], object]:
    return lambda pair: pair.tensors.pop(name)


def both(*spoilers: Callable[[Pair], object]) -> Callable[[Pair], object]:
    return lambda pair: [spoil(pair) for spoil in spoilers]


def test_a_drafter_with_all_its_tensors_is_accepted(pair: Pair) -> None:
    assert pair.check() == []


@pytest.mark.parametrize(
    "allow",
    [
        rename("", ""),
        lambda pair: setattr(
            pair,
            "tensors",
            {
                name if name == "lm_head.weight" else f"model.{name}": one
                for name, one in pair.tensors.items()
            },
        ),
        both(
            *(lack(f"midlayer.self_attn.{name}_proj.weight") for name in "qkv"),
            add("midlayer.self_attn.qkv_proj.weight", 3 * H, 2 * H),
        ),
        both(
            *(lack(f"midlayer.mlp.{name}_proj.weight") for name in ("gate", "up")),
            add("midlayer.mlp.gate_up_proj.weight", 2 * INNER, H),
        ),
        add("embed_tokens.weight", V, H),
        add("midlayer.self_attn.rotary_emb.inv_freq", 1),
        both(
            lambda pair: pair.draft.update(bias=True),
            add("fc.bias", H),
            add("midlayer.self_attn.o_proj.bias", H),
        ),
        both(lambda pair: pair.draft.update(attention_bias=True), add("midlayer.self_attn.o_proj.bias", H)),
        lambda pair: [
            pair.draft.update(tie_word_embeddings=True, draft_vocab_size=V),
            *(pair.tensors.pop(name) for name in ("d2t", "t2d")),
        ],
        both(
            lambda pair: pair.draft.update(head_dim=2),
            *(add(f"midlayer.self_attn.{name}_proj.weight", 16, 2 * H) for name in "qkv"),
            add("midlayer.self_attn.o_proj.weight", H, 16),
        ),
    ],
    ids=[
        "as published",
        "with the prefix model",
        "queries, keys and values in one",
        "gate and up in one",
        "an embedding of its own",
        "frequencies that SGLang computes",
        "a bias",
        "a bias of attention",
        "tied embeddings with a head",
        "heads of another width",
    ],
)
def test_every_spelling_that_sglang_loads_is_accepted(pair: Pair, allow: Callable[[Pair], object]) -> None:
    allow(pair)
    assert pair.check() == []


@pytest.mark.parametrize(
    ("spoil", "id_", "found"),
    [
        (rename("midlayer.", "layers.0."), "tensor_names", "10 missing: midlayer."),
        (
            rename("midlayer.", "model.layers.0."),
            "tensor_names",
            "10 that LlamaForCausalLMEagle3 does not take",
        ),
        (rename("midlayer.", "draft.midlayer."), "tensor_names", "10 missing"),
        (rename("lm_head.", "model.lm_head."), "tensor_names", "1 that LlamaForCausalLMEagle3 does not take"),
        (rename("hidden_norm", "hidden_layernorm"), "tensor_names", "1 missing: midlayer.hidden_norm.weight"),
        (rename("up_proj.weight", "up_proj.qweight"), "tensor_names", "midlayer.mlp.up_proj.qweight"),
        *((lack(f"midlayer.{name}"), "tensor_names", f"1 missing: midlayer.{name}") for name in LAYER),
        (lack("norm.weight"), "tensor_names", "1 missing: norm.weight"),
        (
            add("fc_norm.0.weight", H),
            "tensor_names",
            "1 that LlamaForCausalLMEagle3 does not take: fc_norm.0.weight",
        ),
        (add("midlayer.self_attn.q_proj.bias", H), "tensor_names", "q_proj.bias"),
        (add("fc.bias", H), "tensor_names", "fc.bias"),
        (lambda pair: pair.draft.update(attention_bias=True), "tensor_names", "o_proj.bias"),
        (add("layers.1.mlp.up_proj.weight", INNER, H), "tensor_names", "layers.1.mlp.up_proj.weight"),
        (add("model.norm.weight", H), "tensors_twice", "norm.weight"),
        (add("midlayer.self_attn.qkv_proj.weight", 3 * H, 2 * H), "tensors_twice", "q_proj"),
        (
            lambda pair: pair.tensors.update({"draft.d2t": Weights("I64", (K,), [3, 6, 9, 12])}),
            "tensors_twice",
            "draft.d2t",
        ),
        (add("midlayer.self_attn.q_proj.weight", H, H), "tensor_shapes", "q_proj.weight [8, 8], not [8, 16]"),
        (add("midlayer.self_attn.k_proj.weight", 2 * H, 2 * H), "tensor_shapes", "[16, 16], not [8, 16]"),
        (
            add("midlayer.mlp.down_proj.weight", INNER, H),
            "tensor_shapes",
            "down_proj.weight [16, 8], not [8, 16]",
        ),
        (add("norm.weight", H, 1), "tensor_shapes", "norm.weight [8, 1], not [8]"),
        (add("embed_tokens.weight", V + 1, H), "tensor_shapes", "embed_tokens.weight [33, 8], not [32, 8]"),
    ],
)
def test_what_sglang_would_skip_or_leave_random_is_refused(
    pair: Pair, spoil: Callable[[Pair], object], id_: str, found: str
) -> None:
    spoil(pair)
    findings = {finding.id: finding for finding in pair.check() if finding.severity == "error"}
    assert list(findings) == [id_]
    assert found in findings[id_].found


def test_a_quantized_drafter_is_compared_by_its_modules(pair: Pair) -> None:
    pair.draft["quantization_config"] = {"quant_method": "fp8"}
    pair.tensors["midlayer.mlp.up_proj.weight_scale"] = Weights("F32", ())
    pair.tensors["midlayer.self_attn.k_scale"] = Weights("F32", (1,))
    pair.tensors["midlayer.mlp.down_proj.weight.absmax"] = Weights("F32", (1,))
    assert pair.check() == []
    del pair.tensors["midlayer.mlp.up_proj.weight_scale"], pair.tensors["midlayer.mlp.up_proj.weight"]
    assert "1 missing: midlayer.mlp.up_proj." in pair.check()[0].found


@pytest.mark.parametrize(
    ("architecture", "kind"),
    [
        ("LlamaForCausalLM", "a language model of its own"),
        ("Qwen2ForCausalLM", "a language model of its own"),
        ("LlamaForCausalLMEagle", "one of the first or second EAGLE"),
        ("Qwen2ForCausalLMEagle", "one of the first or second EAGLE"),
        ("MistralLarge3ForCausalLMEagle", "one of the first or second EAGLE"),
        ("DeepseekV3ForCausalLMNextN", "layers for multi-token prediction (MTP) of a target"),
        ("MiMoMTP", "layers for multi-token prediction (MTP) of a target"),
    ],
)
def test_only_classes_of_eagle_3_are_drafters(pair: Pair, architecture: str, kind: str) -> None:
    pair.draft["architectures"] = [architecture]
    findings = pair.check()
    assert findings[0].id == "drafter_class"
    assert findings[0].problem.startswith(f"The drafter is no EAGLE-3 drafter, but {kind}")
    assert "one of LlamaForCausalLMEagle3" in findings[0].expected


@pytest.mark.parametrize(
    "config",
    [
        {"architectures": ["Eagle3Speculator"], "speculators_model_type": "eagle3"},
        {"architectures": ["Eagle3DraftModel"], "transformer_layer_config": {"hidden_size": H}},
        {**DRAFT, "architectures": ["Eagle3Speculator"], "speculators_config": {"algorithm": "eagle3"}},
        {**DRAFT, "transformer_layer_config": {"hidden_size": H}},
        {"speculators_version": "0.3.0"},
        {"architectures": ["Eagle3LlamaForCausalLM"], "model_type": "eagle"},
        {"model_type": "eagle", "model": {"hidden_size": H}},
        {"architectures": ["MLPSpeculatorPreTrainedModel"], "model_type": "mlp_speculator"},
        {"medusa_num_heads": 4, "medusa_num_layers": 1},
        {"architecture": "EagleForCausalLM", "pretrained_config": {"hidden_size": H}},
    ],
)
def test_a_drafter_of_another_program_is_one_finding(pair: Pair, config: dict[str, object]) -> None:
    pair.draft = config
    (finding,) = pair.check()
    assert (finding.id, finding.severity) == ("draft_of_another_program", "error")
    assert "convert it to SGLang's format" in finding.remedy


def test_a_converted_drafter_is_accepted(pair: Pair) -> None:
    """What the remedy says, done."""
    pair.draft = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "transformer_layer_config": DRAFT,
    }
    rename("midlayer.", "layers.0.")(pair)
    assert pair.ids() == ["draft_of_another_program"]
    pair.draft = DRAFT
    rename("layers.0.", "midlayer.")(pair)
    assert pair.check() == []
    # What tells where it is from may stay: SGLang does not read it, and the tensors are looked at anyway.
    pair.draft = {**DRAFT, "speculators_version": "0.3.0", "speculators_config": {"algorithm": "eagle3"}}
    assert pair.check() == []
    rename("midlayer.", "layers.0.")(pair)
    assert pair.ids() == ["tensor_names"]


@pytest.mark.parametrize("layers", [[], [2], [1, 5, 8]])
def test_a_drafter_that_takes_the_last_hidden_state_alone_is_accepted(pair: Pair, layers: list[int]) -> None:
    pair.draft["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": layers, "use_aux_hidden_state": False}
    del pair.tensors["fc.weight"]
    assert pair.check() == []


def test_a_drafter_that_takes_the_last_hidden_state_alone_has_its_size(pair: Pair) -> None:
    pair.draft["eagle_config"] = {"use_aux_hidden_state": False}
    pair.target["text_config"]["hidden_size"] = 2 * H
    assert "hidden_size" in pair.ids()


@pytest.mark.parametrize(("value", "taken"), [("false", "true"), (0, "false"), (None, "false")])
def test_a_switch_that_is_no_truth_value_is_told(pair: Pair, value: object, taken: str) -> None:
    pair.draft["eagle_config"]["use_aux_hidden_state"] = value
    told = [finding.problem for finding in pair.check() if finding.id == "use_aux_hidden_state"]
    assert told == [f"use_aux_hidden_state is no truth value, and SGLang takes it as {taken}"]


@pytest.mark.parametrize("token", [V, V + 1, -1])
def test_a_token_that_the_target_does_not_have_is_refused(pair: Pair, token: int) -> None:
    """The first token behind the vocabulary, too."""
    del pair.tensors["t2d"]
    pair.tensors["d2t"] = Weights("I64", (K,), [3, 6, 9, token - 3])
    errors = [finding for finding in pair.check() if finding.severity == "error"]
    assert [finding.id for finding in errors] == ["d2t_range"]
    assert errors[0].found == f"1 tokens outside, the first is {token}"
    pair.tensors["d2t"] = Weights("I64", (K,), [3, 6, 9, V - 1 - 3])
    assert "d2t_range" not in pair.ids()


@pytest.mark.parametrize("version", ["0.5.8", "0.5.9", "0.5.10.post1", "0.5.11"])
def test_releases_with_one_layer_take_the_same_names(version: str) -> None:
    model = Model("/d", DRAFT, {}, {})
    path = published(version).drafters["LlamaForCausalLMEagle3"]
    takes = read_class(path, model, 3, uses_states=True)
    names = {name for name in TENSORS if name not in ("d2t", "t2d")}
    assert set(takes.shapes) == names | {"embed_tokens.weight"}


@pytest.mark.parametrize("version", ["0.5.14", "0.5.23"])
def test_later_releases_take_older_names_and_more_norms(version: str) -> None:
    config = {**DRAFT, "num_hidden_layers": 2, "fc_norm": True}
    path = published(version).drafters["LlamaForCausalLMEagle3"]
    takes = read_class(path, Model("/d", config, {}, {}), 3, uses_states=True)
    assert takes.resolve("midlayer.mlp.up_proj.weight") == ("layers.0.mlp.up_proj.weight",)
    assert takes.shapes["layers.1.self_attn.q_proj.weight"] == (H, H)
    assert takes.shapes["fc_norm.2.weight"] == (H,)


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("llama_eagle3.py", "self.norm = RMSNorm", "self.gate = Gate(); self.norm = RMSNorm"),
        ("llama_eagle3.py", '(".gate_up_proj", ".up_proj", 1)', '(".other_proj", ".up_proj", 1)'),
        ("llama_eagle3.py", "class LlamaModel(", "class DraftModel("),
        ("llama_eagle3.py", "stacked_params_mapping = [", "stacked_params_mapping = make() or ["),
        ("llama.py", "self.input_layernorm = RMSNorm", "self.second = self.input_layernorm = RMSNorm"),
        ("llama.py", "class LlamaMLP(", "class LlamaMLP(("),
    ],
)
def test_sources_that_are_not_known_are_said_to_be_unchecked(
    pair: Pair, tmp_path: Path, file: str, old: str, new: str
) -> None:
    models = unpacked("sglang", "0.5.9") / "sglang" / "srt" / "models"
    for name in ("llama_eagle3.py", "llama.py"):
        text = (models / name).read_text(encoding="utf-8")
        (tmp_path / name).write_text(text.replace(old, new, 1) if name == file else text, encoding="utf-8")
    assert old in (models / file).read_text(encoding="utf-8")
    path = tmp_path / "llama_eagle3.py"
    with pytest.raises(UnreadError):
        read_class(path, Model("/d", DRAFT, {}, {}), 3, uses_states=True)
    pair.release = type(pair.release)(
        pair.release.version, pair.release.architectures, {"LlamaForCausalLMEagle3": path}
    )
    (finding,) = pair.check()
    assert (finding.id, finding.severity) == ("not_checked", "warning")
    assert finding.problem.startswith("Whether the drafter has all tensors that its class takes")


MLA = {
    "self_attn.q_a_proj.weight": (6, 2 * H),
    "self_attn.q_a_layernorm.weight": (6,),
    "self_attn.q_b_proj.weight": (8 * 3, 6),
    "self_attn.kv_a_proj_with_mqa.weight": (5, 2 * H),
    "self_attn.kv_a_layernorm.weight": (4,),
    "self_attn.kv_b_proj.weight": (8 * 5, 4),
    "self_attn.o_proj.weight": (H, 8 * 3),
    **{name: shape for name, shape in LAYER.items() if not name.startswith("self_attn")},
}


@pytest.fixture
def latent(pair: Pair) -> Pair:
    """A drafter with latent attention, and a release that has its class."""
    sizes = {
        "q_lora_rank": 6,
        "kv_lora_rank": 4,
        "qk_nope_head_dim": 2,
        "qk_rope_head_dim": 1,
        "v_head_dim": 3,
    }
    pair.release = published("0.5.14")
    pair.draft |= {"architectures": ["Eagle3DeepseekV2ForCausalLM"], "model_type": "deepseek_v3", **sizes}
    rest = {name: tensor for name, tensor in TENSORS.items() if not name.startswith("midlayer.")}
    pair.tensors = {**rest, **{f"layers.0.{name}": Weights("BF16", shape) for name, shape in MLA.items()}}
    return pair


def test_a_drafter_with_latent_attention_is_accepted(latent: Pair) -> None:
    assert latent.check() == []
    rename("layers.0.", "midlayer.")(latent)
    assert latent.check() == []


@pytest.mark.parametrize(
    ("spoil", "found"),
    [
        (lack("layers.0.self_attn.kv_b_proj.weight"), "1 missing: midlayer.self_attn.kv_b_proj.weight"),
        (lack("fc.weight"), "1 missing: fc.weight"),
        (lack("lm_head.weight"), "1 missing: lm_head.weight"),
        (rename("hidden_norm.weight", "final_norm.weight"), "final_norm.weight"),
        (rename("layers.0.", "model.layers.0."), "13 missing"),
        (add("layers.0.self_attn.q_b_proj.weight", 8, 6), "q_b_proj.weight [8, 6], not [24, 6]"),
        (add("fc.weight", H, 2 * H), "fc.weight [8, 16], not [8, 24]"),
    ],
)
def test_a_drafter_with_latent_attention_is_held_against_its_class(
    latent: Pair, spoil: Callable[[Pair], object], found: str
) -> None:
    spoil(latent)
    assert found in latent.check()[0].found


def test_a_switch_outside_eagle_config_is_told(pair: Pair) -> None:
    pair.draft["use_aux_hidden_state"] = False
    assert pair.ids() == ["use_aux_hidden_state_ignored"]


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "LlamaForCausalLMEagle"])
def test_a_drafter_under_another_class_is_named_and_mended(pair: Pair, architecture: str) -> None:
    pair.draft["architectures"] = [architecture]
    finding = pair.check()[0]
    assert finding.id == "drafter_class"
    assert finding.remedy.startswith('write "architectures": ["LlamaForCausalLMEagle3"] into ')
    pair.draft["architectures"] = ["LlamaForCausalLMEagle3"]
    assert pair.check() == []


def test_a_language_model_is_not_told_to_call_itself_a_drafter(pair: Pair) -> None:
    pair.draft["architectures"] = ["LlamaForCausalLM"]
    del pair.tensors["fc.weight"]
    assert pair.check()[0].remedy.startswith("use an EAGLE-3 drafter")


def test_a_configuration_without_a_type_is_named(pair: Pair) -> None:
    del pair.draft["model_type"]
    assert "model_type" in pair.ids()
    for unknown in ("eagle3", "LLaMA", "llama-eagle3", "draft_model"):
        pair.draft["model_type"] = unknown
        assert "model_type" in pair.ids()
    pair.draft["model_type"] = "llama"
    assert pair.check() == []


def test_a_tied_head_has_a_row_for_each_token(pair: Pair) -> None:
    pair.draft["tie_word_embeddings"] = True
    assert pair.ids() == ["tied_head"]
    del pair.draft["draft_vocab_size"]
    for name in ("d2t", "t2d", "lm_head.weight"):
        del pair.tensors[name]
    (finding,) = pair.check()
    assert finding.id == "draft_vocab_size"
    assert f'add "draft_vocab_size": {V},' in finding.remedy
    pair.draft["draft_vocab_size"] = V
    assert pair.check() == []


@pytest.mark.parametrize(
    ("map_", "said"),
    [
        (Weights("BOOL", (V + 4,), [int(token in (3, 7, 11, 15)) for token in range(V + 4)]), []),
        (Weights("I64", (V - 8,), [int(token in (3, 7, 11, 15)) for token in range(V - 8)]), []),
        (Weights("F32", (V,)), ["not_checked"]),
        (Weights("BOOL", (V, 1)), ["not_checked"]),
        (Weights("BOOL", (V - 20,), [0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1]), ["maps_differ"]),
    ],
    ids=["padded", "without padding", "floats", "a column", "cut off"],
)
def test_the_map_that_sglang_does_not_read_refuses_nothing_by_itself(
    pair: Pair, map_: Weights, said: list[str]
) -> None:
    pair.tensors["t2d"] = map_
    assert pair.ids() == said


def test_what_is_laid_over_the_configurations_is_said_to_be_unchecked(pair: Pair) -> None:
    pair.check()
    target, draft = (read_model(pair.folder / name, tensors=name == "draft") for name in ("target", "draft"))
    for name in ("json_model_override_args", "json-model-override-args"):
        given = {**ARGUMENTS, name: '{"num_hidden_layers": 2}'}
        (finding,) = check(Case(target, draft, given, {}, pair.release))
        assert (finding.id, finding.severity) == ("not_checked", "warning")
