"""The virtual environment of a release: what is there, what the lock wants, and how one becomes the other.

Nothing is installed one package at a time and nothing is resolved on the host: uv makes the environment equal
to the lock. The cache that uv unpacks into lies inside the release and is removed afterwards, so that no file
of the environment is a hard link to anything outside it, and patching one release can never reach another.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import urllib.parse
import urllib.request
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from .errors import OperatorError
from .files import make_folder, replace, sha256
from .lock import Lock, Pin, canonical
from .seal import MANIFEST

# Written when the environment is whole. Without it (and without a manifest) an interrupted run left it.
MARKER = "installed.json"

_WORK = ".install"
_BUNDLE_COMMAND = "ansible-playbook playbooks/bundle.yml"


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
    """What was found: ``whole`` is False for an environment that is missing or that a run left half made."""

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
    try:
        installed_from = json.loads((wanted.venv / MARKER).read_text())["lock"]
    except (OSError, ValueError, KeyError):
        installed_from = None
    return State(
        whole=installed_from == wanted.lock.digest,
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


def ensure(wanted: Environment, *, dry_run: bool = False) -> tuple[State, State]:
    """Make the environment what the lock says.

    A half-made environment of a release without a manifest is removed and built again, and its release is removed
    when that fails: nothing would use it, and it would take the space of a release. One that was complete is
    mended: only what differs is touched.

    Args:
        wanted: the release.
        dry_run: look and check, change nothing.

    Returns:
        The states before and after; they are the same object when nothing was to be done.

    Raises:
        OperatorError: a precondition does not hold, or the installation failed.
    """
    before, after = look(wanted), target(wanted)
    packages_differ = before.packages != after.packages or not before.whole
    if not packages_differ and before.overlay == after.overlay:
        return before, before
    if packages_differ:
        python = find_python(wanted.python, wanted.lock.python)
        check_lock(wanted.lock)
        if wanted.bundle:
            _check_bundle(wanted)
        if not before.whole:
            _check_space(wanted)
    if dry_run:
        return before, after

    make_folder(wanted.release)
    with _only_one(wanted.release) as held:
        # Looked at again: another run may have finished it in the meantime, and it may be serving by now.
        now = look(wanted)
        rebuild = not now.whole and not now.sealed
        try:
            if packages_differ:
                _install(wanted, python, held, rebuild=rebuild)
            _write_overlay(wanted)
            if packages_differ:
                replace(
                    wanted.venv / MARKER, json.dumps({"lock": wanted.lock.digest, "python": python}) + "\n"
                )
        except BaseException:
            if rebuild:
                shutil.rmtree(wanted.release, ignore_errors=True)
            raise
    return before, after


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
    result = subprocess.run(
        [path, "-I", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    found = result.stdout.strip()
    if found != version:
        raise OperatorError(
            f"{path} is not the Python that the lock was made for",
            found=f"Python {found}" if found else result.stderr.strip() or "nothing that answers",
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
            remedy=f'{_BUNDLE_COMMAND} -e \'{{"bundle_locks": ["{lock.name}"]}}\' downloads them and records their '
            "checksums in the lock; commit that",
        )


def _check_bundle(wanted: Environment) -> None:
    """Names and sizes only: uv compares every checksum when it unpacks."""
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
            remedy=f"complete it with {_BUNDLE_COMMAND} on a machine with access, and copy or mount it again",
        )


def _check_space(wanted: Environment) -> None:
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


@contextmanager
def _only_one(release: Path) -> Iterator[int]:
    """Hold the release. uv inherits the handle, so an installer that outlives us keeps others out as well."""
    handle = os.open(release, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OperatorError(
                f"Another run is installing {release}",
                remedy="wait until it has ended, and run the playbook again",
            ) from None
        yield handle
    finally:
        os.close(handle)


def _install(wanted: Environment, python: str, held: int, *, rebuild: bool) -> None:
    work = wanted.release / _WORK
    shutil.rmtree(work, ignore_errors=True)
    if rebuild:
        shutil.rmtree(wanted.venv, ignore_errors=True)
    work.mkdir(mode=0o700)
    try:
        uv = _Uv(_fetch_uv(wanted, work), cache=work / "cache", held=held)
        if not wanted.interpreter.exists():
            options = ["--no-project", "--no-python-downloads", "--allow-existing"]
            uv("venv", *options, "--python", python, wanted.venv)
        lock = work / "lock.txt"
        lock.write_text(wanted.lock_text)
        sources: list[str | Path] = []
        if wanted.bundle:
            sources = ["--no-index", "--offline", "--find-links", wanted.wheels]
        else:
            for place, index in enumerate(wanted.indexes):
                sources += ["--default-index" if place == 0 else "--index", index]
            for link in wanted.links:
                sources += ["--find-links", link]
            # A pin with a checksum is the same file wherever it is found.
            sources += ["--index-strategy", "unsafe-best-match"]
        try:
            uv(
                "pip", "sync", "--python", wanted.interpreter, "--require-hashes", "--only-binary", ":all:",
                "--compile-bytecode", *sources, lock,
            )  # fmt: skip
        except OperatorError as error:
            _name_broken_wheels(wanted)
            raise error
        _check_dependencies(wanted, uv)
        # uv's own lock on the environment, which it leaves behind writable for everybody.
        (wanted.venv / ".lock").unlink(missing_ok=True)
        replace(wanted.release / "lock.txt", wanted.lock_text)
    finally:
        shutil.rmtree(work, ignore_errors=True)


class _Uv:
    """The installer, deaf to the configuration of whoever runs it."""

    def __init__(self, binary: Path, *, cache: Path, held: int) -> None:
        self.binary, self.cache, self.held = binary, cache, held

    def run(self, *args: str | Path) -> subprocess.CompletedProcess[str]:
        drop = ("UV_", "PIP_", "PYTHON", "VIRTUAL_ENV", "CONDA_")
        clean = {key: value for key, value in os.environ.items() if not key.startswith(drop)}
        return subprocess.run(
            [self.binary, *args, "--no-config", "--no-progress", "--color=never", "--cache-dir", self.cache],
            env={**clean, "UV_SYSTEM_CERTS": "1", "UV_HTTP_TIMEOUT": "300"},
            capture_output=True,
            text=True,
            check=False,
            pass_fds=(self.held,),
            umask=0o022,
        )

    def __call__(self, *args: str | Path) -> None:
        result = self.run(*args)
        if result.returncode:
            raise OperatorError(
                f"uv {args[0]} failed with exit status {result.returncode}",
                found=result.stderr.strip()[-4000:],
                remedy="see what uv says; the release that is running was not touched",
            )


def _fetch_uv(wanted: Environment, work: Path) -> Path:
    """Unpack uv's binary from its wheel; the host needs neither pip nor uv."""
    if wanted.bundle:
        wheel = wanted.wheels / wanted.uv.filename
    else:
        wheel = work / wanted.uv.filename
        _download(wanted.uv, wanted.indexes, wheel)
    found = sha256(wheel)
    if found != wanted.uv.sha256:
        raise OperatorError(
            f"{wheel} is not the file that was locked",
            found=f"sha256 {found}",
            expected=f"sha256 {wanted.uv.sha256}",
            remedy=f"remove it and make the bundle again: {_BUNDLE_COMMAND}",
        )
    binary = work / "uv"
    with zipfile.ZipFile(wheel) as archive:
        member = next(name for name in archive.namelist() if name.endswith(".data/scripts/uv"))
        with archive.open(member) as source, binary.open("wb") as copy:
            shutil.copyfileobj(source, copy)
    binary.chmod(0o700)
    return binary


class _Links(HTMLParser):
    """The href of every link of a simple index page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.found += [value for key, value in attrs if key == "href" and value]


def _download(pin: Pin, indexes: Sequence[str], to: Path) -> None:
    """Fetch one wheel from the first simple index that has it. The caller compares the checksum."""
    tried = []
    for index in indexes:
        address, login = _login(index)
        page = f"{address.rstrip('/')}/{pin.name}/"
        try:
            with _open(page, login) as answer:
                links = _Links()
                links.feed(answer.read().decode())
                base = answer.geturl()
            for link in links.found:
                url = urllib.parse.urljoin(base, link)
                if urllib.parse.unquote(urllib.parse.urlsplit(url).path).endswith("/" + pin.filename):
                    same = urllib.parse.urlsplit(url).netloc == urllib.parse.urlsplit(address).netloc
                    with _open(url, login if same else {}) as answer, to.open("wb") as copy:
                        shutil.copyfileobj(answer, copy)
                    return
            tried.append(f"{page} does not have it")
        except OSError as error:
            tried.append(f"{page}: {error}")
    raise OperatorError(
        f"{pin.filename} cannot be downloaded",
        found="; ".join(tried) or "no index",
        remedy="set sglang_stack_indexes to one that this host reaches, or sglang_stack_bundle to a bundle",
    )


def _login(index: str) -> tuple[str, dict[str, str]]:
    """The address of an index without name and password, and the header that carries them instead."""
    parts = urllib.parse.urlsplit(index)
    user, at, host = parts.netloc.rpartition("@")
    if not at:
        return index, {}
    token = base64.b64encode(urllib.parse.unquote(user).encode()).decode()
    return urllib.parse.urlunsplit(parts._replace(netloc=host)), {"Authorization": f"Basic {token}"}


def _open(url: str, headers: Mapping[str, str]) -> Any:
    request = urllib.request.Request(url)
    for name, value in headers.items():
        request.add_unredirected_header(name, value)
    return urllib.request.urlopen(request, timeout=60)


def _name_broken_wheels(wanted: Environment) -> None:
    """After a failure: was it a file of the bundle? Reading all of them is slow, so it is not done before."""
    if not wanted.bundle:
        return
    broken = []
    for pin in wanted.lock.pins:
        found = sha256(wanted.wheels / pin.filename)
        if found != pin.sha256:
            broken.append(f"{pin.filename} has sha256 {found}, locked is {pin.sha256}")
    if broken:
        raise OperatorError(
            f"The bundle {wanted.bundle} has files that are not what was locked",
            found="; ".join(broken),
            expected="the files that the lock names",
            remedy=f"run {_BUNDLE_COMMAND}, which fetches them again, and copy or mount it again",
        ) from None


_COMPLAINT = re.compile(
    r"^The package `(?P<package>[^`]+)` requires `(?P<needs>[A-Za-z0-9._-]+)[^`]*`, but .*$", re.M
)


def _check_dependencies(wanted: Environment, uv: _Uv) -> None:
    """Every package has what it asks for, save what the lock says it leaves out or overrides."""
    result = uv.run("pip", "check", "--python", wanted.interpreter)
    if result.returncode == 0:
        return
    allowed = wanted.lock.allowed
    complaints = list(_COMPLAINT.finditer(result.stderr))
    new = [found.group(0) for found in complaints if canonical(found["needs"]) not in allowed]
    if new or not complaints:
        raise OperatorError(
            "The packages of the lock do not fit together",
            found="; ".join(new) or result.stderr.strip(),
            expected="no complaint but about what the lock leaves out or overrides",
            remedy="correct the recipe in files/locks and make the lock again",
        )


def _write_overlay(wanted: Environment) -> None:
    written = []
    for name, text in wanted.overlay.items():
        path = wanted.site_packages / name
        if not path.is_file() or path.read_text() != text:
            replace(path, text)
            if path.suffix == ".py":
                written.append(str(path))
    if written:
        # The service may not write below site-packages, so what is not compiled now never will be.
        subprocess.run([wanted.interpreter, "-m", "compileall", "-q", *written], check=True, umask=0o022)


def _sha256_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
