"""What the server counted during a run, from its Prometheus page.

Only counters are used. The gauges that look handier are of no use for a short run: SGLang 0.5.9 refreshes
``sglang:spec_accept_length`` and ``sglang:num_running_reqs`` every 40 decode passes and not in between.
Counter names were read in SGLang 0.5.9 (srt/metrics/collector.py) and are the same in all releases to 0.5.23.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, fields

_SAMPLE = re.compile(r"^(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>.*)\})?\s+(?P<value>\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True)
class Counters:
    """Totals since the server started, or (a difference) during one run. None: the server does not tell.

    ``decode_tokens`` is what decode passes produced, drafts accepted beyond a request's end included;
    ``decode_passes`` is how many passes did, each over all running requests; ``graph_passes`` is how many
    of those ran in a CUDA graph.
    """

    requests: float | None
    prompt_tokens: float | None
    cached_tokens: float | None
    generated_tokens: float | None
    decode_tokens: float | None
    decode_passes: float | None
    graph_passes: float | None

    def since(self, earlier: Counters) -> Counters:
        """What was counted after ``earlier``.

        Prometheus shows a counter only after its first event, so one that is missing earlier counts from 0.
        """
        values: dict[str, float | None] = {}
        for item in fields(self):
            now = getattr(self, item.name)
            values[item.name] = None if now is None else now - (getattr(earlier, item.name) or 0.0)
        return Counters(**values)


def counters(page: str) -> Counters:
    """Read the Prometheus text of ``/metrics``."""
    samples = list(_samples(page))

    def total(name: str, **labels: str) -> float | None:
        matching = [value for found, its, value in samples if found == name and labels.items() <= its.items()]
        return sum(matching) if matching else None

    # Later releases count prefill passes under the same name, as other modes.
    in_graphs = total("sglang:cuda_graph_passes_total", mode="decode_cuda_graph")
    eager = total("sglang:cuda_graph_passes_total", mode="decode_none")
    counts_passes = in_graphs is not None or eager is not None
    return Counters(
        requests=total("sglang:num_requests_total"),
        # It appears with the first cached prompt; a server without one shows none, which is 0.
        cached_tokens=total("sglang:cached_tokens_total") or 0.0,
        prompt_tokens=total("sglang:prompt_tokens_total"),
        generated_tokens=total("sglang:generation_tokens_total"),
        decode_tokens=total("sglang:realtime_tokens_total", mode="decode"),
        decode_passes=(in_graphs or 0.0) + (eager or 0.0) if counts_passes else None,
        graph_passes=(in_graphs or 0.0) if counts_passes else None,
    )


def _samples(page: str) -> list[tuple[str, dict[str, str], float]]:
    found = []
    for line in page.splitlines():
        match = _SAMPLE.match(line)
        if match and not line.startswith("#"):
            labels = dict(_LABEL.findall(match["labels"] or ""))
            try:
                value = float(match["value"])
            except ValueError:
                continue
            # A counter that is not a number tells nothing; compared with anything it would look harmless.
            if math.isfinite(value):
                found.append((match["name"], labels, value))
    return found
