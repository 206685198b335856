"""A host that has nothing yet: what --check says of it (release and patches, from the bundle), and what is refused."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import testinfra
from testinfra.host import Host

PROJECT = Path(__file__).resolve().parents[3]
EMPTY = "molecule-2"


def run(playbook: str, *more: str) -> subprocess.CompletedProcess[str]:
    """Run a playbook on the host that no scenario of one host deploys to."""
    return subprocess.run(
        ["ansible-playbook", playbook, "--inventory=inventory/molecule", f"--limit={EMPTY}", *more],
        cwd=PROJECT,
        env={**os.environ, "ANSIBLE_FORCE_COLOR": "0"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def empty() -> Host:
    made = run("playbooks/sandbox.yml", "--extra-vars", '{"sandbox_fresh": true}')
    assert made.returncode == 0, made.stdout
    return testinfra.get_host(f"ssh://{EMPTY}", ssh_config=str(PROJECT / ".sandbox/ssh/molecule.conf"))


def files(host: Host) -> Iterator[str]:
    """Everything but what the connection, and the system by itself, leave behind."""
    found = host.check_output("find /etc /opt /usr /var -xdev -newer /etc/hostname -type f").splitlines()
    return (path for path in found if not path.startswith(("/var/log/", "/var/tmp/", "/etc/ssh/")))


@pytest.mark.parametrize("source", ["mounted", "copied"])
def test_it_shows_the_release_and_the_patches_and_leaves_the_host_alone(empty: Host, source: str) -> None:
    before = set(files(empty))
    copied = f"bundle={PROJECT}/.sandbox/bundle sglang_stack_bundle=/opt/sglang/bundle"
    checked = run("site.yml", "--check", "--diff", *(["--extra-vars", copied] if source == "copied" else []))
    assert checked.returncode == 0, checked.stdout
    assert re.search(r"0\.5\.9-[0-9a-f]{12} in /opt/sglang/releases/0\.5\.9-", checked.stdout)
    added = {line for line in checked.stdout.splitlines() if line.lstrip().startswith("+")}
    for method in ("set_eagle3_layers_to_capture", "get_embed_and_head", "set_embed_and_head"):
        assert any(re.match(rf"\s*\+ +def {method}\(", line) for line in added), method
    assert set(files(empty)) == before
    assert not empty.file("/opt/sglang").exists
    assert not empty.user("sglang").exists
    assert empty.check_output("find /run /tmp /var/tmp -name '*blackwell*'") == ""


def test_a_folder_that_is_no_bundle_is_refused(empty: Host) -> None:
    refused = run("site.yml", "--extra-vars", f"bundle={PROJECT}/docs")
    assert refused.returncode != 0
    assert (
        f"{PROJECT}/docs is no bundle. Found: no manifest.json in it on the controller. Expected: a folder that "
        "playbooks/bundle.yml made, by its absolute path. To mend it: make one with ansible-playbook "
        "playbooks/bundle.yml, and name it, for example -e bundle=$PWD/.cache/bundle."
        in " ".join(refused.stdout.split())
    )


def test_somebody_s_account_is_not_made_a_service_s(empty: Host) -> None:
    empty.check_output("useradd --create-home --shell /bin/bash sglang")
    refused = run("site.yml")
    assert refused.returncode != 0
    assert (
        "The user sglang of this host is somebody's account. Found: uid 1000, home /home/sglang, shell /bin/bash. "
        "Expected: no such user, or one without a shell. To mend it: name another one in sglang_stack_user."
        in " ".join(refused.stdout.split())
    )
    assert empty.user("sglang").shell == "/bin/bash"
    assert not empty.file("/opt/sglang").exists
