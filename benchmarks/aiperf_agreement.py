#!/usr/bin/env python3
"""Hold the figures of the throughput check against an independent tool, on one running server and one load.

    python3 -m venv /tmp/aiperf && /tmp/aiperf/bin/pip install aiperf==0.13.0
    python3 benchmarks/aiperf_agreement.py --url http://127.0.0.1:30000 --tokenizer /srv/models/target \\
        --python /opt/sglang/current/venv/bin/python --aiperf /tmp/aiperf/bin/aiperf

Rounds are interleaved (ours, AIPerf, ours, ...), each on a flushed cache, with the same prompts, the same number of
answer tokens and as many requests in flight. AIPerf comes through the chat interface and counts tokens from its usage;
the check comes through /generate. What is compared are medians over rounds. Keys are read from SGLANG_API_KEY and
SGLANG_ADMIN_KEY.
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
    seen: dict[str, dict[str, list[float]]] = {name: {"check": [], "AIPerf": []} for name in FIGURES}
    with Bench(given.python, server.url, server.api_key, given.tokenizer, "", given.environment) as bench:
        ours(server, bench, prompts, given)  # The kernels are warm from here on.
        for number in range(given.rounds):
            for tool, take in (
                ("check", lambda: ours(server, bench, prompts, given)),
                ("AIPerf", lambda: theirs(server, prompts, given)),
            ):
                for name, value in take().items():
                    seen[name][tool].append(value)
            last = "; ".join(
                f"{name}: " + ", ".join(f"{tool} {values[-1]:.4g}" for tool, values in by_tool.items())
                for name, by_tool in seen.items()
            )
            print(f"round {number + 1} of {given.rounds}: {last}", file=sys.stderr)
    print("| figure | check | AIPerf | difference | spread of the check | spread of AIPerf |")
    print("|---|---|---|---|---|---|")
    for name, by_tool in seen.items():
        check, aiperf = (statistics.median(by_tool[tool]) for tool in ("check", "AIPerf"))
        spreads = [f"{min(values):.4g} to {max(values):.4g}" for values in by_tool.values()]
        print(f"| {name} | {check:.4g} | {aiperf:.4g} | {check / aiperf - 1:+.1%} | {' | '.join(spreads)} |")


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
