"""For how long a server was away, by the program that asks it: hiccups, stops, and what never comes back."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from blackwell.receipt import outage_of

from tests.unit.test_server_programs import free_port, load


@pytest.fixture
def probe(repository: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = load(repository / "roles" / "rollout" / "files" / "outage_probe.py")
    monkeypatch.setattr(module, "INTERVAL", 0.02)
    monkeypatch.setattr(module, "TIMEOUT", 0.2)
    return module


class Server:
    """One that is stopped and started at one port. ``mode``: good, silent, error, breaks or empty."""

    def __init__(self) -> None:
        self.port = free_port()
        self.mode = "good"
        self._server: ThreadingHTTPServer | None = None

    def start(self) -> None:
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                if owner.mode == "silent":
                    time.sleep(0.5)
                if owner.mode == "breaks":
                    self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{")
                    return
                self.send_response(500 if owner.mode == "error" else 200)
                self.end_headers()
                tokens = 0 if owner.mode == "empty" else 1
                self.wfile.write(json.dumps({"meta_info": {"completion_tokens": tokens}}).encode())

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self) -> None:
        if self._server:
            self._server.shutdown()
            self._server.server_close()
            self._server = None


@pytest.fixture
def server() -> Iterator[Server]:
    one = Server()
    one.start()
    yield one
    one.stop()


Acts = Callable[[Server], None]


def watch(
    probe: ModuleType, folder: Path, server: Server, acts: Acts, seconds: float = 20.0
) -> dict[str, Any]:
    """What the probe has seen when it ends, of a server with which this is done meanwhile."""
    config, out = folder / "eagle3.yaml", folder / "outage.json"
    config.write_text(f'# x\nhost: "0.0.0.0"\nport: {server.port}\napi-key: "k"\n', encoding="utf-8")
    thread = threading.Thread(target=probe.main, args=(str(out), str(seconds), str(config), str(config)))
    thread.start()
    time.sleep(0.3)
    acts(server)
    thread.join(30)
    assert not thread.is_alive()
    seen: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    return seen


def restart(server: Server, away: float = 0.6) -> None:
    server.stop()
    time.sleep(away)
    server.start()


@pytest.mark.parametrize("hiccup", ["silent", "error", "breaks", "empty"])
def test_a_hiccup_before_the_stop_is_not_the_outage(
    probe: ModuleType, server: Server, tmp_path: Path, hiccup: str
) -> None:
    def acts(server: Server) -> None:
        server.mode = hiccup
        time.sleep(0.4)
        server.mode = "good"
        time.sleep(0.7)
        restart(server)

    outage = outage_of(watch(probe, tmp_path, server, acts))
    assert outage and 0.55 <= outage["seconds"] < 1.1


@pytest.mark.parametrize("mode", ["silent", "error", "empty"])
def test_a_server_that_listens_and_does_not_answer_yet_is_still_away(
    probe: ModuleType, server: Server, tmp_path: Path, mode: str
) -> None:
    def acts(server: Server) -> None:
        server.mode = mode
        restart(server, 0.3)
        time.sleep(0.6)
        server.mode = "good"

    outage = outage_of(watch(probe, tmp_path, server, acts))
    assert outage and outage["seconds"] >= 0.9


def test_a_server_that_never_comes_back_has_an_unknown_outage(
    probe: ModuleType, server: Server, tmp_path: Path
) -> None:
    seen = watch(probe, tmp_path, server, Server.stop, seconds=1.0)
    assert "last_good" in seen and outage_of(seen) is None


def test_a_server_that_is_never_stopped_has_none(probe: ModuleType, server: Server, tmp_path: Path) -> None:
    assert outage_of(watch(probe, tmp_path, server, lambda _: None, seconds=0.6)) is None


def test_a_server_that_hung_before_the_stop_has_an_unknown_outage(
    probe: ModuleType, server: Server, tmp_path: Path
) -> None:
    server.mode = "silent"

    def acts(server: Server) -> None:
        server.stop()
        time.sleep(0.3)
        server.mode = "good"
        server.start()

    seen = watch(probe, tmp_path, server, acts)
    assert "first_good" in seen and outage_of(seen) is None


def test_what_comes_after_the_first_good_answer_is_not_asked(
    probe: ModuleType, server: Server, tmp_path: Path
) -> None:
    def acts(server: Server) -> None:
        restart(server)
        time.sleep(0.5)
        restart(server, 0.3)

    outage = outage_of(watch(probe, tmp_path, server, acts))
    assert outage and outage["seconds"] < 1.1


def test_a_port_that_only_the_next_server_has_does_not_say_that_this_one_is_stopped(
    probe: ModuleType,
) -> None:
    seen: dict[str, float] = {}
    for now, answers in enumerate(
        [
            ["good", "refused"],
            ["bad", "refused"],
            ["good", "refused"],
            ["refused", "refused"],
            ["refused", "good"],
        ]
    ):
        probe.note(seen, answers, float(now + 1))
    assert outage_of(seen) == {"last_good": 3.0, "first_good": 5.0, "seconds": 2.0}


@pytest.mark.parametrize(
    "seen",
    [
        None,
        {},
        {"last_good": 5.0},
        {"first_good": 5.0},
        {"last_good": "5", "first_good": "6"},
        {"last_good": None, "first_good": 6},
        {"last_good": 6.0, "first_good": 5.0},
        {"last_good": [1], "first_good": {}},
        {"last_good": True, "first_good": 5},
        {"last_good": 1.0, "first_good": float("inf")},
        {"last_good": float("nan"), "first_good": 2.0},
    ],
)
def test_an_end_that_is_missing_or_damaged_leaves_the_outage_unknown(seen: Any) -> None:
    assert outage_of(seen) is None


def test_a_free_port_refuses() -> None:
    """What the tests above rest on."""
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", free_port()), timeout=1)
