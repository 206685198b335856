"""Which cards of a host are used and judged, and what is made of output of the driver that is odd but legal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from blackwell.fabric import choice, collect, gpu_rules, report, smi, system

from tests.unit.test_fabric_rules import (
    FIXTURES,
    GIB,
    TESTS,
    WANTED,
    cards,
    gpus,
    judge,
    make_good_host,
    program,
    read,
    read_good,
    said,
    write,
)

good_host = pytest.fixture(scope="module", name="good_host")(make_good_host)
good = pytest.fixture(scope="module", name="good")(read_good)

PRO = WANTED.gpu_models[0]
MAX_Q = "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition"
DISPLAY = "NVIDIA T400 4GB"
INFOROM = "WARNING: infoROM is corrupted at gpu 0000:84:00.0"


def host_with(good_host: collect.Host, folder: Path, **state: Any) -> collect.Host:
    """The good host with what its nvidia-smi says changed."""
    file = folder / "gpus.json"
    file.write_text(json.dumps(state))
    host = collect.Host(good_host.root, good_host.environment["PATH"])
    host.environment["STAND_IN_GPUS"] = str(file)
    return host


def settled(facts: collect.Facts) -> collect.Facts:
    """With the room of a good host: that of this machine is its own."""
    space = collect.Space("/opt/sglang", "/", 200 * GIB)
    return replace(facts, spaces={"/opt/sglang": space}, shm_bytes=755 * GIB, shm_free_bytes=755 * GIB)


def display(**changes: Any) -> dict[str, Any]:
    """A small card of another model, on which everything would be refused that a server needs."""
    return {
        "name": DISPLAY,
        "bus": "00000000:01:00.0",
        "memory": 4096,
        "compute_cap": "7.5",
        "power": 30,
        "power_default": 31,
        "width": "4x",
        "bar1": 256,
        "recovery": "Reset",
        "processes": [{"pid": 77, "name": "/usr/lib/xorg/Xorg", "memory": 900}],
        **changes,
    }


# --- which cards ---


@pytest.mark.parametrize("place", [0, 4, 8])
def test_a_display_card_is_noted_and_not_judged(
    good_host: collect.Host,
    good: collect.Facts,
    tmp_path: Path,
    place: int,
) -> None:
    every: list[dict[str, Any]] = [
        {"bus": cards(good).gpus[n].bus_id, "uuid": cards(good).gpus[n].uuid} for n in range(8)
    ]
    every.insert(place, display())
    facts = settled(read(host_with(good_host, tmp_path, cards=every)))
    facts.xids = [system.Xid("0000:01:00", 79, "fallen off the bus")]
    checks = judge(facts)
    assert said(checks) == {}
    (count,) = [check.found for check in checks if check.id == "gpu_count"]
    assert count == f"8, beside 1x {DISPLAY}, which the server does not use"
    chosen = choice.chosen(facts, WANTED)
    assert [gpu.index for gpu in chosen] == [n for n in range(9) if n != place]
    narrowed = choice.narrow(facts, choice.choose(cards(facts).gpus, WANTED))
    parts = report.fingerprint(narrowed, "cuda")["parts"]
    assert parts["gpus"] == report.fingerprint(good, "cuda")["parts"]["gpus"]
    assert parts["peer_write"] == report.fingerprint(good, "cuda")["parts"]["peer_write"]


def test_a_host_whose_cards_are_all_used_keeps_its_fingerprint(good: collect.Facts) -> None:
    assert choice.narrow(good, choice.choose(cards(good).gpus, WANTED)) is good


def test_named_cards_are_used_in_their_order(good: collect.Facts) -> None:
    uuids = [cards(good).gpus[n].uuid for n in (5, 2)]
    wanted = replace(WANTED, gpus=[uuids[0].upper().replace("GPU-", "GPU-"), uuids[1]], gpu_count=2)
    assert [gpu.index for gpu in choice.chosen(good, wanted)] == [5, 2]
    assert {check.id for check in judge(good, wanted) if check.status == "fail"} == set()


def test_a_named_card_that_is_not_there_is_refused_with_those_that_are(good: collect.Facts) -> None:
    uuids = [gpu.uuid for gpu in cards(good).gpus]
    wanted = replace(WANTED, gpus=[*uuids[:7], "GPU-deadbeef-0000-0000-0000-000000000000"])
    (count,) = [check for check in judge(good, wanted) if check.id == "gpu_count"]
    assert count.status == "fail"
    assert "there is no GPU-deadbeef" in count.found
    assert f"{uuids[7]} ({PRO})" in count.found
    assert "eagle3_server_gpus" in count.expected + count.remedy
    assert choice.chosen(good, wanted) == []


@pytest.mark.parametrize(
    ("models", "count", "chosen"),
    [
        ([PRO] * 8, 8, list(range(8))),
        ([PRO] * 8 + [MAX_Q], 8, list(range(8))),
        ([MAX_Q] + [PRO] * 8, 8, list(range(1, 9))),
        ([DISPLAY] + [MAX_Q] * 4 + [PRO] * 4, 8, list(range(1, 9))),
        ([PRO] * 7 + [MAX_Q], 8, list(range(8))),
        ([PRO] * 8, 4, [0, 1, 2, 3]),
        ([PRO] * 4 + [MAX_Q] * 4, 4, []),
        ([PRO] * 6 + [MAX_Q] * 6, 8, []),
        ([PRO] * 7 + [DISPLAY], 8, []),
        ([], 8, []),
    ],
)
def test_cards_are_chosen_by_model(
    good: collect.Facts,
    models: list[str],
    count: int,
    chosen: list[int],
) -> None:
    template = cards(good).gpus[0]
    made = tuple(
        replace(template, index=n, name=name, uuid=f"GPU-{n}", bus_id=f"00000000:{n:02x}:00.0")
        for n, name in enumerate(models)
    )
    facts = replace(good, query=replace(cards(good), gpus=made), compute_capability=["12.0"] * len(made))
    wanted = replace(WANTED, gpu_models=[PRO, MAX_Q], gpu_count=count)
    assert [gpu.index for gpu in choice.chosen(facts, wanted)] == chosen
    refused = {check.id for check in judge(facts, wanted) if check.status == "fail"}
    assert ("gpu_count" in refused) is (not chosen)


# --- odd output ---


def test_a_card_that_asks_for_a_reset_is_spoken_of_once(
    good_host: collect.Host,
    tmp_path: Path,
) -> None:
    facts = settled(read(good_host))
    text = (FIXTURES / "gpu-requires-reset-query.txt").read_text(encoding="utf-8")
    (broken,) = smi.parse_query(text).gpus
    whole = cards(facts).gpus[5]
    query = replace(
        cards(facts), gpus=(*cards(facts).gpus[:5], replace(broken, index=5), *cards(facts).gpus[6:])
    )
    capability = ["12.0"] * 5 + ["[GPU requires reset]"] + ["12.0"] * 2
    found = said(judge(replace(facts, query=query, compute_capability=capability)))
    assert list(found) == ["recovery"]
    assert "the driver asks for 'Reset' on GPU 5" in found["recovery"]
    assert whole.uuid


@pytest.mark.parametrize(
    "value",
    [
        "[N/A]",
        "N/A",
        "[Unknown Error]",
        "ERR!",
        "[Not Supported]",
        "Requested functionality has been deprecated",
    ],
)
def test_a_driver_that_does_not_say_whether_a_card_needs_help_asks_for_nothing(
    good: collect.Facts,
    value: str,
) -> None:
    assert said(judge(gpus(good, recovery=value))) == {}


@pytest.mark.parametrize("value", ["Reset", "GPU Reset", "Node Reboot", "Drain P2P", "Drain and Reset"])
def test_what_a_driver_can_ask_for(good: collect.Facts, value: str) -> None:
    assert list(said(judge(gpus(good, recovery=value)))) == ["recovery"]


@pytest.mark.parametrize(
    "field",
    [
        "memory_mib",
        "bar1_mib",
        "power_limit_w",
        "power_default_w",
        "link_width",
        "link_width_max",
        "link_gen",
        "link_gen_max",
        "link_gen_device",
        "link_gen_host",
        "ecc_uncorrected",
        "memory_used_mib",
        "sm_clock_max_mhz",
    ],
)
@pytest.mark.parametrize("state", ["P0", "P8"])
def test_a_figure_that_is_not_known_is_not_0(
    good: collect.Facts,
    field: str,
    state: str,
) -> None:
    full_speed = gpus(good, performance_state=state, link_gen=5.0)
    found = judge(gpus(full_speed, **{field: None}))
    assert not any(check.status == "fail" for check in found)
    assert set(said(found)) <= {"gpu_memory"}
    assert not any(" x0 " in check.found or "gen0" in check.found for check in found)


@pytest.mark.parametrize(
    ("capability", "severity"),
    [
        (["12.0"] * 7 + ["[N/A]"], "warn"),
        (["12.0"] * 7 + [""], "warn"),
        (["12.0"] * 7 + ["9.0"], "fail"),
        (["[N/A]"] * 8, "fail"),
        ([], "fail"),
    ],
)
def test_a_compute_capability_that_is_not_known_is_no_pass(
    good: collect.Facts, capability: list[str], severity: str
) -> None:
    found = said(judge(replace(good, compute_capability=capability)))
    assert list(found) == ["compute_capability"]
    assert found["compute_capability"].startswith(severity)
    assert "[" not in found["compute_capability"]


@pytest.mark.parametrize("rc", [0, 14])
def test_a_warning_beside_a_whole_report_stays_a_warning(
    good_host: collect.Host,
    tmp_path: Path,
    rc: int,
) -> None:
    facts = settled(read(host_with(good_host, tmp_path, warning=INFOROM, rc=rc)))
    assert said(judge(facts)) == {
        "driver_warnings": f"warn: Warnings of the driver: found {INFOROM}, expected none. Look at nvidia-smi -q of "
        "the card that it names: with a damaged infoROM it works, and its maker may replace it."
    }
    assert facts.compute_capability == ["12.0"] * 8


@pytest.mark.parametrize("rc", [1, 6, 9, 10, 15, 18, 255])
def test_a_failure_is_told_in_a_few_words_however_long_the_report(
    good_host: collect.Host,
    tmp_path: Path,
    rc: int,
) -> None:
    facts = settled(read(host_with(good_host, tmp_path, warning="Unable to determine the handle", rc=rc)))
    message = said(judge(facts))["driver"]
    assert "Unable to determine the handle" in message
    assert len(message) < 700


@pytest.mark.parametrize(
    "text",
    [
        "index, compute_cap\n0, 12.0\n1, 12.0\n" + INFOROM,
        INFOROM + "\nindex, compute_cap\n0, 12.0\n1, 12.0\n",
        "index, compute_cap\r\n0, 12.0\r\n" + INFOROM + "\r\n1, 12.0\r\n",
        "\0index, compute_cap\n0, 12.0\nWARNING: one, two\n1, 12.0\n" + INFOROM + "\n2",
        "index, compute_cap\n0, 12.0\n1, 12.0\ngpu 3, infoROM is corrupted\n" + INFOROM,
    ],
)
def test_lines_that_are_no_row_are_told_apart(text: str) -> None:
    assert smi.parse_csv(text) == [
        {"index": "0", "compute_cap": "12.0"},
        {"index": "1", "compute_cap": "12.0"},
    ]
    assert INFOROM in smi.stray_lines(text)


@pytest.mark.parametrize("pid", ["N/A", "[N/A]", "[Insufficient Permissions]", "", "-1", "9" * 40])
def test_a_process_without_a_number_is_nobody_s(good: collect.Facts, pid: str) -> None:
    (process,) = smi._processes(
        [f"        Process ID     : {pid}", "            Name       : [Insufficient Permissions]"]
    )
    assert process.pid is None
    found = said(judge(gpus(good, processes=(process,))))
    assert list(found) == ["gpu_processes"]
    assert found["gpu_processes"].startswith("warn")
    full = said(judge(gpus(good, processes=(process,), memory_used_mib=91000.0)))
    assert full["gpu_processes"].startswith("fail"), "memory that nobody seems to hold is not free"


# --- libraries ---


def library_host(root: Path, ldconfig: str = "") -> collect.Host:
    commands = root / "commands"
    commands.mkdir(exist_ok=True)
    if ldconfig:
        program(commands, "ldconfig", ldconfig)
    return collect.Host(root, f"{commands}:/usr/bin:/bin")


def test_the_library_that_the_loader_takes_counts(tmp_path: Path) -> None:
    folder = "usr/lib/x86_64-linux-gnu"
    write(
        tmp_path,
        {f"{folder}/libnvidia-ml.so.580.95.05": "", f"{folder}/libnvidia-ml.so.590.48.01": ""},
    )
    link = tmp_path / folder / "libnvidia-ml.so.1"
    link.symlink_to("libnvidia-ml.so.580.95.05")
    taken = ("580.95.05", [f"/{folder}/libnvidia-ml.so.590.48.01"])
    assert collect._library(library_host(tmp_path), "libnvidia-ml.so.1") == taken
    cache = f"\tlibnvidia-ml.so.1 (libc6,x86-64) => /{folder}/libnvidia-ml.so.1\n"
    assert collect._library(library_host(tmp_path, cache), "libnvidia-ml.so.1") == taken
    # An entry of the cache goes before the usual folders, as with the loader; of 32 bits none counts.
    write(tmp_path, {"opt/nvidia/libnvidia-ml.so.570.1.02": ""})
    (tmp_path / "opt/nvidia/libnvidia-ml.so.1").symlink_to("libnvidia-ml.so.570.1.02")
    cache = (
        "2 libs found in cache\n\tlibnvidia-ml.so.1 (libc6) => /usr/lib/i386-linux-gnu/libnvidia-ml.so.1\n"
        "\tlibnvidia-ml.so.1 (libc6,x86-64) => /opt/nvidia/libnvidia-ml.so.1\n" + cache
    )
    assert collect._library(library_host(tmp_path, cache), "libnvidia-ml.so.1")[0] == "570.1.02"


def test_files_that_no_link_leads_to_are_no_library(tmp_path: Path) -> None:
    write(tmp_path, {"usr/lib64/libcuda.so.590.48.01": ""})
    assert collect._library(library_host(tmp_path), "libcuda.so.1") == ("", [])


def test_a_library_of_cuda_that_does_not_fit_the_module_is_refused(good: collect.Facts) -> None:
    found = said(judge(replace(good, cuda_library_version="590.48.01")))
    assert found["driver_mismatch"].startswith("fail: NVIDIA driver: found module 580.95.05 is loaded")
    assert "590.48.01" in found["driver_mismatch"]


def test_every_gpu_has_a_uuid_where_the_driver_tells_it(good: collect.Facts) -> None:
    assert len({gpu.uuid for gpu in cards(good).gpus}) == 8
    (gpu,) = smi.parse_query((FIXTURES / "rtx-pro-6000-server-query.txt").read_text(encoding="utf-8")).gpus
    assert gpu.uuid == "GPU-0a5ba9ad-a575-72c7-d51d-3e726232cfd1"


def test_the_stand_in_lists_its_cards_as_nvidia_smi_does() -> None:
    stand_in = TESTS / "stand-ins" / "nvidia-smi"
    done = subprocess.run(
        [sys.executable, str(stand_in), "-L"],
        env={**os.environ, "STAND_IN_GPUS": "/nowhere"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[1] == f"GPU 1: {PRO} (UUID: GPU-00000001-5ac1-4f0e-9d7b-2f6c81e00001)"
    assert gpu_rules.shorten("x" * 500, "")[:3] == "xxx"


SILENT = ["GPU is lost", "Unknown Error", "GPU requires reset", "[N/A]", "ERR!"]


def in_trouble(text: str, place: int, word: str) -> str:
    """A report in which one card tells nothing but a word."""
    blocks = text.split("GPU 00000000:")
    lines = [
        line.rpartition(": ")[0] + f": {word}" if ": " in line else line for line in blocks[place].split("\n")
    ]
    return "GPU 00000000:".join([*blocks[:place], "\n".join(lines), *blocks[place + 1 :]])


@pytest.mark.parametrize("word", SILENT)
def test_a_card_that_tells_nothing_is_counted_as_one_in_trouble(good: collect.Facts, word: str) -> None:
    assert good.nvidia_smi
    query = smi.parse_query(in_trouble(good.nvidia_smi.out, 4, word))
    found = said(judge(replace(good, query=query)))
    assert "GPU 3 does not tell the model" in found["gpu_count"]
    assert word not in found["gpu_count"] and "nvidia-smi -q -i 3" in found["gpu_count"]
    assert choice.chosen(replace(good, query=query), WANTED) == []


@pytest.mark.parametrize("word", SILENT)
def test_a_ninth_card_that_tells_nothing_is_no_model_of_its_own(
    good_host: collect.Host, good: collect.Facts, tmp_path: Path, word: str
) -> None:
    facts = read(host_with(good_host, tmp_path, cards=[*({} for _ in range(8)), {"name": word}]))
    counted = next(check for check in gpu_rules.judge_gpus(settled(facts), WANTED) if check.id == "gpu_count")
    assert counted.status == report.OK and counted.found == "8; GPU 8 does not tell the model"


@pytest.mark.parametrize(
    ("out", "rc", "remedy"),
    [
        ("No devices were found", 6, "lspci -d 10de:"),
        ("No devices were found", 0, "lspci -d 10de:"),
        ("Unable to determine the device handle for GPU0000:81:00.0: Unknown Error", 255, "Power-cycle"),
        (
            "Unable to determine the device handle for GPU 0000:81:00.0: GPU is lost.  Reboot the system",
            15,
            "Power-cycle",
        ),
        ("Failed to initialize NVML: Insufficient Permissions", 4, "as root"),
        (
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.",
            9,
            "modprobe nvidia",
        ),
    ],
)
def test_a_driver_that_fails_is_told_what_mends_that_failure(
    good: collect.Facts, out: str, rc: int, remedy: str
) -> None:
    facts = replace(good, nvidia_smi=collect.Done(rc, out, ""), query=smi.read_report(rc, out, ""))
    (driver,) = [check for check in gpu_rules.judge_gpus(facts, WANTED) if check.status == report.FAIL]
    assert driver.id == "driver" and out[:60] in driver.found and remedy in driver.remedy


@pytest.mark.parametrize(
    ("line", "remedy", "not_that"),
    [
        (INFOROM, "its maker may replace it", "persistence"),
        (
            "Warning: persistence mode is disabled on device 00000000:01:00.0.",
            "host_tuning_persistence",
            "infoROM",
        ),
        (
            "Unable to determine the device handle for GPU0000:81:00.0: Unknown Error",
            "power-cycle",
            "infoROM",
        ),
        ("WARNING: something new", "dmesg", "infoROM"),
    ],
)
def test_a_warning_comes_with_what_is_to_be_done_about_it(
    good: collect.Facts, line: str, remedy: str, not_that: str
) -> None:
    assert good.query
    told = said(judge(replace(good, query=replace(good.query, warnings=(line,)))))["driver_warnings"]
    assert remedy in told and not_that not in told.replace(line, "")


@pytest.mark.parametrize("driver", ["", "N/A", "[N/A]"])
def test_a_version_that_nvidia_smi_does_not_tell_is_that_of_the_module(
    good: collect.Facts, driver: str
) -> None:
    assert good.query
    facts = replace(good, query=replace(good.query, driver=driver))
    assert "driver" not in said(judge(facts))
    old = said(judge(replace(facts, module_version="575.57.08", library_version="", cuda_library_version="")))
    assert "575.57.08" in old["driver"]


def test_a_host_without_cards_is_not_told_to_have_others(good: collect.Facts) -> None:
    assert good.query
    found = said(judge(replace(good, query=replace(good.query, gpus=()), compute_capability=[])))
    assert "gpu_count" in found and "compute_capability" not in found and "gpu_memory" not in found
