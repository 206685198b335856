"""A rollout as a table: which host, which phase, for how long, and how long it usually takes."""

from __future__ import annotations

import re
import shlex
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ansible_runner
from blackwell import receipt as receipts
from rich.console import Console
from rich.live import Live
from rich.table import Table

# What roles/rollout/tasks/mark.yml says.
_PHASE = re.compile(r"^(?P<host>[^:]+): (?P<phase>drain|wait|compare|start|prove|accept|return|restore)\b")
_PREPARE = "prepare"


@dataclass
class Turn:
    """Where a host stands.

    Attributes:
        phase: the last phase that was said; empty before the host's turn.
        since: when it began, in seconds since the epoch.
        done: seconds of the phases that are over.
        task: the task that runs.
        failed: the message of a failure.
    """

    phase: str = ""
    since: float = 0.0
    done: dict[str, float] = field(default_factory=dict)
    task: str = ""
    failed: str = ""


class Board:
    """Follows the events of ansible-runner, host by host."""

    def __init__(self, folder: Path) -> None:
        self.turns: dict[str, Turn] = {}
        self.play = ""
        self._folder = folder
        self._usual: dict[str, dict[str, float]] = {}
        self._lock = threading.Lock()

    def event(self, event: dict[str, Any]) -> None:
        """Take in one event."""
        data = event.get("event_data") or {}
        host, now = data.get("host"), time.time()
        with self._lock:
            if event["event"] == "playbook_on_play_start":
                self.play = data.get("name", "")
            if not host:
                return
            turn = self.turns.setdefault(host, Turn(_PREPARE, now))
            turn.task = data.get("task", "")
            result = data.get("res") or {}
            said = _PHASE.match(str(result.get("msg", ""))) if event["event"] == "runner_on_ok" else None
            if said and said["host"] == host and data.get("task") == "Report the phase":
                self._enter(turn, said["phase"], now)
            if event["event"] in ("runner_on_failed", "runner_on_unreachable") and not data.get(
                "ignore_errors"
            ):
                turn.failed = str(result.get("msg") or "failed")

    def usual(self, host: str, phase: str) -> float | None:
        """What a phase took in earlier rollouts, in seconds."""
        if host not in self._usual:
            self._usual[host] = receipts.expected(receipts.read_all(self._folder / host))
        return self._usual[host].get(phase)

    def table(self, now: float) -> Table:
        """What is known now."""
        table = Table("host", "phase", "elapsed", "usually", "done", "now", box=None, title=self.play or None)
        with self._lock:
            for host, turn in self.turns.items():
                usual = self.usual(host, turn.phase)
                table.add_row(
                    host,
                    f"[red]{turn.phase}[/]" if turn.failed else turn.phase,
                    f"{now - turn.since:.0f} s",
                    f"{usual:.0f} s" if usual else "-",
                    ", ".join(
                        f"{phase} {seconds:.0f} s"
                        for phase, seconds in turn.done.items()
                        if phase != _PREPARE
                    ),
                    turn.task,
                )
        return table

    @staticmethod
    def _enter(turn: Turn, phase: str, now: float) -> None:
        turn.done[turn.phase] = turn.done.get(turn.phase, 0.0) + now - turn.since
        turn.phase, turn.since = phase, now


def _last(text: str, lines: int = 20) -> str:
    """The last lines of what Ansible said, without colours; of an option that it does not know, why."""
    said = [line for line in re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines() if line.strip()]
    # The whole help follows that line.
    refused = [line for line in said if line.startswith("ansible-playbook: error: ")]
    return "".join(f"{line}\n" for line in refused or said[-lines:])


def run(console: Console, root: Path, playbook: str, inventory: str, rest: list[str], folder: Path) -> int:
    """Run a playbook and show the board; Ansible's own output goes to a file, and failures to the terminal.

    Returns ansible-playbook's exit status.
    """
    board = Board(folder)
    with tempfile.TemporaryDirectory() as private, Live(console=console, refresh_per_second=2) as live:
        thread, runner = ansible_runner.run_async(
            private_data_dir=private,
            project_dir=str(root),
            playbook=str(root / playbook),
            inventory=str(Path(inventory).resolve()),
            cmdline=shlex.join(rest) or None,
            envvars={"ANSIBLE_CONFIG": str(root / "ansible.cfg")},
            event_handler=board.event,
            quiet=True,
        )
        while thread.is_alive():
            live.update(board.table(time.time()))
            thread.join(0.5)
        live.update(board.table(time.time()))
        said = runner.stdout.read() if runner.rc else ""
    failed = {host: turn.failed for host, turn in board.turns.items() if turn.failed}
    for host, message in failed.items():
        # A message holds brackets of its own, such as [inventory/hosts.yml:5].
        console.print(f"[red]{host}[/]:", end=" ")
        console.print(message, markup=False)
    if not failed:
        # No host is to blame, but what was given: a playbook that is not there, say, or a vault without its password.
        console.print(_last(said), style="red", markup=False, end="")
    console.print("Receipts: bin/blackwell receipts; what differs: bin/blackwell explain HOST~1 HOST")
    status: int = runner.rc
    return status
