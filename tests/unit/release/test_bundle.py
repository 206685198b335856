"""A bundle has what the locks name, proves it, and fetches nothing twice. Real pip, local sources."""

from __future__ import annotations

import dataclasses
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from blackwell import bundle as bundles
from blackwell import lock as locks
from blackwell.bundle import Bundle
from blackwell.errors import OperatorError
from blackwell.lock import Pin

from tests.unit.release.conftest import WheelMaker, lock_of


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels that pip is configured to use, and nothing else."""
    folder = tmp_path / "source"
    folder.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def wanted(tmp_path: Path, source: Path, make_wheel: WheelMaker) -> Bundle:
    pins = [make_wheel(name, "1.0", into=source) for name in ("alpha", "beta", "gamma")]
    uv = make_wheel("uv", "1.0", into=source)
    (tmp_path / "lock.txt").write_text(lock_of(*pins)[1])
    (tmp_path / "uv.txt").write_text(uv.line() + "\n")
    return Bundle(tmp_path / "made", (tmp_path / "lock.txt",), tmp_path / "uv.txt")


def no_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", "/no/such/folder")


def test_it_has_the_wheels_of_the_lock_uv_and_the_lists(wanted: Bundle) -> None:
    wanted.make(wanted.inspect())
    assert sorted(entry.name for entry in wanted.path.iterdir()) == [
        "SHA256SUMS",
        "licences.txt",
        "manifest.json",
        "wheels",
    ]
    assert len(list(wanted.wheels.iterdir())) == 4
    subprocess.run(["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"], cwd=wanted.path, check=True)
    assert "alpha==1.0\tMIT\n" in (wanted.path / "licences.txt").read_text()
    manifest = json.loads((wanted.path / "manifest.json").read_text())
    assert manifest["locks"] == {"lock.txt": wanted.read()["lock.txt"].digest}
    assert {wheel["name"] for wheel in manifest["wheels"]} == {"alpha", "beta", "gamma", "uv"}


def test_locks_that_differ_in_a_version_share_a_bundle(
    wanted: Bundle, source: Path, make_wheel: WheelMaker
) -> None:
    """pip takes one version of a package a call, and an upgrade needs both."""
    newer = [make_wheel(name, "2.0", into=source) for name in ("alpha", "beta")]
    other = wanted.path.parent / "other.txt"
    other.write_text(lock_of(*newer)[1])
    both = dataclasses.replace(wanted, locks=(*wanted.locks, other))
    both.make(both.inspect())
    names = {entry.name.split("-")[0] + entry.name.split("-")[1] for entry in both.wheels.iterdir()}
    assert {"alpha1.0", "alpha2.0", "beta1.0", "beta2.0", "gamma1.0"} <= names


def test_a_complete_bundle_needs_no_source_and_is_not_written(
    wanted: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted.make(wanted.inspect())
    no_source(monkeypatch)
    assert wanted.make(wanted.inspect()) == []


def test_an_interrupted_download_goes_on_where_it_stopped(
    wanted: Bundle, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundles, "_BATCH_FILES", 1)
    kept = (source / "beta-1.0-py3-none-any.whl").rename(source.parent / "beta-1.0-py3-none-any.whl")
    with pytest.raises(OperatorError, match=r"cannot download beta==1\.0") as caught:
        wanted.make(wanted.inspect())
    assert "run the same command again" in caught.value.remedy
    assert [entry.name for entry in wanted.wheels.iterdir()] == ["alpha-1.0-py3-none-any.whl"]
    kept.rename(source / kept.name)
    (source / "alpha-1.0-py3-none-any.whl").unlink()
    assert "wheels/alpha-1.0-py3-none-any.whl" not in wanted.make(wanted.inspect())
    assert wanted.inspect().count == 0


def test_a_broken_file_is_named_and_fetched_again(wanted: Bundle) -> None:
    wanted.make(wanted.inspect())
    broken = wanted.wheels / "beta-1.0-py3-none-any.whl"
    broken.write_bytes(broken.read_bytes()[:-1])
    found = wanted.inspect()
    assert [text.split()[0] for text in found.broken] == [broken.name]
    assert wanted.make(found) == [f"wheels/{broken.name}"]
    assert wanted.inspect().broken == []


def test_a_foreign_file_is_named_and_left_alone(wanted: Bundle) -> None:
    wanted.make(wanted.inspect())
    (wanted.wheels / "theirs.whl").touch()
    found = wanted.inspect()
    assert found.foreign == ["theirs.whl"]
    assert wanted.make(found) == []
    assert (wanted.wheels / "theirs.whl").exists()
    assert "theirs" not in (wanted.path / "SHA256SUMS").read_text()


def test_a_source_with_another_file_of_that_name_is_refused(wanted: Bundle, source: Path) -> None:
    wheel = source / "beta-1.0-py3-none-any.whl"
    wheel.write_bytes(wheel.read_bytes() + b"\0")
    with pytest.raises(OperatorError) as caught:
        wanted.make(wanted.inspect())
    assert caught.value.problem == "pip cannot download alpha==1.0, beta==1.0, gamma==1.0"
    assert "hash" in caught.value.found.lower()
    assert caught.value.remedy == (
        "see what pip says; what was fetched so far is kept, run the same command again"
    )
    assert not (wanted.wheels / wheel.name).exists()


def test_a_source_with_another_build_of_that_version_is_refused(wanted: Bundle, source: Path) -> None:
    """Its own checksum would be right, where nobody has published one."""
    lock = wanted.read()["lock.txt"]
    unknown = dataclasses.replace(lock.pins[0], sha256="", size=0)
    wanted.locks[0].write_text(locks.render(dataclasses.replace(lock, pins=(unknown, *lock.pins[1:]))))
    (source / unknown.filename).rename(source / "alpha-1.0-1-py3-none-any.whl")
    with pytest.raises(OperatorError) as caught:
        wanted.make(wanted.inspect())
    assert str(caught.value) == (
        "pip downloaded another file for alpha==1.0. Found: alpha-1.0-1-py3-none-any.whl, requirements.txt. Expected: "
        "alpha-1.0-py3-none-any.whl. To mend it: make the lock again: the index no longer has the file that was locked."
    )


@pytest.mark.parametrize("place", ["indexes", "links"])
def test_builds_that_pip_does_not_find_come_from_elsewhere(
    place: str,
    wanted: Bundle,
    index: tuple[str, Path],
    make_wheel: WheelMaker,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    address, root = index
    special = make_wheel("delta", "1.0+cpu", into=root / "delta")
    lock = wanted.read()["lock.txt"]
    wanted.locks[0].write_text(locks.render(dataclasses.replace(lock, pins=(*lock.pins, special))))
    if place == "indexes":
        monkeypatch.delenv("PIP_NO_INDEX")
        monkeypatch.setenv("PIP_INDEX_URL", f"{address}/other")
        elsewhere = dataclasses.replace(wanted, indexes=(address,))
    else:
        elsewhere = dataclasses.replace(wanted, links=(f"{address}/delta/",))
    with pytest.raises(OperatorError, match=r"delta==1\.0\+cpu"):
        dataclasses.replace(wanted, links=("/no/such/folder",)).make(wanted.inspect())
    elsewhere.make(wanted.inspect())
    assert wanted.inspect().count == 0


def test_an_unknown_checksum_is_recorded_once_and_then_holds(wanted: Bundle, source: Path) -> None:
    lock = wanted.read()["lock.txt"]
    unknown = dataclasses.replace(lock.pins[0], sha256="", size=0)
    before = locks.render(dataclasses.replace(lock, pins=(unknown, *lock.pins[1:])))
    wanted.locks[0].write_text(before)
    wanted.make(wanted.inspect())
    assert wanted.read()["lock.txt"] == lock
    wheel = source / lock.pins[0].filename
    wheel.write_bytes(wheel.read_bytes() + b"\0")
    (wanted.wheels / wheel.name).unlink()
    with pytest.raises(OperatorError, match=r"alpha==1\.0"):
        wanted.make(wanted.inspect())


@pytest.mark.parametrize("order", [1, -1])
def test_a_checksum_that_one_lock_has_holds_for_the_others(wanted: Bundle, source: Path, order: int) -> None:
    lock = wanted.read()["lock.txt"]
    unknown = dataclasses.replace(lock.pins[0], sha256="", size=0)
    other = wanted.path.parent / "other.txt"
    other.write_text(locks.render(dataclasses.replace(lock, pins=(unknown,))))
    both = dataclasses.replace(wanted, locks=(wanted.locks[0], other)[::order])
    wheel = source / unknown.filename
    right = wheel.read_bytes()
    wheel.write_bytes(right + b"\0")
    with pytest.raises(OperatorError, match="pip cannot download"):
        both.make(both.inspect())
    wheel.write_bytes(right)
    both.make(both.inspect())
    assert both.read()["other.txt"].pins == (lock.pins[0],)
    assert both.inspect().count == 0


def test_wheels_of_another_python_and_platform_are_fetched(
    wanted: Bundle, source: Path, make_wheel: WheelMaker
) -> None:
    plain = make_wheel("alpha", "1.0", into=source)
    name = "alpha-1.0-cp310-cp310-manylinux_2_28_x86_64.whl"
    (source / plain.filename).rename(source / name)
    lock = dataclasses.replace(
        wanted.read()["lock.txt"], python="3.10", pins=(Pin("alpha", "1.0", name, plain.sha256, plain.size),)
    )
    wanted.locks[0].write_text(locks.render(lock))
    wanted.make(wanted.inspect())
    assert (wanted.wheels / name).is_file()


def test_a_lock_that_is_not_there_is_named(wanted: Bundle) -> None:
    with pytest.raises(OperatorError, match=r"no lock .*none\.txt"):
        dataclasses.replace(wanted, locks=(Path("none.txt"),)).inspect()


def test_the_module_tells_before_it_fetches(
    wanted: Bundle, run_module: Callable[..., dict[str, Any]]
) -> None:
    given = {"path": str(wanted.path), "locks": [str(wanted.locks[0])], "uv": str(wanted.uv)}
    told = run_module("wheel_bundle", given, check=True)
    assert told["changed"]
    assert told["fetch"] == 4
    assert told["fetch_bytes"] > 1000
    assert "alpha-1.0-py3-none-any.whl\n" in told["diff"]["after"]
    assert not wanted.path.exists()
    assert run_module("wheel_bundle", given)["changed"]
    assert not run_module("wheel_bundle", given)["changed"]
    assert not run_module("wheel_bundle", given, check=True)["changed"]
