"""The settings of a server: what is refused, and the files that hold the rest."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from blackwell.server import (
    SettingsError,
    doubts,
    make_deployment,
    problems,
    read_config,
    render_config,
    render_environment,
)
from hypothesis import given
from hypothesis import strategies as st

ARGUMENTS: dict[str, Any] = {
    "model_path": "/srv/models/target",
    "port": 30000,
    "attention_backend": "triton",
    "speculative_algorithm": "EAGLE3",
    "speculative_draft_model_path": "/srv/models/draft",
    "speculative_draft_attention_backend": "triton",
    "speculative_num_steps": 3,
    "speculative_eagle_topk": 1,
    "speculative_num_draft_tokens": 4,
    "mem_fraction_static": 0.85,
}
BASELINE = {name: value for name, value in ARGUMENTS.items() if not name.startswith("speculative_")}
ENVIRONMENT = {"SGLANG_ENABLE_SPEC_V2": "1", "CUDA_HOME": "/usr/local/cuda-13.0"}


def test_sound_settings_have_no_problem() -> None:
    assert problems("eagle3", ARGUMENTS, ENVIRONMENT, engine="cuda") == []
    assert doubts("eagle3", ARGUMENTS, engine="cuda") == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention_backend": "trtllm_mla"}, "attention_backend is trtllm_mla, which SM120 does not have"),
        ({"attention_backend": "trtllm_mha"}, "SM120 does not have"),
        ({"attention_backend": "fa3"}, "SM120 does not have"),
        ({"attention_backend": "flashmla"}, "SM120 does not have"),
        ({"attention_backend": "cutlass_mla"}, "SM120 does not have"),
        (
            {"speculative_draft_attention_backend": "trtllm_mla"},
            "set eagle3_server_draft_attention_backend to one of triton, flashinfer",
        ),
        ({"moe_runner_backend": "flashinfer_trtllm"}, "SM120 does not have"),
        ({"fp4_gemm_backend": "flashinfer_trtllm"}, "SM120 does not have"),
        ({"mm_attention_backend": "fa3"}, "SM120 does not have"),
        ({"model_path": "nvidia/Kimi-K2.5-NVFP4"}, "absolute path"),
        ({"speculative_draft_model_path": None}, "load the target a second time"),
        ({"speculative_draft_model_path": "/srv/models/target"}, "the same folder"),
        ({"speculative_draft_attention_backend": None}, "would inherit the target's"),
        ({"speculative_eagle_topk": None}, "speculative_eagle_topk not set"),
        ({"speculative_num_draft_tokens": 8}, "speculative_num_steps + 1 = 4"),
        ({"speculative_eagle_topk": 4}, "SGLANG_ENABLE_SPEC_V2 works only with 1"),
        ({"mem_fraction_static": 0.95}, "leaves room for the draft model"),
        ({"port": 70000}, "The port is 70000"),
        ({"api_key": "0123456789abcdef"}, "set eagle3_server_api_key"),
    ],
)
def test_arguments_that_cannot_work(changes: dict[str, Any], message: str) -> None:
    found = problems("eagle3", {**ARGUMENTS, **changes}, ENVIRONMENT, engine="cuda")
    assert len(found) == 1
    assert message in found[0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"CUDA_HOME": ":/usr/local/cuda-13.0"}, "it is not a search path"),
        ({"CUDA_HOME": "/usr/local/cuda-13.0/"}, "it is not a search path"),
        ({"NCCL_GRAPH_FILE": ""}, "set it to null to leave it out"),
        ({"NCCL_DEBUG": "INFO\nX=1"}, "line break"),
        ({"export X": "1"}, "not the name of an environment variable"),
        ({"SGLANG_SIMULATE_ACC_LEN": "3"}, "never for a server"),
    ],
)
def test_an_environment_that_cannot_work(changes: dict[str, str], message: str) -> None:
    found = problems("baseline", BASELINE, {**ENVIRONMENT, **changes}, engine="cuda")
    assert len(found) == 1
    assert message in found[0]


def test_every_problem_is_said_at_once() -> None:
    arguments = {**ARGUMENTS, "attention_backend": "fa3", "port": 0, "speculative_num_draft_tokens": 9}
    assert len(problems("eagle3", arguments, ENVIRONMENT, engine="cuda")) == 3


def test_the_cpu_engine_may_have_other_back_ends() -> None:
    arguments = {**ARGUMENTS, "attention_backend": "torch_native"}
    assert problems("eagle3", arguments, ENVIRONMENT, engine="cpu") == []
    assert problems("eagle3", arguments, ENVIRONMENT, engine="cuda") != []


def test_baseline_needs_no_drafter() -> None:
    arguments = BASELINE
    assert problems("baseline", arguments, ENVIRONMENT, engine="cuda") == []


@pytest.mark.parametrize(
    "key", ["short", "with blank 0123456789", 'quote"0123456789abcdef', "line\n0123456789abcdef"]
)
def test_a_key_that_no_header_can_carry_is_refused_and_not_shown(key: str) -> None:
    found = problems(
        "eagle3", ARGUMENTS, ENVIRONMENT, engine="cuda", keys={"api_key": key, "admin_api_key": ""}
    )
    assert len(found) == 1
    assert "eagle3_server_api_key" in found[0]
    assert key not in found[0]


def test_doubts_name_what_was_reported() -> None:
    assert "run out of memory" in doubts("eagle3", {"mem_fraction_static": 0.88}, engine="cuda")[0]
    assert "garbage output" in doubts("baseline", {"ep_size": 8}, engine="cuda")[0]


def test_the_configuration_file_is_yaml_with_sglangs_flags() -> None:
    arguments = {
        "model_path": "/srv/models/with blank # and: colon",
        "port": 30000,
        "mem_fraction_static": 0.85,
        "enable_metrics": True,
        "trust-remote-code": False,
        "context_length": None,
        "cuda_graph_bs": [1, 2, 4],
        "json_model_override_args": {"a": "é"},
    }
    text = render_config(arguments, {"api_key": "0123456789abcdef", "admin_api_key": ""})
    assert yaml.safe_load(text) == {
        "model-path": "/srv/models/with blank # and: colon",
        "port": 30000,
        "mem-fraction-static": 0.85,
        "enable-metrics": True,
        "trust-remote-code": False,
        "cuda-graph-bs": [1, 2, 4],
        "json-model-override-args": '{"a": "\\u00e9"}',
        "api-key": "0123456789abcdef",
    }


@given(
    st.dictionaries(
        st.from_regex(r"[a-z][a-z_]{0,20}", fullmatch=True), st.text() | st.integers() | st.booleans()
    )
)
def test_the_configuration_file_reads_back(arguments: dict[str, Any]) -> None:
    assert read_config(render_config(arguments)) == arguments


@given(st.text(alphabet=st.characters(blacklist_categories=["Cs"])))
def test_yaml_reads_any_value_as_it_is(value: str) -> None:
    assert yaml.safe_load(render_config({"chat_template": value})) == {"chat-template": value}


def test_one_argument_in_two_spellings_is_refused() -> None:
    with pytest.raises(SettingsError, match="tp-size is given twice"):
        render_config({"tp_size": 8, "tp-size": 4})


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("plain", '"plain"'),
        ("a # b", '"a # b"'),
        ("it's", '"it\'s"'),
        ('say "so"', '"say \\"so\\""'),
        ("$HOME ${X}", '"\\$HOME \\${X}"'),
        ("`id`", '"\\`id\\`"'),
        ("100% %h", '"100% %h"'),
        ("back\\slash\\", '"back\\\\slash\\\\"'),
        (8, '"8"'),
    ],
)
def test_environment_values_are_quoted_as_systemd_reads_them(value: Any, written: str) -> None:
    # That systemd gives them to the process unchanged is tested on a host: molecule/eagle3_server.
    assert render_environment({"X": value, "LEFT_OUT": None}) == f"# Written by Ansible.\nX={written}\n"


@pytest.mark.parametrize("environment", [{"X": "two\nlines"}, {"export X": "1"}, {"1X": "1"}])
def test_an_environment_that_no_file_can_carry_is_not_written(environment: dict[str, str]) -> None:
    with pytest.raises(SettingsError, match="cannot be written"):
        render_environment(environment)


def deployment(**changes: Any) -> Any:
    given = {
        "folder": "/etc/sglang",
        "release_id": "0.5.9-0123456789ab",
        "profile": "eagle3",
        "arguments": ARGUMENTS,
        "environment": ENVIRONMENT,
        "keys": {"api_key": "0123456789abcdef"},
        "unit": "ExecStart=@deployment@/serve.py\n",
        "programs": {"serve.py": "pass\n"},
    }
    return make_deployment(**{**given, **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {"arguments": {**ARGUMENTS, "port": 30001}},
        {"environment": {}},
        {"keys": {"api_key": "fedcba9876543210"}},
        {"unit": "ExecStart=@deployment@/other.py\n"},
        {"programs": {"serve.py": "raise SystemExit\n"}},
        {"release_id": "0.5.10-0123456789ab"},
        {"profile": "baseline"},
    ],
)
def test_any_change_makes_another_deployment(changes: dict[str, Any]) -> None:
    assert deployment(**changes).name != deployment().name


def test_the_same_settings_are_the_same_deployment() -> None:
    assert deployment() == deployment()
    assert deployment().name.startswith("0.5.9-0123456789ab-")


def test_the_unit_names_its_own_folder() -> None:
    made = deployment()
    assert made.contents["sglang@eagle3.service"] == f"ExecStart=/etc/sglang/{made.name}/serve.py\n"


def test_only_the_service_reads_the_keys_and_only_root_the_environment() -> None:
    made = deployment()
    assert made.mode("eagle3.yaml") == 0o640
    assert made.mode("eagle3.env") == 0o600
    assert made.mode("serve.py") == 0o644
    assert [name for name, text in made.contents.items() if "0123456789abcdef" in text] == ["eagle3.yaml"]
