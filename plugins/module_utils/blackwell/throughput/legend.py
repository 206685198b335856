"""How each figure of a run is called, written and computed, and which way is better."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """One figure of :class:`~.result.Run`; ``name`` is the field it is read from."""

    name: str
    label: str
    unit: str
    digits: int
    less_is_better: bool
    formula: str

    @property
    def heading(self) -> str:
        """The label with the unit, for an axis or a column: 'Decode, tok/s'."""
        return f"{self.label}, {self.unit}" if self.unit else self.label

    @property
    def bound(self) -> str:
        """What a value of the inventory is that a result may not cross: 'floor' or 'ceiling'."""
        return "ceiling" if self.less_is_better else "floor"

    def bare(self, value: float | None) -> str:
        """The value without its unit, or - when it could not be had."""
        return "-" if value is None else f"{value:.{self.digits}f}"

    def text(self, value: float | None) -> str:
        """The value with its unit, or - when it could not be had."""
        return self.bare(value) if value is None else f"{self.bare(value)} {self.unit}".rstrip()

    def step(self, before: float, after: float) -> str:
        """A change in words: 'Decode 95.0 -> 86.1 tok/s'."""
        return f"{self.label} {self.bare(before)} -> {self.text(after)}"


_DECODE = "median over requests of tokens after the first / (latency - TTFT): what one user sees"
_OUTPUT = "all output tokens of a run / its wall time, prefill included"
_LENGTH = "tokens that one verify step yields, the bonus token included; 1 without speculation"
_STEPS = "decode tok/s / accept length: verify steps a second for one user"
_TTFT = "time from sending a request to its first token, median over requests"
_TTFT_P99 = "the same, 99th percentile over requests"
_ITL = "time between tokens, {} over tokens; tokens that arrive together share the time they took"
_GRAPHS = "share of decode passes that ran as a CUDA graph"

FIGURES = {
    figure.name: figure
    for figure in (
        Figure("decode_tok_s", "Decode", "tok/s", 1, False, _DECODE),
        Figure("output_tok_s", "Total output", "tok/s", 1, False, _OUTPUT),
        Figure("accept_length", "Accept length", "", 2, False, _LENGTH),
        Figure("step_rate", "Step rate", "steps/s", 1, False, _STEPS),
        Figure("ttft_s", "TTFT", "s", 3, True, _TTFT),
        Figure("ttft_p99_s", "TTFT p99", "s", 3, True, _TTFT_P99),
        Figure("itl_p50_ms", "Inter-token p50", "ms", 1, True, _ITL.format("median")),
        Figure("itl_p95_ms", "Inter-token p95", "ms", 1, True, _ITL.format("95th percentile")),
        Figure("itl_p99_ms", "Inter-token p99", "ms", 1, True, _ITL.format("99th percentile")),
        Figure("graph_share", "In CUDA graphs", "", 2, False, _GRAPHS),
    )
}
