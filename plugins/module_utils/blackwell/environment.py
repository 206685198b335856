"""The virtual environment of a release: what the lock wants, what is there, and what an installation needs."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from .errors import OperatorError
from .interpreter import ask_interpreter
from .lock import Lock, Pin, canonical
from .seal import MANIFEST, read_marker

BUNDLE_COMMAND = "ansible-playbook playbooks/bundle.yml"


@dataclass(frozen=True)
class Environment:
    """What a release's environment has to be, and where its wheels come from.

    Attributes:
        release: folder of the release on this host.
        lock: the packages.
        lock_text: the same as a requirements file.
        python: command or path of the interpreter of this host that the environment is made with.
        uv: the installer.
        bundle: folder with ``wheels/``; without one, the indexes are used.
        indexes: simple indexes, in order.
        links: pages or folders with links to wheels that no index has.
        overlay: text files that belong into site-packages, by relative path.
        required_space: bytes that have to be free before an installation.
    """

    release: Path
    lock: Lock
    lock_text: str
    python: str
    uv: Pin
    bundle: Path | None = None
    indexes: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    overlay: Mapping[str, str] = field(default_factory=dict)
    required_space: int = 0

    @property
    def venv(self) -> Path:
        return self.release / "venv"

    @property
    def interpreter(self) -> Path:
        return self.venv / "bin" / "python"

    @property
    def site_packages(self) -> Path:
        return self.venv / "lib" / f"python{self.lock.python}" / "site-packages"

    @property
    def wheels(self) -> Path:
        assert self.bundle is not None
        return self.bundle / "wheels"


@dataclass(frozen=True)
class State:
    """What was found on the host.

    Attributes:
        whole: the last installation or mending has ended. False for an environment that is missing or half made.
        sealed: the release has a manifest, so something may run it.
        packages: versions by name.
        overlay: SHA-256 of the engine's files, by relative path.
    """

    whole: bool
    sealed: bool
    packages: dict[str, str]
    overlay: dict[str, str]

    def listing(self) -> str:
        """One line for each package and each of the engine's files, for a diff."""
        lines = [f"{name}=={version}" for name, version in self.packages.items()]
        lines += [f"{name} sha256:{digest}" for name, digest in self.overlay.items()]
        return "".join(f"{line}\n" for line in sorted(lines))


def look(wanted: Environment) -> State:
    """The state of the release on this host. Reads directory names and the engine's files only."""
    packages: dict[str, str] = {}
    if wanted.interpreter.exists() and wanted.site_packages.is_dir():
        for entry in wanted.site_packages.iterdir():
            if entry.suffix == ".dist-info":
                name, _, version = entry.stem.rpartition("-")
                packages[canonical(name)] = version
    overlay = {}
    for name in wanted.overlay:
        path = wanted.site_packages / name
        if path.is_file():
            overlay[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return State(
        whole=read_marker(wanted.venv).get("lock") == wanted.lock.digest,
        sealed=(wanted.release / MANIFEST).exists(),
        packages=packages,
        overlay=overlay,
    )


def target(wanted: Environment) -> State:
    """The state that ``ensure`` leaves."""
    return State(
        whole=True,
        sealed=False,
        packages=dict(wanted.lock.versions),
        overlay={name: _sha256_text(text) for name, text in wanted.overlay.items()},
    )


def find_python(command: str, version: str) -> str:
    """The resolved path of an interpreter of the wanted version.

    Raises:
        OperatorError: it is not there, or is another version.
    """
    path = shutil.which(command)
    remedy = (
        f"apt-get install python{version}, or set sglang_stack_python (of a gateway: gateway_python) to one that has a "
        "lock"
    )
    if path is None:
        raise OperatorError(
            f"This host has no Python {version}",
            found=f"no {command}",
            expected=f"Python {version}",
            remedy=remedy,
        )
    found = ask_interpreter(path, "import sys\nanswer = '%d.%d' % sys.version_info[:2]", remedy=remedy)
    if found != version:
        raise OperatorError(
            f"{path} is not the Python that the lock was made for",
            found=f"Python {found}",
            expected=f"Python {version}",
            remedy=remedy,
        )
    return path


def check_lock(lock: Lock) -> None:
    """Refuse a lock with which nothing can be installed.

    Raises:
        OperatorError: a package of it has no checksum.
    """
    if lock.unhashed:
        raise OperatorError(
            f"The lock {lock.name} has packages whose checksum nobody has published",
            found=", ".join(str(pin) for pin in lock.unhashed),
            expected="a sha256 for every package",
            remedy=f'{BUNDLE_COMMAND} -e \'{{"bundle_locks": ["{lock.name}"]}}\' downloads them and records their '
            "checksums in the lock; commit that",
        )


def check_bundle(wanted: Environment) -> None:
    """Refuse a bundle that lacks wheels. Names and sizes only: uv compares every checksum when it unpacks.

    Raises:
        OperatorError: a wheel is missing, or has another size.
    """
    pins = [wanted.uv, *wanted.lock.pins]
    missing, cut = [], []
    for pin in pins:
        wheel = wanted.wheels / pin.filename
        if not wheel.is_file():
            missing.append(pin.filename)
        elif pin.size and wheel.stat().st_size != pin.size:
            cut.append(f"{pin.filename} has {wheel.stat().st_size} bytes, not {pin.size}")
    if missing or cut:
        first = f"{len(missing)} missing: {', '.join(missing[:5])}{' and more' if missing[5:] else ''}"
        raise OperatorError(
            f"The bundle {wanted.bundle} is not complete",
            found="; ".join(([first] if missing else []) + cut[:5]),
            expected=f"all {len(pins)} wheels of the lock in {wanted.wheels}",
            remedy=f"complete it with {BUNDLE_COMMAND} on a machine with access, and copy or mount it again",
        )


def check_space(wanted: Environment) -> None:
    """Refuse a file system without room for a release.

    Raises:
        OperatorError: less is free than ``required_space``.
    """
    place = wanted.release
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if free < wanted.required_space:
        raise OperatorError(
            f"There is not enough space for a release below {place}",
            found=f"{free / 2**30:.1f} GiB free",
            expected=f"{wanted.required_space / 2**30:.1f} GiB",
            remedy="remove releases that are not needed, point sglang_stack_root to a larger file system, "
            "or lower sglang_stack_required_space if less was measured",
        )


def _sha256_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
