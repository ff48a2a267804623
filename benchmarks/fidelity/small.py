"""Small whole programs of the tests of TensorFlow for IPU [TF], with cycles and bytes by Poplar.

- ``stack training: conv 128x4, maxpool 2/1, flatten, dense 16; batch 1, 32 steps of 16; Adam``:
  layers one after the other, on a sequence or, without ``steps``, on rows (``batch 2 of 50176``);
  the loss is the mean squared error, or the cross entropy where the case says so
- ``small ResNet training ...``: a stem, one group of two blocks and a classifier, without norms
- ``serialised product of 30522x128 @ 128x768 in 6 parts``: its rows in parts, and a sum

The vendor's model counts no transfers to the host, so that inputs are synthetic.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import ipu_exec
from benchmarks.fidelity.cases import (
    CannotRun,
    Compiled,
    Row,
    compiled_by,
    dtype_of,
    infer,
    number,
    options_for,
)
from benchmarks.fidelity.models import compile_training


def find(case: str) -> Callable[[Row], Compiled] | None:
    """The function that builds this case."""
    return next((build for word, build in SMALL.items() if case.startswith(word)), None)


class Recurrent(nn.Module):
    """A recurrent layer: of all steps, or of the last alone where only that is read after it."""

    def __init__(self, name: str, inputs: int, size: int) -> None:
        super().__init__()
        kinds = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}
        self.cell = kinds[name](inputs, size, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.cell(x)[0]


class Last(nn.Module):
    """The last step of a sequence."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, -1]


class OverSteps(nn.Module):
    """A layer of [batch, channels, steps], given [batch, steps, channels]."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x.transpose(1, 2)).transpose(1, 2)


class WithLoss(nn.Module):
    """A model and its loss, in one Block."""

    def __init__(self, model: nn.Module, entropy: bool) -> None:
        super().__init__()
        self.model, self.entropy = model, entropy

    def forward(self, x: torch.Tensor, wanted: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with ipu_exec.Block("all"):
            y = self.model(x)
            # the labels are shares of all classes, as TensorFlow's softmax_cross_entropy has them
            loss = nn.functional.cross_entropy if self.entropy else nn.functional.mse_loss
            return y, loss(y, wanted)


def _layer(words: str, shape: list[int]) -> nn.Module:
    """The layer of these words; ``shape`` becomes that of its result."""
    name, _, size = words.partition(" ")
    inputs = shape[-1]
    numbers = [int(n) for n in re.findall(r"\d+", size)]
    if name in ("rnn", "lstm", "gru"):
        (shape[-1],) = numbers
        layer: nn.Module = Recurrent(name, inputs, shape[-1])
    elif name == "last":
        del shape[1]
        layer = Last()
    elif name == "conv":
        shape[-1], kernel = numbers
        shape[1] -= kernel - 1
        layer = OverSteps(nn.Conv1d(inputs, shape[-1], kernel))
    elif name == "maxpool":
        window, stride = numbers
        shape[1] = (shape[1] - window) // stride + 1
        layer = OverSteps(nn.MaxPool1d(window, stride))
    elif name == "flatten":
        shape[1:] = [shape[1] * shape[2]]
        layer = nn.Flatten()
    elif name == "dense":
        (shape[-1],) = numbers
        layer = nn.Linear(inputs, shape[-1])
    elif name == "dropout":
        layer = nn.Dropout(float(size))
    elif name == "relu":
        layer = nn.ReLU()
    else:
        raise CannotRun(f"no layer is written for {words!r}")
    return layer


def stack(row: Row) -> Compiled:
    """The layers that the case lists, one after the other."""
    about, _, rest = row.case.partition(": ")
    listed, _, sizes = rest.partition("; ")
    batch = number(sizes, r"batch (\d+)")
    steps = number(sizes, r"(\d+) steps", 0)
    features = number(sizes, r" of (\d+)")
    shape = [batch, steps, features] if steps else [batch, features]
    inputs = torch.zeros(shape, dtype=dtype_of(row))
    layers = nn.Sequential(*(_layer(words, shape) for words in listed.split(", ")))
    return _run(row, layers, inputs, torch.zeros(shape, dtype=dtype_of(row)), "training" in about)


def _run(
    row: Row, layers: nn.Module, inputs: torch.Tensor, wanted: torch.Tensor, training: bool
) -> Compiled:
    model = WithLoss(layers, "cross entropy" in row.case)
    options = options_for(row).enableSyntheticData(True)
    options.deviceIterations(number(row.case, r"(\d+) iterations", 1))
    options.Training.gradientAccumulation(number(row.case, r"gradient accumulation (\d+)", 1))
    if training:  # which makes room for all samples of a call
        return compile_training(row, model, options, (inputs, wanted))
    if row.dtype == "fp16":
        model = model.half()
    with torch.no_grad():
        executor = ipu_exec.inferenceModel(model.eval(), options)
        executable, note = compiled_by(executor, (inputs, wanted), (inputs, wanted))
    return Compiled(executable, samples=inputs.shape[0], note=note)


class SmallResNet(nn.Module):
    """A convolution of 7 x 7, a pooling, two blocks of two convolutions of 64, a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(4, 64, 7, 2, 3)
        self.convolutions = nn.ModuleList(nn.Conv2d(64, 64, 3, 1, 1) for _ in range(4))
        self.last = nn.Linear(64, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.max_pool2d(self.stem(x).relu(), 3, 2, 1)
        first, second, third, fourth = self.convolutions
        x = (second(first(x).relu()) + x).relu()
        x = (fourth(third(x).relu()) + x).relu()
        # TensorFlow pools windows of the whole field
        return self.last(nn.functional.max_pool2d(x, x.shape[-1]).flatten(1))


def resnet(row: Row) -> Compiled:
    """The ResNet of a test of sizes, on one image of four channels."""
    dtype = dtype_of(row)
    inputs, wanted = torch.zeros(1, 4, 224, 224, dtype=dtype), torch.zeros(1, 1000, dtype=dtype)
    return _run(row, SmallResNet(), inputs, wanted, "training" in row.case)


def serialised(row: Row) -> Compiled:
    """A sum with a product whose rows are made in parts."""
    match = re.search(r"(\d+)x(\d+) @ (\d+)x(\d+) in (\d+) parts", row.case)
    if match is None:
        raise CannotRun(f"{row.case!r} does not say '8x4 @ 4x2 in 2 parts'")
    rows, inner, _, columns, parts = map(int, match.groups())
    dtype = dtype_of(row)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            shapes = (rows, columns), (rows, inner), (inner, columns)
            self.tensors = nn.ParameterList(torch.empty(shape, dtype=dtype) for shape in shapes)

        def forward(self, start: torch.Tensor) -> Any:
            with ipu_exec.Block("all"):
                added, left, right = self.tensors
                mode = ipu_exec.MatMulSerializationMode.InputChannels
                return added + ipu_exec.serializedMatMul(left, right, mode, parts)

    return infer(Model(), options_for(row), 2 * rows * inner * columns)


SMALL: dict[str, Callable[[Row], Compiled]] = {
    "stack": stack,
    "small ResNet": resnet,
    "serialised product": serialised,
}
"""By how the row's case begins."""
