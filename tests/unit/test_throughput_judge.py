"""The judge passes, fails, cannot tell, and names what is to blame."""

from __future__ import annotations

import dataclasses
import json
import math
import random
from collections import Counter
from collections.abc import Callable
from itertools import combinations, product
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml
from blackwell.errors import OperatorError
from blackwell.throughput.choice import choose_profile
from blackwell.throughput.compare import compare
from blackwell.throughput.intervals import (
    look_error,
    look_sizes,
    median_interval,
    ratio_interval,
    runs_to_decide,
)
from blackwell.throughput.judge import BaselineRefused, judge, judge_aba, need_more_runs
from blackwell.throughput.policy import JUDGED, Policy
from blackwell.throughput.result import Point, Result
from blackwell.throughput.verdict import Verdict

from tests.unit.throughput_results import BUSY, make_point, make_result, make_run

BASELINE = make_result(seed=1)
POLICY = Policy()
PLAIN: dict[str, Any] = {"identity": {"profile": "baseline"}, "plain": True}


def profiles(gains: dict[str, float], runs: int = 20) -> tuple[Result, Result]:
    """Results of both profiles with these ratios of decode speed, by point as an inventory writes it."""
    fast, plain = [], []
    for name, gain in gains.items():
        concurrency, _, kind = name.partition("/")
        prompts = kind or "standard"
        fast.append(make_point(int(concurrency), runs, seed=1, speed=gain, prompts=prompts))
        plain.append(make_point(int(concurrency), runs, seed=2, plain=True, prompts=prompts))
    return (
        make_result(identity={"points": fast}),
        make_result(identity={"points": plain, "profile": "baseline"}),
    )


def worse(result: Result, **changes: Any) -> Result:
    """The result with fields of every run replaced."""
    points = [
        dataclasses.replace(p, runs=[dataclasses.replace(run, **changes) for run in p.runs])
        for p in result.points
    ]
    return dataclasses.replace(result, points=points)


class TestVerdict:
    def test_an_unchanged_server_passes(self) -> None:
        verdict = judge(make_result(runs=5, seed=2), BASELINE, POLICY)
        assert (verdict.outcome, verdict.accepted, verdict.culprits) == ("pass", True, [])
        assert "0.5.9-3fa94c01d2be" in verdict.headline

    def test_a_tenth_less_fails(self) -> None:
        verdict = judge(make_result(runs=5, seed=2, speed=0.9), BASELINE, POLICY)
        assert (verdict.outcome, verdict.accepted) == ("fail", False)

    def test_a_loss_on_the_margin_is_undecidable_and_more_runs_are_not_promised(self) -> None:
        verdict = judge(make_result(seed=2, speed=0.95, noise=0.035), BASELINE, POLICY)
        assert verdict.outcome == "undecidable"
        assert "more runs would not decide" in verdict.headline

    def test_undecidable_says_how_many_runs_would_decide(self) -> None:
        verdict = judge(make_result(runs=20, seed=4, noise=0.06), make_result(seed=1, noise=0.06), POLICY)
        wanted = [f.more_runs for f in verdict.findings if f.outcome == "undecidable"]
        assert verdict.outcome == "undecidable"
        assert wanted and all(more is None or more > 0 for more in wanted)

    @pytest.mark.parametrize("accept", [True, False])
    def test_noise_is_accepted_only_where_the_policy_says_so(self, accept: bool) -> None:
        policy = Policy(accept_undecidable=accept)
        verdict = judge(make_result(seed=2, speed=0.95, noise=0.035), BASELINE, policy)
        assert (verdict.outcome, verdict.accepted) == ("undecidable", accept)

    def test_a_result_that_was_not_measured_is_never_accepted(self) -> None:
        nothing = worse(make_result(runs=5), valid=False, invalid_because=[BUSY])
        verdict = judge(nothing, BASELINE, Policy(accept_undecidable=True))
        assert (verdict.outcome, verdict.accepted) == ("undecidable", False)
        assert verdict.culprits[0].name == "foreign load"

    def test_disturbed_runs_are_left_out_and_told(self) -> None:
        good = make_result(runs=10, seed=2)
        slow = make_run(random.Random(0), speed=0.5, valid=False, invalid_because=[BUSY])
        first = dataclasses.replace(good.points[0], runs=[slow, *good.points[0].runs])
        verdict = judge(dataclasses.replace(good, points=[first, good.points[1]]), BASELINE, POLICY)
        assert verdict.outcome == "pass"
        assert BUSY in verdict.notes[0]

    def test_too_few_runs_decide_nothing_even_when_they_are_slow(self) -> None:
        verdict = judge(make_result(runs=3, speed=0.5), BASELINE, POLICY)
        assert verdict.outcome == "undecidable"
        assert "only 3 valid runs of the 5" in verdict.headline

    def test_it_survives_json(self) -> None:
        verdict = judge(make_result(runs=5, speed=0.9), BASELINE, POLICY)
        assert Verdict.from_json(verdict.to_json()) == verdict

    def test_equal_figures_in_every_run_are_decided(self) -> None:
        steady = worse(make_result(runs=5), decode_tok_s=96.0, output_tok_s=90.0, ttft_s=0.3, step_rate=33.0)
        verdict = judge(steady, steady, POLICY)
        assert verdict.outcome == "pass"


class TestCulprit:
    @pytest.mark.parametrize(
        ("truth", "culprit"),
        [
            ({"length": 0.85, "speed": 0.85}, "draft model"),
            ({"length": 0.8, "speed": 1.08}, "draft model"),
            ({"length": 1.01 / 2.88}, "draft model"),
            ({"speed": 0.88}, "kernels or communication"),
            ({"speed": 0.5, "graph_share": 0.0}, "graphs off"),
            ({"speed": 0.88, "gpu": {"clock_mhz": 1900.0}}, "host throttled"),
            ({"ttft": 1.4}, "prefill"),
            ({"total": 0.8}, "stalled requests"),
            ({"failures": 1}, "failed requests"),
            ({"failures": 15, "speed": 1.5}, "failed requests"),
            ({"accept_length": None}, "missing metric"),
            ({"graph_share": None}, "missing metric"),
            ({"decode_tok_s": 0.0}, "missing metric"),
        ],
    )
    def test_each_fault_fails_with_its_name(self, truth: dict[str, Any], culprit: str) -> None:
        verdict = judge(make_result(runs=7, seed=3, **truth), BASELINE, POLICY)
        assert verdict.outcome == "fail"
        assert verdict.culprits[0].name == culprit
        assert verdict.headline.startswith(f"Fail: {culprit} at 1 request")

    @pytest.mark.parametrize(
        ("reason", "outcome", "culprit"),
        [
            ("throttled: GPU 3 thermal", "undecidable", "host throttled"),
            ("warm cache: 40 % of the prompt tokens", "undecidable", "warm cache"),
            ("token count: usage and chunks differ", "undecidable", "token count"),
            (BUSY, "undecidable", "foreign load"),
            ("stalled request: 31 s", "fail", "stalled requests"),
            ("timeout: 900 s", "fail", "stalled requests"),
            ("missing metric: sglang:num_running_reqs", "fail", "missing metric"),
        ],
    )
    def test_runs_that_do_not_count_name_why(self, reason: str, outcome: str, culprit: str) -> None:
        nothing = worse(make_result(runs=6), valid=False, invalid_because=[reason])
        verdict = judge(nothing, BASELINE, POLICY)
        assert (verdict.outcome, verdict.culprits[0].name) == (outcome, culprit)
        assert not verdict.accepted

    def test_one_stalled_request_is_repeated_and_told(self) -> None:
        good = make_result(runs=6, seed=2)
        stalled = make_run(random.Random(0), valid=False, invalid_because=["stalled request: 31 s"])
        point = dataclasses.replace(good.points[0], runs=[stalled, *good.points[0].runs])
        verdict = judge(dataclasses.replace(good, points=[point, good.points[1]]), BASELINE, POLICY)
        assert verdict.outcome == "pass"
        assert "stalled request: 31 s" in verdict.notes[0]

    @pytest.mark.parametrize(("stalls", "outcome"), [(1, "pass"), (2, "fail"), (3, "fail")])
    def test_a_second_stalled_request_is_no_chance(self, stalls: int, outcome: str) -> None:
        good = make_result(runs=6, seed=2)
        stalled = make_run(random.Random(0), valid=False, invalid_because=["stalled request: 31 s"])
        point = dataclasses.replace(good.points[0], runs=[*[stalled] * stalls, *good.points[0].runs])
        verdict = judge(dataclasses.replace(good, points=[point, good.points[1]]), BASELINE, POLICY)
        assert verdict.outcome == outcome

    def test_faster_with_fewer_accepted_tokens_is_told(self) -> None:
        verdict = judge(make_result(runs=7, seed=3, length=0.8, speed=1.08), BASELINE, POLICY)
        assert any("faster although fewer tokens are accepted" in note for note in verdict.notes)

    def test_small_losses_of_both_factors_blame_the_larger(self) -> None:
        lost = make_result(runs=20, seed=3, length=0.965, speed=0.965 * 0.958, noise=0.003)
        verdict = judge(lost, make_result(seed=1, noise=0.003), POLICY)
        failing = {f.figure for f in verdict.findings if f.outcome == "fail"}
        assert "step_rate" not in failing and "accept_length" not in failing and "decode_tok_s" in failing
        assert verdict.culprits[0].name == "kernels or communication"

    def test_wrong_answers_fail_however_fast(self) -> None:
        wrong = make_result(runs=5, speed=1.3, identity={"canary": {"passed": False, "checks": []}})
        verdict = judge(wrong, BASELINE, POLICY)
        assert (verdict.outcome, verdict.culprits[0].name) == ("fail", "wrong answers")

    def test_a_point_that_was_not_measured_fails(self) -> None:
        verdict = judge(make_result(runs=5, concurrency=(1,)), BASELINE, POLICY)
        assert verdict.outcome == "fail"
        assert "8 requests was not measured" in verdict.headline

    def test_without_speculation_an_accept_length_of_one_is_right(self) -> None:
        plain = {"profile": "baseline"}
        before = make_result(seed=1, plain=True, identity=plain)
        verdict = judge(make_result(runs=7, seed=2, plain=True, identity=plain), before, POLICY)
        assert verdict.outcome == "pass"


def drafting(
    lengths: dict[int, float], runs: int = 5, noise: float = 0.003, prompts: str = "standard"
) -> Result:
    """A result with these accept lengths by requests at once."""
    points = []
    for concurrency, length in lengths.items():
        rng = random.Random(f"{concurrency} {length}")
        made = [
            make_run(rng, concurrency, accept_length=length * math.exp(rng.gauss(0, noise)))
            for _ in range(runs)
        ]
        points.append(Point(concurrency, made, prompts))
    return make_result(identity={"points": points})


EVERYWHERE = Policy(
    floors={"eagle3": {at: {"decode_tok_s": 1} for at in ("1", "2", "4", "8", "1/long", "4/long")}}
)
NAME = "drafting gets worse with more requests"


class TestDrafting:
    """How many ask at once hardly matters to a drafter. Figures: one H200, spec v2 as published and mended."""

    SPOILED: ClassVar = {1: 2.985, 2: 2.674, 4: 2.286, 8: 2.054}
    MENDED: ClassVar = {1: 2.985, 2: 2.985, 4: 2.985, 8: 3.032}

    @pytest.mark.parametrize("noise", [0.0, 0.003, 0.01])
    @pytest.mark.parametrize("points", [(1, 2, 4, 8), (1, 8), (1, 4), (1, 2), (4, 1)])
    def test_a_fall_fails_by_name_and_without_one_it_passes(
        self, points: tuple[int, ...], noise: float
    ) -> None:
        spoiled = judge(drafting({at: self.SPOILED[at] for at in points}, noise=noise), None, EVERYWHERE)
        assert (spoiled.outcome, spoiled.culprits[0].name) == ("fail", NAME)
        mended = judge(drafting({at: self.MENDED[at] for at in points}, noise=noise), None, EVERYWHERE)
        assert (mended.outcome, mended.culprits) == ("pass", [])

    def test_an_anchor_with_the_same_fall_is_no_excuse(self) -> None:
        anchor = drafting(self.SPOILED, runs=20)
        verdict = judge(drafting(self.SPOILED), anchor, POLICY)
        assert (verdict.outcome, verdict.accepted, verdict.culprits[0].name) == ("fail", False, NAME)
        assert "eagle3_server_enable_spec_v2" in verdict.headline

    def test_an_accepted_release_with_a_fall_can_be_left(self) -> None:
        """Neither a plain upgrade nor an A-B-A holds the fault of the old release against the new one."""
        old, new = drafting(self.SPOILED, runs=20), drafting(self.MENDED)
        assert judge(new, old, POLICY).outcome == "pass"
        assert judge_aba(old, new, old, POLICY).outcome == "pass"

    def test_what_other_prompts_explain_is_none(self) -> None:
        assert judge(drafting({1: 2.985, 8: 2.85}), None, EVERYWHERE).outcome == "pass"

    def test_a_fall_at_the_margin_is_undecidable_and_noise_to_the_policy(self) -> None:
        near = drafting({1: 3.0, 8: 3.0 * 0.92}, noise=0.01)
        assert judge(near, None, EVERYWHERE).outcome == "undecidable"
        tolerant = dataclasses.replace(EVERYWHERE, accept_undecidable=True)
        assert judge(near, None, tolerant).accepted

    def test_the_margin_is_the_inventory_s(self) -> None:
        wide = Policy.from_dict({"floors": EVERYWHERE.floors, "drafting_margin": "0.4"})
        assert judge(drafting(self.SPOILED), None, wide).outcome == "pass"

    def test_long_prompts_are_held_against_long_ones(self) -> None:
        short, window = drafting({1: 2.985}), drafting({1: 1.33, 4: 1.32}, prompts="long")
        both = make_result(identity={"points": [*short.points, *window.points]})
        assert judge(both, None, EVERYWHERE).outcome == "pass"
        fallen = drafting({1: 1.9, 4: 1.4}, prompts="long")
        both = make_result(identity={"points": [*short.points, *fallen.points]})
        verdict = judge(both, None, EVERYWHERE)
        assert (verdict.outcome, verdict.culprits[0].name) == ("fail", NAME)

    def test_without_speculation_there_is_nothing_to_fall(self) -> None:
        plain = dataclasses.replace(drafting({1: 1.0, 8: 0.8}), profile="baseline")
        floors = Policy(floors={"baseline": {"1": {"decode_tok_s": 1}, "8": {"decode_tok_s": 1}}})
        assert judge(plain, None, floors).outcome == "pass"

    def test_it_is_named_before_what_could_not_be_had(self) -> None:
        floors = Policy(floors={"eagle3": {"1": {"decode_tok_s": 1}}})
        verdict = judge(drafting(self.SPOILED), None, floors)
        assert verdict.headline.startswith(f"Fail: {NAME} at 2 requests")

    def test_too_few_runs_at_one_point_are_told_as_that(self) -> None:
        result = drafting(self.SPOILED)
        few = [dataclasses.replace(point, runs=point.runs[:2]) for point in result.points[1:]]
        verdict = judge(dataclasses.replace(result, points=[result.points[0], *few]), None, EVERYWHERE)
        assert verdict.outcome == "undecidable"
        assert "only 2 valid runs" in verdict.headline


class TestEveryPoint:
    """No pass while a point was not judged."""

    @pytest.mark.parametrize("extra", [(8, "standard"), (2, "standard"), (1, "long"), (8, "long")])
    @pytest.mark.parametrize("speed", [1.0, 0.05])
    def test_a_point_that_the_anchor_lacks_is_undecidable_by_name(
        self, extra: tuple[int, str], speed: float
    ) -> None:
        concurrency, prompts = extra
        more = make_point(concurrency, 5, prompts=prompts, speed=speed)
        candidate = make_result(5, seed=2, identity={"points": [make_point(1, 5, 2), more]})
        anchor = make_result(seed=1, concurrency=(1,))
        for policy in (
            POLICY,
            Policy(accept_undecidable=True),
            Policy(floors={"baseline": {"8": {"ttft_s": 1}}}),
        ):
            verdict = judge(candidate, anchor, policy)
            assert (verdict.outcome, verdict.accepted) == ("undecidable", False)
            assert "as good as" not in verdict.headline
        key = str(concurrency) if prompts == "standard" else f"{concurrency}/{prompts}"
        assert "throughput_check_floors" in verdict.headline and f'"{key}"' in verdict.headline

    def test_the_same_number_of_requests_with_other_prompts_is_another_point(self) -> None:
        anchor = make_result(identity={"points": [make_point(1, prompts="long")]})
        verdict = judge(make_result(5, concurrency=(1,)), anchor, POLICY)
        assert verdict.outcome == "fail"
        assert {f.outcome for f in verdict.findings} == {"fail", "undecidable"}

    def test_a_floor_judges_what_the_anchor_lacks(self) -> None:
        anchor = make_result(seed=1, concurrency=(1,))
        floors = Policy(floors={"eagle3": {"8": {"decode_tok_s": 40}}})
        good = judge(make_result(5, seed=2), anchor, floors)
        assert good.outcome == "pass" and "floors at 8 requests" in good.headline
        points = [make_point(1, 5, 2), make_point(8, 5, 2, speed=0.05)]
        assert judge(make_result(identity={"points": points}), anchor, floors).outcome == "fail"

    def test_the_first_result_of_a_host_is_no_pass_where_a_point_has_no_floor(self) -> None:
        floors = Policy(floors={"eagle3": {"1": {"decode_tok_s": 80}}})
        verdict = judge(make_result(5), None, floors)
        # It becomes the anchor: a floor has shown that the server is not broken.
        assert (verdict.outcome, verdict.accepted) == ("undecidable", True)
        assert "8 requests" in verdict.headline
        slow = judge(make_result(5, speed=0.5), None, floors)
        assert (slow.outcome, slow.accepted) == ("fail", False)

    def test_a_result_without_points_is_no_pass(self) -> None:
        nothing = make_result(identity={"points": []})
        for anchor in (None, nothing, BASELINE):
            assert not judge(nothing, anchor, Policy(accept_undecidable=True)).accepted

    def test_a_point_without_runs_is_no_pass(self) -> None:
        empty = make_result(identity={"points": [*make_result(5, concurrency=(1,)).points, Point(8, [])]})
        assert judge(empty, BASELINE, Policy(accept_undecidable=True)).accepted is False

    @pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf, -math.inf, 1e300, 5e-324])
    @pytest.mark.parametrize("figure", JUDGED)
    def test_what_no_figure_can_be_fails_as_missing(self, figure: str, value: float) -> None:
        """In one run of five, where a median would hide it."""
        good = make_result(5, seed=2)
        changed: dict[str, Any] = {figure: value}
        odd = dataclasses.replace(good.points[1].runs[2], **changed)
        runs = [*good.points[1].runs[:2], odd, *good.points[1].runs[3:]]
        candidate = dataclasses.replace(good, points=[good.points[0], Point(8, runs)])
        verdict = judge(candidate, BASELINE, POLICY)
        assert (verdict.outcome, verdict.culprits[0].name) == ("fail", "missing metric")
        with pytest.raises(BaselineRefused, match="8 requests"):
            anchor = dataclasses.replace(BASELINE, points=[BASELINE.points[0], Point(8, [odd])])
            judge(good, anchor, POLICY)


class TestBaseline:
    @pytest.mark.parametrize(
        ("field", "value", "named"),
        [
            ("fingerprint", "00" * 32, "host fingerprint"),
            ("profile", "baseline", "profile"),
            ("prompts_sha256", "cd" * 32, "prompts"),
            ("client", "sglang.bench_serving 0.5.10", "client"),
            ("conditions", {"load": {"output_tokens": 256, "seed": 1}}, "load output_tokens 512 -> 256"),
        ],
    )
    def test_another_one_is_refused_with_what_differs(self, field: str, value: Any, named: str) -> None:
        with pytest.raises(BaselineRefused, match=named):
            judge(make_result(identity={field: value}), BASELINE, POLICY)

    def test_conditions_that_are_only_a_record_do_not_matter(self) -> None:
        conditions = {**BASELINE.conditions, "cache_flushed_before_each_run": False}
        assert judge(make_result(identity={"conditions": conditions}), BASELINE, POLICY).outcome == "pass"

    def test_one_without_a_figure_is_refused(self) -> None:
        with pytest.raises(BaselineRefused, match="Accept length at 1 request"):
            judge(make_result(), worse(BASELINE, accept_length=None), POLICY)

    def test_aba_pools_both_measurements_of_the_accepted_release(self) -> None:
        verdict = judge_aba(make_result(runs=10, seed=5), make_result(runs=10, seed=6), BASELINE, POLICY)
        assert verdict.outcome == "pass"
        assert {f.reference_runs for f in verdict.findings} == {30}
        assert any("before and after" in note for note in verdict.notes)

    @pytest.mark.parametrize("drift", [0.9, 1.1])
    def test_aba_decides_nothing_when_the_host_drifted(self, drift: float) -> None:
        again = make_result(seed=5, speed=drift)
        verdict = judge_aba(BASELINE, make_result(seed=6), again, Policy(accept_undecidable=True))
        assert (verdict.outcome, verdict.accepted) == ("undecidable", False)
        assert "changed between" in verdict.headline


class TestFloors:
    FLOORS = Policy(floors={"eagle3": {"1": {"decode_tok_s": 80, "ttft_s": 0.5}, 8: {"output_tok_s": 300}}})

    def test_they_decide_without_a_baseline_and_references_are_beside(self) -> None:
        verdict = judge(make_result(runs=5), None, self.FLOORS)
        assert verdict.outcome == "pass"
        assert [r["decode_tok_s"] for r in verdict.references] == [89.5, 92.6, 54.1, 96.1]
        assert judge(make_result(runs=5), BASELINE, POLICY).references == []

    def test_below_one_fails(self) -> None:
        verdict = judge(make_result(runs=5, speed=0.7), None, self.FLOORS)
        assert verdict.outcome == "fail"

    def test_for_a_time_the_floor_is_a_ceiling(self) -> None:
        verdict = judge(make_result(runs=5, ttft=2), None, self.FLOORS)
        assert (verdict.outcome, verdict.culprits[0].name) == ("fail", "prefill")
        assert "ceiling 0.500 s" in verdict.headline

    def test_prompts_of_another_kind_have_their_own(self) -> None:
        policy = Policy(floors={"eagle3": {"1/long": {"decode_tok_s": 200}}})
        result = make_result(runs=5, identity={"points": [make_point(1, 5, prompts="long")]})
        verdict = judge(result, None, policy)
        assert verdict.outcome == "fail"
        assert "1 request, long prompts" in verdict.headline

    def test_neither_floor_nor_baseline_is_no_pass(self) -> None:
        verdict = judge(make_result(), None, Policy(accept_undecidable=True))
        assert (verdict.outcome, verdict.accepted) == ("undecidable", False)
        assert "no floors for eagle3" in verdict.headline

    def test_a_drafter_that_is_never_right_fails_without_any(self) -> None:
        verdict = judge(make_result(length=1.01 / 2.88), None, self.FLOORS)
        assert (verdict.outcome, verdict.culprits[0].name) == ("fail", "draft model")

    def test_graphs_are_required_where_the_policy_says_so(self) -> None:
        policy = dataclasses.replace(self.FLOORS, min_graph_share=0.9)
        off = judge(make_result(graph_share=0.1), None, policy)
        unknown = judge(make_result(graph_share=None), None, policy)
        assert (off.outcome, off.culprits[0].name) == ("fail", "graphs off")
        assert (unknown.outcome, unknown.culprits[0].name) == ("fail", "missing metric")


class TestMoreRuns:
    def ask(self, runs: int, **truth: Any) -> int:
        return need_more_runs(make_point(1, runs, 7, **truth), BASELINE.points[0], POLICY, "eagle3")

    def test_the_first_look_is_at_the_least_number_of_runs(self) -> None:
        assert (self.ask(0), self.ask(3)) == (5, 2)

    def test_a_settled_point_needs_none(self) -> None:
        assert self.ask(5) == 0
        assert self.ask(5, speed=0.85) == 0

    def test_an_open_point_goes_on_to_the_next_look_and_ends_at_the_limit(self) -> None:
        assert [self.ask(n, speed=0.95) for n in (5, 7, 10, 14, 20)] == [2, 3, 4, 6, 0]

    def test_disturbed_runs_do_not_count(self) -> None:
        assert self.ask(5, valid=False, invalid_because=[BUSY]) == 5

    def test_a_failed_request_ends_it_at_once(self) -> None:
        assert self.ask(1, failures=1) == 0

    def test_a_few_slow_runs_before_the_first_look_do_not(self) -> None:
        assert self.ask(4, speed=0.5) == 1

    def test_without_baseline_and_floors_the_least_number_is_enough(self) -> None:
        point = make_point(1, 5)
        assert need_more_runs(point, None, POLICY, "eagle3") == 0


class TestIntervals:
    def test_the_ratio_interval_is_the_exact_one(self) -> None:
        """Of all ways to deal 5 + 4 distinct values, the share that puts the bound beyond 1 is the error at most."""
        values = [1.1**n for n in range(9)]
        for error in (0.01, 0.05, 0.1):
            beyond = 0
            deals = list(combinations(range(9), 5))
            for deal in deals:
                one = [values[n] for n in deal]
                two = [values[n] for n in range(9) if n not in deal]
                beyond += ratio_interval(one, two, error).low > 1
            assert beyond / len(deals) <= error
            assert (beyond + 5) / len(deals) > error / 2

    def test_the_median_interval_is_the_exact_one(self) -> None:
        sizes = [0.01, 0.02, 0.04, 0.08, 0.16, 0.32]
        signs = list(product((-1, 1), repeat=6))
        beyond = sum(
            median_interval([math.exp(s * x) for s, x in zip(deal, sizes)], 0.05).low > 1 for deal in signs
        )
        assert 0 < beyond / len(signs) <= 0.05

    def test_it_is_unbounded_when_no_bound_has_the_wanted_certainty(self) -> None:
        interval = ratio_interval([1.0, 1.1], [1.0, 1.2], 0.01)
        assert (interval.low, interval.high) == (0.0, math.inf)

    def test_one_odd_run_hardly_moves_it(self) -> None:
        rng = random.Random(5)
        one, two = ([100 * math.exp(rng.gauss(0, 0.01)) for _ in range(10)] for _ in range(2))
        plain, odd = ratio_interval(one, two, 0.025), ratio_interval([*one[:9], 30.0], two, 0.025)
        assert abs(odd.estimate / plain.estimate - 1) < 0.01
        assert abs(odd.low / plain.low - 1) < 0.02

    def test_the_looks_spend_no_more_than_the_budget(self) -> None:
        for least, most in ((5, 20), (5, 6), (5, 5), (3, 100)):
            looks = look_sizes(least, most)
            assert looks[0] == least and looks[-1] == most
            assert math.fsum(look_error(n, looks, 0.05) for n in looks) == pytest.approx(0.05)

    def test_the_foreseen_number_of_runs_about_decides(self) -> None:
        rng = random.Random(3)

        def draw(count: int) -> list[float]:
            return [100 * math.exp(rng.gauss(0, 0.06)) for _ in range(count)]

        baseline, bound, error = draw(40), 0.95, 0.03
        more = runs_to_decide(draw(8), baseline, bound, error)
        assert more is not None
        decided = sum(ratio_interval(draw(8 + 2 * more), baseline, error).low > bound for _ in range(40))
        assert decided > 20
        assert runs_to_decide([95.0, 95.1, 94.9], [100.0, 100.1, 99.9], bound, error) is None


class TestErrorRates:
    """The rates of docs/judge.md, on fewer trials: enough to notice a broken judge."""

    def rates(self, speed: float, noise: float, most: int, trials: int = 60) -> Counter[str]:
        policy, seen = Policy(max_runs=most), Counter[str]()
        for trial in range(trials):
            baseline = make_result(runs=most, seed=2 * trial, noise=noise)
            full = make_result(runs=most, seed=2 * trial + 1, noise=noise, speed=speed)
            points = []
            for whole, other in zip(full.points, baseline.points):
                point = Point(whole.concurrency, [])
                while more := need_more_runs(point, other, policy, "eagle3"):
                    point = Point(whole.concurrency, whole.runs[: len(point.runs) + more])
                points.append(point)
            seen[judge(dataclasses.replace(full, points=points), baseline, policy).outcome] += 1
        return seen

    @pytest.mark.parametrize(("noise", "most"), [(0.035, 20), (0.01, 6)])
    def test_a_tenth_less_fails_and_an_unchanged_server_passes(self, noise: float, most: int) -> None:
        assert self.rates(0.9, noise, most)["fail"] >= 57
        unchanged = self.rates(1.0, noise, most)
        assert unchanged["pass"] >= 57 and unchanged["fail"] == 0


class TestChoice:
    def test_the_faster_profile_serves(self) -> None:
        choice = choose_profile(make_result(seed=1), make_result(seed=2, speed=0.9, **PLAIN), POLICY)
        assert (choice.profile, choice.crossover) == ("eagle3", None)

    @pytest.mark.parametrize(("speed", "ahead"), [(0.999, True), (1.2, False)])
    def test_a_tie_and_a_loss_go_to_the_plain_one(self, speed: float, ahead: bool) -> None:
        plain = make_result(seed=3, speed=speed, noise=0.03, **PLAIN)
        choice = choose_profile(make_result(seed=2, noise=0.03), plain, POLICY)
        assert (choice.steps[0].gain > 0) == ahead
        assert choice.profile == "baseline"

    def test_losing_at_service_concurrency_is_told_with_the_crossover(self) -> None:
        choice = choose_profile(*profiles({"1": 1.3, "8": 0.9}), POLICY)
        assert choice.profile == "eagle3"
        assert choice.crossover is not None and 1 < choice.crossover < 8
        assert [line.split(" (")[0] for line in choice.given_up] == ["8 requests"]
        assert choice.given_up[0] in choice.reason

    def test_what_the_plain_profile_gives_up_is_told_as_well(self) -> None:
        choice = choose_profile(*profiles({"1": 1.22, "8": 0.58, "1/long": 0.23}), POLICY)
        assert choice.profile == "baseline"
        assert len(choice.given_up) == 1 and choice.given_up[0].startswith("1 request (-18")
        assert [step.weight for step in choice.steps] == [1, 1, 1]

    @pytest.mark.parametrize(
        ("weights", "serves"),
        [
            ({}, "baseline"),
            ({"1": 1}, "eagle3"),
            ({"8": 1}, "baseline"),
            ({"1": 1, "8": 1}, "baseline"),
            ({"1": 10, "8": 1}, "eagle3"),
            ({"1/standard": 3, "1/long": 0}, "eagle3"),
        ],
    )
    def test_the_weights_of_the_operator_decide(self, weights: dict[str, float], serves: str) -> None:
        figures = profiles({"1": 1.22, "8": 0.58, "1/long": 0.23})
        choice = choose_profile(*figures, Policy(weights=weights))
        assert choice.profile == serves
        lost = {"eagle3": ["8 requests", "1 request, long prompts"], "baseline": ["1 request"]}[serves]
        assert [line.split(" (")[0] for line in choice.given_up] == lost

    def test_a_weight_of_a_point_that_was_not_measured_is_refused_by_name(self) -> None:
        with pytest.raises(OperatorError) as refused:
            choose_profile(*profiles({"1": 1.2}), Policy(weights={"1": 1, "16": 2, "4/long": 1}))
        assert refused.value.found == "16, 4/long"
        assert "throughput_check_long_concurrency" in refused.value.remedy

    def test_a_weighted_point_without_figures_chooses_nothing_fast(self) -> None:
        fast, plain = profiles({"1": 1.5, "8": 1.5})
        dead = worse(dataclasses.replace(fast, points=fast.points[1:]), decode_tok_s=None).points
        choice = choose_profile(dataclasses.replace(fast, points=[fast.points[0], *dead]), plain, POLICY)
        assert (choice.profile, choice.gain) == ("baseline", None)
        assert "not known at 8 requests" in choice.reason

    def test_a_point_that_one_profile_lacks_counts_as_unknown(self) -> None:
        fast, plain = profiles({"1": 1.5, "8": 1.5})
        short = dataclasses.replace(plain, points=plain.points[:1])
        assert choose_profile(fast, short, POLICY).profile == "baseline"
        assert choose_profile(fast, short, Policy(weights={"1": 1})).profile == "eagle3"

    def test_too_few_runs_for_an_interval_are_no_gain(self) -> None:
        assert choose_profile(*profiles({"1": 1.5}, runs=2), POLICY).profile == "baseline"

    def test_the_interval_of_the_mean_is_no_narrower_than_promised(self) -> None:
        """Both profiles equally fast: speculation may be chosen in 5 % of trials at most."""
        wrong = 0
        for seed in range(200):
            fast = make_result(runs=10, seed=2 * seed, noise=0.03)
            plain = make_result(runs=10, seed=2 * seed + 1, noise=0.03, **PLAIN)
            wrong += choose_profile(fast, plain, POLICY).profile == "eagle3"
        assert wrong <= 10

    def test_results_of_different_releases_are_refused(self) -> None:
        other = make_result(plain=True, identity={"profile": "baseline", "release": "0.5.10-000000000000"})
        with pytest.raises(OperatorError, match=r"release 0.5.10-000000000000 -> 0.5.9-3fa94c01d2be"):
            choose_profile(make_result(), other, POLICY)

    @pytest.mark.parametrize(("refused", "serves"), [("eagle3", "baseline"), ("baseline", "eagle3")])
    def test_what_the_judge_refused_does_not_serve_however_fast(self, refused: str, serves: str) -> None:
        speed = 0.5 if refused == "eagle3" else 2.0
        plain = make_result(seed=2, speed=speed, **PLAIN)
        choice = choose_profile(make_result(), plain, POLICY, {refused: "Fail: draft model at 1 request."})
        assert choice.profile == serves
        assert f"{refused} is not good enough (Fail: draft model at 1 request)" in choice.reason

    def test_when_both_are_refused_nothing_is_chosen(self) -> None:
        refused = {"eagle3": "Fail: wrong answers.", "baseline": "Fail: wrong answers."}
        with pytest.raises(OperatorError, match="Neither profile is good enough"):
            choose_profile(make_result(), make_result(**PLAIN), POLICY, refused)


class TestKeptChoice:
    """What the module keeps on the host, so that later rollouts measure one profile."""

    @pytest.fixture
    def choose(self, run_module: Any, tmp_path: Path) -> Callable[..., dict[str, Any]]:
        def call(check: bool = False, **given: Any) -> dict[str, Any]:
            place = {"path": str(tmp_path / "choice.json"), "fingerprint": "f0" * 32}
            told: dict[str, Any] = run_module("throughput_choice", {**place, **given}, check=check)
            return told

        return call

    @pytest.fixture
    def measured(self) -> dict[str, Any]:
        return {
            "eagle3": {"result": make_result(seed=1).to_json()},
            "baseline": {"result": make_result(seed=2, speed=0.9, **PLAIN).to_json()},
        }

    def test_it_is_kept_once_and_read_again(
        self, choose: Callable[..., dict[str, Any]], measured: dict[str, Any]
    ) -> None:
        assert choose()["choice"] == {}
        first = choose(**measured)
        assert (first["changed"], first["choice"]["profile"]) == (True, "eagle3")
        assert any("eagle3 serves" in line for line in first["lines"])
        assert not choose(**measured)["changed"]
        assert choose()["choice"] == first["choice"]

    def test_a_choice_of_an_earlier_version_is_read_and_known_as_that(
        self, choose: Callable[..., dict[str, Any]], measured: dict[str, Any], tmp_path: Path
    ) -> None:
        kept = choose(**measured)["choice"]
        for name in ("gain", "low", "high", "given_up"):
            del kept[name]
        for step in kept["steps"]:
            del step["weight"]
        stored = {"schema": 1, "fingerprint": "f0" * 32, "choice": kept}
        (tmp_path / "choice.json").write_text(json.dumps(stored), encoding="utf-8")
        told = choose(policy={"weights": {}})
        assert told["choice"]["profile"] == "eagle3" and told["choice"]["given_up"] == []
        assert "earlier version" in told["outdated"]
        assert any("eagle3 serves" in line for line in told["lines"])

    def test_other_weights_than_it_was_made_with_are_told(
        self, choose: Callable[..., dict[str, Any]], measured: dict[str, Any]
    ) -> None:
        choose(**measured, policy={"weights": {"1": 1}})
        assert choose(policy={"weights": {"1": "1"}})["outdated"] == ""
        assert "8 requests 0 -> 3" in choose(policy={"weights": {"1": 1, "8": 3}})["outdated"]

    def test_check_mode_chooses_and_keeps_nothing(
        self, choose: Callable[..., dict[str, Any]], measured: dict[str, Any]
    ) -> None:
        assert choose(check=True, **measured)["changed"]
        assert choose()["choice"] == {}

    def test_a_host_that_changed_has_to_choose_again(
        self, choose: Callable[..., dict[str, Any]], measured: dict[str, Any]
    ) -> None:
        choose(**measured)
        assert choose(fingerprint="00" * 32)["choice"] == {}

    @pytest.mark.parametrize(
        "content",
        [
            "",
            '{"schema": 1, "fing',
            '{"schema": 2}',
            "[]",
            '{"schema": 1}',
            '{"schema": 1, "fingerprint": "f", "choice": []}',
            '{"schema": 1, "fingerprint": "f", "choice": {"release": "r", "profile": "fastest", "reason": "",'
            ' "crossover": null, "steps": []}}',
            '{"schema": 1, "fingerprint": "f", "choice": {"release": "r", "profile": "eagle3", "reason": "",'
            ' "crossover": NaN, "steps": []}}',
        ],
    )
    def test_a_file_that_was_cut_is_named_with_the_way_out(
        self, choose: Callable[..., dict[str, Any]], tmp_path: Path, content: str
    ) -> None:
        (tmp_path / "choice.json").write_text(content, encoding="utf-8")
        told = choose()
        assert told["failed"]
        assert "choice.json" in told["msg"]
        assert "remove the file" in told["msg"]


class TestPolicy:
    def test_the_role_and_the_judge_have_the_same_defaults(self, repository: Path) -> None:
        text = (repository / "roles/throughput_check/defaults/main.yml").read_text(encoding="utf-8")
        role = yaml.safe_load(text)
        named = {"margin", "floors", "weights", "min_accept_length", "drafting_margin", "accept_undecidable"}
        assert {name: role[f"throughput_check_{name}"] for name in named} == {
            name: getattr(POLICY, name) for name in named
        }
        assert {"ttft_s": role["throughput_check_ttft_margin"]} == POLICY.margins
        assert (role["throughput_check_runs_min"], role["throughput_check_runs_max"]) == (
            POLICY.min_runs,
            POLICY.max_runs,
        )

    def test_the_inventory_leaves_the_margin_to_the_role_and_has_a_floor_for_every_point(
        self, repository: Path
    ) -> None:
        role = yaml.safe_load(
            (repository / "roles/throughput_check/defaults/main.yml").read_text(encoding="utf-8")
        )
        folder = repository / "inventory/blackwell/group_vars/all"
        given = yaml.safe_load((folder / "throughput.yml").read_text(encoding="utf-8"))
        assert "throughput_check_margin" not in given
        values = {**role, **given}
        policy = Policy.from_dict({"floors": values["throughput_check_floors"]})
        points = [(at, "standard") for at in values["throughput_check_concurrency"]]
        points += [(at, "long") for at in values["throughput_check_long_concurrency"]]
        assert len(points) == 3
        assert all(policy.floors_at(profile, *at) for profile in ("eagle3", "baseline") for at in points)

    def test_an_unknown_setting_is_refused(self) -> None:
        with pytest.raises(OperatorError, match="marign"):
            Policy.from_dict({"marign": 0.05})

    @pytest.mark.parametrize(
        "settings",
        [
            {"margin": 5},
            {"margin": "much"},
            {"margins": {"decode_tok_s": 0.6}},
            {"margins": {"ttft_s": 1.1}},
            {"min_runs": 21},
            {"floors": {"eagle3": {1: {"decode": 80}}}},
            {"floors": {"eagle3": {1: {"decode_tok_s": 0}}}},
            {"floors": {"eagle3": {1: {"decode_tok_s": "nan"}}}},
            {"floors": {"eagle3": [1]}},
            {"margins": 0.1},
            {"max_runs": "inf"},
            {"margin": "nan"},
            {"drafting_margin": 0},
            {"min_graph_share": 90},
            {"weights": {"1": -1}},
            {"weights": {"1": "much"}},
            {"weights": {"1": math.inf}},
            {"weights": {"1": 0, "8": 0}},
            {"weights": {"one": 1}},
            {"weights": {"1/short": 1}},
            {"weights": [1, 8]},
        ],
    )
    def test_values_without_sense_are_refused(self, settings: dict[str, Any]) -> None:
        with pytest.raises(OperatorError):
            Policy.from_dict(settings)

    def test_a_time_has_a_margin_of_its_own_that_may_be_wide(self) -> None:
        policy = Policy.from_dict({"margin": 0.3, "margins": {"ttft_s": "0.6"}, "max_runs": 5})
        slow = judge(make_result(runs=5, ttft=1.4), BASELINE, policy)
        assert {f.figure: f.outcome for f in slow.findings}["ttft_s"] == "pass"
        assert judge(make_result(runs=5, ttft=1.9), BASELINE, policy).outcome == "fail"

    def test_numbers_may_be_text_and_what_is_empty_is_the_default(self) -> None:
        given = {
            "margin": "0.1",
            "max_runs": "30",
            "min_graph_share": "",
            "floors": {"eagle3": {1: {"ttft_s": "2"}}},
        }
        policy = Policy.from_dict(given)
        assert (policy.margin, policy.max_runs, policy.min_graph_share) == (0.1, 30, None)
        assert policy.floors_at("eagle3", 1, "standard") == {"ttft_s": 2.0}


class TestComparison:
    def test_it_tells_better_from_worse_and_noise_from_both(self) -> None:
        rows = {
            row.figure: row for row in compare(BASELINE, make_result(seed=2, speed=1.1, ttft=1.2)).rows[:10]
        }
        assert (rows["decode_tok_s"].better, rows["ttft_s"].better) == (True, False)
        assert rows["accept_length"].better is None

    def test_what_differs_is_named_and_missing_figures_are_no_obstacle(self) -> None:
        other = worse(make_result(identity={"fingerprint": "00" * 32}), accept_length=None)
        comparison = compare(BASELINE, other)
        assert comparison.differences[0].startswith("host fingerprint")
        assert any(row.figure == "accept_length" and row.after is None for row in comparison.rows)

    def test_a_point_that_only_one_has_is_named(self) -> None:
        comparison = compare(make_result(concurrency=(1,)), make_result(concurrency=(1, 8)))
        assert comparison.differences == ["8 requests: measured after only"]
        empty = make_result(identity={"points": [make_point(1), Point(8, [])]})
        assert compare(make_result(), empty).differences == ["8 requests: measured before only"]


class TestModule:
    def test_it_returns_verdict_and_table(self, run_module: Any) -> None:
        told = run_module(
            "throughput_judge",
            {
                "result": make_result(runs=5, seed=3).to_json(),
                "baseline": BASELINE.to_json(),
                "policy": {"margin": "0.05"},
            },
            check=True,
        )
        assert (told["accepted"], told["changed"]) == (True, False)
        assert any(line.startswith("Decode") for line in told["lines"])

    def test_a_bad_verdict_is_no_failure_of_the_module(self, run_module: Any) -> None:
        told = run_module(
            "throughput_judge",
            {"result": make_result(speed=0.8).to_json(), "baseline": BASELINE.to_json()},
        )
        assert "failed" not in told
        assert (told["accepted"], told["verdict"]["outcome"]) == (False, "fail")

    def test_a_refused_baseline_says_what_differs(self, run_module: Any) -> None:
        other = make_result(identity={"fingerprint": "00" * 32, "host": "gpu-2"})
        told = run_module(
            "throughput_judge", {"result": make_result().to_json(), "baseline": other.to_json()}
        )
        assert told["failed"]
        assert told["differences"][0].startswith("host fingerprint")

    def test_aba_needs_the_first_result(self, run_module: Any) -> None:
        told = run_module(
            "throughput_judge",
            {"result": make_result().to_json(), "baseline_again": BASELINE.to_json()},
        )
        assert told["failed"]
