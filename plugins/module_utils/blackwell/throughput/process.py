"""How a program ended, in words."""

from __future__ import annotations

import signal


def ending(status: int) -> str:
    """The end of a process in words, from its ``returncode``: "with status 1" or "by SIGKILL"."""
    if status >= 0:
        return f"with status {status}"
    try:
        return f"by {signal.Signals(-status).name}"
    except ValueError:
        return f"by signal {-status}"
