"""How far something long is, in one line."""

from __future__ import annotations

GB = 1e9


def progress(done: float, total: float, rate: float) -> str:
    """Say it.

    Args:
        done: bytes so far.
        total: bytes in all.
        rate: bytes a second; 0 while it is not known.
    """
    text = f"{done / GB:.1f} of {total / GB:.1f} GB"
    if rate <= 0:
        return text
    left = (total - done) / rate
    return f"{text}, {rate / GB:.2f} GB/s, about {f'{left / 60:.0f} min' if left >= 90 else f'{left:.0f} s'} left"
