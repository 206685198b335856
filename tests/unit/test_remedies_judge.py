"""What the judge tells an operator to do mends what it found."""

from __future__ import annotations

import dataclasses
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from blackwell.errors import OperatorError
from blackwell.throughput import archive
from blackwell.throughput.choice import choose_profile, store_choice, stored_choice
from blackwell.throughput.judge import BaselineRefused, judge
from blackwell.throughput.policy import Policy
from blackwell.throughput.record import Record

from tests.unit.throughput_results import make_point, make_result

ONE = make_result(seed=1, concurrency=(1,))
BOTH = make_result(5, seed=2)
FLOOR = Policy(floors={"eagle3": {"1": {"decode_tok_s": 45}}})
ANCHOR = "throughput_check_new_baseline=true"


def floors_in(text: str, least: float) -> Policy:
    """The rules, after the operator has copied the setting and has put a number for the word."""
    found = re.search(r"throughput_check_floors: (\{.*?\}\}\})", text)
    assert found, text
    return Policy.from_dict({"floors": yaml.safe_load(found[1].replace("LEAST", str(least)))})


@pytest.mark.parametrize(("concurrency", "prompts"), [(8, "standard"), (1, "long"), (4, "long")])
@pytest.mark.parametrize("anchored", [True, False])
def test_the_floor_that_the_message_spells_judges_the_point(
    concurrency: int, prompts: str, anchored: bool
) -> None:
    anchor = ONE if anchored else None
    more = make_point(concurrency, 5, prompts=prompts)
    candidate = make_result(identity={"points": [make_point(1, 5, 2), more]})
    before = judge(candidate, anchor, Policy() if anchored else FLOOR)
    assert before.outcome == "undecidable"
    rules = floors_in(before.headline, 5)
    floors: dict[str, Any] = {"eagle3": {**FLOOR.floors["eagle3"], **rules.floors["eagle3"]}}
    assert judge(candidate, anchor, Policy(floors=floors)).outcome == "pass"


def test_a_new_point_is_anchored_by_the_command_and_the_upgrade_passes() -> None:
    stuck = judge(BOTH, ONE, FLOOR)
    assert not stuck.accepted and ANCHOR in stuck.headline
    # playbooks/throughput.yml with that variable measures what serves and holds it against floors alone.
    serves = make_result(seed=3)
    assert judge(serves, None, FLOOR).accepted
    assert judge(BOTH, serves, FLOOR).outcome == "pass"


def test_the_command_is_not_offered_where_it_would_be_refused() -> None:
    """Without any floor of the profile, a new anchor has nothing to prove itself by."""
    stuck = judge(BOTH, ONE, Policy())
    assert ANCHOR not in stuck.headline
    assert not judge(make_result(seed=3), None, Policy()).accepted


def test_a_point_that_is_measured_no_more_is_put_back_or_anchored_away() -> None:
    candidate = make_result(5, seed=2, concurrency=(1,))
    stuck = judge(candidate, make_result(seed=1), FLOOR)
    assert stuck.outcome == "fail"
    assert "8 back into throughput_check_concurrency" in stuck.headline and ANCHOR in stuck.headline
    assert judge(BOTH, make_result(seed=1), FLOOR).outcome == "pass"
    anew = make_result(seed=3, concurrency=(1,))
    assert judge(anew, None, FLOOR).accepted and judge(candidate, anew, FLOOR).outcome == "pass"


def test_a_long_point_is_put_back_into_its_own_variable() -> None:
    anchor = make_result(identity={"points": [make_point(1), make_point(1, prompts="long")]})
    stuck = judge(make_result(5, concurrency=(1,)), anchor, FLOOR)
    assert "1 back into throughput_check_long_concurrency" in stuck.headline


def test_an_anchor_of_something_else_is_replaced_by_the_command() -> None:
    candidate = make_result(5, seed=2, concurrency=(1,))
    with pytest.raises(BaselineRefused) as refused:
        judge(candidate, dataclasses.replace(ONE, fingerprint="00" * 32), FLOOR)
    assert ANCHOR in refused.value.remedy and "--limit gpu-1" in refused.value.remedy
    assert judge(candidate, None, FLOOR).accepted


def test_the_playbook_and_the_variables_of_the_messages_exist(repository: Path) -> None:
    specs = "\n".join(
        (repository / role / "meta" / "argument_specs.yml").read_text(encoding="utf-8")
        for role in ("roles/throughput_check", "roles/eagle3_server")
    )
    fallen = [make_point(1, 5), make_point(8, 5, length=0.7)]
    texts = [
        judge(BOTH, ONE, FLOOR).headline,
        judge(make_result(identity={"points": fallen}), None, FLOOR).headline,
    ]
    named = set(re.findall(r"\b(?:throughput_check|eagle3_server)_\w+", " ".join(texts)))
    assert len(named) >= 4
    assert {name for name in named if f"  {name}:" not in specs} == set()
    for playbook in re.findall(r"playbooks/\w+\.yml", " ".join(texts)):
        assert (repository / playbook).is_file()


def test_a_damaged_choice_is_removed_by_the_command(tmp_path: Path) -> None:
    path = tmp_path / "choice.json"
    path.write_text('{"schema": 1, "choice": {', encoding="utf-8")
    with pytest.raises(OperatorError) as refused:
        stored_choice(path, "f")
    command = re.search(r"\((rm [^)]*)\)", refused.value.remedy)
    assert command
    subprocess.run(command[1].split(), check=True)
    assert stored_choice(path, "f") is None
    plain = make_result(seed=2, plain=True, speed=0.9, identity={"profile": "baseline"})
    choice = choose_profile(make_result(seed=1), plain, Policy())
    store_choice(path, "f", choice)
    assert stored_choice(path, "f") == choice


def test_a_damaged_check_is_moved_by_the_command(tmp_path: Path) -> None:
    record = Record(BOTH, judge(BOTH, None, FLOOR))
    damaged = tmp_path / "gpu-1" / "2026-01-01T000000Z-eagle3.json"
    damaged.parent.mkdir()
    damaged.write_text(record.text()[:500], encoding="utf-8")
    with pytest.raises(OperatorError) as refused:
        archive.plan(tmp_path, [record.to_json()], [])
    command = refused.value.remedy.split(": ", 1)[1]
    subprocess.run(command.split(), check=True)
    assert archive.plan(tmp_path, [record.to_json()], []).pages


def test_weights_of_points_that_are_not_measured_are_corrected_to_what_is_named() -> None:
    fast = make_result(seed=1)
    plain = make_result(seed=2, plain=True, speed=0.9, identity={"profile": "baseline"})
    with pytest.raises(OperatorError) as refused:
        choose_profile(fast, plain, Policy(weights={"16": 1}))
    names = refused.value.expected.removeprefix("some of ").split(", ")
    assert choose_profile(fast, plain, Policy(weights=dict.fromkeys(names, 1.0))).profile == "eagle3"


@pytest.mark.parametrize("wrong", [{"release": "0.5.10-000000000000"}, {"profile": "eagle3"}])
def test_profiles_that_were_not_measured_alike_are_measured_anew(wrong: dict[str, str]) -> None:
    fast, identity = make_result(seed=1), {"profile": "baseline"}
    with pytest.raises(OperatorError) as refused:
        choose_profile(fast, make_result(seed=2, plain=True, identity={**identity, **wrong}), Policy())
    assert refused.value.remedy == "measure both profiles anew"
    assert choose_profile(fast, make_result(seed=2, plain=True, identity=identity), Policy()).profile


def test_a_comparison_of_checks_that_the_folder_lacks_waits_until_they_are_added(tmp_path: Path) -> None:
    records = [
        Record(each, judge(each, None, FLOOR)) for each in (make_result(5, seed=1), make_result(5, seed=2))
    ]
    aside = [tmp_path / f"{number}.json" for number in (1, 2)]
    for path, record in zip(aside, records, strict=True):
        path.write_text(record.text(), encoding="utf-8")
    folder = tmp_path / "checks"
    with pytest.raises(OperatorError) as refused:
        archive.plan(folder, [], aside)
    assert refused.value.remedy == "add the checks first"
    assert archive.plan(folder, [yaml.safe_load(record.text()) for record in records], aside).files
