"""Patches that are switched off though other settings need them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.common.parameters import DEFAULT_TYPE_VALIDATORS
from blackwell import contradictions, variables

ROOT = Path(__file__).resolve().parents[2]
LAYOUT, PREFIX = "eagle3-draft-extend-v2", "eagle3-draft-extend-prefix"


@pytest.fixture(scope="module")
def ours() -> variables.Known:
    return variables.load_known(ROOT / "roles", ROOT / "playbooks")


def said(ours: variables.Known, **values: Any) -> list[str]:
    problems = variables.judge_values({"one": values}, ours, contradictions.RULES, DEFAULT_TYPE_VALIDATORS)
    # A flag in free form that a variable sets is refused as well, which is not what is looked at here.
    return [str(problem) for problem in problems if problem.name != "eagle3_server_extra_arguments"]


@pytest.mark.parametrize("off", [False, "false", "no", 0])
def test_the_layout_of_the_pass_over_draft_tokens_switched_off_is_named(
    ours: variables.Known, off: Any
) -> None:
    """All else is the default: spec v2, triton, CUDA graphs, SGLang 0.5.9."""
    assert said(ours, sm120_guards_enabled={LAYOUT: off}) == [
        f"sm120_guards_enabled: turns {LAYOUT} off, and SGLang 0.5.9 with eagle3_server_enable_spec_v2, triton and "
        "CUDA graphs lets the drafter read the tokens of other requests, from two requests on. "
        f"Leave {LAYOUT} on, or set eagle3_server_enable_spec_v2 to false."
    ]


def test_each_patch_is_named_for_the_releases_that_need_it(ours: variables.Known) -> None:
    off = {"sm120_guards_enabled": {LAYOUT: False, PREFIX: False}}

    def named(version: str) -> list[str]:
        problems = said(ours, **off, sglang_stack_version=version)
        return [patch for patch in (LAYOUT, PREFIX) if any(f"turns {patch} off" in line for line in problems)]

    assert {
        version: named(version)
        for version in ("0.5.7", "0.5.8", "0.5.9", "0.5.10rc0", "0.5.12.post1", "0.5.13")
    } == {
        "0.5.7": [],
        "0.5.8": [LAYOUT, PREFIX],
        "0.5.9": [LAYOUT, PREFIX],
        "0.5.10rc0": [PREFIX],
        "0.5.12.post1": [PREFIX],
        "0.5.13": [],
    }


@pytest.mark.parametrize(
    "values",
    [
        {"sm120_guards_enabled": {LAYOUT: True, PREFIX: "yes"}},
        {"sm120_guards_enabled": {}},
        {"sm120_guards_enabled": None},
        {"eagle3_server_enable_spec_v2": False},
        {"eagle3_server_enable_spec_v2": "no"},
        {"eagle3_server_draft_attention_backend": "flashinfer"},
        {"eagle3_server_profile": "baseline"},
        {"eagle3_server_speculative_num_steps": 1},
        {"sglang_stack_engine": "cpu", "preflight_engine": "cpu"},
        {"eagle3_server_extra_arguments": {"disable_cuda_graph": True}},
        {"eagle3_server_extra_arguments": {"speculative_draft_attention_backend": "flashinfer"}},
        {"eagle3_server_extra_environment": {"SGLANG_ENABLE_SPEC_V2": "0"}},
        {"sglang_stack_version": "nightly"},
    ],
)
def test_what_does_not_run_that_pass_in_a_graph_is_no_contradiction(
    ours: variables.Known, values: dict[str, Any]
) -> None:
    assert said(ours, **{"sm120_guards_enabled": {LAYOUT: False, PREFIX: False}, **values}) == []


def test_settings_beside_the_variables_count(ours: variables.Known) -> None:
    values = {
        "sm120_guards_enabled": {LAYOUT: False},
        "eagle3_server_enable_spec_v2": False,
        "eagle3_server_draft_attention_backend": "flashinfer",
        "eagle3_server_extra_environment": {"SGLANG_ENABLE_SPEC_V2": "True"},
        "eagle3_server_extra_arguments": {"speculative_draft_attention_backend": "triton"},
    }
    assert len(said(ours, **values)) == 1


def test_the_rule_and_the_patches_speak_of_the_same_releases() -> None:
    from blackwell.patching import definition

    patches = {raw["id"]: raw for raw in definition.load(ROOT / "files/patches")}
    for patch, releases, _ in contradictions._DRAFT_EXTEND:
        assert [one["releases"] for one in patches[patch]["variants"]] == [releases]
