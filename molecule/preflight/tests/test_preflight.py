"""Preflight says what is unfit, word for word, and leaves no trace."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from testinfra.host import Host

SCENARIO = Path(__file__).resolve().parents[1]
ROOT = SCENARIO.parents[1]


def judge(playbook: str = "judge", **unfit: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            "ansible-playbook",
            f"--inventory={ROOT}/inventory/molecule",
            "--limit=molecule-1",
            f"--extra-vars={json.dumps(unfit)}",
            str(SCENARIO / f"{playbook}.yml"),
        ],
        env={**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_FORCE_COLOR": "0"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("unfit", "message"),
    [
        (
            {"preflight_distributions": ["ubuntu-24.04"]},
            "- Distribution: found Debian GNU/Linux 12 (bookworm), expected one of ubuntu-24.04. Install a supported "
            "distribution, or add it to preflight_distributions if you tested it.",
        ),
        (
            {"sglang_stack_python": "3.12"},
            "- Python of the release: found /usr/bin/python3.12 does not run (/usr/bin/python3.12 is not installed), "
            "expected Python 3.12 (sglang_stack_python). Set sglang_stack_python to '3.11', which Debian GNU/Linux 12 "
            "(bookworm) has.",
        ),
        (
            {"preflight_models": ["/opt/models/none"]},
            "- Model folder: found no folder /opt/models/none, expected a folder with a model. Put the model there, or "
            "correct eagle3_server_model_path or eagle3_server_draft_model_path.",
        ),
        (
            {"preflight_models": ["/opt/models/half"]},
            "- Model folder: found no config.json in /opt/models/half, expected a folder with a model. Finish copying "
            "the model, or correct eagle3_server_model_path or eagle3_server_draft_model_path.",
        ),
        (
            {"preflight_release_gib": 100000},
            "expected at least 100000 GiB for a new release under /opt/sglang. Free some space, or set "
            "sglang_stack_root to a larger file system.",
        ),
        (
            {"eagle3_server_port": 31999},
            ", squatter.service), expected free, or held by sglang@eagle3.service, sglang@baseline.service. Stop that "
            "process, or set eagle3_server_port to another port.",
        ),
        (
            {"preflight_engine": "cuda", "preflight_gpu_count": 16},
            "- GPU count: found 8, expected 16 (the tensor parallel size). Look at dmesg and lspci for a lost card, or "
            "lower eagle3_server_tensor_parallel_size.",
        ),
    ],
    ids=["distribution", "python", "no-model", "half-a-model", "space", "port", "gpu-count"],
)
def test_what_is_unfit_stops_the_play_and_is_named(unfit: dict[str, Any], message: str) -> None:
    done = judge(**unfit)
    assert done.returncode != 0
    assert "1 check failed; nothing on this host was changed." in done.stdout
    assert message in done.stdout
    assert "changed=0" in done.stdout


def test_what_is_fit_passes() -> None:
    assert judge().returncode == 0


@pytest.fixture
def busy(host: Host) -> Iterator[str]:
    """Every card is used by the process on the port."""
    pid = host.check_output("systemctl show --property=MainPID --value squatter.service")
    process = {"pid": int(pid), "name": "python3", "memory": 91000}
    host.check_output("mkdir -p /var/lib/stand-in")
    state = json.dumps({"every": {"used": 91000, "processes": [process]}})
    host.check_output("echo %s > /var/lib/stand-in/gpus.json", state)
    yield pid
    host.check_output("rm -r /var/lib/stand-in")


def test_gpus_of_others_are_not_tested(busy: str) -> None:
    done = judge("active")
    assert done.returncode != 0
    assert (
        f"The GPUs are in use: python3 (pid {busy}, squatter.service) with 728000 MiB. Stop what uses them, or leave "
        "preflight_active_test off: the test needs free cards." in done.stdout
    )


def test_gpus_that_our_own_server_uses_are_left_to_it(busy: str) -> None:
    done = judge("active", preflight_units=["squatter.service"])
    assert done.returncode == 0, done.stdout
    assert "The fabric is not tested: our own server (1 processes) uses the GPUs" in done.stdout
    assert "Open memory across processes" not in done.stdout


def test_free_gpus_are_tested_and_what_goes_wrong_is_named() -> None:
    done = judge("active")
    assert done.returncode != 0
    assert "The GPUs cannot work together: rank " in done.stdout
    assert "ModuleNotFoundError: No module named 'torch'" in done.stdout


def test_it_is_tested_only_where_that_is_wanted() -> None:
    done = judge("active", preflight_active_test=False)
    assert done.returncode == 0
    assert "Look who uses the GPUs now" not in done.stdout


def test_nothing_of_ours_is_on_the_host(host: Host) -> None:
    assert not host.file("/opt/sglang").exists
    assert host.check_output("find /etc /usr/local /var/lib -name '*sglang*'") == ""


def test_the_process_on_the_port_was_left_alone(host: Host) -> None:
    assert host.service("squatter.service").is_running
    assert host.socket("tcp://0.0.0.0:31999").is_listening
