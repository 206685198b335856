"""What the linters do not see: that specs, defaults, documentation and tasks say the same."""

from __future__ import annotations

import ast
import functools
import itertools
import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
ROLES = sorted(path.name for path in (ROOT / "roles").iterdir() if path.is_dir())
MODULES = sorted(path.stem for path in (ROOT / "plugins" / "modules").glob("*.py"))
# Playbooks and everything that they may be made of.
YAML_FILES = [
    ROOT / "site.yml",
    *(
        path
        for folder in ("playbooks", "roles", "molecule")
        for path in sorted((ROOT / folder).rglob("*.y*ml"))
    ),
]
PYTHON_TYPES: dict[str, tuple[type, ...]] = {
    "bool": (bool,),
    "dict": (dict,),
    "float": (int, float),
    "int": (int,),
    "list": (list,),
    "path": (str,),
    "raw": (object,),
    "str": (str,),
}


@functools.cache
def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text()) if path.exists() else None


def walk(node: Any) -> Iterator[dict[str, Any]]:
    """Every mapping of a YAML document."""
    if isinstance(node, dict):
        yield node
    for child in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from walk(child)


def role_calls(path: Path) -> Iterator[tuple[str, str]]:
    """Role and entry point of everything in a file that calls a role."""
    for mapping in walk(load(path)):
        for action in ("ansible.builtin.include_role", "ansible.builtin.import_role"):
            if action in mapping:
                entry_point = mapping[action].get("tasks_from", "main")
                # Which one a template names is known when it runs, and ansible-core checks it then.
                if "{{" not in entry_point:
                    yield mapping[action]["name"], entry_point
        for role in mapping.get("roles", []) if "hosts" in mapping else []:
            yield (role if isinstance(role, str) else role["role"]), "main"


def specs(role: str) -> dict[str, Any]:
    spec = load(ROOT / "roles" / role / "meta" / "argument_specs.yml") or {}
    entry_points: dict[str, Any] = spec.get("argument_specs", {})
    return entry_points


def options(role: str) -> dict[str, dict[str, Any]]:
    """The options of all entry points of a role, by name."""
    return {
        name: option
        for entry_point in specs(role).values()
        for name, option in (entry_point.get("options") or {}).items()
    }


@pytest.mark.parametrize("role", ROLES)
def test_defaults_are_those_of_the_argument_specs(role: str) -> None:
    defaults = load(ROOT / "roles" / role / "defaults" / "main.yml") or {}
    documented = {
        name: option.get("default") for name, option in options(role).items() if not option.get("required")
    }
    assert defaults == documented


@pytest.mark.parametrize("role", ROLES)
def test_options_are_described_and_typed(role: str) -> None:
    assert specs(role), f"{role} has no argument specs"
    for name, option in options(role).items():
        assert name.startswith(f"{role}_"), name
        assert option.get("description"), f"{name} has no description"
        default = option.get("default")
        # A template becomes what it is meant to be only on the host.
        if default is not None and not (isinstance(default, str) and "{{" in default):
            assert isinstance(default, PYTHON_TYPES[option["type"]]), (
                f"{name}: {default!r} is no {option['type']}"
            )
            assert default in option.get("choices", [default]), (
                f"{name}: {default!r} is not among its choices"
            )


def test_a_bool_that_the_command_line_gives_is_one() -> None:
    """``-e name=false`` is text, which a condition refuses or takes for true."""
    bools = [name for role in ROLES for name, option in options(role).items() if option["type"] == "bool"]
    # Where it decides: a condition, or an `if`, `or` or `ternary` of a template.
    bare = rf"(?<![\w.'])(?:{'|'.join(bools)})\b(?! *\|| is |: )"
    decides = re.compile(
        rf"(?:when:|that:)(?:.*\b(?:and|or|not))? {bare}|(?:\bif|^ *-) {bare}|{bare} (?:or|and|else)\b"
        rf"|(?:{'|'.join(bools)}) *\| *ternary\b"
    )
    for path in [*YAML_FILES, *ROOT.glob("roles/*/templates/*")]:
        for line in path.read_text().splitlines():
            assert not decides.search(line), f"{path.relative_to(ROOT)}: {line.strip()}"


def test_who_ignores_a_lost_host_does_so_in_every_play() -> None:
    """Where a play has ``any_errors_fatal``, Ansible ends it without a word at a lost host that a task ignores."""
    for path in YAML_FILES:
        for line, following in itertools.pairwise(path.read_text().splitlines()):
            if line.strip() == "ignore_unreachable: true":
                assert following.strip() == "any_errors_fatal: false", path.relative_to(ROOT)


@pytest.mark.parametrize("role", ROLES)
def test_an_option_means_the_same_at_every_entry_point(role: str) -> None:
    """Its description may say what it does there; type, default and choices have to agree."""
    for entry_point in specs(role).values():
        for name, option in (entry_point.get("options") or {}).items():
            for key in ("type", "elements", "default", "choices"):
                assert option.get(key) == options(role)[name].get(key), f"{key} of {name} differs"


@pytest.mark.parametrize("role", ROLES)
def test_every_default_is_used_by_its_role(role: str) -> None:
    """An option that nothing reads is a promise that nothing keeps; a role that it calls may read it."""
    calls = {
        name for path in (ROOT / "roles" / role / "tasks").rglob("*.yml") for name, _ in role_calls(path)
    }
    texts = {
        path: path.read_text()
        for reader in {role, *calls}
        for folder in ("tasks", "handlers", "templates", "vars", "defaults")
        for path in (ROOT / "roles" / reader / folder).rglob("*")
        if path.is_file()
    }
    for name in load(ROOT / "roles" / role / "defaults" / "main.yml") or {}:
        uses = sum(len(re.findall(rf"\b{name}\b(?!:)", text)) for text in texts.values())
        assert uses, f"{name} is used nowhere in the role {role}"


@pytest.mark.parametrize("path", YAML_FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_template_looks_for_a_new_line_where_it_sees_a_backslash(path: Path) -> None:
    """In a template, only a double-quoted YAML string turns backslash and n into a new line."""
    texts = [text for node in walk(load(path)) for text in node.values() if isinstance(text, str)]
    assert not [text for text in texts if "{{" in text and r"'\n'" in text]


@pytest.mark.parametrize("path", YAML_FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_condition_of_an_imported_playbook_can_be_judged_on_every_host(path: Path) -> None:
    """It is every task's of that playbook, on hosts too for which the plays before have set no facts."""
    for node in walk(load(path)):
        conditions = node.get("when", []) if "ansible.builtin.import_playbook" in node else []
        for condition in [conditions] if isinstance(conditions, str) else conditions:
            for name in re.findall(r"\b[a-z]+(?:_[a-z]+)+\b", condition):
                assert f"{name} | default(" in condition


@pytest.mark.parametrize("role", ROLES)
def test_every_entry_point_has_a_spec_and_every_spec_a_task_file(role: str) -> None:
    called = {entry for path in YAML_FILES for name, entry in role_calls(path) if name == role}
    assert called, f"no playbook calls the role {role}"
    assert called <= set(specs(role)), "ansible-core checks no arguments of an entry point without a spec"
    for entry_point in specs(role):
        assert (ROOT / "roles" / role / "tasks" / f"{entry_point}.yml").exists(), entry_point


def test_no_command_of_a_scenario_has_a_doubled_percent_sign_that_nobody_halves() -> None:
    """testinfra formats a command only where it is given arguments: without them, '%%' is what the host gets."""
    calls = [
        (path, node)
        for path in sorted((ROOT / "molecule").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("run", "run_expect", "run_test", "check_output")
    ]
    assert calls
    wrong = [
        f"{path}:{node.lineno}" for path, node in calls if len(node.args) == 1 and "%%" in ast.unparse(node)
    ]
    assert not wrong


def test_entry_points_are_named_without_extension() -> None:
    """With an extension ansible-core finds no spec for the entry point, and says nothing."""
    for path in YAML_FILES:
        for role, entry_point in role_calls(path):
            assert not entry_point.endswith((".yml", ".yaml")), f"{path}: {role} {entry_point}"


@pytest.mark.parametrize("module", MODULES)
def test_modules_are_documented(module: str) -> None:
    command = ["ansible-doc", "--json", "--type", "module", module]
    environment = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    page = json.loads(done.stdout)[module]
    assert page["doc"]["short_description"] and page["doc"]["description"]
    assert {"check_mode", "diff_mode"} <= set(page["doc"]["attributes"])
    assert page["return"], "RETURN is empty"
    calls = [task[module] or {} for task in yaml.safe_load(page["examples"]) if module in task]
    assert calls, f"no example calls {module}"
    for call in calls:
        unknown = set(call) - set(page["doc"].get("options", {}))
        assert not unknown, f"an example uses options that do not exist: {unknown}"


def test_lint_knows_the_projects_own_modules() -> None:
    own = {path.stem for kind in ("modules", "action") for path in (ROOT / "plugins" / kind).glob("*.py")}
    assert set(load(ROOT / ".ansible-lint")["only_builtins_allow_modules"]) == own


def test_requirements_are_pinned_and_hashed_for_the_declared_names() -> None:
    declared = re.findall(
        r"^([A-Za-z0-9-]+)", (ROOT / "requirements" / "controller.in").read_text(), re.MULTILINE
    )
    for lock in (ROOT / "requirements").glob("controller-py*.txt"):
        entries = re.findall(r"^([a-z0-9.-]+)==\S+ \\\n    --hash=sha256:", lock.read_text(), re.MULTILINE)
        pinned = re.findall(r"^([a-z0-9.-]+)==", lock.read_text(), re.MULTILINE)
        assert entries == pinned
        assert {name.lower() for name in declared} <= set(pinned)


# How many positional arguments say the encoding: read_text(encoding), write_text(text, encoding).
_TEXT_CALLS = {"read_text": 1, "write_text": 2}


def _lacks_encoding(call: ast.Call) -> bool:
    """Whether a call reads or writes text in the encoding that the machine happens to have."""
    name = getattr(call.func, "attr", None) or getattr(call.func, "id", "")
    if any(keyword.arg in ("encoding", None) for keyword in call.keywords):
        return False
    if name in _TEXT_CALLS:
        return len(call.args) < _TEXT_CALLS[name]
    if name not in ("open", "fdopen"):
        return False
    owner = getattr(getattr(call.func, "value", None), "id", "")
    if owner in ("webbrowser", "direct") or (name == "open" and owner == "os"):
        return False
    at = 0 if isinstance(call.func, ast.Attribute) and owner not in ("os", "io", "gzip", "bz2") else 1
    modes = [keyword.value for keyword in call.keywords if keyword.arg == "mode"] + call.args[at : at + 1]
    mode = modes[0] if modes else ast.Constant("r")
    # What is no mode, as in urllib's opener.open(request), is no file either.
    return isinstance(mode, ast.Constant) and isinstance(mode.value, str) and set(mode.value) <= set("rwax+t")


@pytest.mark.parametrize(
    ("code", "lacks"),
    [
        ("p.read_text()", True),
        ("p.read_text('utf-8')", False),
        ("p.read_text(encoding='utf-8')", False),
        ("p.write_text(text)", True),
        ("p.write_text(text, 'utf-8')", False),
        ("open(p)", True),
        ("open(p, 'w')", True),
        ("open(p, mode='a')", True),
        ("open(p, 'rb')", False),
        ("p.open()", True),
        ("p.open('r+b', buffering=0)", False),
        ("os.fdopen(handle, 'w')", True),
        ("os.fdopen(handle, 'wb')", False),
        ("os.open(p, flags)", False),
        ("opener.open(request)", False),
    ],
)
def test_a_call_that_names_no_encoding_is_found(code: str, lacks: bool) -> None:
    call = ast.parse(code, mode="eval").body
    assert isinstance(call, ast.Call)
    assert _lacks_encoding(call) is lacks


def test_every_file_of_text_names_its_encoding() -> None:
    folders = ("plugins", "roles", "blackwell_cli", "sandbox", "scripts")
    found = [
        f"{file.relative_to(ROOT)}:{call.lineno}"
        for folder in folders
        for file in sorted((ROOT / folder).rglob("*.py"))
        for call in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call) and _lacks_encoding(call)
    ]
    assert found == []
