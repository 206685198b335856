"""When a starting server counts as ready, as failed, or as still loading.

Ready means: the unit is running, ``/health`` answers 200, then a real completion of the wanted length
arrives, and all that time the main process was the same one. An open port or a list of models says nothing:
SGLang answers both minutes before it can generate, and a server on a wrong GPU path dies with its first
request.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from http import HTTPStatus
from pathlib import Path
from typing import Any

from .address import local_url
from .errors import OperatorError
from .files import sha256
from .http_client import AnswerError, NoAnswerError, ask
from .json_reader import find_object, read_object
from .redaction import redact
from .server import read_config

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

_NUMBERS = ("MainPID", "NRestarts", "ActiveEnterTimestampMonotonic", "ExecMainCode", "ExecMainStatus")
_NUMBER = re.compile(r"[0-9]{1,20}", re.ASCII)

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
    """The output of ``systemctl show --property=...`` as a mapping, with every one of ``UNIT_PROPERTIES``.

    Raises:
        OperatorError: one of them is missing, or is no number where systemd writes one.
    """
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
    unit = {name: value for name, _, value in pairs}
    odd = [name for name in UNIT_PROPERTIES if name not in unit]
    odd += [f"{name}={unit[name]}" for name in _NUMBERS if not _NUMBER.fullmatch(unit.get(name, "0"))]
    if odd:
        raise OperatorError(
            "systemctl show does not say how the unit is",
            found=f"without or with an odd {', '.join(odd)}: {text[:200]!r}",
            expected="each property with its value, as systemd writes them",
            remedy="systemctl show sglang@eagle3.service on the host; after an update of systemd: systemctl "
            "daemon-reexec",
        )
    return unit


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


def read_arguments(config: Path) -> dict[str, Any]:
    """The arguments in the configuration file of a deployment; none without the file.

    Raises:
        OperatorError: it is damaged.
    """
    try:
        return read_config(config.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise OperatorError(
            f"{config} cannot be read as the settings of a server",
            found=str(error),
            expected="one argument a line, its value in JSON",
            remedy="run site.yml, which writes the deployment of the inventory again. Where it is the one that runs "
            "and is to be replaced: -e rollout_inflight_timeout=0",
        ) from None


def server_url(arguments: Mapping[str, Any]) -> str:
    """Where the host itself reaches a server with these arguments."""
    return local_url(str(arguments.get("host", "127.0.0.1")), arguments.get("port", 30000))


def read_started(path: Path, unit: Mapping[str, str]) -> dict[str, Any] | None:
    """What the start of the running process recorded; None if nothing runs, or if the record is another start's.

    One that is damaged says as little as none: what it was started with is not known, and a start is owed.
    """
    record = find_object(path)
    runs = unit["ActiveState"] in ("active", "activating") and unit["InvocationID"]
    if not record or not runs or record.get("invocation") != unit["InvocationID"]:
        return None
    files = record.get("files")
    if not isinstance(record.get("deployment"), str) or not isinstance(files, dict):
        return None
    return record if all(isinstance(digest, str) for digest in files.values()) else None


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


def read_accepted(path: Path) -> tuple[dict[str, Any] | None, str]:
    """The record of the accepted deployment, and what is wrong with it; neither before one was accepted.

    A damaged one is not taken for none: a rollout that fails would find nothing to put back.
    """
    if not path.exists():
        return None, ""
    try:
        record = read_object(path)
    except OperatorError as error:
        return None, str(error)
    for entry in (record, *_list(record.get("history", []))):
        missing = [name for name in ("deployment", "profile", "release") if not _named(entry, name)]
        if missing:
            return None, f"{path} holds a deployment without {', '.join(missing)}: {entry!r:.200}"
    if not isinstance(record.get("history", []), list):
        return None, f"{path} has a history that is no list"
    return record, ""


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _named(entry: Any, name: str) -> bool:
    return isinstance(entry, dict) and isinstance(entry.get(name), str) and bool(entry[name])


def accepted_deployments(accepted: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Every deployment that a host's record of the accepted one names, newest first; none without a record."""
    if accepted is None:
        return []
    newest = {key: value for key, value in accepted.items() if key != "history"}
    return [newest, *accepted.get("history", [])]


def tidy_journal(text: str, secrets: Iterable[str], lines: int) -> list[str]:
    """The last lines of a log, without secrets and without empty ones."""
    return [line for line in redact(text, secrets).splitlines() if line.strip()][-lines:]
