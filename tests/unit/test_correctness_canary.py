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
    ask()
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
