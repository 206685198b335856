"""What a release has to keep to be accepted."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from ..errors import OperatorError
from .intervals import look_error, look_sizes
from .legend import FIGURES
from .result import STANDARD

JUDGED = ("decode_tok_s", "output_tok_s", "accept_length", "step_rate", "ttft_s")
SPECULATIVE_PROFILE = "eagle3"
_POINT = re.compile(r"[1-9][0-9]*(/(standard|long))?")
_T = TypeVar("_T")


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
        min_accept_length: below it speculation only costs, whatever the baseline did. Judged with standard
            prompts: a drafter whose window is shorter than a long prompt is right less often there.
        drafting_margin: fall of the accept length from few requests at once to many that is still no fault,
            as a fraction. More requests bring other prompts, which move it by a few percent.
        weights: point -> how much it counts where a profile is chosen. A measured point that is not named
            counts 0. Empty: every measured point counts the same.
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
    drafting_margin: float = 0.08
    weights: Mapping[str, float] = field(default_factory=dict)
    min_graph_share: float | None = None
    accept_undecidable: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.min_runs <= self.max_runs:
            raise OperatorError(
                "The numbers of runs contradict each other",
                found=f"at least {self.min_runs}, at most {self.max_runs}",
                expected="1 <= least <= most",
            )
        margins = {"margin": self.margin, "error_rate": self.error_rate, **self.margins}
        for name, value in {**margins, "drafting_margin": self.drafting_margin}.items():
            # Half a speed is half the work; half as much time again is a wait.
            limit = 1.0 if name in FIGURES and FIGURES[name].less_is_better else 0.5
            _require(name, value, 0 < value < limit, f"a fraction between 0 and {limit:g}")
        for name, share in (
            ("max_failure_share", self.max_failure_share),
            ("min_graph_share", self.min_graph_share or 0.0),
        ):
            _require(name, share, 0 <= share <= 1, "a fraction from 0 to 1")
        _require(
            "min_accept_length", self.min_accept_length, math.isfinite(self.min_accept_length), "a number"
        )
        _require_figures(self.margins, self.floors)
        _require_weights(self.weights)

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
        return dict(_at(self.floors.get(profile, {}), concurrency, prompts) or {})

    def weight_at(self, concurrency: int, prompts: str) -> float:
        """How much one point counts where a profile is chosen."""
        return (_at(self.weights, concurrency, prompts) or 0.0) if self.weights else 1.0

    def unknown_weights(self, points: Iterable[tuple[int, str]]) -> list[str]:
        """The weighted points that are none of these (concurrency and kind of prompts)."""
        known = {name for concurrency, prompts in points for name in point_keys(concurrency, prompts)}
        return [str(point) for point in self.weights if str(point) not in known]

    def looks(self) -> list[int]:
        """After how many valid runs the figures may be looked at."""
        return look_sizes(self.min_runs, self.max_runs)

    def error_at(self, runs: int) -> float:
        """The error, on each side, that a look after this many valid runs may spend; 0 before the first."""
        if runs < self.min_runs:
            return 0.0
        return look_error(runs, self.looks(), self.error_rate)


def point_keys(concurrency: int, prompts: str) -> list[str]:
    """What an inventory may call a point: a concurrency (``8``), or that and the kind of prompts (``1/long``)."""
    return [f"{concurrency}/{prompts}", *([str(concurrency)] if prompts == STANDARD else [])]


def _at(points: Mapping[Any, _T], concurrency: int, prompts: str) -> _T | None:
    wanted = point_keys(concurrency, prompts)
    return next((value for point, value in points.items() if str(point) in wanted), None)


def _require(name: str, value: float, fine: bool, expected: str) -> None:
    if not fine:
        raise OperatorError(f"{name} is out of range", found=str(value), expected=expected)


def _require_figures(margins: Mapping[str, float], floors: Mapping[str, Mapping[Any, Any]]) -> None:
    at = [(profile, point, its) for profile, points in floors.items() for point, its in points.items()]
    unknown = sorted(set(margins).union(*(its for _, _, its in at)) - set(FIGURES))
    if unknown:
        raise OperatorError(
            "A margin or floor names a figure that is not measured",
            found=", ".join(unknown),
            expected=f"one of {', '.join(FIGURES)}",
        )
    for profile, point, its in at:
        for figure, value in its.items():
            fine = 0 < value < math.inf
            _require(f"The floor {profile}.{point}.{figure}", value, fine, "a number above 0")


def _require_weights(weights: Mapping[str, float]) -> None:
    for point, value in weights.items():
        if not _POINT.fullmatch(str(point)):
            raise OperatorError(
                "A weight names no point",
                found=repr(point),
                expected="a concurrency, or one with /long: 8, 1/long",
            )
        _require(f"The weight of {point}", value, 0 <= value < math.inf, "0 or more")
    if weights and not any(weights.values()):
        raise OperatorError(
            "All weights are 0, so no point would choose the profile",
            found=", ".join(f"{point}: {value:g}" for point, value in weights.items()),
            expected="at least one above 0, or none at all for equal ones",
        )


def _as_is(_key: str, value: Any) -> Any:
    return value


def _float(key: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise OperatorError(f"{key} is not a number", found=repr(value)) from error
    if not math.isfinite(number) or isinstance(value, bool):
        raise OperatorError(f"{key} is not a number", found=repr(value))
    return number


def _int(key: str, value: Any) -> int:
    return int(_float(key, value))


def _mapping(key: str, value: Any) -> Mapping[Any, Any]:
    if not isinstance(value, Mapping):
        raise OperatorError(f"{key} is not a mapping", found=repr(value), expected="names and values")
    return value


def _by_name(key: str, values: Any) -> dict[str, float]:
    return {str(name): _float(f"{key}.{name}", value) for name, value in _mapping(key, values).items()}


def _floors(key: str, profiles: Any) -> dict[str, Any]:
    return {
        profile: {
            str(at): _by_name(f"{key}.{profile}.{at}", floors)
            for at, floors in _mapping(f"{key}.{profile}", points).items()
        }
        for profile, points in _mapping(key, profiles).items()
    }


_READERS: dict[str, Callable[[str, Any], Any]] = {
    "margin": _float,
    "margins": _by_name,
    "floors": _floors,
    "weights": _by_name,
    "min_runs": _int,
    "max_runs": _int,
    "error_rate": _float,
    "max_failure_share": _float,
    "min_accept_length": _float,
    "drafting_margin": _float,
    "min_graph_share": _float,
}
