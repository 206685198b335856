"""Settings of a host: what is found, what is set, what waits for a reboot."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from blackwell import tuning

TESTS = Path(__file__).resolve().parents[1]
PORT, SWITCH, CARD = "0000:10:01.1", "0000:12:01.0", "0000:13:00.0"


def acs_space(control: int) -> bytes:
    """A configuration space with access control behind another capability, as on AMD's root ports."""
    space = bytearray(4096)
    space[0x100:0x104] = (0x2A0 << 20 | 1 << 16 | 0x000B).to_bytes(4, "little")
    space[0x2A0:0x2A4] = (1 << 16 | 0x000D).to_bytes(4, "little")
    space[0x2A6:0x2A8] = control.to_bytes(2, "little")
    return bytes(space)


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuning.Host:
    """A host with two processors' governors, a card behind a switch, and eight stand-in GPUs."""
    texts = {
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "schedutil\n",
        "sys/devices/system/cpu/cpu1/cpufreq/scaling_governor": "schedutil\n",
        "sys/module/pcie_aspm/parameters/policy": "[default] performance powersave powersupersave\n",
        "sys/module/nvidia_uvm/parameters/uvm_disable_hmm": "N\n",
        "sys/module/nvidia/version": "580.95.05\n",
        "proc/driver/nvidia/params": 'EnableResizableBar: 0\nRegistryDwords: ""\n',
        "proc/sys/kernel/numa_balancing": "1\n",
        "proc/cmdline": "BOOT_IMAGE=/vmlinuz root=/dev/sda1 ro iommu=pt\n",
    }
    device = f"sys/devices/pci0000:10/{PORT}/0000:11:00.0/{SWITCH}/{CARD}"
    texts |= {f"{device}/vendor": "0x10de\n", f"{device}/class": "0x030200\n"}
    for name, text in texts.items():
        path = tmp_path / "root" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    root = tmp_path / "root"
    bridge = root / device
    for name, control in ((SWITCH, 0x1D), ("0000:11:00.0", 0), (PORT, 0x1D)):
        bridge = bridge.parent
        assert bridge.name == name
        (bridge / "config").write_bytes(acs_space(control) if control else bytes(4096))
    link = root / f"sys/bus/pci/devices/{CARD}"
    link.parent.mkdir(parents=True)
    link.symlink_to(root / device)

    commands = tmp_path / "bin"
    commands.mkdir()
    (commands / "nvidia-smi").symlink_to(TESTS / "stand-ins" / "nvidia-smi")
    state = tmp_path / "gpus.json"
    state.write_text(json.dumps({"every": {"persistence": "Disabled"}}))
    monkeypatch.setenv("STAND_IN_GPUS", str(state))
    monkeypatch.setenv("PATH", f"{commands}:/usr/bin:/bin")
    return tuning.Host(str(root))


def one(host: tuning.Host, apply: bool, **wanted: Any) -> tuning.Setting:
    (setting,) = tuning.settings_of(host, wanted, apply=apply)
    return setting


CASES: list[tuple[str, Any, str, str]] = [
    ("persistence", True, "Disabled", "Enabled"),
    ("power_limit_w", 450, "600", "450"),
    ("governor", "performance", "schedutil", "performance"),
    ("disable_acs", True, f"{PORT} {SWITCH}", "off"),
    ("sysctl", {"kernel.numa_balancing": 0}, "1", "0"),
]


@pytest.mark.parametrize(("name", "wanted", "before", "after"), CASES, ids=[case[0] for case in CASES])
def test_what_differs_is_set_and_stays(
    host: tuning.Host, name: str, wanted: Any, before: str, after: str
) -> None:
    told = one(host, False, **{name: wanted})
    assert (told.found, told.wanted, told.fits) == (before, after, False)
    assert one(host, False, **{name: wanted}).found == before, "looking changes nothing"
    done = one(host, True, **{name: wanted})
    assert (done.found, done.fits, done.error) == (after, True, "")
    assert one(host, False, **{name: wanted}).fits


def test_the_kernel_shows_the_chosen_policy_in_brackets(host: tuning.Host) -> None:
    assert one(host, False, aspm="performance").found == "default"
    assert one(host, False, aspm="default").fits


def test_only_the_redirecting_bits_are_cleared(host: tuning.Host) -> None:
    one(host, True, disable_acs=True)
    (port,) = host.glob(f"/sys/devices/pci0000:10/{PORT}/config")
    assert port.read_bytes() == acs_space(0x11), "source validation and upstream forwarding stay"


def test_what_the_host_does_not_have_is_as_it_should_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    wanted = {"persistence": True, "power_limit_w": 450, "governor": "performance", "aspm": "performance"}
    settings = tuning.settings_of(tuning.Host(str(tmp_path)), {**wanted, "disable_acs": True}, apply=True)
    assert [(item.found, item.fits, item.error) for item in settings] == [("", True, "")] * 5
    assert tuning.table(settings).splitlines()[0] == "ok       persistence    not there"


def test_nothing_wanted_is_nothing_done(host: tuning.Host) -> None:
    empty = {
        "persistence": False,
        "power_limit_w": 0,
        "governor": "",
        "aspm": "",
        "disable_acs": False,
        "shm_gib": 0,
    }
    assert (
        tuning.settings_of(host, {**empty, "sysctl": {}, "modprobe": {}, "kernel_parameters": []}, apply=True)
        == []
    )


def test_a_limit_that_the_cards_do_not_take_is_an_error_in_their_words(host: tuning.Host) -> None:
    setting = one(host, True, power_limit_w=900)
    assert (setting.fits, setting.found) == (False, "600")
    assert setting.error == "Provided power limit 900.00 W is not a valid power limit"


def test_cards_that_differ_are_all_shown(host: tuning.Host, tmp_path: Path) -> None:
    (tmp_path / "gpus.json").write_text(json.dumps({"cards": [{"power": 450}, {"power": 600}]}))
    assert one(host, False, power_limit_w=450).found == "450 600"


# --- what only a reboot changes ---


def test_a_parameter_of_a_loaded_driver_waits_for_a_reboot(host: tuning.Host) -> None:
    setting = one(host, True, modprobe={"nvidia_uvm": {"uvm_disable_hmm": "1"}})
    assert (setting.found, setting.fits, setting.reboot) == ("N", False, True)
    host.at("/sys/module/nvidia_uvm/parameters/uvm_disable_hmm").write_text("Y\n")
    assert one(host, False, modprobe={"nvidia_uvm": {"uvm_disable_hmm": "1"}}).fits


def test_registry_keys_are_compared_as_the_driver_keeps_them(host: tuning.Host) -> None:
    keys = "ForceP2P=0x11;GrdmaPciTopoCheckOverride=1"
    setting = one(host, False, modprobe={"nvidia": {"NVreg_RegistryDwords": keys}})
    assert (setting.found, setting.reboot) == ("not set", True)
    host.at("/proc/driver/nvidia/params").write_text(f'RegistryDwords: "{keys};"\n')
    assert one(host, False, modprobe={"nvidia": {"NVreg_RegistryDwords": keys}}).fits


def test_a_driver_that_is_not_loaded_gets_its_parameters_later(host: tuning.Host) -> None:
    assert one(host, False, modprobe={"nvidia_modeset": {"hdmi_deepcolor": "0"}}).fits


def test_words_of_the_running_kernel(host: tuning.Host) -> None:
    setting = one(host, False, kernel_parameters=["iommu=off"])
    assert (setting.name, setting.found, setting.wanted, setting.reboot) == (
        "kernel iommu",
        "iommu=pt",
        "iommu=off",
        True,
    )
    assert one(host, False, kernel_parameters=["ro"]).fits
    assert one(host, False, kernel_parameters=["pcie_aspm=off"]).found == "not set"


# --- the kernel command line in GRUB's files ---

GRUB = """
GRUB_DEFAULT=0
GRUB_CMDLINE_LINUX_DEFAULT="quiet splash  iommu=off iommu=off"
GRUB_CMDLINE_LINUX='dyndbg=\\"file a.c +p\\" crashkernel=1G-:512M'
"""


def test_words_are_found_with_the_file_that_gives_them() -> None:
    words = tuning.grub_words(
        {"/etc/default/grub": GRUB, "/etc/default/grub.d/50-cloud.cfg": 'GRUB_CMDLINE_LINUX=""'}
    )
    assert words == dict.fromkeys(
        ["quiet", "splash", "iommu=off", 'dyndbg="file a.c +p"', "crashkernel=1G-:512M"], "/etc/default/grub"
    )


def test_a_drop_in_adds_to_what_is_there_and_only_what_is_missing() -> None:
    words = tuning.grub_words({"/etc/default/grub": GRUB})
    assert tuning.grub_drop_in(words, ["iommu=off", "pcie_aspm=off"]).splitlines()[-1] == (
        'GRUB_CMDLINE_LINUX_DEFAULT="$GRUB_CMDLINE_LINUX_DEFAULT pcie_aspm=off"'
    )
    assert tuning.grub_drop_in(words, ["iommu=off", "quiet"]) == ""


@pytest.fixture
def grub(tmp_path: Path) -> Path:
    """Our file in a copy of /etc/default."""
    (tmp_path / "grub.d").mkdir()
    (tmp_path / "grub").write_text(GRUB)
    return tmp_path / "grub.d" / "90-sglang-host-tuning.cfg"


def test_the_module_writes_once_and_takes_back_to_the_byte(
    grub: Path, run_module: Callable[..., dict[str, Any]]
) -> None:
    wanted = {"parameters": ["pcie_aspm=off", "amd_iommu=off"], "path": str(grub)}
    assert run_module("kernel_command_line", wanted, check=True)["changed"]
    assert not grub.exists(), "check mode writes nothing"
    done = run_module("kernel_command_line", wanted)
    assert (done["changed"], done["given"]) == (True, ["pcie_aspm=off", "amd_iommu=off"])
    assert not run_module("kernel_command_line", wanted)["changed"]
    assert run_module("kernel_command_line", {**wanted, "parameters": []})["changed"]
    assert [path.name for path in grub.parent.iterdir()] == []
    assert (grub.parent.parent / "grub").read_text() == GRUB


def test_grub_itself_agrees(grub: Path, run_module: Callable[..., dict[str, Any]]) -> None:
    """The files are read as grub-mkconfig reads them: sourced, one after the other."""
    run_module("kernel_command_line", {"parameters": ["pcie_aspm=off"], "path": str(grub)})
    told = subprocess.run(
        ["sh", "-c", f'. {grub.parent.parent}/grub; . {grub}; echo "$GRUB_CMDLINE_LINUX_DEFAULT"'],
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.split() == ["quiet", "splash", "iommu=off", "iommu=off", "pcie_aspm=off"]


def test_a_file_of_others_that_says_otherwise_is_named(
    grub: Path, run_module: Callable[..., dict[str, Any]]
) -> None:
    told = run_module("kernel_command_line", {"parameters": ["iommu=pt"], "path": str(grub)})
    assert told["failed"]
    assert told["msg"] == (
        f"GRUB says otherwise: {grub.parent.parent}/grub has iommu=off, wanted is iommu=pt. Take it out there, or do "
        "not want it here."
    )


def test_a_host_without_grub_is_told_so(tmp_path: Path, run_module: Callable[..., dict[str, Any]]) -> None:
    path = str(tmp_path / "default/grub.d/90.cfg")
    assert not run_module("kernel_command_line", {"parameters": [], "path": path})["changed"]
    told = run_module("kernel_command_line", {"parameters": ["iommu=off"], "path": path})
    assert told["msg"].startswith(f"No GRUB: found no {tmp_path}/default/grub.")


def test_a_boot_loader_that_was_not_told_is_told_by_the_next_run(
    grub: Path, run_module: Callable[..., dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    update = tmp_path / "bin/update-grub"
    update.parent.mkdir()
    update.write_text("#!/bin/sh\necho 'syntax error in 40_custom' >&2; exit 1\n")
    update.chmod(0o755)
    monkeypatch.setenv("PATH", f"{update.parent}:/usr/bin:/bin")
    wanted = {"parameters": ["amd_iommu=off"], "path": str(grub)}
    assert run_module("kernel_command_line", wanted)["msg"] == (
        "update-grub fails: syntax error in 40_custom. The kernel's parameters are as they were. Mend GRUB's "
        "configuration, and run the playbook again."
    )
    assert not grub.exists()
    update.write_text(f"#!/bin/sh\necho told >> {tmp_path}/told\n")
    assert run_module("kernel_command_line", wanted)["changed"]
    assert (tmp_path / "told").read_text() == "told\n"


# --- the program that runs at boot ---


def test_the_copy_on_the_host_needs_nothing_of_this_project(tmp_path: Path, host: tuning.Host) -> None:
    program = tmp_path / "elsewhere" / "tuning.py"
    program.parent.mkdir()
    program.write_bytes(Path(tuning.__file__).read_bytes())
    wanted = tmp_path / "wanted.json"
    wanted.write_text(json.dumps({"persistence": True}))
    done = subprocess.run(
        [sys.executable, "-I", str(program), "apply", str(wanted)], capture_output=True, text=True, check=True
    )
    (setting,) = json.loads(done.stdout)
    assert (setting["found"], setting["fits"]) == ("Enabled", True)


def test_at_boot_a_setting_that_does_not_take_fails_the_unit(tmp_path: Path, host: tuning.Host) -> None:
    wanted = tmp_path / "wanted.json"
    wanted.write_text(json.dumps({"power_limit_w": 900}))
    done = subprocess.run(
        [sys.executable, tuning.__file__, "apply", str(wanted)], capture_output=True, check=False
    )
    assert done.returncode == 1


# --- the module ---


def test_the_module_says_what_it_would_do_and_then_does_it(
    host: tuning.Host, run_module: Callable[..., dict[str, Any]]
) -> None:
    wanted = {"wanted": {"persistence": True, "power_limit_w": 450}}
    told = run_module("host_settings", wanted, check=True)
    assert told["changed"]
    assert told["diff"] == {
        "before": "persistence: Disabled\npower_limit_w: 600\n",
        "after": "persistence: Enabled\npower_limit_w: 450\n",
    }
    assert run_module("host_settings", wanted)["changed"]
    again = run_module("host_settings", wanted)
    assert not again["changed"]
    assert again["table"] == "ok       persistence    Enabled\nok       power_limit_w  450"


def test_the_module_fails_with_what_stood_in_the_way(
    host: tuning.Host, run_module: Callable[..., dict[str, Any]]
) -> None:
    told = run_module("host_settings", {"wanted": {"power_limit_w": 900}})
    assert told["failed"]
    assert told["msg"] == (
        "The host does not take these settings: power_limit_w is 600, wanted is 900 (Provided power limit 900.00 W is "
        "not a valid power limit)."
    )
