"""The real upgrade: SGLang 0.5.9 to 0.5.10.post1 and back, on three hosts, under load through the gateway.

    python -m tests.rollout.real          # make rollout-demo

Everything is the project's own, on CPU: bundle, releases, patches (the delegation patch of 0.5.9 retires), gateway,
``playbooks/site.yml``, ``playbooks/upgrade.yml`` and ``playbooks/rollback.yml``.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.rollout.fleet import RECEIPTS, ROOT, Fleet, Run
from tests.rollout.load import Load, ask, report

OLD, NEW = "0.5.9", "0.5.10.post1"
MODEL = "kimi-tiny"
# What the tiny model says to everything.
SENTENCE = "Hello from a tiny model that really runs inside this server"
TOKENS = 32
SETTINGS = Path(__file__).with_name("real.yml")
VARIABLES: dict[str, Any] = {"rollout_controller_receipts": str(RECEIPTS), "upgrade_confirmed": True}


def play(name: str, *arguments: str, **variables: Any) -> Run:
    """Run one of the project's playbooks; it has to succeed."""
    return Run(
        ROOT / "playbooks" / name,
        [f"--extra-vars=@{SETTINGS}", *arguments],
        {**VARIABLES, **variables},
        quick=False,
    ).succeeded()


def load(fleet: Fleet) -> Load:
    """The load, which knows the whole answer: every host gives the same one."""
    asked: dict[str, object] = {
        "model": MODEL, "messages": [{"role": "user", "content": "Hello, who are you?"}],
        "max_tokens": TOKENS, "temperature": 0, "stream": False,
    }  # fmt: skip
    answers = {ask(f"http://{fleet.address[host]}:30000", asked)[0] for host in fleet.hosts}
    (answer,) = answers
    assert SENTENCE in answer, answer
    return Load(fleet.gateway_url, MODEL, answer, TOKENS)


def turns(fleet: Fleet) -> str:
    """A table of each host's turn: what the server took, what was measured, and what is left for the controller."""
    lines = [
        "| host | drain to restore, s | no answer, s | proof, s | the rest: Ansible, s |",
        "|---|--:|--:|--:|--:|",
    ]
    for host in fleet.hosts:
        seen = fleet.receipt(host)
        turn = sum(phase["seconds"] for phase in seen["phases"])
        proof = sum(phase["seconds"] for phase in seen["phases"] if phase["phase"] in ("compare", "prove"))
        outage = seen["outage"]["seconds"]
        lines.append(f"| {host} | {turn:.1f} | {outage:.1f} | {proof:.1f} | {turn - outage - proof:.1f} |")
    return "\n".join(lines)


def main() -> int:
    """Show the upgrade; status 1 when a request was lost."""
    parser = argparse.ArgumentParser(description="A real rolling upgrade under load, to watch.")
    parser.add_argument("--requests", type=int, default=2000, help="at least so many")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument(
        "--keep-hosts", action="store_true", help="take the hosts that are there, and leave them"
    )
    given = parser.parse_args()
    fleet = Fleet()
    if not given.keep_hosts:
        print("Starting three hosts and a gateway", flush=True)
        fleet.up()
    print(f"Deploying SGLang {OLD} to them. This takes minutes.", flush=True)
    play("site.yml")
    asked = load(fleet)
    print(f"Upgrading them to {NEW}, while {given.clients} clients ask through the gateway", flush=True)
    command: list[str | Path] = [
        ROOT / "bin" / "blackwell", "rollout", "--inventory", ROOT / "inventory" / "rollout",
        "--playbook", "playbooks/upgrade.yml", "--receipts", RECEIPTS, "--",
        f"--extra-vars=@{SETTINGS}", f"--extra-vars=rollout_controller_receipts={RECEIPTS}",
        f"--extra-vars=sglang_version={NEW}", "--extra-vars=upgrade_confirmed=true",
    ]  # fmt: skip
    with asked.running(clients=given.clients, at_least=given.requests):
        status = subprocess.run(command, cwd=ROOT).returncode
    print(turns(fleet))
    if not given.keep_hosts:
        fleet.down()
    return report(asked) or status


if __name__ == "__main__":
    sys.exit(main())
