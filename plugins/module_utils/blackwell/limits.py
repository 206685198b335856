"""What one variable may hold, beyond its type.

What an argument spec cannot say: how small a number may be, that a path of the host is absolute and free of what
systemd reads as more than one word, and that an environment holds strings.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from .variables import Rule, called

_PORTS = ("eagle3_server_port", "gateway_port", "gateway_metrics_port", "gateway_virtual_port")

# The least of each number that means nothing, or something else, below it.
_LEAST: Mapping[str, int] = {
    "eagle3_server_tensor_parallel_size": 1,
    "eagle3_server_context_length": 1,
    "eagle3_server_max_running_requests": 1,
    "eagle3_server_cuda_graph_max_bs": 1,
    "eagle3_server_speculative_num_steps": 1,
    "eagle3_server_speculative_eagle_topk": 1,
    "eagle3_server_speculative_num_draft_tokens": 1,
    "eagle3_server_jit_jobs": 1,
    "eagle3_server_readiness_tokens": 1,
    "eagle3_server_start_timeout": 1,
    "eagle3_server_prepare_timeout": 0,
    "eagle3_server_drain_timeout": 0,
    "eagle3_server_silence_limit": 0,
    "eagle3_server_kept_deployments": 0,
    "gateway_drain_timeout": 0,
    "gateway_retries": 0,
    "host_tuning_hugepages": 0,
    "preflight_gpu_count": 0,
    "rollout_lost_hosts_allowed": 0,
    "rollout_min_available": 0,
    "sglang_stack_keep": 0,
    "throughput_check_output_tokens": 1,
    "throughput_check_runs_min": 1,
    "throughput_check_runs_max": 1,
}

_ROUTER = "gateway_virtual_router_id"
_SHARE = "eagle3_server_mem_fraction_static"

# Folders and files of the host. They stand in units, in PATH and in environment files, where a blank, a colon, a quote,
# a percent sign, a dollar or a backslash is not part of a path.
HOST_PATHS = (
    "cuda_toolkit_path",
    "eagle3_server_config_directory",
    "eagle3_server_cuda_home",
    "eagle3_server_draft_model_path",
    "eagle3_server_model_path",
    "eagle3_server_unit_directory",
    "gateway_bundle",
    "gateway_config_directory",
    "gateway_root",
    "gateway_state_directory",
    "host_tuning_directory",
    "model_weights_draft_path",
    "model_weights_state",
    "model_weights_target_path",
    "rollout_receipts",
    "sglang_stack_bundle",
    "sglang_stack_root",
    "throughput_check_state",
)
_HOST_PATH = re.compile(r"/[\w./@+,=~-]*")

ENVIRONMENTS = (
    "eagle3_server_extra_environment",
    "eagle3_server_nccl_environment",
    "model_weights_fetch_environment",
    "sglang_stack_import_environment",
    "throughput_check_environment",
)

Broken = Callable[[Mapping[str, Any]], str]


def _between(name: str, least: float, most: float = float("inf")) -> Broken:
    def broken(values: Mapping[str, Any]) -> str:
        value = values[name]
        return "" if value is None or least <= float(value) <= most else f"is {value}"

    return broken


def _path(name: str) -> Broken:
    def broken(values: Mapping[str, Any]) -> str:
        value = values[name]
        if not isinstance(value, str) or not value or _HOST_PATH.fullmatch(value):
            return ""
        if not value.startswith("/"):
            return f"is {value!r}, which is not an absolute path"
        wrong = sorted(set(re.findall(r"[^\w./@+,=~-]", value)))
        return f"is {value!r}, which holds {' and '.join(map(repr, wrong))}"

    return broken


def _environment(name: str) -> Broken:
    def broken(values: Mapping[str, Any]) -> str:
        wrong = [
            f"{variable} as {called(value)}"
            for variable, value in (values[name] or {}).items()
            if not isinstance(value, str) and value is not None
        ]
        return f"holds {' and '.join(wrong)}, and an environment holds strings alone" if wrong else ""

    return broken


LIMITS: tuple[Rule, ...] = (
    *(Rule((name,), _between(name, 1, 65535), "A port is a number from 1 to 65535") for name in _PORTS),
    *(Rule((name,), _between(name, least), f"It is at least {least}") for name, least in _LEAST.items()),
    Rule((_ROUTER,), _between(_ROUTER, 1, 255), "It is a number from 1 to 255"),
    Rule((_SHARE,), _between(_SHARE, 0.01, 0.99), "It is a share of the memory, between 0 and 1"),
    *(
        Rule(
            (name,),
            _path(name),
            "It is a path on the host: absolute, and without blanks, quotes, colons, %, $ and backslashes, which "
            "systemd and PATH read as something else",
        )
        for name in HOST_PATHS
    ),
    *(
        Rule((name,), _environment(name), 'Put the value in quotes, as in NCCL_P2P_DISABLE: "1"')
        for name in ENVIRONMENTS
    ),
)
