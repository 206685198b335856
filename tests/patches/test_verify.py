"""playbooks/verify.yml on a release of this project that drifted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from blackwell.patching import definition, engine

from tests.patches import playbook, trees
from tests.patches.playbook import said
from tests.wheels import wheel

MODEL = "sglang/srt/models/kimi_k25.py"


class Host:
    """An accepted release, patched, on this machine; no rollout left a receipt."""

    def __init__(self, folder: Path, sglang: str) -> None:
        release = folder / "releases" / sglang
        self.python = trees.installation(release / "venv", sglang)
        self.packages = trees.site_packages(release / "venv")
        manifest = {"id": sglang, "python": str(self.python), "sglang_version": sglang}
        (release / "manifest.json").write_text(json.dumps(manifest))
        (folder / "current").symlink_to(release)
        settings = {
            "sglang_stack_root": str(folder),
            "rollout_receipts": str(folder / "receipts"),
            "eagle3_server_model_path": "/srv/models/target",
            "eagle3_server_draft_model_path": "/srv/models/drafter",
        }
        hosts = {"sglang_servers": {"hosts": {"host": settings}}}
        self.inventory = folder / "hosts.yml"
        self.inventory.write_text(yaml.safe_dump(hosts))
        installation = engine.Installation(str(self.python), definition.load(trees.PATCHES))
        engine.apply(installation, installation.select())

    def verify(self) -> str:
        done = playbook.run("verify", str(self.inventory))
        assert done.returncode != 0
        return said(done)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path, "0.5.9")


def test_what_is_as_it_was_left_goes_on_to_the_receipt(host: Host) -> None:
    found = host.verify()
    assert "No rollout was accepted on this host" in found
    assert "Refuse drifted patches" in found
    assert str(host.packages) not in found


def test_a_patched_file_that_somebody_edited(host: Host) -> None:
    model = host.packages / MODEL
    model.write_text(model.read_text().replace("import torch\n", "import torch  # edited\n", 1))
    found = host.verify()
    assert f"{model} was edited: it differs from the published file in more than our patches" in found
    assert "No rollout was accepted" in found, "what else there is, is said as well"


def test_text_of_a_patch_that_left_the_folder(host: Host) -> None:
    module = host.packages / "sglang" / "__init__.py"
    module.write_text(
        "# BEGIN blackwell patch: left-the-folder\nLEFT = True\n# END blackwell patch: left-the-folder\n"
    )
    found = host.verify()
    assert "left-the-folder is unknown: its text is in __init__.py, and no folder of patches has it" in found
    assert "-e patch_remove_unknown=true takes it out" in found


def test_patches_that_a_pip_install_took_away(host: Host) -> None:
    pip = [sys.executable, "-m", "pip", f"--python={host.python}", "install", "--quiet", "--no-deps"]
    subprocess.run([*pip, "--force-reinstall", "--no-compile", str(wheel("sglang", "0.5.9"))], check=True)
    found = host.verify()
    assert f"kimi-k25-eagle3-delegation is needed: {host.packages / MODEL} lacks it" in found
    assert "eagle3-capture-layers is needed" in found
    assert "To mend it: ansible-playbook playbooks/repatch.yml" in found


def test_our_text_in_a_release_that_has_it_and_what_is_superfluous(tmp_path: Path) -> None:
    """Somebody put the file of our 0.5.9 where 0.5.10 has its own."""
    later = Host(tmp_path, "0.5.10")
    model = later.packages / MODEL
    text = model.read_text()
    ours = (
        "    # BEGIN blackwell patch: kimi-k25-eagle3-delegation\n"
        "    limit = 1\n"
        "    # END blackwell patch: kimi-k25-eagle3-delegation\n"
    )
    model.write_text(text.replace("EntryClass", f"{ours}EntryClass"))
    found = later.verify()
    assert f"kimi-k25-eagle3-delegation is stale: {model}: our text is there, but no longer wanted" in found
    model.write_text(text)
    found = later.verify()
    assert "kimi-k25-eagle3-delegation: SGLang has the methods since 0.5.10." in found
    assert "No rollout was accepted" in found
