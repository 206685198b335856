"""The roles on every published release: the table's states, then applied, unchanged, and the wheel's bytes back."""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from blackwell.patching import definition, engine

from tests.patches import document, playbook, trees
from tests.patches.row import table

COLUMNS, ROWS = table()
IDS = COLUMNS[1:]
# The one that needs everything, and the first one that has some of it.
QUICK = ("0.5.9", "0.5.10")


@pytest.mark.quick
def test_the_table_is_complete() -> None:
    assert sorted(IDS) == sorted(raw["id"] for raw in definition.load(trees.PATCHES))
    assert all(len(row) == len(COLUMNS) for row in ROWS.values())
    assert "0.5.9" in ROWS


@pytest.mark.quick
def test_the_documentation_shows_the_table_and_the_patches() -> None:
    text = document.DOCUMENT.read_text()
    assert document.filled(text) == text, "run: make patch-docs"


def differing(packages: Path) -> set[str]:
    """The files that are not as the RECORD of their wheel says."""
    found = set()
    for record in packages.glob("*.dist-info/RECORD"):
        for name, digest, _ in csv.reader(record.read_text().splitlines()):
            file = packages / name
            if digest and file.is_file():
                actual = base64.urlsafe_b64encode(hashlib.sha256(file.read_bytes()).digest()).decode()
                if digest != f"sha256={actual.rstrip('=')}":
                    found.add(name)
    return found


@pytest.mark.parametrize(
    "release",
    [pytest.param(name, marks=[pytest.mark.quick] if name in QUICK else []) for name in ROWS],
)
def test_a_stock_release(release: str, tmp_path: Path) -> None:
    """The engine alone: the states of the row, changed, unchanged, and the published files again."""
    python = trees.installation(tmp_path / "environment", release)
    packages = trees.site_packages(tmp_path / "environment")
    definitions = definition.load(trees.PATCHES)
    row = dict(zip(IDS, ROWS[release][1:], strict=True))
    off = {raw["id"] for raw in definitions if not raw["switch"]["default"]}

    def installation(switches: dict[str, bool]) -> engine.Installation:
        return engine.Installation(str(python), definitions, switches)

    def states(switches: dict[str, bool]) -> dict[str, str]:
        here = installation(switches)
        return {one.patch.id: one.state for one in engine.status(here, here.select())}

    def changes(act: Callable[..., engine.Outcome]) -> set[str]:
        here = installation(dict.fromkeys(IDS, True))
        return {str(Path(path).relative_to(packages)) for path, _, _ in act(here, here.select()).changes}

    assert states(dict.fromkeys(IDS, True)) == row
    assert states({}) == {
        name: "disabled" if name in off and state == "needed" else state for name, state in row.items()
    }
    needed = {f"{raw['package']}/{raw['file']}" for raw in definitions if row[raw["id"]] == engine.NEEDED}
    assert changes(engine.apply) == needed == differing(packages)
    assert changes(engine.apply) == set()
    assert changes(engine.revert) == needed
    assert differing(packages) == set()


class Matrix:
    """One host for each release, all on this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.differences: set[str] = set()
        hosts = {}
        for release in ROWS:
            python = trees.installation(folder / release, release)
            hosts[release] = {"matrix_python": str(python), "matrix_report": str(folder / f"{release}.json")}
        variables = {
            "ansible_connection": "local",
            "ansible_python_interpreter": sys.executable,
            "matrix_switches": {
                kind: {raw["id"]: True for raw in definition.load(trees.PATCHES) if raw["kind"] == kind}
                for kind in definition.KINDS
            },
        }
        inventory = {"all": {"hosts": hosts, "vars": variables}}
        (folder / "hosts.yml").write_text(yaml.safe_dump(inventory))

    def run(self, entry: str, *options: str) -> dict[str, int]:
        """Run one entry of both roles on all hosts; the number of changes on each."""
        environment = {**os.environ, **playbook.ENVIRONMENT}
        command = [str(Path(sys.executable).with_name("ansible-playbook")), "--forks=4", *options]
        command += [f"--inventory={self.folder / 'hosts.yml'}", f"--extra-vars=matrix_entry={entry}"]
        command += [str(Path(__file__).with_name("matrix.yml"))]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
        self.differences = set(re.findall(r"^\+\+\+ (?:after: )?(\S+)", done.stdout, re.MULTILINE))
        recap = re.findall(r"^(\S+)\s+: ok=\d+\s+changed=(\d+)", done.stdout, re.MULTILINE)
        return {host: int(changed) for host, changed in recap}

    def packages(self, release: str) -> Path:
        return trees.site_packages(self.folder / release)

    def states(self, release: str) -> dict[str, dict[str, Any]]:
        report = json.loads((self.folder / f"{release}.json").read_text())
        return {one["id"]: one for one in report}


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Matrix]:
    yield Matrix(tmp_path_factory.mktemp("matrix"))


def test_every_release(matrix: Matrix) -> None:
    """In this order, for each step takes over what the one before left."""
    none = dict.fromkeys(ROWS, 0)

    assert matrix.run("status") == none
    assert not any(differing(matrix.packages(release)) for release in ROWS)
    for release, (flashinfer, *expected) in ROWS.items():
        states = matrix.states(release)
        assert {name: states[name]["state"] for name in IDS} == dict(zip(IDS, expected, strict=True)), release
        assert states["flashinfer-trtllm-comm-sm120"]["version"] == flashinfer, release
        assert all(one["edited"] in (False, None) for one in states.values()), release

    first = matrix.run("main")
    assert {release: changes > 0 for release, changes in first.items()} == {
        release: "needed" in row for release, row in ROWS.items()
    }
    for release, row in ROWS.items():
        states = matrix.states(release)
        after = ["applied" if state == "needed" else state for state in row[1:]]
        assert {name: states[name]["state"] for name in IDS} == dict(zip(IDS, after, strict=True)), release
        assert not any(one["edited"] for one in states.values()), release
        files = {
            f"{raw['package']}/{raw['file']}"
            for raw in definition.load(trees.PATCHES)
            if row[1:][IDS.index(raw["id"])] == "needed"
        }
        assert differing(matrix.packages(release)) == files, release

    assert matrix.run("main", "--check", "--diff") == none
    assert matrix.differences == set()

    matrix.run("revert")
    assert not any(differing(matrix.packages(release)) for release in ROWS)
