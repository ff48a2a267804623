"""Small models that the engine's tests share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import nn

import ipu_exec


def model_of(forward: Callable[..., Any], **parts: nn.Module | torch.Tensor | None) -> Any:
    """A model with the ``forward`` given: a function of ``self`` and the inputs.

    ``parts`` are its attributes: layers, parameters, and tensors, which become buffers.
    """
    model = type("Model", (nn.Module,), {"forward": forward})()
    for name, part in parts.items():
        if isinstance(part, torch.Tensor) and not isinstance(part, nn.Parameter):
            model.register_buffer(name, part)
        else:
            setattr(model, name, part)
    return model


def mean_square(layer: nn.Module) -> Any:
    """A model whose loss is the mean square of a layer's output."""
    return model_of(lambda self, x: self.layer(x).square().mean(), layer=layer)


class WithLoss(nn.Module):
    """A model with the mean squared error of its output, as trainingModel takes it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        output = self.model(x)
        return output, nn.functional.mse_loss(output, target)


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
    """A linear layer to a Block; ``ipus`` gives each Block its IPU, or None to leave it open."""

    def __init__(self, widths: list[int], ipus: Sequence[int | None] | None = None) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))
        self.ipus = ipus or list(range(len(self.layers)))

    def forward(self, x: torch.Tensor, target: torch.Tensor | None = None):
        for index, layer in enumerate(self.layers):
            with ipu_exec.Block(f"L{index}", ipu_id=self.ipus[index]):
                x = torch.relu(layer(x))
        return x if target is None else (x, nn.functional.mse_loss(x, target))


class LayersInBlocks(nn.Module):
    """Equal layers, as many in each Block as ``sizes`` says."""

    def __init__(self, sizes: dict[str, int], width: int = 256) -> None:
        super().__init__()
        self.sizes = sizes
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(sum(sizes.values())))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        layers = iter(self.layers)
        for name, count in self.sizes.items():
            with ipu_exec.Block(name):
                for _ in range(count):
                    x = torch.relu(next(layers)(x))
        with ipu_exec.Block(name):
            return x, nn.functional.cross_entropy(x, labels)


class TiedWords(nn.Module):
    """Words to vectors and back by one weight, two layers between, as BERT's head has it.

    ``ipus`` gives the Blocks (words, layer0, layer1, head) their IPUs.
    """

    def __init__(
        self, words: int, width: int, ipus: Sequence[int | None] = (None, None, None, None)
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.ipus = ipus
        self.parts = 1  # in which the head's product is computed

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        words, *between, head = self.ipus
        with ipu_exec.Block("words", ipu_id=words):
            x = self.words(x)
        for number, (ipu, layer) in enumerate(zip(between, self.layers, strict=True)):
            with ipu_exec.Block(f"layer{number}", ipu_id=ipu):
                x = torch.relu(layer(x))
        with ipu_exec.Block("head", ipu_id=head):
            if self.parts == 1:
                x = nn.functional.linear(x, self.words.weight)
            else:
                by_output = ipu_exec.MatMulSerializationMode.OutputChannels
                table = self.words.weight.t()
                x = ipu_exec.serializedMatMul(x, table, by_output, self.parts)
            return x, nn.functional.cross_entropy(x.flatten(0, -2), labels.flatten())


def mnist_batch(samples: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Random images and labels."""
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randn(samples, 1, 28, 28, generator=generator),
        torch.randint(0, 10, (samples,), generator=generator),
    )
