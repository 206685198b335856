"""What is said of a host, word for word: a good one, and one condition after the other.

The good host is constructed (tests/stand-ins/nvidia-smi, and the files that `good_host` writes); cards that have to
be refused come from real output (tests/fixtures/fabric).
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from blackwell.fabric import collect, gpu_rules, host_rules, link_rules, report, smi, system
from blackwell.fabric.collect import Done, Facts, Owner, Python, Space, Taken

from tests.unit.vanishing import losing

TESTS = Path(__file__).resolve().parents[1]
FIXTURES = TESTS / "fixtures" / "fabric"
BUSES = ["05", "06", "0a", "0b", "84", "85", "89", "8a"]
GIB = 2**30

WANTED = host_rules.Wanted(
    engine="cuda",
    distributions=["ubuntu-24.04", "ubuntu-22.04", "debian-12"],
    python_version="3.12",
    release="",
    release_space=("/opt/sglang", 30),
    model_space=None,
    models=["/models/kimi"],
    ports={30000: "eagle3_server_port"},
    units=["sglang@eagle3.service", "sglang@baseline.service"],
    memory_gib=64,
    glibc="2.28",
    gpu_count=8,
    gpu_models=["NVIDIA RTX PRO 6000 Blackwell Server Edition"],
    compute_capability="12.0",
    gpu_memory_gib=90,
    driver="580",
    nccl={"NCCL_P2P_LEVEL": "SYS"},
)


def lspci() -> str:
    """Eight root ports with a card each, in the layout of lspci 3.9."""
    ports, cards = [], []
    for bus in BUSES:
        ports.append(
            f"{bus}:01.1 PCI bridge: Advanced Micro Devices, Inc. [AMD] Turin PCIe GPP Bridge (prog-if 00)\n"
            "\tCapabilities: [58] Express (v2) Root Port (Slot+), MSI 00\n"
            "\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16, ASPM L1, Exit Latency L1 <64us\n"
            "\t\tLnkCtl:\tASPM Disabled; RCB 64 bytes, Disabled- CommClk+\n"
            "\t\tLnkSta:\tSpeed 2.5GT/s (downgraded), Width x16 (ok)\n"
            "\tCapabilities: [2a0 v1] Access Control Services\n"
            "\t\tACSCap:\tSrcValid+ TransBlk+ ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans+\n"
            "\t\tACSCtl:\tSrcValid+ TransBlk- ReqRedir- CmpltRedir- UpstreamFwd+ EgressCtrl- DirectTrans-\n"
        )
        cards.append(
            f"{bus}:00.0 3D controller: NVIDIA Corporation GB202GL [RTX PRO 6000 Blackwell Server Edition] (rev a1)\n"
            "\tCapabilities: [60] Express (v2) Endpoint, MSI 00\n"
            "\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16, ASPM L1, Exit Latency L1 <4us\n"
            "\t\tLnkCtl:\tASPM Disabled; RCB 64 bytes, Disabled- CommClk+\n"
            "\t\tLnkSta:\tSpeed 2.5GT/s (downgraded), Width x16 (ok)\n"
        )
    return "\n".join([*ports, *cards])


def write(root: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def program(folder: Path, name: str, prints: str) -> None:
    """A command that prints a text."""
    text = folder / f".{name}.txt"
    text.write_text(prints)
    path = folder / name
    path.write_text(f"#!/bin/sh\ncat {text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def make_good_host(tmp_path_factory: pytest.TempPathFactory) -> collect.Host:
    """The root of a host on which nothing is wrong, and the commands that belong to it."""
    root = tmp_path_factory.mktemp("root")
    kernel = os.uname().release
    cpu = "processor\t: 0\nmodel name\t: AMD EPYC 9575F 64-Core Processor\nphysical id\t: {}\n"
    write(
        root,
        {
            "etc/os-release": 'PRETTY_NAME="Ubuntu 24.04.3 LTS"\nID=ubuntu\nVERSION_ID="24.04"\n',
            "proc/cpuinfo": cpu.format(0) + "\n" + cpu.format(1),
            "proc/meminfo": "MemTotal:       1584930000 kB\nMemAvailable:   1500000000 kB\n",
            "proc/cmdline": "BOOT_IMAGE=/vmlinuz-6.8 root=UUID=1 ro iommu=off pcie_aspm=off\n",
            "proc/modules": "nvidia_uvm 2076672 0 - Live 0x0\nnvidia 14389248 3 nvidia_uvm, Live 0x0\n",
            "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  R\n",
            "proc/driver/nvidia/params": 'RegistryDwords: ""\n',
            "proc/net/tcp": "  sl  local_address rem_address   st\n",
            "proc/sys/kernel/numa_balancing": "0\n",
            "sys/module/nvidia_uvm/parameters/uvm_disable_hmm": "Y\n",
            "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "performance\n",
            "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.95.05": "",
            f"lib/modules/{kernel}/kernel/nvidia-580-open/nvidia.ko": "",
            "models/kimi/config.json": "{}",
        },
    )
    (root / "run/systemd/system").mkdir(parents=True)
    for number, bus in enumerate(BUSES):
        device = root / f"sys/devices/pci0000:{bus}/0000:{bus}:01.1/0000:{bus}:00.0"
        write(device, {"numa_node": f"{number // 4}\n"})
        link = root / f"sys/bus/pci/devices/0000:{bus}:00.0"
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(device)
    commands = tmp_path_factory.mktemp("bin")
    program(commands, "lspci", lspci())
    program(
        commands, "dmesg", "[    1.2] NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.95.05\n"
    )
    for name in ("gcc", "g++", "apt-cache", "apt-config", "apt-mark", "modinfo", "ldconfig"):
        program(commands, name, "")
    program(commands, "python3.12", 'blackwell answers: ["3.12.3", "/usr/include/python3.12/Python.h"]\n')
    (commands / "nvidia-smi").symlink_to(TESTS / "stand-ins" / "nvidia-smi")
    return collect.Host(root, f"{commands}:/usr/bin:/bin")


def read(host: collect.Host) -> Facts:
    return collect.collect(
        host,
        gpus=True,
        python="python3.12",
        root="/opt/sglang",
        release="",
        space=["/opt/sglang"],
        folders=["/models/kimi"],
        ports=[30000],
    )


good_host = pytest.fixture(scope="module", name="good_host")(make_good_host)


def read_good(good_host: collect.Host) -> Facts:
    # The free space and the size of /dev/shm are those of this machine, so they are set.
    facts = read(good_host)
    facts.spaces = {"/opt/sglang": Space("/opt/sglang", "/", 200 * GIB)}
    facts.shm_bytes = facts.shm_free_bytes = 755 * GIB
    return facts


good = pytest.fixture(scope="module", name="good")(read_good)


def judge(facts: Facts, wanted: host_rules.Wanted = WANTED) -> list[report.Check]:
    checks = host_rules.judge_host(facts, wanted) + gpu_rules.judge_gpus(facts, wanted)
    return checks + link_rules.judge_links(facts, wanted)


def said(checks: list[report.Check]) -> dict[str, str]:
    """What is not in order, by id, with its severity."""
    return {check.id: f"{check.status}: {check}" for check in checks if check.status in ("fail", "warn")}


def test_nothing_is_said_against_a_good_host(good: Facts) -> None:
    checks = judge(good)
    assert said(checks) == {}
    assert {check.id: check.found for check in checks} == {
        "distribution": "Ubuntu 24.04.3 LTS",
        "architecture": "x86_64",
        "systemd": "systemd",
        "glibc": f"glibc {good.libc}",
        "memory": "1511.5 GiB",
        "python": "python3.12 is Python 3.12.3",
        "python_headers": "/usr/include/python3.12/Python.h",
        "compiler": ", ".join(good.compilers.values()),
        "release_space": "200.0 GiB free on /",
        "model": "/models/kimi",
        "port": "free",
        "driver": f"driver 580.95.05, open module, kernel {good.kernel}",
        "driver_upgrades": "unattended-upgrades is off",
        "gpu_count": "8",
        "gpu_model": "8x NVIDIA RTX PRO 6000 Blackwell Server Edition",
        "compute_capability": "8x 12.0",
        "gpu_memory": "8x 95.6 GiB",
        "ecc": "ECC 8x Enabled",
        "xid": "none since boot",
        "slowdown": "none",
        "gpu_processes": "none",
        "persistence": "8x Enabled",
        "power_limit": "8x 600 W of 600 W",
        "hmm": "off",
        "governor": "performance",
        "numa_balancing": "off",
        "shm": "755.0 GiB",
        "registry": "none set",
        "link": "8x gen5 x16",
        "aspm": "off",
        "bar1": "8x 131072 MiB",
        "topology": "12 pairs NODE, 16 pairs SYS",
        "p2p": "OK for 28 pairs",
        "acs": "no redirection on 8 ports above the GPUs",
        "iommu": "off",
        "numa": "0 0 0 0 1 1 1 1",
        "nccl": "NCCL_P2P_LEVEL=SYS",
    }


def cards(facts: Facts) -> smi.Query:
    """What the driver of a host with GPUs said."""
    assert facts.query
    return facts.query


def gpus(facts: Facts, **changes: Any) -> Facts:
    """The same host with all cards changed."""
    query = cards(facts)
    return replace(facts, query=replace(query, gpus=tuple(replace(gpu, **changes) for gpu in query.gpus)))


def gpu3(facts: Facts, **changes: Any) -> Facts:
    """The same host with the card of index 3 changed."""
    query = cards(facts)
    changed = tuple(replace(gpu, **changes) if gpu.index == 3 else gpu for gpu in query.gpus)
    return replace(facts, query=replace(query, gpus=changed))


def without_driver(facts: Facts, rc: int, text: str, **changes: Any) -> Facts:
    return replace(facts, nvidia_smi=Done(rc, text, ""), query=None, **changes)


def peers(facts: Facts, state: str) -> Facts:
    size = range(8)
    cells = tuple(tuple("X" if a == b else state for b in size) for a in size)
    return replace(facts, peer_write=smi.Matrix(cells), peer_read=smi.Matrix(cells))


def ports(facts: Facts, **changes: Any) -> Facts:
    return replace(facts, ports_above=[replace(port, **changes) for port in facts.ports_above])


def fixture(name: str) -> str:
    return (FIXTURES / name).read_text()


# One line: what is changed on the good host, the id of the check that speaks, and what it says.
CONDITIONS: list[tuple[str, Callable[[Facts], Facts], str, str]] = [
    (
        "another distribution",
        lambda f: replace(f, distribution="fedora-43", distribution_name="Fedora Linux 43"),
        "distribution",
        "fail: Distribution: found Fedora Linux 43, expected one of ubuntu-24.04, ubuntu-22.04, debian-12. Install a "
        "supported distribution, or add fedora-43 to preflight_distributions if you tested it.",
    ),
    (
        "another architecture",
        lambda f: replace(f, architecture="aarch64"),
        "architecture",
        "fail: Architecture: found aarch64, expected x86_64. The wheels of the release are built for x86_64 alone: "
        "use another host.",
    ),
    (
        "no systemd",
        lambda f: replace(f, booted=False),
        "systemd",
        "fail: Init system: found no running systemd, expected systemd. Boot the host, or the container, with systemd "
        "as process 1.",
    ),
    (
        "an old C library",
        lambda f: replace(f, libc="2.27"),
        "glibc",
        "fail: C library: found glibc 2.27, expected glibc 2.28 or later. Upgrade the distribution: the wheels need "
        "this C library.",
    ),
    (
        "little memory",
        lambda f: replace(f, memory={"MemTotal": 32 * GIB}),
        "memory",
        "fail: Main memory: found 32.0 GiB, expected at least 64 GiB. Add memory, or lower preflight_memory_gib if "
        "the server is known to fit.",
    ),
    (
        "no such Python",
        lambda f: replace(f, python=Python("python3.12", "", "", "python3.12 is not installed")),
        "python",
        "fail: Python of the release: found python3.12 does not run (python3.12 is not installed), expected Python "
        "3.12 (sglang_stack_python). Run apt-get install python3.12 python3.12-dev.",
    ),
    (
        "a Python that the distribution does not have",
        lambda f: replace(
            f,
            distribution="debian-12",
            distribution_name="Debian GNU/Linux 12 (bookworm)",
            python=Python("python3.12", "", "", "python3.12 is not installed"),
        ),
        "python",
        "fail: Python of the release: found python3.12 does not run (python3.12 is not installed), expected Python "
        "3.12 (sglang_stack_python). Set sglang_stack_python to '3.11', which Debian GNU/Linux 12 (bookworm) has.",
    ),
    (
        "a Python of another version",
        lambda f: replace(f, python=Python("/usr/bin/python3", "3.10.12", "", "")),
        "python",
        "fail: Python of the release: found /usr/bin/python3 is Python 3.10.12, expected Python 3.12 "
        "(sglang_stack_python). Run apt-get install python3.12 python3.12-dev.",
    ),
    (
        "no headers",
        lambda f: replace(f, python=Python("python3.12", "3.12.3", "", "")),
        "python_headers",
        "fail: Python headers: found no Python.h of python3.12, expected Python.h (Triton compiles against it when "
        "the server starts). Run apt-get install python3.12-dev.",
    ),
    (
        "no compiler",
        lambda f: replace(f, compilers={"gcc": "", "g++": ""}),
        "compiler",
        "fail: Host compiler: found no gcc and no g++, expected gcc and g++ (Triton and FlashInfer compile when the "
        "server starts). Run apt-get install g++.",
    ),
    (
        "no space",
        lambda f: replace(f, spaces={"/opt/sglang": Space("/opt/sglang", "/opt", 12 * GIB)}),
        "release_space",
        "fail: Space for the release: found 12.0 GiB free on /opt, expected at least 30 GiB for a new release under "
        "/opt/sglang. Free some space, or set sglang_stack_root to a larger file system.",
    ),
    (
        "no space for a new release on a host that serves",
        lambda f: replace(
            f,
            spaces={"/opt/sglang": Space("/opt/sglang", "/opt", 12 * GIB)},
            current="releases/0.5.9-0123456789ab",
        ),
        "release_space",
        "warn: Space for the release: found 12.0 GiB free on /opt, expected at least 30 GiB for a new release under "
        "/opt/sglang. Free some space, or set sglang_stack_root to a larger file system; only a new release needs it.",
    ),
    (
        "no model folder",
        lambda f: replace(f, folders={"/models/kimi": None}),
        "model",
        "fail: Model folder: found no folder /models/kimi, expected a folder with a model. Put the model there, or "
        "correct eagle3_server_model_path or eagle3_server_draft_model_path.",
    ),
    (
        "half a model",
        lambda f: replace(f, folders={"/models/kimi": ["model-00001-of-00064.safetensors"]}),
        "model",
        "fail: Model folder: found no config.json in /models/kimi, expected a folder with a model. Finish copying the "
        "model, or correct eagle3_server_model_path or eagle3_server_draft_model_path.",
    ),
    (
        "the port is taken",
        lambda f: replace(f, ports={30000: [Taken([Owner(71, "nginx", "nginx.service")])]}),
        "port",
        "fail: Port 30000: found in use by nginx (pid 71, nginx.service), expected free, or held by "
        "sglang@eagle3.service, sglang@baseline.service. Stop that process, or set eagle3_server_port to another port.",
    ),
    (
        "the port is taken by a process of another user",
        lambda f: replace(f, ports={30000: [Taken([], seen=False)]}),
        "port",
        "fail: Port 30000: found in use by a process that this user may not see, expected free, or held by "
        "sglang@eagle3.service, sglang@baseline.service. Look as root who it is (ss -ltnp sport = :30000) and stop it, "
        "or set eagle3_server_port to another port.",
    ),
    (
        "the port is taken by one of several processes that hide their sockets",
        lambda f: replace(
            f, ports={30000: [Taken([Owner(71, "node", "app.service"), Owner(72, "sh", "")], seen=False)]}
        ),
        "port",
        "fail: Port 30000: found in use by one of node (pid 71, app.service), sh (pid 72), expected free, or held by "
        "sglang@eagle3.service, sglang@baseline.service. Look as root who it is (ss -ltnp sport = :30000) and stop it, "
        "or set eagle3_server_port to another port.",
    ),
    (
        "the port is ours on one address and a stranger's on another",
        lambda f: replace(
            f,
            ports={
                30000: [
                    Taken([Owner(70, "sglang", "sglang@eagle3.service")]),
                    Taken([Owner(71, "nginx", "nginx.service")]),
                ]
            },
        ),
        "port",
        "fail: Port 30000: found in use by nginx (pid 71, nginx.service), expected free, or held by "
        "sglang@eagle3.service, sglang@baseline.service. Stop that process, or set eagle3_server_port to another port.",
    ),
    (
        "nouveau",
        lambda f: replace(f, modules=["nouveau"]),
        "nouveau",
        "fail: nouveau: found the nouveau module is loaded, expected NVIDIA's own module. Install NVIDIA's driver, "
        "which blacklists nouveau, and reboot.",
    ),
    (
        "no driver",
        lambda f: without_driver(f, -1, "", module_version="", library_version=""),
        "driver",
        "fail: NVIDIA driver: found no nvidia-smi, expected driver 580 or later. Install NVIDIA's open driver 580 or "
        "later by the distribution's packages, and reboot.",
    ),
    (
        "a half-done upgrade of the driver",
        lambda f: without_driver(
            f,
            18,
            fixture("driver-mismatch-smi.txt"),
            module_version=system.parse_module_version(fixture("driver-mismatch-module-version.txt")),
            library_version=system.parse_nvml_version(fixture("driver-mismatch-smi.txt")),
        ),
        "driver_mismatch",
        "fail: NVIDIA driver: found module 580.173.02 is loaded, the libraries are 580.178, expected module and "
        "libraries of one version. Reboot the host. A server that runs is left alone and keeps working until it is "
        "restarted.",
    ),
    (
        "newer libraries that no program has loaded yet",
        lambda f: replace(f, library_version="580.126.09"),
        "driver_mismatch",
        "fail: NVIDIA driver: found module 580.95.05 is loaded, the libraries are 580.126.09, expected module and "
        "libraries of one version. Reboot the host. A server that runs is left alone and keeps working until it is "
        "restarted.",
    ),
    (
        "a reboot that would change nothing",
        lambda f: replace(f, library_version="590.48.01", module_on_disk="580.95.05"),
        "driver_mismatch",
        "fail: NVIDIA driver: found module 580.95.05 is loaded, the libraries are 590.48.01, expected module and "
        "libraries of one version. A reboot changes nothing, as the module on disk is 580.95.05: install module and "
        "libraries of one version (dpkg -l '*nvidia*' shows them), then reboot. A server that runs is left alone and "
        "keeps working until it is restarted.",
    ),
    (
        "a library left over from another driver",
        lambda f: replace(
            f, library_version="580.95.05", stray_libraries=["/usr/lib64/libnvidia-ml.so.590.48.01"]
        ),
        "driver_files",
        "warn: Libraries of the driver: found /usr/lib64/libnvidia-ml.so.590.48.01 beside version 580.95.05, which "
        "programs get, expected files of one version. dpkg -S FILE names the package of each; remove that package, or "
        "the file if it has none. Nothing uses them now, and a careless ldconfig or a container may.",
    ),
    (
        "a card with damaged records",
        lambda f: replace(
            f, query=replace(cards(f), warnings=("WARNING: infoROM is corrupted at gpu 0000:84:00.0",))
        ),
        "driver_warnings",
        "warn: Warnings of the driver: found WARNING: infoROM is corrupted at gpu 0000:84:00.0, expected none. Look at "
        "nvidia-smi -q of the card that it names: with a damaged infoROM it works, and its maker may replace it.",
    ),
    (
        "a card of the driver that tells no size",
        lambda f: gpu3(f, memory_mib=None),
        "gpu_memory",
        "warn: GPU memory: found 7x 95.6 GiB, 1x not known, expected at least 90 GiB each. See nvidia-smi -q -d MEMORY "
        "-i 3, as root.",
    ),
    (
        "shared memory that fills",
        lambda f: replace(f, shm_free_bytes=100 * GIB, shm_largest=["9 nccl-* (640.0 GiB)"]),
        "shm",
        "warn: /dev/shm: found 100.0 of 755.0 GiB are free, the most by 9 nccl-* (640.0 GiB), expected at least a "
        "quarter free. A start of the server removes what its user left there and no process has open; ls -l /dev/shm "
        "shows the rest, and fuser -v /dev/shm/* who has it.",
    ),
    (
        "the proprietary module",
        lambda f: without_driver(
            f,
            6,
            "No devices were found",
            module_version="580.126.09",
            library_version="580.126.09",
            module_open=False,
            wants_open_module=True,
        ),
        "driver",
        "fail: NVIDIA driver: found the proprietary module 580.126.09, which does not know these cards, expected the "
        "open module of driver 580 or later. Install NVIDIA's open driver 580 or later by the distribution's packages, "
        "and reboot.",
    ),
    (
        "nvidia-smi hangs",
        lambda f: replace(
            f,
            nvidia_smi=Done(-2, "", "nvidia-smi -q did not end within 30 s"),
            query=None,
            library_version="",
        ),
        "driver",
        "fail: NVIDIA driver: found nvidia-smi -q did not end within 30 s, expected an answer within seconds. A card "
        "may be lost: look at dmesg for Xid, and power-cycle the host.",
    ),
    (
        "a new kernel without the module",
        lambda f: without_driver(
            f,
            9,
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.",
            module_version="",
            kernel="6.8.0-139-generic",
            kernels_without_module=["6.8.0-139-generic"],
        ),
        "driver",
        "fail: NVIDIA driver: found nvidia-smi fails: NVIDIA-SMI has failed because it couldn't communicate with the "
        "NVIDIA driver., expected driver 580 or later. Run apt-get install linux-headers-6.8.0-139-generic and dkms "
        "autoinstall, and reboot.",
    ),
    (
        "an old driver",
        lambda f: replace(
            f,
            query=replace(cards(f), driver="570.195.03"),
            module_version="570.195.03",
            library_version="570.195.03",
            kernel="6.8.0-79-generic",
            kernels_without_module=[],
        ),
        "driver",
        "fail: NVIDIA driver: found driver 570.195.03, open module, kernel 6.8.0-79-generic, expected driver 580 or "
        "later (CUDA 13). Install NVIDIA's open driver 580 or later by the distribution's packages, and reboot.",
    ),
    (
        "upgrades at night",
        lambda f: replace(f, driver_kept_by=""),
        "driver_upgrades",
        "warn: Driver upgrades: found unattended-upgrades may replace the driver while the server runs, expected by "
        "hand, in maintenance. Set host_tuning_block_driver_upgrades: true.",
    ),
    (
        "the next boot will have no module",
        lambda f: replace(f, kernel="6.8.0-79-generic", kernels_without_module=["6.8.0-139-generic"]),
        "next_kernel",
        "warn: Next kernel: found no nvidia module for 6.8.0-139-generic, expected a module for every installed "
        "kernel. Run apt-get install linux-headers-6.8.0-139-generic and dkms autoinstall before the next reboot.",
    ),
    (
        "a lost card",
        lambda f: replace(f, query=replace(cards(f), gpus=cards(f).gpus[:7])),
        "gpu_count",
        "fail: GPU count: found 7, expected 8 (the tensor parallel size). Look at dmesg and lspci for a lost card, or "
        "lower eagle3_server_tensor_parallel_size.",
    ),
    (
        "other cards",
        lambda f: replace(f, query=smi.parse_query(fixture("h200-x2-query.txt"))),
        "gpu_model",
        "fail: GPU model: found 2x NVIDIA H200, expected one of NVIDIA RTX PRO 6000 Blackwell Server Edition. Use a "
        "host with supported cards, or add the name to preflight_gpu_models if you tested it.",
    ),
    (
        "another architecture of GPU",
        lambda f: replace(
            f,
            compute_capability=[
                row["compute_cap"] for row in smi.parse_csv(fixture("h200-x2-compute-cap.csv"))
            ],
        ),
        "compute_capability",
        "fail: Compute capability: found 2x 9.0, expected 12.0. The kernels and patches of this project are made for "
        "SM120: use a host with such cards.",
    ),
    (
        "the same architecture, but small",
        lambda f: replace(f, query=smi.parse_query(fixture("rtx-5090-query.txt"))),
        "gpu_memory",
        "fail: GPU memory: found 1x 31.8 GiB, expected at least 90 GiB each. The model does not fit on GPU 0: use "
        "other cards.",
    ),
    (
        "a divided card",
        lambda f: gpu3(f, mig="Enabled"),
        "mig",
        "fail: MIG mode: found enabled on GPU 3, expected disabled. Run nvidia-smi -mig 0 while nothing uses the "
        "cards.",
    ),
    (
        "a closed card",
        lambda f: gpu3(f, compute_mode="Prohibited"),
        "compute_mode",
        "fail: Compute mode: found Prohibited on GPU 3, expected Default. Run nvidia-smi -c DEFAULT.",
    ),
    (
        "memory errors",
        lambda f: gpu3(f, ecc_uncorrected=2.0),
        "ecc",
        "warn: GPU memory errors: found ECC 8x Enabled; uncorrected errors in the card's life: GPU 3: 2, expected no "
        "uncorrected error. Watch the count; a card on which it grows has to be replaced.",
    ),
    (
        "a row that waits",
        lambda f: gpu3(f, remap_pending="Yes"),
        "ecc",
        "fail: GPU memory errors: found a row waits to be remapped on GPU 3, expected no pending row. Stop what uses "
        "the card and run nvidia-smi --gpu-reset, or reboot.",
    ),
    (
        "worn memory",
        lambda f: gpu3(f, remap_failed="Yes"),
        "ecc",
        "fail: GPU memory errors: found row remapping failed on GPU 3, expected no failed row. Replace the card.",
    ),
    (
        "a card that fell off",
        lambda f: replace(f, xids=system.parse_xids(fixture("rtx-6000-ada-lost-dmesg.txt"))),
        "xid",
        "fail: Xid history: found 1x Xid 79 on 0000:b3:00 (GPU has fallen off the bus), expected none since boot. "
        "Look at dmesg | grep Xid, power-cycle the host, and check the card, its power and its riser.",
    ),
    (
        "crashes of the firmware",
        lambda f: replace(f, xids=system.parse_xids(fixture("rtx-pro-6000-xids-dmesg.txt"))),
        "xid",
        "fail: Xid history: found 2x Xid 154 on 0000:01:00, 1x Xid 120 on 0000:01:00, 1x Xid 62 on 0000:01:00 (the "
        "driver asks for a reset), expected none since boot. Look at dmesg | grep Xid, power-cycle the host, and check "
        "the card, its power and its riser.",
    ),
    (
        "a fault of a program",
        lambda f: replace(f, xids=[system.Xid("0000:05:00", 31, "pid=9, name=python, Ch 00000008")]),
        "xid",
        "warn: Xid history: found 1x Xid 31 on 0000:05:00, expected none since boot. Look at dmesg | grep Xid; these "
        "are mostly faults of a program.",
    ),
    (
        "a log that this user may not read",
        lambda f: replace(f, log_readable=False),
        "xid",
        "warn: Xid history: found the kernel's log cannot be read. Run the play as root.",
    ),
    (
        "a card that has to be reset",
        lambda f: gpu3(f, recovery="Reset"),
        "recovery",
        "fail: GPU recovery: found the driver asks for 'Reset' on GPU 3, expected None. Stop what uses the card and "
        "do what the driver asks for; a reboot does all of it.",
    ),
    (
        "a hot card",
        lambda f: gpu3(f, slowdowns=("HW Slowdown", "HW Thermal Slowdown")),
        "slowdown",
        "warn: Clock slowdown: found GPU 3: HW Slowdown, HW Thermal Slowdown, expected none. Check cooling and power "
        "supply: figures taken now do not count.",
    ),
    (
        "somebody else's process",
        lambda f: replace(
            gpu3(f, processes=(smi.Process(126233, "/opt/anaconda3/envs/torch-env2/bin/python", 12949),)),
            owners={126233: Owner(126233, "python", "session-3.scope")},
        ),
        "gpu_processes",
        "fail: GPU processes: found python (pid 126233, session-3.scope) with 12949 MiB, expected nothing but "
        "sglang@eagle3.service, sglang@baseline.service. Stop these processes: the server takes nearly all memory of "
        "every card.",
    ),
    (
        "memory that nobody holds",
        lambda f: gpu3(f, memory_used_mib=624.0),
        "gpu_processes",
        "fail: GPU processes: found memory in use by no process that can be seen (GPU 3: 624 MiB), expected free "
        "cards. Stop containers that use the cards; if there are none, a killed job left them wedged: reboot.",
    ),
    (
        "no persistence",
        lambda f: gpus(f, persistence="Disabled"),
        "persistence",
        "warn: Persistence mode: found 8x Disabled, expected Enabled. Set host_tuning_persistence: true; without it "
        "the driver starts anew at every first use.",
    ),
    (
        "a lowered power limit",
        lambda f: gpu3(f, power_limit_w=450.0),
        "power_limit",
        "warn: Power limit: found 7x 600 W of 600 W, 1x 450 W of 600 W, expected the card's default, alike on all. If "
        "it is not meant so, set host_tuning_power_limit_w; figures belong to one limit.",
    ),
    (
        "HMM in use",
        lambda f: gpus(f, addressing="HMM"),
        "hmm",
        "warn: Heterogeneous memory (HMM): found on, expected off. Set host_tuning_disable_hmm: true and reboot; NCCL "
        "was seen to lock up with it.",
    ),
    (
        "HMM allowed, by a driver that does not say whether it is in use",
        lambda f: replace(gpus(f, addressing=""), hmm_disabled="N"),
        "hmm",
        "warn: Heterogeneous memory (HMM): found on, expected off. Set host_tuning_disable_hmm: true and reboot; NCCL "
        "was seen to lock up with it.",
    ),
    (
        "a thrifty processor",
        lambda f: replace(f, governor="schedutil"),
        "governor",
        "warn: CPU governor: found schedutil, expected performance. Set host_tuning_governor: performance.",
    ),
    (
        "pages that wander",
        lambda f: replace(f, numa_balancing="1"),
        "numa_balancing",
        "warn: NUMA balancing: found on, expected off. Set host_tuning_numa_balancing: false.",
    ),
    (
        "a small /dev/shm",
        lambda f: replace(f, shm_bytes=64 * 2**20),
        "shm",
        "warn: /dev/shm: found 0.1 GiB, expected at least 8 GiB. Set host_tuning_shm_gib: NCCL and the schedulers "
        "share memory there.",
    ),
    (
        "half the lanes",
        lambda f: gpu3(f, link_width=8.0),
        "link",
        "warn: PCIe link: found GPU 3: x8 of x16, expected all lanes. Reseat the card or its riser, and check the "
        "slot's bifurcation in the BIOS.",
    ),
    (
        "a slow link under load",
        lambda f: gpu3(f, performance_state="P0", link_gen=4.0),
        "link",
        "warn: PCIe link: found GPU 3: gen4 of gen5, at full clocks, expected the highest generation. Check riser and "
        "retimers, and the slot's link speed in the BIOS.",
    ),
    (
        "a slow slot",
        lambda f: gpus(f, link_gen_host=4.0, link_gen_max=4.0),
        "link",
        "warn: PCIe link: found GPU 0, 1, 2, 3, 4, 5, 6, 7: slot is gen4, card is gen5, expected a slot of the card's "
        "generation. Use another slot, or raise the slot's link speed in the BIOS.",
    ),
    (
        "a root port with four lanes",
        lambda f: replace(
            f, ports_above=[replace(f.ports_above[0], width=4, width_max=4), *f.ports_above[1:]]
        ),
        "uplink",
        "warn: PCIe ports above the GPUs: found 0000:05:01.1 runs x4 of x4, expected as wide as the cards. Check the "
        "lane configuration of that root port in the BIOS, or the cable of the switch.",
    ),
    (
        "links that sleep",
        lambda f: replace(f, ports_above=[replace(f.ports_above[0], aspm="L1 Enabled"), *f.ports_above[1:]]),
        "aspm",
        "warn: PCIe power saving (ASPM): found enabled on 0000:05:01.1, expected off. Set host_tuning_aspm: "
        "performance, or add pcie_aspm=off to host_tuning_kernel_parameters.",
    ),
    (
        "a small BAR1",
        lambda f: gpus(f, bar1_mib=256.0),
        "bar1",
        "warn: BAR1 (large BAR): found 8x 256 MiB, expected at least the card's memory. Turn on Above 4G Decoding and "
        "Resizable BAR in the BIOS (on Workstation cards also NVIDIA's displaymodeselector): peer-to-peer needs it.",
    ),
    (
        "no peer-to-peer",
        lambda f: peers(f, "CNS"),
        "p2p",
        "warn: Peer-to-peer: found 28 of 28 pairs cannot (chipset not supported), expected OK for every pair. Turn off "
        "the IOMMU and ACS (see below), check BAR1, then consider host_tuning_p2p_override; without peer-to-peer every "
        "allreduce goes through main memory.",
    ),
    (
        "access control that redirects",
        lambda f: ports(f, acs=frozenset({"SrcValid", "ReqRedir", "CmpltRedir", "UpstreamFwd"})),
        "acs",
        "warn: PCIe access control (ACS): found redirects peer-to-peer on 0000:05:01.1, 0000:06:01.1, 0000:0a:01.1, "
        "0000:0b:01.1, 0000:84:01.1, 0000:85:01.1, 0000:89:01.1, 0000:8a:01.1, expected off on root and switch ports. "
        "Turn ACS off in the BIOS, or set host_tuning_disable_acs: true.",
    ),
    (
        "lspci without root",
        lambda f: ports(f, acs=None),
        "acs",
        "warn: PCIe access control (ACS): found lspci shows no access control, expected off on root and switch ports. "
        "Run the play as root; if it is, the ports have none: add acs to preflight_waive.",
    ),
    (
        "no lspci",
        lambda f: replace(f, ports_above=[], cards={}),
        "acs",
        "warn: PCIe access control (ACS): found lspci shows no port above the GPUs, expected off on root and switch "
        "ports. Run apt-get install pciutils.",
    ),
    (
        "a translating IOMMU",
        lambda f: replace(f, iommu_devices=4, iommu_type="DMA-FQ"),
        "iommu",
        "warn: IOMMU: found on, translating (DMA-FQ), expected off, or identity. Turn it off in the BIOS, or add "
        "iommu=off (amd_iommu=off on AMD) to host_tuning_kernel_parameters: the first allreduce was seen to hang with "
        "it.",
    ),
    (
        "cards without a node",
        lambda f: replace(f, numa=dict.fromkeys(f.numa, "-1")),
        "numa",
        "warn: NUMA node of each GPU: found -1 -1 -1 -1 -1 -1 -1 -1, expected a node for every card. Turn on NUMA "
        "(NPS1 or more, no interleaving over sockets) in the BIOS.",
    ),
]


@pytest.mark.parametrize(
    ("change", "id", "message"), [line[1:] for line in CONDITIONS], ids=[c[0] for c in CONDITIONS]
)
def test_a_condition_is_said_word_for_word(
    good: Facts, change: Callable[[Facts], Facts], id: str, message: str
) -> None:
    assert said(judge(change(good)))[id] == message


def test_what_the_deployment_installs_is_no_failure(good: Facts) -> None:
    bare = replace(
        good, python=Python("python3.12", "3.12.3", "", ""), compilers={"gcc": "/usr/bin/gcc", "g++": ""}
    )
    told = said(judge(bare, replace(WANTED, packages=["g++", "libnuma1", "python3.12-dev"])))
    assert told["python_headers"].startswith("warn: Python headers: found no Python.h of python3.12")
    assert told["python_headers"].endswith("site.yml installs python3.12-dev.")
    assert told["compiler"].startswith("warn: Host compiler: found no g++")
    assert told["compiler"].endswith("site.yml installs g++.")


# --- what the server is started with ---


@pytest.mark.parametrize(
    ("nccl", "message"),
    [
        (
            {"NCCL_GRAPH_FILE": ""},
            "fail: NCCL settings: found NCCL_GRAPH_FILE is set and empty, expected unset, or a file. Remove "
            "NCCL_GRAPH_FILE from eagle3_server_nccl_environment: NCCL does not start with it.",
        ),
        (
            {"NCCL_P2P_DISABLE": 1},
            "warn: NCCL settings: found NCCL_P2P_DISABLE=1, expected no NCCL_P2P_DISABLE where peer-to-peer works. "
            "Remove NCCL_P2P_DISABLE from eagle3_server_nccl_environment; preflight_active_test: true proves it.",
        ),
        (
            {},
            "warn: NCCL settings: found nothing set, expected NCCL_P2P_LEVEL=SYS where cards sit on several sockets. "
            "Add NCCL_P2P_LEVEL: SYS to eagle3_server_nccl_environment: otherwise pairs across sockets go through "
            "main memory.",
        ),
    ],
)
def test_nccl_settings_that_do_not_fit_the_host(good: Facts, nccl: dict[str, Any], message: str) -> None:
    assert said(judge(good, replace(WANTED, nccl=nccl)))["nccl"] == message


def test_a_few_pairs_without_peer_access_are_counted(good: Facts) -> None:
    direct = smi.parse_matrix(fixture("rtx-pro-6000-x8-direct-topology.txt"))
    cells = tuple(
        tuple("X" if cell == "X" else "TNS" if cell == "SYS" else "OK" for cell in row)
        for row in direct.cells
    )
    checks = said(judge(replace(good, peer_read=smi.Matrix(cells), peer_write=smi.Matrix(cells))))
    assert checks["p2p"].startswith(
        "warn: Peer-to-peer: found 16 of 28 pairs cannot (topology not supported), "
    )


def test_more_cards_than_are_used_is_worth_a_look(good: Facts) -> None:
    assert said(judge(good, replace(WANTED, gpu_count=4)))["gpu_count"] == (
        "warn: GPU count: found 8, of which 4 are used, expected 4 (the tensor parallel size). Keep other work off "
        "the unused ones, choose others by eagle3_server_gpus, or raise eagle3_server_tensor_parallel_size."
    )


def test_cards_of_two_kinds_are_worth_a_look(good: Facts) -> None:
    max_q = "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition"
    wanted = replace(WANTED, gpu_models=[*WANTED.gpu_models, max_q])
    assert said(judge(gpu3(good, name=max_q), wanted)) == {
        "gpu_mixed": "warn: GPU model: found mixed: 7x NVIDIA RTX PRO 6000 Blackwell Server Edition, 1x NVIDIA RTX "
        "PRO 6000 Blackwell Max-Q Workstation Edition, expected cards of one kind. All cards wait for the slowest at "
        "every layer: use cards of one kind."
    }


def test_a_driver_that_knows_no_cards_is_spoken_of_as_that(good: Facts) -> None:
    none = replace(
        good, query=replace(cards(good), gpus=()), links=smi.Matrix(()), peer_write=None, peer_read=None
    )
    assert said(judge(none)) == {
        "gpu_count": "fail: GPU count: found 0, expected 8 (the tensor parallel size). Look at dmesg and lspci for a "
        "lost card, or lower eagle3_server_tensor_parallel_size."
    }
    assert report.fingerprint(none, "cuda")["parts"]["gpus"] == []


def test_models_to_fetch_need_space(good: Facts) -> None:
    facts = replace(good, spaces={**good.spaces, "/models": Space("/models", "/models", 500 * GIB)})
    assert said(judge(facts, replace(WANTED, model_space=("/models", 600))))["model_space"] == (
        "fail: Space for the models: found 500.0 GiB free on /models, expected at least 600 GiB under /models. Free "
        "some space, or set eagle3_server_model_path or eagle3_server_draft_model_path to a larger file system."
    )


def test_every_check_is_documented_and_tried() -> None:
    rules = "".join(path.read_text() for path in Path(report.__file__).parent.glob("*_rules.py"))
    ids = set(re.findall(r'\b(?:Check|row)\(\s*"([a-z0-9_]+)"', rules))
    lines = (TESTS.parent / "docs/preflight.md").read_text().splitlines()
    (table,) = [line for line in lines if line.startswith("| `distribution`")]
    assert set(re.findall(r"`(\w+)`", table)) == ids - {"gpu"}
    elsewhere = {
        "gpu_mixed",
        "model_space",
        "nccl",
    }  # in tests of their own, as they need more than another host
    never_out_of_order = {"gpu", "registry", "topology"}
    assert ids - {condition[2] for condition in CONDITIONS} == elsewhere | never_out_of_order


# --- what is in order although it looks otherwise ---


def test_our_own_server_may_hold_port_and_gpus(good: Facts) -> None:
    own = Owner(500, "sglang::schedul", "sglang@eagle3.service")
    facts = replace(
        gpus(good, processes=(smi.Process(500, "sglang::scheduler_TP0", 91000),), memory_used_mib=91000.0),
        owners={500: own},
        ports={30000: [Taken([own])]},
    )
    checks = judge(facts)
    assert said(checks) == {}
    assert {check.found for check in checks if check.id in ("port", "gpu_processes")} == {
        "held by our own sglang@eagle3.service",
        "our own server (1 processes)",
    }


BENCH = Owner(501, "python", "session-3.scope")


@pytest.mark.parametrize(
    "socket",
    [
        # A load generator under the server's user may not be traced either: it is no owner for that.
        Taken([Owner(500, "python", "sglang@eagle3.service"), BENCH], seen=False),
        Taken([BENCH, Owner(500, "python", "sglang@baseline.service")], seen=False),
        # A process that was started by the server and has inherited its socket.
        Taken([Owner(500, "python", "sglang@eagle3.service"), BENCH]),
    ],
)
def test_a_socket_that_our_unit_has_is_ours_whoever_else_could_have_it(good: Facts, socket: Taken) -> None:
    assert said(judge(replace(good, ports={30000: [socket]}))) == {}


def listen_on(root: Path, *, hidden: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host whose port 30000 is listened on by process 500; process 501, of the same user, is only connected to it."""
    (root / "proc/net").mkdir(parents=True)
    row = "   {}: 0100007F:{} 0100007F:7530 {} 00000000:00000000 00:00000000 00000000 {:5} 0 {} 1"
    rows = [
        row.format(0, "7530", "0A", os.getuid(), 11),
        row.format(1, "7530", "01", os.getuid(), 12),
        row.format(2, "9C40", "01", os.getuid(), 13),
    ]
    (root / "proc/net/tcp").write_text("\n".join(["  sl  local_address rem_address ...", *rows]) + "\n")
    for pid, name, unit, inodes in (
        (500, "sglang", "sglang@eagle3.service", (11, 12)),
        (501, "bench", "session-3.scope", (13,)),
    ):
        process = root / "proc" / str(pid)
        (process / "fd").mkdir(parents=True)
        (process / "comm").write_text(name + "\n")
        (process / "cgroup").write_text(f"0::/system.slice/{unit}\n")
        for number, inode in enumerate(inodes):
            (process / "fd" / str(number)).symlink_to(f"socket:[{inode}]")
    if hidden:  # as the kernel answers without the right to trace

        def refuse(path: Path) -> Path:
            raise PermissionError(path)

        monkeypatch.setattr(Path, "readlink", refuse)


@pytest.mark.parametrize("hidden", [False, True])
def test_a_connection_to_the_server_does_not_hold_its_port(
    tmp_path: Path, good: Facts, hidden: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    listen_on(tmp_path, hidden=hidden, monkeypatch=monkeypatch)
    # 7530 and 9C40 are 30000 and 40000: the client's own end is listened on by nobody.
    ports = collect._listening(collect.Host(tmp_path), [30000, 40000])
    assert [owner.name for owner in ports[30000][0].owners] == (["sglang", "bench"] if hidden else ["sglang"])
    assert (list(ports), ports[30000][0].seen) == ([30000], not hidden)
    assert {check.found for check in judge(replace(good, ports=ports)) if check.id == "port"} == {
        "held by our own sglang@eagle3.service"
    }


def test_a_process_that_ends_while_ports_are_looked_at_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listen_on(tmp_path, hidden=False, monkeypatch=monkeypatch)
    monkeypatch.setattr(os, "scandir", losing(tmp_path / "proc/501/fd"))
    ports = collect._listening(collect.Host(tmp_path), [30000])
    assert [owner.name for owner in ports[30000][0].owners] == ["sglang"]


def test_a_host_that_serves_needs_space_for_a_release_that_it_does_not_have(good: Facts) -> None:
    full = replace(
        good, spaces={"/opt/sglang": Space("/opt/sglang", "/opt", GIB)}, current="releases/0.5.9-0123456789ab"
    )
    planned = replace(WANTED, release="/opt/sglang/releases/0.5.10.post1-ba9876543210")
    assert said(judge(full, planned))["release_space"] == (
        "fail: Space for the release: found 1.0 GiB free on /opt, expected at least 30 GiB for a new release under "
        "/opt/sglang. Free some space, or set sglang_stack_root to a larger file system."
    )


def test_a_release_that_is_there_needs_no_space(good: Facts) -> None:
    full = replace(good, spaces={"/opt/sglang": Space("/opt/sglang", "/opt", GIB)}, manifest=True)
    assert said(judge(full)) == {}


def test_an_idle_link_is_not_a_slow_one(good: Facts) -> None:
    assert said(judge(gpus(good, performance_state="P8", link_gen=1.0))) == {}


def test_without_gpus_nothing_is_asked_of_them(good: Facts) -> None:
    wanted = replace(WANTED, engine="cpu")
    bare = replace(good, nvidia_smi=None, query=None)
    (skipped,) = [check for check in host_rules.judge_host(bare, wanted) if check.status == "skip"]
    assert skipped.found == "not looked at, because sglang_stack_engine is cpu"


def test_without_a_driver_only_the_driver_is_spoken_of(good: Facts) -> None:
    facts = without_driver(good, -1, "", module_version="", library_version="")
    assert [check.id for check in gpu_rules.judge_gpus(facts, WANTED)] == ["driver"]


# --- the fingerprint ---


def test_the_fingerprint_stays_the_same_while_nothing_changes(good: Facts) -> None:
    idle, busy = good, gpus(good, performance_state="P0", link_gen=5.0, memory_used_mib=91000.0)
    assert report.fingerprint(idle, "cuda") == report.fingerprint(busy, "cuda")


@pytest.mark.parametrize(
    "change",
    [
        lambda f: gpu3(f, power_limit_w=450.0),
        lambda f: gpu3(f, link_width=8.0),
        lambda f: gpu3(f, ecc="Disabled"),
        lambda f: replace(f, query=replace(cards(f), driver="595.58.03")),
        lambda f: replace(f, kernel="6.17.0-14-generic"),
        lambda f: replace(f, cpu_model="AMD EPYC 9124 16-Core Processor"),
        lambda f: replace(f, governor="powersave"),
        lambda f: replace(f, cmdline=["iommu=pt"]),
        lambda f: peers(f, "CNS"),
        lambda f: ports(f, acs=frozenset({"ReqRedir"})),
        lambda f: replace(f, links=smi.parse_matrix(fixture("rtx-pro-6000-x8-switches-topology.txt"))),
        lambda f: replace(f, driver_params={"RegistryDwords": "ForceP2P=0x11"}),
        lambda f: replace(f, numa=dict.fromkeys(f.numa, "0")),
    ],
)
def test_the_fingerprint_changes_with_what_figures_depend_on(
    good: Facts, change: Callable[[Facts], Facts]
) -> None:
    assert report.fingerprint(change(good), "cuda")["digest"] != report.fingerprint(good, "cuda")["digest"]


def test_the_fingerprint_of_a_host_without_gpus_is_its_processor_and_memory(good: Facts) -> None:
    parts = report.fingerprint(replace(good, query=None, cpu_count=2), "cpu")["parts"]
    assert parts == {
        "engine": "cpu",
        "cpu": "AMD EPYC 9575F 64-Core Processor",
        "cpu_sockets": 2,
        "cpu_count": 2,
        "memory_gib": 1512,
    }


# --- how it is shown ---


def test_a_waived_failure_is_a_warning_that_says_so(good: Facts) -> None:
    (check,) = report.waive([c for c in judge(gpu3(good, mig="Enabled")) if c.id == "mig"], ["mig"])
    assert check.status == "warn"
    assert (
        check.remedy
        == "Accepted by preflight_waive; otherwise: Run nvidia-smi -mig 0 while nothing uses the cards"
    )


def test_the_table_shows_the_worst_first_and_fits_the_terminal(good: Facts) -> None:
    checks = judge(replace(peers(gpu3(good, mig="Enabled"), "CNS"), distribution="fedora-43"))
    table = report.table(checks, "0123456789ab", everything=False, width=80)
    lines = table.splitlines()
    assert max(map(len, lines)) <= 80
    assert [line[:5].strip() for line in lines if line[:5].strip()] == ["FAIL", "FAIL", "WARN", "2 fai"]
    assert lines[-1] == "2 failed, 1 to look at, 35 ok; fingerprint 0123456789ab"


def test_the_table_can_show_everything(good: Facts) -> None:
    table = report.table(judge(good), "0123456789ab", everything=True)
    assert "OK     Peer-to-peer                OK for 28 pairs" in table.splitlines()


def test_the_failure_names_every_failed_check(good: Facts) -> None:
    checks = judge(
        replace(gpu3(good, mig="Enabled"), distribution="fedora-43", distribution_name="Fedora Linux 43")
    )
    first, *rest = report.failure(checks).splitlines()
    assert first == "2 checks failed; nothing on this host was changed."
    assert [line.split(":")[0] for line in rest] == ["- Distribution", "- MIG mode"]


# --- reading ---


def test_a_command_that_hangs_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect, "_LIMIT_S", 0.2)
    path = tmp_path / "nvidia-smi"
    path.write_text("#!/bin/sh\nexec sleep 60\n")
    path.chmod(0o755)
    done = collect.Host(tmp_path, str(tmp_path) + ":/bin:/usr/bin").run("nvidia-smi", "-q")
    assert (done.rc, done.err) == (-2, "nvidia-smi -q did not end within 0.2 s")


def test_a_driver_that_fails_is_told_in_its_own_words(good_host: collect.Host, tmp_path: Path) -> None:
    state = tmp_path / "gpus.json"
    state.write_text(json.dumps({"fail": "No devices were found", "rc": 6}))
    host = collect.Host(good_host.root, good_host.environment["PATH"])
    host.environment["STAND_IN_GPUS"] = str(state)
    assert said(judge(read(host)))["driver"] == (
        "fail: NVIDIA driver: found nvidia-smi fails: No devices were found, expected driver 580 or later. Look for "
        "the cards with lspci -d 10de: and for what the driver says of them with dmesg | grep NVRM."
    )


def test_a_python_that_fails_is_told_by_the_first_line(good_host: collect.Host, tmp_path: Path) -> None:
    shim = tmp_path / "python3.12"
    shim.write_text(
        "#!/bin/sh\necho 'pyenv: python3.12: command not found' >&2\necho 'Note: a hint' >&2\nexit 127\n"
    )
    shim.chmod(0o755)
    host = collect.Host(good_host.root, f"{tmp_path}:{good_host.environment['PATH']}")
    assert said(judge(read(host)))["python"] == (
        "fail: Python of the release: found python3.12 does not run (exit status 127: pyenv: python3.12: command not "
        "found), expected "
        "Python 3.12 (sglang_stack_python). Run apt-get install python3.12 python3.12-dev."
    )


def test_every_check_can_be_waived_by_its_id() -> None:
    folder = Path(report.__file__).parent
    called = re.compile(r'\b(?:Check|row)\(\s*"(\w+)"')
    ids = {found for path in folder.glob("*_rules.py") for found in called.findall(path.read_text())}
    assert ids == report.IDS
    documented = set(re.findall(r"`(\w+)`", (TESTS.parent / "docs/preflight.md").read_text()))
    # Nothing fails where GPUs are not looked at.
    assert ids - documented == {"gpu"}


def test_a_host_of_any_other_kind_is_read_without_an_error(tmp_path: Path) -> None:
    """Nothing of what is looked for is there."""
    empty = collect.Host(tmp_path, str(tmp_path))
    checks = said(judge(read(empty)))
    assert {"distribution", "systemd", "python", "model", "driver", "memory"} <= set(checks)
