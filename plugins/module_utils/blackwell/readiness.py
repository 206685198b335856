"""When a starting server counts as ready, as failed, or as still loading.

Ready means: the unit is running, ``/health`` answers 200, then a real completion of the wanted length
arrives, and all that time the main process was the same one. An open port or a list of models says nothing:
SGLang answers both minutes before it can generate, and a server on a wrong GPU path dies with its first
request.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from http import HTTPStatus
from pathlib import Path
from typing import Any

from .address import local_url
from .files import sha256
from .http_client import AnswerError, NoAnswerError, ask
from .redaction import redact

UNIT_PROPERTIES = (
    "LoadState",
    "ActiveState",
    "SubState",
    "Result",
    "MainPID",
    "NRestarts",
    "InvocationID",
    "ActiveEnterTimestampMonotonic",
    "ExecMainCode",
    "ExecMainStatus",
    "FragmentPath",
    "UnitFileState",
    "NeedDaemonReload",
)

# SGLang answers /health within 20 s even when its scheduler is stuck (SGLANG_HEALTH_CHECK_TIMEOUT).
HEALTH_TIMEOUT = 25.0
COMPLETION_TIMEOUT = 120.0
# A server with a long prompt at work may be late once; three times, a minute in all, it is not at work.
HUNG_TRIES = 3

# What the parent process says when a child has died: true, and never the cause.
_ECHOES = re.compile(
    r"EOFError|Initialization failed\. Please see the error messages above|scheduler is dead|"
    r"Please check if there are relevant logs|KeyboardInterrupt|SystemExit"
)
_ERROR_LINE = re.compile(
    r"^(?:[A-Za-z_][\w.]*\.)?[A-Za-z_]\w*(?:Error|Exception|Exit|Interrupt)(?::|$)|: error: "
)
_ENDED_WELL = ".service: Deactivated successfully."
_UNIT_LINE = re.compile(r"^(?:\S+\.service|Not started after waiting): ?.*", re.IGNORECASE)


class Standing(Enum):
    """Where a start stands."""

    LOADING = "loading"
    READY = "ready"
    FAILED = "failed"


@dataclass(frozen=True)
class Verdict:
    """What one look at the server says.

    Attributes:
        standing: loading, ready or failed.
        reason: one line for a person.
    """

    standing: Standing
    reason: str


def read_properties(text: str) -> dict[str, str]:
    """The output of ``systemctl show --property=...`` as a mapping."""
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {name: value for name, _, value in pairs}


def judge(look: Mapping[str, Any], *, restarts_before: int, tokens: int) -> Verdict:
    """Say what one look at a server means.

    Args:
        look: what the module ``server_state`` returns.
        restarts_before: the unit's ``NRestarts`` when the wait began; a higher count means that a start
            crashed.
        tokens: how many tokens a real completion has.
    """
    unit = look["unit"]
    state, sub = unit["ActiveState"], unit["SubState"]
    if unit["LoadState"] != "loaded":
        return Verdict(Standing.FAILED, f"systemd has no such unit (LoadState={unit['LoadState']})")
    if state == "failed":
        return Verdict(Standing.FAILED, f"the unit has failed ({ending(unit)})")
    if state == "inactive":
        return Verdict(Standing.FAILED, f"the unit is not running ({ending(unit)})")
    if int(unit["NRestarts"]) > restarts_before or sub == "auto-restart":
        return Verdict(
            Standing.FAILED, f"the server ended while it started and systemd restarts it ({ending(unit)})"
        )
    if state != "active":
        return Verdict(Standing.LOADING, f"systemd is starting the unit ({sub})")
    if look["health"] != 200:
        return Verdict(
            Standing.LOADING, "loading" if look["health"] == 0 else f"/health answers {look['health']}"
        )
    completion = look["completion"]
    if completion is None:
        return Verdict(Standing.LOADING, "/health answers 200")
    if completion["error"]:
        # The server refuses what it was asked: the next try would get the same answer.
        standing = Standing.FAILED if 400 <= completion["status"] < 500 else Standing.LOADING
        return Verdict(standing, f"/health answers 200, a completion does not: {completion['error']}")
    if completion["tokens"] < tokens:
        return Verdict(
            Standing.FAILED,
            f"a completion ended after {completion['tokens']} of {tokens} tokens, which it may not",
        )
    if not look["same_process"]:
        return Verdict(Standing.FAILED, "the main process changed while it answered a completion")
    return Verdict(Standing.READY, f"answered a completion of {completion['tokens']} tokens")


def active_for(unit: Mapping[str, str], now: float) -> float:
    """For how long an active unit has been so, in seconds.

    Args:
        unit: its properties.
        now: the host's monotonic clock, which systemd goes by as well.
    """
    return now - int(unit["ActiveEnterTimestampMonotonic"]) / 1_000_000


def ending(unit: Mapping[str, str]) -> str:
    """How a unit's last process ended, in systemd's own words."""
    kind = {"1": "exited with status", "2": "killed by signal", "3": "dumped core on signal"}.get(
        unit["ExecMainCode"]
    )
    how = f", main process {kind} {unit['ExecMainStatus']}" if kind else ""
    return f"{unit['ActiveState']}/{unit['SubState']}, Result={unit['Result']}{how}"


def telling_line(journal: Sequence[str], late: str = "") -> str:
    """The line of a log that names the cause: the last error that is not an echo of another one.

    A scheduler that dies prints its traceback first; its parent then adds errors that say only that a child
    died. What was logged before a server ended as it was told to is that server's, and no cause.
    Without such a line it is the last one that is not empty.

    Args:
        journal: lines of a unit's journal, the oldest first.
        late: what to say where no error is named, of a server that has not died but takes too long.
    """
    lines = [line.strip() for line in journal if line.strip()]
    ends = [number for number, line in enumerate(lines, 1) if line.endswith(_ENDED_WELL)]
    if ends:
        lines = lines[ends[-1] :] or lines
    for matching in (_ERROR_LINE,) if late else (_ERROR_LINE, _UNIT_LINE):
        causes = [line for line in lines if matching.search(line) and not _ECHOES.search(line)]
        if causes:
            return causes[-1]
    return late or (lines[-1] if lines else "the journal is empty")


def get_health(url: str, *, timeout: float = HEALTH_TIMEOUT) -> int:
    """The status of ``GET /health``, 0 when no whole answer comes."""
    try:
        return ask(f"{url}/health", timeout=timeout).status
    except NoAnswerError:
        return 0


def get_completion(
    url: str, *, key: str, prompt: str, tokens: int, timeout: float = COMPLETION_TIMEOUT
) -> dict[str, Any]:
    """Ask for a real completion through SGLang's ``/generate``.

    Returns ``status`` (of HTTP, 0 without an answer), ``tokens`` (how many came, by the server's count), ``text`` and
    ``error`` (empty when it answered).
    """
    body = {
        "text": prompt,
        "sampling_params": {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True},
    }
    outcome = {"status": 0, "tokens": 0, "text": "", "error": ""}
    try:
        answer = ask(f"{url}/generate", timeout=timeout, key=key, body=body)
    except NoAnswerError as error:
        return {**outcome, "error": str(error)}
    outcome["status"] = answer.status
    if answer.status != HTTPStatus.OK:
        return {**outcome, "error": f"status {answer.status}: {answer.text[:500]}"}
    try:
        said = answer.json_object()
    except AnswerError as error:
        return {**outcome, "error": str(error)}
    text, meta = said.get("text"), said.get("meta_info")
    count = meta.get("completion_tokens") if isinstance(meta, dict) else None
    if not isinstance(text, str) or not isinstance(count, int) or isinstance(count, bool):
        return {
            **outcome,
            "error": f"an answer without text or meta_info.completion_tokens: {answer.text[:200]}",
        }
    return {**outcome, "tokens": count, "text": text}


def server_url(arguments: Mapping[str, Any]) -> str:
    """Where the host itself reaches a server with these arguments."""
    return local_url(str(arguments.get("host", "127.0.0.1")), arguments.get("port", 30000))


def read_started(path: Path, unit: Mapping[str, str]) -> dict[str, Any] | None:
    """What the start of the running process recorded; None if nothing runs, or if another start wrote the record."""
    record = read_json(path)
    runs = unit["ActiveState"] in ("active", "activating") and unit["InvocationID"]
    return record if record and runs and record.get("invocation") == unit["InvocationID"] else None


def edited_since(started: Mapping[str, Any] | None, folder: Path, unit_file: Path) -> list[Path]:
    """Files that are no longer as they were when the running process was started with them.

    Args:
        started: what ``read_started`` returns.
        folder: where deployments live.
        unit_file: the unit's own file, which a start records too.
    """
    if started is None:
        return []
    files = {
        unit_file if name == unit_file.name else folder / started["deployment"] / name: digest
        for name, digest in started["files"].items()
    }
    return sorted(file for file, digest in files.items() if not _is_as(file, digest))


def _is_as(file: Path, digest: str) -> bool:
    try:
        return sha256(file) == digest
    except OSError:
        return False


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a file; None if the file is not there or holds no such thing."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def accepted_deployments(accepted: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Every deployment that a host's record of the accepted one names, newest first; none without a record."""
    if accepted is None:
        return []
    newest = {key: value for key, value in accepted.items() if key != "history"}
    return [newest, *accepted.get("history", [])]


def tidy_journal(text: str, secrets: Iterable[str], lines: int) -> list[str]:
    """The last lines of a log, without secrets and without empty ones."""
    return [line for line in redact(text, secrets).splitlines() if line.strip()][-lines:]
