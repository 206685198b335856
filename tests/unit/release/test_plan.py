"""A release's id depends on what it contains, and on nothing else."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from blackwell import lock as locks
from blackwell import release
from blackwell.errors import OperatorError
from blackwell.lock import Lock, Pin

SGLANG = Pin("sglang", "0.5.9", "sglang-0.5.9-py3-none-any.whl", "a" * 64, 1)


def lock(**other: Any) -> Lock:
    given = {"sglang": "0.5.9", "engine": "cpu", "python": "3.11", "platform": "manylinux_2_36_x86_64"}
    return Lock(**{**given, "pins": (SGLANG,), **other})


@pytest.fixture
def patches(tmp_path: Path, repository: Path) -> Path:
    """Two of the repository's own."""
    for name in ("kimi-k25-eagle3-delegation", "eagle3-capture-layers"):
        shutil.copytree(repository / "files" / "patches" / name, tmp_path / "patches" / name)
    return tmp_path / "patches"


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    (tmp_path / "engine" / "pkg").mkdir(parents=True)
    (tmp_path / "engine" / "pkg" / "mod.py").write_text("x = 1\n")
    return tmp_path / "engine"


def edit(patches: Path) -> None:
    definition = patches / "eagle3-capture-layers" / "patch.yml"
    text = definition.read_text()
    assert "eagle_aux_hidden_state_layer_ids" in text
    definition.write_text(text.replace("eagle_aux_hidden_state_layer_ids", "other_ids"))


def plan(patches: Path | dict[str, Path], engine: Path, **other: Any) -> dict[str, Any]:
    given: dict[str, Any] = {"root": "/opt/sglang", "lock": lock(), "enabled": {}, "toolkit": "wheels"}
    folders = patches if isinstance(patches, dict) else {"model": patches, "guard": patches}
    return release.plan(**{**given, "patches": folders, "engine_files": engine, **other})


def test_paths_follow_from_the_id(patches: Path, engine: Path) -> None:
    planned = plan(patches, engine)
    version, _, digest = planned["id"].rpartition("-")
    assert version == "0.5.9"
    assert len(digest) == 12
    assert planned["path"] == f"/opt/sglang/releases/{planned['id']}"
    assert planned["python"] == f"{planned['path']}/venv/bin/python"
    assert planned["site_packages"] == f"{planned['path']}/venv/lib/python3.11/site-packages"


def test_another_checkout_gives_the_same_id(tmp_path: Path, patches: Path, engine: Path) -> None:
    before = plan(patches, engine)["id"]
    copies = [Path(shutil.copytree(tree, tmp_path / "copy" / tree.name)) for tree in (patches, engine)]
    os.utime(copies[1] / "pkg" / "mod.py", (1, 1))
    (copies[1] / "pkg" / "__pycache__").mkdir()
    (copies[1] / "pkg" / "__pycache__" / "mod.cpython-311.pyc").write_bytes(b"compiled")
    (copies[0] / "README.md").write_text("for people")
    definition = copies[0] / "eagle3-capture-layers" / "patch.yml"
    definition.write_text(definition.read_text().replace("title: ", "title: Better said, "))
    assert plan(*copies)["id"] == before


def test_everything_that_a_release_is_made_of_changes_its_id(patches: Path, engine: Path) -> None:
    ids = [plan(patches, engine)["id"]]
    ids.append(plan(patches, engine, toolkit="apt")["id"])
    ids.append(plan(patches, engine, enabled={"guard": {"eagle3-capture-layers": False}})["id"])
    ids.append(plan(patches, engine, lock=lock(python="3.12"))["id"])
    ids.append(
        plan(patches, engine, lock=lock(pins=(SGLANG, Pin("x", "1", "x-1-py3-none-any.whl", "b" * 64))))["id"]
    )
    edit(patches)
    ids.append(plan(patches, engine)["id"])
    (engine / "pkg" / "mod.py").write_text("x = 2\n")
    ids.append(plan(patches, engine)["id"])
    assert len(set(ids)) == len(ids)


def test_a_switch_that_repeats_the_default_is_no_new_release(patches: Path, engine: Path) -> None:
    enabled = {"guard": {"eagle3-capture-layers": True}, "model": {"kimi-k25-eagle3-delegation": True}}
    assert plan(patches, engine, enabled=enabled)["id"] == plan(patches, engine)["id"]


def test_a_switch_for_no_patch_is_refused(patches: Path, engine: Path) -> None:
    with pytest.raises(OperatorError, match="no patch eagle-3"):
        plan(patches, engine, enabled={"guard": {"eagle-3": True}})


# As releases that serve were called before the roles and the plan read their patches through one function.
DIGESTS: tuple[tuple[dict[str, Any], str], ...] = (
    ({}, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
    (
        {"model": {"kimi-vl-eagle3-delegation": True}},
        "7587974a2c1f244c67021db4040dabe9d59e223a86f21a02e132ac9906be8e33",
    ),
)


@pytest.mark.parametrize(("enabled", "digest"), DIGESTS)
def test_the_id_of_a_set_of_patches_stays_what_it_was(
    repository: Path, enabled: dict[str, Any], digest: str
) -> None:
    """By the example of docs/examples, for the project's own set changes with every patch."""
    folder = repository / "docs" / "examples" / "patches"
    folders = {"model": folder, "guard": folder}
    assert release._patch_digest(folders, enabled) == digest


def test_the_id_counts_two_folders_like_one_with_both_kinds(
    patches: Path, engine: Path, tmp_path: Path
) -> None:
    apart = {"model": tmp_path / "models", "guard": tmp_path / "guards"}
    shutil.copytree(patches / "kimi-k25-eagle3-delegation", apart["model"] / "kimi-k25-eagle3-delegation")
    shutil.copytree(patches / "eagle3-capture-layers", apart["guard"] / "eagle3-capture-layers")
    before = plan(patches, engine)["id"]
    assert plan(apart, engine)["id"] == before
    edit(apart["guard"])
    assert plan(apart, engine)["id"] != before


def test_the_id_leaves_patches_out_that_no_role_takes_from_their_folder(
    patches: Path, engine: Path, tmp_path: Path
) -> None:
    """The folder of model patches has a guard as well, and guards come from another folder."""
    guards = tmp_path / "guards"
    shutil.copytree(patches / "eagle3-capture-layers", guards / "eagle3-capture-layers")
    before = plan(patches, engine)["id"]
    edit(patches)
    assert plan({"model": patches, "guard": guards}, engine)["id"] == before


@pytest.mark.parametrize(
    ("kind", "name", "right"),
    [
        ("model", "eagle3-capture-layers", "sm120_guards_enabled"),
        ("guard", "kimi-k25-eagle3-delegation", "model_patches_enabled"),
    ],
)
@pytest.mark.parametrize("value", [True, False, "no"])
def test_the_id_never_depends_on_a_switch_that_no_role_reads(
    patches: Path, engine: Path, kind: str, name: str, right: str, value: Any
) -> None:
    with pytest.raises(OperatorError) as raised:
        plan(patches, engine, enabled={kind: {name: value}})
    assert raised.value.remedy == f"move {name} to {right}"
    other = {"model": "guard", "guard": "model"}[kind]
    assert plan(patches, engine, enabled={other: {name: value}})


def test_a_summary_of_the_switches_may_say_only_what_they_say(patches: Path) -> None:
    folders = {"model": patches, "guard": patches}
    off = {"eagle3-capture-layers": False}
    release.check_switches(
        folders, {"guard": off}, {"eagle3-capture-layers": "no", "kimi-k25-eagle3-delegation": 1}
    )
    with pytest.raises(OperatorError) as raised:
        release.check_switches(folders, {}, off)
    assert raised.value.found == "eagle3-capture-layers: false"
    assert "set what is meant in sm120_guards_enabled" in str(raised.value)
    # What the remedy says.
    assert release._patch_digest(folders, {"guard": off}) != release._patch_digest(folders, {})


def test_a_patch_that_is_off_may_change_without_a_new_release(patches: Path, engine: Path) -> None:
    before = plan(patches, engine, enabled={"guard": {"eagle3-capture-layers": False}})["id"]
    edit(patches)
    assert plan(patches, engine, enabled={"guard": {"eagle3-capture-layers": False}})["id"] == before


@pytest.mark.parametrize(
    ("wanted", "found", "expected"),
    [
        ({"sglang": "0.5.10"}, "SGLang 0.5.9", "SGLang 0.5.10"),
        ({"engine": "cuda"}, "engine cpu", "engine cuda"),
        ({"python": "3.12"}, "Python 3.11", "Python 3.12"),
    ],
)
def test_a_lock_for_something_else_is_refused(
    tmp_path: Path, wanted: dict[str, str], found: str, expected: str
) -> None:
    path = tmp_path / "lock.txt"
    path.write_text(locks.render(lock()))
    with pytest.raises(OperatorError) as caught:
        release.read_lock(path, **{"sglang": "0.5.9", "engine": "cpu", "python": "3.11", **wanted})
    assert str(caught.value) == (
        f"The lock lock.txt does not match what was asked for. Found: {found}. Expected: {expected}. To mend it: set "
        "sglang_stack_lock to a lock for it, or make one with files/locks/make-lock."
    )


def test_a_lock_that_installs_another_sglang_than_its_header_says_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "lock.txt"
    path.write_text(
        locks.render(lock(pins=(Pin("sglang", "0.5.8", "sglang-0.5.8-py3-none-any.whl", "a" * 64),)))
    )
    with pytest.raises(OperatorError, match=r"SGLang 0\.5\.8 among its packages"):
        release.read_lock(path, sglang="0.5.9", engine="cpu", python="3.11")


@pytest.mark.parametrize(("python", "hint"), [("3.13", ""), ("3.1", ' (in quotes: "3.10")')])
def test_a_missing_lock_names_the_ones_that_there_are(tmp_path: Path, python: str, hint: str) -> None:
    """3.10 without quotes is a number to YAML, and arrives as 3.1."""
    (tmp_path / "sglang-0.5.9-cpu-py311.txt").touch()
    with pytest.raises(OperatorError) as caught:
        release.read_lock(tmp_path / "none.txt", sglang="0.5.9", engine="cpu", python=python)
    assert str(caught.value) == (
        f"There is no lock for SGLang 0.5.9, engine cpu, Python {python}. Found: sglang-0.5.9-cpu-py311.txt in "
        f"{tmp_path}. Expected: {tmp_path}/none.txt. To mend it: make one with files/locks/make-lock, or correct "
        f"sglang_stack_version, sglang_stack_engine or sglang_stack_python{hint}."
    )


def test_the_module_plans_the_repository_s_own_release(
    repository: Path, run_module: Callable[..., dict[str, Any]]
) -> None:
    given = {
        "root": "/opt/sglang",
        "version": "0.5.9",
        "engine": "cpu",
        "python": "3.11",
        "lock": str(repository / "files/locks/sglang-0.5.9-cpu-py311.txt"),
        "engine_files": str(repository / "files/engines/cpu/site-packages"),
    }
    result = run_module("release_plan", given, check=True)
    assert not result["changed"]
    assert result["release"]["id"].startswith("0.5.9-")
    assert any(name.startswith("sgl_kernel/") for name in result["overlay"])
    failed = run_module("release_plan", {**given, "version": "0.5.10.post1"})
    assert failed["failed"]
    assert "Expected: SGLang 0.5.10.post1" in failed["msg"]


def test_a_plan_says_that_nothing_can_be_installed_yet(
    repository: Path, run_module: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    lock = tmp_path / "sglang-0.5.9-cpu-py311.txt"
    text = (repository / "files/locks" / lock.name).read_text()
    lock.write_text(re.sub(r"^(torch==\S+) --hash=\S+", r"\1", text, flags=re.MULTILINE))
    given = {"root": "/opt/sglang", "version": "0.5.9", "engine": "cpu", "python": "3.11", "lock": str(lock)}
    said = str(run_module("release_plan", given)["warnings"])
    assert "packages whose checksum nobody has published. Found: torch==" in said
    assert "ansible-playbook playbooks/bundle.yml" in said
