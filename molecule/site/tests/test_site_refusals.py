"""What cannot work is refused with what mends it, and the server that was serving serves on.

Each case runs the whole of site.yml against the host on which it was deployed. The last one gets as far as stopping
the server: it must be back.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from testinfra.host import Host

ROOT = Path(__file__).resolve().parents[3]
DELEGATION_OFF = {"model_patches_enabled": {"kimi-k25-eagle3-delegation": False}}


def refuse(host: Host, **variables: Any) -> str:
    """What site.yml says with these variables; it must fail."""
    # Molecule's variables are not a user's: its own callback and inventory would come along.
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("ANSIBLE_", "MOLECULE_"))
    }
    run = subprocess.run(
        [
            "ansible-playbook",
            "site.yml",
            "--inventory=inventory/molecule",
            f"--limit={host.backend.hostname}",
            f"--extra-vars={json.dumps(variables)}",
        ],
        cwd=ROOT,
        env=environment | {"ANSIBLE_NOCOLOR": "1"},
        capture_output=True,
        text=True,
        timeout=900,
    )
    said = run.stdout + run.stderr
    assert run.returncode != 0, said[-4000:]
    return re.sub(r"\s+", " ", said)


def main_pid(host: Host) -> str:
    pid: str = host.check_output("systemctl show --property=MainPID --value sglang@eagle3.service")
    return pid


@pytest.fixture
def _left_alone(host: Host) -> Generator[None]:
    link, pid = host.check_output("readlink /opt/sglang/current"), main_pid(host)
    yield
    assert host.check_output("readlink /opt/sglang/current") == link
    assert main_pid(host) == pid != "0"


@pytest.mark.usefixtures("_left_alone")
@pytest.mark.parametrize(
    ("variables", "message"),
    [
        (
            {"eagle3_server_prot": 30000},
            "no role of this project knows this variable. Write eagle3_server_port",
        ),
        ({"eagle3_server_profile": "eagle4"}, "eagle3_server_profile"),
        ({"eagle3_server_model_path": "/srv/models/nothing"}, "found no folder /srv/models/nothing"),
        ({"eagle3_server_port": 22}, "found in use by sshd"),
        (
            {"sglang_stack_required_space": 100000} | DELEGATION_OFF,
            "GiB free on /, expected at least 100000 GiB",
        ),
        (
            {"preflight_distributions": ["ubuntu-24.04"]},
            "found Debian GNU/Linux 12 (bookworm), expected one of",
        ),
        ({"sglang_stack_python": "3.9"}, "There is no lock for SGLang 0.5.9, engine cpu, Python 3.9."),
        ({"sglang_stack_version": "0.5.8"}, "There is no lock for SGLang 0.5.8"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
def test_bad_input_ends_before_the_server_is_touched(
    host: Host, variables: dict[str, Any], message: str
) -> None:
    assert message in refuse(host, **variables)


@pytest.mark.usefixtures("_left_alone")
def test_without_the_context_variable_both_windows_are_named(host: Host) -> None:
    said = refuse(host, eagle3_server_allow_overwrite_longer_context_len=False)
    target, draft = (
        json.loads(host.file(f"/srv/models/{model}/config.json").content_string)
        for model in ("target", "draft")
    )
    assert str(target["text_config"]["max_position_embeddings"]) in said
    assert str(draft["max_position_embeddings"]) in said
    assert "eagle3_server_allow_overwrite_longer_context_len" in said


@pytest.mark.usefixtures("_left_alone")
def test_without_the_patch_the_contract_names_what_the_class_lacks(host: Host) -> None:
    said = refuse(host, **DELEGATION_OFF)
    assert "KimiK25ForConditionalGeneration" in said
    for method in ("set_eagle3_layers_to_capture", "get_embed_and_head", "set_embed_and_head"):
        assert method in said


def test_without_patch_and_contract_the_servers_own_error_is_shown_and_the_old_release_is_back(
    host: Host,
) -> None:
    link, pid = host.check_output("readlink /opt/sglang/current"), main_pid(host)
    said = refuse(host, **DELEGATION_OFF, model_weights_contract_enabled=False)
    assert "AttributeError: 'KimiK25ForConditionalGeneration' object has no attribute" in said
    assert host.check_output("readlink /opt/sglang/current") == link
    assert main_pid(host) not in ("0", pid)
    assert host.run("curl --silent --fail --max-time 30 http://127.0.0.1:30000/health_generate").rc == 0
