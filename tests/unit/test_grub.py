"""The kernel's parameters in GRUB's files: what takes effect, and which file wins."""

from __future__ import annotations

import os
import shlex
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.blackwell import grub as used_by_modules
from blackwell import grub
from blackwell.errors import OperatorError
from hypothesis import given, settings
from hypothesis import strategies as st

GRUB = """
GRUB_DEFAULT=0
GRUB_DISTRIBUTOR=`( . /etc/os-release; echo ${NAME:-Ubuntu} ) 2>/dev/null || echo Debian`
GRUB_CMDLINE_LINUX_DEFAULT="quiet splash  iommu=off iommu=off"
GRUB_CMDLINE_LINUX='dyndbg=\\"file a.c +p\\" crashkernel=1G-:512M'
"""
Run = Callable[..., dict[str, Any]]


@pytest.fixture
def ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Our file in a copy of /etc/default, on a machine without a menu."""
    (tmp_path / "grub.d").mkdir()
    (tmp_path / "grub").write_text(GRUB, encoding="utf-8")
    monkeypatch.setattr(used_by_modules, "GRUB_CFG", tmp_path / "boot" / "grub.cfg")
    monkeypatch.setattr(used_by_modules, "PROC", tmp_path / "proc")
    monkeypatch.setattr(used_by_modules, "KERNEL_CMDLINE", tmp_path / "kernel" / "cmdline")
    return tmp_path / "grub.d" / "90-sglang-host-tuning.cfg"


def words(**texts: str) -> list[str]:
    """What takes effect of files, by name without their ending; ``grub`` is the first."""
    paths = {
        Path("/d/grub")
        if name == "grub"
        else Path(f"/d/grub.d/{name.lstrip('_').replace('_', '-')}.cfg"): text
        for name, text in texts.items()
    }
    return list(grub.evaluate(paths).words)


def sourced(*files: Path) -> list[str]:
    """What sh itself says that takes effect."""
    lines = "; ".join(f". {shlex.quote(str(file))} >/dev/null" for file in files)
    told = subprocess.run(
        ["/bin/sh", "-c", f'{lines}; echo "$GRUB_CMDLINE_LINUX $GRUB_CMDLINE_LINUX_DEFAULT"'],
        capture_output=True, text=True, check=True, env={"PATH": "/nonexistent"},
    )  # fmt: skip
    return told.stdout.split()


@pytest.mark.parametrize(
    ("text", "given"),
    [
        ('GRUB_CMDLINE_LINUX_DEFAULT="a b=1"', ["a", "b=1"]),
        ("GRUB_CMDLINE_LINUX_DEFAULT='a b=1'", ["a", "b=1"]),
        ("GRUB_CMDLINE_LINUX_DEFAULT=a", ["a"]),
        ("export GRUB_CMDLINE_LINUX_DEFAULT='a'", ["a"]),
        ('GRUB_CMDLINE_LINUX_DEFAULT="a \\\n b"', ["a", "b"]),
        ('GRUB_CMDLINE_LINUX_DEFAULT="a\nb"', ["a", "b"]),
        ('GRUB_CMDLINE_LINUX_DEFAULT="a" # b', ["a"]),
        ('# GRUB_CMDLINE_LINUX_DEFAULT="a"', []),
        ('X=1; GRUB_CMDLINE_LINUX_DEFAULT="a"', ["a"]),
        ("GRUB_CMDLINE_LINUX_DEFAULT=a'b'\"c\"", ["abc"]),
        ('GRUB_CMDLINE_LINUX="a"\nGRUB_CMDLINE_LINUX_DEFAULT="b"', ["a", "b"]),
        ('GRUB_CMDLINE_LINUX_DEFAULT="a"\nGRUB_CMDLINE_LINUX_DEFAULT="b"', ["b"]),
        ('GRUB_CMDLINE_LINUX_DEFAULT="a"\nGRUB_CMDLINE_LINUX_DEFAULT+=" b"', ["a"]),
        ('X=a\nGRUB_CMDLINE_LINUX_DEFAULT="$X ${Y:-b}"', ["a", "b"]),
        ('GRUB_CMDLINE_LINUX_DEFAULT="a"\nunset GRUB_CMDLINE_LINUX_DEFAULT', []),
        ('if [ -d / ]; then GRUB_CMDLINE_LINUX="a"; else GRUB_CMDLINE_LINUX="b"; fi', ["a"]),
        ('GRUB_CMDLINE_LINUX="a"\nreturn 0\nGRUB_CMDLINE_LINUX="b"', ["a"]),
        ("GRUB_CMDLINE_LINUX='mem=\\\"1 G\\\" \u00e4'", ['mem="1 G"', "\u00e4"]),
        ('GRUB_CMDLINE_LINUX_DEFAULT = "a"', []),
    ],
)
def test_an_assignment_means_what_sh_makes_of_it(text: str, given: list[str]) -> None:
    assert words(grub=text) == given


def test_a_later_plain_assignment_throws_away_what_was_given() -> None:
    assert words(grub=GRUB, _50_cloudimg='GRUB_CMDLINE_LINUX_DEFAULT="console=ttyS0"') == [
        'dyndbg="file a.c +p"', "crashkernel=1G-:512M", "console=ttyS0",
    ]  # fmt: skip


def test_a_later_file_that_adds_keeps_what_was_given() -> None:
    more = 'GRUB_CMDLINE_LINUX_DEFAULT="$GRUB_CMDLINE_LINUX_DEFAULT crashkernel=2G"'
    assert words(grub='GRUB_CMDLINE_LINUX_DEFAULT="a"', kdump=more) == ["a", "crashkernel=2G"]


PIECES = st.sampled_from(
    ["a", "iommu=off", "x=1", " ", "  ", "\\\n", "'", '"', "\\", "$V", "${V}", "${W:-w}", "#", ";", "\n",
     "V=1", "GRUB_CMDLINE_LINUX=", "GRUB_CMDLINE_LINUX_DEFAULT=", '"$GRUB_CMDLINE_LINUX_DEFAULT b"', "export "]
)  # fmt: skip
TEXTS = st.lists(PIECES, max_size=12).map("".join)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(texts=st.lists(TEXTS, min_size=1, max_size=3))
def test_any_files_mean_what_they_mean_to_update_grub(
    texts: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("grub") / "grub.d"
    folder.mkdir()
    files = {
        folder.parent / "grub": texts[0],
        **{folder / f"{n}.cfg": text for n, text in enumerate(texts[1:])},
    }
    for file, text in files.items():
        file.write_text(text, encoding="utf-8")
    try:
        told = sourced(*files)
    except subprocess.CalledProcessError:
        told = None
    try:
        found = " ".join(grub.evaluate(files).words).replace('"', "").split()
    except OperatorError:
        assert told is None
        return
    assert told is not None
    # How quoted blanks are kept together is tested above.
    assert found == " ".join(told).replace('\\"', "").replace('"', "").split()


def test_the_module_writes_once_and_takes_back_to_the_byte(ours: Path, run_module: Run) -> None:
    wanted = {"parameters": ["pcie_aspm=off", "amd_iommu=off"], "path": str(ours)}
    assert run_module("kernel_command_line", wanted, check=True)["changed"]
    assert not ours.exists(), "check mode writes nothing"
    done = run_module("kernel_command_line", wanted)
    assert (done["changed"], done["given"]) == (True, ["pcie_aspm=off", "amd_iommu=off"])
    assert not run_module("kernel_command_line", wanted)["changed"]
    assert sourced(ours.parent.parent / "grub", ours)[-2:] == ["pcie_aspm=off", "amd_iommu=off"]
    assert run_module("kernel_command_line", {**wanted, "parameters": []})["changed"]
    assert [path.name for path in ours.parent.iterdir()] == []
    assert (ours.parent.parent / "grub").read_text(encoding="utf-8") == GRUB


def test_a_word_that_takes_effect_already_is_not_given_again(ours: Path, run_module: Run) -> None:
    done = run_module("kernel_command_line", {"parameters": ["iommu=off"], "path": str(ours)})
    assert (done["changed"], done["given"]) == (False, [])


def test_a_word_that_an_earlier_plain_assignment_threw_away_is_given(ours: Path, run_module: Run) -> None:
    (ours.parent / "50-cloudimg-settings.cfg").write_text(
        'GRUB_CMDLINE_LINUX_DEFAULT="console=ttyS0"\n', encoding="utf-8"
    )
    done = run_module("kernel_command_line", {"parameters": ["iommu=off"], "path": str(ours)})
    assert done["given"] == ["iommu=off"]


@pytest.mark.parametrize("name", ["99-hoster.cfg", "z.cfg", "kdump.cfg"])
def test_a_later_file_that_throws_ours_away_is_named_and_its_remedies_mend(
    ours: Path, run_module: Run, name: str
) -> None:
    hoster = ours.parent / name
    hoster.write_text("GRUB_CMDLINE_LINUX_DEFAULT='consoleblank=0'\n", encoding="utf-8")
    wanted = {"parameters": ["iommu=off"], "path": str(ours)}
    told = run_module("kernel_command_line", wanted)
    assert told["failed"]
    assert f"iommu=off would take no effect: {hoster} is read after {ours}" in told["msg"]
    assert not ours.exists()
    # One remedy is to rename it, the other to let it add.
    moved = hoster.rename(ours.parent / "10-hoster.cfg")
    assert run_module("kernel_command_line", wanted)["changed"]
    ours.unlink()
    moved.rename(hoster)
    hoster.write_text(
        'GRUB_CMDLINE_LINUX_DEFAULT="$GRUB_CMDLINE_LINUX_DEFAULT consoleblank=0"\n', encoding="utf-8"
    )
    # The word of the first file takes effect now.
    assert not run_module("kernel_command_line", wanted).get("failed")


def test_a_file_of_others_that_says_otherwise_is_named(ours: Path, run_module: Run) -> None:
    told = run_module("kernel_command_line", {"parameters": ["iommu=pt"], "path": str(ours)})
    assert told["msg"].startswith(
        f"GRUB says otherwise. Found: {ours.parent.parent}/grub has iommu=off, wanted is iommu=pt."
    )


def test_what_a_later_file_throws_away_says_nothing_otherwise(ours: Path, run_module: Run) -> None:
    (ours.parent / "50-cloudimg.cfg").write_text('GRUB_CMDLINE_LINUX_DEFAULT="quiet"\n', encoding="utf-8")
    assert run_module("kernel_command_line", {"parameters": ["iommu=pt"], "path": str(ours)})["changed"]


def test_a_host_without_grub_is_told_so(tmp_path: Path, run_module: Run) -> None:
    path = str(tmp_path / "default/grub.d/90.cfg")
    assert not run_module("kernel_command_line", {"parameters": [], "path": path})["changed"]
    told = run_module("kernel_command_line", {"parameters": ["iommu=off"], "path": path})
    assert told["msg"].startswith(f"No GRUB. Found: no {tmp_path}/default/grub.")


@pytest.mark.parametrize(
    "text", ['GRUB_CMDLINE_LINUX="a', "if true; then", "exit 3", "GRUB_CMDLINE_LINUX=$(", "\0", "a" * 200_000]
)
def test_a_file_that_sh_cannot_read_is_named(ours: Path, run_module: Run, text: str) -> None:
    broken = ours.parent / "40-broken.cfg"
    broken.write_text(text, encoding="utf-8")
    told = run_module("kernel_command_line", {"parameters": ["pcie_aspm=off"], "path": str(ours)})
    assert told["msg"].startswith(f"sh cannot read {broken}, and so update-grub cannot. Found: ")


def test_a_boot_loader_that_was_not_told_is_told_by_the_next_run(
    ours: Path, run_module: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    update = tmp_path / "bin/update-grub"
    update.parent.mkdir()
    update.write_text("#!/bin/sh\necho 'syntax error in 40_custom' >&2; exit 1\n", encoding="utf-8")
    update.chmod(0o755)
    monkeypatch.setenv("PATH", f"{update.parent}:/usr/bin:/bin")
    wanted = {"parameters": ["amd_iommu=off"], "path": str(ours)}
    assert run_module("kernel_command_line", wanted)["msg"] == (
        "update-grub fails: syntax error in 40_custom. The kernel's parameters are as they were. Mend GRUB's "
        "configuration, and run the playbook again."
    )
    assert not ours.exists()
    menu = tmp_path / "boot" / "grub.cfg"
    menu.parent.mkdir()
    menu.write_text("menuentry 'x' {\n\tlinux /vmlinuz root=/dev/sda1 quiet\n}\n", encoding="utf-8")
    update.write_text(
        f"#!/bin/sh\necho told >> {tmp_path}/told\necho '\tlinux /vmlinuz amd_iommu=off' > {menu}\n",
        encoding="utf-8",
    )
    assert run_module("kernel_command_line", wanted)["changed"]
    assert not run_module("kernel_command_line", wanted)["changed"]
    # Somebody put an old menu back.
    menu.write_text("\tlinux /vmlinuz quiet\n", encoding="utf-8")
    assert run_module("kernel_command_line", wanted)["changed"]
    assert (tmp_path / "told").read_text(encoding="utf-8") == "told\ntold\n"


def test_a_reboot_that_did_not_help_is_an_error_and_not_another_reboot(
    ours: Path, run_module: Run, tmp_path: Path
) -> None:
    menu, proc = tmp_path / "boot" / "grub.cfg", tmp_path / "proc"
    menu.parent.mkdir()
    proc.mkdir()
    menu.write_text("\tlinux\t/vmlinuz root=/dev/sda1 amd_iommu=off\n", encoding="utf-8")
    (proc / "cmdline").write_text("root=/dev/sda1 quiet\n", encoding="utf-8")
    wanted = {"parameters": ["amd_iommu=off"], "path": str(ours)}
    (proc / "stat").write_text(f"btime {int(time.time()) - 3600}\n", encoding="utf-8")
    assert not run_module("kernel_command_line", wanted).get("failed"), "no reboot since: it is still to come"
    os.utime(menu, (time.time() - 7200, time.time() - 7200))
    for check in (True, False):
        told = run_module("kernel_command_line", wanted, check=check)
        assert told["msg"].startswith("A reboot did not bring amd_iommu=off about. Found: ")
        assert "root=/dev/sda1 quiet" in told["msg"]
    (proc / "cmdline").write_text("root=/dev/sda1 amd_iommu=off\n", encoding="utf-8")
    assert not run_module("kernel_command_line", wanted).get("failed")


@pytest.mark.parametrize(
    "word",
    [
        'dyndbg="file a.c +p"',
        "memmap=16G$32G",
        "a='b'",
        "x=`id`",
        "NVreg_RegistryDwords=A=1;B=2",
        "a b",
        "b\\c",
        "",
    ],
)
def test_a_word_that_would_reach_the_kernel_as_another_one_is_refused(
    ours: Path, run_module: Run, word: str
) -> None:
    told = run_module("kernel_command_line", {"parameters": ["iommu=off", word], "path": str(ours)})
    assert told["msg"].startswith(f"{word!r} cannot be given to the kernel through GRUB as it is. Found: ")
    assert not ours.exists()


@pytest.mark.parametrize(
    "wanted", [["console=ttyS0,115200"], ["hugepagesz=1G", "hugepages=16"], ["pci=realloc"]]
)
def test_words_that_the_kernel_takes_several_of_are_no_contradiction(
    ours: Path, run_module: Run, wanted: list[str]
) -> None:
    (ours.parent / "50-cloudimg-settings.cfg").write_text(
        'GRUB_CMDLINE_LINUX_DEFAULT="console=tty1 console=ttyS1 hugepagesz=2M hugepages=64 pci=noaer"\n',
        encoding="utf-8",
    )
    assert run_module("kernel_command_line", {"parameters": wanted, "path": str(ours)})["changed"]


@pytest.mark.parametrize(
    "text",
    [
        'GRUB_CMDLINE_LINUX_DEFAULT="$(echo "$GRUB_CMDLINE_LINUX_DEFAULT" | sed s/quiet//)"\n',
        "GRUB_CMDLINE_LINUX_DEFAULT=`cat /run/words`\n",
        "if grep -q x /proc/cmdline; then :; else GRUB_CMDLINE_LINUX_DEFAULT=quiet; fi\n",
    ],
)
def test_what_a_command_would_have_made_of_a_file_is_said_to_be_unknown(
    ours: Path, run_module: Run, text: str
) -> None:
    (ours.parent / "95-site.cfg").write_text(text, encoding="utf-8")
    wanted = {"parameters": ["amd_iommu=off"], "path": str(ours)}
    assert run_module("kernel_command_line", wanted)["msg"].startswith(
        "It is not known whether amd_iommu=off would"
    )
    (ours.parent / "95-site.cfg").rename(ours.parent / "10-site.cfg")
    assert run_module("kernel_command_line", wanted)["changed"], "read before ours it takes nothing away"


def test_a_host_that_another_loader_boots_is_told_where_its_words_belong(
    ours: Path, run_module: Run, tmp_path: Path
) -> None:
    cmdline = tmp_path / "kernel" / "cmdline"
    cmdline.parent.mkdir()
    cmdline.write_text("root=ZFS=rpool/ROOT/pve-1 boot=zfs\n", encoding="utf-8")
    wanted = {"parameters": ["amd_iommu=off"], "path": str(ours)}
    told = run_module("kernel_command_line", wanted)["msg"]
    assert told.startswith(f"GRUB does not boot this host. Found: {cmdline}, and no ")
    assert not ours.exists() and "proxmox-boot-tool refresh" in told
    assert not run_module("kernel_command_line", {**wanted, "parameters": []})["changed"], "its remedy"
    (tmp_path / "boot").mkdir()
    (tmp_path / "boot" / "grub.cfg").write_text("\tlinux /vmlinuz quiet\n", encoding="utf-8")
    assert run_module("kernel_command_line", wanted)["changed"], (
        "dracut and others have such a file beside GRUB"
    )


def test_sh_is_limited_in_time_and_files_and_complains_of_nothing(tmp_path: Path) -> None:
    _, values, said = grub._source(["GRUB_CMDLINE_LINUX=$(ulimit -t)-$(ulimit -f)"])
    assert (values[0], said) == ("5-2048", "")
