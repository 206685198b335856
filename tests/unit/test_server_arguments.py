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
    - name: Hold the settings against what can work
      ansible.builtin.include_role:
        name: eagle3_server
        tasks_from: validate
        public: true
    - name: Write what other roles would read
      ansible.builtin.copy:
        content: "{{ {'profiles': eagle3_server_profiles, 'environment': __eagle3_server_release_environment,
                      'unit': lookup('template', 'sglang@.service.j2')} | to_json }}"
        dest: "{{ destination }}/{{ inventory_hostname }}.json"
        mode: "0600"
      vars:
        __eagle3_server_unit_profile: eagle3
"""


class Settings:
    """What an inventory renders to, and whether Ansible took it."""

    def __init__(self, repository: Path, folder: Path, inventory: str, **changes: Any) -> None:
        play = folder / "play.yml"
        template = repository / "roles" / "eagle3_server" / "templates" / "sglang@.service.j2"
        play.write_text(PLAY.replace("sglang@.service.j2", str(template)))
        given = {
            "sglang_stack_release": RELEASE,
            "destination": str(folder),
            "ansible_python_interpreter": sys.executable,
            "ansible_become": False,
            "vault_eagle3_server_api_key": "k" * 32,
            "vault_eagle3_server_admin_api_key": "a" * 32,
            **changes,
        }
        done = subprocess.run(
            [
                "ansible-playbook",
                "-i",
                f"{repository}/inventory/{inventory}",
                str(play),
                "-e",
                json.dumps(given),
            ],
            env={**os.environ, "ANSIBLE_CONFIG": f"{repository}/ansible.cfg"},
            capture_output=True,
            text=True,
            cwd=folder,
        )
        self.said = done.stdout + done.stderr
        self.accepted = done.returncode == 0
        results = sorted(folder.glob("*.json"))
        self.hosts = len(results)
        rendered = json.loads(results[0].read_text()) if results else {}
        self.profiles = rendered.get("profiles", {})
        self.environment = rendered.get("environment", {})
        self.unit = rendered.get("unit", "")


@pytest.fixture(scope="module")
def production(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return Settings(request.config.rootpath, tmp_path_factory.mktemp("production"), "blackwell")


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
                calls = next(f.body for f in node.body if getattr(f, "name", "") == "add_cli_args")
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


def test_the_production_inventory_is_taken_for_both_hosts(production: Settings) -> None:
    assert production.accepted, production.said
    assert production.hosts == 2


@pytest.mark.parametrize("profile", ["eagle3", "baseline"])
def test_sglang_knows_every_argument_of_production(
    sglang: Parser, production: Settings, tmp_path: Path, profile: str
) -> None:
    parsed = parse(sglang, tmp_path, production.profiles[profile]["arguments"], api_key="k" * 32)
    assert parsed.tensor_parallel_size == 8
    assert parsed.quantization == "modelopt_fp4"
    assert parsed.fp4_gemm_runner_backend == "flashinfer_cutlass"
    assert parsed.api_key == "k" * 32
    assert parsed.trust_remote_code is True


def test_eagle3_speculates_with_an_unquantized_drafter(
    sglang: Parser, production: Settings, tmp_path: Path
) -> None:
    parsed = parse(sglang, tmp_path, production.profiles["eagle3"]["arguments"])
    assert parsed.speculative_algorithm == "EAGLE3"
    assert parsed.speculative_draft_model_quantization == "unquant"
    assert parsed.speculative_draft_attention_backend == "triton"
    assert parsed.speculative_num_steps == 3
    assert parsed.speculative_eagle_topk == 1
    assert parsed.speculative_num_draft_tokens == 4


def test_baseline_is_the_same_without_speculation(production: Settings) -> None:
    eagle3, baseline = (production.profiles[name]["arguments"] for name in ("eagle3", "baseline"))
    assert {name: value for name, value in eagle3.items() if not name.startswith("speculative_")} == baseline


def test_an_argument_that_sglang_does_not_know_fails(
    sglang: Parser, production: Settings, tmp_path: Path
) -> None:
    arguments = {**production.profiles["eagle3"]["arguments"], "speculative_depth": 3}
    with pytest.raises(argparse.ArgumentError, match=r"unrecognized arguments: --speculative-depth 3"):
        parse(sglang, tmp_path, arguments)


def test_a_value_that_sglang_does_not_know_fails(
    sglang: Parser, production: Settings, tmp_path: Path
) -> None:
    arguments = {**production.profiles["eagle3"]["arguments"], "kv_cache_dtype": "fp3"}
    with pytest.raises(argparse.ArgumentError, match="invalid choice: 'fp3'"):
        parse(sglang, tmp_path, arguments)


def test_production_environment(production: Settings) -> None:
    environment = production.profiles["eagle3"]["environment"]
    assert environment["SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"] == "1"
    assert environment["SGLANG_ENABLE_SPEC_V2"] == "1"
    assert environment["NCCL_P2P_LEVEL"] == "SYS"
    assert "SGLANG_USE_CPU_ENGINE" not in environment
    paths = production.environment
    assert paths["CUDA_HOME"] == f"{RELEASE['site_packages']}/nvidia/cu13"
    assert paths["PATH"].startswith(f"{RELEASE['venv']}/bin:{paths['CUDA_HOME']}/bin:")
    assert paths["FLASHINFER_WORKSPACE_BASE"] == f"{RELEASE['path']}/cache"


@pytest.mark.parametrize(
    ("version", "wanted"), [("0.5.10.post1", "1"), ("0.5.13.post1", "1"), ("0.5.14", None)]
)
def test_spec_v2_is_set_only_where_the_release_has_it(
    repository: Path, tmp_path: Path, version: str, wanted: str | None
) -> None:
    release = {**RELEASE, "sglang_version": version}
    later = Settings(repository, tmp_path, "blackwell", sglang_stack_release=release)
    assert later.profiles["eagle3"]["environment"].get("SGLANG_ENABLE_SPEC_V2") == wanted


def test_the_cpu_engine_takes_away_what_needs_a_gpu(sglang: Parser, repository: Path, tmp_path: Path) -> None:
    sandbox = Settings(repository, tmp_path, "sandbox", sglang_stack_release={**RELEASE, "engine": "cpu"})
    assert sandbox.accepted, sandbox.said
    arguments = sandbox.profiles["eagle3"]["arguments"]
    for name in ("quantization", "moe_runner_backend", "fp4_gemm_backend", "cuda_graph_max_bs"):
        assert name not in arguments
    parsed = parse(sglang, tmp_path, arguments)
    assert parsed.device == "cpu"
    assert parsed.attention_backend == "torch_native"
    assert parsed.disable_cuda_graph is True
    assert sandbox.profiles["eagle3"]["environment"]["SGLANG_EXTERNAL_MODEL_PACKAGE"] == "sglang_cpu_engine"
    assert "CUDA_HOME" not in {name for name, value in sandbox.environment.items() if value}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"eagle3_server_attention_backend": "trtllm_mla"}, "eagle3_server_attention_backend"),
        ({"eagle3_server_profile": "eagle4"}, "eagle3_server_profile"),
        ({"eagle3_server_extra_arguments": {"decode_attention_backend": "fa3"}}, "SM120 does not have"),
        ({"eagle3_server_extra_arguments": {"mem_fraction_static": 0.95}}, "leaves room for the draft model"),
        ({"eagle3_server_api_key": "short"}, "openssl rand -hex 32"),
    ],
)
def test_settings_that_cannot_work_are_refused_before_a_host_is_asked(
    repository: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    refused = Settings(repository, tmp_path, "blackwell", **changes)
    assert not refused.accepted
    assert message in refused.said
    assert refused.hosts == 0
