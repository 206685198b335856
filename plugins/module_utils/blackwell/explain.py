"""What differs between two receipts, the most likely cause of another behaviour first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from .errors import OperatorError
from .throughput.judge import point_name
from .throughput.result import Point

# Arguments and variables that change speed or answers by themselves; the others follow.
_TELLING = (
    "speculative_", "attention_backend", "moe_runner_backend", "fp4_gemm_backend", "quantization", "tp_size",
    "enable_flashinfer_allreduce_fusion", "cuda_graph", "max_running_requests", "mem_fraction_static", "NCCL_",
    "SGLANG_ENABLE_SPEC_V2", "context_length",
)  # fmt: skip

# Where two rollouts can differ, by how much each changed a server's behaviour in reports and measurements: another
# profile is another way of decoding; hardware and driver outweigh software; a setting outweighs a file nobody uses.
_ORDER = (
    ("profile", "speculation on or off"),
    ("host", "hardware, driver or kernel settings"),
    ("version", "another SGLang"),
    ("release", "another release or other settings; the receipt of a rollback does not say which"),
    ("patches", "the patches that are on, or their text"),
    ("settings", "arguments and environment that change speed or answers"),
    ("packages", "versions of the other packages"),
    ("toolkit", "where the CUDA toolkit comes from"),
    ("other settings", "arguments and environment"),
    ("engine files", "the files of the engine"),
    ("python", "the interpreter"),
)


@dataclass(frozen=True)
class Difference:
    """One thing that is not the same.

    Attributes:
        kind: where, one of the names in ``_ORDER``.
        name: what.
        before, after: the values, as text; ``-`` for none.
        why: what such a difference means.
    """

    kind: str
    name: str
    before: str
    after: str
    why: str


def explain(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Difference]:
    """All differences between two receipts that can be causes, the most likely one first."""
    order = {kind: place for place, (kind, _) in enumerate(_ORDER)}
    why = dict(_ORDER)
    found = [
        Difference(kind, name, _show(old), _show(new), why[kind])
        for kind, name, old, new in _compare(before, after)
    ]
    return sorted(found, key=lambda difference: (order[difference.kind], difference.name))


def effects(
    before: Mapping[str, Any], after: Mapping[str, Any]
) -> list[tuple[str, float | None, float | None]]:
    """What came of it: seconds of each phase, the outage, and the measured medians, each before and after."""
    rows: list[tuple[str, float | None, float | None]] = []
    old, new = _figures(before), _figures(after)
    for name in dict.fromkeys([*old, *new]):
        rows.append((name, old.get(name), new.get(name)))
    return rows


def _compare(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[tuple[str, str, Any, Any]]:
    old, new = before["requested"], after["requested"]
    for kind, name in (("profile", "profile"), ("version", "sglang_version"), ("engine files", "engine")):
        if old[name] != new[name]:
            yield kind, name, old[name], new[name]
    if old["profile"] != new["profile"]:
        lost = ["; ".join((receipt.get("choice") or {}).get("given_up", [])) for receipt in (before, after)]
        if any(lost):
            yield "profile", "slower than the other profile at", lost[0] or None, lost[1] or None
    if before["host"] != after["host"]:
        yield "host", "host", before["host"], after["host"]
    parts = [receipt["fingerprint"].get("parts") for receipt in (before, after)]
    yield from _pairs("host", *(part if isinstance(part, dict) else {} for part in parts))
    # The receipt of a rollback has only names. What it does not say is not gone.
    if not (old["digests"] and new["digests"]):
        for name in ("release", "deployment"):
            if old[name] != new[name]:
                yield "release", name, old[name], new[name]
                break
        return
    digests = (
        ("lock", "packages"),
        ("patches", "patches"),
        ("toolkit", "toolkit"),
        ("engine", "engine files"),
    )
    for name, kind in (*digests, ("python", "python")):
        # Another version is another lock: that says nothing more.
        same_version = old["sglang_version"] == new["sglang_version"]
        if old["digests"].get(name) != new["digests"].get(name) and (name != "lock" or same_version):
            yield kind, name, old["digests"].get(name), new["digests"].get(name)
    for field in ("arguments", "environment"):
        for _, name, was, now in _pairs("", old[field], new[field]):
            # Paths into the release change with every release.
            if str(old["release"]) in str(was) and str(new["release"]) in str(now):
                continue
            yield ("settings" if name.startswith(_TELLING) else "other settings"), name, was, now


def _pairs(kind: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[tuple[str, str, Any, Any]]:
    for name in sorted({*old, *new}):
        if old.get(name) != new.get(name):
            yield kind, name, old.get(name), new.get(name)


def _figures(receipt: Mapping[str, Any]) -> dict[str, float]:
    figures = {f"{phase['phase']}, s": float(phase["seconds"]) for phase in receipt["phases"]}
    if receipt["outage"]:
        figures["outage, s"] = float(receipt["outage"]["seconds"])
    points = (receipt["result"] or {}).get("points", [])
    try:
        for point in points:
            figures |= _medians(point)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise OperatorError(
            f"The receipt {receipt['id']} has a measured point that cannot be read",
            found=f"{type(error).__name__}: {error}",
            expected="points as docs/schemas/rollout-receipt.schema.json describes them",
            remedy="take another copy: the host has its own in /var/lib/sglang/receipts",
        ) from error
    return figures


def _medians(point: Mapping[str, Any]) -> dict[str, float]:
    runs = [run for run in point["runs"] if run["valid"]]
    label = point_name(Point(point["concurrency"], [], point["prompts"]))
    found = {}
    for name, unit in (
        ("decode_tok_s", "tok/s"),
        ("accept_length", "accept length"),
        ("ttft_s", "s to first token"),
    ):
        values = [run[name] for run in runs if run.get(name) is not None]
        if values:
            found[f"{label}: {unit}"] = float(median(values))
    return found


def _show(value: Any) -> str:
    if value is None:
        return "-"
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."
