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
