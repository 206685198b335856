"""What the published SGLang asks of a target model, found by following its source."""

from __future__ import annotations

import functools
import shutil
from pathlib import Path

import pytest
from blackwell.contract.check import Contract, check
from blackwell.contract.source import SourceTree
from blackwell.errors import OperatorError

from tests.wheels import unpacked

KIMI = "KimiK25ForConditionalGeneration"
EAGLE3 = {
    "model_path": "/models/target",
    "speculative_algorithm": "EAGLE3",
    "speculative_draft_model_path": "/models/draft",
    "speculative_num_steps": 3,
    "speculative_eagle_topk": 1,
    "speculative_num_draft_tokens": 4,
    "tp_size": 8,
    "quantization": "modelopt_fp4",
    "attention_backend": "triton",
}
SPEC_V2 = {"SGLANG_ENABLE_SPEC_V2": "1"}


@functools.cache
def published(version: str) -> SourceTree:
    """A release as it is on PyPI; parsed once for all tests."""
    return SourceTree(unpacked("sglang", version))


def missing(contract: Contract) -> set[str]:
    return {one.name for one in contract.missing}


@pytest.fixture
def stock(tmp_path: Path) -> Path:
    """A copy of SGLang 0.5.9 that a test may edit."""
    return Path(shutil.copytree(unpacked("sglang", "0.5.9"), tmp_path / "tree"))


def edit(tree: Path, file: str, old: str, new: str) -> None:
    path = tree / "sglang" / "srt" / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_stock_0_5_9_lacks_the_two_methods_that_are_called() -> None:
    found = check(published("0.5.9"), KIMI, EAGLE3, SPEC_V2)
    assert missing(found) == {"set_eagle3_layers_to_capture", "get_embed_and_head"}
    assert found.pairs == ("set_embed_and_head",)
    message = found.message("apply the patch")
    assert "cuda_graph_runner.py:365" in message
    assert "eagle_worker_v2.py:194" in message
    assert message.split("To mend it: ")[1].startswith("apply the patch.")


def test_the_delegation_patch_gives_what_is_asked(stock: Path, repository: Path) -> None:
    methods = (repository / "files" / "patches" / "kimi-k25-eagle3-delegation" / "methods.py").read_text()
    edit(stock, "models/kimi_k25.py", "\nEntryClass =", f"\n{methods}\n\nEntryClass =")
    assert check(SourceTree(stock), KIMI, EAGLE3, SPEC_V2).missing == ()


def test_a_method_without_a_default_is_no_answer_to_a_call_without_arguments(
    stock: Path, repository: Path
) -> None:
    methods = (repository / "files" / "patches" / "kimi-k25-eagle3-delegation" / "methods.py").read_text()
    assert " = None" in methods
    edit(stock, "models/kimi_k25.py", "\nEntryClass =", f"\n{methods.replace(' = None', '')}\n\nEntryClass =")
    assert missing(check(SourceTree(stock), KIMI, EAGLE3, SPEC_V2)) == {"set_eagle3_layers_to_capture"}


def test_the_release_that_has_the_methods_passes() -> None:
    tree = published("0.5.10.post1")
    assert check(tree, KIMI, EAGLE3, SPEC_V2).missing == ()


def test_a_call_that_is_renamed_is_reported_by_its_new_name(stock: Path) -> None:
    """No name of a method is written down in the checker."""
    edit(stock, "speculative/eagle_worker_v2.py", "get_embed_and_head()", "hand_over_embedding()")
    found = missing(check(SourceTree(stock), KIMI, EAGLE3, SPEC_V2))
    assert found == {"set_eagle3_layers_to_capture", "hand_over_embedding"}


def test_without_speculation_nothing_is_asked_that_is_not_there() -> None:
    plain = {name: value for name, value in EAGLE3.items() if not name.startswith("speculative_")}
    assert check(published("0.5.9"), KIMI, plain, SPEC_V2).missing == ()


def test_a_class_that_the_release_does_not_have_is_named() -> None:
    with pytest.raises(OperatorError, match="has no model class Kimi99"):
        check(published("0.5.9"), "Kimi99", EAGLE3, SPEC_V2)
