"""Opens GPU memory of other processes and adds up small tensors over all GPUs, under a time limit.

Broken peer-to-peer does not fail: the first collective waits for ever, minutes after a start that looked well.
So each rank is a process of its own, says what it is about to do before it does it, and is killed when the limit
has passed; what it said last is where it hangs.

Run by the Python of a release: ``python fabric_test.py --backend nccl --world 8 --limit 60``. Prints one JSON
object: ``ok``, ``message``, ``peer_open`` (pairs opened), ``allreduce`` (bytes, microseconds: median of 20).
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SIZES = [4096 << shift for shift in range(0, 9)]  # 4 KiB to 1 MiB
WARM_UP, REPEATS = 5, 20
PATTERN = 0x5A


def say(folder: Path, rank: int, stage: str) -> None:
    (folder / f"stage{rank}").write_text(stage, encoding="utf-8")


# --- a rank ---


class Runtime:
    """The few calls of the CUDA runtime that open memory across processes, in the copy that torch loaded."""

    def __init__(self) -> None:
        loaded = {
            line.split()[-1]
            for line in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
            if "libcudart" in line
        }
        self.library = ctypes.CDLL(loaded.pop() if loaded else "libcudart.so")

    def call(self, name: str, *arguments: object) -> None:
        error = getattr(self.library, name)(*arguments)
        if error:
            self.library.cudaGetErrorString.restype = ctypes.c_char_p
            raise RuntimeError(f"{name}: {self.library.cudaGetErrorString(error).decode()}")


class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_byte * 64)]


def open_peers(store, folder: Path, rank: int, world: int) -> int:
    """Read a byte of every other rank's memory, the way the fused allreduce opens its workspace."""
    runtime = Runtime()
    own, handle = ctypes.c_void_p(), Handle()
    runtime.call("cudaMalloc", ctypes.byref(own), ctypes.c_size_t(2 << 20))
    runtime.call("cudaMemset", own, PATTERN + rank, ctypes.c_size_t(2 << 20))
    runtime.call("cudaDeviceSynchronize")
    runtime.call("cudaIpcGetMemHandle", ctypes.byref(handle), own)
    store.set(f"handle{rank}", bytes(handle).hex())
    opened = 0
    for peer in range(world):
        if peer == rank:
            continue
        say(folder, rank, f"open the memory of GPU {peer}")
        theirs = Handle.from_buffer_copy(bytes.fromhex(store.get(f"handle{peer}").decode()))
        address, seen = ctypes.c_void_p(), ctypes.c_ubyte()
        lazily_enable_peer_access = ctypes.c_uint(1)
        runtime.call("cudaIpcOpenMemHandle", ctypes.byref(address), theirs, lazily_enable_peer_access)
        say(folder, rank, f"read the memory of GPU {peer}")
        to_host = 2
        runtime.call("cudaMemcpy", ctypes.byref(seen), address, ctypes.c_size_t(1), to_host)
        if seen.value != PATTERN + peer:
            raise RuntimeError(
                f"GPU {rank} read {seen.value:#x} from GPU {peer} instead of {PATTERN + peer:#x}"
            )
        runtime.call("cudaIpcCloseMemHandle", address)
        opened += 1
    say(folder, rank, "wait until all have read")
    store.add("read", 1)
    while int(store.get("read")) < world:
        time.sleep(0.01)
    runtime.call("cudaFree", own)
    return opened


def run_rank(rank: int, world: int, backend: str, folder: Path) -> None:
    import torch
    import torch.distributed as distributed

    say(folder, rank, "find the other ranks")
    store = distributed.FileStore(str(folder / "store"), world)
    result: dict = {"peer_open": 0, "allreduce": {}}
    device = torch.device("cpu")
    if backend == "nccl":
        say(folder, rank, f"use GPU {rank}")
        device = torch.device("cuda", rank)
        torch.cuda.set_device(device)
        torch.zeros(1, device=device)
        result["peer_open"] = open_peers(store, folder, rank, world)
    say(folder, rank, f"start {backend}")
    distributed.init_process_group(backend, store=store, rank=rank, world_size=world)
    for size in SIZES:
        say(folder, rank, f"allreduce of {size} bytes")
        times = []
        for _ in range(WARM_UP + REPEATS):
            tensor = torch.full((size // 4,), float(rank + 1), dtype=torch.float32, device=device)
            if backend == "nccl":
                torch.cuda.synchronize()
            start = time.perf_counter()
            distributed.all_reduce(tensor)
            if backend == "nccl":
                torch.cuda.synchronize()
            times.append((time.perf_counter() - start) * 1e6)
        wanted = world * (world + 1) / 2
        if not bool((tensor == wanted).all()):
            raise RuntimeError(f"allreduce of {size} bytes gave {tensor[0].item()} instead of {wanted}")
        result["allreduce"][size] = round(statistics.median(times[WARM_UP:]), 1)
    (folder / f"result{rank}").write_text(json.dumps(result), encoding="utf-8")
    say(folder, rank, "done")
    distributed.destroy_process_group()


# --- the process that watches ---


def watch(world: int, backend: str, limit: float) -> dict:
    """Start the ranks and wait for them; kill what is left when the limit has passed or one has failed."""
    with tempfile.TemporaryDirectory(prefix="fabric-test-") as name:
        folder = Path(name)
        ranks = []
        for rank in range(world):
            arguments = ["--rank", str(rank), "--world", str(world), "--backend", backend, "--folder", name]
            with (folder / f"log{rank}").open("wb") as log:
                ranks.append(
                    subprocess.Popen(
                        [sys.executable, __file__, *arguments], stdout=log, stderr=log, start_new_session=True
                    )
                )
        end = time.monotonic() + limit
        while time.monotonic() < end:
            states = [process.poll() for process in ranks]
            if all(state == 0 for state in states) or any(states):
                break
            time.sleep(0.05)
        failed = [rank for rank, process in enumerate(ranks) if process.poll() not in (None, 0)]
        hung = [rank for rank, process in enumerate(ranks) if process.poll() is None]
        for rank in hung:
            os.killpg(ranks[rank].pid, signal.SIGKILL)
        left = [process.pid for process in ranks if not ended(process)]
        stages = {rank: read(folder / f"stage{rank}") or "start" for rank in range(world)}
        if failed:
            lines = read(folder / f"log{failed[0]}").strip().splitlines() or ["it said nothing"]
            errors = [line for line in lines if re.match(r"[\w.]+(Error|Exception)\b", line)]
            message = f"rank {failed[0]} failed at '{stages[failed[0]]}': {(errors or lines)[-1]}"
        elif hung:
            where = sorted({stages[rank] for rank in hung})
            message = f"{len(hung)} of {world} ranks hang after {limit:g} s at '{', '.join(where)}'"
        else:
            results = [json.loads(read(folder / f"result{rank}")) for rank in range(world)]
            # A collective is over when its slowest rank is.
            slowest = {size: max(item["allreduce"][str(size)] for item in results) for size in SIZES}
            return {
                "ok": True,
                "message": f"{world} ranks, allreduce of 4 KiB in {slowest[SIZES[0]]} us",
                "peer_open": sum(item["peer_open"] for item in results),
                "allreduce": [{"bytes": size, "us": value} for size, value in slowest.items()],
            }
        if left:
            message += f"; processes {left} cannot be killed, only a reboot frees their GPUs"
        return {"ok": False, "message": message, "stages": stages, "peer_open": 0, "allreduce": []}


def ended(process: subprocess.Popen) -> bool:
    """Whether a killed process is gone; one that waits inside the driver may never be."""
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        return False
    return True


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", choices=["nccl", "gloo"], required=True)
    parser.add_argument("--world", type=int, required=True)
    parser.add_argument("--limit", type=float, default=60)
    parser.add_argument("--rank", type=int)
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    if given.rank is not None:
        run_rank(given.rank, given.world, given.backend, given.folder)
    else:
        print(json.dumps(watch(given.world, given.backend, given.limit)))


if __name__ == "__main__":
    main()
