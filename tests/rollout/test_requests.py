"""No request is lost while releases are exchanged, whoever keeps new ones away from a host."""

from __future__ import annotations

import threading
import time
import urllib.error

import pytest

from tests.rollout.fleet import MODEL, SENTENCE, Fleet, wait_until
from tests.rollout.load import Load, ask

# A request takes two seconds and a half, so that some are open whenever a host is taken out.
STEADY = {"ttft_s": 0.5, "step_s": 0.5}

# A long stream is opened right before its host is taken out, and lasts for 50 seconds.
BEGIN = "TASK [rollout : Begin]"
TOKENS = 300
SUBJECTS = (
    "amber",
    "basalt",
    "chalk",
    "diorite",
    "emerald",
    "flint",
    "gneiss",
    "hematite",
    "ivory",
    "jasper",
)


def test_no_request_is_lost_in_a_rolling_upgrade(fleet: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
    fleet.deploy(fleet.new_release(), STEADY)
    load = Load(fleet.gateway_url, MODEL, SENTENCE)
    release = fleet.new_release()
    with load.running(clients=32, at_least=2000):
        upgrade = fleet.deploy(release, STEADY)
    with capsys.disabled():
        print(f"\n{load}")

    assert not load.lost, load.lost[:10]
    assert len(load.requests) >= 2000 and load.streamed >= 1000
    for host in fleet.hosts:
        receipt = fleet.receipt(host)
        assert receipt["began"] > upgrade.began and receipt["outcome"] == "accepted"
        assert receipt["requests"]["open"] > 0, f"no request was open when {host} was taken out"
        assert receipt["requests"]["left"] == 0
        assert fleet.running(host).startswith(f"{release}-")
    assert fleet.serving() == fleet.hosts


def stream(
    url: str, held: dict[str, tuple[str, str, bool] | Exception], name: str, tokens: int
) -> threading.Thread:
    """Open a long stream; what came of it is in ``held`` when the thread has ended."""

    def hold() -> None:
        asked = {
            "model": MODEL, "messages": [{"role": "user", "content": f"{name}: what is to be said about it?"}],
            "max_tokens": tokens, "ignore_eos": True, "temperature": 0, "stream": True,
        }  # fmt: skip
        try:
            held[name] = ask(url, asked)
        except Exception as error:  # whatever a client would see
            held[name] = error

    thread = threading.Thread(target=hold, daemon=True)
    thread.start()
    return thread


def assert_whole(held: dict[str, tuple[str, str, bool] | Exception], tokens: int) -> None:
    """Every stream came to its proper end, with all that was asked for."""
    for name, seen in held.items():
        assert isinstance(seen, tuple), f"{name}: {seen}"
        text, reason, ended = seen
        assert reason and ended, f"{name} was cut after {len(text.split())} tokens"
        assert len(text.split()) == tokens, f"{name} has {len(text.split())} tokens"


def test_a_stream_that_is_open_when_its_host_is_taken_out_ends_with_a_finish_reason(fleet: Fleet) -> None:
    host = fleet.hosts[0]
    fleet.deploy(fleet.new_release(), {"step_s": 0.5})
    held: dict[str, tuple[str, str, bool] | Exception] = {}
    upgrade = fleet.start(fleet.new_release(), {"step_s": 0.5}, hosts=[host])
    upgrade.until(BEGIN)
    # Spread over the hosts by the gateway, which keeps what begins alike together: so each begins with another word.
    streams = [stream(fleet.gateway_url, held, word, TOKENS) for word in SUBJECTS]
    for each in streams:
        each.join()
    assert_whole(held, TOKENS)
    upgrade.succeeded()
    receipt = fleet.receipt(host)
    assert receipt["began"] > upgrade.began
    assert receipt["requests"]["open"] > 0, "no stream was open on the host"
    assert [phase["phase"] for phase in receipt["phases"]][:3] == ["drain", "wait", "start"]


def test_without_a_gateway_new_connections_are_refused_and_a_held_stream_ends(fleet: Fleet) -> None:
    host = fleet.hosts[0]
    fleet.ready()
    fleet.deploy(fleet.new_release(), {"step_s": 0.5}, hosts=[host])
    url = f"http://{fleet.address[host]}:30000"
    held: dict[str, tuple[str, str, bool] | Exception] = {}
    # No gateways: the host refuses connections itself, as it is the default then.
    upgrade = fleet.start(fleet.new_release(), {"step_s": 0.5}, hosts=[host], rollout_gateways=[])
    upgrade.until(BEGIN)
    open_one = stream(url, held, "the host itself", TOKENS)
    upgrade.until(f"{host}: wait")
    assert open_one.is_alive() and fleet.invocation(host), "the server still runs, with an open stream"
    with pytest.raises(urllib.error.URLError, match="refused"):
        ask(url, {"model": MODEL, "messages": [], "stream": False}, timeout=5)
    open_one.join()
    assert_whole(held, TOKENS)
    upgrade.succeeded()
    receipt = fleet.receipt(host)
    assert receipt["requests"] == {"open": 1, "left": 0}
    assert receipt["outage"]["seconds"] > 0, "the host itself may ask its server all the time"
    wait_until(lambda: fleet.answers(host), seconds=5, why="connections are admitted again")
    assert "sglang_rollout" not in fleet.ssh(host, "nft list tables")
    assert receipt["ended"] <= time.time()
