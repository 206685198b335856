"""The measurement from end to end: the real load generator against a server with known faults.

The load generator is the published ``sglang.bench_serving``. Nothing here depends on how fast the machine is: what is
asserted are counts, and what a run is called. How near the figures are to the truth is in benchmarks/.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from blackwell.errors import OperatorError
from blackwell.throughput import measure, prompts, result
from blackwell.throughput.alone import alone
from blackwell.throughput.bench import Bench
from blackwell.throughput.figures import Limits
from blackwell.throughput.gpu import Sampler
from blackwell.throughput.measure import Plan, PointPlan, Sizes
from blackwell.throughput.server import Server, ServerBusy

from tests.stand_in.client import environment
from tests.stand_in.server import Behaviour, StandIn

PROMPTS = Path(__file__).resolve().parents[2] / "roles/throughput_check/files/prompts/prompts.jsonl"
# Quick, and with whole steps: 1 + 9 * 3 = 28 tokens.
QUICK = Behaviour(ttft_s=0.02, step_s=0.002, accept_length=3.0)
TOKENS = 28
KEYS: dict[str, Any] = {"api_key": "planted-api-key-0001", "admin_key": "planted-admin-key-01"}


def make_plan(*points: PointPlan, **changes: Any) -> Plan:
    values: dict[str, Any] = {
        "host": "h",
        "release": "0.5.9-0123456789ab",
        "deployment": "d",
        "sglang_version": "0.5.9",
        "profile": "eagle3",
        "fingerprint": "f",
        "points": list(points) or [PointPlan(1)],
        "sizes": Sizes(least=4, per_slot=2, long_per_slot=1),
        "output_tokens": TOKENS,
        "runs_min": 1,
        "runs_max": 1,
        "speculative": True,
        "disturbed_max": 1,
        "run_limit_s": 60.0,
        "idle_limit_s": 0.5,
        "limits": Limits(stall_s=1.0),
    }
    return Plan(**{**values, **changes})


class Bed:
    """A server and a load generator that is at it."""

    def __init__(self, server: StandIn, bench: Bench) -> None:
        self.server, self.bench = server, bench

    def measure(self, plan: Plan, **options: Any) -> result.Result:
        behaviour = self.server.behaviour
        return measure.measure(
            plan,
            prompts.load(PROMPTS),
            options.get("client") or Server(self.server.url, behaviour.api_key, behaviour.admin_key),
            self.bench,
            Sampler(options.get("nvidia_smi", "no-such-program")),
            options.get("more_runs", lambda _: 0),
            {},
            options.get("say", lambda line: None),
        )


@contextmanager
def make_bed(behaviour: Behaviour, version: str = "0.5.9") -> Iterator[Bed]:
    env, key = environment(version), behaviour.api_key
    with StandIn(behaviour) as server, Bench(sys.executable, server.url, key, "/", environment=env) as bench:
        yield Bed(server, bench)


@pytest.fixture(scope="module")
def shared_bed() -> Iterator[Bed]:
    """To start the load generator takes seconds, so tests share one."""
    with make_bed(QUICK) as bed:
        yield bed


@pytest.fixture
def bed(shared_bed: Bed) -> Bed:
    """A server without faults; each test may give it some."""
    shared_bed.server.behaviour = QUICK
    return shared_bed


@pytest.mark.parametrize("version", ["0.5.9", "0.5.10.post1"])
def test_a_good_server_is_measured_with_the_program_of_each_release(version: str) -> None:
    with make_bed(QUICK, version) as bed:
        taken = bed.measure(make_plan(PointPlan(1), PointPlan(4)))
    alone, together = (point.runs[0] for point in taken.points)
    assert alone.valid and together.valid
    assert (alone.requests, alone.failures, alone.output_tokens) == (4, 0, 4 * TOKENS)
    assert alone.accept_length == pytest.approx(3.0)
    assert alone.graph_share == 1.0
    assert together.output_tokens == 8 * TOKENS
    assert alone.decode_tok_s and alone.step_rate
    assert alone.step_rate == pytest.approx(alone.decode_tok_s / 3.0)


def test_no_key_is_in_what_is_stored(tmp_path: Path) -> None:
    with make_bed(replace(QUICK, **KEYS)) as bed:
        taken = bed.measure(make_plan())
    assert taken.points[0].runs[0].valid
    stored = measure.store(taken, tmp_path)
    written = "".join(path.read_text("utf-8") for path in tmp_path.rglob("*") if path.is_file())
    assert stored.exists()
    assert not [key for key in KEYS.values() if key in written]
    assert measure.load_result(stored) == taken


def test_the_wrong_admin_key_is_named(bed: Bed) -> None:
    bed.server.change(**KEYS)
    with pytest.raises(OperatorError, match=r"401.*admin key"):
        Server(bed.server.url, KEYS["api_key"]).flush_cache(1.0)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        pytest.param({"busy": True}, "busy", id="at work"),
        pytest.param({"no_metrics": True}, "--enable-metrics", id="without metrics"),
        pytest.param({"speculative": False}, "does not run the profile eagle3", id="of the other profile"),
    ],
)
def test_a_server_that_cannot_be_measured_is_refused(bed: Bed, fault: dict[str, Any], message: str) -> None:
    bed.server.change(**fault)
    with pytest.raises(OperatorError, match=message):
        bed.measure(make_plan())


def test_a_proxy_of_the_environment_is_not_asked(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    assert bed.measure(make_plan()).points[0].runs[0].valid


def test_a_server_on_ipv6_is_measured() -> None:
    with StandIn(QUICK, host="::1") as server:
        assert "[::1]" in server.url
        with Bench(sys.executable, server.url, "", "/", environment=environment("0.5.9")) as bench:
            assert Bed(server, bench).measure(make_plan()).points[0].runs[0].valid


def test_a_result_that_cannot_be_kept_is_not_lost(tmp_path: Path, run_module: Any) -> None:
    (tmp_path / "full").write_text("a file where the folder of results should be")
    with StandIn(QUICK) as server:
        config = tmp_path / "d/eagle3.yaml"
        config.parent.mkdir()
        config.write_text(f'host: "127.0.0.1"\nport: {server.url.rpartition(":")[2]}\n')
        told = run_module(
            "throughput_measure",
            {
                "config": str(config),
                "release": {"id": "r", "sglang_version": "0.5.9", "python": sys.executable},
                "profile": "eagle3",
                "host": "gpu-1",
                "fingerprint": "f",
                "prompts": str(PROMPTS),
                "results": str(tmp_path / "full/results"),
                "accepted": str(tmp_path / "accepted.json"),
                "baseline": str(tmp_path / "baseline.json"),
                "policy": {"min_runs": 1, "max_runs": 1},
                "concurrency": [1],
                "long_concurrency": [],
                "load": {"output_tokens": TOKENS, "requests_least": 2, "requests_per_slot": 1},
                "tokenizer": "/",
                "environment": environment("0.5.9"),
                "nvidia_smi": "no-such-program",
            },
        )
    assert told["failed"]
    assert "could not be kept" in told["msg"]
    assert told["result"]["points"][0]["runs"]


def test_a_clock_that_was_set_back_overwrites_nothing(bed: Bed, tmp_path: Path) -> None:
    taken = bed.measure(make_plan())
    first, second = measure.store(taken, tmp_path), measure.store(replace(taken, host="later"), tmp_path)
    assert first != second
    assert measure.load_result(first) == taken


def test_two_checks_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    config = tmp_path / "eagle3.yaml"
    config.write_text("port: 30000\n")
    with (
        alone(config, 0.0),
        pytest.raises(ServerBusy, match="one check at a time"),
        alone(config, 0.3),
    ):
        pass
    with alone(config, 0.0):
        pass


def test_a_server_that_dies_is_named_as_such() -> None:
    dying = make_bed(replace(QUICK, dies_on_first_post=True))
    with dying as bed, pytest.raises(OperatorError, match="does not answer"):
        bed.measure(make_plan())


def test_an_interpreter_that_is_missing_is_named() -> None:
    with (
        StandIn(QUICK) as server,
        Bench("/no/python", server.url, "", "/") as bench,
        pytest.raises(OperatorError, match="/no/python"),
    ):
        Bed(server, bench).measure(make_plan())


FAULTS = [
    pytest.param({"fast_errors": 2}, result.FAILURES, id="fast errors behind status 200"),
    pytest.param({"all_fail": True}, result.FAILURES, id="every request fails"),
    pytest.param({"stops_early": 3}, result.FAILURES, id="an answer is too short"),
    pytest.param({"counts_chunks": True}, result.TOKEN_COUNT, id="tokens counted by chunk"),
    pytest.param({"foreign_requests": 2}, result.FOREIGN, id="another client is busy"),
    pytest.param({"foreign_tokens": 5000}, result.FOREIGN, id="another client's request goes on"),
    pytest.param({"stall_s": 3.0}, result.STALLED, id="one request stands still"),
    pytest.param({"flush_lies": True, "warm_speedup": 10}, result.WARM_CACHE, id="a second run is warm"),
    pytest.param({"missing_counter": "num_requests_total"}, result.MISSING, id="a counter is missing"),
]


@pytest.mark.parametrize(("fault", "name"), FAULTS)
def test_a_fault_is_called_by_its_name_and_its_run_does_not_count(
    bed: Bed, fault: dict[str, Any], name: str
) -> None:
    bed.server.change(**fault)
    point = bed.measure(make_plan()).points[0]
    assert not any(run.valid for run in point.runs)
    # A machine that is busy with other things may stall beside.
    assert name in {reason.split(":")[0] for run in point.runs for reason in run.invalid_because}


def test_a_server_that_hangs_ends_the_run_in_time_and_is_not_asked_again() -> None:
    with make_bed(replace(QUICK, hangs_after=6)) as bed:
        point = bed.measure(make_plan(run_limit_s=8.0)).points[0]
    assert [reason.split(":")[0] for reason in point.runs[-1].invalid_because] == [result.TIMEOUT]
    assert len(point.runs) == 1


def test_a_metric_that_is_missing_is_none_and_not_a_guess(bed: Bed) -> None:
    bed.server.change(missing_counter="cuda_graph_passes_total")
    run = bed.measure(make_plan()).points[0].runs[0]
    assert run.accept_length is None
    assert run.graph_share is None


def test_an_accept_length_of_nearly_one_is_seen_at_good_speed(bed: Bed) -> None:
    bed.server.change(accept_length=1.01)
    run = bed.measure(make_plan(output_tokens=102)).points[0].runs[0]
    assert run.valid
    assert run.accept_length == pytest.approx(1.01, abs=0.005)


def test_eager_passes_are_seen(bed: Bed) -> None:
    bed.server.change(graphs=0.0)
    assert bed.measure(make_plan()).points[0].runs[0].graph_share == 0.0


def test_decode_leaves_out_the_prefill_that_the_log_of_the_server_has_in_it() -> None:
    """Requests come one by one, so some lines of SGLang's log span the prefill of the next prompt."""
    with make_bed(replace(QUICK, ttft_s=0.3, step_s=0.01)) as bed:
        # A line of the log is 40 passes, a request 80.
        run = (
            bed.measure(make_plan(PointPlan(1, result.LONG), output_tokens=241, sizes=Sizes(4, 2, 4)))
            .points[0]
            .runs[0]
        )
        # Of the run, without its first request, whose first line spans the time since the warm-up.
        logged = bed.server.state.logged[-6:]
    assert run.valid and run.decode_tok_s and run.ttft_s
    assert run.decode_tok_s == pytest.approx(300, rel=0.05)
    assert max(logged) == pytest.approx(300, rel=0.05)
    # 120 tokens in 0.4 s, and in every second line in 0.4 s and the time to the first token.
    seen_by_log = len(logged) / sum(1 / rate for rate in logged)
    assert seen_by_log == pytest.approx(240 / (240 / run.decode_tok_s + run.ttft_s), rel=0.05)
    assert seen_by_log < 0.8 * run.decode_tok_s


def test_a_disturbed_run_is_repeated_and_not_averaged(bed: Bed) -> None:
    class DisturbedOnce(Server):
        flushes = 0

        def flush_cache(self, idle_limit_s: float) -> None:
            self.flushes += 1
            # The first is the warm-up's, the second that of the first run that would count.
            bed.server.change(foreign_requests=1 if self.flushes == 2 else 0)
            super().flush_cache(idle_limit_s)

    point = bed.measure(make_plan(), client=DisturbedOnce(bed.server.url)).points[0]
    assert [run.valid for run in point.runs] == [False, True]
    assert len(point.samples("decode_tok_s")) == 1


@pytest.mark.parametrize(("wanted", "made"), [(0, 1), (1, 2), (9, 3)])
def test_runs_are_added_while_they_are_asked_for_and_up_to_the_limit(
    bed: Bed, wanted: int, made: int
) -> None:
    def more_runs(point: result.Point) -> int:
        return max(0, 1 + wanted - len(point.runs))

    point = bed.measure(make_plan(runs_min=1, runs_max=3), more_runs=more_runs).points[0]
    assert len(point.runs) == made


def test_it_says_what_each_run_was(bed: Bed) -> None:
    said: list[str] = []
    bed.server.change(fast_errors=4)
    bed.measure(make_plan(), say=said.append)
    assert said[0] == "1 request: warming up"
    assert said[1].startswith("1 request: a run that does not count, failed requests: 1 of 4")


def test_throttled_gpus_are_seen_through_nvidia_smi(bed: Bed, tmp_path: Path) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho '0, 1200, 12481, 310.0, 92, 0x0000000000000040'\nexec sleep 60\n")
    program.chmod(0o755)
    run = bed.measure(make_plan(), nvidia_smi=str(program)).points[0].runs[0]
    assert run.invalid_because == [f"{result.THROTTLED}: hardware thermal slowdown on GPU 0"]
    assert run.gpu["clock_mhz"] == 1200


def test_a_run_takes_prompts_of_every_kind_once() -> None:
    chosen = prompts.load(PROMPTS).pick(8)
    assert sorted({prompt.kind for prompt in chosen}) == ["code", "prose", "question", "tool"]
    assert len({prompt.id for prompt in chosen}) == 8


def test_long_prompts_are_apart() -> None:
    chosen = prompts.load(PROMPTS).pick(4, result.LONG)
    assert {prompt.kind for prompt in chosen} == {result.LONG}
    assert min(len(prompt.text) for prompt in chosen) > 20_000


def test_a_prompt_is_never_sent_twice_in_a_run() -> None:
    with pytest.raises(OperatorError, match="too small"):
        prompts.load(PROMPTS).pick(73)


def test_no_prompt_is_the_beginning_of_another() -> None:
    texts = [prompt.text[:40] for prompt in prompts.load(PROMPTS).prompts if prompt.kind != "tool"]
    assert len(set(texts)) == len(texts)


def test_the_long_prompts_are_those_of_their_program(tmp_path: Path) -> None:
    program = PROMPTS.with_name("make_long.py")
    copy = tmp_path / "prompts.jsonl"
    copy.write_bytes(PROMPTS.read_bytes())
    namespace: dict[str, Any] = {"__name__": "made", "__file__": str(tmp_path / "make_long.py")}
    exec(compile(program.read_text("utf-8"), str(program), "exec"), namespace)
    namespace["main"]()
    assert copy.read_bytes() == PROMPTS.read_bytes()


def test_a_line_that_is_no_prompt_is_named(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(json.dumps({"id": "a", "kind": "code", "text": "x"}) + "\n{}\n")
    with pytest.raises(OperatorError, match=r"p\.jsonl:2"):
        prompts.load(path)
