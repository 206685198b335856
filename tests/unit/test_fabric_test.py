"""The test of the fabric ends in time, whatever the ranks do, and says where they were.

The ranks run with a stand-in for torch that does what a test wants; the real one was run with gloo on a processor and
with NCCL on two GPUs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "roles/preflight/files/fabric_test.py"

TORCH = """
import os

float32 = "float32"

def device(kind, index=None):
    return kind

class full:
    def __init__(self, shape, value, dtype, device):
        self.value, self.world = value, int(os.environ.get("WORLD", "2"))
    def __eq__(self, other):
        self.equal = self.value == other
        return self
    def all(self):
        return self.equal
    def __getitem__(self, index):
        return self
    def item(self):
        return self.value
"""

DISTRIBUTED = """
import os, time

def FileStore(path, world):
    return path

def init_process_group(backend, store, rank, world_size):
    global RANK
    RANK = rank

def all_reduce(tensor):
    rank, does = os.environ.get("WHO", "all"), os.environ.get("DOES", "")
    if rank in ("all", str(RANK)):
        if does == "hang":
            time.sleep(3600)
        if does == "fail":
            raise RuntimeError("NCCL error: unhandled cuda error")
        if does == "wrong":
            return
    tensor.value = 3.0

def destroy_process_group():
    pass
"""


@pytest.fixture
def torch(tmp_path: Path) -> Path:
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").write_text(TORCH)
    (package / "distributed.py").write_text(DISTRIBUTED)
    return tmp_path


def run(torch: Path, *, limit: float = 60, **environment: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--backend", "gloo", "--world", "2", "--limit", str(limit)],
        env={**os.environ, "PYTHONPATH": str(torch), "TMPDIR": str(torch), **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def test_ranks_that_agree_give_latencies_from_4_kib_to_1_mib(torch: Path) -> None:
    result = run(torch)
    assert result["ok"]
    assert [item["bytes"] for item in result["allreduce"]] == [4096 * 2**n for n in range(9)]


def test_a_rank_that_hangs_is_killed_and_its_place_is_named(torch: Path) -> None:
    start = time.monotonic()
    result = run(torch, limit=5, DOES="hang")
    assert time.monotonic() - start < 60, "the ranks would sleep for an hour"
    assert not result["ok"]
    assert result["message"] == "2 of 2 ranks hang after 5 s at 'allreduce of 4096 bytes'"
    left = subprocess.run(["pgrep", "-f", str(torch)], capture_output=True, text=True, check=False)
    assert left.stdout == "", "no process is left"


def test_a_rank_that_fails_ends_the_test_at_once_with_its_error(torch: Path) -> None:
    result = run(torch, limit=3600, WHO="1", DOES="fail")
    assert result["message"] == (
        "rank 1 failed at 'allreduce of 4096 bytes': RuntimeError: NCCL error: unhandled cuda error"
    )


def test_a_wrong_sum_is_an_error(torch: Path) -> None:
    result = run(torch, WHO="0", DOES="wrong")
    assert result["message"] == (
        "rank 0 failed at 'allreduce of 4096 bytes': RuntimeError: allreduce of 4096 bytes gave 1.0 instead of 3.0"
    )


def test_without_torch_it_says_so(tmp_path: Path) -> None:
    broken = tmp_path / "torch.py"
    broken.write_text("raise ImportError('libcudart.so.13: cannot open shared object file')\n")
    assert run(tmp_path)["message"].endswith(
        " failed at 'start': ImportError: libcudart.so.13: cannot open shared object file"
    )
