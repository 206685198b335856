"""From the server to the verdict: each fault ends in a verdict that calls it by its name.

A server of known speed is measured by the published load generator, a fault is switched on, it is measured again, and
the judge compares. The faults are gross, so that the noise of the machine decides nothing.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from blackwell.errors import OperatorError
from blackwell.throughput import verdict as said
from blackwell.throughput.bench import Bench
from blackwell.throughput.figures import Limits
from blackwell.throughput.gpu import Sampler
from blackwell.throughput.judge import judge
from blackwell.throughput.measure import Plan, PointPlan, Sizes, measure
from blackwell.throughput.policy import Policy
from blackwell.throughput.prompts import load
from blackwell.throughput.result import LONG, Result
from blackwell.throughput.server import Server

from tests.stand_in.client import environment
from tests.stand_in.server import Behaviour, StandIn

PROMPTS = Path(__file__).resolve().parents[2] / "roles/throughput_check/files/prompts/prompts.jsonl"
GOOD = Behaviour(ttft_s=0.05, step_s=0.01, accept_length=3.0)
ALONE, LONG_ALONE = PointPlan(1), PointPlan(1, LONG)
POLICY = Policy(margin=0.3, margins={"ttft_s": 0.45}, min_runs=5, max_runs=5, min_graph_share=0.9)


class Bed:
    """A server, a load generator that is at it, and what they were like when all was well."""

    def __init__(self, server: StandIn, bench: Bench) -> None:
        self.server, self.bench = server, bench
        self.baseline = self.measure(ALONE, LONG_ALONE)

    def measure(self, *points: PointPlan, **faults: Any) -> Result:
        self.server.behaviour = dataclasses.replace(GOOD, **faults)
        plan = Plan(
            host="gpu-1",
            release="0.5.9-0123456789ab",
            deployment="d",
            sglang_version="0.5.9",
            profile="eagle3",
            fingerprint="f00d",
            points=list(points),
            sizes=Sizes(least=2, per_slot=1, long_per_slot=2),
            output_tokens=31,
            runs_min=5,
            runs_max=5,
            speculative=True,
            disturbed_max=1,
            limits=Limits(stall_s=1.0),
        )
        return measure(
            plan, load(PROMPTS), Server(self.server.url), self.bench, Sampler("none"), lambda _: 0, {}
        )


@pytest.fixture(scope="module")
def bed() -> Iterator[Bed]:
    env = environment("0.5.9")
    with StandIn(GOOD) as server, Bench(sys.executable, server.url, "", "/", environment=env) as bench:
        yield Bed(server, bench)


def verdict_of(bed: Bed, point: PointPlan, **faults: Any) -> said.Verdict:
    """Measure one point of a server with these faults, and judge it against the same point of the baseline."""
    kept = bed.baseline.point(point.concurrency, point.prompts)
    assert kept
    return judge(bed.measure(point, **faults), dataclasses.replace(bed.baseline, points=[kept]), POLICY)


def test_nothing_is_blamed_for_a_server_that_did_not_change(bed: Bed) -> None:
    """On a machine that is busy with other things the figures may be too noisy to decide, which blames nobody."""
    verdict = verdict_of(bed, ALONE)
    assert (verdict.outcome != said.FAIL, verdict.culprits) == (True, [])


@pytest.mark.parametrize(
    ("faults", "name", "point"),
    [
        pytest.param(
            {"accept_length": 1.01, "step_s": 0.0033}, said.DRAFT_MODEL, ALONE, id="no draft accepted"
        ),
        pytest.param(
            {"accept_length": 1.5, "step_s": 0.003}, said.DRAFT_MODEL, ALONE, id="faster, fewer taken"
        ),
        pytest.param({"step_s": 0.03}, said.KERNELS, ALONE, id="slower steps"),
        pytest.param({"step_s": 0.03, "graphs": 0.0}, said.GRAPHS_OFF, ALONE, id="graphs off"),
        pytest.param({"ttft_s": 0.4}, said.PREFILL, ALONE, id="slower prefill"),
        pytest.param({"slow_long_prompts": 3.0}, said.KERNELS, LONG_ALONE, id="slower on long prompts"),
        pytest.param(
            {"missing_counter": "cuda_graph_passes_total"}, said.MISSING_METRIC, ALONE, id="no metric"
        ),
        pytest.param({"nan_counter": "prompt_tokens_total"}, said.MISSING_METRIC, ALONE, id="no number"),
        pytest.param({"restarts": True}, said.RESTARTED, ALONE, id="server restarted"),
        pytest.param({"fast_errors": 2}, said.FAILED_REQUESTS, ALONE, id="fast errors"),
        pytest.param({"stall_s": 2.0}, said.STALLS, ALONE, id="a stall in every run"),
        pytest.param({"foreign_requests": 1}, said.FOREIGN_LOAD, ALONE, id="another client"),
        pytest.param({"flush_lies": True, "warm_speedup": 5}, said.WARM_CACHE, ALONE, id="a warm cache"),
        pytest.param({"counts_chunks": True}, said.TOKEN_COUNT, ALONE, id="chunks counted"),
    ],
)
def test_a_fault_is_no_pass_and_is_named(
    bed: Bed, faults: dict[str, Any], name: str, point: PointPlan
) -> None:
    verdict = verdict_of(bed, point, **faults)
    assert not verdict.accepted
    assert name in {culprit.name for culprit in verdict.culprits}


def test_a_baseline_of_another_host_is_refused(bed: Bed) -> None:
    with pytest.raises(OperatorError, match="host fingerprint"):
        judge(bed.baseline, dataclasses.replace(bed.baseline, fingerprint="other"), POLICY)
