"""Decide whether a result is good enough, and say why not.

No I/O: results in, verdict out. ``docs/judge.md`` explains the method and has its simulated error rates.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

from ..errors import OperatorError
from . import result as measured
from . import verdict as said
from .intervals import Interval, median_interval, ratio_interval, runs_to_decide
from .legend import FIGURES, Figure
from .policy import JUDGED, SPECULATIVE_PROFILE, Policy
from .result import STANDARD, Point, Result
from .verdict import Culprit, Finding, Verdict

# Somebody else's single figures (single stream, 8x RTX PRO 6000, Kimi-K2.5-NVFP4): shown, never judged by.
REFERENCES: list[dict[str, Any]] = [
    {"profile": "baseline", "stack": "CUDA 12", "decode_tok_s": 89.5},
    {"profile": "baseline", "stack": "CUDA 13", "decode_tok_s": 92.6},
    {"profile": "eagle3", "stack": "CUDA 12", "decode_tok_s": 54.1},
    {"profile": "eagle3", "stack": "CUDA 13", "decode_tok_s": 96.1},
]

# Clocks below this part of the baseline's explain a lower step rate; less than that is ordinary boost wander.
_CLOCK_DROP = 0.97
_GRAPH_DROP = 0.05
# One stalled request may be chance, and its run is repeated; two are not. A run that hung is never chance.
_TOLERATED_STALLS = 1

_NEW_BASELINE = (
    "measure a new anchor of the accepted release on this host: playbooks/throughput.yml "
    "-e throughput_check_new_baseline=true"
)
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


class BaselineRefused(OperatorError):
    """The baseline says nothing about this result."""


def point_name(point: Point) -> str:
    """A point in words: '8 requests', '1 request, long prompts'."""
    name = "1 request" if point.concurrency == 1 else f"{point.concurrency} requests"
    return name if point.prompts == STANDARD else f"{name}, {point.prompts} prompts"


def differences(candidate: Result, baseline: Result) -> list[str]:
    """What makes two results incomparable, one line each; empty when they are alike."""
    pairs: list[tuple[str, Any, Any]] = [
        ("host fingerprint", baseline.fingerprint, candidate.fingerprint),
        ("profile", baseline.profile, candidate.profile),
        ("prompts", baseline.prompts_sha256, candidate.prompts_sha256),
        ("client", baseline.client, candidate.client),
    ]
    loads = [result.conditions.get("load", {}) for result in (baseline, candidate)]
    pairs += [(f"load {key}", loads[0].get(key), loads[1].get(key)) for key in sorted({*loads[0], *loads[1]})]
    return [f"{name} {before} -> {now}" for name, before, now in pairs if before != now]


def require_comparable(candidate: Result, baseline: Result) -> None:
    """Refuse a baseline of another host, profile, prompt set, client or load, or without figures.

    Raises:
        BaselineRefused: names everything that differs.
    """
    differing = differences(candidate, baseline)
    if differing:
        raise BaselineRefused(
            "The anchored measurement cannot be compared with this result",
            found="; ".join(differing),
            expected=f"the same as the anchor of {baseline.taken_at} on {baseline.host}",
            remedy=f"undo what changed, or {_NEW_BASELINE}",
        )
    lacking = [
        f"{FIGURES[figure].label} at {point_name(point)}"
        for point in baseline.points
        for figure in JUDGED
        if not _positive(point.samples(figure))
    ]
    if lacking:
        raise BaselineRefused(
            "The anchored measurement lacks figures", found=", ".join(lacking), remedy=_NEW_BASELINE
        )


def judge(candidate: Result, baseline: Result | None, policy: Policy) -> Verdict:
    """Judge one result.

    Args:
        candidate: what was measured.
        baseline: the anchored result of the accepted release on the same host; None at the first deployment,
            when the floors of the policy decide.
        policy: the rules.

    Raises:
        BaselineRefused: the baseline is of something else.
    """
    if baseline:
        require_comparable(candidate, baseline)
    findings = _canary(candidate)
    culprits = [Culprit(said.WRONG_ANSWERS, "", finding.text) for finding in findings]
    notes: list[str] = []
    for point in candidate.points:
        counterpart = baseline.point(point.concurrency, point.prompts) if baseline else None
        found = judge_point(point, counterpart, policy, candidate.profile)
        findings += found
        culprits += _culprits(found, point, counterpart)
        notes += _notes(found, point, counterpart, policy)
    if baseline:
        for point in baseline.points:
            if candidate.point(point.concurrency, point.prompts) is None:
                text = f"{point_name(point)} was not measured, though the anchor has it"
                findings.append(Finding(point_name(point), "", said.FAIL, said.RULE, text))
                culprits.append(Culprit(said.MISSING_METRIC, point_name(point), text))
    if not any(finding.against in (said.BASELINE, said.FLOOR) for finding in findings):
        text = f"nothing to judge by: no anchored measurement, and the inventory sets no floors for {candidate.profile}"
        findings.append(Finding("", "", said.UNDECIDABLE, said.RULE, text))
    outcome = _worst(finding.outcome for finding in findings)
    measured_all = all(
        finding.against != said.RULE for finding in findings if finding.outcome == said.UNDECIDABLE
    )
    return Verdict(
        outcome=outcome,
        accepted=outcome == said.PASS
        or (outcome == said.UNDECIDABLE and policy.accept_undecidable and measured_all),
        headline=_headline(outcome, candidate, baseline, findings, culprits),
        findings=findings,
        culprits=culprits,
        notes=notes,
        baseline={"release": baseline.release, "taken_at": baseline.taken_at, "host": baseline.host}
        if baseline
        else {},
        references=[] if baseline else REFERENCES,
    )


def need_more_runs(candidate: Point, baseline: Point | None, policy: Policy, profile: str) -> int:
    """How many more valid runs to make before the next look; 0 when this point is settled.

    It is settled as soon as a figure fails, when every figure passes, or at the limit of runs. Ask again only
    after that many more valid runs: each extra look is an extra chance to be wrong.
    """
    runs = sum(run.valid for run in candidate.runs)
    following = next((size for size in policy.looks() if size > runs), None)
    findings = judge_point(candidate, baseline, policy, profile)
    if following is None or any(finding.outcome == said.FAIL for finding in findings):
        return 0
    if runs >= policy.min_runs and all(finding.outcome == said.PASS for finding in findings):
        return 0
    return following - runs


def judge_aba(first: Result, candidate: Result, again: Result, policy: Policy) -> Verdict:
    """Judge ``candidate`` between two measurements of the accepted release (A-B-A).

    The two are pooled as the baseline. When they differ from each other by more than the margin, the host
    itself changed while it was measured, and nothing is decided.

    Raises:
        BaselineRefused: one of the three is of another host, profile, prompt set, client or load.
    """
    drift = judge(again, first, policy)
    back = judge(first, again, policy)
    points = [
        Point(point.concurrency, [*point.runs, *other.runs], point.prompts)
        for point in first.points
        for other in [again.point(point.concurrency, point.prompts)]
        if other
    ]
    pooled = Result(**{**first.__dict__, "points": points})
    verdict = judge(candidate, pooled, policy)
    moved = [finding for finding in (*drift.findings, *back.findings) if finding.outcome == said.FAIL]
    if not moved:
        between = [f"{f.point}: {f.text}" for f in drift.findings if f.figure == "decode_tok_s"]
        notes = [f"The accepted release before and after, {text}." for text in between]
        return Verdict(**{**verdict.__dict__, "notes": [*verdict.notes, *notes]})
    text = f"the accepted release itself changed between its two measurements: {moved[0].text}"
    return Verdict(
        **{
            **verdict.__dict__,
            "outcome": said.UNDECIDABLE,
            "accepted": False,
            "headline": f"Undecidable: {text}.",
            "findings": [*verdict.findings, Finding("", "", said.UNDECIDABLE, said.RULE, text)],
            "culprits": [],
        }
    )


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
        if len(samples) < len(runs) or not _positive(samples):
            text = f"{FIGURES[figure].label} is missing in {len(runs) - len(samples)} of {len(runs)} runs"
            if len(samples) == len(runs):
                text = f"{FIGURES[figure].label} is not above 0 in every run"
            findings.append(_rule(name, figure, said.FAIL, text, said.MISSING_METRIC))
        elif baseline:
            findings.append(
                _against_baseline(name, FIGURES[figure], samples, baseline.samples(figure), policy)
            )
        elif figure in floors:
            findings.append(_against_floor(name, FIGURES[figure], samples, floors[figure], policy))
    lengths = point.samples("accept_length")
    if profile == SPECULATIVE_PROFILE and lengths and median(lengths) < policy.min_accept_length:
        text = (
            f"accept length {median(lengths):.2f} is below {policy.min_accept_length:g}: "
            "the drafter is hardly ever right, whatever the speed"
        )
        findings.append(_rule(name, "accept_length", said.FAIL, text, said.DRAFT_MODEL))
    return findings


def _canary(result: Result) -> list[Finding]:
    if not result.canary or result.canary.get("passed"):
        return []
    text = "the correctness canary did not pass: a wrong answer is no faster for being quick"
    return [_rule("", "", said.FAIL, text, said.WRONG_ANSWERS)]


def _failures(point: Point, name: str, policy: Policy) -> list[Finding]:
    asked = sum(run.requests for run in point.runs)
    failed = sum(run.failures for run in point.runs)
    if not failed or failed <= policy.max_failure_share * asked:
        return []
    text = f"{failed} of {asked} requests failed (fast errors look like speed)"
    return [_rule(name, "failures", said.FAIL, text, said.FAILED_REQUESTS)]


def _unmeasurable(point: Point, name: str) -> list[Finding]:
    """Runs that are invalid through the server's own fault, not through a disturbance."""
    reasons = [reason for run in point.runs for reason in run.invalid_because]
    missing = [reason for reason in reasons if _kind(reason) == measured.MISSING]
    stalled = [reason for reason in reasons if _kind(reason) in (measured.STALLED, measured.TIMEOUT)]
    hung = any(_kind(reason) == measured.TIMEOUT for reason in stalled)
    findings = []
    if missing:
        findings.append(_rule(name, "", said.FAIL, missing[-1], said.MISSING_METRIC))
    if hung or len(stalled) > _TOLERATED_STALLS:
        text = f"{len(stalled)} run{'s' * (len(stalled) > 1)} stalled; the last: {stalled[-1]}"
        findings.append(_rule(name, "stalls", said.FAIL, text, said.STALLS))
    return findings


def _too_few_runs(point: Point, name: str, policy: Policy) -> list[Finding]:
    valid = sum(run.valid for run in point.runs)
    if valid >= policy.min_runs:
        return []
    reasons = [reason for run in point.runs for reason in run.invalid_because]
    text = f"only {valid} valid runs of the {policy.min_runs} that a verdict needs"
    if not reasons:
        return [_rule(name, "runs", said.UNDECIDABLE, text, more_runs=policy.min_runs - valid)]
    kinds = [_kind(reason) for reason in reasons]
    commonest = max(sorted(set(kinds)), key=kinds.count)
    text += f"; the others were disturbed, the last by {reasons[-1]}"
    culprit = _INVALID_CULPRITS.get(commonest, commonest)
    return [_rule(name, "runs", said.UNDECIDABLE, text, culprit, policy.min_runs - valid)]


def _graphs(point: Point, baseline: Point | None, name: str, policy: Policy) -> list[Finding]:
    shares = point.samples("graph_share")
    wanted = policy.min_graph_share is not None or (baseline and baseline.samples("graph_share"))
    if wanted and len(shares) < sum(run.valid for run in point.runs):
        text = "the share of passes in CUDA graphs is missing"
        return [_rule(name, "graph_share", said.FAIL, text, said.MISSING_METRIC)]
    if policy.min_graph_share is not None and median(shares) < policy.min_graph_share:
        text = (
            f"{median(shares):.0%} of passes ran as CUDA graphs, at least {policy.min_graph_share:.0%} should"
        )
        return [_rule(name, "graph_share", said.FAIL, text, said.GRAPHS_OFF)]
    return []


def _kind(reason: str) -> str:
    return reason.split(":")[0]


def _rule(
    point: str, figure: str, outcome: str, text: str, culprit: str = "", more_runs: int | None = None
) -> Finding:
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
    text = f"{figure.step(median(reference), median(samples))}, {_change(ratio)}"
    return Finding(
        point=name,
        figure=figure.name,
        outcome=outcome,
        against=said.BASELINE,
        text=text,
        value=median(samples),
        reference=median(reference),
        change=ratio.estimate - 1,
        low=_finite(ratio.low - 1 if ratio.low else math.inf),
        high=_finite(ratio.high - 1),
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
        low=_finite(ratio.low - 1 if ratio.low else math.inf),
        high=_finite(ratio.high - 1),
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


def _culprits(findings: Sequence[Finding], point: Point, baseline: Point | None) -> list[Culprit]:
    """What the findings of one point blame, taken together."""
    name = point_name(point)
    culprits = [Culprit(finding.culprit, name, finding.text) for finding in findings if finding.culprit]
    failed = {
        finding.figure: finding
        for finding in findings
        if finding.outcome == said.FAIL and finding.against != said.RULE
    }
    if "accept_length" in failed:
        culprits.append(Culprit(said.DRAFT_MODEL, name, failed["accept_length"].text))
    if "step_rate" in failed:
        culprits.append(_slow_steps(failed["step_rate"].text, name, point, baseline))
    if not {"accept_length", "step_rate"} & set(failed):
        if "decode_tok_s" in failed:
            culprits.append(_decode_alone(failed["decode_tok_s"], findings, name, point, baseline))
        elif "ttft_s" in failed:
            culprits.append(Culprit(said.PREFILL, name, failed["ttft_s"].text))
        elif "output_tok_s" in failed:
            why = f"{failed['output_tok_s'].text}, though the median request is as fast as before"
            culprits.append(Culprit(said.STALLS, name, why))
    return list({culprit.name: culprit for culprit in reversed(culprits)}.values())[::-1]


def _slow_steps(text: str, name: str, point: Point, baseline: Point | None) -> Culprit:
    """A lower step rate has a direct explanation when graphs or clocks went with it."""
    if baseline:
        shares, before = point.samples("graph_share"), baseline.samples("graph_share")
        if shares and before and median(shares) < median(before) - _GRAPH_DROP:
            change = f"CUDA graphs {median(before):.0%} -> {median(shares):.0%} of passes"
            return Culprit(said.GRAPHS_OFF, name, f"{text}; {change}")
        clocks, usual = _clocks(point), _clocks(baseline)
        if clocks and usual and median(clocks) < _CLOCK_DROP * median(usual):
            change = f"GPU clock {median(usual):.0f} -> {median(clocks):.0f} MHz"
            return Culprit(said.HOST_THROTTLED, name, f"{text}; {change}")
    return Culprit(said.KERNELS, name, text)


def _decode_alone(
    decode: Finding, findings: Sequence[Finding], name: str, point: Point, baseline: Point | None
) -> Culprit:
    """Decode fell although neither factor did by itself: blame the one that fell more."""
    factors = [
        finding
        for finding in findings
        if finding.figure in ("accept_length", "step_rate") and finding.change is not None
    ]
    if not factors:
        return Culprit(said.KERNELS, name, decode.text)
    larger = min(factors, key=lambda finding: finding.change or 0.0)
    why = f"{decode.text}; of its two factors the larger loss: {larger.text}"
    if larger.figure == "accept_length":
        return Culprit(said.DRAFT_MODEL, name, why)
    return _slow_steps(why, name, point, baseline)


def _clocks(point: Point) -> list[float]:
    return [run.gpu["clock_mhz"] for run in point.runs if run.valid and "clock_mhz" in run.gpu]


def _notes(findings: Sequence[Finding], point: Point, baseline: Point | None, policy: Policy) -> list[str]:
    name = point_name(point)
    notes = []
    disturbed = [reason for run in point.runs for reason in run.invalid_because]
    if disturbed:
        count = sum(not run.valid for run in point.runs)
        notes.append(f"{name}: {count} disturbed run{'s' * (count > 1)} left out; the last: {disturbed[-1]}.")
    by_figure = {finding.figure: finding for finding in findings if finding.against == said.BASELINE}
    decode, length = by_figure.get("decode_tok_s"), by_figure.get("accept_length")
    if decode and length and (decode.low or 0) > 0 and length.high is not None and length.high < 0:
        notes.append(
            f"{name}: faster although fewer tokens are accepted ({length.text}); when the number of draft "
            "tokens was changed on purpose, measure a new anchor."
        )
    for finding in (by_figure[name] for name in ("decode_tok_s", "ttft_s") if name in by_figure):
        better = -(finding.high or 0) if FIGURES[finding.figure].less_is_better else (finding.low or 0)
        if better > (finding.margin or 0):
            notes.append(f"{name}: better than the anchor: {finding.text}.")
    if baseline:
        runs = sum(run.valid for run in baseline.runs)
        if runs < policy.max_runs and any(finding.outcome == said.UNDECIDABLE for finding in findings):
            notes.append(
                f"{name}: the anchor has {runs} runs; one of {policy.max_runs} would decide more often."
            )
    return notes


def _headline(
    outcome: str,
    candidate: Result,
    baseline: Result | None,
    findings: Sequence[Finding],
    culprits: Sequence[Culprit],
) -> str:
    if outcome == said.FAIL:
        failing = [finding for finding in findings if finding.outcome == said.FAIL]
        if not culprits:
            return f"Fail: {failing[0].text}."
        first = culprits[0]
        others = sorted({culprit.name for culprit in culprits} - {first.name})
        where = f" at {first.point}" if first.point else ""
        also = f" Also: {', '.join(others)}." if others else ""
        return f"Fail: {first.name}{where}. {_sentence(first.why)}.{also}"
    if outcome == said.UNDECIDABLE:
        open_findings = [finding for finding in findings if finding.outcome == said.UNDECIDABLE]
        first_open = next((f for f in open_findings if f.against == said.RULE), open_findings[0])
        where = f" at {first_open.point}" if first_open.point else ""
        if first_open.against == said.RULE:
            return f"Undecidable{where}: {first_open.text}."
        more = first_open.more_runs
        wanted = [finding.more_runs for finding in open_findings]
        if more is not None and None not in wanted:
            most = max(number for number in wanted if number is not None)
            advice = f"about {most} more run{'s' * (most > 1)} would decide"
        else:
            advice = (
                "more runs would not decide: the change lies at the margin, or the anchor has too few runs"
            )
        bar = f"margin {first_open.margin:.0%}; " if first_open.margin else ""
        return f"Undecidable{where}: {first_open.text} ({bar}{advice})."
    decode = next((finding for finding in findings if finding.figure == "decode_tok_s"), None)
    if baseline:
        said_so = f"Pass: as good as the anchor of {baseline.taken_at[:10]} ({baseline.release})."
    else:
        said_so = (
            f"Pass: above every floor for profile {candidate.profile}; "
            "later measurements are held against this one."
        )
    return f"{said_so} At {decode.point}: {_lower(decode.text)}." if decode else said_so


def _change(ratio: Interval) -> str:
    if not ratio.low or math.isinf(ratio.high):
        return f"{ratio.estimate - 1:+.1%} (too few runs for an interval)"
    return f"{ratio.estimate - 1:+.1%} ({ratio.low - 1:+.1%} to {ratio.high - 1:+.1%})"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _lower(text: str) -> str:
    return text if text[:2].isupper() else text[:1].lower() + text[1:]


def _positive(samples: Sequence[float]) -> bool:
    return bool(samples) and min(samples) > 0


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _worst(outcomes: Iterable[str]) -> str:
    seen = set(outcomes)
    return next(outcome for outcome in (said.FAIL, said.UNDECIDABLE, said.PASS) if outcome in seen)
