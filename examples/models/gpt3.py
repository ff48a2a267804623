"""GPT-3 (Brown et al. 2020): a layer in three Blocks with as many weights each, the vocabulary of
embedding and head ready to be shared.

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
_PARTS = 2  # an IPU's heads one half after the other: their scores are the most that a tile holds
TINY = Gpt2Config(hidden=64, layers=8, heads=8, vocabulary=128, positions=32, sequence=16)


def plan() -> dict[str, Any]:
    """How its tensors are shared by the IPUs of a stage."""
    return {
        "word": RowwiseParallel(input_layouts=Replicate()),
        "attention.*.qkv": ColwiseParallel(),
        "attention.*.output": RowwiseParallel(),
        "expand.*.product": ColwiseParallel(),
        "contract.*.product": RowwiseParallel(),
        "head": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False),
    }


class Attention(nn.Module):
    def __init__(self, config: Gpt2Config) -> None:
        super().__init__()
        self.head_size = config.hidden // config.heads
        self.norm = nn.LayerNorm(config.hidden)
        self.qkv = nn.Linear(config.hidden, 3 * config.hidden)
        self.output = nn.Linear(config.hidden, config.hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = (
            part.reshape(batch, length, -1, self.head_size).transpose(1, 2)
            for part in self._products(x).chunk(3, dim=-1)
        )
        heads = zip(*(part.chunk(_PARTS, dim=1) for part in (q, k, v)), strict=True)
        mixed = torch.cat([self._mix(*some) for some in heads], dim=1)
        return x + self.output(mixed.transpose(1, 2).flatten(2))

    def _products(self, x: torch.Tensor) -> torch.Tensor:
        # Its gradients are made beside the weight, its copies and what attention keeps.
        return poptorch.set_available_memory(self.qkv(self.norm(x)), 0.3)

    def _mix(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        # The scores take so much of a tile that little is left for the products beside them.
        return poptorch.set_available_memory(mixed, 0.2)


class Expand(nn.Module):
    """The first of a layer's inner products."""

    def __init__(self, config: Gpt2Config) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.hidden)
        self.product = nn.Linear(config.hidden, 4 * config.hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.gelu(self.product(self.norm(x)), approximate="tanh")


class Contract(nn.Module):
    """The second."""

    def __init__(self, config: Gpt2Config) -> None:
        super().__init__()
        self.product = nn.Linear(4 * config.hidden, config.hidden)

    def forward(self, inner: torch.Tensor) -> torch.Tensor:
        return self.product(inner)


class Gpt3(nn.Module):
    """Blocks: ``embedding``, ``attention0``, ``expand0``, ``contract0`` ..., ``norm``, ``head``.

    It gives its loss.
    """

    def __init__(self, config: Gpt2Config) -> None:
        super().__init__()
        layers = range(config.layers)
        self.word = nn.Embedding(config.vocabulary, config.hidden)
        self.position = nn.Embedding(config.positions, config.hidden)
        self.attention = nn.ModuleList(Attention(config) for _ in layers)
        self.expand = nn.ModuleList(Expand(config) for _ in layers)
        self.contract = nn.ModuleList(Contract(config) for _ in layers)
        self.norm = nn.LayerNorm(config.hidden)
        self.head = nn.Linear(config.hidden, config.vocabulary, bias=False)
        self.register_buffer("order", torch.arange(config.sequence))

    def blocks(self) -> tuple[str, ...]:
        parts = ("attention", "expand", "contract")
        layers = (f"{part}{number}" for number in range(len(self.expand)) for part in parts)
        return ("embedding", *layers, "norm", "head")

    def forward(self, tokens: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
        with block("embedding"):
            x = self.word(tokens) + self.position(self.order)
        layers = zip(self.attention, self.expand, self.contract, strict=True)
        for number, (attention, expand, contract) in enumerate(layers):
            with block(f"attention{number}"):
                x = poptorch.recomputationCheckpoint(attention(x))
            with block(f"expand{number}"):
                inner = expand(x)
            with block(f"contract{number}"):
                x = poptorch.recomputationCheckpoint(x + contract(inner))
        with block("norm"):
            x = poptorch.recomputationCheckpoint(self.norm(x))
        with block("head"):
            scores = poptorch.set_available_memory(self.head(x), 0.25)
            return functional.cross_entropy(scores.flatten(0, 1).float(), following.flatten())


def example(config: Gpt2Config) -> Example:
    """The model and random text."""
    model = Gpt3(config)

    def inputs(batch: int) -> tuple[torch.Tensor, ...]:
        shape = (batch, config.sequence)
        return integers(config.vocabulary, *shape), integers(config.vocabulary, *shape, seed=1)

    return Example("GPT-3", model, model.blocks(), inputs, config.micro_batch)
