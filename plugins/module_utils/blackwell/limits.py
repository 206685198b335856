"""What one variable may hold, beyond its type.

What an argument spec cannot say: how small a number may be, that a path of the host is absolute and free of what
systemd reads as more than one word, and that an environment holds strings.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from .errors import OperatorError
from .fabric.report import IDS
from .throughput.policy import Policy
from .variables import Rule, called, nearest

_PORTS = ("eagle3_server_port", "gateway_port", "gateway_metrics_port", "gateway_virtual_port")

# The least of each number that means nothing, or something else, below it.
_LEAST: Mapping[str, int] = {
    "eagle3_server_tensor_parallel_size": 1,
    "eagle3_server_context_length": 1,
    "eagle3_server_max_running_requests": 1,
    "eagle3_server_cuda_graph_max_bs": 1,
    "eagle3_server_triton_attention_num_kv_splits": 1,
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

_SERIAL = "rollout_serial"
_WAIVE = "preflight_waive"
_POWER = "host_tuning_power_limit_w"
_GOVERNOR = "host_tuning_governor"
_GOVERNORS = ("conservative", "ondemand", "performance", "powersave", "schedutil", "userspace")
_MARGIN = "throughput_check_margin"
_TTFT_MARGIN = "throughput_check_ttft_margin"
_FLOORS = "throughput_check_floors"
_DRAFTING_MARGIN = "throughput_check_drafting_margin"
_WEIGHTS = "throughput_check_weights"
_PROFILES = ("eagle3", "baseline")

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


def _serial(values: Mapping[str, Any]) -> str:
    value = values[_SERIAL]
    batches = value if isinstance(value, list) else [value]
    # Ansible takes all hosts at once for 0, an empty list and null, and fails with a traceback for other words.
    fine = bool(batches) and all(re.fullmatch(r"[1-9]\d*%?", str(batch)) for batch in batches)
    return "" if fine else f"is {value!r}"


def _waive(values: Mapping[str, Any]) -> str:
    value = values[_WAIVE] or []
    wrong = [name for name in (value.split(",") if isinstance(value, str) else value) if name not in IDS]
    guesses = {name: nearest(name, IDS, max(3, len(name) // 3)) for name in wrong}
    said = [f"{name!r}" + (f" (meant is {guess}?)" if guess else "") for name, guess in guesses.items()]
    return f"holds {' and '.join(said)}, which no check is called" if said else ""


def _power(values: Mapping[str, Any]) -> str:
    value = float(values[_POWER] or 0)
    return "" if value == 0 or 100 <= value <= 1000 else f"is {value:g}"


def _governor(values: Mapping[str, Any]) -> str:
    value = values[_GOVERNOR]
    return f"is {value!r}" if value and value not in _GOVERNORS else ""


def _policy(data: Mapping[str, Any]) -> str:
    """What the throughput check itself would say, once it has a server."""
    try:
        Policy.from_dict(data)
    except OperatorError as error:
        wanted = f", expected {error.expected}" if error.expected else ""
        return f"{error.problem[0].lower()}{error.problem[1:]}: found {error.found}{wanted}"
    return ""


def _floors(values: Mapping[str, Any]) -> str:
    floors = values[_FLOORS] or {}
    unknown = [str(profile) for profile in floors if profile not in _PROFILES]
    if unknown:
        return f"names a profile that there is not: found {', '.join(unknown)}, expected {' or '.join(_PROFILES)}"
    points = [point for profile in floors.values() for point in profile.values()]
    if not all(isinstance(point, Mapping) for point in points):
        return (
            f"has {', '.join(repr(point) for point in points if not isinstance(point, Mapping))} for figures"
        )
    return _policy({"floors": floors})


LIMITS: tuple[Rule, ...] = (
    *(Rule((name,), _between(name, 1, 65535), "A port is a number from 1 to 65535") for name in _PORTS),
    *(Rule((name,), _between(name, least), f"It is at least {least}") for name, least in _LEAST.items()),
    Rule((_ROUTER,), _between(_ROUTER, 1, 255), "It is a number from 1 to 255"),
    Rule((_SHARE,), _between(_SHARE, 0.01, 0.99), "It is a share of the memory, between 0 and 1"),
    Rule(
        (_SERIAL,),
        _serial,
        "Write numbers of hosts from 1 or shares such as 25%, one or a list: [1, 25%]. 0 or nothing would take all "
        "hosts at once",
    ),
    Rule((_WAIVE,), _waive, "docs/preflight.md lists what can be waived"),
    Rule((_POWER,), _power, "It is the limit of one card in watts, from 100 to 1000, or 0 to leave it"),
    Rule((_GOVERNOR,), _governor, f'Choose one of: "", {", ".join(_GOVERNORS)}'),
    Rule(
        (_MARGIN,),
        lambda values: _policy({"margin": float(values[_MARGIN])}),
        "5 % is 0.05",
    ),
    Rule(
        (_TTFT_MARGIN,),
        lambda values: _policy({"margins": {"ttft_s": float(values[_TTFT_MARGIN])}}),
        "10 % is 0.1",
    ),
    Rule(
        (_DRAFTING_MARGIN,),
        lambda values: _policy({"drafting_margin": values[_DRAFTING_MARGIN]}),
        "8 % is 0.08",
    ),
    Rule(
        (_WEIGHTS,),
        lambda values: _policy({"weights": values[_WEIGHTS] or {}}),
        'Write a number for each point that counts, as in {"1": 1, "8": 2, "1/long": 0.5}',
    ),
    Rule(
        (_FLOORS,),
        _floors,
        'Write them by profile, point and figure, as in eagle3: {"1": {decode_tok_s: 45}}',
    ),
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
