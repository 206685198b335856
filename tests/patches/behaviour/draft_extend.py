# What it imports is only in the interpreter that runs it.
# mypy: ignore-errors
"""Lay out the drafter's pass over its draft tokens with the real triton back end, and compute attention after it.

Once as the pass without CUDA graphs is laid out, and once as it is replayed from one. Kernels of triton need a GPU:
the one that copies indices is done in Python, and attention as the extend kernel does it: each token sees the whole
prefix, and of the tokens of its own request in this pass those up to itself.
"""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import torch
from sglang.srt.layers.attention import triton_backend as module
from sglang.srt.model_executor.forward_batch_info import ForwardMode

STEPS, HEADS_WIDTH, CONTEXT, MOST = 3, 8, 64, 8
TOKENS = STEPS + 1


class CopyIndices:
    def __getitem__(self, grid: tuple[int]) -> Any:
        def run(table: Any, rows: Any, lengths: Any, starts: Any, begin: Any, out: Any, stride: int) -> None:
            for number in range(grid[0]):
                count, place = int(lengths[number]), int(starts[number])
                out[place : place + count] = table[int(rows[number]), :count]

        return run


module.create_flashinfer_kv_indices_triton = CopyIndices()


def back_end(table: torch.Tensor) -> Any:
    made = module.TritonAttnBackend.__new__(module.TritonAttnBackend)
    made.device, made.req_to_token, made.sliding_window_size = "cpu", table, None
    made.speculative_num_steps, made.num_draft_tokens = STEPS, TOKENS
    made.kv_indptr = torch.zeros(MOST + 1, dtype=torch.int32)
    made.window_kv_indptr = torch.zeros(MOST + 1, dtype=torch.int32)
    # What an earlier batch left behind.
    made.qo_indptr = torch.arange(MOST + 1, dtype=torch.int32)
    made.cuda_graph_kv_indices = torch.zeros(MOST * CONTEXT, dtype=torch.int64)
    return made


def attention(qo: Any, kv: Any, indices: Any, q: Any, k: Any, v: Any, pool: Any) -> torch.Tensor:
    out = torch.zeros_like(q)
    for number in range(len(qo) - 1):
        first, last = int(qo[number]), int(qo[number + 1])
        prefix = indices[int(kv[number]) : int(kv[number + 1])].long()
        for row in range(first, last):
            keys = torch.cat([pool[0][prefix], k[first : row + 1]])
            values = torch.cat([pool[1][prefix], v[first : row + 1]])
            out[row] = torch.softmax(keys @ q[row] / HEADS_WIDTH**0.5, dim=0) @ values
    return out


def distance(requests: int, fill: int, accepted: list[int]) -> list[float]:
    """The relative error of the replayed pass, request by request; ``fill`` rows only fill the graph's batch up."""
    torch.manual_seed(requests)
    prefixes = torch.tensor([9, 17, 5, 12, 7, 21, 3, 14][:requests], dtype=torch.int32)
    batch, tokens = requests + fill, requests * TOKENS
    table = torch.arange(MOST * CONTEXT, dtype=torch.int32).reshape(MOST, CONTEXT)
    pool = torch.randn(2, MOST * CONTEXT, HEADS_WIDTH)
    q, k, v = torch.randn(3, batch * TOKENS, HEADS_WIDTH)
    for number in range(requests):
        # The keys and values are written into the pool before attention is computed.
        place = table[number, prefixes[number] : prefixes[number] + TOKENS].long()
        own = slice(number * TOKENS, (number + 1) * TOKENS)
        pool[0][place], pool[1][place] = k[own], v[own]

    plain = back_end(table)
    plain.init_forward_metadata(
        SimpleNamespace(
            batch_size=requests,
            forward_mode=ForwardMode.DRAFT_EXTEND_V2,
            spec_info=None,
            req_pool_indices=torch.arange(requests),
            extend_prefix_lens=prefixes,
            extend_prefix_lens_cpu=prefixes.tolist(),
            extend_seq_lens=torch.full((requests,), TOKENS, dtype=torch.int32),
            extend_seq_lens_cpu=[TOKENS] * requests,
        )
    )
    laid = plain.forward_metadata
    wanted = attention(laid.qo_indptr, laid.kv_indptr, laid.kv_indices, q, k, v, pool)

    replayed = back_end(table)
    lengths = torch.ones(MOST, dtype=torch.int32)
    lengths[:requests] = prefixes + TOKENS
    replayed.init_forward_metadata_replay_cuda_graph(
        bs=batch,
        req_pool_indices=torch.cat([torch.arange(requests), torch.zeros(MOST - requests, dtype=torch.long)]),
        seq_lens=lengths,
        seq_lens_sum=int(lengths[:batch].sum()),
        encoder_lens=None,
        forward_mode=ForwardMode.DRAFT_EXTEND_V2,
        spec_info=SimpleNamespace(
            accept_length=torch.tensor(accepted + [TOKENS] * fill, dtype=torch.int32),
            extend_seq_lens_tensor=torch.full((batch,), TOKENS, dtype=torch.int32),
        ),
        seq_lens_cpu=lengths,
    )
    qo, kv = replayed.qo_indptr[: batch + 1], replayed.kv_indptr[: batch + 1]
    got = attention(qo, kv, replayed.cuda_graph_kv_indices, q, k, v, pool)
    parts = zip(got[:tokens].split(TOKENS), wanted[:tokens].split(TOKENS))
    return [float((one - other).norm() / other.norm()) for one, other in parts]


cases = {
    "one": (1, 0, [2]),
    "two": (2, 0, [1, 3]),
    "four, a batch of eight": (4, 4, [1, 4, 2, 1]),
    "all accepted": (3, 0, [TOKENS] * 3),
}
print(json.dumps({name: distance(*case) for name, case in cases.items()}))
