"""The module that writes a deployment."""

from __future__ import annotations

import grp
import json
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

KEY = "planted-key-0123456789"
Run = Callable[..., dict[str, Any]]


@pytest.fixture
def arguments(tmp_path: Path) -> dict[str, Any]:
    return {
        "folder": str(tmp_path),
        "release_id": "0.5.9-0123456789ab",
        "profile": "eagle3",
        "arguments": {"model_path": "/srv/models/target", "port": 30000},
        "environment": {"HF_TOKEN": "hf-planted", "NCCL_P2P_LEVEL": "SYS"},
        "api_key": KEY,
        "unit": "[Service]\nExecStart=@deployment@/serve.py\n",
        "programs": {"serve.py": "pass\n"},
        "group": grp.getgrgid(os.getegid()).gr_name,
    }


def test_a_new_deployment_appears_whole(run_module: Run, arguments: dict[str, Any], tmp_path: Path) -> None:
    result = run_module("server_deployment", arguments)
    made = result["deployment"]
    folder = Path(made["path"])
    assert result["changed"] is True
    assert folder == tmp_path / made["name"]
    assert [file.name for file in tmp_path.iterdir()] == [made["name"]]
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()}
    assert modes == {
        "eagle3.yaml": 0o640,
        "eagle3.env": 0o600,
        "sglang@eagle3.service": 0o644,
        "serve.py": 0o644,
    }
    assert f"ExecStart={folder}/serve.py" in made["unit"]
    assert KEY in (folder / "eagle3.yaml").read_text()


def test_the_same_settings_change_nothing(run_module: Run, arguments: dict[str, Any]) -> None:
    first = run_module("server_deployment", arguments)
    again = run_module("server_deployment", arguments)
    assert again["changed"] is False
    assert again["diff"] == []
    assert again["deployment"] == first["deployment"]


def test_other_settings_leave_the_first_deployment_alone(run_module: Run, arguments: dict[str, Any]) -> None:
    first = run_module("server_deployment", arguments)["deployment"]
    before = {file.name: file.read_bytes() for file in Path(first["path"]).iterdir()}
    second = run_module("server_deployment", {**arguments, "environment": {"NCCL_P2P_LEVEL": "PIX"}})
    assert second["deployment"]["path"] != first["path"]
    assert {file.name: file.read_bytes() for file in Path(first["path"]).iterdir()} == before


@pytest.mark.parametrize("name", ["eagle3.yaml", "eagle3.env", "serve.py", "sglang@eagle3.service"])
def test_an_edited_file_is_put_right(run_module: Run, arguments: dict[str, Any], name: str) -> None:
    made = run_module("server_deployment", arguments)["deployment"]
    file = Path(made["path"]) / name
    right = file.read_text()
    file.write_text(right + "# edited\n")
    assert run_module("server_deployment", arguments, check=True)["changed"] is True
    assert file.read_text() != right
    result = run_module("server_deployment", arguments)
    assert result["changed"] is True
    assert [part["after_header"] for part in result["diff"]] == [str(file)]
    assert file.read_text() == right


def test_an_environment_that_others_could_read_is_closed_again(
    run_module: Run, arguments: dict[str, Any]
) -> None:
    made = run_module("server_deployment", arguments)["deployment"]
    file = Path(made["path"]) / "eagle3.env"
    file.chmod(0o644)
    assert run_module("server_deployment", arguments)["changed"] is True
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_check_mode_says_what_would_be_written(
    run_module: Run, arguments: dict[str, Any], tmp_path: Path
) -> None:
    result = run_module("server_deployment", {**arguments, "group": "no-such-group"}, check=True)
    assert result["changed"] is True
    assert len(result["diff"]) == 4
    assert list(tmp_path.iterdir()) == []


def test_neither_result_nor_diff_shows_a_secret(run_module: Run, arguments: dict[str, Any]) -> None:
    result = run_module("server_deployment", arguments, diff=True)
    assert KEY not in json.dumps(result)
    shown = json.dumps(result["diff"])
    assert "hf-planted" not in shown
    assert "NCCL_P2P_LEVEL" in shown


def test_settings_that_sglang_does_not_take_are_not_written(
    run_module: Run, arguments: dict[str, Any], tmp_path: Path
) -> None:
    refuse = (
        "import sys; sys.exit('usage: sglang\\nsglang: error: unrecognized arguments: --x' + sys.argv[1][:0])"
    )
    validate = [sys.executable, "-c", refuse, "%s/eagle3.yaml"]
    result = run_module("server_deployment", {**arguments, "validate": validate})
    assert result["failed"] is True
    assert "Found: sglang: error: unrecognized arguments: --x" in result["msg"]
    assert list(tmp_path.iterdir()) == []


def test_the_check_reads_the_very_files(run_module: Run, arguments: dict[str, Any]) -> None:
    read = "import pathlib, sys; sys.exit('model-path' not in pathlib.Path(sys.argv[1]).read_text())"
    result = run_module(
        "server_deployment", {**arguments, "validate": [sys.executable, "-c", read, "%s/eagle3.yaml"]}
    )
    assert result["changed"] is True


def test_the_accepted_deployment_is_known(run_module: Run, arguments: dict[str, Any], tmp_path: Path) -> None:
    made = run_module("server_deployment", arguments)["deployment"]
    assert made["accepted"] is False
    (tmp_path / "accepted.json").write_text(json.dumps({"deployment": made["name"]}))
    assert run_module("server_deployment", arguments)["deployment"]["accepted"] is True


# --- what a diff shows ---

OLD = "an-older-key-0123456789"
OLD_CONFIGS = {
    "plain": f"api-key: {OLD}\n",
    "single quotes": f"api-key: '{OLD}'\n",
    "json": f'api-key: "{OLD}"\n',
    "underscores": f"api_key: {OLD}\n",
    "admin": f"admin-api-key: {OLD}\n",
    "no blank": f"api-key:{OLD}\n",
    "next line": f"api-key:\n  {OLD}\n",
    "block": f"api-key: |\n  {OLD}\nport: 1\n",
    "block that looks like a setting": f"api-key: >-\n  {OLD}\ngrammar-backend: none\n",
    "quoted name": f'"api-key" : "{OLD}"\n',
    "flow": f'{{"api-key": "{OLD}", "port": 1}}\n',
    "complex": f"? api-key\n: {OLD}\n",
    "commented out": f"# api-key: {OLD}\n",
    "open quote": f'api-key: "{OLD}\nport: 3\n',
    "conflict": f"<<<<<<< mine\napi-key: {OLD}\n=======\n",
    "no line end": f"port: 30000\napi-key: {OLD}",
}


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("edited", OLD_CONFIGS.values(), ids=OLD_CONFIGS)
def test_a_key_that_stood_in_the_file_before_is_not_shown(
    run_module: Run, arguments: dict[str, Any], edited: str, check: bool
) -> None:
    made = run_module("server_deployment", arguments)["deployment"]
    Path(made["path"], "eagle3.yaml").write_text(edited, encoding="utf-8")
    Path(made["path"], "serve.py").write_text(f"pass\nprint('{OLD}')\n", encoding="utf-8")
    result = run_module("server_deployment", arguments, check=check, diff=True)
    assert result["changed"] is True
    assert OLD not in json.dumps(result)


OLD_ENVIRONMENTS = {
    "export": f"export HF_TOKEN={OLD}\n",
    "blank": f"HF_TOKEN = {OLD}\n",
    "single quotes": f"HF_TOKEN='{OLD}'\n",
    "continued": f"HF_TOKEN=\\\n{OLD}\n",
    "continued in quotes": f'HF_TOKEN="\\\n  {OLD}"\n',
    "open quote": f'HF_TOKEN="two lines\nNCCL_DEBUG={OLD}\n',
    "continues another": f"NCCL_DEBUG=INFO\\\n{OLD}\n",
    "after another": f'NCCL_DEBUG="INFO" HF_TOKEN={OLD}\n',
    "commented out": f"#HF_TOKEN={OLD}\n",
    "semicolon": f"; HF_TOKEN={OLD}\n",
    "lower case": f"hf_token={OLD}\n",
    "url": f"https_proxy=http://someone:{OLD}@proxy:3128\n",
    "access key": f"AWS_ACCESS_KEY_ID={OLD}\n",
    "passphrase": f"GPG_PASSPHRASE={OLD}\n",
    "short for password": f"DB_PWD={OLD}\n",
    "short for authorization": f"REGISTRY_AUTH={OLD}\n",
    "proxy without a scheme": f"https_proxy=someone:{OLD}@proxy:3128\n",
    "password with signs of a URL": f"https_proxy=http://someone:a/b@{OLD}@proxy:3128\n",
    "a header": f'CURL_HEADER="Authorization: Bearer {OLD}"\n',
}


@pytest.mark.parametrize("edited", OLD_ENVIRONMENTS.values(), ids=OLD_ENVIRONMENTS)
def test_a_secret_that_stood_in_the_environment_before_is_not_shown(
    run_module: Run, arguments: dict[str, Any], edited: str
) -> None:
    made = run_module("server_deployment", arguments)["deployment"]
    Path(made["path"], "eagle3.env").write_text(edited, encoding="utf-8")
    assert OLD not in json.dumps(run_module("server_deployment", arguments, diff=True))


@pytest.mark.parametrize("check", [True, False])
def test_no_file_of_a_deployment_shows_a_secret_old_or_new(
    run_module: Run, arguments: dict[str, Any], check: bool
) -> None:
    """New ones are in the configuration, the environment, the unit and a program; old ones in each of them, too."""
    arguments |= {
        "admin_api_key": "planted-admin-key-987654",
        "unit": f"[Service]\nEnvironment=X={KEY}\nExecStart=@deployment@/serve.py\n",
        "programs": {"serve.py": "print('hf-planted')\n"},
    }
    secrets = (KEY, "hf-planted", "planted-admin-key-987654", OLD)
    new = json.dumps(run_module("server_deployment", arguments, check=True, diff=True)["diff"])
    assert [secret for secret in secrets if secret in new] == []
    made = run_module("server_deployment", arguments)["deployment"]
    lines = {
        "eagle3.yaml": f"api-key: '{OLD}'\n",
        "eagle3.env": f"HF_TOKEN='{OLD}'\n",
        "sglang@eagle3.service": f"[Service]\nEnvironment=HF_TOKEN= \\\n  {OLD}\n",
        "serve.py": f"TOKEN = (\n    '{OLD}'\n)\n",
    }
    for name, text in lines.items():
        Path(made["path"], name).write_text(text, encoding="utf-8")
    old = run_module("server_deployment", arguments, check=check, diff=True)
    assert len(old["diff"]) == 4
    assert [secret for secret in secrets if secret in json.dumps(old["diff"])] == []


def test_a_diff_still_shows_what_was_edited_where_it_is_no_secret(
    run_module: Run, arguments: dict[str, Any]
) -> None:
    made = run_module("server_deployment", arguments)["deployment"]
    for name, line in (("eagle3.yaml", "port: 30001"), ("eagle3.env", 'NCCL_P2P_LEVEL="PIX"')):
        file = Path(made["path"], name)
        file.write_text(file.read_text(encoding="utf-8") + line + "\n", encoding="utf-8")
        shown = run_module("server_deployment", arguments, check=True, diff=True)["diff"]
        assert any(line in part["before"] for part in shown)


# --- a power loss ---


def test_every_file_and_folder_of_a_deployment_is_synced(
    run_module: Run, arguments: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each file before it gets its name, its folder after that, and the folder of deployments after the last rename."""
    done: list[tuple[str, str]] = []
    fsync, rename = os.fsync, os.rename

    def count(handle: int) -> None:
        name = str(Path(f"/proc/self/fd/{handle}").readlink())
        done.append(("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file", name))
        fsync(handle)

    def renamed(source: Any, target: Any) -> None:
        rename(source, target)
        done.append(("renamed", str(target)))

    monkeypatch.setattr(os, "fsync", count)
    monkeypatch.setattr(os, "rename", renamed)
    made = Path(run_module("server_deployment", arguments)["deployment"]["path"])
    monkeypatch.undo()
    files = {file.name for file in made.iterdir()}
    drafts = [Path(name).name for kind, name in done if kind == "file"]
    assert {draft.lstrip(".").rsplit(".", 1)[0] for draft in drafts} == files
    draft_folders = [name for kind, name in done if kind == "folder" and name != str(tmp_path)]
    assert len(draft_folders) == len(files)
    assert done[-2:] == [("renamed", str(made)), ("folder", str(tmp_path))]


def test_a_mended_file_is_synced(
    run_module: Run, arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Path(run_module("server_deployment", arguments)["deployment"]["path"])
    (made / "serve.py").write_text("edited\n", encoding="utf-8")
    synced: list[bool] = []
    fsync = os.fsync

    def count(handle: int) -> None:
        synced.append(stat.S_ISDIR(os.fstat(handle).st_mode))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", count)
    run_module("server_deployment", arguments)
    assert synced == [False, True]


def test_a_folder_that_cannot_be_written_is_said(
    run_module: Run, arguments: dict[str, Any], tmp_path: Path
) -> None:
    made = Path(run_module("server_deployment", arguments)["deployment"]["path"])
    (made / "serve.py").unlink()
    (made / "serve.py").mkdir()
    result = run_module("server_deployment", arguments)
    assert result["failed"] is True
    assert result["msg"].startswith(f"{tmp_path} cannot be written. Found: ")


# --- what a failed trial of the arguments means ---

NOT_SGLANG = {
    "no bus": (
        "print('Failed to connect to bus: No such file or directory', file=sys.stderr); sys.exit(1)",
        "systemd",
    ),
    "no memory": ("import os; os.kill(os.getpid(), 9)", "killed"),
    "memory error": ("raise MemoryError", "memory is short"),
    "no module": ("import no_such_module_of_sglang", "cannot be imported"),
    "no permission": ("raise PermissionError(13, 'Permission denied', '/srv/x')", "closed"),
    "out of time": ("sys.exit(124)", "out of time"),
    "no interpreter": ("sys.exit(203)", "interpreter"),
    "no user": ("sys.exit(217)", "user of the service"),
    "silent": ("sys.exit(1)", "the command of the trial failed"),
    "an error of another program": (
        "sys.exit('systemd-run: error: what')",
        "the command of the trial failed",
    ),
}


@pytest.mark.parametrize(("program", "said"), NOT_SGLANG.values(), ids=NOT_SGLANG)
def test_a_failure_of_something_else_is_not_blamed_on_sglang_s_parser(
    run_module: Run, arguments: dict[str, Any], tmp_path: Path, program: str, said: str
) -> None:
    validate = [sys.executable, "-c", f"import sys; {program}", "%s/eagle3.yaml"]
    result = run_module("server_deployment", {**arguments, "validate": validate})
    assert result["failed"] is True
    assert "does not accept" not in result["msg"]
    assert said in result["msg"].partition("Found:")[0]
    assert "extra_arguments" not in result["msg"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["/nowhere/systemd-run", "no-such-command-here"])
def test_a_missing_command_is_named(run_module: Run, arguments: dict[str, Any], command: str) -> None:
    result = run_module("server_deployment", {**arguments, "validate": [command, "%s"]})
    assert f"{command}: No such file or directory" in result["msg"]
    assert "does not accept" not in result["msg"]


def test_an_option_that_sglang_s_configuration_file_refuses_is_sglang_s(
    run_module: Run, arguments: dict[str, Any]
) -> None:
    said = (
        "Traceback (most recent call last):\\n"
        '  File \\"/opt/x/sglang/srt/server_args_config_parser.py\\", line 145, in _convert_config_to_args\\n'
        "ValueError: Unsupported config option 'lora_paths' with action 'LoRAPathAction'"
    )
    validate = [sys.executable, "-c", f'import sys; sys.exit("{said}")', "%s"]
    result = run_module("server_deployment", {**arguments, "validate": validate})
    assert result["msg"].startswith(
        "SGLang does not accept the arguments of this deployment. Found: ValueError"
    )
