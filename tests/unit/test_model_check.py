"""Whether a model's folder is whole: everything that a server without a network looks for has to be there."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from blackwell.errors import OperatorError
from blackwell.model_check import read_tensors
from blackwell.safetensors import read_header
from blackwell.weights import find_files, places, problems

from tests.models import Weights, write_safetensors
from tests.unit.drafters import DRAFT, TARGET


def said(folder: Path, **given: bool) -> list[str]:
    """The problems, without the folder of the test."""
    return [
        str(one).replace(f"{folder}/", "").replace(str(folder), "DIR")
        for one in problems(folder, find_files(folder), **given)
    ]


def write(folder: Path, name: str, content: Any) -> None:
    (folder / name).write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")


def shard(folder: Path, name: str, *tensors: str) -> Path:
    write_safetensors(folder / name, {tensor: Weights("F32", (2,)) for tensor in tensors})
    return folder / name


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A target of one file."""
    write(tmp_path, "config.json", TARGET)
    write(tmp_path, "tokenizer.json", {})
    shard(tmp_path, "model.safetensors", "a", "b")
    return tmp_path


@pytest.fixture
def sharded(model: Path) -> Path:
    """A target of three files and an index."""
    (model / "model.safetensors").unlink()
    names = [f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]
    for name in names:
        shard(model, name, f"{name}.w")
    write(model, "model.safetensors.index.json", {"weight_map": {f"{name}.w": name for name in names}})
    return model


def test_whole_models_are_whole(model: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    assert said(model) == []
    write(model, "generation_config.json", {})
    write(model, "modules.json", [])
    (model / "original").mkdir()
    (model / "original" / "params.json").write_text("no JSON of the model")
    (model / "assets").mkdir()
    (model / "LICENSE").touch()
    assert said(model) == []


def test_a_sharded_model_is_whole(sharded: Path) -> None:
    assert said(sharded) == []
    # Files of another form of the same model, which SGLang passes over.
    shard(sharded, "consolidated.safetensors", "a")
    shard(sharded, "consolidated-00001-of-00002.safetensors", "a")
    write(sharded, "consolidated.safetensors.index.json", {"weight_map": {"a": "not fetched"}})
    assert said(sharded) == []


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        (
            lambda folder: (folder / "model-00002-of-00003.safetensors").unlink(),
            ["has not all weights. Found: model-00002-of-00003.safetensors missing. Expected: the 3"],
        ),
        (
            lambda folder: (folder / "model.safetensors.index.json").unlink(),
            ["has weights in several files and no model.safetensors.index.json"],
        ),
        (
            lambda folder: [
                (folder / name).unlink()
                for name in ("model.safetensors.index.json", "model-00003-of-00003.safetensors")
            ],
            [
                "Found: model-00003-of-00003.safetensors missing. Expected: 3 files, as",
                "no model.safetensors.index.json",
            ],
        ),
        (
            lambda folder: shard(folder, "model-00004-of-00003.safetensors", "x"),
            ["do not belong together. Found: model-00004-of-00003.safetensors"],
        ),
        (
            lambda folder: [shard(folder, f"model-0000{at}-of-00002.safetensors", f"{at}") for at in (1, 2)],
            ["has weights that do not belong together. Found: model-*-of-2, model-*-of-3"],
        ),
        (
            lambda folder: shard(folder, "model-00002-of-00003.safetensors", "another"),
            ["has not all tensors. Found: model-00002-of-00003.safetensors.w in no file (1 in all)"],
        ),
        (
            lambda folder: write(folder, "model.safetensors.index.json", {"weight_map": {"a": 3}}),
            ["index.json is not readable. Found: no weight_map"],
        ),
        (lambda folder: write(folder, "model.safetensors.index.json", {}), ["index.json is not readable"]),
        (
            lambda folder: write(folder, "model.safetensors.index.json", "[]"),
            ["index.json holds no JSON object"],
        ),
        (
            lambda folder: write(folder, "model.safetensors.index.json", '{"weight_map": {"a"'),
            ["index.json is not JSON"],
        ),
    ],
)
def test_shards_that_are_not_all_there_are_named(
    sharded: Path, spoil: Callable[[Path], object], expected: list[str]
) -> None:
    spoil(sharded)
    found = said(sharded)
    assert len(found) == len(expected), found
    assert all(part in one for part, one in zip(expected, found))


@pytest.mark.parametrize(
    ("names", "missing"),
    [
        (["model-1-of-3.safetensors"], "model-2-of-3.safetensors, model-3-of-3.safetensors missing"),
        (["w-00000-of-00002.safetensors"], "w-00001-of-00002.safetensors missing"),
        (["w-00000-of-00002.safetensors", "w-00001-of-00002.safetensors"], ""),
        (["w-00001-of-00001.safetensors"], ""),
        (["pytorch_model-00001-of-00002.bin"], "pytorch_model-00002-of-00002.bin missing"),
        (["model-00002-of-99999999.safetensors"], "model-00000001-of-99999999.safetensors, "),
    ],
)
def test_names_say_how_many_there_are(model: Path, names: list[str], missing: str) -> None:
    (model / "model.safetensors").unlink()
    for name in names:
        shard(model, name, name)
    found = [one for one in said(model) if "has not all weights" in one]
    assert bool(found) is bool(missing)
    assert not found or missing in found[0]


def test_a_tensor_in_two_files_is_named(model: Path) -> None:
    shard(model, "more.safetensors", "b", "c")
    assert "has tensors twice" in said(model)[0]
    assert "b in model.safetensors and in more.safetensors" in said(model)[0]
    with pytest.raises(OperatorError, match="has tensors twice"):
        read_tensors(model)


def test_weights_in_a_folder_below_are_not_loaded(model: Path) -> None:
    (model / "below").mkdir()
    (model / "model.safetensors").rename(model / "below" / "model.safetensors")
    assert said(model)[0].startswith("DIR has no weights.")


@pytest.mark.parametrize(
    "name",
    [
        "config.json",
        "generation_config.json",
        "tokenizer_config.json",
        "hf_quant_config.json",
        "preprocessor_config.json",
        "special_tokens_map.json",
        "tokenizer.json",
        "chat_template.json",
        "anything.json",
    ],
)
@pytest.mark.parametrize(
    "content", [b'{"cut": "of', b"\xef\xbb\xbf{}", b"\xff\xfe{\x00}\x00", b"{} {}", b"\x00"]
)
def test_each_json_parses_or_is_named(model: Path, name: str, content: bytes) -> None:
    (model / name).write_bytes(content)
    (message,) = said(model)
    assert message.startswith(f"{name} is not JSON. Found: ")


@pytest.mark.parametrize(
    "name", ["model.safetensors", "config.json", "tokenizer.json", "hf_quant_config.json"]
)
@pytest.mark.parametrize(
    ("spoil", "found"),
    [
        (lambda path: path.write_bytes(b""), "an empty file"),
        (lambda path: path.mkdir(), "a folder"),
        (lambda path: path.symlink_to("blobs/none"), "a link to blobs/none, where nothing is"),
        (
            lambda path: path.write_text(
                "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
            ),
            "a pointer of git-lfs",
        ),
        (lambda path: path.write_text("\n<!DOCTYPE html><html>404</html>"), "a page of a web server"),
        (lambda path: path.write_text('<?xml version="1.0"?><Error/>'), "a page of a web server"),
    ],
)
def test_what_stands_in_place_of_a_file_is_named(
    model: Path, name: str, spoil: Callable[[Path], object], found: str
) -> None:
    (model / name).unlink(missing_ok=True)
    spoil(model / name)
    first = next(one for one in said(model) if one.startswith(name))
    assert f"{name} is not the file that it should be. Found: {found}." in first


@pytest.mark.parametrize(
    "names",
    [
        ["tokenizer.json"],
        ["tokenizer.model"],
        ["tiktoken.model"],
        ["vocab.json", "merges.txt"],
        ["qwen.tiktoken"],
        ["tekken.json"],
    ],
)
def test_a_tokenizer_of_any_kind_is_one(model: Path, names: list[str]) -> None:
    (model / "tokenizer.json").unlink()
    assert "DIR has no tokenizer." in said(model)[0]
    for name in names:
        write(model, name, "{}")
    assert said(model) == []
    if len(names) > 1:
        (model / names[1]).unlink()
        assert "has no tokenizer" in said(model)[0]


def test_a_drafter_and_a_server_with_a_tokenizer_elsewhere_need_none(model: Path) -> None:
    (model / "tokenizer.json").unlink()
    assert said(model, tokenizer=False) == []
    write(model, "config.json", DRAFT)
    assert said(model) == []
    assert len(said(model, tokenizer=True)) == 1


def test_the_file_that_the_tokenizers_own_code_names_is_one(model: Path) -> None:
    (model / "tokenizer.json").unlink()
    write(model, "tokenizer_config.json", {"auto_map": {"AutoTokenizer": ["own.Words", None]}})
    write(model, "own.py", "VOCAB_FILES_NAMES = {'vocab_file': 'words.dat'}\nclass Words: ...\n")
    assert "Expected: words.dat." in said(model)[0]
    write(model, "words.dat", "a b c")
    assert said(model) == []


@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json", "preprocessor_config.json"])
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("AutoConfig", "someone/other--configuration_kimi.KimiConfig"),
        ("AutoTokenizer", ["someone/other--configuration_kimi.KimiConfig", None]),
        ("AutoProcessor", "someone/other--configuration_kimi.KimiConfig"),
        ("AutoImageProcessor", [None, "someone/other--configuration_kimi.KimiConfig"]),
    ],
)
def test_code_of_another_repository_is_refused_until_it_is_in_the_folder(
    model: Path, file: str, key: str, value: Any
) -> None:
    config = json.loads((model / file).read_text()) if (model / file).exists() else {}
    write(model, file, {**config, "auto_map": {key: value}})
    (message,) = said(model)
    assert message.startswith(f"{file} takes code from another repository")
    # What the remedy says, done.
    write(
        model,
        file,
        json.loads(json.dumps({**config, "auto_map": {key: value}}).replace("someone/other--", "")),
    )
    (message,) = said(model)
    assert message.startswith(
        f"DIR has not all code that {file} names. Found: configuration_kimi.py: No such file"
    )
    write(model, "configuration_kimi.py", "from .beside import x\nclass KimiConfig: ...\n")
    (message,) = said(model)
    assert "Found: beside.py: No such file or directory" in message
    write(model, "beside.py", "x = 1\n")
    assert said(model) == []


@pytest.mark.parametrize("value", ["configuration", "a.b.c", "../x.Y", "", 3, {"a": 1}])
def test_code_that_is_named_wrongly_is_refused(model: Path, value: Any) -> None:
    write(model, "config.json", {**TARGET, "auto_map": {"AutoConfig": value}})
    assert "auto_map in config.json means nothing." in said(model)[0]


def test_code_without_its_class_is_refused(model: Path) -> None:
    write(model, "config.json", {**TARGET, "auto_map": {"AutoConfig": "configuration_kimi.KimiConfig"}})
    write(model, "configuration_kimi.py", "class Kimi")
    assert "configuration_kimi.py has no KimiConfig, which config.json names." in said(model)[0]


def test_code_of_model_classes_is_not_needed(model: Path) -> None:
    """SGLang has its own, and quantized models are published without."""
    write(
        model, "config.json", {**TARGET, "auto_map": {"AutoModelForCausalLM": "modeling_deepseek.Deepseek"}}
    )
    assert said(model) == []


def header(folder: Path, entries: Any, data: int) -> Path:
    text = (entries if isinstance(entries, str) else json.dumps(entries)).encode()
    path = folder / "model.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(data))
    return path


def tensor(dtype: str, shape: Any, start: Any, end: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


@pytest.mark.parametrize(
    ("entries", "data", "found"),
    [
        (
            {"d2t": tensor("I64", [4], 0, 31)},
            31,
            "another length than its shape. Found: d2t has 31 bytes. Expected: 32",
        ),
        ({"a": tensor("BF16", [3], 0, 3)}, 3, "a has 3 bytes. Expected: 6 bytes for BF16 [3]"),
        ({"a": tensor("F8_E4M3", [2, 2], 0, 8)}, 8, "a has 8 bytes. Expected: 4 bytes"),
        ({"a": tensor("F32", [1], 0, 4), "b": tensor("F32", [1], 2, 6)}, 6, "overlap, or a gap between them"),
        (
            {"a": tensor("F32", [1], 0, 4), "b": tensor("F32", [1], 8, 12)},
            12,
            "overlap, or a gap between them",
        ),
        ({"a": tensor("F32", [1], 4, 8)}, 8, "Found: a begins at byte"),
        ({"a": tensor("F32", [1], 4, 0)}, 4, "its header is not readable"),
        ({"a": tensor("F32", [-1], 0, 4)}, 4, "its header is not readable"),
        ({"a": tensor("F32", [True], 0, 4)}, 4, "its header is not readable"),
        ({"a": tensor("F32", "1", 0, 4)}, 4, "its header is not readable"),
        ({"a": tensor("F32", [1], 0, 4.0)}, 4, "its header is not readable"),
        ({"a": tensor("F32", [1], -4, 0)}, 4, "its header is not readable"),
        ({"a": []}, 0, "its header is not readable"),
        ("[" * 100_000, 0, "its header is not readable"),
        ({"a": tensor("F32", [1], 0, 10**30)}, 4, "is cut off"),
        ({}, 1, "is longer than its header says"),
    ],
)
def test_headers_are_held_against_the_file_and_shapes_against_bytes(
    tmp_path: Path, entries: Any, data: int, found: str
) -> None:
    with pytest.raises(OperatorError) as caught:
        read_header(header(tmp_path, entries, data))
    assert found in str(caught.value)


def test_types_that_are_not_known_have_any_length(tmp_path: Path) -> None:
    path = header(tmp_path, {"a": tensor("F2_NEW", [3], 0, 5), "b": tensor("F4", [4], 5, 7)}, 7)
    assert [one.known for one in read_header(path).values()] == [False, True]


def test_a_file_that_is_cut_off_after_its_header_was_read_is_named(tmp_path: Path) -> None:
    path = header(tmp_path, {"d2t": tensor("I64", [4], 0, 32)}, 32)
    found = read_header(path)["d2t"]
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(OperatorError, match="is cut off"):
        found.values()
    path.unlink()
    with pytest.raises(OperatorError, match="cannot be read"):
        found.values()


def test_a_drafter_needs_no_code_of_a_tokenizer_that_it_does_not_read(model: Path) -> None:
    write(model, "tokenizer_config.json", {"auto_map": {"AutoTokenizer": ["tokenization_kimi.Words", None]}})
    write(model, "processor_config.json", {"auto_map": {"AutoProcessor": "someone/other--kimi.Processor"}})
    assert len(said(model)) == 2
    assert said(model, tokenizer=False) == []
    write(model, "config.json", {**DRAFT, "auto_map": {"AutoConfig": "own.C", "AutoTokenizer": "own.T"}})
    assert len(said(model, tokenizer=False)) == 1
    write(model, "own.py", "class C: ...\n")
    assert said(model, tokenizer=False) == []


def test_without_code_of_its_own_none_is_needed(model: Path) -> None:
    write(
        model,
        "config.json",
        {**TARGET, "auto_map": {"AutoConfig": "someone/other--configuration.Config", "AutoTokenizer": "a.B"}},
    )
    assert said(model, code=False) == []
    assert len(said(model)) == 2


def test_a_tokenizer_that_its_own_code_does_not_read_is_none(model: Path) -> None:
    """The case of a folder with tokenizer.json, where the code opens tiktoken.model alone."""
    write(model, "tokenizer_config.json", {"auto_map": {"AutoTokenizer": ["own.Words", None]}})
    write(model, "own.py", "VOCAB_FILES_NAMES = {'vocab_file': './tiktoken.model'}\nclass Words: ...\n")
    (message,) = said(model)
    assert message.startswith("DIR has not the tokenizer that its own code reads.")
    assert "Expected: tiktoken.model." in message
    assert said(model, code=False) == []
    write(model, "tiktoken.model", "a")
    assert said(model) == []


def test_a_fast_tokenizer_of_its_own_takes_its_one_file(model: Path) -> None:
    write(model, "tokenizer_config.json", {"auto_map": {"AutoTokenizer": ["slow.Words", "fast.Words"]}})
    write(model, "slow.py", "VOCAB_FILES_NAMES = {'vocab_file': 'words.model'}\nclass Words: ...\n")
    write(
        model,
        "fast.py",
        "VOCAB_FILES_NAMES = {'vocab_file': 'words.model', 'tokenizer_file': 'tokenizer.json'}\nclass Words: ...\n",
    )
    assert said(model) == []
    (model / "tokenizer.json").unlink()
    assert "Expected: words.model or tokenizer.json." in said(model)[0]


def test_a_gguf_file_is_no_weight_of_a_folder(model: Path) -> None:
    (model / "model.safetensors").rename(model / "model-Q4_K_M.gguf")
    assert said(model)[0].startswith(
        "DIR has no weights. Found: config.json, model-Q4_K_M.gguf, tokenizer.json."
    )


def test_a_download_that_aria2_has_not_finished_is_named(model: Path) -> None:
    """aria2 makes the whole file at once, and its header comes early."""
    write(model, "model.safetensors.aria2", "notes")
    assert said(model)[0].startswith("model.safetensors is not the file that it should be.")
    (model / "model.safetensors.aria2").unlink()
    assert said(model) == []


def test_a_cache_of_the_hub_names_its_snapshots(tmp_path: Path) -> None:
    snapshot = tmp_path / "snapshots" / "0123456789abcdef"
    (tmp_path / "blobs").mkdir()
    snapshot.mkdir(parents=True)
    for name, content in {"config.json": json.dumps(TARGET), "tokenizer.json": "{}"}.items():
        write(tmp_path / "blobs", f"blob-of-{name}", content)
        (snapshot / name).symlink_to(f"../../blobs/blob-of-{name}")
    shard(tmp_path / "blobs", "weights", "a")
    (snapshot / "model.safetensors").symlink_to("../../blobs/weights")
    (message,) = [one for one in said(tmp_path) if "cache of huggingface_hub" in one]
    assert "snapshots/0123456789abcdef" in message
    assert said(snapshot) == []
    # What makes them readable has to reach where the links lead.
    assert places(snapshot, ["config.json"]) == [str(snapshot), str(tmp_path / "blobs")]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("own.py", "<!DOCTYPE html><html>Config</html>"),
        ("own.py", "version https://git-lfs.github.com/spec/v1\noid sha256:Config\n"),
        ("tokenizer.json", '{"error": "Repository not found"}'),
        ("tokenizer.json", '\n{ "detail": "Not authenticated" }'),
    ],
)
def test_an_answer_of_a_server_is_neither_code_nor_json_of_a_model(
    model: Path, name: str, content: str
) -> None:
    write(model, "config.json", {**TARGET, "auto_map": {"AutoConfig": "own.Config"}})
    write(model, "own.py", "class Config: ...\n")
    write(model, "__init__.py", "")
    assert said(model) == []
    write(model, name, content)
    assert said(model)[0].startswith(f"{name} is not the file that it should be.")


def test_notes_of_macos_are_no_weights(model: Path) -> None:
    (model / "._model.safetensors").write_bytes(b"Mac OS X")
    assert said(model) == []
    assert sorted(read_tensors(model)) == ["a", "b"]
