"""Lock files: exactly one wheel for each package, by version, file name, size and sha256.

A lock is a pip requirements file, so that pip and uv read it as it is. What they take for comments carries
the rest: the header says what the lock is for, and the end of each line names the wheel::

    # sglang: 0.5.9
    # engine: cpu
    # python: 3.11
    # platform: manylinux_2_36_x86_64
    # without: sgl-kernel flashinfer-cubin
    # override: torch==2.13.0+cpu
    # cuda12: torchao
    tqdm==4.70.1 --hash=sha256:59a1... # tqdm-4.70.1-py3-none-any.whl 78123

A pin without ``--hash`` is a wheel whose checksum nobody published. pip and uv refuse it, and so do we, until
a bundle has recorded what it downloaded.
"""

from __future__ import annotations

import hashlib
import re
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass

from .errors import OperatorError

_HEADER = re.compile(r"^# (?P<key>sglang|engine|python|platform|without|override|cuda12): (?P<value>\S.*)$")
_PIN = re.compile(
    r"^(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)==(?P<version>[^\s;\\]+)"
    r"(?:\s+--hash=sha256:(?P<sha256>[0-9a-f]{64}))?"
    r"\s+#\s+(?P<filename>\S+\.whl)(?:\s+(?P<size>\d+))?$"
)


def canonical(name: str) -> str:
    """The one spelling of a distribution name (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


@dataclass(frozen=True)
class Pin:
    """One wheel. ``sha256`` is empty when nobody has published it; ``size`` in bytes, 0 when unknown."""

    name: str
    version: str
    filename: str
    sha256: str = ""
    size: int = 0

    def __str__(self) -> str:
        return f"{self.name}=={self.version}"

    @property
    def tags(self) -> tuple[str, str, str]:
        """Python, ABI and platform tag sets, as the file name writes them."""
        python, abi, platform = self.filename[: -len(".whl")].split("-")[-3:]
        return python, abi, platform

    def line(self) -> str:
        """The pin as a line of a lock."""
        checksum = f" --hash=sha256:{self.sha256}" if self.sha256 else ""
        size = f" {self.size}" if self.size else ""
        return f"{self}{checksum}  # {self.filename}{size}"


@dataclass(frozen=True)
class Lock:
    """What a release is installed from.

    ``without`` are distributions that the packages ask for and the lock leaves out on purpose; ``overrides`` are
    pins that differ on purpose from what the packages ask for. The dependency check allows both. ``cuda12`` are
    packages whose libraries may be builds for CUDA 12, because a server does not load them.
    """

    sglang: str
    engine: str
    python: str
    platform: str
    pins: tuple[Pin, ...]
    without: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    cuda12: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """sha256 of what would be installed: comments, order and spelling do not count."""
        facts = [f"sglang {self.sglang}", f"engine {self.engine}", f"python {self.python}"]
        facts += sorted(f"{pin} {pin.sha256}" for pin in self.pins)
        return hashlib.sha256("\n".join(facts).encode()).hexdigest()

    @property
    def name(self) -> str:
        """Its file in ``files/locks``, without the ending."""
        flavour = self.versions.get("torch", "").partition("+")[2] or "cpu"
        return f"sglang-{self.sglang}-{flavour}-py{self.python.replace('.', '')}"

    @property
    def versions(self) -> dict[str, str]:
        """Version by canonical distribution name."""
        return {pin.name: pin.version for pin in self.pins}

    @property
    def unhashed(self) -> list[Pin]:
        """Pins whose checksum is not known yet."""
        return [pin for pin in self.pins if not pin.sha256]

    @property
    def allowed(self) -> set[str]:
        """Names about which the dependency check may complain."""
        return {canonical(name) for name in self.without} | {
            canonical(pin.split("==")[0]) for pin in self.overrides
        }


def parse_pins(text: str, source: str) -> list[Pin]:
    """Read the pins of a requirements file; ``source`` is its name in messages."""
    pins = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        match = _PIN.match(line)
        if not match:
            raise OperatorError(
                f"Line {number} of the lock {source} cannot be read",
                found=line.strip()[:120],
                expected="name==version --hash=sha256:...  # file.whl size",
                remedy="make the lock again, as files/locks/README.md says",
            )
        given = match.groupdict()
        pins.append(
            Pin(
                name=canonical(given["name"]),
                version=given["version"],
                filename=given["filename"],
                sha256=given["sha256"] or "",
                size=int(given["size"] or 0),
            )
        )
    return pins


def parse(text: str, source: str) -> Lock:
    """Read a lock.

    Args:
        text: the file.
        source: its name, for messages.

    Raises:
        OperatorError: a header is missing, a line is not a pin, or a package is pinned twice.
    """
    header: dict[str, list[str]] = {}
    for line in text.splitlines():
        match = _HEADER.match(line)
        if match:
            header.setdefault(match["key"], []).append(match["value"].strip())
    missing = [key for key in ("sglang", "engine", "python", "platform") if key not in header]
    pins = parse_pins(text, source)
    twice = sorted({pin.name for pin in pins if sum(other.name == pin.name for other in pins) > 1})
    if missing or twice or not pins:
        raise OperatorError(
            f"{source} is not a lock of this project",
            found=", ".join(
                [f"no line '# {key}: ...'" for key in missing]
                + [f"{name} pinned twice" for name in twice]
                + ([] if pins else ["no package"])
            ),
            expected="a header and one pin for each package",
            remedy="make the lock again, as files/locks/README.md says",
        )
    return Lock(
        sglang=header["sglang"][0],
        engine=header["engine"][0],
        python=header["python"][0],
        platform=header["platform"][0],
        pins=tuple(sorted(pins, key=lambda pin: pin.name)),
        without=tuple(name for value in header.get("without", []) for name in value.split()),
        overrides=tuple(pin for value in header.get("override", []) for pin in value.split()),
        cuda12=tuple(name for value in header.get("cuda12", []) for name in value.split()),
    )


def render(lock: Lock, comment: Iterable[str] = ()) -> str:
    """Write a lock as text; ``comment`` are free lines below the header."""
    lines = [
        f"# sglang: {lock.sglang}",
        f"# engine: {lock.engine}",
        f"# python: {lock.python}",
        f"# platform: {lock.platform}",
    ]
    lines += [
        f"# without: {names}" for names in textwrap.wrap(" ".join(lock.without), 100, break_on_hyphens=False)
    ]
    if lock.overrides:
        lines.append(f"# override: {' '.join(lock.overrides)}")
    if lock.cuda12:
        lines.append(f"# cuda12: {' '.join(lock.cuda12)}")
    lines += [f"# {line}".rstrip() for line in comment]
    lines += [pin.line() for pin in sorted(lock.pins, key=lambda pin: pin.name)]
    return "\n".join(lines) + "\n"


def complete(text: str, found: dict[str, tuple[str, int]]) -> str:
    """Fill checksums and sizes (by file name) into the lines of a lock that lack them."""
    lines = []
    for line in text.splitlines():
        match = None if line.startswith("#") else _PIN.match(line)
        if match and not match["sha256"] and match["filename"] in found:
            sha256, size = found[match["filename"]]
            line = Pin(match["name"], match["version"], match["filename"], sha256, size).line()
        lines.append(line)
    return "\n".join(lines) + "\n"
