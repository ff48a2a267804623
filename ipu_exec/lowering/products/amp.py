"""Cycles of the vertices that multiply and accumulate, and of reducing their partials.

All functions take and return numpy arrays (or values that broadcast to them); cycles are tile
cycles of one vertex: docs/cycles.md, from docs/cycles.md#amp-1x1 on. The vendor's planner and its
IPUModel estimate a vertex, which on hardware takes the instructions of its code: ``executed``.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ipu_exec.lowering.layouts import ceil_div
from ipu_exec.machine import Machine
from ipuscope.profiler.vertices import WORKERS

Ints = npt.ArrayLike
# of weights that do not lie interleaved, the planner's default; twice that with 128-bit loads ([PL,
# lib/poplin/ConvModel.cpp], use128BitConvUnitLoad)
COEFFICIENT_BYTES_PER_CYCLE = 8
MEMORY_ELEMENT_BYTES = 16_384  # docs/memory-model.md#contents-of-a-tile
MIXED_OUTPUTS = 8  # of fp16 operands with fp32 partials, on every generation
Rows = tuple[int, int, int, int, int]  # cycles for 0, 1, 2 and 3 rows, and each further one


class _Worker(NamedTuple):
    """Cycles of a worker of the AMP vertices."""

    adding: Rows  # to a block of the 1 x 1 vertex
    zeroing: Rows | None  # a first block; None: `adding`, and 2 and `zeroed` for each row
    zeroed: int
    first: int  # besides, of the first call ...
    change: int  # and of one with another group of inputs
    segment: Rows  # of the n x 1 vertex


# [PL, lib/poplin/PerformanceEstimation.hpp]
_ESTIMATED = {
    "half": _Worker((15, 26, 35, 31, 4), (14, 25, 34, 30, 4), 0, 7, 3, (20, 32, 36, 37, 4)),
    "half on MK1": _Worker((24, 39, 40, 41, 4), None, 2, 0, 0, (20, 32, 36, 37, 4)),
    "float x 16": _Worker((24, 47, 46, 46, 8), None, 8, 0, 0, (20, 36, 47, 48, 8)),
    "float x 8": _Worker((24, 47, 46, 46, 8), None, 4, 0, 0, (20, 36, 47, 48, 8)),
}
# instructions, counted in [PL, lib/poplin/codelets/asm], conv_partial_{1x1,nx1}_*.S
_EXECUTED = _ESTIMATED | {
    "half": _Worker((12, 26, 28, 27, 4), (10, 24, 25, 26, 4), 0, 14, 2, (16, 31, 36, 36, 4)),
    "float x 16": _Worker((9, 44, 50, 52, 8), None, 8, 11, 3, (17, 45, 51, 57, 8)),
    "float x 8": _Worker((10, 39, 42, 46, 8), None, 4, 10, 2, (17, 36, 42, 48, 8)),
}


@dataclass(frozen=True)
class Unit:
    """The AMP unit for one data type on one machine."""

    half: bool  # fp16, else fp32
    in_group: int  # input channels, by ...
    out_group: int  # ... output channels are held as coefficients at once
    item_bytes: int
    partial_bytes: int
    wide_load: bool = False  # weights lie interleaved and are loaded 128 bits at a time
    executed: bool = False  # vertices take their code's cycles, not those that are estimated

    @property
    def load(self) -> int:
        """Cycles to load the coefficients of one block."""
        rate = COEFFICIENT_BYTES_PER_CYCLE * (2 if self.wide_load else 1)
        return self.in_group * self.out_group * self.item_bytes // rate

    @property
    def worker(self) -> _Worker:
        """Cycles of a worker."""
        narrow = self.half and self.out_group == self.partial_bytes * 4 == 8
        kind = "half on MK1" if narrow else "half" if self.half else f"float x {self.out_group}"
        return (_EXECUTED if self.executed else _ESTIMATED)[kind]

    @property
    def macs_per_cycle(self) -> int:
        """Multiply-accumulates a cycle at most: a row of all channels takes 4 cycles, fp32 8."""
        return self.in_group * self.out_group // (4 if self.half else 8)


def unit_for(machine: Machine, dtype: str, narrow: bool = False) -> Unit:
    """The AMP unit: 16 x 16 channels for fp16 and 8 x 16 for fp32 on MK2, half the outputs on MK1.

    MK1 performs half as many multiplications per cycle (docs/machine.md#targets) at the same 4 (8)
    cycles a row, so half the outputs (derived). With fp32 partials of fp16 operands MK2 has 8
    outputs too: four engines store two floats a cycle ([PL, tools/single_conv_layer.cpp] at
    fp16InFp32OutConvUnitsPerTile; [PL, lib/poplin/codelets/ConvPartial1x1Out.cpp], hasAssembly: 16
    units are for half partials or float operands only). Integers and bfloat16 use the type that can
    hold them. ``narrow``: partials are of the operands' type, whatever the options say.
    """
    half = dtype in ("float16", "bfloat16")
    partial_bytes = 2 if half and (narrow or machine.partials in ("float16", "half")) else 4
    macs = machine.target.macs_fp16 if half else machine.target.macs_fp32
    in_group, row_cycles = (16, 4) if half else (8, 8)
    outputs = macs * row_cycles // in_group
    if half and partial_bytes == 4:
        outputs = min(outputs, MIXED_OUTPUTS)
    return Unit(half, in_group, outputs, 2 if half else 4, partial_bytes, machine.wide_load)


def _cycles(rows: np.ndarray, table: Rows) -> np.ndarray:
    few, further = np.array(table[:4]), table[4]
    return few[np.clip(rows, 0, 3)] + further * np.maximum(rows - 3, 0)


def _rows(rows: np.ndarray, zeroing: bool, unit: Unit) -> np.ndarray:
    """Worker cycles for ``rows`` of one block."""
    worker = unit.worker
    if not zeroing or worker.zeroing is not None:
        return _cycles(rows, worker.zeroing if zeroing and worker.zeroing else worker.adding)
    return _cycles(rows, worker.adding) + np.where(rows > 0, 2 + worker.zeroed * rows, 0)


def _block(rows: np.ndarray, zeroing: bool, unit: Unit) -> np.ndarray:
    """I(z): the slowest worker's share of the rows of a block, in tile cycles."""
    most = WORKERS * _rows(ceil_div(rows, WORKERS), zeroing, unit)
    return np.maximum(most, WORKERS * _rows(rows // WORKERS, zeroing, unit) + 14)


def _arrays(*counts: Ints) -> list[np.ndarray]:
    return [np.asarray(count, np.int64) for count in counts]


def conv_1x1_cycles(
    unit: Unit,
    rows: Ints,
    in_groups: Ints,
    out_groups: Ints,
    conv_groups: Ints = 1,
    passes: int = 1,
) -> np.ndarray:
    """Cycles of ``poplin::ConvPartial1x1Out`` (docs/cycles.md#amp-1x1); 0 where any count is 0.

    ``passes`` of the unit make one of the ``out_groups``. fp16 with 96 rows, 4 in-groups, 2
    out-groups: 5,011, executed 4,843; fp32: 9,703 and 10,111.
    """
    rows, gi, go, groups = _arrays(rows, in_groups, out_groups, conv_groups)
    retained = WORKERS * (unit.worker.first + unit.worker.change * (gi * groups - 1))
    again, anew = (_block(rows, zeroing, unit) for zeroing in (False, True))
    later = (gi - 1) * (15 + go * (19 + passes * (6 + unit.load + again)))
    first = 11 + go * (18 + passes * (7 + unit.load + anew))
    cycles = 50 + retained + groups * (13 + later + first)
    return np.where((rows > 0) & (gi > 0) & (go > 0) & (groups > 0), cycles, 0)


def _worker_nx1(unit: Unit, segments: np.ndarray, length: np.ndarray) -> np.ndarray:
    """Cycles of the busiest of six workers that share ``segments`` rows of ``length`` in order."""
    # in pieces of rows: [PL, lib/poplin/ConvUtilInternal.cpp], partitionConvPartialByWorker
    once = 9 if unit.executed else 18 if unit.half and unit.partial_bytes == 2 else 17
    retained = 0 if unit.executed else 9  # of each piece, as the vendor estimates it
    total, row = segments * length, np.maximum(length, 1)
    shares = np.arange(WORKERS + 1).reshape(-1, *(1,) * total.ndim) * total // WORKERS
    begin, size = shares[:-1], np.diff(shares, axis=0)
    head = np.minimum(size, -begin % row)  # to the end of a row
    full, tail = np.divmod(size - head, row)
    numbers = ((head > 0, head), (full, length), (tail > 0, tail))
    some = (n * (_cycles(each, unit.worker.segment) - retained) for n, each in numbers)
    return once + np.sum([*some], axis=0).max(axis=0)


def conv_nx1_cycles(
    unit: Unit,
    segments: Ints,
    length: Ints,
    kernel_rows: Ints,
    kernel_cols: Ints,
    in_groups: Ints,
    out_groups: Ints,
    conv_groups: Ints = 1,
    filter_height: Ints = 1,
    passes: int = 1,
) -> np.ndarray:
    """Cycles of ``poplin::ConvPartialnx1`` (docs/cycles.md#amp-nx1); 0 where any count is 0.

    ``segments`` field rows of ``length`` outputs; one pass takes ``filter_height`` kernel rows,
    which divides a group's input channels; ``passes`` make one of the ``out_groups``.
    """
    counts = segments, length, kernel_rows, kernel_cols, in_groups, out_groups, conv_groups
    segments, length, ky, kx, gi, go, groups, fh = _arrays(*counts, filter_height)
    worker = _worker_nx1(unit, segments, length)
    start = np.select([fh == 1, fh == 2], [15, 46], 60)
    once = unit.load + start + 3 + WORKERS * worker
    inner = ceil_div(ky, fh) * (14 + kx * (12 + passes * once))
    outputs = segments * length * go * passes * unit.out_group * groups
    zeroing = ceil_div(outputs * unit.partial_bytes, 8)
    cycles = 109 + groups * (16 + gi * (14 + go * (14 + inner))) + zeroing
    some = (segments > 0) & (length > 0) & (gi > 0) & (go > 0) & (groups > 0)
    return np.where(some, cycles, 0)


def slic_cycles(
    unit: Unit, segments: Ints, length: Ints, kernel_rows: Ints, kernel_cols: Ints, blocks: Ints
) -> np.ndarray:
    """Cycles of ``poplin::ConvPartial1xNSLIC``, for fp16 on MK2, with windows of 1 x 4.

    ``blocks``: of four channels. 8 units (fp32 partials) pass over the input twice, 16 once.
    Workers rearrange the weights of a block before they are loaded, 97 cycles ([PL,
    lib/poplin/PerformanceEstimation.hpp], getConvPartialSlicSupervisor*Estimate, which counts the
    weights of one block only; here each block's are loaded).
    """
    segments, length, ky, kx, blocks = _arrays(segments, length, kernel_rows, kernel_cols, blocks)
    wide = int(unit.partial_bytes == 4)
    row = 15 + np.maximum(length - 5, 0) - wide
    worker = 17 + ceil_div(segments, WORKERS) * (11 + 3 * wide + (1 + wide) * row)
    cycles = 28 + blocks * (21 + ky * ceil_div(kx, 4) * (97 + 25 + WORKERS * worker))
    return np.where((segments > 0) & (length > 0) & (blocks > 0), cycles, 0)


def hmac_cycles(
    unit: Unit, segments: Ints, length: Ints, taps: Ints, ins: Ints, outs: Ints
) -> np.ndarray:
    """Cycles of ``poplin::ConvPartialHorizontalMac``, a dot product for each output and tap.

    Workers share the field; a piece of a row costs 19 cycles, an element 7 and its dot product of
    ``ins`` channels 7 and one for each 8 bytes, or two an element where they are no whole ones
    ([PL, lib/poplin/PerformanceEstimation.hpp],
    getConvPartialHorizontalMacSupervisorCycleEstimate).
    """
    segments, length, taps, ins, outs = _arrays(segments, length, taps, ins, outs)
    lanes = 8 // unit.item_bytes
    dot = 7 - int(unit.half) + np.where(ins % lanes == 0, ins // lanes, 2 * ins + 1)
    elements = ceil_div(segments * length, WORKERS)
    rows = ceil_div(elements, np.maximum(length, 1))
    worker = taps * (16 + 19 * rows + elements * (7 + dot)) + 16
    zeroing = outs * WORKERS * (5 + ceil_div(elements, 2))
    cycles = 65 + 9 * WORKERS + zeroing + outs * (48 + WORKERS * worker)
    some = (segments > 0) & (length > 0) & (taps > 0) & (ins > 0) & (outs > 0)
    return np.where(some, cycles, 0)


def vmac_cycles(
    unit: Unit, outputs: Ints, kernel_rows: Ints, kernel_cols: Ints, ins: Ints, vectors: Ints
) -> np.ndarray:
    """Cycles of ``poplin::ConvPartialVerticalMac`` for ``vectors`` of four groups, fp16 only.

    Workers share the ``outputs`` times kernel columns of each kernel row; a piece of a row costs 13
    cycles and 2 for each of its elements (11 and 2 with fp16 partials). Each has partials of its
    own, which are zeroed and added up ([PL, lib/poplin/PerformanceEstimation.hpp],
    getConvPartialVerticalMacSupervisorCycleEstimate, four groups).
    """
    outputs, ky, kx, ins, vectors = _arrays(outputs, kernel_rows, kernel_cols, ins, vectors)
    wide = unit.partial_bytes == 4
    share = ceil_div(outputs * kx, WORKERS)
    worker = (19 if wide else 18) + ky * (
        (13 if wide else 11) * ceil_div(share, np.maximum(kx, 1)) + 2 * share
    )
    elements = 4 * outputs
    zeroing = 4 + ceil_div(elements, 2 if wide else 4)
    adding = (9 if wide else 10) + (19 if wide else 12) * ceil_div(ceil_div(elements, WORKERS), 4)
    cycles = 101 + vectors * (zeroing + 32 + ins * (24 + WORKERS * worker) + adding)
    return np.where((outputs > 0) & (ky > 0) & (kx > 0) & (ins > 0) & (vectors > 0), cycles, 0)


def outer_product_cycles(
    unit: Unit, groups: Ints, width: Ints, channels: Ints, together: int
) -> np.ndarray:
    """Cycles of ``poplin::OuterProduct`` for one worker's share, times the six workers.

    ``together`` of the ``channels`` are a group, whose loop is unrolled where it is long enough
    ([PL, lib/poplin/PerformanceEstimation.hpp], getOuterProductCycleEstimate).
    """
    groups, width, channels = _arrays(groups, width, channels)
    share, blocks = ceil_div(width, WORKERS), ceil_div(channels, together)
    lanes, least, slow = (4, 12, 5) if unit.half else (2, 6, 4)
    unrolled = together >= least and together % lanes == 0
    row = 6 + (together - least) // lanes if unrolled else 10 + together * slow // 2
    block = (10 if unit.half else 11) + share * row
    return np.where(width > 0, WORKERS * (25 + groups * blocks * block), 0)


def reduce_partials_cycles(
    outputs: Ints, depth: Ints, partial_bytes: int, out_bytes: Ints = 0, tile_bytes: int = 0
) -> np.ndarray:
    """Cycles of ``poplin::ReduceAdd`` for ``outputs`` on a tile from ``depth`` partials.

    See docs/cycles.md#reduction-of-partials. ``out_bytes``: of a result's element, by default of
    a partial. ``tile_bytes``: memory of a tile, which decides whether the arriving partials can be
    contiguous (`lies_in_one_piece`) for the vertex with a shorter loop; 0: never. 256 outputs from
    8: 2,238 with fp32 partials, 1,344 with fp16. 0 if there is nothing to add.
    """
    outputs, depth, out_bytes = _arrays(outputs, depth, out_bytes)
    half = partial_bytes == 2
    loop, tail = (8, 8) if half else (4, 6)
    wider = np.where(out_bytes > 0, out_bytes, partial_bytes) == 4
    loops = ceil_div(outputs, loop * WORKERS)
    cycles = WORKERS * (32 + (3 * depth + tail + wider) * loops)
    arriving = (depth - 1) * outputs * partial_bytes
    whole = (outputs % loop == 0) & lies_in_one_piece(arriving, tile_bytes)
    piecewise = 33 + WORKERS * (20 + (2 * (depth - 1) + tail + 1 + wider) * loops)
    cycles = np.where(whole, piecewise, cycles)
    return np.where((outputs > 0) & (depth > 1), cycles, 0)


def lies_in_one_piece(partials: np.ndarray, tile_bytes: int) -> np.ndarray:
    """Whether partials of that many bytes that arrive on a tile are laid out as one tensor.

    In whole memory elements they take less than a sixteenth of the tile ([PL,
    lib/poplin/ConvReducePlan.hpp], checkPartialsSizeForSingleInputReduce): never on an MK1, where a
    sixteenth is one element.
    """
    elements = ceil_div(partials, MEMORY_ELEMENT_BYTES)
    return (elements > 0) & (elements * MEMORY_ELEMENT_BYTES < tile_bytes // 16)


def reduction_stages(depth: int) -> tuple[int, ...]:
    """The radix of each stage in which ``depth`` partials are added.

    There is one stage for up to 15 partials, two for up to 124 and three above, so that a tile
    receives the fewest messages ([PL, lib/poplin/ConvReducePlan.cpp], getMultiStageReducePlan).
    """
    if depth < 2:
        return ()
    left = _partials_after(depth, 1 if depth < 16 else 2 if depth < 125 else 3)[0]
    edges = (depth, *left, 1)
    return tuple(-(-a // b) for a, b in itertools.pairwise(edges) if a > b)


@lru_cache(maxsize=16)
def reduction_radices(most: int) -> np.ndarray:
    """`reduction_stages` of 0 to ``most`` partials, a table: int64[most + 1, 3], 1 for no stage."""
    table = np.ones((most + 1, 3), np.int64)
    for depth in range(most + 1):
        stages = reduction_stages(depth)
        table[depth, : len(stages)] = stages
    table.setflags(write=False)
    return table


def _partials_after(depth: int, stages: int) -> tuple[tuple[int, ...], float]:
    """(partials left after each stage but the last, messages that a tile receives)."""
    if stages == 1:
        return (), float(depth)
    down = int(depth ** ((stages - 1) / stages))
    plans = []
    for left in (down, down + 1):
        rest, messages = _partials_after(left, stages - 1)
        plans.append(((left, *rest), messages + depth / left))
    return plans[0] if plans[0][1] < plans[1][1] else plans[1]
