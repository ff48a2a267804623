"""What a product's vertex holds for good: its workers' lists of rows, and its pointers.

Both are always live, one set for each product of the program. Each worker has a list for each
position of the kernel, of the pieces of rows that are its share ([PL, lib/poplin/ConvVertices.cpp],
createPartitions; [PL, lib/poplin/ConvUtilInternal.cpp], partitionConvPartialByWorker).
"""

from __future__ import annotations

import numpy as np

from ipuscope.profiler.vertices import WORKERS

Array = np.ndarray
COMPACT_REACH = 8 << 16  # bytes that a pointer of 16 bits can tell apart by 8
ENTRY_BYTES = 2  # unsigned short: fields of more than 16,384 positions on a tile would take 4
LIST_BYTES = 4  # where a list lies and how long it is (DeltaN)
PIECE_BYTES = 3 * ENTRY_BYTES  # offset in the outputs, number of outputs, offset in the inputs


def pieces(rows: Array, length: Array) -> Array:
    """Pieces of ``rows`` of ``length`` that six workers share evenly: int64 of the same shape."""
    # workers take elements in order; a row where one begins in the middle is in two pieces or more
    elements = np.asarray(rows * length, np.int64)
    shares = np.arange(1, WORKERS).reshape(-1, *(1,) * elements.ndim)
    begins = shares * elements // WORKERS
    before = (shares - 1) * elements // WORKERS
    cuts = (begins > before) & (begins > 0) & (begins % np.maximum(length, 1) != 0)
    return np.where(elements > 0, rows + cuts.sum(0), 0)


def worklist_bytes(
    method: str,
    rows: Array,
    length: Array,
    kernel: tuple[int, int],
    window: tuple[int, int],
    inside: float = 1.0,
) -> Array:
    """Bytes of the workers' lists on each tile: int64[tiles].

    ``rows`` of ``length`` outputs; a vertex takes ``window`` kernel elements at once. ``inside``:
    of all rows and kernel rows, the part that does not meet padding alone, which no list has.
    """
    if method == "1x1":  # no list of lists: one piece a worker
        return np.where(rows * length > 0, WORKERS * PIECE_BYTES, 0)
    if method == "outer":
        return np.zeros_like(rows)
    if method == "vmac":  # a list for each worker, of outputs and of a kernel row's part of each
        outputs = np.asarray(rows * length, np.int64)
        each = pieces(outputs, np.ones_like(outputs)) * (PIECE_BYTES + ENTRY_BYTES)
        return kernel[0] * each + np.where(outputs > 0, WORKERS * LIST_BYTES, 0)
    positions = -(-kernel[0] // window[0]) * -(-kernel[1] // window[1])
    used = np.where(rows * length > 0, WORKERS * LIST_BYTES, 0)
    listed = np.rint(pieces(rows, length) * inside * positions).astype(np.int64)
    return listed * PIECE_BYTES + positions * used


def inside(outputs: int, inputs: int, kernel: int, stride: int, dilation: int) -> float:
    """The part of ``outputs`` x ``kernel`` rows that meet one of ``inputs`` rows, not padding."""
    reach = np.add.outer(np.arange(outputs) * stride, np.arange(kernel) * dilation)
    low = max(0, int(reach.max()) + 1 - inputs) // 2
    return float(((reach >= low) & (reach < low + inputs)).mean())


def pointer_bytes(in_groups: Array, out_groups: Array, groups: Array, compact: bool) -> Array:
    """Bytes of a vertex's pointers to inputs, weights and outputs on each tile: int64[tiles].

    One for each group of input channels, of output channels, and of both. ``compact``: of 2 bytes,
    which address the memory of an MK1 by 8 bytes.
    """
    pointers = groups * (in_groups + out_groups + in_groups * out_groups)
    return pointers * (2 if compact else 4)
