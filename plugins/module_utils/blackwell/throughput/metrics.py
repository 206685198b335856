"""What the server counted during a run, from its Prometheus page.

Only counters are used. The gauges that look handier are of no use for a short run: SGLang 0.5.9 refreshes
``sglang:spec_accept_length`` and ``sglang:num_running_reqs`` every 40 decode passes and not in between.
Counter names were read in SGLang 0.5.9 (srt/metrics/collector.py) and are the same in all releases to 0.5.23.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, fields

_LABELS = r'\s*[a-zA-Z_]\w*\s*=\s*"(?:[^"\\]|\\.)*"\s*'
_NAME = re.compile(r"\s*([a-zA-Z_:][\w:]*)", re.ASCII)
_SAMPLE = re.compile(
    rf"\s*(?P<name>[a-zA-Z_:][\w:]*)\s*(?:\{{(?P<labels>(?:{_LABELS}(?:,{_LABELS})*,?)?\s*)\}})?"
    # A time in milliseconds may follow, and an exemplar behind a number sign.
    r"\s*(?<=[\s}])(?P<value>[^\s{}]+)(?:\s+[+-]?[\d.eE+-]+)?\s*(?:#.*)?",
    re.ASCII,
)
_LABEL = re.compile(r'(\w+)\s*=\s*"((?:[^"\\]|\\.)*)"', re.ASCII)
_NUMBER = re.compile(r"\+?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)

# The ranks of one group do the same passes together, and with --enable-metrics-for-all-schedulers each of them counts
# them. Ranks of data parallelism (dp_rank) have requests of their own.
_SAME_WORK = ("tp_rank", "pp_rank", "moe_ep_rank")

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Counters:
    """Totals since the server started, or (a difference) during one run. None: the server does not tell.

    ``decode_tokens`` is what decode passes produced, drafts accepted beyond a request's end included;
    ``decode_passes`` is how many passes did, each over all running requests; ``graph_passes`` is how many
    of those ran in a CUDA graph. ``unreadable`` names the fields that are on the page and not to be read there;
    such a field is None too, and so is every difference to it.
    """

    requests: float | None
    prompt_tokens: float | None
    cached_tokens: float | None
    generated_tokens: float | None
    decode_tokens: float | None
    decode_passes: float | None
    graph_passes: float | None
    unreadable: frozenset[str] = field(default=frozenset())

    def values(self) -> dict[str, float | None]:
        """The counters by name."""
        return {item.name: getattr(self, item.name) for item in fields(self) if item.name != "unreadable"}

    def since(self, earlier: Counters) -> Counters:
        """What was counted after ``earlier``.

        Prometheus shows a counter only after its first event, so one that is missing earlier counts from 0.
        """
        before = earlier.values()
        unreadable = self.unreadable | earlier.unreadable
        values = {
            name: None if now is None or name in unreadable else now - (before[name] or 0.0)
            for name, now in self.values().items()
        }
        return Counters(**values, unreadable=unreadable)


def counters(page: str) -> Counters:
    """Read the Prometheus text of ``/metrics``."""
    series = _series(page)

    def total(name: str, **labels: str) -> float | None:
        """The sum over data-parallel ranks and other labels; None without the counter, NaN when it cannot be read."""
        groups: dict[Labels, list[float]] = {}
        for its_labels, value in series.get(f"sglang:{name}", {}).items():
            if labels.items() <= dict(its_labels).items() or (math.isnan(value) and not its_labels):
                group = tuple(pair for pair in its_labels if pair[0] not in _SAME_WORK)
                groups.setdefault(group, []).append(value)
        if not groups:
            return None
        # A page is not of one moment: the rank that was read last has counted most.
        return sum(max((v for v in values if v == v), default=math.nan) for values in groups.values())

    # Later releases count prefill passes under the same name, as other modes.
    in_graphs = total("cuda_graph_passes_total", mode="decode_cuda_graph")
    eager = total("cuda_graph_passes_total", mode="decode_none")
    counts_passes = in_graphs is not None or eager is not None
    found = {
        "requests": total("num_requests_total"),
        # It appears with the first cached prompt.
        "cached_tokens": total("cached_tokens_total"),
        "prompt_tokens": total("prompt_tokens_total"),
        "generated_tokens": total("generation_tokens_total"),
        "decode_tokens": total("realtime_tokens_total", mode="decode"),
        "decode_passes": (in_graphs or 0.0) + (eager or 0.0) if counts_passes else None,
        "graph_passes": (in_graphs or 0.0) if counts_passes else None,
    }
    unreadable = frozenset(name for name, value in found.items() if value is not None and math.isnan(value))
    return Counters(
        **{name: None if name in unreadable else value for name, value in found.items()},
        unreadable=unreadable,
    )


def _series(page: str) -> dict[str, dict[Labels, float]]:
    """Every series by name and labels. NaN is one that cannot be read: no number, or two at once."""
    found: dict[str, dict[Labels, float]] = {}
    for name, labels, value in _samples(page):
        series = found.setdefault(name, {})
        series[labels] = value if series.get(labels, value) == value else math.nan
    return found


def _samples(page: str) -> Iterator[tuple[str, Labels, float]]:
    # A line ends with a line feed and nothing else: a label may hold what Python takes for the end of a line.
    for line in page.split("\n"):
        name = _NAME.match(line)
        if name is None:
            continue
        match = _SAMPLE.fullmatch(line)
        if match is None:
            # Which series of the counter it was is not known, so nothing is known of their sum.
            yield name[1], (), math.nan
            continue
        labels = tuple(sorted(_LABEL.findall(match["labels"] or "")))
        value = float(match["value"]) if _NUMBER.fullmatch(match["value"]) else math.nan
        yield name[1], labels, value if math.isfinite(value) else math.nan
