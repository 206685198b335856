"""A container is as much a server as the other roles and their tests rely on."""

from __future__ import annotations

import pytest
from testinfra.host import Host


def test_systemd_is_pid_1_and_every_unit_started(host: Host) -> None:
    assert host.check_output("cat /proc/1/comm") == "systemd"
    assert host.check_output("systemctl is-system-running") == "running"


def test_host_is_the_debian_that_the_roles_support(host: Host) -> None:
    assert (host.system_info.distribution, host.system_info.codename) == ("debian", "bookworm")


def test_ssh_takes_the_key_and_no_password(host: Host) -> None:
    settings = host.check_output("sshd -T").splitlines()
    assert "passwordauthentication no" in settings
    assert "permitrootlogin without-password" in settings


@pytest.mark.parametrize("folder", ["/srv/bundle", "/srv/models"])
def test_folders_of_the_controller_are_read_only(host: Host, folder: str) -> None:
    assert host.file(folder).is_directory
    assert "Read-only file system" in host.run(f"touch {folder}/x").stderr


def test_systemd_enforces_the_hardening_of_units(host: Host) -> None:
    attempt = host.run("systemd-run --wait --pipe --property=ProtectSystem=strict touch /usr/x")
    assert "Read-only file system" in attempt.stderr


def test_apt_is_not_locked_by_timers(host: Host) -> None:
    assert host.service("apt-daily.timer").is_masked
