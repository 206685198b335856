"""Whether installed packages are builds that belong together: one CUDA release, one FlashInfer, no stale kernels.

Versions alone do not tell. PyPI's sgl-kernel 0.3.21 and PyTorch's 0.3.21+cu130 both satisfy SGLang, and the wrong one
is found out when the server starts. So the libraries themselves are asked what they need.
"""

from __future__ import annotations

import ast
import email.parser
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from .elf import needed
from .lock import Lock, canonical
from .patching.versions import version_key

# CUDA's own libraries under the names of release 12; other libraries may be at a version 12 of their own.
_CUDA_12 = re.compile(r"lib(cu|nv)[A-Za-z0-9_-]*\.so\.12(\.|$)")

# SGLang 0.5.9 refuses a multimodal model on torch 2.9.1 with an older cuDNN, and Kimi-K2.5 is one.
_CUDNN_FOR_TORCH_2_9_1 = "9.15"


def misfits(site_packages: Path, lock: Lock) -> list[str]:
    """What does not belong together, one sentence each; nothing when all is well.

    Args:
        site_packages: where the lock is installed.
        lock: what it is; packages that it declares to be builds for CUDA 12 may be that.
    """
    packages = _packages(site_packages)
    versions = {name: version for name, (version, _) in packages.items()}
    found = [
        f"{name} {version} calls itself {versions.get(name, 'nothing')} in its metadata"
        for name, version in lock.versions.items()
        if versions.get(name) != version
    ]
    found += _below_minimum(site_packages, versions, lock)
    parts = {name: versions[name].split("+")[0] for name in versions if name.startswith("flashinfer-")}
    if len(set(parts.values())) > 1:
        found.append(
            "FlashInfer's parts are of different versions: " + ", ".join(f"{n} {v}" for n, v in parts.items())
        )
    if lock.engine == "cuda":
        found += _old_cudnn(versions)
        found += _wrong_cuda(site_packages, packages, lock)
    return found


def _packages(site_packages: Path) -> dict[str, tuple[str, Path]]:
    """Version by metadata, and the folder of the metadata, of each package."""
    found = {}
    for folder in sorted(site_packages.glob("*.dist-info")):
        try:
            text = (folder / "METADATA").read_text(encoding="utf-8", errors="replace")
        except OSError:
            text = ""
        metadata = email.parser.HeaderParser().parsestr(text)
        name = metadata["Name"] or folder.stem.rpartition("-")[0]
        found[canonical(name)] = (metadata["Version"] or "nothing", folder)
    return found


def _below_minimum(site_packages: Path, versions: Mapping[str, str], lock: Lock) -> Iterator[str]:
    """Packages below the minimum that SGLang compares with when it starts, as its source says."""
    source = site_packages / "sglang" / "srt" / "entrypoints" / "engine.py"
    if not source.is_file():
        return
    try:
        tree = ast.parse(source.read_bytes())
    except (SyntaxError, ValueError, RecursionError) as error:
        yield f"{source.relative_to(site_packages)} is not whole: {error}"
        return
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "assert_pkg_version":
            if not all(isinstance(a, ast.Constant) and isinstance(a.value, str) for a in call.args[:2]):
                yield f"SGLang {lock.sglang} has a minimum that cannot be read: {ast.unparse(call)}"
                continue
            name, minimum = (ast.literal_eval(argument) for argument in call.args[:2])
            name = canonical(name)
            if name in versions and version_key(versions[name]) < version_key(minimum):
                yield f"SGLang {lock.sglang} wants {name} from {minimum} on, and {versions[name]} is installed"
            elif name not in versions and name not in lock.allowed:
                yield f"SGLang {lock.sglang} wants {name} from {minimum} on, and it is not installed"


def _old_cudnn(versions: Mapping[str, str]) -> Iterator[str]:
    minimum, cudnn = _CUDNN_FOR_TORCH_2_9_1, versions.get("nvidia-cudnn-cu13", "0")
    if versions.get("torch", "").startswith("2.9.1") and version_key(cudnn) < version_key(minimum):
        yield f"torch 2.9.1 wants nvidia-cudnn-cu13 from {minimum} on, and {cudnn} is installed"


def _wrong_cuda(site_packages: Path, packages: Mapping[str, tuple[str, Path]], lock: Lock) -> Iterator[str]:
    """Libraries that ask the loader for CUDA 12."""
    for name, (_, metadata) in packages.items():
        if name in lock.cuda12:
            continue
        try:
            record = (metadata / "RECORD").read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            yield f"{name} has no record of its files: {error.strerror}"
            continue
        for line in record.splitlines():
            file = line.rsplit(",", 2)[0].strip('"')
            path = site_packages / file
            if ".so" not in path.name or not path.is_file():
                continue
            try:
                wrong = [library for library in needed(path) if _CUDA_12.match(library)]
            except ValueError:
                yield f"{name} is not whole: {file} is a library that is cut off or damaged"
                continue
            if wrong:
                yield f"{name} is a build for CUDA 12: {file} needs {', '.join(wrong)}"
