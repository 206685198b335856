"""Reads a host. Nothing here writes, loads a module or changes a setting; every command has a time limit."""

from __future__ import annotations

import contextlib
import glob
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..errors import OperatorError
from ..interpreter import ask_interpreter
from . import pci, smi, system

# A driver that has lost a card can keep nvidia-smi waiting for ever.
_LIMIT_S = 30


@dataclass(frozen=True)
class Done:
    """A command that was tried: its exit status, -1 if it could not be run, -2 if it ran past the limit."""

    rc: int
    out: str
    err: str


@dataclass(frozen=True)
class Owner:
    """Who has a port or a GPU."""

    pid: int
    name: str
    unit: str


@dataclass(frozen=True)
class Taken:
    """A socket that listens on a port: the processes that have it or, if that cannot be seen, one of which has it."""

    owners: Sequence[Owner]
    seen: bool = True


@dataclass(frozen=True)
class Space:
    """The file system that holds, or would hold, a folder."""

    path: str
    mount: str
    free_bytes: int


@dataclass(frozen=True)
class Python:
    """The interpreter that releases are to be built with."""

    command: str
    version: str
    headers: str
    error: str


@dataclass
class Facts:
    """Everything that is known of a host. Empty text and None mean: not there, or not readable."""

    distribution: str = ""
    distribution_name: str = ""
    architecture: str = ""
    kernel: str = ""
    booted: bool = False
    libc: str = ""
    cpu_model: str = ""
    cpu_sockets: int = 1
    cpu_count: int = 0
    memory: Mapping[str, int] = field(default_factory=dict)
    python: Python | None = None
    compilers: Mapping[str, str] = field(default_factory=dict)
    spaces: Mapping[str, Space] = field(default_factory=dict)
    folders: Mapping[str, Sequence[str] | None] = field(default_factory=dict)
    ports: Mapping[int, Sequence[Taken]] = field(default_factory=dict)
    manifest: bool = False
    current: str = ""
    apt: bool = True
    pythons: Sequence[str] = ()
    shm_bytes: int | None = None
    shm_free_bytes: int | None = None
    shm_largest: Sequence[str] = ()
    cmdline: Sequence[str] = ()
    governor: str = ""
    aspm_policy: str = ""
    numa_balancing: str = ""
    iommu_devices: int = 0
    iommu_type: str = ""
    modules: Sequence[str] = ()
    # From here on only where a GPU is expected.
    nvidia_smi: Done | None = None
    query: smi.Query | None = None
    compute_capability: Sequence[str] = ()
    links: smi.Matrix | None = None
    peer_read: smi.Matrix | None = None
    peer_write: smi.Matrix | None = None
    module_version: str = ""
    module_open: bool = False
    module_on_disk: str = ""
    library_version: str = ""
    cuda_library_version: str = ""
    stray_libraries: Sequence[str] = ()
    driver_params: Mapping[str, str] = field(default_factory=dict)
    hmm_disabled: str = ""
    xids: Sequence[system.Xid] = ()
    wants_open_module: bool = False
    log_readable: bool = True
    ports_above: Sequence[pci.Port] = ()
    paths: Mapping[str, Sequence[str]] = field(default_factory=dict)
    cards: Mapping[str, pci.Port] = field(default_factory=dict)
    numa: Mapping[str, str] = field(default_factory=dict)
    owners: Mapping[int, Owner] = field(default_factory=dict)
    kernels_without_module: Sequence[str] = ()
    driver_kept_by: str = ""


class Host:
    """Files and commands of a host, with a root that tests move."""

    def __init__(self, root: Path = Path("/"), path: str | None = None) -> None:
        self.root = root
        self.environment = {**os.environ, "LC_ALL": "C", **({"PATH": path} if path else {})}

    def at(self, path: str) -> Path:
        """Where ``path`` of the host lies."""
        return self.root / path.lstrip("/")

    def read(self, path: str) -> str:
        """A file's text, or nothing if it is not there or not readable."""
        try:
            return self.at(path).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""

    def names(self, pattern: str) -> list[str]:
        """The host's paths that match a pattern."""
        found = self.root.glob(pattern.lstrip("/"))
        return sorted("/" + str(path.relative_to(self.root)) for path in found)

    def which(self, command: str) -> str:
        """The path of a command, or nothing."""
        return shutil.which(command, path=self.environment.get("PATH")) or ""

    def run(self, *argv: str) -> Done:
        """Run a command and return what it printed."""
        program = self.which(argv[0])
        if not program:
            return Done(-1, "", f"{argv[0]} is not installed")
        try:
            done = subprocess.run(
                [program, *argv[1:]],
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_LIMIT_S,
                env=self.environment,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Done(-2, "", f"{' '.join(argv)} did not end within {_LIMIT_S} s")
        except OSError as error:
            return Done(-1, "", str(error))
        return Done(done.returncode, done.stdout, done.stderr)

    def owner(self, pid: int) -> Owner:
        """The name and the unit of a process."""
        name = self.read(f"/proc/{pid}/comm").strip()
        return Owner(pid, name or "?", system.parse_unit(self.read(f"/proc/{pid}/cgroup")))


def _space(host: Host, path: str) -> Space:
    folder = host.at(path)
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    stat = os.statvfs(folder)
    mount = folder.resolve()
    while not mount.is_mount() and mount != mount.parent:
        mount = mount.parent
    return Space(path, str(mount), stat.f_bavail * stat.f_frsize)


def _python(host: Host, command: str) -> Python:
    if not (program := host.which(command)):
        return Python(command, "", "", f"{command} is not installed")
    code = (
        "import os, sys, sysconfig;"
        "header = os.path.join(sysconfig.get_paths()['include'], 'Python.h');"
        "version = '.'.join(map(str, sys.version_info[:3]));"
        "answer = [version, header if os.path.exists(header) else '']"
    )
    try:
        version, headers = ask_interpreter(program, code, timeout=_LIMIT_S, environment=host.environment)
    except OperatorError as error:
        # The first line says what is wrong; hints follow it.
        return Python(command, "", "", error.found.partition("\n")[0])
    except (TypeError, ValueError):
        return Python(command, "", "", "it does not answer as a Python does")
    return Python(command, str(version), str(headers), "")


def _pythons(host: Host, wanted: Sequence[str]) -> list[str]:
    """The versions of Python that are on a host, and those of some that its package sources have."""
    known = system.parse_apt_policy(
        host.run("apt-cache", "policy", *(f"python{version}" for version in wanted)).out
    )
    here = [name.partition("python")[2] for name in host.names("/usr/bin/python3.*")]
    found = {v for v in here if re.fullmatch(r"3\.[0-9]+", v)} | {v for v in wanted if f"python{v}" in known}
    return sorted(found, key=system.version_tuple)


def _largest_shared(host: Host) -> list[str]:
    """The largest files of /dev/shm by their beginnings, as ``9 nccl-* (4.2 GiB)``."""
    sizes: dict[str, list[int]] = {}
    for name in host.names("/dev/shm/*"):
        with contextlib.suppress(OSError):
            held = host.at(name).lstat().st_blocks * 512
            sizes.setdefault(re.split(r"(?<=[-_.])", Path(name).name)[0], []).append(held)
    largest = sorted(sizes.items(), key=lambda item: -sum(item[1]))[:3]
    return [f"{len(held)} {start}* ({sum(held) / 2**30:.1f} GiB)" for start, held in largest if sum(held)]


_LIBRARY_FOLDERS = ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/local/nvidia/lib64")


def _library(host: Host, name: str) -> tuple[str, list[str]]:
    """The version of a library of the driver that programs get, and files of other versions beside it.

    Programs get what the loader's cache or, without one, the link of that name leads to. A file that no link leads to
    is nobody's.
    """
    links = [f"{folder}/{name}" for folder in _LIBRARY_FOLDERS]
    link = system.parse_ldconfig(host.run("ldconfig", "-p").out).get(name)
    taken = [host.at(path).resolve() for path in [link, *links] if path and host.at(path).exists()]
    version = taken[0].name.partition(".so.")[2] if taken else ""
    if "." not in version:
        return "", []
    stem = name.rpartition(".so.")[0]
    others = [
        path
        for folder in dict.fromkeys([str(taken[0].parent), *(str(host.at(f)) for f in _LIBRARY_FOLDERS)])
        for path in sorted(Path(folder).glob(f"{stem}.so.[0-9]*.[0-9]*"))
        if path.resolve() == path and path.name != taken[0].name
    ]
    return version, [f"/{path.relative_to(host.root.resolve())}" for path in others]


def _listening(host: Host, wanted: Sequence[int]) -> dict[int, list[Taken]]:
    """For each wanted port that is taken, the sockets that listen there. One that is only connected does not count.

    Without the right to trace processes (root in a container, say) the sockets of other users are not shown; then each
    process of the socket's own user that hides its own may be the owner, whatever it has to do with the port.
    """
    sockets = [
        item
        for name in ("tcp", "tcp6")
        for item in system.parse_listeners(host.read(f"/proc/net/{name}"))
        if item.port in wanted
    ]
    if not sockets:
        return {}
    owners: dict[str, set[int]] = {f"socket:[{item.inode}]": set() for item in sockets}
    hidden: dict[int, set[int]] = {}
    # Path.glob fails when a process ends meanwhile.
    for name in glob.iglob("proc/[0-9]*/fd/*", root_dir=host.root):  # noqa: PTH207 - see above
        link = host.root / name
        pid = int(link.parts[-3])
        try:
            owners.get(str(link.readlink()), set()).add(pid)
        except PermissionError:
            with contextlib.suppress(OSError):
                hidden.setdefault(link.parent.parent.stat().st_uid, set()).add(pid)
        except OSError:
            continue
    taken: dict[int, list[Taken]] = {}
    for item in sockets:
        seen = owners[f"socket:[{item.inode}]"]
        pids = sorted(seen or hidden.get(item.uid, set()))
        taken.setdefault(item.port, []).append(Taken([host.owner(pid) for pid in pids], bool(seen)))
    return taken


def _folder(host: Host, path: str) -> list[str] | None:
    try:
        return sorted(item.name for item in host.at(path).iterdir())
    except OSError:
        return None


def _gpu(host: Host, facts: Facts) -> None:
    facts.nvidia_smi = host.run("nvidia-smi", "-q")
    facts.module_version = system.parse_module_version(host.read("/proc/driver/nvidia/version"))
    facts.module_open = system.parse_module_open(host.read("/proc/driver/nvidia/version"))
    facts.driver_params = system.parse_driver_params(host.read("/proc/driver/nvidia/params"))
    facts.hmm_disabled = host.read("/sys/module/nvidia_uvm/parameters/uvm_disable_hmm").strip()
    facts.module_on_disk = host.run("modinfo", "-F", "version", "nvidia").out.strip()
    complaint = facts.nvidia_smi.out + facts.nvidia_smi.err
    library, strays = _library(host, "libnvidia-ml.so.1")
    facts.library_version = system.parse_nvml_version(complaint) or library
    facts.cuda_library_version, cuda_strays = _library(host, "libcuda.so.1")
    facts.stray_libraries = [*strays, *cuda_strays]

    log = host.run("dmesg")
    if log.rc != 0:
        log = host.run("journalctl", "-k", "-b", "--no-pager", "-o", "cat")
    facts.log_readable = log.rc == 0
    facts.xids = system.parse_xids(log.out)
    facts.wants_open_module = system.needs_open_module(log.out)

    facts.kernels_without_module = [
        Path(name).name
        for name in host.names("/lib/modules/*")
        if host.at(f"{name}/kernel").is_dir() and not _has_module(host, name)
    ]
    facts.driver_kept_by = system.upgrades_driver(
        system.parse_apt_config(host.run("apt-config", "dump").out),
        host.run("apt-mark", "showhold").out.split(),
    )
    done = facts.nvidia_smi
    facts.query = smi.read_report(done.rc, done.out, done.err)
    if facts.query is None:
        return

    table = host.run("nvidia-smi", "--query-gpu=index,compute_cap", "--format=csv").out
    capability = {row.get("index", ""): row.get("compute_cap", "") for row in smi.parse_csv(table)}
    facts.compute_capability = [capability.get(str(gpu.index), "") for gpu in facts.query.gpus]
    said = [*facts.query.warnings, *smi.stray_lines(table)]
    facts.query = replace(facts.query, warnings=tuple(dict.fromkeys(said)))
    facts.links = smi.parse_matrix(host.run("nvidia-smi", "topo", "-m").out)
    facts.peer_read = smi.parse_matrix(host.run("nvidia-smi", "topo", "-p2p", "r").out)
    facts.peer_write = smi.parse_matrix(host.run("nvidia-smi", "topo", "-p2p", "w").out)
    facts.owners = {
        process.pid: host.owner(process.pid)
        for gpu in facts.query.gpus
        for process in gpu.processes
        if process.pid is not None
    }

    ports = pci.parse_lspci(host.run("lspci", "-vvv").out)
    addresses = [pci.full_address(gpu.bus_id) for gpu in facts.query.gpus]
    facts.paths = {
        address: pci.path_to(os.path.realpath(host.at(f"/sys/bus/pci/devices/{address}")))
        for address in addresses
    }
    facts.cards = {address: ports[address] for address in addresses if address in ports}
    facts.ports_above = pci.upstream_ports(facts.paths, ports)
    facts.numa = {
        address: host.read(f"/sys/bus/pci/devices/{address}/numa_node").strip() for address in addresses
    }


def _has_module(host: Host, folder: str) -> bool:
    patterns = ("updates/dkms/nvidia.ko*", "kernel/nvidia*/nvidia.ko*", "kernel/drivers/video/nvidia.ko*")
    return any(
        host.names(f"{folder}/{pattern}") for pattern in (*patterns, "updates/nvidia.ko*", "extra/nvidia.ko*")
    )


def collect(
    host: Host,
    *,
    gpus: bool,
    python: str,
    root: str,
    release: str,
    space: Sequence[str],
    folders: Sequence[str],
    ports: Sequence[int],
    pythons: Sequence[str] = (),
) -> Facts:
    """Read a host.

    Args:
        host: where to read.
        gpus: whether GPUs are expected.
        python: the command of the interpreter for releases.
        root: the folder that holds releases.
        release: the folder of the wanted release, if it is known.
        space: folders whose file systems need room.
        folders: folders that have to be there.
        ports: TCP ports that have to be free.
        pythons: the versions of Python that releases can be built with.
    """
    distribution = system.parse_os_release(host.read("/etc/os-release"))
    cpuinfo = host.read("/proc/cpuinfo")
    libc = os.confstr("CS_GNU_LIBC_VERSION") or ""
    uname = os.uname()
    current = host.at(f"{root}/current")
    shm = os.statvfs(host.at("/dev/shm")) if host.at("/dev/shm").is_dir() else None
    facts = Facts(
        # Debian's testing and rolling ones have no version.
        distribution=f"{distribution.get('ID', 'linux')}-{distribution.get('VERSION_ID', 'rolling')}",
        distribution_name=distribution.get("PRETTY_NAME", ""),
        architecture=uname.machine,
        kernel=uname.release,
        booted=host.at("/run/systemd/system").is_dir(),
        libc=libc.split()[-1] if libc else "",
        cpu_model=system.parse_cpu_model(cpuinfo),
        cpu_sockets=system.parse_sockets(cpuinfo),
        cpu_count=len(os.sched_getaffinity(0)),
        memory=system.parse_meminfo(host.read("/proc/meminfo")),
        python=_python(host, python),
        compilers={name: host.which(name) for name in ("gcc", "g++")},
        spaces={path: _space(host, path) for path in space},
        folders={path: _folder(host, path) for path in folders},
        ports=_listening(host, ports),
        manifest=bool(release) and host.at(f"{release}/manifest.json").is_file(),
        current=str(current.readlink()) if current.is_symlink() else "",
        apt=system.has_apt(distribution),
        pythons=_pythons(host, pythons) if pythons else [],
        shm_bytes=shm.f_blocks * shm.f_frsize if shm else None,
        shm_free_bytes=shm.f_bavail * shm.f_frsize if shm else None,
        shm_largest=_largest_shared(host),
        cmdline=system.parse_cmdline(host.read("/proc/cmdline")),
        governor=host.read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").strip(),
        aspm_policy=host.read("/sys/module/pcie_aspm/parameters/policy").strip(),
        numa_balancing=host.read("/proc/sys/kernel/numa_balancing").strip(),
        iommu_devices=len(host.names("/sys/class/iommu/*")),
        iommu_type=host.read("/sys/kernel/iommu_groups/0/type").strip(),
        modules=[line.split()[0] for line in host.read("/proc/modules").splitlines() if line.strip()],
    )
    if gpus:
        _gpu(host, facts)
    return facts
