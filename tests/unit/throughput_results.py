"""Results with known truth, for the tests of the judge and of the report."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Sequence
from typing import Any

from blackwell.throughput.result import Point, Result, Run

DECODE = {1: 96.0, 8: 52.0}
BUSY = "foreign load: 3 requests of somebody else"


def make_run(rng: random.Random, concurrency: int = 1, noise: float = 0.01, **truth: Any) -> Run:
    """A run with ``noise`` (standard deviation, fraction); ``truth`` holds factors, or fields to set."""
    length = 1.0 if truth.get("plain") else 2.88 * truth.pop("length", 1.0) * math.exp(rng.gauss(0, 0.003))
    truth.pop("plain", None)
    decode = DECODE.get(concurrency, 24.0) * truth.pop("speed", 1.0) * math.exp(rng.gauss(0, noise))
    ttft = 0.35 * truth.pop("ttft", 1.0) * math.exp(rng.gauss(0, noise))
    run = Run(
        valid=True,
        requests=16,
        failures=0,
        duration_s=80.0,
        output_tokens=16 * 512,
        decode_tok_s=decode,
        output_tok_s=decode * concurrency * 0.93 * truth.pop("total", 1.0),
        ttft_s=ttft,
        ttft_p99_s=ttft * 1.6,
        itl_p50_ms=1000 / decode,
        itl_p95_ms=1500 / decode,
        itl_p99_ms=2500 / decode,
        accept_length=length,
        step_rate=decode / length,
        graph_share=1.0,
        gpu={"clock_mhz": 2430.0},
    )
    return dataclasses.replace(run, **truth)


def make_point(concurrency: int = 1, runs: int = 20, seed: int = 0, **truth: Any) -> Point:
    """A point of runs that are alike."""
    rng = random.Random(f"{concurrency} {seed}")
    prompts = truth.pop("prompts", "standard")
    return Point(concurrency, [make_run(rng, concurrency, **truth) for _ in range(runs)], prompts)


def make_result(
    runs: int = 20, seed: int = 0, concurrency: Sequence[int] = (1, 8), identity: Any = None, **truth: Any
) -> Result:
    """A result; ``identity`` holds fields of Result, ``truth`` what :func:`make_run` takes."""
    fields = {
        "host": "gpu-1",
        "taken_at": "2026-03-02T02:14:00+00:00",
        "release": "0.5.9-3fa94c01d2be",
        "sglang_version": "0.5.9",
        "profile": "eagle3",
        "fingerprint": "f0" * 32,
        "prompts_sha256": "ab" * 32,
        "client": "sglang.bench_serving 0.5.9",
        "conditions": {"load": {"output_tokens": 512, "seed": 1}, "cache_flushed_before_each_run": True},
        "points": [make_point(level, runs, seed, **truth) for level in concurrency],
        "canary": {
            "passed": True,
            "checks": [{"name": "capital of France", "passed": True, "detail": "Paris"}],
        },
    }
    return Result(**{**fields, **(identity or {})})
