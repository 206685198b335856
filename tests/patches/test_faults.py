"""Every patch on a real 0.5.9 with something wrong: the tree stays as it was, and the error says file and reason."""

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
from collections.abc import Callable
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
        self.edits = variant.edits
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

    def state(self) -> str:
        installation = self.installation()
        return engine.status(installation, installation.select([self.patch.id]))[0].state

    def content(self) -> dict[str, bytes]:
        """Every file of both packages, to see that nothing was changed and nothing left behind."""
        root = trees.site_packages(self.folder)
        return {str(file): file.read_bytes() for file in root.rglob("*") if file.is_file()}


@pytest.fixture(params=sorted(PATCHES))
def tree(request: pytest.FixtureRequest, template: Path, tmp_path: Path) -> Tree:
    shutil.copytree(template, tmp_path / "environment", symlinks=True)
    return Tree(tmp_path / "environment", PATCHES[request.param])


def anchor(tree: Tree) -> tuple[definition.Edit, syntax.Found]:
    """The first edit that looks for a place by its content, and the place."""
    edit = next(edit for edit in tree.edits if edit.find or edit.before or edit.after or edit.call)
    pattern = edit.find or edit.before or edit.after or edit.call or ""
    return edit, syntax.only(ast.parse(tree.file.read_text()), pattern, edit.at)


def anchor_missing(tree: Tree) -> str:
    """The place has other content, as after a rewrite."""
    edit, found = anchor(tree)
    other = definition.Edit(
        file=edit.file,
        at=edit.at,
        find=ast.unparse(found.first),
        replace="None" if isinstance(found.first, ast.expr) else "pass",
    )
    text = tree.file.read_text()
    tree.file.write_text(hunks.with_changes(text, edits.changes(text, ast.parse(text), [other])))
    return "does not occur"


def anchor_twice(tree: Tree) -> str:
    edit, found = anchor(tree)
    again = ast.unparse(found.first)
    text = tree.file.read_text()
    module = ast.parse(text)
    if isinstance(found.first, ast.expr):
        again = f"_ = {again}"
    if edit.at is None:
        tree.file.write_text(f"{text}\n{again}\n")
    else:
        body = syntax.definition(module, edit.at).body[-1]
        indent = " " * body.col_offset
        copy = hunks.Change(
            body.lineno - 1, body.lineno - 1, tuple(indent + line for line in again.split("\n"))
        )
        tree.file.write_text(hunks.with_changes(text, [copy]))
    return "occurs 2 times"


def owner(tree: Tree) -> str | None:
    """The class or function that the patch changes, if it changes one."""
    named = [edit.at for edit in tree.edits if edit.at]
    named += [one["at"] for one in RAW[tree.patch.id]["postconditions"] if "at" in one]
    return named[0].split(".")[0] if named else None


def renamed(tree: Tree) -> str:
    name = owner(tree)
    if name is None:
        pytest.skip("the patch changes no class or function")
    text = tree.file.read_text()
    tree.file.write_text(re.sub(rf"^(class|def) {name}\b", rf"\1 {name}Renamed", text, flags=re.MULTILINE))
    return f"{name}"


def another_definition(tree: Tree) -> str:
    """Something of the same name that does something else; in Python the later one counts."""
    text = tree.file.read_text()
    if tree.patch.id == "kimi-k25-eagle3-delegation":
        method = "    def get_embed_and_head(self):\n        return self.mm_projector, None\n\n\nEntryClass"
        tree.file.write_text(text.replace("\nEntryClass", f"\n{method}"))
        return "get_embed_and_head is defined already"
    name = owner(tree)
    if name is None:
        pytest.skip("the patch changes no class or function")
    tree.file.write_text(f"{text}\n\ndef {name}(*args, **kwargs):\n    return None\n")
    return f"{name}"


def syntax_error(tree: Tree) -> str:
    tree.file.write_text(tree.file.read_text() + "def broken(:\n")
    return "is not valid Python"


def crlf(tree: Tree) -> str:
    tree.file.write_bytes(tree.file.read_bytes().replace(b"\n", b"\r\n"))
    return "CRLF"


def read_only(tree: Tree) -> str:
    tree.file.chmod(0o444)
    return "read-only"


FAULTS = (anchor_missing, anchor_twice, renamed, another_definition, syntax_error, crlf, read_only)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_in_the_file(tree: Tree, fault: Callable[[Tree], str]) -> None:
    reason = fault(tree)
    before = tree.content()
    with pytest.raises(OperatorError) as refused:
        tree.apply()
    message = str(refused.value)
    assert str(tree.file) in message
    assert reason in message
    assert tree.content() == before


def in_child(action: Callable[[], None]) -> int:
    """Run ``action`` in a process of its own: 0, 3 for an error that an operator can read, or minus a signal."""
    child = os.fork()
    if child == 0:
        try:
            action()
            os._exit(0)
        except OperatorError as error:
            os._exit(3 if "nothing was changed" in str(error) else 4)
        finally:
            os._exit(5)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_no_space(tree: Tree) -> None:
    def action() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
        tree.apply()

    before = tree.content()
    assert in_child(action) == 3
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
    tree.apply()
    assert tree.state() == engine.APPLIED


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
