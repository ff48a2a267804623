"""ResNet-18, -50 and -101 (He et al. 2015; stride on the 3x3 convolution), a Block for each
residual block; with groups in the 3x3 convolution it is a ResNeXt (Xie et al. 2016).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

from examples.models import Example, block, floats, integers, numbered

LAYERS = {18: (2, 2, 2, 2), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3)}

Norm = Callable[[int], nn.Module]


class Residual(nn.Module):
    """Convolutions with norms around a shortcut.

    3x3, 3x3, or 1x1, 3x3, 1x1 with four times the channels. ``groups`` divide the 3x3 of a
    bottleneck, which has ``group_channels`` in each of them at 64 inner channels.
    """

    def __init__(
        self,
        channels: int,
        inner: int,
        stride: int,
        bottleneck: bool,
        norm: Norm,
        groups: int,
        group_channels: int,
    ) -> None:
        super().__init__()
        out = 4 * inner if bottleneck else inner
        if bottleneck:
            middle = inner * groups * group_channels // 64
            convolutions = [
                nn.Conv2d(channels, middle, 1, bias=False),
                nn.Conv2d(middle, middle, 3, stride, 1, bias=False, groups=groups),
                nn.Conv2d(middle, out, 1, bias=False),
            ]
        else:
            convolutions = [
                nn.Conv2d(channels, inner, 3, stride, 1, bias=False),
                nn.Conv2d(inner, out, 3, 1, 1, bias=False),
            ]
        self.convolutions = nn.ModuleList(convolutions)
        self.norms = nn.ModuleList(norm(conv.out_channels) for conv in convolutions)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, out, 1, stride, bias=False), norm(out)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = x
        for conv, norm in zip(self.convolutions, self.norms, strict=True):
            out = norm(conv(out))
            if conv is not self.convolutions[-1]:
                out = torch.relu(out)
        return torch.relu(out + self.shortcut(x))


class ResNet(nn.Module):
    def __init__(
        self,
        layers: tuple[int, ...],
        bottleneck: bool,
        width: int = 64,
        classes: int = 1000,
        norm: Norm = nn.BatchNorm2d,
        groups: int = 1,
        group_channels: int = 64,
    ) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, 2, 3, bias=False),
            norm(width),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, 1),
        )
        self.residual, channels = nn.ModuleList(), width
        for group, count in enumerate(layers):
            for number in range(count):
                inner = width << group
                stride = 2 if group and not number else 1
                self.residual.append(
                    Residual(channels, inner, stride, bottleneck, norm, groups, group_channels)
                )
                channels = 4 * inner if bottleneck else inner
        self.classify = nn.Linear(channels, classes)

    def forward(
        self, images: torch.Tensor, labels: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        with block("stem"):
            x = self.stem(images)
        for number, layer in enumerate(self.residual):
            with block(f"residual{number}"):
                x = layer(x)
        with block("classifier"):
            logits = self.classify(functional.adaptive_avg_pool2d(x, 1).flatten(1))
            return logits, functional.cross_entropy(logits.float(), labels)


def example(depth: int, tiny: bool) -> Example:
    """The model and random images: 224 x 224, or 32 x 32."""
    classes, side = (10, 32) if tiny else (1000, 224)
    model = ResNet((1, 1, 1, 1) if tiny else LAYERS[depth], depth == 50, 8 if tiny else 64, classes)
    blocks = ("stem", *numbered("residual", model.residual), "classifier")
    return Example(
        f"ResNet-{depth}",
        model,
        blocks,
        lambda batch: (floats(batch, 3, side, side), integers(classes, batch)),
        4,
    )
