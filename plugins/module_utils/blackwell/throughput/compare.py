"""Two results side by side: what changed, without a verdict."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from .intervals import ratio_interval
from .judge import differences, point_name
from .legend import FIGURES
from .points import are_figures
from .result import Result

_ERROR = 0.025


@dataclass(frozen=True)
class Row:
    """One figure at one point. ``change`` is after / before - 1 with its 95 % interval, None if not known."""

    point: str
    figure: str
    before: float | None
    after: float | None
    change: float | None
    low: float | None
    high: float | None

    @property
    def better(self) -> bool | None:
        """Whether the change is one for the better; None when noise could have made it."""
        if self.low is None or self.high is None or self.low <= 0 <= self.high:
            return None
        return (self.low > 0) != FIGURES[self.figure].less_is_better


@dataclass(frozen=True)
class Comparison:
    """What differs in the conditions (then the figures are not comparable), and every figure of both."""

    before: str
    after: str
    differences: list[str]
    rows: list[Row]

    def to_json(self) -> dict[str, Any]:
        """Plain data for ``json.dump``."""
        return asdict(self)


def compare(before: Result, after: Result) -> Comparison:
    """Put two results side by side, whatever they are; the differences say how far to trust it."""
    points = [*after.points, *(p for p in before.points if after.point(p.concurrency, p.prompts) is None)]
    rows = []
    for point in points:
        one = before.point(point.concurrency, point.prompts)
        two = after.point(point.concurrency, point.prompts)
        for figure in FIGURES:
            old, new = one.samples(figure) if one else [], two.samples(figure) if two else []
            if old or new:
                rows.append(_row(point_name(point), figure, old, new))
    return Comparison(
        _title(before), _title(after), [*differences(after, before), *_alone(before, after)], rows
    )


def _alone(before: Result, after: Result) -> list[str]:
    """The points that only one of the two has figures of, a line each."""
    lines = []
    for mine, other, when in ((before, after, "before"), (after, before, "after")):
        for point in mine.points:
            counterpart = other.point(point.concurrency, point.prompts)
            if counterpart is None or not any(run.valid for run in counterpart.runs):
                lines.append(f"{point_name(point)}: measured {when} only")
    return lines


def _row(point: str, figure: str, old: list[float], new: list[float]) -> Row:
    change = low = high = None
    if are_figures(old) and are_figures(new):
        ratio = ratio_interval(new, old, _ERROR)
        change = ratio.estimate - 1
        if ratio.low > 0 and math.isfinite(ratio.high):
            low, high = ratio.low - 1, ratio.high - 1
    return Row(point, figure, median(old) if old else None, median(new) if new else None, change, low, high)


def _title(result: Result) -> str:
    return f"{result.release} {result.profile} on {result.host}, {result.taken_at}"
