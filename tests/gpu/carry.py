#!/usr/bin/env python3
"""Gather what a machine without a network needs for the tests on GPUs, as files that can be brought there.

    python -m tests.gpu.carry FOLDER [--architecture sm90]

FOLDER then holds ``packages.tar.xz`` (the wheels of packages.txt, installed, without the parts that the tests do not
run), ``packages.json`` (each wheel's name, version, file, size and SHA-256) and, where apt-get is Debian 12's,
``systemd.tar.xz`` (systemd 252 and the libraries that it needs). Needs an index of Python packages.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PYTHON = "3.12"
# pip matches the number exactly: every baseline up to glibc 2.39, that of Ubuntu 24.04.
PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in range(39, 16, -1)] + [
    "manylinux2014_x86_64",
    "manylinux_2_12_x86_64",
    "manylinux2010_x86_64",
    "manylinux_2_5_x86_64",
    "manylinux1_x86_64",
]
# Not run by the tests: FlashAttention 3, other GPUs' kernels, DeepGEMM, MSCCL++, and Ansible's own tests.
LEFT_OUT = (
    r"sgl_kernel/(flash_ops|flashmla_ops|spatial_ops)\.abi3\.so$",
    r"(deep_gemm|triton_kernels|include|lib|lib64)/",
    r"_mscclpp\..*\.so$",
    r"ansible_test/",
    r"sglang/multimodal_gen/",
)
# systemd, D-Bus, and the libraries that a machine without them may lack.
DEBIAN = """
systemd libsystemd-shared libsystemd0 dbus dbus-bin dbus-daemon dbus-session-bus-common dbus-system-bus-common
libdbus-1-3 libapparmor1 libaudit1 libcap-ng0 libip4tc2 libcryptsetup12 libkmod2 libfdisk1 libargon2-1 libjson-c5
libdevmapper1.02.1 libseccomp2 libexpat1 libgcrypt20 libgpg-error0
""".split()  # noqa: SIM905


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--architecture", default="sm90", choices=["sm90", "sm100"])
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        gather_packages(given.folder, Path(scratch), given.architecture)
        gather_systemd(given.folder, Path(scratch))
    files = sorted(path for path in given.folder.iterdir() if path.is_file())
    for path in files:
        print(f"{path.stat().st_size / 2**20:6.1f} MiB  {path}")
    print(f"{sum(path.stat().st_size for path in files) / 2**20:6.1f} MiB in all")


def gather_packages(folder: Path, scratch: Path, architecture: str) -> None:
    """Write packages.tar.xz and packages.json."""
    wheels, site = scratch / "wheels", scratch / "site"
    wanted = requirements()
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    tags = ["--implementation", "cp", "--python-version", PYTHON, "--only-binary", ":all:", "--no-deps"]
    for abi in (f"cp{PYTHON.replace('.', '')}", "abi3", "none"):
        tags += ["--abi", abi]
    for platform in PLATFORMS:
        tags += ["--platform", platform]
    subprocess.run([*pip, "download", *tags, "--dest", str(wheels), *wanted], check=True)
    files = sorted(wheels.glob("*.whl"))
    subprocess.run(
        [*pip, "install", *tags, "--no-index", "--no-compile", "--target", str(site), *map(str, files)],
        check=True,
    )
    (folder / "packages.json").write_text(
        json.dumps([describe(path) for path in files], indent=1) + "\n", "utf-8"
    )
    trim(site, architecture)
    adapt(site)
    pack(site, folder / "packages.tar.xz")


def requirements() -> list[str]:
    """The pins of packages.txt, and the Ansible that this project's controllers of Python 3.11 have."""
    own = (HERE / "packages.txt").read_text(encoding="utf-8").splitlines()
    locked = (HERE.parents[1] / "requirements" / "controller-py3.11.txt").read_text(encoding="utf-8")
    ansible = re.search(r"^ansible-core==\S+", locked, re.MULTILINE)
    assert ansible, "requirements/controller-py3.11.txt has no ansible-core"
    return [line for line in own if line and not line.startswith("#")] + [ansible[0]]


def describe(wheel: Path) -> dict[str, Any]:
    """A wheel as a lock names it."""
    name, version = wheel.name.split("-")[:2]
    return {
        "name": re.sub(r"[-_.]+", "-", name).lower(),
        "version": version,
        "filename": wheel.name,
        "size": wheel.stat().st_size,
        "sha256": hashlib.sha256(wheel.read_bytes()).hexdigest(),
    }


def trim(site: Path, architecture: str) -> None:
    """Remove what the tests do not run."""
    left_out = [*LEFT_OUT, rf"sgl_kernel/sm(?!{architecture.removeprefix('sm')}/)\d+/"]
    for path in sorted(site.rglob("*"), reverse=True):
        name = path.relative_to(site).as_posix() + ("/" if path.is_dir() and not path.is_symlink() else "")
        if any(re.match(pattern, name) for pattern in left_out):
            if name.endswith("/"):
                path.rmdir()
            else:
                path.unlink()


def adapt(site: Path) -> None:
    """Make sglang-kernel 0.4.2 look like sgl-kernel 0.3.21 to SGLang 0.5.9."""
    package = site / "sgl_kernel"
    for name in ("compatible.py", "flash_attn.py"):
        shutil.copy(HERE / "kernels" / name, package / name)
    with (package / "__init__.py").open("a", encoding="utf-8") as file:
        file.write("\nfrom sgl_kernel.compatible import missing as __getattr__  # noqa: E402\n")


def gather_systemd(folder: Path, scratch: Path) -> None:
    """Write systemd.tar.xz, where this machine is a Debian 12."""
    release = Path("/etc/os-release").read_text(encoding="utf-8")
    if not re.search(r'^VERSION_ID="12"$', release, re.MULTILINE) or shutil.which("apt-get") is None:
        print("No systemd.tar.xz: this is no Debian 12. Not needed where systemd is the init system.")
        return
    debs, root = scratch / "debs", scratch / "systemd"
    debs.mkdir()
    subprocess.run(["apt-get", "--quiet=2", "download", *DEBIAN], cwd=debs, check=True)
    for deb in debs.glob("*.deb"):
        subprocess.run(["dpkg", "--extract", str(deb), str(root)], check=True)
    for useless in (
        "usr/share/doc",
        "usr/share/man",
        "usr/share/locale",
        "usr/share/zsh",
        "usr/share/bash-completion",
    ):
        shutil.rmtree(root / useless, ignore_errors=True)
    pack(root, folder / "systemd.tar.xz")


def pack(folder: Path, archive: Path) -> None:
    """Pack the contents of a folder."""
    command = ["tar", "--create", "--owner=0", "--group=0", "--use-compress-program=xz -6 -T2"]
    subprocess.run([*command, "--file", str(archive), "--directory", str(folder), "."], check=True)


if __name__ == "__main__":
    main()
