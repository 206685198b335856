"""The command line that the production inventory leads to, held against the parser of the real SGLang 0.5.9.

SGLang's parser cannot be imported without torch and some thirty other packages. Its `add_argument` calls can
be run without them: they are taken from the published wheel's source and executed on a real ArgumentParser,
and the merger of configuration files is imported from the wheel as it is.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from blackwell.server import render_config

from tests.wheels import unpacked

RELEASE = {
    "id": "0.5.9-0123456789ab",
    "path": "/opt/sglang/releases/0.5.9-0123456789ab",
    "venv": "/opt/sglang/releases/0.5.9-0123456789ab/venv",
    "python": "/opt/sglang/releases/0.5.9-0123456789ab/venv/bin/python",
    "site_packages": "/opt/sglang/releases/0.5.9-0123456789ab/venv/lib/python3.12/site-packages",
    "sglang_version": "0.5.9",
    "engine": "cuda",
}

PLAY = """
- hosts: sglang_servers
  gather_facts: false
  connection: local
  tasks:
    - block:
        - ansible.builtin.include_role:
            name: eagle3_server
            tasks_from: validate
            public: true
        - ansible.builtin.copy:
            content: "{{ {'profiles': eagle3_server_profiles, 'environment': __eagle3_server_release_environment,
                          'unit': lookup('template', unit_template)} | to_json }}"
            dest: "{{ destination }}/{{ inventory_hostname }}.json"
            mode: "0600"
          vars:
            __eagle3_server_unit_profile: eagle3
      rescue:
        - ansible.builtin.copy:
            content: "{{ {'refused': ansible_failed_result} | to_json }}"
            dest: "{{ destination }}/{{ inventory_hostname }}.json"
            mode: "0600"
"""

# Hosts of the test beside those of the inventory, and what each sets differently.
TRIED: dict[str, dict[str, Any]] = {
    "spec-v2-0.5.10": {"sglang_stack_release": {**RELEASE, "sglang_version": "0.5.10.post1"}},
    "spec-v2-0.5.13": {"sglang_stack_release": {**RELEASE, "sglang_version": "0.5.13.post1"}},
    "spec-v2-0.5.14": {"sglang_stack_release": {**RELEASE, "sglang_version": "0.5.14"}},
    "cpu": {"sglang_stack_release": {**RELEASE, "engine": "cpu"}},
    "cpu-few": {
        "sglang_stack_release": {**RELEASE, "engine": "cpu"},
        "eagle3_server_max_running_requests": 5,
        "eagle3_server_mem_fraction_static": 0.5,
        "eagle3_server_extra_arguments": {"max_total_tokens": 4096},
    },
    "unknown-profile": {"eagle3_server_profile": "eagle4"},
    "sm100-attention": {"eagle3_server_attention_backend": "trtllm_mla"},
    "sm90-decode": {"eagle3_server_extra_arguments": {"decode_attention_backend": "fa3"}},
    "no-room-for-the-draft": {"eagle3_server_mem_fraction_static": 0.95},
    "short-key": {"eagle3_server_api_key": "s3cr3t-key"},
}


def render(
    repository: Path, folder: Path, inventory: str, tried: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    """What an inventory comes to on each of its hosts and of the tried ones, as Ansible renders it."""
    (folder / "play.yml").write_text(PLAY)
    given = {
        "ansible_become": False,
        "ansible_python_interpreter": sys.executable,
        "destination": str(folder),
        "sglang_stack_release": RELEASE,
        "unit_template": str(repository / "roles/eagle3_server/templates/sglang@.service.j2"),
        "vault_eagle3_server_api_key": "k" * 32,
        "vault_eagle3_server_admin_api_key": "a" * 32,
    }
    more = {"all": {"vars": given, "children": {"sglang_servers": {"hosts": tried}}}}
    (folder / "tried.yml").write_text(json.dumps(more))
    done = subprocess.run(
        ["ansible-playbook", "-i", f"{repository}/inventory/{inventory}", "-i", "tried.yml", "play.yml"],
        env={**os.environ, "ANSIBLE_CONFIG": f"{repository}/ansible.cfg"},
        capture_output=True,
        text=True,
        cwd=folder,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return {file.stem: json.loads(file.read_text()) for file in folder.glob("*.json")}


@pytest.fixture(scope="module")
def rendered(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return render(request.config.rootpath, tmp_path_factory.mktemp("production"), "blackwell", TRIED)


@pytest.fixture(scope="module")
def production(rendered: dict[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = rendered["gpu-1"]
    return result


def keys_of(file: Path, name: str) -> dict[str, None]:
    """The keys of a dictionary that a class body assigns, without importing its module."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.AnnAssign) and getattr(node.target, "id", "") == name:
            assert isinstance(node.value, ast.Dict)
            return {ast.literal_eval(key): None for key in node.value.keys if key}
    raise AssertionError(f"no {name} in {file}")


class Parser:
    """SGLang 0.5.9's own arguments on a real ArgumentParser that raises instead of exiting."""

    def __init__(self) -> None:
        srt = unpacked("sglang", "0.5.9") / "sglang" / "srt"
        tree = ast.parse((srt / "server_args.py").read_text(encoding="utf-8"))
        names: dict[str, Any] = {
            "argparse": argparse,
            "json": json,
            # Every default is None here: which flags exist, their types and choices are what counts.
            "ServerArgs": type("Defaults", (type,), {"__getattr__": lambda cls, name: None})(
                "ServerArgs", (), {}
            ),
            "FunctionCallParser": SimpleNamespace(
                ToolCallParserEnum=keys_of(
                    srt / "function_call" / "function_call_parser.py", "ToolCallParserEnum"
                )
            ),
            "ReasoningParser": SimpleNamespace(
                DetectorMap=keys_of(srt / "parser" / "reasoning_parser.py", "DetectorMap")
            ),
            "SUPPORTED_LORA_TARGET_MODULES": [],
            "LORA_TARGET_ALL_MODULES": "all",
        }
        for name in ("json_list_type", "nullable_str", "LoRAPathAction", "DeprecatedAction"):
            names[name] = str if name[0].islower() else argparse.Action
        calls: list[ast.stmt] = []
        for node in tree.body:
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "").isupper():
                self._run([node], names)
            if isinstance(node, ast.ClassDef) and node.name == "ServerArgs":
                calls = next(
                    method.body
                    for method in node.body
                    if isinstance(method, ast.FunctionDef) and method.name == "add_cli_args"
                )
        self.parser = argparse.ArgumentParser(exit_on_error=False)
        names["parser"] = self.parser
        names.setdefault("FLA_CHUNK_SIZE", 64)
        self._run(calls, names)
        spec = importlib.util.spec_from_file_location("merger", srt / "server_args_config_parser.py")
        assert spec and spec.loader
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        self.merger = module.ConfigArgumentMerger(self.parser)

    @staticmethod
    def _run(statements: list[ast.stmt], names: dict[str, Any]) -> None:
        exec(compile(ast.Module(statements, []), "server_args.py", "exec"), names)

    def parse(self, config: Path) -> argparse.Namespace:
        parsed, unknown = self.parser.parse_known_args(
            self.merger.merge_config_with_args(["--config", str(config)])
        )
        if unknown:
            raise argparse.ArgumentError(None, f"unrecognized arguments: {' '.join(unknown)}")
        return parsed


@pytest.fixture(scope="module")
def sglang() -> Parser:
    return Parser()


def parse(sglang: Parser, folder: Path, arguments: dict[str, Any], **keys: str) -> argparse.Namespace:
    file = folder / "server.yaml"
    file.write_text(render_config(arguments, keys), encoding="utf-8")
    return sglang.parse(file)


def test_the_production_inventory_is_taken_for_both_hosts(rendered: dict[str, Any]) -> None:
    assert "refused" not in rendered["gpu-1"]
    assert "refused" not in rendered["gpu-2"]


@pytest.mark.parametrize("profile", ["eagle3", "baseline"])
def test_sglang_knows_every_argument_of_production(
    sglang: Parser, production: dict[str, Any], tmp_path: Path, profile: str
) -> None:
    parsed = parse(sglang, tmp_path, production["profiles"][profile]["arguments"], api_key="k" * 32)
    assert parsed.tensor_parallel_size == 8
    assert parsed.quantization == "modelopt_fp4"
    assert parsed.fp4_gemm_runner_backend == "flashinfer_cutlass"
    assert parsed.api_key == "k" * 32
    assert parsed.trust_remote_code is True


def test_eagle3_speculates_with_an_unquantized_drafter(
    sglang: Parser, production: dict[str, Any], tmp_path: Path
) -> None:
    parsed = parse(sglang, tmp_path, production["profiles"]["eagle3"]["arguments"])
    assert parsed.speculative_algorithm == "EAGLE3"
    assert parsed.speculative_draft_model_quantization == "unquant"
    assert parsed.speculative_draft_attention_backend == "triton"
    assert parsed.speculative_num_steps == 3
    assert parsed.speculative_eagle_topk == 1
    assert parsed.speculative_num_draft_tokens == 4


def test_baseline_is_the_same_without_speculation(production: dict[str, Any]) -> None:
    eagle3, baseline = (production["profiles"][name]["arguments"] for name in ("eagle3", "baseline"))
    assert {name: value for name, value in eagle3.items() if not name.startswith("speculative_")} == baseline


def test_an_argument_that_sglang_does_not_know_fails(
    sglang: Parser, production: dict[str, Any], tmp_path: Path
) -> None:
    arguments = {**production["profiles"]["eagle3"]["arguments"], "speculative_depth": 3}
    with pytest.raises(argparse.ArgumentError, match="unrecognized arguments: --speculative-depth 3"):
        parse(sglang, tmp_path, arguments)


def test_a_value_that_sglang_does_not_know_fails(
    sglang: Parser, production: dict[str, Any], tmp_path: Path
) -> None:
    arguments = {**production["profiles"]["eagle3"]["arguments"], "kv_cache_dtype": "fp3"}
    with pytest.raises(argparse.ArgumentError, match="invalid choice: 'fp3'"):
        parse(sglang, tmp_path, arguments)


def test_production_environment(production: dict[str, Any]) -> None:
    environment = production["profiles"]["eagle3"]["environment"]
    assert environment["SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"] == "1"
    assert environment["SGLANG_ENABLE_SPEC_V2"] == "1"
    assert environment["NCCL_P2P_LEVEL"] == "SYS"
    assert "SGLANG_USE_CPU_ENGINE" not in environment
    paths = production["environment"]
    assert paths["CUDA_HOME"] == f"{RELEASE['site_packages']}/nvidia/cu13"
    assert paths["PATH"].startswith(f"{RELEASE['venv']}/bin:{paths['CUDA_HOME']}/bin:")
    assert paths["FLASHINFER_WORKSPACE_BASE"] == f"{RELEASE['path']}/cache"


@pytest.mark.parametrize(
    ("host", "wanted"), [("spec-v2-0.5.10", "1"), ("spec-v2-0.5.13", "1"), ("spec-v2-0.5.14", None)]
)
def test_spec_v2_is_set_only_where_the_release_has_it(
    rendered: dict[str, Any], host: str, wanted: str | None
) -> None:
    environment = rendered[host]["profiles"]["eagle3"]["environment"]
    assert environment.get("SGLANG_ENABLE_SPEC_V2") == wanted


def test_the_cpu_engine_takes_away_what_needs_a_gpu(
    sglang: Parser, rendered: dict[str, Any], tmp_path: Path
) -> None:
    profile = rendered["cpu"]["profiles"]["eagle3"]
    for name in ("quantization", "moe_runner_backend", "fp4_gemm_backend", "cuda_graph_max_bs"):
        assert name not in profile["arguments"]
    parsed = parse(sglang, tmp_path, profile["arguments"])
    assert parsed.device == "cpu"
    assert parsed.attention_backend == "torch_native"
    assert parsed.disable_cuda_graph is True
    assert profile["environment"]["SGLANG_EXTERNAL_MODEL_PACKAGE"] == "sglang_cpu_engine"
    assert not rendered["cpu"]["environment"]["CUDA_HOME"]


def test_the_cpu_engine_leaves_what_needs_no_gpu_to_the_inventory(rendered: dict[str, Any]) -> None:
    arguments = rendered["cpu-few"]["profiles"]["eagle3"]["arguments"]
    assert arguments["max_running_requests"] == 5
    # Its memory is its own, unless SGLang's own name for it is given.
    assert (arguments["mem_fraction_static"], arguments["max_total_tokens"]) == (0.1, 4096)


def test_the_sandbox_inventory_is_taken(sglang: Parser, repository: Path, tmp_path: Path) -> None:
    hosts = {"sandbox-1": {"sglang_stack_release": {**RELEASE, "engine": "cpu"}}}
    arguments = render(repository, tmp_path, "sandbox", hosts)["sandbox-1"]["profiles"]["eagle3"]["arguments"]
    parsed = parse(sglang, tmp_path, arguments)
    assert (parsed.model_path, parsed.max_running_requests) == ("/srv/models/target", 8)


@pytest.mark.parametrize(
    ("host", "message"),
    [
        ("unknown-profile", "value of eagle3_server_profile must be one of"),
        ("sm100-attention", "value of eagle3_server_attention_backend must be one of"),
        ("sm90-decode", "decode_attention_backend is fa3, which SM120 does not have"),
        ("no-room-for-the-draft", "leaves room for the draft model"),
        ("short-key", "openssl rand -hex 32"),
    ],
)
def test_settings_that_cannot_work_are_refused_before_a_host_is_asked(
    rendered: dict[str, Any], host: str, message: str
) -> None:
    said = json.dumps(rendered[host]["refused"])
    assert message in said
    assert "s3cr3t" not in said


def test_the_unit_is_one_that_systemd_takes(production: dict[str, Any], tmp_path: Path) -> None:
    systemd_analyze = shutil.which("systemd-analyze")
    if not systemd_analyze:
        pytest.skip("systemd-analyze is not installed; the Molecule scenario verifies the unit as well")
    # A deployment's programs are not on this machine: others stand for them, so that the rest is checked.
    unit = re.sub(
        r"(?m)^(Exec\w+=\+?)\S+", r"\1/bin/true", production["unit"].replace("@deployment@", "/tmp")
    )
    file = tmp_path / "sglang@eagle3.service"
    file.write_text(unit)
    done = subprocess.run([systemd_analyze, "verify", str(file)], capture_output=True, text=True)
    assert [line for line in done.stderr.splitlines() if file.name in line] == []
