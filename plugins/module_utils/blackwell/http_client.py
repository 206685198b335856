"""The one HTTP client: a request to a server on this host, and every way in which it can go wrong.

Each status is an answer. What is no answer, a dead or silent server and one that dies in mid-answer alike, is
:class:`NoAnswerError`. A proxy from the environment is never asked, and no redirect is followed.
"""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_BLOCK = 1 << 16


class NoAnswerError(Exception):
    """No whole answer came.

    Attributes:
        url: what was asked.
        reason: why there is no answer, as one phrase.
        refused: nobody listens at the address. False when somebody does and stays silent, or broke off.
    """

    def __init__(self, url: str, reason: str, *, refused: bool = False) -> None:
        super().__init__(f"{url}: {reason}")
        self.url = url
        self.reason = reason
        self.refused = refused


class AnswerError(Exception):
    """An answer came, and it is not what was asked for. The text says what it is."""


@dataclass(frozen=True)
class Answer:
    """What a server answered.

    Attributes:
        url: what was asked.
        status: the HTTP status.
        body: the bytes of the whole body.
    """

    url: str
    status: int
    body: bytes

    @property
    def text(self) -> str:
        """The body as text; bytes that are no UTF-8 are replaced."""
        return self.body.decode("utf-8", "replace")

    def json(self) -> Any:
        """The body as JSON.

        Raises:
            AnswerError: the body is not JSON.
        """
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError) as error:
            raise AnswerError(
                f"{self.url} answered {self.status} with what is not JSON ({error}): {self.text[:200]!r}"
            ) from None

    def json_object(self) -> dict[str, Any]:
        """The body as a JSON object.

        Raises:
            AnswerError: the body is not a JSON object.
        """
        said = self.json()
        if not isinstance(said, dict):
            raise AnswerError(
                f"{self.url} answered {self.status} with JSON that is no object: {self.text[:200]!r}"
            )
        return said


class _EveryStatus(urllib.request.HTTPErrorProcessor):
    """Takes every status for an answer."""

    def http_response(self, request: Any, response: Any) -> Any:
        return response

    https_response = http_response


_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}), _EveryStatus)


def ask(
    url: str,
    *,
    timeout: float,
    key: str = "",
    body: Any = None,
    method: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Answer:
    """Send one request and read the whole answer.

    Args:
        url: the address.
        timeout: the limit for the whole answer, in seconds. One silent read may take as long once more.
        key: an API key, sent as a bearer token; empty for none.
        body: what is sent as JSON; None for no body.
        method: the HTTP method; GET without a body and POST with one, unless given.
        headers: further headers.

    Raises:
        NoAnswerError: no whole answer came in time.
    """
    sent = dict(headers or {})
    if key:
        sent["Authorization"] = f"Bearer {key}"
    data = None
    if body is not None:
        data = json.dumps(body).encode()
        sent["Content-Type"] = "application/json"
    deadline = time.monotonic() + timeout
    try:
        request = urllib.request.Request(url, data=data, headers=sent, method=method)
        with _OPENER.open(request, timeout=timeout) as response:
            return Answer(url, int(response.status), _read(response, deadline))
    except urllib.error.URLError as error:
        refused = isinstance(error.reason, ConnectionRefusedError)
        raise NoAnswerError(url, str(error.reason), refused=refused) from error
    except http.client.IncompleteRead as error:
        raise NoAnswerError(url, "the connection ended in the middle of the answer") from error
    except TimeoutError as error:
        raise NoAnswerError(url, f"no whole answer within {timeout:g} s") from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise NoAnswerError(url, f"{type(error).__name__}: {error}") from error


def _read(response: http.client.HTTPResponse, deadline: float) -> bytes:
    parts = []
    while part := response.read1(_BLOCK):
        parts.append(part)
        if time.monotonic() > deadline:
            raise TimeoutError
    # read1 ends without a word where the announced length has not come.
    if response.length:
        raise http.client.IncompleteRead(b"".join(parts), response.length)
    return b"".join(parts)
