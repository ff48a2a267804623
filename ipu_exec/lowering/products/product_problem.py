"""What is planned: a product or convolution, how it is split, and what is on a tile then."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd, prod
from typing import Any

import numpy as np

from ipu_exec.lowering.layouts import GRAIN_BYTES, ceil_div
from ipu_exec.lowering.products import amp
from ipu_exec.machine import Machine

Array = np.ndarray
SLIC_WINDOW = 4  # kernel columns, and channels of all its groups, that the vertex takes at once
GROUPS_TOGETHER = 4  # of convolutions that the SLIC and VMAC vertices take at once


@dataclass(frozen=True)
class Problem:
    """One convolution (or product, with a 1 x 1 kernel) to plan."""

    groups: int
    segments: int  # field rows of outputs ...
    width: int  # ... and outputs in each
    in_channels: int
    out_channels: int
    kernel: tuple[int, int] = (1, 1)
    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    # of a transposed convolution: a kernel element contributes only to every n-th output
    field_stride: tuple[int, int] = (1, 1)
    image_rows: int = 1  # field rows of one image
    in_rows: int = 1  # of an image's inputs
    in_cols: int = 1  # of an image's inputs
    expansion: float = 1.0  # input elements that arrive for each one multiplied
    input_transform: bool = False  # inputs are expanded into channels on the tile
    together: int = 0  # input channels that lie together before that; 0: those of a vertex
    useful: int = 0  # multiply-accumulates where splits alone do not tell (padded kernels)
    flipped: bool = False  # a gradient's: weights with channels and kernel the other way round
    out_chunk: int = 1  # output channels that stay together, if more than a vertex's
    in_chunk: int = 1  # input channels of a dot product; 1: all that a tile has
    field_chunk: int = 1  # rows of a field of one column, or columns of one row, not cut apart
    flat_columns: bool = False  # columns of all images side by side: many to cut
    # "input", "weight", "output": what always lies otherwise than the vertex has it
    reorders: tuple[str, ...] = ()
    output_copy: float = 0.0  # planned cycles for each byte of results that lie nearly as wanted
    units: int = 0  # output channels of the AMP unit at once, if not all that it could
    narrow: bool = False  # its partials are as narrow as the results

    @property
    def taps(self) -> int:
        """Kernel elements."""
        return prod(self.kernel)

    @property
    def is_empty(self) -> bool:
        """True if nothing is multiplied, as with a cache that is not filled yet."""
        return 0 in (
            self.groups,
            self.segments,
            self.width,
            self.in_channels,
            self.out_channels,
            *self.kernel,
        )

    @property
    def inputs(self) -> int:
        """Elements of the whole input, expanded where kernel elements are channels of it."""
        images = self.segments // self.image_rows
        return self.groups * images * self.in_rows * self.in_cols * self.in_channels

    @property
    def macs(self) -> int:
        """Multiply-accumulates, without those that padding saves."""
        if self.useful:
            return self.useful
        field = self.segments * self.width / prod(self.field_stride)
        return round(field * self.groups * self.in_channels * self.out_channels * self.taps)


@dataclass(frozen=True)
class Splits:
    """How a problem is split: parts of each dimension."""

    method: str  # "1x1", "nx1", "slic", "hmac", "vmac", "outer"
    groups: int
    rows: int  # of the field
    cols: int  # of the field
    outs: int  # channels
    ins: int  # channels
    serial: int  # steps
    filter_height: int = 1
    cycles: int = 0  # as estimated by the search
    kernel: int = 1  # parts of its rows; results are added as those of input channels are
    ins_first: bool = False  # tiles are counted along the field before the input channels

    @property
    def depth(self) -> int:
        """Partials of each result."""
        return self.ins * self.kernel

    @property
    def tiles(self) -> int:
        """Tiles that the split uses."""
        return self.groups * self.rows * self.cols * self.outs * self.depth

    def __str__(self) -> str:
        text = (
            f"{self.method}: field {self.rows} x {self.cols}, out {self.outs}, in {self.ins},"
            f" groups {self.groups}"
        )
        text += f", kernel {self.kernel}" if self.kernel > 1 else ""
        return text + (f", serial {self.serial}" if self.serial > 1 else "")


def unit_for(problem: Problem, machine: Machine, dtype: str) -> amp.Unit:
    """The AMP unit as the problem's vertex uses it."""
    unit = amp.unit_for(machine, dtype, problem.narrow)
    return replace(unit, out_group=problem.units) if problem.units else unit


def grains(problem: Problem, unit: amp.Unit, method: str, filter_height: int) -> tuple[int, int]:
    """(input, output) channels that are never split: those that the vertex processes at once."""
    # or more, if the problem keeps more output channels together; the vertex takes them in turn
    if method in ("1x1", "nx1"):
        return max(1, unit.in_group // filter_height), max(unit.out_group, problem.out_chunk)
    if method == "slic":
        channels = GROUPS_TOGETHER // group_grain(problem, method)
        return channels, channels
    if method == "outer":
        return 1, max(GRAIN_BYTES // unit.item_bytes, problem.out_chunk)
    if method == "hmac":  # two halves at least, which an exchange moves at once
        return max(problem.in_chunk, 2 if unit.half else 1), 1
    return 1, 1


def padded_ins(problem: Problem, unit: amp.Unit, splits: Splits, ins: Array) -> Array:
    """Input channels of tiles that have ``ins`` real ones, in whole groups of the vertex."""
    # The planner chooses how many channels dot products have, and all of them are padded to that
    # ([PL, lib/poplin/ConvVertexType.cpp], getConvVertexHMACCandidates): a tile with fewer, too.
    grain = grains(problem, unit, splits.method, splits.filter_height)[0]
    if splits.method == "hmac" and problem.in_chunk == 1:
        grain = int(ceil_div(ceil_div(problem.in_channels, grain), splits.ins)) * grain
    return ceil_div(ins, grain) * grain


def group_grain(problem: Problem, method: str) -> int:
    """Convolution groups that are never split: those that the vertex takes at once."""
    # SLIC takes one group of four channels, two of two or four of one ([PL,
    # lib/poplin/ConvVertexType.cpp], getConvVertexSLICCandidates).
    if method == "vmac":
        return GROUPS_TOGETHER
    channels = max(problem.in_channels, problem.out_channels)
    if method == "slic":
        return 4 if channels == 1 else 2 if channels == 2 else 1
    return 1


def kernel_part(problem: Problem, parts: int | Array) -> Problem:
    """The problem of a tile that has one of so many parts of the kernel's rows (or of an array)."""
    rows: Any = ceil_div(problem.kernel[0], parts)
    rows = int(rows) if isinstance(parts, int) else rows
    return replace(problem, kernel=(rows, problem.kernel[1]))


def atom_bytes(problem: Problem, unit: amp.Unit, method: str, filter_height: int, what: str) -> int:
    """Bytes of the input, or of the weights, that lie together as the vertex wants them."""
    # The channels that it takes at once, of as many groups as it does ([PL,
    # lib/poplin/ConvModel.cpp], addTransformCycleEstimate).
    grain_in, grain_out = grains(problem, unit, method, filter_height)
    together = GROUPS_TOGETHER if method in ("slic", "vmac") else 1
    channels = problem.together or problem.in_channels
    ins = min(grain_in, channels) if method != "hmac" else channels
    outs = min(grain_out, problem.out_channels) if what == "weight" else 1
    return gcd(together, problem.groups) * ins * outs * unit.item_bytes


def padded_outs(problem: Problem, unit: amp.Unit, method: str, outs: Array) -> Array:
    """Output channels, padded to the number that the vertex writes."""
    grain = grains(problem, unit, method, 1)[1]
    return ceil_div(outs, grain) * grain


def input_elements(
    problem: Problem, method: str, segments: Array, width: Array, ins: Array, groups: Array
) -> Array:
    """Elements of the input that a tile multiplies, halo included."""
    if method in ("1x1", "outer"):
        return segments * width * ins * groups
    images = ceil_div(segments, problem.image_rows)
    reach = [(k - 1) * d + 1 for k, d in zip(problem.kernel, problem.dilation, strict=True)]
    rows = ceil_div(
        segments * problem.stride[0] + images * (reach[0] - problem.stride[0]),
        problem.field_stride[0],
    )
    cols = ceil_div(
        width * problem.stride[1] + reach[1] - problem.stride[1], problem.field_stride[1]
    )
    rows, cols = np.clip(rows, 0, images * problem.in_rows), np.clip(cols, 0, problem.in_cols)
    return np.where((segments > 0) & (width > 0), rows * cols * ins * groups, 0)


def padding_elements(
    problem: Problem,
    method: str,
    height: int,
    segments: Array,
    width: Array,
    ins: Array,
    groups: Array,
) -> Array:
    """Zeros that a tile receives among its inputs, because the vertex cannot leave them out."""
    # SLIC wants the border, what a stride of the output leaves between the inputs, and a kernel of
    # whole windows of four. The n x 1 vertex, where it multiplies `height` > 1 kernel rows at a
    # time, the same of its rows ([PL, lib/poplin/ConvModel.cpp], addTileLevelTransformEstimates).
    if method != "slic" and height == 1:
        return 0 * segments * width
    images = ceil_div(segments, problem.image_rows)
    real = input_elements(problem, method, segments, width, ins, groups)
    taps_high = ceil_div(problem.kernel[0], height) * height
    rows = (segments - images) * problem.stride[0] + images * (
        1 + (taps_high - 1) * problem.dilation[0]
    )
    if method == "slic":
        taps_wide = int(ceil_div(problem.kernel[1], SLIC_WINDOW)) * SLIC_WINDOW
        cols = (width - 1) * problem.stride[1] + 1 + (taps_wide - 1) * problem.dilation[1]
    else:
        reach = (problem.kernel[1] - 1) * problem.dilation[1] + 1
        cols = ceil_div(
            width * problem.stride[1] + reach - problem.stride[1], problem.field_stride[1]
        )
        cols = np.clip(cols, 0, problem.in_cols)
    whole = np.where((segments > 0) & (width > 0), rows * cols * ins * groups, 0)
    return np.maximum(whole - real, 0)
