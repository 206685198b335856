"""What is said of models and of drafters that do not fit mends them, done as it is said."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.test_draft import Pair, pair
from tests.unit.test_model_check import model, said, shard, sharded

__all__ = ["model", "pair", "sharded"]

Mend = Callable[[Path], object]


@pytest.mark.parametrize(
    "mend",
    [
        # aria2c is done: its notes are gone, and the file is whole.
        lambda folder: (folder / "model.safetensors.aria2").unlink(),
        lambda folder: (
            (folder / "model.safetensors.aria2").unlink(),
            (folder / "model.safetensors").unlink(),
            shard(folder, "model.safetensors", "a", "b"),
        ),
    ],
)
def test_a_file_that_aria2_has_begun_is_finished_or_fetched_again(model: Path, mend: Mend) -> None:
    (model / "model.safetensors.aria2").touch()
    assert "let aria2c finish it, or remove both and fetch the file again" in said(model)[0]
    mend(model)
    assert said(model) == []


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"),
        lambda path: (path.unlink(), path.symlink_to("blobs/none")),
        lambda path: (path.unlink(), path.mkdir()),
        lambda path: path.write_text("<!DOCTYPE html><html>404</html>"),
    ],
)
@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_what_stands_in_place_of_a_file_is_removed_and_the_file_copied(
    model: Path, tmp_path_factory: pytest.TempPathFactory, name: str, spoil: Mend
) -> None:
    whole = tmp_path_factory.mktemp("published") / name
    shutil.copy(model / name, whole)
    spoil(model / name)
    assert any("remove it and copy or fetch the file itself" in one for one in said(model))
    if (model / name).is_dir():
        (model / name).rmdir()
    else:
        (model / name).unlink()
    shutil.copy(whole, model / name)
    assert said(model) == []


def test_a_file_that_holds_tensors_again_is_removed(model: Path) -> None:
    shard(model, "consolidated-copy.safetensors", "a")
    assert any("remove the files that do not belong to the model" in one for one in said(model))
    (model / "consolidated-copy.safetensors").unlink()
    assert said(model) == []


@pytest.mark.parametrize(
    "names",
    [
        ["model-00004-of-00003.safetensors"],
        ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"],
    ],
)
def test_weights_that_the_published_model_does_not_have_are_removed(sharded: Path, names: list[str]) -> None:
    for name in names:
        shard(sharded, name, name)
    assert any("remove those that the published model does not have" in one for one in said(sharded))
    for name in names:
        (sharded / name).unlink()
    assert said(sharded) == []


def told(pair: Pair, **changed: Any) -> tuple[str, bool]:
    """What is said of a pair, and whether it is refused."""
    result = pair.run(**changed)
    texts = [finding["text"] for finding in result.get("findings", [])]
    return "\n".join([*texts, result.get("msg", "")]), bool(result.get("failed"))


LONG = 131072


@pytest.mark.parametrize(
    ("spoil", "remedy", "mend"),
    [
        (
            lambda pair: pair.arguments.update(tp_size=7),
            "correct eagle3_server_tensor_parallel_size",
            lambda pair: pair.arguments.update(tp_size=8),
        ),
        (
            lambda pair: pair.arguments.update(context_length=2**30),
            "lower eagle3_server_context_length",
            lambda pair: pair.arguments.update(context_length=4096),
        ),
        (
            lambda pair: (
                pair.draft.update(max_position_embeddings=LONG),
                pair.environment.update(SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN="1"),
            ),
            f"leave it if that is what you want, or set eagle3_server_context_length: {LONG}",
            lambda pair: pair.arguments.update(context_length=LONG),
        ),
        (
            lambda pair: pair.draft.update(torch_dtype="float16", dtype="float16"),
            "set dtype: bfloat16 in eagle3_server_extra_arguments",
            lambda pair: pair.arguments.update(dtype="bfloat16"),
        ),
    ],
)
def test_settings_of_a_drafter_are_corrected(
    pair: Pair, spoil: Callable[[Pair], object], remedy: str, mend: Callable[[Pair], object]
) -> None:
    spoil(pair)
    pair.check()
    assert remedy in told(pair)[0]
    mend(pair)
    after, refused = told(pair)
    assert remedy not in after and not refused


def test_a_drafter_that_is_its_target_is_corrected(pair: Pair) -> None:
    pair.check()
    target, draft = (str(pair.folder / name) for name in ("target", "draft"))
    arguments = {"model_path": target, **pair.arguments}
    remedy = "correct eagle3_server_draft_model_path"
    assert remedy in told(pair, arguments={**arguments, "speculative_draft_model_path": target})[0]
    assert told(pair, arguments={**arguments, "speculative_draft_model_path": draft}) == ("", False)
