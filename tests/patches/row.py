"""Print the row of a release: ``python -m tests.patches.row 0.5.24 [...]``. The wheels come from PyPI.

Exit status 1 if a patch is in conflict there, that is: if somebody has to look at it.
"""

from __future__ import annotations

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


def statuses(python: Path) -> list[engine.Status]:
    """Every patch on the installation of ``python``, with every switch on."""
    definitions = definition.load(trees.PATCHES)
    installation = engine.Installation(str(python), definitions, {raw["id"]: True for raw in definitions})
    return engine.status(installation, installation.select())


def show(release: str, cells: list[str]) -> str:
    """A row as it stands in the table."""
    return f'  "{release}": [{", ".join(cells)}]'


def main(releases: list[str]) -> int:
    columns, _ = table()
    open_ones: list[str] = []
    for release in releases:
        with tempfile.TemporaryDirectory() as folder:
            found = {one.patch.id: one for one in statuses(trees.installation(Path(folder), release))}
        print(show(release, [trees.pinned_flashinfer(release), *(found[name].state for name in columns[1:])]))
        open_ones += [
            f"{release}: {one.patch.id}: {one.file} {one.reason}"
            for one in found.values()
            if one.state == engine.CONFLICT
        ]
    print(*open_ones, sep="\n", file=sys.stderr)
    return 1 if open_ones else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
