"""Which packages count as the driver: in the pin, in the trial of an installation and in unattended upgrades."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from jinja2 import Environment

ROOT = Path(__file__).resolve().parents[2]
TOOLKIT = (
    "cuda-cccl-13-0", "cuda-crt-13-0", "cuda-cudart-13-0", "cuda-cudart-dev-13-0", "cuda-driver-dev-13-0",
    "cuda-nvcc-13-0", "cuda-nvrtc-dev-13-0", "cuda-toolkit-13-0-config-common", "cuda-toolkit-13-config-common",
    "cuda-toolkit-config-common", "libcublas-dev-13-0", "libcurand-13-0", "libnvjitlink-13-0", "libnvptxcompiler-13-0",
    "libnvvm-13-0", "nsight-compute-2025.3.1", "nsight-systems-2025.3.2",
)  # fmt: skip
DRIVERS = (
    "cuda-drivers", "cuda-drivers-580", "firmware-nvidia-gsp", "libcuda1", "libcuda1-i386", "libcudadebugger1",
    "libegl-nvidia0", "libgl1-nvidia-glvnd-glx", "libglx-nvidia0", "libnvcuvid1", "libnvfbc1", "libnvidia-compute-580",
    "libnvoptix1", "libnvsdm", "libnvidia-ml1", "libxnvctrl0", "linux-modules-nvidia-580-open-6.8.0-79-generic",
    "nvidia-driver-580-open", "nvidia-kernel-open-dkms", "nvidia-persistenced", "nvidia-smi", "nvlsm",
    "xserver-xorg-video-nvidia", "cuda-compat-13-0",
)  # fmt: skip
OTHERS = ("gcc-12", "libc6-dev", "libnvme1", "libnvpair3linux", "linux-image-generic", "openssl", "python3")


def rendered() -> dict[str, Any]:
    """The variables of the role, as Ansible renders them for CUDA 13.0."""
    jinja: Any = Environment()
    jinja.filters |= {
        "split": lambda text, by: text.split(by),
        "unique": lambda items: list(dict.fromkeys(items)),
        "urlsplit": lambda url, part: "",
        "comment": lambda text: f"# {text}",
    }
    values = {
        "cuda_toolkit_version": "13.0",
        "cuda_toolkit_packages": ["cuda-nvcc-13-0"],
        "ansible_managed": "x",
    }
    given = yaml.safe_load((ROOT / "roles/cuda_toolkit/vars/main.yml").read_text(encoding="utf-8"))
    for name in ("__cuda_toolkit_suffix", "__cuda_toolkit_driver_patterns", "__cuda_toolkit_touching"):
        text = given[name]
        values[name] = jinja.from_string(text).render(values) if isinstance(text, str) else text
    allowed = given["__cuda_toolkit_allowed"].strip().removeprefix("{{").removesuffix("}}")
    values["__cuda_toolkit_allowed"] = jinja.compile_expression(allowed)(**values)
    values["preferences"] = jinja.from_string(
        (ROOT / "roles/cuda_toolkit/templates/preferences.j2").read_text(encoding="utf-8")
    ).render({**values, "cuda_toolkit_repository": ""})
    return values


@pytest.mark.parametrize("package", [*TOOLKIT, *OTHERS])
def test_a_trial_that_installs_the_toolkit_is_taken(package: str) -> None:
    line = f"Inst {package} (13.0.88-1 developer.download.nvidia.com [amd64])"
    assert not re.match(rendered()["__cuda_toolkit_touching"], line)


@pytest.mark.parametrize("package", DRIVERS)
def test_a_trial_that_touches_the_driver_is_refused(package: str) -> None:
    for line in (f"Inst {package} (580.3 Debian:12 [amd64])", f"Inst {package} [580.1] (580.3 x [amd64])"):
        assert re.match(rendered()["__cuda_toolkit_touching"], line)


@pytest.mark.parametrize("package", ["gcc-12", "nvidia-smi"])
def test_a_trial_that_removes_anything_is_refused(package: str) -> None:
    assert re.match(rendered()["__cuda_toolkit_touching"], f"Remv {package} [1]")


def test_unattended_upgrades_leave_every_driver_package_alone_and_no_other() -> None:
    patterns = yaml.safe_load((ROOT / "roles/host_tuning/vars/main.yml").read_text(encoding="utf-8"))[
        "__host_tuning_driver_packages"
    ]
    kept = {
        name for name in (*DRIVERS, *TOOLKIT, *OTHERS) if any(re.match(pattern, name) for pattern in patterns)
    }
    assert kept == set(DRIVERS)


def test_both_roles_know_the_same_driver_packages() -> None:
    ours = yaml.safe_load((ROOT / "roles/cuda_toolkit/vars/main.yml").read_text(encoding="utf-8"))
    theirs = yaml.safe_load((ROOT / "roles/host_tuning/vars/main.yml").read_text(encoding="utf-8"))
    plain = [
        pattern.replace("(?![^ ]*-[0-9]+-[0-9]+$)", "") for pattern in theirs["__host_tuning_driver_packages"]
    ]
    assert ours["__cuda_toolkit_driver_patterns"] == plain


@pytest.mark.skipif(not shutil.which("apt-cache"), reason="needs apt")
def test_apt_takes_the_toolkit_from_the_repository_and_nothing_else(tmp_path: Path) -> None:
    """With apt itself, below a folder of its own; a folder as a repository has an empty origin."""
    repository = tmp_path / "repository"
    repository.mkdir()
    (repository / "Packages").write_text(
        "".join(
            f"Package: {name}\nVersion: 1\nArchitecture: all\nMaintainer: x\nFilename: ./{name}.deb\nSize: 1\n"
            f"SHA256: {'0' * 64}\nDescription: x\n\n"
            for name in (*TOOLKIT, *DRIVERS, "a-name-that-nobody-knows")
        ),
        encoding="utf-8",
    )
    for folder in (
        "etc/apt/preferences.d",
        "etc/apt/apt.conf.d",
        "state/lists/partial",
        "cache/archives/partial",
    ):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "status").write_text("", encoding="utf-8")
    (tmp_path / "etc/apt/sources.list").write_text(
        f"deb [trusted=yes] file:{repository} ./\n", encoding="utf-8"
    )
    (tmp_path / "etc/apt/preferences.d/cuda-toolkit").write_text(
        rendered()["preferences"] + "\n", encoding="utf-8"
    )
    options = [
        f"-oDir::Etc={tmp_path}/etc/apt", f"-oDir::State={tmp_path}/state", f"-oDir::Cache={tmp_path}/cache",
        f"-oDir::State::status={tmp_path}/status", "-oAPT::Sandbox::User=root", "-oAPT::Architecture=amd64",
    ]  # fmt: skip
    subprocess.run(["apt-get", *options, "update"], check=True, capture_output=True, timeout=60)
    told = subprocess.run(
        ["apt-cache", *options, "policy", *TOOLKIT, *DRIVERS, "a-name-that-nobody-knows"],
        check=True, capture_output=True, text=True, timeout=60, env={"LC_ALL": "C", "PATH": "/usr/bin:/bin"},
    ).stdout  # fmt: skip
    candidates = dict(re.findall(r"^(\S+):\n  Installed: \(none\)\n  Candidate: (.+)$", told, re.MULTILINE))
    assert {name for name, version in candidates.items() if version == "1"} == set(TOOLKIT)
    assert {name for name, version in candidates.items() if version == "(none)"} >= set(DRIVERS)
