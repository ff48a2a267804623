"""GPT-2 (Radford et al. 2019): decoder layers with causal attention, the output tied to the
embedding.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

import ipu_exec as poptorch
from examples.models import Example, block, integers, numbered


@dataclass(frozen=True)
class Gpt2Config:
    """Sizes of the model and of a micro-batch."""

    hidden: int = 768
    layers: int = 12
    heads: int = 12
    vocabulary: int = 50257
    positions: int = 1024
    sequence: int = 256
    micro_batch: int = 1
    # of the sequence, whose losses are found one after another; of several, the share of tokens
    # that are right is the output, not the scores
    loss_pieces: int = 1
    head_parts: int = 1  # of the vocabulary, in which the head's product is computed


SMALL = Gpt2Config()
MEDIUM = Gpt2Config(hidden=1024, layers=24, heads=16)
LARGE = Gpt2Config(hidden=1280, layers=36, heads=20)
TINY = Gpt2Config(hidden=32, layers=4, heads=2, vocabulary=96, positions=32, sequence=16)


class Decoder(nn.Module):
    def __init__(self, config: Gpt2Config) -> None:
        super().__init__()
        self.head_size = config.hidden // config.heads
        self.norm = nn.LayerNorm(config.hidden)
        self.qkv = nn.Linear(config.hidden, 3 * config.hidden)
        self.output = nn.Linear(config.hidden, config.hidden)
        self.mlp_norm = nn.LayerNorm(config.hidden)
        self.expand = nn.Linear(config.hidden, 4 * config.hidden)
        self.contract = nn.Linear(4 * config.hidden, config.hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = (
            part.reshape(batch, length, -1, self.head_size).transpose(1, 2)
            for part in self.qkv(self.norm(x)).chunk(3, dim=-1)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.output(mixed.transpose(1, 2).flatten(2))
        return x + self.contract(functional.gelu(self.expand(self.mlp_norm(x)), approximate="tanh"))


class Gpt2(nn.Module):
    def __init__(self, config: Gpt2Config) -> None:
        super().__init__()
        self.word = nn.Embedding(config.vocabulary, config.hidden)
        self.position = nn.Embedding(config.positions, config.hidden)
        self.layer = nn.ModuleList(Decoder(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.hidden)
        self.register_buffer("order", torch.arange(config.sequence))
        self.loss_pieces, self.head_parts = config.loss_pieces, config.head_parts

    def forward(
        self, tokens: torch.Tensor, following: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        with block("embedding"):
            x = self.word(tokens) + self.position(self.order)
        for number, layer in enumerate(self.layer):
            with block(f"layer{number}"):
                x = poptorch.recomputationCheckpoint(layer(x))
        with block("head"):
            scores, wanted = self._scores(self.norm(x)), following.flatten()
            if self.loss_pieces > 1:
                return self._in_pieces(scores.flatten(0, 1), wanted)
            return scores, functional.cross_entropy(scores.flatten(0, 1).float(), wanted)

    def _scores(self, x: torch.Tensor) -> torch.Tensor:
        if self.head_parts == 1:
            return functional.linear(x, self.word.weight)
        by_output = poptorch.MatMulSerializationMode.OutputChannels
        return poptorch.serializedMatMul(x, self.word.weight.t(), by_output, self.head_parts)

    def _in_pieces(
        self, scores: torch.Tensor, following: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The share of tokens that are right, and the loss."""
        right, losses = [], []
        pieces = zip(scores.chunk(self.loss_pieces), following.chunk(self.loss_pieces), strict=True)
        for some, wanted in pieces:
            right.append((some.argmax(-1) == wanted).float().mean())
            losses.append(functional.cross_entropy(some, wanted).float())
        loss = poptorch.identity_loss(torch.stack(losses).mean(), reduction="none")
        return torch.stack(right).mean(), loss


def example(config: Gpt2Config) -> Example:
    """The model and random text."""
    model = Gpt2(config)

    def inputs(batch: int) -> tuple[torch.Tensor, ...]:
        shape = (batch, config.sequence)
        return integers(config.vocabulary, *shape), integers(config.vocabulary, *shape, seed=1)

    return Example(
        "GPT-2",
        model,
        ("embedding", *numbered("layer", model.layer), "head"),
        inputs,
        config.micro_batch,
    )
