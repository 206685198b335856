"""What an operator would look at after the role, and after a reboot."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from testinfra.host import Host

SCENARIO = Path(__file__).resolve().parents[1]


def cards(host: Host, field: str) -> set[str]:
    out = host.check_output(f"nvidia-smi --query-gpu={field} --format=csv,noheader")
    return set(out.splitlines())


def test_the_cards_have_the_settings(host: Host) -> None:
    assert cards(host, "persistence_mode") == {"Enabled"}
    assert cards(host, "power.limit") == {"450.00 W"}


def test_a_reboot_brings_them_back(host: Host) -> None:
    """A restart of the unit does what it does at boot."""
    host.check_output("rm /var/lib/stand-in/gpus.json")
    host.check_output("nvidia-smi -pm 0")
    assert (cards(host, "persistence_mode"), cards(host, "power.limit")) == ({"Disabled"}, {"600.00 W"})
    assert host.service("sglang-host-tuning.service").is_enabled
    host.check_output("systemctl restart sglang-host-tuning.service")
    assert cards(host, "persistence_mode") == {"Enabled"}
    assert cards(host, "power.limit") == {"450.00 W"}


def test_drivers_get_their_parameters_at_boot(host: Host) -> None:
    shown = host.file("/etc/modprobe.d/sglang-host-tuning.conf").content_string.splitlines()[1:]
    assert shown == [
        'options nvidia_uvm uvm_disable_hmm="1"',
        'options nvidia NVreg_RegistryDwords="ForceP2P=0x11;GrdmaPciTopoCheckOverride=1;EnableResizableBar=1"',
    ]


def test_the_kernel_gets_what_others_do_not_give_it(host: Host) -> None:
    line = host.check_output(
        "sh -c '. /etc/default/grub; . /etc/default/grub.d/90-sglang-host-tuning.cfg;"
        ' echo "$GRUB_CMDLINE_LINUX_DEFAULT"\''
    )
    assert line.split() == ["quiet", "iommu=off"]
    assert host.file("/var/lib/stand-in/update-grub").content_string == "updated\n", "once, in four runs"


@pytest.fixture(scope="module")
def kept(host: Host) -> list[str]:
    """The packages that unattended-upgrades leaves alone, as apt itself reads its configuration."""
    shown = host.check_output("apt-config dump --format '%v%n' Unattended-Upgrade::Package-Blacklist")
    return [pattern for pattern in shown.splitlines() if pattern]


@pytest.mark.parametrize(
    "package",
    [
        "cuda-drivers-580",
        "libcuda1",
        "libnvidia-compute-580-server",
        "linux-modules-nvidia-580-server-open-6.8.0-79-generic",
        "linux-objects-nvidia-580-open-6.8.0-79-generic",
        "nvidia-dkms-580-open",
        "nvidia-driver-580-server-open",
        "nvidia-firmware-580-580.95.05",
        "nvidia-kernel-open-dkms",
        "xserver-xorg-video-nvidia-580",
        "libcudadebugger1",
        "libnvcuvid1",
        "libegl-nvidia0",
        "libgl1-nvidia-glvnd-glx",
        "firmware-nvidia-gsp",
        "libnvsdm",
        "nvlsm",
    ],
)
def test_unattended_upgrades_leave_the_driver_alone(kept: list[str], package: str) -> None:
    """unattended-upgrades matches its patterns at the start of a package's name."""
    assert any(re.match(pattern, package) for pattern in kept)


@pytest.mark.parametrize(
    "package",
    [
        "openssl",
        "libc6",
        "linux-image-generic",
        "linux-modules-6.8.0-79-generic",
        "libnvme1t64",
        "libnvjitlink-13-0",
    ],
)
def test_unattended_upgrades_take_everything_else(kept: list[str], package: str) -> None:
    assert not any(re.match(pattern, package) for pattern in kept)


def test_every_setting_is_shown_as_found_and_as_wanted(host: Host) -> None:
    """The machine under the container has no such parameter, and containers do not reboot."""
    compared = subprocess.run(
        [
            "ansible-playbook",
            "--inventory=inventory/molecule",
            "--limit=molecule-1",
            SCENARIO / "compare.yml",
        ],
        cwd=SCENARIO.parents[1],
        env={**os.environ, "ANSIBLE_FORCE_COLOR": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert compared.returncode == 2
    lines = [" ".join(line.split()) for line in compared.stdout.splitlines()]
    for line in (
        "ok persistence Enabled",
        "ok power_limit_w 450",
        "reboot kernel iommu not set (wanted: iommu=off)",
    ):
        assert line in lines, compared.stdout
    said = " ".join(compared.stdout.split())
    assert (
        "kernel iommu is not set, wanted is iommu=off (after a reboot). Run the role host_tuning, and reboot"
        in said
    )


def test_the_host_was_not_rebooted(host: Host) -> None:
    assert "iommu=off" not in host.file("/proc/cmdline").content_string.split()
