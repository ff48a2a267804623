"""A published row as the model that a user would write for it, and what of its compiled program the row is about.

A row's case is read by its grammar (``1024x1024 @ 1024x4``, ``Conv2_3 3x3 stride 1 56x56 64->64 batch 1 ...``), never
looked up by its id, so that rows nobody has seen run as well. What is measured without host I/O (a product, a
convolution, on tensors that are on the chip already) has its operands as parameters: they lie where the operator
wants them, as in the published benchmarks.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import ipu_exec
from ipu_exec.compile import compile_step
from ipu_exec.machine import STREAM_STEP_CYCLES, TARGETS
from profiler.schedules import FORWARD

DTYPES = {"fp16": torch.float16, "fp32": torch.float32, "half": torch.float16, "float": torch.float32}
MACHINES = {"gc2": "mk1", "gc200": "mk2"}


class CannotRun(Exception):
    """Why a row has no prediction."""


@dataclass(frozen=True)
class Row:
    """One published number; the columns of ``validation.csv``."""

    id: str
    kind: str
    machine: str
    dtype: str
    case: str
    quantity: str
    unit: str
    value: float
    source: str

    @property
    def target(self) -> str:
        name = self.machine.lower()
        return MACHINES.get(name, name)

    @property
    def group(self) -> str:
        """Rows that one statement of accuracy covers."""
        if self.kind == "ipu_model":
            return f"vendor's model, {'memory' if self.unit == 'bytes' else 'cycles and tiles'}"
        what = "dense products" if "@" in self.case else "convolutions" if "->" in self.case else "whole models"
        return what if what == "whole models" else f"{what}, {self.machine} {self.dtype}"


class Chain(nn.Module):
    """The product of matrices of these shapes, from the left."""

    def __init__(self, shapes: list[tuple[int, ...]], dtype: torch.dtype) -> None:
        super().__init__()
        self.matrices = nn.ParameterList(torch.empty(shape, dtype=dtype) for shape in shapes)

    def forward(self, start: torch.Tensor) -> torch.Tensor:
        with ipu_exec.Block("chain"):
            first, *rest = self.matrices
            for matrix in rest:
                first = first @ matrix
            return first


class Convolution(nn.Module):
    """A convolution of a tensor on the chip; ``back``: its result is then copied over its input."""

    def __init__(
        self, field: tuple[int, int], channels: tuple[int, int], kernel: tuple[int, int], batch: int, stride: int,
        dtype: torch.dtype, back: bool,
    ) -> None:  # fmt: skip
        super().__init__()
        self.data = nn.Parameter(torch.empty(batch, channels[0], *field, dtype=dtype), requires_grad=False)
        self.weight = nn.Parameter(torch.empty(channels[1], channels[0], *kernel, dtype=dtype))
        self.stride, self.padding, self.back = stride, tuple(k // 2 for k in kernel), back

    def forward(self, start: torch.Tensor) -> torch.Tensor:
        with ipu_exec.Block("convolution"):
            out = nn.functional.conv2d(self.data, self.weight, stride=self.stride, padding=self.padding)
            return self.data.copy_(out) if self.back else out


@dataclass(frozen=True)
class Compiled:
    """A compiled case: the executable, floating-point operations of its one pass, samples of a call.

    ``note``: what to know of it, such as that it does not fit the tiles.
    """

    executable: Any
    flops: float = 0.0
    samples: int = 0
    note: str = ""


def options_for(row: Row) -> ipu_exec.Options:
    if row.target not in TARGETS:
        raise CannotRun(f"no target {row.machine!r}; there are {', '.join(TARGETS)}")
    return ipu_exec.Options().target(row.target).showCompilationProgressBar(False)


def dtype_of(row: Row) -> torch.dtype:
    if row.dtype not in DTYPES:
        raise CannotRun(f"no data type {row.dtype!r}; there are {', '.join(DTYPES)}")
    return DTYPES[row.dtype]


def compiled_by(
    executor: ipu_exec.PoplarExecutor, inputs: tuple[torch.Tensor, ...], micro: tuple[torch.Tensor, ...],
    optimiser: torch.optim.Optimizer | None = None,
) -> tuple[Any, str]:  # fmt: skip
    """(executable, "" or why it would not run). ``inputs``: of a call; ``micro``: of a micro-batch.

    What does not fit the tiles is compiled by the same passes all the same, and says so: its cycles are known.
    """
    try:
        executor.compile(*inputs)
    except ipu_exec.OutOfMemoryError as error:
        training = optimiser is not None
        executable = compile_step(executor.model, micro, {}, executor.options, optimiser, training)
        return executable, str(error).partition(". The five")[0]
    return executor.executable, ""


def infer(model: nn.Module, options: ipu_exec.Options, flops: float) -> Compiled:
    """A model whose tensors are all on the chip, compiled."""
    start = (torch.zeros(1),)
    with torch.no_grad():
        executable, note = compiled_by(ipu_exec.inferenceModel(model.eval(), options), start, start)
    return Compiled(executable, flops, note=note)


def products(row: Row) -> Compiled:
    """A x B @ B x C, of any number of matrices, each with groups in front (G x A x B) or none."""
    shapes = [tuple(map(int, re.split(r"\s*x\s*", words))) for words in re.findall(r"\d+(?:\s*x\s*\d+)+", row.case)]
    for left, right in itertools.pairwise(shapes):
        if left[-1] != right[-2] or left[:-2] != right[:-2]:
            raise CannotRun(f"the matrices of {row.case!r} do not fit together")
    flops = sum(2 * math.prod(shapes[0][:-1]) * math.prod(right[-2:]) for right in shapes[1:])
    return infer(Chain(shapes, dtype_of(row)), options_for(row), flops)


def convolutions(row: Row) -> Compiled:
    def find(pattern: str, default: tuple[str, ...] | None = None) -> tuple[int, ...]:
        found = re.search(pattern, row.case)
        if found is None and default is None:
            raise CannotRun(f"{row.case!r} has no {pattern}")
        return tuple(int(v) for v in (found.groups() if found else default or ()))

    pairs = [(int(a), int(b)) for a, b in re.findall(r"(\d+)x(\d+)", row.case)]
    if len(pairs) != 2:
        raise CannotRun(f"{row.case!r} does not say a kernel and a field, each as HxW")
    kernel, field = pairs
    channels = find(r"(\d+)\s*->\s*(\d+)")
    (batch,), (stride,) = find(r"batch (\d+)", ("1",)), find(r"stride (\d+)", ("1",))
    outs = [(f + 2 * (k // 2) - k) // stride + 1 for f, k in zip(field, kernel, strict=True)]
    model = Convolution(
        field, (channels[0], channels[1]), kernel, batch, stride, dtype_of(row), "copy out to in" in row.case
    )
    flops = 2 * batch * channels[0] * channels[1] * kernel[0] * kernel[1] * outs[0] * outs[1]
    return infer(model, options_for(row), flops)


def compiled(row: Row) -> Compiled:
    """The row's case through the front end. Raises CannotRun, and the engine's own errors."""
    if "@" in row.case:
        return products(row)
    if "->" in row.case:
        return convolutions(row)
    from benchmarks.fidelity import models

    build = models.find(row.case)
    if build is None:
        raise CannotRun(f"no model is written for {row.case!r}")
    return build(row)


# -- what is read off the compiled program ---------------------------------------------------------------------


def predict(row: Row, case: Compiled) -> float:
    """The row's quantity, in its unit."""
    for words, reading in READINGS.items():
        if row.quantity.startswith(words):
            return reading(row, case)
    raise CannotRun(f"nothing reads {row.quantity!r} off a compiled program")


def forward_cycles(executable: Any) -> int:
    """Cycles of one pass without its host I/O."""
    return sum(body.cycles for body in executable.tree.bodies if body.task == FORWARD)


def throughput(row: Row, case: Compiled) -> float:
    clock = case.executable.target.clock_hz
    if row.unit.endswith("FLOP/s"):
        scale = {"G": 1e9, "T": 1e12, "P": 1e15}[row.unit[0]]
        return case.flops / (forward_cycles(case.executable) / clock) / scale
    if row.unit in ("images/s", "sequences/s"):
        return case.samples * clock / case.executable.cycles_per_call
    raise CannotRun(f"no throughput in {row.unit!r}")


def run_cycles(row: Row, case: Compiled) -> float:
    """A run in the vendor's model: what the tiles do, and the begin, mid and end of each tensor streamed in or out,
    which take no transfer time there (facts/machine.md)."""
    streamed = len(re.findall("@", row.case)) + 2
    return forward_cycles(case.executable) + streamed * 3 * STREAM_STEP_CYCLES


def part_of(row: Row, case: Compiled) -> list[Any]:
    """Steps of the product that the row is about, the last of those the case needs to have run before."""
    steps = [s for body in case.executable.tree.bodies if body.task == FORWARD for s in body.steps]
    last = max(s.op for s in steps)
    return [s for s in steps if s.op == last]


def step_with_exchange(which: str) -> Callable[[Row, Compiled], float]:
    """Cycles from the end of the step before to the end of the step named so: PopVision draws an exchange with the
    compute set that it feeds (TUT4)."""

    def read(row: Row, case: Compiled) -> float:
        names = [("reduce" if "reduce" in s.name else "convolve", s.cycles) for s in part_of(row, case)]
        return sum(cycles for name, cycles in names if name == which)

    return read


def tiles_used(row: Row, case: Compiled) -> float:
    step = max((s for s in part_of(row, case) if s.vertices), key=lambda s: s.flops)
    return float((step.tile_cycles > 0).sum())


def memory_of(part: str) -> Callable[[Row, Compiled], float]:
    def read(row: Row, case: Compiled) -> float:
        from benchmarks.fidelity import memory

        return memory.read(part, case.executable)

    return read


READINGS: dict[str, Callable[[Row, Compiled], float]] = {
    "throughput": throughput,
    "run cycles": run_cycles,
    "convolve step": step_with_exchange("convolve"),
    "reduce step": step_with_exchange("reduce"),
    "tiles used": tiles_used,
    "cycles per conv": lambda row, case: float(forward_cycles(case.executable)),
    "total memory without gaps": memory_of("total"),
    "always live": memory_of("always live"),
    "peak not-always-live": memory_of("peak"),
}
