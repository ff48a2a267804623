"""Rows about single operators, as vendors' libraries benchmark them.

Passes of a layer, sums, recurrent layers.

- ``training 128x1024 @ 1024x4096; partials fp32``: a product, both of its gradients and the
  update of its right operand
- ``training 3x3 pad 1 56x56 64->64 batch 4; partials fp32``: the same of a convolution
  (``groups 32``, ``stride 2``)
- ``200x64 @ 64x10000 + C; partials fp32``: a product added to a third matrix
- ``sum over 1,3 of 16x4x16x32x8`` (``max``, ``sum of squares``)
- ``max pooling 3x3 stride 2 147x147 of 64 channels``: forward and gradient
- ``LSTM of 1024 to 1024, 25 steps, batch 16``, ``GRU of ...``; ``training LSTM of ...`` has the
  gradients of the sequence and of the weights too
- ``CTC loss of 375 steps, 36 classes, labels of 200, batch 4``: of logits, and its gradient
- ``embedding of 1000x200, 21600 indices``: rows looked up, and gradients added to them
- ``training 3x3 pad 1 28x28 128->128 batch 4 octave 0.25 to 0.25``: an octave convolution, whose
  channels of low frequency have half the field

Everything is on the chip already and lies as the first operator that takes it wants it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
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
    without_layers,
)

RATE = -0.5  # of the update, as poplibs' tools have it
UP, DOWN = ("low", "high"), ("high", "low")  # frequencies of an octave convolution


def find(case: str) -> Callable[[Row], Compiled] | None:
    """The function that builds this case."""
    if case.startswith("training ") and "@" in case:
        return product_passes
    if case.startswith("training ") and "->" in case:
        return octave_passes if "octave" in case else convolution_passes
    return next((build for words, build in OPERATORS.items() if re.search(words, case)), None)


def held(*shape: int, dtype: torch.dtype) -> nn.Parameter:
    """A tensor that is kept on the chip."""
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
    """The passes of a layer whose weights are input by output features.

    As [PLB, tools/fully_connected_layer.cpp] has them: the weights' gradient is the transposed
    input times the gradient, whose rows are output channels of the convolution.
    """
    left, right = shapes_of(row.case)
    batch, inputs, outputs, dtype = left[-2], left[-1], right[-1], dtype_of(row)

    def run(x: torch.Tensor, weight: torch.Tensor, grad: torch.Tensor) -> Any:
        # in this order: operands lie as the forward pass wants them, then as the backward pass
        out, grad_input = x @ weight, grad @ weight.mT
        return out, grad_input, weight.add_(x.mT @ grad, alpha=RATE)

    groups = left[:-2]
    model = OnChip(
        run,
        held(*groups, batch, inputs, dtype=dtype),
        held(*groups, inputs, outputs, dtype=dtype),
        held(*groups, batch, outputs, dtype=dtype),
    )
    options = options_for(row)
    options._Popart.set("matmulOptions", {"fullyConnectedPass": "TRAINING_FWD"})
    return infer(model, options, 6 * prod(left) * outputs)


def convolution_passes(row: Row) -> Compiled:
    """The passes of a convolution; padding is half the kernel unless the case gives it."""
    kernel, field = kernel_and_field(row.case)
    groups, stride, batch = (
        number(row.case, rf"{word} (\d+)", 1) for word in ("groups", "stride", "batch")
    )
    inputs, outputs = (number(row.case, words) for words in (r"(\d+)\s*->", r"->\s*(\d+)"))
    padding, dtype = padding_of(row.case, kernel), dtype_of(row)
    outs = [(f + 2 * p - k) // stride + 1 for f, k, p in zip(field, kernel, padding, strict=True)]
    settings = (None, [stride] * 2, list(padding), [1, 1], False, [0, 0], groups)

    def run(x: torch.Tensor, weight: torch.Tensor, grad: torch.Tensor) -> Any:
        return three_passes(x, weight, grad, settings)

    model = OnChip(
        run,
        held(batch, groups * inputs, *field, dtype=dtype),
        held(groups * outputs, inputs, *kernel, dtype=dtype),
        held(batch, groups * outputs, *outs, dtype=dtype),
    )
    return infer(
        model, options_for(row), 6 * batch * groups * inputs * outputs * prod(kernel) * prod(outs)
    )


def three_passes(
    x: torch.Tensor, weight: torch.Tensor, grad: torch.Tensor, settings: Sequence[Any]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(output, gradient of the input, updated weight) of a convolution."""
    backward = torch.ops.aten.convolution_backward
    out = torch.ops.aten.convolution(x, weight, *settings)
    grad_input = backward(grad, x, weight, *settings, [True, False, False])[0]
    grad_weight = backward(grad, x, weight, *settings, [False, True, False])[1]
    return out, grad_input, weight.add_(grad_weight, alpha=RATE)


def octave_passes(row: Row) -> Compiled:
    """Convolutions from low and high frequency to low and high frequency.

    From high to low the input is pooled first, from low to high the output is written twice in
    each direction ([PLB, tools/oct_conv_layer.cpp]).
    """
    kernel, field = kernel_and_field(row.case)
    stride, batch = (number(row.case, rf"{word} (\d+)", 1) for word in ("stride", "batch"))
    channels = [number(row.case, words) for words in (r"(\d+)\s*->", r"->\s*(\d+)")]
    match = re.search(r"octave ([\d.]+) to ([\d.]+)", row.case)
    if match is None:
        raise CannotRun(f"{row.case!r} does not say 'octave 0.25 to 0.25'")
    low = [int(float(part) * n) for part, n in zip(match.groups(), channels, strict=True)]
    padding, dtype = padding_of(row.case, kernel), dtype_of(row)
    settings = (None, [stride] * 2, list(padding), [1, 1], False, [0, 0], 1)
    fields = {"low": tuple(f // 2 for f in field), "high": field}
    inputs = {"low": low[0], "high": channels[0] - low[0]}
    outputs = {"low": low[1], "high": channels[1] - low[1]}
    parts = [(i, o) for i in fields for o in fields if inputs[i] and outputs[o]]

    def extents(name: str) -> list[int]:
        return [
            (f + 2 * p - k) // stride + 1
            for f, k, p in zip(fields[name], kernel, padding, strict=True)
        ]

    tensors = {f"x {i}": held(batch, n, *fields[i], dtype=dtype) for i, n in inputs.items() if n}
    for o, n in outputs.items():
        tensors |= {f"grad {o}": held(batch, n, *extents(o), dtype=dtype)} if n else {}
    for i, o in parts:
        tensors[f"weight {i} {o}"] = held(outputs[o], inputs[i], *kernel, dtype=dtype)

    def run(*given: torch.Tensor) -> Any:
        at = dict(zip(tensors, given, strict=True))
        tensors_out: dict[str, torch.Tensor] = {}

        def gather(key: str, value: torch.Tensor) -> None:
            tensors_out[key] = tensors_out[key] + value if key in tensors_out else value

        for i, o in parts:
            x, grad = at[f"x {i}"], at[f"grad {o}"]
            x = nn.functional.avg_pool2d(x, 2) if (i, o) == DOWN else x
            grad = nn.functional.avg_pool2d(grad, 2) if (i, o) == UP else grad
            out, back, tensors_out[f"{i} {o}"] = three_passes(
                x, at[f"weight {i} {o}"], grad, settings
            )
            wider = nn.functional.interpolate(out, scale_factor=2) if (i, o) == UP else out
            gather(f"out {o}", wider)
            wider = nn.functional.interpolate(back, scale_factor=2) if (i, o) == DOWN else back
            gather(f"grad {i}", wider)
        return tuple(tensors_out.values())

    return infer(OnChip(run, *tensors.values()), options_for(row), 0)


def embedding(row: Row) -> Compiled:
    """Rows of a table looked up, and as many gradients added to them."""
    table = re.search(r"of (\d+)x(\d+)", row.case)
    if table is None:
        raise CannotRun(f"{row.case!r} does not say a table, as rows x columns")
    rows, columns = map(int, table.groups())
    count, dtype = number(row.case, r"(\d+) indices"), dtype_of(row)

    def run(values: torch.Tensor, indices: torch.Tensor, grad: torch.Tensor) -> Any:
        return torch.ops.aten.embedding(values, indices), values.index_add_(0, indices, grad)

    model = OnChip(
        run,
        held(rows, columns, dtype=dtype),
        held(count, dtype=torch.int32),
        held(count, columns, dtype=dtype),
    )
    return infer(model, options_for(row), 2 * count * columns)


def product_and_sum(row: Row) -> Compiled:
    """C += A B."""
    left, right = shapes_of(row.case)
    dtype = dtype_of(row)
    shapes = (left, right, (*left[:-1], right[-1]))
    model = OnChip(lambda a, b, c: c.add_(a @ b), *(held(*shape, dtype=dtype) for shape in shapes))
    return infer(model, without_layers(options_for(row)), 2 * prod(left) * right[-1])


def reduction(row: Row) -> Compiled:
    """A reduction over the dimensions that the case lists."""
    shapes, dims = shapes_of(row.case), re.search(r"over ([\d,]+) of", row.case)
    if len(shapes) != 1 or dims is None:
        raise CannotRun(f"{row.case!r} does not say what is reduced over which dimensions")
    over = [int(d) for d in dims.group(1).split(",")]

    def run(x: torch.Tensor) -> torch.Tensor:
        if row.case.startswith("max"):
            return x.amax(over)
        if "squares" in row.case:  # popops squares and adds in one vertex; so does a norm
            return torch.linalg.vector_norm(x, dim=over)
        return x.sum(over)

    return infer(
        OnChip(run, held(*shapes[0], dtype=dtype_of(row))), options_for(row), prod(shapes[0])
    )


def pooling(row: Row) -> Compiled:
    """The maximum of each window and its gradient; no padding unless the case gives it."""
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
        self,
        kind: type[nn.LSTM] | type[nn.GRU],
        inputs: int,
        outputs: int,
        steps: int,
        batch: int,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self.layer = kind(inputs, outputs).to(dtype)
        self.sequence = held(steps, batch, inputs, dtype=dtype)

    def forward(self, start: torch.Tensor) -> torch.Tensor:
        with ipu_exec.Block("operator"):
            out: torch.Tensor = self.layer(self.sequence)[0]
            return out


class RecurrentPasses(Recurrent):
    """The same and its gradients."""

    def __init__(self, *about: Any) -> None:
        super().__init__(*about)
        _, _, outputs, steps, batch, dtype = about
        self.grad = held(steps, batch, outputs, dtype=dtype)

    def forward(self, start: torch.Tensor) -> Any:
        with ipu_exec.Block("operator"), torch.enable_grad():
            sequence = self.sequence.detach().requires_grad_()
            out = self.layer(sequence)[0]
            wanted = (sequence, *self.layer.parameters())
            return out, *torch.autograd.grad(out, wanted, self.grad)


def recurrent(row: Row) -> Compiled:
    """The forward pass of an LSTM or GRU, or all passes."""
    inputs, outputs = (number(row.case, words) for words in (r"of (\d+) to", r"to (\d+)"))
    steps, batch = number(row.case, r"(\d+) steps"), number(row.case, r"batch (\d+)", 1)
    kind, gates = (nn.GRU, 3) if "GRU" in row.case else (nn.LSTM, 4)
    passes = RecurrentPasses if row.case.startswith("training") else Recurrent
    flops = 2 * gates * steps * batch * outputs * (inputs + outputs)
    model = passes(kind, inputs, outputs, steps, batch, dtype_of(row))
    return infer(model, options_for(row), flops)


def ctc_loss(row: Row) -> Compiled:
    """The loss of each sequence, and the gradient of the logits."""
    steps, classes = number(row.case, r"of (\d+) steps"), number(row.case, r"(\d+) classes")
    labels, batch = number(row.case, r"labels of (\d+)"), number(row.case, r"batch (\d+)", 1)
    dtype = dtype_of(row)
    lengths = [steps] * batch, [labels] * batch

    def run(logits: torch.Tensor, targets: torch.Tensor, grad: torch.Tensor) -> Any:
        aten = torch.ops.aten
        logs = torch.log_softmax(logits, -1)
        loss, table = aten._ctc_loss(logs, targets, *lengths)
        back = aten._ctc_loss_backward(grad, logs, targets, *lengths, loss, table, 0)
        return loss, aten._log_softmax_backward_data(back, logs, -1, dtype)

    model = OnChip(
        run,
        held(steps, batch, classes, dtype=dtype),
        held(batch, labels, dtype=torch.int32),
        held(batch, dtype=dtype),
    )
    return infer(model, options_for(row), 0)


OPERATORS: dict[str, Callable[[Row], Compiled]] = {
    r"@.*\+ C": product_and_sum,
    r"^max pooling": pooling,
    r"^(sum|max)\b": reduction,
    r"^(training )?(LSTM|GRU)\b": recurrent,
    r"^CTC loss": ctc_loss,
    r"^embedding": embedding,
}
"""By what of the row's case tells them."""
