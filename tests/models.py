"""Small models that the engine's tests share."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn

import ipu_exec


class Mnist(nn.Module):
    """The network of the PopTorch pipelining tutorial, in four Blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 10, 5), nn.Conv2d(10, 20, 5)
        self.pool = nn.MaxPool2d(2)
        self.fc1, self.fc2 = nn.Linear(320, 256), nn.Linear(256, 10)
        self.loss = nn.CrossEntropyLoss()

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None):
        with ipu_exec.Block("B1"):
            x = torch.relu(self.pool(self.conv1(x)))
        with ipu_exec.Block("B2"):
            x = torch.relu(self.pool(self.conv2(x)))
        with ipu_exec.Block("B3"):
            x = torch.relu(self.fc1(x.flatten(1)))
        with ipu_exec.Block("B4"):
            x = self.fc2(x)
            if labels is None:
                return x
            return x, self.loss(x, labels)


class Mlp(nn.Module):
    """A linear layer to a Block; ``ipus`` gives each Block its IPU."""

    def __init__(self, widths: list[int], ipus: list[int] | None = None) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))
        self.ipus = ipus or list(range(len(self.layers)))

    def forward(self, x: torch.Tensor, target: torch.Tensor | None = None):
        for index, layer in enumerate(self.layers):
            with ipu_exec.Block(f"L{index}", ipu_id=self.ipus[index]):
                x = torch.relu(layer(x))
        return x if target is None else (x, nn.functional.mse_loss(x, target))


def mnist_batch(samples: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Random images and labels."""
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randn(samples, 1, 28, 28, generator=generator),
        torch.randint(0, 10, (samples,), generator=generator),
    )
