"""The measurement: which runs are made under which conditions, and when to stop."""

from __future__ import annotations

import datetime
import itertools
import json
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from .. import files
from ..errors import OperatorError
from ..json_reader import read_object
from .alone import alone, end_forgotten, heard
from .bench import AllFailed, Bench, BenchTimeout, Load
from .figures import Limits, Seen, run_of
from .gpu import Sampler
from .judge import need_more_runs, point_name, require_comparable
from .policy import SPECULATIVE_PROFILE, Policy
from .prompts import PromptSet, load
from .result import FAILURES, LONG, MISSING, STANDARD, TIMEOUT, Point, Result, Run
from .server import Server

# Asked at a point that has enough runs to be looked at: how many more before the next look, 0 for enough.
MoreRuns = Callable[[Point], int]
# Told after each run what was seen, as one line.
Say = Callable[[str], None]


@dataclass(frozen=True)
class PointPlan:
    """A point to be measured: prompts of a kind, ``concurrency`` of them in flight."""

    concurrency: int
    prompts: str = STANDARD


@dataclass(frozen=True)
class Sizes:
    """How many requests a run has, for any point; two results of unlike sizes are not compared.

    ``per_slot`` requests for each in flight, and at least ``least``; with long prompts ``long_per_slot``.
    """

    least: int = 16
    per_slot: int = 4
    long_per_slot: int = 4

    def requests(self, point: PointPlan) -> int:
        """Requests of a run at this point."""
        if point.prompts == LONG:
            return point.concurrency * self.long_per_slot
        return max(self.least, point.concurrency * self.per_slot)


@dataclass(frozen=True)
class Plan:
    """What is measured, of what, and how often.

    ``deployment`` names the settings that the server was started with.
    ``runs_min`` and ``runs_max`` count valid runs of a point; ``disturbed_max`` is how many disturbed ones
    are repeated. ``run_limit_s`` ends a run that hangs; ``idle_limit_s`` is how long to wait until the server
    is idle.
    """

    host: str
    release: str
    deployment: str
    sglang_version: str
    profile: str
    fingerprint: str
    points: list[PointPlan]
    sizes: Sizes
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
            "requests": asdict(self.sizes),
            "output_tokens": self.output_tokens,
            "chat_template": self.chat_template,
            "seed": self.seed,
            "temperature": 0,
            "ignore_eos": True,
        }

    def client(self) -> str:
        """The load generator and its version: that of the release."""
        return f"sglang.bench_serving {self.sglang_version}"

    def blank(self, prompts_sha256: str) -> Result:
        """The result of this plan, without what is only known afterwards."""
        return Result(
            host=self.host,
            taken_at="",
            release=self.release,
            sglang_version=self.sglang_version,
            profile=self.profile,
            fingerprint=self.fingerprint,
            prompts_sha256=prompts_sha256,
            client=self.client(),
            conditions={
                "load": self.load(),
                "deployment": self.deployment,
                "runs_min": self.runs_min,
                "runs_max": self.runs_max,
            },
            points=[],
        )


def measure(
    plan: Plan,
    prompts: PromptSet,
    server: Server,
    bench: Bench,
    sampler: Sampler,
    more_runs: MoreRuns,
    canary: dict[str, Any],
    say: Say = lambda line: None,
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
        _measure_point(plan, point, prompts, server, bench, sampler, more_runs, say) for point in plan.points
    ]
    blank = plan.blank(prompts.sha256)
    seen = {
        "speculative_algorithm": info.speculative_algorithm,
        "served_model_name": info.served_model_name,
        "cache_flushed_before_each_run": True,
        # Warnings, and rows of cards that do not answer.
        **({"nvidia_smi_said": sampler.said} if sampler.said else {}),
    }
    return replace(
        blank, taken_at=taken_at, conditions={**blank.conditions, **seen}, points=points, canary=canary
    )


def _measure_point(
    plan: Plan,
    point: PointPlan,
    prompts: PromptSet,
    server: Server,
    bench: Bench,
    sampler: Sampler,
    more_runs: MoreRuns,
    say: Say,
) -> Point:
    load = Load(
        prompts=prompts.pick(plan.sizes.requests(point), point.prompts),
        concurrency=point.concurrency,
        output_tokens=plan.output_tokens,
        seed=plan.seed,
        chat_template=plan.chat_template,
    )
    measured = Point(concurrency=point.concurrency, runs=[], prompts=point.prompts)
    say(f"{point_name(measured)}: warming up")
    warm_up = _one_run(plan, load, server, bench, sampler)  # The measured shapes, not counted.
    if _hopeless(warm_up):
        measured.runs.append(warm_up)
        return measured
    wanted = plan.runs_min
    while True:
        measured.runs.append(_one_run(plan, load, server, bench, sampler))
        valid = sum(run.valid for run in measured.runs)
        say(_line(measured, wanted))
        if _hopeless(measured.runs[-1]) or len(measured.runs) - valid > plan.disturbed_max:
            return measured
        if valid >= wanted:
            more = more_runs(measured) if valid < plan.runs_max else 0
            if more == 0:
                return measured
            wanted = min(valid + more, plan.runs_max)


def _line(point: Point, wanted: int) -> str:
    run = point.runs[-1]
    if not run.valid:
        return f"{point_name(point)}: a run that does not count, {run.invalid_because[0]}"
    decode = "decode unknown" if run.decode_tok_s is None else f"decode {run.decode_tok_s:.1f} tok/s"
    return f"{point_name(point)}: run {sum(run.valid for run in point.runs)} of {wanted}, {decode}"


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
        unwatched=sampler.unwatched,
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
    """Write the result as ``<folder>/<release>/<profile>/<time>.json`` and return that path.

    A clock that was set back may come by the same second again; what was measured first stays.
    """
    time_of_it = result.taken_at.replace(":", "")
    names = itertools.chain([time_of_it], (f"{time_of_it}-{number}" for number in itertools.count(2)))
    place = folder / result.release / result.profile
    path = next(path for path in (place / f"{name}.json" for name in names) if not path.exists())
    files.replace(path, json.dumps(result.to_json(), indent=1) + "\n")
    return path


def load_result(path: Path) -> Result | None:
    """A stored result; None when there is no such file.

    Raises:
        OperatorError: the file is not a result, as when it was cut off.
    """
    if not path.exists():
        return None
    remedy = "remove the file; what it said is measured again"
    content = read_object(path, remedy=remedy)
    try:
        return Result.from_json(content)
    except ValueError as error:
        raise OperatorError(
            "A stored result cannot be read",
            found=f"{path}: {error}",
            expected="what an earlier check wrote",
            remedy=remedy,
        ) from error


def _has_load(result: Result, plan: Plan, prompts_sha256: str) -> bool:
    its = (result.fingerprint, result.prompts_sha256, result.client, result.conditions.get("load"))
    return its == (plan.fingerprint, prompts_sha256, plan.client(), plan.load())


def _is_same_server(result: Result, plan: Plan) -> bool:
    its = (result.release, result.profile, result.conditions.get("deployment"))
    points = [PointPlan(point.concurrency, point.prompts) for point in result.points]
    return its == (plan.release, plan.profile, plan.deployment) and points == plan.points


@dataclass(frozen=True)
class Taken:
    """A result, None when one would have to be measured; and the baseline, where there is another result for one.

    ``measured`` tells a new result, not stored yet, from the accepted one. ``client_changed`` says that the
    baseline was measured with the load generator of another release, so that it cannot tell about this one.
    """

    result: Result | None
    measured: bool
    baseline: Result | None
    client_changed: bool


def take(settings: Mapping[str, Any], *, dry: bool = False) -> Taken:
    """The accepted result of exactly this measurement, or a new one.

    Args:
        settings: the options of the module ``throughput_measure``, which documents them.
        dry: measure nothing, and return no result where one would be.

    Raises:
        OperatorError: the server cannot be measured, the settings contradict each other, or the baseline is of
            something else, so that nobody could judge what would be measured.
    """
    policy = Policy.from_dict(settings["policy"])
    baseline = load_result(Path(settings["baseline"]))
    # Without a baseline this result will be one, and a baseline of few runs decides little later.
    plan = plan_of(settings, policy, to_limit=settings["to_limit"] or baseline is None)
    client_changed = baseline is not None and baseline.client != plan.client()
    prompts_path = Path(settings["prompts"])
    nothing = Taken(None, False, baseline, client_changed)
    if dry and not prompts_path.exists():
        return nothing
    prompts = load(prompts_path)
    accepted = load_result(Path(settings["accepted"])) if settings["reuse"] else None
    if accepted and _has_load(accepted, plan, prompts.sha256) and _is_same_server(accepted, plan):
        # The first result of a host is its own baseline, which says nothing about it.
        return Taken(accepted, False, None if accepted == baseline else baseline, client_changed)
    if dry:
        return nothing
    # An hour of measuring that the judge would refuse helps nobody.
    compared = None if settings["to_limit"] else baseline
    if compared:
        require_comparable(plan.blank(prompts.sha256), compared)

    def more_runs(point: Point) -> int:
        other = compared.point(point.concurrency, point.prompts) if compared else None
        return need_more_runs(point, other, policy, plan.profile)

    progress = Path(settings["progress"]) if settings["progress"] else None

    def say(line: str) -> None:
        if progress:
            progress.write_text(line + "\n", encoding="utf-8")

    say("starting")
    if progress:
        end_forgotten(progress)
    server = Server.of_deployment(Path(settings["config"]))
    python, user = str(settings["release"]["python"]), settings["user"]
    with ExitStack() as stack:
        stack.enter_context(alone(Path(settings["config"]), settings["idle_timeout"]))
        if progress and settings.get("play"):
            stack.enter_context(heard(progress, settings["play"], settings["patience"]))
        tokenizer = settings["tokenizer"] or server.info().tokenizer_path
        bench = Bench(python, server.url, server.api_key, tokenizer, user, settings["environment"])
        stack.enter_context(bench)
        sampler = Sampler(settings["nvidia_smi"], settings.get("uuids") or ())
        result = measure(plan, prompts, server, bench, sampler, more_runs, settings["canary"], say)
    return Taken(result, True, baseline, client_changed)


def plan_of(settings: Mapping[str, Any], policy: Policy, *, to_limit: bool) -> Plan:
    """The plan that the options of the module ``throughput_measure`` ask for."""
    standard = [PointPlan(slots) for slots in settings["concurrency"]]
    long = [PointPlan(slots, LONG) for slots in settings["long_concurrency"]]
    load = settings["load"]
    return Plan(
        host=settings["host"],
        release=settings["release"]["id"],
        deployment=Path(settings["config"]).parent.name,
        sglang_version=settings["release"]["sglang_version"],
        profile=settings["profile"],
        fingerprint=settings["fingerprint"],
        points=standard + long,
        sizes=Sizes(load["requests_least"], load["requests_per_slot"], load["long_requests_per_slot"]),
        output_tokens=load["output_tokens"],
        runs_min=policy.max_runs if to_limit else policy.min_runs,
        runs_max=policy.max_runs,
        speculative=settings["profile"] == SPECULATIVE_PROFILE,
        chat_template=load["chat_template"],
        seed=load["seed"],
        disturbed_max=settings["disturbed_limit"],
        run_limit_s=settings["run_timeout"],
        idle_limit_s=settings["idle_timeout"],
        limits=Limits(stall_s=settings["stall"]),
    )
