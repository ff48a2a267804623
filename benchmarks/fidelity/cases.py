"""A published row as the model that a user would write for it, and what of its compiled program the
row is about.

A row's case is read by its grammar (``1024x1024 @ 1024x4``, ``Conv2_3 3x3 stride 1 56x56 64->64
batch 1 ...``), never looked up by its id, so that rows nobody has seen run as well. What is
measured without host I/O (a product, a convolution, on tensors that are on the chip already) has
its operands as parameters: they lie where the operator wants them, as in the published benchmarks.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

import ipu_exec
from ipu_exec.lowering.costs import copy_cycles
from ipu_exec.machine import EXTERNAL_SYNC_CYCLES, STREAM_STEP_CYCLES, TARGETS
from ipu_exec.session.compilation import compile_step
from ipuscope.profiler.timeline.schedule_types import BACKWARD, COPY, FORWARD, RECOMPUTE

DTYPES = {
    "fp16": torch.float16,
    "fp32": torch.float32,
    "half": torch.float16,
    "float": torch.float32,
}
MACHINES = {"gc2": "mk1", "gc200": "mk2", **{name: name for name in ("mk1", "mk2", "c600", "bow")}}


def narrower(name: str, tiles: int) -> str:
    """The name of a target like ``name`` with only so many tiles, which is made known."""
    called = f"{name} with {tiles} tiles"
    if name in TARGETS:
        TARGETS.setdefault(called, replace(TARGETS[name], name=called, tiles=tiles))
    return called


class CannotRun(Exception):
    """Raised with the reason why a row has no prediction."""


@dataclass(frozen=True)
class Row:
    """One published number, with the columns of ``validation.csv``."""

    id: str
    kind: str
    machine: str
    dtype: str
    case: str
    quantity: str
    unit: str
    value: float
    source: str
    mark: str = ""  # how the case differs from what was measured

    @property
    def target(self) -> str:
        """The name of its target; ``on 1024 tiles`` in a case asks for one with fewer tiles."""
        name = self.machine.lower()
        name = MACHINES.get(name, name)
        match = re.search(r"on (\d+) tiles", self.case)
        return narrower(name, int(match.group(1))) if match else name

    @property
    def group(self) -> str:
        """Rows that one statement of accuracy covers."""
        if self.kind == "ipu_model":
            return f"vendor's model, {'memory' if self.unit == 'bytes' else 'cycles and tiles'}"
        if self.kind == "poplibs":
            about = f"poplibs, {self.operator}, {self.machine} {self.dtype}"
            return about + ("" if self.unit == "cycles" else f", {self.quantity.split(' with')[0]}")
        what = (
            "dense products"
            if "@" in self.case
            else "convolutions"
            if "->" in self.case
            else "whole models"
        )
        if what == "whole models" and self.unit == "bytes":
            return "whole models, memory"
        if what == "whole models" and self.unit == "cycles":
            return "whole models, components"
        if what == "whole models" and "inference" in self.case:
            return "whole models, inference"
        return what if what == "whole models" else f"{what}, {self.machine} {self.dtype}"

    @property
    def operator(self) -> str:
        """What a row of poplibs' benchmarks is about."""
        if "@" in self.case:
            return "layers" if self.case.startswith("training") else "products"
        if "->" in self.case:
            if "octave" in self.case:
                return "octave convolutions"
            return "depthwise" if re.search(r"groups \d+", self.case) else "convolutions"
        words = ("LSTM", "GRU", "embedding", "pooling", "CTC loss", "triangular", "Cholesky")
        found = next((word for word in words if word in self.case), "reductions")
        return f"{found}, all passes" if self.case.startswith("training") else found

    @property
    def channels(self) -> tuple[int, int]:
        """Of a convolution: the input channels of a group, and the groups."""
        return number(self.case, r"(\d+)\s*->"), number(self.case, r"groups (\d+)", 1)


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
        self,
        field: tuple[int, int],
        channels: tuple[int, int],
        kernel: tuple[int, int],
        padding: tuple[int, int],
        batch: int,
        stride: int,
        dtype: torch.dtype,
        back: bool,
        groups: int = 1,
    ) -> None:
        super().__init__()
        self.data = nn.Parameter(
            torch.empty(batch, groups * channels[0], *field, dtype=dtype), requires_grad=False
        )
        self.weight = nn.Parameter(
            torch.empty(groups * channels[1], channels[0], *kernel, dtype=dtype)
        )
        self.stride, self.padding, self.back, self.groups = stride, padding, back, groups

    def forward(self, start: torch.Tensor) -> torch.Tensor:
        with ipu_exec.Block("convolution"):
            out = nn.functional.conv2d(
                self.data,
                self.weight,
                stride=self.stride,
                padding=self.padding,
                groups=self.groups,
            )
            return self.data.copy_(out) if self.back else out


@dataclass(frozen=True)
class Compiled:
    """A compiled case: the executable, floating-point operations of its one pass, samples of a
    call.

    ``note``: what to know of it, such as that it does not fit the tiles.
    """

    executable: Any
    flops: float = 0.0
    samples: int = 0
    note: str = ""

    @property
    def fullest(self) -> float:
        """The fullest tile, gaps included, as a share of its memory; more than 1 does not fit."""
        limit, over = self.executable.target.bytes_per_tile, self.executable.overflow
        share = max(int(one.total.max()) for one in self.executable.tile_bytes) / limit
        return max(share, 1 + over.bytes_over / over.limit if over else 0.0)


def options_for(row: Row) -> ipu_exec.Options:
    if row.target not in TARGETS:
        raise CannotRun(f"no target {row.machine!r}; there are {', '.join(TARGETS)}")
    options = ipu_exec.Options().target(row.target).showCompilationProgressBar(False)
    options.enableSyntheticData("synthetic data" in row.case)
    options.useIpuModel(row.kind in ("ipu_model", "poplibs"))  # whose cycles those rows are
    if match := re.search(r"partials (fp\d+)", row.case):
        options.Precision.setPartialsType(DTYPES[match.group(1)])
    if "128-bit loads" in row.case:
        for table in ("convolutionOptions", "matmulOptions"):
            options._Popart.set(table, {"use128BitConvUnitLoad": "true"})
    if match := re.search(r"proportion ([\d./]+)", row.case):  # of all IPUs, or one for each
        each = [float(part) for part in match.group(1).split("/")]
        count = ipus(row)
        options.setAvailableMemoryProportion(
            {f"IPU{i}": each[min(i, len(each) - 1)] for i in range(count)}
        )
    return options


def ipus(row: Row) -> int:
    """The number of IPUs in a replica."""
    return number(row.case, r"replicas of (\d+) IPU", 1)


def dtype_of(row: Row) -> torch.dtype:
    if row.dtype not in DTYPES:
        raise CannotRun(f"no data type {row.dtype!r}; there are {', '.join(DTYPES)}")
    return DTYPES[row.dtype]


def compiled_by(
    executor: ipu_exec.PoplarExecutor,
    inputs: tuple[torch.Tensor, ...],
    micro: tuple[torch.Tensor, ...],
    optimiser: torch.optim.Optimizer | None = None,
) -> tuple[Any, str]:
    """(executable, "" or why it would not run). ``inputs``: of a call; ``micro``: of a micro-batch.

    What does not fit the tiles is compiled by the same passes all the same, and says so: its cycles
    are known.
    """
    try:
        executor.compile(*inputs)
    except ipu_exec.OutOfMemoryError as error:
        training = optimiser is not None
        executable = compile_step(executor.model, micro, {}, executor.options, optimiser, training)
        return executable, error.message.splitlines()[0]
    return executor.executable, ""


def infer(model: nn.Module, options: ipu_exec.Options, flops: float) -> Compiled:
    """A model whose tensors are all on the chip, compiled."""
    start = (torch.zeros(1),)
    with torch.no_grad():
        executable, note = compiled_by(ipu_exec.inferenceModel(model.eval(), options), start, start)
    return Compiled(executable, flops, note=note)


def shapes_of(case: str) -> list[tuple[int, ...]]:
    """Matrices A x B @ B x C, of any number, each with groups in front (G x A x B) or none."""
    shapes = [
        tuple(map(int, re.split(r"\s*x\s*", words)))
        for words in re.findall(r"\d+(?:\s*x\s*\d+)+", case)
    ]
    for left, right in itertools.pairwise(shapes):
        if left[-1] != right[-2] or left[:-2] != right[:-2]:
            raise CannotRun(f"the matrices of {case!r} do not fit together")
    return shapes


def products(row: Row) -> Compiled:
    shapes = shapes_of(row.case)
    flops = sum(2 * math.prod(shapes[0][:-1]) * math.prod(right[-2:]) for right in shapes[1:])
    return infer(Chain(shapes, dtype_of(row)), without_layers(options_for(row)), flops)


def without_layers(options: ipu_exec.Options) -> ipu_exec.Options:
    """The options of programs that call poplin themselves, for products that are no layer's."""
    options._Popart.set("enableFullyConnectedPass", False)
    return options


def number(case: str, pattern: str, default: int | None = None) -> int:
    match = re.search(pattern, case)
    if match is None:
        if default is None:
            raise CannotRun(f"{case!r} does not say {pattern!r}")
        return default
    return int(match.group(1))


def per_pack(case: str) -> float:
    """The sequences that a sample is counted as: those of a pack, if the case has packs."""
    match = re.search(r"([\d.]+) sequences to a pack", case)
    return float(match.group(1)) if match else 1.0


def kernel_and_field(case: str) -> list[tuple[int, int]]:
    """Kernel and field, in this order, each as HxW."""
    pairs = [(int(a), int(b)) for a, b in re.findall(r"(\d+)x(\d+)", case)]
    if len(pairs) != 2:
        raise CannotRun(f"{case!r} does not say a kernel and a field, each as HxW")
    return pairs


def padding_of(case: str, kernel: tuple[int, int]) -> tuple[int, int]:
    """The padding in the case (``pad 1`` or ``pad 3,0``), otherwise half the kernel."""
    match = re.search(r"pad (\d+)(?:,(\d+))?", case)
    if match is None:
        return kernel[0] // 2, kernel[1] // 2
    return int(match.group(1)), int(match.group(2) or match.group(1))


def convolutions(row: Row) -> Compiled:
    kernel, field = kernel_and_field(row.case)
    channels = number(row.case, r"(\d+)\s*->"), number(row.case, r"->\s*(\d+)")
    batch, stride = number(row.case, r"batch (\d+)", 1), number(row.case, r"stride (\d+)", 1)
    groups = number(row.case, r"groups (\d+)", 1)  # of so many channels each
    padding = padding_of(row.case, kernel)
    outs = [(f + 2 * p - k) // stride + 1 for f, k, p in zip(field, kernel, padding, strict=True)]
    back = "copy out to in" in row.case
    about = batch, stride, dtype_of(row), back, groups
    model = Convolution(field, channels, kernel, padding, *about)
    flops = 2 * batch * groups * math.prod((*channels, *kernel, *outs))
    return infer(model, options_for(row), flops)


def compiled(row: Row) -> Compiled:
    """Compile the row's case by the front end. Raises CannotRun and the engine's own errors."""
    from benchmarks.fidelity import inference, models, operators, small

    if build := small.find(row.case) or operators.find(row.case):
        return build(row)
    if "@" in row.case:
        return products(row)
    if "->" in row.case:
        return convolutions(row)
    build = models.find(row.case) or inference.find(row.case)
    if build is None:
        raise CannotRun(f"no model is written for {row.case!r}")
    return build(row)


# -- what is read off the compiled program ---


def predict(row: Row, case: Compiled) -> float:
    """The predicted quantity of the row, in its unit; of a case of fits.csv, how full a tile is."""
    if row.kind == "fits":
        return case.fullest
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
        return case.samples * per_pack(row.case) * clock / case.executable.cycles_per_call
    raise CannotRun(f"no throughput in {row.unit!r}")


# Operators whose tool runs two programs, a forward and a backward one ([PLB, tools/*.cpp],
# engine.run); the others' run one.
TWO_PROGRAMS = ("layers", "convolutions", "depthwise", "octave convolutions", "pooling")
# Operators whose tool has the forward pass in a function ([PLB, tools/single_conv_layer.cpp])
FUNCTIONS = ("convolutions", "depthwise")


def tool_cycles(row: Row, case: Compiled) -> float:
    """Cycles that a row counts: of one pass, per convolution, or of a run of poplibs' tool.

    The vendor's model counts a sync with the host at the start of each program that a tool runs. A
    function's operands are copied to it, and its result from it.
    """
    cycles = forward_cycles(case.executable)
    if row.kind != "poplibs":
        return float(cycles)
    if row.operator in FUNCTIONS:
        cycles += function_copies(case.executable)
    starts = 2 if row.operator in TWO_PROGRAMS else 1
    return float(cycles + starts * EXTERNAL_SYNC_CYCLES)


def function_copies(executable: Any) -> int:
    """Cycles of the copies to and from the function of a tool, on their busiest tiles."""
    from benchmarks.fidelity import memory

    copied = memory.function_tensors(executable.variables)
    return sum(int(copy_cycles(v.tile_bytes).max()) for v in copied)


def run_cycles(row: Row, case: Compiled) -> float:
    """A run in the vendor's model.

    The sync with the host that starts it, what the tiles do, and the begin, mid and end of each
    tensor streamed in or out, which take no transfer time there (docs/cycles.md#stream-copies).
    """
    streamed = len(re.findall("@", row.case)) + 2
    cycles = forward_cycles(case.executable) + streamed * 3 * STREAM_STEP_CYCLES
    return cycles + EXTERNAL_SYNC_CYCLES


def part_of(row: Row, case: Compiled) -> list[Any]:
    """Steps of the product that the row is about, the last of those the case needs to have run
    before.
    """
    steps = [s for body in case.executable.tree.bodies if body.task == FORWARD for s in body.steps]
    last = max(s.op for s in steps)
    return [s for s in steps if s.op == last]


def step_with_exchange(which: str) -> Callable[[Row, Compiled], float]:
    """Cycles from the end of the compute set before to the end of the one named so.

    PopVision draws an exchange with the compute set that it feeds, and what puts an operand in
    order beforehand on its own [TUT4].
    """

    def read(row: Row, case: Compiled) -> float:
        found, since = 0, 0
        for step in part_of(row, case):
            since += step.cycles
            if step.vertices:
                found += since if f"/{which}" in step.name else 0
                since = 0
        return float(found)

    return read


def tiles_used(row: Row, case: Compiled) -> float:
    step = max((s for s in part_of(row, case) if s.vertices), key=lambda s: s.flops)
    return float((step.tile_cycles > 0).sum())


def memory_of(part: str) -> Callable[[Row, Compiled], float]:
    def read(row: Row, case: Compiled) -> float:
        from benchmarks.fidelity import memory

        if row.kind != "poplibs":
            return memory.read(part, case.executable)
        programs = 2 if row.operator in TWO_PROGRAMS else 1
        tool = memory.Tool(programs, row.operator in FUNCTIONS)
        return memory.read(part, case.executable, tool)

    return read


def of_stage(*tasks: int) -> Callable[[Row, Compiled], float]:
    """Cycles of one micro-batch in the stage, or on the IPU, that the row's quantity names."""

    def read(row: Row, case: Compiled) -> float:
        which = number(row.quantity, r"(?:stage|IPU) (\d+)")
        bodies = case.executable.tree.bodies
        return float(sum(b.cycles for b in bodies if b.task in tasks and which == b.stage))

    return read


def copies_of_ipu(row: Row, case: Compiled) -> float:
    """Cycles that the row's IPU copies to and from others in a cycle of the pipeline.

    As they are drawn: until the IPUs before and behind it, with which it exchanges, are done with
    theirs.
    """
    which = number(row.quantity, r"IPU (\d+)")
    bodies = [body for body in case.executable.tree.bodies if body.task == COPY]
    together = [which - 1, which, which + 1]
    return float(max(sum(b.cycles for b in bodies if b.ipu == ipu) for ipu in together))


def update_cycles(row: Row, case: Compiled) -> float:
    """Cycles from one weight update to the next."""
    return case.executable.cycles_per_call / number(row.case, r"(\d+) iterations", 1)


READINGS: dict[str, Callable[[Row, Compiled], float]] = {
    "forward of stage": of_stage(FORWARD),
    "backward of stage": of_stage(RECOMPUTE, BACKWARD),
    "copies of IPU": copies_of_ipu,
    "cycles of an update": update_cycles,
    "throughput": throughput,
    "run cycles": run_cycles,
    "convolve step": step_with_exchange("convolve"),
    "reduce step": step_with_exchange("reduce"),
    "tiles used": tiles_used,
    "cycles": tool_cycles,
    "fullest tile without gaps without code": memory_of("tile without code"),
    "fullest tile without gaps": memory_of("tile total"),
    "total memory without gaps": memory_of("total"),
    "total memory without code": memory_of("without code"),
    "total memory with vertex code": memory_of("with vertex code"),
    "fullest tile with gaps": memory_of("fullest tile"),
    "always live with code": memory_of("live with code"),
    "always live": memory_of("always live"),
    "peak not-always-live": memory_of("peak"),
}
