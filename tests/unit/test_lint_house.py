"""That the lint of the house finds what it is there for, and says what mends it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LINES = "\n".join(f"    value = {number}" for number in range(70))
MANY = "\n".join(f"value_{number} = {number}" for number in range(401))
LOGIC = "plugins/module_utils/blackwell/logic.py"


def lint(root: Path, *arguments: str) -> tuple[int, str]:
    command = [sys.executable, str(ROOT / "scripts" / "lint-house"), "--root", str(root), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr


def plant(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def tasks(*names: str) -> str:
    return "---\n" + "".join(f"- name: '{name}'\n  ansible.builtin.meta: noop\n" for name in names)


def test_the_project_keeps_its_rules() -> None:
    assert lint(ROOT) == (0, "")


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("start the server", "begins with a small letter"),
        ("Server start", 'begins with "Server"'),
        ("The start of the server", 'begins with "The"'),
        ("Starting the server", 'begins with "Starting"'),
        ("Start it", 'has the pronoun "it"'),
        ("Find what serves", 'has the pronoun "what"'),
        ("Report the hosts that failed", 'has the pronoun "that"'),
        ("Stop, then start them", 'has the pronoun "them"'),
        ("Start the server.", "ends in a full stop"),
    ],
)
@pytest.mark.parametrize(
    "place", ["roles/r/tasks/main.yml", "roles/r/handlers/main.yml", "molecule/s/prepare.yml"]
)
def test_a_name_that_is_no_imperative_and_noun_is_found(
    tmp_path: Path, name: str, found: str, place: str
) -> None:
    plant(tmp_path, place, tasks(name))
    status, said = lint(tmp_path)
    assert status == 1 and said.count("\n") == 1, said
    assert said.startswith(f'{place}: "{name}" ') and found in said and "To mend it: " in said


@pytest.mark.parametrize(
    "name",
    ["Start the server", "Check, patch and seal the release", "Start {{ what_it_is }}", "Wait for items"],
)
def test_a_good_name_is_left_alone(tmp_path: Path, name: str) -> None:
    plant(tmp_path, "roles/r/tasks/main.yml", tasks(name))
    assert lint(tmp_path) == (0, "")


def test_names_of_plays_blocks_and_their_tasks_are_looked_at(tmp_path: Path) -> None:
    inner = "{name: Inner task, ansible.builtin.meta: noop}"
    block = f"{{name: Second block, block: [{inner}], rescue: [{inner.replace('Inner', 'Rescue')}]}}"
    plant(tmp_path, "playbooks/a.yml", f"---\n- name: First play\n  hosts: all\n  tasks:\n    - {block}\n")
    said = lint(tmp_path)[1]
    assert [line.split('"')[1] for line in said.splitlines()] == [
        "First play",
        "Second block",
        "Inner task",
        "Rescue task",
    ]


def test_two_tasks_of_one_name_are_found(tmp_path: Path) -> None:
    plant(tmp_path, "roles/r/tasks/main.yml", tasks("Start the server", "Start the server"))
    status, said = lint(tmp_path)
    assert status == 1 and '"Start the server" is the name of two tasks.' in said


def test_two_plays_may_have_tasks_of_one_name_and_an_alias_is_one_task(tmp_path: Path) -> None:
    play = "- name: {0} the hosts\n  hosts: all\n  tasks:\n    - {1}{{name: Report, ansible.builtin.meta: noop}}\n"
    again = "    - *noted\n"
    plant(
        tmp_path,
        "playbooks/a.yml",
        "---\n" + play.format("Start", "&noted ") + again + play.format("Stop", ""),
    )
    assert lint(tmp_path) == (0, "")


def test_a_long_function_and_a_long_file_are_found(tmp_path: Path) -> None:
    plant(tmp_path, LOGIC, f"class Room:\n  def long(self):\n{LINES}\n")
    plant(tmp_path, "blackwell_cli/many.py", MANY)
    status, said = lint(tmp_path)
    assert status == 1
    assert f"{LOGIC}:Room.long has 71 lines. Expected: at most 60." in said
    assert "blackwell_cli/many.py has 401 lines. Expected: at most 400." in said


@pytest.mark.parametrize("place", ["molecule/s/tests/test_s.py", "molecule/conftest.py", "tests/unit/x.py"])
def test_tests_may_be_long(tmp_path: Path, place: str) -> None:
    plant(tmp_path, place, MANY)
    assert lint(tmp_path) == (0, "")


def test_a_program_without_a_suffix_is_looked_at(tmp_path: Path) -> None:
    plant(tmp_path, "scripts/program", f"#!/usr/bin/env python3\n{MANY}")
    assert "scripts/program has 402 lines" in lint(tmp_path)[1]


@pytest.mark.parametrize(
    ("docstring", "passes"),
    [
        ("Do. Long because it is one table.", True),
        ("Do.\n\n    Long because it is one table.\n    ", True),
        ("Do. It is long because I say so.", False),
        ("Do.", False),
    ],
)
def test_what_is_long_for_a_reason_says_so(tmp_path: Path, docstring: str, passes: bool) -> None:
    plant(tmp_path, LOGIC, f'def long():\n    """{docstring}"""\n{LINES}\n')
    plant(tmp_path, "blackwell_cli/many.py", f'"""{docstring}"""\n{MANY}')
    assert lint(tmp_path)[0] == (0 if passes else 1)


@pytest.mark.parametrize(
    ("docstring", "passes"), [("Do. Complex because it is a parser.", True), ("Do.", False)]
)
def test_what_ruff_lets_through_says_why(tmp_path: Path, docstring: str, passes: bool) -> None:
    plant(tmp_path, LOGIC, f'def deep(  # noqa: C901\n    x\n):\n    """{docstring}"""\n')
    status, said = lint(tmp_path)
    assert (status == 0) is passes and ("deep" in said) is not passes


def test_two_public_classes_of_one_name_are_found(tmp_path: Path) -> None:
    for name in ("one", "two"):
        plant(tmp_path, f"plugins/module_utils/blackwell/{name}.py", "class Host: ...\nclass _Part: ...\n")
    status, said = lint(tmp_path)
    assert status == 1 and said.startswith("Host is the name of 2 public classes: ")
    assert said.count("\n") == 1


LEDGER = "---\nfiles:\nfunctions:\n  {name}:\n    limit: {limit}\n    reason: {reason}\nclasses:\n"


@pytest.mark.parametrize(
    ("limit", "reason", "found"),
    [
        (71, "An old one.", ""),
        (70, "An old one.", "has 71 lines. Expected: at most 70."),
        (72, "An old one.", "allows plugins/module_utils/blackwell/logic.py:long 72, and 71 is there"),
        (71, '""', "gives no reason for"),
    ],
)
def test_a_listed_limit_holds_exactly_and_has_a_reason(
    tmp_path: Path, limit: int, reason: str, found: str
) -> None:
    plant(tmp_path, LOGIC, f"def long():\n{LINES}\n")
    plant(tmp_path, "scripts/lint-house.yml", LEDGER.format(name=f"{LOGIC}:long", limit=limit, reason=reason))
    status, said = lint(tmp_path)
    assert status == (1 if found else 0) and found in said, said


def test_tighten_lowers_limits_takes_out_what_needs_none_and_raises_nothing(tmp_path: Path) -> None:
    ledger = tmp_path / "scripts" / "lint-house.yml"
    entry = LEDGER.format(name=f"{LOGIC}:long", limit=99, reason="An old one.")
    plant(
        tmp_path,
        "scripts/lint-house.yml",
        entry.replace("classes:", "  gone.py:f:\n    limit: 80\n    reason: x\nclasses:"),
    )
    plant(tmp_path, LOGIC, f"def long():\n{LINES}\n")
    assert lint(tmp_path, "--tighten") == (0, "")
    assert "limit: 71" in ledger.read_text(encoding="utf-8") and "gone.py" not in ledger.read_text(
        encoding="utf-8"
    )
    plant(tmp_path, LOGIC, f"def long():\n{LINES}\n    more = 1\n")
    assert lint(tmp_path, "--tighten")[0] == 1
