"""Who a gateway sends requests to: the rules, then the real smg in front of stand-in servers."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from blackwell import gateway
from blackwell.address import worker_url
from blackwell.errors import OperatorError
from blackwell.gateway import DRAINED, SERVING, Host

from tests import gateways
from tests.stand_in.server import Behaviour, StandIn
from tests.unit.test_address import WORKERS

A, B, C = "http://a:30000", "http://b:30000", "http://c:30000"
ALL = frozenset([A, B, C])
THREE = {url: Host(SERVING, "rollout", 1.0) for url in ALL}


def drain(
    hosts: dict[str, Host], url: str, *, by: str = "rollout", ready: frozenset[str] = ALL, least: int = 1
) -> Any:
    return gateway.drain(hosts, url, by=by, now=2.0, ready=ready, min_available=least)


def test_a_host_that_is_taken_out_leaves_the_manifest_and_nothing_else() -> None:
    step = drain(THREE, A)
    assert step.changed
    assert [worker["url"] for worker in json.loads(gateway.manifest(step.hosts))["workers"]] == [B, C]
    assert step.hosts[A] == Host(DRAINED, "rollout", 2.0)


def test_taking_out_twice_changes_nothing_and_keeps_who_did_it() -> None:
    once = drain(THREE, A, by="operator").hosts
    twice = drain(once, A, by="rollout")
    assert not twice.changed and twice.hosts[A].by == "operator"


def test_a_host_that_was_never_in_is_not_taken_out() -> None:
    assert not drain({}, A, least=9).changed


def test_an_operator_hears_that_the_host_he_names_is_none_of_the_gateway() -> None:
    with pytest.raises(OperatorError, match="Found: it has http://a:30000") as said:
        drain({A: THREE[A]}, B, by="operator")
    assert "worker" in said.value.remedy


@pytest.mark.parametrize("status", ["unhealthy", "pending", "NotReady", "", "something new"])
def test_only_a_host_that_drains_or_is_gone_is_out(status: str) -> None:
    def arrived(state: str, word: str | None = None) -> bool:
        return gateway.arrived(state, A, {} if word is None else {A: gateway.Worker(word, 0)})

    assert arrived(DRAINED) and arrived(DRAINED, "draining") and not arrived(DRAINED, "ready")
    assert not arrived(SERVING) and arrived(SERVING, "ready") and not arrived(SERVING, "draining")
    assert not arrived(SERVING, status)
    # It may become ready before the manifest is read.
    assert not arrived(DRAINED, status)


@pytest.mark.parametrize("first", [SERVING, DRAINED])
def test_of_two_entries_of_one_host_that_is_out_which_is_out(first: str) -> None:
    second = DRAINED if first == SERVING else SERVING
    hosts = {
        "http://GPU-1:30000": Host(first, "rollout", 1.0),
        "http://gpu-1:30000/": Host(second, "operator", 2.0),
    }
    taken, refused = gateway.usable(hosts)
    assert ([*taken], refused) == (["http://gpu-1:30000"], [])
    assert taken["http://gpu-1:30000"].state == DRAINED


def test_an_entry_that_is_no_url_is_in_no_manifest() -> None:
    bad = "http://2001:db8::11:30000"
    assert gateway.usable({**THREE, bad: THREE[A]}) == (THREE, [bad])


@pytest.mark.parametrize(
    ("ready", "least", "refused"),
    [
        (ALL, 2, False),
        (ALL, 3, True),
        (frozenset([A, B]), 1, False),
        (frozenset([A]), 1, True),
        (frozenset(), 0, False),
        # Where it gives no answers itself, nothing is lost by taking it out.
        (frozenset([B]), 2, False),
        (frozenset(), 1, False),
    ],
)
def test_the_floor_counts_other_hosts_that_serve_and_are_healthy(
    ready: Any, least: int, refused: bool
) -> None:
    if refused:
        with pytest.raises(OperatorError, match="Too few hosts"):
            drain(THREE, A, ready=ready, least=least)
    else:
        assert drain(THREE, A, ready=ready, least=least).changed


def test_a_host_that_is_out_already_does_not_count_for_the_floor() -> None:
    with pytest.raises(OperatorError, match="Found: 1 others"):
        drain(drain(THREE, A).hosts, B, least=2)


def test_only_the_one_who_took_a_host_out_brings_it_back() -> None:
    by_operator = drain(THREE, A, by="operator").hosts
    kept = gateway.serve(by_operator, A, by="rollout", now=3.0)
    assert not kept.changed and "operator" in kept.left_out
    assert gateway.serve(by_operator, A, by="operator", now=3.0).hosts[A].state == SERVING


def test_a_new_host_is_put_in() -> None:
    assert gateway.serve({}, A, by="rollout", now=3.0).hosts == {A: Host(SERVING, "rollout", 3.0)}


def test_a_damaged_record_is_refused_and_not_taken_for_no_hosts(tmp_path: Path) -> None:
    (tmp_path / "hosts.json").write_text('{"http://a:30000": {"state"')
    with pytest.raises(OperatorError, match="is not JSON"):
        gateway.Records(tmp_path).read()


def test_without_a_record_the_manifest_says_who_serves(tmp_path: Path) -> None:
    records = gateway.Records(tmp_path)
    records.write(drain(THREE, A).hosts)
    records.hosts_file.unlink()
    found = records.read()
    assert {(url, host.state, host.by) for url, host in found.items()} == {
        (url, SERVING, "rollout") for url in THREE if url != A
    }
    assert records.manifest_is(found)


def test_a_manifest_without_a_record_is_not_taken_for_no_hosts_when_it_is_damaged(tmp_path: Path) -> None:
    (tmp_path / "workers.json").write_text('{"workers": [')
    with pytest.raises(OperatorError, match="is not JSON"):
        gateway.Records(tmp_path).read()


def test_a_run_that_was_killed_between_the_two_files_is_mended(tmp_path: Path) -> None:
    records = gateway.Records(tmp_path)
    records.write(THREE)
    records.manifest_file.write_text(gateway.manifest({}))
    assert not records.manifest_is(records.read())
    records.write(records.read())
    assert records.manifest_is(THREE)


@pytest.fixture
def servers() -> Iterator[list[StandIn]]:
    with StandIn(Behaviour(step_s=0.01)) as one, StandIn(Behaviour(step_s=0.01)) as two:
        yield [one, two]


@pytest.fixture
def front(tmp_path: Path) -> Iterator[gateways.Gateway]:
    with gateways.running(tmp_path) as running:
        yield running


@pytest.fixture
def change(
    run_module: Callable[..., dict[str, Any]], front: gateways.Gateway
) -> Callable[..., dict[str, Any]]:
    def run(worker: str, state: str, *, check: bool = False, **given: Any) -> dict[str, Any]:
        args = {"config": str(front.config), "worker": worker, "state": state, "by": "rollout", **given}
        return run_module("gateway_worker", args, check=check)

    return run


def ask(url: str, *, stream: bool = False, read: Callable[[str], None] = lambda line: None) -> str:
    """The text of a whole answer."""
    body = {
        "model": "stand-in",
        "messages": [{"role": "user", "content": "Hello"}],
        "max_tokens": 24,
        "stream": stream,
    }
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        if not stream:
            return str(json.load(answer)["choices"][0]["message"]["content"])
        text, ended = "", False
        for line in map(bytes.decode, answer):
            read(line)
            ended = ended or line.strip() == "data: [DONE]"
            if line.startswith("data: {"):
                text += "".join(
                    choice["delta"].get("content") or "" for choice in json.loads(line[6:])["choices"]
                )
        assert ended
        return text


def test_requests_go_to_who_serves(servers: list[StandIn], front: gateways.Gateway, change: Any) -> None:
    one, two = servers
    for server in servers:
        done = change(server.url, "serving")
        assert done["changed"] and done["was"] == "absent" and done["now"] == "serving", done
    assert not change(one.url, "serving")["changed"]
    for _ in range(6):
        ask(front.url)
    assert one.state.requests == two.state.requests == 3

    done = change(one.url, "drained", min_available=1)
    assert done["changed"] and done["serving"] == [two.url], done
    for _ in range(6):
        ask(front.url)
    assert (one.state.requests, two.state.requests) == (3, 9)

    refused = change(two.url, "drained", min_available=1)
    assert refused["failed"] and "Too few hosts" in refused["msg"]
    ask(front.url)

    assert change(one.url, "serving")["changed"]
    for _ in range(4):
        ask(front.url)
    assert one.state.requests == 5


def test_an_open_stream_ends_as_it_should_while_its_host_is_taken_out(
    servers: list[StandIn], front: gateways.Gateway, change: Any
) -> None:
    one, two = servers
    one.change(step_s=1.0)
    change(one.url, "serving")
    begun, texts = threading.Event(), []
    stream = threading.Thread(
        target=lambda: texts.append(ask(front.url, stream=True, read=lambda line: begun.set()))
    )
    stream.start()
    assert begun.wait(20)
    change(two.url, "serving")
    assert change(one.url, "drained", min_available=1)["changed"]
    # It is out for all others, and the stream still runs.
    whole = ask(front.url, stream=True)
    assert two.state.requests == 1 and stream.is_alive()
    stream.join(60)
    assert texts == [whole]


def test_a_gateway_that_starts_again_brings_back_nobody(
    servers: list[StandIn], front: gateways.Gateway, change: Any
) -> None:
    one, two = servers
    for server in servers:
        change(server.url, "serving")
    change(one.url, "drained")
    front.stop()
    front.start()
    assert not change(two.url, "serving")["changed"]
    for _ in range(4):
        ask(front.url)
    assert one.state.requests == 0


def test_what_an_operator_took_out_stays_out(servers: list[StandIn], change: Any) -> None:
    url = servers[0].url
    change(url, "serving")
    change(url, "drained", by="operator")
    kept = change(url, "serving")
    assert not kept["changed"] and kept["now"] == "drained" and "operator" in kept["left_out"]


def test_check_mode_says_and_does_not(servers: list[StandIn], front: gateways.Gateway, change: Any) -> None:
    url = servers[0].url
    assert change(url, "serving", check=True)["changed"]
    assert not (front.state / "workers.json").exists()
    change(url, "serving")
    assert change(url, "drained", check=True)["changed"]
    assert ask(front.url)
    assert change(url, "drained", check=True, min_available=1)["failed"]


def test_a_host_that_the_gateway_cannot_reach_is_said(change: Any) -> None:
    said = change("http://127.0.0.1:1", "serving", timeout=2)
    assert said["failed"] and "Expected: ready" in said["msg"]


def test_a_host_with_capitals_in_its_name_is_one_host(servers: list[StandIn], change: Any) -> None:
    url = servers[0].url.replace("127.0.0.1", "LocalHost")
    assert change(url, "serving")["now"] == "serving"
    again = change(url.lower(), "serving")
    assert not again["changed"] and again["serving"] == [url.lower()], again


def poison(front: gateways.Gateway, bad: str) -> None:
    """Write the record and the manifest as an older version did, with an entry that smg does not take."""
    record = json.loads((front.state / "hosts.json").read_text(encoding="utf-8"))
    record[bad] = {"state": "serving", "by": "rollout", "since": 1.0}
    (front.state / "hosts.json").write_text(json.dumps(record), encoding="utf-8")
    manifest = json.loads((front.state / "workers.json").read_text(encoding="utf-8"))
    manifest["workers"].append({"url": bad})
    (front.state / "workers.json").write_text(json.dumps(manifest), encoding="utf-8")


def test_smg_takes_every_url_that_is_not_refused(
    servers: list[StandIn], front: gateways.Gateway, change: Any
) -> None:
    others = {worker_url(given): Host(SERVING, "rollout", 1.0) for given in WORKERS}
    gateway.Records(front.state).write(others)
    done = change(servers[0].url, "serving")
    assert not done.get("failed"), done


@pytest.mark.parametrize(
    "given", ["http://2001:db8::11:30000", "127.0.0.1:30000", "http://[fe80::1%eth0]:30000"]
)
def test_what_is_no_url_is_refused_before_anything_is_written(
    servers: list[StandIn], front: gateways.Gateway, change: Any, given: str
) -> None:
    change(servers[0].url, "serving")
    before = {file.name: file.read_bytes() for file in front.state.glob("*.json")}
    for state in ("serving", "drained", "absent"):
        assert "is not the address of a host" in change(given, state)["msg"]
    assert {file.name: file.read_bytes() for file in front.state.glob("*.json")} == before


def test_a_bad_entry_of_an_older_record_keeps_no_other_host_in(
    servers: list[StandIn], front: gateways.Gateway, change: Any
) -> None:
    one, two = servers
    for server in servers:
        change(server.url, "serving")
    poison(front, "http://2001:db8::11:30000")
    # smg starts with no hosts at all.
    front.stop()
    front.start()
    done = change(one.url, "serving")
    assert done["owed"] and done["serving"] == sorted([one.url, two.url])
    assert change(one.url, "drained")["changed"]
    for _ in range(4):
        ask(front.url)
    assert one.state.requests == 0


def test_a_change_that_smg_does_not_make_is_put_back(
    servers: list[StandIn], front: gateways.Gateway, change: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = servers
    for server in servers:
        change(server.url, "serving")
    kept = {file.name: file.read_bytes() for file in front.state.glob("*.json")}
    # One that nobody answers at, then a manifest that smg does not take.
    assert "absent is written again" in change("http://127.0.0.1:1", "serving", timeout=2)["msg"]
    with monkeypatch.context() as other:
        other.setattr("ansible.module_utils.blackwell.gateway.manifest", lambda hosts: '{"version": 2}')
        said = change(one.url, "drained", timeout=7)
    assert said["failed"] and "serving is written again" in said["msg"], said
    # With a writer that works again, nothing is left of it, and a gateway that starts again has its hosts.
    change(one.url, "serving")
    front.stop()
    front.start()
    change(two.url, "serving")
    after = {file.name: file.read_bytes() for file in front.state.glob("*.json")}
    assert after == kept
    for _ in range(4):
        ask(front.url)
    assert one.state.requests == two.state.requests == 2


def test_what_others_have_changed_meanwhile_is_not_put_back(tmp_path: Path) -> None:
    records = gateway.Records(tmp_path)
    written = {**THREE, A: Host(DRAINED, "rollout", 2.0)}
    records.write({url: host for url, host in written.items() if url != B})
    assert records.put_back(A, THREE[A], written[A])
    assert records.read() == {A: THREE[A], C: THREE[C]} and records.manifest_is(records.read())
    assert not records.put_back(A, None, written[A]) and A in records.read()


def test_nobody_without_the_key_adds_a_host(front: gateways.Gateway) -> None:
    request = urllib.request.Request(f"{front.url}/workers", b'{"url": "http://127.0.0.1:1"}', method="POST")
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request)
    assert refused.value.code in (401, 403)


def test_in_check_mode_a_gateway_that_is_not_there_yet_starts_without_hosts(
    run_module: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    given = {"config": str(tmp_path / "none"), "worker": A, "may_be_missing": True, "by": "rollout"}
    assert run_module("gateway_worker", {**given, "state": "serving"}, check=True)["changed"]
    drained = run_module("gateway_worker", {**given, "state": "drained", "min_available": 1}, check=True)
    assert not drained["changed"] and drained["now"] == "absent"


def test_no_gateway_is_said(run_module: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    said = run_module("gateway_worker", {"config": str(tmp_path), "worker": A, "state": "serving"})
    assert said["failed"] and "sglang_gateways" in said["msg"]
