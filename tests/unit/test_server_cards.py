"""From the cards of a host to what its server is started with, as a play makes it; the cards are stand-ins."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PRO = "NVIDIA RTX PRO 6000 Blackwell Server Edition"
RELEASE = {
    "id": "0.5.9-0123456789ab",
    "engine": "cuda",
    "sglang_version": "0.5.9",
    "path": "/opt/x",
    "python": "/opt/x/bin/python",
    "venv": "/opt/x",
    "site_packages": "/opt/x/site-packages",
}
PLAY = """
- name: Render what a server is started with
  hosts: localhost
  connection: local
  gather_facts: false
  tasks:
    - name: Look at the host
      ansible.builtin.include_role:
        name: preflight
        tasks_from: look
        public: true
    - name: Check the conditions of a start
      ansible.builtin.include_role:
        name: eagle3_server
        tasks_from: can_start
        public: true
    - name: Write it down
      ansible.builtin.copy:
        content: "{{ rendered | to_json }}"
        dest: "{{ result }}"
        mode: "0600"
      vars:
        __eagle3_server_unit_profile: eagle3
        rendered:
          server: "{{ __eagle3_server_release_environment }}"
          test: "{{ __preflight_card_environment }}"
          unit: "{{ lookup('ansible.builtin.template', unit) }}"
          gpus: "{{ preflight_chosen_gpus }}"
"""


def run_play(folder: Path, state: dict[str, Any], **variables: Any) -> tuple[str, dict[str, Any]]:
    """What the play said, and what it rendered."""
    commands = folder / "bin"
    commands.mkdir(exist_ok=True)
    (commands / "nvidia-smi").unlink(missing_ok=True)
    (commands / "nvidia-smi").symlink_to(ROOT / "tests/stand-ins/nvidia-smi")
    (folder / "gpus.json").write_text(json.dumps(state), encoding="utf-8")
    (folder / "play.yml").write_text(PLAY, encoding="utf-8")
    result = folder / "result.json"
    given = {
        "sglang_stack_release": RELEASE,
        "sglang_stack_engine": "cuda",
        "sglang_stack_version": "0.5.9",
        "eagle3_server_model_path": "/m",
        "eagle3_server_draft_model_path": "/d",
        "eagle3_server_config_directory": str(folder),
        "ansible_python_interpreter": sys.executable,
        "unit": str(ROOT / "roles/eagle3_server/templates/sglang@.service.j2"),
        "result": str(result),
        **variables,
    }
    done = subprocess.run(
        ["ansible-playbook", "-i", "localhost,", str(folder / "play.yml"), "-e", json.dumps(given)],
        cwd=ROOT,
        env={
            **os.environ,
            "PATH": f"{commands}:{os.environ['PATH']}",
            "STAND_IN_GPUS": str(folder / "gpus.json"),
            "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
            "ANSIBLE_NOCOLOR": "1",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    said = " ".join((done.stdout + done.stderr).split())
    return said, json.loads(result.read_text(encoding="utf-8")) if result.exists() else {}


def prepare_line(rendered: dict[str, Any]) -> str:
    (line,) = [line for line in rendered["unit"].replace("\\\n", " ").splitlines() if "prepare.py" in line]
    return " ".join(line.split())


def test_cards_of_the_model_are_what_the_server_and_the_test_of_the_fabric_see(tmp_path: Path) -> None:
    cards = [{"name": "NVIDIA T400 4GB", "bus": "00000000:01:00.0"}, *({} for _ in range(8))]
    said, rendered = run_play(tmp_path, {"cards": cards})
    assert rendered, said[-2000:]
    expected = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "1,2,3,4,5,6,7,8"}
    assert {name: rendered["server"][name] for name in expected} == expected
    assert rendered["test"] == expected
    assert prepare_line(rendered).endswith(f'--gpus 8 --timeout 180 --user sglang --name "{PRO}"')


def test_named_cards_are_given_by_number_in_the_order_of_their_names(tmp_path: Path) -> None:
    uuids = [f"GPU-{n:08x}-5ac1-4f0e-9d7b-2f6c81e0{n:04x}" for n in (6, 1)]
    said, rendered = run_play(tmp_path, {}, eagle3_server_gpus=uuids, eagle3_server_tensor_parallel_size=2)
    assert rendered, said[-2000:]
    assert rendered["server"]["CUDA_VISIBLE_DEVICES"] == "6,1"
    assert prepare_line(rendered).endswith(f"--gpus 2 --timeout 180 --user sglang --uuids {','.join(uuids)}")


def test_on_a_processor_no_card_is_asked_for_or_named(tmp_path: Path) -> None:
    said, rendered = run_play(
        tmp_path,
        {"fail": "broken"},
        sglang_stack_release={**RELEASE, "engine": "cpu"},
        sglang_stack_engine="cpu",
    )
    assert rendered, said[-2000:]
    assert not {"CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES"}.intersection(
        name for name, value in rendered["server"].items() if value is not None
    )
    assert prepare_line(rendered).endswith("--gpus 0 --timeout 180 --user sglang")


def test_a_server_is_not_stopped_where_the_driver_would_let_none_start(tmp_path: Path) -> None:
    reason = "Driver/library version mismatch"
    said, rendered = run_play(tmp_path, {"fail": f"Failed to initialize NVML: {reason}"})
    assert not rendered
    assert "No server can start on localhost now, so none is stopped for it" in said
    assert reason in said


def test_everything_that_stops_a_server_asks_first_whether_one_can_start() -> None:
    asks = {
        "roles/eagle3_server/tasks/activate.yml": "start.yml",
        "roles/eagle3_server/tasks/rollback.yml": "start.yml",
        "roles/rollout/tasks/main.yml": "drain.yml",
        "roles/rollout/tasks/rollback.yml": "rollback_start.yml",
        "playbooks/tasks/repatch_service.yml": "state: restarted",
    }
    for name, stops in asks.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        asked = min(place for place in (text.find("can_start"), text.find("--check-driver")) if place >= 0)
        assert asked < text.index(stops), name
