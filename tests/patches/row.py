"""Print the row of a release: ``python -m tests.patches.row 0.5.24 [...]``. The wheels come from PyPI.

``--patches FOLDER`` takes other patches than the project's own; their states are in the order of their ids.

Exit status 1 if a patch is in conflict there, that is: if somebody has to look at it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml
from blackwell.patching import definition, engine

from tests.patches import trees

EXPECTED = Path(__file__).with_name("expected.yml")


def table() -> tuple[list[str], dict[str, list[str]]]:
    """The columns of the table, and its rows by release."""
    raw = yaml.safe_load(EXPECTED.read_text(encoding="utf-8"))
    return raw["columns"], raw["rows"] or {}


def statuses(python: Path, patches: Path) -> list[engine.Status]:
    """Every patch of a folder on the installation of ``python``, with every switch on."""
    definitions = definition.load(patches)
    installation = engine.Installation(str(python), definitions, {raw["id"]: True for raw in definitions})
    return engine.status(installation, installation.select())


def show(release: str, cells: list[str]) -> str:
    """A row as it stands in the table."""
    return f'  "{release}": [{", ".join(cells)}]'


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Print the state of each patch on published releases.")
    parser.add_argument("releases", nargs="+")
    parser.add_argument("--patches", type=Path, default=trees.PATCHES)
    given = parser.parse_args(arguments)
    ids = sorted(raw["id"] for raw in definition.load(given.patches))
    columns, _ = table()
    if sorted(columns[1:]) == ids:
        ids = columns[1:]
    open_ones: list[str] = []
    for release in given.releases:
        with tempfile.TemporaryDirectory() as folder:
            try:
                python = trees.installation(Path(folder), release, given.patches)
            except (subprocess.CalledProcessError, LookupError) as error:
                why = "pip says why above" if isinstance(error, subprocess.CalledProcessError) else error
                print(f"{release}: its wheels cannot be had: {why}", file=sys.stderr)
                return 1
            found = {one.patch.id: one for one in statuses(python, given.patches)}
        print(show(release, [trees.pinned_flashinfer(release), *(found[name].state for name in ids)]))
        open_ones += [
            f"{release}: {one.patch.id}: {one.file} {one.reason}"
            for one in found.values()
            if one.state == engine.CONFLICT
        ]
    print(*open_ones, sep="\n", file=sys.stderr)
    return 1 if open_ones else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
