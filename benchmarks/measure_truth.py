#!/usr/bin/env python3
"""How near the measured figures are to the truth, with a server whose speed is known.

    python3 benchmarks/measure_truth.py [--runs 5]

The load generator is the published sglang.bench_serving. The error is that of the whole chain, and of the machine that
runs it: the server is another process beside it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "plugins" / "module_utils")]

from blackwell.errors import OperatorError
from blackwell.throughput.bench import Bench
from blackwell.throughput.gpu import Sampler
from blackwell.throughput.measure import Plan, PointPlan, Sizes, measure
from blackwell.throughput.prompts import load
from blackwell.throughput.server import Server

from tests.stand_in.client import environment

PORT = 31999
TTFT_S, STEP_S, ACCEPT_LENGTH, STEPS = 0.8, 0.03, 3.0, 60
PROMPTS = ROOT / "roles/throughput_check/files/prompts/prompts.jsonl"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    runs = parser.parse_args().runs
    behaviour = {"ttft_s": TTFT_S, "step_s": STEP_S, "accept_length": ACCEPT_LENGTH}
    command = [
        sys.executable,
        "-m",
        "tests.stand_in.server",
        f"--port={PORT}",
        f"--behaviour={json.dumps(behaviour)}",
    ]
    stand_in = subprocess.Popen(command, cwd=ROOT)
    try:
        for version in ("0.5.9", "0.5.10.post1"):
            report(version, runs)
    finally:
        stand_in.terminate()
        stand_in.wait()


def report(version: str, runs: int) -> None:
    """Measure with one release's load generator, and print a table."""
    server = Server(f"http://127.0.0.1:{PORT}")
    wait_for(server)
    plan = Plan(
        host="here",
        release=version,
        deployment="stand-in",
        sglang_version=version,
        profile="eagle3",
        fingerprint="none",
        points=[PointPlan(1), PointPlan(8)],
        sizes=Sizes(least=3, per_slot=2),
        output_tokens=1 + int(ACCEPT_LENGTH) * STEPS,
        runs_min=runs,
        runs_max=runs,
        speculative=True,
    )
    with Bench(sys.executable, server.url, "", "/", environment=environment(version)) as bench:
        result = measure(plan, load(PROMPTS), server, bench, Sampler(), lambda _: 0, {})
    truth = {"decode_tok_s": ACCEPT_LENGTH / STEP_S, "ttft_s": TTFT_S, "accept_length": ACCEPT_LENGTH}
    print(f"\nsglang.bench_serving {version}, {runs} runs\n")
    print("| in flight | figure | truth | measured (median) | error |")
    print("|---|---|---|---|---|")
    for point in result.points:
        for figure, true in truth.items():
            seen = statistics.median(point.samples(figure))
            print(f"| {point.concurrency} | {figure} | {true:g} | {seen:.4g} | {seen / true - 1:+.2%} |")


def wait_for(server: Server) -> None:
    """Return when the server answers, within ten seconds."""
    for _ in range(100):
        try:
            server.info()
            return
        except OperatorError:
            time.sleep(0.1)
    raise SystemExit("the stand-in does not answer")


if __name__ == "__main__":
    main()
