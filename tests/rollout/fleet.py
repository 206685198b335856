"""Three hosts and a gateway, which are containers, and rollouts on them: started, watched, killed, and looked at.

A release of these tests holds a stand-in server, so that a rollout takes a minute. Roles, modules, systemd, the gateway
and the playbook's order are the project's own; of the role ``throughput_check`` the load is left out (``quick/``),
unless a test is about it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from blackwell import receipt

ROOT = Path(__file__).resolve().parents[2]
INVENTORY = ROOT / "inventory" / "rollout"
HERE = Path(__file__).resolve().parent
RECEIPTS = ROOT / ".cache" / "rollout" / "receipts"
OUTPUT = ROOT / ".cache" / "rollout" / "output"

# What the stand-in says to everything, word by word.
SENTENCE = "a server is as quick as it was seen to be at noon"
MODEL = "stand-in"

# A stand-in starts in a second; on a machine that does other things, in a few.
SETTINGS = {
    "rollout_compare_profiles": False,
    "rollout_controller_receipts": str(RECEIPTS),
    "eagle3_server_start_timeout": 45,
}


class Run:
    """A playbook that runs, or has run."""

    def __init__(
        self, playbook: Path, arguments: list[str], variables: Mapping[str, Any], *, quick: bool
    ) -> None:
        roles = os.pathsep.join(
            str(folder) for folder in ([HERE / "quick"] if quick else []) + [ROOT / "roles"]
        )
        environment = {
            **os.environ,
            "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
            "ANSIBLE_ROLES_PATH": roles,
            "ANSIBLE_NOCOLOR": "1",
            "PYTHONUNBUFFERED": "1",
        }
        command = ["ansible-playbook", str(playbook), f"--inventory={INVENTORY}", *arguments]
        self.lines: list[str] = []
        self.began = time.time()
        OUTPUT.mkdir(parents=True, exist_ok=True)
        self._log = (OUTPUT / f"{time.strftime('%H%M%S')}-{playbook.stem}.log").open("w")
        self._news = threading.Condition()
        self._process = subprocess.Popen(
            [*command, f"--extra-vars={json.dumps(dict(variables))}"],
            cwd=ROOT, env=environment, text=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            self._log.write(line)
            self._log.flush()
            with self._news:
                self.lines.append(line)
                self._news.notify_all()
        with self._news:
            self._news.notify_all()

    @property
    def text(self) -> str:
        """All that it has printed."""
        return "".join(self.lines)

    def until(self, text: str) -> None:
        """Wait until it has printed this."""
        seen = 0
        while True:
            with self._news:
                if any(text in line for line in self.lines[seen:]):
                    return
                seen = len(self.lines)
                assert self._reader.is_alive(), f"it ended without {text!r}:\n{self.text[-6000:]}"
                self._news.wait()

    def kill(self) -> None:
        """End it and all that it has started here with SIGKILL: what is under way on a host goes on."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self.status()

    @property
    def under_way(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def status(self) -> int:
        """Its exit status, when it has ended."""
        code = self._process.wait()
        self._reader.join()
        self._log.close()
        return code

    def succeeded(self) -> Run:
        """Itself, when it has ended well."""
        assert self.status() == 0, self.text[-8000:]
        return self

    def failed(self) -> Run:
        """Itself, when it has ended as a playbook whose rollout has stopped."""
        assert self.status() not in (0, -signal.SIGKILL), self.text[-8000:]
        return self


class Fleet:
    """The hosts of ``inventory/rollout``."""

    def __init__(self) -> None:
        listed = json.loads(
            subprocess.run(
                ["ansible-inventory", f"--inventory={INVENTORY}", "--list"],
                cwd=ROOT, check=True, capture_output=True, text=True,
            ).stdout
        )  # fmt: skip
        variables = listed["_meta"]["hostvars"]
        self.hosts: list[str] = sorted(listed["sglang_servers"]["hosts"])
        (self.gateway,) = listed["sglang_gateways"]["hosts"]
        self.address = {host: str(variables[host]["ansible_host"]) for host in [*self.hosts, self.gateway]}
        self.gateway_url = f"http://{self.address[self.gateway]}:8080"
        self._ssh = ["ssh", "-F", str(ROOT / ".sandbox" / "ssh" / f"{INVENTORY.name}.conf")]
        self._releases = 0
        self.runs: list[Run] = []

    def up(self) -> None:
        """Begin with empty hosts."""
        Run(ROOT / "playbooks" / "sandbox.yml", [], {"sandbox_fresh": True}, quick=False).succeeded()

    def down(self) -> None:
        """Remove them."""
        Run(HERE / "remove.yml", [], {}, quick=False).succeeded()

    # Rollouts

    def new_release(self) -> str:
        """The version of a release that no test has used."""
        self._releases += 1
        return f"{int(time.time()) % 100000}.{self._releases}.0"

    def start(
        self,
        release: str,
        behaviour: Mapping[str, Any] | None = None,
        *,
        hosts: list[str] | None = None,
        quick: bool = True,
        playbook: str = "deploy.yml",
        **variables: Any,
    ) -> Run:
        """Begin to roll a release out, with what is wrong with it."""
        run = Run(
            HERE / playbook,
            [f"--limit={','.join(hosts)}"] if hosts else [],
            {
                **SETTINGS,
                "rollout_test_release": release,
                "rollout_test_behaviour": behaviour or {},
                **variables,
            },
            quick=quick,
        )
        self.runs.append(run)
        return run

    def deploy(self, release: str, behaviour: Mapping[str, Any] | None = None, **given: Any) -> Run:
        """Roll a release out; it has to succeed."""
        return self.start(release, behaviour, **given).succeeded()

    # What is there

    def ssh(self, host: str, command: str, *, check: bool = True) -> str:
        """What a command prints on a host."""
        done = subprocess.run([*self._ssh, host, command], text=True, capture_output=True)
        assert not check or done.returncode == 0, f"{host}: {command}\n{done.stdout}{done.stderr}"
        return done.stdout.strip()

    def accepted(self, host: str) -> dict[str, Any]:
        """What the host would start at boot."""
        content: dict[str, Any] = json.loads(self.ssh(host, "cat /etc/sglang/accepted.json"))
        return content

    def current(self, host: str) -> str:
        """The release that the link points to."""
        return Path(self.ssh(host, "readlink /opt/sglang/current")).name

    def invocation(self, host: str) -> str:
        """Another one after every start of the server."""
        return self.ssh(host, "systemctl show --property=InvocationID --value sglang@eagle3.service")

    def running(self, host: str) -> str:
        """The release of the process that serves; empty when none does."""
        found = self.ssh(
            host,
            "tr '\\0' ' ' < /proc/$(systemctl show --property=MainPID --value sglang@eagle3)/cmdline",
            check=False,
        )
        return found.split("/")[4] if found.startswith("/opt/sglang/releases/") else ""

    def serving(self) -> list[str]:
        """The hosts that the gateway's manifest names."""
        text = self.ssh(self.gateway, "cat /var/lib/sglang-gateway/workers.json 2>/dev/null", check=False)
        urls = [worker["url"] for worker in json.loads(text or '{"workers": []}')["workers"]]
        return [host for host in self.hosts if f"http://{self.address[host]}:30000" in urls]

    def answers(self, host: str) -> bool:
        """Whether the host itself gives an answer, asked from here."""
        return self.health(f"http://{self.address[host]}:30000/health") == 200

    def receipt(self, host: str) -> dict[str, Any]:
        """The newest receipt that the controller has of a host."""
        return receipt.read_all(RECEIPTS / host)[0]

    def ready(self, *, alike: bool = False) -> dict[str, str]:
        """Every host serves what was accepted on it, through the gateway; returns the release of each.

        A test that failed may have left something else, and one of a single host other releases on the others: then a
        new release is rolled out first.

        Args:
            alike: all of them have to serve the same release.
        """
        serve = self.serving() == self.hosts and all(map(self._serves_its_own, self.hosts))
        if not serve or (alike and len({self.current(host) for host in self.hosts}) > 1):
            self.deploy(self.new_release())
        return {host: self.current(host) for host in self.hosts}

    def _serves_its_own(self, host: str) -> bool:
        return self.answers(host) and self.running(host) == self.current(host)

    @staticmethod
    def health(url: str, *, timeout: float = 5) -> int:
        """The status that an address answers with; 0 when nothing does."""
        try:
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with opener.open(url, timeout=timeout) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0


def podman(action: str, host: str) -> None:
    """``pause``: freeze a host; ``unpause``: let it go on."""
    subprocess.run(["podman", action, f"blackwell-{host}"], check=True, capture_output=True)


def wait_until(what: Callable[[], bool], *, seconds: float, why: str) -> None:
    """Wait until something is so; the test fails when it does not come."""
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, f"not within {seconds} s: {why}"
        time.sleep(0.5)
