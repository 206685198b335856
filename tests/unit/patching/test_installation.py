"""Finding the sources that an interpreter would run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from blackwell.errors import OperatorError
from blackwell.patching.installation import locate
from blackwell.patching.transaction import sha256

from .conftest import Site

DEMO = [("demo", "demo")]


def test_an_installed_package(site: Site) -> None:
    package = locate(site.python, DEMO)["demo"]
    assert (package.root, package.version) == (site.packages / "demo", "1.0")
    assert package.published_sha256("greeting.py") == sha256(site.path().read_bytes())
    assert package.published_sha256("other.py") is None


def test_a_relative_path_to_the_interpreter(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(site.folder)
    assert locate("bin/python", DEMO)["demo"].version == "1.0"


def test_what_is_not_installed_is_left_out(site: Site) -> None:
    assert set(locate(site.python, [*DEMO, ("absent", "absent")])) == {"demo"}


def test_a_folder_that_an_uninstall_left_behind_is_no_package(site: Site) -> None:
    (site.packages / "remains" / "sub").mkdir(parents=True)
    assert locate(site.python, [("remains", "remains")]) == {}


def checkout(site: Site, folder: Path) -> Path:
    """Move ``demo`` out of the environment, as a source checkout that the environment points to."""
    source = folder / "python"
    source.mkdir(parents=True)
    (site.packages / "demo").rename(source / "demo")
    record = next(site.packages.glob("demo-*.dist-info")) / "RECORD"
    record.write_text("demo.pth,,\n")
    return source


def test_a_source_checkout_on_a_path_file(site: Site, tmp_path: Path) -> None:
    source = checkout(site, tmp_path / "root" / "sglang")
    (site.packages / "demo.pth").write_text(f"{source}\n")
    package = locate(site.python, DEMO)["demo"]
    assert (package.root, package.version) == (source / "demo", "1.0")
    assert package.published_sha256("greeting.py") is None


def test_an_editable_install_with_a_finder_of_its_own(site: Site, tmp_path: Path) -> None:
    source = checkout(site, tmp_path / "checkout")
    (site.packages / "demo_finder.py").write_text(
        "import sys\n"
        "from importlib.util import spec_from_file_location\n"
        "class Finder:\n"
        "    @staticmethod\n"
        "    def find_spec(name, path=None, target=None):\n"
        "        if name == 'demo':\n"
        f"            return spec_from_file_location(name, {str(source / 'demo' / '__init__.py')!r})\n"
        "sys.meta_path.append(Finder)\n"
    )
    (site.packages / "demo.pth").write_text("import demo_finder\n")
    assert locate(site.python, DEMO)["demo"].root == source / "demo"


def test_a_checkout_that_was_never_installed_says_its_version_in_its_source(
    site: Site, tmp_path: Path
) -> None:
    source = checkout(site, tmp_path / "checkout")
    (site.packages / "demo.pth").write_text(f"{source}\n")
    for metadata in site.packages.glob("demo-*.dist-info"):
        metadata.rename(tmp_path / "gone")
    with pytest.raises(OperatorError, match=r"The release of demo .* is not known"):
        locate(site.python, DEMO)
    (source / "demo" / "_version.py").write_text("version: str\n__version__ = version = '1.1.dev3'\n")
    assert locate(site.python, DEMO)["demo"].version == "1.1.dev3"


def test_neither_the_environment_nor_the_folder_lead_astray(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere" / "demo").mkdir(parents=True)
    (tmp_path / "elsewhere" / "demo" / "__init__.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "elsewhere"))
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert locate(site.python, DEMO)["demo"].root == site.packages / "demo"


def test_what_the_site_prints_does_not_matter(site: Site) -> None:
    (site.packages / "chatty.py").write_text(
        "import atexit\nprint('{hello}', end='')\natexit.register(print, '{\"demo\": 1}')\n"
    )
    (site.packages / "chatty.pth").write_text("import chatty\n")
    assert locate(site.python, DEMO)["demo"].version == "1.0"


def test_a_release_that_is_no_version_number(site: Site) -> None:
    metadata = next(site.packages.glob("demo-*.dist-info")) / "METADATA"
    metadata.write_text("Metadata-Version: 2.1\nName: demo\nVersion: nightly\n")
    with pytest.raises(OperatorError, match=r"The release of demo .* is not known.* Found: nightly"):
        locate(site.python, DEMO)


@pytest.mark.parametrize(
    "record", [b"demo/greeting.py,sha256=\xff\xfe,3\n", b"demo/greeting.py,sha256=A,3\n"]
)
def test_a_record_that_cannot_be_read_tells_nothing(site: Site, record: bytes) -> None:
    (next(site.packages.glob("demo-*.dist-info")) / "RECORD").write_bytes(record)
    assert locate(site.python, DEMO)["demo"].published_sha256("greeting.py") is None


def test_nothing_is_imported(site: Site) -> None:
    (site.path("__init__.py")).write_text("raise SystemExit('imported')\n")
    assert locate(site.python, DEMO)["demo"].version == "1.0"


@pytest.mark.parametrize("python", ["/no/such/python", "", "/bin/false", "/bin/true", "/"])
def test_an_interpreter_that_is_none(python: str) -> None:
    with pytest.raises(
        OperatorError,
        match=r"The interpreter .* does not work.* To mend it: name the python of the installation",
    ):
        locate(python, DEMO)


def test_an_environment_without_the_package(site: Site) -> None:
    subprocess.run(["rm", "-r", str(site.packages / "demo")], check=True)
    with pytest.raises(OperatorError, match="has nothing to patch"):
        site.installation()


def test_the_interpreter_that_ansible_runs_on_does_not_matter(site: Site) -> None:
    assert locate(sys.executable, DEMO) == {}
