"""An environment becomes what its lock says, whatever was there before. Real uv, real wheels, no network."""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import urllib.parse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from blackwell import environment, installer, seal, wheel_index
from blackwell.environment import Environment
from blackwell.errors import OperatorError
from blackwell.installer import ensure
from blackwell.lock import Pin

from tests.unit.release.conftest import LOGIN, PYTHON, WheelMaker, lock_of, wrap_uv


@pytest.fixture
def wanted(tmp_path: Path, folder: Path, make_wheel: WheelMaker, uv: Pin) -> Environment:
    lock, text = lock_of(make_wheel("alpha", "1.0", ["beta>=1"]), make_wheel("beta", "1.1"))
    return Environment(
        release=tmp_path / "root" / "releases" / "0.5.9-1",
        lock=lock,
        lock_text=text,
        python=sys.executable,
        uv=uv,
        bundle=folder.parent,
        overlay={"engine/__init__.py": "name = 'stand-in'\n", "engine.pth": "import engine\n"},
    )


def other(wanted: Environment, *pins: Pin, **more: Any) -> Environment:
    lock, text = lock_of(*pins, **more)
    return dataclasses.replace(wanted, lock=lock, lock_text=text)


def ask(wanted: Environment, program: str) -> str:
    return subprocess.run(
        [wanted.interpreter, "-I", "-c", program], capture_output=True, text=True, check=True
    ).stdout.strip()


def refusal(wanted: Environment, **more: Any) -> str:
    """What the operator reads; the folder of the test is left out."""
    with pytest.raises(OperatorError) as caught:
        ensure(wanted, **more)
    return str(caught.value).replace(str(wanted.release.parents[2]), "")


def changed(wanted: Environment, **more: Any) -> bool:
    before, after = ensure(wanted, **more)
    return before is not after


def test_an_empty_host_gets_the_locked_packages_and_the_engine(wanted: Environment) -> None:
    assert changed(wanted)
    program = "import alpha, beta, engine; print(alpha.version, beta.version, engine.name)"
    assert ask(wanted, program) == "1.0 1.1 stand-in"
    assert (wanted.release / "lock.txt").read_text() == wanted.lock_text


def test_nothing_outside_shares_a_file_with_the_release(wanted: Environment) -> None:
    ensure(wanted)
    assert sorted(entry.name for entry in wanted.release.iterdir()) == ["lock.txt", "venv"]
    shared = [path for path in wanted.venv.rglob("*") if path.is_file() and path.lstat().st_nlink > 1]
    assert shared == []


def test_everything_is_compiled_and_the_service_may_read_and_not_write_it(wanted: Environment) -> None:
    old = os.umask(0o077)
    try:
        ensure(wanted)
    finally:
        os.umask(old)
    tag = sys.implementation.cache_tag
    for name in ("__pycache__/alpha", "engine/__pycache__/__init__"):
        assert (wanted.site_packages / f"{name}.{tag}.pyc").is_file()
    for path in (wanted.release, *wanted.release.rglob("*")):
        assert path.stat().st_mode & 0o044 == 0o044, path
        assert path.is_symlink() or path.stat().st_mode & 0o022 == 0, path


def test_a_converged_host_is_only_looked_at(wanted: Environment) -> None:
    ensure(wanted)
    for wheel in wanted.wheels.iterdir():
        wheel.unlink()
    assert not changed(dataclasses.replace(wanted, python="/no/such/python"))


def test_check_mode_says_what_would_come_and_changes_nothing(wanted: Environment) -> None:
    before, after = ensure(wanted, dry_run=True)
    assert before.listing() == ""
    assert "alpha==1.0\n" in after.listing()
    assert "engine/__init__.py sha256:" in after.listing()
    assert not wanted.release.exists()
    ensure(wanted)
    assert not changed(wanted, dry_run=True)


def test_drift_is_mended_and_nothing_else_is_touched(
    wanted: Environment, make_wheel: WheelMaker, folder: Path
) -> None:
    ensure(wanted)
    (wanted.release / "manifest.json").touch()
    patched = wanted.site_packages / "alpha.py"
    patched.write_text("version = 'patched'\n")
    foreign = make_wheel("gamma", "3", into=folder.parent / "foreign")
    uv = ["uv", "pip", "install", "-q", "--no-index", "--no-deps", "--python", str(wanted.interpreter)]
    subprocess.run([*uv, folder.parent / "foreign" / foreign.filename], check=True)
    subprocess.run(["uv", "pip", "uninstall", "-q", "--python", str(wanted.interpreter), "beta"], check=True)
    before, after = ensure(wanted)
    assert set(before.packages) == {"alpha", "gamma"}
    assert set(after.packages) == set(environment.look(wanted).packages) == {"alpha", "beta"}
    assert ask(wanted, "import alpha, beta; print(alpha.version, beta.version)") == "patched 1.1"


def test_an_edited_engine_file_is_put_back_without_an_installer(wanted: Environment) -> None:
    ensure(wanted)
    (wanted.site_packages / "engine" / "__init__.py").write_text("name = 'edited'\n")
    (wanted.wheels / wanted.uv.filename).unlink()
    assert changed(wanted)
    assert ask(wanted, "import engine; print(engine.name)") == "stand-in"


@pytest.mark.parametrize("from_bundle", [True, False])
def test_a_host_with_builds_for_another_cuda_converges_to_the_locked_ones(
    wanted: Environment, make_wheel: WheelMaker, index: tuple[str, Path], from_bundle: bool
) -> None:
    """PyPI's kernels and PyTorch's +cu128, as pip installs them, satisfy SGLang as well as the right ones do."""
    address, root = index
    builds = {"torch": ["2.9.1", "2.9.1+cu128", "2.9.1+cu130", "2.10.0+cu130"]}
    builds["sgl-kernel"] = ["0.3.21", "0.3.21+cu130", "0.3.22"]
    pins = {}
    for name, versions in builds.items():
        for version in versions:
            make_wheel(name, version, into=root / name)
            # A bundle that others put files into.
            pins[name, version] = make_wheel(name, version)
    locked = other(wanted, pins["torch", "2.9.1+cu130"], pins["sgl-kernel", "0.3.21+cu130"])
    if not from_bundle:
        (root / "uv").mkdir()
        (wanted.wheels / wanted.uv.filename).rename(root / "uv" / wanted.uv.filename)
        locked = dataclasses.replace(locked, bundle=None, indexes=(address,))

    subprocess.run(["uv", "venv", "-q", "--python", sys.executable, locked.venv], check=True)
    wrong = [
        root / name / pins[name, version].filename
        for name, version in (("torch", "2.9.1+cu128"), ("sgl-kernel", "0.3.21"))
    ]
    uv = ["uv", "pip", "install", "-q", "--no-deps", "--python", str(locked.interpreter)]
    subprocess.run([*uv, *map(str, wrong)], check=True)
    (locked.venv / seal.MARKER).write_text(f'{{"lock": "{locked.lock.digest}"}}')
    assert environment.look(locked).whole

    before, after = ensure(locked)
    assert before.packages == {"torch": "2.9.1+cu128", "sgl-kernel": "0.3.21"}
    assert after.packages == {"torch": "2.9.1+cu130", "sgl-kernel": "0.3.21+cu130"}
    assert (
        ask(locked, "import torch, sgl_kernel; print(torch.version, sgl_kernel.version)")
        == "2.9.1+cu130 0.3.21+cu130"
    )
    assert not changed(locked)


def test_a_newer_release_of_what_nothing_pins_changes_nothing(
    wanted: Environment, make_wheel: WheelMaker, index: tuple[str, Path]
) -> None:
    """alpha asks for any beta from 1 on."""
    address, root = index
    for project in ("alpha", "beta", "uv"):
        (root / project).mkdir()
        for wheel in wanted.wheels.glob(f"{project}-*"):
            wheel.rename(root / project / wheel.name)
    online = dataclasses.replace(wanted, bundle=None, indexes=(address,))
    ensure(online)
    make_wheel("beta", "2.0", into=root / "beta")
    make_wheel("alpha", "1.1", into=root / "alpha")
    assert not changed(online)
    anew = dataclasses.replace(online, release=online.release.with_name("0.5.9-2"))
    ensure(anew)
    assert ask(anew, "import alpha, beta; print(alpha.version, beta.version)") == "1.0 1.1"


def test_newer_releases_in_a_bundle_change_nothing(wanted: Environment, make_wheel: WheelMaker) -> None:
    make_wheel("alpha", "1.1")
    ensure(wanted)
    assert ask(wanted, "import alpha; print(alpha.version)") == "1.0"
    make_wheel("beta", "2.0")
    assert not changed(wanted)


def test_a_host_without_a_bundle_gets_all_of_it_from_indexes_and_links(
    wanted: Environment, index: tuple[str, Path]
) -> None:
    address, root = index
    for folder, prefix in (("first/alpha", "alpha"), ("second/uv", "uv"), ("page", "beta")):
        (root / folder).mkdir(parents=True)
        for wheel in wanted.wheels.glob(f"{prefix}-*"):
            wheel.rename(root / folder / wheel.name)
    online = dataclasses.replace(
        wanted, bundle=None, indexes=(f"{address}/first", f"{address}/second"), links=(f"{address}/page/",)
    )
    assert changed(online)
    assert ask(online, "import alpha, beta; print(alpha.version, beta.version)") == "1.0 1.1"


def test_an_index_that_asks_who_is_there_is_told_and_nobody_else_reads_it(
    wanted: Environment, index: tuple[str, Path]
) -> None:
    address, root = index
    for project in ("alpha", "beta", "uv"):
        (root / "closed" / project).mkdir(parents=True)
        for wheel in wanted.wheels.glob(f"{project}-*"):
            wheel.rename(root / "closed" / project / wheel.name)
    closed = address.replace("http://", f"http://{urllib.parse.quote(LOGIN, safe=':')}@") + "/closed"
    wrong = dataclasses.replace(wanted, bundle=None, indexes=(closed.replace("s3cret", "wr0ng"),))
    said = refusal(wrong)
    assert f"Found: {address}/closed/uv/: HTTP Error 401: Unauthorized." in said
    assert "wr0ng" not in said
    assert changed(dataclasses.replace(wanted, bundle=None, indexes=(closed,)))


def test_indexes_without_uv_are_named(wanted: Environment, index: tuple[str, Path]) -> None:
    online = dataclasses.replace(wanted, bundle=None, indexes=(index[0],))
    assert refusal(online) == (
        f"uv-1.0-py3-none-any.whl cannot be downloaded. Found: {index[0]}/uv/: HTTP Error 404: File not found. To mend "
        "it: set sglang_stack_indexes to one that this host reaches, or sglang_stack_bundle to a bundle."
    )


def test_a_half_made_environment_is_built_again(wanted: Environment) -> None:
    ensure(wanted)
    (wanted.venv / seal.MARKER).unlink()
    (wanted.site_packages / "alpha.py").unlink()
    assert changed(wanted)
    assert ask(wanted, "import alpha; print(alpha.version)") == "1.0"


def test_a_sealed_release_is_never_built_again_from_nothing(wanted: Environment) -> None:
    ensure(wanted)
    (wanted.release / "manifest.json").touch()
    (wanted.venv / seal.MARKER).unlink()
    kept = wanted.site_packages / "kept.txt"
    kept.touch()
    ensure(wanted)
    assert kept.exists()
    assert not changed(wanted)


def test_a_kill_in_the_middle_is_harmless(wanted: Environment, tmp_path: Path) -> None:
    """uv is replaced by one that installs and then kills whoever called it, once."""
    real = subprocess.run(["which", "uv"], capture_output=True, text=True, check=True).stdout.strip()
    killer = tmp_path / "killer"
    killer.write_text(
        f'#!/bin/sh\n{real} "$@" || exit $?\n'
        f'if [ "$2" = sync ] && ! [ -e {tmp_path}/killed ]; then touch {tmp_path}/killed; kill -9 $PPID; fi\n'
    )
    wanted = dataclasses.replace(wanted, uv=wrap_uv(killer, wanted.wheels))
    child = os.fork()
    if child == 0:
        ensure(wanted)
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == 9
    state = environment.look(wanted)
    assert state.packages
    assert not state.whole
    assert changed(wanted)
    assert sorted(entry.name for entry in wanted.release.iterdir()) == ["lock.txt", "venv"]
    assert not changed(wanted)


@pytest.mark.parametrize(
    "damage",
    [
        "rm alpha.py",
        "echo cut >alpha.py",
        "rm alpha-1.0.dist-info/METADATA",
        ": >alpha-1.0.dist-info/RECORD",
        "rm alpha-1.0.dist-info/RECORD",
        "rm -r alpha-1.0.dist-info",
    ],
)
def test_a_kill_in_the_middle_of_mending_is_mended(wanted: Environment, tmp_path: Path, damage: str) -> None:
    """The release is sealed, so it may serve: uv is killed in it, and names of packages alone look whole."""
    real = subprocess.run(["which", "uv"], capture_output=True, text=True, check=True).stdout.strip()
    ensure(wanted)
    (wanted.release / "manifest.json").touch()
    shutil.rmtree(next(wanted.site_packages.glob("beta-*.dist-info")))
    killer = tmp_path / "killer"
    killer.write_text(
        f'#!/bin/sh\n{real} "$@" || exit $?\n'
        f'if [ "$2" = sync ]; then cd {wanted.site_packages}; {damage}; kill -9 $PPID; fi\n',
        "utf-8",
    )
    killed = dataclasses.replace(wanted, uv=wrap_uv(killer, wanted.wheels))
    child = os.fork()
    if child == 0:
        ensure(killed)
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == 9
    assert not environment.look(wanted).whole

    mended = dataclasses.replace(wanted, uv=wrap_uv(tmp_path / "uv", wanted.wheels))
    assert changed(mended)
    assert ask(mended, "import alpha, beta; print(alpha.version, beta.version)") == "1.0 1.1"
    assert not changed(mended)


def test_mending_leaves_what_is_whole_as_it_is(wanted: Environment) -> None:
    ensure(wanted)
    (wanted.release / "manifest.json").touch()
    seal.remove_marker(wanted.venv)
    before = (wanted.site_packages / "beta.py").stat().st_ino
    (wanted.site_packages / "alpha.py").unlink()

    assert changed(wanted)

    assert (wanted.site_packages / "beta.py").stat().st_ino == before
    assert ask(wanted, "import alpha; print(alpha.version)") == "1.0"


def test_a_marker_is_written_after_the_packages_are_on_the_disk(
    wanted: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    monkeypatch.setattr(installer, "_sync", lambda folder: seen.append(f"sync {folder.name}"))
    monkeypatch.setattr(installer, "write_marker", lambda folder, **_: seen.append(f"mark {folder.name}"))

    ensure(wanted)

    assert seen == ["sync venv", "mark venv"]


def test_a_login_goes_to_its_own_index_only(
    wanted: Environment, index: tuple[str, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The page of the index links to a file on another server."""
    sent: list[tuple[str, dict[str, str]]] = []
    page = f'<a href="http://elsewhere.invalid/files/{wanted.uv.filename}">uv</a>'

    class Said(io.BytesIO):
        def geturl(self) -> str:
            return "http://index.invalid/simple/uv/"

    def answer(url: str, headers: dict[str, str]) -> Said:
        sent.append((url, dict(headers)))
        return Said(page.encode())

    monkeypatch.setattr(wheel_index, "_open", answer)
    wheel_index.download(wanted.uv, ["http://reader:secret@index.invalid/simple"], tmp_path / "got")

    (first, login), (second, nothing) = sent
    assert (first, second.partition("/files/")[0]) == (
        "http://index.invalid/simple/uv/",
        "http://elsewhere.invalid",
    )
    assert "Authorization" in login
    assert nothing == {}


def test_two_runs_do_not_build_the_same_release(wanted: Environment) -> None:
    wanted.release.mkdir(parents=True)
    handle = os.open(wanted.release, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        assert refusal(wanted) == (
            "Another run is installing /root/releases/0.5.9-1. To mend it: wait until it has ended, and run the "
            "playbook "
            "again."
        )
    finally:
        os.close(handle)
    assert changed(wanted)


def test_a_wheel_with_another_checksum_is_named(wanted: Environment) -> None:
    wheel = wanted.wheels / "beta-1.1-py3-none-any.whl"
    content = bytearray(wheel.read_bytes())
    content[-1] ^= 1
    wheel.write_bytes(content)
    found = hashlib.sha256(bytes(content)).hexdigest()
    assert refusal(wanted) == (
        "The bundle /bundle has files that are not what was locked. Found: beta-1.1-py3-none-any.whl has sha256 "
        f"{found}, locked is {wanted.lock.pins[1].sha256}. Expected: the files that the lock names. To mend it: run "
        "ansible-playbook playbooks/bundle.yml, which fetches them again, and copy or mount it again."
    )
    assert not environment.look(wanted).whole


@pytest.mark.parametrize("left_by_a_kill", [False, True])
def test_a_release_that_cannot_be_finished_is_removed(wanted: Environment, left_by_a_kill: bool) -> None:
    if left_by_a_kill:
        wanted.venv.mkdir(parents=True)
    wheel = wanted.wheels / "beta-1.1-py3-none-any.whl"
    content = wheel.read_bytes()
    wheel.write_bytes(content[:-1] + b"?")
    assert "beta-1.1-py3-none-any.whl has sha256" in refusal(wanted)
    assert list(wanted.release.parent.iterdir()) == []
    wheel.write_bytes(content)
    assert changed(wanted)


@pytest.mark.parametrize("sealed", [False, True])
def test_a_release_that_was_finished_is_not_removed_when_it_cannot_be_mended(
    wanted: Environment, make_wheel: WheelMaker, sealed: bool
) -> None:
    ensure(wanted)
    if sealed:
        (wanted.release / "manifest.json").touch()
    (wanted.site_packages / "alpha.py").unlink()
    (wanted.site_packages / "alpha-1.0.dist-info").rename(wanted.site_packages / "alpha-0.9.dist-info")
    wheel = wanted.wheels / "alpha-1.0-py3-none-any.whl"
    wheel.write_bytes(wheel.read_bytes()[:-1] + b"?")
    assert "alpha-1.0-py3-none-any.whl has sha256" in refusal(wanted)
    assert ask(wanted, "import beta; print(beta.version)") == "1.1"


def test_a_uv_with_another_checksum_is_never_run(wanted: Environment) -> None:
    wrong = dataclasses.replace(wanted.uv, sha256="0" * 64)
    assert refusal(dataclasses.replace(wanted, uv=wrong)) == (
        "/bundle/wheels/uv-1.0-py3-none-any.whl is not the file that was locked. Found: sha256 "
        f"{wanted.uv.sha256}. Expected: sha256 {'0' * 64}. To mend it: remove it and make the bundle again: "
        "ansible-playbook playbooks/bundle.yml."
    )


def test_an_incomplete_bundle_is_refused_before_anything_is_written(wanted: Environment) -> None:
    (wanted.wheels / "alpha-1.0-py3-none-any.whl").unlink()
    (wanted.wheels / "beta-1.1-py3-none-any.whl").write_bytes(b"cut off")
    assert refusal(wanted) == (
        "The bundle /bundle is not complete. Found: 1 missing: alpha-1.0-py3-none-any.whl; beta-1.1-py3-none-any.whl "
        "has "
        f"7 bytes, not {wanted.lock.pins[1].size}. Expected: all 3 wheels of the lock in /bundle/wheels. To mend it: "
        "complete it with ansible-playbook playbooks/bundle.yml on a machine with access, and copy or mount it again."
    )
    assert not wanted.release.exists()


def test_too_little_space_is_refused_before_anything_is_written(wanted: Environment) -> None:
    said = refusal(dataclasses.replace(wanted, required_space=2**60))
    assert re.sub(r"[\d.]+ GiB free", "so much free", said) == (
        "There is not enough space for a release below . Found: so much free. Expected: 1073741824.0 GiB. To mend it: "
        "remove releases that are not needed, point sglang_stack_root to a larger file system, or lower "
        "sglang_stack_required_space if less was measured."
    )
    assert not wanted.release.exists()


@pytest.mark.parametrize("python", ["python9.9", "/no/such/python"])
def test_a_missing_python_is_named_with_its_package(wanted: Environment, python: str) -> None:
    assert refusal(dataclasses.replace(wanted, python=python), dry_run=True) == (
        f"This host has no Python {PYTHON}. Found: no {python}. Expected: Python {PYTHON}. To mend it: apt-get install "
        f"python{PYTHON}, or set sglang_stack_python (of a gateway: gateway_python) to one that "
        "has a lock."
    )


def test_another_python_is_refused(wanted: Environment, tmp_path: Path) -> None:
    old = tmp_path / "python-old"
    old.write_text("#!/bin/sh\necho 'blackwell answers: \"3.4\"'\n", "utf-8")
    old.chmod(0o755)
    assert refusal(dataclasses.replace(wanted, python=str(old))) == (
        f"/python-old is not the Python that the lock was made for. Found: Python 3.4. Expected: Python {PYTHON}. To "
        f"mend it: apt-get install python{PYTHON}, or set sglang_stack_python (of a gateway: gateway_python) to one "
        "that has a lock."
    )


def test_a_lock_with_an_unknown_checksum_is_not_installed(wanted: Environment) -> None:
    unknown = dataclasses.replace(wanted.lock.pins[0], sha256="")
    assert refusal(other(wanted, unknown, wanted.lock.pins[1]), dry_run=True) == (
        f"The lock {wanted.lock.name} has packages whose checksum nobody has published. Found: alpha==1.0. Expected: a "
        'sha256 for every package. To mend it: ansible-playbook playbooks/bundle.yml -e \'{"bundle_locks": '
        f'["{wanted.lock.name}"]}}\' downloads them and records their checksums in the lock; commit that.'
    )


def test_packages_that_do_not_fit_are_refused(wanted: Environment, make_wheel: WheelMaker) -> None:
    clash = make_wheel("delta", "1", ["beta>=2", "epsilon"])
    assert refusal(other(wanted, *wanted.lock.pins, clash)) == (
        "The packages of the lock do not fit together. Found: The package `delta` requires `beta>=2`, but `1.1` is "
        "installed; The package `delta` requires `epsilon`, but it's not installed. Expected: no complaint but about "
        "what the lock leaves out or overrides. To mend it: correct the recipe in files/locks and make the lock again."
    )
    assert not environment.look(wanted).whole


def test_what_the_lock_leaves_out_or_overrides_is_no_misfit(
    wanted: Environment, make_wheel: WheelMaker
) -> None:
    clash = make_wheel("delta", "1", ["beta>=2", "epsilon"])
    allowed = other(wanted, *wanted.lock.pins, clash, without=["Epsilon"], overrides=["beta==1.1"])
    assert changed(allowed)


def test_the_module_shows_packages_and_reports_errors(
    wanted: Environment, run_module: Callable[..., dict[str, Any]]
) -> None:
    given = {
        "path": str(wanted.release),
        "python": wanted.python,
        "lock": wanted.lock_text,
        "uv": wanted.uv.line(),
        "bundle": str(wanted.bundle),
        "overlay": dict(wanted.overlay),
    }
    for check in (True, False):
        result = run_module("python_environment", given, check=check)
        assert (result["changed"], result["rebuilt"], result["packages"]) == (True, True, 2)
        assert result["diff"]["before"] == ""
        assert "beta==1.1\n" in result["diff"]["after"]
    for check in (True, False):
        assert not run_module("python_environment", given, check=check)["changed"]
    failed = run_module("python_environment", {**given, "lock": wanted.lock_text.replace("1.1", "1.2")})
    assert "beta" in failed["msg"]


def test_a_damaged_uv_is_removed_and_the_bundle_made_again(wanted: Environment) -> None:
    wheel = wanted.wheels / wanted.uv.filename
    whole = wheel.read_bytes()
    wheel.write_bytes(whole[:-1] + b"?")
    assert "remove it and make the bundle again" in refusal(wanted)
    wheel.unlink()
    # As playbooks/bundle.yml fetches it.
    wheel.write_bytes(whole)
    assert changed(wanted)
