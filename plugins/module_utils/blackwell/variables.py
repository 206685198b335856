"""Which variables this project knows, and what is wrong with the ones that an inventory sets.

Ansible ignores a variable that no role reads, so a misspelt one does nothing, in silence. Here the names that
the hosts of an inventory have are held against the names that the roles declare, before any host is touched.
All of it runs on the controller; PyYAML is there because ansible-core needs it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import Any

import yaml

from .server import SGLANG_NAMES

# Ansible's own set_fact, under each of the names by which it may be called.
_SET_FACT = ("ansible.builtin.set_fact", "set_fact")
# What a task may be nested in.
_NESTED = ("tasks", "pre_tasks", "post_tasks", "block", "rescue", "always")
# What these mean is only clear behind a prefix of ours.
_SHORT_NAMES: Mapping[str, str] = {
    "tp": "eagle3_server_tensor_parallel_size",
    "tensor_parallel": "eagle3_server_tensor_parallel_size",
    "model": "eagle3_server_model_path",
    "draft_model": "eagle3_server_draft_model_path",
    "mem_fraction": "eagle3_server_mem_fraction_static",
    "max_bs": "eagle3_server_cuda_graph_max_bs",
}
# Prefixes that are ours although no role has this very name.
_FAMILY = ("bundle_", "patch_", "rollout_", "sglang_")


@dataclass(frozen=True)
class Option:
    """One public variable: where it is declared, what it may be, and what it is when nobody sets it.

    ``type`` and ``elements`` (of a list's items) are names of Ansible's argument specs.
    """

    name: str
    role: str
    choices: tuple[Any, ...] = ()
    default: Any = None
    type: str = "raw"
    elements: str = "raw"


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
                    name,
                    role,
                    choices=tuple(about.get("choices") or ()),
                    default=about.get("default"),
                    type=about.get("type", "str"),
                    elements=about.get("elements", "raw"),
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
    return 0 if len(name) < 6 else 1 if len(name) < 8 else 2 if len(name) < 20 else 3


def nearest(name: str, known: Iterable[str], limit: int) -> str:
    """The known name that is fewest edits away from ``name``, or nothing if none is within ``limit``."""
    found = min(((distance(name, other, limit), other) for other in known), default=(limit + 1, ""))
    return found[1] if found[0] <= limit else ""


def _guess(name: str, known: Known) -> str:
    """The variable that a name under one of our prefixes was meant for, or nothing."""
    # SGLang's names count as names of the server's variables, so that a slip in one of them is seen as well.
    meant = {known_name: known_name for known_name in known.names}
    meant.update(
        (f"eagle3_server_{short}", ours)
        for short, ours in (*_SHORT_NAMES.items(), *SGLANG_NAMES.items())
        if ours in known.options and f"eagle3_server_{short}" not in meant
    )
    for prefix in known.prefixes:
        if name.startswith(prefix) and f"eagle3_server_{name[len(prefix) :]}" in meant:
            return meant[f"eagle3_server_{name[len(prefix) :]}"]
    # Under our own prefix a far guess still helps.
    near = nearest(name, meant, max(3, len(name) // 3))
    return meant[near] if near else ""


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
            guess = _guess(name, known)
            text = "no role of this project knows this variable"
            remedy = f"Write {guess}" if guess else "Remove it"
            remedy += ", or name it in preflight_foreign_variables if something else reads it"
        elif SGLANG_NAMES.get(name) in known.options:
            text = "is SGLang's name, and no role of this project knows it"
            remedy = f"Write {SGLANG_NAMES[name]}, or name it in preflight_foreign_variables if something else reads it"
        else:
            guess = nearest(name, candidates, _slips(name))
            if not guess:
                continue
            text = f"is very close to {guess}, and no role of this project knows it"
            remedy = f"Write {guess}, or name it in preflight_foreign_variables if something else reads it"
        problems.append(Problem(name, text, remedy, tuple(on)))
    return problems


# What is the same in a file's name, in a URL, in a pattern of hosts and in a terminal.
_HOST_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


def judge_hosts(hosts: Iterable[str]) -> list[Problem]:
    """Find names of hosts after which no receipt, report or address can be called, or which two would share."""
    problems = []
    same: dict[str, list[str]] = {}
    for host in hosts:
        same.setdefault(host.lower(), []).append(host)
        if not _HOST_NAME.fullmatch(host):
            text = f"is {host!r}, and receipts, reports and addresses are called after it"
            remedy = (
                "Name the host with letters, digits, dots, hyphens and underscores, beginning with none of . and -, "
                "and put its address into ansible_host"
            )
            problems.append(Problem("inventory_hostname", text, remedy, (host,)))
    for alike in same.values():
        if len(alike) > 1:
            text = f"is {' and '.join(map(repr, alike))}, which are one name where case does not count"
            remedy = "Name all but one of them differently"
            problems.append(Problem("inventory_hostname", text, remedy, tuple(alike)))
    return problems


def wanted_values(known: Known, rules: Sequence[Rule]) -> frozenset[str]:
    """The variables whose values are judged: those that are declared, and what else a rule reads."""
    return frozenset(known.options).union(*(rule.reads for rule in rules))


# How each type of an argument spec is called, and how one is written.
_TYPES = {
    "str": ("a string", "text"),
    "path": ("a path", "/some/folder"),
    "int": ("an integer", "8"),
    "float": ("a number", "0.5"),
    "bool": ("a bool", "true or false"),
    "list": ("a list", "[one, two]"),
    "dict": ("a mapping", "{name: value}"),
}
# A bool is an integer to Python, so it comes first.
_KINDS = ((bool, "bool"), (int, "int"), (float, "float"), (str, "str"), (Mapping, "dict"), (list, "list"))
_SECRET = re.compile(r"_(api_key|token|password)$")
_SHOWN = 60


def _kind(value: Any) -> str:
    return next((name for kind, name in _KINDS if isinstance(value, kind)), type(value).__name__)


def called(value: Any) -> str:
    """What the type of a value is called in YAML, such as ``an integer``."""
    kind = _kind(value)
    return _TYPES[kind][0] if kind in _TYPES else kind


def _wrong_type(
    name: str, value: Any, wanted: str, elements: str, convert: Mapping[str, Callable[[Any], Any]]
) -> tuple[str, str] | None:
    """What is wrong with the type of a value, and what to write instead; None if it is right or convertible.

    Ansible makes text of anything, and so ``"True"`` of a ``yes`` without quotes, which nobody means.
    """
    kind = _kind(value)
    try:
        if wanted in ("str", "path") and kind in ("bool", "list", "dict"):
            raise TypeError
        converted = convert[wanted](value) if wanted in convert else value
    except (TypeError, ValueError):
        shown = "not shown" if _SECRET.search(name) else repr(value)
        if len(shown) > _SHOWN:
            shown = f"{shown[:_SHOWN]}..."
        text = f"is {shown}, {called(value)}, and {_TYPES[wanted][0]} is wanted"
        if wanted in ("str", "path") and kind == "bool":
            return (
                text,
                "Put it in quotes: without them YAML takes yes, no, on, off, true and false for bools",
            )
        return text, f"Write it like {name}: {_TYPES[wanted][1]}"
    if wanted == "list" and elements != "raw":
        for item in converted:
            wrong = _wrong_type(name, item, elements, "raw", convert)
            if wrong:
                return f"has an item that {wrong[0]}", wrong[1]
    return None


def judge_values(
    values: Mapping[str, Mapping[str, Any]],
    known: Known,
    rules: Sequence[Rule],
    convert: Mapping[str, Callable[[Any], Any]],
) -> list[Problem]:
    """Find values that their variable does not allow, and values that contradict each other.

    Args:
        values: for each host the variables that it sets and that can be read now.
        known: what the project declares; a default without a template stands in for a variable not set.
        rules: what must hold of variables and between them.
        convert: for each type of an argument spec, what makes a value one of that type or raises TypeError or
            ValueError: Ansible's own, so that what it accepts is accepted here.
    """
    found: dict[tuple[str, str, str], list[str]] = {}
    for host, own in values.items():
        for name in sorted(own):
            option = known.options.get(name)
            if option is None:
                continue
            if option.choices and str(own[name]) not in map(str, option.choices):
                text = f"is {own[name]!r}"
                choices = (str(choice) or '""' for choice in option.choices)
                remedy = f"Choose one of: {', '.join(choices)}"
                found.setdefault((name, text, remedy), []).append(host)
            # Null is as good as not set.
            elif own[name] is not None:
                wrong = _wrong_type(name, own[name], option.type, option.elements, convert)
                if wrong:
                    found.setdefault((name, *wrong), []).append(host)
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
                continue  # a value of another type, which is a problem of its own
            if text:
                set_here = [name for name in rule.reads if name in own] or list(rule.reads)
                found.setdefault((set_here[0], text, rule.remedy), []).append(host)
    return [Problem(name, text, remedy, tuple(on)) for (name, text, remedy), on in found.items()]


def _refer(readers: Collection[str]) -> str:
    return f"{' and '.join(readers)} refer{'' if len(readers) > 1 else 's'}"


def judge_secrets(unread: Mapping[str, Mapping[str, str]], files: Iterable[Path]) -> list[Problem]:
    """Find secrets (``vault_...``) that variables of ours refer to and that nothing sets.

    Other values that cannot be read yet may refer to what is only known on the host, and are left alone.

    Args:
        unread: for each host, why a variable cannot be read, in Ansible's words.
        files: the files of the inventory; beside one of them an example of the vault is looked for.
    """
    found: dict[str, dict[str, list[str]]] = {}
    for host, reasons in unread.items():
        for name, reason in sorted(reasons.items()):
            missing = re.search(r"'(vault_\w+)' is undefined", reason)
            if missing:
                found.setdefault(missing[1], {}).setdefault(name, []).append(host)
    if not found:
        return []

    example = next((each for path in files if (each := path.with_name("vault.yml.example")).is_file()), None)
    vault = example.with_suffix("") if example else None
    if vault is None:
        remedy = (
            "Set it in a vault.yml in the inventory's group_vars/all, and run ansible-vault encrypt on that"
        )
    elif vault.exists():
        remedy = f"Add it: ansible-vault edit {quote(str(vault))}"
    else:
        remedy = f"Copy {example} to vault.yml beside it, fill it in, and run ansible-vault encrypt {quote(str(vault))}"
    remedy += ' (README.md, "Use it in production", step 2)'
    return [
        Problem(
            secret,
            f"is not set, and {_refer(readers)} to it",
            remedy,
            tuple(dict.fromkeys(host for on in readers.values() for host in on)),
        )
        for secret, readers in sorted(found.items())
    ]


def is_key(name: str) -> bool:
    """Whether a variable holds a key without which a server is open to anybody."""
    return name.endswith("_api_key")


def secrets_of(raw: Any) -> list[str]:
    """The secrets (``vault_...``) that a value refers to, given as it is written."""
    return re.findall(r"\bvault_\w+", raw) if isinstance(raw, str) else []


def judge_empty_secrets(empty: Mapping[str, Mapping[str, Iterable[str]]]) -> list[Problem]:
    """Find keys that come from a vault which was copied from its example and not filled in.

    A key that is empty itself is meant so.

    Args:
        empty: for each host and each key of ours, the secrets that it refers to and that are empty.
    """
    found: dict[str, dict[str, list[str]]] = {}
    for host, keys in empty.items():
        for name, secrets in sorted(keys.items()):
            for secret in secrets:
                found.setdefault(secret, {}).setdefault(name, []).append(host)
    return [
        Problem(
            secret,
            f"is empty, and {_refer(readers)} to it, so there would be no key",
            "Fill it in (openssl rand -hex 32 prints one); where no key is meant, write "
            + " and ".join(f'{name}: ""' for name in readers),
            tuple(dict.fromkeys(host for on in readers.values() for host in on)),
        )
        for secret, readers in sorted(found.items())
    ]


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
        # An example is read by nobody.
        files.update(path for path in folder.rglob("*") if path.is_file() and path.suffix != ".example")
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
