"""GRUB's files with anything in them: words, or an error that names the file, and nothing is done to the host."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from blackwell import grub
from blackwell.errors import OperatorError
from hypothesis import given
from hypothesis import strategies as st

from .inputs import attack, hostile, value_or_operator_error

SAMPLES = (
    b'GRUB_CMDLINE_LINUX_DEFAULT="quiet splash"\nGRUB_CMDLINE_LINUX=""\n',
    b"GRUB_DISTRIBUTOR=`lsb_release -i -s 2> /dev/null || echo Debian`\nGRUB_CMDLINE_LINUX='a=\"b c\"'\n",
    b'GRUB_CMDLINE_LINUX_DEFAULT="$GRUB_CMDLINE_LINUX_DEFAULT \\\n crashkernel=2G"\n',
    b'if [ -n "$X" ]; then GRUB_CMDLINE_LINUX="${X} y"; fi\n',
)


@attack
@given(texts=st.lists(hostile(SAMPLES), min_size=1, max_size=2))
def test_words_or_an_error_that_names_the_file(texts: list[bytes]) -> None:
    paths = [Path("/d/grub"), Path("/d/grub.d/50.cfg")]
    files = {path: text.decode("utf-8", "surrogateescape") for path, text in zip(paths, texts)}
    found = value_or_operator_error(lambda: grub.evaluate(files))
    if isinstance(found, OperatorError):
        assert "/d/grub" in str(found)
    else:
        assert set(found.after) == {str(path) for path in files}


@pytest.mark.parametrize(
    "command",
    [
        "touch {0}",
        "/usr/bin/touch {0}",
        ": > {0}",
        "$(/bin/sh -c '/usr/bin/touch {0}')",
        "exec 2>{0}",
        "trap '>{0}' EXIT",
    ],
)
def test_nothing_is_done_with_root_s_rights(tmp_path: Path, command: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs rights to lose")
    tmp_path.chmod(0o755)
    target = tmp_path / "made"
    value_or_operator_error(lambda: grub.evaluate({Path("/d/grub"): command.format(target)}))
    assert not target.exists()


def test_a_file_that_never_ends_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grub, "_SECONDS", 0.5)
    with pytest.raises(OperatorError, match=r"/d/grub, and so update-grub cannot\. Found: no end after"):
        grub.evaluate({Path("/d/grub"): "while :; do :; done"})


def test_what_it_leaves_in_the_background_is_not_waited_for() -> None:
    text = "(while :; do :; done) &\nGRUB_CMDLINE_LINUX=a"
    assert list(grub.evaluate({Path("/d/grub"): text}).words) == ["a"]
