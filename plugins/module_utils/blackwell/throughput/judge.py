"""Decide whether a result is good enough, and say why not.

No I/O: results in, verdict out. ``docs/judge.md`` explains the method and has its simulated error rates.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

from ..errors import OperatorError
from . import verdict as said
from .blame import culprits_of, headline, notes_of
from .drafting import falls
from .legend import FIGURES
from .points import are_figures, judge_point, point_name, rule
from .policy import JUDGED, Policy
from .result import LONG, STANDARD, Point, Result
from .verdict import Culprit, Finding, Verdict

__all__ = [
    "BaselineRefused",
    "differences",
    "judge",
    "judge_aba",
    "need_more_runs",
    "point_name",
    "require_comparable",
]

# Somebody else's single figures (single stream, 8x RTX PRO 6000, Kimi-K2.5-NVFP4): shown, never judged by.
REFERENCES: list[dict[str, Any]] = [
    {"profile": "baseline", "stack": "CUDA 12", "decode_tok_s": 89.5},
    {"profile": "baseline", "stack": "CUDA 13", "decode_tok_s": 92.6},
    {"profile": "eagle3", "stack": "CUDA 12", "decode_tok_s": 54.1},
    {"profile": "eagle3", "stack": "CUDA 13", "decode_tok_s": 96.1},
]

_NEW_ANCHOR = (
    "ansible-playbook playbooks/throughput.yml -e throughput_check_new_baseline=true "
    "-i INVENTORY --limit {host}"
)


class BaselineRefused(OperatorError):
    """The baseline says nothing about this result."""


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
            remedy="undo what changed, or measure a new anchor of what serves: "
            + _NEW_ANCHOR.format(host=candidate.host),
        )
    lacking = [
        f"{FIGURES[figure].label} at {point_name(point)}"
        for point in baseline.points
        for figure in JUDGED
        if not are_figures(point.samples(figure))
        or len(point.samples(figure)) < sum(run.valid for run in point.runs)
    ]
    if lacking:
        raise BaselineRefused(
            "The anchored measurement lacks figures",
            found=", ".join(lacking),
            expected="every judged figure above 0 at each of its points",
            remedy=f"measure a new anchor of what serves: {_NEW_ANCHOR.format(host=candidate.host)}",
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
        found += _unheld(point, found, candidate, baseline, policy)
        findings += found
        culprits += culprits_of(found, point, counterpart)
        notes += notes_of(found, point, counterpart, policy)
    across = [*_unmeasured(candidate, baseline), *falls(candidate, policy), *_nothing(findings, candidate)]
    findings += across
    culprits += [
        Culprit(finding.culprit, finding.point, finding.text) for finding in across if finding.culprit
    ]
    # What failed is named before what only could not be had.
    unknown = {(f.culprit, f.point) for f in findings if f.outcome == said.UNDECIDABLE}
    culprits.sort(key=lambda culprit: (culprit.name, culprit.point) in unknown)
    outcome = _worst(finding.outcome for finding in findings)
    accepted = outcome == said.PASS or (
        outcome == said.UNDECIDABLE and _tolerated(findings, policy, first=baseline is None)
    )
    return Verdict(
        outcome=outcome,
        accepted=accepted,
        headline=headline(outcome, candidate, baseline, findings, culprits),
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
    # That the accepted release drafts worse with more requests did not happen between the two.
    moved = [
        finding
        for finding in (*drift.findings, *back.findings)
        if finding.outcome == said.FAIL and finding.culprit != said.DRAFTING
    ]
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


def _canary(result: Result) -> list[Finding]:
    if not result.canary or result.canary.get("passed"):
        return []
    text = "the correctness canary did not pass: a wrong answer is no faster for being quick"
    return [rule("", "", said.FAIL, text, said.WRONG_ANSWERS)]


def _unheld(
    point: Point, found: Sequence[Finding], candidate: Result, baseline: Result | None, policy: Policy
) -> list[Finding]:
    """That nothing says how fast a point should be: neither the anchor nor a floor."""
    held = any(finding.against != said.RULE or finding.culprit == said.MISSING_METRIC for finding in found)
    if held or not any(run.valid for run in point.runs):
        return []
    name, profile = point_name(point), candidate.profile
    key = str(point.concurrency) if point.prompts == STANDARD else f"{point.concurrency}/{point.prompts}"
    floor = f'throughput_check_floors: {{{profile}: {{"{key}": {{decode_tok_s: LEAST}}}}}}'
    speeds = point.samples("decode_tok_s")
    lacks = "the anchor has no such point" if baseline else "there is no anchor"
    seen = f"; it was {FIGURES['decode_tok_s'].text(median(speeds))} now" if speeds else ""
    text = (
        f"nothing says how fast {name} should be: {lacks}, and the inventory sets no floors for {profile} "
        f"at it. Add one, {floor} (tok/s of one user{seen})"
    )
    # With no floor at all for the profile, a new anchor would have nothing to prove itself by.
    if baseline and policy.floors.get(profile):
        text += (
            f"; or, while the accepted release serves with this profile, measure a new anchor of it: "
            f"{_NEW_ANCHOR.format(host=candidate.host)}"
        )
    return [rule(name, "", said.UNDECIDABLE, text, said.NO_REFERENCE)]


def _unmeasured(candidate: Result, baseline: Result | None) -> list[Finding]:
    """The points that the anchor has and the candidate lacks."""
    findings = []
    for point in baseline.points if baseline else []:
        if candidate.point(point.concurrency, point.prompts) is None:
            name = point_name(point)
            variable = (
                "throughput_check_long_concurrency"
                if point.prompts == LONG
                else "throughput_check_concurrency"
            )
            text = (
                f"{name} was not measured, though the anchor has it; put {point.concurrency} back into {variable}, "
                f"or measure a new anchor without it: {_NEW_ANCHOR.format(host=candidate.host)}"
            )
            findings.append(rule(name, "", said.FAIL, text, said.MISSING_METRIC))
    return findings


def _nothing(findings: Sequence[Finding], candidate: Result) -> list[Finding]:
    """That there is no verdict at all, where no finding says why."""
    if findings:
        return []
    return [
        rule("", "", said.UNDECIDABLE, f"nothing was measured of {candidate.profile}", said.MISSING_METRIC)
    ]


def _tolerated(findings: Sequence[Finding], policy: Policy, *, first: bool) -> bool:
    """Whether what is undecidable keeps no server from its work.

    Noise may be tolerated by the policy. A point that nothing is held against may be where the result becomes the
    anchor itself, and a floor of another point has shown that the server is not broken. A figure that could not be
    had never is.
    """
    judged = any(finding.against != said.RULE for finding in findings)
    return all(
        policy.accept_undecidable
        if finding.change is not None
        else first and judged and finding.culprit == said.NO_REFERENCE
        for finding in findings
        if finding.outcome == said.UNDECIDABLE
    )


def _worst(outcomes: Iterable[str]) -> str:
    seen = set(outcomes)
    return next(outcome for outcome in (said.FAIL, said.UNDECIDABLE, said.PASS) if outcome in seen)
