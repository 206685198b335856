"""Whether an SGLang server still has requests to answer.

SGLang's gauges in /metrics keep the value of the last log interval, so it is asked for its load, which it counts at
that moment: requests in its running batch and in its queues, and tokens of its KV cache that requests hold. A prompt
in prefill is in neither batch nor queue, for as long as its chunks take, and holds tokens; an idle server holds none,
which its scheduler checks by itself. A request that has only just arrived is not counted at all, so an idle server has
to be seen idle for a while.

``/get_load`` is deprecated and gone from 0.5.21 on. ``/v1/loads`` replaces it, and answers with status 500 in 0.5.9
with the FastAPI that is locked (its middleware does not know routers), so the old one is asked first.

Only where nobody listens no request is open. A server that stays silent, breaks off or answers with an error of its own
has an unknown number of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from .errors import OperatorError
from .http_client import Answer, AnswerError, NoAnswerError, ask

# Longer than a request takes from the socket to the scheduler.
QUIET = 2.0
INTERVAL = 0.5
TIMEOUT = 10.0


@dataclass(frozen=True)
class Look:
    """What one look at a server says.

    Attributes:
        open: requests that run or wait, at least; None when it is not known.
        why: why it is not known; else empty.
    """

    open: int | None
    why: str = ""


@dataclass(frozen=True)
class Wait:
    """How a wait went.

    Attributes:
        open: requests that were open at its beginning; None when it was not known.
        left: requests that were open at its end; None when it was not known.
        seconds: how long it took.
        why: why it was not known at the end; else empty.
    """

    open: int | None
    left: int | None
    seconds: float
    why: str = ""


def look(url: str, key: str, *, timeout: float = TIMEOUT) -> Look:
    """Ask a server once how many requests are open.

    Args:
        url: the server.
        key: its API key; empty for none.
        timeout: how long each of the two addresses may take to answer, in seconds.

    Raises:
        OperatorError: it answers what no later answer will mend: another key is wanted, or no load is in the answer.
    """
    try:
        answer = ask(f"{url}/get_load", timeout=timeout, key=key)
        if answer.status == HTTPStatus.NOT_FOUND:
            answer = ask(f"{url}/v1/loads?include=core", timeout=timeout, key=key)
    except NoAnswerError as error:
        return Look(0) if error.refused else Look(None, str(error))
    if answer.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return Look(None, f"{answer.url} answered {answer.status}: {answer.text[:200]}")
    if answer.status == HTTPStatus.OK and not answer.body:
        return Look(None, f"{answer.url} broke off before the body of its answer")
    if answer.status != HTTPStatus.OK:
        raise _unsaid(url, f"{answer.url} answered {answer.status}: {answer.text[:200]}")
    try:
        return Look(_count(answer))
    except AnswerError as error:
        raise _unsaid(url, str(error)) from None


def _unsaid(url: str, found: str) -> OperatorError:
    return OperatorError(
        f"The server at {url} does not say how many requests are open",
        found=found,
        expected="an answer to GET /get_load or GET /v1/loads",
        remedy="journalctl --unit 'sglang@*' on the host; to go on without waiting for open requests: "
        "-e rollout_inflight_timeout=0",
    )


def _count(answer: Answer) -> int:
    said = answer.json()
    requests: tuple[str, ...]
    if isinstance(said, dict):
        said = said.get("loads")
        requests, tokens = ("num_running_reqs", "num_waiting_reqs"), "num_used_tokens"
    else:
        requests, tokens = ("num_reqs",), "num_tokens"
    # A server without ranks does not exist: none says nothing.
    if not isinstance(said, list) or not said or not all(isinstance(rank, dict) for rank in said):
        raise AnswerError(f"{answer.url} answered without the load of a rank: {answer.text[:200]!r}")
    return sum(_of_rank(answer, rank, requests, tokens) for rank in said)


def _of_rank(answer: Answer, rank: Mapping[str, Any], requests: Iterable[str], tokens: str) -> int:
    counted = sum(_number(answer, rank, name) for name in requests)
    # Older releases name no tokens.
    return counted or min(1, _number(answer, rank, tokens) if tokens in rank else 0)


def _number(answer: Answer, rank: Mapping[str, Any], name: str) -> int:
    value = rank.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise AnswerError(f"{answer.url} answered without a number as {name}: {answer.text[:200]!r}")
    return value


def wait(
    look: Callable[[], Look],
    *,
    timeout: float,
    quiet: float = QUIET,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Wait:
    """Wait until no request is open for a while, or the time is over.

    Args:
        look: one look at the server.
        timeout: how long to wait at most, in seconds; a look that has begun ends.
        quiet: how long it has to be idle, in seconds.
        clock, sleep: time.
    """
    began = clock()
    idle_since: float | None = None
    first: Look | None = None
    while True:
        seen, now = look(), clock()
        first = first or seen
        if seen.open != 0:
            idle_since = None
        elif idle_since is None:
            idle_since = now
        if (idle_since is not None and now - idle_since >= quiet) or now - began >= timeout:
            return Wait(first.open, seen.open, round(now - began, 1), seen.why)
        sleep(INTERVAL)


def judge_unknown(url: str, done: Wait, health: int) -> None:
    """Refuse to go on where the number of open requests is unknown and the server works.

    One that gives no answers, by its own ``/health``, is to be replaced: what is open there does not end.

    Args:
        url: the server.
        done: the wait.
        health: the status of ``GET /health`` now, 0 without an answer.

    Raises:
        OperatorError: it is not known, and the server answers.
    """
    if done.left is None and health == HTTPStatus.OK:
        raise _unsaid(
            url, f"/health answers 200, and after {done.seconds:.0f} s the last look was: {done.why}"
        )
