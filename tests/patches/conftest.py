"""A few tests of each kind are quick: ``pytest tests/patches -m quick``."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "quick: stands for its kind where there is only a minute")
