"""The toolkit comes from the repository, and the driver stays what it was."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from testinfra.host import Host

sys.path.append(str(Path(__file__).resolve().parents[1]))
from repository import DRIVERS  # type: ignore[import-not-found]

SCENARIO = Path(__file__).resolve().parents[1]


def converge(*more: str) -> subprocess.CompletedProcess[str]:
    """Run the scenario's play once more."""
    command = [
        "ansible-playbook",
        f"--inventory={SCENARIO.parents[1]}/inventory/molecule",
        "--limit=molecule-1",
    ]
    return subprocess.run(
        [*command, *more, SCENARIO / "converge.yml"],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ,
    )


def test_the_toolkit_is_installed_where_it_is_used(host: Host) -> None:
    assert host.package("cuda-nvcc-13-0").version == "13.0.88-1"
    record = json.loads(host.file("/var/lib/toolkit.json").content_string)
    assert (record["home"], record["compiler"]) == ("/usr/local/cuda-13.0", "13.0.88")


def test_the_linker_s_stub_that_the_toolkit_needs_is_installed(host: Host) -> None:
    assert host.package("cuda-driver-dev-13-0").is_installed


@pytest.mark.parametrize("package", [name for name in DRIVERS if name != "nvidia-driver-580"])
def test_nothing_else_of_the_repository_is_a_candidate(host: Host, package: str) -> None:
    policy = host.check_output("apt-cache policy %s", package)
    assert "580.2" in policy
    assert "Candidate: (none)" in policy


def test_the_driver_is_neither_upgraded_nor_released_from_hold(host: Host) -> None:
    assert host.package("nvidia-driver-580").version == "580.1"
    assert host.check_output("apt-mark showhold") == "nvidia-driver-580"


def test_the_repository_s_newer_driver_is_no_candidate(host: Host) -> None:
    policy = host.check_output("apt-cache policy nvidia-driver-580")
    assert "580.2" in policy
    assert "Candidate: 580.1" in policy
    assert "nvidia" not in host.check_output(
        "apt-get --simulate --ignore-hold dist-upgrade | grep ^Inst || true"
    )


def test_the_driver_was_pinned_before_the_repository_was_there(host: Host) -> None:
    preferences, source = (
        "/etc/apt/preferences.d/cuda-toolkit",
        "/etc/apt/sources.list.d/cuda-toolkit.sources",
    )
    assert host.check_output(f"find {source} -newer {preferences}") == source


def test_apt_verifies_the_repository_with_the_key_of_the_checked_package(host: Host) -> None:
    source = host.file("/etc/apt/sources.list.d/cuda-toolkit.sources").content_string
    assert "Signed-By: /usr/local/share/cuda-keyring/" in source
    assert "trusted" not in source.lower()


def test_a_package_that_needs_a_newer_driver_is_refused(host: Host) -> None:
    wanted = ("--extra-vars", json.dumps({"cuda_toolkit_packages": ["cuda-with-driver-13-0"]}))
    host.check_output("apt-mark unhold nvidia-driver-580")
    pinned = converge(*wanted)
    assert pinned.returncode == 2
    assert "Depends: nvidia-driver-580 (>= 580.2) but 580.1 is to be installed" in " ".join(
        pinned.stdout.split()
    )
    # A newer driver from a source that is not pinned: now the trial transaction has to find it.
    options = "-o Dir::Etc::SourceList=/etc/apt/sources.list.d/other.list -o Dir::Etc::SourceParts=-"
    host.check_output(
        "echo 'deb [trusted=yes] file:/srv/repository/other ./' > /etc/apt/sources.list.d/other.list"
    )
    host.check_output(f"apt-get update {options} -o APT::Get::List-Cleanup=false")
    tried = converge(*wanted)
    host.check_output("rm /etc/apt/sources.list.d/other.list; apt-mark hold nvidia-driver-580")
    assert tried.returncode == 2
    assert "Found: Inst nvidia-driver-580 [580.1] (580.3" in " ".join(tried.stdout.split())
    assert host.package("nvidia-driver-580").version == "580.1"
    assert not host.package("cuda-with-driver-13-0").is_installed


def test_a_keyring_with_another_checksum_is_refused(host: Host) -> None:
    host.check_output("rm -r /usr/local/share/cuda-keyring")
    result = converge("--extra-vars", f"cuda_toolkit_keyring_checksum=sha256:{'0' * 64}")
    assert result.returncode == 2
    assert "checksum" in result.stdout
    assert not host.file("/usr/local/share/cuda-keyring/usr").exists


def test_a_repository_that_the_host_has_already_is_not_added_again(host: Host) -> None:
    """Two sources of one repository with different keys end every use of apt."""
    theirs = "/etc/apt/sources.list.d/cuda-debian12-x86_64.list"
    line = "deb [signed-by=/usr/share/keyrings/theirs.gpg] http://127.0.0.1:8000/cuda/debian12/x86_64 /"
    host.check_output("echo '# %s' > /etc/apt/sources.list.d/comment.list", line)
    host.check_output("echo %s > %s; rm /etc/apt/sources.list.d/cuda-toolkit.sources", line, theirs)
    refused = converge()
    host.check_output("rm %s", theirs)
    assert refused.returncode == 2
    assert (
        "This host has the repository http://127.0.0.1:8000/cuda/debian12/x86_64/ already. Found: "
        f"{theirs}. Expected: no other source of it, since apt refuses two with different keys."
        in refused.stdout
    )
    assert not host.file("/etc/apt/sources.list.d/cuda-toolkit.sources").exists
    assert converge().returncode == 0
