"""A release is sealed once its own interpreter has imported what the server imports."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from blackwell.lock import Pin
from blackwell.seal import is_proved, write_marker

from tests.unit.release.conftest import lock_of

RunModule = Callable[..., dict[str, Any]]


@pytest.fixture
def release(tmp_path: Path) -> dict[str, Any]:
    """A stand-in: this interpreter, with a sglang of metadata only."""
    info = tmp_path / "site" / "sglang-0.5.9.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sglang\nVersion: 0.5.9\n")
    (tmp_path / "site" / "served.py").write_text(
        "import os\nfrom pathlib import Path\n(Path.home() / 'litter').touch()\n"
    )
    (tmp_path / "site" / "broken.py").write_text("import served.absent\n")
    python = tmp_path / "python"
    script = f"import sys; sys.path.insert(0, {str(tmp_path / 'site')!r}); sys.argv = sys.argv[1:]; exec(sys.argv[0])"
    python.write_text(f'#!/bin/sh\nshift 2\nexec {sys.executable} -c "{script}" "$@"\n')
    python.chmod(0o755)
    pin = Pin("sglang", "0.5.9", "sglang-0.5.9-py3-none-any.whl", "a" * 64)
    (tmp_path / "lock.txt").write_text(lock_of(pin)[1])
    return {
        "id": "0.5.9-1",
        "path": str(tmp_path),
        "python": str(python),
        "site_packages": str(tmp_path / "site"),
        "sglang_version": "0.5.9",
    }


def test_the_manifest_comes_after_the_proof_and_only_once(
    release: dict[str, Any], run_module: RunModule
) -> None:
    given = {"release": release, "imports": ["served"]}
    manifest = Path(release["path"]) / "manifest.json"
    told = run_module("release_seal", given, check=True)
    assert told["changed"]
    assert not manifest.exists()
    assert run_module("release_seal", given)["changed"]
    assert json.loads(manifest.read_text()) == release
    assert manifest.stat().st_mode & 0o777 == 0o644
    Path(release["python"]).unlink()
    for check in (True, False):
        assert not run_module("release_seal", given, check=check)["changed"]


def test_a_release_that_was_mended_is_proved_again(release: dict[str, Any], run_module: RunModule) -> None:
    given = {"release": release, "imports": ["served"]}
    venv = Path(release["path"]) / "venv"
    venv.mkdir()
    write_marker(venv, lock="digest", python="python3", proved=False)
    run_module("release_seal", given)
    assert is_proved(release)
    assert not run_module("release_seal", given)["changed"]

    write_marker(venv, lock="digest", python="python3", proved=False)
    assert run_module("release_seal", given, check=True)["changed"]
    (Path(release["site_packages"]) / "served.py").write_text("import absent\n", "utf-8")
    assert "absent" in run_module("release_seal", given)["msg"]
    assert not is_proved(release)
    assert (Path(release["path"]) / "manifest.json").exists()


def test_a_release_of_an_older_version_counts_as_proved(
    release: dict[str, Any], run_module: RunModule
) -> None:
    given = {"release": release, "imports": ["served"]}
    venv = Path(release["path"]) / "venv"
    venv.mkdir()
    run_module("release_seal", given)
    (venv / "installed.json").write_text('{"lock": "digest", "python": "python3"}', "utf-8")
    assert not run_module("release_seal", given)["changed"]


def test_imports_leave_nothing_in_the_home_of_root(
    release: dict[str, Any], run_module: RunModule, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    run_module("release_seal", {"release": release, "imports": ["served"]})
    assert list((tmp_path / "home").iterdir()) == []


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (
            {"imports": ["served", "broken"]},
            "Release 0.5.9-1 cannot import what its server imports. Found: broken (ModuleNotFoundError: No module "
            "named "
            "'served.absent'; 'served' is not a package). Expected: no import error. To mend it: correct the lock or "
            "the "
            "patch that is to blame; the release that serves was not touched.",
        ),
        (
            {"version": "0.5.10"},
            "Another SGLang than the one that was asked for is installed. Found: 0.5.9. Expected: 0.5.10. To mend it: "
            "remove PATH and run the playbook again.",
        ),
        (
            {"metadata": "0.5.8"},
            "The packages of release 0.5.9-1 do not belong together. Found: sglang 0.5.9 calls itself 0.5.8 in its "
            "metadata. Expected: builds of one kind. To mend it: correct the recipe in files/locks and make the lock "
            "again; the release that serves was not touched.",
        ),
        (
            {"python": "/bin/false"},
            "The interpreter /bin/false does not work. Found: exit status 1: nothing. Expected: exit status 0 and an "
            "answer. To mend it: run the playbook again: it mends an environment that a broken run left, and proves "
            "it again.",
        ),
    ],
)
def test_a_release_that_cannot_serve_is_not_sealed(
    release: dict[str, Any], run_module: RunModule, edit: dict[str, Any], said: str
) -> None:
    release["sglang_version"] = edit.get("version", "0.5.9")
    release["python"] = edit.get("python", release["python"])
    if "metadata" in edit:
        metadata = Path(release["site_packages"]) / "sglang-0.5.9.dist-info" / "METADATA"
        metadata.write_text(metadata.read_text().replace("0.5.9", edit["metadata"]))
    result = run_module("release_seal", {"release": release, "imports": edit.get("imports", ["served"])})
    assert result["failed"]
    assert result["msg"].replace(release["path"], "PATH") == said
    assert not (Path(release["path"]) / "manifest.json").exists()


def test_another_release_in_the_folder_is_removed_and_built_again(
    release: dict[str, Any], run_module: RunModule
) -> None:
    wanted = {**release, "sglang_version": "0.5.10"}
    told = run_module("release_seal", {"release": wanted, "imports": ["served"]})
    assert told["msg"].endswith(f"To mend it: remove {release['path']} and run the playbook again.")
    # What the playbook builds there anew.
    site = Path(release["site_packages"])
    (site / "sglang-0.5.9.dist-info").rename(site / "sglang-0.5.10.dist-info")
    (site / "sglang-0.5.10.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: sglang\nVersion: 0.5.10\n"
    )
    pin = Pin("sglang", "0.5.10", "sglang-0.5.10-py3-none-any.whl", "a" * 64)
    (Path(release["path"]) / "lock.txt").write_text(lock_of(pin)[1])
    assert run_module("release_seal", {"release": wanted, "imports": ["served"]})["changed"]
