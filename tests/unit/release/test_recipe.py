"""A lock names the wheel that an installer on the hosts would take."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from blackwell import lock_recipe
from blackwell.errors import OperatorError

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


def test_a_release_that_the_recipe_does_not_have_is_asked_for(tmp_path: Path) -> None:
    """uv finds nothing, as the release is not there at all, and pip would not either."""
    recipe = {
        "engine": "cpu",
        "platform": PLATFORM,
        "requires": ["no-such-package-at-all-1234==1"],
        "replaced": [],
        "without": [],
        "wheels": [],
        "releases": {},
    }
    (tmp_path / "cpu.yml").write_text(yaml.safe_dump(recipe))
    with pytest.raises(
        OperatorError, match=r"uv found no set of packages for sglang 0\.0\.0\.dev9"
    ) as caught:
        lock_recipe.make(tmp_path / "cpu.yml", "0.0.0.dev9", "3.12")
    assert f"add the release 0.0.0.dev9 in {tmp_path}/cpu.yml" in str(caught.value)


def test_every_lock_is_in_the_table(repository: Path) -> None:
    folder = repository / "files/locks"
    table = (folder / "README.md").read_text()
    for lock in folder.glob("sglang-*.txt"):
        assert f"| `{lock.stem}` |" in table, lock.name
