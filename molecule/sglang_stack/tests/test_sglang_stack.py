"""What the host has after a release was staged, sealed and activated."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import pytest
import testinfra
from testinfra.host import Host

CURRENT = "/opt/sglang/current"


@pytest.fixture(scope="module")
def manifest(host: Host) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(host.file(f"{CURRENT}/manifest.json").content_string)
    return content


def test_current_is_a_link_to_the_release_that_its_manifest_names(
    host: Host, manifest: dict[str, Any]
) -> None:
    assert host.file(CURRENT).is_symlink
    assert host.check_output(f"readlink -f {CURRENT}") == manifest["path"]
    assert manifest["path"] == f"/opt/sglang/releases/{manifest['id']}"
    assert manifest["id"].startswith("0.5.9-")


def test_the_service_user_can_run_the_published_sglang(host: Host, manifest: dict[str, Any]) -> None:
    program = "import sglang, torch; print(sglang.__version__, torch.__version__)"
    answer = host.check_output(
        "runuser -u sglang -- env HOME=/tmp SGLANG_USE_CPU_ENGINE=1 %s -c %s", manifest["python"], program
    )
    assert answer.splitlines()[-1] == "0.5.9 2.13.0+cpu"


def test_the_service_user_writes_caches_and_nothing_else(host: Host, manifest: dict[str, Any]) -> None:
    user = host.user("sglang")
    assert user.shell == "/usr/sbin/nologin"
    assert user.uid < 1000
    writable = host.check_output(
        "cd / && runuser -u sglang -- find %s -writable -not -type l", manifest["path"]
    )
    assert writable.split() == [f"{manifest['path']}/cache"]


def test_no_file_of_the_release_is_shared_with_anything_outside(host: Host, manifest: dict[str, Any]) -> None:
    assert host.check_output("find %s/venv -type f -links +1", manifest["path"]) == ""
    assert host.check_output("ls -A %s", manifest["path"]).split() == [
        "cache",
        "lock.txt",
        "manifest.json",
        "venv",
    ]


def test_the_published_files_are_compiled(host: Host, manifest: dict[str, Any]) -> None:
    models = f"{manifest['site_packages']}/sglang/srt/models"
    assert host.file(f"{models}/__pycache__/kimi_k25.cpython-311.pyc").exists


def test_what_is_installed_is_what_the_lock_says(host: Host, manifest: dict[str, Any]) -> None:
    lock = host.file(f"{manifest['path']}/lock.txt").content_string
    locked = {line.split(" ")[0] for line in lock.splitlines() if not line.startswith("#")}
    program = (
        "import importlib.metadata, re\n"
        "for found in importlib.metadata.distributions():\n"
        "    print(re.sub('[-_.]+', '-', found.metadata['Name']).lower() + '==' + found.version)\n"
    )
    installed = set(host.check_output("%s -I -c %s", manifest["python"], program).split())
    assert installed == locked
    assert len(locked) > 100


@pytest.fixture
def attempts(host: Host) -> Callable[[], int]:
    """Packets that tried to leave the host since this was last asked, as shared/cut_off.yml has them counted."""
    controller = testinfra.get_host("local://", sudo=os.geteuid() != 0)
    process = controller.check_output(
        "podman inspect --format '{{.State.Pid}}' blackwell-%s", host.backend.hostname
    )

    def count() -> int:
        rules = controller.check_output("nsenter --target %s --net iptables -nvxZ -L OUTPUT", process)
        refused = next(line for line in rules.splitlines() if " REJECT " in line)
        return int(refused.split()[0])

    return count


def test_it_was_installed_without_trying_to_leave_the_host(host: Host, attempts: Callable[[], int]) -> None:
    assert attempts() == 0
    program = "import socket; socket.create_connection(('%s', 443), 3)"
    for address in ("192.0.2.1", "pypi.org"):
        assert host.run("python3 -c %s", program % address).rc != 0
    assert attempts() > 1, "or the count above proves nothing"


def test_the_bundle_was_copied_whole(host: Host) -> None:
    assert host.run("cd /opt/sglang/bundle && sha256sum --check --quiet SHA256SUMS").rc == 0


def test_old_wheels_are_gone_and_the_files_of_others_are_not(host: Host) -> None:
    assert not host.file("/opt/sglang/bundle/wheels/old-1.0-py3-none-any.whl").exists
    assert host.file("/opt/sglang/bundle/theirs.txt").exists
