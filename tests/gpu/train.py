# mypy: disable-error-code="no-any-return, misc, no-untyped-call"
"""Train the target on Python source, then the drafter on the target. ``models.py`` made their settings.

    python -m tests.gpu.train FOLDER TARGET_SECONDS DRAFTER_SECONDS SOURCES [SOURCES ...]

SOURCES are folders of Python files. The target is transformers' DeepseekV3. The drafter is the graph of SGLang's
``llama_eagle3.py``, trained through three unrolled draft steps; state k is the residual stream before the layer that
follows the k-th of the layers that it reads, which is what SGLang captures.
"""

from __future__ import annotations

import json
import math
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM
from transformers.models.deepseek_v3 import modeling_deepseek_v3

from tests.gpu import sizes
from tests.gpu.models import SPECIAL_TOKENS, is_held_out

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# Draft steps that training unrolls, and how much less each later one counts.
STEPS, LATER = 3, 0.8


def main() -> None:
    """Run the command line."""
    folder, seconds = Path(sys.argv[1]), (float(sys.argv[2]), float(sys.argv[3]))
    sources = sorted(path for place in sys.argv[4:] for path in Path(place).rglob("*.py"))
    train(folder, seconds, sources, sizes.FULL)


def train(folder: Path, seconds: tuple[float, float], sources: list[Path], size: sizes.Size) -> None:
    """Train both and write their weights.

    Args:
        folder: what ``models.py`` made.
        seconds: for the target, for the drafter.
        sources: Python files to learn from; those that are held out are skipped.
        size: the size that the settings were made with.
    """
    torch.manual_seed(0)
    random.seed(0)
    torch.backends.cuda.matmul.allow_tf32 = True
    data = Data(folder, sources, size)
    print(
        f"{len(data.text) / 1e6:.1f} M tokens of text, {len(data.by_heart) / 1e6:.2f} M to know by heart",
        flush=True,
    )
    target = train_target(folder, data, seconds[0], size)
    train_drafter(folder, target, data, seconds[1], size)


class Data:
    """Tokens to learn from, on the device."""

    def __init__(self, folder: Path, sources: list[Path], size: sizes.Size) -> None:
        tokenizer = Tokenizer.from_file(str(folder / "kimi" / "tokenizer.json"))
        end = SPECIAL_TOKENS.index("<|im_end|>")
        sources = [path for path in sources if not is_held_out(path) and 500 < path.stat().st_size < 400_000]
        random.shuffle(sources)
        texts, length = [], 0
        for path in sources:
            texts.append(path.read_text(encoding="utf-8", errors="replace"))
            length += len(texts[-1])
            if length > size.corpus:
                break
        ids: list[int] = []
        for first in range(0, len(texts), 256):
            for text in tokenizer.encode_batch(texts[first : first + 256]):
                ids += [*text.ids, end]
        documents = json.loads((folder / "documents.json").read_text(encoding="utf-8"))
        flow: list[int] = []
        while len(flow) < size.corpus // 27:
            random.shuffle(documents)
            flow += [token for document in documents for token in document]
        self.text = torch.tensor(ids, dtype=torch.int32, device=DEVICE)
        self.by_heart = torch.tensor(flow, dtype=torch.int32, device=DEVICE)

    def batch(self, rows: int, length: int) -> Tensor:
        """Rows of ``length`` + 1 tokens, one in eight of what is to be known by heart."""
        part = max(1, rows // 8)
        return torch.cat(
            [self._rows(self.by_heart, part, length), self._rows(self.text, rows - part, length)]
        )

    @staticmethod
    def _rows(tokens: Tensor, rows: int, length: int) -> Tensor:
        first = torch.randint(0, len(tokens) - length - 1, (rows, 1), device=DEVICE)
        return tokens[first + torch.arange(length + 1, device=DEVICE)].long()


def share(seconds: float) -> Iterator[float]:
    """What share of the time has passed, at each step, until all has."""
    started = time.monotonic()
    while (passed := (time.monotonic() - started) / seconds) < 1:
        yield passed


def rate(passed: float, peak: float) -> float:
    """The learning rate: up in a short while, then down along a cosine."""
    return peak * min(1.0, passed / 0.03) * 0.5 * (1 + math.cos(math.pi * passed)) + 1e-6


def autocast() -> Any:
    """Products in bfloat16."""
    return torch.autocast(DEVICE, dtype=torch.bfloat16)


def dense_experts(self: Any, hidden: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
    """The sum over experts that ``DeepseekV3MoE.moe`` computes, for all experts at once: the host waits for nothing."""
    gate = torch.stack([expert.gate_proj.weight for expert in self.experts])
    up = torch.stack([expert.up_proj.weight for expert in self.experts])
    down = torch.stack([expert.down_proj.weight for expert in self.experts])
    dense = torch.zeros(hidden.shape[0], len(self.experts), device=hidden.device, dtype=weights.dtype)
    dense = dense.scatter_(1, chosen, weights)
    given = hidden if torch.is_autocast_enabled() else hidden.to(gate.dtype)
    inner = F.silu(torch.einsum("th,eih->tei", given, gate)) * torch.einsum("th,eih->tei", given, up)
    return torch.einsum("tei,ehi->th", inner * dense[..., None].to(inner.dtype), down).to(hidden.dtype)


def train_target(folder: Path, data: Data, seconds: float, size: sizes.Size) -> Any:
    """Train the target, write it, and return it as the server runs it."""
    modeling_deepseek_v3.DeepseekV3MoE.moe = dense_experts
    text = json.loads((folder / "kimi" / "config.json").read_text(encoding="utf-8"))["text_config"]
    model = DeepseekV3ForCausalLM(DeepseekV3Config(**text, attn_implementation="sdpa")).to(DEVICE).float()
    for name, parameter in model.named_parameters():
        if "gate.weight" in name:
            nn.init.normal_(parameter, std=0.02)
    large = [parameter for parameter in model.parameters() if parameter.ndim >= 2]
    small = [parameter for parameter in model.parameters() if parameter.ndim < 2]
    groups = [{"params": large, "weight_decay": 0.05}, {"params": small, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95), fused=DEVICE == "cuda")
    step = 0
    for step, passed in enumerate(share(seconds), 1):
        tokens = data.batch(size.batch, size.sequence)
        with autocast():
            logits = model(tokens[:, :-1]).logits
        loss = F.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())
        improve(model, optimizer, loss, rate(passed, 1.5e-3))
        if step % 200 == 1:
            print(f"target step {step}, loss {loss.item():.3f}", flush=True)
    print(f"target: {step} steps, loss {loss.item():.3f}", flush=True)
    weights = {f"language_model.{name}": as_written(value) for name, value in model.state_dict().items()}
    # It stays float32 in published checkpoints, too.
    for name, value in model.state_dict().items():
        if name.endswith("e_score_correction_bias"):
            weights[f"language_model.{name}"] = value.float().cpu()
    save_weights(weights, folder / "kimi")
    model = model.to(torch.bfloat16).eval()
    for module in model.modules():
        if hasattr(module, "e_score_correction_bias"):
            module.e_score_correction_bias = module.e_score_correction_bias.float()
    return model


def improve(model: nn.Module, optimizer: Any, loss: Tensor, learning_rate: float) -> None:
    """Take one step."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def as_written(value: Tensor) -> Tensor:
    """A weight as a checkpoint has it."""
    return value.detach().to(torch.bfloat16).contiguous().cpu()


class Norm(nn.Module):
    """RMS norm in float32."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, given: Tensor) -> Tensor:
        """Normalise."""
        given = given.float()
        return given * torch.rsqrt(given.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight


class Drafter(nn.Module):
    """The graph of SGLang's ``llama_eagle3.py``, for all positions of a text at once."""

    def __init__(self, size: sizes.Size) -> None:
        super().__init__()
        hidden, inner = size.hidden, 2 * size.hidden
        self.heads, self.pairs, self.head = size.heads, size.heads // 2, size.head
        self.fc = self._linear(3 * hidden, hidden)
        self.query = self._linear(2 * hidden, self.heads * self.head)
        self.key = self._linear(2 * hidden, self.pairs * self.head)
        self.value = self._linear(2 * hidden, self.pairs * self.head)
        self.out = self._linear(self.heads * self.head, hidden)
        self.gate, self.up, self.down = (
            self._linear(hidden, inner),
            self._linear(hidden, inner),
            self._linear(inner, hidden),
        )
        self.lm_head = self._linear(hidden, size.draft_vocabulary)
        self.of_token, self.of_state, self.of_attention, self.of_out = (Norm(hidden) for _ in range(4))

    @staticmethod
    def _linear(given: int, wanted: int) -> nn.Linear:
        return nn.Linear(given, wanted, bias=False)

    def turn(self, given: Tensor, positions: Tensor) -> Tensor:
        """Rotary embedding, in halves."""
        inverse = 10000.0 ** (-torch.arange(0, self.head, 2, device=given.device).float() / self.head)
        angle = positions[:, None].float() * inverse
        cos, sin = angle.cos()[None, :, None], angle.sin()[None, :, None]
        first, second = given.float().chunk(2, -1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)

    def step(
        self, token: Tensor, state: Tensor, number: int, past: list[tuple[Tensor, Tensor]]
    ) -> tuple[Tensor, Tensor]:
        """Draft step ``number``: logits and the next state. ``past`` has keys and values of all steps so far."""
        rows, length, _ = state.shape
        given = torch.cat([self.of_token(token), self.of_state(state)], -1)
        positions = torch.arange(length, device=state.device) + number
        query = self.turn(self.query(given).view(rows, length, self.heads, self.head), positions)
        key = self.turn(self.key(given).view(rows, length, self.pairs, self.head), positions)
        value = self.value(given).view(rows, length, self.pairs, self.head)
        repeat = self.heads // self.pairs
        past.append((key.repeat_interleave(repeat, 2), value.repeat_interleave(repeat, 2)))
        state = state + self.out(self._attend(query, past).reshape(rows, length, self.heads * self.head))
        inner = self.of_attention(state)
        state = state + self.down(F.silu(self.gate(inner)) * self.up(inner))
        return self.lm_head(self.of_out(state)), state

    def _attend(self, query: Tensor, past: list[tuple[Tensor, Tensor]]) -> Tensor:
        """To the text before, and along the own line of drafts."""
        (key, value), length, scale = past[0], query.shape[1], self.head**-0.5
        before = torch.einsum("bqhd,bkhd->bhqk", query, key.to(query.dtype)) * scale
        later = torch.ones(length, length, device=query.device, dtype=torch.bool).triu(1)
        scores = [before.masked_fill(later, float("-inf"))]
        scores += [
            (query * own.to(query.dtype)).sum(-1).permute(0, 2, 1)[..., None] * scale for own, _ in past[1:]
        ]
        weights = torch.cat(scores, -1).float().softmax(-1).to(value.dtype)
        seen = torch.einsum("bhqk,bkhd->bqhd", weights[..., :length], value)
        for number, (_, own) in enumerate(past[1:]):
            seen = seen + weights[..., length + number].permute(0, 2, 1)[..., None] * own
        return seen


def train_drafter(folder: Path, target: Any, data: Data, seconds: float, size: sizes.Size) -> None:
    """Train the drafter and write it."""
    tokens = torch.cat([data.text, data.by_heart]).long()
    counts = torch.bincount(tokens, minlength=size.vocabulary)
    frequent = torch.sort(torch.topk(counts, size.draft_vocabulary).indices).values
    place = torch.full((size.vocabulary,), -1, device=DEVICE)
    place[frequent] = torch.arange(size.draft_vocabulary, device=DEVICE)
    drafter = Drafter(size).to(DEVICE)
    optimizer = torch.optim.AdamW(drafter.parameters(), betas=(0.9, 0.95), weight_decay=0.01)
    step = 0
    for step, passed in enumerate(share(seconds), 1):
        loss, right = draft_loss(
            drafter, target, data.batch(size.draft_batch, size.draft_sequence), frequent, place
        )
        improve(drafter, optimizer, loss, rate(passed, 1e-3))
        if step % 200 == 1:
            print(
                f"drafter step {step}, loss {loss.item():.3f}, right {[round(float(each), 3) for each in right]}",
                flush=True,
            )
    print(
        f"drafter: {step} steps, loss {loss.item():.3f}, right {[round(float(each), 3) for each in right]}",
        flush=True,
    )
    save_weights(named(drafter, frequent, size), folder / "eagle3")


def save_weights(weights: dict[str, Tensor], folder: Path) -> None:
    """Write a checkpoint that the service's user can read, whatever the umask is."""
    file = folder / "model.safetensors"
    save_file(weights, file, metadata={"format": "pt"})
    file.chmod(0o644)


def draft_loss(
    drafter: Drafter, target: Any, tokens: Tensor, frequent: Tensor, place: Tensor
) -> tuple[Tensor, list[Tensor]]:
    """The loss over all unrolled draft steps, and how often each was right."""
    with torch.no_grad():
        seen = target(tokens, output_hidden_states=True)
        states = torch.cat([seen.hidden_states[layer + 1] for layer in sizes.READ_LAYERS], -1)
    length = tokens.shape[1] - 1 - STEPS
    past: list[tuple[Tensor, Tensor]] = []
    loss, right = torch.zeros((), device=DEVICE), []
    with autocast():
        state = drafter.fc(states[:, :length].to(drafter.fc.weight.dtype))
        for number in range(STEPS):
            # The drafter sees the token that the target chose, and guesses the one after it.
            token = target.model.embed_tokens(tokens[:, 1 + number : 1 + number + length]).detach().float()
            logits, state = drafter.step(token, state, number, past)
            wanted = seen.logits[:, 1 + number : 1 + number + length].float()
            best = place[wanted.argmax(-1)]
            entropy = -(wanted[..., frequent].softmax(-1) * logits.float().log_softmax(-1)).sum(-1)
            loss = loss + (entropy * (best >= 0)).mean() * LATER**number
            right.append((logits.argmax(-1) == best).float().mean().detach())
    return loss, right


def named(drafter: Drafter, frequent: Tensor, size: sizes.Size) -> dict[str, Tensor]:
    """The drafter's weights by the names of a published checkpoint."""
    layers: dict[str, Any] = {
        "fc": drafter.fc,
        "midlayer.self_attn.q_proj": drafter.query,
        "midlayer.self_attn.k_proj": drafter.key,
        "midlayer.self_attn.v_proj": drafter.value,
        "midlayer.self_attn.o_proj": drafter.out,
        "midlayer.mlp.gate_proj": drafter.gate,
        "midlayer.mlp.up_proj": drafter.up,
        "midlayer.mlp.down_proj": drafter.down,
        "midlayer.hidden_norm": drafter.of_state,
        "midlayer.input_layernorm": drafter.of_token,
        "midlayer.post_attention_layernorm": drafter.of_attention,
        "norm": drafter.of_out,
        "lm_head": drafter.lm_head,
    }
    weights = {f"{name}.weight": as_written(layer.weight) for name, layer in layers.items()}
    chosen = frequent.cpu()
    weights["d2t"] = chosen - torch.arange(size.draft_vocabulary)
    weights["t2d"] = torch.zeros(size.vocabulary, dtype=torch.bool).index_fill_(0, chosen, True)
    return weights


if __name__ == "__main__":
    main()
