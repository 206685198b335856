"""One check of a server at a time, and none whose play is gone.

A measurement runs in the background of a host, so it outlives a play that is killed. Its play touches a file (the beat)
whenever it looks how far the measurement is. A measurement whose beat stands still ends by itself, and the next play
ends one that did not. A check that no play started (the standing one) has no beat, and is never ended.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from .. import files
from ..errors import OperatorError
from ..json_reader import find_object
from .server import Server, ServerBusy

# How long the beat of another play's measurement is looked at before it counts as forgotten. A play looks every five
# seconds, on a slow connection every fifteen.
_FORGOTTEN_S = 30.0
# How long a measurement has to end in order; its children end with it in any case.
_END_S = 20.0


class _PlayGone(Exception):
    """Nobody waits for the result."""


@contextmanager
def alone(config: Path, limit_s: float) -> Iterator[None]:
    """Keep other checks of this server out: two at once would each be the other's foreign load.

    The lock is on the file that the server was started with, which every check can open.

    Raises:
        ServerBusy: another check was there for all of ``limit_s`` seconds.
        OperatorError: there is no such file.
    """
    Server.of_deployment(config)  # Says what to do where there is none.
    deadline = time.monotonic() + limit_s
    with config.open(encoding="utf-8") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise ServerBusy(
                        "Another check measures this server",
                        found=f"{config} is locked, for {limit_s:.0f} s now",
                        expected="one check at a time",
                        remedy="wait for it; systemctl status sglang-throughput.service shows the standing one",
                    ) from None
                time.sleep(0.2)
        yield


def beat_path(progress: Path, play: str) -> Path:
    """The file that the play ``play`` touches while it waits; ``plugins/action/throughput_measure.py`` does so."""
    return progress.with_name(f"{progress.name}.{play}.beat")


@contextmanager
def heard(progress: Path, play: str, patience_s: float) -> Iterator[None]:
    """End what is done here when the play does not touch its beat any more.

    Args:
        progress: the file that tells how far the measurement is; the beat and a record of this process are beside it.
        play: a name of the play that nothing else has.
        patience_s: how long the beat may stand still, in seconds.

    Raises:
        OperatorError: the play is gone, or the next one ended this measurement.
    """
    beat, record = beat_path(progress, play), _record(progress)
    beat.touch()
    mine = {"pid": os.getpid(), "started": _start_of(os.getpid()), "beat": str(beat)}
    files.replace(record, json.dumps(mine) + "\n")
    over = threading.Event()

    def end(*_: object) -> None:
        if not over.is_set():
            over.set()
            raise _PlayGone

    before = signal.signal(signal.SIGTERM, end)
    threading.Thread(target=_listen, args=(beat, patience_s, over), daemon=True).start()
    try:
        yield
    except _PlayGone:
        raise OperatorError(
            "The measurement was ended, because the play that asked for it is gone",
            found=f"{beat} was not touched for {patience_s:.0f} s, or the next play ended this measurement",
            expected="a play that waits for the result",
            remedy="run the play again",
        ) from None
    finally:
        over.set()
        signal.signal(signal.SIGTERM, before)
        beat.unlink(missing_ok=True)
        if find_object(record) == mine:
            record.unlink(missing_ok=True)


def end_forgotten(progress: Path, forgotten_s: float = _FORGOTTEN_S) -> None:
    """End the measurement that an earlier play left behind. One whose play still waits goes on.

    Args:
        progress: the file that tells how far a measurement is.
        forgotten_s: how long its beat has to stand still, in seconds.
    """
    owner = find_object(_record(progress)) or {}
    pid, started, beat = owner.get("pid"), owner.get("started"), owner.get("beat")
    if not isinstance(pid, int) or pid <= 0 or not isinstance(beat, str):
        return

    def runs() -> bool:
        # A number of a process is given again; its start is not.
        return pid != os.getpid() and started is not None and _start_of(pid) == started

    deadline, first = time.monotonic() + forgotten_s, _time_of(Path(beat))
    while runs() and time.monotonic() < deadline:
        if _time_of(Path(beat)) != first:
            return
        time.sleep(0.2)
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + _END_S
        if runs():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
        while runs() and time.monotonic() < deadline:
            time.sleep(0.1)
    Path(beat).unlink(missing_ok=True)


def _listen(beat: Path, patience_s: float, over: threading.Event) -> None:
    # Not the time that the file tells: the clock of a host may be set.
    last, since = _time_of(beat), time.monotonic()
    while not over.wait(min(1.0, patience_s / 10)):
        now = _time_of(beat)
        if now != last:
            last, since = now, time.monotonic()
        elif time.monotonic() - since > patience_s:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(_END_S)
            os._exit(1)  # Something held the exception back.


def _record(progress: Path) -> Path:
    return progress.with_name(f"{progress.name}.owner")


def _time_of(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None


def _start_of(pid: int) -> Any:
    """When a process started, in ticks since the boot; None when it has ended, or is dead and not waited for."""
    try:
        parts = (
            Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        )
    except OSError:
        return None
    return None if parts[0] in "ZX" else parts[19]
