"""What is said of GRUB's files, of secrets and of hosts mends them, done as it is said."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from blackwell import argument_check, variables
from blackwell.errors import OperatorError

from tests.unit.test_grub import ours
from tests.unit.test_playbooks import GATEWAYS, play
from tests.unit.test_playbooks import said as playbook_said
from tests.unit.test_server_programs import ADMIN_KEY
from tests.unit.test_start_conditions import run

__all__ = ["ours"]

ROOT = Path(__file__).resolve().parents[2]
Run = Callable[..., dict[str, Any]]


def given(run_module: Run, ours: Path, *words: str) -> dict[str, Any]:
    return run_module("kernel_command_line", {"parameters": list(words), "path": str(ours)})


# --- GRUB ---


def test_a_file_that_cannot_be_opened_is_shown_and_removed(ours: Path, run_module: Run) -> None:
    folder = ours.parent / "40 other.cfg"
    folder.mkdir()
    command = re.search(r"mend or remove it \((ls -l .*)\)", given(run_module, ours, "pcie_aspm=off")["msg"])
    assert command
    subprocess.run(["/bin/sh", "-c", command[1]], check=True, capture_output=True)
    folder.rmdir()
    assert given(run_module, ours, "pcie_aspm=off")["changed"]


def test_a_word_that_cannot_be_given_is_written_by_hand(ours: Path, run_module: Run) -> None:
    word = "memmap=16G$32G"
    assert "take it out of host_tuning_kernel_parameters" in given(run_module, ours, "a=1", word)["msg"]
    (ours.parent / "80-by-hand.cfg").write_text(
        f"GRUB_CMDLINE_LINUX_DEFAULT=\"$GRUB_CMDLINE_LINUX_DEFAULT \"'{word}'\n", encoding="utf-8"
    )
    assert given(run_module, ours, "a=1")["changed"]
    assert word not in ours.read_text(encoding="utf-8")


def test_a_word_of_others_is_taken_out_or_not_wanted(ours: Path, run_module: Run) -> None:
    other = ours.parent / "50-other.cfg"
    other.write_text('GRUB_CMDLINE_LINUX_DEFAULT="quiet numa=off"\n', encoding="utf-8")
    assert "take it out there, or do not want it here" in given(run_module, ours, "numa=on")["msg"]
    assert given(run_module, ours, "pcie_aspm=off")["changed"]
    other.write_text('GRUB_CMDLINE_LINUX_DEFAULT="quiet"\n', encoding="utf-8")
    assert given(run_module, ours, "numa=on")["changed"]


@pytest.mark.parametrize("command", ["$(cat /run/words)", "`cat /run/words`"])
def test_assignments_are_written_without_commands(ours: Path, run_module: Run, command: str) -> None:
    other = ours.parent / "95-other.cfg"
    other.write_text(f'GRUB_CMDLINE_LINUX_DEFAULT="{command}"\n', encoding="utf-8")
    message = given(run_module, ours, "numa=on")["msg"]
    shown = re.search(r"\((grep -n .*) shows them\)", message)
    assert shown
    found = subprocess.run(["/bin/sh", "-c", shown[1]], capture_output=True, text=True, check=False)
    assert str(other) in found.stdout
    assert not given(run_module, ours)["changed"], "the words are given by hand"
    other.write_text('GRUB_CMDLINE_LINUX_DEFAULT="$GRUB_CMDLINE_LINUX_DEFAULT quiet"\n', encoding="utf-8")
    assert given(run_module, ours, "numa=on")["changed"]


# --- the inventory ---


def filter_of(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, ROOT / "plugins" / "filter" / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)


@pytest.mark.parametrize("groups", [{"all": []}, {"all": ["a"], "web": ["a"]}])
def test_an_inventory_without_servers_gets_them(groups: dict[str, list[str]]) -> None:
    problem = filter_of("inventory_problem")
    told = problem(groups, ["hosts.yml"])
    group = re.search(r"name the inventory, for example -i (\S+), or put its hosts into (\w+)", told)
    assert group and (ROOT / group[1]).exists()
    assert problem({**groups, group[2]: ["a"]}, ["hosts.yml"]) == ""


def test_a_variable_that_nothing_reads_is_removed() -> None:
    known = variables.load_known(ROOT / "roles", ROOT / "playbooks")
    names = ["eagle3_server_zzzz_qqqq_xxxx", "eagle3_server_port"]
    (problem,) = variables.judge_names({"one": names}, known)
    assert problem.remedy.startswith("Remove it")
    assert variables.judge_names({"one": names[1:]}, known) == []


def test_a_secret_is_set_where_no_example_is_beside_the_inventory(tmp_path: Path) -> None:
    unread = {"one": {"eagle3_server_api_key": "'vault_key' is undefined"}}
    (problem,) = variables.judge_secrets(unread, [tmp_path / "all.yml"])
    assert problem.remedy.startswith("Set it in a vault.yml in the inventory's group_vars/all")
    assert variables.judge_secrets({"one": {}}, [tmp_path / "all.yml"]) == []


def test_an_empty_secret_is_filled_in_or_the_key_is_empty() -> None:
    name = "eagle3_server_api_key"
    (problem,) = variables.judge_empty_secrets({"one": {name: variables.secrets_of("{{ vault_key }}")}})
    printed = re.search(r"\((openssl rand -hex 32) prints one\)", problem.remedy)
    assert printed and problem.remedy.endswith(f'{name}: ""')
    key = subprocess.run(printed[1].split(), capture_output=True, text=True, check=True).stdout
    assert re.fullmatch(r"[0-9a-f]{64}\n", key)
    assert variables.judge_empty_secrets({"one": {name: variables.secrets_of("")}}) == []


# --- what roles refuse ---

ACCEPTED = {"__rollout_found": {"accepted": {"release": "b"}}, "__rollout_target": {"release": "a"}}
TASKS = [
    (
        "rollout/tasks/rollback_target.yml",
        "Refuse a target without an acceptance",
        {
            "__rollout_target": {},
            "__rollout_found": {"deployments": [{"release": "b"}]},
            "rollout_rollback_to": "a",
        },
        "-e sglang_release=<one of them>",
        [
            {"__rollout_target": {"deployment": "d"}, "rollout_rollback_to": "b"},
        ],
    ),
    (
        "rollout/tasks/rollback_target.yml",
        "Refuse to go back to different releases",
        {"rollout_rollback_to": "", "__rollout_targets": ["a", "b"], **ACCEPTED},
        "name the one to go back to, -e sglang_release=<one of them>",
        [{"rollout_rollback_to": "a"}, {"__rollout_targets": ["a"]}],
    ),
    (
        "rollout/tasks/rollback_target.yml",
        "Refuse a target without a release",
        {"__rollout_target": {"release": "a"}, "__rollout_manifest": {"stat": {"exists": False}}},
        "playbooks/upgrade.yml builds it again",
        [{"__rollout_manifest": {"stat": {"exists": True}}}],
    ),
    (
        "rollout/tasks/before.yml",
        "Refuse an A-B-A without an A",
        {
            "__rollout_reference": False,
            "rollout_aba": True,
            "__rollout_served": None,
            "eagle3_server_active_profile": "eagle3",
        },
        "leave rollout_aba out",
        [{"rollout_aba": False}],
    ),
]


@pytest.mark.parametrize(
    ("file", "name", "fault", "remedy", "ways"), TASKS, ids=lambda value: str(value)[:40]
)
def test_what_a_role_refuses_is_accepted_after_what_it_says(
    tmp_path: Path, file: str, name: str, fault: dict[str, Any], remedy: str, ways: list[dict[str, Any]]
) -> None:
    tasks = yaml.safe_load((ROOT / "roles" / file).read_text(encoding="utf-8"))
    (task,) = [each for each in tasks if each.get("name") == name]
    task = {key: value for key, value in task.items() if key != "vars"}
    for number, way in enumerate([{}, *ways]):
        folder = tmp_path / str(number)
        folder.mkdir()
        # As facts: the messages read them of each host.
        facts = {"ansible.builtin.set_fact": {**fault, **way}}
        told = " ".join(run(folder, [facts, task], {}).split())
        assert ("failed=0" not in told and remedy in told) if not way else "failed=0" in told, told


def test_the_user_of_the_service_is_nobodys_account(tmp_path: Path) -> None:
    tasks = yaml.safe_load((ROOT / "roles/sglang_stack/tasks/user.yml").read_text(encoding="utf-8"))[:2]
    for user, passes in (("root", False), ("nobody", True), ("no-such-user-here", True)):
        folder = tmp_path / user
        folder.mkdir()
        told = " ".join(run(folder, tasks, {}, sglang_stack_user=user).split())
        assert ("failed=0" in told) is passes, told
        assert ("name another one in sglang_stack_user" in told) is not passes


def test_a_lost_server_is_left_out_of_the_run(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts.yml"
    hosts.write_text(GATEWAYS, encoding="utf-8")
    told = playbook_said(play("site", "-i", str(hosts), "--check", "--limit", "gpu-2,gateway-1"))
    limit = re.search(r"leave them out with --limit '(\S+)'", told)
    assert limit
    told = playbook_said(play("site", "-i", str(hosts), "--check", "--limit", limit[1]))
    assert "could not be checked" not in told and "TASK [gateway : " in told


# --- the server ---


def test_several_tokenizers_are_taken_out_where_a_key_is_set(tmp_path: Path) -> None:
    config = tmp_path / "eagle3.yaml"
    told = []
    for line in ("tokenizer-worker-num: 4\n", ""):
        config.write_text(f'host: "::"\nport: 1\nadmin-api-key: "{ADMIN_KEY}"\n{line}', encoding="utf-8")
        program = ROOT / "roles/eagle3_server/files/serve.py"
        command = [sys.executable, str(program), "0", "--config", str(config)]
        told.append(subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False).stderr)
    assert "take tokenizer_worker_num out of the settings" in told[0]
    # There is no SGLang here that could start.
    assert "tokenizer_worker_num" not in told[1] and "sglang" in told[1]


def test_arguments_are_corrected_until_the_parser_takes_them() -> None:
    with pytest.raises(OperatorError, match="correct eagle3_server_extra_arguments or the variable"):
        argument_check.judge(2, "", "sglang: error: unrecognized arguments: --tpp-size 8")
    argument_check.judge(0, "", "")
