"""Whether speculation earns its place on this host, and up to which concurrency."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from ..errors import OperatorError
from .intervals import ratio_interval
from .judge import differences, point_name
from .policy import SPECULATIVE_PROFILE, Policy
from .result import STANDARD, Result

_FIGURE = "decode_tok_s"
_PLAIN_PROFILE = "baseline"


@dataclass(frozen=True)
class Step:
    """Decode speed of both profiles at one point; ``gain`` is eagle3 / baseline - 1, with its interval."""

    point: str
    concurrency: int
    prompts: str
    eagle3: float
    baseline: float
    gain: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Choice:
    """The profile that serves, and why. Above the concurrency ``crossover`` speculation loses, if ever."""

    profile: str
    reason: str
    crossover: float | None
    steps: list[Step]

    def to_json(self) -> dict[str, Any]:
        """Plain data for ``json.dump``."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Choice:
        """Read what :meth:`to_json` wrote.

        Raises:
            ValueError: a field that is missing or unknown.
        """
        try:
            return cls(**{**data, "steps": [Step(**step) for step in data["steps"]]})
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a choice of profiles: {error}") from error


def choose_profile(speculative: Result, plain: Result, policy: Policy) -> Choice:
    """The faster profile at the lowest concurrency that was measured; a tie goes to the plain one.

    Faster means that the whole interval of the decode ratio lies above 1: a gain that noise could have made
    does not pay for a drafter. Losses at higher concurrencies are told, with the crossover between points.

    Raises:
        OperatorError: not one measurement of both profiles (same host, release, prompts, client and load).
    """
    differing = [line for line in differences(speculative, plain) if not line.startswith("profile ")]
    if speculative.release != plain.release:
        differing.append(f"release {plain.release} -> {speculative.release}")
    if (speculative.profile, plain.profile) != (SPECULATIVE_PROFILE, _PLAIN_PROFILE):
        differing.append(f"profiles {speculative.profile} and {plain.profile}")
    steps = _steps(speculative, plain, policy)
    if differing or not steps:
        raise OperatorError(
            "The two profiles cannot be compared",
            found="; ".join(differing) or "no point that both have measured",
            expected="eagle3 and baseline of one release, measured alike on one host",
            remedy="measure both profiles anew",
        )
    standard = [step for step in steps if step.prompts == STANDARD] or steps
    crossover = _crossover(standard)
    first = standard[0]
    faster = first.low is not None and first.low > 0
    compared = f"{first.eagle3:.1f} tok/s against {first.baseline:.1f} at {first.point} ({first.gain:+.1%}"
    if first.low is not None and first.high is not None:
        compared += f", {first.low:+.1%} to {first.high:+.1%}"
    reason = f"{SPECULATIVE_PROFILE if faster else _PLAIN_PROFILE} serves: speculation gives {compared})"
    if not faster and first.gain > 0:
        reason += "; a gain that noise could have made does not count"
    if faster and crossover is not None:
        reason += f"; it loses above about {crossover:.0f} requests at once"
    losing = [step.point for step in steps if step.high is not None and step.high < 0]
    if faster and losing:
        reason += f"; it is slower at {', '.join(losing)}"
    return Choice(SPECULATIVE_PROFILE if faster else _PLAIN_PROFILE, reason, crossover, steps)


def _steps(speculative: Result, plain: Result, policy: Policy) -> list[Step]:
    steps = []
    for point in sorted(speculative.points, key=lambda point: (point.prompts != STANDARD, point.concurrency)):
        other = plain.point(point.concurrency, point.prompts)
        mine, theirs = point.samples(_FIGURE), other.samples(_FIGURE) if other else []
        if not mine or not theirs or min(*mine, *theirs) <= 0:
            continue
        ratio = ratio_interval(mine, theirs, policy.error_rate)
        bounded = ratio.low > 0 and math.isfinite(ratio.high)
        steps.append(
            Step(
                point=point_name(point),
                concurrency=point.concurrency,
                prompts=point.prompts,
                eagle3=median(mine),
                baseline=median(theirs),
                gain=ratio.estimate - 1,
                low=ratio.low - 1 if bounded else None,
                high=ratio.high - 1 if bounded else None,
            )
        )
    return steps


def _crossover(steps: list[Step]) -> float | None:
    """Where the gain falls through 0, interpolated over log concurrency; None when it never does."""
    for before, after in zip(steps, steps[1:]):
        if before.gain > 0 >= after.gain:
            part = before.gain / (before.gain - after.gain)
            span = math.log(after.concurrency) - math.log(before.concurrency)
            return math.exp(math.log(before.concurrency) + part * span)
    return None
