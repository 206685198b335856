"""What GRUB's configuration gives the kernel, as update-grub reads it, and our own file in it.

``update-grub`` sources /etc/default/grub and then /etc/default/grub.d/*.cfg with the host's sh, one after the other: a
later plain assignment throws away what earlier files gave. So sh says here, too, what comes of them. It runs without
root's rights and finds no commands, since whoever wrote these files is not to run anything in a check.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from .errors import OperatorError
from .tuning import command_line_words

# What update-grub writes, and what says when the machine was booted.
GRUB_CFG = Path("/boot/grub/grub.cfg")
PROC = Path("/proc")
# Where systemd-boot's tools (kernel-install, proxmox-boot-tool) have the command line.
KERNEL_CMDLINE = Path("/etc/kernel/cmdline")

# The kernel takes each of several such words, so another one says nothing otherwise.
_REPEATED = {"console", "earlycon", "hugepages", "hugepagesz", "memmap", "modprobe.blacklist", "pci"}
# What sh or GRUB's own language would take for something else.
_NO_WORD = re.compile(r"""[\s"'\\$`;&|<>]""")
_NOT_RUN = re.compile(r"\S+: (?:command )?not found")

_NOBODY = 65534
_SECONDS = 10
# The kernel takes no longer argument than 128 KiB.
_LONGEST = 100_000
# A function, because a sourced file may return.
_SCRIPT = """
exec 9>&1
ulimit -t 5
ulimit -f 2048
source_one() { eval "$1"; }
for text do
    source_one "$text" </dev/null >/dev/null 9>&-
    printf '%s\\0%s\\0' "$GRUB_CMDLINE_LINUX" "$GRUB_CMDLINE_LINUX_DEFAULT" >&9
done
"""


@dataclass(frozen=True)
class CommandLine:
    """The kernel's words after each of GRUB's files.

    Attributes:
        after: the words that are given once a file was read, by its path, in the order of reading.
        not_run: a command in one of the files that would have a say, and was not run; empty if there is none.
    """

    after: Mapping[str, Sequence[str]]
    not_run: str = ""

    @property
    def words(self) -> Sequence[str]:
        """The words that take effect."""
        return list(self.after.values())[-1] if self.after else ()

    def giver(self, word: str) -> str:
        """The file that gives a word that takes effect; empty if none does."""
        giver = ""
        for path, words in self.after.items():
            giver = (giver or path) if word in words else ""
        return giver

    def taker(self, word: str) -> str:
        """The file that throws away a word that an earlier one gave; empty if none does."""
        given, taker = False, ""
        for path, words in self.after.items():
            if word in words:
                given, taker = True, ""
            elif given:
                given, taker = False, path
        return taker


def read_files(ours: Path) -> dict[Path, str]:
    """GRUB's files in the order of reading, without our own.

    Args:
        ours: our file in the folder ``grub.d``, which stands beside the file ``grub``.

    Raises:
        OperatorError: a file cannot be read.
    """
    texts = {}
    for path in (ours.parent.parent / "grub", *sorted(ours.parent.glob("*.cfg"))):
        if path == ours or not path.exists():
            continue
        try:
            texts[path] = path.read_bytes().decode("utf-8", "surrogateescape")
        except OSError as error:
            raise OperatorError(
                f"{path} cannot be read, and update-grub reads it",
                found=error.strerror or str(error),
                expected="a readable file",
                remedy=f"mend or remove it (ls -l {quote(str(path))})",
            ) from error
    return texts


def evaluate(texts: Mapping[Path, str]) -> CommandLine:
    """What sh makes of GRUB's files.

    Args:
        texts: the files by path; they are read in the order of update-grub.

    Raises:
        OperatorError: sh ends in one of them, or takes too long.
    """
    order = sorted(texts, key=lambda path: (path.name != "grub" or path.parent.name == "grub.d", path.name))
    for path in order:
        if len(texts[path].encode("utf-8", "surrogateescape")) > _LONGEST or "\0" in texts[path]:
            raise _unreadable(path, f"{len(texts[path])} characters, or a NUL among them")
    status, values, said = _source([texts[path] for path in order])
    if len(values) < 2 * len(order):
        raise _unreadable(order[len(values) // 2], said or f"sh ended with status {status}")
    after = {}
    for place, path in enumerate(order):
        # As update-grub writes them: first those of every entry. GRUB itself takes the backslash from a quote.
        both = f"{values[2 * place]} {values[2 * place + 1]}".replace('\\"', '"')
        after[str(path)] = command_line_words(both)
    not_run = _NOT_RUN.search(said)
    return CommandLine(after, not_run[0] if not_run else "")


def _unreadable(path: Path, found: str) -> OperatorError:
    return OperatorError(
        f"sh cannot read {path}, and so update-grub cannot",
        found=found[-500:],
        expected='assignments, as in GRUB_CMDLINE_LINUX_DEFAULT="quiet"',
        remedy=f"mend it (sh -n {quote(str(path))} shows the place), or remove it",
    )


def _source(texts: Sequence[str]) -> tuple[int, list[str], str]:
    """Let sh read texts: its exit status, two values for each text that it came through, and what it complained of."""
    rights = {"user": _NOBODY, "group": _NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
    with tempfile.TemporaryFile() as values, tempfile.TemporaryFile() as complaints:
        with subprocess.Popen(
            [b"/bin/sh", b"-c", _SCRIPT.encode(), b"grub", *(os.fsencode(text) for text in texts)],
            stdin=subprocess.DEVNULL,
            stdout=values,
            stderr=complaints,
            env={"PATH": "/nonexistent", "LC_ALL": "C"},
            cwd="/",
            start_new_session=True,
            **rights,  # type: ignore[call-overload]
        ) as shell:
            try:
                status = shell.wait(_SECONDS)
            except subprocess.TimeoutExpired:
                status = -1
            finally:
                # Also what it may have left in the background.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(shell.pid, signal.SIGKILL)
        values.seek(0)
        complaints.seek(0)
        said = complaints.read(10_000).decode("utf-8", "replace").strip()
        parts = values.read(10_000_000).decode("utf-8", "surrogateescape").split("\0")[:-1]
    return status, parts, f"no end after {_SECONDS} s" if status == -1 else said


def check_words(wanted: Sequence[str]) -> None:
    """Refuse words that would reach the kernel as something else.

    Raises:
        OperatorError: naming the word.
    """
    for word in wanted:
        if not word or _NO_WORD.search(word):
            raise OperatorError(
                f"{word!r} cannot be given to the kernel through GRUB as it is",
                found="a blank, a quote, or a sign that sh or GRUB takes for itself",
                expected="one word, as in iommu=off",
                remedy="take it out of host_tuning_kernel_parameters, and write it into a file of /etc/default/grub.d "
                "by hand; parameters of a module can be in /etc/modprobe.d",
            )


def check_boot_loader() -> None:
    """Refuse a machine that has GRUB's settings and is booted by another loader: it would never read them.

    Raises:
        OperatorError: GRUB has no menu, and there is the command line of another loader.
    """
    if not GRUB_CFG.exists() and KERNEL_CMDLINE.exists():
        raise OperatorError(
            "GRUB does not boot this host",
            found=f"{KERNEL_CMDLINE}, and no {GRUB_CFG}",
            expected="a host that GRUB boots",
            remedy=f"add the words to {KERNEL_CMDLINE}, tell the boot loader (proxmox-boot-tool refresh on Proxmox, "
            "kernel-install elsewhere), and empty host_tuning_kernel_parameters",
        )


def drop_in(others: CommandLine, wanted: Sequence[str]) -> str:
    """Our own file: the wanted words that take no effect by the others; empty if there is none to give."""
    missing = [word for word in wanted if word not in others.words]
    if not missing:
        return ""
    return (
        "# Written by the role host_tuning (host_tuning_kernel_parameters).\n"
        f'GRUB_CMDLINE_LINUX_DEFAULT="$GRUB_CMDLINE_LINUX_DEFAULT {" ".join(missing)}"\n'
    )


def check(line: CommandLine, ours: Path, wanted: Sequence[str]) -> None:
    """Refuse files of others that keep a wanted word from taking effect, or say otherwise.

    Args:
        line: what comes of all files, ours among them as it is to be.
        ours: our file.
        wanted: the wanted words.

    Raises:
        OperatorError: naming the file that wins.
    """
    lost = {word: line.taker(word) for word in wanted if word not in line.words}
    if lost and line.not_run:
        raise OperatorError(
            f"It is not known whether {' '.join(lost)} would take effect: a file of GRUB runs commands",
            found=f"{line.not_run}, because a check runs none; without it {' '.join(line.words) or 'no words'}",
            expected="files that assign the variables by sh alone",
            remedy="write these assignments without commands (grep -n '[$`|]' /etc/default/grub "
            f"{ours.parent}/*.cfg shows them); or give the kernel its parameters by hand, and empty "
            "host_tuning_kernel_parameters",
        )
    if lost:
        winner = next(iter(lost.values())) or "one of them"
        raise OperatorError(
            f"{' '.join(lost)} would take no effect: {winner} is read after {ours} and assigns the variable anew",
            found=f"{' '.join(line.words) or 'no words'} in the end",
            expected="a file that adds to what is there",
            remedy=f'write GRUB_CMDLINE_LINUX_DEFAULT="$GRUB_CMDLINE_LINUX_DEFAULT ..." in {winner}, or give it a name '
            f"that sorts before {ours.name}",
        )
    keys = {word.split("=")[0]: word for word in wanted}
    clashes = [
        f"{line.giver(word)} has {word}, wanted is {keys[word.split('=')[0]]}"
        for word in dict.fromkeys(line.words)
        if word.split("=")[0] in keys and word not in wanted and word.split("=")[0] not in _REPEATED
    ]
    if clashes:
        raise OperatorError(
            "GRUB says otherwise",
            found="; ".join(clashes),
            expected="no file of others that says otherwise",
            remedy="take it out there, or do not want it here (host_tuning_kernel_parameters)",
        )


def untold(wanted: Sequence[str]) -> bool:
    """Whether update-grub has to run: what it wrote lacks a wanted word. False where it cannot be read."""
    written = _words_written()
    return written is not None and any(word not in written for word in wanted)


def check_booted(wanted: Sequence[str]) -> None:
    """Refuse a machine that was rebooted and did not take the words: another reboot would not bring them about.

    Raises:
        OperatorError: GRUB's menu has a word, is older than this boot, and the running kernel lacks the word.
    """
    written = _words_written()
    try:
        running = command_line_words((PROC / "cmdline").read_text(encoding="utf-8", errors="replace"))
        stat = (PROC / "stat").read_text(encoding="utf-8", errors="replace")
        booted = next(int(line.split()[1]) for line in stat.splitlines() if line.startswith("btime "))
        older = GRUB_CFG.stat().st_mtime + 60 < booted
    except (OSError, StopIteration, ValueError, IndexError):
        return
    lacking = [word for word in wanted if word not in running and word in (written or ())]
    if older and lacking:
        raise OperatorError(
            f"A reboot did not bring {' '.join(lacking)} about",
            found=f"{GRUB_CFG} has it and is older than this boot, whose command line is {' '.join(running)[:300]}",
            expected="a machine that boots the first entry of that menu",
            remedy="see what boots it (efibootmgr -v, or grub-editenv list for a saved entry), and give the kernel its "
            "parameters there; then empty host_tuning_kernel_parameters",
        )


def _words_written() -> set[str] | None:
    """The words of the kernel lines in GRUB's menu; None where it cannot be read."""
    try:
        text = GRUB_CFG.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    lines = [line for line in text.splitlines() if line.split()[:1] in (["linux"], ["linuxefi"], ["linux16"])]
    return {word for line in lines for word in command_line_words(line.replace('\\"', '"'))}
