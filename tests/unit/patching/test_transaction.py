"""Changing files: all or none, also when the power fails in between."""

from __future__ import annotations

import fcntl
import os
import resource
import shutil
import signal
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from blackwell.errors import OperatorError
from blackwell.patching import transaction

OLD = {"a.py": b"a = 1\n", "b.py": b"b = 1\n", "c.py": b"c = 1\n"}
NEW = {"a.py": b"a = 22\n", "b.py": b"b = 22\n", "c.py": b"c = 22\n"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "package"
    folder.mkdir()
    for name, data in OLD.items():
        (folder / name).write_bytes(data)
    return folder


def content(root: Path) -> dict[str, bytes]:
    return {name: (root / name).read_bytes() for name in OLD}


def write(root: Path) -> None:
    with transaction.locked(root):
        transaction.write(root, {root / name: data for name, data in NEW.items()})


def recover(root: Path) -> list[str]:
    with transaction.locked(root):
        return transaction.recover(root, [root / name for name in OLD])


def test_all_files_change_and_nothing_is_left_behind(root: Path) -> None:
    write(root)
    assert content(root) == NEW
    assert {file.name for file in root.iterdir()} == set(OLD)


def test_mode_and_owner_stay(root: Path) -> None:
    (root / "a.py").chmod(0o640)
    if os.geteuid() == 0:
        os.chown(root / "a.py", 1234, 4321)
    before = (root / "a.py").stat()
    write(root)
    after = (root / "a.py").stat()
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)


def test_a_hard_link_into_a_cache_keeps_the_published_bytes(root: Path, tmp_path: Path) -> None:
    (tmp_path / "cached.py").hardlink_to(root / "a.py")
    write(root)
    assert (tmp_path / "cached.py").read_bytes() == OLD["a.py"]
    assert (root / "a.py").read_bytes() == NEW["a.py"]


def test_a_symbolic_link_stays_one(root: Path, tmp_path: Path) -> None:
    (root / "a.py").rename(tmp_path / "real.py")
    (root / "a.py").symlink_to(tmp_path / "real.py")
    write(root)
    assert (root / "a.py").is_symlink()
    assert (tmp_path / "real.py").read_bytes() == NEW["a.py"]


def test_the_byte_code_of_changed_files_goes_and_no_other(root: Path) -> None:
    folder = root / "__pycache__"
    folder.mkdir()
    gone = ["a.cpython-311.pyc", "a.cpython-312.opt-1.pyc", "b.pypy310.pyc"]
    kept = ["ab.cpython-311.pyc", "d.cpython-311.pyc"]
    for name in gone + kept:
        (folder / name).touch()
    write(root)
    assert sorted(file.name for file in folder.iterdir()) == kept


def test_a_read_only_file_is_left_alone_and_so_are_the_others(root: Path) -> None:
    (root / "c.py").chmod(0o444)
    with pytest.raises(
        OperatorError, match=r"c\.py cannot be written; nothing .* is read-only \(mode 0444\)"
    ):
        write(root)
    assert content(root) == OLD
    assert {file.name for file in root.iterdir()} == set(OLD)


def in_child(action: Callable[[], None]) -> int:
    """Run ``action`` in a process of its own and return how it ended: 0, or the status that it died with."""
    child = os.fork()
    if child == 0:
        try:
            action()
            os._exit(0)
        except OperatorError as error:
            os._exit(3 if "cannot be written" in str(error) else 4)
        finally:
            os._exit(5)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_without_space_nothing_changes(root: Path) -> None:
    def action() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (3, resource.RLIM_INFINITY))
        write(root)

    assert in_child(action) == 3
    assert content(root) == OLD
    assert {file.name for file in root.iterdir()} == set(OLD)


def test_a_rename_that_fails_in_the_middle_is_undone(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    genuine = os.replace
    renamed = []

    def replace(source: Path, target: Path, **options: int) -> None:
        if Path(target).name == "b.py":
            raise PermissionError(1, "Operation not permitted", str(target))
        renamed.append(Path(target).name)
        genuine(source, target, **options)

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(OperatorError, match="nothing was changed"):
        write(root)
    assert "a.py" in renamed
    assert content(root) == OLD
    assert {file.name for file in root.iterdir()} == set(OLD)


def test_a_disk_that_fills_while_it_is_undone_is_completed_later(root: Path) -> None:
    def action() -> None:
        genuine = os.replace
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

        def replace(source: Path, target: Path, **options: int) -> None:
            if Path(target).name == "b.py":
                resource.setrlimit(resource.RLIMIT_FSIZE, (3, resource.RLIM_INFINITY))
                raise OSError(28, "No space left on device", str(target))
            genuine(source, target, **options)

        os.replace = replace  # type: ignore[assignment]
        with pytest.raises(OperatorError, match=r"b\.py cannot be written; .* the next run will complete it"):
            write(root)
        os._exit(7)

    assert in_child(action) == 7
    assert content(root) not in (OLD, NEW)
    recover(root)
    assert content(root) == NEW
    assert {file.name for file in root.iterdir()} == set(OLD)


def test_a_damaged_journal_is_named(root: Path) -> None:
    (root / transaction.JOURNAL).write_text("{")
    with pytest.raises(OperatorError, match=rf"journal was damaged since.* remove .*{transaction.JOURNAL}"):
        recover(root)
    assert content(root) == OLD


@contextmanager
def as_nobody() -> Iterator[None]:
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_package_of_another_user_is_left_alone(root: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        theirs = Path(shutil.copytree(root, Path(folder) / "package"))
        for mode in (0o644, 0o666):
            (theirs / "a.py").chmod(mode)
            with as_nobody(), pytest.raises(OperatorError, match=r"/a\.py cannot be written; nothing was"):
                write(theirs)
        theirs.chmod(0o700)
        with (
            as_nobody(),
            pytest.raises(OperatorError, match=r"package cannot be locked; nothing was changed"),
        ):
            write(theirs)
        assert content(theirs) == OLD
        assert {file.name for file in theirs.iterdir()} == set(OLD)


@contextmanager
def dying_at(step: int) -> Iterator[None]:
    """Kill the process at its n-th call that changes the file system."""
    calls = 0

    def watched(genuine: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **options: object) -> object:
            nonlocal calls
            calls += 1
            if calls == step:
                os.kill(os.getpid(), signal.SIGKILL)
            return genuine(*args, **options)

        return call

    for name in ("replace", "unlink", "fsync", "fchmod"):
        setattr(os, name, watched(getattr(os, name)))
    yield


def test_after_a_kill_at_any_moment_the_next_run_has_all_or_nothing(root: Path) -> None:
    step, seen = 0, set()
    while True:
        step += 1
        for name, data in OLD.items():
            (root / name).write_bytes(data)

        def action(step: int = step) -> None:
            with dying_at(step):
                write(root)

        status = in_child(action)
        journal, halfway = transaction.unfinished(root), content(root) not in (OLD, NEW)
        completed = recover(root)
        assert content(root) in (OLD, NEW), step
        assert content(root) == NEW or not journal, step
        assert journal or not completed, step
        assert {file.name for file in root.iterdir()} == set(OLD), step
        seen.add((journal, halfway))
        if status == 0:
            break
        assert status == -signal.SIGKILL
    assert content(root) == NEW
    assert {(False, False), (True, False), (True, True)} <= seen


def test_a_file_that_was_edited_after_the_kill_is_not_overwritten(root: Path) -> None:
    def action() -> None:
        genuine = os.replace

        def replace(source: Path, target: Path, **options: int) -> None:
            if Path(target).name == "b.py":
                os._exit(9)
            genuine(source, target, **options)

        os.replace = replace  # type: ignore[assignment]
        write(root)

    assert in_child(action) == 9
    (root / "b.py").write_bytes(b"b = 'edited'\n")
    with pytest.raises(
        OperatorError, match=r"cut off while it changed .*b\.py, and the file was edited since"
    ):
        recover(root)
    assert (root / "b.py").read_bytes() == b"b = 'edited'\n"


def test_two_runs_exclude_each_other(root: Path) -> None:
    with (
        transaction.locked(root),
        pytest.raises(OperatorError, match="Another run is patching"),
        transaction.locked(root),
    ):
        pass
    with transaction.locked(root):
        pass


def test_readers_do_not_exclude_each_other_but_a_writer(root: Path) -> None:
    with (
        transaction.locked(root, shared=True),
        transaction.locked(root, shared=True),
        pytest.raises(OperatorError),
        transaction.locked(root),
    ):
        pass


def test_the_lock_ends_with_its_process(root: Path) -> None:
    def action() -> None:
        fcntl.flock(os.open(root, os.O_RDONLY), fcntl.LOCK_EX)
        os.kill(os.getpid(), signal.SIGKILL)

    assert in_child(action) == -signal.SIGKILL
    write(root)
    assert stat.S_ISREG((root / "a.py").stat().st_mode)
