"""Just enough of SVG for the report's plots: scales, axes and marks; colours come from the page's style.

Every plot is drawn at about the size it is read at, a phone's width or a desk's, so that its text never
shrinks with the page. Coordinates are in those units, with y downwards.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape

Scale = Callable[[float], float]

# Mean width of a character of a sans-serif font, in parts of its size: enough to keep labels apart.
_CHARACTER = 0.56
TEXT_SIZE = 11.0
# How far a plot may be blown up on a wide page.
_LARGEST = 1.45


def text_width(text: str, size: float = TEXT_SIZE) -> float:
    """About how wide a text is drawn."""
    return len(text) * _CHARACTER * size


def linear(low: float, high: float, start: float, end: float) -> Scale:
    """A scale from [low, high] to [start, end]."""
    span = (high - low) or 1.0
    return lambda value: start + (value - low) / span * (end - start)


def ticks(low: float, high: float, wanted: int = 4) -> list[float]:
    """Round numbers that cover [low, high], about ``wanted`` of them."""
    span = (high - low) or abs(high) or 1.0
    raw = span / wanted
    power: float = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= raw * 0.999)
    first = math.floor(low / step + 1e-9)
    last = math.ceil(high / step - 1e-9)
    return [round(step * number, 10) for number in range(first, max(last, first + 1) + 1)]


def ticks_within(low: float, high: float, wanted: int = 4) -> list[float]:
    """Those round numbers that lie in [low, high]: for an axis that ends where the data does."""
    return [tick for tick in ticks(low, high, wanted) if low <= tick <= high]


def number(value: float) -> str:
    """A tick label without needless digits."""
    return f"{value:.10g}"


def text(x: float, y: float, words: str, *, anchor: str = "start", kind: str = "label") -> str:
    """A text whose base line starts (or ends, or is centred) at x, y."""
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    """A straight line."""
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def path(points: Sequence[tuple[float, float]], kind: str) -> str:
    """A line through points."""
    moves = " ".join(f"{'L' if place else 'M'}{x:.1f} {y:.1f}" for place, (x, y) in enumerate(points))
    return f'<path class="{kind}" d="{moves}"/>'


def box(x: float, y: float, width: float, height: float, kind: str) -> str:
    """A filled rectangle."""
    return (
        f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{max(width, 0):.1f}" '
        f'height="{max(height, 0):.1f}"/>'
    )


def mark(x: float, y: float, shape: str, kind: str, title: str, size: float = 4.0) -> str:
    """A data point whose shape tells as much as its colour: dot, ring, cross or diamond."""
    r = size
    w = 1.3 * r
    shapes = {
        "dot": f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{r}"/>',
        "ring": f'<circle class="hollow" cx="{x:.1f}" cy="{y:.1f}" r="{r}"/>',
        "cross": f'<path class="stroke" d="M{x - r:.1f} {y - r:.1f}l{2 * r} {2 * r}m0 {-2 * r}'
        f'l{-2 * r} {2 * r}"/>',
        "diamond": f'<path class="hollow" d="M{x:.1f} {y - w:.1f}l{w} {w}l{-w} {w}l{-w} {-w}z"/>',
    }
    return f'<g class="{kind}"><title>{escape(title)}</title>{shapes[shape]}</g>'


def drawing(
    width: float, height: float, title: str, description: str, parts: Sequence[str], kind: str = ""
) -> str:
    """A whole plot. The title names it for a screen reader, the description says what it shows."""
    spoken = escape(f"{title}. {description}", quote=True)
    return (
        f'<svg class="plot {kind}" viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="{spoken}" '
        f'style="max-width:{width * _LARGEST:.0f}px">{"".join(parts)}</svg>'
    )
