"""What an operator would look at after the role, and after a reboot."""

from __future__ import annotations

import pytest
from testinfra.host import Host


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


@pytest.mark.parametrize("package", ["nvidia-", "libnvidia-", "cuda-drivers"])
def test_unattended_upgrades_leave_the_driver_alone(host: Host, package: str) -> None:
    shown = host.check_output("apt-config dump Unattended-Upgrade::Package-Blacklist")
    assert f'"{package}";' in shown


def test_the_host_was_not_rebooted(host: Host) -> None:
    assert "iommu=off" not in host.file("/proc/cmdline").content_string.split()
