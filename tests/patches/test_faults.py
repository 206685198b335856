"""Every patch on a real 0.5.9 with something wrong: the tree stays as it was; the error says file, place and reason."""

from __future__ import annotations

import ast
import fcntl
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from blackwell.errors import OperatorError
from blackwell.patching import definition, edits, engine, hunks, installation, syntax

from tests.patches import trees

RELEASE = "0.5.9"
RAW = {raw["id"]: raw for raw in definition.load(trees.PATCHES)}
PATCHES = {name: definition.parse(raw) for name, raw in RAW.items()}


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("template") / "environment"
    trees.installation(folder, RELEASE)
    return folder


class Tree:
    """A copy of the release, and the file that one patch changes in it."""

    def __init__(self, folder: Path, patch: definition.Patch) -> None:
        self.folder = folder
        self.patch = patch
        self.python = folder / "bin" / "python"
        version = installation.locate(str(self.python), [(patch.package, patch.distribution)])[
            patch.package
        ].version
        variant = patch.variant(version)
        assert variant is not None
        self.variant = variant
        self.file = trees.site_packages(folder) / patch.package / variant.files[0]

    def installation(self, **options: Any) -> engine.Installation:
        definitions = [RAW[name] for name in (self.patch.id, *self.patch.needs)]
        return engine.Installation(str(self.python), definitions, {self.patch.id: True}, **options)

    def apply(self, **options: Any) -> engine.Outcome:
        installation = self.installation(**options)
        return engine.apply(installation, installation.select([self.patch.id]))

    def revert(self) -> engine.Outcome:
        installation = self.installation()
        return engine.revert(installation, installation.select())

    def changed(self) -> list[str]:
        """The files that applying the patch changes, with those of the patches that it needs."""
        installation = self.installation()
        outcome = engine.apply(installation, installation.select([self.patch.id]), write=False)
        return [path for path, _, _ in outcome.changes]

    def state(self) -> str:
        installation = self.installation()
        return engine.status(installation, installation.select([self.patch.id]))[0].state

    def content(self) -> dict[str, bytes]:
        """Every file of both packages, to see that nothing was changed and nothing left behind."""
        root = trees.site_packages(self.folder)
        return {str(file): file.read_bytes() for file in root.rglob("*") if file.is_file()}


# One patch of each method, in each of the packages; the others take minutes.
QUICK = ("kimi-k25-eagle3-delegation", "flashinfer-trtllm-comm-sm120")
PARAMETERS = [
    pytest.param(name, marks=[pytest.mark.quick] if name in QUICK else []) for name in sorted(PATCHES)
]


@pytest.fixture(params=PARAMETERS)
def tree(request: pytest.FixtureRequest, template: Path, tmp_path: Path) -> Tree:
    shutil.copytree(template, tmp_path / "environment", symlinks=True)
    return Tree(tmp_path / "environment", PATCHES[request.param])


Expected = tuple[str, ...]
"""What the error says besides the file: the place, and the reason."""


def anchors(tree: Tree) -> list[tuple[definition.Edit, syntax.Found, str]]:
    """The edits that look for a place by its content; the place, and how an error calls it."""
    module = ast.parse(tree.file.read_text())
    return [
        (edit, syntax.only(module, pattern, edit.at), f"in {edit.at}" if edit.at else "outside functions")
        for edit in tree.variant.edits
        if (pattern := edit.find or edit.before or edit.after or edit.call)
    ]


def anchor_missing(tree: Tree) -> Iterator[Expected]:
    """The place has other content, as after a rewrite."""
    text = tree.file.read_text()
    for edit, found, place in anchors(tree):
        other = definition.Edit(
            file=edit.file,
            at=edit.at,
            find=ast.unparse(found.first),
            replace="None" if isinstance(found.first, ast.expr) else "pass",
        )
        tree.file.write_text(hunks.with_changes(text, edits.changes(text, ast.parse(text), [other])))
        yield f"does not occur {place}", "`"


def anchor_twice(tree: Tree) -> Iterator[Expected]:
    text = tree.file.read_text()
    module = ast.parse(text)
    for edit, found, place in anchors(tree):
        again = ast.unparse(found.first)
        if isinstance(found.first, ast.expr):
            again = f"_ = {again}"
        if edit.at is None:
            tree.file.write_text(f"{text}\n{again}\n")
        else:
            last = syntax.definition(module, edit.at).body[-1]
            lines = tuple(" " * last.col_offset + line for line in again.split("\n"))
            copy = hunks.Change(last.lineno - 1, last.lineno - 1, lines)
            tree.file.write_text(hunks.with_changes(text, [copy]))
        yield f"occurs 2 times {place}", "(lines "


def names(tree: Tree) -> list[str]:
    """What the patch changes or adds: classes, functions, methods; or the name that it assigns to."""
    conditions = [*tree.variant.preconditions, *tree.variant.postconditions]
    named = [edit.at for edit in tree.variant.edits] + [check.at for check in conditions]
    named += [check.undefined for check in conditions if check.undefined and "." in check.undefined]
    found = dict.fromkeys(name for name in named if name)
    if not found:
        (assignment,) = syntax.statements(tree.variant.edits[0].find or "")
        assert isinstance(assignment, ast.Assign)
        return [ast.unparse(assignment.targets[0])]
    return [*dict.fromkeys(name.split(".")[0] for name in found), *(name for name in found if "." in name)]


def renamed(tree: Tree) -> Iterator[Expected]:
    text = tree.file.read_text()
    for name in names(tree):
        if "." not in name:
            tree.file.write_text(re.sub(rf"\b{name}\b", f"{name}Renamed", text))
            defined = syntax.definitions(ast.parse(text), name)
            yield (f"{name} is not defined" if defined else f"`{name} = ...` does not occur",)


def another_definition(tree: Tree) -> Iterator[Expected]:
    """Something of the same name that does something else; in Python the later one counts."""
    text = tree.file.read_text()
    for name in names(tree):
        within, _, method = name.rpartition(".")
        if within:
            end = syntax.definition(ast.parse(text), within).end_lineno or 0
            lines = ("", f"    def {method}(self, *args, **kwargs):", "        return None")
            tree.file.write_text(hunks.with_changes(text, [hunks.Change(end, end, lines)]))
            yield f"{name} is defined", "(line"
        elif syntax.definitions(ast.parse(text), name):
            tree.file.write_text(f"{text}\n\ndef {name}(*args, **kwargs):\n    return None\n")
            yield f"{name} is defined 2 times", "(lines "
        else:
            tree.file.write_text(f"{text}\n\n{name} = True\n")
            yield f"`{name} = ...` occurs 2 times", "(lines "


def syntax_error(tree: Tree) -> Iterator[Expected]:
    text = tree.file.read_text()
    tree.file.write_text(f"{text}def broken(:\n")
    yield "is not valid Python", f"(line {text.count(chr(10)) + 1})"


def crlf(tree: Tree) -> Iterator[Expected]:
    tree.file.write_bytes(tree.file.read_bytes().replace(b"\n", b"\r\n"))
    yield ("has CRLF line ends",)


def read_only(tree: Tree) -> Iterator[Expected]:
    tree.file.chmod(0o444)
    yield ("is read-only (mode 0444)",)


FAULTS = (anchor_missing, anchor_twice, renamed, another_definition, syntax_error, crlf, read_only)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_in_the_file(tree: Tree, fault: Callable[[Tree], Iterator[Expected]]) -> None:
    published = tree.file.read_bytes()
    tried = 0
    for expected in fault(tree):
        before = tree.content()
        with pytest.raises(OperatorError) as refused:
            tree.apply()
        for part in (str(tree.file), *expected):
            assert part in str(refused.value)
        assert tree.content() == before
        tree.file.write_bytes(published)
        tried += 1
    assert tried


def fork(action: Callable[[], object], expected: str) -> int:
    """Start ``action`` in a process of its own: it ends with 0, or with 3 for an error that says ``expected``."""
    child = os.fork()
    if child == 0:
        try:
            action()
            os._exit(0)
        except OperatorError as error:
            os._exit(3 if re.search(expected, str(error)) else 4)
        finally:
            os._exit(5)
    return child


def in_child(action: Callable[[], object], expected: str = "") -> int:
    """How ``action`` ended in a process of its own: its status, or minus the signal that killed it."""
    return os.waitstatus_to_exitcode(os.waitpid(fork(action, expected), 0)[1])


def test_no_space(tree: Tree) -> None:
    def action() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
        tree.apply()

    before = tree.content()
    named = "|".join(re.escape(file) for file in tree.changed())
    assert in_child(action, rf"({named}) cannot be written; nothing was changed. Found: File too large") == 3
    assert tree.content() == before


def test_two_runs_at_once(tree: Tree) -> None:
    before = tree.content()
    root = trees.site_packages(tree.folder) / tree.patch.package
    lock = os.open(root, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with pytest.raises(OperatorError, match=f"Another run is patching {root}"):
        tree.apply()
    assert tree.content() == before
    os.close(lock)

    runs = [fork(tree.apply, "Another run is patching") for _ in range(2)]
    ends = sorted(os.waitstatus_to_exitcode(os.waitpid(run, 0)[1]) for run in runs)
    assert ends in ([0, 0], [0, 3])
    assert tree.state() == engine.APPLIED
    tree.revert()
    assert tree.content() == before


def test_a_kill_at_any_moment(tree: Tree) -> None:
    """The next run ends as if nothing had happened, and leaves nothing behind."""
    before = tree.content()
    tree.apply()
    patched = tree.content()
    tree.revert()
    assert tree.content() == before
    step = 0
    while True:
        step += 1

        def action(step: int = step) -> None:
            calls = 0
            for name in ("replace", "unlink", "fsync", "fchmod"):
                genuine = getattr(os, name)

                def call(*given: Any, genuine: Any = genuine, **options: Any) -> Any:
                    nonlocal calls
                    calls += 1
                    if calls == step:
                        os.kill(os.getpid(), signal.SIGKILL)
                    return genuine(*given, **options)

                setattr(os, name, call)
            tree.apply()

        status = in_child(action)
        assert status in (0, -signal.SIGKILL)
        tree.installation().recover()
        assert tree.content() in (before, patched), step
        tree.apply()
        assert tree.content() == patched, step
        tree.revert()
        assert tree.content() == before, step
        if status == 0:
            break


def test_an_older_text_of_ours_ends_as_on_a_fresh_host(tree: Tree) -> None:
    tree.apply()
    fresh = tree.content()
    begin = f"# BEGIN blackwell patch: {tree.patch.id}\n"
    text = tree.file.read_text()
    assert begin in text
    tree.file.write_text(text.replace(begin, f"{begin}# From an older version of the project.\n"))
    assert tree.state() == engine.STALE
    tree.apply()
    assert tree.content() == fresh


def test_an_older_version_with_another_edit_ends_as_on_a_fresh_host(tree: Tree) -> None:
    before = tree.content()
    tree.apply()
    fresh = tree.content()
    tree.revert()
    text = tree.file.read_text()
    middle = text.count("\n") // 2
    lines = hunks.lines_of(text)
    while lines[middle].strip():
        middle += 1
    old = hunks.with_changes(text, [hunks.Change(middle, middle + 1, ("# Old.", ""))], tree.patch.id)
    tree.file.write_text(old)
    assert tree.content() != before
    assert tree.state() == engine.STALE
    tree.apply()
    assert tree.content() == fresh


def functions(file: Path) -> dict[str, str]:
    body = ast.parse(file.read_text()).body
    return {node.name: ast.unparse(node) for node in body if isinstance(node, ast.FunctionDef)}


def test_the_lists_of_other_kernels_stay(tmp_path: Path) -> None:
    """FlashInfer of 0.5.17 has the same list in other functions too, for kernels that SM120 does not have."""
    python = trees.installation(tmp_path / "environment", "0.5.17")
    file = trees.site_packages(tmp_path / "environment") / "flashinfer" / "jit" / "comm.py"
    before = functions(file)
    assert sum("supported_major_versions=[9, 10])" in body for body in before.values()) > 1
    name = "flashinfer-trtllm-comm-sm120"
    installation = engine.Installation(str(python), [RAW[name]], {name: True})
    engine.apply(installation, installation.select())
    after = functions(file)
    assert [function for function in before if before[function] != after[function]] == [
        "gen_trtllm_comm_module"
    ]


def test_a_hard_linked_cache_keeps_the_published_bytes(tree: Tree, tmp_path: Path) -> None:
    published = tree.file.read_bytes()
    (tmp_path / "cache.py").hardlink_to(tree.file)
    tree.apply()
    assert (tmp_path / "cache.py").read_bytes() == published
    assert tree.file.read_bytes() != published


def test_status_leaves_no_trace(tree: Tree) -> None:
    before = tree.content()
    assert tree.state() == engine.NEEDED
    assert tree.content() == before


def test_the_patched_file_runs_on_its_own_byte_code(tree: Tree) -> None:
    """Unchecked byte code of the published file would go on being used for ever."""
    subprocess.run(
        [sys.executable, "-m", "compileall", "-q", "--invalidation-mode=unchecked-hash", str(tree.file)],
        check=True,
    )
    stale = list((tree.file.parent / "__pycache__").glob(f"{tree.file.stem}.*.pyc"))
    assert stale
    tree.apply()
    assert not [file for file in stale if file.exists()]
