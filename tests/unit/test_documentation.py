"""That what the documentation names is there: playbooks, targets of make, entry points, variables, pages."""

from __future__ import annotations

import functools
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
# The changelog names what is gone, too; a role's README is made from its specs.
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *(ROOT / folder / "README.md" for folder in ("molecule", "benchmarks", "files/locks", "files/patches")),
]
# Of an example of what is refused.
MISSPELT = "eagle3_server_prot"
ROLES = sorted(path.name for path in (ROOT / "roles").iterdir() if path.is_dir())


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@functools.cache
def text(page: Path) -> str:
    return page.read_text(encoding="utf-8")


@functools.cache
def code(page: Path) -> list[str]:
    """The code of a page, whether in a line or a block."""
    blocks = re.findall(r"^```\w*\n(.*?)^```", text(page), re.MULTILINE | re.DOTALL)
    rest = re.sub(r"^```\w*\n.*?^```", "", text(page), flags=re.MULTILINE | re.DOTALL)
    indented = [line for line in rest.splitlines() if line.startswith("    ")]
    return [*blocks, *indented, *re.findall(r"`([^`]+)`", rest)]


def specs(role: str) -> dict[str, Any]:
    path = ROOT / "roles" / role / "meta" / "argument_specs.yml"
    loaded: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))["argument_specs"]
    return loaded


@functools.cache
def variables() -> frozenset[str]:
    """What an inventory or the command line may set, of roles and of playbooks."""
    playbooks = yaml.safe_load((ROOT / "playbooks" / "argument_specs.yml").read_text(encoding="utf-8"))
    entries = [entry for role in ROLES for entry in specs(role).values()]
    entries += playbooks["argument_specs"].values()
    return frozenset(name for entry in entries for name in entry.get("options") or {})


@functools.cache
def published() -> frozenset[str]:
    """Facts and public variables that roles set themselves."""
    paths = [path for folder in ("tasks", "vars") for path in (ROOT / "roles").glob(f"*/{folder}/**/*.yml")]
    found = [re.findall(r"^ *([a-z]\w+):", path.read_text(encoding="utf-8"), re.MULTILINE) for path in paths]
    return frozenset(name for names in found for name in names)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_playbook_that_is_named_exists(page: Path) -> None:
    named = set(re.findall(r"playbooks/[\w/]+\.yml", text(page)))
    assert {name for name in named if not (ROOT / name).exists()} == set()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_target_of_make_that_is_named_exists(page: Path) -> None:
    made = set(re.findall(r"^([\w./-]+):(?!=)", text(ROOT / "Makefile"), re.MULTILINE))
    named = {
        target
        for part in code(page)
        for target in re.findall(r"(?:^|&& |; )make ([a-z.][\w./-]*)", part, re.MULTILINE)
    }
    assert named <= made


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_variable_of_a_command_exists(page: Path) -> None:
    named = {
        name
        for part in code(page)
        for name in re.findall(r"""(?:-e|--extra-vars)[ =]'?(?:\{")?([a-z]\w*)(?:=|": )""", part)
    }
    assert named - variables() == set()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_variable_of_a_role_exists(page: Path) -> None:
    ours = re.compile(rf"(?<![\w/.-])(?:{'|'.join(ROLES)})_[a-z_0-9]+(?![\w*./(-])")
    named = {name for part in code(page) for name in ours.findall(part)}
    modules = {path.stem for path in (ROOT / "plugins" / "modules").glob("*.py")}
    scenarios = {path.name for path in (ROOT / "molecule").iterdir()}
    assert named - variables() - published() - modules - scenarios - {MISSPELT} == set()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_table_of_entry_points_is_that_of_the_role(page: Path) -> None:
    """Below a head cell with ``tasks_from``, or one that names the role; what others do may stand between."""
    for head in re.finditer(
        r"^\| ([^|]*(?:tasks_from|entry point of the role)[^|]*)\|", text(page), re.MULTILINE
    ):
        before = text(page)[: head.end()]
        role = re.findall(r"role `(\w+)`", before)[-1]
        rows = text(page)[head.start() :].split("\n\n")[0].splitlines()[2:]
        listed = {name for row in rows for name in re.findall(r"`([^`]+)`", row.split("|")[1])}
        assert listed | {"main"} == set(specs(role)) | {"main"}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_within_the_project_has_its_page_and_heading(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"^```.*?^```", "", text(page), flags=re.M | re.S)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, heading = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), target
        if heading:
            titles = re.findall(r"^#+ (.*)$", text(there), re.MULTILINE)
            anchors = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
            assert heading in anchors, target


def test_the_readme_of_each_role_is_what_its_specs_say() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "role-docs"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_each_role_has_a_scenario_but_those_that_the_pages_name() -> None:
    without = {role for role in ROLES if not (ROOT / "molecule" / role / "converge.yml").exists()}
    assert without == {"rollout"}
    for page in (ROOT / "README.md", ROOT / "molecule" / "README.md"):
        assert "`rollout`" in text(page)
