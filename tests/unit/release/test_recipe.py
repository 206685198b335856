"""A lock names the wheel that an installer on the hosts would take."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from blackwell import lock_recipe
from blackwell.errors import OperatorError
from blackwell.lock import parse

from tests.unit.release.conftest import PYTHON, WheelMaker

PLATFORM = "manylinux_2_35_x86_64"


def section(*names: str) -> str:
    """A package as ``uv pip compile --format pylock.toml`` writes it."""
    wheels = ", ".join(
        f'{{ url = "https://example.org/{name}", size = {number}, hashes = {{ sha256 = "{str(number) * 64}" }} }}'
        for number, name in enumerate(names, 1)
    )
    return f'name = "p"\nversion = "1"\nwheels = [{wheels}]\n'


@pytest.mark.parametrize(
    ("python", "names", "chosen"),
    [
        ("3.12", ["p-1-py3-none-any.whl", "p-1-cp312-cp312-manylinux_2_28_x86_64.whl"], 2),
        ("3.12", ["p-1-cp310-abi3-manylinux2014_x86_64.whl", "p-1-py3-none-any.whl"], 1),
        (
            "3.12",
            ["p-1-cp312-cp312-manylinux_2_17_x86_64.whl", "p-1-cp312-cp312-manylinux_2_34_x86_64.whl"],
            2,
        ),
        ("3.11", ["p-1-cp312-cp312-manylinux_2_17_x86_64.whl", "p-1-py3-none-any.whl"], 2),
        (
            "3.12",
            ["p-1-cp312-cp312-manylinux_2_39_x86_64.whl", "p-1-cp312-cp312-manylinux2014_x86_64.whl"],
            2,
        ),
        ("3.12", ["p-1-cp312-cp312-musllinux_1_2_x86_64.whl", "p-1-py2.py3-none-any.whl"], 2),
    ],
)
def test_the_best_wheel_of_the_target_is_chosen(python: str, names: list[str], chosen: int) -> None:
    pin = lock_recipe._best("p", "1", section(*names), python, PLATFORM)
    assert (pin.filename, pin.sha256, pin.size) == (names[chosen - 1], str(chosen) * 64, chosen)


def test_a_package_without_a_wheel_for_the_target_is_named() -> None:
    names = ["p-1-cp39-cp39-manylinux_2_28_x86_64.whl"]
    with pytest.raises(OperatorError, match=r"p 1 has no wheel for Python 3.12") as caught:
        lock_recipe._best("p", "1", section(*names), "3.12", PLATFORM)
    assert names[0] in str(caught.value)


def test_every_omission_of_a_recipe_has_a_reason(repository: Path) -> None:
    recipes = sorted((repository / "files" / "locks").glob("*.yml"))
    assert recipes
    for recipe in recipes:
        for entry in yaml.safe_load(recipe.read_text())["without"]:
            assert len(entry["reason"]) > 20
            assert entry["packages"]


@pytest.mark.parametrize(
    ("sglang", "kernels"),
    [("0.5.9", "sgl-kernel==0.3.21+cu130"), ("0.5.10.post1", "sglang-kernel==0.4.1+cu130")],
)
@pytest.mark.parametrize("python", ["3.10", "3.11", "3.12"])
def test_a_release_gets_the_builds_that_belong_to_it(
    repository: Path, sglang: str, kernels: str, python: str
) -> None:
    recipe = yaml.safe_load((repository / "files/locks/cu130.yml").read_text())
    assert [str(pin) for pin in lock_recipe._elsewhere(recipe, sglang, python)] == [
        "torch==2.9.1+cu130",
        "torchvision==0.24.1+cu130",
        "torchaudio==2.9.1+cu130",
        kernels,
    ]


SGLANG = ["torch==2.11.0", "torchvision", 'torch==2.9.0; platform_machine == "aarch64"', "kernels==0.4.2"]
TORCH = {"file": "torch-2.9.1+cu130-cp310-abi3-manylinux_2_28_x86_64.whl", "requires": []}
KERNELS = {"file": "kernels-0.4.2+cu130-cp310-abi3-manylinux_2_28_x86_64.whl", "requires": []}


@pytest.fixture
def index(tmp_path: Path, make_wheel: WheelMaker, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package index with SGLang 0.5.11 and what it asks for."""
    root = tmp_path / "index"
    for name, version, requires in [
        ("sglang", "0.5.11", SGLANG),
        ("torch", "2.11.0", []),
        ("torchvision", "0.26.0", []),
        ("kernels", "0.4.2", []),
    ]:
        pin = make_wheel(name, version, requires, into=root / name)
        link = f'<a href="{pin.filename}#sha256={pin.sha256}">{pin.filename}</a>'
        (root / name / "index.html").write_text(f"<!DOCTYPE html><html><body>{link}</body></html>")
    monkeypatch.setenv("UV_DEFAULT_INDEX", root.as_uri())
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    return root


def write_recipe(folder: Path, **differences: Any) -> Path:
    recipe = {
        "engine": "cuda",
        "platform": PLATFORM,
        "requires": [],
        "replaced": ["torch", "kernels"],
        "without": [],
        "wheels": [TORCH, KERNELS],
        "releases": {"0.5.11": {}},
        **differences,
    }
    path = folder / "cu130.yml"
    path.write_text(yaml.safe_dump(recipe))
    return path


@pytest.mark.usefixtures("index")
def test_a_wheel_that_contradicts_the_release_is_refused(tmp_path: Path) -> None:
    """The override that brings the build in would keep uv from noticing it."""
    recipe = write_recipe(tmp_path)
    with pytest.raises(OperatorError) as caught:
        lock_recipe.make(recipe, "0.5.11", PYTHON)
    assert str(caught.value) == (
        "SGLang 0.5.11 pins torch==2.11.0, the recipe cu130.yml has torch==2.9.1+cu130. To mend it: "
        f"add the wheels that fit, with releases: [0.5.11], under wheels in {recipe}, and give those of other "
        "releases their own releases; a version that differs on purpose belongs in the overrides of the release "
        "0.5.11."
    )


@pytest.mark.usefixtures("index")
def test_wheels_of_a_recipe_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    wheels = [
        {**TORCH, "file": "torch-2.11.0+cu130-cp310-abi3-manylinux_2_28_x86_64.whl"},
        {"file": "torchvision-0.24.1+cu130-cp310-abi3-linux_x86_64.whl", "requires": ["torch==2.9.1"]},
    ]
    recipe = write_recipe(tmp_path, wheels=wheels)
    with pytest.raises(OperatorError) as caught:
        lock_recipe.make(recipe, "0.5.11", PYTHON)
    assert caught.value.problem == (
        "torchvision 0.24.1+cu130 pins torch==2.9.1, the recipe cu130.yml has torch==2.11.0+cu130"
    )


@pytest.mark.usefixtures("index")
def test_a_deliberate_difference_is_an_override_of_the_release(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, releases={"0.5.11": {"overrides": ["torch==2.9.1+cu130"]}})
    made = parse(lock_recipe.make(recipe, "0.5.11", PYTHON), "lock")
    assert made.overrides == ("torch==2.9.1+cu130", "kernels==0.4.2+cu130")
    assert [str(pin) for pin in made.pins] == [
        "kernels==0.4.2+cu130",
        "sglang==0.5.11",
        "torch==2.9.1+cu130",
        "torchvision==0.26.0",
    ]


@pytest.mark.usefixtures("index")
def test_the_build_of_the_index_does_not_stand_in_for_a_replaced_one(tmp_path: Path) -> None:
    recipe = write_recipe(
        tmp_path,
        wheels=[{**TORCH, "releases": ["0.5.9"]}],
        releases={"0.5.11": {"overrides": ["torch==2.11.0"]}},
    )
    with pytest.raises(OperatorError) as caught:
        lock_recipe.make(recipe, "0.5.11", PYTHON)
    assert str(caught.value) == (
        "The recipe cu130.yml replaces the package index's build of kernels. Found: kernels==0.4.2, from the index. "
        "Expected: kernels==0.4.2+cu130. To mend it: add the wheel, with releases: [0.5.11], under wheels in "
        f"{recipe}; if the index's build is meant, add kernels==0.4.2 to the overrides of the release 0.5.11."
    )


@pytest.mark.usefixtures("index")
def test_a_release_that_is_not_on_the_index_is_said_to_be_absent(tmp_path: Path) -> None:
    with pytest.raises(OperatorError) as caught:
        lock_recipe.make(write_recipe(tmp_path), "9.9.9", PYTHON)
    assert caught.value.problem == "There is no release 9.9.9 of sglang"
    assert "there is no version of sglang==9.9.9" in caught.value.found
    assert caught.value.remedy == "name a release that the package index has"


def test_an_index_without_the_package_is_not_an_absent_release(index: Path, tmp_path: Path) -> None:
    shutil.rmtree(index / "sglang")
    with pytest.raises(
        OperatorError, match=r"^uv cannot get sglang 0\.5\.11\. Found: error: .* To mend it: check"
    ):
        lock_recipe.make(write_recipe(tmp_path), "0.5.11", PYTHON)


def test_a_flavour_without_a_recipe_lists_those_that_there_are(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = repository / "files/locks"
    monkeypatch.setattr("sys.argv", ["make-lock", "cu131", "0.5.9", "3.12"])
    assert lock_recipe.main(folder) == 1
    assert capsys.readouterr().err == (
        "There is no flavour cu131. Found: cpu, cu130, gateway. "
        f"To mend it: name one of these, or write the recipe {folder}/cu131.yml.\n"
    )


@pytest.mark.usefixtures("index")
def test_a_release_that_the_recipe_does_not_have_is_asked_for(tmp_path: Path) -> None:
    """uv finds nothing, as one of the packages is not there at all."""
    recipe = write_recipe(
        tmp_path, requires=["no-such-package-at-all-1234==1"], replaced=[], wheels=[], releases={}
    )
    with pytest.raises(OperatorError, match=r"uv found no set of packages for sglang 0\.5\.11") as caught:
        lock_recipe.make(recipe, "0.5.11", PYTHON)
    assert f"add the release 0.5.11 in {recipe}" in str(caught.value)


def test_every_lock_is_in_the_table(repository: Path) -> None:
    folder = repository / "files/locks"
    table = (folder / "README.md").read_text()
    for lock in folder.glob("sglang-*.txt"):
        assert f"| `{lock.stem}` |" in table, lock.name
