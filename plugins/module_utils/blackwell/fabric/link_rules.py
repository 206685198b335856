"""Whether what lies between the GPUs of a host lets them work together: PCIe links, ports, and peer-to-peer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from . import pci, smi
from .choice import choose, narrow
from .collect import Facts
from .host_rules import Wanted, install
from .report import FAIL, OK, WARN, Check, each, named, row

_PEER_STATES = {
    "CNS": "chipset not supported",
    "GNS": "GPU not supported",
    "TNS": "topology not supported",
    "NS": "not supported",
    "DR": "disabled by a registry key",
    "U": "unknown",
}


def judge_links(facts: Facts, wanted: Wanted) -> list[Check]:
    """All checks of what is between the GPUs, or between them and the processor; none where there are no GPUs."""
    if facts.query is None or not facts.query.gpus:
        return []
    choice = choose(facts.query.gpus, wanted)
    facts, gpus = narrow(facts, choice), choice.gpus
    if not gpus:
        return []
    checks = [*_links(facts, gpus)]
    if len(gpus) > 1:
        checks += _fabric(facts, wanted, gpus)
    return checks


def _pairs(count: int) -> str:
    return f"{count} pair{'' if count == 1 else 's'}"


def _less(value: float | None, most: float | None) -> bool:
    """Whether a value is below another one; not where one of them is not known."""
    return value is not None and most is not None and value < most


def _links(facts: Facts, gpus: Sequence[smi.Gpu]) -> Iterable[Check]:
    thin = [gpu for gpu in gpus if _less(gpu.link_width, gpu.link_width_max)]
    # An idle card lowers its generation to save power, so only a card at full clocks is judged by it.
    slow = [gpu for gpu in gpus if gpu.performance_state == "P0" and _less(gpu.link_gen, gpu.link_gen_max)]
    held = [gpu for gpu in gpus if _less(gpu.link_gen_host, gpu.link_gen_device)]
    now = each(
        f"gen{gpu.link_gen_max:.0f} x{gpu.link_width:.0f}"
        if gpu.link_gen_max and gpu.link_width
        else "not known"
        for gpu in gpus
    )
    if thin:
        widths = ", ".join(
            f"GPU {gpu.index}: x{gpu.link_width or 0:.0f} of x{gpu.link_width_max or 0:.0f}" for gpu in thin
        )
        yield Check(
            "link",
            WARN,
            "PCIe link",
            widths,
            "all lanes",
            "Reseat the card or its riser, and check the slot's bifurcation in the BIOS",
        )
    elif slow:
        generations = ", ".join(
            f"GPU {gpu.index}: gen{gpu.link_gen or 0:.0f} of gen{gpu.link_gen_max or 0:.0f}" for gpu in slow
        )
        yield Check(
            "link",
            WARN,
            "PCIe link",
            f"{generations}, at full clocks",
            "the highest generation",
            "Check riser and retimers, and the slot's link speed in the BIOS",
        )
    elif held:
        yield Check(
            "link",
            WARN,
            "PCIe link",
            f"{named(held)}: slot is gen{held[0].link_gen_host or 0:.0f}, "
            f"card is gen{held[0].link_gen_device or 0:.0f}",
            "a slot of the card's generation",
            "Use another slot, or raise the slot's link speed in the BIOS",
        )
    else:
        yield Check("link", OK, "PCIe link", now)

    bottlenecks = [
        port
        for port in facts.ports_above
        if port.width is not None and port.width < max((gpu.link_width_max or 0) for gpu in gpus)
    ]
    if bottlenecks:
        yield Check(
            "uplink",
            WARN,
            "PCIe ports above the GPUs",
            ", ".join(f"{port.address} runs x{port.width} of x{port.width_max}" for port in bottlenecks),
            "as wide as the cards",
            "Check the lane configuration of that root port in the BIOS, or the cable of the switch",
        )
    aspm = [port for port in (*facts.cards.values(), *facts.ports_above) if "Enabled" in port.aspm]
    yield row(
        "aspm",
        "PCIe power saving (ASPM)",
        bool(aspm),
        f"enabled on {', '.join(port.address for port in aspm)}" if aspm else "off",
        "off",
        "Set host_tuning_aspm: performance, or add pcie_aspm=off to host_tuning_kernel_parameters",
    )
    small = [gpu for gpu in gpus if _less(gpu.bar1_mib, gpu.memory_mib)]
    yield row(
        "bar1",
        "BAR1 (large BAR)",
        bool(small),
        each(f"{gpu.bar1_mib:.0f} MiB" if gpu.bar1_mib is not None else "not known" for gpu in gpus),
        "at least the card's memory",
        "Turn on Above 4G Decoding and Resizable BAR in the BIOS (on Workstation cards also NVIDIA's "
        "displaymodeselector): peer-to-peer needs it",
    )


def _fabric(facts: Facts, wanted: Wanted, gpus: Sequence[smi.Gpu]) -> Iterable[Check]:
    links = facts.links
    if links and links.cells:
        told = ", ".join(f"{_pairs(count)} {kind}" for kind, count in links.kinds.items())
        yield Check("topology", OK, "Topology", told)
    total = len(gpus) * (len(gpus) - 1) // 2
    peers: dict[str, int] = {}
    broken: set[tuple[int, int]] = set()
    for matrix in (facts.peer_read, facts.peer_write):
        if matrix:
            broken.update(matrix.pairs(*_PEER_STATES))
            for kind, count in matrix.kinds.items():
                peers[kind] = max(count, peers.get(kind, 0))
    if not facts.peer_write or not facts.peer_write.cells:
        yield Check("p2p", WARN, "Peer-to-peer", "nvidia-smi topo -p2p shows no matrix", "OK for every pair")
    else:
        reasons = ", ".join(_PEER_STATES[kind] for kind in peers if kind in _PEER_STATES)
        yield row(
            "p2p",
            "Peer-to-peer",
            bool(broken),
            f"{len(broken)} of {_pairs(total)} cannot ({reasons})" if broken else f"OK for {_pairs(total)}",
            "OK for every pair",
            "Turn off the IOMMU and ACS (see below), check BAR1, then consider host_tuning_p2p_override; "
            "without peer-to-peer every allreduce goes through main memory",
        )
    redirecting = [port for port in facts.ports_above if port.redirects]
    if facts.ports_above and all(port.acs is None for port in facts.ports_above):
        yield Check(
            "acs",
            WARN,
            "PCIe access control (ACS)",
            "lspci shows no access control",
            "off on root and switch ports",
            "Run the play as root; if it is, the ports have none: add acs to preflight_waive",
        )
    elif facts.ports_above:
        yield row(
            "acs",
            "PCIe access control (ACS)",
            bool(redirecting),
            f"redirects peer-to-peer on {', '.join(port.address for port in redirecting)}"
            if redirecting
            else f"no redirection on {len(facts.ports_above)} ports above the GPUs",
            "off on root and switch ports",
            "Turn ACS off in the BIOS, or set host_tuning_disable_acs: true",
        )
    else:
        yield Check(
            "acs",
            WARN,
            "PCIe access control (ACS)",
            "lspci shows no port above the GPUs",
            "off on root and switch ports",
            install(facts, "pciutils"),
        )
    translated = facts.iommu_type.startswith("DMA")
    yield row(
        "iommu",
        "IOMMU",
        translated,
        f"on, translating ({facts.iommu_type})"
        if translated
        else (f"on, {facts.iommu_type}" if facts.iommu_devices else "off"),
        "off, or identity",
        "Turn it off in the BIOS, or add iommu=off (amd_iommu=off on AMD) to host_tuning_kernel_parameters: "
        "the first allreduce was seen to hang with it",
    )
    nodes = [facts.numa.get(pci.full_address(gpu.bus_id), "") for gpu in gpus]
    lost = facts.cpu_sockets > 1 and any(node in ("", "-1") for node in nodes)
    yield row(
        "numa",
        "NUMA node of each GPU",
        lost,
        " ".join(node or "?" for node in nodes),
        "a node for every card",
        "Turn on NUMA (NPS1 or more, no interleaving over sockets) in the BIOS",
    )
    yield from _nccl(facts, wanted, bool(broken))


def _nccl(facts: Facts, wanted: Wanted, peers_broken: bool) -> Iterable[Check]:
    nccl = {name: str(value) for name, value in wanted.nccl.items() if name.startswith("NCCL_")}
    told = " ".join(f"{name}={value}" for name, value in sorted(nccl.items())) or "nothing set"
    crossing = bool(facts.links and facts.links.kinds.get("SYS"))
    if nccl.get("NCCL_GRAPH_FILE", "unset") == "":
        yield Check(
            "nccl",
            FAIL,
            "NCCL settings",
            "NCCL_GRAPH_FILE is set and empty",
            "unset, or a file",
            "Remove NCCL_GRAPH_FILE from eagle3_server_nccl_environment: NCCL does not start with it",
        )
    elif nccl.get("NCCL_P2P_DISABLE") == "1" and not peers_broken:
        yield Check(
            "nccl",
            WARN,
            "NCCL settings",
            told,
            "no NCCL_P2P_DISABLE where peer-to-peer works",
            "Remove NCCL_P2P_DISABLE from eagle3_server_nccl_environment; preflight_active_test: true proves it",
        )
    elif crossing and not peers_broken and not {"NCCL_P2P_LEVEL", "NCCL_P2P_DISABLE"}.intersection(nccl):
        yield Check(
            "nccl",
            WARN,
            "NCCL settings",
            told,
            "NCCL_P2P_LEVEL=SYS where cards sit on several sockets",
            "Add NCCL_P2P_LEVEL: SYS to eagle3_server_nccl_environment: otherwise pairs across sockets go through "
            "main memory",
        )
    else:
        yield Check("nccl", OK, "NCCL settings", told)
