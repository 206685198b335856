"""Hostile metrics pages, results of the load generator, answers of a server, rows of nvidia-smi and stored records."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from blackwell.errors import OperatorError
from blackwell.http_client import Answer
from blackwell.throughput import canary, gpu, server, standing
from blackwell.throughput.bench import Report, report_of
from blackwell.throughput.canary import Question
from blackwell.throughput.measure import load_result
from blackwell.throughput.metrics import counters
from blackwell.throughput.prompts import Prompt, load
from blackwell.throughput.record import Record
from blackwell.throughput.result import Result
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.attack.inputs import attack, hostile, value_or_operator_error
from tests.unit.throughput_results import make_result

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures/throughput"
PAGE = (FIXTURES / "metrics-0.5.9.txt").read_bytes()
BENCH = (FIXTURES / "bench_serving-0.5.9.json").read_bytes()
ROWS = (
    b"0, 2430, 12481, 410.5, 61, 0x0000000000000004\n1, 1900, 12481, 390.1, 64, 0x0000000000000080\n",
    b"0, 2430, 12481, 410.5, 61, 0x0000000000000004, GPU-aaaaaaaa-0000-0000-0000-000000000000\n",
    b"WARNING: infoROM is corrupted at gpu 0000:01:00.0\n0, [N/A], 12481, [N/A], 61, 0x40\n",
)
RESULT = make_result()
STORED = json.dumps(RESULT.to_json()).encode()
RECORD = Record(RESULT).text().encode()
CHAT = (
    b'{"choices": [{"finish_reason": "stop", "message": {"content": "Paris it is", "tool_calls": null}}]}',
    b'{"choices": [{"finish_reason": "tool_calls", "message": {"content": null, "tool_calls": '
    b'[{"function": {"name": "get_weather", "arguments": "{\\"city\\": \\"Riga\\"}"}}]}}]}',
)
GENERATE = (
    b'{"text": "all is well here", "output_ids": [5, 6, 7, 8], '
    b'"meta_info": {"completion_tokens": 4, "prompt_tokens": 9, "cached_tokens": 8}}'
)
INFO = (
    b'{"version": "0.5.9", "model_path": "/m", "tokenizer_path": "/m", "served_model_name": "m", '
    b'"speculative_algorithm": "EAGLE3", "tool_call_parser": null, '
    b'"internal_states": [{"avg_spec_accept_length": 2.88}]}'
)
ACCEPTED = b'{"release": "0.5.9-0123456789ab", "deployment": "d-1", "profile": "eagle3"}'
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)


def _nested(sample: Any) -> st.SearchStrategy[Any]:
    """The sample with one value somewhere in it that is another one, or left out."""
    if isinstance(sample, dict) and sample:
        key = st.sampled_from(sorted(sample))
        inside = key.flatmap(lambda name: _nested(sample[name]).map(lambda value: {**sample, name: value}))
        return inside | key.map(lambda name: {k: v for k, v in sample.items() if k != name})
    if isinstance(sample, list) and sample:
        place = st.integers(0, len(sample) - 1)
        return JSON | place.flatmap(
            lambda at: _nested(sample[at]).map(lambda value: [*sample[:at], value, *sample[at + 1 :]])
        )
    return JSON


def _json_of(*samples: bytes) -> st.SearchStrategy[bytes]:
    """Text that may be JSON: changed bytes, and whole JSON with other values."""
    changed = st.sampled_from(samples).flatmap(lambda sample: _nested(json.loads(sample)))
    return hostile(samples) | changed.map(lambda value: json.dumps(value).encode())


@attack
@given(hostile([PAGE]), hostile([PAGE]))
def test_counters_are_numbers_or_not_known(before: bytes, after: bytes) -> None:
    found = counters(after.decode("utf-8", "replace")).since(counters(before.decode("utf-8", "replace")))
    assert all(value is None or math.isfinite(value) for value in found.values().values())


@attack
@given(st.integers(0, len(PAGE)))
def test_a_page_that_was_cut_shows_no_counter_that_is_larger(end: int) -> None:
    whole, cut = counters(PAGE.decode()), counters(PAGE[:end].decode("utf-8", "replace"))
    for name, value in cut.values().items():
        total = whole.values()[name]
        assert value is None or (total is not None and value <= total)


@attack
@given(hostile(ROWS))
def test_rows_of_nvidia_smi_are_figures_or_left_out(text: bytes) -> None:
    samples = gpu.parse(text.decode("utf-8", "replace"))
    assert all(math.isfinite(value) for value in gpu.summary(samples).values())
    gpu.throttles(gpu.thinned(samples))


@attack
@given(_json_of(BENCH))
def test_a_result_of_the_load_generator_is_one_or_is_refused(text: bytes) -> None:
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        return
    if isinstance(said, dict):
        report = value_or_operator_error(lambda: report_of(said, 100))
        if isinstance(report, Report):
            assert all(math.isfinite(r.ttft_s) and all(map(math.isfinite, r.gaps_s)) for r in report.requests)


class _Server(server.Server):
    """A server whose answers are these bytes."""

    def __init__(self, answers: dict[str, bytes]) -> None:
        super().__init__("http://127.0.0.1:1")
        self._answers = answers

    def _request(self, path: str, **_: Any) -> Answer:
        return Answer(self.url + path, 200, self._answers[path])


@attack
@given(_json_of(INFO))
def test_what_a_server_says_of_itself_is_known_or_refused(text: bytes) -> None:
    info = value_or_operator_error(_Server({"/server_info": text}).info)
    if not isinstance(info, OperatorError):
        assert info.accept_length is None or 1 <= info.accept_length < math.inf


@attack
@given(_json_of(*CHAT), _json_of(GENERATE))
def test_any_answer_is_a_result_of_the_canary(chat: bytes, generate: bytes) -> None:
    found = canary.run(
        _Server({"/v1/chat/completions": chat, "/generate": generate}),
        [Question("What is the capital of France?", "Paris")],
        [Prompt("a", "prose", "Once upon a time")],
        "0" * 64,
        answer_tokens=8,
        output_tokens=4,
        tool_call=True,
        reference=None,
        exact=False,
    )
    assert len(found.checks) == 4
    json.dumps(found.to_json()).encode("ascii")


@attack
@given(_json_of(STORED))
def test_a_stored_result_is_one_or_is_named(text: bytes) -> None:
    path = _file(text)
    found = value_or_operator_error(lambda: load_result(path))
    if isinstance(found, Result):
        assert Result.from_json(json.loads(json.dumps(found.to_json()))) == found
        assert all(map(math.isfinite, found.points[0].samples("decode_tok_s") if found.points else []))
    else:
        assert str(path) in str(found)


@attack
@given(_json_of(RECORD))
def test_a_stored_record_is_one_or_is_refused(text: bytes) -> None:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return
    if isinstance(content, dict):
        try:
            Record.from_json(content)
        except ValueError as error:
            assert str(error)


@attack
@given(_json_of(b'{"prompts_sha256": "ab", "output_tokens": 2, "tokens": {"p": [1, 2]}}'))
def test_a_stored_transcript_is_one_or_is_named(text: bytes) -> None:
    path = _file(text)
    found = value_or_operator_error(lambda: canary.load_transcript(str(path)))
    if isinstance(found, OperatorError):
        assert str(path) in str(found)


@attack
@given(_json_of(b'{"id": "a", "kind": "prose", "text": "Once upon a time"}'))
def test_a_prompt_file_is_one_or_is_named(text: bytes) -> None:
    path = _file(text)
    found = value_or_operator_error(lambda: load(path))
    if isinstance(found, OperatorError):
        assert found.problem == "A prompt id occurs twice" or str(path) in str(found)


@attack
@given(_json_of(ACCEPTED), _json_of(STORED))
def test_the_standing_check_decides_or_says_why_not(accepted: bytes, anchor: bytes) -> None:
    """Nothing listens where the server should be."""
    folder = _FOLDER / "host"
    release = folder / "releases/0.5.9-0123456789ab"
    for place in (release, folder / "d-1", folder / "eagle3"):
        place.mkdir(parents=True, exist_ok=True)
    (release / "manifest.json").write_bytes(b'{"id": "r", "python": "/p", "sglang_version": "0.5.9"}')
    (folder / "d-1/eagle3.yaml").write_text("port: 1\n", encoding="utf-8")
    (folder / "accepted.json").write_bytes(accepted)
    (folder / "eagle3/baseline.json").write_bytes(anchor)
    settings = {
        "state": str(folder),
        "root": str(folder),
        "config_directory": str(folder),
        "quiet_s": 0,
        "idle_timeout": 0,
        "keep": 1,
    }
    value_or_operator_error(lambda: standing.check(settings))


_FOLDER = Path()


@pytest.fixture(autouse=True, scope="module")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    global _FOLDER
    _FOLDER = tmp_path_factory.mktemp("attack")


def _file(content: bytes) -> Path:
    path = _FOLDER / "stored.json"
    path.write_bytes(content)
    return path
