"""Results, verdicts and comparisons as lines of plain text, for a terminal or a log."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from statistics import median

from .choice import Choice, Step
from .compare import Comparison
from .judge import point_name
from .legend import FIGURES
from .policy import JUDGED
from .result import Result
from .verdict import FAIL, FLOOR, PASS, RULE, UNDECIDABLE, Finding, Verdict

_WIDTH = 108
_MARKS = {PASS: "ok", FAIL: "FAIL", UNDECIDABLE: "open"}


def result_lines(result: Result, verdict: Verdict | None = None) -> list[str]:
    """One result as a table: a row a figure, a column a point, and the verdict below when there is one."""
    lines = [
        f"{result.host}  {result.release}  profile {result.profile}  {result.taken_at}",
        f"client {result.client}, prompts {result.prompts_sha256[:12]}, host {result.fingerprint[:12]}",
        "",
    ]
    findings = {(f.point, f.figure): f for f in verdict.findings if f.against != RULE} if verdict else {}
    for point in result.points:
        name = point_name(point)
        valid = sum(run.valid for run in point.runs)
        disturbed = len(point.runs) - valid
        counts = f"{valid} valid run{'s' * (valid != 1)}" + (f", {disturbed} disturbed" if disturbed else "")
        header = ["at " + name, "median", "spread", "reference", "change (interval)", ""]
        rows = [
            _figure_row(point.samples(name_of), name_of, findings.get((name, name_of))) for name_of in FIGURES
        ]
        failures = sum(run.failures for run in point.runs)
        requests = sum(run.requests for run in point.runs)
        lines += _table([header, *[row for row in rows if row]], "lrrrrl")
        lines += [f"{counts}; {failures} of {requests} requests failed", ""]
    if verdict:
        lines += verdict_lines(verdict)
    return lines


def verdict_lines(verdict: Verdict) -> list[str]:
    """The verdict in words."""
    lines = [verdict.headline]
    for culprit in verdict.culprits:
        where = f" at {culprit.point}" if culprit.point else ""
        lines.append(f"  blame  {culprit.name}{where}: {culprit.why}")
    lines += [f"  note   {note}" for note in verdict.notes]
    if verdict.references:
        lines.append(
            "  Published for another host (8x RTX PRO 6000, one stream, single figures, not measured here):"
        )
        lines += [
            f"    profile {reference['profile']:<9} {reference['stack']}  {reference['decode_tok_s']:5.1f} tok/s"
            for reference in verdict.references
        ]
    return lines


def choice_lines(choice: Choice) -> list[str]:
    """Both profiles side by side, and which one serves."""
    rows = [["decode tok/s", "profile eagle3", "profile baseline", "gain (interval)", "weight"]]
    rows += [
        [
            step.point,
            f"{step.eagle3:.1f}",
            f"{step.baseline:.1f}",
            interval_text(step.gain, step.low, step.high),
            weight_text(step),
        ]
        for step in choice.steps
    ]
    return [*_table(rows, "lrrrr"), *textwrap.wrap(f"{choice.reason}.", _WIDTH, subsequent_indent="  ")]


def weight_text(step: Step) -> str:
    """How much a point counted; - in choices of earlier versions, which did not weigh."""
    return "-" if step.weight is None else f"{step.weight:g}"


def comparison_lines(comparison: Comparison) -> list[str]:
    """Two results side by side."""
    lines = [f"before  {comparison.before}", f"after   {comparison.after}"]
    lines += [f"  not comparable: {line}" for line in comparison.differences]
    for point in dict.fromkeys(row.point for row in comparison.rows):
        rows = [["at " + point, "before", "after", "change (95 % interval)", ""]]
        for row in comparison.rows:
            if row.point == point:
                figure = FIGURES[row.figure]
                verdict = {True: "better", False: "worse", None: ""}[row.better]
                change = interval_text(row.change, row.low, row.high)
                rows.append([figure.label, figure.text(row.before), figure.text(row.after), change, verdict])
        lines += ["", *_table(rows, "lrrrl")]
    return lines


def _figure_row(samples: Sequence[float], name: str, finding: Finding | None) -> list[str] | None:
    figure = FIGURES[name]
    if not samples:
        return [figure.label, "missing", "", "", "", ""] if name in JUDGED else None
    spread = f"{min(samples):.{figure.digits}f} to {max(samples):.{figure.digits}f}"
    row = [figure.label, figure.text(median(samples)), spread]
    if finding is None:
        return [*row, "", "", ""]
    mark = _MARKS[finding.outcome]
    if finding.against == FLOOR:
        return [*row, f"{figure.bound} {figure.text(finding.reference)}", "", mark]
    change = interval_text(finding.change, finding.low, finding.high)
    return [*row, figure.text(finding.reference), change, mark]


def interval_text(change: float | None, low: float | None, high: float | None) -> str:
    """A change with its interval: '-0.2% (-1.5% to +1.1%)'."""
    if change is None:
        return "-"
    if low is None or high is None:
        return f"{change:+.1%}"
    return f"{change:+.1%} ({low:+.1%} to {high:+.1%})"


def _table(rows: Sequence[Sequence[str]], align: str) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(align))]
    lines = [
        "  ".join(
            cell.rjust(width) if side == "r" else cell.ljust(width)
            for cell, width, side in zip(row, widths, align)
        ).rstrip()
        for row in rows
    ]
    return [lines[0], "-" * max(map(len, lines)), *lines[1:]]
