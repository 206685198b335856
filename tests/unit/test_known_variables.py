"""The check of an inventory's variables as a play runs it, with hosts that nobody can reach."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]

PLAY = """
- name: Check the inventory
  hosts: all
  gather_facts: false
  any_errors_fatal: true
  tasks:
    - name: Refuse unknown variables
      ansible.builtin.import_role:
        name: preflight
        tasks_from: variables
"""


def check(folder: Path, hosts: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the check on an inventory. The hosts are at addresses that are reserved for documentation."""
    (folder / "play.yml").write_text(PLAY)
    (folder / "inventory").mkdir(exist_ok=True)
    (folder / "inventory/hosts.yml").write_text(hosts)
    return subprocess.run(
        ["ansible-playbook", "-i", str(folder / "inventory"), str(folder / "play.yml"), *arguments],
        cwd=ROOT,
        env={**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


GOOD = """
all:
  hosts:
    one: {ansible_host: 192.0.2.1}
    two: {ansible_host: 192.0.2.2}
  vars:
    eagle3_server_port: 30001
    eagle3_server_cuda_home: "{{ cuda_toolkit_home }}"
    eagle3_server_profile: "{{ chosen_on_the_host }}"
    nginx_port: 80
"""


def test_a_good_inventory_passes_although_some_values_are_only_known_later(tmp_path: Path) -> None:
    done = check(tmp_path, GOOD)
    assert done.returncode == 0, done.stdout
    assert "unreachable=0" in done.stdout


def test_everything_that_is_wrong_is_said_at_once_and_no_host_is_reached(tmp_path: Path) -> None:
    bad = GOOD.replace("192.0.2.2}", "192.0.2.2, eagle3_server_prot: 30002}").replace(
        '"{{ chosen_on_the_host }}"', "eagel3"
    )
    done = check(tmp_path, bad, "-e", "egale3_server_port=30003")
    assert done.returncode != 0
    place = f"{tmp_path}/inventory/hosts.yml"
    message = [
        "3 variables of this inventory cannot be used; no host was touched.",
        f"- eagle3_server_prot [{place}:5]: no role of this project knows this variable. Write eagle3_server_port, or "
        "name it in preflight_foreign_variables if something else reads it. (on two)",
        "- egale3_server_port [-e]: is very close to eagle3_server_port, and no role of this project knows it. Write "
        "eagle3_server_port, or name it in preflight_foreign_variables if something else reads it.",
        f"- eagle3_server_profile [{place}:9]: is 'eagel3'. Choose one of: eagle3, baseline, auto.",
    ]
    assert "\n".join(message) in done.stdout + done.stderr
    assert "unreachable=0" in done.stdout


def test_a_foreign_variable_is_accepted_when_it_is_named(tmp_path: Path) -> None:
    done = check(
        tmp_path, GOOD + "    eagle3_server_rack: 7\n    preflight_foreign_variables: [eagle3_server_rack]\n"
    )
    assert done.returncode == 0, done.stdout


def test_a_value_of_another_type_is_said_in_one_line(tmp_path: Path) -> None:
    done = check(tmp_path, GOOD.replace("eagle3_server_port: 30001", "eagle3_server_port: first"))
    assert done.returncode != 0
    said = done.stdout + done.stderr
    assert (
        f"- eagle3_server_port [{tmp_path}/inventory/hosts.yml:7]: is 'first', a string, and an integer is wanted. "
        "Write it like eagle3_server_port: 8.\n" in said
    )
    assert len(said.splitlines()) < 50


def test_a_host_after_which_nothing_can_be_called_is_refused(tmp_path: Path) -> None:
    done = check(tmp_path, GOOD.replace("    two:", "    GPU two:"))
    assert done.returncode != 0
    assert "- inventory_hostname: is 'GPU two', and receipts, reports" in done.stdout + done.stderr


def test_secrets_that_are_missing_say_which_file_to_make(tmp_path: Path) -> None:
    folder = tmp_path / "inventory/group_vars/all"
    folder.mkdir(parents=True)
    (folder / "vault.yml.example").write_text('vault_server_key: ""\n')
    (folder / "server.yml").write_text('eagle3_server_api_key: "{{ vault_server_key }}"\n')
    hosts = GOOD + '    eagle3_server_extra_environment: {TOKEN: "{{ vault_token | default(omit) }}"}\n'
    done = check(tmp_path, hosts)
    assert done.returncode != 0
    vault = folder / "vault.yml"
    message = (
        "- vault_server_key: is not set, and eagle3_server_api_key refers to it. "
        f"Copy {vault}.example to vault.yml beside it, fill it in, and run ansible-vault encrypt {vault} "
        '(README.md, "Use it in production", step 2).'
    )
    assert message in done.stdout + done.stderr
    assert "1 variable of this inventory" in done.stdout + done.stderr

    vault.write_text(f"vault_server_key: {'k' * 32}\n")
    done = check(tmp_path, hosts)
    assert done.returncode == 0, done.stdout + done.stderr

    # A copy of the example that nobody filled in.
    vault.write_text('---\nvault_server_key: ""\n')
    done = check(tmp_path, hosts)
    assert done.returncode != 0
    message = (
        f"- vault_server_key [{vault}:2]: is empty, and eagle3_server_api_key refers to it, so there would be no key. "
        'Fill it in (openssl rand -hex 32 prints one); where no key is meant, write eagle3_server_api_key: "".'
    )
    assert message in done.stdout + done.stderr

    # No key on purpose; and then nobody reads the secret.
    (folder / "server.yml").write_text('eagle3_server_api_key: ""\n')
    done = check(tmp_path, hosts)
    assert done.returncode == 0, done.stdout + done.stderr
    (folder / "server.yml").write_text('eagle3_server_api_key: "{{ vault_server_key }}"\n')

    vault.write_text("vault_other_key: x\n")
    done = check(tmp_path, hosts)
    assert f"Add it: ansible-vault edit {vault} (README.md" in done.stdout + done.stderr


@pytest.mark.parametrize("inventory", sorted(path.name for path in (ROOT / "inventory").iterdir()))
def test_the_inventories_of_this_project_pass(tmp_path: Path, inventory: str) -> None:
    (tmp_path / "play.yml").write_text(PLAY)
    arguments = []
    example = ROOT / "inventory" / inventory / "group_vars/all/vault.yml.example"
    if example.exists():
        secrets = tmp_path / "vault.yml"
        filled = {name: f"{name:k<32}" for name in yaml.safe_load(example.read_text())}
        secrets.write_text(yaml.safe_dump(filled))
        arguments = ["-e", f"@{secrets}"]
    done = subprocess.run(
        ["ansible-playbook", "-i", f"inventory/{inventory}", str(tmp_path / "play.yml"), *arguments],
        cwd=ROOT,
        env={**os.environ, "ANSIBLE_NOCOLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_gateway_on_a_server_s_port_is_refused_where_both_are_one_host(tmp_path: Path) -> None:
    hosts = """
sglang_servers:
  hosts: {one: , two: }
sglang_gateways:
  hosts: {two: , three: {gatewy_port: 1}}
  vars: {gateway_port: 30000}
"""
    done = check(tmp_path, hosts)
    assert done.returncode != 0
    place = f"{tmp_path}/inventory/hosts.yml"
    message = [
        "2 variables of this inventory cannot be used; no host was touched.",
        f"- gatewy_port [{place}:5]: is very close to gateway_port, and no role of this project knows it. Write "
        "gateway_port, or name it in preflight_foreign_variables if something else reads it. (on three)",
        f"- gateway_port [{place}:6]: gateway_port and eagle3_server_port are both 30000 on a host that is in both "
        "groups. Give the gateway and the server a port of its own each. (on two)",
    ]
    assert "\n".join(message) in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("groups", "checked"),
    [
        ("", ["one"]),
        ("sglang_gateways: {}", ["one"]),
        ("sglang_gateways: {hosts: {two: }}", ["one", "two"]),
    ],
)
def test_an_inventory_without_gateways_gets_no_warning(
    tmp_path: Path, groups: str, checked: list[str]
) -> None:
    inventory = tmp_path / "hosts.yml"
    inventory.write_text(f"sglang_servers: {{hosts: {{one: }}}}\n{groups}\n")
    done = subprocess.run(
        ["ansible-playbook", "-i", str(inventory), "site.yml", "--list-hosts"],
        cwd=ROOT,
        env={**os.environ, "ANSIBLE_NOCOLOR": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "WARNING" not in done.stderr + done.stdout
    first = done.stdout.split("play #2")[0].split("hosts (")[1]
    assert sorted(first.split()[1:]) == checked


def test_a_switch_of_the_other_role_is_refused_before_a_host_is_reached(tmp_path: Path) -> None:
    switches = GOOD + "    model_patches_enabled: {flashinfer-allreduce-guard: true}\n"
    done = check(tmp_path, switches)
    assert done.returncode != 0
    said = " ".join(done.stdout.split())
    assert (
        f"model_patches_enabled [{tmp_path}/inventory/hosts.yml:11]: cannot switch flashinfer-allreduce-guard"
        in said
    )
    assert "Move flashinfer-allreduce-guard to sm120_guards_enabled." in said
    moved = switches.replace("model_patches_enabled", "sm120_guards_enabled")
    assert check(tmp_path, moved).returncode == 0
