"""nn.MultiheadAttention and nn.TransformerEncoderLayer, in inference and in training."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import ipu_exec
from tests.models import model_of

SEQUENCE, BATCH, WIDTH = 5, 4, 16


class Encoder(nn.Module):
    def __init__(self, masked: bool, padded: bool, **settings: Any) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(WIDTH, 2, 32, dropout=0.0, **settings)
        mask = nn.Transformer.generate_square_subsequent_mask(SEQUENCE) > -1 if masked else None
        self.register_buffer("mask", None if mask is None else ~mask)
        self.padded, self.batch_first = padded, settings["batch_first"]

    def forward(self, x: torch.Tensor) -> Any:
        """``x``: [batch, sequence, width]."""
        padding = torch.zeros(x.shape[:2], dtype=torch.bool) if self.padded else None
        y = self.layer(x if self.batch_first else x.transpose(0, 1), self.mask, padding)
        return (y, ipu_exec.identity_loss(y.square().mean(), "mean")) if self.training else y


class Attention(nn.Module):
    def __init__(self, need_weights: bool, masked: bool, batch_first: bool) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=batch_first)
        self.need_weights, self.masked, self.batch_first = need_weights, masked, batch_first

    def forward(self, x: torch.Tensor) -> Any:
        """``x``: [batch, sequence, width]."""
        x = x if self.batch_first else x.transpose(0, 1)
        mask = torch.zeros(SEQUENCE, SEQUENCE) if self.masked else None
        y, weights = self.attention(x, x, x, need_weights=self.need_weights, attn_mask=mask)
        if not self.training:
            return y
        loss = y.square().mean() + (weights.square().mean() if weights is not None else 0.0)
        return y, ipu_exec.identity_loss(loss, "mean")


def both_ways(model: nn.Module) -> set[str]:
    """Infer, then train one step, comparing both with plain PyTorch.

    Returns the ATen names of the inference.
    """
    options = ipu_exec.Options().showCompilationProgressBar(False)
    x = torch.randn(BATCH, SEQUENCE, WIDTH, generator=torch.Generator().manual_seed(1))
    plain = copy.deepcopy(model).eval()
    inference = ipu_exec.inferenceModel(model.eval(), options)
    with torch.no_grad():
        expected = plain(x)
    torch.testing.assert_close(inference(x), expected)
    assert torch.backends.mha.get_fastpath_enabled()
    assert inference.executable.cycles_per_call > 0

    training = ipu_exec.trainingModel(
        model.train(), options, torch.optim.SGD(model.parameters(), lr=0.1)
    )
    training(x)
    optimizer = torch.optim.SGD(plain.train().parameters(), lr=0.1)
    plain(x)[1].backward()
    optimizer.step()
    torch.testing.assert_close(dict(model.named_parameters()), dict(plain.named_parameters()))
    return {op.aten for op in inference.executable.graph.ops}


@pytest.mark.parametrize("padded", [False, True], ids=["", "padded"])
@pytest.mark.parametrize("masked", [False, True], ids=["", "masked"])
@pytest.mark.parametrize("batch_first", [False, True], ids=["", "batch_first"])
@pytest.mark.parametrize("norm_first", [False, True], ids=["", "norm_first"])
def test_an_encoder_layer(norm_first: bool, batch_first: bool, masked: bool, padded: bool) -> None:
    ran = both_ways(Encoder(masked, padded, norm_first=norm_first, batch_first=batch_first))
    assert {"aten.native_layer_norm.default", "aten.addmm.default"} <= ran


@pytest.mark.parametrize("masked", [False, True], ids=["", "masked"])
@pytest.mark.parametrize("batch_first", [False, True], ids=["", "batch_first"])
@pytest.mark.parametrize("need_weights", [False, True], ids=["", "need_weights"])
def test_multi_head_attention(need_weights: bool, batch_first: bool, masked: bool) -> None:
    ran = both_ways(Attention(need_weights, masked, batch_first))
    assert any(
        "attention" in name or name in ("aten.bmm.default", "aten.baddbmm.default") for name in ran
    )


def test_a_stack_of_encoder_layers_with_padding_does_not_become_nested_tensors() -> None:
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x, src_key_padding_mask=torch.zeros(x.shape[:2], dtype=torch.bool))

    layer = nn.TransformerEncoderLayer(WIDTH, 2, 32, batch_first=True)
    model = model_of(forward, layers=nn.TransformerEncoder(layer, 2)).eval()
    x = torch.randn(BATCH, SEQUENCE, WIDTH)
    with torch.no_grad():
        expected = model(x)
    wrapped = ipu_exec.inferenceModel(model, ipu_exec.Options().showCompilationProgressBar(False))
    torch.testing.assert_close(wrapped(x), expected)


def test_the_fast_path_is_as_it_was_when_capture_fails() -> None:
    def fail(self, x: torch.Tensor) -> torch.Tensor:
        raise ipu_exec.Error("on purpose")

    with pytest.raises(ipu_exec.Error, match="on purpose"):
        ipu_exec.inferenceModel(model_of(fail))(torch.zeros(1))
    assert torch.backends.mha.get_fastpath_enabled()
