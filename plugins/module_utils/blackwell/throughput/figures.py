"""From what a run showed to the figures and to whether they count. No I/O.

Every formula of the check is here and, in words, in docs/throughput.md.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from . import gpu
from .bench import Report, Request
from .metrics import Counters
from .result import (
    FAILURES,
    FOREIGN,
    MISSING,
    RESTARTED,
    STALLED,
    THROTTLED,
    TOKEN_COUNT,
    UNWATCHED,
    WARM_CACHE,
    Run,
)


@dataclass(frozen=True)
class Limits:
    """What makes a run disturbed.

    ``stall_s``: a wait for a token that long, and far longer than the run's others, is a stall.
    ``cached_share``: prompts may share a chat template; a larger part of their tokens must not be cached.
    """

    stall_s: float = 5.0
    cached_share: float = 0.3


# A stall is also this many times longer than the median of its kind: on a slow server long waits are normal.
_STALL_TIMES_MEDIAN = 20


@dataclass(frozen=True)
class Seen:
    """All that was seen of one run.

    ``counted`` is the server's counters over the run. ``unwatched`` says why nobody knows whether the GPUs were
    throttled, one line each; empty when they were watched, and where there are none.
    """

    concurrency: int
    output_tokens: int
    report: Report
    counted: Counters
    server_accept_length: float | None
    speculative: bool
    samples: list[gpu.Sample]
    unwatched: Sequence[str] = ()


def run_of(seen: Seen, limits: Limits) -> Run:
    """The run's figures, and every reason why it does not count."""
    requests = seen.report.requests
    complete = [request for request in requests if not request.problem]
    rates = [len(r.gaps_s) / sum(r.gaps_s) for r in complete if r.gaps_s and sum(r.gaps_s) > 0]
    gaps = sorted(gap * 1000.0 for request in complete for gap in request.gaps_s)
    first = sorted(request.ttft_s for request in complete)
    output_tokens = sum(request.output_tokens for request in requests)
    decode = statistics.median(rates) if rates else None
    accept_length = accept_length_of(seen)
    reasons = disturbances(seen, limits)
    return Run(
        valid=not reasons,
        requests=len(requests),
        failures=len(requests) - len(complete),
        duration_s=seen.report.duration_s,
        output_tokens=output_tokens,
        decode_tok_s=decode,
        output_tok_s=output_tokens / seen.report.duration_s if seen.report.duration_s > 0 else None,
        ttft_s=statistics.median(first) if first else None,
        ttft_p99_s=percentile(first, 99),
        itl_p50_ms=percentile(gaps, 50),
        itl_p95_ms=percentile(gaps, 95),
        itl_p99_ms=percentile(gaps, 99),
        accept_length=accept_length,
        step_rate=decode / accept_length if decode is not None and accept_length else None,
        graph_share=_ratio(seen.counted.graph_passes, seen.counted.decode_passes),
        invalid_because=reasons,
        gpu=gpu.summary(seen.samples),
    )


def accept_length_of(seen: Seen) -> float | None:
    """Tokens a verify step yields.

    With one request in flight every decode pass is one verify step, and the counters give the exact mean.
    With several, a pass is a step of each, and no counter of SGLang 0.5.9 tells how many; the server's own
    mean since the cache flush does, less the last incomplete log interval.
    """
    if not seen.speculative:
        return 1.0
    if seen.concurrency == 1:
        return _ratio(seen.counted.decode_tokens, seen.counted.decode_passes)
    return seen.server_accept_length


def disturbances(seen: Seen, limits: Limits) -> list[str]:
    """Every reason why the run does not count; empty when it does."""
    requests, counted = seen.report.requests, seen.counted
    found = [f"{MISSING}: the server does not tell {name}" for name in _missing(seen)]
    failed = [request.problem for request in requests if request.problem]
    fallen = [name for name, value in counted.values().items() if value is not None and value < 0]
    if fallen:
        found.append(f"{RESTARTED}: the server counts from zero again ({fallen[0]} fell)")
    elif uncounted := _uncounted(seen):
        found.append(
            f"{RESTARTED}: the server counts from zero again ({uncounted} answered request(s) are missing)"
        )
    others = (counted.requests or 0.0) - len(requests)
    if others > 0:
        found.append(f"{FOREIGN}: the server ended {others:.0f} request(s) that were not ours")
    elif foreign := _unfinished_foreign_tokens(seen):
        found.append(f"{FOREIGN}: the server decoded about {foreign:.0f} tokens for somebody else")
    if others == 0 and not fallen and _miscounted(seen):
        found.append(
            f"{TOKEN_COUNT}: the server generated {counted.generated_tokens:.0f} tokens "
            f"for what the client counted as {_ours(seen)}"
        )
    elif failed:
        found.append(f"{FAILURES}: {len(failed)} of {len(requests)}, the first: {failed[0]}")
    cached = _ratio(counted.cached_tokens, counted.prompt_tokens)
    if cached is not None and cached > limits.cached_share:
        found.append(f"{WARM_CACHE}: {cached:.0%} of the prompt tokens were cached, although it was flushed")
    found += [f"{STALLED}: {stall}" for stall in _stalls(requests, limits.stall_s)]
    found += [f"{THROTTLED}: {throttle}" for throttle in gpu.throttles(seen.samples)]
    found += [f"{UNWATCHED}: {reason}" for reason in seen.unwatched]
    return found


def percentile(ordered: list[float], percent: float) -> float | None:
    """Percentile of an ordered list, linear between neighbours (numpy's default)."""
    if not ordered:
        return None
    position = (len(ordered) - 1) * percent / 100.0
    low, high = math.floor(position), math.ceil(position)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def _missing(seen: Seen) -> list[str]:
    """Counters without which nobody can say whether the run was alone and cold."""
    names = {
        "num_requests_total": "requests",
        "prompt_tokens_total": "prompt_tokens",
        "generation_tokens_total": "generated_tokens",
        "realtime_tokens_total of mode decode": "decode_tokens",
    }
    values, unreadable = seen.counted.values(), seen.counted.unreadable
    missing = [name for name, of in names.items() if values[of] is None and of not in unreadable]
    # What is shown and is no number is told in any case: it may have been the one that shows others at work.
    return missing + [f"{name} as a number" for name in sorted(unreadable)]


def _uncounted(seen: Seen) -> int:
    """Requests that the server answered whole and did not count: it was started again between them."""
    answered = sum(not request.problem for request in seen.report.requests)
    return 0 if seen.counted.requests is None else max(0, answered - int(seen.counted.requests))


def _ours(seen: Seen) -> int:
    return sum(request.output_tokens for request in seen.report.requests)


def _miscounted(seen: Seen) -> bool:
    """Whether client and server disagree on tokens, though no request broke off (which would explain it)."""
    generated = seen.counted.generated_tokens
    broken = any(request.output_tokens == 0 for request in seen.report.requests)
    return generated is not None and not broken and generated != _ours(seen)


def _unfinished_foreign_tokens(seen: Seen) -> float:
    """Decoded tokens that none of our requests accounts for; their requests had not ended with the run.

    A request's last verify step may yield tokens beyond its end, and an overlapped schedule one step more, so
    up to twice the longest step for each request is ours.
    """
    if seen.counted.decode_tokens is None:
        return 0.0
    longest_step = 16.0 if seen.speculative else 1.0
    asked = seen.output_tokens * len(seen.report.requests)
    beyond = seen.counted.decode_tokens - asked - 2 * longest_step * len(seen.report.requests)
    return max(0.0, beyond)


def _stalls(requests: list[Request], stall_s: float) -> list[str]:
    answered = [request for request in requests if request.gaps_s]
    # Tokens of one chunk have equal gaps, which add up to the time that the client waited for it.
    chunks = [[sum(chunk) for _, chunk in itertools.groupby(request.gaps_s)] for request in answered]
    waits = {
        "its first token": [request.ttft_s for request in answered],
        "the next token": [wait for waits in chunks for wait in waits],
    }
    stalls = []
    for awaited, values in waits.items():
        usual = statistics.median_low(values) if values else 0.0
        for wait in values:
            if wait > max(stall_s, _STALL_TIMES_MEDIAN * usual):
                stalls.append(f"one waited {wait:.1f} s for {awaited}, the median is {usual * 1000:.0f} ms")
    return stalls


def _ratio(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole
