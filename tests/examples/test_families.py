"""The models of `examples/models` are those of their papers: the parameters are as many."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from examples.models import efficientnet, resnet


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("config", "millions"), [(efficientnet.B0, 5.289), (efficientnet.B4, 19.342)], ids=("B0", "B4")
)
def test_efficientnets_have_the_published_parameters(
    config: efficientnet.Config, millions: float
) -> None:
    with torch.device("meta"):
        model = efficientnet.EfficientNet(config)
    assert round(parameters(model) / 1e6, 3) == millions


def test_wider_groups_are_those_of_every_depthwise_convolution() -> None:
    with torch.device("meta"):
        config = replace(efficientnet.B4, expansion=4, group_channels=16)
        model = efficientnet.EfficientNet(config)
    middle = [layer.depthwise[0] for layer in model.inverted]
    assert all(conv.groups == max(1, conv.in_channels // 16) for conv in middle)
    assert len(middle) == 32  # 10 before the fourth group, where the public pipelines are cut


@pytest.mark.parametrize(
    ("depth", "grouped", "millions"),
    [
        (18, {}, 11.690),
        (50, {}, 25.557),
        (101, {}, 44.549),
        (101, {"groups": 32, "group_channels": 4}, 44.178),
    ],
)
def test_resnets_have_the_published_parameters(
    depth: int, grouped: dict[str, int], millions: float
) -> None:
    with torch.device("meta"):
        model = resnet.ResNet(resnet.LAYERS[depth], depth >= 50, **grouped)
    assert round(parameters(model) / 1e6, 3) == millions
