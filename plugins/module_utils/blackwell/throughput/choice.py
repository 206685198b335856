"""Whether speculation earns its place on this host, over all points that count, and what either choice gives up."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from shlex import quote
from statistics import median
from typing import Any

from ..errors import OperatorError
from ..files import replace
from ..json_reader import read_object
from .intervals import Interval, ratio_interval
from .judge import differences, point_name
from .plain import build, listed, part
from .points import are_figures
from .policy import SPECULATIVE_PROFILE, Policy
from .result import LONG, STANDARD, Point, Result

_FIGURE = "decode_tok_s"
_PLAIN_PROFILE = "baseline"
_SCHEMA = 1
# A gain this near to -100 % is told as such.
_LEAST_RATIO = 1e-9


@dataclass(frozen=True)
class Step:
    """Decode speed of both profiles at one point; ``gain`` is eagle3 / baseline - 1, with its interval.

    ``weight`` is how much the point counted; None in choices of earlier versions, which did not weigh.
    """

    point: str
    concurrency: int
    prompts: str
    eagle3: float
    baseline: float
    gain: float
    low: float | None
    high: float | None
    weight: float | None = None


@dataclass(frozen=True)
class Choice:
    """The profile that serves, and why. Above the concurrency ``crossover`` speculation loses, if ever.

    ``release`` is the one that both profiles were measured of. ``gain`` is the weighted mean of the gains with its
    interval, None where it is not known. ``given_up`` says where the profile that serves is the slower one.
    """

    release: str
    profile: str
    reason: str
    crossover: float | None
    steps: list[Step]
    gain: float | None = None
    low: float | None = None
    high: float | None = None
    given_up: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Plain data for ``json.dump``."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Any) -> Choice:
        """Read what :meth:`to_json` wrote, in this version or an earlier one.

        Raises:
            ValueError: a field that is missing, unknown or of another type.
        """
        steps = [build(Step, step) for step in listed("Choice.steps", part(data, "steps"))]
        choice = build(cls, {**data, "steps": steps})
        if choice.profile not in (SPECULATIVE_PROFILE, _PLAIN_PROFILE):
            raise ValueError(f"Choice.profile is {choice.profile!r}")
        return choice


def choose_profile(
    speculative: Result, plain: Result, policy: Policy, refused: Mapping[str, str] | None = None
) -> Choice:
    """The faster profile over all points, each with its weight; a tie goes to the plain one.

    Faster means that the whole interval of the weighted mean of the decode ratios lies above 1: a gain that noise
    could have made does not pay for a drafter. What the profile that serves is slower at is told, point by point.

    Args:
        speculative: the result of eagle3.
        plain: the result of baseline, of the same release.
        policy: the rules of the judge, whose weights, margin and error rate are used.
        refused: profiles that the judge did not accept, with the headline of the verdict. They do not serve,
            however fast they are.

    Raises:
        OperatorError: not one measurement of both profiles (same host, release, prompts, client and load), a weight
            of a point that was not measured, or neither profile was accepted.
    """
    refused = refused or {}
    _require_accepted(refused)
    _require_alike(speculative, plain)
    _require_weighted_points(speculative, plain, policy)
    pairs, unknown = _pairs(speculative, plain, policy)
    if not (pairs or refused):
        raise _incomparable("no point that both have measured")
    steps = [_step(point, mine, theirs, weight, policy) for point, mine, theirs, weight in pairs]
    gain = None if unknown else _mean_gain([pair[1:] for pair in pairs], policy.error_rate)
    crossover = _crossover([step for step in steps if step.prompts == STANDARD])
    if refused:
        ((profile, headline),) = refused.items()
        serves = _PLAIN_PROFILE if profile == SPECULATIVE_PROFILE else SPECULATIVE_PROFILE
        why = f"{profile} is not good enough ({headline.rstrip('.')})"
    else:
        serves, why = _faster(steps, unknown, gain, crossover)
    given_up = _given_up(serves, steps, policy.margin)
    if given_up:
        why += f"; that gives up speed at {', '.join(given_up)}"
    bounded = gain is not None and gain.low > 0 and math.isfinite(gain.high)
    return Choice(
        release=plain.release,
        profile=serves,
        reason=f"Profile {serves} serves: {why}",
        crossover=crossover,
        steps=steps,
        gain=gain.estimate - 1 if gain else None,
        low=gain.low - 1 if gain and bounded else None,
        high=gain.high - 1 if gain and bounded else None,
        given_up=given_up,
    )


def _require_accepted(refused: Mapping[str, str]) -> None:
    if len(refused) == 2:
        raise OperatorError(
            "Neither profile is good enough to serve",
            found="; ".join(f"{profile}: {refused[profile]}" for profile in sorted(refused)),
            expected="one that the judge accepts",
            remedy="look at what the verdicts blame",
        )


def _incomparable(found: str) -> OperatorError:
    return OperatorError(
        "The two profiles cannot be compared",
        found=found,
        expected="the profiles eagle3 and baseline of one release, measured alike on one host",
        remedy="measure both profiles anew",
    )


def _require_alike(speculative: Result, plain: Result) -> None:
    differing = [line for line in differences(speculative, plain) if not line.startswith("profile ")]
    if speculative.release != plain.release:
        differing.append(f"release {plain.release} -> {speculative.release}")
    if (speculative.profile, plain.profile) != (SPECULATIVE_PROFILE, _PLAIN_PROFILE):
        differing.append(f"profiles {speculative.profile} and {plain.profile}")
    if differing:
        raise _incomparable("; ".join(differing))


def _require_weighted_points(speculative: Result, plain: Result, policy: Policy) -> None:
    points = {(point.concurrency, point.prompts) for point in (*speculative.points, *plain.points)}
    unknown = policy.unknown_weights(points)
    if unknown:
        known = [str(slots) if kind == STANDARD else f"{slots}/{kind}" for slots, kind in sorted(points)]
        raise OperatorError(
            "throughput_check_weights names points that were not measured",
            found=", ".join(unknown),
            expected=f"some of {', '.join(known)}",
            remedy="correct it, or add the points to throughput_check_concurrency, long ones to "
            "throughput_check_long_concurrency",
        )


# A point, its figures with speculation and without, and its weight.
_Pair = tuple[Point, Sequence[float], Sequence[float], float]


def _pairs(speculative: Result, plain: Result, policy: Policy) -> tuple[list[_Pair], list[str]]:
    """What can be compared, and the names of the points that count and cannot."""
    points = {(point.concurrency, point.prompts): point for point in (*plain.points, *speculative.points)}
    pairs: list[_Pair] = []
    unknown = []
    for at, point in sorted(points.items(), key=lambda item: (item[0][1] == LONG, item[0])):
        mine, theirs = (
            found.samples(_FIGURE) if found else [] for found in (speculative.point(*at), plain.point(*at))
        )
        weight = policy.weight_at(*at)
        if are_figures(mine) and are_figures(theirs):
            pairs.append((point, mine, theirs, weight))
        elif weight:
            unknown.append(point_name(point))
    return pairs, unknown


def _step(
    point: Point, mine: Sequence[float], theirs: Sequence[float], weight: float, policy: Policy
) -> Step:
    ratio = ratio_interval(mine, theirs, policy.error_rate)
    bounded = ratio.low > 0 and math.isfinite(ratio.high)
    return Step(
        point=point_name(point),
        concurrency=point.concurrency,
        prompts=point.prompts,
        eagle3=median(mine),
        baseline=median(theirs),
        gain=ratio.estimate - 1,
        low=ratio.low - 1 if bounded else None,
        high=ratio.high - 1 if bounded else None,
        weight=weight,
    )


def _mean_gain(
    figures: Sequence[tuple[Sequence[float], Sequence[float], float]], error: float
) -> Interval | None:
    """The weighted geometric mean of the ratios; None when nothing counts.

    The error is divided among the points: then all their intervals hold at once, and so does the one of the mean,
    whatever the points have in common. It is wider than it need be, never narrower.
    """
    counted = [figure for figure in figures if figure[2]]
    if not counted:
        return None
    ratios = [ratio_interval(mine, theirs, error / len(counted)) for mine, theirs, _ in counted]
    heaviest = max(weight for _, _, weight in counted)
    shares = [weight / heaviest for _, _, weight in counted]

    def mean(values: Sequence[float]) -> float:
        logs = math.fsum(share * math.log(value) for share, value in zip(shares, values))
        return math.exp(logs / math.fsum(shares))

    estimate = mean([ratio.estimate for ratio in ratios])
    if any(ratio.low <= 0 or math.isinf(ratio.high) for ratio in ratios):
        return Interval(estimate, 0.0, math.inf)
    return Interval(estimate, mean([ratio.low for ratio in ratios]), mean([ratio.high for ratio in ratios]))


def _faster(
    steps: Sequence[Step], unknown: Sequence[str], gain: Interval | None, crossover: float | None
) -> tuple[str, str]:
    """The profile that serves, and why."""
    if gain is None:
        return _PLAIN_PROFILE, f"what speculation gives is not known at {', '.join(unknown) or 'any point'}"
    faster = gain.low > 1
    why = f"speculation gives {gain.estimate - 1:+.1%}"
    if gain.low > 0 and math.isfinite(gain.high):
        why += f" ({gain.low - 1:+.1%} to {gain.high - 1:+.1%})"
    why += _over([step for step in steps if step.weight])
    if not faster and gain.estimate > 1:
        why += "; a gain that noise could have made does not count"
    if faster and crossover is not None:
        why += f"; it loses above about {crossover:.0f} requests at once"
    return SPECULATIVE_PROFILE if faster else _PLAIN_PROFILE, why


def _over(steps: Sequence[Step]) -> str:
    if len(steps) == 1:
        return f" at {steps[0].point}"
    if len({step.weight for step in steps}) == 1:
        return f" over {', '.join(step.point for step in steps)}, which count the same"
    return f" over {', '.join(f'{step.point} (weight {step.weight:g})' for step in steps)}"


def _given_up(profile: str, steps: Sequence[Step], margin: float) -> list[str]:
    """Where the profile that serves is the slower one, for certain or by more than the margin."""
    told = []
    for step in steps:
        ratio = 1 + step.gain if profile == SPECULATIVE_PROFILE else 1 / max(1 + step.gain, _LEAST_RATIO)
        bound = step.high if profile == SPECULATIVE_PROFILE else step.low
        certain = bound is not None and (bound < 0 if profile == SPECULATIVE_PROFILE else bound > 0)
        if ratio < 1 and (certain or ratio < 1 - margin):
            sure = "" if certain else ", which noise could have made"
            counts = "" if step.weight else ", which counts nothing"
            told.append(f"{step.point} ({ratio - 1:+.1%}{sure}{counts})")
    return told


def _crossover(steps: list[Step]) -> float | None:
    """Where the gain falls through 0, interpolated over log concurrency; None when it never does."""
    for before, after in zip(steps, steps[1:]):
        if before.gain > 0 >= after.gain:
            part = before.gain / (before.gain - after.gain)
            span = math.log(after.concurrency) - math.log(before.concurrency)
            return math.exp(math.log(before.concurrency) + part * span)
    return None


def outdated(choice: Choice, policy: Policy) -> str:
    """How the weights of a kept choice differ from those of the policy; empty when they do not."""
    if any(step.weight is None for step in choice.steps):
        return "The profile that serves was chosen by the lowest concurrency alone, as an earlier version did"
    now = {step.point: policy.weight_at(step.concurrency, step.prompts) for step in choice.steps}
    differing = [
        f"{s.point} {s.weight:g} -> {now[s.point]:g}" for s in choice.steps if s.weight != now[s.point]
    ]
    if not differing:
        return ""
    return f"The profile that serves was chosen with other weights than those of the inventory: {', '.join(differing)}"


def stored_choice(path: Path, fingerprint: str) -> Choice | None:
    """The choice that was made on this host; None without one, and when the host is not what it was then.

    Raises:
        OperatorError: the file is not a choice.
    """
    remedy = f"remove the file (rm {quote(str(path))}); the next rollout measures both profiles again"
    if not path.exists():
        return None
    stored = read_object(path, remedy=remedy)
    try:
        if stored.get("schema") != _SCHEMA:
            raise ValueError(f"schema {stored.get('schema')!r}")
        choice = Choice.from_json(stored.get("choice"))
        if not isinstance(stored.get("fingerprint"), str):
            raise ValueError("no fingerprint of a host")
    except ValueError as error:
        raise OperatorError(
            f"{path} does not say which profile serves",
            found=str(error),
            expected=f"what an earlier rollout wrote, schema {_SCHEMA}",
            remedy=remedy,
        ) from error
    return choice if stored["fingerprint"] == fingerprint else None


def store_choice(path: Path, fingerprint: str, choice: Choice) -> None:
    """Keep a choice for later rollouts on this host."""
    stored = {"schema": _SCHEMA, "fingerprint": fingerprint, "choice": choice.to_json()}
    replace(path, json.dumps(stored, indent=1) + "\n")
