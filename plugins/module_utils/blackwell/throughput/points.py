"""What is judged at one point: the fixed rules, then figure by figure. No I/O."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from . import result as measured
from . import verdict as said
from .intervals import Interval, median_interval, ratio_interval, runs_to_decide
from .legend import FIGURES, Figure
from .policy import JUDGED, SPECULATIVE_PROFILE, Policy
from .result import STANDARD, Point
from .verdict import Finding

# One stalled request may be chance, and its run is repeated; two are not. A run that hung is never chance.
_TOLERATED_STALLS = 1
_INVALID_CULPRITS = {
    measured.FOREIGN: said.FOREIGN_LOAD,
    measured.THROTTLED: said.HOST_THROTTLED,
    measured.FAILURES: said.FAILED_REQUESTS,
    measured.STALLED: said.STALLS,
    measured.WARM_CACHE: said.WARM_CACHE,
    measured.TOKEN_COUNT: said.TOKEN_COUNT,
    measured.TIMEOUT: said.STALLS,
    measured.MISSING: said.MISSING_METRIC,
    measured.RESTARTED: said.RESTARTED,
}


def point_name(point: Point) -> str:
    """A point in words: '8 requests', '1 request, long prompts'."""
    name = "1 request" if point.concurrency == 1 else f"{point.concurrency} requests"
    return name if point.prompts == STANDARD else f"{name}, {point.prompts} prompts"


def judge_point(point: Point, baseline: Point | None, policy: Policy, profile: str) -> list[Finding]:
    """Everything that is judged at one point: the fixed rules, then figure by figure."""
    name = point_name(point)
    findings = [
        *_unmeasurable(point, name),
        *_failures(point, name, policy),
        *_too_few_runs(point, name, policy),
    ]
    runs = [run for run in point.runs if run.valid]
    if not runs:
        return findings
    findings += _graphs(point, baseline, name, policy)
    floors = {} if baseline else policy.floors_at(profile, point.concurrency, point.prompts)
    for figure in JUDGED:
        samples = point.samples(figure)
        if len(samples) < len(runs) or not are_figures(samples):
            text = f"{FIGURES[figure].label} is missing in {len(runs) - len(samples)} of {len(runs)} runs"
            if len(samples) == len(runs):
                text = f"{FIGURES[figure].label} is not above 0 in every run"
            findings.append(rule(name, figure, said.FAIL, text, said.MISSING_METRIC))
        elif baseline:
            findings.append(
                _against_baseline(name, FIGURES[figure], samples, baseline.samples(figure), policy)
            )
        elif figure in floors:
            findings.append(_against_floor(name, FIGURES[figure], samples, floors[figure], policy))
    lengths = point.samples("accept_length")
    # A drafter whose window is shorter than a long prompt is right less often there, and no fault of the server.
    drafts = profile == SPECULATIVE_PROFILE and point.prompts == STANDARD
    if drafts and lengths and median(lengths) < policy.min_accept_length:
        text = (
            f"accept length {median(lengths):.2f} is below {policy.min_accept_length:g}: "
            "the drafter is hardly ever right, whatever the speed"
        )
        findings.append(rule(name, "accept_length", said.FAIL, text, said.DRAFT_MODEL))
    return findings


def _failures(point: Point, name: str, policy: Policy) -> list[Finding]:
    asked = sum(run.requests for run in point.runs)
    failed = sum(run.failures for run in point.runs)
    if not failed or failed <= policy.max_failure_share * asked:
        return []
    text = f"{failed} of {asked} requests failed (fast errors look like speed)"
    return [rule(name, "failures", said.FAIL, text, said.FAILED_REQUESTS)]


def _unmeasurable(point: Point, name: str) -> list[Finding]:
    """Runs that are invalid through the server's own fault, not through a disturbance."""
    reasons = [reason for run in point.runs for reason in run.invalid_because]
    missing = [reason for reason in reasons if _kind(reason) == measured.MISSING]
    stalled = [reason for reason in reasons if _kind(reason) in (measured.STALLED, measured.TIMEOUT)]
    hung = any(_kind(reason) == measured.TIMEOUT for reason in stalled)
    findings = []
    if missing:
        findings.append(rule(name, "", said.FAIL, missing[-1], said.MISSING_METRIC))
    if hung or len(stalled) > _TOLERATED_STALLS:
        text = f"{len(stalled)} run{'s' * (len(stalled) > 1)} stalled; the last: {stalled[-1]}"
        findings.append(rule(name, "stalls", said.FAIL, text, said.STALLS))
    return findings


def _too_few_runs(point: Point, name: str, policy: Policy) -> list[Finding]:
    valid = sum(run.valid for run in point.runs)
    if valid >= policy.min_runs:
        return []
    reasons = [reason for run in point.runs for reason in run.invalid_because]
    text = f"only {valid} valid runs of the {policy.min_runs} that a verdict needs"
    if not reasons:
        return [rule(name, "runs", said.UNDECIDABLE, text, more_runs=policy.min_runs - valid)]
    kinds = [_kind(reason) for reason in reasons]
    commonest = max(sorted(set(kinds)), key=kinds.count)
    text += f"; the others were disturbed, the last by {reasons[-1]}"
    culprit = _INVALID_CULPRITS.get(commonest, commonest)
    return [rule(name, "runs", said.UNDECIDABLE, text, culprit, policy.min_runs - valid)]


def _graphs(point: Point, baseline: Point | None, name: str, policy: Policy) -> list[Finding]:
    shares = point.samples("graph_share")
    wanted = policy.min_graph_share is not None or (baseline and baseline.samples("graph_share"))
    if wanted and len(shares) < sum(run.valid for run in point.runs):
        text = "the share of passes in CUDA graphs is missing"
        return [rule(name, "graph_share", said.FAIL, text, said.MISSING_METRIC)]
    if policy.min_graph_share is not None and median(shares) < policy.min_graph_share:
        text = (
            f"{median(shares):.0%} of passes ran as CUDA graphs, at least {policy.min_graph_share:.0%} should"
        )
        return [rule(name, "graph_share", said.FAIL, text, said.GRAPHS_OFF)]
    return []


def _kind(reason: str) -> str:
    return reason.split(":")[0]


def rule(
    point: str, figure: str, outcome: str, text: str, culprit: str = "", more_runs: int | None = None
) -> Finding:
    """A finding that a rule made, not the anchor and not a floor."""
    return Finding(point, figure, outcome, said.RULE, text, more_runs=more_runs, culprit=culprit)


def _against_baseline(
    name: str, figure: Figure, samples: Sequence[float], reference: Sequence[float], policy: Policy
) -> Finding:
    margin = policy.margin_of(figure.name)
    error = policy.error_at(len(samples))
    ratio = ratio_interval(samples, reference, error)
    bound = 1 + margin if figure.less_is_better else 1 - margin
    outcome = _side(figure, ratio, bound)
    more = (
        runs_to_decide(samples, reference, bound, _last_error(policy))
        if outcome == said.UNDECIDABLE
        else None
    )
    text = f"{figure.step(median(reference), median(samples))}, {change_text(ratio)}"
    return Finding(
        point=name,
        figure=figure.name,
        outcome=outcome,
        against=said.BASELINE,
        text=text,
        value=median(samples),
        reference=median(reference),
        change=ratio.estimate - 1,
        low=finite(ratio.low - 1 if ratio.low else math.inf),
        high=finite(ratio.high - 1),
        margin=margin,
        runs=len(samples),
        reference_runs=len(reference),
        more_runs=more,
    )


def _against_floor(
    name: str, figure: Figure, samples: Sequence[float], floor: float, policy: Policy
) -> Finding:
    # A floor is one number, so the only noise is the candidate's; and it is a coarse bar: the whole error
    # budget at each look lets 5 runs decide, where the strict early looks would ask for 8.
    spread = median_interval(samples, policy.error_rate if policy.error_at(len(samples)) else 0.0)
    ratio = Interval(spread.estimate / floor, spread.low / floor, spread.high / floor)
    outcome = _side(figure, ratio, 1.0)
    undecided = outcome == said.UNDECIDABLE
    return Finding(
        point=name,
        figure=figure.name,
        outcome=outcome,
        against=said.FLOOR,
        text=f"{figure.label} {figure.text(median(samples))}, {figure.bound} {figure.text(floor)}",
        value=median(samples),
        reference=floor,
        change=ratio.estimate - 1,
        low=finite(ratio.low - 1 if ratio.low else math.inf),
        high=finite(ratio.high - 1),
        margin=0.0,
        runs=len(samples),
        more_runs=runs_to_decide(samples, None, floor, policy.error_rate) if undecided else None,
    )


def _last_error(policy: Policy) -> float:
    return policy.error_at(policy.max_runs)


def _side(figure: Figure, ratio: Interval, bound: float) -> str:
    above, below = ratio.low >= bound, ratio.high <= bound
    good, bad = (below, above) if figure.less_is_better else (above, below)
    if good:
        return said.PASS
    return said.FAIL if bad else said.UNDECIDABLE


def change_text(ratio: Interval) -> str:
    """A ratio as a change with its interval: '-0.2% (-1.5% to +1.1%)'."""
    if not ratio.low or math.isinf(ratio.high):
        return f"{ratio.estimate - 1:+.1%} (too few runs for an interval)"
    return f"{ratio.estimate - 1:+.1%} ({ratio.low - 1:+.1%} to {ratio.high - 1:+.1%})"


def are_figures(samples: Sequence[float]) -> bool:
    """Whether samples can be compared: there are some, and all are above 0."""
    return bool(samples) and min(samples) > 0


def finite(value: float) -> float | None:
    """The value, or None where it is no number that JSON can hold."""
    return value if math.isfinite(value) else None
