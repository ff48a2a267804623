"""GPT-3 (Brown et al. 2020): a layer in four Blocks, embedding and head ready to be shared.

The inner products are halves of the inner size, whose results are added up: beside the gradients of
a whole one, and the copies that its products make, a tile has no room.

Embedding and head have a table each: as one they would have to stay on the chip in all phases.
The plan shares a layer as Megatron-LM does: the first product of attention and of the inner layers
by its outputs, the second by its inputs, and embedding and head by the rows of their tables.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel
from torch.nn import functional

import ipu_exec as poptorch
from examples.models import Example, block, integers
from examples.models.gpt2 import Gpt2Config

# The vocabulary of 50,257 is padded to a multiple of 128.
GPT3 = Gpt2Config(
    hidden=12_288, layers=96, heads=96, vocabulary=50_304, positions=2048, sequence=2048
)
TINY = Gpt2Config(hidden=64, layers=8, heads=8, vocabulary=128, positions=32, sequence=16)


def plan() -> dict[str, Any]:
    """How its tensors are shared by the IPUs of a stage."""
    return {
        "word": RowwiseParallel(input_layouts=Replicate()),
        "qkv.*.product": ColwiseParallel(),
        "mix.*.output": RowwiseParallel(),
        "first.*.expand": ColwiseParallel(),
        "first.*.contract": RowwiseParallel(),
        "second.*.expand": ColwiseParallel(),
        "second.*.contract": RowwiseParallel(),
        "head.*": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False),
    }


class Qkv(nn.Module):
    """Queries, keys and values, one behind the other in the last dimension."""

    def __init__(self, config: Gpt2Config) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.hidden)
        self.product = nn.Linear(config.hidden, 3 * config.hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.product(self.norm(x))


class Mix(nn.Module):
    """Attention of these."""

    def __init__(self, config: Gpt2Config) -> None:
        super().__init__()
        self.head_size = config.hidden // config.heads
        self.output = nn.Linear(config.hidden, config.hidden)

    def forward(self, qkv: torch.Tensor) -> torch.Tensor:
        batch, length, _ = qkv.shape
        q, k, v = (
            part.reshape(batch, length, -1, self.head_size).transpose(1, 2)
            for part in qkv.chunk(3, dim=-1)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        mixed = poptorch.set_available_memory(mixed, 0.3)
        return poptorch.set_available_memory(self.output(mixed.transpose(1, 2).flatten(2)), 0.5)


class Inner(nn.Module):
    """Half of a layer's inner products: a half of the inner size, there and back."""

    def __init__(self, config: Gpt2Config, proportion: float, bias: bool) -> None:
        """``proportion``: of tile memory, for its products; ``bias``: of the sum of both halves."""
        super().__init__()
        self.proportion = proportion
        self.expand = nn.Linear(config.hidden, 2 * config.hidden)
        self.contract = nn.Linear(2 * config.hidden, config.hidden, bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = poptorch.set_available_memory(self.expand(x), self.proportion)
        outer = self.contract(functional.gelu(inner, approximate="tanh"))
        return poptorch.set_available_memory(outer, self.proportion)


class Gpt3(nn.Module):
    """Blocks: ``embedding``, ``qkv0``, ``mix0``, ``first0``, ``second0`` ..., ``norm``, ``head0``,
    ``head1``.

    It gives its loss.
    """

    def __init__(self, config: Gpt2Config) -> None:
        super().__init__()
        layers = range(config.layers)
        self.word = nn.Embedding(config.vocabulary, config.hidden)
        self.position = nn.Embedding(config.positions, config.hidden)
        self.qkv = nn.ModuleList(Qkv(config) for _ in layers)
        self.mix = nn.ModuleList(Mix(config) for _ in layers)
        self.between = nn.ModuleList(nn.LayerNorm(config.hidden) for _ in layers)
        # The first half keeps what it hands on until two other stages have it.
        self.first = nn.ModuleList(Inner(config, 0.15, bias=False) for _ in layers)
        self.second = nn.ModuleList(Inner(config, 0.3, bias=True) for _ in layers)
        self.norm = nn.LayerNorm(config.hidden)
        # The table is twice a layer's weights: each half of the hidden size has a stage of its own.
        half = config.hidden // 2
        self.head = nn.ModuleList(nn.Linear(half, config.vocabulary, bias=False) for _ in range(2))
        self.register_buffer("order", torch.arange(config.sequence))

    def blocks(self) -> tuple[str, ...]:
        parts = ("qkv", "mix", "first", "second")
        layers = (f"{part}{number}" for number in range(len(self.qkv)) for part in parts)
        return ("embedding", *layers, "norm", "head0", "head1")

    def forward(self, tokens: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
        with block("embedding"):
            x = self.word(tokens) + self.position(self.order)
        for number in range(len(self.qkv)):
            with block(f"qkv{number}"):
                qkv = poptorch.recomputationCheckpoint(self.qkv[number](x))
            with block(f"mix{number}"):
                x = poptorch.recomputationCheckpoint(x + self.mix[number](qkv))
                inner = poptorch.recomputationCheckpoint(self.between[number](x))
            with block(f"first{number}"):
                x = poptorch.recomputationCheckpoint(x + self.first[number](inner))
            with block(f"second{number}"):
                # a view: layers that are captured once share no input
                again = inner.view_as(inner)
                x = poptorch.recomputationCheckpoint(x + self.second[number](again))
        with block("norm"):
            x = poptorch.recomputationCheckpoint(self.norm(x))
        left, right = x.chunk(2, dim=-1)
        with block("head0"):
            scores = self.head[0](left)
        with block("head1"):
            scores = scores + self.head[1](right)
            return functional.cross_entropy(scores.flatten(0, 1).float(), following.flatten())


def example(config: Gpt2Config) -> Example:
    """The model and random text."""
    model = Gpt3(config)

    def inputs(batch: int) -> tuple[torch.Tensor, ...]:
        shape = (batch, config.sequence)
        return integers(config.vocabulary, *shape), integers(config.vocabulary, *shape, seed=1)

    return Example("GPT-3", model, model.blocks(), inputs, config.micro_batch)
