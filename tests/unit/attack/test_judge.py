"""Whatever samples and files the judge is given: a verdict or an OperatorError, and no pass of what was not judged."""

from __future__ import annotations

import dataclasses
import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
from blackwell.errors import OperatorError
from blackwell.throughput import archive
from blackwell.throughput.choice import choose_profile, store_choice, stored_choice
from blackwell.throughput.compare import compare
from blackwell.throughput.judge import judge, judge_aba, need_more_runs
from blackwell.throughput.policy import JUDGED, Policy
from blackwell.throughput.record import Record
from blackwell.throughput.report import render
from blackwell.throughput.result import Point, Result, Run
from blackwell.throughput.table import choice_lines, comparison_lines, result_lines
from blackwell.throughput.verdict import RULE
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.attack.inputs import ODD_FIELDS, attack, hostile, value_or_operator_error
from tests.unit.throughput_results import BUSY, make_point, make_result, make_run

ODD = st.sampled_from([0.0, -1.0, math.nan, math.inf, -math.inf, 1e308, 5e-324, 1e-9, 1e12, None])
FIGURE = st.one_of(st.floats(min_value=0.5, max_value=200), ODD)
FLOORS = {profile: {"1": {"decode_tok_s": 1.0}} for profile in ("eagle3", "baseline")}


@st.composite
def runs(draw: st.DrawFn) -> Run:
    """A run that is mostly ordinary; any of its figures may be what no server can show."""
    changes: dict[str, Any] = draw(
        st.dictionaries(st.sampled_from([*JUDGED, "graph_share", "ttft_p99_s"]), FIGURE, max_size=2)
    )
    if draw(st.integers(0, 9)) == 0:
        changes |= {
            "valid": False,
            "invalid_because": [draw(st.sampled_from([BUSY, "timeout: 900 s", "new: reason"]))],
        }
    speed = draw(st.sampled_from([1.0, 1.0, 0.95, 0.05, 3.0]))
    length = draw(st.sampled_from([1.0, 1.0, 0.92, 0.6]))
    seed = random.Random(draw(st.integers(0, 50)))
    return dataclasses.replace(make_run(seed, 1, speed=speed, length=length), **changes)


POINTS = st.builds(
    lambda at, some, times, prompts: Point(at, some * times, prompts),
    st.sampled_from([1, 2, 8, 64]),
    st.lists(runs(), max_size=3),
    st.sampled_from([1, 2, 5]),
    st.sampled_from(["standard", "standard", "long"]),
)


def results(profile: str = "eagle3") -> st.SearchStrategy[Result]:
    return st.lists(POINTS, max_size=4).map(
        lambda points: make_result(identity={"points": points, "profile": profile})
    )


ANCHORS = st.one_of(
    st.none(), results(), st.just(make_result(seed=1)), st.just(make_result(seed=1, concurrency=(1,)))
)
POLICIES = st.builds(
    Policy,
    floors=st.sampled_from([{}, FLOORS]),
    min_runs=st.sampled_from([1, 5]),
    max_runs=st.sampled_from([5, 20]),
    min_graph_share=st.sampled_from([None, 0.9]),
    accept_undecidable=st.booleans(),
)


@attack
@given(results(), ANCHORS, POLICIES)
def test_no_pass_while_a_point_was_not_judged(result: Result, anchor: Result | None, policy: Policy) -> None:
    told = value_or_operator_error(lambda: judge(result, anchor, policy))
    if isinstance(told, OperatorError):
        assert told.remedy
        return
    assert "\n".join(result_lines(result, told))
    record = Record(result, told)
    assert Record.from_json(json.loads(json.dumps(record.to_json()))).verdict == told
    if told.outcome == "pass":
        judged = {finding.point for finding in told.findings if finding.against != RULE}
        assert result.points and len(judged) == len({(p.concurrency, p.prompts) for p in result.points})
        assert all(sum(run.valid for run in point.runs) >= policy.min_runs for point in result.points)
        for point in result.points:
            for figure in JUDGED:
                samples = [getattr(run, figure) for run in point.runs if run.valid]
                assert all(value is not None and 0 < value < math.inf for value in samples)
    else:
        assert told.accepted is False or told.outcome == "undecidable"
    for point in result.points:
        other = anchor.point(point.concurrency, point.prompts) if anchor else None
        assert 0 <= need_more_runs(point, other, policy, "eagle3") <= policy.max_runs


@attack
@given(results(), results(), results(), POLICIES)
def test_three_results_of_any_kind_are_judged_or_refused(
    first: Result, candidate: Result, again: Result, policy: Policy
) -> None:
    told = value_or_operator_error(lambda: judge_aba(first, candidate, again, policy))
    if not isinstance(told, OperatorError) and told.outcome == "pass":
        assert candidate.points


@attack
@given(
    results(),
    results("baseline"),
    st.sampled_from([{}, {"1": 1.0}, {"1": 0.0, "8": 1e-300}, {"1/long": 1e300, "8": 1}]),
)
def test_speculation_never_serves_where_a_weighted_point_is_unknown(
    fast: Result, plain: Result, weights: dict[str, float]
) -> None:
    policy = Policy(weights=weights)
    told = value_or_operator_error(lambda: choose_profile(fast, plain, policy))
    assert "\n".join(comparison_lines(compare(plain, fast)))
    if isinstance(told, OperatorError):
        assert told.remedy
        return
    assert "\n".join(choice_lines(told))
    known = {(step.concurrency, step.prompts) for step in told.steps}
    measured = {
        (p.concurrency, p.prompts)
        for p in (*fast.points, *plain.points)
        if policy.weight_at(p.concurrency, p.prompts)
    }
    if told.profile == "eagle3":
        assert measured and measured <= known
    losses = [
        s for s in told.steps if (s.gain < -policy.margin if told.profile == "eagle3" else s.gain > 0.06)
    ]
    assert len(told.given_up) >= len(losses)


CHOICE = choose_profile(
    make_result(seed=1),
    make_result(seed=2, plain=True, speed=0.9, identity={"profile": "baseline"}),
    Policy(),
)
KEPT = json.dumps({"schema": 1, "fingerprint": "f", "choice": CHOICE.to_json()}).encode()
CHECK = Record(make_result(2), judge(make_result(5), None, Policy(floors=FLOORS)), CHOICE).text().encode()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kept")


@attack
@given(hostile([KEPT]))
def test_a_kept_choice_is_one_or_is_refused_with_the_file(folder: Path, content: bytes) -> None:
    path = folder / "choice.json"
    path.write_bytes(content)
    told = value_or_operator_error(lambda: stored_choice(path, "f"))
    if isinstance(told, OperatorError):
        assert str(path) in f"{told.problem} {told.found}" and f"rm {path}" in told.remedy
    elif told is not None:
        assert told.profile in ("eagle3", "baseline")
        assert "\n".join(choice_lines(told))
        store_choice(path, "f", told)
        assert stored_choice(path, "f") == told


@attack
@given(hostile([CHECK]))
def test_a_stored_check_is_one_or_is_refused_with_the_file(folder: Path, content: bytes) -> None:
    path = folder / "check.json"
    path.write_bytes(content)
    told = value_or_operator_error(lambda: archive.read(path))
    if isinstance(told, OperatorError):
        assert str(path) in told.problem and told.remedy
    else:
        assert render([told])
        assert result_lines(told.result, told.verdict)


JSON = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.sampled_from(["1", "8", "1/long", *ODD_FIELDS]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["eagle3", "1", "8", "1/long", "decode_tok_s", "ttft_s"]), inner, max_size=3
        ),
    ),
    max_leaves=6,
)


@attack
@given(
    st.dictionaries(
        st.sampled_from(
            ["margin", "margins", "floors", "weights", "min_runs", "max_runs", "error_rate", "drafting_margin",
             "max_failure_share", "min_accept_length", "min_graph_share", "accept_undecidable", "marign"]
        ),
        JSON,
        max_size=4,
    )
)  # fmt: skip
def test_rules_of_any_kind_are_rules_or_are_refused(data: dict[str, Any]) -> None:
    told = value_or_operator_error(lambda: Policy.from_dict(data))
    if not isinstance(told, OperatorError):
        value_or_operator_error(lambda: judge(make_result(5, seed=3), None, told))
        value_or_operator_error(lambda: judge(make_result(5, seed=3), make_result(seed=1), told))
        assert need_more_runs(make_point(1, 5), make_point(1, 5, 2), told, "eagle3") >= 0
