#!/usr/bin/env python3
"""Measure the judge's error rates by simulation and write them into docs/judge.md.

Every trial makes a baseline and a candidate with known truth, runs the real loop (`need_more_runs`) and asks the
real judge. Seeds are fixed: the same code gives the same table.

    python benchmarks/judge_table.py [--trials 4000] [--table drafting]
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import NormalDist, fmean, median, variance
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "plugins" / "module_utils"))

from blackwell.throughput.drafting import falls
from blackwell.throughput.intervals import ratio_interval
from blackwell.throughput.judge import judge, need_more_runs
from blackwell.throughput.policy import Policy
from blackwell.throughput.result import Point, Result, Run

PAGE = ROOT / "docs" / "judge.md"
POINTS = {1: 96.0, 8: 52.0}
LENGTH = 2.88
LENGTH_NOISE = 0.003
TTFT = 0.35
CLOCK = 2430.0

Draw = Callable[[random.Random, float], float]


def normal(rng: random.Random, noise: float) -> float:
    """A factor with log-normal noise; noise is the standard deviation of one run, as a fraction."""
    return math.exp(rng.gauss(0, noise))


def one_slow_in_ten(rng: random.Random, noise: float) -> float:
    """The same, but one run in ten is 15 % slower."""
    return normal(rng, noise) * (0.85 if rng.random() < 0.1 else 1.0)


def skewed(rng: random.Random, noise: float) -> float:
    """Noise that only slows, with a long tail, and the same standard deviation."""
    return math.exp(-noise * (rng.expovariate(1) - 1))


@dataclass(frozen=True)
class Truth:
    """What is true of a server: factors on its figures, 1 for unchanged."""

    steps: float = 1.0
    length: float = 1.0
    ttft: float = 1.0
    graphs: float = 1.0
    clock: float = 1.0


@dataclass(frozen=True)
class Case:
    """One row of a table: the truth about the candidate, and the conditions of the measurement."""

    noise: float
    baseline_runs: int
    max_runs: int
    truth: Truth = field(default_factory=Truth)
    draw: Draw = normal
    between_starts: float = 0.0


def run(rng: random.Random, concurrency: int, truth: Truth, case: Case, start: float) -> Run:
    """One valid run."""
    length = LENGTH * truth.length * normal(rng, LENGTH_NOISE)
    decode = POINTS[concurrency] * truth.steps * truth.length * start * case.draw(rng, case.noise)
    return Run(
        valid=True,
        requests=64,
        failures=0,
        duration_s=300.0,
        output_tokens=64 * 512,
        decode_tok_s=decode,
        output_tok_s=decode * concurrency * 0.93,
        ttft_s=TTFT * truth.ttft / case.draw(rng, case.noise),
        ttft_p99_s=None,
        itl_p50_ms=None,
        itl_p95_ms=None,
        itl_p99_ms=None,
        accept_length=length,
        step_rate=decode / length,
        graph_share=truth.graphs,
        gpu={"clock_mhz": CLOCK * truth.clock},
    )


def result(points: list[Point]) -> Result:
    """A result whose identity is always the same."""
    return Result("host", "2026-01-01T00:00:00Z", "r", "0.5.9", "eagle3", "f", "p", "c", {}, points)


def verdict_of(case: Case, rng: random.Random) -> tuple[Any, int]:
    """One trial: the verdict, and the most runs that a point needed."""
    policy = Policy(max_runs=case.max_runs)
    starts = [normal(rng, case.between_starts) for _ in range(2)]
    baseline = result(
        [Point(c, [run(rng, c, Truth(), case, starts[0]) for _ in range(case.baseline_runs)]) for c in POINTS]
    )
    points = []
    for concurrency in POINTS:
        point = Point(concurrency, [])
        while wanted := need_more_runs(point, baseline.point(concurrency), policy, "eagle3"):
            runs = [run(rng, concurrency, case.truth, case, starts[1]) for _ in range(wanted)]
            point = Point(concurrency, [*point.runs, *runs])
        points.append(point)
    verdict = judge(result(points), baseline, policy)
    return verdict, max(len(point.runs) for point in points)


def trials(case: Case, count: int, seed: str) -> Iterator[tuple[Any, int]]:
    """Independent trials of one case."""
    rng = random.Random(seed)
    return (verdict_of(case, rng) for _ in range(count))


def error_table(count: int) -> list[str]:
    """How often each verdict falls."""
    rows = [
        ("unchanged", 1.0),
        ("5 % faster", 1.05),
        ("2.5 % slower", 0.975),
        ("5 % slower (the margin)", 0.95),
    ]
    rows += [("7.5 % slower", 0.925), ("10 % slower", 0.9)]
    cases = [("normal, 3.5 %", name, Case(0.035, 20, 20, Truth(steps=factor))) for name, factor in rows]
    ends = [rows[0], rows[-1]]
    for baseline in (10, 5):
        cases += [("normal, 3.5 %", n, Case(0.035, baseline, 20, Truth(steps=f))) for n, f in ends]
    cases += [("normal, 1 %", n, Case(0.01, 6, 6, Truth(steps=f))) for n, f in [ends[0], rows[3], ends[1]]]
    cases += [("normal, 6 %", n, Case(0.06, 20, 20, Truth(steps=f))) for n, f in ends]
    cases += [
        ("3.5 %, one run in ten 15 % slow", n, Case(0.035, 20, 20, Truth(steps=f), one_slow_in_ten))
        for n, f in ends
    ]
    cases += [("skewed, 3.5 %", n, Case(0.035, 20, 20, Truth(steps=f), skewed)) for n, f in ends]
    cases += [
        ("3.5 %, and 1.5 % between starts", n, Case(0.035, 20, 20, Truth(steps=f), between_starts=0.015))
        for n, f in ends
    ]
    lines = [
        "| Noise of a run | Runs of the anchor | At most | Truth | pass | fail | undecidable | Runs needed (mean) |",
        "|---|--:|--:|---|--:|--:|--:|--:|",
    ]
    for noise, name, case in cases:
        seen: Counter[str] = Counter()
        runs = 0
        for verdict, needed in trials(case, count, f"{noise} {name} {case.baseline_runs}"):
            seen[verdict.outcome] += 1
            runs += needed
        rates = " | ".join(f"{100 * seen[word] / count:.1f} %" for word in ("pass", "fail", "undecidable"))
        lines.append(
            f"| {noise} | {case.baseline_runs} | {case.max_runs} | {name} | {rates} | {runs / count:.1f} |"
        )
    return lines


def look_table(count: int) -> list[str]:
    """What looking costs: how often a figure that lies exactly on the margin is ever decided."""
    policy = Policy()
    planned, every = policy.looks(), list(range(policy.min_runs, policy.max_runs + 1))
    designs: list[tuple[str, list[int], Callable[[int], float]]] = [
        ("planned (5, 7, 10, 14, 20 runs), budget divided (used)", planned, policy.error_at),
        ("planned, the whole 5 % at each", planned, lambda runs: policy.error_rate),
        ("after every run, the whole 5 % at each", every, lambda runs: policy.error_rate),
    ]
    lines = ["| Looks | ever decided as pass | as fail |", "|---|--:|--:|"]
    for name, looks, error in designs:
        rng = random.Random("looks")
        seen: Counter[str] = Counter()
        for _ in range(count):
            baseline = [normal(rng, 0.035) for _ in range(20)]
            candidate = [0.95 * normal(rng, 0.035) for _ in range(policy.max_runs)]
            for runs in looks:
                interval = ratio_interval(candidate[:runs], baseline, error(runs))
                decided = "pass" if interval.low >= 0.95 else "fail" if interval.high <= 0.95 else ""
                if decided:
                    seen[decided] += 1
                    break
        lines.append(f"| {name} | {100 * seen['pass'] / count:.1f} % | {100 * seen['fail'] / count:.1f} % |")
    return lines


def culprit_table(count: int) -> list[str]:
    """How often the first culprit is the right one."""
    cases = [
        ("accept length 10 % down", Truth(length=0.9), "draft model"),
        ("accept length 20 % down, steps 15 % faster", Truth(length=0.8, steps=1.15), "draft model"),
        ("steps 10 % slower", Truth(steps=0.9), "kernels or communication"),
        (
            "steps 10 % slower, a third of the passes without graphs",
            Truth(steps=0.9, graphs=0.67),
            "graphs off",
        ),
        ("steps 10 % slower, clocks 8 % down", Truth(steps=0.9, clock=0.92), "host throttled"),
        ("TTFT 25 % up", Truth(ttft=1.25), "prefill"),
    ]
    lines = [
        "| Truth (3.5 % noise, 20 runs) | Right name | failed | failed with the right name |",
        "|---|---|--:|--:|",
    ]
    for name, truth, expected in cases:
        failed = named = 0
        for verdict, _ in trials(Case(0.035, 20, 20, truth), count, name):
            failed += verdict.outcome == "fail"
            named += verdict.outcome == "fail" and verdict.culprits[0].name == expected
        lines.append(f"| {name} | {expected} | {100 * failed / count:.1f} % | {100 * named / count:.1f} % |")
    return lines


def floor_table(count: int) -> list[str]:
    """First deployment: 80 tok/s as the floor of decode at one request."""
    policy = Policy(floors={"eagle3": {"1": {"decode_tok_s": 80.0}}})
    lines = [
        "| True decode speed (floor 80 tok/s, 3.5 % noise) | pass | fail | undecidable |",
        "|---|--:|--:|--:|",
    ]
    for speed in (96.0, 84.0, 80.0, 76.0):
        rng = random.Random(f"floor {speed}")
        case = Case(0.035, 0, 20, Truth(steps=speed / POINTS[1]))
        seen: Counter[str] = Counter()
        for _ in range(count):
            point = Point(1, [])
            while wanted := need_more_runs(point, None, policy, "eagle3"):
                point = Point(1, [*point.runs, *(run(rng, 1, case.truth, case, 1.0) for _ in range(wanted))])
            seen[judge(result([point]), None, policy).outcome] += 1
        rates = " | ".join(f"{100 * seen[word] / count:.1f} %" for word in ("pass", "fail", "undecidable"))
        lines.append(f"| {speed:.0f} tok/s | {rates} |")
    return lines


def drafting_table(count: int) -> list[str]:
    """How often a fall of the accept length with the number of requests is named, at 5 runs a point.

    A run at one request has 16 prompts, one at eight has 32, the same 16 among them: so prompts alone move the accept
    length. Their spread is that within a kind of prompts; the kinds are mixed alike in both.
    """
    fallen = {2: 2.674 / 2.985, 8: 2.054 / 2.985}
    cases = [
        ("no fall", 8, 1.0, 0.12, 0.003),
        ("no fall, prompts as unlike as 20 %", 8, 1.0, 0.20, 0.003),
        ("no fall, noisy runs", 8, 1.0, 0.12, 0.02),
        ("5 % at 8 requests", 8, 0.95, 0.12, 0.003),
        ("15 % at 8 requests", 8, 0.85, 0.12, 0.003),
        ("31 % at 8 requests (seen)", 8, fallen[8], 0.12, 0.003),
        ("31 % at 8 requests, noisy runs", 8, fallen[8], 0.12, 0.02),
        ("10 % at 2 requests (seen), the same prompts", 2, fallen[2], 0.12, 0.003),
    ]
    margins = (Policy().drafting_margin, 0.05)
    lines = [
        "| True fall | Spread of prompts | Noise of a run | "
        + " | ".join(
            f"margin {100 * margin:.0f} %: {outcome}"
            for margin in margins
            for outcome in ("fail", "undecidable")
        )
        + " |",
        "|---|--:|--:|" + "--:|" * 2 * len(margins),
    ]
    for name, many, factor, spread, noise in cases:
        rng = random.Random(f"drafting {name}")
        seen: Counter[tuple[float, str]] = Counter()
        for _ in range(count):
            measured = _drafting_result(rng, many, factor, spread, noise)
            for margin in margins:
                found = falls(measured, Policy(drafting_margin=margin))
                seen[margin, found[0].outcome if found else "pass"] += 1
        rates = " | ".join(
            f"{100 * seen[margin, outcome] / count:.1f} %"
            for margin in margins
            for outcome in ("fail", "undecidable")
        )
        lines.append(f"| {name} | {100 * spread:.0f} % | {100 * noise:.1f} % | {rates} |")
    return lines


def _drafting_result(rng: random.Random, many: int, factor: float, spread: float, noise: float) -> Result:
    prompts = [LENGTH * normal(rng, spread) for _ in range(max(16, 4 * many))]

    def point(concurrency: int, drafted: float) -> Point:
        sent = prompts[: max(16, 4 * concurrency)]
        length = drafted * len(sent) / math.fsum(1 / each for each in sent)
        case = Case(0.0, 0, 5)
        plain = [run(rng, 1, Truth(), case, 1.0) for _ in range(5)]
        return Point(
            concurrency, [replace(each, accept_length=length * normal(rng, noise)) for each in plain]
        )

    return result([point(1, 1.0), point(many, factor)])


def coverage_table(count: int) -> list[str]:
    """How often a 95 % interval of the ratio holds the truth, and how wide it is."""
    methods: dict[str, Callable[[list[float], list[float], random.Random], tuple[float, float]]] = {
        "Mann-Whitney (used)": lambda a, b, rng: _mann_whitney(a, b),
        "Welch t on logarithms": lambda a, b, rng: _welch(a, b),
        "bootstrap of the ratio of medians": _bootstrap,
    }
    lines = ["| Noise | Runs | " + " | ".join(methods) + " |", "|---|---|" + "--:|" * len(methods)]
    for name, draw in (("normal", normal), ("one run in ten 15 % slow", one_slow_in_ten), ("skewed", skewed)):
        for n, m in ((5, 5), (5, 20), (20, 20)):
            rng = random.Random(f"{name} {n} {m}")
            hits = Counter[str]()
            widths = dict.fromkeys(methods, 0.0)
            for _ in range(count):
                one, two = [draw(rng, 0.035) for _ in range(n)], [draw(rng, 0.035) for _ in range(m)]
                for method, interval in methods.items():
                    low, high = interval(one, two, rng)
                    hits[method] += low <= 1 <= high
                    widths[method] += high - low
            cells = [
                f"{100 * hits[k] / count:.1f} % (width {100 * widths[k] / count:.1f} %)" for k in methods
            ]
            lines.append(f"| {name} | {n} and {m} | {' | '.join(cells)} |")
    return lines


def _mann_whitney(one: list[float], two: list[float]) -> tuple[float, float]:
    interval = ratio_interval(one, two, 0.025)
    return interval.low, interval.high


def _welch(one: list[float], two: list[float]) -> tuple[float, float]:
    a, b = [math.log(value) for value in one], [math.log(value) for value in two]
    parts = variance(a) / len(a), variance(b) / len(b)
    freedom = sum(parts) ** 2 / (parts[0] ** 2 / (len(a) - 1) + parts[1] ** 2 / (len(b) - 1))
    half = _student(0.975, freedom) * math.sqrt(sum(parts))
    centre = fmean(a) - fmean(b)
    return math.exp(centre - half), math.exp(centre + half)


def _student(level: float, freedom: float) -> float:
    """Quantile of Student's t (Cornish-Fisher expansion; within 1 % for 4 degrees of freedom and more)."""
    z = NormalDist().inv_cdf(level)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3


def _bootstrap(
    one: list[float], two: list[float], rng: random.Random, draws: int = 200
) -> tuple[float, float]:
    ratios = sorted(
        median(rng.choices(one, k=len(one))) / median(rng.choices(two, k=len(two))) for _ in range(draws)
    )
    return ratios[round(0.025 * draws)], ratios[round(0.975 * draws) - 1]


def replace_block(text: str, name: str, lines: Sequence[str]) -> str:
    """Put lines between the markers of a generated block."""
    start, end = f"<!-- {name}: generated by benchmarks/judge_table.py -->", f"<!-- end of {name} -->"
    before, rest = text.split(start)
    return f"{before}{start}\n{chr(10).join(lines)}\n{end}{rest.split(end)[1]}"


def main() -> None:
    """Write all tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=4000, help="trials a row (default: 4000)")
    parser.add_argument("--table", action="append", help="compute this table alone; may be given again")
    parser.add_argument("--page", type=Path, default=PAGE, help="page whose tables are replaced")
    given = parser.parse_args()
    text = given.page.read_text(encoding="utf-8")
    for name, table in (
        ("error rates", error_table),
        ("looks", look_table),
        ("culprits", culprit_table),
        ("floors", floor_table),
        ("drafting", drafting_table),
        ("coverage", coverage_table),
    ):
        if given.table and name not in given.table:
            continue
        text = replace_block(text, name, table(given.trials))
        print(f"{name}: done", flush=True)
    given.page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
