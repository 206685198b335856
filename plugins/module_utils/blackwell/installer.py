"""The installer of a release: uv makes its environment equal to the lock, and what a killed run left is found.

Nothing is installed one package at a time and nothing is resolved on the host. The cache that uv unpacks into lies
inside the release and is removed afterwards, so that no file of the environment is a hard link to anything outside
it, and patching one release can never reach another.
"""

from __future__ import annotations

import base64
import csv
import fcntl
import os
import re
import shutil
import subprocess
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .environment import (
    BUNDLE_COMMAND,
    Environment,
    State,
    check_bundle,
    check_lock,
    check_space,
    find_python,
    look,
    target,
)
from .errors import OperatorError
from .files import make_folder, replace, sha256
from .lock import canonical
from .seal import remove_marker, write_marker
from .wheel_index import download

_WORK = ".install"


def ensure(wanted: Environment, *, dry_run: bool = False) -> tuple[State, State]:
    """Make the environment what the lock says.

    A half-made environment of a release without a manifest is removed and built again, and its release is removed
    when that fails: nothing would use it, and it would take the space of a release. A sealed one is mended, for it
    may be serving: only what differs is touched, and what a killed run left half installed.

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
            check_bundle(wanted)
        if not before.whole:
            check_space(wanted)
    if dry_run:
        return before, after

    make_folder(wanted.release)
    with _only_one(wanted.release) as held:
        # Looked at again: another run may have finished it in the meantime, and it may be serving by now.
        now = look(wanted)
        rebuild = not now.whole and not now.sealed
        try:
            if packages_differ:
                damaged = [] if now.whole or rebuild else _damaged_packages(wanted.site_packages)
                _install(wanted, python, held, rebuild=rebuild, damaged=damaged)
            _write_overlay(wanted)
            if packages_differ:
                _sync(wanted.venv)
                write_marker(wanted.venv, lock=wanted.lock.digest, python=python, proved=False)
        except BaseException:
            if rebuild:
                shutil.rmtree(wanted.release, ignore_errors=True)
            raise
    return before, after


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


def _damaged_packages(site_packages: Path) -> list[str]:
    """Packages with files that are not as their RECORD says. Reads every file, so it is for after a kill only.

    A package whose own metadata is cut off loses the rest of them, since no installer understands it.
    """
    found = []
    for info in sorted(site_packages.glob("*.dist-info")):
        try:
            with (info / "RECORD").open(encoding="utf-8", newline="") as record:
                rows = list(csv.reader(record))
            (info / "METADATA").read_bytes()
        except (OSError, ValueError, csv.Error):
            shutil.rmtree(info)
            continue
        if not all(_is_as_recorded(site_packages, row) for row in rows):
            found.append(canonical(info.stem.rpartition("-")[0]))
    return found


def _is_as_recorded(site_packages: Path, row: list[str]) -> bool:
    if len(row) != 3:
        return False
    path = site_packages / row[0]
    if path.suffix == ".pyc":
        return True
    algorithm, _, wanted = row[1].partition("=")
    if algorithm != "sha256":
        return path.exists()
    found = base64.urlsafe_b64encode(bytes.fromhex(sha256(path))) if path.is_file() else b""
    return found.decode().rstrip("=") == wanted


def _sync(folder: Path) -> None:
    """Bring a file system to the disk: a marker must not outlive the files that it vouches for."""
    subprocess.run(["sync", "--file-system", folder], check=True)


def _install(wanted: Environment, python: str, held: int, *, rebuild: bool, damaged: list[str]) -> None:
    work = wanted.release / _WORK
    shutil.rmtree(work, ignore_errors=True)
    if rebuild:
        shutil.rmtree(wanted.venv, ignore_errors=True)
    work.mkdir(mode=0o700)
    try:
        uv = _Uv(_fetch_uv(wanted, work), cache=work / "cache", held=held)
        # From here on a kill leaves something half done, and nothing may call it whole.
        remove_marker(wanted.venv)
        if not wanted.interpreter.exists():
            options = ["--no-project", "--no-python-downloads", "--allow-existing"]
            uv("venv", *options, "--python", python, wanted.venv)
        lock = work / "lock.txt"
        lock.write_text(wanted.lock_text, encoding="utf-8")
        sources: list[str | Path] = [f"--reinstall-package={name}" for name in damaged]
        if wanted.bundle:
            sources += ["--no-index", "--offline", "--find-links", wanted.wheels]
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
        download(wanted.uv, wanted.indexes, wheel)
    found = sha256(wheel)
    if found != wanted.uv.sha256:
        raise OperatorError(
            f"{wheel} is not the file that was locked",
            found=f"sha256 {found}",
            expected=f"sha256 {wanted.uv.sha256}",
            remedy=f"remove it and make the bundle again: {BUNDLE_COMMAND}",
        )
    binary = work / "uv"
    with zipfile.ZipFile(wheel) as archive:
        member = next(name for name in archive.namelist() if name.endswith(".data/scripts/uv"))
        with archive.open(member) as source, binary.open("wb") as copy:
            shutil.copyfileobj(source, copy)
    binary.chmod(0o700)
    return binary


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
            remedy=f"run {BUNDLE_COMMAND}, which fetches them again, and copy or mount it again",
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
        if not path.is_file() or path.read_bytes() != text.encode():
            replace(path, text)
            if path.suffix == ".py":
                written.append(str(path))
    if written:
        # The service may not write below site-packages, so what is not compiled now never will be.
        subprocess.run([wanted.interpreter, "-m", "compileall", "-q", *written], check=True, umask=0o022)
