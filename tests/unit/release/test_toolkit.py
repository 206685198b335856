"""A toolkit has to compile and link, and is asked again only when something changed.

nvcc is a script here, with a compiler's manners; the molecule scenario cuda_toolkit uses the real one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

RunModule = Callable[..., dict[str, Any]]

NVCC = """#!/bin/sh
if [ "$1" = --version ]; then
    echo 'Cuda compilation tools, release {release}, V{release}.88'
    exit
fi
echo "$@" >> {log}
grep -q '#include <cuda_runtime.h>' "$4" || exit 1
{compile}
"""
COMPILE = 'echo "int run(void) { return 0; }" | cc -x c -fPIC -c -o "$6" -'


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A toolkit as PyPI's wheels lay it out."""
    home = tmp_path / "cu13"
    (home / "bin").mkdir(parents=True)
    (home / "lib").mkdir()
    (home / "lib" / "libcudart.so.13").symlink_to("/lib/x86_64-linux-gnu/libm.so.6")
    write_nvcc(home)
    return home


def write_nvcc(home: Path, release: str = "13.0", compile: str = COMPILE) -> None:
    nvcc = home / "bin" / "nvcc"
    nvcc.write_text(NVCC.format(release=release, compile=compile, log=home.parent / "log"))
    nvcc.chmod(0o755)


@pytest.fixture
def prove(home: Path, tmp_path: Path, run_module: RunModule) -> Callable[..., dict[str, Any]]:
    def run(check: bool = False, **more: Any) -> dict[str, Any]:
        given = {
            "home": str(home),
            "version": "13.0",
            "record": str(tmp_path / "record.json"),
            "wheels": True,
        }
        return run_module("cuda_toolkit_proof", {**given, **more}, check=check)

    return run


def compiled(home: Path) -> int:
    log = home.parent / "log"
    return len(log.read_text().splitlines()) if log.exists() else 0


def test_it_is_compiled_for_sm120a_once(home: Path, prove: Callable[..., dict[str, Any]]) -> None:
    assert prove(check=True)["changed"]
    assert compiled(home) == 0
    first = prove()
    assert (first["changed"], first["compiler"]) == (True, "13.0.88")
    assert "-gencode=arch=compute_120a,code=sm_120a" in (home.parent / "log").read_text()
    for check in (True, False):
        assert not prove(check=check)["changed"]
    assert compiled(home) == 1


def test_another_compiler_is_proved_again(home: Path, prove: Callable[..., dict[str, Any]]) -> None:
    prove()
    write_nvcc(home, compile=COMPILE + " # another build")
    assert prove(check=True)["changed"]
    assert prove()["changed"]
    assert compiled(home) == 2


def test_wheels_get_the_names_that_a_linker_looks_for(
    home: Path, prove: Callable[..., dict[str, Any]]
) -> None:
    told = prove(check=True)
    assert told["links"] == [str(home / "lib64"), str(home / "lib" / "libcudart.so")]
    assert not (home / "lib64").exists()
    prove()
    assert (home / "lib64" / "libcudart.so").resolve() == (home / "lib" / "libcudart.so.13").resolve()
    (home / "lib64").unlink()
    assert prove()["links"] == [str(home / "lib64")]
    assert not prove()["changed"]


def test_a_toolkit_that_is_not_made_of_wheels_is_not_written_to(
    home: Path, prove: Callable[..., dict[str, Any]]
) -> None:
    (home / "lib64").mkdir()
    (home / "lib64" / "libcudart.so").symlink_to("/lib/x86_64-linux-gnu/libm.so.6")
    assert prove(wheels=False)["links"] == []
    assert not (home / "lib" / "libcudart.so").exists()


@pytest.mark.parametrize(
    ("nvcc", "said"),
    [
        (
            {"release": "13.1"},
            "HOME/bin/nvcc is of another CUDA release. Found: 13.1. Expected: 13.0. To mend it: set cuda_toolkit_path "
            "to "
            "the right one, or cuda_toolkit_source to wheels or apt.",
        ),
        (
            {"compile": "echo 'math.h: exception specification is incompatible' >&2; exit 2"},
            "CUDA 13.0 in HOME cannot compile for sm_120a. Found: math.h: exception specification is incompatible. "
            "Expected: exit status 0. To mend it: install the missing packages, or use another cuda_toolkit_source.",
        ),
        (
            {"compile": 'echo "void f(void);" | cc -x c -c -o "$6" - ; echo broken > "$6"'},
            "What CUDA 13.0 in HOME compiled cannot be linked. Found: THE LINKER'S WORDS. Expected: exit status 0. To "
            "mend it: install the missing packages, or use another cuda_toolkit_source.",
        ),
    ],
)
def test_a_toolkit_that_does_not_work_is_refused(
    home: Path, prove: Callable[..., dict[str, Any]], nvcc: dict[str, str], said: str
) -> None:
    write_nvcc(home, **nvcc)
    result = prove()
    assert result["failed"]
    message = result["msg"].replace(str(home), "HOME")
    if "THE LINKER'S WORDS" in said:
        message = re.sub(r"(?s)(Found: ).*(\. Expected)", r"\1THE LINKER'S WORDS\2", message)
    assert message == said
    assert not (home.parent / "record.json").exists()


def test_missing_headers_are_an_error(prove: Callable[..., dict[str, Any]]) -> None:
    assert "cannot compile for sm_120a" in prove(headers=["other.h"])["msg"]


def test_a_host_without_a_compiler_is_told_so(
    prove: Callable[..., dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """nvcc here is a script, which needs a shell."""
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare/sh").symlink_to("/bin/sh")
    monkeypatch.setenv("PATH", str(tmp_path / "bare"))
    assert prove()["msg"] == (
        "There is no C++ compiler, and nvcc needs one. Expected: c++ on the path. To mend it: apt-get install g++."
    )


def test_a_missing_toolkit_is_an_error_unless_the_play_would_have_installed_it(
    home: Path, prove: Callable[..., dict[str, Any]]
) -> None:
    (home / "bin" / "nvcc").unlink()
    said = (
        f"There is no CUDA toolkit in {home}. Found: no {home}/bin/nvcc. Expected: CUDA 13.0. To mend it: install it, "
        f"or "
        "set cuda_toolkit_source to wheels or apt."
    )
    assert prove()["msg"] == said
    assert prove(check=True)["msg"] == said
    assert prove(check=True, installed_by_play=True)["changed"]
    assert prove(installed_by_play=True)["failed"]


@pytest.mark.parametrize("broken", [":/usr/local/cuda-12.8", "cuda-13.0", "/usr/local/cu da"])
def test_a_home_that_breaks_search_paths_is_refused(
    prove: Callable[..., dict[str, Any]], broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "cannot be the CUDA toolkit's folder" in prove(home=broken)["msg"]


def test_a_link_is_refused(home: Path, tmp_path: Path, prove: Callable[..., dict[str, Any]]) -> None:
    (tmp_path / "cuda").symlink_to(home)
    assert "whoever moves it changes the compiler" in prove(home=str(tmp_path / "cuda"))["msg"]
