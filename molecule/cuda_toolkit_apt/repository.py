"""Build a signed apt repository of small packages: a toolkit, a newer driver, and a package that wants that driver.

The packages have the names and the layout of NVIDIA's. nvcc is a script that lets the C compiler do the work.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

HOME = "usr/local/cuda-13.0"
NVCC = """#!/bin/sh
[ "$1" = --version ] && { echo 'Cuda compilation tools, release 13.0, V13.0.88'; exit; }
[ -f /usr/local/cuda-13.0/include/cuda_runtime.h ] || { echo 'cuda_runtime.h: No such file' >&2; exit 1; }
echo 'int run(void) { return 0; }' | cc -x c -fPIC -c -o "$6" -
"""
# Parts of the driver that the repository offers in a newer version, whatever they are called.
DRIVERS = (
    "nvidia-driver-580",
    "libcudadebugger1",
    "libnvcuvid1",
    "libegl-nvidia0",
    "libglx-nvidia0",
    "libgl1-nvidia-glvnd-glx",
    "libnvfbc1",
    "firmware-nvidia-gsp",
    "libnvsdm",
    "nvlsm",
    "cuda-compat-13-0",
    "a-name-that-nobody-knows",
)
DEPENDS = {"cuda-cudart-dev-13-0": "cuda-driver-dev-13-0, cuda-toolkit-config-common"}
LIBRARY = "/* GNU ld script */ INPUT(-lm)\n"

TOOLKIT: Mapping[str, Mapping[str, str]] = {
    "cuda-cccl-13-0": {},
    # A linker's stub, not a driver.
    "cuda-driver-dev-13-0": {f"{HOME}/lib64/stubs/libcuda.so": LIBRARY},
    "cuda-toolkit-config-common": {},
    "cuda-cudart-dev-13-0": {
        f"{HOME}/include/cuda_runtime.h": "",
        f"{HOME}/lib64/libcudart.so": LIBRARY,
    },
    "cuda-nvcc-13-0": {f"{HOME}/bin/nvcc": NVCC},
    "cuda-nvrtc-dev-13-0": {f"{HOME}/include/nvrtc.h": ""},
    "libcublas-dev-13-0": {},
    "libcurand-dev-13-0": {},
}


def build(into: Path, name: str, version: str, files: Mapping[str, str], depends: str = "") -> Path:
    """A binary package of text files; those below a ``bin`` are executable."""
    into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        root.chmod(0o755)
        control = (
            f"Package: {name}\nVersion: {version}\nArchitecture: all\nMaintainer: Test <test@example.org>\n"
        )
        control += f"Depends: {depends}\n" if depends else ""
        for path, text in {**files, "DEBIAN/control": control + "Description: small stand-in\n"}.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text, encoding="utf-8")
            (root / path).chmod(0o755 if "/bin/" in path else 0o644)
        package = into / f"{name}_{version}_all.deb"
        subprocess.run(["dpkg-deb", "--build", "--root-owner-group", root, package], check=True)
    return package


def index(folder: Path) -> None:
    """Write ``Packages`` and a ``Release`` as NVIDIA's flat repositories have them."""
    text = ""
    for package in sorted(folder.glob("*.deb")):
        control = subprocess.run(
            ["dpkg-deb", "--field", package], capture_output=True, text=True, check=True
        ).stdout
        content = package.read_bytes()
        text += f"{control}Filename: ./{package.name}\nSize: {len(content)}\n"
        text += f"SHA256: {hashlib.sha256(content).hexdigest()}\n\n"
    (folder / "Packages").write_text(text, encoding="utf-8")
    (folder / "Packages.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
    release = "Origin: NVIDIA\nLabel: NVIDIA CUDA\nArchitectures: amd64\nDate: Thu, 01 Jan 2026 00:00:00 UTC\nSHA256:\n"
    for name in ("Packages", "Packages.gz"):
        content = (folder / name).read_bytes()
        release += f" {hashlib.sha256(content).hexdigest()} {len(content)} {name}\n"
    (folder / "Release").write_text(release, encoding="utf-8")


def sign(folder: Path) -> bytes:
    """Sign ``Release`` with a new key, and return the public key as a keyring."""
    with tempfile.TemporaryDirectory() as home:
        gpg = ["gpg", "--batch", "--quiet", "--homedir", home]
        subprocess.run(
            [*gpg, "--passphrase", "", "--quick-generate-key", "test@example.org", "ed25519", "sign"],
            check=True,
        )
        subprocess.run(
            [*gpg, "--clearsign", "--output", folder / "InRelease", folder / "Release"], check=True
        )
        exported = subprocess.run([*gpg, "--export"], capture_output=True, check=True).stdout
        subprocess.run(["gpgconf", "--homedir", home, "--kill", "gpg-agent"], check=True)
    return exported


def main(into: Path) -> None:
    """Build everything below ``into``, which is emptied first."""
    shutil.rmtree(into, ignore_errors=True)
    repository = into / "cuda" / "debian12" / "x86_64"
    for name, files in TOOLKIT.items():
        build(repository, name, "13.0.88-1", files, DEPENDS.get(name, ""))
    for name in DRIVERS:
        build(repository, name, "580.2", {})
    build(repository, "cuda-with-driver-13-0", "13.0.88-1", {}, depends="nvidia-driver-580 (>= 580.2)")
    build(into / "installed", "nvidia-driver-580", "580.1", {})
    # A source of other packages, whose driver nothing pins out.
    build(into / "other", "nvidia-driver-580", "580.3", {})
    for folder in (into / "other", repository):
        index(folder)
    key = sign(repository)
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        keyring = root / "usr/share/keyrings/cuda-archive-keyring.gpg"
        keyring.parent.mkdir(parents=True)
        keyring.write_bytes(key)
        (root / "DEBIAN").mkdir()
        (root / "DEBIAN/control").write_text(
            "Package: cuda-keyring\nVersion: 1\nArchitecture: all\nMaintainer: Test <test@example.org>\n"
            "Description: small stand-in\n",
            encoding="utf-8",
        )
        for path in (root, *root.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        package = repository / "cuda-keyring.deb"
        subprocess.run(["dpkg-deb", "--build", "--root-owner-group", root, package], check=True)
    (repository / "keyring.sha256").write_text(
        hashlib.sha256(package.read_bytes()).hexdigest(), encoding="utf-8"
    )


if __name__ == "__main__":
    os.umask(0o022)
    main(Path(sys.argv[1]))
