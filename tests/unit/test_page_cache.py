"""Weights are read ahead where memory allows, and only there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from blackwell.page_cache import GIB, available_memory, read_through, reason_against, weight_files


@pytest.fixture
def models(tmp_path: Path) -> list[Path]:
    """A target of two files and a drafter whose file is a link, as in the cache of Hugging Face."""
    target, draft = tmp_path / "target", tmp_path / "draft"
    for folder in (target, draft):
        folder.mkdir()
        (folder / "config.json").write_text("{}")
    (target / "model-1.safetensors").write_bytes(b"x" * 1000)
    (target / "model-2.safetensors").write_bytes(b"x" * 5000)
    (tmp_path / "blob").write_bytes(b"x" * 300)
    (draft / "model.safetensors").symlink_to(tmp_path / "blob")
    (draft / "again.safetensors").symlink_to(tmp_path / "blob")
    return [target, draft]


def test_weights_count_once_and_the_largest_come_first(models: list[Path]) -> None:
    assert list(weight_files(models).values()) == [5000, 1000, 300]


def test_every_byte_is_read(models: list[Path]) -> None:
    assert read_through(weight_files(models)) == 6300


def test_available_memory_counts_caches() -> None:
    assert (
        available_memory("MemTotal:  100 kB\nMemFree:  10 kB\nMemAvailable:    64 kB\nHugePages_Total: 0\n")
        == 65536
    )


def test_weights_that_would_push_each_other_out_are_not_read() -> None:
    assert reason_against(590 * GIB, 700 * GIB) == ""
    assert "do not fit into 600.0 GiB" in reason_against(590 * GIB, 600 * GIB)


def test_the_module_reads_and_says_how_much(
    run_module: Callable[..., dict[str, Any]], models: list[Path]
) -> None:
    folders = [str(folder) for folder in models]
    result = run_module("page_cache", {"folders": folders, "reserve_gib": 0})
    assert result["changed"] is False
    assert result["msg"] == "Read 0.0 GiB of 3 files"
    refused = run_module("page_cache", {"folders": folders, "reserve_gib": 1_000_000})
    assert refused["msg"].startswith("Read nothing: ")
    assert refused["read_gib"] == 0


def test_check_mode_reads_nothing(run_module: Callable[..., dict[str, Any]], models: list[Path]) -> None:
    result = run_module("page_cache", {"folders": [str(models[0])], "reserve_gib": 0}, check=True)
    assert result["read_gib"] == 0
    assert result["size_gib"] == round(6000 / GIB, 3)
