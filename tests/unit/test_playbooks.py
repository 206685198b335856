"""What playbooks refuse before they touch a host, with hosts that nobody can reach."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]

SERVERS = "sglang_servers: {hosts: {gpu-1: {ansible_host: 192.0.2.1}}}\n"
ON_SERVERS = ["site", "preflight", "upgrade", "rollback", "verify", "throughput"]
# They begin with the check of names, too.
WITH_CHECK = [*ON_SERVERS, "repatch", "compare", "bundle"]


def play(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["ansible-playbook", str(ROOT / "playbooks" / f"{name}.yml"), *arguments],
        cwd=ROOT,
        env={**os.environ, "ANSIBLE_NOCOLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def said(done: subprocess.CompletedProcess[str]) -> str:
    return " ".join((done.stdout + done.stderr).split())


@pytest.fixture
def inventory(tmp_path: Path) -> Path:
    path = tmp_path / "hosts.yml"
    path.write_text(SERVERS)
    return path


@pytest.mark.parametrize(
    ("name", "limit"),
    [*((name, []) for name in (*ON_SERVERS, "repatch")), ("site", ["--limit", "gpu-1"])],
)
def test_an_inventory_that_does_not_exist_is_no_success(name: str, limit: list[str]) -> None:
    done = play(name, "-i", "inventory/nope", *limit)
    assert done.returncode != 0
    assert (
        f"Found: no host in {ROOT}/inventory/nope. Expected: an inventory with hosts in sglang_serv"
        in said(done)
    )


@pytest.mark.parametrize("limit", [[], ["--limit", "gpu-1"]])
def test_a_group_of_servers_with_another_name_is_refused(inventory: Path, limit: list[str]) -> None:
    inventory.write_text(SERVERS.replace("servers", "server"))
    done = play("site", "-i", str(inventory), *limit)
    assert done.returncode != 0
    assert (
        "No host is in the group sglang_servers; no host was touched. Found: 1 host and the groups sglang_server in "
        f"{inventory}. Expected: an inventory with hosts in sglang_servers. To mend it: rename the group "
        "sglang_server to sglang_servers."
    ) in said(done)


def test_a_group_of_gateways_with_another_name_is_refused(inventory: Path) -> None:
    inventory.write_text(SERVERS + "sglang_gateway: {hosts: {gateway-1: }}\n")
    done = play("site", "-i", str(inventory))
    assert done.returncode != 0
    assert "To mend it: rename the group sglang_gateway to sglang_gateways." in said(done)


@pytest.mark.parametrize("name", WITH_CHECK)
def test_a_misspelt_variable_is_refused_with_the_nearest_name(inventory: Path, name: str) -> None:
    given = ["-e", "sglang_releas=0.5.9-97a92f3e622b", "-e", "sglang_version=0.5.9"]
    done = play(name, "-i", str(inventory), *given)
    assert done.returncode != 0
    assert "- sglang_releas [-e]: no role of this project knows this variable. Write sglang_release," in said(
        done
    )
    assert "unreachable=1" not in done.stdout
    assert "WARNING" not in said(done)


@pytest.mark.parametrize(
    ("slip", "meant"), [("bundle_lock", "bundle_locks"), ("bundel", "bundle"), ("bundle_pth", "bundle_path")]
)
def test_a_slip_in_a_variable_of_bundles_is_refused(tmp_path: Path, slip: str, meant: str) -> None:
    done = play("bundle", "-e", f"{slip}=x", "-e", f"bundle_path={tmp_path}/bundle")
    assert done.returncode != 0
    assert f"Write {meant}, or name it" in said(done)


@pytest.mark.parametrize("locks", ["gateway-9-py312", '["gateway-9-py312.txt"]'])
def test_a_lock_that_does_not_exist_is_refused_with_those_that_do(tmp_path: Path, locks: str) -> None:
    given = f'{{"bundle_locks": {locks}}}' if locks.startswith("[") else f"bundle_locks={locks}"
    done = play("bundle", "-e", given, "-e", f"bundle_path={tmp_path}/bundle")
    assert done.returncode != 0
    assert "There is no lock gateway-9-py312. Found: gateway-1.13.0-py310, " in said(done)


def test_an_upgrade_without_a_lock_is_refused_before_it_asks(inventory: Path) -> None:
    done = play("upgrade", "-i", str(inventory), "-e", "sglang_version=0.5.8")
    assert done.returncode != 0
    assert "There is no lock for SGLang 0.5.8" in said(done)
    assert "unreachable=1" not in done.stdout


GATEWAYS = f"""
sglang_servers:
  hosts: {{gpu-1: , gpu-2: }}
  vars: {{ansible_host: 127.0.0.1, ansible_port: 1, eagle3_server_tensor_parallel_size: 8}}
sglang_gateways:
  hosts: {{gateway-1: {{ansible_connection: local, ansible_python_interpreter: {sys.executable}}}}}
all:
  vars: {{eagle3_server_model_path: /srv/models/target, eagle3_server_draft_model_path: /srv/models/draft}}
"""


def test_a_server_that_is_lost_before_the_gateways_stops_them(inventory: Path) -> None:
    inventory.write_text(GATEWAYS)
    done = play("site", "-i", str(inventory), "--check", "--limit", "gpu-2,gateway-1")
    assert done.returncode != 0
    assert (
        "The gateway on gateway-1 was not touched, as these servers could not be checked: gpu-2. Expected: every "
        "server of this run reached and fit, see above. To mend it: bring them back and run again, or leave them out "
        "with --limit 'gpu-2,gateway-1,!gpu-2'."
    ) in said(done)
    assert "Install smg" not in done.stdout


@pytest.mark.parametrize("name", ["site", "upgrade"])
def test_only_the_server_that_was_lost_is_named(inventory: Path, name: str) -> None:
    here = (
        f"{{ansible_connection: local, ansible_become: false, ansible_python_interpreter: {sys.executable}}}"
    )
    inventory.write_text(GATEWAYS.replace("gpu-1: ,", f"gpu-1: {here},"))
    upgrade = ["-e", "sglang_version=0.5.10.post1", "-e", "upgrade_confirmed=true"]
    done = play(name, "-i", str(inventory), "--check", *(upgrade if name == "upgrade" else []))
    assert done.returncode != 0
    assert "these servers could not be checked: gpu-2. Expected" in said(done)
    assert "--limit 'all,!gpu-2'" in said(done)
    assert "Install smg" not in done.stdout


# The gateways' play of site.yml, with this step alone.
ADOPT = """
- hosts: gateway-1
  gather_facts: false
  serial: 1
  any_errors_fatal: true
  tasks:
    - ansible.builtin.import_role:
        name: gateway
        tasks_from: adopt
    - ansible.builtin.debug:
        msg: it goes on
"""


def test_a_gateway_is_built_anew_though_the_other_one_is_lost(tmp_path: Path) -> None:
    here = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    there = {"ansible_host": "127.0.0.1", "ansible_port": 1}
    hosts = {"hosts": {"gateway-1": here, "gateway-2": there}}
    (tmp_path / "hosts.yml").write_text(json.dumps({"sglang_gateways": hosts}))
    (tmp_path / "play.yml").write_text(ADOPT)
    given = ["-i", str(tmp_path / "hosts.yml"), "-e", f"gateway_state_directory={tmp_path}"]
    done = play(str(tmp_path / "play"), *given)
    assert done.returncode == 0 and "it goes on" in done.stdout, said(done)


def test_a_run_on_gateways_alone_asks_for_no_server(inventory: Path) -> None:
    inventory.write_text(GATEWAYS)
    done = play(
        "site", "-i", str(inventory), "--check", "--limit", "sglang_gateways", "-e", "gateway_python=2.0"
    )
    assert "could not be checked" not in done.stdout
    assert "TASK [gateway : " in done.stdout


def guard_of_versions() -> str:
    """The task that refuses versions of ansible-core, about a version that the command line gives."""
    tasks = yaml.safe_load((ROOT / "playbooks" / "check_inventory.yml").read_text(encoding="utf-8"))[0][
        "tasks"
    ]
    assert tasks[0]["name"] == "Refuse an untested version of ansible-core"
    return json.dumps(tasks[0]).replace("ansible_version", "given_version")


@pytest.mark.parametrize(
    ("version", "passes"),
    [
        ("2.18.9", False),
        ("2.19.0", True),
        ("2.21.3", True),
        ("2.22.0b1", False),
        ("3.0.0", False),
        ("1.20.0", False),
    ],
)
def test_a_version_of_ansible_that_was_not_tried_is_refused(
    tmp_path: Path, version: str, passes: bool
) -> None:
    task = json.loads(guard_of_versions())
    (tmp_path / "play.yml").write_text(
        json.dumps([{"hosts": "localhost", "gather_facts": False, "tasks": [task]}]), encoding="utf-8"
    )
    major, minor = (int(part) for part in version.split(".")[:2])
    given = json.dumps({"given_version": {"major": major, "minor": minor, "full": version}})
    done = play(str(tmp_path / "play"), "-i", "localhost,", "-c", "local", "-e", given)
    assert (done.returncode == 0) is passes, said(done)
    text = f"was tried with ansible-core 2.19 to 2.21; no host was touched. Found: {version}. Expected: "
    assert (text in said(done)) is not passes


def test_everything_that_names_versions_of_ansible_names_the_same() -> None:
    assert "2.19 to 2.21" in (ROOT / "README.md").read_text(encoding="utf-8")
    for role in sorted((ROOT / "roles").iterdir()):
        meta = yaml.safe_load((role / "meta" / "main.yml").read_text(encoding="utf-8"))
        assert meta["galaxy_info"]["min_ansible_version"] == "2.19", role.name
