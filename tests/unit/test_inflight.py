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


def wait_for(loads: list[int | None], timeout: float = 60.0) -> inflight.Wait:
    clock, left = Clock(), iter(loads)

    def look() -> inflight.Look:
        seen = next(left, loads[-1])
        return inflight.Look(seen, "silent" if seen is None else "")

    return inflight.wait(look, timeout=timeout, quiet=2.0, clock=clock, sleep=clock.sleep)


def test_an_idle_server_is_waited_for_until_it_was_idle_for_a_while() -> None:
    assert wait_for([0]) == inflight.Wait(open=0, left=0, seconds=2.0)


def test_a_request_that_comes_late_begins_the_wait_anew() -> None:
    assert wait_for([2, 0, 0, 1, 0]).seconds == 4.0


def test_a_look_without_an_answer_begins_the_wait_anew() -> None:
    assert wait_for([0, 0, None, 0]) == inflight.Wait(open=0, left=0, seconds=3.5)


def test_requests_that_do_not_end_are_told_when_the_time_is_over() -> None:
    assert wait_for([3], timeout=10.0) == inflight.Wait(open=3, left=3, seconds=10.0)


def test_a_server_that_stays_silent_is_waited_for_to_the_end_and_no_longer() -> None:
    assert wait_for([None], timeout=10.0) == inflight.Wait(None, None, 10.0, "silent")


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


@pytest.fixture
def raw() -> Iterator[Callable[[bytes | None], str]]:
    """A server that sends these bytes to whoever connects and hangs up; with None it accepts and stays silent."""
    listeners: list[socket.socket] = []
    held: list[socket.socket] = []

    def serve(listener: socket.socket, sent: bytes | None) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            if sent is None:
                held.append(connection)
                continue
            with connection:
                connection.recv(65536)
                connection.sendall(sent)

    def start(sent: bytes | None) -> str:
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)
        threading.Thread(target=serve, args=(listener, sent), daemon=True).start()
        return f"http://127.0.0.1:{listener.getsockname()[1]}"

    yield start
    for open_socket in (*listeners, *held):
        open_socket.close()


def old(*ranks: tuple[int, int]) -> tuple[int, str]:
    """What 0.5.9 answers to /get_load: requests and tokens of each rank."""
    return 200, json.dumps([{"dp_rank": 0, "num_reqs": reqs, "num_tokens": tokens} for reqs, tokens in ranks])


def new(*ranks: tuple[int, int, int]) -> tuple[int, str]:
    """What later releases answer to /v1/loads: running, waiting and tokens of each rank."""
    names = ("num_running_reqs", "num_waiting_reqs", "num_used_tokens")
    return 200, json.dumps({"loads": [dict(zip(names, rank)) for rank in ranks]})


@pytest.mark.parametrize(
    ("answers", "count"),
    [
        # 0.5.9 has both, and answers the new one with 500; from 0.5.21 on there is the new one only.
        ({OLD: old((3, 900), (4, 0)), NEW: (500, "")}, 7),
        ({NEW: new((2, 1, 500), (0, 4, 900))}, 7),
        ({OLD: old((0, 0))}, 0),
        ({OLD: old((0, 0), (0, 0))}, 0),
        ({NEW: new((0, 0, 0))}, 0),
        # A prompt in chunked prefill is in neither batch nor queue.
        ({OLD: old((0, 90000))}, 1),
        ({OLD: old((0, 0), (0, 8192), (0, 1))}, 2),
        ({OLD: old((2, 90000), (0, 8192))}, 3),
        ({NEW: new((0, 0, 90000))}, 1),
        # Releases that name no tokens.
        ({OLD: (200, '[{"num_reqs": 2}]')}, 2),
        ({OLD: (200, '[{"num_reqs": 0}]')}, 0),
    ],
)
def test_what_runs_waits_or_is_in_prefill_is_open_on_every_rank(
    serve: Serve, answers: dict[str, tuple[int, str]], count: int
) -> None:
    assert inflight.look(serve(answers), "") == inflight.Look(count)


@pytest.mark.parametrize(
    "answers",
    [
        {},
        {OLD: (401, "{}")},
        {OLD: (403, "{}")},
        {OLD: (200, "no json")},
        {OLD: (200, '{"detail": "x"}')},
        {OLD: (200, "[]")},
        {OLD: (200, "[[]]")},
        {OLD: (200, '[{"num_reqs": null}]')},
        {OLD: (200, '[{"num_reqs": "0"}]')},
        {OLD: (200, '[{"num_reqs": -1}]')},
        {OLD: (200, '[{"num_reqs": 0, "num_tokens": null}]')},
        {OLD: (200, '[{"num_reqs": 0.5}]')},
        {OLD: (307, "")},
        {NEW: (200, "[]")},
        {NEW: (200, '{"loads": []}')},
        {NEW: (200, '{"loads": [{"num_reqs": 0}]}')},
    ],
)
def test_an_answer_without_a_load_is_not_taken_for_idle(
    serve: Serve, answers: dict[str, tuple[int, str]]
) -> None:
    with pytest.raises(OperatorError, match="does not say how many requests are open") as said:
        inflight.look(serve(answers), "")
    assert "rollout_inflight_timeout=0" in said.value.remedy


@pytest.mark.parametrize("status", [401, 403, 500, 503])
def test_another_answer_than_not_found_is_not_passed_over(serve: Serve, status: int) -> None:
    # The other address would say idle.
    url = serve({OLD: (status, "{}"), NEW: new((0, 0, 0))})
    if status < 500:
        with pytest.raises(OperatorError, match=str(status)):
            inflight.look(url, "")
    else:
        seen = inflight.look(url, "")
        assert seen.open is None and str(status) in seen.why


def test_nothing_is_open_on_a_server_that_does_not_run() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    assert inflight.look(f"http://127.0.0.1:{port}", "") == inflight.Look(0)


@pytest.mark.parametrize(
    "sent",
    [
        None,
        b"",
        b'HTTP/1.1 200 OK\r\nContent-Length: 400\r\n\r\n[{"num_reqs": 0',
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n[]",
        b"HTTP/1.1 200 OK\r\nContent-Le",
        b"220 mail.example ESMTP\r\n",
        b"\x00\xff",
    ],
)
def test_how_many_are_open_on_a_server_that_is_silent_or_breaks_off_is_not_known(
    raw: Callable[[bytes | None], str], sent: bytes | None
) -> None:
    seen = inflight.look(raw(sent), "", timeout=0.3)
    assert seen.open is None and seen.why


Run = Callable[..., dict[str, Any]]


def ask_module(run_module: Run, folder: Path, url: str, timeout: float) -> dict[str, Any]:
    config = folder / "eagle3.yaml"
    config.write_text(f'host: "127.0.0.1"\nport: {url.rpartition(":")[2]}\n', encoding="utf-8")
    return run_module("server_inflight", {"config": str(config), "timeout": timeout})


@pytest.mark.parametrize(("timeout", "failed"), [(5.0, True), (0.0, False)])
def test_who_does_not_wait_does_not_ask(
    run_module: Run, serve: Serve, tmp_path: Path, timeout: float, failed: bool
) -> None:
    said = ask_module(run_module, tmp_path, serve({}), timeout)
    assert said.get("failed", False) is failed
    assert failed or said["left"] is None


def test_a_server_that_answers_and_hides_its_load_is_not_replaced(
    run_module: Run, serve: Serve, tmp_path: Path
) -> None:
    said = ask_module(run_module, tmp_path, serve({OLD: (500, "scheduler"), "/health": (200, "")}), 1.0)
    assert said["failed"] and "500: scheduler" in said["msg"] and "rollout_inflight_timeout=0" in said["msg"]


def test_a_server_that_gives_no_answers_is_waited_for_and_then_replaced(
    run_module: Run, serve: Serve, tmp_path: Path
) -> None:
    said = ask_module(run_module, tmp_path, serve({OLD: (503, "stuck"), "/health": (503, "")}), 1.0)
    assert not said.get("failed") and said["seconds"] >= 1.0
    assert said["open"] is None and said["left"] is None and "503: stuck" in said["why"]


def test_a_silent_server_is_replaced_after_the_wait(
    run_module: Run, raw: Callable[[bytes | None], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ansible.module_utils.blackwell.http_client._OPENER.open", _silent)
    said = ask_module(run_module, tmp_path, raw(None), 0.5)
    assert not said.get("failed") and said["left"] is None


def _silent(request: Any, timeout: float) -> Any:
    """An opener whose server stays silent, without the seconds."""
    raise TimeoutError
