"""Each message of a rollout and its gateway names what mends it: the fault is made, the remedy done, the fault gone."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from blackwell import gateway
from blackwell.errors import OperatorError
from blackwell.gateway import SERVING, Access, Host, Records

from tests.unit.test_start_conditions import run

URL = "http://192.0.2.11:30000"
SERVES = {URL: Host(SERVING, "rollout", 1.0)}


def refused(function: Callable[[], Any]) -> OperatorError:
    with pytest.raises(OperatorError) as said:
        function()
    assert said.value.found and said.value.expected and said.value.remedy
    return said.value


def do(remedy: str) -> None:
    """Run the rm that a remedy begins with."""
    command = remedy.partition(",")[0].partition(" on the gateway")[0]
    assert command.startswith("rm "), remedy
    subprocess.run(command.split(), check=True)


DAMAGED = ["", "{", "[]", "7", "\x00\x00", '{"http://a:1": 7}', '{"http://a:1": {"state": "gone"}}']


@pytest.mark.parametrize("content", DAMAGED)
def test_a_damaged_record_of_hosts(tmp_path: Path, content: str) -> None:
    records = Records(tmp_path)
    records.write(SERVES)
    records.hosts_file.write_text(content, encoding="utf-8")
    said = refused(records.read)
    assert str(records.hosts_file) in said.problem
    do(said.remedy)
    assert records.read().keys() == SERVES.keys()


@pytest.mark.parametrize("content", [*DAMAGED, '{"workers": [{"uri": "x"}]}', '{"workers": null}'])
def test_a_damaged_manifest_without_a_record(tmp_path: Path, content: str) -> None:
    records = Records(tmp_path)
    records.manifest_file.write_text(content, encoding="utf-8")
    said = refused(records.read)
    do(said.remedy)
    assert records.read() == {}


def configure(folder: Path, settings: str, key: bytes) -> None:
    (folder / "settings.json").write_text(settings, encoding="utf-8")
    (folder / "control.key").write_bytes(key)


GOOD = json.dumps({"host": "::", "port": 8080, "discovery_file": "/x/workers.json"})


@pytest.mark.parametrize("settings", ["", "{", "[]", "{}", '{"host": 1, "port": 2, "discovery_file": "x"}'])
def test_damaged_settings_of_a_gateway(tmp_path: Path, settings: str) -> None:
    configure(tmp_path, settings, b"key\n")
    said = refused(lambda: Access.read(tmp_path))
    assert str(tmp_path) in said.problem and "site.yml" in said.remedy
    # What site.yml does: the role writes them.
    configure(tmp_path, GOOD, b"key\n")
    assert Access.read(tmp_path).url == "http://[::1]:8080"


@pytest.mark.parametrize("key", [b"", b"\n", b"\xff\xfe", "ä".encode(), b"a\nb"])
def test_a_damaged_key_of_the_control_plane(tmp_path: Path, key: bytes) -> None:
    configure(tmp_path, GOOD, key)
    said = refused(lambda: Access.read(tmp_path))
    do(said.remedy)
    # The role makes one only where there is none, so it has to be gone.
    assert not (tmp_path / "control.key").exists()


def test_an_operator_who_names_no_host_of_the_gateway() -> None:
    change = {"by": "operator", "now": 2.0, "ready": frozenset([URL]), "min_available": 0}
    said = refused(lambda: gateway.drain(SERVES, "http://gpu-1:30000", **change))  # type: ignore[arg-type]
    assert URL in said.found
    assert gateway.drain(SERVES, URL, **change).changed  # type: ignore[arg-type]


@pytest.mark.parametrize("receipt", [True, False])
def test_a_damaged_record_of_what_was_accepted(repository: Path, tmp_path: Path, receipt: bool) -> None:
    tasks = yaml.safe_load((repository / "roles/rollout/tasks/recall.yml").read_text(encoding="utf-8"))
    (refusal,) = [task for task in tasks[-1]["block"] if "ansible.builtin.assert" in task]
    given = {
        "__rollout_recorded": {"accepted_damage": "x is not JSON."},
        "eagle3_server_record_restored": receipt,
        "eagle3_server_config_directory": "/etc/sglang",
    }
    said = " ".join(run(tmp_path, [refusal], {}, **given).split())
    assert ("failed=0" in said) is receipt
    assert receipt or "rm /etc/sglang/accepted.json on the host" in said


def role_tasks(repository: Path, entry: str) -> list[dict[str, object]]:
    loaded: list[dict[str, object]] = yaml.safe_load(
        (repository / f"roles/eagle3_server/tasks/{entry}.yml").read_text(encoding="utf-8")
    )
    return loaded


@pytest.mark.parametrize("there", [True, False])
def test_a_lost_record_is_restored_where_its_deployment_is_there(
    repository: Path, tmp_path: Path, there: bool
) -> None:
    etc = tmp_path / "etc"
    (etc / "one" if there else etc).mkdir(parents=True)
    record = {"deployment": "one", "profile": "eagle3", "release": "0.5.9-0123456789ab"}
    tasks = role_tasks(repository, "restore_record")
    for task in tasks:
        for key in ("owner", "group"):
            task.get("ansible.builtin.copy", {}).pop(key, None)  # type: ignore[attr-defined]
    shown = {"ansible.builtin.debug": {"msg": "restored {{ eagle3_server_record_restored | bool }}"}}
    given = {"eagle3_server_config_directory": str(etc), "eagle3_server_restored_record": record}
    said = run(tmp_path, [*tasks, shown], {}, **given)
    assert f"restored {there}" in said and "failed=0" in said
    assert (etc / "accepted.json").exists() is there
    if there:
        assert json.loads((etc / "accepted.json").read_text(encoding="utf-8")) == record
