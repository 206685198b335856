"""Locks, records, markers and libraries of a release: whatever the bytes, a value or an error that names the file."""

from __future__ import annotations

import tempfile
from pathlib import Path

from blackwell import flavours, installer, lock, seal
from blackwell.elf import needed
from hypothesis import given

from tests.unit.attack.inputs import attack, hostile, value_or_operator_error
from tests.unit.release.conftest import lock_of

_ROOT = Path(__file__).resolve().parents[3]
_LOCK = b"".join(
    (_ROOT / "files/locks/sglang-0.5.9-cpu-py311.txt").read_bytes().splitlines(keepends=True)[:14]
)
_LIBRARY = Path("/bin/true").read_bytes()
_MARKER = b'{"lock": "abc", "python": "/usr/bin/python3.12", "proved": true}'
_RECORD = b"a/b.py,sha256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU,0\na-1.dist-info/RECORD,,\n"


@attack
@given(hostile([_LOCK]))
def test_a_lock(text: bytes) -> None:
    read = value_or_operator_error(lambda: lock.parse(text.decode("utf-8", "replace"), "lock.txt"))
    if isinstance(read, lock.Lock):
        assert read.pins
        assert all(len(pin.sha256) in (0, 64) for pin in read.pins)
        assert lock.parse(lock.render(read), "again").digest == read.digest


@attack
@given(hostile([_LIBRARY[:4096], _LIBRARY]))
def test_a_library(content: bytes) -> None:
    with tempfile.NamedTemporaryFile(suffix=".so") as file:
        file.write(content)
        file.flush()
        try:
            assert all(isinstance(name, str) for name in needed(Path(file.name)))
        except ValueError as error:
            assert file.name in str(error)


@attack
@given(hostile([_MARKER]))
def test_a_marker(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / seal.MARKER).write_bytes(content)
        assert isinstance(seal.read_marker(Path(name)), dict)


@attack
@given(hostile([_RECORD]))
def test_the_record_of_a_package(content: bytes) -> None:
    """A package whose record is odd is damaged or gone, and never whole; one that is whole is left alone."""
    with tempfile.TemporaryDirectory() as name:
        site = Path(name)
        (site / "a").mkdir()
        (site / "a" / "b.py").touch()
        info = site / "a-1.dist-info"
        info.mkdir()
        (info / "METADATA").write_bytes(b"Name: a\nVersion: 1\n")
        (info / "RECORD").write_bytes(content)
        pin = lock.Pin("a", "1", "a-1-py3-none-any.whl", "0" * 64)
        assert all(isinstance(line, str) for line in flavours.misfits(site, lock_of(pin)[0]))
        damaged = installer._damaged_packages(site)
        if content == _RECORD:
            assert damaged == []
