"""The one way to ask a Python interpreter something: run a program in it and read its answer."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .errors import OperatorError

# Whatever the interpreter's site or an imported library prints, the answer stands on a line that begins so.
_MARK = "blackwell answers: "
_PRINT_ANSWER = f"\nimport json\nprint('\\n{_MARK}' + json.dumps(answer))\n"


def ask_interpreter(
    python: str | Path,
    program: str,
    *arguments: str,
    timeout: float = 120,
    flags: Sequence[str] = ("-I",),
    environment: Mapping[str, str] | None = None,
    remedy: str = "name the python of an installation that works",
) -> Any:
    """Run a program in an interpreter, and return what it puts into the variable ``answer``.

    Neither the working folder nor PYTHONPATH of the caller counts.

    Args:
        python: the interpreter.
        program: its source; ``sys.argv[1:]`` are the arguments; it sets ``answer`` to a value that JSON can hold.
        arguments: texts for the program.
        timeout: the limit, in seconds.
        flags: the interpreter's own flags.
        environment: its environment; None for that of the caller.
        remedy: what mends an interpreter that does not answer.

    Raises:
        OperatorError: the interpreter cannot be run, fails, does not answer in time, or answers something else.
    """
    # Made absolute, because it is not run from here; links stay, for a virtual environment is one.
    interpreter = str(Path(python).absolute()) if "/" in str(python) else str(python)
    problem = f"The interpreter {interpreter} does not work"
    try:
        done = subprocess.run(
            [interpreter, *flags, "-c", program + _PRINT_ANSWER, *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=timeout,
            env=None if environment is None else dict(environment),
            cwd="/",
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise OperatorError(
            problem, found=str(error), expected="an interpreter that runs", remedy=remedy
        ) from error
    answers = [line[len(_MARK) :] for line in done.stdout.splitlines() if line.startswith(_MARK)]
    if done.returncode or not answers:
        said = done.stderr.strip() or done.stdout.strip() or "nothing"
        raise OperatorError(
            problem,
            found=f"exit status {done.returncode}: {said[-2000:]}",
            expected="exit status 0 and an answer",
            remedy=remedy,
        )
    try:
        return json.loads(answers[-1])
    except (ValueError, RecursionError) as error:
        raise OperatorError(
            problem, found=f"the answer {answers[-1][:200]!r}", expected="an answer in JSON", remedy=remedy
        ) from error
