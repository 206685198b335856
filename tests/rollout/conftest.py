"""The hosts that all rollout tests share. They begin empty, and are removed in the end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.rollout.fleet import Fleet

QUICK = {
    "test_no_request_is_lost_in_a_rolling_upgrade",
    "test_a_run_that_is_killed_is_finished_by_the_next_one[start]",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--keep-hosts", action="store_true", help="take the hosts that are there, and leave them"
    )
    parser.addoption("--quick", action="store_true", help="only what continuous integration runs")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--quick"):
        chosen = [item for item in items if item.name in QUICK]
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
        items[:] = chosen


@pytest.fixture(scope="session")
def fleet(pytestconfig: pytest.Config) -> Iterator[Fleet]:
    hosts = Fleet()
    keep = pytestconfig.getoption("--keep-hosts")
    if not keep:
        hosts.up()
    yield hosts
    if not keep:
        hosts.down()


@pytest.fixture(autouse=True)
def alone(fleet: Fleet) -> Iterator[None]:
    """A test that failed leaves no run behind that the next one would meet."""
    yield
    for run in fleet.runs:
        if run.under_way:
            run.kill()
    fleet.runs.clear()
