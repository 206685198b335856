"""Files of models and answers of a hub, damaged in every way: a value or an error that an operator can read."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from blackwell.draft import Case, Finding, Release, check, entry_classes, read_model
from blackwell.draft_class import UnreadError, read_class
from blackwell.draft_model import Model
from blackwell.errors import OperatorError
from blackwell.hub import read_listing
from blackwell.model_check import read_index, read_tensors
from blackwell.safetensors import Tensor, read_header
from blackwell.weights import find_files, problems, read_manifest
from hypothesis import given
from hypothesis import strategies as st

from tests.models import Weights, write_safetensors
from tests.unit.attack.inputs import ODD_FIELDS, attack, hostile, value_or_operator_error
from tests.unit.drafters import ARGUMENTS, DRAFT, TARGET, TENSORS, published
from tests.wheels import unpacked


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """One folder for all inputs: making one each time would take most of the time."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        yield Path(name)


def sample() -> bytes:
    with tempfile.TemporaryDirectory() as name:
        write_safetensors(Path(name) / "one", {key: TENSORS[key] for key in ("d2t", "t2d", "norm.weight")})
        return (Path(name) / "one").read_bytes()


SAMPLE = sample()
LENGTH = int.from_bytes(SAMPLE[:8], "little")
# The same with a header that was changed, and a length that fits it.
CHANGED_HEADERS = hostile([SAMPLE[8 : 8 + LENGTH]]).map(
    lambda header: len(header).to_bytes(8, "little") + header + SAMPLE[8 + LENGTH :]
)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(ODD_FIELDS)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


def changes(config: dict[str, object]) -> st.SearchStrategy[dict[str, object]]:
    """A configuration with some values replaced by any JSON, and some left out."""
    places = (
        "text_config",
        "llm_config",
        "language_config",
        "thinker_config",
        "rope_scaling",
        "eagle_config",
    )
    keys = sorted({*config, *places, "head_dim", "num_aux_hidden_states", "kv_lora_rank", "fc_norm", "bias"})
    put = st.dictionaries(st.sampled_from(keys), JSON | st.just(TARGET["text_config"]), max_size=3)
    return st.builds(
        lambda new, gone: {key: value for key, value in {**config, **new}.items() if key not in gone},
        put,
        st.sets(st.sampled_from(keys), max_size=2),
    )


@attack
@given(hostile([SAMPLE]) | CHANGED_HEADERS)
def test_headers_of_weights(folder: Path, content: bytes) -> None:
    path = folder / "header.safetensors"
    path.write_bytes(content)
    found = value_or_operator_error(lambda: read_header(path))
    if isinstance(found, dict):
        for tensor in found.values():
            assert isinstance(tensor, Tensor)
            # What is accepted lies in the file, and can be read as what it says.
            assert tensor.start + tensor.size <= len(content)
            if tensor.whole:
                elements = 1
                for dimension in tensor.shape:
                    elements *= dimension
                assert len(tensor.values()) == elements


@attack
@given(
    changes(TARGET), changes(TARGET["text_config"]), changes(DRAFT), st.sampled_from(["0.5.9", "0.5.14", ""])
)
def test_configurations_of_both_models(
    folder: Path,
    target: dict[str, object],
    text: dict[str, object],
    draft: dict[str, object],
    version: str,
) -> None:
    if isinstance(target.get("text_config"), dict):
        target = {**target, "text_config": text}
    models = []
    for name, config in (("target", target), ("draft", draft)):
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "config.json").write_text(json.dumps(config), encoding="utf-8")
        if name == "draft" and not (folder / name / "model.safetensors").exists():
            write_safetensors(folder / name / "model.safetensors", TENSORS)
        models.append(value_or_operator_error(lambda: read_model(folder / name, tensors=name == "draft")))  # noqa: B023
    if not any(isinstance(model, OperatorError) for model in models):
        release = published(version) if version else Release()
        found = value_or_operator_error(lambda: check(Case(models[0], models[1], ARGUMENTS, {}, release)))
        if isinstance(found, list):
            for finding in found:
                assert isinstance(finding, Finding)
                assert finding.problem and finding.found and finding.expected and finding.remedy
                # Nothing that was not found is a 0 or less.
                assert "tokens 0 to -" not in finding.expected
                assert "hidden_size 0" not in finding.found and "None" not in finding.found


@attack
@given(
    hostile(
        [
            json.dumps(TARGET).encode(),
            json.dumps({"weight_map": {"a": "model-00001-of-00002.safetensors"}}).encode(),
            json.dumps({"auto_map": {"AutoTokenizer": ["own.Words", None]}}).encode(),
        ]
    ),
    st.sampled_from(
        [
            "config.json",
            "model.safetensors.index.json",
            "tokenizer_config.json",
            "own.py",
            "hf_quant_config.json",
        ]
    ),
)
def test_files_beside_the_weights(folder: Path, content: bytes, name: str) -> None:
    model = folder / "model"
    model.mkdir(exist_ok=True)
    for path in model.iterdir():
        path.unlink()
    (model / "config.json").write_text(json.dumps({**TARGET, "auto_map": {"AutoConfig": "own.Words"}}))
    (model / "own.py").write_text("class Words: ...\n")
    (model / "model.safetensors").write_bytes(SAMPLE)
    (model / name).write_bytes(content)
    for problem in problems(model, find_files(model)):
        assert problem.problem and (problem.found or problem.expected) and problem.remedy
    value_or_operator_error(lambda: read_index(model / name))
    value_or_operator_error(lambda: read_tensors(model))
    value_or_operator_error(lambda: read_model(model, tensors=True))


@attack
@given(
    hostile(
        [
            json.dumps(
                {"config.json": {"size": 2, "sha256": "f" * 64}, "a": {"size": None, "sha256": ""}}
            ).encode()
        ]
    )
    | st.dictionaries(st.text(max_size=9), JSON, max_size=3).map(lambda value: json.dumps(value).encode())
)
def test_answers_of_a_hub(content: bytes) -> None:
    found = value_or_operator_error(lambda: read_listing(content.decode("utf-8", "replace"), "a/b"))
    if isinstance(found, dict):
        assert found
        for name, entry in found.items():
            assert ".." not in Path(name).parts and not name.startswith("/")
            assert entry["size"] is None or (type(entry["size"]) is int and entry["size"] >= 0)
            assert entry["sha256"] == "" or len(entry["sha256"]) == 64


@attack
@given(
    hostile(
        [
            json.dumps(
                {
                    "path": "/m",
                    "source": {},
                    "files": {"config.json": {"size": 2, "changed": 3, "sha256": "f" * 64}},
                }
            ).encode()
        ]
    )
)
def test_records_of_a_model(folder: Path, content: bytes) -> None:
    path = folder / "record.json"
    path.write_bytes(content)
    found = read_manifest(path)
    assert all(type(file.size) is int for file in found.files.values())
    assert json.loads(found.text())["path"] == found.path


MODELS = unpacked("sglang", "0.5.9") / "sglang" / "srt" / "models"
SOURCE = (MODELS / "llama_eagle3.py").read_bytes()


@attack
@given(hostile([SOURCE, SOURCE[-60:], SOURCE[-4000:]]))
def test_sources_of_a_release(folder: Path, content: bytes) -> None:
    path = folder / "llama_eagle3.py"
    path.write_bytes(content)
    if not (folder / "llama.py").exists():
        (folder / "llama.py").write_bytes((MODELS / "llama.py").read_bytes())
    try:
        takes = read_class(path, Model("/d", DRAFT, {}, {}), 3, uses_states=True)
        assert takes.resolve("midlayer.mlp.up_proj.weight") or takes.resolve("layers.0.mlp.up_proj.weight")
    except UnreadError as error:
        assert str(error)
    with contextlib.suppress(SyntaxError, ValueError):
        assert all(name.isidentifier() for name in entry_classes(content.decode("utf-8", "replace")))


def test_the_sample_is_whole(folder: Path) -> None:
    path = folder / "whole.safetensors"
    path.write_bytes(SAMPLE)
    assert read_header(path)["t2d"].shape == Weights("BOOL", (32,)).shape
