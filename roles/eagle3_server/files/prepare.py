"""Get a host ready for one start of SGLang, then record what is being started. Run by the unit, as root.

    prepare.py --profile NAME --deployment FOLDER --unit NAME --port N --gpus N --timeout SECONDS
               [--name MODEL]... [--uuids A,B] [--user NAME]
    prepare.py --check-driver --gpus N [--deployment FOLDER] [--name MODEL]... [--uuids A,B]

It waits, within the timeout, for what would otherwise be a puzzling crash later: GPUs that the driver shows
only some time after boot, memory that the processes of the last server still hold, a port that is not free
yet, shared memory that is full. It exits with status 1 and says what is missing. Then it writes
/run/sglang/NAME.json with the SHA-256 of every file that this start uses: by it a later run of Ansible knows
whether the running process still is what the files say.

The cards are those that CUDA will take: CUDA_VISIBLE_DEVICES of the unit's environment names them, and without it
they are the first ones. With --check-driver it only asks, once, whether the driver works and shows these cards; it
waits for nothing and changes nothing. A deployment that is there says itself which cards it starts on.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import pwd
import re
import shlex
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

# A driver and its contexts hold some memory of every GPU; a server that has not gone holds much more.
GPU_MEMORY_LEFT_OVER = 2048  # MiB

RECORDS = Path("/run/sglang")

# CUDA needs it, and the service may not load the module itself: making device files is for root.
UNIFIED_MEMORY = Path("/dev/nvidia-uvm")

SHARED_MEMORY = Path("/dev/shm")
# NCCL, torch, SGLang and Python's shared_memory name their files so.
LEFT_OVER_NAMES = ("nccl-", "psm_", "sgl_", "torch_")
# A file may be on its way: made and closed by one process, and not yet opened by the one that it is for.
ON_ITS_WAY_S = 60
# Eight ranks share up to some hundred MiB. A small /dev/shm is for the preflight to judge: here is only asked whether
# it is full, that is less than a quarter of it free.
SHARED_MEMORY_NEEDED = 512 * 2**20

# NVML_ERROR_CORRUPTED_INFOROM: nvidia-smi has printed its whole report, and one card's own records are damaged.
INFOROM_CORRUPTED = 14

_MEMORY = re.compile(r"(\d+(?:\.\d+)?)\s*(MiB|GiB)?")
# What nvidia-smi has said already: it is asked every second.
_SAID: set[str] = set()
# What it prints where it has no value.
_NO_VALUE = re.compile(
    r"\[[^\]]*\]|ERR!|N/A|(Not Supported|Unknown Error|GPU requires reset|GPU is lost|Insufficient Permissions|"
    r"Function Not Found|No data)\.?",
    re.IGNORECASE,
)


class Card(NamedTuple):
    """One GPU as nvidia-smi shows it; text that it does not give is empty."""

    index: int
    uuid: str
    name: str
    used: str

    @property
    def used_mib(self) -> float | None:
        """Memory in use, None if the driver does not say."""
        match = _MEMORY.fullmatch(self.used)
        return float(match[1]) * (1024 if match[2] == "GiB" else 1) if match else None


class Wanted(NamedTuple):
    """The cards of this start: how many, what CUDA_VISIBLE_DEVICES says, and what they were when it was written."""

    gpus: int
    visible: str = ""
    names: tuple[str, ...] = ()
    uuids: tuple[str, ...] = ()


def ask(*command: str) -> tuple[int, list[str], str]:
    """Exit status of a command (-1: it did not run or did not end), its lines, and what it complained of."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            encoding="utf-8",
            errors="replace",
            timeout=30,
            env={**os.environ, "LC_ALL": "C"},
            check=False,
        )
    except OSError as error:
        return -1, [], f"{command[0]} does not run: {error.strerror}"
    except subprocess.TimeoutExpired:
        return -1, [], f"{command[0]} did not end within 30 s; a card may be lost, see dmesg"
    lines = [line.strip() for line in done.stdout.replace("\0", "").splitlines()]
    return done.returncode, [line for line in lines if line], done.stderr.replace("\0", "")


def lines_of(*command: str) -> list[str]:
    """The lines that a command prints, none if it fails or is not there."""
    status, lines, _ = ask(*command)
    return lines if status == 0 else []


# --- GPUs ---


def read_cards(lines: list[str]) -> tuple[list[Card], list[str]]:
    """The rows of nvidia-smi (index, uuid, name, memory.used), and the lines that are no row."""
    cards: list[Card] = []
    others: list[str] = []
    for line in lines:
        cells = [cell.strip() for cell in line.split(",")]
        first, last = cells[0], cells[-1]
        fits = _MEMORY.fullmatch(last) or _NO_VALUE.fullmatch(last)
        if not fits or (
            len(cells) > 1 and not (re.fullmatch("[0-9]{1,4}", first) or _NO_VALUE.fullmatch(first))
        ):
            others.append(line)
            continue
        index = int(first) if len(cells) > 1 and re.fullmatch("[0-9]{1,4}", first) else len(cards)
        uuid, name = (cells[1], ",".join(cells[2:-1])) if len(cells) > 3 else ("", "")
        cards.append(Card(index, uuid, name, last))
    return cards, others


def look_at_cards() -> tuple[list[Card], list[str], str]:
    """All cards, what nvidia-smi says beside, and why there is no report."""
    status, lines, complaint = ask(
        "nvidia-smi", "--query-gpu=index,uuid,name,memory.used", "--format=csv,noheader,nounits"
    )
    cards, others = read_cards(lines)
    said = " ".join([*others, *complaint.split()])[:300]
    if status == -1:
        return [], [], said
    if status not in (0, INFOROM_CORRUPTED):
        return [], [], f"it ends with status {status}: {said or 'it says nothing'}"
    return cards, [said] if said else [], ""


def choose(cards: list[Card], wanted: Wanted) -> tuple[list[Card], str]:
    """The cards that CUDA will take, or why it cannot take them."""
    if not wanted.visible:
        chosen = cards[: wanted.gpus]
    else:
        chosen = []
        entries = [entry.strip() for entry in wanted.visible.split(",") if entry.strip()]
        if len(entries) < wanted.gpus:
            return [], f"CUDA_VISIBLE_DEVICES={wanted.visible} names {len(entries)} of {wanted.gpus} GPUs"
        for entry in entries[: wanted.gpus]:
            found = [
                card
                for card in cards
                if entry == str(card.index) or (entry.startswith("GPU-") and card.uuid.startswith(entry))
            ]
            if len(found) != 1:
                shown = ", ".join(str(card.index) for card in cards) or "none"
                return [], f"nvidia-smi shows no GPU {entry}, which the deployment names; it shows {shown}"
            if found[0] in chosen:
                return [], f"CUDA_VISIBLE_DEVICES={wanted.visible} names GPU {found[0].index} twice"
            chosen += found
    if len(chosen) < wanted.gpus:
        return [], f"nvidia-smi shows {len(chosen)} of {wanted.gpus} GPUs"
    return chosen, ""


def changed(cards: list[Card], wanted: Wanted) -> str:
    """Which of the cards is not what the deployment was made for, or does not tell; empty if all are."""
    for card in cards:
        for field, value, right in (("name", card.name, wanted.names), ("uuid", card.uuid, wanted.uuids)):
            if right and (not value or _NO_VALUE.fullmatch(value)):
                return f"GPU {card.index} is not ready: its {field} is {value or 'not told'}"
            if right and value not in right:
                return (
                    f"the {field} of GPU {card.index} is {value}, and the deployment was made for "
                    f"{', '.join(right)}: cards were added or changed. Run site.yml, which chooses them anew"
                )
    return ""


def cards_not_shown(wanted: Wanted) -> tuple[list[Card], str]:
    """The cards of this start, or why the driver cannot give them."""
    cards, said, failed = look_at_cards()
    if failed:
        return [], f"nvidia-smi shows 0 of {wanted.gpus} GPUs: {failed}"
    chosen, reason = choose(cards, wanted)
    reason = reason or changed(chosen, wanted)
    beside = f"; it also says: {said[0]}" if said else ""
    if reason:
        return [], reason + beside
    for card in chosen:
        if card.used_mib is None:
            return [], (
                f"GPU {card.index} is not ready: its memory.used is {card.used}; see: nvidia-smi -q -i {card.index}"
            ) + beside
    for line in said:
        if line not in _SAID:
            _SAID.add(line)
            print(f"Warning: nvidia-smi says: {line}", flush=True)
    return chosen, ""


def busy(cards: list[Card]) -> str:
    """Which of the cards somebody else uses; empty if none."""
    full = [card for card in cards if (card.used_mib or 0) > GPU_MEMORY_LEFT_OVER]
    if not full:
        return ""
    rows = lines_of(
        "nvidia-smi", "--query-compute-apps=gpu_uuid,pid,name,used_memory", "--format=csv,noheader"
    )
    uuids = {card.uuid for card in full}
    holders = {
        row.partition(",")[2].strip() if row.startswith("GPU-") else row
        for row in rows
        if not row.startswith("GPU-") or row.partition(",")[0] in uuids or uuids == {""}
    }
    return (
        f"{len(full)} GPUs are in use by another process (GPU {', '.join(str(card.index) for card in full)}): "
        f"{'; '.join(sorted(holders)) or 'not shown'}"
    )


# --- shared memory ---


def left_over(user: str) -> list[Path]:
    """The files in shared memory that servers of the user made, and that nobody has written to for a minute."""
    try:
        uid = pwd.getpwnam(user).pw_uid
        files = sorted(SHARED_MEMORY.iterdir())
    except (KeyError, OSError):
        return []
    found = []
    for file in files:
        with contextlib.suppress(OSError):
            status = file.lstat()
            if (
                file.name.startswith(LEFT_OVER_NAMES)
                and stat.S_ISREG(status.st_mode)
                and status.st_uid == uid
                and time.time() - status.st_mtime > ON_ITS_WAY_S
            ):
                found.append(file)
    return found


def in_use(files: list[Path]) -> set[Path]:
    """Which of the files a process has open or mapped; all of them if one of their user's cannot be looked into.

    The files are for their user alone. Process 1 is systemd, which runs this, and in a container it may be closed.
    """
    owners = set()
    by_inode = {}
    for file in files:
        with contextlib.suppress(OSError):
            status = file.lstat()
            owners.add(status.st_uid)
            by_inode[status.st_dev, status.st_ino] = file
    # Some file systems give a mapping another device than the file itself: there its name tells.
    by_name = {str(file): file for file in files}
    used: set[Path] = set()
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        try:
            for line in (process / "maps").read_text(encoding="utf-8", errors="replace").splitlines():
                if mapped := _mapped(line, by_name, by_inode):
                    used.add(mapped)
            for link in (process / "fd").iterdir():
                # Gone by now is closed by now.
                with contextlib.suppress(FileNotFoundError):
                    used |= _opened(link, files)
        except (FileNotFoundError, ProcessLookupError):
            continue
        except OSError:
            if process.name != "1" and may_hold(process, owners):
                return set(files)
    return used


def _opened(link: Path, files: list[Path]) -> set[Path]:
    """Those of the files that a link in /proc/PID/fd may mean, by the name alone: to ask a dead network drive hangs."""
    return {file for file in files if file.name == Path(str(link.readlink())).name}


def _mapped(line: str, by_name: dict[str, Path], by_inode: dict[tuple[int, int], Path]) -> Path | None:
    """The file of one line of /proc/PID/maps, if it is one of ours."""
    match = re.match(r"\S+ \S+ \S+ ([0-9a-f]+):([0-9a-f]+) (\d+)\s*(.*)", line)
    if not match:
        return None
    device = os.makedev(int(match[1], 16), int(match[2], 16))
    return by_name.get(match[4]) or by_inode.get((device, int(match[3])))


def may_hold(process: Path, owners: set[int]) -> bool:
    """Whether a process that cannot be looked into may have files of these users: it has not ended, and is theirs."""
    try:
        return process.stat().st_uid in owners and "\nState:\tZ" not in (process / "status").read_text(
            encoding="utf-8", errors="replace"
        )
    except OSError:
        return False


def clear_shared_memory(user: str) -> None:
    """Remove what earlier servers of the user left in shared memory and no process has open, and say so."""
    files = left_over(user)
    if not files:
        return
    # After the list: a file that is made later is not on it.
    used = in_use(files)
    removed = 0
    names = []
    for file in files:
        if file not in used:
            with contextlib.suppress(OSError):
                size = file.stat().st_blocks * 512
                file.unlink()
                removed += size
                names.append(file.name)
    if names:
        shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        print(
            f"Removed from {SHARED_MEMORY} what an earlier server of {user} left ({removed / 2**20:.0f} MiB): {shown}",
            flush=True,
        )


def no_shared_memory() -> str:
    """Why shared memory is too full for a start; empty if it is not, or there is none to ask."""
    try:
        room = os.statvfs(SHARED_MEMORY)
        files = [(file.lstat().st_blocks * 512, file.name) for file in SHARED_MEMORY.iterdir()]
    except OSError:
        return ""
    free, size = room.f_bavail * room.f_frsize, room.f_blocks * room.f_frsize
    needed = min(SHARED_MEMORY_NEEDED, size // 4)
    if free >= needed:
        return ""
    largest = ", ".join(f"{name} ({held / 2**20:.0f} MiB)" for held, name in sorted(files, reverse=True)[:3])
    return (
        f"{SHARED_MEMORY} has {free / 2**20:.0f} of {size / 2**20:.0f} MiB free, and a start needs "
        f"{needed / 2**20:.0f}; the largest files there: {largest or 'none'}. Remove what is not needed; "
        f"fuser -v {SHARED_MEMORY}/* shows who has them"
    )


# --- all of it ---


def not_ready(port: int, gpus: int, wanted: Wanted | None = None, user: str = "") -> str:
    """Why SGLang cannot be started yet; empty when it can.

    Args:
        port: the TCP port that has to be free.
        gpus: how many cards are needed; 0 asks for none.
        wanted: which cards; None for the first ones.
        user: the service user, whose leftovers in shared memory are removed; empty for nobody's.
    """
    if gpus:
        cards, reason = cards_not_shown(wanted or Wanted(gpus))
        reason = reason or busy(cards)
        if reason:
            return reason
        if not UNIFIED_MEMORY.exists():
            lines_of("nvidia-modprobe", "-u", "-c", "0")
        if not UNIFIED_MEMORY.exists():
            return f"{UNIFIED_MEMORY} is missing; see: nvidia-modprobe -u -c 0"
    with socket.socket() as probe:
        # As SGLang's web server does: connections of the last server in TIME_WAIT do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            return f"port {port} is taken ({error.strerror}); see: ss -ltnp 'sport = :{port}'"
    # Only now: while the last server has its port and its cards, its files are its own.
    if user:
        clear_shared_memory(user)
    return no_shared_memory() if gpus else ""


def record(profile: str, deployment: Path, unit: str) -> str:
    """Write down what this start uses, in one step: of the unit that is the file that systemd has loaded.

    Returns:
        why it could not be written; empty if it was.
    """
    status, loaded, complaint = ask("systemctl", "show", "--property=FragmentPath", "--value", "--", unit)
    if status != 0 or len(loaded) != 1:
        return f"systemctl does not say from which file {unit} is loaded: {complaint.strip()[:300] or loaded}"
    try:
        files = [*(file for file in deployment.iterdir() if file.is_file()), Path(loaded[0])]
        digest = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
        entry = {
            "deployment": deployment.name,
            "invocation": os.environ.get("INVOCATION_ID", ""),
            "files": digest,
        }
        RECORDS.mkdir(mode=0o755, exist_ok=True)
        draft = RECORDS / f".{profile}.json"
        draft.write_text(json.dumps(entry, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        draft.replace(RECORDS / f"{profile}.json")
    except OSError as error:
        return f"the record of this start in {RECORDS} cannot be made: {error}"
    return ""


def wanted_by(deployment: Path) -> Wanted | None:
    """The cards that a deployment starts on, by its unit and its environment; None if it cannot be read."""
    try:
        unit = sorted(deployment.glob("sglang@*.service"))[0]
        text = unit.read_text(encoding="utf-8").replace("\\\n", " ")
        (line,) = re.findall(r"^ExecStartPre=.*prepare\.py (.*)$", text, re.MULTILINE)
        given, _ = arguments().parse_known_args(shlex.split(line))
        variables = unit.with_name(unit.name[len("sglang@") : -len(".service")] + ".env").read_text(
            encoding="utf-8"
        )
        values = re.findall(r"^CUDA_VISIBLE_DEVICES=(.*)$", variables, re.MULTILINE)
        visible = "".join(shlex.split(values[-1])) if values else ""
    except (OSError, ValueError, IndexError, SystemExit):  # argparse ends the program itself
        return None
    return wanted_of(given, visible)


def wanted_of(given: argparse.Namespace, visible: str) -> Wanted:
    """The cards that arguments and CUDA_VISIBLE_DEVICES name."""
    return Wanted(given.gpus, visible, tuple(given.name), tuple(filter(None, given.uuids.split(","))))


def check_driver(wanted: Wanted) -> str:
    """Why no server could start here for want of the driver and its cards; empty if one could.

    Args:
        wanted: the cards; with 0 of them a host without nvidia-smi is right, and a driver that is there has to work.
    """
    if wanted.gpus:
        return cards_not_shown(wanted)[1]
    status, _, complaint = ask("nvidia-smi", "-L")
    missing = status == -1 and "did not end" not in complaint
    return "" if missing or status in (0, INFOROM_CORRUPTED) else look_at_cards()[2]


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Get a host ready for one start of SGLang.")
    parser.add_argument("--check-driver", action="store_true")
    parser.add_argument("--profile")
    parser.add_argument("--deployment", type=Path)
    parser.add_argument("--unit")
    parser.add_argument("--port", type=int)
    parser.add_argument("--gpus", required=True, type=int)
    parser.add_argument("--timeout", type=float, default=0)
    parser.add_argument("--name", action="append", default=[])
    parser.add_argument("--uuids", default="")
    parser.add_argument("--user", default="")
    return parser


def main() -> str:
    parser = arguments()
    given = parser.parse_args()
    wanted = wanted_of(given, os.environ.get("CUDA_VISIBLE_DEVICES", ""))
    if given.check_driver:
        reason = check_driver((given.deployment and wanted_by(given.deployment)) or wanted)
        return f"No server can start here now: {reason}" if reason else ""
    if None in (given.profile, given.deployment, given.unit, given.port):
        parser.error("--profile, --deployment, --unit and --port are needed for a start")
    deadline = time.monotonic() + given.timeout
    said = ""
    while reason := not_ready(given.port, given.gpus, wanted, given.user):
        if time.monotonic() > deadline:
            return f"Not started after waiting for {given.timeout:.0f} s: {reason}"
        if reason != said:
            print(f"Waiting: {reason}", flush=True)
            said = reason
        time.sleep(1)
    reason = record(given.profile, given.deployment, given.unit)
    return f"Not started: {reason}" if reason else ""


if __name__ == "__main__":
    sys.exit(main() or 0)
