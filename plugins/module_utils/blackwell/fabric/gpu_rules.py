"""Whether the GPUs of a host, and what lies between them, are fit for the server.

What stops the server, or lets it serve wrong text, fails. What only makes it slow is a warning, because a
slow host still serves and an operator may know why it is so. The sources of the warnings about speed are in
``docs/tuning.md``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from . import pci, smi
from .collect import Facts, Owner
from .host_rules import Wanted, describe
from .report import FAIL, OK, WARN, Check
from .system import FATAL_XIDS, version_tuple

# More memory than this on an idle card belongs to somebody; a display server stays below it.
_FOREIGN_MIB = 500
_SLOWDOWNS = ("HW Slowdown", "HW Thermal Slowdown", "HW Power Brake Slowdown", "SW Thermal Slowdown")
_PEER_STATES = {
    "CNS": "chipset not supported",
    "GNS": "GPU not supported",
    "TNS": "topology not supported",
    "NS": "not supported",
    "DR": "disabled by a registry key",
    "U": "unknown",
}


def judge_gpus(facts: Facts, wanted: Wanted) -> list[Check]:
    """All checks of a host that is to have GPUs; without a working driver only those of the driver."""
    checks = [*_driver(facts, wanted)]
    if facts.query is None:
        return checks
    gpus = facts.query.gpus
    for rule in (_cards, _health, _users, _settings):
        checks += rule(facts, wanted, gpus)
    if len(gpus) > 1:
        checks += _fabric(facts, wanted, gpus)
    return checks


def _named(gpus: Iterable[smi.Gpu]) -> str:
    """``GPU 0, 3``, or nothing."""
    numbers = [str(gpu.index) for gpu in gpus]
    return f"GPU {', '.join(numbers)}" if numbers else ""


def _each(values: Iterable[str]) -> str:
    """``8x Enabled``, ``7x Enabled, 1x Disabled``."""
    return ", ".join(f"{count}x {value}" for value, count in Counter(values).most_common())


def _pairs(count: int) -> str:
    return f"{count} pair{'' if count == 1 else 's'}"


def _row(
    id: str,
    subject: str,
    bad: bool,
    found: str,
    expected: str = "",
    remedy: str = "",
    *,
    severity: str = WARN,
) -> Check:
    """A check that is in order, or not."""
    return Check(id, severity if bad else OK, subject, found, expected, remedy if bad else "")


def _ours(facts: Facts, wanted: Wanted) -> list[Owner]:
    return [owner for owner in facts.owners.values() if owner.unit in wanted.units]


def _driver(facts: Facts, wanted: Wanted) -> Iterable[Check]:
    need = f"driver {wanted.driver} or later"
    install = (
        f"Install NVIDIA's open driver {wanted.driver} or later by the distribution's packages, and reboot"
    )
    if "nouveau" in facts.modules:
        yield Check(
            "nouveau",
            FAIL,
            "nouveau",
            "the nouveau module is loaded",
            "NVIDIA's own module",
            "Install NVIDIA's driver, which blacklists nouveau, and reboot",
        )
    done = facts.nvidia_smi
    assert done is not None
    module, library = facts.module_version, facts.library_version
    unlike = "Driver/library version mismatch" in done.out + done.err
    if done.rc == -1:
        yield Check("driver", FAIL, "NVIDIA driver", "no nvidia-smi", need, install)
    elif facts.wants_open_module and not facts.module_open:
        yield Check(
            "driver",
            FAIL,
            "NVIDIA driver",
            f"the proprietary module {module}, which does not know these cards".replace("  ", " "),
            f"the open module of {need}",
            install,
        )
    elif unlike or (module and library and module != library):
        # Programs that run keep working until they restart; so nothing of ours is restarted here.
        yield Check(
            "driver_mismatch",
            FAIL,
            "NVIDIA driver",
            f"module {module} is loaded, the libraries are {library}",
            "module and libraries of one version",
            "Reboot the host. A server that runs is left alone and keeps working until it is restarted",
        )
    elif done.rc == -2:
        yield Check(
            "driver",
            FAIL,
            "NVIDIA driver",
            done.err,
            "an answer within seconds",
            "A card may be lost: look at dmesg for Xid, and power-cycle the host",
        )
    elif done.rc != 0 or facts.query is None:
        complaint = " ".join((done.out + done.err).split()) or f"exit status {done.rc}"
        missing = facts.kernel in facts.kernels_without_module
        remedy = (
            f"Run apt-get install linux-headers-{facts.kernel} and dkms autoinstall, and reboot"
            if missing
            else "Look at dmesg | grep -i nvrm, and load the driver with modprobe nvidia"
        )
        yield Check("driver", FAIL, "NVIDIA driver", f"nvidia-smi fails: {complaint}", need, remedy)
    else:
        old = version_tuple(facts.query.driver) < version_tuple(wanted.driver)
        kind = ", open module" if facts.module_open else ""
        found = f"driver {facts.query.driver}{kind}, kernel {facts.kernel}"
        yield _row("driver", "NVIDIA driver", old, found, f"{need} (CUDA 13)", install, severity=FAIL)

    running = version_tuple(facts.kernel)
    newer = [name for name in facts.kernels_without_module if version_tuple(name) > running]
    if newer:
        yield Check(
            "next_kernel",
            WARN,
            "Next kernel",
            f"no nvidia module for {', '.join(newer)}",
            "a module for every installed kernel",
            f"Run apt-get install linux-headers-{newer[-1]} and dkms autoinstall before the next reboot",
        )


def _cards(facts: Facts, wanted: Wanted, gpus: Sequence[smi.Gpu]) -> Iterable[Check]:
    count = len(gpus)
    if count > wanted.gpu_count:
        yield Check(
            "gpu_count",
            WARN,
            "GPU count",
            f"{count}, of which {wanted.gpu_count} are used",
            f"{wanted.gpu_count} (the tensor parallel size)",
            "Keep other work off the unused ones, or raise the tensor parallel size",
        )
    else:
        yield _row(
            "gpu_count",
            "GPU count",
            count < wanted.gpu_count,
            str(count),
            f"{wanted.gpu_count} (the tensor parallel size)",
            "Look at dmesg and lspci for a lost card, or lower the tensor parallel size",
            severity=FAIL,
        )
    strange = [gpu for gpu in gpus if gpu.name not in wanted.gpu_models]
    yield _row(
        "gpu_model",
        "GPU model",
        bool(strange),
        f"{_each(gpu.name for gpu in gpus)}",
        "one of " + ", ".join(wanted.gpu_models),
        "Use a host with supported cards, or add the name to preflight_gpu_models if you tested it",
        severity=FAIL,
    )
    names = {gpu.name for gpu in gpus}
    if len(names) > 1 and not strange:
        yield Check(
            "gpu_mixed",
            WARN,
            "GPU model",
            f"mixed: {_each(gpu.name for gpu in gpus)}",
            "cards of one kind",
            "All cards wait for the slowest at every layer: use cards of one kind",
        )
    wrong = [value for value in facts.compute_capability if value != wanted.compute_capability]
    yield _row(
        "compute_capability",
        "Compute capability",
        bool(wrong) or not facts.compute_capability,
        _each(facts.compute_capability) or "not known",
        wanted.compute_capability,
        "The kernels and patches of this project are made for SM120: use a host with such cards",
        severity=FAIL,
    )
    small = [gpu for gpu in gpus if (gpu.memory_mib or 0) < wanted.gpu_memory_gib * 1024]
    yield _row(
        "gpu_memory",
        "GPU memory",
        bool(small),
        _each(f"{(gpu.memory_mib or 0) / 1024:.1f} GiB" for gpu in gpus),
        f"at least {wanted.gpu_memory_gib:g} GiB each",
        f"The model does not fit on {_named(small)}: use other cards",
        severity=FAIL,
    )
    divided = [gpu for gpu in gpus if gpu.mig == "Enabled"]
    if divided:
        yield Check(
            "mig",
            FAIL,
            "MIG mode",
            f"enabled on {_named(divided)}",
            "disabled",
            "Run nvidia-smi -mig 0 while nothing uses the cards",
        )
    closed = [gpu for gpu in gpus if gpu.compute_mode == "Prohibited"]
    if closed:
        yield Check(
            "compute_mode",
            FAIL,
            "Compute mode",
            f"Prohibited on {_named(closed)}",
            "Default",
            "Run nvidia-smi -c DEFAULT",
        )


def _health(facts: Facts, wanted: Wanted, gpus: Sequence[smi.Gpu]) -> Iterable[Check]:
    failed = [gpu for gpu in gpus if gpu.remap_failed == "Yes"]
    pending = [gpu for gpu in gpus if gpu.remap_pending == "Yes"]
    uncorrected = [gpu for gpu in gpus if gpu.ecc_uncorrected]
    if failed:
        yield Check(
            "ecc",
            FAIL,
            "GPU memory errors",
            f"row remapping failed on {_named(failed)}",
            "no failed row",
            "Replace the card",
        )
    elif pending:
        yield Check(
            "ecc",
            FAIL,
            "GPU memory errors",
            f"a row waits to be remapped on {_named(pending)}",
            "no pending row",
            "Stop what uses the card and run nvidia-smi --gpu-reset, or reboot",
        )
    else:
        counts = ", ".join(f"GPU {gpu.index}: {gpu.ecc_uncorrected:.0f}" for gpu in uncorrected)
        found = f"ECC {_each(gpu.ecc or 'not known' for gpu in gpus)}"
        yield _row(
            "ecc",
            "GPU memory errors",
            bool(uncorrected),
            f"{found}; uncorrected errors in the card's life: {counts}" if uncorrected else found,
            "no uncorrected error",
            "Watch the count; a card on which it grows has to be replaced",
        )

    if not facts.log_readable:
        yield Check("xid", WARN, "Xid history", "the kernel's log cannot be read", "", "Run the play as root")
    else:
        fatal = [xid for xid in facts.xids if xid.code in FATAL_XIDS]
        shown = fatal or list(facts.xids)
        told = ", ".join(
            f"{count}x Xid {code} on {address}"
            for (address, code), count in Counter((xid.address, xid.code) for xid in shown).most_common()
        )
        if fatal:
            last = fatal[-1]
            told += f" ({FATAL_XIDS[last.code]})"
        yield _row(
            "xid",
            "Xid history",
            bool(facts.xids),
            told or "none since boot",
            "none since boot",
            "Look at dmesg | grep Xid, power-cycle the host, and check the card, its power and its riser"
            if fatal
            else "Look at dmesg | grep Xid; these are mostly faults of a program",
            severity=FAIL if fatal else WARN,
        )
    asked = [gpu for gpu in gpus if gpu.recovery not in ("", "None", "N/A")]
    if asked:
        yield Check(
            "recovery",
            FAIL,
            "GPU recovery",
            ", ".join(f"the driver asks for '{gpu.recovery}' on GPU {gpu.index}" for gpu in asked),
            "None",
            "Stop what uses the card and do what the driver asks for; a reboot does all of it",
        )
    slow = [gpu for gpu in gpus if set(gpu.slowdowns).intersection(_SLOWDOWNS)]
    yield _row(
        "slowdown",
        "Clock slowdown",
        bool(slow),
        "; ".join(f"GPU {gpu.index}: {', '.join(gpu.slowdowns)}" for gpu in slow) or "none",
        "none",
        "Check cooling and power supply: figures taken now do not count",
    )


def _users(facts: Facts, wanted: Wanted, gpus: Sequence[smi.Gpu]) -> Iterable[Check]:
    ours = {owner.pid for owner in _ours(facts, wanted)}
    foreign: dict[int, float] = {}
    names: dict[int, str] = {}
    for gpu in gpus:
        for process in gpu.processes:
            if process.pid not in ours:
                foreign[process.pid] = foreign.get(process.pid, 0) + (process.memory_mib or 0)
                names[process.pid] = process.name
    told = ", ".join(
        f"{describe(facts.owners.get(pid) or Owner(pid, names[pid], ''))} with {memory:.0f} MiB"
        for pid, memory in foreign.items()
    )
    wedged = [gpu for gpu in gpus if not gpu.processes and (gpu.memory_used_mib or 0) > _FOREIGN_MIB]
    if foreign:
        yield Check(
            "gpu_processes",
            FAIL if sum(foreign.values()) > _FOREIGN_MIB else WARN,
            "GPU processes",
            told,
            "nothing but " + ", ".join(wanted.units),
            "Stop these processes: the server takes nearly all memory of every card",
        )
    elif wedged:
        memory = ", ".join(f"GPU {gpu.index}: {gpu.memory_used_mib:.0f} MiB" for gpu in wedged)
        yield Check(
            "gpu_processes",
            FAIL,
            "GPU processes",
            f"memory in use by no process that can be seen ({memory})",
            "free cards",
            "Stop containers that use the cards; if there are none, a killed job left them wedged: reboot",
        )
    else:
        found = f"our own server ({len(ours)} processes)" if ours else "none"
        yield Check("gpu_processes", OK, "GPU processes", found)


def _settings(facts: Facts, wanted: Wanted, gpus: Sequence[smi.Gpu]) -> Iterable[Check]:
    yield _row(
        "persistence",
        "Persistence mode",
        any(gpu.persistence == "Disabled" for gpu in gpus),
        _each(gpu.persistence or "not known" for gpu in gpus),
        "Enabled",
        "Set host_tuning_persistence: true; without it the driver starts anew at every first use",
    )
    limits = {gpu.power_limit_w for gpu in gpus}
    lowered = any((gpu.power_limit_w or 0) < (gpu.power_default_w or 0) for gpu in gpus)
    power = _each(
        f"{gpu.power_limit_w:.0f} W of {gpu.power_default_w:.0f} W"
        if gpu.power_limit_w and gpu.power_default_w
        else "not known"
        for gpu in gpus
    )
    yield _row(
        "power_limit",
        "Power limit",
        lowered or len(limits) > 1,
        power,
        "the card's default, alike on all",
        "If it is not meant so, set host_tuning_power_limit_w; figures belong to one limit",
    )
    # The driver says whether it is in use; the module's parameter only whether it would be allowed.
    modes = {gpu.addressing for gpu in gpus} - {"", "N/A"}
    hmm = "HMM" in modes if modes else facts.hmm_disabled == "N"
    yield _row(
        "hmm",
        "Heterogeneous memory (HMM)",
        hmm,
        "on" if hmm else "off",
        "off",
        "Set host_tuning_disable_hmm: true and reboot; NCCL was seen to lock up with it",
    )
    if facts.governor:
        yield _row(
            "governor",
            "CPU governor",
            facts.governor != "performance",
            facts.governor,
            "performance",
            "Set host_tuning_governor: performance",
        )
    if facts.cpu_sockets > 1 and facts.numa_balancing:
        yield _row(
            "numa_balancing",
            "NUMA balancing",
            facts.numa_balancing != "0",
            "off" if facts.numa_balancing == "0" else "on",
            "off",
            "Set host_tuning_numa_balancing: false",
        )
    if facts.shm_bytes is not None:
        size = facts.shm_bytes / 2**30
        yield _row(
            "shm",
            "/dev/shm",
            size < 8,
            f"{size:.1f} GiB",
            "at least 8 GiB",
            "Set host_tuning_shm_gib: NCCL and the schedulers share memory there",
        )
    override = facts.driver_params.get("RegistryDwords", "")
    yield Check("registry", OK, "Driver registry keys", override or "none set")
    yield from _links(facts, gpus)


def _links(facts: Facts, gpus: Sequence[smi.Gpu]) -> Iterable[Check]:
    narrow = [gpu for gpu in gpus if (gpu.link_width or 0) < (gpu.link_width_max or 0)]
    # An idle card lowers its generation to save power, so only a card at full clocks is judged by it.
    slow = [
        gpu for gpu in gpus if gpu.performance_state == "P0" and (gpu.link_gen or 0) < (gpu.link_gen_max or 0)
    ]
    held = [
        gpu for gpu in gpus if (gpu.link_gen_host or 0) < (gpu.link_gen_device or 0) and gpu.link_gen_host
    ]
    now = _each(
        f"gen{gpu.link_gen_max:.0f} x{gpu.link_width:.0f}"
        if gpu.link_gen_max and gpu.link_width
        else "not known"
        for gpu in gpus
    )
    if narrow:
        widths = ", ".join(
            f"GPU {gpu.index}: x{gpu.link_width or 0:.0f} of x{gpu.link_width_max or 0:.0f}" for gpu in narrow
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
            f"{_named(held)}: slot is gen{held[0].link_gen_host or 0:.0f}, "
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
    yield _row(
        "aspm",
        "PCIe power saving (ASPM)",
        bool(aspm),
        f"enabled on {', '.join(port.address for port in aspm)}" if aspm else "off",
        "off",
        "Set host_tuning_aspm: performance, or add pcie_aspm=off to host_tuning_kernel_parameters",
    )
    small = [gpu for gpu in gpus if gpu.bar1_mib is not None and gpu.bar1_mib < (gpu.memory_mib or 0)]
    yield _row(
        "bar1",
        "BAR1 (large BAR)",
        bool(small),
        _each(f"{gpu.bar1_mib:.0f} MiB" if gpu.bar1_mib is not None else "not known" for gpu in gpus),
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
        yield _row(
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
            "Run the play as root; if it is, the ports have none and this may be waived",
        )
    elif facts.ports_above:
        yield _row(
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
            "Run apt-get install pciutils",
        )
    translated = facts.iommu_type.startswith("DMA")
    yield _row(
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
    yield _row(
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
            "Remove NCCL_GRAPH_FILE from the server's environment: NCCL does not start with it",
        )
    elif nccl.get("NCCL_P2P_DISABLE") == "1" and not peers_broken:
        yield Check(
            "nccl",
            WARN,
            "NCCL settings",
            told,
            "no NCCL_P2P_DISABLE where peer-to-peer works",
            "Remove NCCL_P2P_DISABLE and prove it with preflight's active test",
        )
    elif crossing and not peers_broken and not {"NCCL_P2P_LEVEL", "NCCL_P2P_DISABLE"}.intersection(nccl):
        yield Check(
            "nccl",
            WARN,
            "NCCL settings",
            told,
            "NCCL_P2P_LEVEL=SYS where cards sit on several sockets",
            "Add NCCL_P2P_LEVEL: SYS to the server's environment: otherwise pairs across sockets go through "
            "main memory",
        )
    else:
        yield Check("nccl", OK, "NCCL settings", told)
