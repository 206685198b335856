"""What the scenarios' tests share: a failed test shows the journal of the host it ran on."""

from __future__ import annotations

from collections.abc import Generator

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    host = getattr(item, "funcargs", {}).get("host")
    if report.failed and host is not None:
        journal = host.run("journalctl --boot --no-pager --lines=200").stdout
        report.sections.append((f"Journal of {host.backend.hostname}", journal))
    return report
