"""When a starting server is ready, when it has failed, and what its log says about it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from blackwell.readiness import (
    Standing,
    get_completion,
    get_health,
    judge,
    read_started,
    server_url,
    telling_line,
    tidy_journal,
)

RUNNING = {
    "LoadState": "loaded",
    "ActiveState": "active",
    "SubState": "running",
    "Result": "success",
    "MainPID": "100",
    "NRestarts": "0",
    "ExecMainCode": "0",
    "ExecMainStatus": "0",
}
ANSWERED = {"status": 200, "tokens": 16, "text": "Paris", "error": ""}


def look(unit: dict[str, str] | None = None, **changes: Any) -> dict[str, Any]:
    given = {"health": 200, "completion": ANSWERED, "same_process": True, "journal": []}
    return {"unit": {**RUNNING, **(unit or {})}, **given, **changes}


def standing(seen: dict[str, Any], restarts_before: int = 0) -> Standing:
    return judge(seen, restarts_before=restarts_before, tokens=16).standing


def test_a_completion_by_one_and_the_same_process_is_ready() -> None:
    assert standing(look()) is Standing.READY


def test_a_process_that_changed_while_it_answered_has_failed() -> None:
    assert standing(look(same_process=False)) is Standing.FAILED


@pytest.mark.parametrize(
    "changes",
    [
        {"health": 0, "completion": None},  # nothing listens yet
        {"health": 503, "completion": None},  # it listens and loads
        {"health": 200, "completion": None},
        {"completion": {"status": 0, "tokens": 0, "text": "", "error": "TimeoutError: timed out"}},
        {"completion": {"status": 503, "tokens": 0, "text": "", "error": "status 503: "}},
    ],
)
def test_anything_less_is_loading(changes: dict[str, Any]) -> None:
    assert standing(look(**changes)) is Standing.LOADING


@pytest.mark.parametrize(
    "completion",
    [
        {"status": 401, "tokens": 0, "text": "", "error": "status 401: Unauthorized"},
        {"status": 200, "tokens": 0, "text": "", "error": ""},
        {"status": 200, "tokens": 3, "text": "a b c", "error": ""},
    ],
)
def test_an_answer_that_waiting_does_not_mend_has_failed(completion: dict[str, Any]) -> None:
    assert standing(look(completion=completion)) is Standing.FAILED


@pytest.mark.parametrize(
    "unit",
    [
        {"ActiveState": "failed", "SubState": "failed", "Result": "start-limit-hit"},
        {"ActiveState": "inactive", "SubState": "dead"},
        {"ActiveState": "activating", "SubState": "auto-restart"},
        {"ActiveState": "active", "NRestarts": "1"},
        {"LoadState": "not-found", "ActiveState": "inactive", "SubState": "dead"},
    ],
)
def test_a_unit_that_ended_has_failed_whatever_answers_on_the_port(unit: dict[str, str]) -> None:
    assert standing(look(unit)) is Standing.FAILED


def test_restarts_before_the_wait_do_not_count() -> None:
    assert standing(look({"NRestarts": "2"}), restarts_before=2) is Standing.READY


def test_a_unit_that_prepares_its_start_is_loading() -> None:
    assert standing(look({"ActiveState": "activating", "SubState": "start-pre"})) is Standing.LOADING


def test_the_reason_says_how_the_process_ended() -> None:
    unit = {"ActiveState": "failed", "Result": "exit-code", "ExecMainCode": "1", "ExecMainStatus": "2"}
    assert "main process exited with status 2" in judge(look(unit), restarts_before=0, tokens=16).reason


CRASH = """
[2026-02-23 12:00:00 TP0] Scheduler hit an exception: Traceback (most recent call last):
  File "/x/sglang/srt/managers/scheduler.py", line 3130, in run_scheduler_process
    scheduler = Scheduler(
AttributeError: 'KimiK25ForConditionalGeneration' object has no attribute 'set_eagle3_layers_to_capture'

[2026-02-23 12:00:01] Received sigquit from a child process. It usually means the child failed.
Traceback (most recent call last):
  File "/x/sglang/srt/entrypoints/engine.py", line 1160, in _wait_for_scheduler_ready
EOFError
[2026-02-23 12:00:01] Rank 0 scheduler is dead. Please check if there are relevant logs.
sglang@eagle3.service: Main process exited, code=killed, status=9/KILL
"""


@pytest.mark.parametrize(
    ("journal", "line"),
    [
        (
            CRASH,
            "AttributeError: 'KimiK25ForConditionalGeneration' object has no attribute 'set_eagle3_layers_to_capture'",
        ),
        (
            "usage: x\nlaunch_server.py: error: unrecognized arguments: --no-such-flag\nsglang@x.service: Failed",
            "launch_server.py: error: unrecognized arguments: --no-such-flag",
        ),
        (
            "loading\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB",
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB",
        ),
        (
            "Waiting: port 30000 is taken\nNot started after waiting for 30 s: port 30000 is taken\n",
            "Not started after waiting for 30 s: port 30000 is taken",
        ),
        # The server before it ended as it was told to, and not without complaint.
        (
            "RuntimeError: cancelled\nsglang@eagle3.service: Deactivated successfully.\nStarting sglang\nloading",
            "loading",
        ),
        (
            "loading\nsglang@eagle3.service: Deactivated successfully.",
            "sglang@eagle3.service: Deactivated successfully.",
        ),
        ("all quiet\nstill loading\n", "still loading"),
        ("", "the journal is empty"),
    ],
)
def test_the_cause_is_found_in_the_journal(journal: str, line: str) -> None:
    assert telling_line(journal.splitlines()) == line


@pytest.mark.parametrize(
    ("journal", "line"),
    [
        ("sglang@eagle3.service: Scheduled restart job\nloading", "it is late"),
        ("ValueError: no such file\nstill here", "ValueError: no such file"),
        ("", "it is late"),
    ],
)
def test_a_server_that_is_only_late_is_said_to_be_late_unless_it_names_an_error(
    journal: str, line: str
) -> None:
    assert telling_line(journal.splitlines(), late="it is late") == line


def test_a_journal_shows_no_key_and_only_its_end() -> None:
    text = "one\n\ntwo key=0123456789abcdef\nthree\n"
    assert tidy_journal(text, ["0123456789abcdef", ""], 2) == ["two key=********", "three"]


class Server(BaseHTTPRequestHandler):
    """Answers with what the test sets."""

    answers: dict[str, tuple[int, bytes]]
    seen: list[tuple[str, dict[str, Any]]]

    def do_GET(self) -> None:
        self._answer(*self.answers["health"])

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.seen.append((self.headers.get("Authorization", ""), body))
        self._answer(*self.answers["generate"])

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[tuple[type[Server], str]]:
    handler = type("Handler", (Server,), {"answers": {"health": (200, b"")}, "seen": []})
    listening = HTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=listening.serve_forever, daemon=True).start()
    yield handler, f"http://127.0.0.1:{listening.server_port}"
    listening.shutdown()
    listening.server_close()


def test_health_is_the_status_and_zero_without_an_answer(
    server: tuple[type[Server], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    handler, url = server
    # A proxy of the environment is not asked about the host itself.
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert get_health(url) == 200
    handler.answers["health"] = (503, b"")
    assert get_health(url) == 503
    assert get_health("http://127.0.0.1:9") == 0


def test_a_completion_is_counted_by_the_server(server: tuple[type[Server], str]) -> None:
    handler, url = server
    handler.answers["generate"] = (200, b'{"text": " Paris", "meta_info": {"completion_tokens": 16}}')
    answer = get_completion(url, key="0123456789abcdef", prompt="The capital of France is", tokens=16)
    assert answer == {"status": 200, "tokens": 16, "text": " Paris", "error": ""}
    authorization, body = handler.seen[0]
    assert authorization == "Bearer 0123456789abcdef"
    assert body["sampling_params"] == {"max_new_tokens": 16, "temperature": 0, "ignore_eos": True}


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ((401, b'{"error":"Unauthorized"}'), 'status 401: {"error":"Unauthorized"}'),
        ((200, b"not json"), "not JSON"),
        ((200, b"[]"), "no object"),
        ((200, b""), "not JSON"),
        ((200, b'{"text": "x"}'), "completion_tokens"),
        ((200, b'{"text": null, "meta_info": {"completion_tokens": 1}}'), "without text"),
        ((200, b'{"text": "x", "meta_info": {"completion_tokens": "1"}}'), "completion_tokens"),
        ((200, b'{"text": "x", "meta_info": [1]}'), "completion_tokens"),
    ],
)
def test_a_refused_or_broken_completion_says_so(
    server: tuple[type[Server], str], answer: tuple[int, bytes], error: str
) -> None:
    handler, url = server
    handler.answers["generate"] = answer
    found = get_completion(url, key="", prompt="x", tokens=1)
    assert error in found["error"]
    assert found["tokens"] == 0


@pytest.mark.parametrize(
    ("arguments", "url"),
    [
        ({"host": "0.0.0.0", "port": 30000}, "http://127.0.0.1:30000"),
        ({"host": "::", "port": 1}, "http://[::1]:1"),
        ({"host": "10.0.0.5", "port": 8000}, "http://10.0.0.5:8000"),
        ({}, "http://127.0.0.1:30000"),
    ],
)
def test_where_the_host_reaches_its_server(arguments: dict[str, Any], url: str) -> None:
    assert server_url(arguments) == url


def test_a_record_counts_only_for_the_start_that_wrote_it(tmp_path: Path) -> None:
    record = {"deployment": "x", "invocation": "abc", "files": {}}
    file = tmp_path / "eagle3.json"
    running = {"ActiveState": "active", "InvocationID": "abc"}
    assert read_started(file, running) is None
    file.write_text(json.dumps(record))
    assert read_started(file, running) == record
    assert read_started(file, {**running, "InvocationID": "def"}) is None
    assert read_started(file, {**running, "InvocationID": ""}) is None
    assert read_started(file, {**running, "ActiveState": "inactive"}) is None
    file.write_text("{")
    assert read_started(file, running) is None
