"""Whether the GPUs of a host are fit for the server. What lies between them is in ``link_rules``.

What stops the server, or lets it serve wrong text, fails. What only makes it slow is a warning, because a
slow host still serves and an operator may know why it is so. The sources of the warnings about speed are in
``docs/tuning.md``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from . import smi
from .choice import Choice, choose, narrow
from .choice import describe as models_of
from .collect import Facts, Owner
from .host_rules import Wanted, describe, install
from .report import FAIL, OK, WARN, Check, each, named, row
from .system import FATAL_XIDS, version_tuple

# More memory than this on an idle card belongs to somebody; a display server stays below it.
_FOREIGN_MIB = 500
_LOST = re.compile(
    r"GPU is lost|fallen off the bus|device handle for (?:the )?GPU|GPU requires reset", re.IGNORECASE
)
_SLOWDOWNS = ("HW Slowdown", "HW Thermal Slowdown", "HW Power Brake Slowdown", "SW Thermal Slowdown")


def judge_gpus(facts: Facts, wanted: Wanted) -> list[Check]:
    """All checks of a host that is to have GPUs; without a working driver only those of the driver."""
    checks = [*_driver(facts, wanted)]
    if facts.query is None:
        return checks
    choice = choose(facts.query.gpus, wanted)
    facts = narrow(facts, choice)
    checks += _count(wanted, choice)
    if not choice.gpus:
        return checks
    for rule in (_cards, _health, _users, _settings, _memory):
        checks += rule(facts, wanted, choice.gpus)
    return checks


def _ours(facts: Facts, wanted: Wanted) -> list[Owner]:
    return [owner for owner in facts.owners.values() if owner.unit in wanted.units]


def _driver(facts: Facts, wanted: Wanted) -> Iterable[Check]:
    if "nouveau" in facts.modules:
        yield Check(
            "nouveau",
            FAIL,
            "nouveau",
            "the nouveau module is loaded",
            "NVIDIA's own module",
            "Install NVIDIA's driver, which blacklists nouveau, and reboot",
        )
    problem = _driver_problem(facts, wanted) or _unlike_libraries(facts) or _failed_smi(facts, wanted)
    if problem:
        yield problem
    else:
        yield from _working_driver(facts, wanted)
    if facts.stray_libraries:
        yield Check(
            "driver_files",
            WARN,
            "Libraries of the driver",
            f"{', '.join(facts.stray_libraries)} beside version {facts.library_version}, which programs get",
            "files of one version",
            "dpkg -S FILE names the package of each; remove that package, or the file if it has none. Nothing uses "
            "them now, and a careless ldconfig or a container may",
        )
    running = version_tuple(facts.kernel)
    newer = [name for name in facts.kernels_without_module if version_tuple(name) > running]
    if newer:
        yield Check(
            "next_kernel",
            WARN,
            "Next kernel",
            f"no nvidia module for {', '.join(newer)}",
            "a module for every installed kernel",
            f"{install(facts, f'linux-headers-{newer[-1]}')} and dkms autoinstall before the next reboot",
        )


def _install_driver(wanted: Wanted) -> str:
    return f"Install NVIDIA's open driver {wanted.driver} or later by the distribution's packages, and reboot"


def _driver_problem(facts: Facts, wanted: Wanted) -> Check | None:
    assert facts.nvidia_smi is not None
    need = f"driver {wanted.driver} or later"
    if facts.nvidia_smi.rc == -1:
        found = "no nvidia-smi"
    elif facts.wants_open_module and not facts.module_open:
        module = f"the proprietary module {facts.module_version}".rstrip()
        found, need = f"{module}, which does not know these cards", f"the open module of {need}"
    else:
        return None
    return Check("driver", FAIL, "NVIDIA driver", found, need, _install_driver(wanted))


def _unlike_libraries(facts: Facts) -> Check | None:
    """The loaded module and the libraries that programs get are of two versions."""
    done, module = facts.nvidia_smi, facts.module_version
    assert done is not None
    libraries = {"libnvidia-ml": facts.library_version, "libcuda": facts.cuda_library_version}
    unlike = {
        name: version for name, version in libraries.items() if version and module and version != module
    }
    if not unlike and "Driver/library version mismatch" not in done.out + done.err:
        return None
    found = sorted(set(unlike.values())) or [facts.library_version or "others"]
    # Programs that run keep working until they restart; so nothing of ours is restarted here.
    leave = "A server that runs is left alone and keeps working until it is restarted"
    disk = facts.module_on_disk
    if disk and not all(disk == version or disk.startswith(f"{version}.") for version in found):
        remedy = (
            f"A reboot changes nothing, as the module on disk is {disk}: install module and libraries of one version "
            f"(dpkg -l '*nvidia*' shows them), then reboot. {leave}"
        )
    else:
        remedy = f"Reboot the host. {leave}"
    return Check(
        "driver_mismatch",
        FAIL,
        "NVIDIA driver",
        f"module {module} is loaded, the libraries are {' and '.join(found)}",
        "module and libraries of one version",
        remedy,
    )


def _failed_smi(facts: Facts, wanted: Wanted) -> Check | None:
    done = facts.nvidia_smi
    assert done is not None
    if done.rc == -2:
        return Check(
            "driver",
            FAIL,
            "NVIDIA driver",
            done.err,
            "an answer within seconds",
            "A card may be lost: look at dmesg for Xid, and power-cycle the host",
        )
    if facts.query is not None:
        return None
    complaint = shorten(done.out, done.err) or f"exit status {done.rc}"
    if lost := _LOST.search(complaint):
        remedy = (
            f"A card does not answer ({lost[0]}): dmesg | grep -e Xid -e NVRM names it. Power-cycle the host, since a "
            "reboot may leave it lost, and check its power and its riser"
        )
    elif "No devices were found" in complaint:
        remedy = "Look for the cards with lspci -d 10de: and for what the driver says of them with dmesg | grep NVRM"
    elif "Insufficient Permissions" in complaint:
        remedy = "Run the play as root; in a container, give it the devices of the cards (ls -l /dev/nvidia*)"
    elif facts.kernel in facts.kernels_without_module:
        remedy = f"{install(facts, f'linux-headers-{facts.kernel}')} and dkms autoinstall, and reboot"
    else:
        remedy = "Look at dmesg | grep -i nvrm, and load the driver with modprobe nvidia"
    return Check(
        "driver",
        FAIL,
        "NVIDIA driver",
        f"nvidia-smi fails: {complaint}",
        f"driver {wanted.driver} or later",
        remedy,
    )


def shorten(out: str, err: str) -> str:
    """What a command says of its failure, in 300 characters: errors first, and the end of a report, which has them."""
    said = " ".join(err.split())
    said += " " * bool(said) + " ".join(out.split())
    return said if len(said) <= 300 else f"{said[:100]} ... {said[-195:]}"


def _working_driver(facts: Facts, wanted: Wanted) -> Iterable[Check]:
    assert facts.query is not None
    driver = facts.query.driver if version_tuple(facts.query.driver) else facts.module_version
    old = version_tuple(driver) < version_tuple(wanted.driver)
    kind = ", open module" if facts.module_open else ""
    yield row(
        "driver",
        "NVIDIA driver",
        old,
        f"driver {driver or 'of a version that it does not tell'}{kind}, kernel {facts.kernel}",
        f"driver {wanted.driver} or later (CUDA 13)",
        _install_driver(wanted),
        severity=FAIL,
    )
    if facts.query.warnings:
        yield Check(
            "driver_warnings",
            WARN,
            "Warnings of the driver",
            shorten("; ".join(facts.query.warnings), ""),
            "none",
            _about_warnings(" ".join(facts.query.warnings)),
        )
    yield row(
        "driver_upgrades",
        "Driver upgrades",
        not facts.driver_kept_by,
        facts.driver_kept_by or "unattended-upgrades may replace the driver while the server runs",
        "by hand, in maintenance",
        "Set host_tuning_block_driver_upgrades: true",
    )


def _about_warnings(said: str) -> str:
    """What to do about what nvidia-smi says beside its report."""
    known = {
        "inforom": "Look at nvidia-smi -q of the card that it names: with a damaged infoROM it works, and its maker "
        "may replace it",
        "persistence mode": "Set host_tuning_persistence: true",
    }
    remedies = [remedy for word, remedy in known.items() if word in said.lower()]
    if _LOST.search(said):
        remedies.append(
            "Look at dmesg | grep Xid for the card that does not answer, and power-cycle the host"
        )
    return (
        "; ".join(remedies) or "Look at nvidia-smi -q, and at dmesg | grep NVRM, for the card that it names"
    )


def _count(wanted: Wanted, choice: Choice) -> Iterable[Check]:
    silent = [gpu for gpu in choice.others if not gpu.name]
    count, beside = len(choice.gpus), models_of([gpu for gpu in choice.others if gpu.name])
    expected = f"{wanted.gpu_count} (the tensor parallel size)"
    if choice.problem:
        yield Check("gpu_count", FAIL, "GPU count", choice.found, choice.problem, choice.remedy)
        return
    same = [gpu for gpu in choice.others if gpu.name in {used.name for used in choice.gpus}]
    if same and not wanted.gpus:
        yield Check(
            "gpu_count",
            WARN,
            "GPU count",
            f"{count + len(same)}, of which {count} are used",
            expected,
            "Keep other work off the unused ones, choose others by eagle3_server_gpus, or raise "
            "eagle3_server_tensor_parallel_size",
        )
        return
    found = f"{count}, beside {beside}, which the server does not use" if beside else str(count)
    if silent:
        found += f"; {named(silent)} {'does' if len(silent) == 1 else 'do'} not tell the model"
    if silent and count < wanted.gpu_count:
        yield Check(
            "gpu_count",
            FAIL,
            "GPU count",
            found,
            expected,
            f"See nvidia-smi -q -i {','.join(str(gpu.index) for gpu in silent)} and dmesg | grep Xid; stop what uses "
            "the cards and run nvidia-smi --gpu-reset, or power-cycle the host",
        )
        return
    yield row(
        "gpu_count",
        "GPU count",
        count < wanted.gpu_count,
        found,
        expected,
        "Look at dmesg and lspci for a lost card, or lower eagle3_server_tensor_parallel_size",
        severity=FAIL,
    )


def _cards(facts: Facts, wanted: Wanted, gpus: Sequence[smi.Gpu]) -> Iterable[Check]:
    strange = [gpu for gpu in gpus if gpu.name not in wanted.gpu_models]
    yield row(
        "gpu_model",
        "GPU model",
        bool(strange),
        f"{each(gpu.name for gpu in gpus)}",
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
            f"mixed: {each(gpu.name for gpu in gpus)}",
            "cards of one kind",
            "All cards wait for the slowest at every layer: use cards of one kind",
        )
    yield _capability(facts, wanted, gpus)
    small = [
        gpu for gpu in gpus if gpu.memory_mib is not None and gpu.memory_mib < wanted.gpu_memory_gib * 1024
    ]
    sizes = each(
        f"{gpu.memory_mib / 1024:.1f} GiB" if gpu.memory_mib is not None else "not known" for gpu in gpus
    )
    # A card that asks for a reset tells nothing until it had one: that is said elsewhere.
    silent = [gpu for gpu in gpus if gpu.memory_mib is None and not gpu.asks_for_recovery]
    if silent and not small:
        yield Check(
            "gpu_memory",
            WARN,
            "GPU memory",
            sizes,
            f"at least {wanted.gpu_memory_gib:g} GiB each",
            f"See nvidia-smi -q -d MEMORY -i {','.join(str(gpu.index) for gpu in silent)}, as root",
        )
    else:
        yield row(
            "gpu_memory",
            "GPU memory",
            bool(small),
            sizes,
            f"at least {wanted.gpu_memory_gib:g} GiB each",
            f"The model does not fit on {named(small)}: use other cards",
            severity=FAIL,
        )
    divided = [gpu for gpu in gpus if gpu.mig == "Enabled"]
    if divided:
        yield Check(
            "mig",
            FAIL,
            "MIG mode",
            f"enabled on {named(divided)}",
            "disabled",
            "Run nvidia-smi -mig 0 while nothing uses the cards",
        )
    closed = [gpu for gpu in gpus if gpu.compute_mode == "Prohibited"]
    if closed:
        yield Check(
            "compute_mode",
            FAIL,
            "Compute mode",
            f"Prohibited on {named(closed)}",
            "Default",
            "Run nvidia-smi -c DEFAULT",
        )


def _capability(facts: Facts, wanted: Wanted, gpus: Sequence[smi.Gpu]) -> Check:
    """Whether the kernels of this project run on the cards. A card that asks for a reset does not tell."""
    told = [value if re.fullmatch(r"[0-9]+\.[0-9]+", value) else "" for value in facts.compute_capability]
    known = [value for value in told if value]
    wrong = any(value != wanted.compute_capability for value in known) or not known
    silent = [gpu for gpu, value in zip(gpus, told) if not value and not gpu.asks_for_recovery]
    if silent and not wrong:
        remedy = (
            f"See nvidia-smi --query-gpu=compute_cap --format=csv -i {','.join(str(g.index) for g in silent)}"
        )
    else:
        remedy = "The kernels and patches of this project are made for SM120: use a host with such cards"
    return row(
        "compute_capability",
        "Compute capability",
        wrong or bool(silent),
        each(value or "not known" for value in told) or "not known",
        wanted.compute_capability,
        remedy,
        severity=FAIL if wrong else WARN,
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
            f"row remapping failed on {named(failed)}",
            "no failed row",
            "Replace the card",
        )
    elif pending:
        yield Check(
            "ecc",
            FAIL,
            "GPU memory errors",
            f"a row waits to be remapped on {named(pending)}",
            "no pending row",
            "Stop what uses the card and run nvidia-smi --gpu-reset, or reboot",
        )
    else:
        counts = ", ".join(f"GPU {gpu.index}: {gpu.ecc_uncorrected:.0f}" for gpu in uncorrected)
        found = f"ECC {each(gpu.ecc or 'not known' for gpu in gpus)}"
        yield row(
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
        yield row(
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
    asked = [gpu for gpu in gpus if gpu.asks_for_recovery]
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
    yield row(
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
            if process.pid is not None and process.pid not in ours:
                foreign[process.pid] = foreign.get(process.pid, 0) + (process.memory_mib or 0)
                names[process.pid] = process.name
    told = ", ".join(
        f"{describe(facts.owners.get(pid) or Owner(pid, names[pid], ''))} with {memory:.0f} MiB"
        for pid, memory in foreign.items()
    )
    # Without a number a process may be anybody's, our own server's as well.
    unseen = [gpu for gpu in gpus if any(process.pid is None for process in gpu.processes)]
    wedged = [
        gpu
        for gpu in gpus
        if all(process.pid is None for process in gpu.processes) and (gpu.memory_used_mib or 0) > _FOREIGN_MIB
    ]
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
    elif unseen:
        yield Check(
            "gpu_processes",
            WARN,
            "GPU processes",
            f"processes on {named(unseen)} that the driver does not name",
            "nothing but " + ", ".join(wanted.units),
            f"Run the play as root, or look at fuser -v /dev/nvidia{unseen[0].index}",
        )
    else:
        found = f"our own server ({len(ours)} processes)" if ours else "none"
        yield Check("gpu_processes", OK, "GPU processes", found)


def _settings(facts: Facts, wanted: Wanted, gpus: Sequence[smi.Gpu]) -> Iterable[Check]:
    yield row(
        "persistence",
        "Persistence mode",
        any(gpu.persistence == "Disabled" for gpu in gpus),
        each(gpu.persistence or "not known" for gpu in gpus),
        "Enabled",
        "Set host_tuning_persistence: true; without it the driver starts anew at every first use",
    )
    limits = {gpu.power_limit_w for gpu in gpus if gpu.power_limit_w is not None}
    lowered = any(
        gpu.power_limit_w < gpu.power_default_w
        for gpu in gpus
        if gpu.power_limit_w is not None and gpu.power_default_w is not None
    )
    power = each(
        f"{gpu.power_limit_w:.0f} W of {gpu.power_default_w:.0f} W"
        if gpu.power_limit_w and gpu.power_default_w
        else "not known"
        for gpu in gpus
    )
    yield row(
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
    yield row(
        "hmm",
        "Heterogeneous memory (HMM)",
        hmm,
        "on" if hmm else "off",
        "off",
        "Set host_tuning_disable_hmm: true and reboot; NCCL was seen to lock up with it",
    )
    if facts.governor:
        yield row(
            "governor",
            "CPU governor",
            facts.governor != "performance",
            facts.governor,
            "performance",
            "Set host_tuning_governor: performance",
        )
    if facts.cpu_sockets > 1 and facts.numa_balancing:
        yield row(
            "numa_balancing",
            "NUMA balancing",
            facts.numa_balancing != "0",
            "off" if facts.numa_balancing == "0" else "on",
            "off",
            "Set host_tuning_numa_balancing: false",
        )
    override = facts.driver_params.get("RegistryDwords", "")
    yield Check("registry", OK, "Driver registry keys", override or "none set")


def _memory(facts: Facts, wanted: Wanted, gpus: Sequence[smi.Gpu]) -> Iterable[Check]:
    """Shared memory: whether there is enough of it, and whether it fills."""
    if facts.shm_bytes is None:
        return
    size = facts.shm_bytes / 2**30
    free = size if facts.shm_free_bytes is None else facts.shm_free_bytes / 2**30
    if size < 8 or free >= size / 4:
        yield row(
            "shm",
            "/dev/shm",
            size < 8,
            f"{size:.1f} GiB",
            "at least 8 GiB",
            "Set host_tuning_shm_gib: NCCL and the schedulers share memory there",
        )
        return
    largest = f", the most by {', '.join(facts.shm_largest)}" if facts.shm_largest else ""
    yield Check(
        "shm",
        WARN,
        "/dev/shm",
        f"{free:.1f} of {size:.1f} GiB are free{largest}",
        "at least a quarter free",
        "A start of the server removes what its user left there and no process has open; ls -l /dev/shm shows the "
        "rest, and fuser -v /dev/shm/* who has it",
    )
