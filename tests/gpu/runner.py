"""Steps with a name, a limit in time and a result that is written at once."""

from __future__ import annotations

import json
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

PASS = "pass"
FAIL = "fail"
NOT_RUN = "not run"


class NotRun(Exception):
    """This machine cannot show what the step is about; the message says why."""


class Failed(Exception):
    """What was found is not what was expected. ``figures`` are what was seen all the same."""

    def __init__(self, message: str, figures: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.figures = figures or {}


class OutOfTime(Exception):
    """A step took longer than its limit."""


@dataclass(frozen=True)
class Step:
    """One step.

    ``run`` returns what was seen, or raises :class:`NotRun` or :class:`Failed`. ``limit_s`` ends it. ``needs`` are
    steps without whose pass it cannot run.
    """

    name: str
    title: str
    run: Callable[[], dict[str, Any]]
    limit_s: float
    needs: tuple[str, ...] = ()


@dataclass
class Outcome:
    """What became of a step. ``reason`` says why it is no pass; ``figures`` are what was seen."""

    name: str
    title: str
    result: str
    seconds: float = 0.0
    reason: str = ""
    figures: dict[str, Any] = field(default_factory=dict)


class Record:
    """The results of all steps, in one JSON file that is written after each of them."""

    def __init__(self, path: Path, about: dict[str, Any]) -> None:
        self.path = path
        self.about = about
        self.outcomes: dict[str, Outcome] = {}

    @classmethod
    def read(cls, path: Path) -> Record:
        """What an earlier run wrote."""
        data = json.loads(path.read_text(encoding="utf-8"))
        record = cls(path, data["about"])
        record.outcomes = {each["name"]: Outcome(**each) for each in data["steps"]}
        return record

    def add(self, outcome: Outcome) -> None:
        """Keep an outcome, in place of an earlier one of the step."""
        self.outcomes[outcome.name] = outcome
        self.write()

    def write(self) -> None:
        """Write the file as a whole, so that it is never read half."""
        data = {"about": self.about, "steps": [asdict(outcome) for outcome in self.outcomes.values()]}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        draft = self.path.with_suffix(".part")
        draft.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
        draft.replace(self.path)

    def result(self, name: str) -> str:
        """A step's result; ``not run`` where it has none."""
        return self.outcomes[name].result if name in self.outcomes else NOT_RUN


def run_steps(
    steps: Sequence[Step],
    record: Record,
    *,
    deadline: float | None = None,
    say: Callable[[str], None] = print,
    after: Callable[[], None] = lambda: None,
) -> bool:
    """Run steps in their order; whether none failed.

    Args:
        steps: what is run.
        record: where results go. A step that it has a pass of is not run again.
        deadline: ``time.monotonic()`` at which no step may run any more; None for no such time.
        say: told of each step.
        after: called after each step, for what else is to be kept at once.
    """
    for step in steps:
        if record.result(step.name) == PASS:
            continue
        outcome = _run(step, record, deadline)
        record.add(outcome)
        say(
            f"{outcome.result:8} {outcome.name} ({outcome.seconds:.0f} s)"
            + (f": {outcome.reason}" if outcome.reason else "")
        )
        after()
    return all(record.result(step.name) != FAIL for step in steps)


def _run(step: Step, record: Record, deadline: float | None) -> Outcome:
    outcome = Outcome(step.name, step.title, NOT_RUN)
    lacking = [name for name in step.needs if record.result(name) != PASS]
    if lacking:
        outcome.reason = f"it needs {', '.join(lacking)}, which did not pass"
        return outcome
    left = step.limit_s if deadline is None else min(step.limit_s, deadline - time.monotonic())
    if left < 5:
        outcome.reason = "no time was left"
        return outcome
    started = time.monotonic()
    try:
        with limit(left):
            outcome.figures = step.run()
        outcome.result = PASS
    except NotRun as reason:
        outcome.reason = str(reason)
    except Failed as failure:
        outcome.result, outcome.reason, outcome.figures = FAIL, str(failure), failure.figures
    except OutOfTime:
        cut = left < step.limit_s
        outcome.result = NOT_RUN if cut else FAIL
        outcome.reason = (
            "the time of the whole run ended" if cut else f"it took longer than {step.limit_s:.0f} s"
        )
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        outcome.result = FAIL
        outcome.reason = f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"[
            :1500
        ]
    outcome.seconds = round(time.monotonic() - started, 1)
    return outcome


@contextmanager
def limit(seconds: float) -> Iterator[None]:
    """Raise :class:`OutOfTime` in the main thread after ``seconds``, also out of a wait for another process."""

    def ring(_number: int, _frame: FrameType | None) -> None:
        raise OutOfTime

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
