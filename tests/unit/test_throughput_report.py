"""The report keeps every check, shows what there is, and leaves no text cut or on top of another."""

from __future__ import annotations

import dataclasses
import json
import random
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from blackwell.throughput.choice import choose_profile
from blackwell.throughput.compare import compare
from blackwell.throughput.judge import judge
from blackwell.throughput.legend import FIGURES
from blackwell.throughput.policy import JUDGED, Policy
from blackwell.throughput.record import Record
from blackwell.throughput.report import render
from blackwell.throughput.result import Result
from blackwell.throughput.svg import text_width, ticks
from blackwell.throughput.table import choice_lines, comparison_lines, result_lines
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]  # it has no stubs of its own

from tests.unit.throughput_results import BUSY, make_point, make_result

BASELINE = make_result(seed=1, concurrency=(1, 8, 32), identity={"taken_at": "2026-01-05T02:00:00+00:00"})
FLOORS = Policy(
    floors={
        "eagle3": {
            "1": {"decode_tok_s": 80, "ttft_s": 0.5},
            "8": {"output_tok_s": 100},
            "32": {"output_tok_s": 100},
            "1/long": {"decode_tok_s": 10},
        }
    }
)
UNCLOSED = {"meta", "br"}


def at(day: int, runs: int = 5, release: str = "0.5.9-3fa94c01d2be", **truth: Any) -> Result:
    """A result of a day in 2026."""
    identity = {"taken_at": f"2026-{2 + day // 28:02d}-{1 + day % 28:02d}T02:00:00+00:00", "release": release}
    return make_result(runs, seed=100 + day, concurrency=(1, 8, 32), identity=identity, **truth)


def one() -> list[Record]:
    return [Record(BASELINE, judge(BASELINE, None, FLOORS))]


def two_profiles() -> list[Record]:
    fast = at(1, noise=0.03)
    plain = dataclasses.replace(at(2, plain=True, speed=0.95), profile="baseline")
    choice = choose_profile(fast, plain, Policy())
    return [*one(), Record(fast, judge(fast, BASELINE, Policy()), choice), Record(plain)]


def long_history() -> list[Record]:
    releases = ("0.5.9-3fa94c01d2be", "0.5.9-81c2aa907f11", "0.5.10.post1-77ab90cd1e02")
    records = one()
    for day in range(45):
        speed = 0.85 if day == 12 else 1.0
        result = at(day, release=releases[day // 15], noise=0.03, speed=speed)
        records.append(Record(result, judge(result, BASELINE, Policy())))
    return records


def missing_figures() -> list[Record]:
    bare = at(3, accept_length=None, step_rate=None, ttft_s=None, graph_share=None, gpu={})
    return [*one(), Record(bare, judge(bare, BASELINE, Policy()))]


def nothing_measured() -> list[Record]:
    empty = at(4, valid=False, invalid_because=[BUSY])
    return [Record(empty, judge(empty, None, FLOORS))]


def long_prompts_and_hostile_text() -> list[Record]:
    points = [*at(5).points, make_point(1, 5, speed=0.7, prompts="long")]
    result = dataclasses.replace(at(5), points=points, host='gpu-1<script>alert("x")</script>')
    return [Record(result, judge(result, None, FLOORS))]


PAGES = {
    make.__name__: make
    for make in (
        one,
        two_profiles,
        long_history,
        missing_figures,
        nothing_measured,
        long_prompts_and_hostile_text,
    )
}


@pytest.fixture(params=PAGES)
def page(request: pytest.FixtureRequest) -> str:
    return render(PAGES[request.param]())


class Checker(HTMLParser):
    """Complains about elements that are not closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in UNCLOSED:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def drawings(page: str) -> list[ET.Element]:
    return [ET.fromstring(text) for text in re.findall(r'<svg class="plot.*?</svg>', page, re.DOTALL)]


class TestPage:
    def test_it_is_well_formed_and_needs_nothing_else(self, page: str) -> None:
        checker = Checker()
        checker.feed(page)
        assert checker.open == [] and checker.addresses == []
        assert not checker.tags & {"script", "link", "img", "iframe"}
        assert "url(" not in page and "http" not in page

    def test_every_plot_shows_something_and_says_what(self, page: str) -> None:
        for drawing in drawings(page):
            marks = list(drawing.iter("circle")) + [
                e for e in drawing.iter("path") if e.get("class") != "iso"
            ]
            assert marks
            assert drawing.get("role") == "img"
            assert len(drawing.get("aria-label") or "") > 20

    def test_no_text_of_a_plot_is_cut_or_on_top_of_another(self, page: str) -> None:
        for drawing in drawings(page):
            _, _, width, height = (float(x) for x in str(drawing.get("viewBox")).split())
            boxes: list[tuple[float, float, float, float, str]] = []
            for element in drawing.iter("text"):
                words = element.text or ""
                long, x, y = text_width(words), float(str(element.get("x"))), float(str(element.get("y")))
                left = x - {"start": 0.0, "middle": long / 2, "end": long}[str(element.get("text-anchor"))]
                assert left >= -2 and left + long <= width + 2, words
                assert y >= 9 and y <= height - 1, words
                boxes.append((left, y - 8, left + long, y + 2, words))
            for place, a in enumerate(boxes):
                for b in boxes[place + 1 :]:
                    apart = a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]
                    assert apart, f"{a[4]!r} and {b[4]!r}"

    def test_the_same_records_make_the_same_page_in_any_order(self) -> None:
        records = long_history()
        shuffled = records[:]
        random.Random(1).shuffle(shuffled)
        assert render(shuffled) == render(records)

    def test_the_verdict_is_in_words_at_the_top(self) -> None:
        result = at(6, speed=0.8, runs=7)
        records = [*one(), Record(result, judge(result, BASELINE, Policy()))]
        top = render(records).split("<h2>")[0]
        assert "Fail" in top and "kernels or communication" in top

    def test_against_a_floor_there_is_no_percentage(self) -> None:
        lines = result_lines(BASELINE, judge(BASELINE, None, FLOORS))
        (row,) = (line for line in lines if line.startswith("Decode") and "floor" in line)
        assert "floor 80.0 tok/s" in row and "%" not in row
        section = render(one()).split("What decided")[1].split("<h2>")[0]
        assert "tok/s, floor 80.0 tok/s" in section and "s, ceiling 0.500 s" in section
        assert "%" not in section

    def test_references_are_shown_only_without_a_baseline(self) -> None:
        assert "96.1 tok/s" in render(one())
        assert "96.1 tok/s" not in render(two_profiles()[1:])

    def test_history_has_the_last_thirty_checks_with_their_verdicts(self) -> None:
        drawing = next(d for d in drawings(render(long_history())) if "History" in str(d.get("aria-label")))
        told = str(drawing.get("aria-label"))
        assert told.count("0.5.") == 30
        assert "0.5.10.post1-77ab" in told

    def test_missing_figures_are_called_missing(self) -> None:
        text = render(missing_figures())
        assert text.count(">missing<") >= 3

    def test_hostile_names_are_only_text(self) -> None:
        assert "<script>" not in render(long_prompts_and_hostile_text())

    def test_two_results_stand_side_by_side(self) -> None:
        changed = at(7, speed=1.2, runs=10)
        text = render(one(), compare(BASELINE, changed))
        assert "Two results side by side" in text and ", better" in text


class TestLines:
    def test_no_line_is_wider_than_a_terminal(self) -> None:
        for record in [*two_profiles(), *missing_figures()]:
            lines = result_lines(record.result, record.verdict)
            lines += choice_lines(record.choice) if record.choice else []
            lines += comparison_lines(compare(BASELINE, record.result))
            table = [line for line in lines if not line.startswith(("Pass", "Fail", "Undec", "  "))]
            assert max(map(len, table)) <= 110

    def test_every_judged_figure_has_a_row_even_when_it_is_missing(self) -> None:
        record = missing_figures()[-1]
        lines = "\n".join(result_lines(record.result, record.verdict))
        for name in JUDGED:
            assert FIGURES[name].label in lines
        assert "missing" in lines


class TestSchema:
    @pytest.fixture
    def validator(self, repository: Path) -> Draft202012Validator:
        path = repository / "docs" / "schemas" / "throughput-record.schema.json"
        schema = json.loads(path.read_text(encoding="utf-8"))
        Draft202012Validator.check_schema(schema)
        return Draft202012Validator(schema)

    @pytest.mark.parametrize("make", PAGES.values(), ids=PAGES)
    def test_every_record_is_described_by_it(self, validator: Draft202012Validator, make: Any) -> None:
        for record in make():
            assert [error.message for error in validator.iter_errors(json.loads(record.text()))] == []

    def test_it_refuses_what_is_not_a_record(self, validator: Draft202012Validator) -> None:
        good = one()[0].to_json()
        spoils: list[Callable[[Any], Any]] = [
            lambda r: r["result"].pop("fingerprint"),
            lambda r: r["result"]["points"][0]["runs"][0].update(decode_tok_s="fast"),
            lambda r: r["verdict"].update(outcome="maybe"),
            lambda r: r.update(extra=1),
        ]
        for spoil in spoils:
            bad = json.loads(json.dumps(good))
            spoil(bad)
            assert not validator.is_valid(bad)

    def test_a_record_survives_its_file(self) -> None:
        for record in two_profiles():
            assert Record.from_json(json.loads(record.text())) == record

    @pytest.mark.parametrize("spoil", [{"schema": 2}, {"result": None}, {"verdict": {"outcome": "pass"}}])
    def test_a_file_that_is_not_one_is_refused(self, spoil: dict[str, Any]) -> None:
        with pytest.raises(ValueError):
            Record.from_json({**one()[0].to_json(), **spoil})


class TestModule:
    def add(self, run_module: Any, folder: Path, records: list[Record], **more: bool) -> dict[str, Any]:
        given = [record.to_json() for record in records]
        result: dict[str, Any] = run_module(
            "throughput_report", {"folder": str(folder), "records": given}, **more
        )
        return result

    def test_it_keeps_checks_and_writes_one_page_a_host(self, run_module: Any, tmp_path: Path) -> None:
        other = dataclasses.replace(BASELINE, host="gpu-2")
        told = self.add(run_module, tmp_path, [*two_profiles(), Record(other)])
        assert told["changed"]
        assert told["pages"] == [str(tmp_path / host / "index.html") for host in ("gpu-1", "gpu-2")]
        names = sorted(path.name for path in (tmp_path / "gpu-1").iterdir())
        assert "2026-01-05T020000Z-eagle3.json" in names and len(names) == 4
        assert "gpu-2" not in (tmp_path / "gpu-1" / "index.html").read_text(encoding="utf-8")

    def test_a_second_time_changes_nothing(self, run_module: Any, tmp_path: Path) -> None:
        self.add(run_module, tmp_path, one())
        told = self.add(run_module, tmp_path, one())
        assert (told["changed"], told["diff"]["after"]) == (False, "")

    def test_check_mode_says_so_and_writes_nothing(self, run_module: Any, tmp_path: Path) -> None:
        told = self.add(run_module, tmp_path, one(), check=True)
        assert told["changed"] and told["diff"]["after"].startswith("Pass")
        assert list(tmp_path.iterdir()) == []

    def test_earlier_checks_are_the_history(self, run_module: Any, tmp_path: Path) -> None:
        self.add(run_module, tmp_path, one())
        result = at(8, release="0.5.10-c01dbeef9911")
        self.add(run_module, tmp_path, [Record(result, judge(result, BASELINE, Policy()))])
        text = (tmp_path / "gpu-1" / "index.html").read_text(encoding="utf-8")
        assert "0.5.9-3fa9" in text and "0.5.10-c01d" in text and "accepted before" in text

    def test_two_stored_checks_are_compared(self, run_module: Any, tmp_path: Path) -> None:
        result = at(9, speed=1.2, runs=10)
        self.add(run_module, tmp_path, [*one(), Record(result)])
        files = sorted((tmp_path / "gpu-1").glob("*.json"))
        told = run_module(
            "throughput_report", {"folder": str(tmp_path), "compare": [str(path) for path in files]}
        )
        assert any("better" in line for line in told["lines"])
        assert "side by side" in (tmp_path / "gpu-1" / "index.html").read_text(encoding="utf-8")

    def test_a_broken_file_is_named(self, run_module: Any, tmp_path: Path) -> None:
        (tmp_path / "gpu-1").mkdir()
        (tmp_path / "gpu-1" / "x.json").write_text("{")
        told = self.add(run_module, tmp_path, one())
        assert told["failed"] and str(tmp_path / "gpu-1" / "x.json") in told["msg"]

    @pytest.mark.parametrize("host", ["..", ".", "../../etc", "/etc/passwd", "a b;c", "gp\u00fc-1", "-rf"])
    def test_a_host_of_any_name_stays_in_the_folder(self, run_module: Any, tmp_path: Path, host: str) -> None:
        folder = tmp_path / "reports"
        told = self.add(run_module, folder, [Record(dataclasses.replace(BASELINE, host=host))])
        (page,) = told["pages"]
        assert Path(page).resolve().parent.parent == folder.resolve()
        assert list(tmp_path.iterdir()) == [folder]

    def test_comparing_needs_two(self, run_module: Any, tmp_path: Path) -> None:
        told = run_module("throughput_report", {"folder": str(tmp_path), "compare": ["a.json"]})
        assert told["failed"]


@pytest.mark.parametrize(
    ("low", "high"), [(0, 1), (88.2, 103.9), (0.318, 0.402), (5, 5), (0, 0), (-0.1, 0.1)]
)
def test_ticks_are_round_few_and_cover_the_data(low: float, high: float) -> None:
    marks = ticks(low, high)
    assert marks[0] <= low and marks[-1] >= high
    assert 2 <= len(marks) <= 8
