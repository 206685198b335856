"""Free-form arguments and variables: what contradicts the role, and what breaks these cards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from blackwell import contradictions, free_form
from blackwell.server import doubts, problems

SPECULATION: dict[str, Any] = {
    "speculative_algorithm": "EAGLE3",
    "speculative_draft_model_path": "/srv/models/draft",
    "speculative_draft_attention_backend": "triton",
    "speculative_num_steps": 3,
    "speculative_eagle_topk": 1,
    "speculative_num_draft_tokens": 4,
}
BASELINE: dict[str, Any] = {
    "model_path": "/srv/models/target",
    "port": 30000,
    "tp_size": 8,
    "attention_backend": "triton",
    "mem_fraction_static": 0.85,
    "cuda_graph_max_bs": 32,
}
FLAGS = (
    (Path(__file__).parents[1] / "fixtures" / "sglang-0.5.9-flags.txt").read_text(encoding="utf-8").split()
)


def found(
    extra: dict[str, Any],
    environment: dict[str, Any] | None = None,
    *,
    profile: str = "eagle3",
    engine: str = "cuda",
) -> list[str]:
    given = {**BASELINE, **(SPECULATION if profile == "eagle3" else {}), **extra}
    return problems(profile, given, environment or {}, engine=engine)


@pytest.mark.parametrize(
    "algorithm", ["EAGLE", "NEXTN", "STANDALONE", "NGRAM", "eagle3", "Eagle", "", None, 3, True]
)
@pytest.mark.parametrize("engine", ["cuda", "cpu"])
def test_the_profile_eagle3_is_eagle3_alone(algorithm: Any, engine: str) -> None:
    said = found({"speculative_algorithm": algorithm}, engine=engine)
    assert len(said) == 1
    assert "the profile eagle3 is EAGLE3 alone" in said[0]


@pytest.mark.parametrize(
    "name",
    [
        "speculative-algorithm",
        "--speculative-algorithm",
        "speculative_algo",
        "speculative-alg",
        "SPECULATIVE_ALGORITHM",
    ],
)
@pytest.mark.parametrize("profile", ["eagle3", "baseline"])
def test_no_spelling_of_the_algorithm_escapes(name: str, profile: str) -> None:
    assert any("speculative_algorithm" in said for said in found({name: "NEXTN"}, profile=profile))


@pytest.mark.parametrize(
    "name",
    [
        "speculative_num_steps",
        "speculative-eagle-topk",
        "speculative_draft_model",
        "speculative-ngram-capacity",
    ],
)
def test_speculation_under_baseline_is_a_contradiction(name: str) -> None:
    assert any("decodes without speculation" in said for said in found({name: 2}, profile="baseline"))


@pytest.mark.parametrize(
    ("name", "variable"),
    [
        ("tp", "eagle3_server_tensor_parallel_size"),
        ("tp-size", "eagle3_server_tensor_parallel_size"),
        ("--tp-size", "tp_size"),
        ("tensor_parallel_size", "eagle3_server_tensor_parallel_size"),
        ("tensor-parallel", "eagle3_server_tensor_parallel_size"),
        ("model", "eagle3_server_model_path"),
        ("model-path", "eagle3_server_model_path"),
        ("context-length", "eagle3_server_context_length"),
        ("context_len", "eagle3_server_context_length"),
        ("speculative_draft_model", "eagle3_server_draft_model_path"),
        ("speculative-draft-model-path", "eagle3_server_draft_model_path"),
        ("mem-fraction-static", "eagle3_server_mem_fraction_static"),
        ("mem_frac", "eagle3_server_mem_fraction_static"),
        ("fp4-gemm-backend", "eagle3_server_fp4_gemm_backend"),
        ("served-model-name", "eagle3_server_served_model_name"),
        ("max-running-requests", "eagle3_server_max_running_requests"),
    ],
)
def test_another_spelling_of_what_a_variable_sets_names_the_variable(name: str, variable: str) -> None:
    said = found({name: BASELINE.get(free_form.canonical(name), "/x")})
    assert any(variable in sentence for sentence in said)


@pytest.mark.parametrize(
    "name", ["tp_size", "context_length", "speculative_algorithm", "port", "host", "quantization"]
)
def test_what_a_variable_sets_is_refused_in_free_form_before_a_host_is_touched(name: str) -> None:
    rule = next(rule for rule in contradictions.RULES if rule.broken.__name__ == "_extra_arguments")
    values = {"eagle3_server_extra_arguments": {name: 1, "log_level": "info"}, "sglang_stack_engine": "cuda"}
    assert rule.broken(values) == f"holds {name}, which {free_form.VARIABLE_OF[name]} sets"
    assert rule.broken({**values, "sglang_stack_engine": "cpu"}) == ""
    assert rule.broken({**values, "eagle3_server_extra_arguments": {"log_level": "info"}}) == ""


@pytest.mark.parametrize("spelling", [str, lambda name: name.replace("_", "-")])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(
            (name, True)
            for name in ("enable_torch_symm_mem", "enable_nccl_nvls", "enable_symm_mem", "enable_mscclpp")
        ),
        ("enable_torch_symm_mem", "true"),
        ("prefill_attention_backend", "fa3"),
        ("decode_attention_backend", "trtllm_mla"),
        ("decode_attention_backend", "cutlass_mla"),
        ("prefill_attention_backend", "fa4"),
        ("mm_attention_backend", "fa4"),
        ("speculative_moe_runner_backend", "flashinfer_trtllm"),
        ("fp8_gemm_backend", "flashinfer_trtllm"),
        ("moe_a2a_backend", "deepep"),
        ("nsa_decode_backend", "flashmla_kv"),
        ("disable_cuda_graph", True),
        ("pp_size", 2),
        ("dp_size", 2),
        ("nnodes", 2),
        ("base_gpu_id", 1),
        ("device", "cpu"),
        ("config", "/etc/other.yaml"),
        ("is_embedding", True),
        ("skip_tokenizer_init", True),
        ("disaggregation_mode", "prefill"),
        ("enable_metrics", False),
        ("speculative_accept_threshold_single", 0.9),
        ("speculative_accept_threshold_acc", "0.5"),
    ],
)
def test_what_breaks_a_server_on_these_cards_is_refused(name: str, value: Any, spelling: Any) -> None:
    said = found({spelling(name): value})
    assert len(said) == 1
    assert name in said[0]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("enable_torch_symm_mem", False),
        ("enable_nccl_nvls", "false"),
        ("disable_cuda_graph", False),
        ("pp_size", 1),
        ("ep", 1),
        ("base_gpu_id", 0),
        ("enable_metrics", True),
        ("decode_attention_backend", "flashinfer"),
        ("fp8_gemm_backend", "triton"),
        ("speculative_accept_threshold_single", 1.0),
        ("chunked-prefill-size", 4096),
        ("log_level", "debug"),
        ("speculative_draft_model_revision", "main"),
        ("disable_cuda_graph_padding", True),
        ("model_impl", "sglang"),
    ],
)
def test_free_form_settings_that_do_no_harm_are_taken(name: str, value: Any) -> None:
    assert found({name: value}) == []


def test_without_graphs_asked_for_they_may_be_off() -> None:
    assert found({"disable_cuda_graph": True, "cuda_graph_max_bs": None}) == []
    assert "four times" in doubts("eagle3", {"disable_cuda_graph": True}, engine="cuda")[0]


def test_every_flag_of_the_release_keeps_its_meaning() -> None:
    """No whole name of SGLang's is taken for the beginning of another one."""
    names = {flag.lstrip("-").replace("-", "_") for flag in FLAGS}
    aliases = {"model", "tensor_parallel_size", "expert_parallel_size", "ep", "pipeline_parallel_size",
               "data_parallel_size", "speculative_draft_model"}  # fmt: skip
    assert {name for name in names if free_form.canonical(name) != name} == aliases
    assert set(free_form.VARIABLE_OF) <= names
    assert set(free_form.SM120_BACKENDS) <= names


@pytest.mark.parametrize("value", ["1", "true", "True", "TRUE", "yes", "Yes", "y", "Y"])
def test_spec_v2_that_is_on_in_any_spelling_needs_one_branch(value: str) -> None:
    said = found({"speculative_eagle_topk": 4}, {"SGLANG_ENABLE_SPEC_V2": value})
    assert len(said) == 1
    assert "works only with 1" in said[0]
    assert found({}, {"SGLANG_ENABLE_SPEC_V2": value}) == []


@pytest.mark.parametrize("value", ["on", "off", "t", "enabled", "2", "truee", " yes", "1.0"])
@pytest.mark.parametrize("name", ["SGLANG_ENABLE_SPEC_V2", "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"])
def test_a_text_that_sglang_takes_for_no_boolean_is_refused(name: str, value: str) -> None:
    said = found({}, {name: value})
    assert len(said) == 1
    assert name in said[0] and '"true"' in said[0]


@pytest.mark.parametrize(
    "name", ["SGLANG_SET_CPU_AFFINITY", "SGLANG_USE_MODELSCOPE", "SGLANG_ENABLE_TORCH_COMPILE"]
)
@pytest.mark.parametrize("value", ["yes", "No", "y", "on", "Off", "enabled"])
def test_a_text_that_one_reader_takes_for_on_and_another_for_off_is_refused(name: str, value: str) -> None:
    assert "one reader" in found({}, {name: value})[0]
    assert [found({}, {name: certain}) for certain in ("true", "False", "1", "0")] == [[]] * 4


def test_variables_that_are_no_booleans_may_hold_any_word() -> None:
    assert found({}, {"NCCL_DEBUG": "yes", "HF_HUB_OFFLINE": "on", "SGLANG_LOGGING_CONFIG_PATH": "no"}) == []


def test_variables_that_break_a_server_are_refused() -> None:
    assert "multicast" in found({}, {"NCCL_NVLS_ENABLE": "1"})[0]
    assert "wrong tokens" in found({}, {"SGLANG_SIMULATE_ACC_METHOD": "match-expected"})[0]
    assert found({}, {"NCCL_NVLS_ENABLE": "0"}) == []


@pytest.mark.parametrize("value", ["LL128", "LL,LL128,Simple", "^LL", "^Simple", "^LL,Simple", "ll128"])
def test_protocols_that_force_ll128_are_doubted(value: str) -> None:
    assert any("LL128" in said for said in doubts("eagle3", {}, {"NCCL_PROTO": value}, engine="cuda"))


@pytest.mark.parametrize("value", ["", "Simple", "LL,Simple", "^LL128", "^LL,LL128"])
def test_protocols_that_do_not_are_not(value: str) -> None:
    assert doubts("eagle3", {}, {"NCCL_PROTO": value}, engine="cuda") == []


def test_other_doubts_name_what_was_reported() -> None:
    assert "garbage" in doubts("baseline", {"expert-parallel-size": 8}, engine="cuda")[0]
    assert "fp8_e4m3" in doubts("baseline", {"kv_cache_dtype": "fp8_e4m3"}, engine="cuda")[0]
    both = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}
    assert "only sockets" in doubts("baseline", {}, both, engine="cuda")[0]
    assert "12.0a" in doubts("baseline", {}, {"FLASHINFER_CUDA_ARCH_LIST": "10.0a"}, engine="cuda")[0]


@pytest.mark.parametrize(
    "changes",
    [
        {"port": "abc"},
        {"port": []},
        {"mem_fraction_static": "much"},
        {"mem_fraction_static": float("nan")},
        {"speculative_num_steps": "three"},
        {"speculative_eagle_topk": float("inf")},
        {"speculative_num_draft_tokens": -1},
        {"ep_size": "many", "port": 0},
    ],
)
def test_a_value_that_is_no_number_is_a_problem_and_no_traceback(changes: dict[str, Any]) -> None:
    assert len(found(changes)) == 1
    doubts("eagle3", {**BASELINE, **SPECULATION, **changes}, engine="cuda")


@pytest.mark.parametrize(
    "name",
    ["speculative_algorithm=EAGLE", "speculative-algorithm EAGLE", "", "\uff53peculative_algorithm", "a\n"],
)
def test_what_is_no_name_alone_is_refused(name: str) -> None:
    assert any("is not a name of SGLang's" in sentence for sentence in found({name: True}))


def test_a_name_that_yaml_takes_for_no_text_is_no_traceback() -> None:
    extra: dict[Any, Any] = {1: 2, None: 3}
    assert found(extra, extra)
    assert doubts("eagle3", extra, engine="cuda") == []


@pytest.mark.parametrize(
    ("name", "value"), [("load_format", "dummy"), ("load-format", ["dummy"]), ("load_form", "DUMMY")]
)
def test_random_weights_are_refused(name: str, value: Any) -> None:
    assert any("fills the model with random numbers" in sentence for sentence in found({name: value}))
    assert found({"load_format": "safetensors"}) == []


@pytest.mark.parametrize("name", ["nccl_p2p_disable", "Sglang_Enable_Spec_V2", "hf_hub_offline", "cuda_home"])
def test_a_variable_in_small_letters_is_read_by_nobody(name: str) -> None:
    assert any(f"write {name.upper()}" in sentence for sentence in found({}, {name: "/x"}))
    assert found({}, {"http_proxy": "http://proxy", "no_proxy": "localhost"}) == []


@pytest.mark.parametrize("value", [True, "true", "yes", "off"])
@pytest.mark.parametrize("name", ["NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_CUMEM_ENABLE"])
def test_a_word_that_nccl_takes_for_0_is_refused(name: str, value: Any) -> None:
    (sentence,) = found({}, {name: value})
    assert "which NCCL takes for 0" in sentence
    assert found({}, {name: "1"}) == found({}, {name: 0}) == []


@pytest.mark.parametrize("value", [["1"], {"a": 1}, []])
def test_a_variable_of_the_environment_is_one_text(value: Any) -> None:
    assert any("expected one text" in sentence for sentence in found({}, {"NCCL_P2P_DISABLE": value}))
