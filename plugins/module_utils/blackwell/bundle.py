"""A bundle: one folder with everything that hosts without network access install from.

``wheels/`` has the files that the locks name, uv among them; ``SHA256SUMS`` is for ``sha256sum --check``;
``manifest.json`` says which locks the bundle was made for; ``licences.txt`` lists what each wheel says of its
licence.

pip downloads, because it honours the configuration of the machine (indexes, proxies, certificates, wheel
folders). A file becomes part of the bundle when its checksum is the locked one, so a broken download is only
a missing file.
"""

from __future__ import annotations

import email.parser
import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from . import lock as locks
from .errors import OperatorError
from .files import replace, sha256
from .lock import Lock, Pin

# pip keeps nothing of a call that is interrupted, so no call fetches more than this many bytes or files.
_BATCH_BYTES = 200_000_000
_BATCH_FILES = 20


@dataclass
class Found:
    """What is in the folder and what is not.

    Attributes:
        missing: pins to fetch, by the Python that they are for.
        broken: wanted files with another checksum, with what was found.
        foreign: files that no lock names.
        size: bytes to fetch, as far as the locks say.
    """

    missing: dict[str, list[Pin]] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)

    @property
    def size(self) -> int:
        return sum(pin.size for pins in self.missing.values() for pin in pins)

    @property
    def count(self) -> int:
        return sum(len(pins) for pins in self.missing.values())


@dataclass(frozen=True)
class Bundle:
    """A folder and its locks. ``indexes`` and ``links`` are asked for what pip does not find by itself."""

    path: Path
    locks: tuple[Path, ...]
    uv: Path
    indexes: tuple[str, ...] = ()
    links: tuple[str, ...] = ()

    @property
    def wheels(self) -> Path:
        return self.path / "wheels"

    def read(self) -> dict[str, Lock]:
        """The locks by file name."""
        for path in (*self.locks, self.uv):
            if not path.is_file():
                others = ", ".join(sorted(entry.stem for entry in path.parent.glob("*-py*.txt")))
                raise OperatorError(
                    f"There is no lock {path.stem}",
                    found=f"{others or 'no lock at all'} in {path.parent}",
                    expected=str(path),
                    remedy="name locks of files/locks, or make one with files/locks/make-lock",
                )
        return {path.name: locks.parse(path.read_text(encoding="utf-8"), path.name) for path in self.locks}

    def inspect(self) -> Found:
        """Compare the folder with the locks. Every file is read in full: a size proves little."""
        found = Found()
        wanted: dict[str, tuple[Pin, str]] = {}
        for lock in self.read().values():
            # Where only one lock has the checksum of a wheel that both name, it is the other one's, too.
            wanted.update(
                {
                    pin.filename: (pin, lock.python)
                    for pin in lock.pins
                    if pin.sha256 or pin.filename not in wanted
                }
            )
        for pin in locks.parse_pins(self.uv.read_text(encoding="utf-8"), self.uv.name):
            wanted[pin.filename] = (pin, "")
        for pin, python in wanted.values():
            path = self.wheels / pin.filename
            if path.is_file():
                checksum = sha256(path)
                if checksum == pin.sha256:
                    continue
                if pin.sha256:
                    found.broken.append(f"{pin.filename} (sha256 {checksum}, locked is {pin.sha256})")
            found.missing.setdefault(python, []).append(pin)
        if self.wheels.is_dir():
            found.foreign = sorted(entry.name for entry in self.wheels.iterdir() if entry.name not in wanted)
        return found

    def make(self, found: Found) -> list[str]:
        """Fetch what is missing and write the lists. Returns the names of files that were written.

        Raises:
            OperatorError: a wheel cannot be had, or is not the locked one.
        """
        written = []
        self.wheels.mkdir(parents=True, exist_ok=True)
        for python, pins in found.missing.items():
            for batch in _batches(pins):
                written += self._fetch(batch, python)
        self._record()
        for name, text in self._lists().items():
            path = self.path / name
            if not path.is_file() or path.read_text(encoding="utf-8") != text:
                replace(path, text)
                written.append(name)
        return written

    def _fetch(self, pins: list[Pin], python: str) -> list[str]:
        with tempfile.TemporaryDirectory(dir=self.path, prefix=".fetch-") as folder:
            into = Path(folder)
            problem = self._pip(pins, python, into)
            if problem and (self.indexes or self.links):
                elsewhere = [f"--extra-index-url={index}" for index in self.indexes]
                elsewhere += [f"--find-links={link}" for link in self.links]
                problem = self._pip(pins, python, into, *elsewhere)
            if problem:
                raise OperatorError(
                    f"pip cannot download {', '.join(map(str, pins[:5]))}{' and more' if pins[5:] else ''}",
                    found=problem,
                    remedy="see what pip says; what was fetched so far is kept, run the same command again",
                )
            for pin in pins:
                got = into / pin.filename
                if not got.is_file():
                    raise OperatorError(
                        f"pip downloaded another file for {pin}",
                        found=", ".join(sorted(entry.name for entry in into.iterdir())),
                        expected=pin.filename,
                        remedy="make the lock again: the index no longer has the file that was locked",
                    )
                shutil.move(got, self.wheels / pin.filename)
        return [f"wheels/{pin.filename}" for pin in pins]

    def _pip(self, pins: list[Pin], python: str, into: Path, *more: str) -> str:
        """One call of pip. Returns what went wrong, or nothing."""
        requirements = into / "requirements.txt"
        requirements.write_text("".join(f"{pin.line()}\n" for pin in pins), encoding="utf-8")
        checked = ["--require-hashes"] if all(pin.sha256 for pin in pins) else []
        if python:
            version = python.replace(".", "")
            target = [f"--python-version={python}", "--implementation=cp"]
            target += [f"--abi={abi}" for abi in (f"cp{version}", "abi3", "none")]
            platforms = {tag for pin in pins for tag in pin.tags[2].split(".")} - {"any"}
            target += [f"--platform={tag}" for tag in sorted(platforms)]
        else:
            target = []
        options = ["--quiet", "--no-input", "--no-deps", "--only-binary=:all:", *checked, *target, *more]
        result = subprocess.run(
            [sys.executable, "-m", "pip", "download", *options, f"--dest={into}", "-r", requirements],
            capture_output=True,
            text=True,
            check=False,
        )
        if result.returncode:
            return result.stderr.strip()[-2000:] or f"exit status {result.returncode}"
        return ""

    def _record(self) -> None:
        """Write checksums into locks that lack them: from now on a change of the file is refused."""
        for path in self.locks:
            text = path.read_text(encoding="utf-8")
            found = {}
            for pin in locks.parse(text, path.name).unhashed:
                wheel = self.wheels / pin.filename
                found[pin.filename] = (sha256(wheel), wheel.stat().st_size)
            if found:
                replace(path, locks.complete(text, found))

    def _lists(self) -> dict[str, str]:
        made_for = self.read()
        pins = {pin.filename: pin for lock in made_for.values() for pin in lock.pins}
        pins.update(
            {pin.filename: pin for pin in locks.parse_pins(self.uv.read_text(encoding="utf-8"), self.uv.name)}
        )
        ordered = [pins[name] for name in sorted(pins)]
        manifest = {
            "locks": {name: lock.digest for name, lock in sorted(made_for.items())},
            "wheels": [
                {"file": pin.filename, "name": pin.name, "version": pin.version, "sha256": pin.sha256}
                for pin in ordered
            ],
        }
        licences = [f"{pin}\t{_licence(self.wheels / pin.filename)}" for pin in ordered]
        return {
            "SHA256SUMS": "".join(f"{pin.sha256}  wheels/{pin.filename}\n" for pin in ordered),
            "manifest.json": json.dumps(manifest, indent=2) + "\n",
            "licences.txt": "\n".join(licences) + "\n",
        }


def _batches(pins: Iterable[Pin]) -> Iterator[list[Pin]]:
    """Groups that are fetched together.

    Wheels of a local version (+cpu, +cu130) go alone: most indexes lack them, and a group fails as one. So do wheels
    without a checksum, since pip wants one for all of a group or for none. pip takes one version of a package a call:
    where locks differ, the second version of each goes into a later group.
    """

    def alone(pin: Pin) -> bool:
        return "+" in pin.version or not pin.sha256

    turns: dict[str, int] = {}
    queue: list[tuple[bool, int, str, Pin]] = []
    for pin in sorted(pins, key=lambda pin: (pin.name, pin.version)):
        turns[pin.name] = turns.get(pin.name, -1) + 1
        queue.append((alone(pin), turns[pin.name], pin.filename, pin))

    batch: list[Pin] = []
    turn_of_batch = 0
    for by_itself, turn, _, pin in sorted(queue, key=lambda entry: entry[:3]):
        size = sum(other.size for other in batch) + pin.size
        full = size > _BATCH_BYTES or len(batch) == _BATCH_FILES
        if batch and (by_itself or turn != turn_of_batch or full):
            yield batch
            batch = []
        turn_of_batch = turn
        batch.append(pin)
    if batch:
        yield batch


def _licence(wheel: Path) -> str:
    """What the wheel's metadata says of its licence."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = email.parser.HeaderParser().parsestr(archive.read(name).decode(errors="replace"))
    if metadata["License-Expression"]:
        return str(metadata["License-Expression"])
    classifiers = [
        value.rpartition(" :: ")[2]
        for value in metadata.get_all("Classifier", [])
        if value.startswith("License ::")
    ]
    text = (metadata["License"] or "").strip().splitlines()
    return "; ".join(classifiers) or (text[0] if text else "not stated")
