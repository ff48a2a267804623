"""Pooling and its gradients: splits of batch, channels and field, as popnn plans them.

The windows of a tile's outputs are sent to it, and each worker takes a range of field rows ([PL,
lib/popnn/PoolPlan.cpp]: the kernel is never split; [PL, lib/popnn/PerformanceEstimation.hpp],
``getPoolingCycles``; docs/cycles.md#compound-operators).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, reduce
from math import prod
from typing import Any

import numpy as np

from ipu_exec.graph import ValueRef
from ipu_exec.lowering.build import Builder, expanded
from ipu_exec.lowering.layouts import Spread, blocks, ceil_div, digest, spread_of
from ipu_exec.lowering.operator_info import Arguments, aten, describe_aten
from ipu_exec.lowering.operators.elementwise import base_name
from ipu_exec.lowering.plan import Operand, OpSpec, Plan
from ipu_exec.lowering.products.product_shares import CHANNEL_RUN
from ipu_exec.lowering.registry import lowering
from ipu_exec.lowering.vertices import poplar_type
from ipu_exec.machine import Machine
from ipuscope.profiler.vertices import WORKERS

_GRAINS = 8  # vectors of a group of channels at most
_TRIED = 16  # splits of a dimension: those that make different parts, thinned out to so many


@dataclass(frozen=True)
class Pooling:
    """Sizes of one pass."""

    batch: int
    channels: int
    field: tuple[int, ...]  # of its output; a gradient's is that of the input
    other: tuple[int, ...]  # the field whose windows it reads
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    lanes: int  # channels of a vector
    maximum: bool
    backward: bool

    @property
    def compares(self) -> bool:
        """Whether it is the gradient of a maximum, which looks for the maximum's position."""
        return self.maximum and self.backward


@dataclass(frozen=True)
class Split:
    """The number of parts of each dimension; channels come in groups of ``group``."""

    batch: int
    channels: int
    field: tuple[int, ...]
    group: int

    @property
    def tiles(self) -> int:
        """Tiles that the split uses."""
        return self.batch * self.channels * prod(self.field)


Parts = tuple[
    Any, Any, tuple[Any, ...]
]  # of a tile: batch, channels, field; ints or arrays that broadcast


def pooling_cycles(pooling: Pooling, parts: Parts, group: int, planned: bool = False) -> np.ndarray:
    """Cycles of one tile's part: ``getPoolingCycles`` with pointers that take two cycles to unpack.

    A worker has a sixth of the outputs, as ranges of field rows. For each row and each position of
    the kernel that applies to it, and each vector of channels, its inner loop runs along the row,
    once less than it has elements. ``planned``: as popnn plans, where all positions apply.
    """
    batch, channels, field = parts
    outputs = reduce(np.multiply, field, batch)
    workers = [_worker_cycles(pooling, parts, group, n, planned) for n in range(WORKERS)]
    slowest = reduce(np.maximum, workers)
    return np.where(np.asarray(outputs * channels) > 0, 13 + WORKERS * slowest, 0)


def _worker_cycles(
    pooling: Pooling, parts: Parts, group: int, worker: int, planned: bool
) -> np.ndarray:
    """Cycles of one worker of a tile; outputs are shared out in order, whole rows or parts."""
    batch, channels, field = parts
    groups, vectors = ceil_div(channels, group), -(-group // pooling.lanes)
    outputs, width = reduce(np.multiply, field, batch), np.maximum(field[-1], 1)
    begin, end = worker * outputs // WORKERS, (worker + 1) * outputs // WORKERS
    rows = np.where(end > begin, (end - 1) // width - begin // width + 1, 0)
    elements = ceil_div(end - begin, pooling.stride[-1] if pooling.backward else 1)
    again = np.maximum(elements - rows, 0)
    met = prod(pooling.kernel) if planned else _positions(pooling)
    enter, each = (7, 5) if pooling.compares else (4 if pooling.maximum else 5, 3)
    move = 6 if pooling.compares else 4
    position = 23 + groups * (2 + vectors * (3 + enter)) + move * (groups - 1)
    first = ceil_div(outputs * vectors, WORKERS)  # what it fills with the least number, or zero
    set_up = 43 + 10 * pooling.compares + (4 + first) * groups
    return set_up + rows * (15 + met * position) + again * met * groups * vectors * each


def _positions(pooling: Pooling) -> int:
    """Positions of the kernel that apply to a row."""
    # of a gradient's elements every stride-th is in the same place of its window
    if not pooling.backward:
        return prod(pooling.kernel)
    outer = zip(pooling.kernel[:-1], pooling.stride[:-1], strict=True)
    return pooling.kernel[-1] * prod(-(-k // s) for k, s in outer)


def window_elements(pooling: Pooling, parts: Parts) -> np.ndarray:
    """Elements of ``other`` that a tile's part needs: its windows without gaps between them."""
    batch, channels, field = parts
    need = batch * channels
    for own, extent, kernel, stride in zip(
        field, pooling.other, pooling.kernel, pooling.stride, strict=True
    ):
        reach = (
            ceil_div(own + kernel - 1, stride) if pooling.backward else (own - 1) * stride + kernel
        )
        need = need * np.minimum(np.maximum(reach, 0), extent)
    outputs = reduce(np.multiply, field, batch * channels)
    return np.where(np.asarray(outputs) > 0, need, 0)


@lru_cache(maxsize=4096)
def plan_pooling(pooling: Pooling, item_bytes: int, tiles: int) -> Split:
    """The split that popnn expects to take the fewest cycles ([PL, lib/popnn/PoolPlan.cpp])."""
    # Channels lie in groups of 16, as convolutions leave them; the groups of a plan are as large or
    # smaller, and others than those that are there cost a rearrangement. The group that later
    # operators prefer is taken where it costs less than 4/3 of the best. Uneven parts of the batch
    # are weighed too, which popnn leaves out.
    there = min(CHANNEL_RUN, -(-pooling.channels // pooling.lanes) * pooling.lanes)
    most = min(there, _GRAINS * pooling.lanes)
    plans = {
        group: _best_split(pooling, item_bytes, tiles, group, there)
        for group in range(pooling.lanes, most + 1, pooling.lanes)
    }
    cost, best = min(plans.values(), key=lambda plan: plan[0])
    preferred = CHANNEL_RUN if item_bytes == 2 else 8 if pooling.maximum else 4
    if best.group < preferred and preferred in plans and 3 * plans[preferred][0] < 4 * cost:
        return plans[preferred][1]
    return best


def _best_split(
    pooling: Pooling, item_bytes: int, tiles: int, group: int, there: int
) -> tuple[int, Split]:
    """(expected cycles, split) with channels in groups of ``group``; they lie in ``there``."""
    groups = -(-pooling.channels // group)
    extents = (pooling.batch, groups, *pooling.field)
    tried = [_splits(n, _TRIED if len(pooling.field) < 3 else _TRIED // 2) for n in extents]
    grid = np.meshgrid(*tried, indexing="ij", sparse=True)
    batch, own_groups, *field = (ceil_div(n, s) for n, s in zip(extents, grid, strict=True))
    parts = batch, own_groups * group, tuple(field)
    cycles = pooling_cycles(pooling, parts, group, planned=True)
    own = (batch, *field)
    for dim, extent in enumerate((pooling.batch, *pooling.field)):
        fewer = list(own)  # the smaller of uneven parts may take longer
        fewer[dim] = np.where(extent % own[dim], own[dim] - 1, own[dim])
        uneven = fewer[0], own_groups * group, tuple(fewer[1:])
        cycles = np.maximum(cycles, pooling_cycles(pooling, uneven, group, planned=True))
    nbytes = _planned_elements(pooling, parts) * item_bytes
    cycles = cycles + nbytes // 4 + (nbytes // 4 if group != there else 0)
    cycles = np.where(reduce(np.multiply, grid) <= tiles, cycles, 1 << 60)
    at = np.unravel_index(int(cycles.argmin()), cycles.shape)
    splits = [int(options[i]) for options, i in zip(tried, at, strict=True)]
    return int(cycles[at]), Split(splits[0], splits[1], tuple(splits[2:]), group)


def _planned_elements(pooling: Pooling, parts: Parts) -> np.ndarray:
    """Elements that popnn expects to bring to a tile (getBytesRequiredPerTile)."""
    # a gradient's windows are counted with the zeros that a stride leaves between them
    batch, channels, field = parts
    windows, outputs = batch * channels, reduce(np.multiply, field, batch * channels)
    for own, kernel, stride in zip(field, pooling.kernel, pooling.stride, strict=True):
        windows = windows * ((own - 1) * (1 if pooling.backward else stride) + kernel)
    return 2 * windows + outputs if pooling.compares else windows


def _splits(extent: int, most: int) -> np.ndarray:
    """Part counts worth trying, up to ``most``: the smallest for each size of the largest part."""
    sizes = np.unique(ceil_div(extent, np.arange(1, max(extent, 1) + 1)))
    parts = np.unique(ceil_div(extent, np.maximum(sizes, 1)))
    if len(parts) <= most:
        return parts
    keep = np.unique(np.rint(np.geomspace(1, len(parts), most)).astype(np.int64)) - 1
    return np.unique(np.append(parts[keep], parts[-1]))


def tile_parts(pooling: Pooling, split: Split, tiles: int) -> Parts:
    """Each tile's share of batch, channels and field: int64[tile] each."""
    cut = [
        blocks(pooling.batch, split.batch),
        blocks(pooling.channels, split.channels, split.group),
        *(blocks(n, parts) for n, parts in zip(pooling.field, split.field, strict=True)),
    ]
    grid = [
        np.pad(one.ravel(), (0, tiles - split.tiles)) for one in np.meshgrid(*cut, indexing="ij")
    ]
    return grid[0], grid[1], tuple(grid[2:])


def _run(pooling: Pooling, split: Split) -> int:
    """Contiguous elements of a tile's output, channels before the field."""
    run = 1
    for extent, parts in zip(
        reversed((pooling.channels, *pooling.field)),
        reversed((split.channels, *split.field)),
        strict=True,
    ):
        run *= int(ceil_div(extent, parts))
        if parts > 1:
            return run
    return run if split.batch > 1 else 0


def _spatial(
    spec: OpSpec, position: int, read: Operand, made: Operand
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Kernel and stride, from ``position`` and the next argument; adaptive: from the extents."""
    rank = len(read.shape) - 2
    if "pool" in spec.name:
        rank = int(spec.name.split("d.")[0].split("d_")[0][-1])
    extents = list(zip(read.shape[-rank:], made.shape[-rank:], strict=True))
    apart = tuple(max(1, a // max(1, b)) for a, b in extents)
    if "adaptive" in spec.name:
        return tuple(max(1, -(-a // max(1, b))) for a, b in extents), apart

    def given(where: int, name: str) -> tuple[int, ...]:
        value: Any = dict(spec.kwargs).get(name, spec.args[where] if len(spec.args) > where else ())
        value = value if isinstance(value, tuple) else (value,)
        return tuple(int(n) for n in value) * (rank if len(value) == 1 else 1)

    kernel = given(position, "kernel_size")
    if "fractional" in spec.name:  # windows lie at random, input over output apart
        return kernel, apart
    return kernel, given(position + 1, "stride") or kernel


def _pooling(
    spec: OpSpec, position: int, data: Operand, pooled: Operand, backward: bool
) -> Pooling:
    kernel, stride = _spatial(spec, position, data, pooled)
    rank = len(kernel)
    output, source = (data, pooled) if backward else (pooled, data)
    batch = prod(output.shape[: -rank - 1])
    channels = output.shape[-rank - 1] if len(output.shape) > rank else 1
    return Pooling(
        batch,
        channels,
        output.shape[-rank:],
        source.shape[-rank:],
        kernel,
        stride,
        max(1, 8 // data.item_bytes),
        "max" in base_name(spec),
        backward,
    )


@lowering(
    *aten(
        "max_pool2d_with_indices max_pool3d_with_indices max_pool1d_with_indices max_pool2d "
        "max_pool1d avg_pool1d avg_pool2d avg_pool3d _adaptive_avg_pool2d _adaptive_avg_pool3d "
        "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_max_pool2d adaptive_max_pool3d "
        "fractional_max_pool2d fractional_max_pool3d"
    )
)
def pool(spec: OpSpec, machine: Machine) -> Plan:
    """Windows are sent to the planned tiles of their outputs."""
    # the indices of a maximum are not computed: its gradient compares (popnn::MaxPoolingGrad)
    build = Builder(spec, machine)
    data, out = build.place(0), spec.output
    pooling = _pooling(spec, 1, data, out, False)
    split = plan_pooling(pooling, data.item_bytes, machine.tiles)
    parts = tile_parts(pooling, split, machine.tiles)
    _bring(build, 0, "windows", window_elements(pooling, parts))
    kind = f"popnn::{'MaxPooling' if pooling.maximum else 'SumPooling'}<{poplar_type(data.dtype)}>"
    cycles = pooling_cycles(pooling, parts, split.group)
    build.compute(base_name(spec), kind, cycles, prod(pooling.kernel) * out.elements)
    spread = _spread_of_result(pooling, split, parts, out)
    return build.plan(spread.layouts(spec.outputs))


def _bring(
    build: Builder, index: int, name: str, need: np.ndarray, item_bytes: int | None = None
) -> None:
    """Exchange ``need[tile]`` elements of an operand; ``item_bytes``: if they are not its own."""
    source = build.place(index)
    if item_bytes is not None and item_bytes != source.item_bytes:
        sent = spread_of(source, build.tiles).elements
        step = build.exchange(name, need * item_bytes, sent * item_bytes)
        build.hold(name, need * item_bytes, step)
        return
    overlap = int(need.sum()) > source.elements and not any(expanded(source))
    build.fetch_and_hold(name, source, need, broadcast=overlap)


def _spread_of_result(pooling: Pooling, split: Split, parts: Parts, out: Operand) -> Spread:
    key = ("pooled", _run(pooling, split), digest(pooling, split, out.shape, out.strides))
    return Spread(key, reduce(np.multiply, parts[2], parts[0] * parts[1]))


def unread_by_gradients(arguments: Arguments) -> tuple[int, ...]:
    """Of (gradient, input, pooled or nothing): a mean's needs no input."""
    tensors = [argument for argument in arguments if isinstance(argument, ValueRef)]
    return () if len(tensors) > 2 else (1,)


@lowering(
    *aten(
        "max_pool2d_with_indices_backward max_pool3d_with_indices_backward avg_pool2d_backward "
        "avg_pool3d_backward _adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward "
        "adaptive_max_pool2d_backward adaptive_max_pool3d_backward fractional_max_pool2d_backward "
        "fractional_max_pool3d_backward"
    ),
    unread=unread_by_gradients,
)
def pool_backward(spec: OpSpec, machine: Machine) -> Plan:
    """Each element reads the windows that contain it."""
    # the gradient of a maximum also needs the input and the pooled output (popnn::MaxPoolingGrad),
    # which stands where torch has its indices (`ipu_exec.capture.rewrites.pooled_maximum`)
    build = Builder(spec, machine)
    grad, data, out = build.place(0), build.place(1), spec.output
    pooling = _pooling(spec, 2, data, grad, True)
    split = plan_pooling(pooling, data.item_bytes, machine.tiles)
    parts = tile_parts(pooling, split, machine.tiles)
    windows, spread = window_elements(pooling, parts), _spread_of_result(pooling, split, parts, out)
    _bring(build, 0, "gradients", windows)
    if pooling.maximum:
        _bring(build, 1, "input", spread.elements)
        if len(spec.operands) > 2:
            _bring(build, 2, "pooled", windows, data.item_bytes)
    kind = (
        f"popnn::{'MaxPoolingGrad' if pooling.maximum else 'SumPooling'}<{poplar_type(data.dtype)}>"
    )
    cycles = pooling_cycles(pooling, parts, split.group)
    build.compute(base_name(spec), kind, cycles, prod(pooling.kernel) * grad.elements)
    return build.plan((spread.layout(out.dtype),))


describe_aten(
    "max_pool1d max_pool2d max_pool1d_with_indices max_pool2d_with_indices max_pool3d_with_indices",
    popart_name="MaxPool",
)
describe_aten(
    "max_pool2d_with_indices_backward max_pool3d_with_indices_backward",
    popart_name="MaxPoolGrad",
)
describe_aten("avg_pool1d avg_pool2d avg_pool3d", popart_name="AveragePool")
describe_aten("avg_pool2d_backward avg_pool3d_backward", popart_name="AveragePoolGrad")
