"""Packages that are named right and built wrong are found before a server starts."""

from __future__ import annotations

import dataclasses
import subprocess
from pathlib import Path

import pytest
from blackwell.elf import needed
from blackwell.flavours import misfits
from blackwell.lock import Lock, Pin


class Site:
    """A site-packages of metadata and, where asked for, real libraries."""

    def __init__(self, path: Path) -> None:
        self.path = path / "site-packages"
        self.path.mkdir()
        self.pins: dict[str, Pin] = {}

    def add(self, name: str, version: str, needs: str = "", says: str = "") -> None:
        """A package, whose library needs another one (``libcudart.so.12``), and whose metadata may lie."""
        info = self.path / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {says or version}\n\ntext"
        )
        library = f"{name}/_C.abi3.so"
        (info / "RECORD").write_text(f"{library},sha256=x,1\n{name}/gone.so,,\n{name}/text.py,,\n")
        (self.path / name).mkdir()
        if needs:
            build(self.path / library, needs)
        self.pins[name] = Pin(name, version, f"{name}-{version}-py3-none-any.whl", "a" * 64)

    def lock(self, **more: object) -> Lock:
        lock = Lock("0.5.9", "cuda", "3.12", "manylinux_2_35_x86_64", tuple(self.pins.values()))
        return dataclasses.replace(lock, **more)  # type: ignore[arg-type]


def build(library: Path, needs: str) -> None:
    """Compile a library that asks the loader for ``needs``."""
    wanted = library.with_name(needs)
    options = ["cc", "-shared", "-x", "c", "/dev/null"]
    subprocess.run([*options, f"-Wl,-soname,{needs}", "-o", wanted], check=True)
    subprocess.run([*options, "-x", "none", "-Wl,--no-as-needed", wanted, "-o", library], check=True)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    site = Site(tmp_path)
    site.add("sglang", "0.5.9")
    site.add("torch", "2.9.1+cu130", "libcudart.so.13")
    site.add("nvidia-cudnn-cu13", "9.16.0.29")
    site.add("sgl-kernel", "0.3.21+cu130", "libnvrtc.so.13")
    site.add("flashinfer-python", "0.6.3")
    site.add("flashinfer-cubin", "0.6.3")
    engine = site.path / "sglang" / "srt" / "entrypoints"
    engine.mkdir(parents=True)
    (engine / "engine.py").write_text(
        "def check():\n"
        "    assert_pkg_version('flashinfer_python', '0.6.3', 'text')\n"
        "    assert_pkg_version('sgl-kernel', '0.3.21', 'text')\n"
    )
    return site


def test_what_belongs_together_is_accepted(site: Site) -> None:
    assert misfits(site.path, site.lock()) == []


@pytest.mark.parametrize("library", ["libcudart.so.12", "libnvrtc.so.12", "libcublasLt.so.12"])
def test_a_library_that_needs_cuda_12_is_named_with_its_package(site: Site, library: str) -> None:
    site.add("other", "1", library)
    assert misfits(site.path, site.lock()) == [
        f"other is a build for CUDA 12: other/_C.abi3.so needs {library}"
    ]


def test_a_package_that_the_lock_tolerates_may_be_for_cuda_12(site: Site) -> None:
    site.add("torchao", "0.9.0", "libcudart.so.12")
    assert misfits(site.path, site.lock(cuda12=("torchao",))) == []


def test_another_library_may_be_at_its_own_version_12(site: Site) -> None:
    site.add("other", "1", "libicuuc.so.12")
    assert misfits(site.path, site.lock()) == []


def test_a_library_that_is_cut_off_is_named_with_its_package(site: Site) -> None:
    site.add("other", "1", "libcudart.so.13")
    library = site.path / "other" / "_C.abi3.so"
    library.write_bytes(library.read_bytes()[:100])
    assert misfits(site.path, site.lock()) == [
        "other is not whole: other/_C.abi3.so is a library that is cut off or damaged"
    ]


def test_a_package_without_metadata_or_record_is_named(site: Site) -> None:
    site.add("other", "1")
    for file in (site.path / "other-1.dist-info").iterdir():
        file.unlink()
    said = misfits(site.path, site.lock())
    assert "other 1 calls itself nothing in its metadata" in said
    assert any("other has no record of its files" in line for line in said)


@pytest.mark.parametrize("text", ["def check(:", "\0", "assert_pkg_version(name, MINIMUM, 'text')"])
def test_a_source_that_does_not_say_its_minimum_versions_is_named(site: Site, text: str) -> None:
    (site.path / "sglang" / "srt" / "entrypoints" / "engine.py").write_text(text, "utf-8")
    assert len(misfits(site.path, site.lock())) == 1


def test_the_sandbox_is_not_asked_about_cuda(site: Site) -> None:
    site.add("other", "1", "libcudart.so.12")
    assert misfits(site.path, site.lock(engine="cpu")) == []


def test_metadata_that_disagrees_with_the_file_name_is_named(site: Site) -> None:
    site.add("other", "1.0+cu130", says="1.0")
    assert misfits(site.path, site.lock()) == ["other 1.0+cu130 calls itself 1.0 in its metadata"]


def test_sglang_s_own_minimum_versions_hold(site: Site) -> None:
    engine = site.path / "sglang" / "srt" / "entrypoints" / "engine.py"
    engine.write_text(engine.read_text().replace("0.3.21", "0.4.0").replace("flashinfer_python", "absent"))
    assert misfits(site.path, site.lock()) == [
        "SGLang 0.5.9 wants absent from 0.6.3 on, and it is not installed",
        "SGLang 0.5.9 wants sgl-kernel from 0.4.0 on, and 0.3.21+cu130 is installed",
    ]
    assert len(misfits(site.path, site.lock(without=("absent",)))) == 1


def test_flashinfer_is_of_one_version(site: Site) -> None:
    site.add("flashinfer-jit-cache", "0.6.4+cu130")
    assert misfits(site.path, site.lock()) == [
        "FlashInfer's parts are of different versions: flashinfer-cubin 0.6.3, flashinfer-jit-cache 0.6.4, "
        "flashinfer-python 0.6.3"
    ]


@pytest.mark.parametrize(("cudnn", "right"), [("9.13.0.50", False), ("9.15.0.57", True), ("9.16.0.29", True)])
def test_torch_2_9_1_gets_a_cudnn_that_sglang_accepts(tmp_path: Path, cudnn: str, right: bool) -> None:
    site = Site(tmp_path)
    site.add("torch", "2.9.1+cu130")
    site.add("nvidia-cudnn-cu13", cudnn)
    assert (misfits(site.path, site.lock()) == []) is right


def test_needed_agrees_with_readelf(tmp_path: Path) -> None:
    build(tmp_path / "lib.so", "libcudart.so.12")
    for path in (tmp_path / "lib.so", Path("/bin/ls")):
        said = subprocess.run(
            ["readelf", "--dynamic", path], capture_output=True, text=True, check=True
        ).stdout
        expected = [line.split("[")[1].rstrip("]") for line in said.splitlines() if "(NEEDED)" in line]
        assert expected
        assert needed(path) == expected


def test_files_that_are_no_libraries_need_nothing_and_damaged_ones_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "script.so").write_text("INPUT(libcudart.so.12)")
    assert needed(tmp_path / "script.so") == []
    (tmp_path / "cut.so").write_bytes(Path("/bin/ls").read_bytes()[:100])
    with pytest.raises(ValueError, match=r"cut\.so is not a whole ELF file"):
        needed(tmp_path / "cut.so")
