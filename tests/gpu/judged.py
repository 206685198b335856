"""What was counted, as the project's judge takes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from blackwell.throughput.judge import judge
from blackwell.throughput.policy import Policy
from blackwell.throughput.result import Point, Result, Run
from blackwell.throughput.verdict import Verdict


def verdict(samples: Mapping[str, Sequence[Mapping[str, Any]]]) -> Verdict:
    """The verdict on rounds of :meth:`Server.draft`, by requests at once; floors are so low that only rules decide."""
    points = [
        Point(int(at_once), [run(sample, int(at_once)) for sample in rounds])
        for at_once, rounds in samples.items()
    ]
    result = Result(
        host="here",
        taken_at="now",
        release="by hand",
        sglang_version="0.5.9",
        profile="eagle3",
        fingerprint="",
        prompts_sha256="",
        client="tests.gpu",
        conditions={},
        points=points,
    )
    floors = {"eagle3": {str(point.concurrency): {"decode_tok_s": 1.0} for point in points}}
    return judge(result, None, Policy(floors=floors))


def run(sample: Mapping[str, Any], at_once: int) -> Run:
    """One round as a run. It saw no times of single tokens."""
    speed = sample["tokens"] / sample["seconds"]
    length = sample["accept_length"]
    return Run(
        valid=True,
        requests=len(sample["outputs"]),
        failures=0,
        duration_s=sample["seconds"],
        output_tokens=sample["tokens"],
        decode_tok_s=speed / at_once,
        output_tok_s=speed,
        ttft_s=sample["seconds"] / len(sample["outputs"]),
        ttft_p99_s=None,
        itl_p50_ms=None,
        itl_p95_ms=None,
        itl_p99_ms=None,
        accept_length=length,
        step_rate=speed / at_once / length,
        graph_share=1.0,
    )
