"""What the trial of SGLang's own argument parser says: SGLang's refusal, or a failure of something else.

The parser runs under systemd as the service user, in the interpreter of the release. Each of them can fail by itself,
and only a refusal by the parser is a reason to change arguments.
"""

from __future__ import annotations

import re

from .errors import OperatorError

# argparse in check_arguments.py, which calls its program sglang; and the reader of SGLang's --config file.
_ARGPARSE = re.compile(r"^sglang: error: ", re.MULTILINE)
_SERVER_ARGS = re.compile(r"^  File \"[^\"]*/sglang/srt/server_args\w*\.py\"", re.MULTILINE)
_REFUSAL = re.compile(r"^(ValueError|AssertionError|yaml\.[\w.]+|argparse\.\w+)\b", re.MULTILINE)

# What else can fail: by exit status of systemd (systemd.exec(5)) or by what is said, with what failed and a remedy.
_BY_STATUS = {
    124: ("it ran out of time", "look at the load of the host (uptime, iostat)"),
    137: (
        "it was killed, as the kernel does when memory is short",
        "free some memory (free -h, dmesg | tail)",
    ),
    200: (
        "systemd cannot enter the release's cache folder",
        "look at its owner and mode (namei -l), or run site.yml, which makes it",
    ),
    203: (
        "systemd cannot run the release's interpreter",
        "look at the release's venv/bin/python, or run site.yml, which mends it",
    ),
    216: ("the group of the service is missing", "run site.yml, which makes user and group"),
    217: ("the user of the service is missing", "run site.yml, which makes user and group"),
}
_BY_WORDS = (
    (
        r"Failed to connect to (system )?bus|Host is down|System has not been booted",
        "systemd does not answer",
        "look at systemctl is-system-running and systemctl status dbus",
    ),
    (
        r"MemoryError|Cannot allocate memory|[Oo]ut of memory|oom-kill|\bKilled\b",
        "memory is short",
        "free some memory (free -h, dmesg | tail)",
    ),
    (r"No space left on device", "the disk is full", "free some space (df -h)"),
    (
        r"ModuleNotFoundError|ImportError|cannot open shared object file",
        "SGLang cannot be imported from the release",
        "run site.yml, which mends an installation that is not whole",
    ),
    (
        r"Permission denied|PermissionError",
        "a file or folder is closed to it",
        "look at the path with namei -l",
    ),
    (r"timed out|[Tt]imeout", "it ran out of time", "look at the load of the host (uptime, iostat)"),
    (
        r"No such file or directory|FileNotFoundError|not found",
        "a file is missing",
        "run site.yml, which mends an installation that is not whole",
    ),
)


def judge(code: int, out: str, err: str) -> None:
    """Raise what a failed trial means.

    Args:
        code: the exit status of the command, negative for a signal.
        out: its standard output.
        err: its standard error.

    Raises:
        OperatorError: the trial failed; the problem names SGLang only where its own parser refused the arguments.
    """
    if code == 0:
        return
    text = f"{out}\n{err}"
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["nothing was said"]
    if refusal := next((line for line in lines if _ARGPARSE.match(line)), None):
        _refuse(refusal)
    if _SERVER_ARGS.search(text) and _REFUSAL.match(lines[-1]):
        _refuse(lines[-1])
    what, remedy = _failure(128 - code if code < 0 else code, text)
    raise OperatorError(
        f"The arguments of this deployment could not be held against SGLang's parser: {what}",
        found=f"exit status {code}: {lines[-1]}",
        expected="exit status 0, or a refusal by SGLang",
        remedy=remedy,
    )


def _refuse(said: str) -> None:
    raise OperatorError(
        "SGLang does not accept the arguments of this deployment",
        found=said,
        expected="arguments that the SGLang of the release knows",
        remedy="correct eagle3_server_extra_arguments or the variable that the message names",
    )


def _failure(code: int, text: str) -> tuple[str, str]:
    for words, what, remedy in _BY_WORDS:
        if re.search(words, text):
            return what, remedy
    return _BY_STATUS.get(
        code,
        (
            "the command of the trial failed",
            "run the playbook again; if it stays so, run the release's python with roles/eagle3_server/files/"
            "check_arguments.py by hand",
        ),
    )
