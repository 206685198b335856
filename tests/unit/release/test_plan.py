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


def plan(patches: Path, engine: Path, **other: Any) -> dict[str, Any]:
    given: dict[str, Any] = {"root": "/opt/sglang", "lock": lock(), "enabled": {}, "toolkit": "wheels"}
    return release.plan(**{**given, "patches": patches, "engine_files": engine, **other})


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
    ids.append(plan(patches, engine, enabled={"eagle3-capture-layers": False})["id"])
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
    enabled = {"eagle3-capture-layers": True, "kimi-k25-eagle3-delegation": True}
    assert plan(patches, engine, enabled=enabled)["id"] == plan(patches, engine)["id"]


def test_a_switch_for_no_patch_is_refused(patches: Path, engine: Path) -> None:
    with pytest.raises(OperatorError, match="no patch eagle-3"):
        plan(patches, engine, enabled={"eagle-3": True})


def test_a_patch_that_is_off_may_change_without_a_new_release(patches: Path, engine: Path) -> None:
    before = plan(patches, engine, enabled={"eagle3-capture-layers": False})["id"]
    edit(patches)
    assert plan(patches, engine, enabled={"eagle3-capture-layers": False})["id"] == before


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
