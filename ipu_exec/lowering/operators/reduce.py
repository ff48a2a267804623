"""Reductions over any dimensions.

Each tile reduces what it holds, partials are exchanged, and the rest is reduced where they meet.
Where a tile's share holds whole outputs nothing is exchanged. Stages and tiles are those of
popops::reduce ([PL, lib/popops/reduction/ReductionPlan.cpp], calculateNextStep and calculateSplit;
[PL, lib/popops/reduction/ReductionStages.cpp]), vertices are in `reduce_vertices`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import isqrt, prod, sqrt
from typing import Any, NamedTuple

import numpy as np

from ipu_exec.lowering.build import Builder
from ipu_exec.lowering.layouts import Spread, apportion, ceil_div, digest, split_evenly, touched
from ipu_exec.lowering.operator_info import describe_aten, words
from ipu_exec.lowering.operators.elementwise import base_name, elementwise
from ipu_exec.lowering.operators.reduce_vertices import (
    FLOAT_BYTES,
    VECTOR_BYTES,
    Kind,
    OnTile,
    following,
    in_blocks,
    side_by_side,
    single,
)
from ipu_exec.lowering.plan import ITEM_BYTES, Operand, OpSpec, Plan
from ipu_exec.lowering.registry import lowering
from ipu_exec.machine import SYNC_CYCLES, Machine

_LEAST_BYTES = 32  # of outputs on a tile, where they are not wanted elsewhere
_MORE_STAGES = 64  # partials an output beyond which one more stage is put in
_LEAST_PIECE = 64  # partials that a tile reduces in such a stage
_BALANCED_GRAIN = 8  # outputs that stay together where poplibs weighs all tiles


class Stages(NamedTuple):
    """`OnTile` for all tiles: int64[tiles] each."""

    first: np.ndarray
    second: np.ndarray
    vertices: np.ndarray
    again: np.ndarray
    between: np.ndarray


def on_tiles(elements: np.ndarray, outputs: np.ndarray, kind: Kind, together: int = 0) -> Stages:
    """The two stages on each tile; ``together`` as `_together` has it."""
    if not together:
        return _stages(elements, outputs, kind, side_by_side)

    def pieces(count: int, made: int, kind: Kind) -> OnTile:
        return following(count, made, together, kind)

    return _stages(elements, outputs, kind, pieces)


def _stages(
    counts: np.ndarray, outputs: np.ndarray, kind: Kind, what: Callable[[int, int, Kind], OnTile]
) -> Stages:
    """``what`` each tile does for its (count, outputs), once for tiles that are alike."""
    pairs = np.stack([np.ravel(counts), np.ravel(outputs)]).astype(np.int64)
    keys = pairs[0] * (pairs[1].max(initial=0) + 1) + pairs[1]
    _, distinct, where = np.unique(keys, return_index=True, return_inverse=True)
    nothing = OnTile(0, vertices=0)
    each = [what(n, m, kind) if n > 0 and m > 0 else nothing for n, m in pairs.T[distinct].tolist()]
    rows = np.array(each, np.int64).reshape(-1, len(nothing))[np.ravel(where)]
    return Stages(*(column.reshape(np.shape(counts)) for column in rows.T))


def reduce_cycles(
    elements: np.ndarray, outputs: np.ndarray, item_bytes: int, strided: bool, op: str = "ADD"
) -> np.ndarray:
    """Cycles of ``elements`` to ``outputs`` on each tile; ``strided``: outputs lie side by side."""
    kind = Kind(op, item_bytes, FLOAT_BYTES)
    stages = on_tiles(elements, outputs, kind, 0 if strided else 1 << 30)
    return stages.first + stages.second


def _together(operand: Operand, dims: tuple[int, ...]) -> int:
    """Elements of an output that follow each other in memory; 0 where outputs lie side by side."""
    wide = [d for d, extent in enumerate(operand.shape) if extent > 1]
    inner = 1
    for dim in sorted(wide, key=lambda d: operand.strides[d]):
        if dim not in dims:
            break
        inner *= operand.shape[dim]
    return inner if inner > 1 else 0


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


def output_spread(outputs: int, tiles: int, item_bytes: int = FLOAT_BYTES) -> Spread:
    """Outputs of a reduction over tiles, at least 32 bytes of partials of ``item_bytes`` a tile."""
    # [PL, lib/popops/reduction/ReductionStages.cpp], intermediateToOutput: four vectors
    used = max(1, min(tiles, -(-outputs * item_bytes // _LEAST_BYTES)))
    start = digest("reduce", outputs, used) % tiles
    share = np.zeros(tiles, np.int64)
    grain = max(1, VECTOR_BYTES // item_bytes)
    share[(start + np.arange(used)) % tiles] = split_evenly(outputs, used, grain)
    return Spread(("reduced", 0, outputs, used, grain, start), share)


def partial_bytes(op: str, dtype: str) -> int:
    """Bytes of a partial between tiles: sums and products of halves are kept in float."""
    exact = op in ("MAX", "MIN", "OR", "AND")
    return ITEM_BYTES[dtype] if exact else max(FLOAT_BYTES, ITEM_BYTES[dtype])


def reduce_over(
    build: Builder,
    operand: Operand,
    spread: Spread,
    dims: tuple[int, ...],
    op: str = "ADD",
    name: str = "reduce",
) -> Reduced:
    """Append the steps that reduce ``operand`` over ``dims``; ``op``: as vertex types name it."""
    remaining = tuple(d not in dims for d in range(len(operand.shape)))
    outputs = prod(n for n, k in zip(operand.shape, remaining, strict=True) if k)
    if not operand.elements:  # nothing to reduce: what the operation gives of nothing
        empty = output_spread(outputs, build.tiles)
        build.map(f"{name}/fill", "fill", empty.elements, "float32", flops=0)
        return Reduced(empty, np.zeros(build.tiles, np.int64), True)
    partials = touched(operand, remaining, spread.elements, spread.run)
    kind = Kind(op, operand.item_bytes, partial_bytes(op, operand.dtype))
    total = int(partials.sum())
    if int(spread.elements.sum()) > total:
        stages = on_tiles(spread.elements, partials, kind, _together(operand, dims))
        _compute(build, f"{name}/on tile", kind, stages, operand.elements - total)
        nbytes = partials * kind.result_bytes
        build.hold(f"{name} partials", nbytes, build.next - 1, build.next + 1)
        kind = kind.again
    if total <= outputs:
        key = ("reduced", 0, digest(spread.key, operand.shape, operand.strides, dims))
        return Reduced(Spread(key, apportion(outputs, partials)), partials, True)
    last = reduce_partials(build, name, kind, partials, outputs, int(partials.max()))
    return Reduced(last, partials, False)


def reduce_partials(
    build: Builder,
    name: str,
    kind: Kind,
    partials: np.ndarray,
    outputs: int,
    width: int,
    wanted: Spread | None = None,
) -> Spread:
    """Append the stages that reduce tiles' ``partials``, ``width`` outputs together on a tile.

    ``wanted``: where the outputs have to lie; where that costs more than all tiles do, they are
    reduced by all and brought there ([PL, lib/popops/reduction/ReductionPlan.cpp],
    shouldReduceAtDestination). Returns how the outputs lie.
    """
    stage = 1
    while _one_more_stage(partials, outputs, build.tiles):
        partials = _between(build, f"{name}/stage {stage}", kind, partials, outputs, width)
        kind, stage = kind.again, stage + 1
    last = output_spread(outputs, build.tiles, kind.item_bytes)
    if wanted is not None and _reduced_there(kind, partials, outputs, wanted):
        last = wanted
    _to_outputs(build, f"{name}/stage {stage}", kind, partials, last.elements, width)
    if wanted is not None and last is not wanted:
        arriving, sent = (one.elements * kind.result_bytes for one in (wanted, last))
        build.exchange(f"{name}/to outputs", arriving, sent)
    return wanted or last


def _reduced_there(kind: Kind, partials: np.ndarray, outputs: int, wanted: Spread) -> bool:
    """Whether poplibs expects less of reducing where the outputs are wanted than on all tiles."""
    # as there, partials count whole on the way to all tiles, once to where they are wanted
    tiles, sources = len(partials), -(-int(partials.sum()) // outputs)
    there, words = int(wanted.elements.max()), max(1, 4 // kind.item_bytes)
    every = -(-outputs // (_BALANCED_GRAIN * tiles)) * _BALANCED_GRAIN
    at_once = kind.vector
    direct = -(-there // words) + sources * -(-there // at_once)
    balanced = -(-every * sources // words) + sources * -(-every // at_once) - (-there // words)
    return direct < balanced + SYNC_CYCLES


def _compute(build: Builder, name: str, kind: Kind, stages: Stages, flops: int) -> None:
    """Append the compute sets of one reduction: workers that share an output need a second."""
    types = [kind.item_bytes, kind.result_bytes]
    read, made = ("half" if nbytes == 2 else "float" for nbytes in types)
    vertex = f"popops::Reduce<popops::Reduce{kind.op.title()},{read},{made}>"
    first = build.compute(name, vertex, stages.first, flops, stages.vertices)
    if stages.second.any():
        again = f"popops::Reduce<popops::Reduce{kind.again.op.title()},{made},{made}>"
        last = build.compute(f"{name}/of workers", again, stages.second, count=stages.again)
        build.hold(f"{name}/worker partials", stages.between * kind.result_bytes, first, last)


def _one_more_stage(partials: np.ndarray, outputs: int, tiles: int) -> bool:
    """Whether partials are too many to be reduced where the outputs lie (calculateNextStep)."""
    total = int(partials.sum())
    sources = total / outputs
    spread_out = np.count_nonzero(partials) > tiles * 3 // 4
    if sources < 2 * sqrt(tiles) and spread_out:
        return False
    return total > outputs * _MORE_STAGES


def _between(
    build: Builder, name: str, kind: Kind, partials: np.ndarray, outputs: int, width: int
) -> np.ndarray:
    """Append a stage whose results are partials again; returns how many each tile has."""
    # outputs are cut into columns of grains, each column's sources into blocks (calculateSplit)
    total, tiles = int(partials.sum()), build.tiles
    blocks = Blocks.of(total, outputs, width, kind, tiles)
    used, each = min(tiles, blocks.count), -(-blocks.count // tiles)
    start = digest("between", outputs, used) % tiles
    made = np.zeros(tiles, np.int64)
    made[(start + np.arange(used)) % tiles] = split_evenly(outputs * blocks.high, used)
    arriving = apportion(total, made)
    step = _gather(build, name, kind, partials, arriving, np.where(made > 0, blocks.columns, 0))
    on_one = in_blocks(blocks.rows, blocks.columns, each, kind)
    stages = Stages(*(np.where(made > 0, one, 0) for one in on_one))
    _compute(build, name, kind, stages, int(arriving.sum() - made.sum()))
    build.hold(f"{name} partials", arriving * kind.item_bytes, step, build.next - 1)
    return made


@dataclass(frozen=True)
class Blocks:
    """What a tile reduces in a stage between: ``rows`` partials of ``columns`` outputs."""

    rows: int
    columns: int
    wide: int  # blocks side by side
    high: int  # blocks of an output

    @property
    def count(self) -> int:
        """Blocks in all."""
        return self.wide * self.high

    @classmethod
    def of(cls, total: int, outputs: int, width: int, kind: Kind, tiles: int) -> Blocks:
        """As calculateSplit cuts ``total`` partials, ``width`` of them together on a tile."""
        sources = max(1, total // outputs)
        factor = (width // kind.grain) // max(1, isqrt(sources))
        least = max(kind.grain, factor * kind.grain)
        wanted = max(least, -(-outputs // tiles))
        columns = min(outputs, width, -(-wanted // kind.grain) * kind.grain)
        piece = sources * columns
        parts = max(1, piece // max(1, total // tiles))
        if piece // parts < _LEAST_PIECE:
            parts = max(1, piece // _LEAST_PIECE)
        if sources // parts < 2:
            parts = max(1, sources // 2)
        rows = max(2, -(-sources // parts))
        return cls(rows, columns, -(-outputs // columns), -(-sources // rows))


def _gather(
    build: Builder,
    name: str,
    kind: Kind,
    partials: np.ndarray,
    arriving: np.ndarray,
    width: np.ndarray,
) -> int:
    """Append the exchange of partials: ``width`` of a tile's outputs come from a tile at once."""
    pieces = np.minimum(ceil_div(arriving, np.maximum(width, 1)), len(partials))
    nbytes = arriving * kind.item_bytes, partials * kind.item_bytes
    return build.exchange(f"{name}/exchange", *nbytes, pieces)


def _to_outputs(
    build: Builder, name: str, kind: Kind, partials: np.ndarray, outputs: np.ndarray, width: int
) -> None:
    """Append the last stage: partials go to the tiles of ``outputs``."""
    arriving = apportion(int(partials.sum()), outputs)
    step = _gather(build, name, kind, partials, arriving, np.minimum(outputs, width))
    if width == 1:
        rows = ceil_div(arriving, np.maximum(outputs, 1))
        stages = _stages(rows, outputs, kind, single)
    else:
        stages = on_tiles(arriving, outputs, kind)
    _compute(build, name, kind, stages, int(arriving.sum() - outputs.sum()))
    build.hold(f"{name} partials", arriving * kind.item_bytes, step, build.next - 1)


def broadcast_back(
    build: Builder, reduced: Reduced, name: str, item_bytes: int = FLOAT_BYTES
) -> None:
    """Append the exchange that brings each tile the outputs it contributed to, if it needs one."""
    if reduced.local:
        return
    step = build.exchange(
        name, reduced.contributed * item_bytes, reduced.spread.elements * item_bytes
    )
    build.hold(name, reduced.contributed * item_bytes, step, build.next)


_OPS = {
    **dict.fromkeys(words("sum mean nansum count_nonzero"), "ADD"),
    **dict.fromkeys(words("max amax aminmax argmax"), "MAX"),
    **dict.fromkeys(words("min amin argmin"), "MIN"),
    **dict.fromkeys(words("norm linalg_vector_norm"), "SQUARE_ADD"),
    "prod": "MUL",
    "any": "OR",
    "all": "AND",
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
        return elementwise(spec, machine, (name,))
    build = Builder(spec, machine)
    operand, spread = build.lead(0)
    dims = dims_of(_dims_argument(spec, name), len(operand.shape))
    out = next(o for o in spec.outputs if o is not None)
    if name.startswith("arg") or (name in ("max", "min") and len(spec.outputs) > 1):
        # the position travels with the value: a compare and two selects an element before adding
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
    return build.plan(reduced.spread.layouts(spec.outputs))


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


describe_aten("linalg_vector_norm norm sum mean", reduces_parts=True)
describe_aten("max min amax amin argmax", compares=True)
describe_aten("sum", popart_name="ReduceSum")
describe_aten("mean", popart_name="ReduceMean")
describe_aten("amax max", popart_name="ReduceMax")
describe_aten("amin min", popart_name="ReduceMin")
describe_aten("prod", popart_name="ReduceProd")
describe_aten("argmax", popart_name="ArgMax")
describe_aten("argmin", popart_name="ArgMin")
