"""Whether drafting holds from few requests at once to many. No I/O.

How many ask at once hardly matters to a drafter: it sees the same tokens. A server whose accept length falls with
them gives the drafter something wrong, though each point by itself may pass its floor.
"""

from __future__ import annotations

import math
from statistics import median

from . import verdict as said
from .intervals import ratio_interval, runs_to_decide
from .points import are_figures, change_text, finite, point_name
from .policy import SPECULATIVE_PROFILE, Policy
from .result import Point, Result
from .verdict import Finding

_FIGURE = "accept_length"
_ADVICE = (
    "how many ask at once hardly matters to a drafter, so the server spoils its work: look at the CUDA graphs, at the "
    "attention back end (eagle3_server_attention_backend), and at spec v2, which eagle3_server_enable_spec_v2: false "
    "turns off"
)


def falls(result: Result, policy: Policy) -> list[Finding]:
    """Where the accept length falls, or may fall, from fewer requests at once to more, on the same kind of prompts.

    Each point is held against the best of those with fewer requests. Long prompts are held against long ones only:
    a drafter whose window is shorter than they are is right less often, at any number of requests.
    """
    if result.profile != SPECULATIVE_PROFILE:
        return []
    findings: list[Finding] = []
    for prompts in dict.fromkeys(point.prompts for point in result.points):
        points = [
            point
            for point in sorted(result.points, key=lambda point: point.concurrency)
            if point.prompts == prompts
            and sum(run.valid for run in point.runs) >= policy.min_runs
            and are_figures(point.samples(_FIGURE))
        ]
        for place, point in enumerate(points):
            fewer = [other for other in points[:place] if other.concurrency < point.concurrency]
            if fewer:
                best = max(fewer, key=lambda other: median(other.samples(_FIGURE)))
                findings += _fall(best, point, policy)
    return findings


def _fall(few: Point, many: Point, policy: Policy) -> list[Finding]:
    before, now = few.samples(_FIGURE), many.samples(_FIGURE)
    ratio = ratio_interval(now, before, policy.error_rate)
    bound = 1 - policy.drafting_margin
    if ratio.low >= bound:
        return []
    outcome = said.FAIL if ratio.high <= bound else said.UNDECIDABLE
    text = (
        f"accept length {median(before):.2f} at {point_name(few)}, {median(now):.2f} at {point_name(many)}, "
        f"{change_text(ratio)}, where {policy.drafting_margin:.0%} may come from other prompts"
    )
    more = runs_to_decide(now, before, bound, policy.error_rate) if outcome == said.UNDECIDABLE else None
    return [
        Finding(
            point=point_name(many),
            figure=_FIGURE,
            outcome=outcome,
            against=said.RULE,
            text=f"{text}; {_ADVICE}",
            value=median(now),
            reference=median(before),
            change=ratio.estimate - 1,
            low=finite(ratio.low - 1 if ratio.low else math.inf),
            high=finite(ratio.high - 1),
            margin=policy.drafting_margin,
            runs=len(now),
            reference_runs=len(before),
            more_runs=more,
            culprit=said.DRAFTING if outcome == said.FAIL else "",
        )
    ]
