"""Whether a host can carry a release at all, GPUs aside."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from .collect import Facts, Owner, Taken
from .report import FAIL, OK, SKIP, WARN, Check
from .system import version_tuple

GIB = 2**30

# The Python that each distribution has by itself, and gets security updates for.
DISTRIBUTION_PYTHONS = {
    "ubuntu-22.04": "3.10",
    "ubuntu-24.04": "3.12",
    "ubuntu-24.10": "3.12",
    "ubuntu-25.04": "3.13",
    "ubuntu-25.10": "3.13",
    "ubuntu-26.04": "3.14",
    "debian-11": "3.9",
    "debian-12": "3.11",
    "debian-13": "3.13",
}


_MODEL_PATHS = "eagle3_server_model_path or eagle3_server_draft_model_path"


@dataclass(frozen=True)
class Wanted:
    """What a host has to offer.

    Args:
        engine: ``cuda`` or ``cpu``.
        distributions: accepted distributions as ``<ID>-<VERSION_ID>`` of ``/etc/os-release``.
        python_version: version of the release's Python, as ``3.12``.
        pythons: versions that there is a lock for; empty if that is not known.
        packages: the distribution's packages that the deployment installs where they are missing.
        release: folder of the wanted release, if it is planned already.
        release_space: folder that holds releases, and how many GiB a new one needs.
        model_space: folder that models are fetched to, and how many GiB they need; None if none is fetched.
        models: folders that have to hold a model.
        ports: port numbers and the variable that sets each.
        units: the units that may hold the ports and the GPUs, because they are ours.
        memory_gib: main memory.
        glibc: oldest C library that the wheels run on.
        gpu_count: how many GPUs the server spreads over.
        gpus: UUIDs of the cards that it uses; empty if they are chosen by model.
        gpu_models: names that a GPU may have.
        compute_capability: what the kernels are built for.
        gpu_memory_gib: memory of each GPU.
        driver: oldest driver.
        nccl: the NCCL variables that the server gets.
    """

    engine: str
    distributions: Sequence[str]
    python_version: str
    release: str
    release_space: tuple[str, float]
    model_space: tuple[str, float] | None
    models: Sequence[str]
    ports: dict[int, str]
    units: Sequence[str]
    memory_gib: float
    glibc: str
    packages: Sequence[str] = ()
    gpu_count: int = 0
    gpus: Sequence[str] = ()
    pythons: Sequence[str] = ()
    gpu_models: Sequence[str] = ()
    compute_capability: str = ""
    gpu_memory_gib: float = 0
    driver: str = ""
    nccl: dict[str, Any] = field(default_factory=dict)


def judge_host(facts: Facts, wanted: Wanted) -> list[Check]:
    """All checks that do not need a GPU."""
    checks = [
        *_system(facts, wanted),
        *_python(facts, wanted),
        *_space(facts, wanted),
        *_models(facts, wanted),
        *_ports(facts, wanted),
    ]
    if wanted.engine == "cpu":
        checks.append(Check("gpu", SKIP, "GPUs", "not looked at, because sglang_stack_engine is cpu"))
    return checks


def _system(facts: Facts, wanted: Wanted) -> Iterable[Check]:
    known = facts.distribution in wanted.distributions
    yield Check(
        "distribution",
        OK if known else FAIL,
        "Distribution",
        facts.distribution_name or facts.distribution,
        "one of " + ", ".join(wanted.distributions),
        ""
        if known
        else f"Install a supported distribution, or add {facts.distribution} to preflight_distributions if you tested "
        "it",
    )
    right = facts.architecture == "x86_64"
    yield Check(
        "architecture",
        OK if right else FAIL,
        "Architecture",
        facts.architecture,
        "x86_64",
        "" if right else "The wheels of the release are built for x86_64 alone: use another host",
    )
    yield Check(
        "systemd",
        OK if facts.booted else FAIL,
        "Init system",
        "systemd" if facts.booted else "no running systemd",
        "systemd",
        "" if facts.booted else "Boot the host, or the container, with systemd as process 1",
    )
    new = version_tuple(facts.libc) >= version_tuple(wanted.glibc)
    yield Check(
        "glibc",
        OK if new else FAIL,
        "C library",
        f"glibc {facts.libc}" if facts.libc else "no glibc",
        f"glibc {wanted.glibc} or later",
        "" if new else "Upgrade the distribution: the wheels need this C library",
    )
    total = facts.memory.get("MemTotal", 0) / GIB
    enough = total >= wanted.memory_gib
    yield Check(
        "memory",
        OK if enough else FAIL,
        "Main memory",
        f"{total:.1f} GiB",
        f"at least {wanted.memory_gib:g} GiB",
        "" if enough else "Add memory, or lower preflight_memory_gib if the server is known to fit",
    )


def _python(facts: Facts, wanted: Wanted) -> Iterable[Check]:
    python = facts.python
    if python is None:
        return
    version = wanted.python_version
    right = python.version.split(".")[:2] == version.split(".")[:2]
    yield Check(
        "python",
        OK if right else FAIL,
        "Python of the release",
        f"{python.command} is Python {python.version}"
        if python.version
        else f"{python.command} does not run ({python.error})",
        f"Python {version} (sglang_stack_python)",
        "" if right else _other_python(facts, wanted),
    )
    if wanted.engine != "cuda" or not right:
        return
    status, remedy = _missing(f"python{version}-dev", facts, wanted)
    yield Check(
        "python_headers",
        OK if python.headers else status,
        "Python headers",
        python.headers or f"no Python.h of {python.command}",
        "Python.h (Triton compiles against it when the server starts)",
        "" if python.headers else remedy,
    )
    missing = [name for name, path in facts.compilers.items() if not path]
    status, remedy = _missing("g++", facts, wanted)
    yield Check(
        "compiler",
        status if missing else OK,
        "Host compiler",
        f"no {' and no '.join(missing)}" if missing else ", ".join(facts.compilers.values()),
        "gcc and g++ (Triton and FlashInfer compile when the server starts)",
        remedy if missing else "",
    )


def _other_python(facts: Facts, wanted: Wanted) -> str:
    """What gives a host a Python that releases can be built with, where it is not the wanted one.

    Ubuntu and Debian have one version of Python each; package sources beside theirs may have more.
    """
    version, own = wanted.python_version, DISTRIBUTION_PYTHONS.get(facts.distribution, "")
    here = list(dict.fromkeys([*facts.pythons, *([own] if own else [])]))
    if version in here or not here:
        return install(facts, f"python{version}", f"python{version}-dev")
    locked = [known for known in wanted.pythons if known in here] if wanted.pythons else here
    if locked:
        other = own if own in locked else locked[-1]
        return f"Set sglang_stack_python to {other!r}, which {facts.distribution_name} has"
    return (
        f"{facts.distribution_name} has Python {' and '.join(here)}, and there is no lock for it; there "
        f"are locks for Python {', '.join(wanted.pythons)}. Use {_with_lock(wanted)}, or make a lock for Python "
        f"{here[-1]} (files/locks/README.md) and set sglang_stack_python to {here[-1]!r}"
    )


def _with_lock(wanted: Wanted) -> str:
    """The supported distributions whose own Python there is a lock for."""
    fit = [name for name in wanted.distributions if DISTRIBUTION_PYTHONS.get(name) in wanted.pythons]
    return f"a host with {' or '.join(fit)}" if fit else "another distribution"


def install(facts: Facts, *packages: str) -> str:
    """How packages come onto a host. Their names are those of Ubuntu and Debian."""
    if facts.apt:
        return f"Run apt-get install {' '.join(packages)}"
    name = facts.distribution_name or "this distribution"
    return f"Install what Ubuntu and Debian call {' and '.join(packages)} by the package manager of {name}"


def _missing(package: str, facts: Facts, wanted: Wanted) -> tuple[str, str]:
    """What it means that a package of the distribution is missing, and the remedy."""
    if package in wanted.packages:
        return WARN, f"site.yml installs {package}"
    return FAIL, install(facts, package)


def _space(facts: Facts, wanted: Wanted) -> Iterable[Check]:
    folder, needed = wanted.release_space
    space = facts.spaces[folder]
    free = space.free_bytes / GIB
    found = f"{free:.1f} GiB free on {space.mount}"
    if facts.manifest:
        yield Check(
            "release_space", OK, "Space for the release", f"{found}; the wanted release is already there"
        )
    elif free >= needed:
        yield Check("release_space", OK, "Space for the release", found, f"at least {needed:g} GiB")
    else:
        # Until the release is planned, a host that serves may want none.
        serves = bool(facts.current) and not wanted.release
        yield Check(
            "release_space",
            WARN if serves else FAIL,
            "Space for the release",
            found,
            f"at least {needed:g} GiB for a new release under {folder}",
            "Free some space, or set sglang_stack_root to a larger file system"
            + ("; only a new release needs it" if serves else ""),
        )
    if wanted.model_space is not None:
        folder, needed = wanted.model_space
        free = facts.spaces[folder].free_bytes / GIB
        enough = free >= needed
        yield Check(
            "model_space",
            OK if enough else FAIL,
            "Space for the models",
            f"{free:.1f} GiB free on {facts.spaces[folder].mount}",
            f"at least {needed:g} GiB under {folder}",
            "" if enough else f"Free some space, or set {_MODEL_PATHS} to a larger file system",
        )


def _models(facts: Facts, wanted: Wanted) -> Iterable[Check]:
    for path in wanted.models:
        names = facts.folders.get(path)
        if names is None:
            found, remedy = f"no folder {path}", f"Put the model there, or correct {_MODEL_PATHS}"
        elif "config.json" not in names:
            found, remedy = (
                f"no config.json in {path}",
                f"Finish copying the model, or correct {_MODEL_PATHS}",
            )
        else:
            yield Check("model", OK, "Model folder", path)
            continue
        yield Check("model", FAIL, "Model folder", found, "a folder with a model", remedy)


def _ports(facts: Facts, wanted: Wanted) -> Iterable[Check]:
    for port, setting in wanted.ports.items():
        sockets = facts.ports.get(port)
        subject = f"Port {port}"
        if not sockets:
            yield Check("port", OK, subject, "free")
            continue
        # A socket that our unit has is ours, whoever inherited it, or is only of the same user.
        ours = [owner.unit for socket in sockets for owner in socket.owners if owner.unit in wanted.units]
        foreign = [
            socket for socket in sockets if not any(owner.unit in wanted.units for owner in socket.owners)
        ]
        if not foreign:
            yield Check("port", OK, subject, f"held by our own {ours[0]}")
            continue
        known = all(socket.seen for socket in foreign)
        stop = (
            "Stop that process" if known else f"Look as root who it is (ss -ltnp sport = :{port}) and stop it"
        )
        yield Check(
            "port",
            FAIL,
            subject,
            "in use by " + " and ".join(dict.fromkeys(map(_who, foreign))),
            "free, or held by " + ", ".join(wanted.units),
            f"{stop}, or set {setting} to another port",
        )


def _who(socket: Taken) -> str:
    if not socket.owners:
        return "a process that this user may not see"
    if socket.seen or len(socket.owners) == 1:
        return " and ".join(map(describe, socket.owners))
    return "one of " + ", ".join(map(describe, socket.owners))


def describe(owner: Owner) -> str:
    """``nginx (pid 71, nginx.service)``."""
    return f"{owner.name} (pid {owner.pid}{', ' + owner.unit if owner.unit else ''})"
