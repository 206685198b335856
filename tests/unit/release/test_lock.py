"""Locks say exactly what is installed, and refuse to say less."""

from __future__ import annotations

from pathlib import Path

import pytest
from blackwell import lock as locks
from blackwell.errors import OperatorError

TEXT = """\
# sglang: 0.5.9
# engine: cpu
# python: 3.11
# platform: manylinux_2_36_x86_64
# without: sgl-kernel flashinfer-cubin
# without: torchao
# override: torch==2.13.0+cpu
#
# A remark.
sglang==0.5.9 --hash=sha256:{a}  # sglang-0.5.9-py3-none-any.whl 52
torch==2.13.0+cpu --hash=sha256:{b}  # torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl 1917
torchaudio==2.13.0+cpu  # torchaudio-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl
""".format(a="a" * 64, b="b" * 64)


def test_header_and_pins_are_read() -> None:
    lock = locks.parse(TEXT, "test")
    assert (lock.sglang, lock.engine, lock.python) == ("0.5.9", "cpu", "3.11")
    assert lock.versions == {"sglang": "0.5.9", "torch": "2.13.0+cpu", "torchaudio": "2.13.0+cpu"}
    assert lock.allowed == {"sgl-kernel", "flashinfer-cubin", "torchao", "torch"}
    assert [str(pin) for pin in lock.unhashed] == ["torchaudio==2.13.0+cpu"]


def test_what_is_written_is_read_back() -> None:
    lock = locks.parse(TEXT, "test")
    assert locks.parse(locks.render(lock, ["A remark."]), "again") == lock


def test_digest_ignores_comments_and_order_but_not_checksums() -> None:
    lines = TEXT.splitlines(keepends=True)
    digest = locks.parse(TEXT, "test").digest
    moved = "".join(lines[:4] + list(reversed(lines[9:])))
    assert locks.parse(moved, "test").digest == digest
    assert locks.parse(TEXT.replace("a" * 64, "c" * 64), "test").digest != digest
    assert locks.parse(TEXT.replace("# engine: cpu", "# engine: cuda"), "test").digest != digest


def test_completing_fills_in_only_what_was_unknown() -> None:
    audio = "torchaudio-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl"
    found = {audio: ("d" * 64, 7), "sglang-0.5.9-py3-none-any.whl": ("e" * 64, 1)}
    text = locks.complete(TEXT, found)
    assert locks.parse(text, "test").unhashed == []
    assert f"--hash=sha256:{'d' * 64}  # {audio} 7\n" in text
    assert "e" * 64 not in text
    assert text.splitlines()[:11] == TEXT.splitlines()[:11]


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (
            ("# python: 3.11\n", ""),
            "damaged.txt is not a lock of this project. Found: no line '# python: ...'. Expected: a header and one pin "
            "for each package",
        ),
        (
            ("torchaudio==2.13.0+cpu  #", "torch==2.13.0  #"),
            "damaged.txt is not a lock of this project. Found: torch pinned twice. Expected: a header and one pin for "
            "each package",
        ),
        (
            ("sglang==0.5.9 --hash", "sglang>=0.5.9 --hash"),
            "Line 10 of the lock damaged.txt cannot be read. Found: LINE. Expected: name==version --hash=sha256:...  # "
            "file.whl size",
        ),
        (
            ("a" * 64, "a" * 63),
            "Line 10 of the lock damaged.txt cannot be read. Found: LINE. Expected: name==version --hash=sha256:...  # "
            "file.whl size",
        ),
    ],
)
def test_a_damaged_lock_is_refused(edit: tuple[str, str], said: str) -> None:
    text = TEXT.replace(*edit)
    with pytest.raises(OperatorError) as caught:
        locks.parse(text, "damaged.txt")
    line = text.splitlines()[9].strip()[:120]
    mend = ". To mend it: make the lock again, as files/locks/README.md says."
    assert str(caught.value).replace(line.rstrip("."), "LINE") == said + mend


def _published(repository: Path) -> list[Path]:
    return sorted((repository / "files" / "locks").glob("sglang-*.txt"))


def test_locks_of_this_repository_say_what_their_names_say(repository: Path) -> None:
    assert _published(repository)
    for path in _published(repository):
        lock = locks.parse(path.read_text(), path.name)
        flavour = "cpu" if lock.engine == "cpu" else "cu130"
        assert path.stem == f"sglang-{lock.sglang}-{flavour}-py{lock.python.replace('.', '')}"
        assert lock.versions["sglang"] == lock.sglang


def test_only_wheels_with_a_local_version_lack_a_checksum(repository: Path) -> None:
    for path in _published(repository):
        for pin in locks.parse(path.read_text(), path.name).unhashed:
            assert "+cu130" in pin.version, f"{path.name}: {pin}"


def test_production_locks_have_nothing_of_cuda_12(repository: Path) -> None:
    for path in _published(repository):
        lock = locks.parse(path.read_text(), path.name)
        if lock.engine == "cuda":
            assert not [name for name in lock.versions if name.endswith("-cu12")]
            assert {
                lock.versions[name].partition("+")[2] for name in ("torch", "torchvision", "torchaudio")
            } == {"cu130"}
            kernels = {"0.5.9": "sgl-kernel==0.3.21+cu130", "0.5.10.post1": "sglang-kernel==0.4.1+cu130"}
            assert kernels[lock.sglang] in {str(pin) for pin in lock.pins}
            assert lock.versions["flashinfer-python"] == lock.versions["flashinfer-cubin"]
            assert tuple(map(int, lock.versions["nvidia-cudnn-cu13"].split(".")[:2])) >= (9, 15)
