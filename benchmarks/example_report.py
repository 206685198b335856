#!/usr/bin/env python3
"""Make the report that docs/images/throughput-report.png shows. Its runs are simulated, and it says so.

    python benchmarks/example_report.py report.html
    chromium --headless --no-sandbox --hide-scrollbars --window-size=1180,2700 \
        --screenshot=docs/images/throughput-report.png report.html
"""

from __future__ import annotations

import dataclasses
import random
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "plugins" / "module_utils")]

from blackwell.throughput.choice import choose_profile
from blackwell.throughput.judge import judge, need_more_runs
from blackwell.throughput.policy import Policy
from blackwell.throughput.record import Record
from blackwell.throughput.report import render
from blackwell.throughput.result import Point, Result, Run

HOST = "example-1 (simulated)"
RELEASES = ("0.5.9-3fa94c01d2be", "0.5.9-81c2aa907f11", "0.5.10-77ab90cd1e02", "0.5.10-c01dbeef9911")
# Decode speed of one user at 1, 8 and 32 requests at once; invented.
SPECULATIVE = {1: 40.0, 8: 21.0, 32: 9.5}
PLAIN = {1: 34.0, 8: 20.5, 32: 10.5}


def one_run(rng: random.Random, concurrency: int, speed: float, length: float, graphs: float) -> Run:
    """A run with 2.5 % noise."""
    decode = speed * rng.lognormvariate(0, 0.025)
    accepted = length if length == 1 else length * rng.lognormvariate(0, 0.003)
    ttft = 0.42 * rng.lognormvariate(0, 0.03)
    return Run(
        valid=True,
        requests=64,
        failures=0,
        duration_s=600.0,
        output_tokens=64 * 512,
        decode_tok_s=decode,
        output_tok_s=decode * concurrency * 0.95,
        ttft_s=ttft,
        ttft_p99_s=ttft * 1.7,
        itl_p50_ms=1000 / decode,
        itl_p95_ms=1600 / decode,
        itl_p99_ms=2500 / decode,
        accept_length=accepted,
        step_rate=decode / accepted,
        graph_share=graphs,
    )


def result(day: str, release: str, profile: str, points: list[Point]) -> Result:
    """A result of the simulated host."""
    return Result(
        host=HOST,
        taken_at=f"{day}T02:00:00Z",
        release=release,
        sglang_version=release.split("-")[0],
        profile=profile,
        fingerprint="simulated",
        prompts_sha256="simulated",
        client="none: every run is simulated",
        conditions={"load": {"output_tokens": 512, "requests": 64, "temperature": 0}},
        points=points,
        canary={"passed": True, "checks": [{"name": "not asked", "passed": True, "detail": "simulated"}]},
    )


def main() -> None:
    """Write the page."""
    rng = random.Random(20)
    policy = Policy(floors={"eagle3": {"1": {"decode_tok_s": 30, "accept_length": 2}}})

    def fixed(speeds: dict[int, float], length: float) -> list[Point]:
        return [Point(c, [one_run(rng, c, s, length, 1.0) for _ in range(20)]) for c, s in speeds.items()]

    baseline = result("2026-01-05", RELEASES[0], "eagle3", fixed(SPECULATIVE, 2.8))
    records = [Record(baseline, judge(baseline, None, policy))]

    def checked(day: str, release: str, factor: float, length: float = 2.8, graphs: float = 1.0) -> Result:
        points = []
        for concurrency, speed in SPECULATIVE.items():
            point, before = Point(concurrency, []), baseline.point(concurrency)
            while more := need_more_runs(point, before, policy, "eagle3"):
                runs = [one_run(rng, concurrency, speed * factor, length, graphs) for _ in range(more)]
                point = dataclasses.replace(point, runs=[*point.runs, *runs])
            points.append(point)
        return result(day, release, "eagle3", points)

    for day, release, factor, length, graphs in (
        ("2026-01-19", RELEASES[0], 1.0, 2.8, 1.0),
        ("2026-02-02", RELEASES[0], 1.005, 2.8, 1.0),
        ("2026-02-10", RELEASES[1], 0.62, 2.8, 0.1),
        ("2026-02-11", RELEASES[1], 1.02, 2.8, 1.0),
        ("2026-02-25", RELEASES[1], 1.01, 2.8, 1.0),
        ("2026-03-11", RELEASES[1], 0.965, 2.8, 1.0),
        ("2026-03-25", RELEASES[2], 0.99, 2.3, 1.0),
        ("2026-04-08", RELEASES[3], 1.08, 2.8, 1.0),
        ("2026-04-22", RELEASES[3], 1.07, 2.8, 1.0),
    ):
        checked_result = checked(day, release, factor, length, graphs)
        records.append(Record(checked_result, judge(checked_result, baseline, policy)))
    newest = checked("2026-05-06", RELEASES[3], 1.08)
    plain = result("2026-05-06", RELEASES[3], "baseline", fixed(PLAIN, 1.0))
    choice = choose_profile(newest, plain, policy)
    records += [Record(newest, judge(newest, baseline, policy), choice), Record(plain)]
    Path(sys.argv[1]).write_text(render(records), encoding="utf-8")


if __name__ == "__main__":
    main()
