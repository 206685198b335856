"""The hosts that all rollout tests share. They begin empty, and are removed in the end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.rollout.fleet import Fleet


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--keep-hosts", action="store_true", help="take the hosts that are there, and leave them"
    )


@pytest.fixture(scope="session")
def fleet(pytestconfig: pytest.Config) -> Iterator[Fleet]:
    hosts = Fleet()
    keep = pytestconfig.getoption("--keep-hosts")
    if not keep:
        hosts.up()
    yield hosts
    if not keep:
        hosts.down()
