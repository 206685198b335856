"""Settings of a host that matter to the server: what they are, what they should be, and how they are set.

The module ``host_settings`` uses this file, and the host gets a copy of it that runs at boot
(``python3 tuning.py apply <wanted.json>``), because what is set at run time is gone after a reboot. So it
imports nothing but the standard library.

What cannot be set while the host runs (parameters of the driver and of the kernel) is only compared: it is in
files that are read at boot, and a reboot is reported, never done.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

# Bits of the control register of PCIe access control (PCIe 5.0, 7.7.8.3) that send peer-to-peer requests and
# completions up to the root complex.
_ACS_CAPABILITY = 0x000D
_ACS_REDIRECT = 0b1100
_NVIDIA = "0x10de"
_GIB = 2**30

# NVML_ERROR_CORRUPTED_INFOROM: nvidia-smi has printed its whole report, and one card's own records are damaged.
_INFOROM_CORRUPTED = 14
_CARD = re.compile(r"GPU-[0-9A-Fa-f-]{8,}|\[.*\]")
# A guest's card, or a laptop's, has no limit that could be set.
_NO_LIMIT = re.compile(r"\[?(N/A|Not Supported)\]?", re.IGNORECASE)
_UNKNOWN = "not known"


@dataclass(frozen=True)
class Setting:
    """One setting.

    Args:
        name: the name that the role's variables use, without their prefix.
        found: what the host has now; empty if the host has no such thing.
        wanted: what was asked for.
        fits: whether it is so, or the host has no such thing.
        reboot: whether only a reboot brings it about.
        error: what stood in the way when it was set.
    """

    name: str
    found: str
    wanted: str
    fits: bool
    reboot: bool = False
    error: str = ""


class Host:
    """Files and commands of a host, with a root that tests move."""

    def __init__(self, root: str = "/", path: str | None = None) -> None:
        self.root = Path(root)
        self.environment = {**os.environ, "LC_ALL": "C", **({"PATH": path} if path else {})}

    def at(self, path: str) -> Path:
        """Where ``path`` of the host lies."""
        return self.root / path.lstrip("/")

    def read(self, path: str) -> str:
        """A file's text, or nothing."""
        try:
            return self.at(path).read_text(encoding="utf-8").strip()
        except OSError:
            return ""

    def glob(self, pattern: str) -> list[Path]:
        """The files that match a pattern."""
        return sorted(self.root.glob(pattern.lstrip("/")))

    def run(self, *argv: str) -> tuple[int, str]:
        """Run a command; -1 if it could not be run, -2 if it did not end in time."""
        try:
            done = subprocess.run(
                argv,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                encoding="utf-8",
                errors="replace",
                timeout=60,
                env=self.environment,
                check=False,
            )
        except OSError as error:
            return -1, str(error)
        except subprocess.TimeoutExpired as error:
            return -2, str(error)
        return done.returncode, done.stdout.strip()


def _same(values: Sequence[str]) -> str:
    """One value for all, or all of them."""
    return values[0] if len(set(values)) == 1 else " ".join(values)


def _gpu_values(host: Host, field: str, gpus: Sequence[str]) -> list[str]:
    """A field of each card, as the driver gives it; none where there is no nvidia-smi.

    A report that is not there, or lacks a card, is a value of its own: it is not known what the card has.

    Args:
        host: the host.
        field: the field of nvidia-smi.
        gpus: UUIDs of the cards; empty for all.
    """
    code, out = host.run("nvidia-smi", f"--query-gpu=uuid,{field}", "--format=csv,noheader,nounits")
    if code == -1:
        return []
    rows = [tuple(cell.strip() for cell in line.split(",")) for line in out.replace("\0", "").splitlines()]
    # A card that is in trouble has no UUID either. All else is a line about the report.
    cards = [row for row in rows if len(row) == 2 and _CARD.fullmatch(row[0])]
    values = [value for uuid, value in cards if not gpus or uuid.lower() in {gpu.lower() for gpu in gpus}]
    whole = code in (0, _INFOROM_CORRUPTED) and values and len(values) >= len(gpus)
    return values if whole else [*values, _UNKNOWN]


def _of_cards(gpus: Sequence[str]) -> list[str]:
    return ["-i", ",".join(gpus)] if gpus else []


def _set_on_cards(host: Host, gpus: Sequence[str], *setting: str) -> str:
    code, out = host.run("nvidia-smi", *_of_cards(gpus), *setting)
    return "" if code in (0, _INFOROM_CORRUPTED) else out


def _persistence(host: Host, gpus: Sequence[str]) -> str:
    return _same(_gpu_values(host, "persistence_mode", gpus) or [""])


def _power(host: Host, gpus: Sequence[str]) -> str:
    told = [value for value in _gpu_values(host, "power.limit", gpus) if not _NO_LIMIT.fullmatch(value)]
    return _same([f"{float(value):g}" if _is_number(value) else value for value in told] or [""])


def _is_number(text: str) -> bool:
    return re.fullmatch(r"-?\d+(\.\d+)?", text) is not None


_GOVERNORS = "/sys/devices/system/cpu/cpu*/cpufreq/scaling_governor"
_ASPM = "/sys/module/pcie_aspm/parameters/policy"


def _governor(host: Host) -> str:
    return _same([path.read_text(encoding="utf-8").strip() for path in host.glob(_GOVERNORS)] or [""])


def _set_governor(host: Host, wanted: str) -> str:
    return _write(dict.fromkeys(host.glob(_GOVERNORS), wanted))


def _aspm(host: Host) -> str:
    """The policy in brackets of ``default [performance] powersave``."""
    match = re.search(r"\[(\w+)\]", host.read(_ASPM))
    return match.group(1) if match else ""


def _set_aspm(host: Host, wanted: str) -> str:
    return _write({host.at(_ASPM): wanted})


def _write(texts: Mapping[Path, str]) -> str:
    try:
        for path, text in texts.items():
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        return str(error)
    return ""


def _acs_control(config: bytes) -> int:
    """Where the control register of access control is in a PCIe configuration space, or 0."""
    offset = 0x100
    while 0x100 <= offset <= len(config) - 8:
        header = int.from_bytes(config[offset : offset + 4], "little")
        if header & 0xFFFF == _ACS_CAPABILITY:
            return offset + 6
        offset = header >> 20
    return 0


def _ports_above_gpus(host: Host) -> list[Path]:
    """The configuration spaces of the root and switch ports above NVIDIA's display and 3D controllers."""
    ports: dict[str, Path] = {}
    for device in host.glob("/sys/bus/pci/devices/*"):
        if host.read(f"/sys/bus/pci/devices/{device.name}/vendor") != _NVIDIA:
            continue
        if not host.read(f"/sys/bus/pci/devices/{device.name}/class").startswith("0x03"):
            continue
        for parent in device.resolve().parents:
            if re.fullmatch(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", parent.name):
                ports[parent.name] = parent / "config"
    return [ports[name] for name in sorted(ports)]


def _redirecting(host: Host) -> dict[Path, tuple[int, int]]:
    """The ports that redirect: where their control register is, and what is in it."""
    found = {}
    for path in _ports_above_gpus(host):
        config = path.read_bytes()
        offset = _acs_control(config)
        control = int.from_bytes(config[offset : offset + 2], "little") if offset else 0
        if control & _ACS_REDIRECT:
            found[path] = (offset, control)
    return found


def _acs(host: Host) -> str:
    if not _ports_above_gpus(host):
        return ""
    return " ".join(path.parent.name for path in _redirecting(host)) or "off"


def _set_acs(host: Host) -> str:
    try:
        for path, (offset, control) in _redirecting(host).items():
            with path.open("r+b") as config:
                config.seek(offset)
                config.write((control & ~_ACS_REDIRECT).to_bytes(2, "little"))
    except OSError as error:
        return str(error)
    return ""


def _shm(host: Host) -> str:
    try:
        stat = os.statvfs(host.at("/dev/shm"))
    except OSError:
        return ""
    return f"{stat.f_blocks * stat.f_frsize / _GIB:.1f}"


def _set_shm(host: Host, gib: float) -> str:
    code, out = host.run("mount", "-o", f"remount,size={int(gib * 1024)}m", "/dev/shm")
    return "" if code == 0 else out


def _module_parameter(host: Host, module: str, name: str) -> str:
    """What a loaded module was given; nvidia keeps its own in a file of its own."""
    if module == "nvidia":
        match = re.search(
            rf'^{re.escape(name.replace("NVreg_", ""))}: "?(.*?)"?$', _nvidia(host), re.MULTILINE
        )
        return match.group(1) if match else ""
    return host.read(f"/sys/module/{module}/parameters/{name}")


def _nvidia(host: Host) -> str:
    return host.read("/proc/driver/nvidia/params")


def _alike(found: str, wanted: str) -> bool:
    """Whether two values of a parameter mean the same; the kernel prints 1 as Y, and entries may end in ;."""
    truth = {"Y": "1", "N": "0"}
    return truth.get(found, found).rstrip(";") == truth.get(wanted, wanted).rstrip(";")


@dataclass(frozen=True)
class Knob:
    """Something that can be set while the host runs.

    ``read`` gives what is set, or nothing if the host has no such thing; ``write`` sets it and gives what stood in
    the way, or nothing.
    """

    name: str
    wanted: str
    read: Callable[[Host], str]
    write: Callable[[Host], str]
    fits: Callable[[str], bool]


def _knobs(wanted: Mapping[str, Any]) -> Iterable[Knob]:
    gpus = tuple(wanted.get("gpus") or ())
    if wanted.get("persistence"):
        yield Knob(
            "persistence",
            "Enabled",
            lambda host: _persistence(host, gpus),
            lambda host: _set_on_cards(host, gpus, "-pm", "1"),
            lambda found: found == "Enabled",
        )
    watts = float(wanted.get("power_limit_w") or 0)
    if watts:
        limit = f"{watts:g}"
        yield Knob(
            "power_limit_w",
            limit,
            lambda host: _power(host, gpus),
            lambda host: _set_on_cards(host, gpus, "-pl", limit),
            lambda found: found == limit,
        )
    governor = str(wanted.get("governor") or "")
    if governor:
        yield Knob(
            "governor", governor, _governor, lambda h: _set_governor(h, governor), lambda f: f == governor
        )
    aspm = str(wanted.get("aspm") or "")
    if aspm:
        yield Knob("aspm", aspm, _aspm, lambda h: _set_aspm(h, aspm), lambda found: found == aspm)
    if wanted.get("disable_acs"):
        yield Knob("disable_acs", "off", _acs, _set_acs, lambda found: found == "off")
    gib = float(wanted.get("shm_gib") or 0)
    if gib:
        yield Knob(
            "shm_gib", f"{gib:.1f}", _shm, lambda h: _set_shm(h, gib), lambda f: abs(float(f) - gib) < 0.1
        )
    for name, value in (wanted.get("sysctl") or {}).items():
        yield _sysctl_knob(name, str(value))


def _sysctl_knob(name: str, value: str) -> Knob:
    path = f"/proc/sys/{name.replace('.', '/')}"
    return Knob(
        name,
        value,
        lambda host: " ".join(host.read(path).split()),
        lambda host: _write({host.at(path): value}),
        lambda found: found == value,
    )


def _at_run_time(host: Host, wanted: Mapping[str, Any], apply: bool) -> list[Setting]:
    settings = []
    for knob in _knobs(wanted):
        found, error = knob.read(host), ""
        if apply and found and not knob.fits(found):
            error = knob.write(host)
            found = knob.read(host)
        settings.append(Setting(knob.name, found, knob.wanted, not found or knob.fits(found), error=error))
    return settings


def _at_boot(host: Host, wanted: Mapping[str, Any]) -> list[Setting]:
    settings = []
    for module, parameters in (wanted.get("modprobe") or {}).items():
        loaded = host.at(f"/sys/module/{module}").is_dir()
        for name, value in parameters.items():
            found = _module_parameter(host, module, name) or ("not set" if loaded else "")
            fits = not loaded or _alike(found, str(value))
            settings.append(Setting(f"{module} {name}", found, str(value), fits, reboot=not fits))
    running = command_line_words(host.read("/proc/cmdline"))
    for word in wanted.get("kernel_parameters") or []:
        there = word in running
        settings.append(
            Setting(f"kernel {word.split('=')[0]}", _given(running, word), word, there, reboot=not there)
        )
    return settings


def _given(words: Sequence[str], wanted: str) -> str:
    """What is there in the place of a wanted word of the command line."""
    key = wanted.split("=")[0]
    return " ".join(word for word in words if word.split("=")[0] == key) or "not set"


def settings_of(host: Host, wanted: Mapping[str, Any], *, apply: bool) -> list[Setting]:
    """Compare a host with what is wanted, and set what can be set while it runs.

    Args:
        host: where to read and write.
        wanted: ``gpus`` (UUIDs of the cards that are meant; none for all), ``persistence``, ``power_limit_w``,
            ``governor``, ``aspm``, ``disable_acs``, ``shm_gib``, ``sysctl`` (name to value), ``modprobe`` (module to
            parameters) and ``kernel_parameters``; what is empty or left out is left alone.
        apply: whether to set anything.
    """
    return [*_at_run_time(host, wanted, apply), *_at_boot(host, wanted)]


def table(settings: Sequence[Setting]) -> str:
    """The settings as text: what is found, and what is wanted where that is something else."""
    width = max((len(item.name) for item in settings), default=0)
    lines = []
    for item in settings:
        state = "ok" if item.fits else "reboot" if item.reboot else "differs"
        rest = "" if item.fits else f" (wanted: {item.wanted})"
        lines.append(f"{state:<7}  {item.name:<{width}}  {item.found or 'not there'}{rest}")
    return "\n".join(lines)


# --- the kernel command line ---


def command_line_words(text: str) -> list[str]:
    """The words of a kernel command line; quoted values stay whole."""
    return re.findall(r'(?:[^\s"]|"[^"]*")+', text)


def main(arguments: Sequence[str]) -> int:
    """``apply <file>`` or ``show <file>``: print every setting as JSON; 1 if one could not be set."""
    verb, path = arguments
    settings = settings_of(Host(), json.loads(Path(path).read_text(encoding="utf-8")), apply=verb == "apply")
    print(json.dumps([asdict(setting) for setting in settings], indent=1))
    return 1 if any(setting.error for setting in settings) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
