"""When a server counts as having no open requests."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from blackwell import inflight
from blackwell.errors import OperatorError


class Clock:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def wait_for(loads: list[int], timeout: float = 60.0) -> inflight.Wait:
    clock, left = Clock(), iter(loads)
    return inflight.wait(
        lambda: next(left, loads[-1]), timeout=timeout, quiet=2.0, clock=clock, sleep=clock.sleep
    )


def test_an_idle_server_is_waited_for_until_it_was_idle_for_a_while() -> None:
    assert wait_for([0]) == inflight.Wait(open=0, left=0, seconds=2.0)


def test_a_request_that_comes_late_begins_the_wait_anew() -> None:
    assert wait_for([2, 0, 0, 1, 0]).seconds == 4.0


def test_requests_that_do_not_end_are_told_when_the_time_is_over() -> None:
    assert wait_for([3], timeout=10.0) == inflight.Wait(open=3, left=3, seconds=10.0)


OLD, NEW = "/get_load", "/v1/loads?include=core"
Serve = Callable[[dict[str, tuple[int, str]]], str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """A server with these answers, each a status and a body; 404 to all others. Returns its address."""
    servers = []

    def start(answers: dict[str, tuple[int, str]]) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, body = answers.get(self.path, (404, "{}"))
                self.send_response(status)
                self.end_headers()
                self.wfile.write(body.encode())

            def log_message(self, *_: Any) -> None:
                pass

        server = HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_requests_that_run_and_that_wait_are_open_on_every_rank(serve: Serve) -> None:
    old = [{"num_reqs": 3, "num_waiting_reqs": 1}, {"num_reqs": 4, "num_waiting_reqs": 4}]
    new = [{"num_running_reqs": 2, "num_waiting_reqs": 1}, {"num_running_reqs": 0, "num_waiting_reqs": 4}]
    # 0.5.9 has both, and answers the new one with 500; from 0.5.21 on there is the new one only.
    assert inflight.count(serve({OLD: (200, json.dumps(old)), NEW: (500, "")}), "") == 7
    assert inflight.count(serve({NEW: (200, json.dumps({"loads": new}))}), "") == 7


@pytest.mark.parametrize(
    "answers",
    [
        {},
        {OLD: (401, "{}")},
        {OLD: (500, "")},
        {OLD: (200, "no json")},
        {OLD: (200, '{"detail": "x"}')},
        {NEW: (500, "")},
        {NEW: (200, "[]")},
        {NEW: (200, '{"loads": [{"num_reqs": 0}]}')},
    ],
)
def test_a_server_that_does_not_say_it_is_not_taken_for_idle(
    serve: Serve, answers: dict[str, tuple[int, str]]
) -> None:
    with pytest.raises(OperatorError, match="does not say how many requests are open"):
        inflight.count(serve(answers), "")


def test_nothing_is_open_on_a_server_that_does_not_run() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    assert inflight.count(f"http://127.0.0.1:{port}", "") == 0


@pytest.mark.parametrize(("timeout", "failed"), [(5.0, True), (0.0, False)])
def test_who_does_not_wait_does_not_ask(
    run_module: Callable[..., dict[str, Any]], serve: Serve, tmp_path: Path, timeout: float, failed: bool
) -> None:
    port = serve({}).rpartition(":")[2]
    config = tmp_path / "eagle3.yaml"
    config.write_text(f'host: "127.0.0.1"\nport: {port}\n')
    said = run_module("server_inflight", {"config": str(config), "timeout": timeout})
    assert said.get("failed", False) is failed
