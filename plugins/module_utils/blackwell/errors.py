"""The one kind of error that an operator is meant to read."""

from __future__ import annotations


class OperatorError(Exception):
    """Something about the host, the inventory or a file that an operator can mend.

    Args:
        problem: what went wrong, as one sentence without a full stop.
        found: what is there now.
        expected: what would have been right.
        remedy: the command or the setting that mends it.
    """

    def __init__(self, problem: str, *, found: str = "", expected: str = "", remedy: str = "") -> None:
        super().__init__(problem)
        self.problem = problem
        self.found = found
        self.expected = expected
        self.remedy = remedy

    def __str__(self) -> str:
        parts = [f"{self.problem}."]
        for label, text in (("Found", self.found), ("Expected", self.expected), ("To mend it", self.remedy)):
            if text:
                parts.append(f"{label}: {text.rstrip('.')}.")
        return " ".join(parts)
