"""Whatever servers, gateways, systemd and files say: a value, or a message for an operator; never an idle server."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
from blackwell import gateway, inflight, readiness
from blackwell.address import worker_url
from blackwell.errors import OperatorError
from blackwell.http_client import Answer, AnswerError
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.attack.inputs import attack, hostile
from tests.unit.test_address import NO_WORKERS, WORKERS
from tests.unit.test_server_state import SHOWN

OLD = [
    b'[{"rid": null, "dp_rank": 0, "num_reqs": 3, "num_waiting_reqs": 1, "num_tokens": 90000, "ts_tic": 1.5}]'
]
NEW = [
    b'{"loads": [{"dp_rank": 0, "num_running_reqs": 2, "num_waiting_reqs": 1, "num_used_tokens": 7}], "n": 1}'
]


def answered(monkeypatch: pytest.MonkeyPatch, body: bytes, status: int = 200) -> None:
    monkeypatch.setattr(inflight, "ask", lambda url, **_: Answer(url, status, body))
    monkeypatch.setattr(readiness, "ask", lambda url, **_: Answer(url, status, body))


@attack
@given(body=hostile(OLD + NEW), status=st.sampled_from([200, 200, 200, 204, 401, 404, 500]))
def test_a_load(body: bytes, status: int) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        answered(monkeypatch, body, status)
        try:
            seen = inflight.look("http://127.0.0.1:1", "")
        except OperatorError as error:
            assert "127.0.0.1" in error.problem and error.found and error.remedy
            return
    if seen.open is None:
        assert seen.why
    else:
        assert status == 200 and seen.open >= 0
        # Idle is said in so many words only.
        assert seen.open or b"0" in body


@attack
@given(body=hostile([b'{"text": " Paris", "meta_info": {"completion_tokens": 16}}']))
def test_a_completion(body: bytes) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        answered(monkeypatch, body)
        seen = readiness.get_completion("http://127.0.0.1:1", key="", prompt="x", tokens=16)
    assert seen["error"] or (isinstance(seen["text"], str) and isinstance(seen["tokens"], int))
    assert not seen["error"] or (seen["text"], seen["tokens"]) == ("", 0)


@attack
@given(body=hostile([b'{"workers": [{"url": "http://a:1", "status": "ready", "load": 0}], "total": 1}']))
def test_the_workers_of_a_gateway(body: bytes) -> None:
    try:
        seen = gateway.read_workers(Answer("http://127.0.0.1:1/workers", 200, body).json_object())
    except AnswerError as error:
        assert str(error)
        return
    for url, worker in seen.items():
        assert isinstance(url, str) and isinstance(worker.status, str) and isinstance(worker.load, int)


RECORD = json.dumps(
    {"http://192.0.2.11:30000": {"state": "drained", "by": "operator", "since": 1.5}}
).encode()
MANIFEST = gateway.manifest({"http://192.0.2.11:30000": gateway.Host("serving", "rollout", 1.0)}).encode()


@attack
@given(record=st.one_of(st.none(), hostile([RECORD])), manifest=hostile([MANIFEST]))
def test_the_files_of_a_gateway(record: bytes | None, manifest: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        records = gateway.Records(Path(folder))
        records.manifest_file.write_bytes(manifest)
        if record is not None:
            records.hosts_file.write_bytes(record)
        try:
            hosts, _ = gateway.usable(records.read())
        except OperatorError as error:
            assert folder in error.problem and error.found and error.remedy.startswith(f"rm {folder}")
            return
        for worker in json.loads(gateway.manifest(hosts))["workers"]:
            assert worker_url(worker["url"]) == worker["url"]


URLS = [url.encode("utf-8", "replace") for url in (*WORKERS, *NO_WORKERS)]


@attack
@given(text=hostile(URLS))
def test_the_address_of_a_host(text: bytes) -> None:
    given_url = text.decode("utf-8", "replace")
    try:
        url = worker_url(given_url)
    except OperatorError as error:
        assert repr(given_url) in error.problem and error.found and error.remedy
        return
    assert worker_url(url) == url and url.isascii() and url.islower() and url.count("://") == 1


@attack
@given(text=hostile([SHOWN.encode()]))
def test_the_words_of_systemd(text: bytes) -> None:
    try:
        unit = readiness.read_properties(text.decode("utf-8", "replace"))
    except OperatorError as error:
        assert "systemctl show" in error.problem and error.found and error.remedy
        return
    look = {"unit": unit, "health": 0, "completion": None, "same_process": True}
    verdict = readiness.judge(look, restarts_before=0, tokens=16)
    assert verdict.standing is not readiness.Standing.READY and verdict.reason
    assert readiness.active_for(unit, 1e12) < 1e12 + 1


ONE = {"deployment": "d", "profile": "eagle3", "release": "r"}
ACCEPTED = json.dumps({**ONE, "history": [{**ONE, "deployment": "c"}]}).encode()
STARTED = b'{"deployment": "d", "invocation": "8b2c", "files": {"eagle3.yaml": "abc"}}'


@attack
@given(accepted=hostile([ACCEPTED]), started=hostile([STARTED]), config=hostile([b'host: "::"\nport: 1\n']))
def test_the_records_of_a_host(accepted: bytes, started: bytes, config: bytes) -> None:
    unit = readiness.read_properties(SHOWN)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, content in (("accepted.json", accepted), ("eagle3.json", started), ("eagle3.yaml", config)):
            (folder / file).write_bytes(content)
        record, damage = readiness.read_accepted(folder / "accepted.json")
        assert (record is None) is bool(damage)
        for entry in readiness.accepted_deployments(record):
            assert entry["deployment"] and entry["profile"] and entry["release"]
        running = readiness.read_started(folder / "eagle3.json", unit)
        assert all(
            isinstance(file, Path) for file in readiness.edited_since(running, folder, folder / "unit")
        )
        try:
            assert readiness.server_url(readiness.read_arguments(folder / "eagle3.yaml")).startswith(
                "http://"
            )
        except OperatorError as error:
            assert str(folder / "eagle3.yaml") in error.problem and error.remedy


JOURNAL = [
    b"Loading safetensors\nTraceback (most recent call last):\n  File x\nRuntimeError: CUDA error: out of memory\n"
    b"[2026] Initialization failed. Please see the error messages above.\nsglang@eagle3.service: Main process exited\n",
    b"sglang@eagle3.service: Deactivated successfully.\nNot started after waiting for 180 s: port 30000 is taken\n",
]


@attack
@given(text=hostile(JOURNAL), late=st.sampled_from(["", "not ready after 5 s"]))
def test_a_journal(text: bytes, late: str) -> None:
    lines = readiness.tidy_journal(text.decode("utf-8", "replace"), ["planted-key"], 30)
    assert all(line.strip() for line in lines) and len(lines) <= 30
    assert readiness.telling_line(lines, late)
