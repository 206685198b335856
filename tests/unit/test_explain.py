"""What the command line tool says about receipts, and how it follows a rollout."""

from __future__ import annotations

import copy
import io
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from blackwell import explain
from blackwell.errors import OperatorError
from rich.console import Console

from blackwell_cli import __main__ as cli
from blackwell_cli import progress, receipts

ROOT = Path(__file__).resolve().parents[2]
PLAY = """
- name: Fail with what was given
  hosts: all
  gather_facts: false
  tasks:
    - name: Fail
      ansible.builtin.fail:
        msg: found {{ wanted }}
"""


def receipt(**given: Any) -> dict[str, Any]:
    return {
        "schema": 1, "id": "20260225T101500Z-gpu-1", "host": "gpu-1", "began": 1772014500.0,
        "first_began": 1772014500.0, "broken_runs": 0, "ended": 1772014800.0,
        "outcome": "accepted", "reason": "", "rollback_s": None,
        "phases": [{"phase": "start", "began": 1772014510.0, "seconds": 240.0}],
        "outage": {"last_good": 1.0, "first_good": 241.0, "seconds": 240.0},
        "requested": {
            "by": "root", "sglang_version": "0.5.9", "engine": "cuda", "release": "0.5.9-aaaaaaaaaaaa",
            "digests": {"lock": "1", "patches": "2", "engine": "3", "toolkit": "wheels", "python": "3.12"},
            "deployment": "0.5.9-aaaaaaaaaaaa-00000000", "profile": "eagle3", "files": {},
            "arguments": {"attention_backend": "triton", "port": 30000},
            "environment": {"NCCL_P2P_LEVEL": "SYS", "HOME": "/opt/sglang/releases/0.5.9-aaaaaaaaaaaa/cache"},
        },
        "found": None, "serves": None, "verdict": None,
        "fingerprint": {"digest": "x", "parts": {"driver": "580.95.05"}},
        "result": {"points": [{"concurrency": 1, "prompts": "short", "runs": [
            {"valid": True, "decode_tok_s": 96.1, "accept_length": 2.8, "ttft_s": 0.4},
            {"valid": False, "decode_tok_s": 1.0, "accept_length": 1.0, "ttft_s": 9.0},
        ]}]},
        **given,
    }  # fmt: skip


def test_another_profile_says_what_it_gives_up() -> None:
    before, after = receipt(), receipt(choice={"given_up": ["8 requests (-12.0%)"]})
    after["requested"] = {**after["requested"], "profile": "baseline"}
    (first, second, *_) = explain.explain(before, after)
    assert {first.name, second.name} == {"profile", "slower than the other profile at"}
    assert "8 requests (-12.0%)" in (first.after, second.after)
    assert all(
        "slower" not in found.name for found in explain.explain(before, receipt(choice=after["choice"]))
    )


def changed(path: str, value: Any, base: dict[str, Any] | None = None) -> dict[str, Any]:
    """A copy with one value changed, which is given by its path."""
    other = copy.deepcopy(base or receipt())
    *folders, last = path.split("/")
    inner = other
    for name in folders:
        inner = inner[name]
    inner[last] = value
    return other


def test_equal_receipts_differ_in_nothing() -> None:
    assert explain.explain(receipt(), receipt()) == []


@pytest.mark.parametrize(
    ("path", "value", "kind"),
    [
        ("requested/profile", "baseline", "profile"),
        ("fingerprint/parts/driver", "590.1", "host"),
        ("requested/sglang_version", "0.5.10", "version"),
        ("requested/digests/patches", "9", "patches"),
        ("requested/digests/lock", "9", "packages"),
        ("requested/digests/toolkit", "apt", "toolkit"),
        ("requested/arguments/attention_backend", "flashinfer", "settings"),
        ("requested/environment/NCCL_P2P_LEVEL", "PHB", "settings"),
        ("requested/arguments/port", 30001, "other settings"),
        ("requested/digests/python", "3.11", "python"),
    ],
)
def test_each_kind_of_difference_is_found(path: str, value: Any, kind: str) -> None:
    found = explain.explain(receipt(), changed(path, value))
    assert [difference.kind for difference in found] == [kind]
    assert found[0].after == str(value)


def test_the_most_likely_cause_comes_first() -> None:
    other = changed("requested/arguments/port", 30001)
    other = changed("requested/digests/patches", "9", other)
    other = changed("fingerprint/parts/driver", "590.1", other)
    assert [difference.kind for difference in explain.explain(receipt(), other)] == [
        "host",
        "patches",
        "other settings",
    ]


def test_another_version_is_named_once_and_not_as_a_lock_and_paths_too() -> None:
    other = changed("requested/sglang_version", "0.5.10")
    other = changed("requested/digests/lock", "9", other)
    other = changed("requested/release", "0.5.10-bbbbbbbbbbbb", other)
    other = changed("requested/environment/HOME", "/opt/sglang/releases/0.5.10-bbbbbbbbbbbb/cache", other)
    assert [difference.name for difference in explain.explain(receipt(), other)] == ["sglang_version"]


def test_a_rollback_does_not_claim_that_settings_are_gone() -> None:
    """Its receipt names what it went back to, and neither arguments nor digests."""
    silent = {"digests": {}, "arguments": {}, "environment": {}, "release": "0.5.9-bbbbbbbbbbbb"}
    back = receipt(requested={**receipt()["requested"], **silent})
    assert [(found.name, found.after) for found in explain.explain(receipt(), back)] == [
        ("release", "0.5.9-bbbbbbbbbbbb")
    ]
    same = receipt(requested={**receipt()["requested"], **silent, "release": "0.5.9-aaaaaaaaaaaa"})
    assert explain.explain(receipt(), same) == []


def test_figures_are_medians_of_valid_runs() -> None:
    figures = {name: (was, now) for name, was, now in explain.effects(receipt(), receipt(outage=None))}
    assert figures["1 request, short prompts: tok/s"] == (96.1, 96.1)
    assert figures["1 request, short prompts: accept length"] == (2.8, 2.8)
    assert figures["outage, s"] == (240.0, None)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number, host, outcome in ((1, "gpu-1", "accepted"), (2, "gpu-1", "returned"), (3, "gpu-2", "down")):
        entry = receipt(
            id=f"2026022{number}T101500Z-{host}",
            host=host,
            outcome=outcome,
            began=1772014500.0 + number,
            reason="slow",
        )
        file = tmp_path / host / f"{entry['id']}.json"
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(entry))
    return tmp_path


def test_receipts_are_found_by_file_id_and_host(folder: Path) -> None:
    newest = receipts.find(folder, "gpu-1")
    assert newest["outcome"] == "returned"
    assert receipts.find(folder, "gpu-1~1")["outcome"] == "accepted"
    assert receipts.find(folder, newest["id"]) == newest
    assert receipts.find(folder, str(folder / "gpu-1" / f"{newest['id']}.json")) == newest
    with pytest.raises(receipts.NotFound, match="gpu-1, gpu-2"):
        receipts.find(folder, "gpu-9")


def test_the_tool_lists_and_explains(folder: Path, repository: Path) -> None:
    tool = str(repository / "bin" / "blackwell")
    listed = subprocess.run(
        [tool, "receipts", "--receipts", folder], capture_output=True, text=True, check=True
    ).stdout
    assert [word in listed for word in ("gpu-1", "gpu-2", "returned", "down")] == [True] * 4
    same = subprocess.run(
        [tool, "explain", "gpu-1~1", "gpu-1", "--receipts", folder],
        capture_output=True,
        text=True,
        check=False,
    )
    assert same.returncode == 1 and "Nothing differs" in same.stdout
    told = " ".join(same.stdout.split())
    assert told.count("asked for 0.5.9-aaaaaaaaaaaa, which does not serve: slow") == 1
    first = subprocess.run(
        [tool, "explain", "gpu-2~1", "gpu-2", "--receipts", folder],
        capture_output=True,
        text=True,
        check=False,
    )
    assert first.returncode == 2 and "gpu-2 has only 1 receipt" in " ".join(first.stdout.split())
    missing = subprocess.run(
        [tool, "explain", "gpu-9", "gpu-1", "--receipts", folder], capture_output=True, text=True, check=False
    )
    assert missing.returncode == 2 and "There is no receipt gpu-9" in missing.stdout


def said(host: str, phase: str) -> dict[str, Any]:
    data = {"host": host, "task": "Report the phase", "res": {"msg": f"{host}: {phase}, usually 12 s"}}
    return {"event": "runner_on_ok", "event_data": data}


def test_the_board_shows_host_phase_and_what_is_usual(folder: Path) -> None:
    board = progress.Board(folder)
    board.event({"event": "playbook_on_play_start", "event_data": {"name": "Roll the release out"}})
    for phase in ("drain", "start"):
        board.event(said("gpu-1", phase))
    turn = board.turns["gpu-1"]
    assert turn.phase == "start" and list(turn.done) == ["prepare", "drain"]
    assert board.usual("gpu-1", "start") == 240.0 and board.usual("gpu-2", "start") is None
    out = io.StringIO()
    Console(file=out, width=160).print(board.table(turn.since + 30))
    assert "30 s" in out.getvalue() and "240 s" in out.getvalue() and "Roll the release out" in out.getvalue()


def test_the_board_keeps_what_failed_and_not_what_only_looks_like_a_phase(folder: Path) -> None:
    board = progress.Board(folder)
    other = said("gpu-1", "start")
    other["event_data"]["task"] = "Show them"
    board.event(other)
    assert board.turns["gpu-1"].phase == "prepare"
    failure = {"host": "gpu-1", "task": "Wait", "res": {"msg": "it hangs"}}
    board.event({"event": "runner_on_failed", "event_data": failure})
    assert board.turns["gpu-1"].failed == "it hangs"


@pytest.mark.parametrize(
    "option",
    ["--ask-vault-pass", "--ask-become-pass", "-K", "-vk", "-J", "production@prompt"],
)
def test_a_password_that_nobody_could_type_is_refused(
    option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["rollout", "-i", "hosts", "--", "--check", option])
    assert stopped.value.code == 2
    assert (
        f"error: {option} asks for a password, and behind the table nobody could see that. Name a file instead: "
        "--vault-password-file, --become-password-file or --connection-password-file\n"
    ) in capsys.readouterr().err


def run(folder: Path, playbook: Path, *rest: str) -> tuple[int, str]:
    """Run a playbook on this machine, as the tool does."""
    (folder / "hosts.yml").write_text("all: {hosts: {here: {ansible_connection: local}}}\n")
    out = io.StringIO()
    console = Console(file=out, width=400)
    status = progress.run(console, ROOT, str(playbook), str(folder / "hosts.yml"), list(rest), folder)
    return status, out.getvalue()


def test_options_reach_ansible_as_they_are_given(tmp_path: Path) -> None:
    (tmp_path / "play.yml").write_text(PLAY)
    done, told = run(tmp_path, tmp_path / "play.yml", "--check", "-e", '{"wanted": "two words [/tmp/x:5]"}')
    assert done != 0
    assert "here: found two words [/tmp/x:5]\n" in told


def test_a_run_that_no_host_failed_says_what_ansible_said(tmp_path: Path) -> None:
    done, told = run(tmp_path, tmp_path / "missing.yml")
    assert done != 0 and f"playbook: {tmp_path}/missing.yml could not be found" in told
    (tmp_path / "play.yml").write_text(PLAY)
    done, told = run(tmp_path, tmp_path / "play.yml", "--no-such-option")
    assert done == 2 and "unrecognized arguments: --no-such-option" in told


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "{}", '{"schema": 1}', "\x00"])
def test_a_damaged_receipt_is_said_and_ends_nothing(folder: Path, text: str) -> None:
    out = io.StringIO()
    console = Console(file=out, width=300)
    whole, damaged = sorted((folder / "gpu-1").glob("*.json"))
    damaged.write_text(text, encoding="utf-8")
    assert receipts.show(console, folder, None) == 0
    assert f"Passed over: {damaged}" in out.getvalue()
    assert receipts.explain(console, folder, str(whole), str(damaged)) == 2
    assert out.getvalue().count(str(damaged)) >= 2
    with pytest.raises(OperatorError, match=damaged.stem):
        receipts.find(folder, damaged.stem)


def test_a_measured_point_that_cannot_be_read_is_said(folder: Path) -> None:
    out = io.StringIO()
    file = folder / "gpu-1" / "20260221T101500Z-gpu-1.json"
    file.write_text(json.dumps(receipt(result={"points": [{"runs": 3}]})), encoding="utf-8")
    assert receipts.explain(Console(file=out, width=300), folder, str(file), "gpu-2") == 2
    assert "a measured point that cannot be read" in out.getvalue()
