"""The running SGLang server, as the throughput check sees it.

SGLang 0.5.9 answers ``/server_info`` with its API keys in clear, so nothing of that answer leaves this
module but the fields named in :class:`ServerInfo`.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import OperatorError
from ..http_client import Answer, AnswerError, NoAnswerError, ask
from ..readiness import server_url
from ..server import read_config
from .metrics import Counters, counters


@dataclass(frozen=True)
class ServerInfo:
    """What the server says about itself, without its secrets.

    ``accept_length`` is SGLang's own mean over all requests since the last cache flush. It is brought up to
    date every ``decode_log_interval`` passes (40 unless set) and absent before the first.
    """

    version: str
    model_path: str
    tokenizer_path: str
    served_model_name: str
    speculative_algorithm: str | None
    tool_call_parser: str | None
    accept_length: float | None


class ServerBusy(OperatorError):
    """The server has something else to do."""


class Server:
    """A client of one server.

    Args:
        url: base address, such as ``http://127.0.0.1:30000``.
        api_key: key of ordinary requests, if the server has one.
        admin_key: key of ``/flush_cache``. SGLang wants it there, and only there, where one is set.
        timeout_s: how long one answer may take.
    """

    def __init__(self, url: str, api_key: str = "", admin_key: str = "", timeout_s: float = 60.0) -> None:
        self.url = url.rstrip("/")
        self.api_key = api_key
        self._admin_key = admin_key or api_key
        self._timeout_s = timeout_s

    @classmethod
    def of_deployment(cls, config: Path, timeout_s: float = 60.0) -> Server:
        """The server that was started with this configuration file, which holds its address and its keys.

        Raises:
            OperatorError: there is no such file, or it is damaged.
        """
        try:
            arguments = read_config(config.read_text(encoding="utf-8"))
            if not isinstance(arguments.get("port"), int):
                raise ValueError("it names no port")
        except (OSError, ValueError) as error:
            raise OperatorError(
                "The configuration of the server cannot be read",
                found=str(error) if isinstance(error, OSError) else f"{config}: {error}",
                expected="the file that the server was started with",
                remedy="deploy the server first (site.yml)",
            ) from error
        return cls(
            server_url(arguments),
            str(arguments.get("api_key") or ""),
            str(arguments.get("admin_api_key") or ""),
            timeout_s,
        )

    def info(self) -> ServerInfo:
        """What the server says about itself.

        Raises:
            OperatorError: it does not answer, or leaves out what a check depends on.
        """
        said = self._json("/server_info")
        unknown = [
            f"{name} {said[name]!r:.60}" if name in said else f"no {name}"
            for name in ("speculative_algorithm", "tool_call_parser")
            if not isinstance(said.get(name, 0), (str, type(None)))
        ]
        if unknown:
            raise OperatorError(
                "The server does not say how it was started",
                found=f"{self.url}/server_info has {', '.join(unknown)}",
                expected="the answer of SGLang 0.5.9 or a later release",
                remedy="read the unit's journal: journalctl -u 'sglang@*'",
            )
        return ServerInfo(
            version=str(said.get("version", "")),
            model_path=str(said.get("model_path", "")),
            tokenizer_path=str(said.get("tokenizer_path") or said.get("model_path", "")),
            served_model_name=str(said.get("served_model_name") or said.get("model_path", "")),
            speculative_algorithm=said["speculative_algorithm"],
            tool_call_parser=said["tool_call_parser"],
            accept_length=_accept_length(said.get("internal_states")),
        )

    def counters(self) -> Counters:
        """The server's counters now.

        Raises:
            OperatorError: the server has no metrics page.
        """
        answer = self._request("/metrics")
        if answer.status != 200:
            raise OperatorError(
                "The server has no metrics, so nothing that it does can be checked",
                found=f"{self.url}/metrics answered {answer.status}",
                expected="200 and SGLang's counters",
                remedy="start the server with --enable-metrics",
            )
        return counters(answer.text)

    def flush_cache(self, idle_limit_s: float) -> None:
        """Empty the prefix cache of an idle server. SGLang resets its accept-length mean with it.

        This is also the test of idleness: the scheduler refuses (400) while it has a request. No metric would
        do; ``num_running_reqs`` keeps the value of the last log interval after the last request is gone.

        Args:
            idle_limit_s: how long to wait for other requests to end.

        Raises:
            ServerBusy: it had something to do for all that time.
            OperatorError: it wants another key.
        """
        deadline = time.monotonic() + idle_limit_s
        while (status := self._request("/flush_cache", method="POST", key=self._admin_key).status) == 400:
            if time.monotonic() > deadline:
                raise ServerBusy(
                    "The server is busy, and a measurement beside other work means nothing",
                    found=f"{self.url}/flush_cache was refused for {idle_limit_s:.0f} s: requests run",
                    expected="an idle server",
                    remedy="drain the host at the gateway, wait until its clients are done, or raise "
                    "throughput_check_idle_timeout",
                )
            time.sleep(0.2)
        if status != 200:
            raise OperatorError(
                "The prefix cache could not be flushed, so a run would be measured warm",
                found=f"{self.url}/flush_cache answered {status}",
                expected="200",
                remedy="give the check the server's admin key (its API key where it has no admin key)",
            )

    def generate(self, prompt: str, output_tokens: int, *, ignore_eos: bool = True) -> dict[str, Any]:
        """Complete ``prompt`` greedily by the native interface: ``text``, ``output_ids``, ``meta_info``."""
        sampling = {"temperature": 0.0, "max_new_tokens": output_tokens, "ignore_eos": ignore_eos}
        return self._json("/generate", {"text": prompt, "sampling_params": sampling})

    def chat(self, messages: list[dict[str, Any]], output_tokens: int, **extra: Any) -> dict[str, Any]:
        """Answer ``messages`` greedily as a client of the OpenAI interface sees it."""
        request = {"model": "default", "messages": messages, "temperature": 0.0, "max_tokens": output_tokens}
        return self._json("/v1/chat/completions", {**request, **extra})

    def _json(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        answer = self._request(path, body=body)
        if answer.status != 200:
            raise OperatorError(
                "The server refused a request of the throughput check",
                found=f"{self.url}{path} answered {answer.status}: {answer.text[:300]}",
                expected="200",
                remedy="give the check the server's API key"
                if answer.status == 401
                else "read the unit's journal: journalctl -u 'sglang@*'",
            )
        try:
            return answer.json_object()
        except AnswerError as error:
            raise OperatorError(
                "The server's answer is not a JSON object",
                found=str(error),
                expected="a JSON object",
                remedy="read the unit's journal: journalctl -u 'sglang@*'",
            ) from error

    def _request(
        self,
        path: str,
        *,
        body: dict[str, Any] | None = None,
        method: str | None = None,
        key: str | None = None,
    ) -> Answer:
        try:
            return ask(
                self.url + path,
                timeout=self._timeout_s,
                key=self.api_key if key is None else key,
                body=body,
                method=method,
            )
        except NoAnswerError as error:
            raise OperatorError(
                "The server does not answer",
                found=str(error),
                expected=f"an answer within {self._timeout_s:.0f} s",
                remedy="systemctl status 'sglang@*', and the unit's journal",
            ) from error


def _accept_length(states: Any) -> float | None:
    """The mean over the schedulers that tell one, each of which has a state; None when none does."""
    told = [state.get("avg_spec_accept_length") for state in _list(states) if isinstance(state, dict)]
    lengths = [
        float(length)
        for length in told
        if isinstance(length, (int, float)) and not isinstance(length, bool) and 1.0 <= length < math.inf
    ]
    return sum(lengths) / len(lengths) if lengths else None


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
