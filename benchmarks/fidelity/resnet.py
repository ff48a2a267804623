"""ResNet-50 (He et al. 2015, stride on the 3x3 convolution) with its loss, a Block for each group of layers."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import ipu_exec


class Bottleneck(nn.Module):
    def __init__(self, channels: int, inner: int, stride: int) -> None:
        super().__init__()
        self.reduce = nn.Conv2d(channels, inner, 1, bias=False)
        self.reduce_norm = nn.BatchNorm2d(inner)
        self.spatial = nn.Conv2d(inner, inner, 3, stride=stride, padding=1, bias=False)
        self.spatial_norm = nn.BatchNorm2d(inner)
        self.expand = nn.Conv2d(inner, 4 * inner, 1, bias=False)
        self.expand_norm = nn.BatchNorm2d(4 * inner)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != 4 * inner:
            projection = nn.Conv2d(channels, 4 * inner, 1, stride=stride, bias=False)
            self.shortcut = nn.Sequential(projection, nn.BatchNorm2d(4 * inner))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = torch.relu(self.reduce_norm(self.reduce(x)))
        out = torch.relu(self.spatial_norm(self.spatial(out)))
        return torch.relu(self.expand_norm(self.expand(out)) + self.shortcut(x))


class ResNet50(nn.Module):
    """``recompute``: of each bottleneck only what enters it is kept; the backward runs it again."""

    def __init__(self, classes: int = 1000, recompute: bool = False) -> None:
        super().__init__()
        self.recompute = recompute
        stem = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.stem = nn.Sequential(stem, nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        self.groups, channels = nn.ModuleList(), 64
        for group, blocks in enumerate((3, 4, 6, 3)):
            inner, layers = 64 << group, []
            for block in range(blocks):
                layers.append(Bottleneck(channels, inner, 2 if group and block == 0 else 1))
                channels = 4 * inner
            self.groups.append(nn.Sequential(*layers))
        self.classify = nn.Linear(channels, classes)

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with ipu_exec.Block("stem"):
            x = self.stem(images)
        for number, group in enumerate(self.groups):
            with ipu_exec.Block(f"group{number + 1}"):
                for layer in group:
                    x = checkpoint(layer, x, use_reentrant=False) if self.recompute else layer(x)
        with ipu_exec.Block("classifier"):
            logits = self.classify(x.mean((2, 3)))
            return logits, nn.functional.cross_entropy(logits.float(), labels)
