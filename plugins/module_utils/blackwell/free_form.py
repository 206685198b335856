"""SGLang's arguments and environment in free form, held against what the role sets and what breaks these cards.

``eagle3_server_extra_arguments`` takes any flag under any name that SGLang's parser knows, so every name is first
brought to one spelling. The reasons are those of docs/server.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from .booleans import is_true, parse_environment_boolean

# The variable that sets an argument. The arguments' names are those of SGLang 0.5.9 to 0.5.14.
VARIABLE_OF: Mapping[str, str] = {
    "model_path": "eagle3_server_model_path",
    "served_model_name": "eagle3_server_served_model_name",
    "host": "eagle3_server_host",
    "port": "eagle3_server_port",
    "tp_size": "eagle3_server_tensor_parallel_size",
    "quantization": "eagle3_server_quantization",
    "trust_remote_code": "eagle3_server_trust_remote_code",
    "context_length": "eagle3_server_context_length",
    "tool_call_parser": "eagle3_server_tool_call_parser",
    "reasoning_parser": "eagle3_server_reasoning_parser",
    "attention_backend": "eagle3_server_attention_backend",
    "moe_runner_backend": "eagle3_server_moe_runner_backend",
    "fp4_gemm_backend": "eagle3_server_fp4_gemm_backend",
    "enable_flashinfer_allreduce_fusion": "eagle3_server_enable_flashinfer_allreduce_fusion",
    "mem_fraction_static": "eagle3_server_mem_fraction_static",
    "max_running_requests": "eagle3_server_max_running_requests",
    "cuda_graph_max_bs": "eagle3_server_cuda_graph_max_bs",
    "triton_attention_num_kv_splits": "eagle3_server_triton_attention_num_kv_splits",
    "speculative_algorithm": "eagle3_server_profile",
    "speculative_draft_model_path": "eagle3_server_draft_model_path",
    "speculative_draft_model_quantization": "eagle3_server_draft_quantization",
    "speculative_draft_attention_backend": "eagle3_server_draft_attention_backend",
    "speculative_num_steps": "eagle3_server_speculative_num_steps",
    "speculative_eagle_topk": "eagle3_server_speculative_eagle_topk",
    "speculative_num_draft_tokens": "eagle3_server_speculative_num_draft_tokens",
    "api_key": "eagle3_server_api_key",
    "admin_api_key": "eagle3_server_admin_api_key",
}

# Other names of the same flag (``add_argument`` of ServerArgs in 0.5.9, and the names of its attributes).
_ALIASES: Mapping[str, str] = {
    "model": "model_path",
    "tensor_parallel_size": "tp_size",
    "expert_parallel_size": "ep_size",
    "ep": "ep_size",
    "pipeline_parallel_size": "pp_size",
    "data_parallel_size": "dp_size",
    "speculative_draft_model": "speculative_draft_model_path",
    "fp4_gemm_runner_backend": "fp4_gemm_backend",
    "fp8_gemm_runner_backend": "fp8_gemm_backend",
}

# Back ends that run on compute capability 12.0. The others are refused although SGLang's own parser takes them (it
# lets trtllm_mla through as "Blackwell"): their kernels exist for SM90 or SM100 only, so the server would fail after
# minutes of loading, or answer wrongly.
SM120_BACKENDS: Mapping[str, tuple[str, ...]] = {
    "attention_backend": ("triton", "flashinfer"),
    "prefill_attention_backend": ("triton", "flashinfer"),
    "decode_attention_backend": ("triton", "flashinfer"),
    "speculative_draft_attention_backend": ("triton", "flashinfer"),
    "mm_attention_backend": ("triton_attn", "sdpa"),
    "nsa_prefill_backend": ("tilelang",),
    "nsa_decode_backend": ("tilelang",),
    "moe_runner_backend": ("auto", "triton", "cutlass", "flashinfer_cutlass"),
    "speculative_moe_runner_backend": ("auto", "triton", "cutlass", "flashinfer_cutlass"),
    "moe_a2a_backend": ("none",),
    "speculative_moe_a2a_backend": ("none",),
    "fp4_gemm_backend": ("auto", "flashinfer_cutlass", "flashinfer_cudnn"),
    "fp8_gemm_backend": ("auto", "cutlass", "triton"),
}

_NO_SWITCH = "it needs multicast between cards, which only NVSwitch has, and these cards have PCIe alone"
# Switches that break a server on these cards.
_SM120_SWITCHES: Mapping[str, str] = {
    "enable_torch_symm_mem": (
        "SGLang has no sizes for compute capability 12 (KeyError: 12 at the start, or a warning and no effect once "
        "patched), and " + _NO_SWITCH
    ),
    "enable_nccl_nvls": _NO_SWITCH,
    "enable_symm_mem": "it turns NCCL_NVLS_ENABLE on, and " + _NO_SWITCH,
    "enable_mscclpp": (
        "it takes small allreduces away from NCCL, opens the memory of every card by CUDA IPC without a test, and was "
        "made and measured on NVSwitch"
    ),
}
# Switches that make something else of the server than the role starts, waits for and proves.
_OTHER_SERVERS: Mapping[str, str] = {
    "is_embedding": "such a server generates nothing",
    "skip_tokenizer_init": "such a server takes no text",
    "grpc_mode": "such a server does not speak HTTP",
    "encoder_only": "such a server generates nothing",
    "enable_multi_layer_eagle": "its drafters are not those of EAGLE-3",
}
# Arguments of which one value alone goes with a server of one host whose cards the role chooses and counts.
_ONE_VALUE: Mapping[str, tuple[str, str]] = {
    "pp_size": ("1", "SGLang has no EAGLE-3 over pipeline stages, and the role counts the cards of one"),
    "dp_size": ("1", "the role counts, waits for and measures one replica"),
    "nnodes": ("1", "a server of this project is one host"),
    "node_rank": ("0", "a server of this project is one host"),
    "base_gpu_id": ("0", "the role chooses the cards and waits for those"),
    "gpu_id_step": ("1", "the role chooses the cards and waits for those"),
    "disaggregation_mode": ("null", "half of a server answers no request alone"),
}
_THRESHOLDS = ("speculative_accept_threshold_single", "speculative_accept_threshold_acc")

_FLAGS = frozenset(
    {
        *VARIABLE_OF,
        *_ALIASES,
        *_ALIASES.values(),
        *SM120_BACKENDS,
        *_SM120_SWITCHES,
        *_OTHER_SERVERS,
        *_ONE_VALUE,
        *_THRESHOLDS,
        "config",
        "device",
        "load_format",
        "disable_cuda_graph",
        # Whole names that begin one of the above, or are begun by one.
        "speculative_draft_model_revision",
        "disable_cuda_graph_padding",
        "enable_metrics",
        "kv_cache_dtype",
    }
)

# Booleans by the reader of SGLang 0.5.9 that takes them: EnvBool takes yes and y, get_bool_env_var takes them for off.
_ENV_BOOL = ("SGLANG_ENABLE_SPEC_V2", "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN")
_BOOLEAN_NAME = re.compile(
    r"(SGLANG|SGL)_(ENABLE|DISABLE|USE|IS|SKIP|FORCE|LOG|SET|DEBUG|RETURN|RECORD|TEST|MEMORY_SAVER)_\w+"
    r"|SGLANG_(NUMA_BIND_V2|CUTLASS_MOE|MOE_PADDING|INT4_WEIGHT|CUDA_COREDUMP)"
)
_WORD = re.compile(r"[A-Za-z]+")
# Programs that read these know them in capitals alone. Proxies are known in small letters, too.
_CAPITALS = re.compile(r"(SGLANG|SGL|NCCL|CUDA|FLASHINFER|TORCH|TORCHINDUCTOR|TRITON|PYTORCH|HF|OMP)_\w+")
# NCCL counts with these: a word is 0 to it.
_NCCL_SWITCH = re.compile(r"NCCL_\w+_(DISABLE|ENABLE)")
_FLAG_FORM = re.compile(r" *[A-Za-z0-9_-]+ *")


def canonical(name: str) -> str:
    """The one name of a flag: with underscores, aliases and unique beginnings (argparse takes both) resolved."""
    plain = name.strip().lstrip("-").replace("-", "_").lower()
    if plain not in _FLAGS:
        begun = {_ALIASES.get(flag, flag) for flag in _FLAGS if plain and flag.startswith(plain)}
        plain = begun.pop() if len(begun) == 1 else plain
    return _ALIASES.get(plain, plain)


def name_problems(arguments: Mapping[str, Any]) -> list[str]:
    """Names that hide an argument from the role: other spellings of what a variable sets, and two of one flag."""
    found = []
    for name in arguments:
        flag = canonical(name)
        if not _FLAG_FORM.fullmatch(name):
            found.append(
                f"The argument {name!r} is not a name of SGLang's; write the name alone, and its value after the colon"
            )
            continue
        if name == flag:
            continue
        if name.replace("-", "_") != name.replace("-", "_").lstrip("_ ").lower().strip():
            found.append(f"The argument {name!r} is not a name of SGLang's; write it as {flag}")
        elif flag in VARIABLE_OF:
            found.append(
                f"The argument {name} is another spelling of {flag}; set {VARIABLE_OF[flag]} in its place"
            )
        elif sum(canonical(other) == flag for other in arguments) > 1:
            found.append(
                f"The argument {name} is another spelling of {flag}, which is given as well; remove one"
            )
    return found


def argument_problems(arguments: Mapping[str, Any], profile: str, engine: str) -> list[str]:
    """What the arguments contradict, or break on these cards, each as one sentence.

    Args:
        arguments: by canonical name, without those that are None.
        profile: ``eagle3`` or ``baseline``.
        engine: ``cuda`` or ``cpu``.
    """
    found = [*_profile_problems(arguments, profile), *_other_server_problems(arguments)]
    if engine != "cuda":
        return found
    for name, known in SM120_BACKENDS.items():
        if name in arguments and str(arguments[name]) not in known:
            found.append(
                f"{name} is {arguments[name]}, which SM120 does not have; set {setting(name)} to one of "
                f"{', '.join(known)}"
            )
    for name, reason in _SM120_SWITCHES.items():
        if _is_on(arguments.get(name)):
            found.append(f"{name} is on, which breaks SM120: {reason}; {_take_out(name)}")
    if str(arguments.get("device", "cuda")) != "cuda":
        found.append(f"device is {arguments['device']}, but the release is for cuda; {_take_out('device')}")
    if _is_on(arguments.get("disable_cuda_graph")) and arguments.get("cuda_graph_max_bs") is not None:
        found.append(
            f"disable_cuda_graph is on, but cuda_graph_max_bs is {arguments['cuda_graph_max_bs']}, which asks for "
            f"graphs (decoding without them takes a multiple of the time); {_take_out('disable_cuda_graph')}, or set "
            "eagle3_server_cuda_graph_max_bs to null"
        )
    return found


def _profile_problems(arguments: Mapping[str, Any], profile: str) -> list[str]:
    given = sorted(name for name in arguments if name.startswith("speculative_"))
    if profile == "baseline":
        return [
            f"{name} is set under the profile baseline, which decodes without speculation; set "
            f"eagle3_server_profile to eagle3, or {_take_out(name)}"
            for name in given
        ]
    found = []
    algorithm = arguments.get("speculative_algorithm")
    if algorithm != "EAGLE3":
        found.append(
            f"speculative_algorithm is {'not set' if algorithm is None else algorithm}, but the profile eagle3 is "
            f"EAGLE3 alone: an EAGLE-3 drafter under another algorithm starts and has no token accepted; "
            f"{_take_out('speculative_algorithm')}, or set eagle3_server_profile to baseline for none"
        )
    for name in _THRESHOLDS:
        if name in arguments and number(arguments[name]) != 1:
            found.append(
                f"{name} is {arguments[name]}, expected 1: anything else accepts tokens that the target would not "
                f"have said; {_take_out(name)}"
            )
    return found


def _other_server_problems(arguments: Mapping[str, Any]) -> list[str]:
    found = [
        f"{name} is on, but {reason}; {_take_out(name)}"
        for name, reason in _OTHER_SERVERS.items()
        if _is_on(arguments.get(name))
    ]
    found += [
        f"{name} is {arguments[name]}, expected {value}: {reason}; {_take_out(name)}"
        for name, (value, reason) in _ONE_VALUE.items()
        if name in arguments and str(arguments[name]) != value
    ]
    if "dummy" in str(arguments.get("load_format")).lower():
        found.append(
            f"load_format is {arguments['load_format']}, which fills the model with random numbers; "
            f"{_take_out('load_format')}"
        )
    if "config" in arguments:
        found.append(f"config names a second file of arguments, which nothing checks; {_take_out('config')}")
    if "enable_metrics" in arguments and not _is_on(arguments["enable_metrics"]):
        found.append(
            f"enable_metrics is off, but the rollout measures the server by them; {_take_out('enable_metrics')}"
        )
    return found


def environment_problems(environment: Mapping[str, Any], engine: str) -> list[str]:
    """What environment variables break, each as one sentence; variables that are None are not set."""
    found = [
        f"{name} makes SGLang accept wrong tokens, so it is never for a server; remove it"
        for name in ("SGLANG_SIMULATE_ACC_LEN", "SGLANG_SIMULATE_ACC_METHOD")
        if environment.get(name) is not None
    ]
    found += [
        sentence
        for name, value in environment.items()
        if value is not None and (sentence := _spelling_problem(name) or _boolean_problem(name, str(value)))
    ]
    if engine == "cuda" and str(environment.get("NCCL_NVLS_ENABLE")) == "1":
        found.append(f"NCCL_NVLS_ENABLE is 1, which breaks SM120: {_NO_SWITCH}; set it to 0, or remove it")
    return found


def _spelling_problem(name: str) -> str:
    """What is wrong with a name that nobody reads."""
    if name == name.upper() or not _CAPITALS.fullmatch(name.upper()):
        return ""
    return (
        f"The environment variable {name} is read by nobody, as its name is in capitals; write {name.upper()}"
    )


def _boolean_problem(name: str, value: str) -> str:
    """What is wrong with the text of a variable that is on or off."""
    if name in _ENV_BOOL:
        if value and parse_environment_boolean(value) is None:
            return (
                f"{name} is {value!r}, which SGLang does not take for a boolean: it warns and goes on with off; "
                'write "true" or "false"'
            )
    elif _NCCL_SWITCH.fullmatch(name) and _WORD.fullmatch(value):
        return f'{name} is {value!r}, which NCCL takes for 0, as it reads numbers; write "0" or "1"'
    # Which reader a release has for it is not known here, and they disagree on all but these four.
    elif (
        _BOOLEAN_NAME.fullmatch(name)
        and _WORD.fullmatch(value)
        and value.lower() not in ("true", "false")
        and _looks_boolean(value)
    ):
        return (
            f"{name} is {value!r}, which one reader of SGLang's takes for on and another for off; "
            'write "true" or "false"'
        )
    return ""


def _looks_boolean(value: str) -> bool:
    if value.lower() in ("enable", "enabled", "disable", "disabled"):
        return True
    try:
        is_true(value)
    except ValueError:
        return False
    return True


def argument_doubts(arguments: Mapping[str, Any], environment: Mapping[str, Any]) -> list[str]:
    """What is legal on these cards and known to go wrong on some hosts, each as one sentence."""
    found = []
    if (number(arguments.get("ep_size")) or 1) > 1:
        found.append(
            f"ep_size is {arguments['ep_size']}: garbage output was reported for SGLang 0.5.9 on SM120"
        )
    if str(arguments.get("kv_cache_dtype", "")).startswith("fp8"):
        found.append(
            f"kv_cache_dtype is {arguments['kv_cache_dtype']}: SGLang 0.5.9 was reported to decode with a fraction of "
            "the speed on SM120, and it changes answers"
        )
    if _is_on(arguments.get("disable_cuda_graph")):
        found.append("disable_cuda_graph is on: decoding was reported to take four times as long without")
    if _forces_ll128(str(environment.get("NCCL_PROTO") or "")):
        found.append(
            f"NCCL_PROTO is {environment['NCCL_PROTO']}, which forces LL128: across two sockets its stores may be "
            "split, which is wrong text without an error; Simple alone is safe"
        )
    if all(str(environment.get(name)) == "1" for name in ("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE")):
        found.append("NCCL_P2P_DISABLE and NCCL_SHM_DISABLE are both 1, which leaves NCCL only sockets")
    architecture = environment.get("FLASHINFER_CUDA_ARCH_LIST")
    if architecture is not None and str(architecture) != "12.0a":
        found.append(
            f"FLASHINFER_CUDA_ARCH_LIST is {architecture}: these cards are 12.0a, and kernels for another one are "
            "compiled anew or fail at the first forward"
        )
    return found


def _forces_ll128(protocols: str) -> bool:
    """Whether NCCL skips its own test of the hardware for LL128: by naming it, and by excluding only others."""
    names = protocols.lstrip("^").upper().split(",")
    return bool(protocols) and (protocols.startswith("^") != ("LL128" in names))


def already_set(extra: Iterable[str]) -> dict[str, str]:
    """Arguments in free form that a variable sets, with that variable."""
    return {name: VARIABLE_OF[canonical(name)] for name in extra if canonical(name) in VARIABLE_OF}


def setting(argument: str) -> str:
    """The variable that an argument of SGLang comes from."""
    return VARIABLE_OF.get(argument, f"{argument} in eagle3_server_extra_arguments")


def number(value: Any) -> float | None:
    """A number, also one in quotes; None for anything else."""
    try:
        return None if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        return None


def _is_on(value: Any) -> bool:
    """Whether a switch is not certainly off."""
    try:
        return is_true(value)
    except ValueError:
        return True


def _take_out(name: str) -> str:
    return f"take {name} out of eagle3_server_extra_arguments"
