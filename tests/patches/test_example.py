"""The worked example of docs/examples/patches: a patch for another model of SGLang 0.5.9."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from blackwell.model_classes import SourceTree
from blackwell.patching import definition, engine
from blackwell.target_contract import Contract, check

from tests.patches import trees
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
