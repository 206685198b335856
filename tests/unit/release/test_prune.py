"""Only a release that nothing needs is removed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from blackwell import prune


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Five releases, sealed one after the other, and a half-made one; the fifth is current."""
    for number in range(1, 6):
        release = tmp_path / "releases" / f"0.5.9-{number}"
        release.mkdir(parents=True)
        (release / "manifest.json").write_text("{}")
        os.utime(release / "manifest.json", (number, number))
    (tmp_path / "releases" / "0.5.9-6" / "venv").mkdir(parents=True)
    (tmp_path / "current").symlink_to("releases/0.5.9-5")
    return tmp_path


def kept(root: Path, **more: Any) -> set[str]:
    given: dict[str, Any] = {"wanted": [], "keep": 0, "units": [], "processes": root / "no-proc", **more}
    return {verdict.path.name[-1] for verdict in prune.judge(root, **given) if verdict.reason}


def test_current_and_planned_stay(root: Path) -> None:
    assert kept(root, wanted=["0.5.9-6"]) == {"5", "6"}


def test_the_last_ones_stay_besides_by_the_time_they_were_sealed(root: Path) -> None:
    os.utime(root / "releases" / "0.5.9-1" / "manifest.json", (9, 9))
    assert kept(root, keep=2) == {"1", "4", "5"}


def test_what_a_unit_names_stays(root: Path) -> None:
    drop_in = root / "units" / "sglang@eagle3.service.d"
    drop_in.mkdir(parents=True)
    (drop_in / "release.conf").write_text(f"[Service]\nExecStart={root}/releases/0.5.9-2/venv/bin/python\n")
    assert kept(root, units=[root / "units"]) == {"2", "5"}


def test_a_longer_id_is_not_taken_for_a_shorter_one(root: Path) -> None:
    (root / "units").mkdir()
    (root / "units" / "x.service").write_text(f"ExecStart={root}/releases/0.5.9-22/venv/bin/python\n")
    assert kept(root, units=[root / "units"]) == {"5"}


@pytest.fixture
def process(root: Path) -> Iterator[int]:
    """A process that was started from the third release."""
    program = [sys.executable, "-c", "input()", f"{root}/releases/0.5.9-3/venv/serve.py"]
    with subprocess.Popen(program, stdin=subprocess.PIPE) as running:
        yield running.pid
        running.kill()


def test_what_a_process_uses_stays(root: Path, process: int) -> None:
    assert process
    assert kept(root, processes=Path("/proc")) == {"3", "5"}


def test_a_host_without_releases_has_nothing_to_remove(tmp_path: Path) -> None:
    assert prune.judge(tmp_path, wanted=[], keep=0, units=[], processes=tmp_path) == []


def test_the_module_removes_them_and_says_why_others_stay(
    root: Path, run_module: Callable[..., dict[str, Any]]
) -> None:
    given = {"root": str(root), "keep": 1}
    for check in (True, False):
        result = run_module("release_prune", given, check=check)
        assert result["freed"] > 0
        assert result["removed"] == ["0.5.9-1", "0.5.9-2", "0.5.9-3", "0.5.9-6"]
        assert result["kept"] == {
            "0.5.9-4": "one can go back to it",
            "0.5.9-5": "it is the accepted release",
        }
    assert sorted(path.name for path in (root / "releases").iterdir()) == ["0.5.9-4", "0.5.9-5"]
    assert not run_module("release_prune", given)["changed"]
    assert run_module("release_prune", {**given, "keep": -1})["failed"]
