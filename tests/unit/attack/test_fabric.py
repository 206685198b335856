"""Whatever the tools of a host print, preflight and the start of a server read it to the end.

A parser of a tool's output gives what it understood; it never fails, and makes no card of text that is none.
"""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path
from typing import Any

from blackwell.fabric import pci, smi, system
from hypothesis import given
from hypothesis import strategies as st

from .inputs import ODD_FIELDS, attack, hostile

ROOT = Path(__file__).resolve().parents[3]
FIXTURES = ROOT / "tests/fixtures/fabric"


def samples(*patterns: str) -> list[bytes]:
    """Real output, each file cut to what one example can be made of in no time."""
    files = sorted({path for pattern in patterns for path in FIXTURES.glob(pattern)})
    return [path.read_bytes()[:6000] for path in files]


def text(data: bytes) -> str:
    """As ``collect`` reads a command."""
    return data.decode("utf-8", errors="replace")


QUERIES = samples("*-query.txt", "driver-mismatch-smi.txt")
MATRICES = samples("*-topology.txt", "*-peer*.txt")
LSPCI = samples("*-lspci.txt")
LOGS = samples("*-dmesg.txt")
CSV = [
    b"index, compute_cap\n0, 12.0\n1, 12.0\nWARNING: infoROM is corrupted at gpu 0000:84:00.0\n",
    *samples("*.csv"),
]
CARDS = [
    b"0, GPU-1, NVIDIA A, 2\n1, GPU-2, NVIDIA A, [GPU requires reset]\n",
    b"2\n2\n[N/A]\nERR!\n",
    b"WARNING: infoROM is corrupted at gpu 0000:84:00.0\r\n0, GPU-1, NVIDIA A, 2 MiB\r\n",
]
OS_RELEASE = [
    b'PRETTY_NAME="Debian GNU/Linux 13 (trixie)"\nID=debian\nVERSION_ID="13"\n',
    b'NAME=\'x\nID_LIKE="ubuntu debian"\n',
]
LDCONFIG = [b"1 libs found\n\tlibcuda.so.1 (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/libcuda.so.1\n"]
PROC = [
    b"MemTotal:       1584930000 kB\nHugePages_Total:       0\n",
    b"  sl  local_address rem_address   st\n   0: 0100007F:7530 00000000:0000 0A 0:0 00:0 0  998  0 31337 1\n",
    b"0::/system.slice/system-sglang.slice/sglang@eagle3.service\n",
    b'BOOT_IMAGE=/vmlinuz root=/dev/sda1 dyndbg="file a.c +p" iommu=off\n',
    b"processor\t: 0\nmodel name\t: AMD EPYC\nphysical id\t: 0\n",
    b"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  R\n",
    b'RegistryDwords: ""\n',
]
POLICY = [
    b"python3.12:\n  Installed: (none)\n  Candidate: 3.12.3-1\n  Version table:\npython3.11:\n  Candidate: (none)\n"
]


def load_prepare() -> Any:
    spec = importlib.util.spec_from_file_location("prepare", ROOT / "roles/eagle3_server/files/prepare.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PREPARE = load_prepare()


@attack
@given(hostile(QUERIES))
def test_the_report_of_the_driver(data: bytes) -> None:
    query = smi.parse_query(text(data))
    for rc in (0, 14, 15):
        smi.read_report(rc, text(data), "")
    for index, gpu in enumerate(query.gpus):
        assert gpu.index == index
        for value in (gpu.memory_mib, gpu.memory_used_mib, gpu.power_limit_w, gpu.link_width):
            assert value is None or math.isfinite(value)


@attack
@given(hostile(CSV))
def test_a_table_of_the_driver(data: bytes) -> None:
    rows, strays = smi.parse_csv(text(data)), smi.stray_lines(text(data))
    assert len({tuple(row) for row in rows}) <= 1, "all rows have the columns of the header"
    assert all(line.strip() for line in strays)


@attack
@given(st.sampled_from(ODD_FIELDS), st.integers(0, 7))
def test_an_odd_field_in_a_row_leaves_the_other_rows(field: str, place: int) -> None:
    lines = [f"{n}, {field if n == place else '12.0'}" for n in range(8)]
    rows = smi.parse_csv("\n".join(["index, compute_cap", *lines]))
    assert {row["index"]: row["compute_cap"] for row in rows if row["index"] != str(place)} == {
        str(n): "12.0" for n in range(8) if n != place
    }


@attack
@given(hostile(MATRICES))
def test_a_matrix(data: bytes) -> None:
    matrix = smi.parse_matrix(text(data))
    assert all(len(row) == len(matrix.cells) for row in matrix.cells)
    size = len(matrix.cells)
    assert sum(matrix.kinds.values()) == size * (size - 1) // 2
    assert matrix.only(range(size)).cells == matrix.cells
    assert matrix.only([size]).cells == ()


@attack
@given(hostile(LSPCI))
def test_ports(data: bytes) -> None:
    for address, port in pci.parse_lspci(text(data)).items():
        assert address == port.address
        assert isinstance(port.redirects, bool)


@attack
@given(hostile(LOGS))
def test_a_log_of_the_kernel(data: bytes) -> None:
    assert all(xid.code >= 0 for xid in system.parse_xids(text(data)))
    system.needs_open_module(text(data))


@attack
@given(hostile([*OS_RELEASE, *LDCONFIG, *PROC, *POLICY]))
def test_small_files_and_tools(data: bytes) -> None:
    said = text(data)
    system.has_apt(system.parse_os_release(said))
    assert all(path.startswith("/") for path in system.parse_ldconfig(said).values())
    assert "" not in system.parse_apt_policy(said)
    assert all(value >= 0 for value in system.parse_meminfo(said).values())
    assert all(0 <= item.port < 2**16 for item in system.parse_listeners(said))
    assert system.parse_sockets(said) >= 1
    for parser in (
        system.parse_cpu_model,
        system.parse_cmdline,
        system.parse_module_version,
        system.parse_driver_params,
        system.parse_nvml_version,
        system.parse_unit,
        system.parse_apt_config,
        system.version_tuple,
    ):
        parser(said)


@attack
@given(hostile(CARDS), st.sampled_from(["", "0,1", "1", "GPU-1,GPU-2", "-1,,x", "9"]))
def test_the_cards_of_a_start(data: bytes, visible: str) -> None:
    lines = [line for line in map(str.strip, text(data).replace("\0", "").splitlines()) if line]
    cards, others = PREPARE.read_cards(lines)
    assert len(cards) + len(others) == len(lines)
    wanted = PREPARE.Wanted(2, visible, ("NVIDIA A",))
    chosen, reason = PREPARE.choose(cards, wanted)
    assert reason or len(chosen) == 2
    PREPARE.changed(chosen, wanted)
    for card in cards:
        assert card.used_mib is None or (card.used_mib >= 0 and math.isfinite(card.used_mib))
