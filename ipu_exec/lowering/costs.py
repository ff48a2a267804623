"""Cycles of elementwise vertices on one tile, as vectors over tiles (docs/cycles.md#elementwise).

``base + 6 * (worker + c * ceil(n / u))`` with n = ceil(elements / 6) a worker: ``u`` elements of
the type are done in ``c`` worker cycles.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from ipu_exec.lowering.layouts import ceil_div
from ipu_exec.lowering.vertices import poplar_type
from ipu_exec.machine import SLICE_BYTES_PER_CYCLE, SLICE_CYCLES
from ipuscope.profiler.vertices import WORKERS, rows


@dataclass(frozen=True)
class Cost:
    """Cycles of one kind of vertex. Rates are (worker cycles, elements), for each type."""

    vertex: str  # T is the data type
    base: int
    worker: int
    fp32: tuple[int, int]
    fp16: tuple[int, int]
    integers: tuple[int, int]  # of truths, too
    flops: int = 1  # an element

    def vertex_type(self, dtype: str) -> str:
        """The published name of the vertex for a data type."""
        return re.sub(r"\bT\b", poplar_type(dtype), self.vertex)

    def cycles(self, elements: np.ndarray, dtype: str) -> np.ndarray:
        """int64 cycles over tiles for ``elements`` a tile; 0 where there are none."""
        rates = {"half": self.fp16, "float": self.fp32}
        rate, unit = rates.get(poplar_type(dtype), self.integers)
        loops = ceil_div(ceil_div(elements, WORKERS), unit)
        return np.where(elements > 0, self.base + WORKERS * (self.worker + rate * loops), 0)


KINDS = {
    kind: Cost(vertex, base, worker, (a, b), (c, d), (e, f), flops)
    for kind, vertex, (base, worker, a, b, c, d, e, f, flops) in rows()
}
"""Kinds of elementwise vertices, of ``profiler/vertex_costs.csv``: those of
docs/cycles.md#elementwise, and others, whose rows say what they are taken from."""


def rearrange_cycles(elements: np.ndarray) -> np.ndarray:
    """On-tile transposition: 5/4 cycles an element, as the planner [PL] (docs/cycles.md#copies)."""
    return ceil_div(np.asarray(elements, np.int64) * 5, 4)


# worker-set cycles of 1,024 bytes in atoms of a multiple of 8, 4 and 2 bytes ([PL,
# lib/poplin/ConvModel.cpp], addTransformCycleEstimate: poplibs' regression over 10,000 cases)
_TRANSFORM = {8: 451, 4: 3200, 2: 5271}
_TRANSFORM_CYCLES = 587
_CALL_CYCLES, _MOVE_CYCLES = 288, 10  # measured: a call, and an element of 2 bytes on its own [IS]

_LARGEST_STRIDE = 512  # of the transposition's inner loop
_SPLIT_BLOCKS = 3  # blocks that all workers transpose together


def transform_cycles(nbytes: np.ndarray, atom: int) -> np.ndarray:
    """Putting an operand in the order that a convolution's vertex wants, ``nbytes`` on each tile.

    ``atom``: bytes that stay together (docs/cycles.md#copies). 0 where there is nothing.
    """
    nbytes = np.asarray(nbytes, np.int64)
    rate = next((cycles for size, cycles in _TRANSFORM.items() if atom % size == 0), _TRANSFORM[2])
    cycles = _TRANSFORM_CYCLES + rate * nbytes // 1024
    return np.where(nbytes > 0, np.minimum(cycles, _CALL_CYCLES + _MOVE_CYCLES * nbytes // 2), 0)


def transpose_cycles(blocks: np.ndarray, rows: int, columns: int, item_bytes: int) -> np.ndarray:
    """Cycles of transposing so many blocks of ``rows`` x ``columns`` elements on each tile.

    Workers take whole blocks, but share those of 2-byte elements where there are at most three. The
    loop of 4-byte elements is short only where its stride fits its instruction ([PL,
    lib/popops/popopsCycleEstimators.cpp] until February 2022, Transpose2D, Transpose1D and
    SplitTranspose1D).
    """
    blocks = np.asarray(blocks, np.int64)
    each = ceil_div(blocks, WORKERS)
    if item_bytes == 2 and rows % 4 == columns % 4 == 0:
        pairs = max(columns // 4 - 2, 0)
        together = 29 + each * (18 + rows // 4 * (12 + 4 * pairs))
        sharing = np.maximum(WORKERS // np.maximum(blocks, 1), 1)
        apart = 27 + ceil_div(rows // 4, sharing) * (12 + 4 * pairs)
        worker = np.where(blocks <= _SPLIT_BLOCKS, apart, together)
    elif item_bytes == 2:
        worker = 15 + each * (8 + columns * (5 + rows * 5 // 2))
    elif rows % 2 == columns % 2 == 0 and rows * (columns - 2) // 2 < _LARGEST_STRIDE:
        worker = 27 + each * (11 + rows // 2 * (6 + 3 * (columns // 2 - 1)))
    else:
        worker = 13 + each * (8 + columns * (5 + rows * 2))
    return np.where(blocks > 0, WORKERS * worker, 0)


def add_channels_cycles(elements: np.ndarray, channels: np.ndarray, group: int) -> np.ndarray:
    """Cycles of adding a value to each of ``channels`` of fp16, which lie in groups of ``group``.

    Workers share the positions; eight channels of one take two cycles ([PL,
    lib/popops/popopsCycleEstimators.cpp], vectorInnerMultiVertexAddCycles).
    """
    elements, channels = np.asarray(elements, np.int64), np.maximum(channels, 1)
    blocks = ceil_div(ceil_div(elements, channels), WORKERS)
    slices, eights = ceil_div(channels, group), ceil_div(channels, 8)
    called = np.where(slices > 1, 17, 0) + 12
    worker = 19 + slices * called + eights * np.where(blocks > 1, 13 + 2 * blocks, 7)
    return np.where(elements > 0, 13 + WORKERS * worker, 0)


def copy_cycles(nbytes: np.ndarray) -> np.ndarray:
    """On-tile aligned copy: 8 bytes a cycle (docs/cycles.md#copies)."""
    return ceil_div(nbytes, 8)


def slice_cycles(nbytes: np.ndarray) -> np.ndarray:
    """Cycles of a dynamic slice or update of that many bytes per tile (docs/cycles.md#gather)."""
    nbytes = np.asarray(nbytes, np.int64)
    return np.where(nbytes > 0, SLICE_CYCLES + ceil_div(nbytes, SLICE_BYTES_PER_CYCLE), 0)
