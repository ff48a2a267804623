"""A language model of stacked LSTM layers (Zaremba et al. 2014, the large one)."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from examples.models import Example, block, integers, numbered


class Lstm(nn.Module):
    def __init__(self, vocabulary: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.word = nn.Embedding(vocabulary, hidden)
        self.layer = nn.ModuleList(nn.LSTM(hidden, hidden, batch_first=True) for _ in range(layers))
        self.dropout = nn.Dropout(0.5)
        self.output = nn.Linear(hidden, vocabulary)

    def forward(
        self, tokens: torch.Tensor, following: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        with block("embedding"):
            x = self.dropout(self.word(tokens))
        for number, layer in enumerate(self.layer):
            with block(f"layer{number}"):
                x = self.dropout(layer(x)[0])
        with block("output"):
            scores = self.output(x)
            return scores, functional.cross_entropy(scores.flatten(0, 1), following.flatten())


def example(tiny: bool) -> Example:
    """The model and random text."""
    vocabulary, hidden, layers, sequence = (64, 16, 2, 6) if tiny else (10_000, 1500, 2, 35)
    model = Lstm(vocabulary, hidden, layers)

    def inputs(batch: int) -> tuple[torch.Tensor, ...]:
        return integers(vocabulary, batch, sequence), integers(vocabulary, batch, sequence, seed=1)

    return Example(
        "LSTM", model, ("embedding", *numbered("layer", model.layer), "output"), inputs, 4
    )
