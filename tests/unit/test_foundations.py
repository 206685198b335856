"""What every part uses to ask a server, to read JSON, to write a file, to ask an interpreter, to hide a key."""

from __future__ import annotations

import json
import os
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from blackwell.booleans import is_true, parse_environment_boolean
from blackwell.errors import OperatorError
from blackwell.files import replace
from blackwell.http_client import AnswerError, NoAnswerError, ask
from blackwell.interpreter import ask_interpreter
from blackwell.json_reader import find_object, read_object
from blackwell.redaction import redact


@contextmanager
def _served(behave: Callable[[socket.socket], None]) -> Iterator[str]:
    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(65536)
            behave(self.request)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()


def _says(raw: bytes) -> Callable[[socket.socket], None]:
    return lambda connection: connection.sendall(raw)


@pytest.mark.parametrize("status", [200, 302, 401, 503])
def test_every_status_is_an_answer(status: int) -> None:
    with _served(_says(b"HTTP/1.1 %d X\r\nLocation: /x\r\nContent-Length: 2\r\n\r\n{}" % status)) as url:
        answer = ask(url, timeout=5)

    assert (answer.status, answer.json_object()) == (status, {})


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n64\r\nhalf",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
    ids=["nothing", "no HTTP", "cut off", "cut off in a chunk", "no chunk size"],
)
def test_a_server_that_dies_in_its_answer_has_given_none(raw: bytes) -> None:
    with _served(_says(raw)) as url, pytest.raises(NoAnswerError) as caught:
        ask(url, timeout=5)

    assert not caught.value.refused


def test_a_closed_port_refuses() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        with pytest.raises(NoAnswerError) as caught:
            ask(f"http://127.0.0.1:{closed.getsockname()[1]}", timeout=5)

    assert caught.value.refused


@pytest.mark.parametrize(
    "url", ["http://[2001:db8::1", "http://2001:db8::11:30000", "nonsense", "http://host name/"]
)
def test_an_address_that_is_none_is_no_answer(url: str) -> None:
    with pytest.raises(NoAnswerError):
        ask(url, timeout=5)


def test_a_silent_server_and_one_that_trickles_are_given_up() -> None:
    def trickle(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        for _ in range(100):
            connection.sendall(b"x")
            time.sleep(0.05)

    for behave in (lambda connection: time.sleep(2), trickle):
        began = time.monotonic()
        with _served(behave) as url, pytest.raises(NoAnswerError) as caught:
            ask(url, timeout=0.3)
        assert not caught.value.refused
        assert time.monotonic() - began < 2.5


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b"\xff\xfe", b"[" * 100_000])
def test_what_is_no_object_is_said(body: bytes) -> None:
    with (
        _served(_says(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)) as url,
        pytest.raises(AnswerError, match="answered 200"),
    ):
        ask(url, timeout=5).json_object()


@pytest.mark.parametrize("content", [b"", b'{"a": 1', b"[]", b"3", b"\xff", b"[" * 100_000])
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(content)

    with pytest.raises(OperatorError, match=r"config\.json") as caught:
        read_object(file, remedy="fetch it again")

    assert caught.value.remedy == "fetch it again"
    assert find_object(file) is None


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match=r"gone\.json"):
        read_object(tmp_path / "gone.json")


@pytest.mark.parametrize("text", ["true", "True", "YES", "y", "1", True, 1])
def test_sglang_takes_it_for_true(text: object) -> None:
    assert parse_environment_boolean(text) is True
    assert is_true(text)


@pytest.mark.parametrize("text", ["false", "No", "n", "0", False, 0])
def test_sglang_takes_it_for_false(text: object) -> None:
    assert parse_environment_boolean(text) is False
    assert not is_true(text)


def test_sglang_does_not_take_on_for_a_boolean() -> None:
    assert parse_environment_boolean("on") is None
    assert is_true("on")
    with pytest.raises(ValueError, match="maybe"):
        is_true("maybe")


@pytest.mark.parametrize("secret", ['with"quote', "with ä", "back\\slash", "new\nline", "plain-key"])
def test_a_key_is_hidden_however_it_is_written(secret: str) -> None:
    for text in (
        secret,
        json.dumps({"key": secret}),
        json.dumps({"key": secret}, ensure_ascii=False),
        repr([secret]),
    ):
        assert secret not in redact(text, [secret])
        assert "********" in redact(text, [secret])


def test_no_tail_is_left_of_a_key_that_begins_like_another() -> None:
    assert redact("key-and-more key", ["key", "key-and-more"]) == "******** ********"


def test_an_empty_key_hides_nothing() -> None:
    assert redact("text", ["", "x" * 20]) == "text"


def test_a_written_file_lasts_through_a_power_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is synced before its name changes, and the folder afterwards."""
    calls: list[str] = []
    fsync, rename = os.fsync, os.rename

    def traced_fsync(handle: int) -> None:
        calls.append("sync " + Path(f"/proc/self/fd/{handle}").readlink().name.partition(".unit.")[0])
        fsync(handle)

    def traced_replace(self: Path, target: Path) -> None:
        calls.append("rename")
        rename(self, target)

    monkeypatch.setattr(os, "fsync", traced_fsync)
    monkeypatch.setattr(Path, "replace", traced_replace)
    folder = tmp_path / "folder"

    replace(folder / "unit", "text")

    assert calls == ["sync ", "rename", "sync folder"]


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "unit"
    replace(file, "old", 0o640)

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        replace(file, "new")

    assert file.read_text("utf-8") == "old"
    assert list(tmp_path.iterdir()) == [file]


def test_an_interpreter_that_prints_more_is_understood(tmp_path: Path) -> None:
    noisy = tmp_path / "python"
    noisy.write_text(f'#!/bin/sh\necho "{{}}"\n{sys.executable} "$@"\necho "[0]"\n', "utf-8")
    noisy.chmod(0o755)

    assert ask_interpreter(noisy, "import sys\nanswer = sys.argv[1:]", "ä", "b") == ["ä", "b"]


@pytest.mark.parametrize("script", ["exit 3", "echo nothing", "sleep 20", 'echo "blackwell answers: {"'])
def test_an_interpreter_that_does_not_answer_is_named(tmp_path: Path, script: str) -> None:
    broken = tmp_path / "python"
    broken.write_text(f"#!/bin/sh\n{script}\n", "utf-8")
    broken.chmod(0o755)

    with pytest.raises(OperatorError, match=str(broken)):
        ask_interpreter(broken, "answer = 1", timeout=0.5)
    with pytest.raises(OperatorError, match="/nowhere/python"):
        ask_interpreter("/nowhere/python", "answer = 1")
