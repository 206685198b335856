"""Try this project's patches, roles and playbooks on the GPUs of this machine.

    python -m tests.gpu --results FOLDER [--work FOLDER] [--packages FILE] [--steps NAME,NAME] [--minutes N]
    python -m tests.gpu --results FOLDER --detach ...       the same in the background, which outlives this command
    python -m tests.gpu --results FOLDER --watch SECONDS    show what such a run does, until it ends

docs/gpu-tests.md says what is needed and what each step shows. FOLDER/results.json is written after each step, and
FOLDER/results.md is its page. As root.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.gpu.runner import Step

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "plugins" / "module_utils")]


def main() -> int:
    """Run the command line."""
    given = arguments(sys.argv[1:])
    if given.watch is not None:
        return watch(given.results, given.watch)
    if given.detach:
        return detach(given)
    if given.list:
        for step in all_steps(given):
            print(f"{step.name:18} {step.title}")
        return 0
    return run(given)


def arguments(words: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--results", type=Path, required=True, help="folder for results.json, results.md, logs.tar.gz"
    )
    parser.add_argument(
        "--work", type=Path, default=Path("/opt/sglang-gpu-tests"), help="folder for all that is made"
    )
    parser.add_argument(
        "--packages", type=Path, default=ROOT / ".cache" / "gpu-tests" / "packages.tar.xz",
        help="packages.tar.xz of tests/gpu/carry.py, or the site-packages of an environment with SGLang 0.5.9",
    )  # fmt: skip
    parser.add_argument(
        "--steps", default="", help="names of the steps to run, with commas between; default: all"
    )
    parser.add_argument(
        "--minutes", type=float, default=0, help="no step begins or goes on after that; 0: no limit"
    )
    parser.add_argument("--train", default="140,90", help="seconds of training: target, drafter")
    parser.add_argument("--detach", action="store_true", help="run in the background")
    parser.add_argument("--watch", type=float, metavar="SECONDS", help="wait for a run in the background")
    parser.add_argument("--list", action="store_true", help="name the steps")
    given = parser.parse_args(words)
    given.results, given.work, given.packages = (
        path.absolute() for path in (given.results, given.work, given.packages)
    )
    for place in ("/tmp", "/run"):
        if given.work.is_relative_to(place) and not given.list:
            parser.error(
                f"--work is {given.work}: a namespace has a {place} of its own, so take another folder"
            )
    return given


def all_steps(given: argparse.Namespace) -> list[Step]:
    """The steps, in the order in which they run: what matters most comes first."""
    from tests.gpu import steps
    from tests.gpu.rig import Rig

    seconds = [float(each) for each in given.train.split(",")]
    return steps.steps(Rig(given.work, given.packages, seconds=(seconds[0], seconds[1])))


def run(given: argparse.Namespace) -> int:
    """Run the steps; 0 when none failed."""
    from tests.gpu import page, rig
    from tests.gpu.runner import Record, run_steps

    steps = all_steps(given)
    known = [step.name for step in steps]
    asked = given.steps.split(",") if given.steps else known
    unknown = sorted(set(asked) - set(known))
    if unknown:
        print(f"There is no step {', '.join(unknown)}. There are: {', '.join(known)}.", file=sys.stderr)
        return 2
    # What a step needs comes along.
    wanted = set(asked)
    for step in reversed(steps):
        if step.name in wanted:
            wanted |= set(step.needs)
    place = given.results / "results.json"
    place.parent.mkdir(parents=True, exist_ok=True)
    own = rig.Rig(given.work, given.packages)
    record = Record.read(place) if place.exists() else Record(place, rig.describe(own))

    def keep() -> None:
        record.about |= rig.versions(own)
        record.write()
        (given.results / "results.md").write_text(page.write(record), encoding="utf-8")
        pack(own.logs, given.results / "logs.tar.gz")

    deadline = time.monotonic() + 60 * given.minutes if given.minutes else None
    chosen = [step for step in steps if step.name in wanted]
    fine = run_steps(chosen, record, deadline=deadline, say=lambda line: print(line, flush=True), after=keep)
    print(f"See {given.results / 'results.md'}.", flush=True)
    return 0 if fine else 1


def pack(folder: Path, archive: Path, most: int = 400_000) -> None:
    """Pack logs; of a long one its end."""
    if not folder.is_dir():
        return
    draft = archive.with_suffix(".part")
    with tarfile.open(draft, "w:gz") as packed:
        for path in sorted(folder.iterdir()):
            if path.is_file() and path.stat().st_size <= most:
                packed.add(path, path.name)
            elif path.is_file():
                cut = folder / f".{path.name}"
                cut.write_bytes(path.read_bytes()[-most:])
                packed.add(cut, path.name)
                cut.unlink()
    draft.replace(archive)


def detach(given: argparse.Namespace) -> int:
    """Start the same command in the background, from a copy of the project that nothing else writes to."""
    results = given.results
    results.mkdir(parents=True, exist_ok=True)
    copy = results / "project"
    if not copy.exists():
        ignore = shutil.ignore_patterns(
            ".git", ".venv", ".cache", ".sandbox", ".whl", "__pycache__", ".*_cache"
        )
        shutil.copytree(ROOT, copy, symlinks=True, ignore=ignore)
    words = [word for word in sys.argv[1:] if word != "--detach"]
    # The copy is another working directory.
    for name in ("results", "work", "packages"):
        words += [f"--{name}", str(getattr(given, name))]
    with (results / "log.txt").open("a", encoding="utf-8") as log:
        process = subprocess.Popen(
            [sys.executable, "-u", "-m", "tests.gpu", *words],
            cwd=copy, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    (results / "pid").write_text(f"{process.pid}\n", encoding="utf-8")
    print(f"Process {process.pid} runs. Its results and its log.txt go to {results}.")
    return 0


def watch(results: Path, seconds: float) -> int:
    """Print what a run in the background prints, until it ends or the time is over."""
    process, log = int((results / "pid").read_text(encoding="utf-8")), results / "log.txt"
    started, seen = time.monotonic(), 0
    while True:
        running = is_running(process)
        text = log.read_text(encoding="utf-8", errors="replace")
        print(text[seen:], end="", flush=True)
        seen = len(text)
        if not running:
            print("The run has ended.")
            return 0
        if time.monotonic() - started > seconds:
            print(f"The run goes on; {results} has what was seen.")
            return 0
        time.sleep(2)


def is_running(process: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        os.kill(process, 0)
        state = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


if __name__ == "__main__":
    sys.exit(main())
