"""What is made of a run: figures by their formulas, and every reason why a run does not count."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from blackwell.throughput import gpu, result
from blackwell.throughput.bench import Report, Request, report_of
from blackwell.throughput.figures import Limits, Seen, percentile, run_of
from blackwell.throughput.metrics import Counters, counters

from tests.wheels import unpacked

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures" / "throughput"
# 4 tokens a step of 0.04 s after a first token at 0.5 s: 100 tokens a second.
STEPS = [0.01] * 40
GOOD = Request(output_tokens=41, ttft_s=0.5, gaps_s=STEPS, problem="")
COUNTED = Counters(
    requests=4,
    prompt_tokens=400,
    cached_tokens=20,
    generated_tokens=164,
    decode_tokens=160,
    decode_passes=40,
    graph_passes=36,
)


def seen(*requests: Request, **changes: object) -> Seen:
    """A run of four good requests, one at a time, with speculation, unless said otherwise."""
    run = Seen(
        concurrency=1,
        output_tokens=41,
        report=Report(duration_s=4.0, requests=list(requests) or [GOOD] * 4),
        counted=COUNTED,
        server_accept_length=3.5,
        speculative=True,
        samples=[],
    )
    return dataclasses.replace(run, **changes)  # type: ignore[arg-type]


def counted(**changes: float | None) -> Counters:
    return dataclasses.replace(COUNTED, **changes)  # type: ignore[arg-type]


def reasons(run: Seen) -> list[str]:
    """The kinds of disturbance of a run."""
    return [reason.split(":")[0] for reason in run_of(run, Limits()).invalid_because]


def test_each_figure_follows_its_formula() -> None:
    run = run_of(seen(), Limits())
    assert run.valid
    assert run.decode_tok_s == pytest.approx(100)
    assert run.output_tok_s == pytest.approx(4 * 41 / 4.0)
    assert run.ttft_s == 0.5
    assert run.itl_p50_ms == pytest.approx(10)
    assert run.accept_length == 4.0
    assert run.step_rate == pytest.approx(25)
    assert run.graph_share == 0.9
    assert run.output_tokens == 164


def test_decode_rate_leaves_prefill_out() -> None:
    slow_start = dataclasses.replace(GOOD, ttft_s=60.0)
    run = run_of(seen(slow_start, slow_start, slow_start, slow_start), Limits())
    assert run.decode_tok_s == pytest.approx(100)


def test_decode_rate_counts_tokens_and_not_chunks() -> None:
    """A first chunk of three tokens leaves 38 for the time after it."""
    request = dataclasses.replace(GOOD, gaps_s=[0.01] * 38)
    assert run_of(seen(request, request, request, request), Limits()).decode_tok_s == pytest.approx(100)


def test_one_slow_request_does_not_move_the_median() -> None:
    slow = dataclasses.replace(GOOD, gaps_s=[0.1] * 40)
    assert run_of(seen(GOOD, GOOD, GOOD, slow), Limits()).decode_tok_s == pytest.approx(100)


def test_without_speculation_a_step_is_a_token() -> None:
    run = run_of(seen(speculative=False, server_accept_length=None), Limits())
    assert run.accept_length == 1.0
    assert run.step_rate == run.decode_tok_s


def test_with_several_requests_in_flight_the_server_tells_the_accept_length() -> None:
    assert run_of(seen(concurrency=4), Limits()).accept_length == 3.5


@pytest.mark.parametrize("counter", ["decode_tokens", "decode_passes"])
def test_an_accept_length_that_the_server_does_not_tell_is_none(counter: str) -> None:
    run = run_of(seen(counted=counted(**{counter: None})), Limits())
    assert run.accept_length is None
    assert run.step_rate is None


@pytest.mark.parametrize("counter", ["requests", "prompt_tokens", "generated_tokens", "decode_tokens"])
def test_a_server_that_hides_what_else_it_does_is_not_measured(counter: str) -> None:
    assert result.MISSING in reasons(seen(counted=counted(**{counter: None})))


def test_a_server_that_was_started_again_meanwhile_is_noticed() -> None:
    assert reasons(seen(counted=counted(requests=-396, generated_tokens=-9000))) == [result.RESTARTED]


def test_a_server_that_counts_past_where_it_was_before_its_restart_is_noticed() -> None:
    answered = len(seen().report.requests)
    assert reasons(seen(counted=counted(requests=answered - 1, generated_tokens=0))) == [result.RESTARTED]


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "much", ""])
def test_a_counter_that_is_no_number_tells_nothing(value: str) -> None:
    page = f'sglang:num_requests_total{{model_name="m"}} {value}\nsglang:prompt_tokens_total 7.0\n'
    assert (counters(page).requests, counters(page).prompt_tokens) == (None, 7.0)


def test_requests_of_others_that_ended_disturb() -> None:
    assert reasons(seen(counted=counted(requests=5, generated_tokens=300))) == [result.FOREIGN]


def test_a_request_of_others_that_goes_on_disturbs() -> None:
    assert reasons(seen(counted=counted(decode_tokens=900))) == [result.FOREIGN]


def test_tokens_of_a_last_step_beyond_the_end_are_ours() -> None:
    assert reasons(seen(counted=counted(decode_tokens=160 + 4 * 3))) == []


def test_tokens_counted_by_chunk_are_noticed() -> None:
    by_chunk = Request(output_tokens=11, ttft_s=0.5, gaps_s=[0.04] * 10, problem="11 of 41 tokens")
    assert reasons(seen(by_chunk, by_chunk, by_chunk, by_chunk)) == [result.TOKEN_COUNT]


def test_an_answer_that_ends_early_is_a_failure() -> None:
    short = Request(output_tokens=20, ttft_s=0.5, gaps_s=[0.01] * 19, problem="20 of 41 tokens")
    run = run_of(seen(GOOD, GOOD, GOOD, short, counted=counted(generated_tokens=143)), Limits())
    assert run.failures == 1
    assert [reason.split(":")[0] for reason in run.invalid_because] == [result.FAILURES]


def test_errors_that_came_fast_are_failures_and_no_speed() -> None:
    error = Request(output_tokens=0, ttft_s=0.0, gaps_s=[], problem="the stream ended without a token")
    run = run_of(seen(GOOD, error, error, error, counted=counted(requests=1, generated_tokens=41)), Limits())
    assert run.failures == 3
    assert run.decode_tok_s == pytest.approx(100)
    assert run.invalid_because[0].startswith(f"{result.FAILURES}: 3 of 4")


def test_a_warm_cache_is_noticed() -> None:
    assert reasons(seen(counted=counted(cached_tokens=380))) == [result.WARM_CACHE]


def test_a_shared_chat_template_is_no_warm_cache() -> None:
    assert reasons(seen(counted=counted(cached_tokens=60))) == []


@pytest.mark.parametrize(
    "stalled",
    [
        pytest.param({"ttft_s": 25.0}, id="first token"),
        pytest.param({"gaps_s": [*STEPS[:36], 5.0, 5.0, 5.0, 5.0]}, id="one chunk of four tokens after 20 s"),
    ],
)
def test_a_request_that_stood_still_is_noticed(stalled: dict[str, object]) -> None:
    request = dataclasses.replace(GOOD, **stalled)  # type: ignore[arg-type]
    assert reasons(seen(GOOD, GOOD, GOOD, request)) == [result.STALLED]


def test_a_server_that_is_slow_throughout_does_not_stall() -> None:
    slow = dataclasses.replace(GOOD, ttft_s=30.0, gaps_s=[6.0] * 40)
    assert reasons(seen(slow, slow, slow, slow)) == []


def test_throttled_gpus_disturb_and_a_power_cap_does_not() -> None:
    capped = gpu.Sample(gpu=0, clock_mhz=2000, memory_mhz=12481, power_w=600, temperature_c=70, reasons=0x4)
    braked = dataclasses.replace(capped, gpu=3, reasons=0x84)
    assert reasons(seen(samples=[capped])) == []
    run = run_of(seen(samples=[capped, braked]), Limits())
    assert run.invalid_because == [f"{result.THROTTLED}: hardware power brake on GPU 3"]
    assert run.gpu["power_cap_share"] == 1.0


def test_gpu_figures_are_of_the_slowest_card_and_of_all() -> None:
    text = "0, 2430, 12481, 410.5, 61, 0x0000000000000000\n1, 1900, 12481, 390.1, 64, 0x0000000000000004\n"
    figures = gpu.summary(gpu.parse(text))
    assert figures["clock_mhz"] == 1900
    assert figures["power_w"] == pytest.approx(800.6)
    assert figures["temperature_c"] == 64


def test_a_card_that_idles_before_the_first_request_is_not_slow() -> None:
    text = (
        "0, 345, 3201, 77.9, 37, 0x0000000000000001\n" * 3 + "0, 1980, 3201, 410.0, 52, 0x0000000000000000\n"
    )
    assert gpu.summary(gpu.parse(text))["clock_mhz"] == 1980


def test_a_figure_that_a_card_does_not_tell_is_left_out_and_its_throttling_is_not() -> None:
    samples = gpu.parse("0, [N/A], 12481, [N/A], 61, 0x40\n1, 2430, 12481, 410.5, 60, 0x0\n")
    assert gpu.throttles(samples) == ["hardware thermal slowdown on GPU 0"]
    assert gpu.summary(samples) == {
        "gpus": 2,
        "memory_mhz": 12481,
        "temperature_c": 61,
        "power_cap_share": 0,
    }
    assert gpu.summary([]) == {}


@pytest.mark.parametrize(
    "line",
    [
        "",
        "WARNING: infoROM is corrupted at gpu 0000:01:00.0",
        "0, 2430, 12481, 410.5, 61, [GPU requires reset]",
        "0, 2430, 12481, 410.5, 61, [N/A]",
        "0, 2430, 12481, 410.5, 61, Not Active",
        "0, 2430, 12481, 410.5, 61, 0x",
        "0, 2430, 12481, 410.5, 61, -0x40",
        "[Unknown Error], 2430, 12481, 410.5, 61, 0x0",
        "-1, 2430, 12481, 410.5, 61, 0x0",
        "0, 2430, 12481, 410.5, 61",
    ],
)
def test_a_line_that_does_not_tell_card_and_reasons_is_no_sample(line: str) -> None:
    assert gpu.parse(line + "\n") == []


@pytest.mark.parametrize(("percent", "expected"), [(50, 3.0), (95, 4.8), (0, 1.0), (100, 5.0)])
def test_percentiles_are_linear_between_neighbours(percent: float, expected: float) -> None:
    assert percentile([1.0, 2.0, 3.0, 4.0, 5.0], percent) == pytest.approx(expected)


def test_there_is_no_percentile_of_nothing() -> None:
    assert percentile([], 50) is None


def test_the_report_of_the_real_program_is_read() -> None:
    said = json.loads((FIXTURES / "bench_serving-0.5.9.json").read_text("utf-8"))
    report = report_of(said, 100)
    assert [request.problem for request in report.requests] == ["", ""]
    assert [len(request.gaps_s) for request in report.requests] == [99, 99]
    assert "planted" not in repr(report)


def test_a_success_without_a_token_is_not_believed() -> None:
    """The program takes the requested length for granted when a stream ends without a token."""
    said = {"duration": 1.0, "errors": [""], "output_lens": [100], "ttfts": [0.0], "itls": [[]]}
    request = report_of(said, 100).requests[0]
    assert request.problem
    assert request.output_tokens == 0


def test_counters_of_the_real_server_are_read() -> None:
    totals = counters((FIXTURES / "metrics-0.5.9.txt").read_text("utf-8"))
    assert totals == Counters(
        requests=6,
        prompt_tokens=47,
        cached_tokens=14,
        generated_tokens=206,
        decode_tokens=200,
        decode_passes=53,
        graph_passes=0,
    )


def test_a_counter_that_appears_later_counts_from_zero() -> None:
    before = counters("")
    assert before.requests is None
    assert counters('sglang:num_requests_total{model_name="m"} 3.0\n').since(before).requests == 3.0


def test_prefill_passes_of_later_releases_are_no_decode_passes() -> None:
    modes = {"decode_cuda_graph": 30, "decode_none": 10, "prefill_cuda_graph": 3, "prefill_none": 4}
    page = "".join(f'sglang:cuda_graph_passes_total{{mode="{mode}"}} {n}.0\n' for mode, n in modes.items())
    assert (counters(page).decode_passes, counters(page).graph_passes) == (40, 30)


@pytest.mark.parametrize("release", ["0.5.9", "0.5.10.post1", "0.5.23"])
def test_the_counters_have_these_names_in_published_releases(release: str) -> None:
    sources = "".join(
        path.read_text("utf-8")
        for path in (unpacked("sglang", release) / "sglang/srt").rglob("*collector.py")
    )
    for name in ("num_requests", "prompt_tokens", "generation_tokens", "cached_tokens", "realtime_tokens"):
        assert f'"sglang:{name}_total"' in sources
    assert '"sglang:cuda_graph_passes_total"' in sources
    assert '"decode_cuda_graph" if value else "decode_none"' in sources


def test_counters_of_several_servers_behind_one_page_add_up() -> None:
    page = 'sglang:num_requests_total{a="1"} 3.0\nsglang:num_requests_total{a="2"} 4.0\n'
    assert counters(page).requests == 7.0


def _page(ranks: list[dict[str, int]], tokens: int = 9000, passes: int = 3000) -> str:
    lines = ['sglang:num_requests_total{engine_type="unified",model_name="m"} 16']
    for rank in ranks:
        labels = ",".join(f'{name}="{value}"' for name, value in rank.items())
        lines += [
            f'sglang:realtime_tokens_total{{model_name="m",{labels},mode="decode"}} {tokens}.0',
            f'sglang:cuda_graph_passes_total{{model_name="m",{labels},mode="decode_cuda_graph"}} {passes}.0',
        ]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    ("ranks", "groups"),
    [
        pytest.param([{"tp_rank": 0, "pp_rank": 0, "moe_ep_rank": 0}], 1, id="the first rank alone"),
        pytest.param(
            [{"tp_rank": n, "pp_rank": 0, "moe_ep_rank": 0} for n in range(8)], 1, id="tensor parallel"
        ),
        pytest.param(
            [{"tp_rank": n, "pp_rank": 0, "moe_ep_rank": n} for n in range(8)], 1, id="expert parallel"
        ),
        pytest.param([{"tp_rank": 0, "pp_rank": n, "moe_ep_rank": 0} for n in range(4)], 1, id="pipeline"),
        pytest.param(
            [{"tp_rank": n, "pp_rank": 0, "moe_ep_rank": 0, "dp_rank": n // 4} for n in range(8)],
            2,
            id="two data-parallel groups of four",
        ),
        pytest.param(
            [{"tp_rank": 0, "pp_rank": 0, "moe_ep_rank": 0, "dp_rank": n} for n in range(8)],
            8,
            id="data parallel",
        ),
    ],
)
def test_one_rank_of_a_group_counts_and_data_parallel_groups_add_up(
    ranks: list[dict[str, int]], groups: int
) -> None:
    totals = counters(_page(ranks))
    assert totals.requests == 16
    assert (totals.decode_tokens, totals.decode_passes, totals.graph_passes) == (
        9000 * groups,
        3000 * groups,
        3000 * groups,
    )


def test_a_rank_that_was_read_a_moment_later_is_not_added() -> None:
    ranks = [{"tp_rank": 0}, {"tp_rank": 1}]
    later = _page(ranks).replace('tp_rank="1",mode="decode"} 9000', 'tp_rank="1",mode="decode"} 9004')
    assert counters(later).decode_tokens == 9004


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        pytest.param('sglang:num_requests_total{model_name="m"} 3.0 1764552000000', 3, id="a time"),
        pytest.param("sglang:num_requests_total 3", 3, id="no labels"),
        pytest.param("sglang:num_requests_total{} 3", 3, id="empty labels"),
        pytest.param('sglang:num_requests_total{a="x",} 3', 3, id="a comma at the end"),
        pytest.param('sglang:num_requests_total{ a = "x" , b="y" } 3e2', 300, id="blanks and an exponent"),
        pytest.param(r'sglang:num_requests_total{a="q\"} 9 {b=\"c\", \\"} 3', 3, id="quotes and braces"),
        pytest.param('sglang:num_requests_total{a="} 7",b="x,y=1"} 3', 3, id="a brace and commas"),
        pytest.param('sglang:num_requests_total{a="x\u2028y\x0bz"} 3', 3, id="odd white space"),
        pytest.param('sglang:num_requests_total{a="x"} 3\r', 3, id="a carriage return"),
        pytest.param('sglang:num_requests_total{a="x"} 3 # {id="t"} 1.0', 3, id="an exemplar"),
        pytest.param('sglang:num_requests_total{a="x"} 3\n' * 2, 3, id="the same line twice"),
        pytest.param(
            'sglang:num_requests_total{a="x"} 3\nsglang:num_requests_total{a="x"} 4', None, id="two"
        ),
        pytest.param('sglang:num_requests_total{a="x"} 1_000', None, id="an underscore"),
        pytest.param('sglang:num_requests_total{a="x"} -3', None, id="below zero"),
        pytest.param('sglang:num_requests_total{a="x"} 1e999', None, id="beyond all numbers"),
        pytest.param('sglang:num_requests_total{a="x} 3', None, id="an open label"),
        pytest.param('sglang:num_requests_total{a="x"}', None, id="no value"),
        pytest.param(
            'sglang:num_requests_total{dp_rank="0"} 3\nsglang:num_requests_total{dp_rank="1"} NaN',
            None,
            id="one of two groups is no number",
        ),
        pytest.param('sglang:num_requests_total_created{a="x"} 1.7e9', None, id="another name"),
        pytest.param('sglang:num_requests_total_bucket{le="1"} 5', None, id="a histogram"),
        pytest.param('#sglang:num_requests_total{a="x"} 3', None, id="a comment"),
    ],
)
def test_a_sample_is_read_as_prometheus_writes_it_or_not_at_all(line: str, expected: float | None) -> None:
    assert counters(line + "\n").requests == expected


def test_a_difference_to_what_could_not_be_read_is_not_known() -> None:
    before = counters("sglang:num_requests_total NaN\n")
    assert counters("sglang:num_requests_total 5\n").since(before).requests is None


def test_a_counter_of_cached_tokens_that_is_not_there_is_not_zero() -> None:
    assert counters("sglang:prompt_tokens_total 7\n").cached_tokens is None


def test_a_counter_that_is_no_number_keeps_a_run_from_counting() -> None:
    run = seen(
        counted=dataclasses.replace(counted(cached_tokens=None), unreadable=frozenset({"cached_tokens"}))
    )
    assert reasons(run) == [result.MISSING]


def test_a_run_whose_gpus_nobody_watched_does_not_count() -> None:
    run = run_of(seen(unwatched=["nvidia-smi ended before the run did, by SIGKILL"]), Limits())
    assert run.invalid_because == ["GPUs not watched: nvidia-smi ended before the run did, by SIGKILL"]
