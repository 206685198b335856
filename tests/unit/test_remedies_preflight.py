"""What preflight tells an operator to do can be done on the host that it judged, and mends what it was said of."""

from __future__ import annotations

import importlib.util
import os
import pwd
import re
from dataclasses import replace
from pathlib import Path

import pytest
from blackwell.fabric import collect, host_rules, report, system
from blackwell.fabric.collect import Facts, Owner, Python, Taken

from tests.unit.test_fabric_rules import (
    TESTS,
    WANTED,
    judge,
    lspci,
    make_good_host,
    program,
    read,
    read_good,
    said,
    write,
)

good_host = pytest.fixture(scope="module", name="good_host")(make_good_host)
good = pytest.fixture(scope="module", name="good")(read_good)

LOCKS = ["3.10", "3.11", "3.12"]
DISTRIBUTIONS = {
    "debian-11": ("Debian GNU/Linux 11 (bullseye)", "ID=debian\nVERSION_ID=11\n", "3.9"),
    "debian-12": ("Debian GNU/Linux 12 (bookworm)", "ID=debian\nVERSION_ID=12\n", "3.11"),
    "debian-13": ("Debian GNU/Linux 13 (trixie)", "ID=debian\nVERSION_ID=13\n", "3.13"),
    "ubuntu-22.04": ("Ubuntu 22.04.5 LTS", "ID=ubuntu\nID_LIKE=debian\nVERSION_ID=22.04\n", "3.10"),
    "ubuntu-24.04": ("Ubuntu 24.04.3 LTS", "ID=ubuntu\nID_LIKE=debian\nVERSION_ID=24.04\n", "3.12"),
    "ubuntu-25.10": ("Ubuntu 25.10", "ID=ubuntu\nID_LIKE=debian\nVERSION_ID=25.10\n", "3.13"),
    "linuxmint-22": ("Linux Mint 22", 'ID=linuxmint\nID_LIKE="ubuntu debian"\nVERSION_ID=22\n', "3.12"),
    "fedora-43": ("Fedora Linux 43", "ID=fedora\nVERSION_ID=43\n", "3.14"),
    "rocky-9.6": ("Rocky Linux 9.6", 'ID="rocky"\nID_LIKE="rhel centos fedora"\nVERSION_ID="9.6"\n', "3.9"),
}


def host_of(good: Facts, name: str, *, sources: tuple[str, ...] = ()) -> Facts:
    """A host of a distribution, with the Python that it has, seen through its package sources if it has apt."""
    pretty, release, own = DISTRIBUTIONS[name]
    return replace(
        good,
        distribution=name,
        distribution_name=pretty,
        apt=system.has_apt(system.parse_os_release(release)),
        pythons=sorted({own, *sources}, key=system.version_tuple),
        python=Python("/usr/bin/python3.12", "", "", "/usr/bin/python3.12 is not installed"),
    )


def python_remedy(facts: Facts, wanted: host_rules.Wanted) -> str:
    (check,) = [check for check in host_rules.judge_host(facts, wanted) if check.id == "python"]
    return check.remedy


@pytest.mark.parametrize("name", sorted(set(DISTRIBUTIONS) - {"ubuntu-24.04", "linuxmint-22"}))
@pytest.mark.parametrize("wanted_version", LOCKS)
def test_a_python_is_only_asked_for_where_it_can_be_had(good: Facts, name: str, wanted_version: str) -> None:
    facts = host_of(good, name)
    own = DISTRIBUTIONS[name][2]
    remedy = python_remedy(facts, replace(WANTED, python_version=wanted_version, pythons=LOCKS))
    asked = re.search(r"apt-get install python(\S+)", remedy)
    if asked:
        assert facts.apt and asked[1] == own, "no other Python is in this distribution"
    elif own in LOCKS and own != wanted_version:
        assert f"Set sglang_stack_python to '{own}'" in remedy
        mended = replace(facts, python=Python(f"/usr/bin/python{own}", f"{own}.1", "/x/Python.h", ""))
        assert python_remedy(mended, replace(WANTED, python_version=own, pythons=LOCKS)) == ""
    elif own not in LOCKS:
        assert "there is no lock for it" in remedy
        assert "3.10, 3.11, 3.12" in remedy
        assert "ubuntu-24.04 or ubuntu-22.04 or debian-12" in remedy


def test_debian_13_is_told_that_there_is_no_lock_for_its_python(good: Facts) -> None:
    remedy = python_remedy(host_of(good, "debian-13"), replace(WANTED, pythons=LOCKS))
    assert remedy == (
        "Debian GNU/Linux 13 (trixie) has Python 3.13, and there is no lock for it; there are locks for Python 3.10, "
        "3.11, 3.12. Use a host with ubuntu-24.04 or ubuntu-22.04 or debian-12, or make a lock for Python 3.13 "
        "(files/locks/README.md) and set sglang_stack_python to '3.13'"
    )


def test_a_package_source_beside_the_distribution_s_counts(good: Facts) -> None:
    facts = host_of(good, "debian-13", sources=("3.12",))
    assert python_remedy(facts, replace(WANTED, pythons=LOCKS)) == (
        "Run apt-get install python3.12 python3.12-dev"
    )


@pytest.mark.parametrize("name", sorted(DISTRIBUTIONS))
def test_no_command_of_another_distribution_is_printed(good: Facts, name: str) -> None:
    facts = host_of(good, name)
    facts = replace(
        facts,
        python=Python("/usr/bin/python3.12", "3.12.3", "", ""),
        compilers={"gcc": "", "g++": ""},
        ports_above=[],
        kernels_without_module=["99.0-generic"],
    )
    remedies = [check.remedy for check in judge(facts)]
    assert any("apt-get" in remedy for remedy in remedies) is facts.apt
    assert any("99.0-generic" in remedy for remedy in remedies)


def test_what_apt_has_a_candidate_of_is_known(tmp_path: Path) -> None:
    commands = tmp_path / "bin"
    commands.mkdir()
    program(
        commands,
        "apt-cache",
        "python3.11:\n  Installed: (none)\n  Candidate: (none)\n  Version table:\n"
        "python3.12:\n  Installed: (none)\n  Candidate: 3.12.3-1ubuntu0.8\n  Version table:\n"
        "     3.12.3-1ubuntu0.8 500\n        500 http://archive.ubuntu.com/ubuntu noble-updates/main\n",
    )
    write(tmp_path, {"usr/bin/python3.10": "", "usr/bin/python3.13": "", "usr/bin/python3.13-config": ""})
    host = collect.Host(tmp_path, f"{commands}:/bin:/usr/bin")
    assert collect._pythons(host, ["3.10", "3.11", "3.12"]) == ["3.10", "3.12", "3.13"]


def test_a_stray_library_that_was_removed_is_not_spoken_of_again(good_host: collect.Host) -> None:
    folder = good_host.root / "usr/lib/x86_64-linux-gnu"
    link, stray = folder / "libnvidia-ml.so.1", folder / "libnvidia-ml.so.590.48.01"
    link.symlink_to("libnvidia-ml.so.580.95.05")
    stray.touch()
    try:
        found = said(judge(read(good_host)))
        assert "driver_mismatch" not in found
        assert "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.590.48.01" in found["driver_files"]
        stray.unlink()
        assert "driver_files" not in said(judge(read(good_host)))
    finally:
        link.unlink()
        stray.unlink(missing_ok=True)


def test_shared_memory_that_fills_is_freed_by_a_start(
    good_host: collect.Host, good: Facts, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = good_host.root / "dev/shm"
    shared.mkdir(parents=True)
    (shared / "nccl-a1").write_bytes(b"x" * 2**20)
    os.utime(shared / "nccl-a1", (0, 0))
    full = replace(good, shm_free_bytes=good.shm_bytes and good.shm_bytes // 10)
    full.shm_largest = collect._largest_shared(good_host)
    message = said(judge(full))["shm"]
    assert "1 nccl-* (0.0 GiB)" in message
    assert "A start of the server removes what its user left there" in message
    spec = importlib.util.spec_from_file_location(
        "prepare", TESTS.parent / "roles/eagle3_server/files/prepare.py"
    )
    assert spec and spec.loader
    prepare = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(prepare)
    monkeypatch.setattr(prepare, "SHARED_MEMORY", shared)
    prepare.clear_shared_memory(pwd.getpwuid(os.getuid()).pw_name)
    assert collect._largest_shared(good_host) == []


# --- settings and users, which need no card to be tried ---


@pytest.mark.parametrize(
    ("nccl", "remedy", "mended"),
    [
        (
            {"NCCL_GRAPH_FILE": "", "NCCL_P2P_LEVEL": "SYS"},
            "Remove NCCL_GRAPH_FILE",
            {"NCCL_P2P_LEVEL": "SYS"},
        ),
        (
            {"NCCL_P2P_DISABLE": 1, "NCCL_P2P_LEVEL": "SYS"},
            "Remove NCCL_P2P_DISABLE",
            {"NCCL_P2P_LEVEL": "SYS"},
        ),
        ({}, "Add NCCL_P2P_LEVEL: SYS", {"NCCL_P2P_LEVEL": "SYS"}),
    ],
)
def test_settings_of_nccl_are_changed(
    good: Facts, nccl: dict[str, object], remedy: str, mended: dict[str, object]
) -> None:
    assert remedy in said(judge(good, replace(WANTED, nccl=nccl)))["nccl"]
    assert said(judge(good, replace(WANTED, nccl=mended))) == {}


def test_a_distribution_that_was_tested_is_added(good: Facts) -> None:
    facts = replace(good, distribution="fedora-43")
    added = re.search(r"add (\S+) to preflight_distributions", said(judge(facts))["distribution"])
    assert added
    wanted = replace(WANTED, distributions=[*WANTED.distributions, added[1]])
    assert "distribution" not in said(judge(facts, wanted))


def test_a_port_is_freed_or_another_is_set(good: Facts) -> None:
    taken = replace(good, ports={30000: [Taken([Owner(7, "python", "session-3.scope")])], 30001: []})
    assert "Stop that process, or set eagle3_server_port to another port" in said(judge(taken))["port"]
    assert said(judge(taken, replace(WANTED, ports={30001: "eagle3_server_port"}))) == {}
    assert said(judge(replace(taken, ports={30000: []}))) == {}


def test_a_waived_check_says_what_mends_it_all_the_same(good: Facts) -> None:
    facts = replace(good, distribution="fedora-43")
    (waived,) = [
        check for check in report.waive(judge(facts), ["distribution"]) if check.id == "distribution"
    ]
    assert waived.remedy.startswith(
        "Accepted by preflight_waive; otherwise: Install a supported distribution"
    )
    wanted = replace(WANTED, distributions=[*WANTED.distributions, "fedora-43"])
    assert said(report.waive(judge(facts, wanted), ["distribution"])) == {}


def test_cards_are_named_as_the_driver_names_them(good: Facts) -> None:
    uuids = [card.uuid for card in good.query.gpus] if good.query else []
    there = "GPU-00000000-0000-0000-0000-00000000ffff"
    remedy = said(judge(good, replace(WANTED, gpus=[*uuids[:7], there])))["gpu_count"]
    assert "Correct eagle3_server_gpus" in remedy
    assert said(judge(good, replace(WANTED, gpus=uuids))) == {}


def test_more_cards_than_are_used_are_chosen_or_used(good: Facts) -> None:
    uuids = [card.uuid for card in good.query.gpus] if good.query else []
    four = replace(WANTED, gpu_count=4)
    assert "choose others by eagle3_server_gpus, or raise" in said(judge(good, four))["gpu_count"]
    assert said(judge(good, replace(four, gpus=uuids[4:]))) == {}
    assert said(judge(good, replace(four, gpu_count=8))) == {}


def test_what_only_root_may_read_is_read_as_root(
    good_host: collect.Host, good: Facts, tmp_path: Path
) -> None:
    """As another user the kernel's log is refused, and lspci shows no capabilities."""
    for name in ("lspci", "dmesg", "journalctl"):
        program(tmp_path, name, "")
    for name in ("dmesg", "journalctl"):
        (tmp_path / name).write_text("#!/bin/sh\necho 'not permitted' >&2\nexit 1\n", encoding="utf-8")
    shown = re.sub(r"\tCapabilities: .*\n(?:\t\t.*\n)*", "\tCapabilities: <access denied>\n", lspci())
    (tmp_path / ".lspci.txt").write_text(shown, encoding="utf-8")
    user = said(judge(read(collect.Host(good_host.root, f"{tmp_path}:{good_host.environment['PATH']}"))))
    as_root = said(judge(good))
    for check in ("xid", "acs"):
        assert "Run the play as root" in user[check] and check not in as_root
