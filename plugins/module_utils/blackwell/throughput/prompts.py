"""The committed prompt set: which prompts a run sends, and the hash that ties a result to them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from ..errors import OperatorError
from .result import LONG, STANDARD


@dataclass(frozen=True)
class Prompt:
    """One prompt. ``kind`` is the class it stands for: code, prose, question, tool or long."""

    id: str
    kind: str
    text: str


@dataclass(frozen=True)
class PromptSet:
    """The prompts of one file and the SHA-256 of its bytes."""

    prompts: list[Prompt]
    sha256: str

    def pick(self, count: int, prompts: str = STANDARD) -> list[Prompt]:
        """The first ``count`` prompts, the kinds taken in turn, so that a short run has all of them.

        Raises:
            OperatorError: there are not that many. Sending a prompt twice in a run would measure the cache.
        """
        columns: dict[str, list[Prompt]] = {}
        for prompt in self.prompts:
            if (prompt.kind == LONG) == (prompts == LONG):
                columns.setdefault(prompt.kind, []).append(prompt)
        depth = max((len(column) for column in columns.values()), default=0)
        ordered = [column[row] for row in range(depth) for column in columns.values() if row < len(column)]
        if count > len(ordered):
            raise OperatorError(
                f"The prompt set is too small for a run of {count} requests",
                found=f"{len(ordered)} {prompts} prompts",
                expected=f"at least {count}, each sent once",
                remedy="lower throughput_check_concurrency or throughput_check_requests_per_slot, or add prompts",
            )
        return ordered[:count]


def _prompt(line: bytes, place: str) -> Prompt:
    try:
        prompt = Prompt(**json.loads(line))
        if not all(isinstance(value, str) for value in (prompt.id, prompt.kind, prompt.text)):
            raise TypeError("a value is no text")
    except (ValueError, TypeError, RecursionError) as error:
        raise OperatorError(
            "The prompt file has a line that is not a prompt",
            found=f"{place}: {error}",
            expected='{"id": ..., "kind": ..., "text": ...}',
            remedy="correct throughput_check_prompts, and run site.yml, which copies it to the host",
        ) from error
    return prompt


def load(path: Path) -> PromptSet:
    """Read a prompt file: one JSON object a line, with ``id``, ``kind`` and ``text``.

    Raises:
        OperatorError: the file is missing, or a line is not such an object, or an id occurs twice.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise OperatorError(
            "The prompt file cannot be read",
            found=str(error),
            expected="a readable JSON lines file",
            remedy="run site.yml, which copies throughput_check_prompts to the host",
        ) from error
    prompts = [
        _prompt(line, f"{path}:{number}")
        for number, line in enumerate(content.removesuffix(b"\n").split(b"\n"), start=1)
    ]
    repeated = {prompt.id for prompt in prompts if [other.id for other in prompts].count(prompt.id) > 1}
    if repeated:
        raise OperatorError(
            "A prompt id occurs twice", found=", ".join(sorted(repeated)), expected="unique ids"
        )
    return PromptSet(prompts=prompts, sha256=hashlib.sha256(content).hexdigest())
