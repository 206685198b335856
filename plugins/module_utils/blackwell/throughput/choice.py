"""Whether speculation earns its place on this host, and up to which concurrency."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from ..errors import OperatorError
from ..files import replace
from .intervals import ratio_interval
from .judge import differences, point_name
from .policy import SPECULATIVE_PROFILE, Policy
from .result import STANDARD, Result

_FIGURE = "decode_tok_s"
_PLAIN_PROFILE = "baseline"
_SCHEMA = 1


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
    """The profile that serves, and why. Above the concurrency ``crossover`` speculation loses, if ever.

    ``release`` is the one that both profiles were measured of.
    """

    release: str
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


def choose_profile(
    speculative: Result, plain: Result, policy: Policy, refused: Mapping[str, str] | None = None
) -> Choice:
    """The faster profile at the lowest concurrency that was measured; a tie goes to the plain one.

    Faster means that the whole interval of the decode ratio lies above 1: a gain that noise could have made
    does not pay for a drafter. Losses at higher concurrencies are told, with the crossover between points.

    Args:
        speculative: the result of eagle3.
        plain: the result of baseline, of the same release.
        policy: the rules of the judge, whose error rate is used.
        refused: profiles that the judge did not accept, with the headline of the verdict. They do not serve,
            however fast they are.

    Raises:
        OperatorError: not one measurement of both profiles (same host, release, prompts, client and load), or
            neither was accepted.
    """
    differing = [line for line in differences(speculative, plain) if not line.startswith("profile ")]
    if speculative.release != plain.release:
        differing.append(f"release {plain.release} -> {speculative.release}")
    if (speculative.profile, plain.profile) != (SPECULATIVE_PROFILE, _PLAIN_PROFILE):
        differing.append(f"profiles {speculative.profile} and {plain.profile}")
    steps = _steps(speculative, plain, policy)
    refused = refused or {}
    if len(refused) == 2:
        raise OperatorError(
            "Neither profile is good enough to serve",
            found="; ".join(f"{profile}: {refused[profile]}" for profile in sorted(refused)),
            expected="one that the judge accepts",
            remedy="look at what the verdicts blame",
        )
    if differing or not (steps or refused):
        raise OperatorError(
            "The two profiles cannot be compared",
            found="; ".join(differing) or "no point that both have measured",
            expected="the profiles eagle3 and baseline of one release, measured alike on one host",
            remedy="measure both profiles anew",
        )
    if refused:
        ((profile, headline),) = refused.items()
        other = _PLAIN_PROFILE if profile == SPECULATIVE_PROFILE else SPECULATIVE_PROFILE
        reason = f"Profile {other} serves: {profile} is not good enough ({headline.rstrip('.')})"
        return Choice(
            plain.release, other, reason, _crossover([s for s in steps if s.prompts == STANDARD]), steps
        )
    standard = [step for step in steps if step.prompts == STANDARD] or steps
    crossover = _crossover(standard)
    first = standard[0]
    faster = first.low is not None and first.low > 0
    compared = f"{first.eagle3:.1f} tok/s against {first.baseline:.1f} at {first.point} ({first.gain:+.1%}"
    if first.low is not None and first.high is not None:
        compared += f", {first.low:+.1%} to {first.high:+.1%}"
    reason = (
        f"Profile {SPECULATIVE_PROFILE if faster else _PLAIN_PROFILE} serves: speculation gives {compared})"
    )
    if not faster and first.gain > 0:
        reason += "; a gain that noise could have made does not count"
    if faster and crossover is not None:
        reason += f"; it loses above about {crossover:.0f} requests at once"
    losing = [step.point for step in steps if step.high is not None and step.high < 0]
    if faster and losing:
        reason += f"; it is slower at {', '.join(losing)}"
    return Choice(plain.release, SPECULATIVE_PROFILE if faster else _PLAIN_PROFILE, reason, crossover, steps)


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


def stored_choice(path: Path, fingerprint: str) -> Choice | None:
    """The choice that was made on this host; None without one, and when the host is not what it was then.

    Raises:
        OperatorError: the file is not a choice.
    """
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        if stored["schema"] != _SCHEMA:
            raise ValueError(f"schema {stored['schema']!r}, expected {_SCHEMA}")
        return Choice.from_json(stored["choice"]) if stored["fingerprint"] == fingerprint else None
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise OperatorError(
            "The choice of the profile that serves cannot be read",
            found=f"{path}: {error}",
            expected="what an earlier rollout wrote",
            remedy="remove the file; the next rollout measures both profiles again",
        ) from error


def store_choice(path: Path, fingerprint: str, choice: Choice) -> None:
    """Keep a choice for later rollouts on this host."""
    stored = {"schema": _SCHEMA, "fingerprint": fingerprint, "choice": choice.to_json()}
    replace(path, json.dumps(stored, indent=1) + "\n")
