"""The gateway as an operator finds it, with a stand-in for a server on the same host."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from testinfra.host import Host

SCENARIO = Path(__file__).resolve().parents[1]
ROOT = SCENARIO.parents[1]

UNIT = "sglang-gateway.service"
KEY = "planted-client-key-0123456789"
WORKER = "http://127.0.0.1:31000"


def ansible(*command: str) -> subprocess.CompletedProcess[str]:
    """Run a command of Ansible on the scenario's host."""
    program, *rest = command
    return subprocess.run(
        [program, f"--inventory={ROOT}/inventory/molecule", "--limit=molecule-1", *rest],
        env={**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_FORCE_COLOR": "0"},
        capture_output=True,
        text=True,
    )


def worker(state: str) -> None:
    """Put the stand-in in or take it out, as an operator does by hand."""
    done = ansible("ansible", "all", "-m", "gateway_worker", "-a", f"worker={WORKER} state={state}")
    assert done.returncode == 0, done.stdout


def ask(host: Host, key: str = KEY) -> tuple[int, str]:
    """Status and body of a chat completion through the gateway."""
    body = {"model": "stand-in", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8}
    command = (
        f"curl --silent --max-time 30 --write-out '\\n%{{http_code}}' --header 'Authorization: Bearer {key}' "
        f"--header 'Content-Type: application/json' --data '{json.dumps(body)}' "
        "http://127.0.0.1:8080/v1/chat/completions"
    )
    answer, _, status = host.run(command).stdout.rpartition("\n")
    return int(status or 0), answer


@pytest.fixture(scope="module")
def server(host: Host) -> Iterator[None]:
    program = (ROOT / "tests" / "stand_in" / "server.py").read_text()
    copied = subprocess.run(
        ["ssh", "-F", f"{ROOT}/.sandbox/ssh/molecule.conf", "molecule-1", "cat > /root/stand_in.py"],
        input=program, text=True,
    )  # fmt: skip
    assert copied.returncode == 0
    behaviour = json.dumps({"api_key": KEY})
    host.check_output(
        f"systemd-run --unit=stand-in python3 /root/stand_in.py --port 31000 --behaviour '{behaviour}'"
    )
    worker("serving")
    yield
    worker("absent")
    host.check_output("systemctl stop stand-in")


def test_it_runs_starts_at_boot_and_is_sound(host: Host) -> None:
    service = host.service("sglang-gateway")
    assert service.is_running and service.is_enabled
    assert host.run(f"systemd-analyze verify {UNIT}").stderr == ""


def test_it_runs_as_its_own_user_and_may_write_nothing_but_its_runtime_folder(host: Host) -> None:
    pid = host.check_output(f"systemctl show --property=MainPID --value {UNIT}")
    assert host.process.get(pid=int(pid)).user == "sglang-gateway"
    status = dict(
        line.split(":\t", 1) for line in host.file(f"/proc/{pid}/status").content_string.splitlines()
    )
    assert (status["NoNewPrivs"], int(status["CapBnd"], 16)) == ("1", 0)
    mounts = [line.split() for line in host.file(f"/proc/{pid}/mountinfo").content_string.splitlines()]
    assert {mount[4]: mount[5].split(",")[0] for mount in mounts}["/"] == "ro"


def test_only_those_who_must_can_read_its_keys(host: Host) -> None:
    for name in ("settings.json", "control.key"):
        file = host.file(f"/etc/sglang-gateway/{name}")
        assert (file.user, file.group, file.mode) == ("root", "sglang-gateway", 0o640)
    control = host.file("/etc/sglang-gateway/control.key").content_string.strip()
    for key in (KEY, control):
        hidden = f"{key[:-1]}[{key[-1]}]"  # does not match itself
        assert host.run(f"cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c '{hidden}'").stdout.strip() == "0"
        assert host.run(f"journalctl --no-pager | grep -c '{hidden}'").stdout.strip() == "0"


def test_it_answers_without_a_host_and_says_that_it_has_none(host: Host) -> None:
    status = "curl --silent -o /dev/null -w '%%{http_code}' http://127.0.0.1:8080/%s"
    assert host.check_output(status, "liveness") == "200"
    assert host.check_output(status, "readiness") == "503"
    # No host, so no model: smg knows none but those of its hosts.
    assert ask(host)[0] == 404


@pytest.mark.usefixtures("server")
def test_it_sends_requests_to_a_host_that_is_put_in_and_none_to_one_that_is_taken_out(host: Host) -> None:
    status, answer = ask(host)
    assert status == 200, answer
    said: dict[str, Any] = json.loads(answer)
    assert said["choices"][0]["message"]["content"].startswith("a server is as quick")
    assert ask(host, key="wrong-key-0123456789")[0] == 401
    worker("drained")
    assert ask(host)[0] == 503
    worker("serving")
    assert ask(host)[0] == 200


@pytest.mark.usefixtures("server")
def test_a_restart_brings_nobody_back_who_was_taken_out(host: Host) -> None:
    worker("drained")
    host.check_output(f"systemctl restart {UNIT}")
    deadline = time.monotonic() + 60
    while host.run("curl --silent --fail http://127.0.0.1:8080/liveness").rc != 0:
        assert time.monotonic() < deadline
        time.sleep(0.5)
    time.sleep(6)  # longer than smg takes from one look at its manifest to the next
    assert ask(host)[0] == 404
    worker("serving")


def test_its_metrics_are_for_this_host_only(host: Host) -> None:
    assert host.socket("tcp://127.0.0.1:29000").is_listening
    assert not host.socket("tcp://0.0.0.0:29000").is_listening


def test_another_setting_starts_it_again(host: Host) -> None:
    before = host.check_output(f"systemctl show --property=InvocationID --value {UNIT}")
    done = ansible("ansible-playbook", "--extra-vars={gateway_retries: 3}", str(SCENARIO / "converge.yml"))
    assert done.returncode == 0, done.stdout
    assert host.check_output(f"systemctl show --property=InvocationID --value {UNIT}") != before
    assert json.loads(host.file("/etc/sglang-gateway/settings.json").content_string)["retry_max_retries"] == 3
