"""What nvidia-smi prints: ``-q``, ``--query-gpu --format=csv``, ``topo -m`` and ``topo -p2p``.

``nvidia-smi -q`` is read as text and not as XML: it says the same, and the text is what people send each
other, so that a report that came by mail can be judged as well as a host.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Union

Tree = dict[str, Union[str, "Tree"]]

_GPU = re.compile(r"^GPU ([0-9A-Fa-f]{8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9])\s*$")
_PAIR = re.compile(r"^(?P<indent>\s*)(?P<key>\S.*?)\s+: ?(?P<value>.*)$")
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_HEADER = re.compile(r"^[a-z][a-z0-9_]*(\.[a-z0-9_]+)*( \[[A-Za-z%]+\])?$")
_COMPLAINT = re.compile(r"^(warning|error|note|info|failed|unable)\b", re.IGNORECASE)
_NEEDS_RESET = re.compile(r"\[?GPU requires reset\]?", re.IGNORECASE)
# What a driver can ask for; other words in that place say that it does not know.
_RECOVERY = re.compile(r"reset|reboot|drain", re.IGNORECASE)
# What stands in the place of every text of a card that is in trouble.
_NOT_TOLD = re.compile(
    r"\[.*\]|ERR!|N/A|(Unknown Error|GPU requires reset|(The )?GPU is lost|Insufficient Permissions|No data)\.?",
    re.IGNORECASE,
)
# NVML_ERROR_CORRUPTED_INFOROM: the records of one card are damaged, and the report is whole.
INFOROM_CORRUPTED = 14
_CELL = re.compile(r"^(X|SYS|NODE|PHB|PXB|PIX|NV\d+|OK|CNS|GNS|TNS|NS|DR|U)$")


@dataclass(frozen=True)
class Process:
    """A process that has memory on a GPU. Without the right to see it, the driver gives no number: None."""

    pid: int | None
    name: str
    memory_mib: float | None


@dataclass(frozen=True)
class Gpu:
    """One card, as the driver sees it. A value that the driver does not give is None, or empty for text."""

    index: int
    bus_id: str
    uuid: str
    name: str
    memory_mib: float | None
    memory_used_mib: float | None
    bar1_mib: float | None
    power_limit_w: float | None
    power_default_w: float | None
    power_max_w: float | None
    sm_clock_max_mhz: float | None
    memory_clock_max_mhz: float | None
    performance_state: str
    persistence: str
    compute_mode: str
    mig: str
    addressing: str
    recovery: str
    ecc: str
    ecc_uncorrected: float | None
    remap_pending: str
    remap_failed: str
    link_gen: float | None
    link_gen_max: float | None
    link_gen_device: float | None
    link_gen_host: float | None
    link_width: float | None
    link_width_max: float | None
    slowdowns: tuple[str, ...]
    processes: tuple[Process, ...]

    @property
    def asks_for_recovery(self) -> bool:
        """Whether the driver wants something done before the card can be used; until then it tells little else."""
        return bool(_RECOVERY.search(self.recovery))


@dataclass(frozen=True)
class Query:
    """One ``nvidia-smi -q``."""

    driver: str
    cuda: str
    gpus: tuple[Gpu, ...]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Matrix:
    """GPU against GPU: how they are linked, or whether they reach each other."""

    cells: tuple[tuple[str, ...], ...]
    numa: tuple[str, ...] = ()

    def pairs(self, *values: str) -> list[tuple[int, int]]:
        """The pairs (each once, lower index first) that have one of ``values`` in either direction."""
        size = len(self.cells)
        return [
            (a, b)
            for a in range(size)
            for b in range(a + 1, size)
            if self.cells[a][b] in values or self.cells[b][a] in values
        ]

    def only(self, indices: Sequence[int]) -> Matrix:
        """The same for some of the cards; nothing if one of them is not in it."""
        if any(index >= len(self.cells) for index in indices):
            return Matrix(())
        return Matrix(
            tuple(tuple(self.cells[a][b] for b in indices) for a in indices),
            tuple(self.numa[index] for index in indices) if self.numa else (),
        )

    @property
    def kinds(self) -> dict[str, int]:
        """How many pairs there are of each kind."""
        size = len(self.cells)
        found = [self.cells[a][b] for a in range(size) for b in range(a + 1, size)]
        return {kind: found.count(kind) for kind in sorted(set(found))}


def number(text: str) -> float | None:
    """The number of ``97887 MiB``, ``600.00 W``, ``16x``; None for ``N/A`` and all that is no figure with a unit."""
    match = re.fullmatch(r"\s*([0-9]{1,12}(?:\.[0-9]{1,9})?)\s*(?:[A-Za-z%/]+)?\s*", text)
    return float(match.group(1)) if match else None


def _tree(lines: list[str]) -> Tree:
    """Indented ``Key : value`` lines as nested dictionaries; of a repeated key the last stands."""
    root: Tree = {}
    stack: list[tuple[int, Tree]] = [(-1, root)]
    for line in lines:
        if not line.strip():
            continue
        indent = len(line) - len(line.lstrip())
        while stack[-1][0] >= indent:
            stack.pop()
        parent = stack[-1][1]
        pair = _PAIR.match(line)
        if pair:
            parent[pair["key"]] = pair["value"].strip()
        else:
            child: Tree = {}
            parent[line.strip()] = child
            stack.append((indent, child))
    return root


def _text(tree: Tree, *paths: str) -> str:
    """The first of several ``A/B/C`` paths that leads to a value (releases of the driver differ)."""
    for path in paths:
        node: Any = tree
        for key in path.split("/"):
            node = node.get(key) if isinstance(node, Mapping) else None
        if isinstance(node, str):
            return node
    return ""


def _told(text: str) -> str:
    """A name that the driver gives; empty for a word that says that it does not."""
    return "" if _NOT_TOLD.fullmatch(text) else text


def _uncorrected(tree: Tree) -> float | None:
    """Sum of the lifetime counts of memory errors that were not corrected."""
    errors: Any = tree.get("ECC Errors")
    aggregate = errors.get("Aggregate") if isinstance(errors, Mapping) else None
    if not isinstance(aggregate, Mapping):
        return None
    counts = [
        number(value) for key, value in aggregate.items() if "Uncorrectable" in key and isinstance(value, str)
    ]
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _slowdowns(tree: Tree) -> tuple[str, ...]:
    """Reasons for low clocks that are active, other than having nothing to do."""
    reasons: Any = tree.get("Clocks Event Reasons") or tree.get("Clocks Throttle Reasons") or {}
    # "HW Thermal Slowdown" is nested in "HW Slowdown", which the parser keeps as siblings of one level.
    return tuple(
        key
        for key, value in reasons.items()
        if value == "Active" and key not in ("Idle", "Applications Clocks Setting", "Display Clock Setting")
    )


def _processes(lines: list[str]) -> tuple[Process, ...]:
    found: list[dict[str, str]] = []
    for line in lines:
        pair = _PAIR.match(line)
        if not pair:
            continue
        key, value = pair["key"], pair["value"].strip()
        if key == "Process ID":
            found.append({"pid": value})
        elif found and key in ("Name", "Used GPU Memory"):
            found[-1].setdefault(key, value)
    return tuple(
        Process(
            int(item["pid"]) if re.fullmatch("[0-9]{1,9}", item["pid"]) else None,
            item.get("Name", ""),
            number(item.get("Used GPU Memory", "")),
        )
        for item in found
    )


def _recovery(tree: Tree) -> str:
    """What the driver asks for. One that does not say it may still call every value of the card by it."""
    said = _text(tree, "GPU Recovery Action")
    memory = _text(tree, "FB Memory Usage/Total")
    return "Reset" if not _RECOVERY.search(said) and _NEEDS_RESET.fullmatch(memory) else said


def _gpu(index: int, bus_id: str, lines: list[str]) -> Gpu:
    tree = _tree(lines)
    link = "PCI/GPU Link Info"
    return Gpu(
        index=index,
        bus_id=bus_id.lower(),
        uuid=_told(_text(tree, "GPU UUID")),
        name=_told(_text(tree, "Product Name")),
        memory_mib=number(_text(tree, "FB Memory Usage/Total")),
        memory_used_mib=number(_text(tree, "FB Memory Usage/Used")),
        bar1_mib=number(_text(tree, "BAR1 Memory Usage/Total")),
        power_limit_w=number(
            _text(tree, "GPU Power Readings/Current Power Limit", "Power Readings/Power Limit")
        ),
        power_default_w=number(
            _text(tree, "GPU Power Readings/Default Power Limit", "Power Readings/Default Power Limit")
        ),
        power_max_w=number(
            _text(tree, "GPU Power Readings/Max Power Limit", "Power Readings/Max Power Limit")
        ),
        sm_clock_max_mhz=number(_text(tree, "Max Clocks/SM")),
        memory_clock_max_mhz=number(_text(tree, "Max Clocks/Memory")),
        performance_state=_text(tree, "Performance State"),
        persistence=_text(tree, "Persistence Mode"),
        compute_mode=_text(tree, "Compute Mode"),
        mig=_text(tree, "MIG Mode/Current"),
        addressing=_text(tree, "Addressing Mode"),
        recovery=_recovery(tree),
        ecc=_text(tree, "ECC Mode/Current", "Ecc Mode/Current"),
        ecc_uncorrected=_uncorrected(tree),
        remap_pending=_text(tree, "Remapped Rows/Pending"),
        remap_failed=_text(tree, "Remapped Rows/Remapping Failure Occurred"),
        link_gen=number(_text(tree, f"{link}/PCIe Generation/Current")),
        link_gen_max=number(_text(tree, f"{link}/PCIe Generation/Max")),
        link_gen_device=number(_text(tree, f"{link}/PCIe Generation/Device Max")),
        link_gen_host=number(_text(tree, f"{link}/PCIe Generation/Host Max")),
        link_width=number(_text(tree, f"{link}/Link Width/Current")),
        link_width_max=number(_text(tree, f"{link}/Link Width/Max")),
        slowdowns=_slowdowns(tree),
        processes=_processes(lines),
    )


def parse_query(text: str) -> Query:
    """Read ``nvidia-smi -q``.

    Returns:
        the driver's version and the cards in the order printed, which is the order of their indices; lines that are
        no part of the report (``WARNING: infoROM is corrupted at gpu 0000:84:00.0``) are its warnings.
    """
    head: list[str] = []
    gpus: list[tuple[str, list[str]]] = []
    warnings: list[str] = []
    for raw in text.splitlines():
        line = raw.replace("\0", "")
        match = _GPU.match(line)
        if match:
            gpus.append((match.group(1), []))
        elif _COMPLAINT.match(line) or (gpus and line[:1].strip()):
            warnings.append(line.strip())
        else:
            (gpus[-1][1] if gpus else head).append(line)
    tree = _tree(head)
    return Query(
        driver=_text(tree, "Driver Version"),
        cuda=_text(tree, "CUDA Version"),
        gpus=tuple(_gpu(index, bus_id, lines) for index, (bus_id, lines) in enumerate(gpus)),
        warnings=tuple(dict.fromkeys(warnings)),
    )


def read_report(rc: int, out: str, err: str) -> Query | None:
    """What ``nvidia-smi -q`` has told, or None if it has failed.

    A damaged infoROM ends it with status 14, after a whole report.

    Args:
        rc: its exit status.
        out: what it printed.
        err: what it complained of.
    """
    if rc not in (0, INFOROM_CORRUPTED):
        return None
    query = parse_query(out)
    if not query.gpus and (rc or not query.driver):
        return None
    said = [line.strip() for line in err.splitlines() if line.strip()]
    return replace(query, warnings=tuple(dict.fromkeys([*query.warnings, *said])))


def parse_csv(text: str) -> list[dict[str, str]]:
    """Read ``nvidia-smi --query-gpu=... --format=csv``: one dictionary a card, by the names of the header.

    What is no row is left out; ``stray_lines`` tells it.
    """
    return _csv(text)[0]


def stray_lines(text: str) -> list[str]:
    """The lines of such an output that are no row: a warning before or after it, a row that was cut off."""
    return _csv(text)[1]


def _csv(text: str) -> tuple[list[dict[str, str]], list[str]]:
    header: list[str] = []
    rows, strays = [], []
    for raw in text.replace("\0", "").splitlines():
        line = raw.strip()
        cells = [cell.strip() for cell in line.split(",")]
        if not line:
            continue
        if not header and all(_HEADER.match(cell) for cell in cells):
            header = cells
            continue
        row = dict(zip(header, cells))
        if len(cells) != len(header) or _COMPLAINT.match(line) or not row.get("index", "0").isdecimal():
            strays.append(line)
        else:
            rows.append(row)
    return rows, strays


def parse_matrix(text: str) -> Matrix:
    """Read the part of ``nvidia-smi topo -m`` or ``topo -p2p`` that is GPU against GPU.

    Columns of network cards are left out. The NUMA node of each card is kept where the table has one. Of a table that
    lacks a row, as when a card is lost while it is printed, nothing is taken: it could be any row.
    """
    columns: list[str] = []
    cells: list[tuple[str, ...]] = []
    numa: list[str] = []
    numa_from_end = 0
    for raw in text.splitlines():
        words = _ANSI.sub("", raw).split()
        if not words:
            if cells:
                break
            continue
        if not columns:
            if words[0] == "GPU0":
                columns = [word for word in words if re.match(r"^GPU\d+$", word)]
                line = " ".join(words)
                if "NUMA Affinity" in line:
                    numa_from_end = 2 if "GPU NUMA ID" in line else 1
            continue
        if re.match(r"^GPU\d+$", words[0]) and len(words) > len(columns):
            row = tuple(words[1 : len(columns) + 1])
            if not all(_CELL.match(cell) for cell in row):
                break
            cells.append(row)
            if numa_from_end:
                numa.append(words[-numa_from_end])
    return Matrix(tuple(cells), tuple(numa)) if len(cells) == len(columns) else Matrix(())
