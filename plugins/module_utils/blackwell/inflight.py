"""Whether an SGLang server still has requests to answer.

SGLang's gauges in /metrics keep the value of the last log interval, so it is asked for its load, which it counts at
that moment. It does not count a request that has only just arrived, so an idle server has to be seen idle for a while.

``/get_load`` is deprecated and gone from 0.5.21 on. ``/v1/loads`` replaces it, and answers with status 500 in 0.5.9
with the FastAPI that is locked (its middleware does not know routers), so the old one is asked first.
"""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from .errors import OperatorError

# Longer than a request takes from the socket to the scheduler.
QUIET = 2.0
INTERVAL = 0.5
TIMEOUT = 10.0


@dataclass(frozen=True)
class Wait:
    """How a wait went.

    Attributes:
        open: requests that were open at its beginning.
        left: requests that were open at its end.
        seconds: how long it took.
    """

    open: int
    left: int
    seconds: float


def count(url: str, key: str) -> int:
    """How many requests run or wait on a server; 0 when it does not answer, for then nothing is to be waited for.

    Raises:
        OperatorError: it answers, and does not say how many.
    """
    try:
        try:
            ranks = _ask(f"{url}/get_load", key)
            return sum(int(rank["num_reqs"]) for rank in ranks)
        except urllib.error.HTTPError as error:
            if error.code != HTTPStatus.NOT_FOUND:
                raise
        ranks = _ask(f"{url}/v1/loads?include=core", key)["loads"]
        return sum(int(rank["num_running_reqs"]) + int(rank["num_waiting_reqs"]) for rank in ranks)
    except (urllib.error.HTTPError, ValueError, KeyError, TypeError) as error:
        raise OperatorError(
            f"The server at {url} does not say how many requests are open",
            found=f"{type(error).__name__}: {error}",
            expected="an answer to GET /get_load or GET /v1/loads",
            remedy="journalctl --unit 'sglang@*' on the host; to go on without waiting for open requests: "
            "-e rollout_inflight_timeout=0",
        ) from None
    except (OSError, http.client.HTTPException):
        return 0


def _ask(url: str, key: str) -> Any:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {key}"} if key else {})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=TIMEOUT) as answer:
        return json.load(answer)


def wait(
    look: Callable[[], int],
    *,
    timeout: float,
    quiet: float = QUIET,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Wait:
    """Wait until no request is open for a while, or the time is over.

    Args:
        look: how many requests are open now.
        timeout: how long to wait at most, in seconds.
        quiet: how long it has to be idle, in seconds.
        clock, sleep: time.
    """
    began = clock()
    idle_since: float | None = None
    first: int | None = None
    while True:
        left, now = look(), clock()
        first = left if first is None else first
        if left:
            idle_since = None
        elif idle_since is None:
            idle_since = now
        if (idle_since is not None and now - idle_since >= quiet) or now - began >= timeout:
            return Wait(first, left, round(now - began, 1))
        sleep(INTERVAL)
