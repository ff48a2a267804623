"""Reductions over any dimensions.

Each tile reduces what it holds, partials are exchanged, and the rest is reduced where they meet.

Where a tile's share holds whole outputs nothing is exchanged. The costs are of the vertices that
popops::reduce takes for regular regions [PL, lib/popops/reduction/CycleEstimationFunctions.cpp]:
one worker cycle for 8 bytes of partials, and per output, or per 8 bytes of outputs that lie side by
side, what a loop takes to begin and end.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from ipu_exec.lowering.build import Builder
from ipu_exec.lowering.elementwise import base_name
from ipu_exec.lowering.layouts import Spread, apportion, ceil_div, digest, split_evenly, touched
from ipu_exec.lowering.operators import aten, describe
from ipu_exec.lowering.plan import Layout, Operand, OpSpec, Plan
from ipu_exec.lowering.registry import lowering
from ipu_exec.lowering.vertices import poplar_type
from ipu_exec.machine import Machine

WORKERS = 6
CONTINUOUS = (
    17,
    12,
)  # worker cycles of a call, and of an output whose elements follow each other in memory
STRIDED = (15, 10)  # of a call, and of 8 bytes of outputs whose elements lie a stride apart
PARTIAL_BYTES = 4  # sums are kept in fp32
TWO_STAGES = 32  # more partials an output than this are added in two stages


# worker cycles an element: 24 and the operation, in C++
# [PL, lib/popops/reduction/CycleEstimationFunctions.cpp]
LOGICAL = 25


def reduce_cycles(
    elements: np.ndarray, outputs: np.ndarray, item_bytes: int, strided: bool, op: str = "ADD"
) -> np.ndarray:
    """Cycles to reduce ``elements`` to ``outputs`` on each tile, shared out over the workers.

    ``strided``: outputs lie side by side and are made 8 bytes at a time
    (getCyclesEstimateForStridedReduce: 3 + 5 + 3 a loop, and a cycle for each further partial).
    Else an output's elements lie side by side (getCycleEstimateReduceAllRegionsContinuous: 12 an
    output, and a cycle for 8 bytes). Outputs too few for six workers have their elements shared
    out, and what the workers found is reduced by one of them.
    """
    call, each = STRIDED if strided else CONTINUOUS
    units = (
        ceil_div(np.asarray(outputs) * item_bytes, 8) if strided else np.asarray(outputs, np.int64)
    )
    inner = ceil_div(ceil_div(np.asarray(elements) * item_bytes, 8), WORKERS)
    if op in ("OR", "AND"):
        inner = LOGICAL * ceil_div(elements, WORKERS)
    shared = (units < WORKERS) & (elements > outputs)
    again = np.where(shared, STRIDED[0] + (STRIDED[1] + WORKERS) * units, 0)
    return np.where(
        elements > 0, WORKERS * (call + each * ceil_div(units, WORKERS) + inner + again), 0
    )


def _innermost(operand: Operand, dims: tuple[int, ...]) -> bool:
    """Whether neighbours in memory are reduced to one output."""
    wide = [d for d, extent in enumerate(operand.shape) if extent > 1]
    return bool(wide) and min(wide, key=lambda d: operand.strides[d]) in dims


@dataclass(frozen=True)
class Reduced:
    """The spread of a reduction's outputs, and how many each tile of the input contributes to."""

    spread: Spread
    contributed: np.ndarray
    local: bool  # every output was whole on the tile that holds it


def dims_of(dims: Any, rank: int) -> tuple[int, ...]:
    """The reduced dimensions as non-negative numbers; None and () mean all."""
    if dims is None or dims == ():
        return tuple(range(rank))
    many = dims if isinstance(dims, tuple) else (dims,)
    return tuple(sorted(d % max(rank, 1) for d in many))


def output_spread(outputs: int, tiles: int) -> Spread:
    """Outputs of a reduction over tiles, at most two per tile while tiles last.

    Partials then arrive in parallel.
    """
    used = max(1, min(tiles, -(-outputs // 2)))
    start = digest("reduce", outputs, used) % tiles
    share = np.zeros(tiles, np.int64)
    share[(start + np.arange(used)) % tiles] = split_evenly(outputs, used)
    return Spread(("reduced", 0, outputs, used, start), share)


def reduce_over(
    build: Builder,
    operand: Operand,
    spread: Spread,
    dims: tuple[int, ...],
    op: str = "ADD",
    name: str = "reduce",
) -> Reduced:
    """Append the steps that reduce ``operand`` over ``dims``.

    ``op`` names the operation in the vertex type.
    """
    remaining = tuple(d not in dims for d in range(len(operand.shape)))
    outputs = prod(n for n, k in zip(operand.shape, remaining, strict=True) if k)
    if not operand.elements:  # nothing to reduce: what the operation gives of nothing
        empty = output_spread(outputs, build.tiles)
        build.map(f"{name}/fill", "fill", empty.elements, "float32", flops=0)
        return Reduced(empty, np.zeros(build.tiles, np.int64), True)
    partials = touched(operand, remaining, spread.elements, spread.run)
    dtype = poplar_type(operand.dtype)
    total = int(partials.sum())
    if int(spread.elements.sum()) > total:
        build.compute(
            f"{name}/on tile",
            f"popops::Reduce<popops::Reduce{op.title()},{dtype},float>",
            reduce_cycles(
                spread.elements, partials, operand.item_bytes, not _innermost(operand, dims), op
            ),
            flops=operand.elements - total,
        )
        build.hold(f"{name} partials", partials * PARTIAL_BYTES, build.next - 1, build.next + 1)
    if total <= outputs:
        key = ("reduced", 0, digest(spread.key, operand.shape, operand.strides, dims))
        return Reduced(Spread(key, apportion(outputs, partials)), partials, True)
    depth = total / outputs
    held = partials
    if depth > TWO_STAGES:
        middle = min(total, outputs * int(np.ceil(np.sqrt(depth))))
        held = _stage(
            build, f"{name}/stage 1", op, held, output_spread(middle, build.tiles).elements, 0
        )
    last = output_spread(outputs, build.tiles)
    _stage(
        build, f"{name}/stage {2 if depth > TWO_STAGES else 1}", op, held, last.elements, outputs
    )
    return Reduced(last, partials, False)


def _stage(
    build: Builder, name: str, op: str, held: np.ndarray, outputs: np.ndarray, final: int
) -> np.ndarray:
    """Exchange the tiles' partials to the tiles of ``outputs``, and reduce them there."""
    arriving = apportion(int(held.sum()), outputs)
    contributors = ceil_div(
        arriving, np.maximum(outputs, 1)
    )  # a tile sends all it has of a tile's outputs at once
    step = build.exchange(
        f"{name}/exchange",
        arriving * PARTIAL_BYTES,
        held * PARTIAL_BYTES,
        np.minimum(contributors, len(held)),
    )
    build.compute(
        name,
        f"popops::Reduce<popops::Reduce{op.title()},float,float>",
        reduce_cycles(arriving, outputs, PARTIAL_BYTES, True, op),
        flops=int(arriving.sum() - outputs.sum()),
    )
    build.hold(f"{name} partials", arriving * PARTIAL_BYTES, step, build.next - 1)
    return outputs


def broadcast_back(
    build: Builder, reduced: Reduced, name: str, item_bytes: int = PARTIAL_BYTES
) -> None:
    """Append the exchange that brings each tile the outputs it contributed to, if it needs one."""
    if reduced.local:
        return
    step = build.exchange(
        name, reduced.contributed * item_bytes, reduced.spread.elements * item_bytes
    )
    build.hold(name, reduced.contributed * item_bytes, step, build.next)


_OPS = {
    "sum": "ADD",
    "mean": "ADD",
    "nansum": "ADD",
    "amax": "MAX",
    "amin": "MIN",
    "max": "MAX",
    "min": "MIN",
    "aminmax": "MAX",
    "prod": "MUL",
    "any": "OR",
    "all": "AND",
    "argmax": "MAX",
    "argmin": "MIN",
    "norm": "SQUARE_ADD",
    "linalg_vector_norm": "SQUARE_ADD",
    "count_nonzero": "ADD",
}


def _dims_argument(spec: OpSpec, name: str) -> Any:
    named = dict(spec.kwargs)
    if "dim" in named:
        return named["dim"]
    position = 2 if name in ("norm", "linalg_vector_norm") else 1
    return spec.args[position] if len(spec.args) > position else None


@lowering(*(f"aten.{name}" for name in _OPS))
def reduction(spec: OpSpec, machine: Machine) -> Plan:
    """Sums, means, extrema, norms and logical reductions over one, several or all dimensions."""
    name = base_name(spec)
    if len(spec.operands) == 2 and name in ("max", "min"):
        from ipu_exec.lowering.elementwise import elementwise

        return elementwise(spec, machine, (name,))
    build = Builder(spec, machine)
    operand, spread = build.lead(0)
    dims = dims_of(_dims_argument(spec, name), len(operand.shape))
    out = next(o for o in spec.outputs if o is not None)
    if name.startswith("arg") or (name in ("max", "min") and len(spec.outputs) > 1):
        # the position travels with the value: a compare and two selects an element before anything
        # is added up
        build.map("index", "compare", spread.elements, operand.dtype)
    if _OPS[name] == "ADD" and operand.item_bytes == 1:  # booleans are counted as numbers
        build.map(f"{name}/cast", "cast", spread.elements, out.dtype, flops=0)
        build.hold(f"{name}/numbers", spread.elements * out.item_bytes, build.next - 1, build.next)
        operand = replace(operand, dtype=out.dtype)
    reduced = reduce_over(build, operand, spread, dims, _OPS[name], name)
    if not build.steps:  # one element an output: popops::reduce copies
        build.map(f"{name}/copy", "copy", reduced.spread.elements, operand.dtype, flops=0)
    after = {"mean": "mul_scalar", "norm": "sqrt", "linalg_vector_norm": "sqrt"}.get(name)
    if after:
        build.map(f"{name}/{after}", after, reduced.spread.elements, out.dtype)
    elif out.dtype in ("float16", "bfloat16") and not reduced.local:
        build.map("cast", "cast", reduced.spread.elements, out.dtype, flops=0)
    layouts: list[Layout | None] = [
        None if o is None else reduced.spread.layout(o.dtype) for o in spec.outputs
    ]
    return build.plan(tuple(layouts))


@lowering("aten.var_mean", "aten.var", "aten.std", "aten.std_mean")
def variance(spec: OpSpec, machine: Machine) -> Plan:
    """Variance and mean: two reductions (sum, sum of squares) and a few maps of the outputs."""
    build = Builder(spec, machine)
    (operand, spread), name = build.lead(0), base_name(spec)
    dims = dims_of(_dims_argument(spec, name), len(operand.shape))
    mean = reduce_over(build, operand, spread, dims, "ADD", "sum")
    square = reduce_over(build, operand, spread, dims, "SQUARE_ADD", "sum of squares")
    for kind in ("mul_scalar", "square", "sub_", *(("sqrt",) if name.startswith("std") else ())):
        build.map(f"{name}/{kind}", kind, square.spread.elements, "float32")
    both = (square, mean) if name.endswith("mean") else (square,)
    return build.plan(
        tuple(
            None if o is None else r.spread.layout(o.dtype)
            for o, r in zip(spec.outputs, both, strict=True)
        )
    )


describe(*aten("linalg_vector_norm norm sum mean"), reduces_parts=True)
describe(*aten("max min amax amin argmax"), compares=True)
describe(*aten("sum"), popart_name="ReduceSum")
describe(*aten("mean"), popart_name="ReduceMean")
describe(*aten("amax max"), popart_name="ReduceMax")
describe(*aten("amin min"), popart_name="ReduceMin")
describe(*aten("prod"), popart_name="ReduceProd")
describe(*aten("argmax"), popart_name="ArgMax")
describe(*aten("argmin"), popart_name="ArgMin")
