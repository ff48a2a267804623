"""How popops reduces on one tile: which vertices, among how many workers, in how many cycles.

A tile's partials are ``rows`` of ``columns``; a column is reduced to one output. Columns are cut
into whole vectors, a piece a worker. Where they are fewer than the workers, their rows may be cut
too: a second compute set then reduces what the workers found ([PL,
lib/popops/reduction/ReductionConnection.cpp]; cycles: CycleEstimationFunctions.cpp there).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import ceil
from typing import NamedTuple

from ipuscope.profiler.vertices import WORKERS

VECTOR_BYTES = 8
ADDS = ("ADD", "SQUARE_ADD")
_LOGICAL = ("OR", "AND")
FLOAT_BYTES = 4
# worker cycles of a vertex call, and what poplibs takes for one where it weighs two stages
# (approximateOverheadCyclesForReduction)
_STRIDED_CALL, _CONTINUOUS_CALL, _CONTINUOUS_OUTPUT = 16, 17, 12
_OVERHEAD, _LEAST_PIECE = 30, 4
_LOGICAL_ELEMENT = 25  # 24 and the operation, in C++


@dataclass(frozen=True)
class Kind:
    """What is reduced: the operation, and bytes of a partial and of a result."""

    op: str
    item_bytes: int
    result_bytes: int

    @property
    def vector(self) -> int:
        """Partials that a worker loads in a cycle."""
        return max(1, VECTOR_BYTES // self.item_bytes)

    @property
    def grain(self) -> int:
        """Columns that stay with one worker (findGrainSizeForOp)."""
        return self.vector * (2 if self.op in ADDS else 1)

    @property
    def again(self) -> Kind:
        """How results are reduced once more: squares are added, not squared."""
        op = "ADD" if self.op == "SQUARE_ADD" else self.op
        return Kind(op, self.result_bytes, self.result_bytes)


def strided(rows: int, columns: int, kind: Kind) -> int:
    """Worker cycles where columns lie side by side (getCyclesEstimateForStridedReduce)."""
    if kind.op in _LOGICAL:
        return _STRIDED_CALL + _LOGICAL_ELEMENT * rows * columns
    half = kind.item_bytes == 2
    after = 7 + (kind.result_bytes == 2) if half else 4 + (kind.op in ADDS)
    a_row = 1
    if kind.op == "LOG_ADD":
        a_row = 13 if half else 23
    loop = 3 + after + 3 + a_row * (rows - 1)
    return _STRIDED_CALL + ceil(columns / kind.vector) * loop


def continuous(elements: int, outputs: int, kind: Kind) -> int:
    """Worker cycles if an output's elements adjoin (getCycleEstimateReduceAllRegionsContinuous)."""
    if kind.op in _LOGICAL:
        return _CONTINUOUS_CALL + _LOGICAL_ELEMENT * elements * outputs
    inner = 20 * elements if kind.op == "LOG_ADD" else elements // kind.vector
    odd = 2 if elements % 2 else 0
    return _CONTINUOUS_CALL + odd + outputs * (_CONTINUOUS_OUTPUT + inner)


def _loaded_at_once(columns: int, kind: Kind) -> int:
    """Elements of ``columns`` that poplibs expects of a cycle (opsPerCycle)."""
    width = VECTOR_BYTES // kind.result_bytes if kind.result_bytes else 1
    width = max(1, width) * (2 if kind.op in ADDS else 1)
    if columns < width:
        return width if width % columns == 0 else 1
    while columns % width:
        width //= 2
    return width


def row_splits(rows: int, columns: int, pieces: int, kind: Kind) -> int:
    """Parts of the rows of the slowest of ``pieces`` (splitTwoStageReductionsBetweenWorkers)."""
    work = ceil(rows * columns / _loaded_at_once(columns, kind))
    whole = _OVERHEAD + work
    expected, parts = [whole] * pieces, [1] * pieces
    most = min(rows // 2, whole // _LEAST_PIECE)
    for _ in range(WORKERS - pieces):
        slowest = max(range(pieces), key=lambda piece: (expected[piece], -piece))
        if parts[slowest] + 1 >= most:
            break
        after = 2 * _OVERHEAD + work // (parts[slowest] + 1)
        if after >= expected[slowest]:
            break
        expected[slowest] = after
        parts[slowest] += 1
    return 1 if max(expected) == whole else max(parts)


class OnTile(NamedTuple):
    """What a tile does: cycles of both stages, the second may be 0, and vertices of each."""

    first: int
    second: int = 0
    vertices: int = 1
    again: int = 0
    # elements that the first stage leaves to the second
    # ([PL, lib/popops/reduction/ReductionConnection.cpp], secondStagePartials)
    between: int = 0


def _cut(rows: int, columns: int, pieces: int, kind: Kind, alone: bool) -> OnTile:
    """``pieces`` of ``columns`` each over the workers; ``alone``: of adjacent single elements."""
    parts = 1 if pieces >= WORKERS else row_splits(rows, columns, pieces, kind)
    part = ceil(rows / parts)

    def cycles(rows: int, input_kind: Kind) -> int:
        return continuous(rows, 1, input_kind) if alone else strided(rows, columns, input_kind)

    first = WORKERS * cycles(part, kind)
    if parts == 1:
        return OnTile(first, vertices=pieces)
    vertices = min(WORKERS, pieces * parts)
    return OnTile(first, WORKERS * cycles(parts, kind.again), vertices, pieces, vertices * columns)


@lru_cache(maxsize=1 << 16)
def side_by_side(elements: int, outputs: int, kind: Kind) -> OnTile:
    """Both stages where outputs lie side by side."""
    rows = ceil(elements / outputs)
    grains = ceil(outputs / kind.grain)
    pieces = min(WORKERS, grains)
    columns = min(outputs, ceil(grains / pieces) * kind.grain)
    return _cut(rows, columns, pieces, kind, outputs == 1)


@lru_cache(maxsize=1 << 16)
def following(elements: int, outputs: int, inner: int, kind: Kind) -> OnTile:
    """Both stages where neighbours in memory are reduced, ``inner`` of an output."""
    # Outputs whose elements are one piece go to workers whole; those in several pieces are first
    # reduced to one piece (connectLargeInnerFactorReductions, connectSmallInnerFactorReductions).
    rows = ceil(elements / outputs)
    if outputs == 1:
        return _cut(rows, 1, 1, kind, True)
    if rows <= inner:
        first = WORKERS * continuous(rows, ceil(outputs / WORKERS), kind)
        return OnTile(first, vertices=min(WORKERS, outputs))
    splits = [n for n in range(1, WORKERS + 1) if _splits_into(outputs, inner, n, kind)]
    parts = max(splits)
    columns = outputs // parts
    first = strided(ceil(rows / inner), columns * inner, kind)
    second = continuous(inner, columns, kind.again)
    return OnTile(WORKERS * first, WORKERS * second, parts, parts, outputs * inner)


def _splits_into(outputs: int, inner: int, parts: int, kind: Kind) -> bool:
    """Whether columns may be cut so, into whole vectors (getAllowedColumnSplits)."""
    whole = outputs % parts == 0 and (outputs // parts) * inner % kind.vector == 0
    return parts == 1 or whole


def single(rows: int, outputs: int, kind: Kind) -> OnTile:
    """Both stages where each output's partials arrive one by one, from as many tiles."""
    if outputs < WORKERS:
        return _cut(rows, 1, outputs, kind, True)
    first = WORKERS * continuous(rows, ceil(outputs / WORKERS), kind)
    return OnTile(first, vertices=WORKERS)


def in_blocks(rows: int, columns: int, each: int, kind: Kind) -> OnTile:
    """Both stages of a tile that has ``each`` blocks of ``rows`` of ``columns``."""
    # a worker has a whole block: columns are not cut there (intermediateToIntermediate)
    if each < WORKERS:
        return _cut(rows, columns, each, kind, columns == 1)
    a_block = continuous(rows, 1, kind) if columns == 1 else strided(rows, columns, kind)
    return OnTile(WORKERS * ceil(each / WORKERS) * a_block, vertices=each)
