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


UUIDS = [f"GPU-{n:08x}-5ac1-4f0e-9d7b-2f6c81e0{n:04x}" for n in range(9)]
STRAY = "WARNING: infoROM is corrupted at gpu 0000:84:00.0"


@pytest.mark.parametrize(
    "said",
    [
        {"warning": STRAY},
        {"warning": STRAY, "rc": 14},
        {"warning": "Timeout, power 12, of 0000:84:00.0"},
        {"warning": "Treating as non-fatal"},
    ],
)
def test_a_line_beside_a_whole_report_is_no_value_and_no_failure(
    host: tuning.Host, tmp_path: Path, said: dict[str, Any]
) -> None:
    state = tmp_path / "gpus.json"
    state.write_text(json.dumps({"every": {"persistence": "Disabled"}, **said}))
    assert one(host, False, power_limit_w=600).fits
    assert one(host, False, persistence=True).found == "Disabled"
    assert one(host, True, persistence=True).found == "Enabled"
    assert one(host, True, power_limit_w=450).found == "450"


@pytest.mark.parametrize(
    "state",
    [
        {"fail": "Unable to determine the device handle for GPU0000:81:00.0: Unknown Error", "rc": 255},
        {"fail": "No devices were found", "rc": 6},
        {"fail": "No devices were found", "rc": 0},
        {"fail": "Failed to initialize NVML: Driver/library version mismatch", "rc": 18},
        {"warning": STRAY, "rc": 15},
    ],
)
def test_cards_that_do_not_tell_are_not_known_and_no_pass(
    host: tuning.Host, tmp_path: Path, state: dict[str, Any]
) -> None:
    (tmp_path / "gpus.json").write_text(json.dumps(state))
    for wanted in ({"persistence": True}, {"power_limit_w": 600}):
        setting = one(host, False, **wanted)
        assert not setting.fits
        assert setting.found.endswith("not known")


@pytest.mark.parametrize("value", ["[Unknown Error]", "[GPU requires reset]", "Unknown"])
def test_one_card_that_does_not_tell_is_seen(host: tuning.Host, tmp_path: Path, value: str) -> None:
    (tmp_path / "gpus.json").write_text(json.dumps({"cards": [{}, {"persistence": value}]}))
    assert one(host, False, persistence=True).found == f"Enabled {value}"
    assert not one(host, False, persistence=True).fits


def test_a_chosen_card_that_is_gone_is_not_known(host: tuning.Host, tmp_path: Path) -> None:
    (tmp_path / "gpus.json").write_text(json.dumps({"count": 7}))
    assert one(host, False, gpus=UUIDS[:8], persistence=True).found.endswith("Enabled not known")
    assert one(host, False, gpus=UUIDS[:7], persistence=True).fits


def test_only_the_chosen_cards_are_set_and_compared(host: tuning.Host, tmp_path: Path) -> None:
    display = {"name": "NVIDIA T400 4GB", "power": 31, "power_max": 31, "persistence": "Disabled"}
    server = {"persistence": "Disabled"}
    state = tmp_path / "gpus.json"
    state.write_text(json.dumps({"cards": [display, server, server]}))
    wanted = {"gpus": [UUIDS[1], UUIDS[2]], "persistence": True, "power_limit_w": 450}
    assert all(setting.fits for setting in tuning.settings_of(host, wanted, apply=True))
    cards = json.loads(state.read_text())["cards"]
    assert [(card["persistence"], card["power"]) for card in cards] == [("Disabled", 31)] + [
        ("Enabled", 450)
    ] * 2


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
