"""What each tile has of a planned product, and how operands lie that a plan has placed."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from ipu_exec.lowering.layouts import blocks, ceil_div, digest
from ipu_exec.lowering.plan import Operand
from ipu_exec.lowering.products import amp
from ipu_exec.lowering.products.product_problem import (
    Problem,
    Splits,
    grains,
    group_grain,
    unit_for,
)
from ipu_exec.machine import Machine

Array = np.ndarray
CHANNEL_RUN = 16  # operands are stored in groups of this many channels


@dataclass(frozen=True)
class Share:
    """Each tile's share of a planned product: int64 over tiles; channels without padding."""

    segments: Array
    width: Array
    ins: Array
    outs: Array
    groups: Array
    taps: Array  # kernel elements
    # position along the split of input channels and of the kernel, which shares the outputs
    in_index: Array
    # position among the tiles that take the same weights, and share in storing them
    field_index: Array
    out_index: Array  # position among the tiles that take the same inputs

    @property
    def field(self) -> Array:
        """Field positions of each tile: int64[tiles]."""
        return self.segments * self.width

    def macs(self, problem: Problem) -> Array:
        """Multiply-accumulates of each tile; they sum to the problem's."""
        every = self.field * self.ins * self.outs * self.groups * self.taps
        return every // prod(problem.field_stride)


def share_out(problem: Problem, machine: Machine, unit: amp.Unit, splits: Splits) -> Share:
    """Uneven shares: the last block of each split is the remainder."""
    grain_in, grain_out = grains(problem, unit, splits.method, splits.filter_height)
    tile = np.arange(machine.tiles, dtype=np.int64) - machine.first
    used = (tile >= 0) & (tile < machine.product_tiles)
    tile = (tile - dither(problem, machine)) % machine.product_tiles
    used &= tile < splits.tiles
    tile = np.where(used, tile, 0)
    if splits.ins_first:  # of a plan with neither kernel nor output channels divided
        rest, f, c = _field_of(tile, splits)
        g, partial = np.divmod(rest, splits.depth)
        o = np.zeros_like(partial)
    else:
        rest, partial = np.divmod(tile, splits.depth)
        rest, o = np.divmod(rest, splits.outs)
        g, f, c = _field_of(rest, splits)
    k, i = np.divmod(partial, splits.ins)
    flat = splits.method in ("1x1", "outer")
    rows = problem.segments * (problem.width if flat else 1)
    chunks = (problem.field_chunk, 1) if flat else (1, problem.field_chunk)
    segments = blocks(rows, splits.rows, chunks[0])[f]
    width = blocks(1 if flat else problem.width, splits.cols, chunks[1])[c]
    vectors = (
        segments,
        width,
        blocks(problem.in_channels, splits.ins, grain_in)[i],
        blocks(problem.out_channels, splits.outs, grain_out)[o],
        blocks(problem.groups, splits.groups, group_grain(problem, splits.method))[g],
        blocks(problem.kernel[0], splits.kernel)[k] * problem.kernel[1],
    )
    busy = used & (np.minimum.reduce(vectors) > 0)
    seg, wid, ins, outs, groups, taps = (np.where(busy, v, 0) for v in vectors)
    return Share(seg, wid, ins, outs, groups, taps, partial, f * splits.cols + c, o)


def _field_of(index: Array, splits: Splits) -> tuple[Array, Array, Array]:
    """(what is left, part of the rows, part of the columns) of a number of tiles."""
    rest, c = np.divmod(index, splits.cols)
    rest, f = np.divmod(rest, splits.rows)
    return rest, f, c


def dither(problem: Problem, machine: Machine) -> int:
    """How many tiles after its first a product begins: 0, unless convolutions are dithered."""
    # poplin's enableConvDithering hashes the parameters, so that small ones are not all on tile 0
    return digest(_shape(problem)) % machine.product_tiles if machine.dithering else 0


def _shape(problem: Problem) -> tuple[Any, ...]:
    return (
        problem.groups,
        problem.segments,
        problem.width,
        problem.in_channels,
        problem.out_channels,
        problem.kernel,
        *((problem.flipped,) if problem.flipped else ()),
        *((problem.out_chunk,) if problem.out_chunk > 1 else ()),
    )


def stored_weights(share: Share, splits: Splits, block: int) -> Array:
    """Elements of weights that each tile stores: whole blocks, from the first tile to use them."""
    # As in the vendor's planner, which never splits the weights that a vertex loads at once
    # (`block`), so that exchange needs less code ([PL, lib/poplin/Convolution.cpp], mapWeights;
    # splitRegions gives each tile the same number, and the last ones the remainder).
    used = share.ins * share.outs * share.taps * share.groups
    each = ceil_div(ceil_div(used, block), splits.rows * splits.cols) * block
    return np.clip(used - share.field_index * each, 0, each)


def piece(total: Array, index: Array, parts: int, grain: int = 1) -> Array:
    """The ``index``-th of ``parts`` nearly equal pieces of ``total``, whole grains but the last."""
    grains = ceil_div(total, grain)
    begin, end = (np.minimum(k * grains // parts * grain, total) for k in (index, index + 1))
    return end - begin


def block_of(operand: Operand) -> int:
    """Elements of an operand that are at least kept together, whichever part of it is needed."""
    key = operand.layout.key if operand.layout is not None else None
    return key[3] if isinstance(key, tuple) and key[0] == "planned" else 1


def planned_key(
    problem: Problem,
    machine: Machine,
    dtype: str,
    splits: Splits,
    what: str,
    operand: Operand,
    channel_stride: int = 1,
) -> Any:
    """The layout key of an operand stored as a plan wants it, for every operator with that plan.

    ``channel_stride``: in the storage, of the input channels that lie together in groups.
    """
    view = (operand.shape, operand.strides, operand.offset)
    block = weight_block(problem, machine, dtype, splits) if what == "weight" else CHANNEL_RUN
    return (
        "planned",
        CHANNEL_RUN,
        what,
        block,
        channel_stride,
        digest(_shape(problem), _tiles(problem, machine), dtype, str(splits), view),
    )


def is_grouped(operand: Operand) -> bool:
    """Whether the operand lies as a product wanted it, its input channels together in groups."""
    key = operand.layout.key if operand.layout is not None else None
    return isinstance(key, tuple) and key[0] == "planned" and key[2] != "output"


def grouped_stride(operand: Operand) -> int:
    """The storage's stride of what lies in groups: a product's input channels, or what adjoins."""
    key: Any = operand.layout.key if operand.layout is not None else None
    return int(key[4]) if is_grouped(operand) else 1


def _tiles(problem: Problem, machine: Machine) -> Any:
    """The tile range that identifies a plan."""
    start = machine.first + dither(problem, machine)
    return (
        (machine.tiles, machine.first, start, machine.part)
        if start or machine.part
        else machine.tiles
    )


def weight_block(problem: Problem, machine: Machine, dtype: str, splits: Splits) -> int:
    """Weights that a vertex loads at once: input times output channels of one kernel element."""
    unit = unit_for(problem, machine, dtype)
    return prod(grains(problem, unit, splits.method, splits.filter_height))
