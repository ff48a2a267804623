"""A small graph network.

Nodes send messages along edges, which are gathered, mapped, and added up by scatter.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from examples.models import Example, block, floats, integers, numbered


class Message(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.message, self.update = nn.Linear(hidden, hidden), nn.Linear(2 * hidden, hidden)
        self.norm = nn.LayerNorm(hidden)

    def forward(
        self, nodes: torch.Tensor, source: torch.Tensor, target: torch.Tensor
    ) -> torch.Tensor:
        messages = torch.relu(self.message(nodes.index_select(0, source)))
        received = torch.zeros_like(nodes).index_add(0, target, messages)
        return self.norm(nodes + torch.relu(self.update(torch.cat((nodes, received), dim=1))))


class Gnn(nn.Module):
    """Nodes of all graphs of a micro-batch in one row; edges name them."""

    def __init__(self, features: int, hidden: int, layers: int, classes: int) -> None:
        super().__init__()
        self.embed = nn.Linear(features, hidden)
        self.layer = nn.ModuleList(Message(hidden) for _ in range(layers))
        self.classify = nn.Linear(hidden, classes)

    def forward(
        self, nodes: torch.Tensor, source: torch.Tensor, target: torch.Tensor, labels: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        source, target, labels = source.flatten(), target.flatten(), labels.flatten()
        with block("embedding"):
            x = self.embed(nodes.flatten(0, 1))
        for number, layer in enumerate(self.layer):
            with block(f"layer{number}"):
                x = layer(x, source, target)
        with block("classifier"):
            logits = self.classify(x)
            return logits, functional.cross_entropy(logits, labels)


def example(tiny: bool) -> Example:
    """The model and random graphs."""
    nodes, edges, features, hidden, layers, classes = (
        (16, 40, 8, 16, 2, 4) if tiny else (1024, 8192, 64, 128, 4, 16)
    )
    model = Gnn(features, hidden, layers, classes)

    def inputs(batch: int) -> tuple[torch.Tensor, ...]:
        ends = [integers(nodes, batch, edges, seed=seed) for seed in (0, 1)]
        return floats(batch, nodes, features), *ends, integers(classes, batch, nodes, seed=2)

    return Example(
        "GNN", model, ("embedding", *numbered("layer", model.layer), "classifier"), inputs
    )
