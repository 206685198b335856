"""The measurement: which runs are made under which conditions, and when to stop."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import OperatorError
from .bench import AllFailed, Bench, BenchTimeout, Load
from .figures import Limits, Seen, run_of
from .gpu import Sampler
from .prompts import PromptSet
from .result import FAILURES, MISSING, STANDARD, TIMEOUT, Point, Result, Run
from .server import Server

# Asked at a point that has enough runs to be looked at: how many more before the next look, 0 for enough.
MoreRuns = Callable[[Point], int]


@dataclass(frozen=True)
class PointPlan:
    """A point to be measured: ``requests`` prompts of a kind a run, ``concurrency`` of them in flight."""

    concurrency: int
    requests: int
    prompts: str = STANDARD


@dataclass(frozen=True)
class Plan:
    """What is measured, of what, and how often.

    ``runs_min`` and ``runs_max`` count valid runs of a point; ``disturbed_max`` is how many disturbed ones
    are repeated. ``run_limit_s`` ends a run that hangs; ``idle_limit_s`` is how long to wait until the server
    is idle.
    """

    host: str
    release: str
    sglang_version: str
    profile: str
    fingerprint: str
    points: list[PointPlan]
    output_tokens: int
    runs_min: int
    runs_max: int
    speculative: bool
    chat_template: bool = True
    seed: int = 1
    disturbed_max: int = 5
    run_limit_s: float = 900.0
    idle_limit_s: float = 60.0
    limits: Limits = field(default_factory=Limits)

    def load(self) -> dict[str, Any]:
        """What makes two results comparable, beside fingerprint, profile, prompts and client."""
        return {
            "points": [[point.prompts, point.concurrency, point.requests] for point in self.points],
            "output_tokens": self.output_tokens,
            "chat_template": self.chat_template,
            "seed": self.seed,
            "temperature": 0,
            "ignore_eos": True,
        }

    def client(self) -> str:
        """The load generator and its version: that of the release."""
        return f"sglang.bench_serving {self.sglang_version}"


def measure(
    plan: Plan,
    prompts: PromptSet,
    server: Server,
    bench: Bench,
    sampler: Sampler,
    more_runs: MoreRuns,
    canary: dict[str, Any],
) -> Result:
    """Measure every point of the plan.

    Raises:
        OperatorError: the server is busy, is not what the plan says, or cannot be measured.
    """
    info = server.info()
    if bool(info.speculative_algorithm) != plan.speculative:
        raise OperatorError(
            f"The server does not run the profile {plan.profile}",
            found=f"speculative algorithm {info.speculative_algorithm}",
            expected="one" if plan.speculative else "none",
            remedy="start the unit of this profile before it is measured",
        )
    taken_at = datetime.datetime.now(datetime.timezone.utc).replace(microsecond=0).isoformat()
    points = [
        _measure_point(plan, point, prompts, server, bench, sampler, more_runs) for point in plan.points
    ]
    return Result(
        host=plan.host,
        taken_at=taken_at,
        release=plan.release,
        sglang_version=plan.sglang_version,
        profile=plan.profile,
        fingerprint=plan.fingerprint,
        prompts_sha256=prompts.sha256,
        client=plan.client(),
        conditions={
            "load": plan.load(),
            "speculative_algorithm": info.speculative_algorithm,
            "served_model_name": info.served_model_name,
            "runs_min": plan.runs_min,
            "runs_max": plan.runs_max,
            "cache_flushed_before_each_run": True,
        },
        points=points,
        canary=canary,
    )


def _measure_point(
    plan: Plan,
    point: PointPlan,
    prompts: PromptSet,
    server: Server,
    bench: Bench,
    sampler: Sampler,
    more_runs: MoreRuns,
) -> Point:
    load = Load(
        prompts=prompts.pick(point.requests, point.prompts),
        concurrency=point.concurrency,
        output_tokens=plan.output_tokens,
        seed=plan.seed,
        chat_template=plan.chat_template,
    )
    measured = Point(concurrency=point.concurrency, runs=[], prompts=point.prompts)
    warm_up = _one_run(plan, load, server, bench, sampler)  # The measured shapes, not counted.
    if _hopeless(warm_up):
        measured.runs.append(warm_up)
        return measured
    wanted = plan.runs_min
    while True:
        measured.runs.append(_one_run(plan, load, server, bench, sampler))
        valid = sum(run.valid for run in measured.runs)
        if _hopeless(measured.runs[-1]) or len(measured.runs) - valid > plan.disturbed_max:
            return measured
        if valid >= wanted:
            more = more_runs(measured) if valid < plan.runs_max else 0
            if more == 0:
                return measured
            wanted = min(valid + more, plan.runs_max)


def _one_run(plan: Plan, load: Load, server: Server, bench: Bench, sampler: Sampler) -> Run:
    server.flush_cache(plan.idle_limit_s)
    before = server.counters()
    sampler.start()
    try:
        report = bench.run(load, plan.run_limit_s)
    except BenchTimeout as timeout:
        return _nothing_came(load, plan.run_limit_s, f"{TIMEOUT}: {timeout}")
    except AllFailed as failed:
        return _nothing_came(load, 0.0, f"{FAILURES}: all of {len(load.prompts)}: {failed}")
    except OperatorError:
        server.info()  # When the server died, that is what the operator has to hear.
        raise
    finally:
        samples = sampler.stop()
    seen = Seen(
        concurrency=load.concurrency,
        output_tokens=load.output_tokens,
        report=report,
        counted=server.counters().since(before),
        server_accept_length=server.info().accept_length,
        speculative=plan.speculative,
        samples=samples,
    )
    return run_of(seen, plan.limits)


def _nothing_came(load: Load, duration_s: float, reason: str) -> Run:
    return Run(
        valid=False,
        requests=len(load.prompts),
        failures=len(load.prompts),
        duration_s=duration_s,
        output_tokens=0,
        decode_tok_s=None,
        output_tok_s=None,
        ttft_s=None,
        ttft_p99_s=None,
        itl_p50_ms=None,
        itl_p95_ms=None,
        itl_p99_ms=None,
        accept_length=None,
        step_rate=None,
        graph_share=None,
        invalid_because=[reason],
    )


def _hopeless(run: Run) -> bool:
    """Whether repeating cannot help: a hung server stays hung, a missing metric stays missing."""
    return any(reason.startswith((TIMEOUT, MISSING)) for reason in run.invalid_because)


def store(result: Result, folder: Path) -> Path:
    """Write the result as ``<folder>/<release>/<profile>/<time>.json`` and return that path."""
    path = folder / result.release / result.profile / f"{result.taken_at.replace(':', '')}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(result.to_json(), indent=1) + "\n", encoding="utf-8")
    partial.replace(path)
    return path


def stored(plan: Plan, prompts_sha256: str, folder: Path) -> Path | None:
    """The newest stored result of exactly this plan, with a passed canary; None if there is none."""
    wanted = (plan.fingerprint, prompts_sha256, plan.client(), plan.load())
    for path in sorted((folder / plan.release / plan.profile).glob("*.json"), reverse=True):
        try:
            result = Result.from_json(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError):
            continue
        its = (result.fingerprint, result.prompts_sha256, result.client, result.conditions.get("load"))
        if its == wanted:
            return path
    return None
