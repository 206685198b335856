"""Settings of different roles that cannot both be meant.

What is wrong within the server's own settings (back ends, speculation, memory) is in ``server.py``; here is only
what no single role can see.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping
from typing import Any

from .booleans import is_true, parse_environment_boolean
from .errors import OperatorError
from .free_form import already_set
from .patching.versions import in_range
from .throughput.policy import Policy
from .throughput.result import LONG, STANDARD
from .variables import Rule

_FUSION = "eagle3_server_enable_flashinfer_allreduce_fusion"
_FUSION_GUARDS = ("flashinfer-allreduce-guard", "flashinfer-trtllm-comm-sm120")
_AUX_STATES = "eagle3-aux-after-allreduce"
_ADMIN_KEY = "eagle3_server_admin_api_key"
_CARDS = "eagle3_server_gpus"
_CARD = re.compile(r"GPU-[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_CHOOSE_CARDS = (
    "Name the cards in eagle3_server_gpus by UUID (nvidia-smi -L shows them): preflight and every start judge these, "
    "and the server sees no others"
)
_EXTRA = "eagle3_server_extra_arguments"
_SHARED_ADDRESS = "It is an address such as 192.0.2.20 that no host has, and that two gateways share"


def _engines(values: Mapping[str, Any]) -> str:
    checked, built = values["preflight_engine"], values["sglang_stack_engine"]
    return f"is {checked}, but sglang_stack_engine is {built}" if checked != built else ""


def _gpu_count(values: Mapping[str, Any]) -> str:
    checked, used = int(values["preflight_gpu_count"]), int(values["eagle3_server_tensor_parallel_size"])
    return f"is {checked}, but eagle3_server_tensor_parallel_size is {used}" if checked != used else ""


def _named_cards(values: Mapping[str, Any]) -> str:
    named, used = values[_CARDS] or [], int(values["eagle3_server_tensor_parallel_size"])
    wrong = [str(card) for card in named if not _CARD.fullmatch(str(card))]
    if wrong:
        return f"holds {', '.join(wrong)}, which is no UUID of a card"
    if len({str(card).lower() for card in named}) < len(named):
        return "names a card twice"
    if named and len(named) != used:
        return f"names {len(named)} cards, but eagle3_server_tensor_parallel_size is {used}"
    return ""


def _judged_cards(values: Mapping[str, Any]) -> str:
    return (
        f"is {values['preflight_gpus']}" if (values["preflight_gpus"] or []) != (values[_CARDS] or []) else ""
    )


def _cards_by_environment(name: str) -> Callable[[Mapping[str, Any]], str]:
    def broken(values: Mapping[str, Any]) -> str:
        given = values[name] or {}
        wrong = [key for key in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER") if given.get(key) is not None]
        return f"sets {' and '.join(wrong)}" if wrong else ""

    return broken


def _cards_by_argument(values: Mapping[str, Any]) -> str:
    given = values["eagle3_server_extra_arguments"] or {}
    wrong = [
        f"{key} to {given[key]}"
        for key, plain in (("base_gpu_id", "0"), ("gpu_id_step", "1"))
        if given.get(key) is not None and str(given[key]) != plain
    ]
    return f"sets {' and '.join(wrong)}" if wrong else ""


def _python(values: Mapping[str, Any]) -> str:
    checked, built = str(values["preflight_python_version"]), str(values["sglang_stack_python"])
    return f"is {checked}, but sglang_stack_python is {built}" if checked != built else ""


def _fusion_size(values: Mapping[str, Any]) -> str:
    size = int(values["eagle3_server_tensor_parallel_size"])
    if not is_true(values[_FUSION]) or size in (2, 4, 8):
        return ""
    return f"is on, but eagle3_server_tensor_parallel_size is {size}"


def _fusion_guards(values: Mapping[str, Any]) -> str:
    enabled = values["sm120_guards_enabled"] or {}
    missing = [guard for guard in _FUSION_GUARDS if not is_true(enabled.get(guard, False))]
    if not is_true(values[_FUSION]) or values["sglang_stack_engine"] != "cuda" or not missing:
        return ""
    return f"is on, but SM120 is left out until sm120_guards_enabled turns on {' and '.join(missing)}"


def _fusion_aux_states(values: Mapping[str, Any]) -> str:
    enabled = values["sm120_guards_enabled"] or {}
    if not is_true(values[_FUSION]) or is_true(enabled.get(_AUX_STATES, True)):
        return ""
    return f"is on, but sm120_guards_enabled turns {_AUX_STATES} off, so the drafter would get partial sums"


def _extra_arguments(values: Mapping[str, Any]) -> str:
    # With the CPU engine the variables of the GPUs mean nothing, and free form is the only way.
    if values["sglang_stack_engine"] != "cuda":
        return ""
    ours = already_set(str(name) for name in values[_EXTRA] or {})
    said = [f"{name}, which {variable} sets" for name, variable in sorted(ours.items())]
    return f"holds {' and '.join(said)}" if said else ""


def _one_key(values: Mapping[str, Any]) -> str:
    key = values["eagle3_server_api_key"]
    # The key itself is not said.
    return "is the same key as eagle3_server_api_key" if key and key == values[_ADMIN_KEY] else ""


def _runs(values: Mapping[str, Any]) -> str:
    least, most = int(values["throughput_check_runs_min"]), int(values["throughput_check_runs_max"])
    return f"is {least}, but throughput_check_runs_max is {most}" if least > most else ""


def _weights(values: Mapping[str, Any]) -> str:
    points = [(int(slots), STANDARD) for slots in values["throughput_check_concurrency"] or []]
    points += [(int(slots), LONG) for slots in values["throughput_check_long_concurrency"] or []]
    try:
        policy = Policy.from_dict({"weights": values["throughput_check_weights"] or {}})
    except OperatorError:
        return ""  # What is wrong with the weights by themselves, limits.py says.
    unknown = policy.unknown_weights(points)
    return f"names {' and '.join(unknown)}, which will not be measured" if unknown else ""


def _toolkit_path(values: Mapping[str, Any]) -> str:
    path, default = str(values["cuda_toolkit_path"]), f"/usr/local/cuda-{values['cuda_toolkit_version']}"
    if values["cuda_toolkit_source"] != "wheels" or path == default:
        return ""
    return f"is {path}, but cuda_toolkit_source is wheels, which compiles with what the release brings"


def _same_port(gateway: str) -> Callable[[Mapping[str, Any]], str]:
    """Of a host that is server and gateway in one."""

    def broken(values: Mapping[str, Any]) -> str:
        both = {"sglang_gateways", "sglang_servers"} <= set(values["group_names"])
        if not both or int(values[gateway]) != int(values["eagle3_server_port"]):
            return ""
        return f"{gateway} and eagle3_server_port are both {values[gateway]} on a host that is in both groups"

    return broken


def _shared_address(values: Mapping[str, Any]) -> str:
    address = str(values["gateway_virtual_address"] or "")
    if not address:
        return ""
    try:
        ipaddress.IPv4Address(address)
    except ValueError:
        return f"is {address!r}, which is no IPv4 address"
    gateways = values["groups"].get("sglang_gateways", [])
    return f"is {address}, but sglang_gateways has {len(gateways)} host" if len(gateways) < 2 else ""


def _own_address(values: Mapping[str, Any]) -> str:
    address = str(values["gateway_virtual_address"] or "")
    return f"is {address}, and so is ansible_host" if address and address == values["ansible_host"] else ""


def _shared_port(values: Mapping[str, Any]) -> str:
    port, address = values["gateway_virtual_port"], values["gateway_virtual_address"]
    return (
        f"is {port}, and so is gateway_port" if address and int(port) == int(values["gateway_port"]) else ""
    )


def _commit(model: str) -> Callable[[Mapping[str, Any]], str]:
    """A model is fetched at a commit, or is there already and has none."""

    def broken(values: Mapping[str, Any]) -> str:
        repository = str(values[f"model_weights_{model}_repository"] or "")
        revision = str(values[f"model_weights_{model}_revision"] or "")
        if repository and not re.fullmatch("[0-9a-f]{40}", revision):
            return (
                f"{repository} is to be fetched, and model_weights_{model}_revision is {revision!r}, which is no "
                f"commit (git ls-remote https://huggingface.co/{repository} HEAD prints today's)"
            )
        if revision and not repository:
            return f"model_weights_{model}_revision is {revision!r}, and model_weights_{model}_repository is empty"
        return ""

    return broken


# The pass over draft tokens, as the triton back end replays it: the patch, the releases without it, and what is wrong.
_DRAFT_EXTEND = (
    (
        "eagle3-draft-extend-v2",
        ">=0.5.8,<0.5.10rc0",
        "lets the drafter read the tokens of other requests, from two requests on",
    ),
    (
        "eagle3-draft-extend-prefix",
        ">=0.5.8,<0.5.13",
        "shows the drafter its draft tokens before their turn, and some of them twice",
    ),
)


def _draft_extend(patch: str, releases: str, fault: str) -> Callable[[Mapping[str, Any]], str]:
    def broken(values: Mapping[str, Any]) -> str:
        arguments = values["eagle3_server_extra_arguments"] or {}
        environment = values["eagle3_server_extra_environment"] or {}
        back_end = arguments.get(
            "speculative_draft_attention_backend", values["eagle3_server_draft_attention_backend"]
        )
        steps = arguments.get("speculative_num_steps", values["eagle3_server_speculative_num_steps"])
        version_2 = is_true(values["eagle3_server_enable_spec_v2"])
        if "SGLANG_ENABLE_SPEC_V2" in environment:
            version_2 = bool(parse_environment_boolean(environment["SGLANG_ENABLE_SPEC_V2"]))
        captured = (
            values["sglang_stack_engine"] == "cuda"
            and values["eagle3_server_profile"] != "baseline"
            and version_2
            and back_end == "triton"
            and int(steps) > 1
            and not is_true(arguments.get("disable_cuda_graph"))
        )
        version = str(values["sglang_stack_version"])
        enabled = values["sm120_guards_enabled"] or {}
        if not captured or is_true(enabled.get(patch, True)) or not in_range(version, releases):
            return ""
        settings = "eagle3_server_enable_spec_v2, triton and CUDA graphs"
        return f"turns {patch} off, and SGLang {version} with {settings} {fault}"

    return broken


RULES: tuple[Rule, ...] = (
    Rule(
        ("preflight_engine", "sglang_stack_engine"),
        _engines,
        "Set sglang_stack_engine alone; preflight_engine follows it",
    ),
    Rule(
        ("preflight_gpu_count", "eagle3_server_tensor_parallel_size"),
        _gpu_count,
        "Set eagle3_server_tensor_parallel_size alone; preflight_gpu_count follows it",
    ),
    Rule(
        (_CARDS, "eagle3_server_tensor_parallel_size"),
        _named_cards,
        "nvidia-smi -L shows the UUIDs (GPU- and 32 hex digits): name each card once, as many as "
        "eagle3_server_tensor_parallel_size, or none",
    ),
    Rule(
        ("preflight_gpus", _CARDS),
        _judged_cards,
        "Set eagle3_server_gpus alone; preflight_gpus follows it",
    ),
    *(
        Rule((name,), _cards_by_environment(name), _CHOOSE_CARDS)
        for name in ("eagle3_server_extra_environment", "eagle3_server_nccl_environment")
    ),
    Rule(("eagle3_server_extra_arguments",), _cards_by_argument, _CHOOSE_CARDS),
    Rule(
        ("preflight_python_version", "sglang_stack_python"),
        _python,
        "Set sglang_stack_python alone; preflight_python_version follows it",
    ),
    Rule(
        (_FUSION, "eagle3_server_tensor_parallel_size"),
        _fusion_size,
        "The fused allreduce exists for 2, 4 and 8 GPUs: turn it off, or use so many",
    ),
    Rule(
        (_FUSION, "sglang_stack_engine", "sm120_guards_enabled"),
        _fusion_guards,
        "Turn them on together, or turn the fusion off: alone it does nothing, or fails at the first forward",
    ),
    Rule(
        (_FUSION, "sm120_guards_enabled"),
        _fusion_aux_states,
        f"Leave {_AUX_STATES} on as long as the fusion is on",
    ),
    Rule(
        (_EXTRA, "sglang_stack_engine"),
        _extra_arguments,
        "Set the variable in its place: the role reads it for more than the flag",
    ),
    Rule(
        (_ADMIN_KEY, "eagle3_server_api_key"),
        _one_key,
        "Make another (openssl rand -hex 32 prints one): with this one every client could change the server",
    ),
    Rule(
        ("throughput_check_runs_min", "throughput_check_runs_max"),
        _runs,
        "Raise throughput_check_runs_max",
    ),
    Rule(
        ("throughput_check_weights", "throughput_check_concurrency", "throughput_check_long_concurrency"),
        _weights,
        "Weigh points of throughput_check_concurrency, or as 1/long those of throughput_check_long_concurrency",
    ),
    Rule(
        ("cuda_toolkit_path", "cuda_toolkit_source", "cuda_toolkit_version"),
        _toolkit_path,
        "Set cuda_toolkit_source to present to compile with it, or leave cuda_toolkit_path out",
    ),
    *(
        Rule(
            (gateway, "eagle3_server_port", "group_names"),
            _same_port(gateway),
            "Give the gateway and the server a port of its own each",
        )
        for gateway in ("gateway_port", "gateway_metrics_port", "gateway_virtual_port")
    ),
    Rule(
        ("gateway_virtual_address", "groups"),
        _shared_address,
        _SHARED_ADDRESS,
    ),
    Rule(
        ("gateway_virtual_address", "ansible_host"),
        _own_address,
        _SHARED_ADDRESS,
    ),
    Rule(
        ("gateway_virtual_port", "gateway_port", "gateway_virtual_address"),
        _shared_port,
        "HAProxy and smg run on the same host: give each a port of its own",
    ),
    *(
        Rule(
            (f"model_weights_{model}_revision", f"model_weights_{model}_repository"),
            _commit(model),
            "Set the repository and the 40 hex digits of a commit together, or neither where the model is there",
        )
        for model in ("target", "draft")
    ),
    *(
        Rule(
            (
                "sm120_guards_enabled",
                "eagle3_server_enable_spec_v2",
                "eagle3_server_draft_attention_backend",
                "eagle3_server_speculative_num_steps",
                "eagle3_server_profile",
                "eagle3_server_extra_arguments",
                "eagle3_server_extra_environment",
                "sglang_stack_engine",
                "sglang_stack_version",
            ),
            _draft_extend(patch, releases, fault),
            f"Leave {patch} on, or set eagle3_server_enable_spec_v2 to false",
        )
        for patch, releases, fault in _DRAFT_EXTEND
    ),
)
