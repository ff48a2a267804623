"""Planning of all multiply-accumulate operators: matmul and convolution are one problem.

See docs/cycles.md#planner.

A `Problem` has a field (rows of outputs), input channels and output channels, in convolution
groups. The planner splits each over tiles, tries every split that fits in memory, and picks the one
with the fewest cycles: exchange of inputs and weights, rearrangement, the multiply-accumulate
vertex, exchange and reduction of partials. If nothing fits, output channels are processed serially;
if that does not fit either, the bound doubles and doubles, as in the vendor's planner.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import gcd, prod
from typing import Any

import numpy as np

from ipu_exec.lowering import amp, costs, worklists
from ipu_exec.lowering.build import Builder, expanded, messages, placed
from ipu_exec.lowering.costs import copy_cycles, slice_cycles, transform_cycles
from ipu_exec.lowering.layouts import (
    GRAIN_BYTES,
    Spread,
    apportion,
    blocks,
    ceil_div,
    digest,
    split_evenly,
    spread_of,
)
from ipu_exec.lowering.plan import Operand
from ipu_exec.machine import Machine

Array = np.ndarray
CHANNEL_RUN = 16  # operands are stored in groups of this many channels
# an operand that lies otherwise and goes to more tiles than this is put in order once, before it is
# sent ([PL, lib/poplin/Convolution.cpp], inViewMaxBroadcastDests, weightViewMaxBroadcastDests)
MOST_VIEWERS = 7
_WHOLE_PIECE = 8  # bytes of a piece that a copy moves at once
REGROUPED = 1.25 / 8  # planned cycles for each byte of results that are copied in whole groups
TRANSPOSED = 16  # elements of the least block that popops transposes: 4 x 4
SLIC_WINDOW = 4  # kernel columns, and channels of all its groups, that the vertex takes at once
SLIC_BUFFER_BYTES = 200  # [PL, lib/poplin/ConvVertices.cpp]: weights in its order, and alignment
GROUPS_TOGETHER = 4  # of convolutions that the SLIC and VMAC vertices take at once
# more multiply-accumulates than this always gain by using all tiles
SMALL_MACS = 1 << 24
# methods whose kernel may be divided among tiles by rows: its columns never are ([PL,
# lib/poplin/ConvModel.cpp], kernelSplit)
BY_KERNEL_ROWS = ("nx1", "slic", "hmac", "vmac")
SERIAL_SPLITS = (1, 2, 4, 8, 16, 32, 64, 128)


@dataclass(frozen=True)
class Problem:
    """One convolution (or product, with a 1 x 1 kernel) to plan.

    Outputs are ``segments`` field rows of ``width``; ``image_rows`` of them belong to one image,
    with ``in_rows`` x ``in_cols`` inputs. ``field_stride`` is the stride of a transposed
    convolution: a kernel element contributes only to every ``field_stride``-th output.
    ``expansion`` is the number of input elements that arrive for each one multiplied, if inputs are
    expanded into channels on the tile (``input_transform``).
    """

    groups: int
    segments: int
    width: int
    in_channels: int
    out_channels: int
    kernel: tuple[int, int] = (1, 1)
    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    field_stride: tuple[int, int] = (1, 1)
    image_rows: int = 1
    in_rows: int = 1
    in_cols: int = 1
    expansion: float = 1.0
    input_transform: bool = False
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
    """How a problem is split.

    Parts of groups, field rows, field columns, output and input channels; serial steps; parts of
    the kernel's rows, whose results are added like those of input channels.
    """

    method: str  # "1x1", "nx1", "slic", "hmac", "vmac", "outer"
    groups: int
    rows: int
    cols: int
    outs: int
    ins: int
    serial: int
    filter_height: int = 1
    cycles: int = 0  # as estimated by the search
    kernel: int = 1
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


VERTICES = {
    "1x1": "poplin::ConvPartial1x1Out<{t},{p},true,false,{u}>",
    "nx1": "poplin::ConvPartialnx1<{t},{p},true,false,{u}>",
    "slic": "poplin::ConvPartial1x4SLIC<{t},{p},8>",
    "hmac": "poplin::ConvPartialHorizontalMac<{t},{p},true>",
    "vmac": "poplin::ConvPartialVerticalMac<{t},{p},true>",
    "outer": "poplin::OuterProduct<{t}>",
}


def reordered(item: int, odd: bool) -> float:
    """Cycles that the planner counts for a byte that lies otherwise than is wanted.

    Elements of ``item`` bytes are copied one a cycle, times 5/4, and exchanged; 5/3 where the
    channels are no whole grains of 8 bytes, ``odd`` ([PL, lib/poplin/ConvModel.cpp],
    addTransformCycleEstimate).
    """
    return (5 / 3 if odd else 5 / 4) / item + 1 / 4


def unit_for(problem: Problem, machine: Machine, dtype: str) -> amp.Unit:
    """The AMP unit as the problem's vertex uses it."""
    unit = amp.narrow(machine, dtype) if problem.narrow else amp.unit_for(machine, dtype)
    return replace(unit, out_group=problem.units) if problem.units else unit


def grains(problem: Problem, unit: amp.Unit, method: str, filter_height: int) -> tuple[int, int]:
    """(input, output) channels that are never split: those that the vertex processes at once.

    Or more, if the problem keeps more output channels together; the vertex takes them in turn.
    """
    if method in ("1x1", "nx1"):
        return max(1, unit.in_group // filter_height), max(unit.out_group, problem.out_chunk)
    if method == "slic":
        channels = GROUPS_TOGETHER // group_grain(problem, method)
        return channels, channels
    if method == "outer":
        return 1, max(GRAIN_BYTES // unit.item_bytes, problem.out_chunk)
    return problem.in_chunk, 1


def group_grain(problem: Problem, method: str) -> int:
    """Convolution groups that are never split: those that the vertex takes at once.

    SLIC takes one group of four channels, two of two or four of one ([PL,
    lib/poplin/ConvVertexType.cpp], getConvVertexSLICCandidates).
    """
    if method == "vmac":
        return GROUPS_TOGETHER
    channels = max(problem.in_channels, problem.out_channels)
    if method == "slic":
        return 4 if channels == 1 else 2 if channels == 2 else 1
    return 1


def vertex_cycles(
    problem: Problem,
    unit: amp.Unit,
    method: str,
    filter_height: int,
    segments: Array,
    width: Array,
    ins: Array,
    outs: Array,
    groups: Array,
) -> Array:
    """Cycles of the vertex for channel counts and field sizes on a tile (arrays)."""
    grain_in, grain_out = grains(problem, unit, method, filter_height)
    gi, go = ceil_div(ins, grain_in), ceil_div(outs, grain_out)
    passes = grain_out // unit.out_group
    if method == "1x1":
        return amp.conv_1x1_cycles(unit, segments * width, gi, go, groups, passes)
    if method == "slic":  # it reads zeros between the inputs, which others leave out
        blocks = ceil_div(groups, group_grain(problem, method))
        return amp.slic_cycles(unit, segments, width, *problem.kernel, blocks)
    lanes = 4 if unit.half else 2
    if method == "vmac":  # it multiplies all of them, wherever zeros lie
        return amp.vmac_cycles(
            unit, segments * width, *problem.kernel, ins, ceil_div(groups * outs, lanes)
        )
    # several kernel rows at a time are multiplied with zeros between the input's rows, too
    skipped = 1 if filter_height > 1 else problem.field_stride[0]
    segments, width = ceil_div(segments, skipped), ceil_div(width, problem.field_stride[1])
    if method == "nx1":
        return amp.conv_nx1_cycles(
            unit, segments, width, *problem.kernel, gi, go, groups, filter_height, passes
        )
    if method == "hmac":
        channels = problem.in_chunk if problem.in_chunk > 1 else ins
        calls = groups * outs * ceil_div(ins, np.maximum(channels, 1))
        return amp.hmac_cycles(unit, segments, width, problem.taps, channels, calls)
    return amp.outer_product_cycles(unit, groups, segments * width, outs, grain_out)


def atom_bytes(problem: Problem, unit: amp.Unit, method: str, filter_height: int, what: str) -> int:
    """Bytes of the input, or of the weights, that lie together as the vertex wants them.

    The channels that it takes at once, of as many groups as it does ([PL,
    lib/poplin/ConvModel.cpp], addTransformCycleEstimate).
    """
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
    """Zeros that a tile receives among its inputs, because the vertex cannot leave them out.

    SLIC wants the border, what a stride of the output leaves between the inputs, and a kernel of
    whole windows of four; the n x 1 vertex, where it multiplies ``height`` > 1 kernel rows at a
    time, the same of its rows ([PL, lib/poplin/ConvModel.cpp], addTileLevelTransformEstimates).
    """
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


def divisions(extent: int, limit: int) -> Array:
    """Part counts worth trying: the smallest for each block size."""
    parts = np.arange(1, min(extent, limit) + 1, dtype=np.int64)
    return np.unique(ceil_div(extent, ceil_div(extent, parts)))


@lru_cache(maxsize=8192)
def search(problem: Problem, machine: Machine, dtype: str, methods: tuple[str, ...]) -> Splits:
    """The splits with the least cycles whose temporaries fit ``machine.proportion`` of a tile."""
    for allowed in memory_bounds(machine):
        for serial in SERIAL_SPLITS:
            candidates = [
                s for m in methods for s in _best(problem, machine, dtype, m, serial, allowed)
            ]
            if candidates:
                return min(candidates, key=lambda s: s.cycles)
    raise AssertionError("a split without a memory bound always exists")


def memory_bounds(machine: Machine) -> Iterator[float]:
    """Bytes of temporaries that are allowed, one after another until a split fits.

    The proportion of a tile, doubled until that is twice a tile, then any number ([PL,
    lib/poplin/ConvPlan.cpp], minimizeMemory; before June 2020 the planner took the split with the
    least memory instead, however slow).
    """
    bound = machine.proportion * machine.target.bytes_per_tile
    yield bound
    while bound < 2 * machine.target.bytes_per_tile:
        bound *= 2
        yield bound
    yield np.inf


def _best(
    problem: Problem, machine: Machine, dtype: str, method: str, serial: int, allowed: float
) -> list[Splits]:
    """The best splits of one method with this many serial steps.

    Empty if none fits in ``allowed`` bytes.
    """
    unit = unit_for(problem, machine, dtype)
    heights = (4, 2, 1) if method == "nx1" and problem.kernel[0] > 1 else (1,)
    if method == "nx1" and problem.in_channels % unit.in_group == 0:
        heights = (1,)  # nothing is padded that kernel rows could take the place of
    found: list[Splits] = []
    for height in heights:
        bound = min((splits.cycles for splits in found), default=np.inf)
        found += _best_of(problem, machine, unit, (method, height, serial), (allowed, bound))
    return found


def _best_of(
    problem: Problem,
    machine: Machine,
    unit: amp.Unit,
    way: tuple[str, int, int],
    bounds: tuple[float, float],
) -> list[Splits]:
    """The best splits of a method, kernel rows at a time and serial steps.

    ``bounds``: bytes that are allowed, and cycles beyond which a split is of no use. Empty if there
    is none within both.
    """
    method, height, serial = way
    allowed, most_cycles = bounds
    grain_in, grain_out = grains(problem, unit, method, height)
    out_groups, in_groups = (
        int(ceil_div(problem.out_channels, grain_out)),
        int(ceil_div(problem.in_channels, grain_in)),
    )
    if serial > out_groups:
        return []
    flat = method in ("1x1", "outer")
    if method in ("1x1", "nx1"):
        padded = problem.groups * in_groups * grain_in * out_groups * grain_out
        least = problem.segments * problem.width * problem.taps / prod(problem.field_stride)
        if least * padded > most_cycles * unit.macs_per_cycle * machine.product_tiles:
            return []
    counts = out_groups // serial, in_groups
    g, c, o, i, k = _parallel_splits(problem, machine.product_tiles, method, height, counts)
    field = problem.segments * problem.width if flat else problem.segments
    width = 1 if flat else ceil_div(problem.width, c)
    rows = ceil_div(field, np.minimum(machine.product_tiles // (g * c * o * i * k), field))
    if problem.macs <= SMALL_MACS:  # so small that not to cut the field may be quicker
        g, c, o, i, k = (np.tile(parts, 2) for parts in (g, c, o, i, k))
        width = np.tile(np.broadcast_to(width, rows.shape), 2)
        rows = np.append(rows, np.full(rows.shape, field))
    f = ceil_div(field, rows)
    group = group_grain(problem, method)
    groups = ceil_div(ceil_div(problem.groups, group), g) * group
    ins = ceil_div(in_groups, i) * grain_in
    outs = ceil_div(ceil_div(out_groups, o), serial) * grain_out
    candidates = Candidates(
        method, height, serial, f * c, o, i, rows, width, ins, outs, groups, g, k
    )
    cycles, temporary = estimate(problem, machine, unit, candidates)
    possible = temporary <= allowed
    if method == "slic":  # a vertex has one group of input and of output channels
        possible &= (ins == grain_in) & (outs == grain_out)
    cycles = np.where(possible, np.floor(cycles), np.inf)
    least_cycles = np.flatnonzero(cycles == cycles.min())
    at = int(least_cycles[np.argmin(temporary[least_cycles])])
    if not np.isfinite(cycles[at]):
        return []
    g_at, f_at, c_at, o_at, i_at, k_at = (int(v[at]) for v in (g, f, c, o, i, k))
    estimated = int(cycles[at])
    return [Splits(method, g_at, f_at, c_at, o_at, i_at, serial, height, estimated, k_at)]


def _parallel_splits(
    problem: Problem, tiles: int, method: str, height: int, counts: tuple[int, int]
) -> list[Array]:
    """Part counts of groups, columns, output and input channels and kernel rows worth trying.

    ``counts``: groups of output and input channels. The field's rows share what tiles are left.
    """
    outs, ins = counts
    in_columns = problem.flat_columns or problem.image_rows == 1  # a row an image cannot be cut
    most = tiles if in_columns else 16
    kernels = divisions(problem.kernel[0], tiles) if method in BY_KERNEL_ROWS else np.array([1])
    axes = (
        divisions(int(ceil_div(problem.groups, group_grain(problem, method))), tiles),
        divisions(problem.width, most) if method in BY_KERNEL_ROWS else np.array([1]),
        divisions(max(1, outs), tiles),
        divisions(ins, tiles),
        kernels[(kernels == 1) | (ceil_div(problem.kernel[0], kernels) >= height)],
    )
    parts = [axis.ravel() for axis in np.meshgrid(*axes, indexing="ij")]
    fits = np.multiply.reduce(parts) <= tiles
    return [part[fits] for part in parts]


@dataclass(frozen=True)
class Candidates:
    """Ways to split a problem, one per array entry: part counts, and sizes of the largest part."""

    method: str
    height: int  # of the filter, at a time
    serial: int
    field_parts: Array
    out_parts: Array
    in_parts: Array
    rows: Array
    width: Array | int
    ins: Array
    outs: Array
    groups: Array
    group_parts: Array
    kernel_parts: Array


def kernel_part(problem: Problem, parts: int | Array) -> Problem:
    """The problem of a tile that has one of so many parts of the kernel's rows (or of an array)."""
    rows: Any = ceil_div(problem.kernel[0], parts)
    rows = int(rows) if isinstance(parts, int) else rows
    return replace(problem, kernel=(rows, problem.kernel[1]))


def estimate(
    problem: Problem, machine: Machine, unit: amp.Unit, candidates: Candidates
) -> tuple[Array, Array]:
    """(cycles, bytes of temporaries on the fullest tile) of candidates.

    The cost structure of docs/cycles.md#exchange and docs/cycles.md#planner.
    """
    method, height, serial = candidates.method, candidates.height, candidates.serial
    whole, problem = problem, kernel_part(problem, candidates.kernel_parts)
    f, o = candidates.field_parts, candidates.out_parts
    i = candidates.in_parts * candidates.kernel_parts  # partials of each result
    rows, ins = candidates.rows, candidates.ins
    outs, groups = candidates.outs, candidates.groups
    width = np.broadcast_to(np.asarray(candidates.width), rows.shape)
    used = np.maximum(1, f * o * i * candidates.group_parts)
    item, partial = unit.item_bytes, unit.partial_bytes
    slices = input_elements(problem, method, rows, width, ins, groups)
    inputs, weights = slices * item, ins * outs * problem.taps * groups * item
    partials = rows * width * padded_outs(problem, unit, method, outs) * groups * partial
    # tiles that take the same operand share in storing it
    moved = inputs * (1.0 if problem.input_transform else problem.expansion) * (1 - 1 / o)
    exchange_in = moved / np.where(o % 2 == 0, 8, 4)
    exchange_weights = weights * (1 - 1 / f) / 4
    if method == "slic":  # what it reads between and around its inputs
        padding = _counted_padding(problem, rows, width) * ins * groups
        exchange_in = exchange_in + padding * item / np.where(o % 2 == 0, 8, 4)
    compute = vertex_cycles(problem, unit, method, height, rows, width, ins, outs, groups)
    outputs = rows * width * outs * groups  # without padding
    finishing = _finishing_cycles(machine, unit, partials, outputs, i)
    if serial > 1:
        stored = ceil_div(whole.groups * whole.in_channels * whole.taps, used)
        slices_out = ceil_div(outputs, i) * item
        finishing += slice_cycles(ceil_div(stored * problem.out_channels, serial) * item)
        finishing += slice_cycles(slices_out)
    once = _ordering_cycles(whole, unit, method, height, used)
    zeros = _zeros(problem, height, width, ins, outs, groups) * item
    cycles = exchange_in + once + serial * (exchange_weights + zeros / 4 + compute + finishing)
    # inputs stay for the next serial step while partials, sent and received, are there at once
    reducing = 2 * partials * (i > 1) + (inputs if serial > 1 else 0)
    temporary = np.maximum(inputs + weights + partials + zeros, reducing)
    return cycles, temporary


def _counted_padding(problem: Problem, rows: Array, width: Array) -> Array:
    """Zeros of a channel that the planner counts for a SLIC vertex.

    It spreads the *output's* part by the input's dilation, which is more than a tile receives
    ([PL, lib/poplin/ConvModel.cpp], truncateDilateAndPadInput).
    """
    high = np.minimum(rows, problem.image_rows)
    extents = problem.image_rows, problem.width
    spread = []
    for axis, (part, real) in enumerate(((high, problem.in_rows), (width, problem.in_cols))):
        reach = (problem.kernel[axis] - 1) * problem.dilation[axis] + 1
        wanted = (extents[axis] - 1) * problem.stride[axis] + reach
        edges = np.maximum(0, wanted - ((real - 1) * problem.field_stride[axis] + 1))
        whole = -problem.kernel[1] % SLIC_WINDOW if axis == 1 else 0
        spread.append((part + whole - 1) * problem.field_stride[axis] + 1 + edges)
    return (spread[0] * spread[1] - high * width) * rows / high


def _zeros(
    problem: Problem, height: int, width: Array | int, ins: Array, outs: Array, groups: Array
) -> Array:
    """Elements that pad a kernel, and its input, to whole passes of ``height`` kernel rows.

    As the planner counts them ([PL, lib/poplin/ConvModel.cpp], addTileLevelTransformEstimates).
    """
    rows = -problem.kernel[0] % height
    return rows * groups * ins * (problem.kernel[1] * outs + width)


def _ordering_cycles(
    problem: Problem, unit: amp.Unit, method: str, height: int, used: Array
) -> Array:
    """Estimated cycles of putting operands and results in order, on each of ``used`` tiles.

    Operands are put in order where they are expanded, where the operator always has them otherwise,
    and where their channels have to be padded ([PL, lib/poplin/ConvModel.cpp],
    addTransformCycleEstimate). Expanded inputs take what that takes, if it is more.
    """
    item = unit.item_bytes
    grain_in, grain_out = grains(problem, unit, method, height)
    pads_in, pads_out = problem.in_channels % grain_in > 0, problem.out_channels % grain_out > 0
    expands = problem.input_transform
    moved = 0
    if expands or pads_in or "input" in problem.reorders:
        moved += problem.inputs
    if expands or pads_in or pads_out or "weight" in problem.reorders:
        moved += problem.groups * problem.in_channels * problem.out_channels * problem.taps
    odd = problem.in_channels * problem.out_channels * item % GRAIN_BYTES > 0
    cycles = ceil_div(moved, used) * item * reordered(item, odd)
    if expands:
        each = ceil_div(problem.inputs, used) * item
        atom = atom_bytes(problem, unit, method, height, "input")
        cycles = np.maximum(cycles, each / 4 + transform_cycles(each, atom))
    results = problem.groups * problem.segments * problem.width * problem.out_channels
    copied = problem.output_copy
    if pads_out or "output" in problem.reorders:
        copied = reordered(item, problem.out_channels * item % GRAIN_BYTES > 0)
    elif method in ("slic", "vmac", "hmac"):  # fewer channels together than the next layer takes
        copied = max(copied, 1.25 / min(8, grain_out * item))
    return cycles + ceil_div(results, used) * item * copied


def _finishing_cycles(
    machine: Machine, unit: amp.Unit, partials: Array, outputs: Array, depth: Array
) -> Array:
    """Estimated cycles from partials to results, for ``partials`` bytes on each tile.

    Where nothing is added, a cast of the ``outputs`` if the result is narrower ([PL,
    lib/poplin/PerformanceEstimation.hpp], estimateConvReduceCycles). The exchange of partials is
    counted even then ([PL, lib/poplin/ConvModel.cpp], addExchangeCycleEstimates).
    """
    narrower = unit.partial_bytes > unit.item_bytes
    cast = costs.KINDS["cast"].cycles(outputs, "float16") if narrower else 0
    cycles = partials / 4 + np.where(depth == 1, cast, 0)
    radices = amp.reduction_radices(machine.tiles)[depth]
    held, left = partials // unit.partial_bytes, depth
    for stage, radix in enumerate(radices.T):
        cycles += np.where((radix > 1) & (stage > 0), held * unit.partial_bytes / 4, 0)
        left = ceil_div(left, radix)
        held = ceil_div(held, radix)
        for out_bytes, here in ((unit.item_bytes, left == 1), (unit.partial_bytes, left > 1)):
            cycles += amp.reduce_partials_cycles(
                held,
                np.where(here, radix, 1),
                unit.partial_bytes,
                out_bytes,
                machine.target.bytes_per_tile,
            )
    return cycles


@dataclass(frozen=True)
class Share:
    """Each tile's share of a planned product: int64 over tiles.

    Channels are real ones, without padding.
    """

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
        return (
            self.field
            * self.ins
            * self.outs
            * self.groups
            * self.taps
            // prod(problem.field_stride)
        )


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
    """How many tiles after its first a product begins: 0, unless convolutions are dithered.

    Poplin's enableConvDithering hashes a convolution's parameters, so that small ones are not all
    on tile 0.
    """
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
    """Elements that each tile stores of the weights that it uses.

    Whole blocks, from the first tile that uses them.

    As in the vendor's planner, which never splits the weights that a vertex loads at once
    (``block``), so that exchange needs less code ([PL, lib/poplin/Convolution.cpp], mapWeights;
    splitRegions gives each tile the same number, and the last ones the remainder).
    """
    used = share.ins * share.outs * share.taps * share.groups
    each = ceil_div(ceil_div(used, block), splits.rows * splits.cols) * block
    return np.clip(used - share.field_index * each, 0, each)


def piece(total: Array, index: Array, parts: int, grain: int = 1) -> Array:
    """The ``index``-th of ``parts`` nearly equal pieces of ``total``; pieces sum to it.

    They are whole grains, except for the last.
    """
    grains = ceil_div(total, grain)
    begin, end = (np.minimum(k * grains // parts * grain, total) for k in (index, index + 1))
    return end - begin


@dataclass(frozen=True)
class Product:
    """A product added to a plan: the layout of its outputs and its splits."""

    outputs: Spread
    share: Share
    splits: Splits
    channels: Array  # output channels that each tile's outputs belong to
    # bytes of the constants that tell the workers their rows, and of the vertex's pointers
    worklists: Array
    # the last step that reads each of the operator's operands that it multiplies
    last_reads: tuple[tuple[int, int], ...] = ()

    def end_reads(self, build: Builder) -> None:
        """Say until when operands live that only products read."""
        for index, step in self.last_reads:
            build.read_until(index, step)


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
    """The layout key of an operand stored as a plan wants it.

    The same for every operator with the same plan. ``channel_stride``: the stride, in the storage,
    of the input channels that lie together in groups.
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
    """The stride, in the storage, of the dimension whose elements lie together in groups.

    Those of the input channels of the product that placed it; of any other, what is adjacent.
    """
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
    """Weights that a vertex loads at once, in elements.

    Input times output channels of one kernel element.
    """
    unit = unit_for(problem, machine, dtype)
    return prod(grains(problem, unit, splits.method, splits.filter_height))


def add_product(
    build: Builder,
    name: str,
    problem: Problem,
    methods: tuple[str, ...],
    inputs: int | Operand,
    weights: int | Operand,
    dtype: str,
    field_first: bool = False,
    turned: tuple[bool, bool] = (False, False),
    given: Given | None = None,
) -> Product:
    """Plan ``problem`` and append its steps.

    ``inputs`` and ``weights`` are operand indices, or placed operands.

    Operands without a layout get the planned one (`Builder.wishes`); others cost exchange and
    rearrangement. ``turned`` (inputs, weights): the operand's channels are not adjacent in its
    storage, and unless it has the planned layout it is transposed on its tiles before it is sent:
    once, not on every tile that receives a part. ``field_first``: the result's storage runs along
    the field (NCHW), not along the output channels. ``given``: what is known of layouts and splits.
    """
    if problem.is_empty:
        return no_product(build, name, problem, inputs, weights, dtype)
    machine = build.machine
    unit = unit_for(problem, machine, dtype)
    given = given or Given()
    splits = given.splits or search(problem, machine, dtype, methods)
    share = share_out(problem, machine, unit, splits)
    steps = _ProductSteps(build, name, problem, dtype, unit, splits, share, given)

    first, gathered, inputs_moved = steps.send_inputs(inputs, turned[0])
    sent = build.next - 1
    traffic = steps.weight_traffic(weights, turned[1])
    last, weights_read = steps.convolve(traffic)
    build.hold(f"{name}/inputs", gathered, first, last)
    read_here = steps.padded_inputs * unit.item_bytes - gathered
    steps.hold_copy("inputs", read_here, sent, last)
    inputs_read = last if read_here.any() else sent

    real = share.field * share.outs * share.groups
    elements = piece(real, share.in_index, splits.depth)
    out_key = planned_key(problem, machine, dtype, splits, "output", Operand((), dtype, ()))
    run = int((share.field if field_first else share.outs).max())
    spread = Spread(given.keys.get("output") or (out_key[0], run, *out_key[2:]), elements)
    channels = np.minimum(share.outs * share.groups, elements)
    last_reads = (
        (inputs, inputs_read if inputs_moved is None else inputs_moved),
        (weights, weights_read if traffic.moved is None else traffic.moved),
    )
    of_arguments = tuple((which, at) for which, at in last_reads if isinstance(which, int))
    return Product(spread, share, splits, channels, steps.worklists(), of_arguments)


# of a plan: its problem, dtype and cuts; which side, its channels' stride, and a key if it is given
Wanted = tuple[Problem, str, Splits, str, int, Any]


@dataclass(frozen=True)
class Given:
    """What a product is told besides its problem.

    ``channel_strides``: those of the inputs' and weights' input channels in their storages.
    ``splits`` that were found elsewhere, and ``keys`` of layouts ("input", "output") that go with
    them. ``matrices``: it is a product of matrices, not a convolution.
    """

    channel_strides: tuple[int, int] = (1, 1)
    matrices: bool = False
    splits: Splits | None = None
    keys: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _WeightTraffic:
    """Bytes of the weights that each tile receives and sends before a serial step."""

    received: Array
    sent: Array
    messages: Array
    in_place: bool  # they lie as planned
    sliced: Array  # what lies there of a step's weights
    moved: int | None  # the step that reads them last, if it puts them in order


@dataclass(frozen=True)
class _ProductSteps:
    """A planned product whose steps are appended to ``build``."""

    build: Builder
    name: str
    problem: Problem
    dtype: str
    unit: amp.Unit
    splits: Splits
    share: Share
    given: Given
    # name, bytes and first step of what is put in order before it is sent
    copies: list[tuple[str, Array, int]] = field(default_factory=list)

    @property
    def part(self) -> Problem:
        """The problem of each tile, which has its part of the kernel."""
        return kernel_part(self.problem, self.splits.kernel)

    @property
    def half(self) -> str:
        """The element type in the names of vertices."""
        return "half" if self.unit.half else "float"

    @property
    def padded_ins(self) -> Array:
        """Input channels of each tile, in whole grains."""
        grain = grains(self.problem, self.unit, self.splits.method, self.splits.filter_height)[0]
        return ceil_div(self.share.ins, grain) * grain

    @property
    def kernel(self) -> tuple[int, int]:
        """Rows and columns of the kernel, in whole passes of the vertex."""
        rows, cols = self.part.kernel
        height = self.splits.filter_height
        width = SLIC_WINDOW if self.splits.method == "slic" else 1
        return -(-rows // height) * height, -(-cols // width) * width

    @property
    def pads_here(self) -> bool:
        """Whether the padding of a field is written out on each tile, with what it pads.

        For a vertex that takes several kernel elements at once ([PL, lib/poplin/ConvVertices.cpp],
        createConvPartialAmpVertices, createConvPartialSlicVertex).
        """
        return self.splits.filter_height > 1 or self.splits.method == "slic"

    @property
    def padded_inputs(self) -> Array:
        """Elements of the inputs that each tile holds while it computes."""
        if not self.pads_here:
            return self._input_elements(self.padded_ins)
        problem, share = self.problem, self.share
        reach = [k * d for k, d in zip(self.kernel, problem.dilation, strict=True)]
        columns = self.splits.method == "slic"  # the zeros between and around them, too
        row_stride, column_stride = problem.field_stride
        unclipped = replace(
            problem,
            kernel=self.kernel,
            field_stride=(1, 1 if columns else column_stride),
            in_rows=problem.in_rows * row_stride + 2 * reach[0],
            in_cols=problem.in_cols * (column_stride if columns else 1)
            + (2 * reach[1] if columns else 0),
        )
        return input_elements(
            unclipped,
            self.splits.method,
            share.segments,
            share.width,
            self.padded_ins,
            share.groups,
        )

    @property
    def field_buffer(self) -> Array:
        """Bytes that the SLIC vertex keeps outputs in, of the groups that it takes at once."""
        if self.splits.method != "slic":
            return np.zeros_like(self.share.field)
        outputs = self.share.field * SLIC_WINDOW * self.unit.partial_bytes
        return np.where(self.share.field > 0, outputs + SLIC_BUFFER_BYTES, 0)

    @property
    def worker_partials(self) -> Array:
        """Bytes of the partials that each worker of a VMAC vertex has of its own.

        Those of the groups that it takes at once ([PL, lib/poplin/ConvVertices.cpp],
        createConvPartialVerticalMacVertex).
        """
        if self.splits.method != "vmac":
            return np.zeros_like(self.share.field)
        return self.share.field * GROUPS_TOGETHER * self.unit.partial_bytes * amp.WORKERS

    def worklists(self) -> Array:
        """Bytes of the vertex's worklists and pointers on each tile."""
        share, splits, problem = self.share, self.splits, self.part
        strides = problem.field_stride
        if splits.method in ("slic", "vmac"):  # they read the zeros of a stride, too
            strides = 1, 1
        elif splits.filter_height > 1:
            strides = 1, strides[1]
        rows, length = ceil_div(share.segments, strides[0]), ceil_div(share.width, strides[1])
        window = splits.filter_height, SLIC_WINDOW if splits.method == "slic" else 1
        inside = 1.0
        if not self.pads_here:
            whole, spread = self.problem, problem.field_stride[0]
            inputs = (whole.in_rows - 1) * spread + 1
            axis = whole.kernel[0], whole.stride[0], whole.dilation[0]
            inside = worklists.inside(whole.image_rows, inputs, *axis)
        lists = worklists.worklist_bytes(
            splits.method, rows, length, problem.kernel, window, inside
        )
        grain_in, grain_out = grains(problem, self.unit, splits.method, splits.filter_height)
        if splits.method == "hmac":  # a pointer for all channels of a dot product
            grain_in = max(1, problem.in_channels)
        groups = ceil_div(share.groups, group_grain(problem, splits.method))
        compact = self.build.machine.target.bytes_per_tile <= worklists.COMPACT_REACH
        pointer = 2 if compact else 4
        partials = np.where(share.field > 0, self._separate_partials() * pointer, 0)
        return (
            lists
            + partials
            + worklists.pointer_bytes(
                ceil_div(share.ins, grain_in), ceil_div(self.step_outs, grain_out), groups, compact
            )
        )

    def _separate_partials(self) -> Array:
        """Partials that vertices add by a pointer each, because they do not lie in one piece."""
        tile_bytes, partial = self.build.machine.target.bytes_per_tile, self.unit.partial_bytes
        padded = self.share.field * self.step_padded_outs * self.share.groups
        separate, depth = np.zeros_like(padded), self.splits.depth
        for radix in amp.reduction_stages(depth):
            depth = -(-depth // radix)
            arriving = padded * depth * radix // self.splits.depth
            separate += np.where(amp.lies_in_one_piece(arriving * partial, tile_bytes), 1, radix)
        return separate

    @property
    def step_outs(self) -> Array:
        """Output channels of a serial step."""
        return ceil_div(self.share.outs, self.splits.serial)

    @property
    def step_padded_outs(self) -> Array:
        """The same, padded to whole groups of the vertex."""
        return padded_outs(self.problem, self.unit, self.splits.method, self.step_outs)

    @property
    def step_weight_bytes(self) -> Array:
        """Bytes of a serial step's weights, padded."""
        weights = self.padded_ins * self.step_padded_outs * prod(self.kernel) * self.share.groups
        return weights * self.unit.item_bytes

    def _input_elements(self, ins: Array) -> Array:
        share = self.share
        return input_elements(
            self.part, self.splits.method, share.segments, share.width, ins, share.groups
        )

    def _padding_elements(self) -> Array:
        share, splits = self.share, self.splits
        extents = share.segments, share.width, share.ins, share.groups
        return padding_elements(self.part, splits.method, splits.filter_height, *extents)

    def _about(self, what: str) -> Wanted:
        stride = self.given.channel_strides[what == "weight"]
        return self.problem, self.dtype, self.splits, what, stride, self.given.keys.get(what)

    def atom(self, what: str) -> int:
        """Bytes of the input, or of the weights, that lie together as the vertex wants them."""
        method, height = self.splits.method, self.splits.filter_height
        return atom_bytes(self.problem, self.unit, method, height, what)

    def turned_atom(self, what: str) -> int:
        """The same of an operand that is transposed first.

        Groups of a dimension divide its extent. popops transposes none that are not whole grains of
        8 bytes: they are copied piece by piece ([PL, lib/popops/Rearrange.cpp],
        getMinimumRegroupGrainSize; [PL, lib/poplin/Convolution.cpp], regroupIfBeneficialForPlan).
        """
        problem, atom = self.problem, self.atom(what)
        if self.splits.method in ("slic", "vmac") or problem.input_transform:
            return atom
        if what == "weight":
            extent = problem.out_channels
        else:
            extent = problem.segments if problem.taps == problem.width == 1 else CHANNEL_RUN
        return gcd(atom, extent * self.unit.item_bytes, GRAIN_BYTES)

    def send_inputs(self, inputs: int | Operand, turned: bool) -> tuple[int, Array, int | None]:
        """Fetch the inputs; returns the first step of that, and the bytes that tiles gather.

        A tile that already holds all of its part reads it there. Third comes the step that reads
        the operand last, if it puts it in order.
        """
        build, name, splits = self.build, self.name, self.splits
        slices = self._input_elements(self.share.ins)
        source, in_place = _operand(build, inputs, self._about("input"), slices / splits.outs)
        item = self.unit.item_bytes
        lying = spread_of(source, build.machine.tiles).elements * item
        expand = self.problem.input_transform
        turned = turned and not _repeats(build, inputs)
        moved: int | None = None
        if turned and not in_place:
            _turn(build, f"{name}/transpose inputs", source, self.half, self.turned_atom("input"))
            moved = build.next - 1
        arriving = np.rint(slices * self.problem.expansion).astype(np.int64) * item
        padded = self._padded_atom()
        if (
            expand
            or (not in_place and turned)
            or (splits.outs > MOST_VIEWERS and (padded or not in_place))
        ):
            total = self.problem.inputs if expand else source.elements
            lying, step = self._put_in_order("inputs", total, slices, lying, expand)
            moved = step if moved is None else moved
            if padded and (in_place or not turned):
                self._copy_pieces("pad inputs", lying, padded)
            in_place, padded, arriving = True, 0, arriving if not expand else slices * item
        first, even = build.next, splits.outs % 2 == 0
        zeros = self._padding_elements() * item
        if in_place:
            home = np.minimum(lying, arriving)
            peers = np.minimum(splits.outs, ceil_div(arriving, 4))
            received = arriving - home + zeros
            build.exchange(f"{name}/inputs", received, home, peers, even)
            here = (arriving == home) & (self.padded_inputs == slices)
            gathered = self.padded_inputs - self._whole_inputs_here(slices)
        else:
            # split outputs take the same inputs, which are sent once
            unique = apportion(int(arriving.sum()) // splits.outs, lying)
            peers = messages(arriving, unique, 2)
            build.exchange(f"{name}/inputs", arriving + zeros, lying, peers, even)
            here = np.zeros(build.tiles, bool)
            gathered = self.padded_inputs
        if padded:
            self._copy_pieces("pad inputs", gathered * item, padded)
        return first, np.where(here, 0, gathered * item), moved

    def _padded_atom(self) -> int:
        """Bytes of the inputs that lie together, where the vertex's groups have to be padded; or 0.

        An operand is created in groups that divide its channels; what takes whole groups gets a
        copy of them and of the constant that pads them ([PL, lib/poplin/Convolution.cpp],
        createInput, convolutionPreprocess; [PL, lib/poplin/ConvModel.cpp],
        addTransformCycleEstimate, padInChannels). Where it is put in order anyway this is counted
        there. Convolutions with such channels are first layers, whose inputs are expanded.

        Pieces of less than 8 bytes are left out: element by element they would take more than the
        product, three times as long in fp16 as in fp32, and no published row has such channels.
        """
        splits, problem = self.splits, self.problem
        grain = grains(problem, self.unit, splits.method, splits.filter_height)[0]
        matrix = self.given.matrices and splits.method == "1x1"
        if not matrix or problem.in_channels % grain == 0:
            return 0
        atom = gcd(grain, problem.in_channels) * self.unit.item_bytes
        return atom if atom >= _WHOLE_PIECE else 0

    def _copy_pieces(self, what: str, nbytes: Array, atom: int) -> None:
        kind = f"poplin::PreArrange<{self.half}>"
        self.build.compute(f"{self.name}/{what}", kind, transform_cycles(nbytes, atom))

    def _whole_inputs_here(self, slices: Array) -> Array:
        """Elements of the inputs that a tile reads where they lie.

        A vertex has one pointer for each group of input channels, to all of the tile's field ([PL,
        lib/poplin/ConvVertices.cpp], createConvPartialAmpVertex). The tiles that split the output
        channels share in storing the inputs, one after another; a group that one of them has whole
        need not be gathered there.
        """
        share, splits = self.share, self.splits
        # with neighbours
        overlaps = self.problem.taps > 1 and splits.rows * splits.cols * splits.kernel > 1
        if overlaps or self.pads_here:
            return np.zeros_like(slices)
        grain = grains(self.problem, self.unit, splits.method, splits.filter_height)[0]
        count = share.groups * ceil_div(share.ins, grain)
        begin = ceil_div(share.out_index * count, splits.outs)
        whole = np.maximum((share.out_index + 1) * count // splits.outs - begin, 0)
        padded = self.padded_ins != share.ins
        return np.where(padded, 0, whole * (slices // np.maximum(count, 1)))

    def _put_in_order(
        self, what: str, total: int, wanted: Array, lying: Array, expand: bool = False
    ) -> tuple[Array, int]:
        """Copy an operand to its planned layout, before tiles fetch their parts of the copy.

        ``total`` elements go to tiles in proportion to ``wanted``; ``expand``: kernel elements
        become channels on the way. Returns the bytes of the copy on each tile, and the step that
        reads the operand.
        """
        build, name = self.build, self.name
        elements = apportion(total, wanted)
        nbytes = elements * self.unit.item_bytes
        unique = apportion(min(int(lying.sum()), int(nbytes.sum())), lying)
        step = build.exchange(
            f"{name}/rearrange {what}", nbytes, lying, messages(nbytes, unique, 2)
        )
        if expand:
            kind = f"popops::Transpose2D<{self.half}>"
            build.compute(
                f"{name}/expand {what}", kind, transform_cycles(nbytes, self.atom("input"))
            )
        self.copies.append((f"{name}/rearranged {what}", nbytes, step))
        return nbytes, step

    def weight_traffic(self, weights: int | Operand, turned: bool) -> _WeightTraffic:
        """The traffic of a serial step's weights.

        They are transposed first if they are ``turned`` and do not have the planned layout.
        """
        build, share, splits = self.build, self.share, self.splits
        item, serial = self.unit.item_bytes, splits.serial
        block = weight_block(self.problem, build.machine, self.dtype, splits)
        stored = stored_weights(share, splits, block)
        source, in_place = _operand(build, weights, self._about("weight"), stored)
        wanted = ceil_div(share.ins * share.outs * share.taps * share.groups, serial) * item
        lying = spread_of(source, build.machine.tiles).elements * item
        turned = turned and not _repeats(build, weights)
        moved: int | None = None
        if turned and not in_place:
            _turn(
                build,
                f"{self.name}/transpose weights",
                source,
                self.half,
                self.turned_atom("weight"),
            )
            moved = build.next - 1
        fields = splits.rows * splits.cols  # tiles that want the same weights
        if not in_place and (turned or fields > MOST_VIEWERS):
            lying, step = self._put_in_order("weights", source.elements, stored, lying)
            moved = step if moved is None else moved
            in_place = True
        lying = lying if serial == 1 else apportion(int(lying.sum()) // serial, lying)
        if in_place:
            home = np.minimum(lying, wanted)
            peers = np.minimum(fields - 1, ceil_div(wanted - home, block * item))
            return _WeightTraffic(wanted - home, home, peers, in_place, lying, moved)
        unique = apportion(int(wanted.sum()) // fields, lying)
        peers = messages(wanted, unique, 2, block_of(source) * item)
        return _WeightTraffic(wanted, lying, peers, in_place, lying, moved)

    def hold_copy(self, what: str, read_here: Array, sent: int, last: int) -> None:
        """Keep what was put in order until it is ``sent``, and what is read there to the ``last``.

        The exchange into a compute set is a step of its own: what only other tiles read is free
        after it.
        """
        for copy, nbytes, since in self.copies:
            if not copy.endswith(what):
                continue
            stays = np.clip(read_here, 0, nbytes)
            self.build.hold(copy, nbytes - stays, since, sent)
            self.build.hold(f"{copy}/read there", stays, since, last)

    def convolve(self, traffic: _WeightTraffic) -> tuple[int, int]:
        """Compute the product in serial steps.

        Returns the last step that computes, and the last one that reads the weights as they lie.
        """
        build, name, share, splits = self.build, self.name, self.share, self.splits
        partial_type = "half" if self.unit.partial_bytes == 2 else "float"
        vertex = VERTICES[splits.method].format(t=self.half, p=partial_type, u=self.unit.out_group)
        cycles, outputs = self._vertex_cycles(), share.field * self.step_padded_outs * share.groups
        weight_bytes = self.step_weight_bytes
        # a tile that has all of its weights reads them where they lie
        here = (traffic.received == 0) & (traffic.sliced == weight_bytes) & traffic.in_place
        gathered = np.where(here, 0, weight_bytes - self._whole_weights_here(traffic))
        last = build.next
        first, done, sent = last, self._step_outputs(), last
        read_here = np.where(here, weight_bytes, weight_bytes - gathered)
        for serial in range(splits.serial):
            tail = f"/{serial + 1}" if splits.serial > 1 else ""
            if splits.serial > 1:
                stored = traffic.sliced
                kind = f"popops::DynamicSlice1d<{self.half}>"
                at = build.compute(f"{name}/slice weights{tail}", kind, slice_cycles(stored))
                build.hold(f"{name}/sliced weights{tail}", stored, at, at + 1)
                read = at
            weights_step = build.exchange(
                f"{name}/weights{tail}", traffic.received, traffic.sent, traffic.messages
            )
            sent = build.next - 1
            if splits.serial == 1:
                read = sent
            if not traffic.in_place:
                # what lies otherwise arrives in pieces, which are put in the vertex's order
                kind = f"poplin::PreArrange<{self.half}>"
                build.compute(f"{name}/pre-arrange{tail}", kind, copy_cycles(weight_bytes))
            flops = 2 * self.problem.macs // splits.serial
            last = build.compute(f"{name}/convolve{tail}", vertex, cycles, flops)
            wide = self.unit.wide_load  # only interleaved memory is read 128 bits at a time
            build.hold(f"{name}/weights{tail}", gathered, weights_step, last, interleaved=wide)
            build.hold(f"{name}/field buffer{tail}", self.field_buffer, last, last)
            build.hold(f"{name}/worker partials{tail}", self.worker_partials, last, last)
            _reduce(build, f"{name}/reduce{tail}", outputs, done, share, splits, self.unit, last)
            if splits.serial > 1:
                nbytes = piece(done, share.in_index, splits.depth) * self.unit.item_bytes
                kind = f"popops::DynamicUpdateSlice1d<{self.half}>"
                at = build.compute(f"{name}/update{tail}", kind, slice_cycles(nbytes))
                build.hold(f"{name}/outputs{tail}", nbytes, at - 1, at)
        self.hold_copy("weights", read_here, sent, last)
        if splits.serial > 1:  # the whole result, which each step writes a part of
            whole = piece(share.field * share.outs * share.groups, share.in_index, splits.depth)
            build.hold(f"{name}/outputs", whole * self.unit.item_bytes, first, build.next - 2)
        return last, last if splits.serial == 1 and read_here.any() else read

    def _whole_weights_here(self, traffic: _WeightTraffic) -> Array:
        """Bytes of the weights that a tile reads where they lie.

        A vertex has one pointer for each block that it loads at once; a tile stores whole blocks.
        """
        padded = (self.padded_ins != self.share.ins) | (self.step_padded_outs != self.step_outs)
        if not traffic.in_place or self.splits.serial > 1:
            return np.zeros_like(traffic.sliced)
        block = weight_block(self.problem, self.build.machine, self.dtype, self.splits)
        block_bytes = block * self.unit.item_bytes
        whole = np.minimum(traffic.sliced // block_bytes * block_bytes, self.step_weight_bytes)
        return np.where(padded, 0, whole)

    def _step_outputs(self) -> Array:
        """Results of a serial step without padding, before they are shared over input splits."""
        return self.share.field * self.step_outs * self.share.groups

    def _vertex_cycles(self) -> Array:
        """The vertex cycles of each tile in a serial step."""
        share, splits = self.share, self.splits
        cycles = vertex_cycles(
            self.part,
            self.unit,
            splits.method,
            splits.filter_height,
            share.segments,
            share.width,
            share.ins,
            self.step_outs,
            share.groups,
        )
        return np.where(share.field > 0, cycles, 0)


def no_product(
    build: Builder,
    name: str,
    problem: Problem,
    inputs: int | Operand,
    weights: int | Operand,
    dtype: str,
) -> Product:
    """Append the steps of an empty product: if its result has elements, they are zero."""
    for which in (inputs, weights):
        if isinstance(which, int):
            build.place(which)
    spread = build.linear(
        problem.groups * problem.segments * problem.width * problem.out_channels, dtype
    )
    build.map(f"{name}/zero", "fill", spread.elements, dtype, flops=0)
    none = np.zeros(build.tiles, np.int64)
    share = Share(none, none, none, none, none, none, none, none, none)
    return Product(spread, share, Splits("1x1", 1, 1, 1, 1, 1, 1), spread.elements, none)


def _repeats(build: Builder, which: int | Operand) -> bool:
    """True for an expanded operand: it is written out first, in the order that is needed."""
    return isinstance(which, int) and any(expanded(build.spec.operands[which]))


def _turn(build: Builder, name: str, source: Operand, half: str, atom: int) -> None:
    """Append the transposition of an operand.

    popops spreads the blocks that it transposes over all tiles ([PL, lib/popops/Rearrange.cpp],
    regroupTensorInternal); what puts the operand in order afterwards is counted as that exchange.
    """
    machine = build.machine
    elements = np.zeros(build.tiles, np.int64)
    begin, end = machine.first, machine.first + machine.product_tiles
    elements[begin:end] = split_evenly(source.elements, end - begin, TRANSPOSED)
    nbytes = elements * source.item_bytes
    step = build.compute(name, f"popops::Transpose2D<{half}>", transform_cycles(nbytes, atom))
    build.hold(name, nbytes, step, step + 1)


def _operand(
    build: Builder, which: int | Operand, plan: Wanted, want: Array
) -> tuple[Operand, bool]:
    """An operand with a layout, and whether that is the planned one.

    An operand without one gets the planned layout, in proportion to ``want``.
    """
    operand = which if isinstance(which, Operand) else build.spec.operands[which]
    if isinstance(which, int) and _repeats(build, which):
        operand = build.lead(which)[0]
    problem, dtype, splits, what, stride, given = plan
    key = given or planned_key(problem, build.machine, dtype, splits, what, operand, stride)
    layout = operand.layout
    if layout is None:
        if not isinstance(which, int):
            raise ValueError("an operand that is not an argument of the operator must be placed")
        if which not in build.wishes:
            size = max(operand.storage_elements, operand.elements)
            build.wishes[which] = Spread(key, apportion(size, want)).layout(operand.dtype)
        layout = build.wishes[which]
    return placed(operand, layout), layout.key == key


def _reduce(
    build: Builder,
    name: str,
    padded: Array,
    outputs: Array,
    share: Share,
    splits: Splits,
    unit: amp.Unit,
    convolve: int,
) -> None:
    """Append exchange and addition of the partials, in the stages that the depth requires.

    ``padded`` and ``outputs``: elements of a tile's partials, and those of them that are real. The
    last stage writes results of the operands' type; if there is nothing to add, they are cast if
    that is narrower ([PL, lib/poplin/Convolution.cpp], reduceOrCastComputeSets).
    """
    partial, tile_bytes = unit.partial_bytes, build.machine.target.bytes_per_tile
    types = {2: "half", 4: "float"}
    if splits.depth == 1:
        if partial > unit.item_bytes:
            build.map(f"{name.replace('/reduce', '/cast')}", "cast", outputs, "float16", flops=0)
        build.hold(
            f"{name}/partials",
            padded * partial,
            convolve,
            build.next - 1,
            interleaved=True,
            becomes_result=partial == unit.item_bytes and splits.serial == 1,
        )
        return
    depth, held, since = splits.depth, padded, convolve
    radices = amp.reduction_stages(splits.depth)
    for stage, radix in enumerate(radices):
        left = -(-depth // radix)
        out_bytes = unit.item_bytes if stage == len(radices) - 1 else partial
        summed = piece(padded * left, share.in_index, splits.depth, unit.out_group)
        arriving = summed * (radix - 1)  # one of the partials is there
        step = build.exchange(
            f"{name}/exchange",
            (arriving + summed) * partial,
            held * partial,
            np.where(arriving > 0, radix - 1, 0),
        )
        build.compute(
            name,
            f"poplin::ReduceAdd<{types[out_bytes]},{types[partial]}>",
            amp.reduce_partials_cycles(summed, radix, partial, out_bytes, tile_bytes),
            int(arriving.sum()),
        )
        done = build.next - 1
        build.hold(f"{name}/partials", held * partial, since, done, interleaved=True)
        build.hold(f"{name}/arriving partials", arriving * partial, step, done)
        held, depth, since = summed, left, done


def add_bias(build: Builder, name: str, product: Product, bias: int, dtype: str) -> None:
    """Exchange the bias to the tiles that hold outputs of its channels, and add it in place."""
    source = build.place(bias)
    step = build.fetch(f"{name}/bias", source, product.channels, broadcast=True)
    build.hold(f"{name}/bias", product.channels * source.item_bytes, step, build.next)
    build.map(f"{name}/add bias", "add_vector", product.outputs.elements, dtype)
