"""The worked example of docs/examples/patches: a patch for another model of SGLang 0.5.9."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from blackwell import release
from blackwell.model_classes import SourceTree
from blackwell.patching import choice, definition, engine
from blackwell.target_contract import Contract, check

from tests.patches import playbook, trees
from tests.wheels import unpacked

EXAMPLES = trees.ROOT / "docs" / "examples" / "patches"
MODEL = "KimiVLForConditionalGeneration"
SPECULATION = {
    "speculative_algorithm": "EAGLE3",
    "speculative_num_steps": 3,
    "speculative_eagle_topk": 1,
    "speculative_num_draft_tokens": 4,
}


def contract(packages: Path) -> Contract:
    return check(SourceTree(packages), MODEL, SPECULATION)


@pytest.fixture(scope="module")
def patched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole SGLang 0.5.9 with the example in it."""
    folder = tmp_path_factory.mktemp("example") / "environment"
    python = trees.installation(folder, "0.5.9", EXAMPLES)
    shutil.copytree(
        unpacked("sglang", "0.5.9") / "sglang", trees.site_packages(folder) / "sglang", dirs_exist_ok=True
    )
    raw = definition.load(EXAMPLES)
    installation = engine.Installation(str(python), raw, {one["id"]: True for one in raw})
    outcome = engine.apply(installation, installation.select())
    assert [one.state for one in outcome.after] == [engine.APPLIED]
    return trees.site_packages(folder)


def test_the_contract_names_what_the_patch_adds() -> None:
    report = contract(unpacked("sglang", "0.5.9"))
    assert [one.name for one in report.missing] == ["get_embed_and_head", "set_eagle3_layers_to_capture"]
    assert all(one.offered_by == ("language_model (DeepseekV2ForCausalLM)",) for one in report.missing)
    assert report.pairs == ("set_embed_and_head",)


def test_nothing_is_missing_with_the_patch(patched: Path) -> None:
    assert contract(patched).missing == ()


def test_it_is_off_unless_asked_for(tmp_path: Path) -> None:
    python = trees.installation(tmp_path / "environment", "0.5.9", EXAMPLES)
    installation = engine.Installation(str(python), definition.load(EXAMPLES))
    assert [one.state for one in engine.status(installation, installation.select())] == [engine.DISABLED]


def steps() -> dict[int, list[tuple[str, str]]]:
    """Of each step of the page its blocks, as language and text."""
    parts = re.split(
        r"^\*\*(\d)\. ", (EXAMPLES / "README.md").read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    block = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    return {int(number): block.findall(text) for number, text in zip(parts[1::2], parts[2::2], strict=True)}


def test_the_page_shows_the_report_of_the_release() -> None:
    ((_, shown),) = steps()[1]
    reported = contract(unpacked("sglang", "0.5.9"))
    for one in reported.missing:
        assert one.name in shown
        assert all(offer in shown for offer in one.offered_by)
    assert f"With them goes {reported.pairs[0]}" in shown
    line = re.search(r"\((sglang/srt/\S+):(\d+)\)", shown)
    assert line
    text = (unpacked("sglang", "0.5.9") / line[1]).read_text(encoding="utf-8").splitlines()
    assert text[int(line[2]) - 1].startswith(f"class {MODEL}")


def test_the_command_of_the_page_prints_what_the_page_shows() -> None:
    ((_, shown),) = steps()[4]
    command, *expected = [line.strip() for line in shown.splitlines() if line.strip()]
    assert command.startswith("python -m ")
    done = subprocess.run(
        [sys.executable, *shlex.split(command)[1:]],
        cwd=trees.ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    # pip may say something of its own beside the last line.
    printed = [line.strip() for line in (done.stdout + done.stderr).splitlines()]
    assert [line for line in printed if line in expected] == expected


@pytest.mark.quick
def test_the_last_step_patches_an_installation_and_makes_a_release_of_its_own(tmp_path: Path) -> None:
    (_, commands), (language, text) = steps()[6]
    assert language == "yaml"
    own = str(tmp_path / "patches")
    for command in commands.replace("/etc/sglang-patches", own).splitlines():
        subprocess.run(shlex.split(command), cwd=trees.ROOT, check=True)
    variables = yaml.safe_load(text.replace("/etc/sglang-patches", own))

    python = trees.installation(tmp_path / "environment", "0.5.9", Path(own))
    before = {file: file.read_bytes() for file in trees.site_packages(tmp_path / "environment").rglob("*.py")}
    given = {"sglang_python": str(python), "patch_reports": str(tmp_path), **variables}
    assert playbook.changes(playbook.run("repatch", "host,", **given)) > 0
    # The report tells of the beginning of a run, so the second one has the states after the first.
    assert playbook.changes(playbook.run("repatch", "host,", **given)) == 0
    reported = json.loads((tmp_path / "host.json").read_text(encoding="utf-8"))["patches"]
    states = {one["id"]: one["state"] for one in reported}
    assert states["kimi-vl-eagle3-delegation"] == states["eagle3-draft-extend-v2"] == engine.APPLIED
    assert set(states) == {raw["id"] for raw in definition.load(Path(own))}
    assert set(states.values()) == {engine.APPLIED, engine.DISABLED}

    def planned(**values: Any) -> str:
        folders = choice.folders(values, trees.PATCHES)
        return release._patch_digest(folders, {"model": values.get("model_patches_enabled", {})})

    assert planned(**variables) != planned()
    assert planned(sglang_stack_patches=own) == planned(), "the patch is off until it is turned on"

    assert playbook.changes(playbook.run("repatch", "host,", patch_mode="revert", **given)) > 0
    assert {file: file.read_bytes() for file in before} == before
