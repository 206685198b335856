"""What the judge says: data that survives a round trip through JSON, and is shown as it stands."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from .legend import FIGURES
from .plain import build, listed, part

PASS = "pass"
FAIL = "fail"
UNDECIDABLE = "undecidable"

# What a verdict can blame. The first two are the factors of decode speed.
DRAFT_MODEL = "draft model"
KERNELS = "kernels or communication"
GRAPHS_OFF = "graphs off"
HOST_THROTTLED = "host throttled"
PREFILL = "prefill"
STALLS = "stalled requests"
FAILED_REQUESTS = "failed requests"
MISSING_METRIC = "missing metric"
WRONG_ANSWERS = "wrong answers"
FOREIGN_LOAD = "foreign load"
WARM_CACHE = "warm cache"
TOKEN_COUNT = "token count"
RESTARTED = "server restart"
DRAFTING = "drafting gets worse with more requests"
NO_REFERENCE = "nothing to compare with"

BASELINE = "baseline"
FLOOR = "floor"
RULE = "rule"


@dataclass(frozen=True)
class Finding:
    """One thing that was judged at one point.

    ``outcome`` is pass, fail or undecidable. ``against`` says what decided: the anchor (``baseline``), a floor or a
    rule.
    ``value`` is the median over the valid runs, ``reference`` the anchor's median or the floor.
    ``change`` is the estimate of value / reference - 1 with its interval ``low`` to ``high``; a bound that
    too few runs can give is None. ``more_runs`` says how many more runs would decide (None: no number would).
    ``culprit`` is what the finding blames by itself, before the figures are looked at together.
    """

    point: str
    figure: str
    outcome: str
    against: str
    text: str
    value: float | None = None
    reference: float | None = None
    change: float | None = None
    low: float | None = None
    high: float | None = None
    margin: float | None = None
    runs: int = 0
    reference_runs: int = 0
    more_runs: int | None = None
    culprit: str = ""


@dataclass(frozen=True)
class Culprit:
    """What is to blame, at which point, and what shows it."""

    name: str
    point: str
    why: str


@dataclass(frozen=True)
class Reference:
    """A published figure of another host, for one stream."""

    profile: str
    stack: str
    decode_tok_s: float


@dataclass(frozen=True)
class Verdict:
    """The judgement of one result.

    ``accepted`` is what a rollout acts on: a pass, or an undecidable result that was measured and that the
    policy accepts. ``headline`` is the verdict in one or two sentences. ``baseline`` names the anchor
    (release and time), empty when floors decided. ``references`` are published figures of another host,
    beside a verdict that had no anchor; they decide nothing.
    """

    outcome: str
    accepted: bool
    headline: str
    findings: list[Finding]
    culprits: list[Culprit] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    baseline: dict[str, str] = field(default_factory=dict)
    references: list[dict[str, Any]] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Plain data for ``json.dump``."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Verdict:
        """Read what :meth:`to_json` wrote.

        Raises:
            ValueError: a field that is missing or unknown.
        """
        listed("Verdict.findings", part(data, "findings"))
        verdict = build(
            cls,
            {
                **data,
                "findings": [build(Finding, finding) for finding in data["findings"]],
                "culprits": [
                    build(Culprit, culprit) for culprit in listed("culprits", data.get("culprits", []))
                ],
            },
        )
        outcomes = [verdict.outcome, *(finding.outcome for finding in verdict.findings)]
        if set(outcomes) - {PASS, FAIL, UNDECIDABLE}:
            raise ValueError(f"Verdict: an outcome is none of {PASS}, {FAIL} and {UNDECIDABLE}")
        if any(f.against != RULE and f.figure not in FIGURES for f in verdict.findings):
            raise ValueError("Verdict: a finding is about a figure that is not measured")
        if verdict.baseline and set(verdict.baseline) != {"release", "taken_at", "host"}:
            raise ValueError(f"Verdict.baseline holds {', '.join(verdict.baseline)}")
        for reference in verdict.references:
            build(Reference, reference)
        return verdict
