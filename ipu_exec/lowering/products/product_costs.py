"""What the planner counts for a split (docs/cycles.md#exchange and docs/cycles.md#planner)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ipu_exec.lowering import costs
from ipu_exec.lowering.costs import slice_cycles, transform_cycles
from ipu_exec.lowering.layouts import GRAIN_BYTES, ceil_div
from ipu_exec.lowering.products import amp
from ipu_exec.lowering.products.product_problem import (
    SLIC_WINDOW,
    Problem,
    atom_bytes,
    grains,
    group_grain,
    input_elements,
    kernel_part,
    padded_outs,
)
from ipu_exec.machine import Machine

Array = np.ndarray
REGROUPED = 1.25 / 8  # planned cycles for each byte of results that are copied in whole groups


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


def estimate(
    problem: Problem,
    machine: Machine,
    unit: amp.Unit,
    candidates: Candidates,
    allowed: float = np.inf,
) -> tuple[Array, Array, Array]:
    """Cycles before and after `ordering_cycles` (inf if none is allowed), bytes of temporaries."""
    method, height, serial = candidates.method, candidates.height, candidates.serial
    whole, problem = problem, kernel_part(problem, candidates.kernel_parts)
    f, o = candidates.field_parts, candidates.out_parts
    i = candidates.in_parts * candidates.kernel_parts  # partials of each result
    rows, ins = candidates.rows, candidates.ins
    outs, groups = candidates.outs, candidates.groups
    width = np.broadcast_to(np.asarray(candidates.width), rows.shape)
    used = f * o * i * candidates.group_parts
    item, partial = unit.item_bytes, unit.partial_bytes
    slices = input_elements(problem, method, rows, width, ins, groups)
    inputs, weights = slices * item, ins * outs * problem.taps * groups * item
    partials = rows * width * padded_outs(problem, unit, method, outs) * groups * partial
    zeros = _zeros(problem, height, width, ins, outs, groups) * item
    # inputs stay for the next serial step while partials, sent and received, are there at once
    reducing = 2 * partials * (i > 1) + (inputs if serial > 1 else 0)
    temporary = np.maximum(inputs + weights + partials + zeros, reducing)
    if temporary.min() > allowed:  # often so with few serial steps
        none = np.full(temporary.shape, np.inf)
        return none, none, temporary
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
    later = serial * (exchange_weights + zeros / 4 + compute + finishing)
    return exchange_in, later, temporary


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


def reordered(item: int, odd: bool) -> float:
    """Cycles that the planner counts for a byte that lies otherwise than is wanted.

    Elements of ``item`` bytes are copied one a cycle, times 5/4, and exchanged; 5/3 where the
    channels are no whole grains of 8 bytes, ``odd`` ([PL, lib/poplin/ConvModel.cpp],
    addTransformCycleEstimate).
    """
    return (5 / 3 if odd else 5 / 4) / item + 1 / 4


def _counted_padding(problem: Problem, rows: Array, width: Array) -> Array:
    """Zeros of a channel that the planner counts for a SLIC vertex."""
    # It spreads the *output's* part by the input's dilation, which is more than a tile receives
    # ([PL, lib/poplin/ConvModel.cpp], truncateDilateAndPadInput).
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
    """Elements that pad a kernel, and its input, to whole passes of ``height`` kernel rows."""
    # as the planner counts them ([PL, lib/poplin/ConvModel.cpp], addTileLevelTransformEstimates)
    rows = -problem.kernel[0] % height
    return rows * groups * ins * (problem.kernel[1] * outs + width)


def ordering_cycles(
    problem: Problem, unit: amp.Unit, method: str, height: int, used: Array
) -> Array:
    """Estimated cycles of putting operands and results in order, on each of ``used`` tiles."""
    # Operands are put in order where they are expanded, where the operator always has them
    # otherwise, and where their channels have to be padded ([PL, lib/poplin/ConvModel.cpp],
    # addTransformCycleEstimate). Expanded inputs take what that takes, if it is more.
    item = unit.item_bytes
    grain_in, grain_out = grains(problem, unit, method, height)
    pads_in, pads_out = problem.in_channels % grain_in > 0, problem.out_channels % grain_out > 0
    expands = problem.input_transform
    weights = problem.groups * problem.in_channels * problem.out_channels * problem.taps
    moved = problem.inputs * (pads_in | expands | ("input" in problem.reorders))
    moved += weights * (pads_in | pads_out | expands | ("weight" in problem.reorders))
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
    """Estimated cycles from partials to results, for ``partials`` bytes on each tile."""
    # Where nothing is added, a cast of the `outputs` if the result is narrower ([PL,
    # lib/poplin/PerformanceEstimation.hpp], estimateConvReduceCycles). The exchange of partials is
    # counted even then ([PL, lib/poplin/ConvModel.cpp], addExchangeCycleEstimates).
    narrower = unit.partial_bytes > unit.item_bytes
    cast = costs.KINDS["cast"].cycles(outputs, "float16") if narrower else 0
    cycles = partials / 4 + np.where(depth == 1, cast, 0)
    radices = amp.reduction_radices(machine.tiles)[depth]
    elements, left = partials // unit.partial_bytes, depth.copy()
    for stage in range(radices.shape[1]):
        adds = np.flatnonzero(radices[:, stage] > 1)
        radix = radices[adds, stage]
        if not len(adds):
            break
        if stage > 0:
            cycles[adds] += elements[adds] * unit.partial_bytes / 4
        left[adds] = ceil_div(left[adds], radix)
        elements[adds] = ceil_div(elements[adds], radix)
        out_bytes = np.where(left[adds] == 1, unit.item_bytes, unit.partial_bytes)
        sizes = unit.partial_bytes, out_bytes, machine.target.bytes_per_tile
        cycles[adds] += amp.reduce_partials_cycles(elements[adds], radix, *sizes)
    return cycles
