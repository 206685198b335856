"""What is said of recipes and toolkits mends them, done as it is said. The index of packages is a folder."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from blackwell import lock_recipe
from blackwell.errors import OperatorError
from blackwell.lock import Lock, parse

from tests.unit.release.conftest import PYTHON
from tests.unit.release.test_recipe import KERNELS, PLATFORM, TORCH, index, section, write_recipe
from tests.unit.release.test_toolkit import home, prove, write_nvcc

__all__ = ["home", "index", "prove"]

FITS = {**TORCH, "file": str(TORCH["file"]).replace("2.9.1", "2.11.0"), "releases": ["0.5.11"]}
ABSENT = "no-such-package-at-all-1234"


def refused(recipe: Path, release: str = "0.5.11") -> str:
    with pytest.raises(OperatorError) as error:
        lock_recipe.make(recipe, release, PYTHON)
    return error.value.remedy


def made(folder: Path, **recipe: Any) -> Lock:
    return parse(lock_recipe.make(write_recipe(folder, **recipe), "0.5.11", PYTHON), "lock")


def versions(lock: Lock) -> set[str]:
    return {str(pin) for pin in lock.pins}


@pytest.mark.usefixtures("index")
def test_wheels_that_fit_are_added_or_the_difference_is_an_override(tmp_path: Path) -> None:
    assert refused(write_recipe(tmp_path)).startswith("add the wheels that fit, with releases: [0.5.11]")
    older = {**TORCH, "releases": ["0.5.9"]}
    assert "torch==2.11.0+cu130" in versions(made(tmp_path, wheels=[older, FITS, KERNELS]))
    overrides = {"0.5.11": {"overrides": ["torch==2.9.1+cu130"]}}
    assert "torch==2.9.1+cu130" in versions(made(tmp_path, releases=overrides))


@pytest.mark.usefixtures("index")
def test_a_build_of_the_index_is_replaced_or_meant(tmp_path: Path) -> None:
    remedy = refused(write_recipe(tmp_path, wheels=[FITS]))
    assert remedy.startswith("add the wheel, with releases: [0.5.11], under wheels in ")
    kernels = {**KERNELS, "releases": ["0.5.11"]}
    assert "kernels==0.4.2+cu130" in versions(made(tmp_path, wheels=[FITS, kernels]))
    meant = re.search(r"add (\S+) to the overrides of the release 0\.5\.11", remedy)
    assert meant
    overrides = {"0.5.11": {"overrides": [meant[1]]}}
    assert "kernels==0.4.2" in versions(made(tmp_path, wheels=[FITS], releases=overrides))


@pytest.mark.usefixtures("index")
def test_a_release_that_the_index_has_is_named(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, wheels=[FITS, KERNELS])
    assert refused(recipe, "9.9.9") == "name a release that the package index has"
    assert lock_recipe.make(recipe, "0.5.11", PYTHON)


def test_an_index_is_reached_again(index: Path, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, wheels=[FITS, KERNELS])
    away = (index / "sglang").rename(tmp_path / "away")
    assert refused(recipe).startswith("check that the package index can be reached")
    shutil.move(away, index / "sglang")
    assert lock_recipe.make(recipe, "0.5.11", PYTHON)


def test_a_flavour_is_one_of_those_that_are_named_or_gets_a_recipe(index: Path, tmp_path: Path) -> None:
    there = write_recipe(tmp_path, wheels=[FITS, KERNELS])
    other = tmp_path / "cu131.yml"
    with pytest.raises(OperatorError) as error:
        lock_recipe.make(other, "0.5.11", PYTHON)
    assert error.value.found == "cu130" and error.value.remedy.endswith(f"or write the recipe {other}")
    assert lock_recipe.make(there, "0.5.11", PYTHON)
    text = there.read_text(encoding="utf-8").replace("cu130", "cu131")
    other.write_text(text, encoding="utf-8")
    assert lock_recipe.make(other, "0.5.11", PYTHON)


@pytest.mark.usefixtures("index")
@pytest.mark.parametrize(("releases", "verb"), [({}, "add"), ({"0.5.11": {}}, "correct")])
def test_a_package_that_is_not_on_the_index_becomes_a_wheel_of_the_recipe(
    tmp_path: Path, releases: dict[str, Any], verb: str
) -> None:
    given = {"requires": [f"{ABSENT}==1"], "releases": releases}
    remedy = refused(write_recipe(tmp_path, **given, wheels=[FITS, KERNELS]))
    assert remedy.startswith(f"{verb} the release 0.5.11 in ")
    wheel = {"file": f"{ABSENT.replace('-', '_')}-1-py3-none-any.whl", "requires": [], "releases": ["0.5.11"]}
    lock = made(tmp_path, **{**given, "releases": {"0.5.11": {}}}, wheels=[FITS, KERNELS, wheel])
    assert f"{ABSENT}==1" in versions(lock)


def test_a_version_that_has_a_wheel_is_pinned() -> None:
    with pytest.raises(OperatorError, match="pin a version that has one, or leave the package out"):
        lock_recipe._best("p", "1", section("p-1-cp39-cp39-manylinux_2_28_x86_64.whl"), "3.12", PLATFORM)
    assert lock_recipe._best("p", "2", section("p-2-py3-none-any.whl"), "3.12", PLATFORM).version == "2"


Prove = Callable[..., dict[str, Any]]


@pytest.mark.parametrize("wrong", ["cuda-13.0", "/usr/local/cu da", "/opt/a:/opt/b"])
def test_a_path_of_a_toolkit_is_set(home: Path, prove: Prove, wrong: str) -> None:
    assert prove(home=wrong)["msg"].endswith("To mend it: set cuda_toolkit_path.")
    assert prove(home=str(home))["compiler"] == "13.0.88"


def test_a_toolkit_of_another_release_is_left_for_the_right_one(
    home: Path, prove: Prove, tmp_path: Path
) -> None:
    other = Path(shutil.copytree(home, tmp_path / "cu14", symlinks=True))
    write_nvcc(other, release="14.0")
    assert "set cuda_toolkit_path to the right one" in prove(home=str(other))["msg"]
    assert prove(home=str(home))["compiler"] == "13.0.88"
