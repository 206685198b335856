"""Changing files: all or none, also when the power fails in between."""

from __future__ import annotations

import fcntl
import io
import os
import resource
import shutil
import signal
import stat
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

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


def in_child(action: Callable[[], object]) -> int:
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


def test_a_full_disk_does_not_keep_a_change_from_being_taken_back(root: Path) -> None:
    def action() -> None:
        genuine = os.replace
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

        def replace(source: Path, target: Path, **options: int) -> None:
            if Path(target).name == "b.py" and b"22" in Path(source).read_bytes():
                resource.setrlimit(resource.RLIMIT_FSIZE, (3, resource.RLIM_INFINITY))
                raise OSError(28, "No space left on device", str(target))
            genuine(source, target, **options)

        os.replace = replace  # type: ignore[assignment]
        write(root)

    assert in_child(action) == 3
    assert content(root) == OLD
    assert {file.name for file in root.iterdir()} == set(OLD)


DIGEST = "0" * 64
DAMAGED_JOURNALS = {
    "cut off": "{",
    "empty": "",
    "a list": "[]",
    "no pair": '{"/a.py": "x"}',
    "three hashes": f'{{"/a.py": ["{DIGEST}", "{DIGEST}", "{DIGEST}"]}}',
    "no hashes": '{"/a.py": ["", ""]}',
    "numbers": '{"/a.py": [1, 2]}',
    "no absolute path": f'{{"a.py": ["{DIGEST}", "{DIGEST}"]}}',
    "a null byte in a path": f'{{"/a\\u0000.py": ["{DIGEST}", "{DIGEST}"]}}',
    "a path that is too long": f'{{"/{"a" * 5000}.py": ["{DIGEST}", "{DIGEST}"]}}',
    "bytes": b"\xff\xfe",
}


@pytest.mark.parametrize("journal", DAMAGED_JOURNALS.values(), ids=DAMAGED_JOURNALS.keys())
def test_a_damaged_journal_is_named_and_its_remedy_mends(root: Path, journal: str | bytes) -> None:
    path = root / transaction.JOURNAL
    path.write_bytes(journal if isinstance(journal, bytes) else journal.encode())
    with pytest.raises(OperatorError) as raised:
        recover(root)
    assert content(root) == OLD
    if "reinstall" in raised.value.remedy:
        assert str(path) in raised.value.problem + raised.value.remedy
        assert raised.value.remedy == f"reinstall the package of {root}, remove {path}, then run again"
    path.unlink()
    recover(root)
    write(root)
    assert content(root) == NEW


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


class Raw(io.FileIO):
    """A file whose writes can be cut off: half of the bytes arrive."""

    def __init__(self, path: Path, mode: str, event: Callable[[str], None]) -> None:
        super().__init__(path, mode)
        self.event = event

    def write(self, data: Any) -> int:
        half = memoryview(data)[: len(data) // 2]
        self.event("write before")
        written = super().write(half) or 0
        self.event("write half")
        return written + (super().write(memoryview(data)[len(half) :]) or 0)


class Faults:
    """Count the calls that reach the file system, and kill the process, or let a call fail, at some of them."""

    def __init__(self, *, kill: int = 0, fail: Sequence[int] = (), fail_from: int = 0) -> None:
        self.kill, self.fail, self.fail_from = kill, fail, fail_from
        self.calls = 0
        self.seen: list[str] = []

    def event(self, name: str) -> None:
        self.calls += 1
        self.seen.append(name)
        if self.calls == self.kill:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.calls in self.fail or 0 < self.fail_from <= self.calls:
            raise OSError(5, "Input/output error")

    def watched(self, name: str, genuine: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            self.event(name)
            return genuine(*args, **options)

        return call

    def open(self, file: Any, mode: str = "r", *rest: Any, **options: Any) -> Any:
        self.event("open")
        if not isinstance(file, (str, Path)) or "r" in mode:
            return GENUINE_OPEN(file, mode, *rest, **options)
        raw = io.BufferedWriter(Raw(Path(file), mode.replace("b", ""), self.event))
        return raw if "b" in mode else io.TextIOWrapper(raw, encoding=options.get("encoding", "utf-8"))

    @contextmanager
    def __call__(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patched:
            for name in ("replace", "unlink", "fsync", "fchmod", "open", "stat"):
                patched.setattr(os, name, self.watched(name, getattr(os, name)))
            patched.setattr(io, "open", self.open)
            yield


GENUINE_OPEN = io.open


def reset(root: Path) -> None:
    for file in root.iterdir():
        file.unlink()
    for name, data in OLD.items():
        (root / name).write_bytes(data)


def locked_write(root: Path, faults: Faults) -> str:
    """The change with faults in it, not those of the lock; what it said."""
    with transaction.locked(root), faults():
        try:
            transaction.write(root, {root / name: data for name, data in NEW.items()})
        except OperatorError as error:
            return str(error)
    return ""


def is_whole_and_clean(root: Path) -> bool:
    return content(root) in (OLD, NEW) and {file.name for file in root.iterdir()} == set(OLD)


@pytest.fixture
def calls(root: Path) -> int:
    """How many calls an undisturbed change makes."""
    faults = Faults()
    assert locked_write(root, faults) == ""
    assert {"replace", "unlink", "fsync", "fchmod", "open", "write before", "stat"} <= set(faults.seen)
    reset(root)
    return faults.calls


def test_after_a_kill_at_any_moment_the_next_run_has_all_or_nothing(root: Path, calls: int) -> None:
    seen = set()
    for step in range(1, calls + 1):
        reset(root)
        assert in_child(partial(locked_write, root, Faults(kill=step))) == -signal.SIGKILL
        journal, halfway = transaction.unfinished(root), content(root) not in (OLD, NEW)
        completed = recover(root)
        assert is_whole_and_clean(root), step
        assert content(root) == NEW or not journal, step
        assert journal or not completed, step
        seen.add((journal, halfway))
    assert content(root) == NEW
    assert {(False, False), (True, False), (True, True)} <= seen


def says_the_truth(root: Path, said: str) -> bool:
    if not said:
        return content(root) == NEW
    if "nothing was changed" in said:
        return content(root) == OLD and not transaction.unfinished(root)
    if "every file was changed" in said:
        return content(root) == NEW
    return "the next run completes it for all files or takes it back for all" in said


@pytest.mark.parametrize("lasting", [False, True], ids=["once", "from then on"])
def test_after_an_error_at_any_moment_the_message_is_true_and_the_next_run_whole(
    root: Path, calls: int, lasting: bool
) -> None:
    said = set()
    for step in range(1, calls + 1):
        reset(root)
        faults = Faults(fail_from=step) if lasting else Faults(fail=[step])
        message = locked_write(root, faults)
        assert says_the_truth(root, message), (step, message, content(root))
        recover(root)
        assert is_whole_and_clean(root), step
        said.add(message.partition(". ")[0].rpartition("; ")[2])
    assert len(said) == 2


def test_after_two_errors_at_any_moments_the_message_is_true_and_the_next_run_whole(
    root: Path, calls: int
) -> None:
    for first in range(1, calls + 1):
        second = first
        while True:
            second += 1
            reset(root)
            faults = Faults(fail=[first, second])
            message = locked_write(root, faults)
            assert says_the_truth(root, message), (first, second, message, content(root))
            recover(root)
            assert is_whole_and_clean(root), (first, second)
            if faults.calls < second:
                break


def test_after_an_error_and_a_kill_at_any_moments_the_next_run_has_all_or_nothing(
    root: Path, calls: int
) -> None:
    """Among them: while the change is taken back."""
    halfway = 0
    for error in range(1, calls + 1):
        kill = error
        while True:
            kill += 1
            reset(root)
            status = in_child(partial(locked_write, root, Faults(fail=[error], kill=kill)))
            halfway += content(root) not in (OLD, NEW)
            recover(root)
            assert is_whole_and_clean(root), (error, kill)
            if status != -signal.SIGKILL:
                break
    assert halfway > 10


@pytest.mark.parametrize("end", ["kill", "error"])
@pytest.mark.parametrize("begun", ["forward", "back"])
def test_a_recovery_that_is_disturbed_itself_is_finished_by_the_next_one(
    root: Path, begun: str, end: str
) -> None:
    def halfway() -> None:
        """Two files are new; or one of them is old again, so that there is no way forward."""
        reset(root)
        renames = {"forward": ["a.py", "b.py"], "back": ["a.py", "b.py", "!c.py", "a.py"]}[begun]
        genuine = os.replace

        def replace(source: Path, target: Path, **options: int) -> None:
            name = Path(target).name
            if name in OLD and not renames:
                os._exit(9)
            if name in OLD and renames.pop(0).startswith("!"):
                raise OSError(28, "No space left on device", str(target))
            genuine(source, target, **options)

        def action() -> None:
            os.replace = replace  # type: ignore[assignment]
            write(root)

        assert in_child(action) == 9
        assert content(root) not in (OLD, NEW)

    def disturbed(step: int) -> None:
        with Faults(kill=step)() if end == "kill" else Faults(fail=[step])():
            transaction.recover(root, [root / name for name in OLD])

    step = 0
    while True:
        step += 1
        halfway()
        status = in_child(partial(disturbed, step))
        assert status in (0, 4, -signal.SIGKILL), step
        recover(root)
        assert content(root) == (NEW if begun == "forward" else OLD), step
        assert is_whole_and_clean(root), step
        if status == 0:
            break
    assert step > 10


def halfway_through(root: Path) -> None:
    def action() -> None:
        genuine = os.replace

        def replace(source: Path, target: Path, **options: int) -> None:
            if Path(target).name == "b.py":
                os._exit(9)
            genuine(source, target, **options)

        os.replace = replace  # type: ignore[assignment]
        write(root)

    assert in_child(action) == 9
    assert content(root) == {**OLD, "a.py": NEW["a.py"]}


def test_a_prepared_text_that_was_damaged_is_never_put_in_place(root: Path) -> None:
    """Then there is the way back; and where that is barred as well, a refusal whose remedy mends."""
    halfway_through(root)
    (root / ".c.py.blackwell-patch").write_bytes(b"c = 2")
    assert recover(root) == [str(root / "a.py")]
    assert content(root) == OLD
    assert is_whole_and_clean(root)

    halfway_through(root)
    (root / ".c.py.blackwell-patch").write_bytes(b"c = 2")
    (root / ".a.py.blackwell-patch-old").write_bytes(b"")
    before = content(root)
    with pytest.raises(OperatorError, match="what it had prepared is no longer whole") as raised:
        recover(root)
    assert content(root) == before
    assert transaction.sha256(b"c = 2") in raised.value.found
    assert transaction.sha256(NEW["c.py"]) in raised.value.expected
    assert raised.value.remedy == (
        f"reinstall the package of {root}, remove {root / transaction.JOURNAL}, then run again"
    )
    for name, data in OLD.items():
        (root / name).write_bytes(data)
    (root / transaction.JOURNAL).unlink()
    recover(root)
    write(root)
    assert content(root) == NEW
    assert is_whole_and_clean(root)


def test_what_the_version_before_left_half_done_is_completed(root: Path) -> None:
    """It kept no old texts beside the files."""
    halfway_through(root)
    for file in root.glob(".*-old"):
        file.unlink()
    recover(root)
    assert content(root) == NEW
    assert is_whole_and_clean(root)


def traced(root: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What a change does to files and folders in order, each with the name that the file had at that moment."""
    trace: list[tuple[str, str]] = []
    replace, unlink, fsync = os.replace, os.unlink, os.fsync

    def name(path: Any) -> str:
        return Path(path).name

    def traced_fsync(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        trace.append(("sync", path.name))
        if path.is_file():
            # What is still in a buffer of the process would not be synced.
            trace.append(("holds", f"{path.name} {path.stat().st_size}"))
        fsync(descriptor)

    def traced_replace(source: Any, target: Any, **options: Any) -> None:
        trace.append(("rename", f"{name(source)} {name(target)}"))
        replace(source, target, **options)

    def traced_unlink(path: Any, **options: Any) -> None:
        trace.append(("unlink", name(path)))
        unlink(path, **options)

    monkeypatch.setattr(os, "fsync", traced_fsync)
    monkeypatch.setattr(os, "replace", traced_replace)
    monkeypatch.setattr(os, "unlink", traced_unlink)
    return trace


def test_what_must_outlast_a_power_loss_is_synced_before_what_relies_on_it(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files lie in a folder of their own: its entries are synced by nobody else."""
    sub = root / "srt"
    sub.mkdir()
    files = {(root / name).rename(sub / name): NEW[name] for name in ("a.py", "b.py")}
    trace = traced(root, monkeypatch)
    with transaction.locked(root):
        transaction.write(root, files)
    journal = transaction.JOURNAL
    place = {event: number for number, event in reversed(list(enumerate(trace)))}

    def last(event: tuple[str, str], before: int) -> int:
        return max(number for number, one in enumerate(trace[:before]) if one == event)

    named = place["rename", f"{journal}.new {journal}"]
    prepared = [
        place["sync", f".{name}.blackwell-patch{kind}"] for name in ("a.py", "b.py") for kind in ("", "-old")
    ]
    for name in ("a.py", "b.py"):
        assert ("holds", f".{name}.blackwell-patch {len(NEW[name])}") in trace
        assert ("holds", f".{name}.blackwell-patch-old {len(OLD[name])}") in trace
    assert max(prepared) < last(("sync", "srt"), named), (
        "the texts, then their names, then the journal that tells of them"
    )
    assert place["sync", f"{journal}.new"] < named, "the journal, then its name"
    assert not any(event == ("holds", f"{journal}.new 0") for event in trace)
    first = place["rename", ".a.py.blackwell-patch a.py"]
    assert named < last(("sync", "package"), first), "the name of the journal, then the first change"
    gone = place["unlink", journal]
    for name in ("a.py", "b.py"):
        renamed = place["rename", f".{name}.blackwell-patch {name}"]
        assert renamed < last(("sync", "srt"), gone), "every change, then the end of the journal"
        assert trace[renamed + 1] == ("sync", "srt")
    swept = min(number for number, event in enumerate(trace) if number > gone and event[0] == "unlink")
    assert gone < last(("sync", "package"), swept), "the end of the journal, then that of what it tells of"


def test_taking_back_is_synced_as_well(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = traced(root, monkeypatch)
    genuine = os.replace

    def replace(source: Any, target: Any, **options: Any) -> None:
        if Path(source).name == ".c.py.blackwell-patch":
            raise OSError(28, "No space left on device", str(target))
        genuine(source, target, **options)

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(OperatorError, match="nothing was changed"):
        write(root)
    gone = trace.index(("unlink", transaction.JOURNAL))
    for name in ("a.py", "b.py"):
        back = trace.index(("rename", f".{name}.blackwell-patch-old {name}"))
        assert trace[back + 1] == ("sync", "package")
        assert back < gone


def test_a_file_that_was_edited_after_the_kill_is_not_overwritten(root: Path) -> None:
    halfway_through(root)
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
