"""Which variables of an inventory are refused, and in which words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.common.parameters import DEFAULT_TYPE_VALIDATORS
from blackwell import contradictions, limits, server, variables
from blackwell.variables import Problem, Renamed

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Two roles, a playbook with an option of its own, and an inventory."""
    files = {
        "roles/eagle3_server/meta/argument_specs.yml": """
            argument_specs:
              main:
                options:
                  eagle3_server_port: {type: int, default: 30000}
                  eagle3_server_profile: {type: str, choices: [eagle3, baseline, auto], default: eagle3}
              rollback:
                options:
                  eagle3_server_keep: {type: int, default: 2}
            """,
        "roles/sglang_stack/meta/argument_specs.yml": """
            argument_specs:
              main:
                options:
                  sglang_stack_engine: {type: str, choices: [cuda, cpu], default: cuda}
                  sglang_stack_root: {type: path, default: "{{ somewhere }}"}
            """,
        "roles/sglang_stack/tasks/plan.yml": """
            - name: Keep it
              when: true
              block:
                - name: Deeper
                  ansible.builtin.set_fact:
                    sglang_stack_release: "{{ plan }}"
            """,
        "roles/bare/tasks/main.yml": "[]",
        "playbooks/argument_specs.yml": """
            argument_specs:
              site:
                options:
                  rollout_serial: {type: list, default: [1, 25%]}
            """,
        "playbooks/site.yml": """
            - hosts: all
              tasks:
                - ansible.builtin.set_fact:
                    rollout_digest: !unsafe "{{ x }}"
            """,
        "inventory/hosts.yml": """
            all:
              hosts:
                one: {eagle3_server_prot: 1}
            """,
        "inventory/group_vars/all/server.yml": """
            # eagle3_server_prot: 2
            eagle3_server_prot: 3
            """,
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(line[12:] for line in text.splitlines()) if "\n" in text else text)
    return tmp_path


@pytest.fixture
def known(project: Path) -> variables.Known:
    return variables.load_known(project / "roles", project / "playbooks")


def test_options_of_all_entry_points_and_of_playbooks_are_known(known: variables.Known) -> None:
    assert set(known.options) == {
        "eagle3_server_port",
        "eagle3_server_profile",
        "eagle3_server_keep",
        "sglang_stack_engine",
        "sglang_stack_root",
        "rollout_serial",
    }
    assert known.options["eagle3_server_profile"].choices == ("eagle3", "baseline", "auto")


def test_facts_that_tasks_set_are_known(known: variables.Known) -> None:
    assert known.facts == {"sglang_stack_release", "rollout_digest"}


def test_a_folder_without_roles_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no roles in"):
        variables.load_known(tmp_path / "roles", tmp_path / "playbooks")


def judge(known: variables.Known, *names: str, **options: Any) -> list[Problem]:
    return variables.judge_names({"one": names}, known, **options)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "eagle3_server_prot",
            "eagle3_server_prot: no role of this project knows this variable. Write eagle3_server_port, or name it in "
            "preflight_foreign_variables if something else reads it.",
        ),
        (
            "sglang_stack_color_of_the_rack",
            "sglang_stack_color_of_the_rack: no role of this project knows this variable. Remove it, or name it in "
            "preflight_foreign_variables if something else reads it.",
        ),
        (
            "rollout_seriall",
            "rollout_seriall: no role of this project knows this variable. Write rollout_serial, or name it in "
            "preflight_foreign_variables if something else reads it.",
        ),
        (
            "egale3_server_port",
            "egale3_server_port: is very close to eagle3_server_port, and no role of this project knows it. Write "
            "eagle3_server_port, or name it in preflight_foreign_variables if something else reads it.",
        ),
        (
            "eagle_server_port",
            "eagle_server_port: is very close to eagle3_server_port, and no role of this project knows it. Write "
            "eagle3_server_port, or name it in preflight_foreign_variables if something else reads it.",
        ),
        (
            "eagle3_sever_profil",
            "eagle3_sever_profil: is very close to eagle3_server_profile, and no role of this project knows it. Write "
            "eagle3_server_profile, or name it in preflight_foreign_variables if something else reads it.",
        ),
    ],
)
def test_a_name_that_was_meant_for_us_is_refused(known: variables.Known, name: str, message: str) -> None:
    assert [str(problem) for problem in judge(known, name)] == [message]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("eagle3_server_tp", "eagle3_server_tensor_parallel_size"),
        ("eagle3_server_tp_size", "eagle3_server_tensor_parallel_size"),
        ("eagle3_server_tp_sise", "eagle3_server_tensor_parallel_size"),
        ("eagle3_server_tensor_parallel", "eagle3_server_tensor_parallel_size"),
        ("eagle3_server_mem_fraction", "eagle3_server_mem_fraction_static"),
        ("eagle3_server_speculative_draft_model_path", "eagle3_server_draft_model_path"),
        ("eagle3_server_speculative_algorithm", "eagle3_server_profile"),
        ("sglang_tp_size", "eagle3_server_tensor_parallel_size"),
        ("sglang_mem_fraction_static", "eagle3_server_mem_fraction_static"),
        ("sglang_port", "eagle3_server_port"),
        ("sglang_stack_port", "eagle3_server_port"),
        ("tp_size", "eagle3_server_tensor_parallel_size"),
        ("mem_fraction_static", "eagle3_server_mem_fraction_static"),
        ("speculative_num_steps", "eagle3_server_speculative_num_steps"),
        # An edit away, not another role's.
        ("gateway_prot", "gateway_port"),
        ("sglang_stack_pyton", "sglang_stack_python"),
    ],
)
def test_sglang_s_own_names_and_short_ones_are_understood(
    ours: variables.Known, name: str, meant: str
) -> None:
    (problem,) = judge(ours, name)
    assert problem.remedy.startswith(f"Write {meant}, or name it in preflight_foreign_variables")


def test_every_name_of_sglang_s_stands_for_a_variable(ours: variables.Known) -> None:
    assert set(server.SGLANG_NAMES.values()) <= set(ours.options)


@pytest.mark.parametrize(
    "name",
    [
        "eagle3_server_port",
        "sglang_stack_release",
        "rollout_serial",
        "vault_eagle3_server_port",
        "llama_server_port",
        "nginx_port",
        "ansible_host",
        "port",
        "__preflight_host",
    ],
)
def test_known_names_and_those_of_others_are_left_alone(known: variables.Known, name: str) -> None:
    assert judge(known, name) == []


def test_a_foreign_name_is_left_alone_when_it_is_named(known: variables.Known) -> None:
    assert judge(known, "eagle3_server_rack", "eagle_server_port", foreign=["eagle3_server_rack"]) == judge(
        known, "eagle_server_port"
    )


def test_a_renamed_variable_says_its_new_name(known: variables.Known) -> None:
    renamed = [Renamed("eagle3_server_listen_port", "eagle3_server_port", "0.2.0")]
    (problem,) = judge(known, "eagle3_server_listen_port", renamed=renamed)
    assert str(problem) == "eagle3_server_listen_port: was renamed in 0.2.0. Set eagle3_server_port instead."


def test_renamed_variables_point_at_names_that_exist() -> None:
    known = variables.load_known(ROOT / "roles", ROOT / "playbooks")
    for item in variables.RENAMED:
        assert item.new in known.names
        assert item.old not in known.names


@pytest.mark.parametrize(
    ("left", "right", "edits"),
    [
        ("egale3", "eagle3", 1),
        ("eagle", "eagle3", 1),
        ("port", "port", 0),
        ("prot", "port", 1),
        ("abc", "xyz", 3),
    ],
)
def test_swapped_neighbours_are_one_edit(left: str, right: str, edits: int) -> None:
    assert variables.distance(left, right, 5) == edits


def test_counting_stops_at_the_limit() -> None:
    assert variables.distance("kitten", "sitting", 1) == 2


# --- values ---


def test_a_value_outside_the_choices_is_refused(known: variables.Known) -> None:
    (problem,) = variables.judge_values(
        {"one": {"eagle3_server_profile": "eagel3"}}, known, (), DEFAULT_TYPE_VALIDATORS
    )
    assert str(problem) == "eagle3_server_profile: is 'eagel3'. Choose one of: eagle3, baseline, auto."


def test_an_empty_choice_is_shown_as_one(ours: variables.Known) -> None:
    assert contradict(ours, host_tuning_aspm="off") == [
        "host_tuning_aspm: is 'off'. Choose one of: \"\", default, performance, powersave, powersupersave."
    ]


def test_the_same_wrong_value_on_many_hosts_is_one_problem(known: variables.Known) -> None:
    hosts = {name: {"eagle3_server_profile": "eagel3"} for name in ("one", "two")}
    (problem,) = variables.judge_values(hosts, known, (), DEFAULT_TYPE_VALIDATORS)
    assert problem.hosts == ("one", "two")


def test_a_default_with_a_template_is_not_guessed(known: variables.Known) -> None:
    rule = variables.Rule(("sglang_stack_root",), lambda values: "must not be read", "")
    assert variables.judge_values({"one": {}}, known, [rule], DEFAULT_TYPE_VALIDATORS) == []


GUARDS = {"flashinfer-allreduce-guard": True, "flashinfer-trtllm-comm-sm120": True}
BOTH_GROUPS = ["sglang_gateways", "sglang_servers"]
TWO_GATEWAYS = {"sglang_gateways": ["one", "two"]}
COMMIT = "0123456789abcdef0123456789abcdef01234567"
REAL: dict[str, Any] = {
    "eagle3_server_enable_flashinfer_allreduce_fusion": True,
    "eagle3_server_tensor_parallel_size": 8,
    "sglang_stack_engine": "cuda",
    "sm120_guards_enabled": GUARDS,
}


@pytest.fixture(scope="module")
def ours() -> variables.Known:
    return variables.load_known(ROOT / "roles", ROOT / "playbooks")


def contradict(ours: variables.Known, **values: Any) -> list[str]:
    rules = (*contradictions.RULES, *limits.LIMITS)
    problems = variables.judge_values({"one": values}, ours, rules, DEFAULT_TYPE_VALIDATORS)
    return [str(problem) for problem in problems]


CARDS = [f"GPU-{n:08x}-5ac1-4f0e-9d7b-2f6c81e00000" for n in range(8)]
NAME_CARDS = (
    "nvidia-smi -L shows the UUIDs (GPU- and 32 hex digits): name each card once, as many as "
    "eagle3_server_tensor_parallel_size, or none."
)
CHOOSE_CARDS = (
    "Name the cards in eagle3_server_gpus by UUID (nvidia-smi -L shows them): preflight and every start judge these, "
    "and the server sees no others."
)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"preflight_engine": "cpu", "sglang_stack_engine": "cuda"},
            "preflight_engine: is cpu, but sglang_stack_engine is cuda. Set sglang_stack_engine alone; "
            "preflight_engine follows it.",
        ),
        (
            {"preflight_gpu_count": 4},
            "preflight_gpu_count: is 4, but eagle3_server_tensor_parallel_size is 8. Set "
            "eagle3_server_tensor_parallel_size alone; preflight_gpu_count follows it.",
        ),
        (
            {"eagle3_server_gpus": CARDS[:7], "preflight_gpus": CARDS[:7]},
            f"eagle3_server_gpus: names 7 cards, but eagle3_server_tensor_parallel_size is 8. {NAME_CARDS}",
        ),
        (
            {"eagle3_server_gpus": [*CARDS[:7], CARDS[0]], "preflight_gpus": [*CARDS[:7], CARDS[0]]},
            f"eagle3_server_gpus: names a card twice. {NAME_CARDS}",
        ),
        (
            {"eagle3_server_gpus": [*CARDS[:7], "3"], "preflight_gpus": [*CARDS[:7], "3"]},
            f"eagle3_server_gpus: holds 3, which is no UUID of a card. {NAME_CARDS}",
        ),
        (
            {"eagle3_server_gpus": CARDS, "preflight_gpus": []},
            "preflight_gpus: is []. Set eagle3_server_gpus alone; preflight_gpus follows it.",
        ),
        (
            {"eagle3_server_extra_environment": {"CUDA_VISIBLE_DEVICES": "1,2"}},
            f"eagle3_server_extra_environment: sets CUDA_VISIBLE_DEVICES. {CHOOSE_CARDS}",
        ),
        (
            {"eagle3_server_nccl_environment": {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}},
            f"eagle3_server_nccl_environment: sets CUDA_DEVICE_ORDER. {CHOOSE_CARDS}",
        ),
        (
            {"eagle3_server_extra_arguments": {"base_gpu_id": 1}},
            f"eagle3_server_extra_arguments: sets base_gpu_id to 1. {CHOOSE_CARDS}",
        ),
        (
            {"preflight_python_version": "3.11"},
            "preflight_python_version: is 3.11, but sglang_stack_python is 3.12. Set sglang_stack_python alone; "
            "preflight_python_version follows it.",
        ),
        (
            {**REAL, "eagle3_server_tensor_parallel_size": 6},
            "eagle3_server_enable_flashinfer_allreduce_fusion: is on, but eagle3_server_tensor_parallel_size is 6. The "
            "fused allreduce exists for 2, 4 and 8 GPUs: turn it off, or use so many.",
        ),
        (
            {**REAL, "sm120_guards_enabled": {"flashinfer-allreduce-guard": True}},
            "eagle3_server_enable_flashinfer_allreduce_fusion: is on, but SM120 is left out until sm120_guards_enabled "
            "turns on flashinfer-trtllm-comm-sm120. Turn them on together, or turn the fusion off: alone it does "
            "nothing, or fails at the first forward.",
        ),
        (
            {**REAL, "sm120_guards_enabled": {**GUARDS, "eagle3-aux-after-allreduce": False}},
            "eagle3_server_enable_flashinfer_allreduce_fusion: is on, but sm120_guards_enabled turns "
            "eagle3-aux-after-allreduce off, so the drafter would get partial sums. Leave eagle3-aux-after-allreduce "
            "on as long as the fusion is on.",
        ),
        (
            {"eagle3_server_api_key": "k" * 32, "eagle3_server_admin_api_key": "k" * 32},
            "eagle3_server_admin_api_key: is the same key as eagle3_server_api_key. Make another (openssl rand -hex 32 "
            "prints one): with this one every client could change the server.",
        ),
        (
            {"throughput_check_runs_min": 30, "throughput_check_runs_max": 20},
            "throughput_check_runs_min: is 30, but throughput_check_runs_max is 20. Raise throughput_check_runs_max.",
        ),
        (
            {
                "throughput_check_weights": {"1": 1, "16": 2, "8/long": 1},
                "throughput_check_long_concurrency": [1],
            },
            "throughput_check_weights: names 16 and 8/long, which will not be measured. Weigh points of "
            "throughput_check_concurrency, or as 1/long those of throughput_check_long_concurrency.",
        ),
        (
            {"cuda_toolkit_path": "/opt/cuda"},
            "cuda_toolkit_path: is /opt/cuda, but cuda_toolkit_source is wheels, which compiles with what the release "
            "brings. Set cuda_toolkit_source to present to compile with it, or leave cuda_toolkit_path out.",
        ),
        (
            {"gateway_port": 30000, "group_names": BOTH_GROUPS},
            "gateway_port: gateway_port and eagle3_server_port are both 30000 on a host that is in both groups. Give "
            "the gateway and the server a port of its own each.",
        ),
        (
            {"eagle3_server_port": "8080", "group_names": BOTH_GROUPS},
            "eagle3_server_port: gateway_port and eagle3_server_port are both 8080 on a host that is in both groups. "
            "Give the gateway and the server a port of its own each.",
        ),
        (
            {"gateway_metrics_port": 30000, "group_names": BOTH_GROUPS},
            "gateway_metrics_port: gateway_metrics_port and eagle3_server_port are both 30000 on a host that is in "
            "both groups. Give the gateway and the server a port of its own each.",
        ),
        (
            {"gateway_virtual_address": "192.0.2.10/24", "groups": TWO_GATEWAYS},
            "gateway_virtual_address: is '192.0.2.10/24', which is no IPv4 address. It is an address such as "
            "192.0.2.20 that no host has, and that two gateways share.",
        ),
        (
            {"gateway_virtual_address": "192.0.2.10", "groups": {"sglang_gateways": ["one"]}},
            "gateway_virtual_address: is 192.0.2.10, but sglang_gateways has 1 host. It is an address such as "
            "192.0.2.20 that no host has, and that two gateways share.",
        ),
        (
            {"gateway_virtual_address": "192.0.2.10", "ansible_host": "192.0.2.10", "groups": TWO_GATEWAYS},
            "gateway_virtual_address: is 192.0.2.10, and so is ansible_host. It is an address such as 192.0.2.20 that "
            "no host has, and that two gateways share.",
        ),
        (
            {
                "gateway_virtual_address": "192.0.2.10",
                "gateway_virtual_port": 8080,
                "groups": TWO_GATEWAYS,
            },
            "gateway_virtual_port: is 8080, and so is gateway_port. HAProxy and smg run on the same host: give each a "
            "port of its own.",
        ),
        (
            {"gateway_virtual_router_id": 0},
            "gateway_virtual_router_id: is 0. It is a number from 1 to 255.",
        ),
        (
            {
                "model_weights_target_repository": "nvidia/Kimi-K2.5-NVFP4",
                "model_weights_target_revision": "",
            },
            "model_weights_target_revision: nvidia/Kimi-K2.5-NVFP4 is to be fetched, and model_weights_target_revision "
            "is '', which is no commit (git ls-remote https://huggingface.co/nvidia/Kimi-K2.5-NVFP4 HEAD prints "
            "today's). Set the repository and the 40 hex digits of a commit together, or neither where the model is "
            "there.",
        ),
        (
            {"model_weights_draft_repository": "someone/drafter", "model_weights_draft_revision": "main"},
            "model_weights_draft_revision: someone/drafter is to be fetched, and model_weights_draft_revision is "
            "'main', which is no commit (git ls-remote https://huggingface.co/someone/drafter HEAD prints today's). "
            "Set the repository and the 40 hex digits of a commit together, or neither where the model is there.",
        ),
        (
            {"model_weights_draft_revision": COMMIT},
            f"model_weights_draft_revision: model_weights_draft_revision is '{COMMIT}', and "
            "model_weights_draft_repository is empty. Set the repository and the 40 hex digits of a commit together, "
            "or neither where the model is there.",
        ),
    ],
)
def test_settings_that_cannot_both_be_meant(
    ours: variables.Known, values: dict[str, Any], message: str
) -> None:
    assert contradict(ours, **values) == [message]


@pytest.mark.parametrize(
    "values",
    [
        {},
        REAL,
        {"preflight_engine": "cpu", "sglang_stack_engine": "cpu"},
        {"group_names": BOTH_GROUPS},
        {"gateway_port": 30000, "group_names": ["sglang_servers"]},
        {"gateway_virtual_address": "192.0.2.20", "ansible_host": "192.0.2.10", "groups": TWO_GATEWAYS},
        {"gateway_virtual_port": 8080},
        {"model_weights_target_repository": "a/b", "model_weights_target_revision": COMMIT},
        # What Ansible converts.
        {"eagle3_server_port": "30001", "eagle3_server_mem_fraction_static": "0.8"},
        {"eagle3_server_preload": "no", "preflight_waive": "acs,iommu", "throughput_check_concurrency": 8},
        {"eagle3_server_extra_environment": "A=1 B=2", "eagle3_server_served_model_name": 2.5},
        {"eagle3_server_tensor_parallel_size": 8.0, "eagle3_server_context_length": None},
        {"sglang_stack_bundle": "", "sglang_stack_root": "/srv/sgläng-1.0"},
        {"eagle3_server_extra_environment": {"A": None, "B": "true", "C": "1"}},
        {"throughput_check_runs_min": None},
        {"eagle3_server_api_key": "", "eagle3_server_admin_api_key": ""},
        {"eagle3_server_api_key": "k" * 32, "eagle3_server_admin_api_key": "a" * 32},
        *({"rollout_serial": value} for value in (1, "2", "25%", [1, "25%"], ["100%"])),
        {"preflight_waive": ["acs", "python_headers"]},
        *({"throughput_check_weights": value} for value in (None, {}, {1: 1, "8": "2", "1/long": 0})),
        *({"throughput_check_floors": value} for value in ({}, {"eagle3": {8: {"ttft_s": 1}, "1/long": {}}})),
        {"throughput_check_margin": "0.3", "throughput_check_ttft_margin": 0.6},
        *({"host_tuning_power_limit_w": value} for value in (0, "450", 600.0)),
        *({"host_tuning_governor": value} for value in ("", "performance")),
    ],
)
def test_settings_that_fit(ours: variables.Known, values: dict[str, Any]) -> None:
    assert contradict(ours, **values) == []


BLANK = (
    "It is a path on the host: absolute, and without blanks, quotes, colons, %, $ and backslashes, which systemd and "
    "PATH read as something else."
)
SERIAL = (
    "Write numbers of hosts from 1 or shares such as 25%, one or a list: [1, 25%]. 0 or nothing would take all hosts "
    "at once."
)
WAIVE = "docs/preflight.md lists what can be waived."
WEIGHTS = 'Write a number for each point that counts, as in {"1": 1, "8": 2, "1/long": 0.5}.'
FLOORS = 'Write them by profile, point and figure, as in eagle3: {"1": {decode_tok_s: 45}}.'
FIGURES = (
    "decode_tok_s, output_tok_s, accept_length, step_rate, ttft_s, ttft_p99_s, itl_p50_ms, itl_p95_ms, itl_p99_ms, "
    "graph_share"
)
GOVERNOR = 'Choose one of: "", conservative, ondemand, performance, powersave, schedutil, userspace.'
POWER = "It is the limit of one card in watts, from 100 to 1000, or 0 to leave it."
BOOL = "Put it in quotes: without them YAML takes yes, no, on, off, true and false for bools."


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        # types
        (
            "eagle3_server_port",
            "http",
            "is 'http', a string, and an integer is wanted. Write it like NAME: 8.",
        ),
        ("eagle3_server_port", [1], "is [1], a list, and an integer is wanted. Write it like NAME: 8."),
        (
            "eagle3_server_tensor_parallel_size",
            "8 cards",
            "is '8 cards', a string, and an integer is wanted. Write it like NAME: 8.",
        ),
        (
            "eagle3_server_mem_fraction_static",
            "85%",
            "is '85%', a string, and a number is wanted. Write it like NAME: 0.5.",
        ),
        (
            "eagle3_server_preload",
            "maybe",
            "is 'maybe', a string, and a bool is wanted. Write it like NAME: true or false.",
        ),
        (
            "preflight_waive",
            {"acs": 1},
            "is {'acs': 1}, a mapping, and a list is wanted. Write it like NAME: [one, two].",
        ),
        (
            "throughput_check_concurrency",
            [1, "many"],
            "has an item that is 'many', a string, and an integer is wanted. Write it like NAME: 8.",
        ),
        (
            "sm120_guards_enabled",
            ["flashinfer-allreduce-guard"],
            "is ['flashinfer-allreduce-guard'], a list, and a mapping is wanted. Write it like NAME: {name: value}.",
        ),
        ("eagle3_server_served_model_name", True, f"is True, a bool, and a string is wanted. {BOOL}"),
        (
            "eagle3_server_served_model_name",
            ["x" * 80],
            f"is ['{'x' * 58}..., a list, and a string is wanted. Write it like NAME: text.",
        ),
        ("eagle3_server_model_path", False, f"is False, a bool, and a path is wanted. {BOOL}"),
        # A secret is not repeated.
        (
            "eagle3_server_api_key",
            ["k" * 32],
            "is not shown, a list, and a string is wanted. Write it like NAME: text.",
        ),
        # limits
        ("eagle3_server_tensor_parallel_size", 0, "is 0. It is at least 1."),
        ("eagle3_server_tensor_parallel_size", "-1", "is -1. It is at least 1."),
        ("eagle3_server_port", 70000, "is 70000. A port is a number from 1 to 65535."),
        ("eagle3_server_mem_fraction_static", 85, "is 85. It is a share of the memory, between 0 and 1."),
        # batches
        ("rollout_serial", "half", f"is 'half'. {SERIAL}"),
        ("rollout_serial", [1, "half"], f"is [1, 'half']. {SERIAL}"),
        ("rollout_serial", 0, f"is 0. {SERIAL}"),
        ("rollout_serial", [], f"is []. {SERIAL}"),
        ("rollout_serial", None, f"is None. {SERIAL}"),
        ("rollout_serial", "1,25%", f"is '1,25%'. {SERIAL}"),
        # waived checks
        (
            "preflight_waive",
            ["acs", "drivr"],
            f"holds 'drivr' (meant is driver?), which no check is called. {WAIVE}",
        ),
        (
            "preflight_waive",
            "acs,everything_here",
            f"holds 'everything_here', which no check is called. {WAIVE}",
        ),
        # the throughput check
        (
            "throughput_check_margin",
            5,
            "margin is out of range: found 5.0, expected a fraction between 0 and 0.5. 5 % is 0.05.",
        ),
        (
            "throughput_check_ttft_margin",
            "10",
            "ttft_s is out of range: found 10.0, expected a fraction between 0 and 1. 10 % is 0.1.",
        ),
        (
            "throughput_check_floors",
            {"eagle": {"1": {"decode_tok_s": 45}}},
            f"names a profile that there is not: found eagle, expected eagle3 or baseline. {FLOORS}",
        ),
        (
            "throughput_check_floors",
            {"eagle3": {"1": {"decode_toks": 45}}},
            "a margin or floor names a figure that is not measured: found decode_toks, expected one of "
            f"{FIGURES}. {FLOORS}",
        ),
        (
            "throughput_check_floors",
            {"eagle3": {"1": {"decode_tok_s": "fast"}}},
            f"floors.eagle3.1.decode_tok_s is not a number: found 'fast'. {FLOORS}",
        ),
        ("throughput_check_floors", {"eagle3": {"1": 45}}, f"has 45 for figures. {FLOORS}"),
        (
            "throughput_check_weights",
            {"1": 0, "8": 0},
            "all weights are 0, so no point would choose the profile: found 1: 0, 8: 0, expected at least one above 0, "
            f"or none at all for equal ones. {WEIGHTS}",
        ),
        (
            "throughput_check_weights",
            {"8": -1},
            f"the weight of 8 is out of range: found -1.0, expected 0 or more. {WEIGHTS}",
        ),
        (
            "throughput_check_drafting_margin",
            8,
            "drafting_margin is out of range: found 8.0, expected a fraction between 0 and 0.5. 8 % is 0.08.",
        ),
        # the host
        ("host_tuning_power_limit_w", -1, f"is -1. {POWER}"),
        ("host_tuning_power_limit_w", 6000, f"is 6000. {POWER}"),
        ("host_tuning_governor", "fast", f"is 'fast'. {GOVERNOR}"),
        # paths
        ("eagle3_server_model_path", "/models/kimi k2", f"is '/models/kimi k2', which holds ' '. {BLANK}"),
        ("sglang_stack_root", "/opt/100%:a", f"is '/opt/100%:a', which holds '%' and ':'. {BLANK}"),
        (
            "eagle3_server_model_path",
            "models/kimi",
            f"is 'models/kimi', which is not an absolute path. {BLANK}",
        ),
        # environments
        (
            "eagle3_server_nccl_environment",
            {"NCCL_P2P_DISABLE": True, "NCCL_MIN_NCHANNELS": 8, "NCCL_P2P_LEVEL": "SYS"},
            "holds NCCL_P2P_DISABLE as a bool and NCCL_MIN_NCHANNELS as an integer, and an environment holds strings "
            'alone. Put the value in quotes, as in NCCL_P2P_DISABLE: "1".',
        ),
    ],
)
def test_a_value_that_its_variable_cannot_have(
    ours: variables.Known, name: str, value: Any, message: str
) -> None:
    follows = {"preflight_gpu_count": value} if name == "eagle3_server_tensor_parallel_size" else {}
    said = [line for line in contradict(ours, **{name: value}, **follows) if line.startswith(f"{name}: ")]
    assert said == [f"{name}: {message}".replace("NAME", name)]


def test_every_rule_reads_variables_that_exist(ours: variables.Known) -> None:
    for rule in (*contradictions.RULES, *limits.LIMITS):
        assert set(rule.reads) <= ours.names | {"ansible_host", "group_names", "groups"}, rule.reads


def test_every_environment_of_an_inventory_has_to_hold_strings(ours: variables.Known) -> None:
    named = {
        name
        for name, option in ours.options.items()
        if name.endswith("_environment") and option.type == "dict"
    }
    # These two follow the server's.
    assert named - set(limits.ENVIRONMENTS) == {
        "model_weights_profile_environment",
        "preflight_nccl_environment",
    }


def test_no_declared_value_is_refused(ours: variables.Known) -> None:
    literal = {
        name: option.default
        for name, option in ours.options.items()
        if option.default is not None and "{{" not in str(option.default)
    }
    assert contradict(ours, **literal) == []


# --- names of hosts ---


@pytest.mark.parametrize(
    "host", ["gpu-1", "GPU-1", "gpu_1", "gpu-1.rack2.example.com", "192.0.2.1", "1", "_old", "localhost"]
)
def test_names_of_hosts_that_files_and_addresses_can_have(host: str) -> None:
    assert variables.judge_hosts([host, "other"]) == []


@pytest.mark.parametrize(
    "host", ["gpu 1", "gpü-1", "gpu/1", "..", ".gpu", "-gpu", "2001:db8::1", "gpu*", "a~1", ""]
)
def test_a_name_of_a_host_that_a_file_or_an_address_cannot_have(host: str) -> None:
    (problem,) = variables.judge_hosts(["gpu-1", host])
    assert str(problem) == (
        f"inventory_hostname: is {host!r}, and receipts, reports and addresses are called after it. Name the host with "
        "letters, digits, dots, hyphens and underscores, beginning with none of . and -, and put its address into "
        "ansible_host."
    )


def test_names_of_hosts_that_differ_by_case_only() -> None:
    (problem,) = variables.judge_hosts(["gpu-1", "GPU-1", "gpu-2"])
    assert str(problem) == (
        "inventory_hostname: is 'gpu-1' and 'GPU-1', which are one name where case does not count. Name all but one of "
        "them differently."
    )


# --- the message ---


def test_the_message_says_where_and_on_which_hosts(project: Path, known: variables.Known) -> None:
    files = variables.variable_files([project / "inventory"], project / "playbooks")
    (problem,) = judge(known, "eagle3_server_prot")
    places = variables.locate(problem.name, files)
    assert places == (
        f"{project}/inventory/group_vars/all/server.yml:3",
        f"{project}/inventory/hosts.yml:4",
    )
    text = variables.report([Problem("a", "is wrong", "Mend it", ("one",), places[:1])], hosts=2)
    assert text.splitlines() == [
        "1 variable of this inventory cannot be used; no host was touched.",
        f"- a [{project}/inventory/group_vars/all/server.yml:3]: is wrong. Mend it. (on one)",
    ]


def test_an_inventory_file_brings_its_neighbours(project: Path) -> None:
    files = variables.variable_files(
        [project / "inventory/hosts.yml", Path("localhost,")], project / "playbooks"
    )
    assert [path.name for path in files] == ["server.yml", "hosts.yml"]


def test_a_file_that_is_no_text_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"\xff\xfea: 1")
    assert variables.locate("a", [tmp_path / "data"]) == ()
