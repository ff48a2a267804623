"""GPT-3 (Brown et al. 2020): GPT-2's decoder layers, with a head whose vocabulary can be sharded.

The plan shards a layer as Megatron-LM does: the first product of attention and of the inner layers
by its outputs, the second by its inputs, and the vocabulary of embedding and head by rows.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel
from torch.nn import functional

import ipu_exec as poptorch
from examples.models import Example, block, integers, numbered
from examples.models.gpt2 import Decoder, Gpt2Config

# The vocabulary of 50,257 is padded to a multiple of 128.
GPT3 = Gpt2Config(
    hidden=12_288, layers=96, heads=96, vocabulary=50_304, positions=2048, sequence=2048
)
TINY = Gpt2Config(hidden=64, layers=8, heads=8, vocabulary=128, positions=32, sequence=16)


def plan() -> dict[str, Any]:
    """How its tensors are shared by the IPUs of a stage."""
    return {
        "word": RowwiseParallel(input_layouts=Replicate()),
        "layer.*.qkv": ColwiseParallel(),
        "layer.*.output": RowwiseParallel(),
        "layer.*.expand": ColwiseParallel(),
        "layer.*.contract": RowwiseParallel(),
        "head": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False),
    }


class Gpt3(nn.Module):
    """Blocks: ``embedding``, ``layer0`` ..., ``head``. It gives its loss."""

    def __init__(self, config: Gpt2Config) -> None:
        super().__init__()
        self.word = nn.Embedding(config.vocabulary, config.hidden)
        self.position = nn.Embedding(config.positions, config.hidden)
        self.layer = nn.ModuleList(Decoder(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.hidden)
        self.head = nn.Linear(config.hidden, config.vocabulary, bias=False)
        self.head.weight = self.word.weight
        self.register_buffer("order", torch.arange(config.sequence))

    def forward(self, tokens: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
        with block("embedding"):
            x = self.word(tokens) + self.position(self.order)
        for number, layer in enumerate(self.layer):
            with block(f"layer{number}"):
                x = poptorch.recomputationCheckpoint(layer(x))
        with block("head"):
            scores = self.head(self.norm(x))
            return functional.cross_entropy(scores.flatten(0, 1).float(), following.flatten())


def example(config: Gpt2Config) -> Example:
    """The model and random text."""
    model = Gpt3(config)

    def inputs(batch: int) -> tuple[torch.Tensor, ...]:
        shape = (batch, config.sequence)
        return integers(config.vocabulary, *shape), integers(config.vocabulary, *shape, seed=1)

    names = ("embedding", *numbered("layer", model.layer), "head")
    return Example("GPT-3", model, names, inputs, config.micro_batch)
