"""Receipts that anything may have happened to: a receipt, or an error that names the file."""

from __future__ import annotations

import io
import json
from functools import partial
from pathlib import Path

import pytest
from blackwell import explain, receipt
from blackwell.errors import OperatorError
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from test_explain import receipt as whole  # type: ignore[import-not-found]

from blackwell_cli import receipts

from .inputs import attack, hostile, value_or_operator_error

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
SAMPLE = json.dumps(whole()).encode()


def read_everywhere(folder: Path, content: bytes) -> None:
    """As the module and the command line tool read a receipt, beside one that is whole."""
    host = folder / "gpu-1"
    host.mkdir(exist_ok=True)
    file, other = host / "20260225T101500Z-gpu-1.json", host / "20260224T101500Z-gpu-1.json"
    other.write_bytes(SAMPLE)
    file.write_bytes(content)
    found = value_or_operator_error(lambda: receipt.read(file))
    if isinstance(found, OperatorError):
        assert str(file) in str(found)
    damaged: list[OperatorError] = []
    all_ = receipt.read_all(host, damaged)
    assert len(all_) + len(damaged) == 2
    receipt.expected(all_)
    for entry in all_:
        receipt.differences(entry, {"files": {}})
        value_or_operator_error(partial(explain.effects, entry, all_[-1]))
        explain.explain(entry, all_[-1])
    console = Console(file=io.StringIO(), width=200)
    assert receipts.show(console, folder, None) == 0
    assert receipts.explain(console, folder, str(file), str(other)) in (0, 1, 2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("receipts")


@attack
@given(content=hostile([SAMPLE]))
def test_bytes(folder: Path, content: bytes) -> None:
    read_everywhere(folder, content)


@attack
@given(field=st.sampled_from(sorted(whole())), value=VALUES)
def test_fields(folder: Path, field: str, value: object) -> None:
    read_everywhere(folder, json.dumps({**whole(), field: value}).encode())


@attack
@given(field=st.sampled_from(sorted(whole()["requested"])), value=VALUES)
def test_requests(folder: Path, field: str, value: object) -> None:
    read_everywhere(
        folder, json.dumps({**whole(), "requested": {**whole()["requested"], field: value}}).encode()
    )


@attack
@given(content=hostile([json.dumps({key: whole()[key] for key in whole()}).encode()]))
def test_pending(folder: Path, content: bytes) -> None:
    (folder / receipt.PENDING).write_bytes(content)
    value_or_operator_error(lambda: receipt.pending(folder))
