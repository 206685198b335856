"""The PCIe path of a card: what ``lspci -vvv`` says about ports, and how sysfs nests them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

_ADDRESS = r"(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]"
_HEAD = re.compile(rf"^(?P<address>{_ADDRESS}) (?P<kind>[^:]+): (?P<name>.*)$")


@dataclass(frozen=True)
class Port:
    """One function of ``lspci -vvv``. What lspci does not show (without root, say) is empty or None."""

    address: str
    kind: str
    name: str
    port: str
    speed: str
    speed_max: str
    width: int | None
    width_max: int | None
    aspm: str
    acs: frozenset[str] | None

    @property
    def redirects(self) -> bool:
        """Whether access control sends peer-to-peer traffic of this port up to the root complex."""
        return bool(self.acs and self.acs.intersection({"ReqRedir", "CmpltRedir"}))


def full_address(address: str) -> str:
    """``41:00.0`` and ``00000000:41:00.0`` as sysfs writes them: ``0000:41:00.0``."""
    address = address.lower()
    parts = address.split(":")
    domain = parts[0][-4:] if len(parts) == 3 else "0000"
    return ":".join([domain, *parts[-2:]])


def _field(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    return match.group(1) if match else ""


def parse_lspci(text: str) -> dict[str, Port]:
    """Read ``lspci -vvv``, all functions by full address."""
    ports = {}
    for block in re.split(r"\n(?=\S)", text.strip()):
        head = _HEAD.match(block.split("\n", 1)[0].strip())
        if not head:
            continue
        width = _field(r"LnkSta:.*?Width x(\d+)", block)
        width_max = _field(r"LnkCap:.*?Width x(\d+)", block)
        acs = re.search(r"ACSCtl:\s*([^\n]*(?:\n\s+\S+[+-](?: |$)[^\n:]*)*)", block)
        address = full_address(head["address"])
        ports[address] = Port(
            address=address,
            kind=re.sub(r" \[[0-9a-f]{4}\]$", "", head["kind"]),
            name=head["name"],
            port=_field(r"Capabilities: \[\w+\] Express \([^)]*\) ([\w -]+?)(?: \(|,|\n)", block),
            speed=_field(r"LnkSta:\s*Speed ([\d.]+GT/s)", block),
            speed_max=_field(r"LnkCap:.*?Speed ([\d.]+GT/s)", block),
            width=int(width) if width else None,
            width_max=int(width_max) if width_max else None,
            aspm=_field(r"LnkCtl:\s*ASPM ([^;\n]+);", block),
            acs=frozenset(re.findall(r"(\w+)\+", acs.group(1))) if acs else None,
        )
    return ports


def path_to(device_path: str) -> list[str]:
    """The addresses from the root port down to the device, from its resolved path in sysfs."""
    return [
        part
        for part in device_path.split("/")
        if re.fullmatch(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", part)
    ]


def upstream_ports(paths: Mapping[str, Iterable[str]], ports: Mapping[str, Port]) -> list[Port]:
    """The ports above the given devices, each once, in the order of their addresses.

    Args:
        paths: for each device the addresses from the root port down to it.
        ports: what lspci said.
    """
    above = {address for device, path in paths.items() for address in path if address != device}
    return [ports[address] for address in sorted(above) if address in ports]
