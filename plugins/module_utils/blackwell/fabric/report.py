"""What was judged, as rows; the fingerprint that figures are tied to; and the table that a person reads."""

from __future__ import annotations

import hashlib
import json
import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from . import pci
from .collect import Facts
from .smi import Gpu

OK, WARN, FAIL, SKIP = "ok", "warn", "fail", "skip"
_ORDER = {FAIL: 0, WARN: 1, OK: 2, SKIP: 3}


# The id of every check, by which its failure is waived; docs/preflight.md has them, too.
IDS = frozenset({
    "acs", "architecture", "aspm", "bar1", "compiler", "compute_capability", "compute_mode",
    "distribution", "driver", "driver_files", "driver_mismatch", "driver_upgrades", "driver_warnings",
    "ecc", "glibc", "governor", "gpu", "gpu_count", "gpu_memory", "gpu_mixed", "gpu_model",
    "gpu_processes", "hmm", "iommu", "link", "memory", "mig", "model", "model_space", "nccl",
    "next_kernel", "nouveau", "numa", "numa_balancing", "p2p", "persistence", "port", "power_limit",
    "python", "python_headers", "recovery", "registry", "release_space", "shm", "slowdown", "systemd",
    "topology", "uplink", "xid",
})  # fmt: skip


@dataclass(frozen=True)
class Check:
    """One thing that was looked at.

    Args:
        id: a short name that stays the same over releases; it can be waived by it.
        status: ``ok``, ``warn``, ``fail`` or ``skip``.
        subject: what was looked at.
        found: what is there.
        expected: what would be right.
        remedy: the command or the setting that mends it; empty if nothing has to be mended.
    """

    id: str
    status: str
    subject: str
    found: str
    expected: str = ""
    remedy: str = ""

    def __str__(self) -> str:
        text = f"{self.subject}: found {self.found}"
        if self.expected:
            text += f", expected {self.expected}"
        return f"{text}. {self.remedy}." if self.remedy else f"{text}."


def row(
    id: str,
    subject: str,
    bad: bool,
    found: str,
    expected: str = "",
    remedy: str = "",
    *,
    severity: str = WARN,
) -> Check:
    """A check that is in order, or has ``severity`` and a remedy."""
    return Check(id, severity if bad else OK, subject, found, expected, remedy if bad else "")


def named(gpus: Iterable[Gpu]) -> str:
    """``GPU 0, 3``."""
    return f"GPU {', '.join(str(gpu.index) for gpu in gpus)}"


def each(values: Iterable[str]) -> str:
    """``8x Enabled``, ``7x Enabled, 1x Disabled``."""
    return ", ".join(f"{count}x {value}" for value, count in Counter(values).most_common())


def waive(checks: Sequence[Check], waived: Sequence[str]) -> list[Check]:
    """Turn failures that the operator accepts into warnings that say so."""
    return [
        replace(check, status=WARN, remedy=f"Accepted by preflight_waive; otherwise: {check.remedy}")
        if check.status == FAIL and check.id in waived
        else check
        for check in checks
    ]


def fingerprint(facts: Facts, engine: str) -> dict[str, Any]:
    """What a figure depends on besides the release, and a digest of it.

    Two hosts, or one host before and after a change, are comparable when the digests agree. A link's
    generation counts as the highest that card and slot agree on, because it falls when a card idles; serial
    numbers do not count, because a card of the same kind is as good.

    Returns:
        ``digest`` (12 hex digits) and ``parts``.
    """
    parts: dict[str, Any] = {
        "engine": engine,
        "cpu": facts.cpu_model,
        "cpu_sockets": facts.cpu_sockets,
        "cpu_count": facts.cpu_count,
        "memory_gib": round(facts.memory.get("MemTotal", 0) / 2**30),
    }
    if facts.query is not None:
        matching = ("iommu", "pcie_", "pci=", "mitigations", "nvidia", "numa", "transparent_hugepage")
        parts["kernel"] = facts.kernel
        parts["kernel_parameters"] = sorted(
            word for word in facts.cmdline if any(part in word for part in matching)
        )
        parts["driver"] = facts.query.driver
        parts["governor"] = facts.governor
        parts["redirecting_ports"] = [port.address for port in facts.ports_above if port.redirects]
        parts["registry"] = facts.driver_params.get("RegistryDwords", "")
        parts["links"] = [" ".join(row) for row in facts.links.cells] if facts.links else []
        parts["peer_write"] = [" ".join(row) for row in facts.peer_write.cells] if facts.peer_write else []
        parts["gpus"] = [
            {
                "name": gpu.name,
                "memory_mib": gpu.memory_mib,
                "power_limit_w": gpu.power_limit_w,
                "sm_clock_max_mhz": gpu.sm_clock_max_mhz,
                "memory_clock_max_mhz": gpu.memory_clock_max_mhz,
                "ecc": gpu.ecc,
                "link": f"gen{gpu.link_gen_max or 0:.0f} x{gpu.link_width or 0:.0f}",
                "numa": facts.numa.get(pci.full_address(gpu.bus_id), ""),
            }
            for gpu in facts.query.gpus
        ]
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return {"digest": hashlib.sha256(text.encode()).hexdigest()[:12], "parts": parts}


def summary(checks: Sequence[Check], digest: str) -> str:
    """One line: how many checks ended how."""
    counts = {status: sum(check.status == status for check in checks) for status in (FAIL, WARN, OK, SKIP)}
    words = {FAIL: "failed", WARN: "to look at", OK: "ok", SKIP: "left out"}
    said = ", ".join(f"{count} {words[status]}" for status, count in counts.items() if count)
    return f"{said}; fingerprint {digest}"


def table(checks: Sequence[Check], digest: str, *, everything: bool, width: int = 110) -> str:
    """The rows as text, worst first.

    Args:
        checks: what was judged.
        digest: the fingerprint's.
        everything: whether to show what is in order, too.
        width: columns of the terminal.
    """
    rows = [check for check in checks if everything or check.status in (FAIL, WARN)]
    rows.sort(key=lambda check: _ORDER[check.status])
    lines = []
    indent = 7 + max((len(check.subject) for check in rows), default=0) + 2
    for check in rows:
        said = check.found + (
            f" (expected: {check.expected})" if check.expected and check.status != OK else ""
        )
        head = f"{check.status.upper():<5}  {check.subject:<{indent - 9}}  "
        lines += textwrap.wrap(said, width, initial_indent=head, subsequent_indent=" " * indent)
        if check.remedy:
            arrow = " " * indent + "-> "
            lines += textwrap.wrap(
                check.remedy, width, initial_indent=arrow, subsequent_indent=" " * len(arrow)
            )
    return "\n".join([*lines, summary(checks, digest)])


def failure(checks: Sequence[Check]) -> str:
    """What is said when the play stops: every failure, each with what to do."""
    failed = [check for check in checks if check.status == FAIL]
    head = f"{len(failed)} check{'s' if len(failed) > 1 else ''} failed; nothing on this host was changed."
    return "\n".join([head, *(f"- {check}" for check in failed)])
