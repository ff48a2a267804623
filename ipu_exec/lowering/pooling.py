"""Pooling and its gradients.

The splits of batch, channels and field with the fewest cycles, as popnn plans them.

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

from ipu_exec.lowering.build import Builder, expanded
from ipu_exec.lowering.elementwise import base_name
from ipu_exec.lowering.layouts import Spread, apportion, blocks, ceil_div, digest
from ipu_exec.lowering.operators import aten, describe
from ipu_exec.lowering.plan import Operand, OpSpec, Plan
from ipu_exec.lowering.product import CHANNEL_RUN
from ipu_exec.lowering.registry import lowering
from ipu_exec.lowering.vertices import poplar_type
from ipu_exec.machine import Machine

WORKERS = 6
_TRIED = 12  # splits of a dimension: those that make different parts, thinned out to so many
_END = 1 << 30


@dataclass(frozen=True)
class Pooling:
    """Sizes of one pass.

    ``field`` is its output and ``other`` the field whose windows it reads; a gradient's output is
    the input's field. ``lanes``: channels of a vector.
    """

    batch: int
    channels: int
    field: tuple[int, ...]
    other: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    lanes: int
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


def pooling_cycles(pooling: Pooling, parts: Parts, group: int) -> np.ndarray:
    """Cycles of one tile's part: ``getPoolingCycles`` with pointers that take two cycles to unpack.

    A worker has a sixth of the outputs, as ranges of field rows. For each row and each position of
    the kernel that applies to it, and each vector of channels, its inner loop runs along the row.
    """
    batch, channels, field = parts
    groups, vectors = ceil_div(channels, group), -(-group // pooling.lanes)
    outputs = reduce(np.multiply, field, batch)
    share = ceil_div(outputs, WORKERS)
    along = np.minimum(field[-1], share)
    rows = ceil_div(share, np.maximum(along, 1))
    met = prod(pooling.kernel)
    # of a gradient's elements every stride-th is in the same place of its window
    if pooling.backward:
        met = prod(
            -(-k // s) for k, s in zip(pooling.kernel[:-1], pooling.stride[:-1], strict=True)
        )
        met *= pooling.kernel[-1]
        along = ceil_div(along, pooling.stride[-1])
    begin, each = (7, 5) if pooling.compares else (4 if pooling.maximum else 5, 3)
    vector = 3 + begin + each * along
    position = 23 + groups * (2 + vectors * vector) + 4 * (groups - 1)
    first = ceil_div(outputs * vectors, WORKERS)  # what it fills with the least number, or zero
    worker = 43 + 10 * pooling.compares + (4 + first) * groups + rows * (15 + met * position)
    return np.where(np.asarray(outputs * channels) > 0, 13 + WORKERS * worker, 0)


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
    """The split with the fewest cycles for computing and exchange.

    The windows' elements arrive at 4 bytes a cycle.

    Channels stay in the groups in which convolutions leave them, or several of them: popnn
    penalises other groups.
    """
    most = _TRIED if len(pooling.field) < 3 else _TRIED // 2
    best: tuple[int, Split] | None = None
    group = min(CHANNEL_RUN, -(-pooling.channels // pooling.lanes) * pooling.lanes)
    while best is None or group < 2 * pooling.channels:
        groups = -(-pooling.channels // group)
        tried = [_splits(n, most) for n in (pooling.batch, groups, *pooling.field)]
        grid = np.meshgrid(*tried, indexing="ij", sparse=True)
        fits = reduce(np.multiply, grid) <= tiles
        batch, held, *field = (
            ceil_div(n, s)
            for n, s in zip((pooling.batch, groups, *pooling.field), grid, strict=True)
        )
        parts = batch, np.minimum(held * group, pooling.channels), tuple(field)
        read = window_elements(pooling, parts)
        if pooling.compares:  # with the gradients the pooled output, and the input
            read = 2 * read + reduce(np.multiply, field, batch * parts[1])
        cycles = np.where(
            fits, pooling_cycles(pooling, parts, group) + read * item_bytes // 4, 1 << 60
        )
        at = np.unravel_index(int(cycles.argmin()), cycles.shape)
        splits = [int(options[i]) for options, i in zip(tried, at, strict=True)]
        if best is None or int(cycles[at]) < best[0]:
            best = int(cycles[at]), Split(splits[0], splits[1], tuple(splits[2:]), group)
        group *= 2
    return best[1]


def _splits(extent: int, most: int) -> np.ndarray:
    """Part counts worth trying, at most ``most`` of them.

    Each has a different size of the largest part, and is the smallest count with that size.
    """
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
    """Kernel and stride, from arguments at ``position`` and the next.

    For adaptive pooling, those that follow from its extents.
    """
    rank = (
        int(spec.name.split("d.")[0].split("d_")[0][-1])
        if "pool" in spec.name
        else len(read.shape) - 2
    )
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
    "aten.max_pool2d_with_indices",
    "aten.max_pool3d_with_indices",
    "aten.max_pool1d_with_indices",
    "aten.max_pool2d",
    "aten.max_pool1d",
    "aten.avg_pool1d",
    "aten.avg_pool2d",
    "aten.avg_pool3d",
    "aten._adaptive_avg_pool2d",
    "aten._adaptive_avg_pool3d",
    "aten.adaptive_avg_pool1d",
    "aten.adaptive_avg_pool2d",
    "aten.adaptive_max_pool2d",
    "aten.adaptive_max_pool3d",
    "aten.fractional_max_pool2d",
    "aten.fractional_max_pool3d",
)
def pool(spec: OpSpec, machine: Machine) -> Plan:
    """Windows are sent to the planned tiles of their outputs.

    The indices of a maximum are not computed: its gradient compares (popnn::MaxPoolingGrad).
    """
    build = Builder(spec, machine)
    data, out = build.place(0), spec.outputs[0]
    assert out is not None
    pooling = _pooling(spec, 1, data, out, False)
    split = plan_pooling(pooling, data.item_bytes, machine.tiles)
    parts = tile_parts(pooling, split, machine.tiles)
    _bring(build, 0, "windows", window_elements(pooling, parts))
    kind = f"popnn::{'MaxPooling' if pooling.maximum else 'SumPooling'}<{poplar_type(data.dtype)}>"
    cycles = pooling_cycles(pooling, parts, split.group)
    build.compute(base_name(spec), kind, cycles, prod(pooling.kernel) * out.elements)
    spread = _spread_of_result(pooling, split, parts, out)
    # torch's indices stand for the pooled output, with which the gradient compares the input
    return build.plan(tuple(None if o is None else spread.layout(out.dtype) for o in spec.outputs))


def _bring(
    build: Builder, index: int, name: str, need: np.ndarray, item_bytes: int | None = None
) -> None:
    """Exchange ``need[tile]`` elements of an operand; ``item_bytes``: if they are not its own."""
    source = build.place(index)
    if item_bytes is not None and item_bytes != source.item_bytes:
        assert source.layout is not None
        sent = apportion(source.elements * item_bytes, source.layout.bytes)
        step = build.exchange(name, need * item_bytes, sent)
        build.hold(name, need * item_bytes, step, _END)
        return
    overlap = int(need.sum()) > source.elements and not any(expanded(source))
    step = build.fetch(name, source, need, broadcast=overlap)
    build.hold(name, need * source.item_bytes, step, _END)


def _spread_of_result(pooling: Pooling, split: Split, parts: Parts, out: Operand) -> Spread:
    key = ("pooled", _run(pooling, split), digest(pooling, split, out.shape, out.strides))
    return Spread(key, reduce(np.multiply, parts[2], parts[0] * parts[1]))


@lowering(
    "aten.max_pool2d_with_indices_backward",
    "aten.max_pool3d_with_indices_backward",
    "aten.avg_pool2d_backward",
    "aten.avg_pool3d_backward",
    "aten._adaptive_avg_pool2d_backward",
    "aten._adaptive_avg_pool3d_backward",
    "aten.adaptive_max_pool2d_backward",
    "aten.adaptive_max_pool3d_backward",
    "aten.fractional_max_pool2d_backward",
    "aten.fractional_max_pool3d_backward",
    unread=(1,),  # the input: a maximum is found again by its index
)
def pool_backward(spec: OpSpec, machine: Machine) -> Plan:
    """Each element reads the windows that contain it.

    The gradient of a maximum also needs the input and the pooled output (popnn::MaxPoolingGrad),
    which has the layout of the indices that torch has instead.
    """
    build = Builder(spec, machine)
    grad, data, out = build.place(0), build.place(1), spec.outputs[0]
    assert out is not None
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


describe(
    *aten(
        "max_pool1d max_pool2d"
        " max_pool1d_with_indices max_pool2d_with_indices max_pool3d_with_indices"
    ),
    popart_name="MaxPool",
)
describe(
    *aten("max_pool2d_with_indices_backward max_pool3d_with_indices_backward"),
    popart_name="MaxPoolGrad",
)
describe(*aten("avg_pool1d avg_pool2d avg_pool3d"), popart_name="AveragePool")
describe(*aten("avg_pool2d_backward avg_pool3d_backward"), popart_name="AveragePoolGrad")
