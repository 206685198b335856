"""What a release has to keep to be accepted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from ..errors import OperatorError
from .intervals import look_error, look_sizes
from .legend import FIGURES
from .result import STANDARD

JUDGED = ("decode_tok_s", "output_tok_s", "accept_length", "step_rate", "ttft_s")
SPECULATIVE_PROFILE = "eagle3"


@dataclass(frozen=True)
class Policy:
    """The rules of a verdict.

    Args:
        margin: loss of a figure that is still as good as the baseline, as a fraction (for ``ttft_s``: rise).
        margins: the same for single figures, below 0.5, and below 1 for times. TTFT has twice the
            margin because it is short and noisy.
        floors: profile -> point -> figure -> value. They decide when there is no baseline. A point is a
            concurrency (``8``) or a concurrency and a kind of prompts (``1/long``). For a figure of which
            less is better (``ttft_s``) the value is a ceiling.
        min_runs: valid runs before the first look.
        max_runs: valid runs after which a figure that is still open is undecidable.
        error_rate: chance, over all looks, that one figure of a release which lost exactly its margin
            passes; and, apart from that, that it fails.
        max_failure_share: share of failed requests that is tolerated.
        min_accept_length: below it speculation only costs, whatever the baseline did.
        min_graph_share: share of passes that have to run as CUDA graphs; None where there are no graphs.
        accept_undecidable: take a release whose figures are too noisy to decide, though never one that was
            not measured.
    """

    margin: float = 0.05
    margins: Mapping[str, float] = field(default_factory=lambda: {"ttft_s": 0.10})
    floors: Mapping[str, Mapping[Any, Mapping[str, float]]] = field(default_factory=dict)
    min_runs: int = 5
    max_runs: int = 20
    error_rate: float = 0.05
    max_failure_share: float = 0.0
    min_accept_length: float = 1.5
    min_graph_share: float | None = None
    accept_undecidable: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.min_runs <= self.max_runs:
            raise OperatorError(
                "The numbers of runs contradict each other",
                found=f"at least {self.min_runs}, at most {self.max_runs}",
                expected="1 <= least <= most",
            )
        for name, value in (("margin", self.margin), ("error_rate", self.error_rate), *self.margins.items()):
            # Half a speed is half the work; half as much time again is a wait.
            limit = 1.0 if name in FIGURES and FIGURES[name].less_is_better else 0.5
            if not 0 < value < limit:
                raise OperatorError(
                    f"{name} is out of range",
                    found=str(value),
                    expected=f"a fraction between 0 and {limit:g}",
                )
        named = set(self.margins).union(
            *(figures for points in self.floors.values() for figures in points.values())
        )
        unknown = sorted(named - set(FIGURES))
        if unknown:
            raise OperatorError(
                "A margin or floor names a figure that is not measured",
                found=", ".join(unknown),
                expected=f"one of {', '.join(FIGURES)}",
            )

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Policy:
        """Read a policy from inventory data; keys that are absent, None or empty keep their default.

        Numbers may be written as text, as they are on a command line.

        Raises:
            OperatorError: an unknown key, or values that are no numbers or contradict each other.
        """
        known = {item.name for item in fields(cls)}
        unknown = sorted(set(data) - known)
        if unknown:
            raise OperatorError(
                "The throughput policy has unknown settings",
                found=", ".join(unknown),
                expected=f"some of {', '.join(sorted(known))}",
            )
        given = {key: value for key, value in data.items() if value not in (None, "")}
        return cls(**{key: _READERS.get(key, _as_is)(key, value) for key, value in given.items()})

    def margin_of(self, figure: str) -> float:
        """The tolerated loss of one figure, as a fraction."""
        return self.margins.get(figure, self.margin)

    def floors_at(self, profile: str, concurrency: int, prompts: str) -> dict[str, float]:
        """The floors of one point."""
        wanted = {f"{concurrency}/{prompts}"} | ({str(concurrency)} if prompts == STANDARD else set())
        for point, floors in self.floors.get(profile, {}).items():
            if str(point) in wanted:
                return dict(floors)
        return {}

    def looks(self) -> list[int]:
        """After how many valid runs the figures may be looked at."""
        return look_sizes(self.min_runs, self.max_runs)

    def error_at(self, runs: int) -> float:
        """The error, on each side, that a look after this many valid runs may spend; 0 before the first."""
        if runs < self.min_runs:
            return 0.0
        return look_error(runs, self.looks(), self.error_rate)


def _as_is(_key: str, value: Any) -> Any:
    return value


def _float(key: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise OperatorError(f"{key} is not a number", found=repr(value)) from error


def _int(key: str, value: Any) -> int:
    return int(_float(key, value))


def _by_figure(key: str, values: Mapping[str, Any]) -> dict[str, float]:
    return {figure: _float(f"{key}.{figure}", value) for figure, value in values.items()}


def _floors(key: str, profiles: Mapping[str, Mapping[Any, Mapping[str, Any]]]) -> dict[str, Any]:
    return {
        profile: {str(at): _by_figure(f"{key}.{profile}.{at}", floors) for at, floors in points.items()}
        for profile, points in profiles.items()
    }


_READERS: dict[str, Callable[[str, Any], Any]] = {
    "margin": _float,
    "margins": _by_figure,
    "floors": _floors,
    "min_runs": _int,
    "max_runs": _int,
    "error_rate": _float,
    "max_failure_share": _float,
    "min_accept_length": _float,
    "min_graph_share": _float,
}
