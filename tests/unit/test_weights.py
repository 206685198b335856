"""The files of a model: what is missing, cut off or not what was recorded, and what is not read again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from blackwell.errors import OperatorError
from blackwell.files import sha256
from blackwell.progress import progress
from blackwell.safetensors import read_header
from blackwell.weights import find_files

from tests.models import Weights, write_model, write_safetensors

Run = Callable[..., dict[str, Any]]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Two shards, and the index that names them."""
    folder = write_model(tmp_path / "model", {"architectures": ["A"]}, {})
    (folder / "model.safetensors").unlink()
    for number in (1, 2):
        write_safetensors(
            folder / f"model-0000{number}-of-00002.safetensors", {f"{number}.w": Weights("F32", (3,))}
        )
    shards = {f"{number}.w": f"model-0000{number}-of-00002.safetensors" for number in (1, 2)}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    (folder / "tokenizer.json").write_text("{}")
    return folder


@pytest.fixture
def check(tmp_path: Path, model: Path, run_module: Run) -> Run:
    def run(check: bool = False, **given: Any) -> dict[str, Any]:
        return run_module(
            "model_files",
            {"path": str(model), "manifest": str(tmp_path / "state" / "model.json"), **given},
            check=check,
            diff=True,
        )

    return run


def digests(tmp_path: Path) -> dict[str, str]:
    files = json.loads((tmp_path / "state" / "model.json").read_text())["files"]
    return {name: entry["sha256"] for name, entry in files.items()}


def test_a_model_is_recorded_once(check: Run, tmp_path: Path) -> None:
    first, second = check(), check()
    assert first["changed"] and not second["changed"]
    assert (second["files"], second["unread"]) == (5, 0)
    assert all(len(digest) == 64 for digest in digests(tmp_path).values())
    assert list((tmp_path / "state").iterdir()) == [tmp_path / "state" / "model.json"]


def test_check_mode_says_so_and_writes_nothing(check: Run, tmp_path: Path) -> None:
    assert check(check=True)["changed"]
    assert not (tmp_path / "state").exists()
    check()
    assert not check(check=True)["changed"]


def test_a_read_only_model_is_fine(check: Run, model: Path) -> None:
    for path in (*model.iterdir(), model):
        path.chmod(0o555)
    assert check()["changed"]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            lambda model: model.rename(model.with_name("elsewhere")),
            "There is no model in {0}. Found: no such folder. Expected: a folder with config.json and the weights. "
            "To mend it: put the model there or mount it, or correct eagle3_server_model_path or "
            "eagle3_server_draft_model_path.",
        ),
        (
            lambda model: (model / "config.json").unlink(),
            "{0} has no config.json. Expected: a model as it is published, with its configuration. "
            "To mend it: finish copying the model, or correct eagle3_server_model_path or "
            "eagle3_server_draft_model_path.",
        ),
        (
            lambda model: (model / "config.json").write_text("{"),
            "{0}/config.json is not JSON. Found: Expecting property name enclosed in double quotes: line 1 column 2 "
            "(char 1), in 1 bytes. Expected: JSON in UTF-8. To mend it: copy the file again.",
        ),
        (
            lambda model: (model / "config.json").write_text("[]"),
            "{0}/config.json holds no JSON object. Found: a list. Expected: a JSON object. To mend it: copy the file "
            "again.",
        ),
        (
            lambda model: (model / "model-00002-of-00002.safetensors").unlink(),
            "{0} has not all weights. Found: model-00002-of-00002.safetensors missing. Expected: the 2 files that "
            "model.safetensors.index.json names. To mend it: finish copying the model.",
        ),
        (
            lambda model: os.truncate(model / "model-00002-of-00002.safetensors", 110),
            "{0}/model-00002-of-00002.safetensors is cut off. Found: 110 bytes. Expected: 118 bytes, by its header. "
            "To mend it: copy the file again, from where it is whole.",
        ),
        (
            lambda model: os.truncate(model / "model-00002-of-00002.safetensors", 20),
            "{0}/model-00002-of-00002.safetensors is cut off. Found: 20 bytes. Expected: a header of 98 bytes and the "
            "weights after it. To mend it: copy the file again, from where it is whole.",
        ),
        (
            lambda model: (model / "model-00002-of-00002.safetensors").write_text(
                "version https://git-lfs.github.com"
            ),
            "{0}/model-00002-of-00002.safetensors is not the file that it should be. Found: a pointer of git-lfs. "
            "Expected: a whole file, as it is published. To mend it: remove it and copy or fetch the file itself (with "
            "git-lfs: git lfs pull).",
        ),
        (
            lambda model: os.truncate(model / "model-00002-of-00002.safetensors", 200),
            "{0}/model-00002-of-00002.safetensors is longer than its header says. Found: 200 bytes. Expected: 118 "
            "bytes. To mend it: copy the file again, from where it is whole.",
        ),
        (
            lambda model: [path.unlink() for path in model.glob("*.safetensors*")],
            "{0} has no weights. Found: config.json, tokenizer.json. Expected: files *.safetensors, "
            "*.bin or *.pt, as SGLang loads no others from a folder. To mend it: finish copying the model.",
        ),
    ],
    ids=[
        "no folder",
        "no config",
        "broken config",
        "another JSON",
        "missing shard",
        "truncated shard",
        "truncated header",
        "pointer of git-lfs",
        "longer file",
        "no weights",
    ],
)
def test_what_cannot_be_loaded_is_refused(
    check: Run, model: Path, spoil: Callable[[Path], object], message: str
) -> None:
    spoil(model)
    result = check()
    assert result["failed"]
    assert result["msg"] == message.format(model)


def test_all_problems_are_named_at_once(check: Run, model: Path) -> None:
    (model / "config.json").unlink()
    os.truncate(model / "model-00001-of-00002.safetensors", 20)
    assert [line.split(".")[0] for line in check()["msg"].splitlines()] == [
        f"{model} has no config",
        f"{model}/model-00001-of-00002",
    ]


def spoil_one_byte(path: Path) -> str:
    """Change the last byte of a file, and its time."""
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(0, 0))
    return sha256(path)


def test_another_content_than_recorded_is_refused(check: Run, model: Path, tmp_path: Path) -> None:
    check()
    name = "model-00001-of-00002.safetensors"
    before, now = digests(tmp_path)[name], spoil_one_byte(model / name)
    result = check()
    assert result["msg"] == (
        f"{model}/{name} is not the file that was recorded. Found: SHA-256 {now}. Expected: {before}. To mend it: copy "
        f"it again; if it was replaced on purpose, remove the record, {tmp_path}/state/model.json."
    )
    # Nothing of it is taken over.
    assert digests(tmp_path)[name] == before


def test_a_missing_and_a_shorter_file_are_seen_without_reading(check: Run, model: Path) -> None:
    (model / "LICENSE").write_text("free")
    check()
    (model / "config.json").write_text('{"architectures":["A"]}')
    (model / "LICENSE").unlink()
    message = check(verify="sizes")["msg"]
    assert (
        f"{model}/config.json is not the file that was recorded. Found: 23 bytes. Expected: 24 bytes."
        in message
    )
    assert "LICENSE is not the file that was recorded. Found: no such file." in message


def test_only_a_full_look_finds_damage_that_left_no_trace(check: Run, model: Path) -> None:
    check()
    path = model / "model-00001-of-00002.safetensors"
    status = path.stat()
    spoil_one_byte(path)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert not check().get("failed")
    assert check(verify="full")["failed"]
    assert check(verify="full", check=True)["failed"]


def test_a_new_time_alone_is_taken_over(check: Run, model: Path) -> None:
    check()
    os.utime(model / "config.json", ns=(0, 0))
    assert check()["changed"]
    assert not check()["changed"]


def test_sizes_alone_leave_digests_open_and_a_later_run_fills_them(check: Run, tmp_path: Path) -> None:
    assert check(verify="sizes")["unread"] == 0
    assert set(digests(tmp_path).values()) == {""}
    assert not check(verify="sizes")["changed"]
    assert check()["changed"]
    assert "" not in digests(tmp_path).values()


def test_another_source_is_another_model(check: Run, model: Path, tmp_path: Path) -> None:
    check()
    spoil_one_byte(model / "model-00001-of-00002.safetensors")
    source = {"repository": "a/b", "revision": "0" * 40}
    assert check(source=source)["changed"]
    assert json.loads((tmp_path / "state" / "model.json").read_text())["source"] == source


def test_the_published_digest_is_compared(check: Run, model: Path) -> None:
    name = "model-00001-of-00002.safetensors"
    result = check(published={name: {"size": 118, "sha256": "f" * 64}})
    assert f"{model}/{name} is not the file that was published. Found: SHA-256 " in result["msg"]
    assert result["msg"].endswith("To mend it: remove it and run the playbook again, which fetches it anew.")


def test_an_interrupted_look_goes_on_where_it_was(check: Run, model: Path, tmp_path: Path) -> None:
    largest = max(path.stat().st_size for path in model.iterdir())
    first = check(seconds=0)
    assert first["unread"] == first["bytes"] - largest
    assert not (tmp_path / "state" / "model.json").exists()
    # What is on record as read is believed as long as size and time are the same.
    part = tmp_path / "state" / "model.part"
    record = json.loads(part.read_text())
    record["files"]["config.json"]["sha256"] = "a" * 64
    part.write_text(json.dumps(record))
    assert check()["unread"] == 0
    assert digests(tmp_path)["config.json"] == "a" * 64
    assert not part.exists()


def test_a_play_says_how_far_it_is(repository: Path, model: Path, tmp_path: Path) -> None:
    task = {"model_files": {"path": str(model), "manifest": str(tmp_path / "model.json"), "seconds": 0}}
    play = [{"hosts": "localhost", "gather_facts": False, "tasks": [task]}]
    (tmp_path / "play.yml").write_text(json.dumps(play))
    done = subprocess.run(
        ["ansible-playbook", "--inventory", "localhost,", "--connection", "local", tmp_path / "play.yml"],
        env={
            **os.environ,
            "ANSIBLE_CONFIG": str(repository / "ansible.cfg"),
            "ANSIBLE_PYTHON_INTERPRETER": sys.executable,
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    said = [
        line
        for line in done.stdout.splitlines()
        if line.startswith(f"localhost: reading {model}, 0.0 of 0.0 GB")
    ]
    # Five files, one a call; the last one ends the task.
    assert len(said) == 4
    assert "changed=1" in done.stdout
    assert "" not in {
        entry["sha256"] for entry in json.loads((tmp_path / "model.json").read_text())["files"].values()
    }


@pytest.mark.parametrize(
    ("rate", "text"),
    [
        (0, "212.4 of 590.0 GB"),
        (1.9e9, "212.4 of 590.0 GB, 1.90 GB/s, about 3 min left"),
        (5e9, "212.4 of 590.0 GB, 5.00 GB/s, about 76 s left"),
    ],
)
def test_how_far_it_is_in_words(rate: float, text: str) -> None:
    assert progress(212.4e9, 590e9, rate) == text


@pytest.mark.skipif(os.getuid() != 0, reason="looks at files as another user")
def test_files_that_the_server_may_not_read_are_named(check: Run, model: Path, tmp_path: Path) -> None:
    for folder in (tmp_path, *tmp_path.parents[:-2]):
        folder.chmod(0o755)
    assert not check(user="nobody").get("failed")
    (model / "config.json").chmod(0o600)
    assert check(user="nobody")["msg"] == (
        f"The user nobody may not read all files of {model}. Found: config.json. Expected: files and folders that "
        f"the server's user can read. To mend it: chmod -R a+rX {model}, and a+x for the folders above."
    )
    # Before the first deployment there is no such user.
    assert not check(user="no-such-user").get("failed")


def test_hidden_files_belong_to_tools(model: Path) -> None:
    (model / ".cache" / "huggingface").mkdir(parents=True)
    (model / ".cache" / "huggingface" / "note").touch()
    (model / ".gitattributes").touch()
    assert not [name for name in find_files(model) if name.startswith(".")]


def test_a_header_tells_shapes_without_the_weights(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    # 2 TB, which no test could read.
    write_safetensors(
        path, {"map": Weights("I64", (3,), [0, -1, 7]), "big": Weights("BF16", (1_000_000, 1_000_000))}
    )
    header = read_header(path)
    assert header["big"].shape == (1_000_000, 1_000_000)
    assert header["map"].values() == [0, -1, 7]


def test_a_header_that_is_no_header_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes((2).to_bytes(8, "little") + b"[]")
    with pytest.raises(OperatorError, match="its header is not readable"):
        read_header(path)


def test_types_that_are_not_known_are_said_to_be_unchecked(check: Run, model: Path) -> None:
    path = model / "model-00001-of-00002.safetensors"
    path.write_bytes(path.read_bytes().replace(b"F32", b"X32"))
    assert "types that are not known: X32 in model-00001-of-00002.safetensors" in str(check()["warnings"])
