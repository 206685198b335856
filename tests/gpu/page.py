"""The page of a run's results, for people."""

from __future__ import annotations

from typing import Any

from .runner import NOT_RUN, Record

_ABOUT = {
    "date": "Date",
    "cards": "Cards",
    "driver": "Driver",
    "cuda": "CUDA of PyTorch",
    "torch": "PyTorch",
    "python": "Python",
    "sglang": "SGLang",
    "kernels": "Kernels",
    "flashinfer": "FlashInfer",
    "project": "Project",
}


def write(record: Record) -> str:
    """The page as Markdown: the machine, a table of steps, what was not run and why, and every figure."""
    lines = [f"# Tests on GPUs, {record.about.get('date', 'date unknown')}", ""]
    lines += ["| | |", "|---|---|"]
    lines += [f"| {label} | {_cell(record.about.get(key, 'unknown'))} |" for key, label in _ABOUT.items()]
    lines += ["", "| Step | Result | Seconds | |", "|---|---|--:|---|"]
    for outcome in record.outcomes.values():
        reason = _cell(outcome.reason.splitlines()[0] if outcome.reason else "")
        lines.append(f"| {outcome.title} | {outcome.result} | {outcome.seconds:.0f} | {reason} |")
    missing = [outcome for outcome in record.outcomes.values() if outcome.result == NOT_RUN]
    if missing:
        lines += ["", "## Not run", ""]
        lines += [f"* {outcome.title}: {outcome.reason}" for outcome in missing]
    for outcome in record.outcomes.values():
        if outcome.figures:
            lines += ["", f"## {outcome.title}", "", *_figures(outcome.figures)]
    return "\n".join(lines) + "\n"


def _figures(figures: dict[str, Any]) -> list[str]:
    lines: list[str] = []
    for name, value in figures.items():
        if isinstance(value, list) and value and all(isinstance(row, dict) for row in value):
            lines += [*([""] if lines else []), f"{name}:", "", *_table(value), ""]
        elif isinstance(value, str) and "\n" in value:
            lines += [*([""] if lines else []), f"{name}:", "", "```", value.rstrip(), "```", ""]
        else:
            lines.append(f"* {name}: {_text(value)}")
    return lines


def _table(rows: list[dict[str, Any]]) -> list[str]:
    columns = list(dict.fromkeys(key for row in rows for key in row))
    return [
        "| " + " | ".join(columns) + " |",
        "|" + "---|" * len(columns),
        *("| " + " | ".join(_cell(row.get(column, "")) for column in columns) + " |" for row in rows),
    ]


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, (list, tuple)):
        return ", ".join(_text(each) for each in value)
    if isinstance(value, dict):
        return "; ".join(f"{key} {_text(each)}" for key, each in value.items())
    return "unknown" if value is None else str(value)


def _cell(value: Any) -> str:
    return _text(value).replace("|", "\\|").replace("\n", " ")
