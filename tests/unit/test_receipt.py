"""What a receipt holds, whatever happened to the rollout."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from blackwell import receipt
from blackwell.errors import OperatorError

SECRET = "a-key-of-sixteen-or-more"
MARKS = [
    {"phase": "drain", "at": 100.0},
    {"phase": "start", "at": 103.0},
    {"phase": "prove", "at": 133.5},
    {"phase": "restore", "at": 160.0},
]


FOUND = {"deployment": "old", "profile": "eagle3", "release": "old", "history": []}


def content(**given: Any) -> dict[str, Any]:
    return {
        "requested": {
            "by": "root", "sglang_version": "0.5.10.post1", "engine": "cpu", "release": "0.5.10.post1-aaaaaaaaaaaa",
            "digests": {"lock": "1", "patches": "2", "engine": "3", "toolkit": "wheels", "python": "3.11"},
            "deployment": "0.5.10.post1-aaaaaaaaaaaa-bbbbbbbb", "profile": "eagle3", "files": {"eagle3.yaml": "4"},
            "arguments": {"port": 30000}, "environment": {"HF_TOKEN": SECRET},
        },
        "serves": {"deployment": "0.5.10.post1-aaaaaaaaaaaa-bbbbbbbb", "profile": "eagle3",
                   "release": "0.5.10.post1-aaaaaaaaaaaa", "history": []},
        "fingerprint": {"digest": "0123456789ab", "parts": {"engine": "cpu"}},
        "result": None,
        "verdict": None,
        "choice": None,
        "requests": {"open": 3, "left": 0},
        "recheck": None,
        **given,
    }  # fmt: skip


def write(folder: Path, *, began: float = 99.0, outcome: str = "accepted", **given: Any) -> dict[str, Any]:
    receipt.begin(folder, "gpu-1", found=FOUND, now=began)
    arguments: dict[str, Any] = {
        "outcome": outcome,
        "reason": "",
        "marks": MARKS,
        "outage": {"last_good": 104.0, "first_good": 131.25},
        "content": content(),
        "secrets": [SECRET],
        "keep": 50,
        "now": 162.0,
        **given,
    }
    return receipt.end(folder, **arguments)


@pytest.fixture
def schema(repository: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((repository / "docs/schemas/rollout-receipt.schema.json").read_text())
    return loaded


def test_a_receipt_is_as_its_schema_says(tmp_path: Path, schema: dict[str, Any]) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.validate(write(tmp_path), schema)
    failed = write(
        tmp_path,
        began=200.0,
        outcome="down",
        reason="it hangs",
        outage=None,
        content=content(serves=None, requests=None, recheck={"passed": True, "said": "as it was"}),
    )
    jsonschema.validate(failed, schema)


def test_a_phase_lasts_until_the_next_one_begins(tmp_path: Path) -> None:
    phases = {phase["phase"]: phase["seconds"] for phase in write(tmp_path)["phases"]}
    assert phases == {"drain": 3.0, "start": 30.5, "prove": 26.5, "restore": 2.0}


def test_the_outage_goes_from_the_last_good_answer_to_the_first_good_one(tmp_path: Path) -> None:
    assert write(tmp_path)["outage"]["seconds"] == 27.25


@pytest.mark.parametrize("seen", [None, {}, {"last_good": 1.0}, {"first_good": 1.0}])
def test_an_outage_of_which_an_end_was_not_seen_is_unknown_and_not_zero(seen: Any) -> None:
    assert receipt.outage_of(seen) is None


def test_the_time_of_a_return_is_named(tmp_path: Path) -> None:
    marks = [*MARKS[:2], {"phase": "return", "at": 140.0}]
    assert write(tmp_path, outcome="returned", marks=marks)["rollback_s"] == 22.0
    assert write(tmp_path)["rollback_s"] is None


def test_no_secret_is_in_a_receipt(tmp_path: Path) -> None:
    write(tmp_path, reason=f"401 for Bearer {SECRET}")
    assert all(SECRET not in file.read_text() for file in tmp_path.iterdir())


def test_a_variable_with_a_telling_name_is_in_no_receipt(tmp_path: Path) -> None:
    requested = {**content()["requested"], "environment": {"HF_TOKEN": "not-listed", "HF_HUB_OFFLINE": "1"}}
    receipt_ = write(tmp_path, content=content(requested=requested))
    assert receipt_["requested"]["environment"] == {"HF_TOKEN": "********", "HF_HUB_OFFLINE": "1"}


KEYS = {
    "quotes": 'key-with-"quotes"-0123',
    "umlaut": "schlüssel-mit-ä-0123456",
    "backslash": "key\\with\\backslash-01",
    "line": "key\nwith a line-0123456",
}


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
def test_a_key_of_any_characters_is_in_no_receipt(tmp_path: Path, key: str) -> None:
    verdict = {"said": [f"Bearer {key}", {f"with {key}": (key, 1, None)}]}
    written = write(tmp_path, reason=f"401: {key}", content=content(verdict=verdict), secrets=[key])
    assert written["reason"] == "401: ********"
    assert written["verdict"] == {"said": ["Bearer ********", {"with ********": ["********", 1, None]}]}
    (file,) = tmp_path.iterdir()
    assert json.loads(file.read_text(encoding="utf-8")) == written
    assert json.dumps(key)[1:-1] not in file.read_text(encoding="utf-8")


def test_a_key_that_begins_another_leaves_no_tail_of_it(tmp_path: Path) -> None:
    long, short = f"{SECRET}-and-its-tail", SECRET
    for secrets in ([short, long], [long, short]):
        assert write(tmp_path, reason=f"{long} {short}", secrets=secrets)["reason"] == "******** ********"


def test_a_key_that_looks_like_json_does_not_break_the_receipt(tmp_path: Path) -> None:
    written = write(tmp_path, secrets=['": "', "outcome", '{"'])
    assert (written["outcome"], written["host"]) == ("accepted", "gpu-1")


def test_a_resumed_rollout_keeps_what_the_first_one_found(tmp_path: Path) -> None:
    receipt.begin(tmp_path, "gpu-1", found=FOUND, now=10.0)
    for now, found in ((20.0, None), (30.0, {"deployment": "half-new"})):
        resumed = receipt.begin(tmp_path, "gpu-1", found=found, now=now)
        assert resumed["found"] == FOUND
        assert receipt.pending(tmp_path) == resumed
    assert write(tmp_path, began=40.0)["found"] == FOUND


def test_a_first_rollout_that_found_nothing_keeps_that(tmp_path: Path) -> None:
    receipt.begin(tmp_path, "gpu-1", found=None, now=10.0)
    assert receipt.begin(tmp_path, "gpu-1", found=FOUND, now=20.0)["found"] is None


DAMAGED = {
    "empty": "",
    "cut off": '{"schema": 1, "id": "20260225T1015',
    "a list": "[]",
    "another object": '{"schema": 1}',
    "a number for a text": '{"schema": 1, "id": 3}',
    "nothing": "null",
}


@pytest.mark.parametrize("text", DAMAGED.values(), ids=DAMAGED)
@pytest.mark.parametrize("state", ["begun", "ended", "read"])
def test_a_damaged_pending_receipt_is_not_taken_for_none(
    run_module: Callable[..., dict[str, Any]], tmp_path: Path, text: str, state: str
) -> None:
    """What the rollout found would be forgotten, and with it what to go back to."""
    file = tmp_path / receipt.PENDING
    file.write_text(text, encoding="utf-8")
    given = {
        "folder": str(tmp_path),
        "state": state,
        "host": "gpu-1",
        "outcome": "accepted",
        "content": content(),
    }
    said = run_module("rollout_receipt", given)
    assert said["failed"] is True
    assert str(file) in said["msg"] and f"rm {file}" in said["msg"]
    assert file.read_text(encoding="utf-8") == text
    file.unlink()  # what the message says
    if state == "begun":
        assert run_module("rollout_receipt", given)["changed"] is True


@pytest.mark.parametrize("text", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_receipt_is_passed_over_with_a_warning(
    run_module: Callable[..., dict[str, Any]], tmp_path: Path, text: str
) -> None:
    whole = write(tmp_path)
    file = tmp_path / "20990101T000000Z-gpu-1.json"
    file.write_text(text, encoding="utf-8")
    given = {"folder": str(tmp_path), "state": "read"}
    said = run_module("rollout_receipt", given)
    assert said["receipt"] == whole
    damaged: list[OperatorError] = []
    receipt.read_all(tmp_path, damaged)
    assert str(damaged[0]) in json.dumps(said["warnings"])
    assert f"mv {file} {file}.damaged" in damaged[0].remedy
    file.rename(f"{file}.damaged")  # what the message says
    damaged.clear()
    receipt.read_all(tmp_path, damaged)
    assert damaged == []


@pytest.mark.parametrize(
    "field", ["phases", "outage", "requested", "serves", "fingerprint", "result", "began", "reason"]
)
@pytest.mark.parametrize("value", [3, "text", [1], [{}], True, {"seconds": "a"}])
def test_a_field_of_another_form_is_a_damage_or_harmless(tmp_path: Path, field: str, value: Any) -> None:
    entry = {**write(tmp_path), field: value}
    file = tmp_path / f"{entry['id']}.json"
    file.write_text(json.dumps(entry), encoding="utf-8")
    found = receipt.read_all(tmp_path)
    receipt.expected(found)
    if found:
        receipt.differences(found[0], running())


def test_a_rollout_that_was_broken_off_is_counted_by_the_one_that_ends(tmp_path: Path) -> None:
    receipt.begin(tmp_path, "gpu-1", found=FOUND, now=10.0)
    receipt.begin(tmp_path, "gpu-1", found=None, now=20.0)
    ended = write(tmp_path, began=30.0)
    assert ended["broken_runs"] == 2 and ended["first_began"] == 10.0
    assert not (tmp_path / receipt.PENDING).exists()
    assert write(tmp_path, began=40.0)["broken_runs"] == 0


def test_a_receipt_needs_a_rollout_that_has_begun(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match="No rollout is pending"):
        receipt.end(
            tmp_path,
            outcome="accepted",
            reason="",
            marks=[],
            outage=None,
            content={},
            secrets=[],
            keep=1,
            now=1.0,
        )


def test_the_oldest_receipts_go(tmp_path: Path) -> None:
    for began in (100.0, 200.0, 300.0):
        write(tmp_path, began=began, keep=2)
    assert [entry["began"] for entry in receipt.read_all(tmp_path)] == [300.0, 200.0]


def test_what_is_usual_comes_from_accepted_rollouts_only(tmp_path: Path) -> None:
    write(tmp_path, began=100.0)
    write(tmp_path, began=200.0, outcome="returned", marks=[{"phase": "start", "at": 0.0}])
    usual = receipt.expected(receipt.read_all(tmp_path))
    assert usual["start"] == 30.5 and usual["outage"] == 27.2


def running(**given: Any) -> dict[str, Any]:
    serves = content()["serves"]
    return {"deployment": serves["deployment"], "files": {"eagle3.yaml": "4"}, "accepted": serves["deployment"],
            "release": serves["release"], "fingerprint": "0123456789ab", **given}  # fmt: skip


def test_what_runs_as_accepted_differs_in_nothing(tmp_path: Path) -> None:
    assert receipt.differences(write(tmp_path), running()) == []
    assert receipt.differences(write(tmp_path), running(health=200)) == []


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"deployment": "other"}, "other runs"),
        ({"deployment": None}, "nothing that was recorded runs"),
        ({"files": {"eagle3.yaml": "5"}}, "eagle3.yaml is another one"),
        ({"accepted": "other"}, "the machine starts other at boot"),
        ({"release": "other"}, "current is other"),
        ({"fingerprint": "ba9876543210"}, "fingerprint"),
        ({"edited": ["/etc/sglang/d/eagle3.env"]}, "/etc/sglang/d/eagle3.env was edited, or is gone"),
        ({"health": 503}, "its server does not answer (/health: 503)"),
        ({"health": 0}, "its server does not answer (/health: nothing)"),
        ({"refuses": True}, "it refuses new connections of clients"),
        ({"left_out_by": ["gateway-1"]}, "gateway-1 sends it no requests until a rollout puts it back"),
        ({"unreachable": ["gateway-2"]}, "gateway-2 cannot be reached by ssh"),
    ],
)
def test_each_difference_is_named(tmp_path: Path, given: dict[str, Any], said: str) -> None:
    found = receipt.differences(write(tmp_path), running(**given))
    assert len(found) == 1 and said in found[0]


def test_a_rollout_that_was_broken_off_is_a_difference(
    run_module: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    write(tmp_path)
    look = {"folder": str(tmp_path), "state": "read", "running": running()}
    assert run_module("rollout_receipt", look)["differences"] == []
    receipt.begin(tmp_path, "gpu-1", found=FOUND, now=1772014500.0)
    assert run_module("rollout_receipt", look)["differences"] == [
        "a rollout that began at 2026-02-25 10:15 UTC has not ended: it is under way, or was broken off"
    ]


@pytest.mark.parametrize("state", ["begun", "ended"])
def test_a_folder_that_takes_no_receipt_is_said(
    run_module: Callable[..., dict[str, Any]], tmp_path: Path, state: str
) -> None:
    begun = receipt.begin(tmp_path, "gpu-1", found=None, now=100.0)
    in_the_way = {"begun": tmp_path / receipt.PENDING, "ended": tmp_path / f"{begun['id']}.json"}[state]
    in_the_way.unlink(missing_ok=True)
    in_the_way.mkdir()
    given = {"host": "gpu-1", "outcome": "accepted", "content": content()}
    said = run_module("rollout_receipt", {"folder": str(tmp_path), "state": state, **given})["msg"]
    assert said.startswith(f"No receipt can be written in {tmp_path}. Found: ")


def test_the_module_begins_ends_and_reads(run_module: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    folder = {"folder": str(tmp_path / "receipts")}
    assert run_module("rollout_receipt", {**folder, "state": "read"})["receipt"] is None
    assert run_module("rollout_receipt", {**folder, "state": "begun", "host": "gpu-1"}, check=True)["changed"]
    assert not (tmp_path / "receipts").exists()
    assert (
        run_module("rollout_receipt", {**folder, "state": "begun", "host": "gpu-1"})["pending"]["broken_runs"]
        == 0
    )
    (tmp_path / "seen").write_text('{"last_good": 1, "first_good": 3}')
    ended = {"state": "ended", "outcome": "accepted", "marks": MARKS, "content": content()}
    done = run_module("rollout_receipt", {**folder, **ended, "outage_file": str(tmp_path / "seen")})
    assert done["receipt"]["outage"]["seconds"] == 2
    assert run_module("rollout_receipt", {**folder, "state": "read"})["accepted"] == done["receipt"]
    again = run_module("rollout_receipt", {**folder, **ended})
    assert again["failed"] and "pending" in again["msg"]
