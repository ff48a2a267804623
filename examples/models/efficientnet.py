"""EfficientNet-B0 (Tan and Le 2019).

Inverted bottlenecks with depthwise convolutions and squeeze-and-excitation.
"""

from __future__ import annotations

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


def convolved(
    channels: int, out: int, kernel: int, stride: int = 1, groups: int = 1
) -> nn.Sequential:
    """Convolution, norm, SiLU."""
    convolution = nn.Conv2d(channels, out, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(out), nn.SiLU())


class Inverted(nn.Module):
    def __init__(self, channels: int, expansion: int, out: int, stride: int, kernel: int) -> None:
        super().__init__()
        inner = channels * expansion
        self.expand = convolved(channels, inner, 1) if expansion > 1 else nn.Identity()
        self.depthwise = convolved(inner, inner, kernel, stride, groups=inner)
        self.squeeze, self.excite = (
            nn.Conv2d(inner, max(1, channels // 4), 1),
            nn.Conv2d(max(1, channels // 4), inner, 1),
        )
        self.project = nn.Sequential(nn.Conv2d(inner, out, 1, bias=False), nn.BatchNorm2d(out))
        self.kept = stride == 1 and channels == out

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.depthwise(self.expand(x))
        weight = torch.sigmoid(
            self.excite(functional.silu(self.squeeze(functional.adaptive_avg_pool2d(out, 1))))
        )
        out = self.project(out * weight)
        return x + out if self.kept else out


class EfficientNet(nn.Module):
    def __init__(
        self, groups: tuple[tuple[int, ...], ...], stem: int, head: int, classes: int
    ) -> None:
        super().__init__()
        self.stem = convolved(3, stem, 3, 2)
        self.inverted, channels = nn.ModuleList(), stem
        for expansion, out, count, stride, kernel in groups:
            for number in range(count):
                self.inverted.append(
                    Inverted(channels, expansion, out, stride if number == 0 else 1, kernel)
                )
                channels = out
        self.head = convolved(channels, head, 1)
        self.dropout, self.classify = nn.Dropout(0.2), nn.Linear(head, classes)

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
    """The model and random images."""
    classes, side = (10, 32) if tiny else (1000, 224)
    model = EfficientNet(TINY if tiny else GROUPS, 8 if tiny else 32, 32 if tiny else 1280, classes)
    blocks = ("stem", *numbered("inverted", model.inverted), "classifier")
    return Example(
        "EfficientNet",
        model,
        blocks,
        lambda batch: (floats(batch, 3, side, side), integers(classes, batch)),
        2,
    )
