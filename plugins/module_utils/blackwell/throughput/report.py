"""The report for people: one self-contained HTML page a host, for a screen, a phone or paper.

No script, no font, no picture from elsewhere: the page can be mailed, printed and kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from statistics import median
from typing import Any

from . import plots, svg, table
from . import verdict as said
from .choice import Choice
from .compare import Comparison
from .judge import point_name
from .legend import FIGURES
from .plots import Series
from .record import Record
from .report_style import STYLE
from .result import STANDARD, Point, Result
from .verdict import Verdict

_WORDS = {said.PASS: "\N{CHECK MARK} Pass", said.FAIL: "\N{MULTIPLICATION SIGN} Fail"}
_WORDS[said.UNDECIDABLE] = "? Undecidable"
_HISTORY_LIMIT = 30
_MINUS = "\N{MINUS SIGN}"
_FACTORS = ("accept_length", "step_rate", "decode_tok_s")


def render(records: Sequence[Record], comparison: Comparison | None = None) -> str:
    """The page of one host.

    Args:
        records: its checks, in any order, at least one. The newest of each profile is shown in full, the last
            30 are the history.
        comparison: two results to put side by side, if wanted.
    """
    ordered = sorted(records, key=lambda record: (record.result.taken_at, record.result.profile))
    latest = _latest(ordered)
    newest = ordered[-1].result
    title = f"Throughput of {newest.host}"
    parts = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="soft">{escape(newest.taken_at)}, release {escape(newest.release)}, '
        f"SGLang {escape(newest.sglang_version)}</p>",
        *(_verdict(record) for record in latest),
        *(_choice(record.choice) for record in latest if record.choice),
        _tiles(latest[0]),
        *(_changes(record) for record in latest),
        _runs(ordered, latest),
        _history(ordered[-_HISTORY_LIMIT:]),
        _factors(ordered, latest),
        _concurrency(ordered, latest),
        _comparison(comparison),
        *(_conditions(record.result) for record in latest),
        _legend(),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>\n<body><main>\n"
        + "\n".join(part for part in parts if part).replace("-&gt;", "\N{RIGHTWARDS ARROW}")
        + "\n</main></body></html>\n"
    )


def _latest(ordered: Sequence[Record]) -> list[Record]:
    """The newest record of each profile: the one that was judged first, and the newest of those."""
    by_profile = {record.result.profile: record for record in ordered}
    newest_first = sorted(by_profile.values(), key=lambda record: record.result.taken_at, reverse=True)
    return sorted(newest_first, key=lambda record: record.verdict is None)


def _verdict(record: Record) -> str:
    result, verdict = record.result, record.verdict
    if verdict is None:
        what = f"Profile {result.profile}, {result.release}: measured, not judged."
        return f'<section class="verdict none-card"><p>{escape(what)}</p></section>'
    word = _WORDS[verdict.outcome]
    if verdict.outcome == said.UNDECIDABLE:
        word += ", accepted by the policy" if verdict.accepted else ", not accepted"
    headline = verdict.headline.split(": ", 1)[-1]
    items = [
        f"<li><b>{escape(culprit.name)}</b>{escape(' at ' + culprit.point if culprit.point else '')}: "
        f"{escape(culprit.why)}</li>"
        for culprit in verdict.culprits
    ]
    items += [f"<li>{escape(note)}</li>" for note in verdict.notes]
    about = f"profile {result.profile}, {plots.short_release(result.release)}, {result.taken_at[:10]}"
    return (
        f'<section class="verdict {verdict.outcome}-card"><p><span class="word">{escape(word)}</span> '
        f'<span class="soft">{escape(about)}</span></p>'
        f'<p class="headline">{escape(headline[:1].upper() + headline[1:])}</p>'
        + (f"<ul>{''.join(items)}</ul>" if items else "")
        + _references(verdict)
        + "</section>"
    )


def _references(verdict: Verdict) -> str:
    if not verdict.references:
        return ""
    figures = ", ".join(
        f"profile {r['profile']} on {r['stack']} {r['decode_tok_s']:.1f} tok/s" for r in verdict.references
    )
    return (
        '<p class="soft">For orientation, single figures of another host (8x RTX PRO 6000, one stream, '
        f"not measured here): {escape(figures)}.</p>"
    )


def _choice(choice: Choice | None) -> str:
    if choice is None:
        return ""
    rows = [
        [
            step.point,
            f"{step.eagle3:.1f}",
            f"{step.baseline:.1f}",
            _interval(step.gain, step.low, step.high),
            table.weight_text(step),
        ]
        for step in choice.steps
    ]
    head = ["Decode, tok/s", "profile eagle3", "profile baseline", "gain (interval)", "weight"]
    return f'<h2>Which profile serves</h2><p class="lead">{escape(choice.reason)}.</p>{_table(head, rows)}'


def _tiles(record: Record) -> str:
    result, tiles = record.result, []
    points = sorted(result.points, key=lambda point: (point.prompts != STANDARD, point.concurrency))
    if not points:
        return ""
    wanted = [(points[0], name) for name in ("decode_tok_s", "accept_length", "step_rate", "ttft_s")]
    busiest = max(points, key=lambda point: point.concurrency)
    wanted.append((busiest, "output_tok_s"))
    for point, name in wanted:
        samples, figure = point.samples(name), FIGURES[name]
        value = f"{median(samples):.{figure.digits}f}" if samples else "missing"
        unit = f"<small>{escape(figure.unit)}</small>" if figure.unit and samples else ""
        label = f"{figure.label}, {point_name(point)}"
        tiles.append(f'<div class="tile"><b>{value}{unit}</b><span>{escape(label)}</span></div>')
    return f'<div class="tiles">{"".join(tiles)}</div>'


def _changes(record: Record) -> str:
    verdict = record.verdict
    if verdict is None:
        return ""
    cards = []
    for name in dict.fromkeys(finding.point for finding in verdict.findings):
        plot = plots.changes(name, [finding for finding in verdict.findings if finding.point == name])
        if plot:
            cards.append(_card(f"At {name}", plot))
    if not cards:
        return ""
    if verdict.baseline:
        anchor = verdict.baseline
        lead = (
            f"Each bar is the interval of the change against the anchor of {anchor['taken_at'][:10]} "
            f"({anchor['release']}). It passes when it ends outside the red zone, fails when it lies wholly "
            "inside, and is undecidable across its edge."
        )
    else:
        lead = "Each bar is the interval of the median against the floor of the inventory."
    return (
        f'<h2>What decided: {escape(record.result.profile)}</h2><p class="lead">{escape(lead)}</p>'
        f'{_outcome_key()}<div class="cards">{"".join(cards)}</div>'
    )


def _runs(ordered: Sequence[Record], latest: Sequence[Record]) -> str:
    cards = []
    for point in latest[0].result.points:
        series = [*_baseline_series(ordered, latest[0], point), *_series(latest, [point])]
        drawn = [plots.runs(name, series) for name in ("decode_tok_s", "ttft_s")]
        labelled = zip(("decode_tok_s", "ttft_s"), drawn)
        body = "".join(
            f"<p class='soft'>{escape(FIGURES[name].heading)}</p>{plot}" for name, plot in labelled if plot
        )
        if body:
            cards.append(_card(f"At {point_name(point)}", body))
    if not cards:
        return ""
    lead = "One dot a valid run; the bar is the median. Disturbed runs are left out, and counted below."
    return f'<h2>Every run</h2><p class="lead">{lead}</p><div class="cards">{"".join(cards)}</div>'


def _history(ordered: Sequence[Record]) -> str:
    drawn = [plots.history(ordered, width) for width in (plots.WIDE, plots.NARROW)]
    if not drawn[0]:
        return ""
    lead = (
        f"The last {len(ordered)} checks in order, at the lowest concurrency. Upright lines reach from the "
        "slowest to the fastest run."
    )
    if len(ordered) == 1:
        lead = "This is the first check of this host; later ones line up here."
    profiles = list(dict.fromkeys(record.result.profile for record in ordered))
    rows = [
        [
            record.result.taken_at,
            record.result.release,
            record.result.profile,
            *(FIGURES[name].bare(_median(plots.first_point(record), name)) for name in _FACTORS),
            record.verdict.outcome if record.verdict else "not judged",
        ]
        for record in reversed(ordered)
    ]
    factors = [FIGURES[name].heading for name in _FACTORS]
    head = ["Taken at", "Release", "Profile", *factors, "Verdict"]
    return (
        f'<h2>History by release</h2><p class="lead">{escape(lead)}</p>{_outcome_key(profiles)}'
        f'<div class="card">{drawn[0]}{drawn[1]}</div>'
        f"<details><summary>The same as a table</summary>{_table(head, rows, stack=True)}</details>"
    )


def _factors(ordered: Sequence[Record], latest: Sequence[Record]) -> str:
    points = latest[0].result.points
    series = [*_baseline_series(ordered, latest[0], *points), *_series(latest)]
    plot = plots.factors(series)
    if not plot:
        return ""
    lead = (
        "Decode speed is accept length times step rate. Along a grey line it stays the same: a release that "
        "slides along one has traded good guesses for quick steps, and its total does not show it."
    )
    rows = [
        [s.label, point_name(point), *(FIGURES[name].bare(_median(point, name)) for name in _FACTORS)]
        for s in series
        for point in s.points
    ]
    values = _table(["", "At", *(FIGURES[name].heading for name in _FACTORS)], rows)
    return (
        f'<h2>Accept length and step rate</h2><p class="lead">{escape(lead)}</p>{_series_key(series)}'
        f'<div class="cards"><div class="card">{plot}</div><div class="card">{values}</div></div>'
    )


def _concurrency(ordered: Sequence[Record], latest: Sequence[Record]) -> str:
    points = [point for point in latest[0].result.points if point.prompts == STANDARD]
    series = [*_baseline_series(ordered, latest[0], *points), *_series(latest)]
    series = [Series(s.label, s.kind, [p for p in s.points if p.prompts == STANDARD]) for s in series]
    cards = [plots.concurrency(name, series) for name in ("decode_tok_s", "output_tok_s")]
    if not any(cards):
        return ""
    lead = "Decode is what one user sees, total output what the host delivers."
    body = "".join(f'<div class="card">{card}</div>' for card in cards if card)
    return (
        f'<h2>Over concurrency</h2><p class="lead">{lead}</p>{_series_key(series)}'
        f'<div class="cards">{body}</div>'
    )


def _comparison(comparison: Comparison | None) -> str:
    if comparison is None:
        return ""
    differing = "".join(f"<li>{escape(line)}</li>" for line in comparison.differences)
    warning = f"<p>Not comparable, because these differ:</p><ul>{differing}</ul>" if differing else ""
    words = {True: ", better", False: ", worse", None: ""}
    tables = []
    for point in dict.fromkeys(row.point for row in comparison.rows):
        rows = [
            [
                FIGURES[row.figure].heading,
                FIGURES[row.figure].bare(row.before),
                FIGURES[row.figure].bare(row.after),
                _interval(row.change, row.low, row.high) + words[row.better],
            ]
            for row in comparison.rows
            if row.point == point
        ]
        tables.append(_card(f"At {point}", _table(["", "Before", "After", "Change (95% interval)"], rows)))
    return (
        f'<h2>Two results side by side</h2><p class="soft">Before: {escape(comparison.before)}<br>'
        f'After: {escape(comparison.after)}</p>{warning}<div class="cards roomy">{"".join(tables)}</div>'
    )


def _conditions(result: Result) -> str:
    pairs: list[tuple[str, Any]] = [
        ("host fingerprint", result.fingerprint),
        ("client", result.client),
        ("prompts", result.prompts_sha256),
        *_flat(result.conditions),
    ]
    for point in result.points:
        disturbed = [reason for run in point.runs for reason in run.invalid_because]
        failures, requests = sum(r.failures for r in point.runs), sum(r.requests for r in point.runs)
        told = f"{sum(r.valid for r in point.runs)} valid runs, {failures} of {requests} requests failed"
        told += "".join(f"; disturbed: {reason}" for reason in disturbed)
        pairs.append((point_name(point), told))
        gpus = ", ".join(f"{key} {median(values):.4g}" for key, values in _gpu(point).items())
        pairs += [(f"{point_name(point)}: GPUs", gpus)] if gpus else []
    return f"<h2>Conditions: {escape(result.profile)}</h2>{_pairs(pairs)}{_canary(result)}"


def _canary(result: Result) -> str:
    asked = result.canary.get("checks")
    checks = [
        (
            f"{_WORDS[said.PASS if check.get('passed') else said.FAIL]}: {check.get('name')}",
            check.get("detail", ""),
        )
        for check in (asked if isinstance(asked, list) else [])
        if isinstance(check, Mapping)
    ]
    others = {key: value for key, value in result.canary.items() if key not in ("checks", "passed") and value}
    pairs = [*checks, *_flat(others)] or [("canary", "not run")]
    return f"<h2>Correctness canary: {escape(result.profile)}</h2>{_pairs(pairs)}"


def _legend() -> str:
    rows = [(figure.label, figure.formula) for figure in FIGURES.values()]
    return f"<h2>What the figures mean</h2>{_pairs(rows)}"


def _series(latest: Sequence[Record], like: Sequence[Point] = ()) -> list[Series]:
    series = []
    for record in latest:
        result = record.result
        points = result.points
        if like:
            found = [result.point(point.concurrency, point.prompts) for point in like]
            points = [point for point in found if point]
        series.append(Series(result.profile, plots.profile_kind(result.profile), points))
    return series


def _baseline_series(ordered: Sequence[Record], record: Record, *like: Point) -> list[Series]:
    """The stored result that the verdict compared with, when the history has it."""
    anchor = record.verdict.baseline if record.verdict else {}
    for other in ordered:
        result = other.result
        same = (result.taken_at, result.release) == (anchor.get("taken_at"), anchor.get("release"))
        if same and result.profile == record.result.profile and other is not record:
            found = [result.point(point.concurrency, point.prompts) for point in like]
            return [Series("accepted before", "old", [point for point in found if point])]
    return []


def _median(point: Point, name: str) -> float | None:
    samples = point.samples(name)
    return median(samples) if samples else None


def _gpu(point: Point) -> dict[str, list[float]]:
    gathered: dict[str, list[float]] = {}
    for run in point.runs:
        for key, value in run.gpu.items():
            gathered.setdefault(key, []).append(value)
    return gathered


def _flat(data: Mapping[str, Any], before: str = "") -> list[tuple[str, Any]]:
    pairs: list[tuple[str, Any]] = []
    for key, value in data.items():
        name = f"{before}{key}".replace("_", " ")
        if isinstance(value, Mapping):
            pairs += _flat(value, f"{name}: ")
        elif isinstance(value, list):
            pairs.append((name, "; ".join(_item(item) for item in value) or "none"))
        else:
            pairs.append((name, _item(value)))
    return pairs


def _item(item: Any) -> str:
    if isinstance(item, Mapping):
        return ", ".join(f"{key} {_item(value)}" for key, value in item.items())
    if item is None:
        return "-"
    return ("yes" if item else "no") if isinstance(item, bool) else str(item)


def _interval(change: float | None, low: float | None, high: float | None) -> str:
    return table.interval_text(change, low, high).replace("-", _MINUS)


def _card(title: str, body: str) -> str:
    return f'<div class="card"><h3>{escape(title)}</h3>{body}</div>'


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], *, stack: bool = False) -> str:
    """A table; with ``stack`` a phone shows each row as a block, every cell under its heading."""
    header = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in head)
    lines = [
        f'<tr><th scope="row">{escape(row[0])}</th>'
        + "".join(
            f'<td data-head="{escape(name)}">{escape(cell)}</td>' for name, cell in zip(head[1:], row[1:])
        )
        + "</tr>"
        for row in rows
    ]
    return (
        f'<div class="scroll"><table{" class=stack" if stack else ""}><thead><tr>{header}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def _pairs(pairs: Iterable[tuple[str, Any]]) -> str:
    rows = "".join(
        f'<tr><th scope="row">{escape(str(name))}</th><td>{escape(str(value))}</td></tr>'
        for name, value in pairs
    )
    return f'<table class="pairs"><tbody>{rows}</tbody></table>'


def _outcome_key(profiles: Sequence[str] = ()) -> str:
    entries = [
        (said.PASS, "dot", "pass"),
        (said.FAIL, "cross", "fail"),
        (said.UNDECIDABLE, "diamond", "undecidable"),
    ]
    if profiles:
        entries.append(("none", "ring", "not judged"))
    items = "".join(
        f'<li><svg viewBox="0 0 22 12" aria-hidden="true">{svg.mark(11, 6, shape, kind, "", 4)}</svg>'
        f"{escape(words)}</li>"
        for kind, shape, words in entries
    )
    return f'<ul class="key">{items}{_line_items((p, plots.profile_kind(p)) for p in profiles)}</ul>'


def _series_key(series: Sequence[Series]) -> str:
    return f'<ul class="key">{_line_items((s.label, s.kind) for s in series)}</ul>'


def _line_items(entries: Iterable[tuple[str, str]]) -> str:
    return "".join(
        f'<li><svg viewBox="0 0 22 12" aria-hidden="true">'
        f"{svg.path([(1, 6), (21, 6)], f'trend {kind}')}</svg>{escape(label)}</li>"
        for label, kind in entries
    )
