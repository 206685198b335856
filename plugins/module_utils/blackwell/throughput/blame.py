"""What the findings of a verdict blame together, and the verdict in words. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from . import verdict as said
from .legend import FIGURES
from .points import point_name
from .policy import Policy
from .result import Point, Result
from .verdict import Culprit, Finding

# Clocks below this part of the baseline's explain a lower step rate; less than that is ordinary boost wander.
_CLOCK_DROP = 0.97
_GRAPH_DROP = 0.05


def culprits_of(findings: Sequence[Finding], point: Point, baseline: Point | None) -> list[Culprit]:
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


def notes_of(findings: Sequence[Finding], point: Point, baseline: Point | None, policy: Policy) -> list[str]:
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


def headline(
    outcome: str,
    candidate: Result,
    baseline: Result | None,
    findings: Sequence[Finding],
    culprits: Sequence[Culprit],
) -> str:
    """The verdict in one or two sentences."""
    if outcome == said.FAIL:
        return _failed(findings, culprits)
    if outcome == said.UNDECIDABLE:
        return _undecided([finding for finding in findings if finding.outcome == said.UNDECIDABLE])
    return _passed(candidate, baseline, findings)


def _failed(findings: Sequence[Finding], culprits: Sequence[Culprit]) -> str:
    if not culprits:
        return f"Fail: {next(f.text for f in findings if f.outcome == said.FAIL)}."
    first = culprits[0]
    others = sorted({culprit.name for culprit in culprits} - {first.name, said.NO_REFERENCE})
    where = f" at {first.point}" if first.point else ""
    also = f" Also: {', '.join(others)}." if others else ""
    return f"Fail: {first.name}{where}. {_sentence(first.why)}.{also}"


def _undecided(open_findings: Sequence[Finding]) -> str:
    """What cannot be had comes before what is only too noisy."""
    first = next((finding for finding in open_findings if finding.change is None), open_findings[0])
    where = f" at {first.point}" if first.point else ""
    if first.change is None:
        others = [f.point for f in open_findings if f.culprit == first.culprit and f.point != first.point]
        also = f" So it is at {', '.join(dict.fromkeys(others))}." if first.culprit and others else ""
        return f"Undecidable{where}: {first.text}.{also}"
    wanted = [finding.more_runs for finding in open_findings]
    if None not in wanted:
        most = max(number for number in wanted if number is not None)
        advice = f"about {most} more run{'s' * (most > 1)} would decide"
    else:
        advice = "more runs would not decide: the change lies at the margin, or the anchor has too few runs"
    bar = f"margin {first.margin:.0%}; " if first.margin else ""
    return f"Undecidable{where}: {first.text} ({bar}{advice})."


def _passed(candidate: Result, baseline: Result | None, findings: Sequence[Finding]) -> str:
    by_floor = list(dict.fromkeys(finding.point for finding in findings if finding.against == said.FLOOR))
    if baseline:
        passed = f"Pass: as good as the anchor of {baseline.taken_at[:10]} ({baseline.release})"
        passed += (
            f", and above the floors at {', '.join(by_floor)}, which the anchor lacks." if by_floor else "."
        )
    else:
        passed = (
            f"Pass: above every floor for profile {candidate.profile}; "
            "later measurements are held against this one."
        )
    decode = next((finding for finding in findings if finding.figure == "decode_tok_s"), None)
    return f"{passed} At {decode.point}: {_lower(decode.text)}." if decode else passed


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _lower(text: str) -> str:
    return text if text[:2].isupper() else text[:1].lower() + text[1:]
