"""A process that ends while a program looks through /proc."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any


def losing(folder: Path) -> Callable[..., Any]:
    """``os.scandir`` on a machine where this folder was listed a moment ago, and is gone."""
    scandir = os.scandir

    def look(path: str | Path = ".") -> Any:
        if Path(path) == folder:
            raise FileNotFoundError(folder)
        return scandir(path)

    return look
