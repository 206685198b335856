"""Preflight looks and leaves no trace."""

from __future__ import annotations

from testinfra.host import Host


def test_nothing_of_ours_is_on_the_host(host: Host) -> None:
    assert not host.file("/opt/sglang").exists
    assert host.run("find /etc /usr/local /var/lib -name '*sglang*'").stdout == ""


def test_the_process_on_the_port_was_left_alone(host: Host) -> None:
    assert host.service("squatter.service").is_running
    assert host.socket("tcp://0.0.0.0:31999").is_listening
