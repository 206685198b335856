"""The step that holds the project's check against a count of its own and against SGLang's load generator."""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
import time
import urllib.request
from pathlib import Path
from statistics import median
from typing import Any

from blackwell.throughput.prompts import load

from .rig import PROMPTS, Rig
from .rollout import ADMIN_KEY, KEY, URL, Host
from .runner import Failed
from .servers import ask

TOKENS = 128
# What is still agreement, as a share. Single runs of a tiny model scatter by some percent.
TOLERANCE = 0.08


def counts(rig: Rig, host: Host) -> dict[str, Any]:
    """Decode speed by the check, by a count of this step's own, and by ``bench_serving`` run by hand."""
    profile = "eagle3" if "eagle3" in host.unit() else "baseline"
    checked = newest(rig.work / "state" / "throughput", profile)
    prompts, rows = load(PROMPTS), []
    for at_once in (1, 8):
        chosen = [prompt.text for prompt in prompts.pick(max(16, 4 * at_once))]
        by_hand(chosen, at_once)
        own = [by_hand(chosen, at_once) for _ in range(3)]
        theirs = bench(rig, host, chosen, at_once)
        check = median_of(checked, at_once)
        mine = median(run["decode tok/s"] for run in own)
        rows.append(
            {
                "at once": at_once,
                "check, tok/s": round(check, 1),
                "own count, tok/s": round(mine, 1),
                "check against it": round(check / mine - 1, 4),
                "bench_serving, tok/s of all": theirs.get("tok/s"),
                "own count, tok/s of all": round(median(run["tok/s"] for run in own), 1),
                "accept length": theirs.get("accept length"),
            }
        )
    figures = {"profile": profile, "decode speed": rows}
    far = [row["at once"] for row in rows if abs(float(str(row["check against it"]))) > TOLERANCE]
    if far:
        raise Failed(f"the check and an own count differ by more than {TOLERANCE:.0%} at {far}", figures)
    return figures


def newest(folder: Path, profile: str) -> dict[str, Any]:
    """The newest result that the check stored for a profile."""
    found = []
    for path in folder.rglob("*.json"):
        data = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(data, dict) and data.get("profile") == profile and data.get("points"):
            found.append((data.get("taken_at", ""), data))
    if not found:
        raise Failed(f"the check stored no result of {profile} in {folder}")
    return dict(max(found, key=lambda each: str(each[0]))[1])


def median_of(result: dict[str, Any], at_once: int) -> float:
    """The check's decode speed at a point."""
    point = next(
        each for each in result["points"] if each["concurrency"] == at_once and each["prompts"] == "standard"
    )
    return median(float(run["decode_tok_s"]) for run in point["runs"] if run["valid"])


def by_hand(texts: list[str], at_once: int) -> dict[str, float]:
    """One run of an own client: median decode speed of a request, and all tokens over all time."""
    ask(f"{URL}/flush_cache", {}, key=ADMIN_KEY)
    waiting, lock, done = list(texts), threading.Lock(), []

    def work() -> None:
        while True:
            with lock:
                if not waiting:
                    return
                text = waiting.pop(0)
            done.append(one(text))

    started = time.perf_counter()
    threads = [threading.Thread(target=work) for _ in range(at_once)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - started
    if len(done) != len(texts):
        raise Failed(f"{len(texts) - len(done)} requests of the own count were not answered")
    return {
        "decode tok/s": median(speed for speed, _ in done),
        "tok/s": sum(tokens for _, tokens in done) / seconds,
    }


def one(text: str) -> tuple[float, int]:
    """Decode speed of one streamed request, and its tokens by the server's own count."""
    prompt = f"<|im_user|>user<|im_middle|>{text}<|im_end|><|im_assistant|>assistant<|im_middle|>"
    sampling = {"temperature": 0, "max_new_tokens": TOKENS, "ignore_eos": True}
    body = json.dumps({"text": prompt, "stream": True, "sampling_params": sampling}).encode()
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
    first, begun, last, count = 0.0, 0, 0.0, 0
    with urllib.request.urlopen(
        urllib.request.Request(f"{URL}/generate", body, headers), timeout=120
    ) as lines:
        for line in lines:
            if line.startswith(b"data: {"):
                count, last = json.loads(line[6:])["meta_info"]["completion_tokens"], time.perf_counter()
                if not begun and count:
                    first, begun = last, count
    return (count - begun) / (last - first), count


def bench(rig: Rig, host: Host, texts: list[str], at_once: int) -> dict[str, Any]:
    """What ``sglang.bench_serving`` says, run by hand with the release's interpreter."""
    data = rig.work / f"bench-{at_once}.jsonl"
    turns = [[{"role": "user", "content": text}, {"role": "assistant", "content": ""}] for text in texts]
    data.write_text("".join(json.dumps({"conversations": each}) + "\n" for each in turns), encoding="utf-8")
    python = next((rig.work / "opt" / "releases").glob("*/venv/bin/python"))
    ask(f"{URL}/flush_cache", {}, key=ADMIN_KEY)
    command = [
        str(python), "-m", "sglang.bench_serving", "--backend", "sglang", "--base-url", URL,
        "--model", str(rig.models / "kimi"), "--tokenizer", str(rig.models / "kimi"),
        "--dataset-name", "custom", "--dataset-path", str(data), "--num-prompts", str(len(texts)),
        "--sharegpt-output-len", str(TOKENS), "--max-concurrency", str(at_once), "--seed", "1",
        "--warmup-requests", "0", "--disable-tqdm", "--apply-chat-template",
        "--output-file", str(rig.work / "bench.jsonl"),
    ]  # fmt: skip
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=180,
        cwd=rig.work,
        env={**os.environ, "OPENAI_API_KEY": KEY},
    )
    (rig.logs / f"bench-{at_once}.log").write_text(done.stdout + done.stderr, encoding="utf-8")
    labels = {"tok/s": "Output token throughput", "accept length": "Accept length"}
    found = {key: re.search(rf"{label}[^:]*:\s+([\d.]+)", done.stdout) for key, label in labels.items()}
    return {key: float(match[1]) for key, match in found.items() if match}
