"""The plots of the report. Each returns SVG, or an empty text when there is nothing to draw."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from . import svg
from . import verdict as said
from .legend import FIGURES
from .record import Record
from .result import STANDARD, Point
from .verdict import Finding

NARROW = 340
WIDE = 860
SHAPES = {said.PASS: "dot", said.FAIL: "cross", said.UNDECIDABLE: "diamond", "": "ring"}

_LEAST_REACH = 0.12
_HISTORY_FIGURES = ("decode_tok_s", "accept_length", "step_rate")


@dataclass(frozen=True)
class Series:
    """Points of one profile or one result; ``kind`` is the style class that gives its colour."""

    label: str
    kind: str
    points: Sequence[Point]


def short_release(release: str) -> str:
    """A release with 4 digits of its digest: '0.5.9-3fa9'."""
    head, dash, digest = release.rpartition("-")
    return f"{head}{dash}{digest[:4]}" if dash else release


def percent(value: float) -> str:
    """A change: '-4.2%'."""
    return f"{value:+.1%}".replace("-", "\N{MINUS SIGN}")


def changes(point: str, findings: Sequence[Finding]) -> str:
    """How far each figure is from its reference, with the interval that decided and the margin."""
    rows = [f for f in findings if f.change is not None and f.against in (said.BASELINE, said.FLOOR)]
    if not rows:
        return ""
    bounds = [abs(x) for f in rows for x in (f.change, f.low, f.high, f.margin) if x is not None]
    reach = min(max(max(bounds) * 1.1, _LEAST_REACH), 0.5)
    width, top, pitch = NARROW, 8, 40
    height = top + pitch * len(rows) + 22
    x = svg.linear(-reach, reach, 8, width - 8)
    parts = []
    for tick in svg.ticks(-reach, reach):
        if abs(tick) <= reach:
            parts.append(svg.line(x(tick), top, x(tick), height - 20, "axis" if tick == 0 else "grid"))
            label = f"{tick * 100:+.3g}%".replace("-", "\N{MINUS SIGN}") if tick else "0"
            if rows[0].against == said.FLOOR:  # Then all are.
                label = "" if tick else "bound"
            parts.append(svg.text(x(tick), height - 6, label, anchor=_anchor(x(tick), width)))
    for place, finding in enumerate(rows):
        parts += _change_row(finding, x, reach, top + place * pitch)
    told = "; ".join(f.text for f in rows)
    return svg.drawing(width, height, f"Change at {point}", told, parts)


def _change_row(finding: Finding, x: svg.Scale, reach: float, top: float) -> list[str]:
    figure = FIGURES[finding.figure]
    middle = top + 26
    bound = (finding.margin or 0) if figure.less_is_better else -(finding.margin or 0)
    edge = x(min(max(bound, -reach), reach))
    start, end = (edge, x(reach)) if figure.less_is_better else (x(-reach), edge)
    change = finding.change or 0.0
    interval = percent(change)
    if finding.against == said.FLOOR:  # No earlier state, so the distance to it is no change.
        interval = f"{figure.text(finding.value)}, {figure.bound} {figure.text(finding.reference)}"
    elif finding.low is not None and finding.high is not None:
        interval += f" ({percent(finding.low)} to {percent(finding.high)})"
    low = -reach if finding.low is None else finding.low
    high = reach if finding.high is None else finding.high
    clip = [x(min(max(value, -reach), reach)) for value in (low, change, high)]
    shape = SHAPES[finding.outcome]
    return [
        svg.text(8, top + 12, figure.label, kind="strong"),
        svg.text(x(reach), top + 12, interval, anchor="end", kind="value"),
        svg.box(start, middle - 7, end - start, 14, "bad"),
        svg.line(edge, middle - 9, edge, middle + 9, "margin"),
        f'<g class="{finding.outcome}">{svg.line(clip[0], middle, clip[2], middle, "bar")}</g>',
        svg.mark(clip[1], middle, shape, finding.outcome, f"{finding.text}: {finding.outcome}", 5),
    ]


def runs(figure_name: str, series: Sequence[Series]) -> str:
    """Every run of one figure, a row a series, with the medians."""
    figure = FIGURES[figure_name]
    rows = [(s, point) for s in series for point in s.points if point.samples(figure_name)]
    values = [value for _, point in rows for value in point.samples(figure_name)]
    if not values:
        return ""
    width, pitch, top = NARROW, 50, 4
    height = top + pitch * len(rows) + 22
    low, high = _room(values)
    x = svg.linear(low, high, 8, width - 8)
    parts = []
    for tick in svg.ticks_within(low, high):
        parts.append(svg.line(x(tick), top, x(tick), height - 20, "grid"))
        parts.append(svg.text(x(tick), height - 6, svg.number(tick), anchor=_anchor(x(tick), width)))
    told = []
    for place, (one, point) in enumerate(rows):
        samples = point.samples(figure_name)
        base = top + place * pitch
        summary = f"median {figure.text(median(samples))}, {len(samples)} runs"
        parts += [svg.text(8, base + 12, one.label, kind="strong")]
        parts += [svg.text(width - 8, base + 12, summary, anchor="end", kind="value")]
        dots = []
        for value, lift in _swarm(samples, x):
            at = base + 33 + lift
            dots.append(svg.mark(x(value), at, "dot", f"{one.kind} run", figure.text(value), 3.2))
        middle = x(median(samples))
        bar = svg.line(middle, base + 20, middle, base + 46, "median")
        parts += [*dots, f'<g class="{one.kind}">{bar}</g>']
        told.append(f"{one.label}: {summary}, {min(samples):.4g} to {max(samples):.4g}")
    return svg.drawing(width, height, f"{figure.label} of every run", "; ".join(told), parts)


def history(records: Sequence[Record], width: int) -> str:
    """Decode, accept length and step rate of every check in order, a mark a verdict."""
    figures = [name for name in _HISTORY_FIGURES if any(first_point(r).samples(name) for r in records)]
    if not records or not figures:
        return ""
    left, right, panel, gap = 44, 14, 120, 34
    height = len(figures) * (panel + gap) + 34
    step = (width - left - right) / len(records)
    xs = [left + step * (place + 0.5) for place in range(len(records))]
    parts: list[str] = []
    for place, name in enumerate(figures):
        parts += _history_panel(records, xs, name, place * (panel + gap) + 20, panel, left, width - right)
    bottom = len(figures) * (panel + gap)
    parts += _history_labels(records, xs, bottom, width)
    told = "; ".join(
        f"{r.result.taken_at[:10]} {short_release(r.result.release)} {r.result.profile}: "
        f"{_value(r, 'decode_tok_s')}, {r.verdict.outcome if r.verdict else 'not judged'}"
        for r in records
    )
    kind = "wide" if width == WIDE else "narrow"
    return svg.drawing(width, height, "History by release", told, parts, kind)


def _history_panel(
    records: Sequence[Record],
    xs: Sequence[float],
    name: str,
    top: float,
    panel: float,
    left: float,
    right: float,
) -> list[str]:
    figure = FIGURES[name]
    values = [value for record in records for value in first_point(record).samples(name)]
    low, high = _room(values)
    y = svg.linear(low, high, top + panel, top)
    parts = [svg.text(left, top - 7, figure.heading, kind="strong")]
    for tick in svg.ticks_within(low, high):
        parts.append(svg.line(left, y(tick), right, y(tick), "grid"))
        parts.append(svg.text(left - 6, y(tick) + 4, svg.number(tick), anchor="end"))
    for profile in dict.fromkeys(record.result.profile for record in records):
        mine = [
            (x, median(first_point(record).samples(name)))
            for x, record in zip(xs, records)
            if record.result.profile == profile and first_point(record).samples(name)
        ]
        if len(mine) > 1:
            parts.append(svg.path([(x, y(value)) for x, value in mine], f"trend {profile_kind(profile)}"))
    size = 4.2 if len(records) <= 16 else 3.2
    for x, record in zip(xs, records):
        samples = first_point(record).samples(name)
        outcome = record.verdict.outcome if record.verdict else ""
        about = f"{record.result.taken_at[:10]} {record.result.release} {record.result.profile}"
        if not samples:
            title = f"{about}: {figure.label} is missing"
            parts.append(svg.mark(x, top + panel, "cross", said.FAIL, title, size))
            continue
        whisker = svg.line(x, y(min(samples)), x, y(max(samples)), "whisker")
        parts.append(f'<g class="{profile_kind(record.result.profile)}">{whisker}</g>')
        title = f"{about}: {figure.text(median(samples))}, {outcome or 'not judged'}"
        parts.append(svg.mark(x, y(median(samples)), SHAPES[outcome], outcome or "none", title, size))
    return parts


def _history_labels(records: Sequence[Record], xs: Sequence[float], top: float, width: float) -> list[str]:
    """Each release and its first day below its checks, the newest first, as many as there is room for."""
    groups: list[list[int]] = []
    for place, record in enumerate(records):
        if place and record.result.release == records[place - 1].result.release:
            groups[-1].append(place)
        else:
            groups.append([place])
    parts: list[str] = []
    free = float(width)
    for group in reversed(groups):
        first = records[group[0]].result
        name, day = short_release(first.release), first.taken_at[:10]
        half = max(svg.text_width(name), svg.text_width(day)) / 2
        centre = (xs[group[0]] + xs[group[-1]]) / 2
        middle = min(max(centre, half + 1), width - half - 1)
        if middle + half > free:
            continue
        free = middle - half - 12
        parts += [svg.text(middle, top + 12, name, anchor="middle", kind="value")]
        parts += [svg.text(middle, top + 26, day, anchor="middle")]
    return parts


def factors(series: Sequence[Series]) -> str:
    """Accept length against step rate, with lines of equal decode speed: speed is their product."""
    spots = [
        (s, point, median(point.samples("accept_length")), median(point.samples("step_rate")))
        for s in series
        for point in s.points
        if point.samples("accept_length") and point.samples("step_rate")
    ]
    if not spots:
        return ""
    width, height, left, right, top, bottom = NARROW, 300, 44, 62, 26, 40
    across = (min(1.0, *(spot[2] for spot in spots)) - 0.08, max(spot[2] for spot in spots) * 1.12)
    up = (0.0, max(spot[3] for spot in spots) * 1.12)
    x = svg.linear(across[0], across[-1], left, width - right)
    y = svg.linear(up[0], up[-1], height - bottom, top)
    parts = [svg.text(left, 14, "Step rate, steps/s", kind="strong")]
    parts += [
        svg.text(width - right, height - 6, "Accept length, tokens a step", anchor="end", kind="strong")
    ]
    for tick in svg.ticks_within(*across):
        parts.append(svg.line(x(tick), height - bottom, x(tick), height - bottom + 4, "axis"))
        parts.append(svg.text(x(tick), height - bottom + 16, svg.number(tick), anchor="middle"))
    for tick in svg.ticks_within(*up):
        parts.append(svg.text(left - 6, y(tick) + 4, svg.number(tick), anchor="end"))
    parts.append(svg.line(left, height - bottom, width - right, height - bottom, "axis"))
    parts.append(svg.line(left, height - bottom, left, top, "axis"))
    fastest = max(length * rate for _, _, length, rate in spots)
    free = float(height)
    for speed in svg.ticks(0, fastest * 1.3, 5)[1:]:
        curve, free = _equal_speed(speed, across, up, x, y, free)
        parts += curve
    told = []
    taken: list[tuple[float, float, float, float]] = []
    taken += [(x(length) - 5, y(rate) - 5, x(length) + 5, y(rate) + 5) for _, _, length, rate in spots]
    for s, point, length, rate in spots:
        load = f"{point.concurrency} at once" + ("" if point.prompts == STANDARD else f", {point.prompts}")
        title = f"{s.label}, {load}: accept length {length:.2f}, {rate:.1f} steps/s"
        parts.append(svg.mark(x(length), y(rate), "dot", s.kind, title, 4.5))
        parts += _spot_label(x(length), y(rate), load, width - right, taken) if s.kind != "old" else []
        told.append(title)
    return svg.drawing(width, height, "Accept length and step rate", "; ".join(told), parts)


def _equal_speed(
    speed: float, across: Sequence[float], up: Sequence[float], x: svg.Scale, y: svg.Scale, free: float
) -> tuple[list[str], float]:
    """The line of one decode speed, labelled where there is room above ``free``; and what is then free."""
    start = max(across[0], speed / up[-1])
    if start >= across[-1]:
        return [], free
    steps = [start + (across[-1] - start) * part / 24 for part in range(25)]
    curve = [svg.path([(x(length), y(speed / length)) for length in steps], "iso")]
    end = y(speed / across[-1])
    if end > free - svg.TEXT_SIZE - 1:
        return curve, free
    return [*curve, svg.text(x(across[-1]) + 4, end + 4, f"{speed:g} tok/s")], end


def _spot_label(
    x: float, y: float, words: str, right: float, taken: list[tuple[float, float, float, float]]
) -> list[str]:
    """A label beside its mark, where no other label is yet; none rather than one on top of another."""
    long = svg.text_width(words)
    for left, base in ((x + 8, y + 4), (x - 8 - long, y + 4), (x - long / 2, y - 9), (x - long / 2, y + 18)):
        here = (left, base - 11, left + long, base + 3)
        apart = [here[2] < t[0] or here[0] > t[2] or here[3] < t[1] or here[1] > t[3] for t in taken]
        if left > 46 and left + long < right and all(apart):
            taken.append(here)
            return [svg.text(left, base, words, kind="value")]
    return []


def concurrency(figure_name: str, series: Sequence[Series]) -> str:
    """One figure over requests in flight (logarithmic), a line a series, with the range of the runs.

    One concurrency makes no curve, and so no plot.
    """
    figure = FIGURES[figure_name]
    drawn = [(s, [point for point in s.points if point.samples(figure_name)]) for s in series]
    drawn = [(s, sorted(points, key=lambda point: point.concurrency)) for s, points in drawn if points]
    values = [value for _, points in drawn for point in points for value in point.samples(figure_name)]
    levels = sorted({point.concurrency for _, points in drawn for point in points})
    if len(levels) < 2:
        return ""
    width, height, left, right, top, bottom = NARROW, 230, 44, 18, 26, 36
    x = svg.linear(math.log(levels[0]) - 0.15, math.log(levels[-1]) + 0.15, left, width - right)
    up = svg.ticks(0, max(values) * 1.02)
    y = svg.linear(up[0], up[-1], height - bottom, top)
    parts = [svg.text(left, 14, figure.heading, kind="strong")]
    for tick in up:
        parts.append(svg.line(left, y(tick), width - right, y(tick), "grid"))
        parts.append(svg.text(left - 6, y(tick) + 4, svg.number(tick), anchor="end"))
    free = 0.0
    for level in levels:
        at, half = x(math.log(level)), svg.text_width(str(level)) / 2
        if at - half > free:
            parts.append(svg.text(at, height - bottom + 16, str(level), anchor="middle"))
            free = at + half + 6
    parts.append(svg.text(width - right, height - 4, "requests at once", anchor="end"))
    told = []
    for s, points in drawn:
        medians = [(x(math.log(p.concurrency)), y(median(p.samples(figure_name)))) for p in points]
        if len(medians) > 1:
            parts.append(svg.path(medians, f"trend {s.kind}"))
        for point, (at, height_at) in zip(points, medians):
            samples = point.samples(figure_name)
            whisker = svg.line(at, y(min(samples)), at, y(max(samples)), "whisker")
            title = f"{s.label}, {point.concurrency} at once: {figure.text(median(samples))}"
            parts += [f'<g class="{s.kind}">{whisker}</g>', svg.mark(at, height_at, "dot", s.kind, title, 4)]
            told.append(title)
    return svg.drawing(width, height, f"{figure.label} over concurrency", "; ".join(told), parts)


def profile_kind(profile: str) -> str:
    """The style class of a profile."""
    return profile if profile in ("eagle3", "baseline") else "other"


def first_point(record: Record) -> Point:
    """The point that the history follows: the lowest concurrency on standard prompts."""
    points = sorted(record.result.points, key=lambda point: (point.prompts != STANDARD, point.concurrency))
    return points[0] if points else Point(1, [])


def _value(record: Record, name: str) -> str:
    samples = first_point(record).samples(name)
    return FIGURES[name].text(median(samples)) if samples else f"{FIGURES[name].label} missing"


def _swarm(samples: Sequence[float], x: svg.Scale) -> list[tuple[float, float]]:
    """Values with a vertical offset each, so that equal runs lie beside and not on top of each other."""
    placed: list[tuple[float, float]] = []
    for value in sorted(samples):
        lifts = (0.0, -6.0, 6.0, -3.0, 3.0, -9.0, 9.0, -12.0, 12.0)
        clear = (
            lift
            for lift in lifts
            if all(math.hypot(x(value) - x(other), lift - at) >= 6 for other, at in placed)
        )
        placed.append((value, next(clear, 0.0)))
    return placed


def _room(values: Sequence[float]) -> tuple[float, float]:
    """The range of values with some room on both sides; wide enough that equal values make an axis, too."""
    low, high = min(values), max(values)
    room = max((high - low) * 0.08, abs(high) * 0.03)
    return low - room, high + room


def _anchor(x: float, width: float) -> str:
    return "start" if x < 20 else "end" if x > width - 20 else "middle"
