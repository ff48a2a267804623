"""Rows about single operators, as vendors' libraries benchmark them.

Passes of a layer, sums, recurrent layers.

- ``training 128x1024 @ 1024x4096; partials fp32``: a product, both of its gradients and the
  update of its right operand
- ``training 3x3 pad 1 56x56 64->64 batch 4; partials fp32``: the same of a convolution
  (``groups 32``, ``stride 2``)
- ``200x64 @ 64x10000 + C; partials fp32``: a product added to a third matrix
- ``sum over 1,3 of 16x4x16x32x8`` (``max``, ``sum of squares``)
- ``max pooling 3x3 stride 2 147x147 of 64 channels``: forward and gradient
- ``LSTM of 1024 to 1024, 25 steps, batch 16``

Everything is on the chip already and lies as the first operator that takes it wants it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch import nn

import ipu_exec
from benchmarks.fidelity.cases import (
    CannotRun,
    Compiled,
    Row,
    dtype_of,
    infer,
    kernel_and_field,
    number,
    options_for,
    padding_of,
    shapes_of,
)

RATE = -0.5  # of the update, as poplibs' tools have it


def find(case: str) -> Callable[[Row], Compiled] | None:
    """Who builds this case."""
    if case.startswith("training ") and "@" in case:
        return product_passes
    if case.startswith("training ") and "->" in case:
        return convolution_passes
    return next((build for words, build in OPERATORS.items() if re.search(words, case)), None)


def held(*shape: int, dtype: torch.dtype) -> nn.Parameter:
    """A tensor that is on the chip."""
    return nn.Parameter(torch.empty(*shape, dtype=dtype), requires_grad=False)


class OnChip(nn.Module):
    """A function of tensors that are on the chip."""

    def __init__(self, run: Callable[..., Any], *tensors: nn.Parameter) -> None:
        super().__init__()
        self.run, self.tensors = run, nn.ParameterList(tensors)

    def forward(self, start: torch.Tensor) -> Any:
        with ipu_exec.Block("operator"):
            return self.run(*self.tensors)


def product_passes(row: Row) -> Compiled:
    """Of a layer whose weights are stored as torch's: output features by input features."""
    left, right = shapes_of(row.case)
    batch, inputs, outputs, dtype = left[-2], left[-1], right[-1], dtype_of(row)

    def run(x: torch.Tensor, weight: torch.Tensor, grad: torch.Tensor) -> Any:
        update = weight.add_(grad.mT @ x, alpha=RATE)
        return x @ weight.mT, grad @ weight, update

    groups = left[:-2]
    model = OnChip(
        run,
        held(*groups, batch, inputs, dtype=dtype),
        held(*groups, outputs, inputs, dtype=dtype),
        held(*groups, batch, outputs, dtype=dtype),
    )
    return infer(model, options_for(row), 6 * prod(left) * outputs)


def convolution_passes(row: Row) -> Compiled:
    """Padding is half the kernel unless the case says it."""
    kernel, field = kernel_and_field(row.case)
    groups, stride, batch = (
        number(row.case, rf"{word} (\d+)", 1) for word in ("groups", "stride", "batch")
    )
    inputs, outputs = (number(row.case, words) for words in (r"(\d+)\s*->", r"->\s*(\d+)"))
    padding, dtype = padding_of(row.case, kernel), dtype_of(row)
    outs = [(f + 2 * p - k) // stride + 1 for f, k, p in zip(field, kernel, padding, strict=True)]
    settings = (None, [stride] * 2, list(padding), [1, 1], False, [0, 0], groups)

    def run(x: torch.Tensor, weight: torch.Tensor, grad: torch.Tensor) -> Any:
        backward = torch.ops.aten.convolution_backward
        out = torch.ops.aten.convolution(x, weight, *settings)
        grad_input = backward(grad, x, weight, *settings, [True, False, False])[0]
        grad_weight = backward(grad, x, weight, *settings, [False, True, False])[1]
        return out, grad_input, weight.add_(grad_weight, alpha=RATE)

    model = OnChip(
        run,
        held(batch, groups * inputs, *field, dtype=dtype),
        held(groups * outputs, inputs, *kernel, dtype=dtype),
        held(batch, groups * outputs, *outs, dtype=dtype),
    )
    return infer(
        model, options_for(row), 6 * batch * groups * inputs * outputs * prod(kernel) * prod(outs)
    )


def product_and_sum(row: Row) -> Compiled:
    """C += A B."""
    left, right = shapes_of(row.case)
    dtype = dtype_of(row)
    shapes = (left, right, (*left[:-1], right[-1]))
    model = OnChip(lambda a, b, c: c.add_(a @ b), *(held(*shape, dtype=dtype) for shape in shapes))
    return infer(model, options_for(row), 2 * prod(left) * right[-1])


def reduction(row: Row) -> Compiled:
    """Over the dimensions that the case lists."""
    shapes, dims = shapes_of(row.case), re.search(r"over ([\d,]+) of", row.case)
    if len(shapes) != 1 or dims is None:
        raise CannotRun(f"{row.case!r} does not say what is reduced over which dimensions")
    over = [int(d) for d in dims.group(1).split(",")]

    def run(x: torch.Tensor) -> torch.Tensor:
        if row.case.startswith("max"):
            return x.amax(over)
        return (x * x if "squares" in row.case else x).sum(over)

    return infer(
        OnChip(run, held(*shapes[0], dtype=dtype_of(row))), options_for(row), prod(shapes[0])
    )


def pooling(row: Row) -> Compiled:
    """The largest of each window, and the gradient. Without padding unless the case says it."""
    kernel, field = kernel_and_field(row.case)
    channels, batch = number(row.case, r"of (\d+) channels"), number(row.case, r"batch (\d+)", 1)
    settings = (
        [*kernel],
        [number(row.case, r"stride (\d+)", 1)] * 2,
        [number(row.case, r"pad (\d+)", 0)] * 2,
    )
    outs = [
        (f + 2 * settings[2][0] - k) // settings[1][0] + 1
        for f, k in zip(field, kernel, strict=True)
    ]

    def run(x: torch.Tensor, grad: torch.Tensor) -> Any:
        out, indices = torch.ops.aten.max_pool2d_with_indices(x, *settings)
        backward = torch.ops.aten.max_pool2d_with_indices_backward
        return out, backward(grad, x, *settings, [1, 1], False, indices)

    shapes = (batch, channels, *field), (batch, channels, *outs)
    model = OnChip(run, *(held(*shape, dtype=dtype_of(row)) for shape in shapes))
    return infer(model, options_for(row), 2 * prod(kernel) * prod(shapes[1]))


class Recurrent(nn.Module):
    """One recurrent layer over a sequence."""

    def __init__(
        self, inputs: int, outputs: int, steps: int, batch: int, dtype: torch.dtype
    ) -> None:
        super().__init__()
        self.layer = nn.LSTM(inputs, outputs).to(dtype)
        self.sequence = held(steps, batch, inputs, dtype=dtype)

    def forward(self, start: torch.Tensor) -> torch.Tensor:
        with ipu_exec.Block("operator"):
            out: torch.Tensor = self.layer(self.sequence)[0]
            return out


def recurrent(row: Row) -> Compiled:
    """The forward pass of an LSTM."""
    inputs, outputs = (number(row.case, words) for words in (r"of (\d+) to", r"to (\d+)"))
    steps, batch = number(row.case, r"(\d+) steps"), number(row.case, r"batch (\d+)", 1)
    flops = 8 * steps * batch * outputs * (inputs + outputs)
    return infer(Recurrent(inputs, outputs, steps, batch, dtype_of(row)), options_for(row), flops)


OPERATORS: dict[str, Callable[[Row], Compiled]] = {
    r"@.*\+ C": product_and_sum,
    r"^max pooling": pooling,
    r"^(sum|max)\b": reduction,
    r"^LSTM": recurrent,
}
"""By what of the row's case tells them."""
