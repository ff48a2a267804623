"""ViT-B/16 (Dosovitskiy et al. 2020): an image as patches, and encoder layers over them."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

import ipu_exec as poptorch
from examples.models import Example, block, floats, integers, numbered


class Encoder(nn.Module):
    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.mlp_norm = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.output = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.mlp = nn.Sequential(
            nn.Linear(hidden, 4 * hidden), nn.GELU(), nn.Linear(4 * hidden, hidden)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, hidden = x.shape
        q, k, v = (
            self.qkv(self.norm(x))
            .reshape(batch, length, 3, self.heads, -1)
            .permute(2, 0, 3, 1, 4)
            .unbind(0)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v)
        x = x + self.output(mixed.transpose(1, 2).reshape(batch, length, hidden))
        return x + self.mlp(self.mlp_norm(x))


class ViT(nn.Module):
    def __init__(
        self, side: int, patch: int, hidden: int, layers: int, heads: int, classes: int
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, hidden, patch, patch)
        self.first = nn.Parameter(torch.zeros(1, 1, hidden))
        self.position = nn.Parameter(torch.zeros(1, (side // patch) ** 2 + 1, hidden))
        self.layer = nn.ModuleList(Encoder(hidden, heads) for _ in range(layers))
        self.norm, self.classify = nn.LayerNorm(hidden), nn.Linear(hidden, classes)

    def forward(
        self, images: torch.Tensor, labels: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        with block("patches"):
            x = self.patches(images).flatten(2).transpose(1, 2)
            x = torch.cat((self.first.expand(len(x), -1, -1), x), dim=1) + self.position
        for number, layer in enumerate(self.layer):
            with block(f"layer{number}"):
                x = poptorch.recomputationCheckpoint(layer(x))
        with block("classifier"):
            logits = self.classify(self.norm(x)[:, 0])
            return logits, functional.cross_entropy(logits.float(), labels)


def example(tiny: bool) -> Example:
    """The model and random images."""
    side, patch, hidden, layers, heads, classes = (
        (32, 8, 32, 4, 2, 10) if tiny else (224, 16, 768, 12, 12, 1000)
    )
    model = ViT(side, patch, hidden, layers, heads, classes)
    blocks = ("patches", *numbered("layer", model.layer), "classifier")
    return Example(
        "ViT",
        model,
        blocks,
        lambda batch: (floats(batch, 3, side, side), integers(classes, batch)),
        2,
    )
