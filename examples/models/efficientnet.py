"""EfficientNet (Tan and Le 2019): inverted bottlenecks with depthwise convolutions and
squeeze-and-excitation, and Graphcore's variant of it (Masters et al. 2021, "Making EfficientNet
More Efficient"): groups of 16 channels in place of one, a smaller expansion, group norm.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from examples.models import Example, block, floats, integers, numbered

# (expansion, channels, how many, stride, kernel) of each group
GROUPS = (
    (1, 16, 1, 1, 3),
    (6, 24, 2, 2, 3),
    (6, 40, 2, 2, 5),
    (6, 80, 3, 2, 3),
    (6, 112, 3, 1, 5),
    (6, 192, 4, 2, 5),
    (6, 320, 1, 1, 3),
)
TINY = ((1, 8, 1, 1, 3), (4, 16, 1, 2, 5), (4, 16, 1, 1, 3), (4, 24, 1, 2, 3))


Norm = Callable[[int], nn.Module]


@dataclass(frozen=True)
class Config:
    """A member of the family: multipliers of channels and layers, and what its blocks are."""

    groups: tuple[tuple[int, ...], ...] = GROUPS
    stem: int = 32
    head: int = 1280
    classes: int = 1000
    side: int = 224  # pixels of an image
    width: float = 1.0
    depth: float = 1.0
    expansion: int | None = None  # in place of that of ``groups``
    group_channels: int = 1  # of the depthwise convolutions
    norm: Norm = nn.BatchNorm2d

    def channels(self, count: int) -> int:
        """A multiple of 8 near ``count`` times the width, never less than nine tenths of it."""
        wanted = count * self.width
        rounded = max(8, int(wanted + 4) // 8 * 8)
        return rounded + 8 if rounded < 0.9 * wanted else rounded

    def layers(self, count: int) -> int:
        return math.ceil(count * self.depth)


B0 = Config()
B4 = Config(side=380, width=1.4, depth=1.8)
TINY_B0 = Config(TINY, stem=8, head=32, classes=10, side=32)


def convolved(
    channels: int, out: int, kernel: int, norm: Norm, stride: int = 1, groups: int = 1
) -> nn.Sequential:
    """Convolution, norm, SiLU."""
    convolution = nn.Conv2d(channels, out, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(convolution, norm(out), nn.SiLU())


class Inverted(nn.Module):
    def __init__(
        self, config: Config, channels: int, expansion: int, out: int, stride: int, kernel: int
    ) -> None:
        super().__init__()
        inner, norm = channels * expansion, config.norm
        groups = max(1, inner // config.group_channels)
        self.expand = convolved(channels, inner, 1, norm) if expansion > 1 else nn.Identity()
        self.depthwise = convolved(inner, inner, kernel, norm, stride, groups)
        self.squeeze, self.excite = (
            nn.Conv2d(inner, max(1, channels // 4), 1),
            nn.Conv2d(max(1, channels // 4), inner, 1),
        )
        self.project = nn.Sequential(nn.Conv2d(inner, out, 1, bias=False), norm(out))
        self.kept = stride == 1 and channels == out

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.depthwise(self.expand(x))
        weight = torch.sigmoid(
            self.excite(functional.silu(self.squeeze(functional.adaptive_avg_pool2d(out, 1))))
        )
        out = self.project(out * weight)
        return x + out if self.kept else out


class EfficientNet(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        channels = config.channels(config.stem)
        self.stem = convolved(3, channels, 3, config.norm, 2)
        self.inverted = nn.ModuleList()
        for own_expansion, count_of_channels, layers, stride, kernel in config.groups:
            out = config.channels(count_of_channels)
            wider = config.expansion if config.expansion and own_expansion > 1 else own_expansion
            for number in range(config.layers(layers)):
                step = stride if number == 0 else 1
                self.inverted.append(Inverted(config, channels, wider, out, step, kernel))
                channels = out
        head = config.channels(config.head)
        self.head = convolved(channels, head, 1, config.norm)
        self.dropout, self.classify = nn.Dropout(0.2), nn.Linear(head, config.classes)

    def forward(
        self, images: torch.Tensor, labels: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        with block("stem"):
            x = self.stem(images)
        for number, layer in enumerate(self.inverted):
            with block(f"inverted{number}"):
                x = layer(x)
        with block("classifier"):
            logits = self.classify(
                self.dropout(functional.adaptive_avg_pool2d(self.head(x), 1).flatten(1))
            )
            return logits, functional.cross_entropy(logits.float(), labels)


def example(tiny: bool) -> Example:
    """EfficientNet-B0 and random images."""
    return example_of(TINY_B0 if tiny else B0)


def example_of(config: Config) -> Example:
    """The model and random images."""
    model = EfficientNet(config)
    blocks = ("stem", *numbered("inverted", model.inverted), "classifier")
    return Example(
        "EfficientNet",
        model,
        blocks,
        lambda batch: (
            floats(batch, 3, config.side, config.side),
            integers(config.classes, batch),
        ),
        2,
    )
