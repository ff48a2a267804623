"""Weights transposed for a layer's pass back, where the forward pass has them.

poplin transposes them in blocks, as many of the inputs and of the outputs as the vertices of both
passes take together, or as divide the extents. A block is transposed on the tile that has its first
element and stays there; the pass back fetches its operand from these tiles ([PL,
lib/poplin/Convolution.cpp], fullyConnectedWeightTranspose, pickGroupSizes).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import gcd

import numpy as np

from ipu_exec.lowering.build import Builder, messages, placed
from ipu_exec.lowering.costs import transpose_cycles
from ipu_exec.lowering.layouts import Spread, blocks, ceil_div, digest, spread_of
from ipu_exec.lowering.plan import Operand
from ipu_exec.lowering.products.product_problem import Problem, Splits, grains, unit_for
from ipu_exec.lowering.products.product_shares import share_out
from ipu_exec.lowering.vertices import poplar_type
from ipu_exec.machine import Machine

FAST = 5  # times as quick, by poplin's score: blocks of 2-byte elements in whole grains of 4 x 4
SCATTERED = 3  # times as slow: blocks whose result does not lie in one piece


@dataclass(frozen=True)
class Blocks:
    """Blocks of ``outputs`` x ``inputs`` elements, and how many of them each tile transposes."""

    outputs: int
    inputs: int
    count: np.ndarray

    @property
    def elements(self) -> np.ndarray:
        """Elements that each tile transposes."""
        return self.count * self.outputs * self.inputs

    def cycles(self, item_bytes: int) -> np.ndarray:
        """Cycles of the transposition on each tile."""
        return transpose_cycles(self.count, self.outputs, self.inputs, item_bytes)


def together(problem: Problem, machine: Machine, dtype: str, splits: Splits) -> int:
    """Input channels that a product's vertex takes together; a dot product all that a tile has."""
    if splits.method == "hmac":
        return max(problem.in_chunk, -(-problem.in_channels // splits.ins))
    return grains(problem, unit_for(problem, machine, dtype), splits.method, 1)[0]


@lru_cache(maxsize=1024)
def find(
    machine: Machine, dtype: str, forward: tuple[Problem, Splits], backward: tuple[Problem, Splits]
) -> Blocks | None:
    """The blocks that poplin would take, of those that divide both; None if elements are copied."""
    # it prefers blocks that have a quick vertex, whose results lie in one piece, on many tiles, and
    # of those the largest
    problem, splits = forward
    inputs, outputs = problem.in_channels, problem.segments * problem.width
    ins = gcd(together(problem, machine, dtype, splits), inputs)
    outs = gcd(together(backward[0], machine, dtype, backward[1]), outputs)
    best: Blocks | None = None
    best_score = 0.0
    for size in _divisors(ins):
        for width in _divisors(outs):
            fast = dtype == "float16" and size % 4 == width % 4 == 0
            quick = (FAST if fast else 1) / (1 if width == outs else SCATTERED)
            if quick * splits.tiles <= best_score:
                continue
            blocks = Blocks(width, size, _counts(machine, dtype, forward, width, size))
            score = quick * int(np.count_nonzero(blocks.count))
            if score > best_score:
                best, best_score = blocks, score
    return None if best is None or min(best.outputs, best.inputs) == 1 else best


def _divisors(number: int) -> list[int]:
    return [n for n in range(number, 0, -1) if number % n == 0]


def _counts(
    machine: Machine, dtype: str, forward: tuple[Problem, Splits], width: int, size: int
) -> np.ndarray:
    """Blocks of ``width`` outputs by ``size`` inputs whose first element lies on each tile."""
    # Tiles that split the rows of the left operand take the same weights and share them, one group
    # of input channels after another, output by output.
    problem, splits = forward
    unit = unit_for(problem, machine, dtype)
    share = share_out(problem, machine, unit, splits)
    grain = grains(problem, unit, splits.method, splits.filter_height)[0]
    channels = together(problem, machine, dtype, splits)
    outputs, inputs = problem.segments * problem.width, problem.in_channels
    fields = blocks(outputs, splits.rows * splits.cols, problem.field_chunk)
    depths = blocks(inputs, splits.ins, grain)
    column, row = np.arange(0, outputs, width), np.arange(0, inputs, size)
    field, depth = column // fields[0], row // depths[0]
    group = (row - depth * depths[0]) // channels
    at = group[:, None] * fields[field] + (column - field * fields[0])
    each = ceil_div(ceil_div(depths[depth], channels)[:, None] * fields[field], splits.outs)
    place = (field * splits.ins + depth[:, None]) * splits.outs + at // each
    count = np.bincount(place.ravel(), minlength=len(fields) * splits.ins * splits.outs)
    tile = (share.field_index * splits.ins + share.in_index) * splits.outs + share.out_index
    return np.where(share.field > 0, count[tile] * share.groups, 0)


def transpose(build: Builder, name: str, weights: Operand, blocks: Blocks) -> Operand:
    """Append the transposition; returns the operand where it then lies."""
    item, lying = weights.item_bytes, spread_of(weights, build.tiles).elements
    wanted = blocks.elements
    here = np.minimum(wanted, lying)
    name = f"{name}/transpose weights"
    unique = (lying - here) * item
    gathered = (wanted - here) * item
    first = build.exchange(name, gathered, unique, messages(gathered, unique, 2))
    vertex = f"popops::Transpose2D<{poplar_type(weights.dtype)}>"
    step = build.compute(name, vertex, blocks.cycles(item))
    build.hold(f"{name}/gathered", gathered, first, step)
    build.hold(name, wanted * item, step, step + 1)
    key = "turned", blocks.inputs, digest(weights.shape, blocks.outputs, wanted.tobytes())
    return placed(weights, Spread(key, wanted).layout(weights.dtype))
