"""ViT-B/16 (Dosovitskiy et al. 2020): an image as patches, and encoder layers over them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

import ipu_exec as poptorch
from examples.models import Example, block, floats, integers, numbered


@dataclass(frozen=True)
class Config:
    """Sizes, and what public implementations differ in."""

    side: int = 224
    patch: int = 16
    hidden: int = 768
    layers: int = 12
    heads: int = 12
    classes: int = 1000
    dropout: float = 0.0
    attention_dropout: float = 0.0
    # queries, keys and values from products of their own, the attention written out
    separate: bool = False
    # a tanh layer before the classifier, as in pretraining
    representation: bool = False
    middle_checkpoints: tuple[int, ...] = ()  # layers that also keep what their attention returns


BASE = Config()
TINY = Config(side=32, patch=8, hidden=32, layers=4, heads=2, classes=10)


def dropout(share: float) -> nn.Module:
    return nn.Dropout(share) if share else nn.Identity()


class Attention(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        hidden, self.heads, self.separate = config.hidden, config.heads, config.separate
        if config.separate:
            self.query, self.key, self.value = (nn.Linear(hidden, hidden) for _ in range(3))
        else:
            self.qkv = nn.Linear(hidden, 3 * hidden)
        self.output = nn.Linear(hidden, hidden)
        self.dropout = dropout(config.attention_dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, hidden = x.shape
        if self.separate:
            mixed = self._written_out(x)
        else:
            q, k, v = (
                self.qkv(x)
                .reshape(batch, length, 3, self.heads, -1)
                .permute(2, 0, 3, 1, 4)
                .unbind(0)
            )
            mixed = functional.scaled_dot_product_attention(q, k, v)
        return self.output(mixed.transpose(1, 2).reshape(batch, length, hidden))

    def _written_out(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, hidden = x.shape
        width = hidden // self.heads
        q, k, v = (
            part(x).view(batch, length, self.heads, width).permute(0, 2, 1, 3)
            for part in (self.query, self.key, self.value)
        )
        scores = q @ k.transpose(-1, -2) / math.sqrt(width)
        return self.dropout(torch.softmax(scores, dim=-1)) @ v


class Encoder(nn.Module):
    def __init__(self, config: Config, middle_checkpoint: bool) -> None:
        super().__init__()
        hidden = config.hidden
        self.norm, self.mlp_norm = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.attention, self.dropout = Attention(config), dropout(config.dropout)
        self.mlp = nn.Sequential(
            nn.Linear(hidden, 4 * hidden),
            nn.GELU(),
            dropout(config.dropout),
            nn.Linear(4 * hidden, hidden),
            dropout(config.dropout),
        )
        self.middle_checkpoint = middle_checkpoint

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.dropout(self.attention(self.norm(x)))
        if self.middle_checkpoint:
            x = poptorch.recomputationCheckpoint(x)
        return x + self.mlp(self.mlp_norm(x))


class ViT(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        hidden, patch = config.hidden, config.patch
        self.patches = nn.Conv2d(3, hidden, patch, patch)
        self.first = nn.Parameter(torch.zeros(1, 1, hidden))
        patches = (config.side // patch) ** 2
        self.position = nn.Parameter(torch.zeros(1, patches + 1, hidden))
        self.dropout = dropout(config.dropout)
        self.layer = nn.ModuleList(
            Encoder(config, number in config.middle_checkpoints) for number in range(config.layers)
        )
        self.norm = nn.LayerNorm(hidden)
        self.representation: nn.Module = nn.Identity()
        if config.representation:
            self.representation = nn.Sequential(nn.Linear(hidden, hidden), nn.Tanh())
        self.classify = nn.Linear(hidden, config.classes)

    def forward(
        self, images: torch.Tensor, labels: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        with block("patches"):
            x = self.patches(images).flatten(2).transpose(1, 2)
            x = torch.cat((self.first.expand(len(x), -1, -1), x), dim=1) + self.position
            x = self.dropout(x)
        for number, layer in enumerate(self.layer):
            with block(f"layer{number}"):
                x = poptorch.recomputationCheckpoint(layer(x))
        with block("classifier"):
            logits = self.classify(self.representation(self.norm(x)[:, 0]))
            return logits, functional.cross_entropy(logits.float(), labels)


def example(tiny: bool) -> Example:
    """The model and random images."""
    return example_of(TINY if tiny else BASE)


def example_of(config: Config) -> Example:
    """The model and random images."""
    model = ViT(config)
    return Example(
        "ViT",
        model,
        ("patches", *numbered("layer", model.layer), "classifier"),
        lambda batch: (
            floats(batch, 3, config.side, config.side),
            integers(config.classes, batch),
        ),
        2,
    )
