"""That docs/architecture.md and the code say the same about roles: their order, their files, their facts.

A role owns its files and its public facts; others call its entry points. What another role reads of a role's private
names is listed below, and nothing is added.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
ROLES = sorted(path.name for path in (ROOT / "roles").iterdir() if path.is_dir())
# Private names that another place reads: the file, the name, and why.
PRIVATE_READ = {
    (
        "playbooks/site.yml",
        "__preflight_host",
    ): "A host that was lost in preflight publishes no fact; only what the task has registered says so.",
}
CALLS = ("ansible.builtin.include_role", "ansible.builtin.import_role")
PATH = re.compile(r"(?<![\w/}.~-])/(?:etc|opt|run|usr/local|var)/[\w./@-]*[\w-]")
# Folders of the system, in which roles have files, and what roles only look into.
SHARED = {
    "/etc/apt",
    "/etc/systemd/system",
    "/run/systemd/system",
    "/usr/local/bin",
    "/usr/local/sbin",
    "/var/lib/sglang",
}


@functools.cache
def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def walk(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        yield node
    for child in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from walk(child)


def code(path: Path) -> str:
    """A file without its comments."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return "\n".join(line for line in lines if not line.lstrip().startswith("#"))


@functools.cache
def sources() -> dict[str, str]:
    """The YAML and the templates of roles and playbooks, by path; the specs only describe."""
    paths = [*(ROOT / "roles").rglob("*"), *(ROOT / "playbooks").rglob("*.yml")]
    return {
        path.relative_to(ROOT).as_posix(): code(path)
        for path in sorted(paths)
        if path.suffix in (".yml", ".j2") and path.parent.name != "meta" and path.name != "argument_specs.yml"
    }


def place(path: str) -> str:
    """The role of a file, or the playbook."""
    parts = path.split("/")
    return parts[1] if parts[0] == "roles" else path.removeprefix("playbooks/")


def mentions(name: str) -> set[str]:
    """The roles and playbooks that name something."""
    return {path for path, text in sources().items() if re.search(rf"(?<!\w){name}(?!\w)", text)}


def facts() -> dict[str, str]:
    """Each public fact with its role."""
    return {
        name: role
        for role in ROLES
        for path in sorted((ROOT / "roles" / role).glob("[th]a*/*.yml"))
        for node in walk(load(path))
        for name in node.get("ansible.builtin.set_fact") or {}
        if not name.startswith("__") and name != "cacheable"
    }


def called(path: Path) -> Iterator[tuple[str, str]]:
    """Each role and entry point that a file calls, in its order."""
    for node in load(path) or []:
        for mapping in walk(node):
            if "ansible.builtin.import_playbook" in mapping:
                yield from called(path.parent / mapping["ansible.builtin.import_playbook"])
            for call in CALLS:
                if call in mapping:
                    yield mapping[call]["name"], mapping[call].get("tasks_from", "main")
            if "hosts" in mapping:
                yield from ((role, "main") for role in mapping.get("roles", []))


def table(heading: str) -> list[list[str]]:
    """The cells of the table below a heading of the page, without the head."""
    section = re.split(rf"^## {re.escape(heading)}$", PAGE, flags=re.MULTILINE)[1].split("\n## ")[0]
    rows = [line.strip().strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows[2:]]


def names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_steps_of_the_page_are_those_of_site_yml() -> None:
    steps = [(names(row[1])[0], names(row[2])[0]) for row in table("What site.yml calls")]
    assert steps == list(called(ROOT / "playbooks" / "site.yml"))


def test_roles_of_the_page_are_the_roles_in_the_order_of_site_yml() -> None:
    order = list(dict.fromkeys(role for role, _ in called(ROOT / "playbooks" / "site.yml")))
    missing = [role for role in ROLES if role not in order]
    assert [names(row[0])[0] for row in table("What each role owns")] == order + missing


@pytest.mark.parametrize("role", ROLES)
def test_calls_of_the_page_are_those_of_the_roles(role: str) -> None:
    row = next(row for row in table("What each role owns") if names(row[0]) == [role])
    calls = {
        call
        for path in (ROOT / "roles" / role / "tasks").glob("*.yml")
        for call, _ in called(path)
        if call != role
    }
    assert set(names(row[2])) == calls


def test_facts_of_the_page_are_those_that_roles_set() -> None:
    told = {names(row[0])[0]: names(row[1])[0] for row in table("Facts")}
    assert told == facts()


@pytest.mark.parametrize("fact", sorted(facts()))
def test_readers_of_the_page_are_those_of_the_code(fact: str) -> None:
    readers = {place(path) for path in mentions(fact)} - {facts()[fact]}
    row = next(row for row in table("Facts") if names(row[0]) == [fact])
    assert set(names(row[2])) == readers, f"{fact} is read by {sorted(readers)}"


@pytest.mark.parametrize("role", ROLES)
def test_a_role_names_its_facts_after_itself(role: str) -> None:
    assert [
        name for name, owner in facts().items() if owner == role and not name.startswith(f"{role}_")
    ] == []


@pytest.mark.parametrize("role", ROLES)
def test_the_page_names_the_files_and_units_of_a_role(role: str) -> None:
    row = next(row for row in table("What each role owns") if names(row[0]) == [role])
    found = {
        path.rstrip("/-.").removeprefix("/etc/systemd/system/")
        for name, text in sources().items()
        if place(name) == role and re.search(r"/(tasks|vars|defaults)/", name)
        for path in PATH.findall(text)
    }
    templates = (ROOT / "roles" / role / "templates").glob("*.j2")
    units = {path.stem for path in templates if path.stem.endswith((".service", ".timer"))}
    owned = row[1] + row[3]
    missing = [what for what in sorted(found - SHARED | units) if what not in owned]
    assert not missing


def private_reads() -> set[tuple[str, str]]:
    """Each file that names what is private to another role, with the name."""
    found = set()
    for path, text in sources().items():
        for name in re.findall(r"(?<!\w)__[a-z]\w*", text):
            owners = [role for role in ROLES if name.startswith(f"__{role}_")]
            if owners and max(owners, key=len) != place(path):
                found.add((path, name))
    return found


def test_no_place_reads_what_is_private_to_a_role() -> None:
    """Publish a fact, or add an entry point to the role; the list only gets shorter."""
    assert private_reads() == set(PRIVATE_READ)


def test_a_new_read_of_a_private_name_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    planted = {
        "roles/rollout/tasks/new.yml": "{{ __eagle3_server_unit }} {{ __rollout_owed }}",
        "playbooks/new.yml": "{{ hostvars.gpu.__rollout_owed }} {{ __new }}",
    }
    monkeypatch.setattr(sys.modules[__name__], "sources", lambda: planted)
    assert private_reads() == {
        ("roles/rollout/tasks/new.yml", "__eagle3_server_unit"),
        ("playbooks/new.yml", "__rollout_owed"),
    }
