#!/usr/bin/env python3
"""Hold the figures of the throughput check against an independent tool, on one running server and one load.

    python3 -m venv /tmp/aiperf && /tmp/aiperf/bin/pip install aiperf==0.13.0
    python3 benchmarks/aiperf_agreement.py --url http://127.0.0.1:30000 --tokenizer /srv/models/target \\
        --python /opt/sglang/current/venv/bin/python --aiperf /tmp/aiperf/bin/aiperf

A round is one run of each on a flushed cache, with the same prompts, the same number of answer tokens and as many
requests in flight; which of the two comes first alternates. AIPerf comes through the chat interface and counts tokens
from its usage; the check comes through /generate. Compared are the medians over rounds, and the two runs of each round
as a pair, with a 95 % interval. The interquartile range is that of the check's runs, in percent of their median: the
check reads a server of known speed to 0.01 %, so of the decode rate it is the server's own noise. Ctrl-C ends the
rounds; what was complete is reported. Keys are read from SGLANG_API_KEY and SGLANG_ADMIN_KEY.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "plugins" / "module_utils"))

from blackwell.throughput.bench import Bench, Load
from blackwell.throughput.intervals import median_interval
from blackwell.throughput.prompts import Prompt, load
from blackwell.throughput.server import Server

PROMPTS = ROOT / "roles/throughput_check/files/prompts/prompts.jsonl"
FIGURES = {"decode tok/s": "output_token_throughput_per_user", "TTFT (ms)": "time_to_first_token"}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--url", required=True)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--python", required=True, help="interpreter of the release")
    parser.add_argument("--environment", type=json.loads, default={}, help="of the load generator, as JSON")
    parser.add_argument("--aiperf", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--concurrency", type=int, default=1)
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--output-tokens", type=int, default=512)
    given = parser.parse_args()
    server = Server(given.url, os.environ.get("SGLANG_API_KEY", ""), os.environ.get("SGLANG_ADMIN_KEY", ""))
    prompts = load(PROMPTS).pick(given.requests)
    rounds: list[dict[str, dict[str, float]]] = []
    try:
        with Bench(given.python, server.url, server.api_key, given.tokenizer, "", given.environment) as bench:
            ours(server, bench, prompts, given)  # The kernels are warm from here on.
            while len(rounds) < given.rounds:
                taken: dict[str, dict[str, float]] = {}
                for tool in ("check", "AIPerf") if len(rounds) % 2 == 0 else ("AIPerf", "check"):
                    if tool == "check":
                        taken[tool] = ours(server, bench, prompts, given)
                    else:
                        taken[tool] = theirs(server, prompts, given)
                rounds.append(taken)
                last = "; ".join(
                    f"{name}: " + ", ".join(f"{tool} {said[name]:.4g}" for tool, said in taken.items())
                    for name in FIGURES
                )
                print(f"round {len(rounds)} of {given.rounds}: {last}", file=sys.stderr)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
    print(table(rounds))


def table(rounds: list[dict[str, dict[str, float]]]) -> str:
    """What the rounds say, each of which has the figures by tool."""
    lines = [f"{len(rounds)} rounds"]
    if len(rounds) < 2:
        return lines[0]
    columns = ["figure", "check", "AIPerf", "difference", "of pairs (95 %)", "interquartile range"]
    columns += ["spread of the check", "spread of AIPerf"]
    lines += ["", f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for name in FIGURES:
        check, aiperf = ([taken[tool][name] for taken in rounds] for tool in ("check", "AIPerf"))
        pairs = [one / other for one, other in zip(check, aiperf)]
        interval = median_interval(pairs, 0.025)
        lower, middle, upper = statistics.quantiles(check, n=4, method="inclusive")
        cells = [name, f"{middle:.4g}", f"{statistics.median(aiperf):.4g}"]
        cells += [f"{middle / statistics.median(aiperf) - 1:+.1%}"]
        cells += [
            f"{statistics.median(pairs) - 1:+.1%} ({interval.low - 1:+.1%} to {interval.high - 1:+.1%})"
        ]
        cells += [f"{(upper - lower) / middle:.1%}"]
        cells += [f"{min(values):.4g} to {max(values):.4g}" for values in (check, aiperf)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def ours(server: Server, bench: Bench, prompts: list[Prompt], given: argparse.Namespace) -> dict[str, float]:
    """One run of the check's load generator: medians over requests."""
    server.flush_cache(60.0)
    report = bench.run(Load(prompts, given.concurrency, given.output_tokens, 1, True), 1800.0)
    problems = [request.problem for request in report.requests if request.problem]
    if problems:
        raise SystemExit(f"the server fails requests: {problems[0]}")
    rates = [len(request.gaps_s) / sum(request.gaps_s) for request in report.requests]
    return {
        "decode tok/s": statistics.median(rates),
        "TTFT (ms)": 1000 * statistics.median(request.ttft_s for request in report.requests),
    }


def theirs(server: Server, prompts: list[Prompt], given: argparse.Namespace) -> dict[str, float]:
    """One run of AIPerf: medians over requests."""
    server.flush_cache(60.0)
    with tempfile.TemporaryDirectory() as folder:
        dataset = Path(folder) / "prompts.jsonl"
        dataset.write_text("".join(json.dumps({"text": prompt.text}) + "\n" for prompt in prompts), "utf-8")
        options: dict[str, Any] = {
            "--model": server.info().served_model_name,
            "--url": server.url,
            "--endpoint-type": "chat",
            "--tokenizer": given.tokenizer,
            "--input-file": dataset,
            "--custom-dataset-type": "single_turn",
            "--concurrency": given.concurrency,
            "--request-count": len(prompts),
            "--prompt-output-tokens-mean": given.output_tokens,
            "--extra-inputs": json.dumps({"ignore_eos": True, "temperature": 0}),
            "--output-artifact-dir": folder,
            "--ui-type": "none",
            "--connection-reuse-strategy": "never",
        }
        command = [given.aiperf, "profile", "--streaming", "--use-server-token-count"]
        command += ["--no-gpu-telemetry", "--no-server-metrics"]
        command += [str(part) for pair in options.items() for part in pair]
        if server.api_key:
            command += ["--api-key", server.api_key]
        # Told to stay offline, it looks for a folder in the hub's cache instead of taking it.
        environment = {name: value for name, value in os.environ.items() if not name.endswith("_OFFLINE")}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        exported = Path(folder) / "profile_export_aiperf.json"
        if not exported.exists():
            raise SystemExit(
                f"AIPerf ended with {done.returncode}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
            )
        said = json.loads(exported.read_text("utf-8"))
    if int(said["request_count"]["avg"]) != len(prompts):
        raise SystemExit(f"AIPerf completed {said['request_count']['avg']:.0f} of {len(prompts)} requests")
    return {name: float(said[key]["p50"]) for name, key in FIGURES.items()}


if __name__ == "__main__":
    main()
