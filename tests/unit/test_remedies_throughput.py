"""What a message of the throughput check tells to do, done: the fault is gone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from blackwell.errors import OperatorError
from blackwell.throughput import canary
from blackwell.throughput.measure import load_result
from blackwell.throughput.prompts import Prompt, PromptSet, load
from blackwell.throughput.server import Server, ServerBusy

from tests.stand_in.server import Behaviour, StandIn

KEY, ADMIN = "planted-api-key-0001", "planted-admin-key-01"


@pytest.fixture
def server() -> Iterator[StandIn]:
    with StandIn(Behaviour(ttft_s=0.0, step_s=0.001)) as running:
        yield running


@pytest.mark.parametrize("content", [b"", b'{"schema": 1}', b'{"schema": 2}', b"\xff", b"[1]"])
def test_a_damaged_result_is_removed(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "baseline.json"
    path.write_bytes(content)
    with pytest.raises(OperatorError, match="remove the file") as caught:
        load_result(path)
    assert str(path) in str(caught.value)
    path.unlink()
    assert load_result(path) is None


def test_metrics_are_switched_on(server: StandIn) -> None:
    server.change(no_metrics=True)
    with pytest.raises(OperatorError, match="--enable-metrics"):
        Server(server.url).counters()
    server.change(no_metrics=False)
    Server(server.url).counters()


def test_the_keys_of_the_server_are_given(server: StandIn) -> None:
    server.change(api_key=KEY, admin_key=ADMIN)
    with pytest.raises(OperatorError, match="give the check the server's API key"):
        Server(server.url).info()
    Server(server.url, KEY).info()
    with pytest.raises(OperatorError, match="give the check the server's admin key"):
        Server(server.url, KEY).flush_cache(0.1)
    Server(server.url, KEY, ADMIN).flush_cache(0.1)


def test_the_configuration_is_deployed(tmp_path: Path, server: StandIn) -> None:
    config = tmp_path / "eagle3.yaml"
    for content in (None, "", "port: thirty\n", "port: \n"):
        if content is not None:
            config.write_text(content, encoding="utf-8")
        with pytest.raises(OperatorError, match=r"site\.yml") as caught:
            Server.of_deployment(config)
        assert str(config) in str(caught.value)
    config.write_text(f'host: "127.0.0.1"\nport: {server.url.rpartition(":")[2]}\n', encoding="utf-8")
    Server.of_deployment(config).info()


def test_a_busy_server_is_waited_for(server: StandIn) -> None:
    server.change(busy=True)
    with pytest.raises(ServerBusy, match="throughput_check_idle_timeout"):
        Server(server.url).flush_cache(0.1)
    server.change(busy=False)
    Server(server.url).flush_cache(0.1)


@pytest.mark.parametrize(
    "content",
    [
        b"\xff\n",
        b'{"id": 1, "kind": "prose", "text": "x"}\n',
        b'{"id": "a", "kind": "prose"}\n',
        b"[]\n",
        b"\n",
        b'{"id": "a", "kind": "prose", "text": "x"}\n\n',
    ],
)
def test_a_damaged_prompt_file_is_copied_again(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(content)
    with pytest.raises(OperatorError, match=r"run site\.yml") as caught:
        load(path)
    assert f"{path}:" in str(caught.value)
    good = Path(__file__).resolve().parents[2] / "roles/throughput_check/files/prompts/prompts.jsonl"
    path.write_bytes(good.read_bytes())
    assert load(path).pick(8)


def test_a_prompt_may_hold_what_python_takes_for_the_end_of_a_line(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"id": "a", "kind": "prose", "text": "x\u2028y\x85z"}\n', encoding="utf-8")
    assert load(path).prompts[0].text == "x\u2028y\x85z"


@pytest.mark.parametrize("kind", ["standard", "long"])
def test_a_run_asks_for_fewer_prompts_or_more_are_there(kind: str) -> None:
    def prompts(number: int) -> list[Prompt]:
        return [Prompt(str(at), "long" if kind == "long" else "code", "a") for at in range(number)]

    with pytest.raises(OperatorError, match="or add prompts"):
        PromptSet(prompts(3), "").pick(4, kind)
    assert len(PromptSet(prompts(3), "").pick(3, kind)) == 3
    assert len(PromptSet(prompts(4), "").pick(4, kind)) == 4


@pytest.mark.parametrize("wrong", ["(yes", "[a", "*", "a{2,1}"])
def test_a_question_gets_an_answer_that_can_be_looked_for(wrong: str) -> None:
    with pytest.raises(OperatorError, match="correct it in throughput_check_questions"):
        canary._question({"prompt": "Is it well?", "expect": wrong})
    assert canary._question({"prompt": "Is it well?", "expect": re.escape(wrong)})
