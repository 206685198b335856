"""What one throughput check found: the data that is measured, stored, judged and shown.

Everything here is plain data that survives a round trip through JSON. Rates are in tokens per second,
times in seconds unless a name says ``_ms``; a figure that could not be had is ``None``, never 0.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

from .plain import build, listed, part

SCHEMA = 1

# Why a run does not count. Each entry of ``Run.invalid_because`` is "<one of these>: <what was seen>".
FOREIGN = "foreign load"
THROTTLED = "throttled"
FAILURES = "failed requests"
STALLED = "stalled request"
WARM_CACHE = "warm cache"
TOKEN_COUNT = "token count"
TIMEOUT = "timeout"
MISSING = "missing metric"
RESTARTED = "server restart"
UNWATCHED = "GPUs not watched"

# Nothing that is measured here is smaller or larger: tokens and steps a second, seconds, shares.
_LEAST, _MOST = 1e-9, 1e12

# Kinds of prompts, measured apart because speculation can win on one and lose on the other.
STANDARD = "standard"
LONG = "long"


@dataclass(frozen=True)
class Run:
    """One run of the load generator at one concurrency.

    ``decode_tok_s`` is the median over requests of tokens after the first / (latency - TTFT).
    ``output_tok_s`` is all output tokens of the run over its wall time, prefill included.
    ``ttft_s`` is the median, ``ttft_p99_s`` the 99th percentile over requests of the time to the first token.
    ``itl_*_ms`` are percentiles over tokens; tokens that arrive together share the time they took.
    ``accept_length`` is tokens a verify step yields, the bonus token included; 1.0 without speculation.
    ``step_rate`` is decode_tok_s / accept_length: verify steps a second for one user.
    ``graph_share`` is the share of decode passes that ran in a CUDA graph, 0 to 1.
    ``output_tokens`` are the server's own counts (usage), reasoning tokens included.
    ``failures`` counts every request that did not deliver its full output, whatever its HTTP status said.
    A figure that the server should have told and did not is None in a valid run: a failure, never a pass.
    Without the counters that show whether others were busy, a run is invalid (``MISSING``).
    ``gpu`` summarises samples over all GPUs: clock_mhz (lowest median), power_w, temperature_c (highest).
    """

    valid: bool
    requests: int
    failures: int
    duration_s: float
    output_tokens: int
    decode_tok_s: float | None
    output_tok_s: float | None
    ttft_s: float | None
    ttft_p99_s: float | None
    itl_p50_ms: float | None
    itl_p95_ms: float | None
    itl_p99_ms: float | None
    accept_length: float | None
    step_rate: float | None
    graph_share: float | None
    invalid_because: list[str] = field(default_factory=list)
    gpu: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Point:
    """All runs, in order, at one concurrency (requests in flight at once) on one kind of prompts."""

    concurrency: int
    runs: list[Run]
    prompts: str = STANDARD

    def samples(self, figure: str) -> list[float]:
        """The values of one figure over the valid runs that have it. What no server can show is none."""
        values = [getattr(run, figure) for run in self.runs if run.valid]
        return [float(value) for value in values if value is not None and _is_figure(value)]


@dataclass(frozen=True)
class Result:
    """One throughput check of one profile of one release on one host.

    ``conditions["load"]`` holds what defines the load (output tokens, sizes of runs, seed, chat template):
    results with different loads must not be compared. The rest of ``conditions`` is a record.
    ``prompts_sha256`` is the hash of the prompt file, ``client`` the load generator and its version.
    ``canary`` is what the correctness canary found, ``canary["passed"]`` its verdict.
    """

    host: str
    taken_at: str
    release: str
    sglang_version: str
    profile: str
    fingerprint: str
    prompts_sha256: str
    client: str
    conditions: dict[str, Any]
    points: list[Point]
    canary: dict[str, Any] = field(default_factory=dict)
    schema: int = SCHEMA

    def point(self, concurrency: int, prompts: str = STANDARD) -> Point | None:
        """The point at this concurrency on this kind of prompts, or None."""
        wanted = (concurrency, prompts)
        return next((point for point in self.points if (point.concurrency, point.prompts) == wanted), None)

    def to_json(self) -> dict[str, Any]:
        """Plain data for ``json.dump``."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Result:
        """Read what :meth:`to_json` wrote.

        Raises:
            ValueError: another schema version, or a field that is missing, unknown or of another type.
        """
        if part(data, "schema") != SCHEMA:
            raise ValueError(f"throughput result has schema {part(data, 'schema')!r}, expected {SCHEMA}")
        points = [_point(point) for point in listed("Result.points", data.get("points"))]
        return build(cls, {**data, "points": points})


def _point(data: Any) -> Point:
    # A figure that is no number is judged as a missing one, so a run may hold it.
    runs = [build(Run, run, finite=False) for run in listed("Point.runs", part(data, "runs"))]
    point = build(Point, {**data, "runs": runs})
    if point.concurrency < 1:
        raise ValueError(f"Point.concurrency is {point.concurrency}, expected 1 or more")
    return point


def _is_figure(value: float) -> bool:
    """Whether a rate, a time or a share can be that: not NaN, not infinite, and of no size beyond any machine."""
    return math.isfinite(value) and (value <= 0 or _LEAST <= value <= _MOST)
