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
