"""Which variables this project knows, and what is wrong with the ones that an inventory sets.

Ansible ignores a variable that no role reads, so a misspelt one does nothing, in silence. Here the names that
the hosts of an inventory have are held against the names that the roles declare, before any host is touched.
All of it runs on the controller; PyYAML is there because ansible-core needs it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

# Ansible's own set_fact, under each of the names by which it may be called.
_SET_FACT = ("ansible.builtin.set_fact", "set_fact")
# What a task may be nested in.
_NESTED = ("tasks", "pre_tasks", "post_tasks", "block", "rescue", "always")
# Prefixes that are ours although no role has this very name.
_FAMILY = ("patch_", "rollout_", "sglang_")


@dataclass(frozen=True)
class Option:
    """One public variable: where it is declared, what it may be, and what it is when nobody sets it."""

    name: str
    role: str
    choices: tuple[Any, ...] = ()
    default: Any = None


@dataclass(frozen=True)
class Renamed:
    """A variable that had another name until the release ``since`` of this project."""

    old: str
    new: str
    since: str


# One line for each renamed variable, newest last. A line stays for good: inventories live longer than code.
RENAMED: tuple[Renamed, ...] = ()


@dataclass(frozen=True)
class Known:
    """Every name that this project reads or sets, and the prefixes that are its own."""

    options: Mapping[str, Option]
    facts: frozenset[str]
    prefixes: tuple[str, ...]

    @property
    def names(self) -> frozenset[str]:
        """All names that may stand in an inventory or come from an earlier task."""
        return self.facts.union(self.options)

    def owns(self, name: str) -> bool:
        """Whether ``name`` is under one of this project's prefixes."""
        return name.startswith(self.prefixes)


@dataclass(frozen=True)
class Rule:
    """Values that contradict each other.

    Args:
        reads: the variables it judges, ``group_names`` among them where it is about groups; a host on which one of
            them cannot be read yet is passed over.
        broken: given their values by name, says in one sentence what is wrong, or nothing.
        remedy: what to set instead.
    """

    reads: tuple[str, ...]
    broken: Callable[[Mapping[str, Any]], str]
    remedy: str


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with the inventory, and on which hosts."""

    name: str
    text: str
    remedy: str
    hosts: tuple[str, ...]
    places: tuple[str, ...] = field(default=())

    def __str__(self) -> str:
        where = f" [{', '.join(self.places)}]" if self.places else ""
        return f"{self.name}{where}: {self.text}. {self.remedy}."


def _tasks(node: Any) -> Iterable[Mapping[str, Any]]:
    """Every task of a parsed task file or playbook, however deep in blocks and plays."""
    if isinstance(node, list):
        for item in node:
            yield from _tasks(item)
    elif isinstance(node, dict):
        yield node
        for key in _NESTED:
            yield from _tasks(node.get(key))


def _set_facts(files: Iterable[Path]) -> set[str]:
    names: set[str] = set()
    for path in files:
        for task in _tasks(_read(path)):
            for module in _SET_FACT:
                facts = task.get(module)
                if isinstance(facts, dict):
                    names.update(str(name) for name in facts)
    return names


class _Loader(yaml.SafeLoader):
    """Reads playbooks without knowing Ansible's tags (``!vault``, ``!unsafe``)."""


_Loader.add_multi_constructor("!", lambda loader, suffix, node: None)


def _read(path: Path) -> Any:
    return yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)


def load_known(roles: Path, playbooks: Path) -> Known:
    """Read what the roles and the playbooks declare.

    Options come from each role's ``meta/argument_specs.yml`` (all entry points) and from
    ``argument_specs.yml`` beside the playbooks, which has the same form; facts are the names that tasks set
    with ``set_fact``.

    Args:
        roles: the folder that holds the roles.
        playbooks: the folder that holds the playbooks; it may be absent.

    Raises:
        FileNotFoundError: there is no role in ``roles``.
    """
    folders = sorted(path for path in roles.iterdir() if path.is_dir()) if roles.is_dir() else []
    if not folders:
        raise FileNotFoundError(f"no roles in {roles}")
    specs = [(folder.name, folder / "meta" / "argument_specs.yml") for folder in folders]
    specs.append(("playbooks", playbooks / "argument_specs.yml"))

    options: dict[str, Option] = {}
    for role, path in specs:
        if not path.is_file():
            continue
        for entry in _read(path)["argument_specs"].values():
            for name, about in (entry.get("options") or {}).items():
                options[name] = Option(
                    name, role, choices=tuple(about.get("choices") or ()), default=about.get("default")
                )

    task_files = [path for folder in folders for path in sorted(folder.glob("tasks/**/*.yml"))]
    task_files += sorted(playbooks.glob("*.yml"))
    prefixes = sorted({*_FAMILY, *(f"{folder.name}_" for folder in folders)})
    return Known(options, frozenset(_set_facts(task_files)), tuple(prefixes))


def distance(left: str, right: str, limit: int) -> int:
    """Edits that turn one name into the other: insert, delete, replace, or swap two neighbours.

    Stops counting beyond ``limit`` and then returns ``limit + 1``.
    """
    if abs(len(left) - len(right)) > limit:
        return limit + 1
    before_last: list[int] = []
    last = list(range(len(right) + 1))
    for row, a in enumerate(left, 1):
        current = [row]
        for column, b in enumerate(right, 1):
            best = min(last[column] + 1, current[column - 1] + 1, last[column - 1] + (a != b))
            if row > 1 and column > 1 and a == right[column - 2] and left[row - 2] == b:
                best = min(best, before_last[column - 2] + 1)
            current.append(best)
        if min(current) > limit:
            return limit + 1
        before_last, last = last, current
    return last[-1]


def _slips(name: str) -> int:
    """How many slips of the finger still make a near-miss of a name of this length."""
    return 0 if len(name) < 8 else 2 if len(name) < 20 else 3


def nearest(name: str, known: Iterable[str], limit: int) -> str:
    """The known name that is fewest edits away from ``name``, or nothing if none is within ``limit``."""
    found = min(((distance(name, other, limit), other) for other in known), default=(limit + 1, ""))
    return found[1] if found[0] <= limit else ""


def judge_names(
    names: Mapping[str, Iterable[str]],
    known: Known,
    *,
    foreign: Iterable[str] = (),
    renamed: Sequence[Renamed] = RENAMED,
) -> list[Problem]:
    """Find the names that were meant for this project and that it does not know.

    Args:
        names: the variable names of each host.
        known: what the project declares.
        foreign: names under our prefixes, or close to one of ours, that somebody else reads.
        renamed: the variables that had another name.
    """
    left_alone = known.names.union(foreign)
    new_names = {item.old: item for item in renamed}
    hosts: dict[str, list[str]] = {}
    for host, host_names in names.items():
        for name in host_names:
            if name not in left_alone and not name.startswith("_"):
                hosts.setdefault(name, []).append(host)

    problems = []
    candidates = sorted(known.names)
    for name, on in sorted(hosts.items()):
        if name in new_names:
            item = new_names[name]
            text = f"was renamed in {item.since}"
            remedy = f"Set {item.new} instead"
        elif known.owns(name):
            # Under our own prefix a far guess still helps.
            guess = nearest(name, candidates, max(3, len(name) // 3))
            text = "no role of this project knows this variable"
            remedy = f"Write {guess}" if guess else "Remove it"
            remedy += ", or name it in preflight_foreign_variables if something else reads it"
        else:
            guess = nearest(name, candidates, _slips(name))
            if not guess:
                continue
            text = f"is very close to {guess}, and no role of this project knows it"
            remedy = f"Write {guess}, or name it in preflight_foreign_variables if something else reads it"
        problems.append(Problem(name, text, remedy, tuple(on)))
    return problems


def wanted_values(known: Known, rules: Sequence[Rule]) -> frozenset[str]:
    """The variables whose values are judged: those with choices, and those that a rule reads."""
    with_choices = {name for name, option in known.options.items() if option.choices}
    return frozenset(with_choices.union(*(rule.reads for rule in rules)))


def judge_values(
    values: Mapping[str, Mapping[str, Any]], known: Known, rules: Sequence[Rule]
) -> list[Problem]:
    """Find values that their variable does not allow, and values that contradict each other.

    Args:
        values: for each host the variables that it sets and that can be read now.
        known: what the project declares; a default without a template stands in for a variable not set.
        rules: what must hold between variables.
    """
    found: dict[tuple[str, str, str], list[str]] = {}
    for host, own in values.items():
        for name in sorted(own):
            option = known.options.get(name)
            if option and option.choices and str(own[name]) not in map(str, option.choices):
                text = f"is {own[name]!r}"
                remedy = f"Choose one of: {', '.join(str(choice) for choice in option.choices)}"
                found.setdefault((name, text, remedy), []).append(host)
        for rule in rules:
            seen = {}
            for name in rule.reads:
                option = known.options.get(name)
                if name in own:
                    seen[name] = own[name]
                elif option and not (isinstance(option.default, str) and "{{" in option.default):
                    seen[name] = option.default
            if len(seen) < len(rule.reads):
                continue
            try:
                text = rule.broken(seen)
            except (AttributeError, TypeError, ValueError):
                continue  # a value of another type, which the role that declares it refuses in its own words
            if text:
                set_here = [name for name in rule.reads if name in own] or list(rule.reads)
                found.setdefault((set_here[0], text, rule.remedy), []).append(host)
    return [Problem(name, text, remedy, tuple(on)) for (name, text, remedy), on in found.items()]


def variable_files(inventories: Iterable[Path], playbook_dir: Path) -> list[Path]:
    """The files in which an inventory's variables are written.

    Args:
        inventories: the inventory sources, files or folders; what does not exist is passed over.
        playbook_dir: its ``group_vars`` and ``host_vars`` count too.
    """
    files: set[Path] = set()
    folders = [playbook_dir / "group_vars", playbook_dir / "host_vars"]
    for source in inventories:
        if source.is_file():
            files.add(source)
            folders += [source.parent / "group_vars", source.parent / "host_vars"]
        else:
            folders.append(source)
    for folder in folders:
        files.update(path for path in folder.rglob("*") if path.is_file())
    return sorted(files)


def locate(name: str, files: Iterable[Path]) -> tuple[str, ...]:
    """Where ``name`` is set in ``files``, as ``file:line``.

    Files that are no text are passed over, and a vaulted file shows nothing. A name that comes from the command
    line is in none of them.
    """
    pattern = re.compile(rf"(?:^|[\s,{{\"']){re.escape(name)}[\"']?\s*[:=]")
    places = []
    for path in files:
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError:
            continue
        places += [
            f"{path}:{number}"
            for number, line in enumerate(lines, 1)
            if pattern.search(line) and not line.lstrip().startswith(("#", ";"))
        ]
    return tuple(places)


def report(problems: Sequence[Problem], hosts: int) -> str:
    """One message that names every problem.

    Args:
        problems: what was found, not empty.
        hosts: how many hosts were judged, to say "all" where that is true.
    """
    count = f"{len(problems)} variable{'s' if len(problems) > 1 else ''}"
    lines = [f"{count} of this inventory cannot be used; no host was touched."]
    for problem in problems:
        on = "" if len(problem.hosts) == hosts else f" (on {', '.join(problem.hosts)})"
        lines.append(f"- {problem}{on}")
    return "\n".join(lines)
