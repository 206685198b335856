"""The sandbox's models: the same bytes each time, in the shape that the deployment has to cope with."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer


def make(repository: Path, output: Path) -> dict[str, str]:
    corpus = repository / "files" / "engines" / "cpu" / "README.md"
    script = repository / "sandbox" / "make_models.py"
    command = [sys.executable, str(script), str(output), "--corpus", str(corpus)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    files = [path for path in output.rglob("*") if path.is_file()]
    return {str(path.relative_to(output)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("models")
    make(Path(__file__).resolve().parents[2], output)
    return output


def test_the_same_bytes_each_time(repository: Path, models: Path, tmp_path: Path) -> None:
    again = make(repository, tmp_path)
    assert again == {
        str(path.relative_to(models)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in models.rglob("*")
        if path.is_file()
    }
    assert {"target/config.json", "target/model.safetensors", "draft/model.safetensors"} <= set(again)


def test_the_draft_window_is_smaller_than_the_targets(models: Path) -> None:
    target = json.loads((models / "target" / "config.json").read_text())
    draft = json.loads((models / "draft" / "config.json").read_text())
    assert draft["max_position_embeddings"] < target["text_config"]["max_position_embeddings"]


def test_what_is_recited_has_no_token_twice(repository: Path, models: Path) -> None:
    sys.path.insert(0, str(repository / "sandbox"))
    try:
        import make_models
    finally:
        sys.path.pop(0)
    tokenizer = Tokenizer.from_file(str(models / "target" / "tokenizer.json"))
    said = tokenizer.encode(make_models.SENTENCE).ids + tokenizer.encode(make_models.TOOL_CALL).ids
    assert len(said) == len(set(said)) > 40
