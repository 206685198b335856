"""What the kernel and the distribution say of themselves, in small files and in the kernel's log."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

# Xids after which the card, its link or its memory is not to be trusted before somebody looked; the other
# ones are mostly faults of programs. From NVIDIA's "XID Errors" catalogue.
FATAL_XIDS = {
    46: "GPU stopped processing",
    48: "double bit ECC error",
    61: "internal micro-controller breakpoint",
    62: "internal micro-controller halt",
    64: "ECC row remapping failure",
    74: "NVLink error",
    79: "GPU has fallen off the bus",
    95: "uncontained memory error",
    119: "GSP did not answer",
    120: "GSP error",
    143: "GPU initialization failed",
    154: "the driver asks for a reset",
}


# Packages that a driver of any branch consists of: its libraries and its module.
_DRIVER_PACKAGES = ("libnvidia-compute-580-server", "nvidia-dkms-580-server-open")


@dataclass(frozen=True)
class Xid:
    """One error that the driver logged."""

    address: str
    code: int
    text: str


@dataclass(frozen=True)
class Listener:
    """A TCP socket that listens, the inode by which its process is found, and the user it belongs to."""

    port: int
    inode: str
    uid: int


def parse_os_release(text: str) -> dict[str, str]:
    """Read ``/etc/os-release``."""
    pairs = (line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#"))
    return {key.strip(): _unquoted(value) for key, value in pairs}


def _unquoted(value: str) -> str:
    try:
        return " ".join(shlex.split(value))
    except ValueError:
        return value.strip().strip("\"'")


def has_apt(release: Mapping[str, str]) -> bool:
    """Whether a distribution is Debian or made from it, by what ``parse_os_release`` gave."""
    return bool(
        {"debian", "ubuntu"}.intersection(f"{release.get('ID', '')} {release.get('ID_LIKE', '')}".split())
    )


def parse_apt_policy(text: str) -> list[str]:
    """The packages that ``apt-cache policy`` knows a candidate of."""
    return re.findall(r"^(\S+):\n(?: .*\n)*? +Candidate: (?!\(none\))\S", text, re.MULTILINE)


def parse_ldconfig(text: str) -> dict[str, str]:
    """Read ``ldconfig -p``: for each library the file that the loader takes, the first of several."""
    found: dict[str, str] = {}
    for name, kind, path in re.findall(r"^\s+(\S+) \(([^)]*)\) => (/.*)$", text, re.MULTILINE):
        if "x86-64" in kind:
            found.setdefault(name, path)
    return found


def parse_meminfo(text: str) -> dict[str, int]:
    """Read ``/proc/meminfo``; values in bytes."""
    found = re.findall(r"^(\w+(?:\(\w+\))?):\s+(\d+)(?: (kB))?", text, re.MULTILINE)
    return {name: int(value) * (1024 if unit else 1) for name, value, unit in found}


def parse_cpu_model(text: str) -> str:
    """The model of the first processor of ``/proc/cpuinfo``."""
    match = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return match.group(1).strip() if match else ""


def parse_sockets(text: str) -> int:
    """How many sockets ``/proc/cpuinfo`` shows."""
    return len(set(re.findall(r"^physical id\s*:\s*(\d+)$", text, re.MULTILINE))) or 1


def parse_cmdline(text: str) -> list[str]:
    """The words of a kernel command line; quoted values stay whole."""
    return re.findall(r'(?:[^\s"]|"[^"]*")+', text)


def parse_module_version(text: str) -> str:
    """The version of the loaded driver, from ``/proc/driver/nvidia/version``."""
    match = re.search(r"^NVRM version:.*?\s(\d+\.\d+(?:\.\d+)?)\s", text, re.MULTILINE)
    return match.group(1) if match else ""


def parse_module_open(text: str) -> bool:
    """Whether the loaded driver is the open kernel module."""
    return "Open Kernel Module" in text


def parse_driver_params(text: str) -> dict[str, str]:
    """Read ``/proc/driver/nvidia/params``."""
    pairs = (line.split(":", 1) for line in text.splitlines() if ":" in line)
    return {key.strip(): value.strip().strip('"') for key, value in pairs}


def parse_nvml_version(text: str) -> str:
    """The version of the user-space library, from nvidia-smi's complaint that it does not fit the module.

    The complaint leaves out the last part: ``580.178`` stands for 580.178.04.
    """
    match = re.search(r"NVML library version:\s*(\d+\.\d+(?:\.\d+)?)", text)
    return match.group(1) if match else ""


def parse_xids(text: str) -> list[Xid]:
    """The driver's errors in a kernel log, oldest first.

    A card that is gone when the driver starts has no Xid, but three lines of text, and one whose Xid the log has lost
    has one line; it counts as Xid 79.
    """
    found = re.findall(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)(?: [^)\n]*)?\): (\d+)(?:, (.*))?", text)
    xids = [Xid(_slot(address), int(code), rest.strip()) for address, code, rest in found]
    lost = re.findall(r"NVRM: The NVIDIA GPU ([0-9a-fA-F:.]+)\s[^\[]*?fallen off the bus", text)
    lost += re.findall(r"NVRM: GPU ([0-9a-fA-F:.]+): GPU has fallen off the bus", text)
    told = {xid.address for xid in xids if xid.code == 79}
    return xids + [
        Xid(slot, 79, FATAL_XIDS[79]) for slot in dict.fromkeys(map(_slot, lost)) if slot not in told
    ]


def _slot(address: str) -> str:
    """``0000:B3:00.0`` without its function, as Xids have it."""
    return address.lower().split(".")[0]


def needs_open_module(text: str) -> bool:
    """Whether the driver refused a card in a kernel log because it wants the open kernel module."""
    return "requires use of the NVIDIA open kernel modules" in " ".join(text.split())


def parse_listeners(text: str) -> list[Listener]:
    """The listening sockets of ``/proc/net/tcp`` or ``/proc/net/tcp6``."""
    listeners = []
    for line in text.splitlines()[1:]:
        fields = line.split()
        if len(fields) < 10 or fields[3] != "0A":
            continue
        port = re.fullmatch(r"[0-9A-Fa-f]+:([0-9A-Fa-f]{4})", fields[1])
        if port and re.fullmatch(r"[0-9]{1,10}", fields[7]):
            listeners.append(Listener(int(port[1], 16), fields[9], int(fields[7])))
    return listeners


def parse_unit(text: str) -> str:
    """The systemd unit of a process, from ``/proc/<pid>/cgroup``; empty outside of one."""
    for line in text.splitlines():
        for part in reversed(line.rsplit(":", 1)[-1].split("/")):
            if part.endswith((".service", ".scope", ".socket")):
                return part
    return ""


def parse_apt_config(text: str) -> dict[str, list[str]]:
    """Read ``apt-config dump``: the values of each option, lists under the name without the closing ``::``."""
    options: dict[str, list[str]] = {}
    for name, value in re.findall(r'^(\S+?)(?:::)? "(.*)";$', text, re.MULTILINE):
        if value:
            options.setdefault(name, []).append(value)
    return options


def upgrades_driver(config: Mapping[str, Sequence[str]], held: Iterable[str]) -> str:
    """What keeps unattended-upgrades from the packages of the driver; empty if nothing does.

    Args:
        config: what ``parse_apt_config`` gave.
        held: the packages that ``apt-mark showhold`` names.
    """
    if config.get("APT::Periodic::Unattended-Upgrade", ["0"])[-1] == "0":
        return "unattended-upgrades is off"
    patterns = config.get("Unattended-Upgrade::Package-Blacklist", [])
    if all(any(re.match(pattern, package) for pattern in patterns) for package in _DRIVER_PACKAGES):
        return "kept from unattended-upgrades"
    kept = [package for package in held if "nvidia" in package]
    return f"held: {', '.join(kept)}" if kept else ""


def version_tuple(text: str) -> tuple[int, ...]:
    """``580.95.05`` as numbers, to compare."""
    return tuple(int(part) for part in re.findall(r"\d+", text))


def newest(releases: Iterable[str]) -> str:
    """The highest kernel release of several."""
    return max(releases, key=version_tuple, default="")
