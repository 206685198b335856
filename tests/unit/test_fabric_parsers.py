"""Every parser against real output, most of it published by others (tests/fixtures/fabric/SOURCES.yml)."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from blackwell.fabric import pci, smi, system

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures" / "fabric"


def text(name: str) -> str:
    return (FIXTURES / name).read_text(encoding="utf-8")


def test_every_fixture_says_where_it_is_from() -> None:
    sources = yaml.safe_load(text("SOURCES.yml"))
    assert set(sources) == {path.name for path in FIXTURES.iterdir()} - {"SOURCES.yml"}
    for name, about in sources.items():
        assert about["kind"] in ("published", "recorded", "constructed"), name
        assert about["kind"] != "published" or about["address"].startswith("https://"), name


# --- nvidia-smi -q ---


def test_a_server_edition_card() -> None:
    query = smi.parse_query(text("rtx-pro-6000-server-query.txt"))
    assert query.driver == "580.105.06"
    (gpu,) = query.gpus
    assert gpu.name == "NVIDIA RTX PRO 6000 Blackwell Server Edition"
    assert gpu.bus_id == "00000001:c8:00.0"
    assert (gpu.memory_mib, gpu.memory_used_mib, gpu.bar1_mib) == (97887, 5952, 131072)


def test_what_the_output_leaves_out_is_not_known() -> None:
    (gpu,) = smi.parse_query(text("rtx-pro-6000-server-query.txt")).gpus
    assert gpu.power_limit_w is None
    assert gpu.link_width is None
    assert gpu.persistence == ""
    assert gpu.processes == ()


def test_a_mig_slice_is_not_taken_for_the_card() -> None:
    (gpu,) = smi.parse_query(text("rtx-pro-6000-server-mig-query.txt")).gpus
    assert gpu.mig == "Enabled"
    assert gpu.memory_mib == 97887


def test_clock_reasons_of_an_idle_server_edition_card() -> None:
    (gpu,) = smi.parse_query(text("rtx-pro-6000-server-performance.txt")).gpus
    assert gpu.performance_state == "P8"
    assert gpu.slowdowns == ()


def test_a_card_with_half_its_lanes_and_an_idle_link() -> None:
    (gpu,) = smi.parse_query(text("rtx-5090-query.txt")).gpus
    assert (gpu.link_width, gpu.link_width_max) == (8, 16)
    assert (gpu.link_gen, gpu.link_gen_max, gpu.link_gen_device, gpu.link_gen_host) == (1, 5, 5, 5)
    assert gpu.addressing == "HMM"
    assert gpu.slowdowns == ("SW Power Cap",)
    assert (gpu.power_limit_w, gpu.power_default_w, gpu.power_max_w) == (575, 575, 575)
    assert (gpu.ecc, gpu.ecc_uncorrected, gpu.remap_pending) == ("N/A", None, "")


def test_two_cards_of_a_host_with_ecc() -> None:
    query = smi.parse_query(text("h200-x2-query.txt"))
    assert [gpu.index for gpu in query.gpus] == [0, 1]
    assert [gpu.bus_id for gpu in query.gpus] == ["00000000:00:06.0", "00000000:00:07.0"]
    gpu = query.gpus[0]
    assert (gpu.ecc, gpu.ecc_uncorrected) == ("Enabled", 0)
    assert (gpu.remap_pending, gpu.remap_failed) == ("No", "No")
    assert (gpu.persistence, gpu.compute_mode, gpu.mig, gpu.recovery) == (
        "Enabled",
        "Default",
        "Disabled",
        "None",
    )
    assert (gpu.sm_clock_max_mhz, gpu.memory_clock_max_mhz) == (1980, 3201)
    assert gpu.link_gen_host is None, "the driver says N/A in a virtual machine"


def test_no_card_at_all() -> None:
    assert smi.parse_query("No devices were found\n").gpus == ()


def test_processes_are_read_one_by_one() -> None:
    (gpu,) = smi.parse_query(
        "GPU 00000000:05:00.0\n"
        "    Processes\n"
        "        GPU instance ID                   : N/A\n"
        "        Process ID                        : 126233\n"
        "            Type                          : C\n"
        "            Name                          : /opt/anaconda3/envs/torch-env2/bin/python\n"
        "            Used GPU Memory               : 12949 MiB\n"
        "        GPU instance ID                   : N/A\n"
        "        Process ID                        : 7\n"
        "            Type                          : G\n"
        "            Name                          : /usr/lib/xorg/Xorg\n"
        "            Used GPU Memory               : N/A\n"
    ).gpus
    assert gpu.processes == (
        smi.Process(126233, "/opt/anaconda3/envs/torch-env2/bin/python", 12949),
        smi.Process(7, "/usr/lib/xorg/Xorg", None),
    )


def test_csv_is_read_by_its_header() -> None:
    assert smi.parse_csv(text("h200-x2-compute-cap.csv")) == [
        {"index": "0", "compute_cap": "9.0"},
        {"index": "1", "compute_cap": "9.0"},
    ]


# --- nvidia-smi topo ---


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("rtx-pro-6000-x8-switches-topology.txt", {"NODE": 8, "PIX": 4, "SYS": 16}),
        ("rtx-pro-6000-x8-direct-topology.txt", {"NODE": 12, "SYS": 16}),
        ("rtx-pro-6000-x8-flat-topology.txt", {"NODE": 16, "PIX": 12}),
        ("rtx-5090-x2-topology.txt", {"PHB": 1}),
        ("rtx-4090-x5-topology.txt", {"NODE": 4, "PHB": 2, "SYS": 4}),
        ("h200-x2-topology.txt", {"NV18": 1}),
    ],
)
def test_topologies(name: str, kinds: dict[str, int]) -> None:
    assert smi.parse_matrix(text(name)).kinds == kinds


def test_numa_nodes_stand_in_the_right_column() -> None:
    assert smi.parse_matrix(text("rtx-4090-x5-topology.txt")).numa == ("1", "0", "0", "0", "0")
    assert smi.parse_matrix(text("h200-x2-topology.txt")).numa == ("0", "0")


def test_network_cards_are_left_out_of_the_matrix() -> None:
    matrix = smi.parse_matrix(
        "\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
        "GPU0\t X \tPIX\tNODE\t0-15\t0\t\tN/A\n"
        "GPU1\tPIX\t X \tNODE\t0-15\t0\t\tN/A\n"
        "NIC0\tNODE\tNODE\t X \n"
    )
    assert matrix.cells == (("X", "PIX"), ("PIX", "X"))


def test_peers() -> None:
    assert smi.parse_matrix(text("h200-x2-peer-write.txt")).pairs("OK") == [(0, 1)]
    assert smi.parse_matrix(text("rtx-5090-x2-peer.txt")).pairs("GNS") == [(0, 1)]


# --- lspci, sysfs ---


def test_a_root_port_that_redirects() -> None:
    port = pci.parse_lspci(text("root-port-acs-on-lspci.txt"))["0000:00:02.0"]
    assert port.port == "Root Port"
    assert (port.speed, port.speed_max, port.width, port.width_max) == ("8GT/s", "8GT/s", 8, 8)
    assert sorted(port.acs or ()) == ["CmpltRedir", "ReqRedir", "SrcValid", "TransBlk", "UpstreamFwd"]
    assert port.redirects


def test_a_switch_port_that_does_not() -> None:
    port = pci.parse_lspci(text("switch-port-acs-off-lspci.txt"))["0000:05:01.0"]
    assert port.port == "Downstream Port"
    assert port.acs == frozenset()
    assert not port.redirects


def test_a_card() -> None:
    card = pci.parse_lspci(text("geforce-lspci.txt"))["0000:02:00.0"]
    assert (card.kind, card.port, card.aspm) == ("3D controller", "Endpoint", "Disabled")
    assert (card.speed, card.width, card.width_max) == ("8GT/s", 4, 4)
    assert card.acs is None


def test_power_saving_and_a_downgraded_link() -> None:
    card = pci.parse_lspci(
        "0001:c8:00.0 3D controller [0302]: NVIDIA Corporation GB202GL (rev a1)\n"
        "\tCapabilities: [60] Express (v2) Legacy Endpoint, MSI 00\n"
        "\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16, ASPM L1, Exit Latency L1 <4us\n"
        "\t\tLnkCtl:\tASPM L1 Enabled; RCB 64 bytes, Disabled- CommClk+\n"
        "\t\tLnkSta:\tSpeed 2.5GT/s (downgraded), Width x8 (downgraded)\n"
    )["0001:c8:00.0"]
    assert (card.kind, card.aspm) == ("3D controller", "L1 Enabled")
    assert (card.speed, card.speed_max, card.width, card.width_max) == ("2.5GT/s", "32GT/s", 8, 16)


def test_without_root_lspci_shows_no_capability() -> None:
    port = pci.parse_lspci("00:01.1 PCI bridge: AMD GPP Bridge\n\tCapabilities: <access denied>\n")[
        "0000:00:01.1"
    ]
    assert (port.acs, port.width, port.port) == (None, None, "")


@pytest.mark.parametrize(
    ("given", "full"),
    [("41:00.0", "0000:41:00.0"), ("00000001:C8:00.0", "0001:c8:00.0"), ("0000:05:00.0", "0000:05:00.0")],
)
def test_addresses_are_written_as_in_sysfs(given: str, full: str) -> None:
    assert pci.full_address(given) == full


def test_the_path_from_the_root_port_to_the_card() -> None:
    path = "/sys/devices/pci0000:10/0000:10:01.1/0000:11:00.0/0000:12:01.0/0000:13:00.0"
    assert pci.path_to(path) == ["0000:10:01.1", "0000:11:00.0", "0000:12:01.0", "0000:13:00.0"]


# --- the kernel and its log ---


def test_xids_of_these_cards() -> None:
    xids = system.parse_xids(text("rtx-pro-6000-xids-dmesg.txt"))
    assert [(xid.address, xid.code) for xid in xids] == [
        ("0000:01:00", 120),
        ("0000:01:00", 154),
        ("0000:01:00", 62),
        ("0000:01:00", 154),
        ("0000:01:00", 45),
    ]
    assert xids[-1].text == "pid=12542, name=VLLM::Worker, channel 0x00000002"


def test_a_timeout_of_the_firmware_counts_once() -> None:
    assert [xid.code for xid in system.parse_xids(text("llama-server-xid119-dmesg.txt"))] == [119]


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("NVRM: GPU 0000:81:00.0: GPU has fallen off the bus.", 79),
        ("[ 7.1] NVRM: Xid (PCI:0000:81:00 GPU-I:05): 45, pid=1234, name=python, Ch 00000008", 45),
        ("NVRM: Xid (0000:81:00): 13, Graphics Exception", 13),
        (
            "NVRM: Xid (PCI:0000:81:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot)",
            154,
        ),
        (
            "NVRM: GPU 0000:81:00.0: GPU has fallen off the bus.\nNVRM: GPU 0000:81:00.0: GPU has fallen off the bus.",
            79,
        ),
    ],
)
def test_an_error_of_a_card_is_read_as_drivers_write_it(line: str, code: int) -> None:
    assert [(xid.address, xid.code) for xid in system.parse_xids(line)] == [("0000:81:00", code)]


def test_a_card_that_was_gone_at_start_has_no_xid_and_counts_all_the_same() -> None:
    assert system.parse_xids(text("rtx-6000-ada-lost-dmesg.txt")) == [
        system.Xid("0000:b3:00", 79, "GPU has fallen off the bus")
    ]


def test_a_healthy_log_has_none() -> None:
    assert system.parse_xids(text("h200-x2-dmesg.txt")) == []


def test_the_driver_says_when_it_wants_the_open_module() -> None:
    assert system.needs_open_module(
        "NVRM: The NVIDIA GPU 0000:05:00.0 (PCI ID: 10de:2bb5)\n"
        "      installed in this system requires use of the NVIDIA open kernel modules.\n"
    )
    assert not system.needs_open_module(text("h200-x2-dmesg.txt"))


def test_module_and_library_of_a_half_done_upgrade() -> None:
    assert system.parse_module_version(text("driver-mismatch-module-version.txt")) == "580.173.02"
    assert not system.parse_module_open(text("driver-mismatch-module-version.txt"))
    assert system.parse_nvml_version(text("driver-mismatch-smi.txt")) == "580.178"


def test_the_open_module() -> None:
    assert system.parse_module_version(text("h200-x2-module-version.txt")) == "580.159.04"
    assert system.parse_module_open(text("h200-x2-module-version.txt"))


def test_parameters_of_the_module() -> None:
    params = system.parse_driver_params(text("h200-x2-module-params.txt"))
    assert params["RegistryDwords"] == ""
    assert params["EnableResizableBar"] == "0"
    assert system.parse_driver_params('RegistryDwords: "ForceP2P=0x11;RMForceP2PType=1;"')[
        "RegistryDwords"
    ] == ("ForceP2P=0x11;RMForceP2PType=1;")


def test_kernel_command_line_keeps_quoted_words_whole() -> None:
    assert system.parse_cmdline('BOOT_IMAGE=/vmlinuz root=/dev/sda1 dyndbg="file a.c +p" iommu=off\n') == [
        "BOOT_IMAGE=/vmlinuz",
        "root=/dev/sda1",
        'dyndbg="file a.c +p"',
        "iommu=off",
    ]


def test_listening_sockets() -> None:
    listeners = system.parse_listeners(
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
        "   0: 0100007F:7530 00000000:0000 0A 00000000:00000000 00:00000000 00000000   998        0 31337 1\n"
        "   1: 0100007F:7530 0100007F:C350 01 00000000:00000000 00:00000000 00000000   998        0 31338 1\n"
    )
    assert listeners == [system.Listener(30000, "31337", 998)]


@pytest.mark.parametrize(
    ("cgroup", "unit"),
    [
        ("0::/system.slice/system-sglang.slice/sglang@eagle3.service\n", "sglang@eagle3.service"),
        ("1:name=systemd:/system.slice/nginx.service\n0::/\n", "nginx.service"),
        ("0::/user.slice/user-0.slice/session-3.scope\n", "session-3.scope"),
        ("0::/\n", ""),
    ],
)
def test_the_unit_of_a_process(cgroup: str, unit: str) -> None:
    assert system.parse_unit(cgroup) == unit


APT = """
APT::Periodic::Update-Package-Lists "1";
APT::Periodic::Unattended-Upgrade "1";
Unattended-Upgrade "";
Unattended-Upgrade::Package-Blacklist "";
Unattended-Upgrade::Package-Blacklist:: "linux-image";
"""


@pytest.mark.parametrize(
    ("config", "held", "kept"),
    [
        ("", [], "unattended-upgrades is off"),
        (APT.replace('Unattended-Upgrade "1"', 'Unattended-Upgrade "0"'), [], "unattended-upgrades is off"),
        (APT, ["base-files"], ""),
        (APT, ["nvidia-driver-580-server-open"], "held: nvidia-driver-580-server-open"),
        (APT + 'Unattended-Upgrade::Package-Blacklist:: "nvidia-";\n', [], ""),
        (
            APT
            + 'Unattended-Upgrade::Package-Blacklist:: "nvidia-";\n'
            + 'Unattended-Upgrade::Package-Blacklist:: "libnvidia-";\n',
            [],
            "kept from unattended-upgrades",
        ),
    ],
)
def test_what_keeps_upgrades_from_the_driver(config: str, held: list[str], kept: str) -> None:
    assert system.upgrades_driver(system.parse_apt_config(config), held) == kept


def test_versions_compare_as_numbers() -> None:
    assert system.version_tuple("580.9") < system.version_tuple("580.10.1")
    assert system.newest(["6.8.0-9-generic", "6.8.0-134-generic"]) == "6.8.0-134-generic"


@pytest.mark.parametrize("name", [path.name for path in FIXTURES.glob("*topology.txt")])
def test_a_table_that_lacks_a_row_says_nothing(name: str) -> None:
    """Any row may be missing, and the others would then be taken for cards that they are not."""
    lines = (FIXTURES / name).read_text().splitlines()
    rows = [number for number, line in enumerate(lines) if line.startswith("GPU") and "X" in line.split()]
    assert rows
    for row in rows:
        assert smi.parse_matrix("\n".join(lines[:row] + lines[row + 1 :])).cells == ()
