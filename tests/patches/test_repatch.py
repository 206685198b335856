"""playbooks/repatch.yml on installations that this project did not make."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.patches import playbook, trees
from tests.patches.playbook import changes, said

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
            "sglang_python": str(self.python),
            "patch_reports": str(self.folder / "reports"),
            **variables,
        }
        return playbook.run("repatch", "old-host,", *options, **given)

    def content(self) -> dict[str, bytes]:
        files = [*self.packages.rglob("*.py"), *self.packages.rglob("*.pth")]
        return {str(file): file.read_bytes() for file in files}

    def report(self) -> dict[str, str]:
        found = json.loads((self.folder / "reports" / "old-host.json").read_text())
        assert found["python"] == str(self.python)
        return {one["id"]: one["state"] for one in found["patches"]}


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

    shown = host.repatch("--check", "--diff", patch_adopt=True)
    assert changes(shown) > 0
    assert f"+++ after: {model}" in shown.stdout
    assert "+    # BEGIN blackwell patch: kimi-k25-eagle3-delegation" in shown.stdout
    assert host.content() == edited

    applied = host.repatch(patch_adopt=True)
    assert changes(applied) > 0
    assert "has to be started again" in said(applied)
    again = host.repatch("--check", "--diff", patch_adopt=True)
    assert changes(again) == 0
    assert "+++ after" not in again.stdout
    again = host.repatch(patch_adopt=True)
    assert changes(again) == 0
    assert "has to be started again" not in said(again)
    assert set(host.report().values()) == {"applied", "disabled"}

    assert changes(host.repatch(patch_mode="revert")) > 0
    assert host.content() == published


LEFT = """# BEGIN blackwell patch: left-the-folder
#-EntryClass = [KimiK25ForConditionalGeneration]
EntryClass = KimiK25ForConditionalGeneration
# END blackwell patch: left-the-folder
"""


def test_text_of_a_patch_that_left_the_folder_is_reported_and_taken_out(host: Host) -> None:
    """It stands where a patch of today belongs, and a part of it in a file that no patch of today names."""
    published = host.content()
    model, other = host.packages / MODEL, host.packages / "sglang" / "__init__.py"
    text = model.read_text().replace("EntryClass = [KimiK25ForConditionalGeneration]\n", LEFT)
    model.write_text(text)
    marker = "# {} blackwell patch: left-the-folder\n"
    other.write_text(other.read_text() + marker.format("BEGIN") + "LEFT = True\n" + marker.format("END"))
    before = host.content()

    status = host.repatch(patch_mode="status")
    assert changes(status) == 0
    assert host.report()["left-the-folder"] == "unknown"
    assert re.search(
        r"left-the-folder +unknown +sglang 0\.5\.9 +its text is in __init__\.py and 1 more", status.stdout
    )
    assert "patch_remove_unknown=true takes it out" in said(status)
    would = said(host.repatch(patch_mode="status", patch_remove_unknown=True))
    assert re.search(r"patch \S+ in place: [^\"]*left-the-folder", would)
    assert host.content() == before

    applied = host.repatch(patch_remove_unknown=True)
    assert changes(applied) > 0
    assert "has to be started again" in said(applied)
    assert "left-the-folder" not in model.read_text() + other.read_text()
    assert changes(host.repatch(patch_remove_unknown=True)) == 0
    assert "left-the-folder" not in host.report()

    other.write_text(other.read_text() + marker.format("BEGIN") + "LEFT = True\n" + marker.format("END"))
    before = host.content()
    assert changes(host.repatch("--check", patch_remove_unknown=True)) > 0
    assert host.content() == before
    assert changes(host.repatch(patch_mode="revert")) > 0
    assert host.content() == published


def path_file(host: Host, checkout: Path) -> None:
    """As in the images of SGLang: the environment only points to the sources."""
    (host.packages / "sglang.pth").write_text(f"{checkout}\n")
    (next(host.packages.glob("sglang-*.dist-info")) / "RECORD").write_text("sglang.pth,,\n")


def pip_editable(host: Host, checkout: Path) -> None:
    """What ``pip install --editable`` makes of it today."""
    shutil.rmtree(next(host.packages.glob("sglang-*.dist-info")))
    (checkout / "pyproject.toml").write_text(
        '[project]\nname = "sglang"\nversion = "0.5.9"\n'
        '[build-system]\nrequires = ["setuptools>=77"]\nbuild-backend = "setuptools.build_meta"\n'
        '[tool.setuptools]\npackages = ["sglang"]\n'
    )
    pip = [sys.executable, "-m", "pip", f"--python={host.python}"]
    subprocess.run([*pip, "install", "--quiet", "--no-deps", f"--editable={checkout}"], check=True)


@pytest.mark.parametrize("install", [path_file, pip_editable], ids=lambda install: install.__name__)
def test_a_source_checkout(host: Host, install: Callable[[Host, Path], None]) -> None:
    checkout = host.folder / "sgl-workspace" / "sglang" / "python"
    checkout.mkdir(parents=True)
    shutil.move(host.packages / "sglang", checkout / "sglang")
    install(host, checkout)
    before = (checkout / MODEL).read_text()
    assert changes(host.repatch()) > 0
    assert (checkout / MODEL).read_text().count("def get_embed_and_head") == 1
    assert changes(host.repatch()) == 0
    assert changes(host.repatch(patch_mode="revert")) > 0
    assert (checkout / MODEL).read_text() == before


@pytest.mark.quick
def test_a_conflict_stops_the_run_and_nothing_is_changed(host: Host) -> None:
    model = host.packages / MODEL
    model.write_text(model.read_text().replace("EntryClass =", "EntryClasses ="))
    before = host.content()
    done = host.repatch()
    assert done.returncode != 0
    assert (
        f"The patch kimi-k25-eagle3-delegation is in conflict with {model}: `EntryClass = ...` does not occur"
        in said(done)
    )
    assert host.content() == before


def sed(host: Host, expression: str, file: str) -> None:
    """The edit of the first deployers, with their tool."""
    path = host.packages / file
    before = path.read_bytes()
    subprocess.run(["sed", "--in-place", expression, str(path)], check=True)
    assert path.read_bytes() != before


def test_edits_with_sed_are_foreign_until_they_are_adopted(host: Host, tmp_path: Path) -> None:
    (tmp_path / "fresh").mkdir()
    fresh = Host(tmp_path / "fresh")
    switches = {"sm120_guards_enabled": {"flashinfer-allreduce-guard": True}}
    assert changes(fresh.repatch(**switches)) > 0

    sed(
        host,
        "s/supported_major_versions=\\[9, 10\\]/supported_major_versions=[9, 10, 12]/",
        "flashinfer/jit/comm.py",
    )
    guard = "sglang/srt/layers/communicator.py"
    sed(
        host,
        r"s/(_is_sm90_supported or _is_sm100_supported)/(_is_sm90_supported or _is_sm100_supported"
        r" or is_sm120_supported())/",
        guard,
    )
    sed(host, "s/^    is_sm100_supported,$/&\\n    is_sm120_supported,/", guard)
    methods = r"""/^EntryClass/i\
    def set_eagle3_layers_to_capture(self, layer_ids=None):\
        self.language_model.set_eagle3_layers_to_capture(layer_ids)\
\
    def get_embed_and_head(self):\
        return self.language_model.get_embed_and_head()\
\
"""
    sed(host, methods, MODEL)
    edited = host.content()

    assert changes(host.repatch(patch_mode="status", **switches)) == 0
    foreign = {name for name, state in host.report().items() if state == "foreign"}
    assert foreign == {
        "kimi-k25-eagle3-delegation",
        "flashinfer-trtllm-comm-sm120",
        "flashinfer-allreduce-guard",
    }
    assert host.content() == edited

    assert changes(host.repatch(**switches)) > 0
    for file in (MODEL, guard, "flashinfer/jit/comm.py"):
        assert (host.packages / file).read_bytes() == edited[str(host.packages / file)]

    assert changes(host.repatch(patch_adopt=True, **switches)) > 0
    for file in (MODEL, guard, "flashinfer/jit/comm.py"):
        assert (host.packages / file).read_bytes() == (fresh.packages / file).read_bytes()
    assert changes(host.repatch(patch_adopt=True, **switches)) == 0


def test_a_slip_in_a_variable_is_refused(host: Host) -> None:
    done = host.repatch(patch_mode="aply")
    assert done.returncode != 0
    assert "Choose one of: status, apply, revert" in done.stdout


def test_a_report_tells_of_every_host_that_can_be_looked_at(host: Host, tmp_path: Path) -> None:
    inventory = tmp_path / "hosts.yml"
    hosts = {"good": {"interpreter": str(host.python)}, "bad": {"interpreter": "/no/such/python"}}
    inventory.write_text(json.dumps({"all": {"hosts": hosts}}))
    given = {"sglang_python": "{{ interpreter }}", "patch_reports": str(tmp_path / "reports")}
    done = playbook.run("repatch", str(inventory), patch_mode="status", **given)
    assert done.returncode != 0
    assert "The interpreter /no/such/python does not work" in said(done)
    assert [file.name for file in (tmp_path / "reports").iterdir()] == ["good.json"]

    before = host.content()
    done = playbook.run("repatch", str(inventory), **given)
    assert done.returncode != 0
    assert "Lost or failed since it began: bad" in said(done)
    assert host.content() == before


def test_a_host_without_a_release_is_told_what_to_name(tmp_path: Path) -> None:
    done = playbook.run("repatch", "host,", patch_mode="status", sglang_stack_root=str(tmp_path / "none"))
    assert done.returncode != 0
    assert "No release of this project was accepted on this host" in said(done)
    assert "-e sglang_python=PATH" in said(done)
