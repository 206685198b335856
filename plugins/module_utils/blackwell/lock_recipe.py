"""Make a lock from a recipe: resolve with uv, then keep the one wheel of each package that is installed.

A recipe (``files/locks/<flavour>.yml``) says what SGLang's own metadata does not: which distributions are
left out and why, which of its pins are overridden and why, and the wheels that are not on PyPI. Those are
described by file name, checksum and dependencies, so that a lock can be made without access to the index that
has them.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped, unused-ignore]

from . import lock as locks
from .errors import OperatorError
from .lock import Lock, Pin, canonical

_PACKAGE = re.compile(r'^name = "(?P<name>[^"]+)"\nversion = "(?P<version>[^"]+)"', re.MULTILINE)
_WHEEL = re.compile(
    r'(?:url|path) = "(?:[^"]*/)?(?P<filename>[^"/]+\.whl)"[^}]*?'
    r'(?:size = (?P<size>\d+), )?hashes = \{ sha256 = "(?P<sha256>[0-9a-f]{64})"'
)


def make(recipe_file: Path, sglang: str, python: str) -> str:
    """The text of a lock.

    Args:
        recipe_file: ``files/locks/<flavour>.yml``.
        sglang: the release of SGLang, or of the package that the recipe is for, as PyPI writes it.
        python: the Python of the hosts, ``major.minor``.

    Raises:
        OperatorError: there is no such flavour or release, the recipe contradicts the release, uv finds no
            solution, or a package has no wheel for the target.
    """
    if not recipe_file.is_file():
        raise OperatorError(
            f"There is no flavour {recipe_file.stem}",
            found=", ".join(sorted(path.stem for path in recipe_file.parent.glob("*.yml"))),
            remedy=f"name one of these, or write the recipe {recipe_file}",
        )
    recipe = yaml.safe_load(recipe_file.read_text(encoding="utf-8"))
    known = recipe["releases"].get(sglang, {})
    elsewhere = _elsewhere(recipe, sglang, python)
    deliberate = known.get("overrides", [])
    # A wheel of the recipe may be a deliberate override, too: it is named once.
    overrides = list(
        dict.fromkeys([*(str(pin) for pin in elsewhere if pin.name in recipe["replaced"]), *deliberate])
    )
    without = sorted({canonical(name) for entry in recipe["without"] for name in entry["packages"]})
    package = recipe.get("package", "sglang")
    requires = [f"{package}=={sglang}", *recipe["requires"], *known.get("requires", []), *map(str, elsewhere)]

    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        asked = {
            f"{'SGLang' if package == 'sglang' else package} {sglang}": _requirements(
                work / "release", package, sglang, python, recipe["platform"]
            )
        }
        for pin in elsewhere:
            requirements = _described(pin, recipe["wheels"])
            asked[f"{pin.name} {pin.version}"] = requirements
            _stub(work, pin, requirements)
        # An override silences uv, so that it would not notice this.
        wrong = _contradictions(asked, [pin for pin in elsewhere if str(pin) not in deliberate], python)
        if wrong:
            raise OperatorError(
                "; ".join(
                    f"{owner} pins {pinned}, the recipe {recipe_file.name} has {pin}"
                    for owner, pinned, pin in wrong
                ),
                remedy=f"add the wheels that fit, with releases: [{sglang}], under wheels in {recipe_file}, and give "
                "those of other releases their own releases; a version that differs on purpose belongs in the "
                f"overrides of the release {sglang}",
            )
        (work / "in.txt").write_text("\n".join(requires) + "\n", encoding="utf-8")
        (work / "overrides.txt").write_text("\n".join(overrides) + "\n", encoding="utf-8")
        (work / "without.txt").write_text("\n".join(without) + "\n", encoding="utf-8")
        result = subprocess.run(
            ["uv", "pip", "compile", "in.txt", "--format", "pylock.toml", *_target(python, recipe["platform"]),
             "--generate-hashes", "--find-links", ".",
             "--override", "overrides.txt", "--excludes", "without.txt", "--output-file", "pylock.toml"],
            cwd=work, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if result.returncode:
            raise OperatorError(
                f"uv found no set of packages for {package} {sglang} on Python {python}",
                found=result.stderr.strip(),
                remedy=("correct" if sglang in recipe["releases"] else "add")
                + f" the release {sglang} in {recipe_file}: its overrides, and the wheels that are not on PyPI",
            )
        resolved = (work / "pylock.toml").read_text(encoding="utf-8")

    by_name = {pin.name: pin for pin in elsewhere}
    pins = []
    for section in resolved.split("[[packages]]\n")[1:]:
        head = _PACKAGE.match(section)
        assert head, section
        name = canonical(head["name"])
        pins.append(by_name.get(name) or _best(name, head["version"], section, python, recipe["platform"]))
    meant = {*by_name, *(canonical(pin.split("==")[0]) for pin in deliberate)}
    foreign = [
        pin
        for pin in pins
        if pin.name in recipe["replaced"]
        and pin.name not in meant
        and not pin.version.endswith(f"+{recipe_file.stem}")
    ]
    if foreign:
        names = ", ".join(map(str, foreign))
        raise OperatorError(
            f"The recipe {recipe_file.name} replaces the package index's build of "
            + ", ".join(pin.name for pin in foreign),
            found=f"{names}, from the index",
            expected=", ".join(f"{pin}+{recipe_file.stem}" for pin in foreign),
            remedy=f"add the wheel, with releases: [{sglang}], under wheels in {recipe_file}; if the index's build is "
            f"meant, add {names} to the overrides of the release {sglang}",
        )
    made = Lock(
        sglang=sglang if package == "sglang" else "none",
        engine=recipe["engine"],
        python=python,
        platform=recipe["platform"],
        pins=tuple(pins),
        without=tuple(without),
        overrides=tuple(overrides),
        cuda12=tuple(
            sorted(canonical(name) for entry in recipe.get("cuda12", []) for name in entry["packages"])
        ),
    )
    command = f"files/locks/make-lock {recipe_file.stem} {sglang} {python}"
    reasons = f"What is left out or overridden, and why: {recipe_file.name}"
    return locks.render(made, ["", f"Made by: {command}", reasons])


def _elsewhere(recipe: dict[str, Any], sglang: str, python: str) -> list[Pin]:
    """The wheels of the recipe that are not on PyPI, for this release and this Python."""
    pins = []
    for entry in recipe["wheels"]:
        name, version, *_ = entry["file"].split("-")
        pin = Pin(canonical(name), version, entry["file"], entry.get("sha256", ""), entry.get("size", 0))
        wanted = sglang in entry.get("releases", [sglang])
        if wanted and _rank(pin, python, recipe["platform"]) is not None:
            pins.append(pin)
    return pins


def _target(python: str, platform: str) -> list[str]:
    """What uv is told about the hosts."""
    return [
        *("--no-config", "--quiet", "--only-binary", ":all:"),
        *("--python-version", python, "--python-platform", f"x86_64-{_glibc(platform)}"),
    ]


def _requirements(folder: Path, package: str, release: str, python: str, platform: str) -> list[str]:
    """What the release itself asks for. uv shows it only to who unpacks the wheel."""
    result = subprocess.run(
        ["uv", "pip", "install", "--no-deps", "--target", str(folder), *_target(python, platform),
         f"{package}=={release}"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if result.returncode:
        absent = f"there is no version of {package}=={release}" in result.stderr
        raise OperatorError(
            f"There is no release {release} of {package}" if absent else f"uv cannot get {package} {release}",
            found=" ".join(result.stderr.split()),
            remedy="name a release that the package index has"
            if absent
            else "check that the package index can be reached, and that it has a wheel of this release",
        )
    (unpacked,) = importlib.metadata.distributions(path=[str(folder)])
    return unpacked.requires or []


def _contradictions(asked: dict[str, list[str]], pins: list[Pin], python: str) -> list[tuple[str, str, Pin]]:
    """Who asks for what, and the pin of the recipe that is something else."""
    from packaging.requirements import Requirement

    # The build of a flavour (2.9.1+cu130) fits a pin of its version (==2.9.1). Markers are those of the hosts.
    hosts = {"python_version": python, "python_full_version": f"{python}.0", "extra": "",
             "sys_platform": "linux", "platform_system": "Linux", "platform_machine": "x86_64"}  # fmt: skip
    by_name = {pin.name: pin for pin in pins}
    wrong = []
    for owner, requirements in asked.items():
        for requirement in map(Requirement, requirements):
            pin = by_name.get(canonical(requirement.name))
            applies = requirement.marker is None or requirement.marker.evaluate(hosts)
            if pin and applies and not requirement.specifier.contains(pin.version, prereleases=True):
                wrong.append((owner, f"{requirement.name}{requirement.specifier}", pin))
    return wrong


def _described(pin: Pin, wheels: list[dict[str, Any]]) -> list[str]:
    """What a wheel of the recipe asks for."""
    requires: list[str] = next(entry["requires"] for entry in wheels if entry["file"] == pin.filename)
    return requires


def _stub(folder: Path, pin: Pin, requires: list[str]) -> None:
    """A wheel of metadata only: enough for a resolver."""
    stem = "-".join(pin.filename.split("-")[:2])
    metadata = [f"Metadata-Version: 2.1\nName: {pin.name}\nVersion: {pin.version}"]
    metadata += [f"Requires-Dist: {requirement}" for requirement in requires]
    with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{stem}.dist-info/METADATA", "\n".join(metadata) + "\n")
        wheel.writestr(
            f"{stem}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{stem}.dist-info/RECORD", "")


def _best(name: str, version: str, section: str, python: str, platform: str) -> Pin:
    """The wheel that an installer on the target would take."""
    candidates = [
        Pin(name, version, found["filename"], found["sha256"], int(found["size"] or 0))
        for found in _WHEEL.finditer(section)
    ]
    ranked = [(rank, pin) for pin in candidates if (rank := _rank(pin, python, platform)) is not None]
    if not ranked:
        raise OperatorError(
            f"{name} {version} has no wheel for Python {python} on {platform}",
            found=", ".join(pin.filename for pin in candidates) or "no wheel at all",
            remedy="pin a version that has one, or leave the package out, in the recipe",
        )
    return min(ranked, key=lambda entry: entry[0])[1]


def _rank(pin: Pin, python: str, platform: str) -> int | None:
    """How early an installer on the target would choose this wheel; None: never."""
    from packaging import tags

    major, minor = (int(part) for part in python.split("."))
    newest = int(_glibc(platform).split("_")[2])
    platforms = [f"manylinux_2_{glibc}_x86_64" for glibc in range(newest, 4, -1)]
    platforms += ["manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64", "linux_x86_64"]
    supported = [
        *tags.cpython_tags((major, minor), platforms=platforms),
        *tags.compatible_tags((major, minor), interpreter=f"cp{major}{minor}", platforms=platforms),
    ]
    order = {str(tag): place for place, tag in enumerate(supported)}
    ranks = [order[str(tag)] for tag in tags.parse_tag("-".join(pin.tags)) if str(tag) in order]
    return min(ranks, default=None)


def _glibc(platform: str) -> str:
    """``manylinux_2_36`` of ``manylinux_2_36_x86_64``."""
    return platform[: -len("_x86_64")]


def main(folder: Path) -> int:
    """Command line of ``files/locks/make-lock``; ``folder`` holds recipes and locks."""
    parser = argparse.ArgumentParser(prog="make-lock", description="Make a hashed lock file with uv.")
    parser.add_argument("flavour", help="a recipe: cpu, cu130, gateway")
    parser.add_argument("sglang", help="a release of SGLang (0.5.9), or of smg (1.13.0) for the gateway")
    parser.add_argument("python", help="the hosts' Python, for example 3.12")
    given = parser.parse_args()
    stem = (
        f"gateway-{given.sglang}" if given.flavour == "gateway" else f"sglang-{given.sglang}-{given.flavour}"
    )
    target = folder / f"{stem}-py{given.python.replace('.', '')}.txt"
    try:
        text = make(folder / f"{given.flavour}.yml", given.sglang, given.python)
    except OperatorError as error:
        print(error, file=sys.stderr)
        return 1
    target.write_text(text, encoding="utf-8")
    made = locks.parse(text, target.name)
    print(f"{target}: {len(made.pins)} packages, {sum(pin.size for pin in made.pins) / 1e6:.0f} MB")
    for pin in made.unhashed:
        print(f"  no published checksum: {pin} (playbooks/bundle.yml records it at the first download)")
    return 0
