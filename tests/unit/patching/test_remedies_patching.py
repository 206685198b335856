"""What is said of patches that cannot be read, found or made mends them, done as it is said."""

from __future__ import annotations

import os
import re
import shutil
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from blackwell.errors import OperatorError
from blackwell.patching import definition, transaction, unknown
from blackwell.patching.engine import AT_REST, CONFLICT, NEEDED, STALE, Installation
from blackwell.patching.installation import locate
from blackwell.release import check_switches

from tests.unit.patching import test_engine as engine_tests
from tests.unit.patching.conftest import GREETING, PARTING, Site, patch
from tests.unit.patching.test_transaction import NEW, content, root, write

__all__ = ["root"]


def remedy_of(action: Callable[[], object]) -> str:
    with pytest.raises(OperatorError) as refused:
        action()
    return refused.value.remedy


def put(folder: Path, text: Any, name: str = "a") -> Path:
    file = folder / name / "patch.yml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text if isinstance(text, str) else yaml.safe_dump(text), encoding="utf-8")
    return file


@pytest.mark.parametrize("fault", [{"title": 3}, {"kind": "other"}, {"needs": "a"}, {"variants": 1}])
def test_a_definition_is_corrected_in_the_file_that_is_named(fault: dict[str, Any]) -> None:
    assert (
        remedy_of(lambda: definition.parse(patch(**fault))) == "correct files/patches/greet-warmly/patch.yml"
    )
    assert definition.parse(patch())


@pytest.mark.parametrize("fault", ["", "- a", "id: b", "id: a: b", "{"])
def test_a_file_of_a_patch_that_cannot_be_read_is_corrected(tmp_path: Path, fault: str) -> None:
    file = put(tmp_path, fault)
    assert remedy_of(lambda: definition.load(tmp_path)) == f"correct {file}"
    put(tmp_path, patch(id="a"))
    assert [raw["id"] for raw in definition.load(tmp_path)] == ["a"]


def test_a_folder_without_patches_is_replaced_by_the_right_one(tmp_path: Path) -> None:
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    wrong.mkdir()
    put(right, patch(id="a"))
    assert remedy_of(lambda: definition.load(wrong)) == "name the right one"
    assert definition.load(right)


def test_two_patches_of_one_id_are_renamed_or_put_into_one_folder(tmp_path: Path) -> None:
    folders = {kind: tmp_path / kind for kind in ("model", "guard")}
    for kind, folder in folders.items():
        put(folder, patch(id="a", kind=kind))
    assert remedy_of(lambda: definition.load_by_kind(folders)).startswith("rename one of them, or put all")
    one = dict.fromkeys(folders, folders["guard"])
    assert [raw["id"] for raw in definition.load_by_kind(one)] == ["a"]
    (folders["model"] / "a").rename(folders["model"] / "b")
    put(folders["model"], patch(id="b", kind="model"), "b")
    assert [raw["id"] for raw in definition.load_by_kind(folders)] == ["a", "b"]


def test_a_summary_of_switches_is_removed_and_set_in_the_variable_that_is_named(tmp_path: Path) -> None:
    put(tmp_path, patch(id="a"))
    folders = dict.fromkeys(("model", "guard"), tmp_path)
    remedy = remedy_of(lambda: check_switches(folders, {}, {"a": False}))
    assert remedy == "remove sglang_stack_patches_enabled, and set what is meant in sm120_guards_enabled"
    check_switches(folders, {}, {})
    check_switches(folders, {"guard": {"a": False}}, {"a": False})


def test_an_id_of_no_patch_is_corrected(site: Site) -> None:
    installation = site.installation()
    assert remedy_of(lambda: installation.select(["greet"])) == "correct the id"
    assert installation.select(["greet-warmly"])


def test_the_python_of_the_environment_is_named(site: Site) -> None:
    remedy = remedy_of(lambda: Installation(sys.executable, [patch()]))
    assert remedy == "name the python of the environment that SGLang is installed in"
    remedy = remedy_of(lambda: locate("/no/such/python", [("demo", "demo")]))
    assert remedy == "name the python of the installation"
    assert Installation(site.python, [patch()]).packages


def test_a_package_of_an_unknown_release_is_installed(site: Site) -> None:
    (metadata,) = site.packages.glob("demo-*.dist-info")
    away = metadata.rename(site.folder / "away")
    assert remedy_of(site.installation).startswith("install it with pip")
    shutil.copytree(away, metadata)
    assert site.installation().packages


def test_text_of_an_unknown_patch_goes_with_the_package_that_is_reinstalled(site: Site) -> None:
    site.path("parting.py").write_text("# BEGIN blackwell patch: older\na = 1\n", encoding="utf-8")
    remedy = remedy_of(lambda: unknown.remove(site.installation()))
    assert remedy == "reinstall demo 1.0 without its dependencies"
    site.path("parting.py").write_text(PARTING, encoding="utf-8")
    assert unknown.find(site.installation()) == []


def test_a_damaged_patch_goes_with_the_package_that_is_reinstalled(site: Site) -> None:
    engine_tests.apply(site)
    patched = site.path().read_text(encoding="utf-8")
    damaged = re.sub(r"\n *# END blackwell patch: .*", "", patched)
    assert damaged != patched
    site.path().write_text(damaged, encoding="utf-8")
    remedy = remedy_of(lambda: engine_tests.revert(site))
    assert remedy.startswith("reinstall demo without its dependencies")
    site.path().write_text(GREETING, encoding="utf-8")
    engine_tests.revert(site)
    engine_tests.apply(site)
    assert site.path().read_text(encoding="utf-8") == patched


def test_a_file_that_cannot_be_written_is_made_writable(root: Path) -> None:
    (root / "c.py").chmod(0o444)
    assert remedy_of(lambda: write(root)) == "make it writable and see that there is space, then run again"
    (root / "c.py").chmod(0o644)
    write(root)
    assert content(root) == NEW


def test_what_a_run_left_goes_when_its_folder_is_writable(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted", str(root))

    with monkeypatch.context() as barred:
        barred.setattr(transaction, "_sweep", refuse)
        assert remedy_of(lambda: write(root)) == "make it writable, then run again"
    write(root)
    assert content(root) == NEW and {file.name for file in root.iterdir()} == set(NEW)


def test_every_state_that_a_refusal_names_is_explained_on_its_page(repository: Path) -> None:
    page = (repository / "docs" / "patches.md").read_text(encoding="utf-8")
    assert {state for state in (*AT_REST, CONFLICT, NEEDED, STALE) if f"`{state}`" not in page} == set()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run as another user")
def test_a_package_is_locked_by_a_user_who_may_read_it(root: Path) -> None:
    root.chmod(stat.S_IRWXU)
    os.seteuid(65534)
    try:
        remedy = remedy_of(lambda: write(root))
    finally:
        os.seteuid(0)
    assert remedy == "run as a user who may read it, on a file system that has locks"
    write(root)
    assert content(root) == NEW
