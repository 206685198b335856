"""playbooks/repatch.yml on installations that this project did not make."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.patches import trees

MODEL = "sglang/srt/models/kimi_k25.py"
BY_HAND = """

    def set_eagle3_layers_to_capture(self, layer_ids=None):
        self.language_model.set_eagle3_layers_to_capture(layer_ids)

    def get_embed_and_head(self):
        return self.language_model.get_embed_and_head()


EntryClass"""


class Host:
    """An installation on this machine, and the playbook on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python = trees.installation(folder / "environment", "0.5.9")
        self.packages = trees.site_packages(folder / "environment")

    def repatch(self, *options: str, **variables: Any) -> subprocess.CompletedProcess[str]:
        given = {
            "ansible_connection": "local",
            "ansible_python_interpreter": sys.executable,
            "sglang_python": str(self.python),
            "patch_reports": str(self.folder / "reports"),
            **variables,
        }
        command = [str(Path(sys.executable).with_name("ansible-playbook")), "--inventory=old-host,", *options]
        command += [f"--extra-vars={json.dumps(given)}", str(trees.ROOT / "playbooks" / "repatch.yml")]
        environment = {
            **os.environ,
            "ANSIBLE_CONFIG": str(trees.ROOT / "ansible.cfg"),
            "ANSIBLE_NOCOLOR": "1",
        }
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    def content(self) -> dict[str, bytes]:
        files = [*self.packages.rglob("*.py"), *self.packages.rglob("*.pth")]
        return {str(file): file.read_bytes() for file in files}

    def report(self) -> dict[str, str]:
        found = json.loads((self.folder / "reports" / "old-host.json").read_text())
        assert found["python"] == str(self.python)
        return {one["id"]: one["state"] for one in found["patches"]}


def changes(done: subprocess.CompletedProcess[str]) -> int:
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    recap = re.search(r"changed=(\d+)", done.stdout)
    assert recap
    return int(recap[1])


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_status_then_adopt_then_unchanged_then_published(host: Host) -> None:
    published = host.content()
    model = host.packages / MODEL
    model.write_text(model.read_text().replace("\n\n\nEntryClass", BY_HAND))
    edited = host.content()

    status = host.repatch(patch_mode="status")
    assert changes(status) == 0
    assert host.content() == edited
    assert host.report()["kimi-k25-eagle3-delegation"] == "foreign"
    assert host.report()["eagle3-capture-layers"] == "needed"
    assert re.search(r"kimi-k25-eagle3-delegation +foreign +sglang 0\.5\.9", status.stdout)

    assert changes(host.repatch("--check", "--diff", patch_adopt=True)) > 0
    assert host.content() == edited

    applied = host.repatch(patch_adopt=True)
    assert changes(applied) > 0
    assert "has to be started again" in " ".join(applied.stdout.split())
    again = host.repatch(patch_adopt=True)
    assert changes(again) == 0
    assert "has to be started again" not in " ".join(again.stdout.split())
    assert set(host.report().values()) == {"applied", "disabled"}

    assert changes(host.repatch(patch_mode="revert")) > 0
    assert host.content() == published


def test_a_source_checkout(host: Host) -> None:
    """As in the images of SGLang: the environment only points to the sources."""
    checkout = host.folder / "sgl-workspace" / "sglang" / "python"
    checkout.mkdir(parents=True)
    shutil.move(host.packages / "sglang", checkout / "sglang")
    (host.packages / "sglang.pth").write_text(f"{checkout}\n")
    (next(host.packages.glob("sglang-*.dist-info")) / "RECORD").write_text("sglang.pth,,\n")
    before = (checkout / MODEL).read_text()
    assert changes(host.repatch()) > 0
    assert (checkout / MODEL).read_text().count("def get_embed_and_head") == 1
    assert changes(host.repatch()) == 0
    assert changes(host.repatch(patch_mode="revert")) > 0
    assert (checkout / MODEL).read_text() == before


def test_a_conflict_stops_the_run_and_nothing_is_changed(host: Host) -> None:
    model = host.packages / MODEL
    model.write_text(model.read_text().replace("EntryClass =", "EntryClasses ="))
    before = host.content()
    done = host.repatch()
    assert done.returncode != 0
    said = " ".join(done.stdout.split())
    assert (
        f"The patch kimi-k25-eagle3-delegation is in conflict with {model}: `EntryClass = ...` does not occur"
        in said
    )
    assert host.content() == before


def test_a_slip_in_a_variable_is_refused(host: Host) -> None:
    done = host.repatch(patch_mode="aply")
    assert done.returncode != 0
    assert "Choose one of: status, apply, revert" in done.stdout
