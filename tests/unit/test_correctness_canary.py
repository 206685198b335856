"""The canary against a server that says the wrong things, and the module that runs it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from blackwell.throughput import canary
from blackwell.throughput.canary import Agreement, Transcript, fault_of

from tests.stand_in.server import Behaviour, StandIn

PROMPTS = Path(__file__).resolve().parents[2] / "roles/throughput_check/files/prompts/prompts.jsonl"
QUICK = Behaviour(ttft_s=0.0, step_s=0.0005)
QUESTIONS = [
    {"prompt": "What is the capital of France? Answer with one word.", "expect": r"\bParis\b"},
    {"prompt": "What is 17 times 23? Answer with the number.", "expect": r"\b391\b"},
]

RunModule = Callable[..., "dict[str, Any]"]


@pytest.fixture
def ask(tmp_path: Path, run_module: RunModule) -> Callable[..., dict[str, Any]]:
    """Run the module against a stand-in with a behaviour."""

    def run(faults: dict[str, Any] | None = None, check: bool = False, **options: Any) -> dict[str, Any]:
        with StandIn(Behaviour(**{**QUICK.__dict__, **(faults or {})})) as server:
            config = tmp_path / "eagle3.yaml"
            config.write_text(f'host: "127.0.0.1"\nport: {server.url.rpartition(":")[2]}\n')
            given = {
                "config": str(config),
                "questions": QUESTIONS,
                "prompts": str(PROMPTS),
                "transcript_prompts": 3,
                "transcript_tokens": 28,
                "transcript": str(tmp_path / "transcript.json"),
            }
            return run_module("correctness_canary", {**given, **options}, check=check)

    return run


def test_a_server_that_answers_well_passes_every_check(ask: Callable[..., dict[str, Any]]) -> None:
    said = ask()
    assert said["changed"]
    assert said["canary"]["passed"]
    names = [check["name"] for check in said["canary"]["checks"]]
    assert names[-3:] == ["text", "repeated prefix", "tool call"]
    assert len(names) == len(QUESTIONS) + 3


def test_the_transcript_is_written_once(ask: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    (tmp_path / "transcript.json").write_bytes(b"\xff, cut off")
    assert ask()["changed"]
    kept = Transcript(**json.loads((tmp_path / "transcript.json").read_text("utf-8")))
    assert [len(tokens) for tokens in kept.tokens.values()] == [28, 28, 28]
    assert not ask()["changed"]


def test_a_good_server_passes_though_its_transcript_cannot_be_kept(
    ask: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    (tmp_path / "full").write_text("")
    said = ask(transcript=str(tmp_path / "full" / "transcript.json"))
    assert said["canary"]["passed"] and not said["changed"]
    assert "could not be kept" in str(said["warnings"])


@pytest.mark.parametrize(
    ("faults", "named"),
    [
        pytest.param({"nonsense": True}, "letters or digits", id="nonsense"),
        pytest.param({"empty": True}, "it is empty", id="empty"),
        pytest.param({"repeated": True}, "without end", id="a loop"),
        pytest.param({"wrong_answers": True}, "expected", id="wrong answers"),
        pytest.param({"no_tool_call": True}, "tool call: no tool was called", id="no tool call"),
        pytest.param({"stops_early": 1}, "14 of 28 tokens", id="an answer that ends early"),
        pytest.param({"dies_on_repeated_prefix": True}, "repeated prefix", id="dies on a cached prefix"),
        pytest.param({"dies_on_first_post": True}, "does not answer", id="dies on the first request"),
    ],
)
def test_each_fault_fails_and_is_named(
    ask: Callable[..., dict[str, Any]], faults: dict[str, Any], named: str
) -> None:
    said = ask(faults)
    assert said["failed"]
    assert named in said["msg"]


def _call(**function: Any) -> dict[str, Any]:
    calls = [{"id": "0", "type": "function", "function": function}]
    return {"finish_reason": "tool_calls", "message": {"content": None, "tool_calls": calls}}


def _message(**message: Any) -> dict[str, Any]:
    return {"finish_reason": "tool_calls", "message": message}


RIGHT = {"name": "get_weather", "arguments": '{"city": "Riga"}'}


@pytest.mark.parametrize(
    ("choice", "named"),
    [
        pytest.param(_call(**{**RIGHT, "arguments": "42"}), "it called get_weather(42)", id="a number"),
        pytest.param(_call(**{**RIGHT, "arguments": "null"}), "it called get_weather(null)", id="null"),
        pytest.param(_call(**{**RIGHT, "arguments": None}), "no text: None", id="no arguments"),
        pytest.param(
            _call(**{**RIGHT, "arguments": '"the city is Riga"'}), "the city is Riga", id="a JSON text"
        ),
        pytest.param(_call(**{**RIGHT, "arguments": '["city"]'}), '["city"]', id="a list"),
        pytest.param(
            _call(**{**RIGHT, "arguments": {"city": "Riga"}}), "no text: {'city'", id="parsed already"
        ),
        pytest.param(_call(**{**RIGHT, "arguments": '{"city": '}), "not JSON", id="cut off"),
        pytest.param(_call(**{**RIGHT, "arguments": "[" * 100_000}), "not JSON", id="too deep"),
        pytest.param(
            _call(**{**RIGHT, "arguments": '{"city": 7391}'}), "with a city", id="a city that is a number"
        ),
        pytest.param(_call(**{**RIGHT, "arguments": '{"city": " "}'}), "with a city", id="an empty city"),
        pytest.param(_call(**{**RIGHT, "arguments": "{}"}), "with a city", id="no city"),
        pytest.param(_call(**{**RIGHT, "name": "get_time"}), "get_time", id="another function"),
        pytest.param(_call(**{**RIGHT, "name": None}), "None", id="no name"),
        pytest.param(
            _message(tool_calls=[{"id": "0"}]), "the function of the call is no object", id="no function"
        ),
        pytest.param(_message(tool_calls=[7]), "the call is no object: 7", id="a call that is a number"),
        pytest.param(_message(tool_calls=None, content=None), "no tool was called", id="null calls"),
        pytest.param(_message(tool_calls=[], content="Sunny"), "it said Sunny", id="no calls"),
        pytest.param(_message(tool_calls="get_weather"), "other calls", id="calls that are a text"),
        pytest.param(_message(tool_calls={"function": RIGHT}), "other calls", id="calls that are an object"),
        pytest.param(_message(tool_calls=[{"function": RIGHT}] * 2), "other calls", id="two calls"),
        pytest.param({**_call(**RIGHT), "finish_reason": "abort"}, "broken off", id="aborted"),
        pytest.param({**_call(**RIGHT), "finish_reason": {"type": "stop"}}, "broken off", id="an odd ending"),
        pytest.param({"message": [1]}, "the message is no object", id="a message that is a list"),
        pytest.param({"index": 0}, "the message is no object: None", id="no message"),
        pytest.param("text", "the choice is no object", id="a choice that is a text"),
        pytest.param(
            _message(tool_calls=None, content="\ud800 odd"),
            "no tool was called, it said ? odd",
            id="no character",
        ),
    ],
)
def test_a_wrong_tool_call_is_named_and_the_other_results_are_kept(
    ask: Callable[..., dict[str, Any]], choice: Any, named: str
) -> None:
    said = ask({"tool_choice": choice})
    checks = {check["name"]: check for check in said["canary"]["checks"]}
    assert not checks["tool call"]["passed"]
    assert named in checks["tool call"]["detail"]
    assert [name for name, check in checks.items() if not check["passed"]] == ["tool call"]
    assert len(checks) == len(QUESTIONS) + 3


@pytest.mark.parametrize(
    ("path", "answer", "named"),
    [
        pytest.param("/v1/chat/completions", {"choices": []}, "no choices", id="empty choices"),
        pytest.param("/v1/chat/completions", {"choices": None}, "no choices", id="null choices"),
        pytest.param(
            "/v1/chat/completions", {"choices": {"0": 1}}, "no choices", id="choices that are an object"
        ),
        pytest.param("/v1/chat/completions", {"error": "busy"}, "busy", id="an error behind status 200"),
        pytest.param("/v1/chat/completions", [1], "JSON that is no object", id="a list"),
        pytest.param("/v1/chat/completions", "<html>", "not JSON", id="a page"),
        pytest.param(
            "/v1/chat/completions",
            {"choices": [{"message": {"content": None}, "finish_reason": "stop"}]},
            "it is empty",
            id="null content",
        ),
        pytest.param(
            "/v1/chat/completions",
            {"choices": [{"message": {"content": [{"type": "text", "text": "Paris 391"}]}}]},
            "content is no text",
            id="content in parts",
        ),
        pytest.param(
            "/generate", {"text": 42, "meta_info": {}}, "text is no text: 42", id="a text that is none"
        ),
        pytest.param("/generate", {"text": "all is well"}, "meta_info is no object", id="no meta_info"),
        pytest.param("/generate", {"text": "all is well", "meta_info": {}}, "its tokens", id="no count"),
        pytest.param(
            "/generate",
            {"text": "all is well", "meta_info": {"completion_tokens": 28}, "output_ids": ["7"] * 28},
            "its tokens",
            id="tokens that are texts",
        ),
        pytest.param("/generate", [{"text": "all is well"}], "no object", id="a batch"),
    ],
)
def test_an_answer_of_any_shape_is_a_named_result(
    ask: Callable[..., dict[str, Any]], path: str, answer: Any, named: str
) -> None:
    said = ask({"answers": {path: answer}})
    assert said["failed"]
    assert named in said["msg"]
    assert len(said["canary"]["checks"]) == len(QUESTIONS) + 3


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/generate"])
def test_a_server_that_dies_in_the_middle_of_an_answer_is_named(
    ask: Callable[..., dict[str, Any]], path: str
) -> None:
    said = ask({"breaks_off": path})
    assert "in the middle of the answer" in said["msg"]
    assert len(said["canary"]["checks"]) == len(QUESTIONS) + 3


@pytest.mark.parametrize(
    "info",
    [
        {},
        {"tool_call_parser": "kimi_k2"},
        {"speculative_algorithm": None},
        {"speculative_algorithm": 7, "tool_call_parser": None},
    ],
)
def test_a_server_that_does_not_say_how_it_was_started_is_not_asked(
    ask: Callable[..., dict[str, Any]], info: dict[str, Any]
) -> None:
    said = ask({"answers": {"/server_info": info}})
    assert said["failed"] and "does not say how it was started" in said["msg"]


def test_a_question_without_a_regular_expression_is_named(ask: Callable[..., dict[str, Any]]) -> None:
    said = ask(questions=[{"prompt": "Is it well?", "expect": "(yes"}])
    assert "throughput_check_questions" in said["msg"]


@pytest.mark.parametrize(
    "kept",
    [
        b"",
        b"{",
        b"[]",
        b"\xff\xfe",
        b'{"tokens": {}}',
        b'{"prompts_sha256": "a", "output_tokens": 2, "tokens": []}',
        b'{"prompts_sha256": "a", "output_tokens": 2, "tokens": {"p": "12"}}',
        b"[" * 100000,
    ],
)
def test_a_damaged_transcript_is_named_and_removing_it_mends_that(
    ask: Callable[..., dict[str, Any]], tmp_path: Path, kept: bytes
) -> None:
    reference = tmp_path / "reference.json"
    reference.write_bytes(kept)
    said = ask(reference=str(reference))
    assert str(reference) in said["msg"] and "remove the file" in said["msg"]
    reference.unlink()
    assert ask(reference=str(reference))["canary"]["passed"]


def test_other_greedy_text_is_a_fault_only_where_it_must_be_the_same(
    ask: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    reference = tmp_path / "reference.json"
    first_time = ask(transcript=str(reference), reference=str(reference), exact=True)
    assert first_time["canary"]["checks"][-1]["detail"].startswith("no earlier transcript")
    same = ask(reference=str(reference), exact=True)
    assert same["canary"]["checks"][-1]["detail"] == "3 of 3 texts are those of the earlier transcript"
    changed = json.loads(reference.read_text("utf-8"))
    first = next(iter(changed["tokens"]))
    changed["tokens"][first][5] += 1
    reference.write_text(json.dumps(changed))
    strict = ask(reference=str(reference), exact=True)
    assert strict["failed"] and "they part after 5 tokens" in strict["msg"]
    reported = ask(reference=str(reference), exact=False)
    assert reported["canary"]["agreement"]["first_divergence"] == 5
    assert reported["canary"]["agreement"]["equal"] == 2


def test_a_reference_of_other_prompts_says_nothing() -> None:
    now = Transcript("a", 2, {"p": [1, 2]})
    assert canary.compare(now, Transcript("b", 2, {"p": [1, 3]})) is None
    assert canary.compare(now, Transcript("a", 2, {"p": [1, 3]})) == Agreement(1, 0, 1, ["p"])


def test_check_mode_asks_nothing(ask: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    said = ask({"dies_on_first_post": True}, check=True)
    assert not said.get("failed")
    assert not (tmp_path / "transcript.json").exists()


@pytest.mark.parametrize(
    "text",
    [
        "Paris",
        "391",
        "for (int i = 0; i < n; i++) { a[i] += b[i]; }",
        "| a | b |\n|---|---|\n| 1 | 2 |\nThe table has two columns.",
        "Ha ha ha ha, said the miller, and went on with his work.",
        "Das ist kein Fehler, sondern deutsch: äöüß.",
        "これは普通の文章です。次の文もあります。",
    ],
)
def test_ordinary_text_has_no_fault(text: str) -> None:
    assert fault_of(text) == ""


@pytest.mark.parametrize(
    "text",
    ["", " \n ", "!!!!!!!!!!!!", "++++ ++++ ++++", "\ufffd" * 20, "the the " * 12, "哈哈" * 40, "no. " * 30],
)
def test_empty_noise_and_loops_are_faults(text: str) -> None:
    assert fault_of(text)
