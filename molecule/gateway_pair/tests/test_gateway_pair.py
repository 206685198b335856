"""Two gateways and the address that they share, as clients see it: one server, whatever happens to a gateway."""

from __future__ import annotations

import json
import os
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.rollout.load import Load

SCENARIO = Path(__file__).resolve().parents[1]
ROOT = SCENARIO.parents[1]
GATEWAYS = ("molecule-1", "molecule-2")
SERVER = "molecule-3"
WORKER = "http://10.231.77.23:31000"
ADDRESS = "10.231.77.29"
READINESS = (
    "curl --silent --output /dev/null --write-out '%{http_code}' http://127.0.0.1:8080/readiness || true"
)
# What each program reads, and the end of its unit's name.
UNITS = {"haproxy.cfg": "balancer", "keepalived.conf": "address"}
URL = f"http://{ADDRESS}:8000"
SENTENCE = "a server is as quick as it was seen to be at noon"


def ansible(program: str, *rest: str, fails: bool = False) -> str:
    """What a command of Ansible prints; it has to succeed, or to fail."""
    done = subprocess.run(
        [program, f"--inventory={ROOT}/inventory/molecule", *rest],
        env={**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_FORCE_COLOR": "0"},
        capture_output=True,
        text=True,
    )
    assert (done.returncode != 0) == fails, done.stdout + done.stderr
    return " ".join(done.stdout.split())


def converge(*, fails: bool = False, **variables: object) -> str:
    """Run the scenario's playbook again, with other settings."""
    given = f"--extra-vars={json.dumps(variables)}"
    return ansible("ansible-playbook", given, str(SCENARIO / "converge.yml"), fails=fails)


def ssh(host: str, command: str, given: str | None = None) -> str:
    """What a command prints on a host."""
    done = subprocess.run(
        ["ssh", "-F", f"{ROOT}/.sandbox/ssh/molecule.conf", host, command],
        input=given, text=True, capture_output=True,
    )  # fmt: skip
    assert done.returncode == 0, f"{host}: {command}\n{done.stdout}{done.stderr}"
    return done.stdout.strip()


def invocation(host: str, unit: str) -> str:
    """Another one after every start of a unit."""
    return ssh(host, f"systemctl show --property=InvocationID --value {unit}")


def holders() -> list[str]:
    """The gateways that have the shared address."""
    return [host for host in GATEWAYS if ADDRESS in ssh(host, "ip -brief -4 address")]


def is_ready() -> bool:
    """Whether a gateway that has a host answers at the shared address."""
    try:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"{URL}/readiness", timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def own_is_ready(host: str) -> bool:
    """Whether the gateway of a host has a server."""
    return ssh(host, READINESS) == "200"


def wait_until(what: Callable[[], bool], why: str, seconds: float = 60) -> None:
    """Wait until something is so; the test fails when it does not come."""
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, f"not within {seconds} s: {why}"
        time.sleep(0.5)


@pytest.fixture(scope="module", autouse=True)
def server() -> Iterator[None]:
    ssh(SERVER, "cat > /root/stand_in.py", (ROOT / "tests" / "stand_in" / "server.py").read_text())
    ssh(
        SERVER,
        "systemd-run --unit=stand-in python3 /root/stand_in.py --host 0.0.0.0 --port 31000 "
        """--behaviour '{"ttft_s": 0.5, "step_s": 0.5}'""",
    )
    told = f"worker={WORKER} state=serving"
    ansible("ansible", ",".join(GATEWAYS), "-m", "gateway_worker", "-a", told)
    wait_until(is_ready, "the gateways know the server")
    yield
    ssh(SERVER, "systemctl stop stand-in")


def test_one_gateway_has_the_address() -> None:
    assert len(holders()) == 1


def test_a_change_of_both_gateways_loses_no_request_and_does_not_move_the_address() -> None:
    before, had = [invocation(host, "sglang-gateway") for host in GATEWAYS], holders()
    load = Load(URL, "stand-in", SENTENCE)
    with load.running(clients=16):
        time.sleep(3)
        converge(gateway_retries=4)
        time.sleep(3)
    assert all(now != then for now, then in zip([invocation(h, "sglang-gateway") for h in GATEWAYS], before))
    assert not load.lost, load.lost[:10]
    assert len(load.requests) > 100 and 0 < load.streamed < len(load.requests)
    assert holders() == had


def test_a_change_of_the_balancer_loses_no_request_either() -> None:
    before = [invocation(host, "sglang-gateway-balancer") for host in GATEWAYS]
    load = Load(URL, "stand-in", SENTENCE)
    with load.running(clients=16):
        time.sleep(3)
        converge(gateway_retries=4, gateway_request_timeout=900)
        time.sleep(3)
    assert "timeout client 900s" in ssh(GATEWAYS[0], "cat /etc/sglang-gateway/haproxy.cfg")
    assert [invocation(host, "sglang-gateway-balancer") for host in GATEWAYS] == before, "reloaded"
    assert not load.lost, load.lost[:10]


def test_a_gateway_that_dies_is_not_asked_again() -> None:
    load = Load(URL, "stand-in", SENTENCE)
    ssh(GATEWAYS[0], "systemctl kill --signal=SIGKILL sglang-gateway; systemctl stop sglang-gateway")
    wait_until(is_ready, "the other gateway answers")
    with load.running(clients=8):
        time.sleep(5)
    ssh(GATEWAYS[0], "systemctl start sglang-gateway")
    assert len(load.requests) >= 8 and not load.lost, load.lost[:10]


def test_the_only_gateway_that_takes_requests_is_not_stopped() -> None:
    before = invocation(GATEWAYS[0], "sglang-gateway")
    ssh(GATEWAYS[1], "systemctl stop sglang-gateway")
    said = converge(gateway_retries=2, fails=True)
    ssh(GATEWAYS[1], "systemctl start sglang-gateway")
    assert "molecule-1 was not touched" in said and "molecule-2 without 200 on /readiness" in said
    assert invocation(GATEWAYS[0], "sglang-gateway") == before and is_ready()
    wait_until(lambda: own_is_ready(GATEWAYS[1]), "it is back")
    converge()


def test_a_gateway_that_is_built_anew_takes_over_the_hosts_of_the_other() -> None:
    folder = "/var/lib/sglang-gateway"
    ssh(GATEWAYS[0], f"systemctl stop sglang-gateway; rm {folder}/hosts.json {folder}/workers.json")
    converge()
    assert ssh(GATEWAYS[0], f"cat {folder}/hosts.json") == ssh(GATEWAYS[1], f"cat {folder}/hosts.json")
    assert own_is_ready(GATEWAYS[0])


def test_settings_that_were_written_and_not_taken_up_are_taken_up_by_the_next_run() -> None:
    """As a run leaves them that is broken off between the two."""
    for name in ("haproxy.cfg", "keepalived.conf"):
        ssh(GATEWAYS[0], f"echo '# as before' > /run/sglang-gateway-{UNITS[name]}/settings")
    converge()
    for name, unit in UNITS.items():
        ssh(GATEWAYS[0], f"cmp /etc/sglang-gateway/{name} /run/sglang-gateway-{unit}/settings")


def test_two_that_do_not_hear_each_other_are_refused() -> None:
    (deaf,) = set(GATEWAYS) - set(holders())
    rule = "table ip deaf { chain input { type filter hook input priority 0; ip protocol 112 drop; }; }"
    ssh(deaf, f"nft '{rule}'")
    try:
        wait_until(lambda: len(holders()) == 2, "both take the address")
        said = converge(fails=True)
    finally:
        ssh(deaf, "nft delete table ip deaf")
    assert "Found: molecule-1, molecule-2" in said and "protocol 112" in said
    wait_until(lambda: len(holders()) == 1, "one gives it up")


@pytest.mark.parametrize("unit", ["sglang-gateway-address", "sglang-gateway-balancer"])
def test_the_address_goes_to_the_other_gateway_and_stays_there(unit: str) -> None:
    (holder,) = holders()
    (other,) = set(GATEWAYS) - {holder}
    ssh(holder, f"systemctl stop {unit}")
    wait_until(lambda: holders() == [other], "the other gateway takes the address over")
    wait_until(is_ready, "and answers")
    ssh(holder, f"systemctl start {unit}")
    time.sleep(5)
    assert holders() == [other], "each move cuts what is open, so there is no second one"
    assert is_ready()


def test_both_start_at_boot_and_the_distributions_own_services_do_not() -> None:
    for host in GATEWAYS:
        for unit, state in {
            "sglang-gateway-balancer": "enabled",
            "sglang-gateway-address": "enabled",
            "haproxy": "disabled",
        }.items():
            assert ssh(host, f"systemctl is-enabled {unit} || true") == state
        assert ssh(host, "systemctl is-active haproxy keepalived || true").split() == ["inactive", "inactive"]


def test_without_it_nothing_of_it_is_left() -> None:
    converge(gateway_virtual_address="")
    assert holders() == [] and not is_ready()
    for host in GATEWAYS:
        assert "balancer" not in ssh(host, "systemctl list-units --all --no-legend 'sglang-gateway*'")
        assert ssh(host, "ls /etc/sglang-gateway").split() == ["control.key", "serve.py", "settings.json"]
