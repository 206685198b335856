"""The folders of patches and their switches: one set for the id of a release, the roles and the check."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from blackwell.patching import choice
from blackwell.variables import Problem

ROOT = Path(__file__).resolve().parents[2]
PROJECT = ROOT / "files" / "patches"
EXAMPLES = ROOT / "docs" / "examples" / "patches"
MODEL, GUARD, EXAMPLE = "kimi-k25-eagle3-delegation", "torch-symm-mem-sm120", "kimi-vl-eagle3-delegation"
ENVIRONMENT = {
    **os.environ,
    "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
    "ANSIBLE_NOCOLOR": "1",
    "ANSIBLE_ROLES_PATH": str(ROOT / "roles"),
}


def judged(**values: Any) -> list[Problem]:
    return choice.judge({"one": values}, {}, PROJECT)


@pytest.mark.parametrize(
    ("wrong", "right", "name"),
    [
        ("model_patches_enabled", "sm120_guards_enabled", GUARD),
        # It changes the file of a model, and is a guard.
        ("model_patches_enabled", "sm120_guards_enabled", "eagle3-aux-after-allreduce"),
        ("sm120_guards_enabled", "model_patches_enabled", MODEL),
    ],
)
@pytest.mark.parametrize("value", [True, False, "no"])
def test_a_switch_of_the_other_kind_is_refused_with_the_right_variable(
    wrong: str, right: str, name: str, value: Any
) -> None:
    (problem,) = judged(**{wrong: {name: value}})
    assert problem.name == wrong
    assert problem.remedy == f"Move {name} to {right}"
    # What the remedy says.
    assert judged(**{right: {name: value}}) == []


@pytest.mark.parametrize(
    "variable", ["sglang_stack_patches", "model_patches_directory", "sm120_guards_directory"]
)
def test_a_folder_without_patches_is_refused_by_name(tmp_path: Path, variable: str) -> None:
    (problem,) = judged(**{variable: str(tmp_path)})
    assert str(tmp_path) in problem.text


def test_a_switch_for_a_patch_that_no_folder_has_is_refused() -> None:
    (problem,) = judged(sglang_stack_patches=str(EXAMPLES), sm120_guards_enabled={GUARD: False})
    assert problem.name == "sm120_guards_enabled"
    assert judged(sglang_stack_patches=str(EXAMPLES), model_patches_enabled={EXAMPLE: True}) == []


def test_a_summary_that_no_role_reads_is_refused() -> None:
    (problem,) = judged(sglang_stack_patches_enabled={GUARD: False})
    assert problem.name == "sglang_stack_patches_enabled"
    assert "sm120_guards_enabled" in problem.remedy
    assert judged(sglang_stack_patches_enabled={GUARD: False}, sm120_guards_enabled={GUARD: False}) == []


@pytest.mark.parametrize("value", [None, "text", ["a"], 3])
def test_a_value_of_another_type_is_left_to_the_check_of_types(value: Any) -> None:
    assert judged(model_patches_enabled=value) == []


def test_a_host_with_what_is_only_known_later_is_passed_over() -> None:
    values = {"one": {"model_patches_enabled": {GUARD: True}}}
    assert choice.judge(values, {"one": {"sglang_stack_patches": "undefined"}}, PROJECT) == []


def ask(folder: Path, role: str, names: dict[str, str], variables: dict[str, Any]) -> dict[str, Any]:
    """Values that expressions have in a role, with its own defaults and vars."""
    own: dict[str, Any] = {}
    for file in ("defaults", "vars"):
        path = ROOT / "roles" / role / file / "main.yml"
        if path.exists():
            own |= yaml.safe_load(
                path.read_text(encoding="utf-8").replace("role_path", f"'{ROOT}/roles/{role}'")
            )
    content = "{{ {" + ", ".join(f"'{name}': {value}" for name, value in names.items()) + "} | to_json }}"
    task = {"ansible.builtin.copy": {"content": content, "dest": str(folder / "said.json"), "mode": "0600"}}
    play = [
        {
            "hosts": "localhost",
            "gather_facts": False,
            "connection": "local",
            "vars": {"ansible_python_interpreter": sys.executable, **own, **variables},
            "tasks": [task],
        }
    ]
    (folder / "play.yml").write_text(yaml.safe_dump(play), encoding="utf-8")
    done = subprocess.run(
        ["ansible-playbook", "-i", "localhost,", str(folder / "play.yml")],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    answer: dict[str, Any] = json.loads((folder / "said.json").read_text(encoding="utf-8"))
    return answer


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"sglang_stack_patches": "/a"},
        {"model_patches_directory": "/a"},
        {"sm120_guards_directory": "/a"},
        {"sglang_stack_patches": "/a", "model_patches_directory": "/a"},
        {
            "sglang_stack_patches": "/a",
            "sm120_guards_directory": "/b",
            "model_patches_enabled": {MODEL: False},
        },
        {
            "model_patches_directory": "/a",
            "sm120_guards_directory": "/b",
            "sm120_guards_enabled": {GUARD: False},
        },
    ],
)
def test_the_plan_the_roles_and_the_check_see_one_set(tmp_path: Path, variables: dict[str, Any]) -> None:
    planned = ask(
        tmp_path,
        "sglang_stack",
        {"folders": "__sglang_stack_patch_folders", "switches": "__sglang_stack_patch_switches"},
        variables,
    )
    patched = ask(
        tmp_path,
        "model_patches",
        {"folders": "__model_patches_folders", "switches": "__model_patches_switches"},
        variables,
    )
    assert planned == patched
    assert {kind: str(path) for kind, path in choice.folders(variables, PROJECT).items()} == planned[
        "folders"
    ]
    guards = ask(tmp_path, "sm120_guards", {"folder": "sm120_guards_directory"}, variables)
    assert guards["folder"] == planned["folders"]["guard"]
