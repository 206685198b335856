# What it imports is only in the interpreter that runs it.
# mypy: ignore-errors
"""Run the real DeepseekV2 model loop on two ranks (gloo), with the allreduce deferred to the next layer and without.

Real are the model's and the layers' ``forward``, the layer communicator, the norms, the MLP with its parallel
linear layers and SGLang's process groups. A stub stands for attention: each rank adds a part of the sum, as the
output projection does. The fused kernel is emulated: allreduce, then the norm, which works in place as on a GPU.
"""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from typing import Any

import torch
import torch.multiprocessing
from sglang.srt import distributed, server_args
from sglang.srt.distributed import parallel_state
from sglang.srt.layers import communicator, dp_attention, layernorm
from sglang.srt.layers.moe import initialize_moe_config
from sglang.srt.models import deepseek_v2

RANKS, LAYERS, HIDDEN, TOKENS = 2, 6, 32, 5
CAPTURED = [1, 3, 5]


class Attention(torch.nn.Module):
    def __init__(self, rank: int) -> None:
        super().__init__()
        self.share = (0.3, 0.7)[rank]

    def prepare_qkv_latent(self, hidden_states: torch.Tensor, forward_batch: Any) -> torch.Tensor:
        return hidden_states

    def forward(self, *, hidden_states: torch.Tensor, **others: Any) -> torch.Tensor:
        return self.share * torch.tanh(hidden_states)


def norm_in_place(
    self: Any, x: torch.Tensor, residual: torch.Tensor | None = None, post_residual_addition: Any = None
) -> Any:
    total = x if residual is None else residual.copy_(x + residual)
    scale = torch.rsqrt(total.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
    normed = total * scale * self.weight
    return normed if residual is None else (normed, residual)


def fused(self: Any, x: torch.Tensor, residual: torch.Tensor, post_residual_addition: Any = None) -> Any:
    return norm_in_place(self, distributed.tensor_model_parallel_all_reduce(x), residual)


def model(rank: int, config: Any) -> Any:
    torch.manual_seed(rank)
    made = deepseek_v2.DeepseekV2Model.__new__(deepseek_v2.DeepseekV2Model)
    torch.nn.Module.__init__(made)
    layers = []
    for number in range(LAYERS):
        layer = deepseek_v2.DeepseekV2DecoderLayer.__new__(deepseek_v2.DeepseekV2DecoderLayer)
        torch.nn.Module.__init__(layer)
        layer.nsa_enable_prefill_cp = False
        layer.self_attn = Attention(rank)
        layer.mlp = deepseek_v2.DeepseekV2MLP(HIDDEN, 4 * HIDDEN, "silu")
        for weight in layer.mlp.parameters():
            torch.nn.init.normal_(weight, std=0.3)
        layer.input_layernorm = layernorm.RMSNorm(HIDDEN)
        layer.post_attention_layernorm = layernorm.RMSNorm(HIDDEN)
        layer.layer_communicator = communicator.LayerCommunicator(
            layer_scatter_modes=communicator.LayerScatterModes.init_new(
                layer_id=number,
                num_layers=LAYERS,
                is_layer_sparse=False,
                is_previous_layer_sparse=False,
                is_next_layer_sparse=False,
            ),
            input_layernorm=layer.input_layernorm,
            post_attention_layernorm=layer.post_attention_layernorm,
            is_last_layer=number == LAYERS - 1,
        )
        layers.append(layer)
    made.layers, made.start_layer, made.end_layer = torch.nn.ModuleList(layers), 0, LAYERS
    made.pp_group = SimpleNamespace(is_first_rank=True, is_last_rank=True)
    made.norm = layernorm.RMSNorm(HIDDEN)
    made.first_k_dense_replace = LAYERS
    made.enable_a2a_moe = False
    made.llama_4_scaling_config = None
    made.layers_to_capture = CAPTURED
    return made


def forward(made: Any, deferred: bool) -> tuple[torch.Tensor, list[torch.Tensor]]:
    communicator.apply_flashinfer_allreduce_fusion = lambda batch: deferred
    batch = SimpleNamespace(
        input_ids=torch.zeros(TOKENS, dtype=torch.long),
        can_run_tbo=False,
        nsa_cp_metadata=None,
        forward_mode=SimpleNamespace(is_idle=lambda: False, is_extend=lambda: False),
    )
    torch.manual_seed(7)
    inputs = torch.randn(TOKENS, HIDDEN)
    hidden, aux = made.forward(batch.input_ids, torch.arange(TOKENS), batch, input_embeds=inputs)
    return hidden, aux


def distance(one: torch.Tensor, other: torch.Tensor) -> float:
    """Relative L2."""
    return float((one - other).norm() / other.norm())


def rank_main(rank: int, port: int, results: Any) -> None:
    torch.set_num_threads(1)
    arguments = server_args.ServerArgs(model_path="dummy", device="cpu", tp_size=RANKS)
    server_args.set_global_server_args_for_scheduler(arguments)
    parallel_state.init_distributed_environment(
        world_size=RANKS,
        rank=rank,
        local_rank=rank,
        distributed_init_method=f"tcp://127.0.0.1:{port}",
        backend="gloo",
    )
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=RANKS)
    dp_attention.initialize_dp_attention(arguments, SimpleNamespace(hidden_size=HIDDEN, dtype=torch.float32))
    initialize_moe_config(arguments)
    layernorm.RMSNorm.forward = norm_in_place
    layernorm.RMSNorm.forward_with_allreduce_fusion = fused
    with torch.no_grad():
        made = model(rank, None)
        hidden, aux = forward(made, deferred=False)
        hidden_deferred, aux_deferred = forward(made, deferred=True)
        others = [aux_deferred[0].clone().mul_(0) for _ in aux_deferred]
        for mine, other in zip(aux_deferred, others, strict=True):
            both = [torch.empty_like(mine) for _ in range(RANKS)]
            torch.distributed.all_gather(both, mine.contiguous())
            other.copy_(both[1 - rank])
    results[rank] = {
        "output": distance(hidden_deferred, hidden),
        "reference": [float(one.norm()) for one in aux],
        "off": [distance(one, other) for one, other in zip(aux_deferred, aux, strict=True)],
        "ranks_differ": [distance(one, other) for one, other in zip(aux_deferred, others, strict=True)],
    }
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    with torch.multiprocessing.Manager() as manager:
        results = manager.dict()
        torch.multiprocessing.spawn(rank_main, (int(sys.argv[1]), results), nprocs=RANKS)
        print(json.dumps([results[rank] for rank in range(RANKS)]))
