"""One stored check: the result, what the judge said, and which profile it led to."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .choice import Choice
from .result import Result
from .verdict import Verdict

SCHEMA = 1


@dataclass(frozen=True)
class Record:
    """What a report is made of. ``verdict`` and ``choice`` are None where nothing was judged or chosen."""

    result: Result
    verdict: Verdict | None = None
    choice: Choice | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain data for ``json.dump``; ``docs/schemas/throughput-record.schema.json`` describes it."""
        return {
            "schema": SCHEMA,
            "result": self.result.to_json(),
            "verdict": self.verdict.to_json() if self.verdict else None,
            "choice": self.choice.to_json() if self.choice else None,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Record:
        """Read what :meth:`to_json` wrote; a ``schema`` that is absent counts as the present one.

        Raises:
            ValueError: another schema version, or a part that is not what it should be.
        """
        if data.get("schema", SCHEMA) != SCHEMA:
            raise ValueError(f"throughput record has schema {data['schema']!r}, expected {SCHEMA}")
        if not isinstance(data.get("result"), dict):
            raise ValueError("throughput record has no result")
        try:
            return cls(
                result=Result.from_json(data["result"]),
                verdict=Verdict.from_json(data["verdict"]) if data.get("verdict") else None,
                choice=Choice.from_json(data["choice"]) if data.get("choice") else None,
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"throughput record: {type(error).__name__}: {error}") from error

    def text(self) -> str:
        """The record as it is stored: stable, one value a line."""
        return json.dumps(self.to_json(), indent=1, sort_keys=True) + "\n"

    def file_name(self) -> str:
        """A name that sorts by time and is safe in any file system."""
        time = self.result.taken_at.replace("+00:00", "Z")
        return re.sub(r"[^A-Za-z0-9.-]+", "", f"{time}-{self.result.profile}") + ".json"
