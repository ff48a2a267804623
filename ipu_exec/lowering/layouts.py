"""Layouts of tensors on tiles: the linear mapping, spreads, and elements that a tile lacks.

A `Layout.key` made here is a tuple ``(kind, run, ...)``: ``run`` is how many elements in storage
order lie together on one tile (0: a whole tile's share), from which reductions tell how many
outputs a tile touches. Keys describe elements, not bytes, so that a cast keeps its input's.
"""

from __future__ import annotations

import zlib
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from math import prod

import numpy as np

from ipu_exec.lowering.plan import ITEM_BYTES, Layout, Operand

# Poplibs' mapTensorLinearly: fewer would cost more in exchange than it saves
MIN_BYTES_PER_TILE = 128
GRAIN_BYTES = 8  # the vector width: a grain is never split between tiles


def ceil_div(a: np.ndarray | int, b: np.ndarray | int) -> np.ndarray:
    """Integer division rounded up, elementwise."""
    return -(-np.asarray(a, dtype=np.int64) // np.asarray(b, dtype=np.int64))


def digest(*parts: object) -> int:
    """A small hash of a value's printed form, the same in every process."""
    text = repr(parts).encode()
    return zlib.crc32(text) << 32 | zlib.adler32(text)


def apportion(total: int, share: np.ndarray) -> np.ndarray:
    """``total`` in proportion to ``share``: integers of that exact sum, all 0 if ``share`` is."""
    whole = float(share.sum())
    if total == 0 or whole == 0:
        return np.zeros(share.shape, np.int64)
    edges = np.rint(np.cumsum(share, dtype=np.float64) * (total / whole)).astype(np.int64)
    edges[np.flatnonzero(share)[-1] :] = total
    return np.diff(edges, prepend=0)


def split_evenly(elements: int, parts: int, grain: int = 1) -> np.ndarray:
    """``elements`` over ``parts`` in grains, one grain apart at most; the last takes the tail."""
    grains = -(-elements // grain)
    edges = np.minimum(np.arange(parts + 1, dtype=np.int64) * grains // parts * grain, elements)
    return np.diff(edges)


def blocks(extent: int, parts: int, grain: int = 1) -> np.ndarray:
    """``extent`` over ``parts`` as a planner splits it: whole grains, the rest at the end."""
    block = int(ceil_div(ceil_div(extent, grain), parts)) * grain
    return np.clip(extent - block * np.arange(parts, dtype=np.int64), 0, block)


@dataclass(frozen=True)
class Spread:
    """Elements of a tensor over tiles. ``key`` and ``run`` as in `Layout.key`."""

    key: Hashable
    elements: np.ndarray

    @property
    def run(self) -> int:
        """Contiguous elements on one tile; 0 where a tile's share is one piece."""
        return run_of(self.key)

    def layout(self, dtype: str) -> Layout:
        """The layout in bytes, for elements of ``dtype``."""
        return Layout(self.key, self.elements * ITEM_BYTES[dtype])

    def layouts(self, outputs: Iterable[Operand | None]) -> tuple[Layout | None, ...]:
        """The layout of each of these outputs that somebody uses."""
        return tuple(None if out is None else self.layout(out.dtype) for out in outputs)


def run_of(key: Hashable) -> int:
    """Contiguous elements on a tile by this key; 0: a tile's whole share is one, or unknown."""
    return key[1] if isinstance(key, tuple) and len(key) > 1 and isinstance(key[1], int) else 0


def in_proportion(
    key: Hashable, share: np.ndarray, outputs: Iterable[Operand | None]
) -> tuple[Layout | None, ...]:
    """Layouts of the outputs that somebody uses, each with its elements as ``share`` lies."""
    return tuple(
        None if out is None else Spread(key, apportion(out.elements, share)).layout(out.dtype)
        for out in outputs
    )


@lru_cache(maxsize=1024)  # 12 kB each
def linear(elements: int, item_bytes: int, tiles: int) -> Spread:
    """Poplibs' linear mapping: consecutive grains on consecutive tiles, at least 128 bytes each."""
    # the number of elements dithers the first tile, so that small tensors are not all on tile 0
    grain = max(1, GRAIN_BYTES // item_bytes)
    used = int(min(tiles, max(1, elements * item_bytes // MIN_BYTES_PER_TILE)))
    start = digest(elements, used) % tiles
    share = np.zeros(tiles, np.int64)
    share[(start + np.arange(used)) % tiles] = split_evenly(elements, used, grain)
    share.setflags(write=False)
    return Spread(("linear", 0, elements, used, grain, start), share)


@lru_cache(maxsize=1024)
def whole_linear(elements: int, dtype: str, tiles: int) -> Layout:
    """The linear layout of a storage of so many elements."""
    return linear(elements, ITEM_BYTES[dtype], tiles).layout(dtype)


def linear_layout(operand: Operand, tiles: int) -> Layout:
    """The linear layout of the whole storage under ``operand``."""
    return whole_linear(storage_elements(operand), operand.dtype, tiles)


def storage_elements(operand: Operand) -> int:
    """Elements of the storage, or of the tensor if the caller left the storage out."""
    return operand.storage_elements or operand.elements


def is_dense(operand: Operand) -> bool:
    """Whether the tensor is its whole storage, in any order of dimensions."""
    return operand.elements == storage_elements(operand) and 0 not in [
        s for s, n in zip(operand.strides, operand.shape, strict=True) if n > 1
    ]


def is_contiguous(operand: Operand) -> bool:
    """Whether the tensor is in row-major order without holes."""
    expected = 1
    for extent, stride in zip(reversed(operand.shape), reversed(operand.strides), strict=True):
        if extent != 1 and stride != expected:
            return False
        expected *= extent
    return True


def spread_of(operand: Operand, tiles: int) -> Spread:
    """Elements of ``operand`` on each tile, by the layout of its storage (by default linear)."""
    # exact for a whole storage and a contiguous piece of a linear one, else its shares, scaled
    layout = operand.layout or linear_layout(operand, tiles)
    elements = layout.bytes // operand.item_bytes
    if is_dense(operand) and int(elements.sum()) == operand.elements:
        return Spread(layout.key, elements)
    key = (
        "view",
        run_of(layout.key),
        digest(layout.key, operand.shape, operand.strides, operand.offset),
    )
    if isinstance(layout.key, tuple) and layout.key[0] == "linear" and is_contiguous(operand):
        start = layout.key[-1]
        rolled = np.roll(elements, -start)
        edges = np.concatenate([[0], np.cumsum(rolled)])
        inside = np.clip(edges, operand.offset, operand.offset + operand.elements)
        return Spread(key, np.roll(np.diff(inside), start))
    return Spread(key, apportion(operand.elements, layout.bytes))


def result_spread(spread: Spread, lead: Operand, output: Operand) -> Spread:
    """The spread of an output computed where ``lead`` lies: lead's, if both order alike."""
    same = (lead.shape, lead.strides) == (output.shape, output.strides)
    if same and is_dense(lead):
        return spread
    order = digest(spread.key, lead.shape, lead.strides, output.shape, output.strides)
    return Spread(("view", spread.run, order), spread.elements)


def touched(operand: Operand, mask: tuple[bool, ...], elements: np.ndarray, run: int) -> np.ndarray:
    """How many distinct positions of the kept dimensions ``elements`` of ``operand`` touch.

    A tile's share is a box: ``run`` elements in storage order, repeated along dimensions outside.
    """
    left = np.maximum(elements, 1).astype(np.float64)
    budget = np.minimum(left, run) if run else left.copy()
    count = np.ones(elements.shape)
    order = sorted(range(len(operand.shape)), key=lambda d: (operand.strides[d], -d))
    for dim in order:
        extent = operand.shape[dim]
        if extent == 1:
            continue
        inner = np.minimum(extent, np.ceil(budget))
        reach = np.where(budget > 1, inner, np.minimum(extent, np.ceil(left)))
        # a run that ended inside this dimension leaves the repeats to the dimensions outside
        budget = np.where(budget > 1, np.maximum(budget / extent, 1.0), 1.0)
        left = np.maximum(left / reach, 1.0)
        if mask[dim]:
            count = count * reach
    most = prod(n for n, k in zip(operand.shape, mask, strict=True) if k)
    return np.where(elements > 0, np.minimum(np.minimum(count, elements), most), 0).astype(np.int64)
