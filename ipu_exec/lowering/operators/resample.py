"""Resampling in 1 to 3 dimensions, with gradients: nearest, linear, cubic, and grid_sample.

Nearest is a copy with repeats. The others add weighted neighbours, one dimension after another: 2
(linear) or 4 (cubic) taps each, one scaled addition per tap (docs/cycles.md#elementwise).
Antialiasing widens the taps by the factor by which it shrinks.
"""

from __future__ import annotations

import numpy as np

from ipu_exec.lowering.build import Builder, folded, messages
from ipu_exec.lowering.layouts import apportion, ceil_div, spread_of
from ipu_exec.lowering.operators.elementwise import base_name
from ipu_exec.lowering.operators.gather import slice_cycles, update_cycles
from ipu_exec.lowering.plan import Layout, Operand, OpSpec, Plan
from ipu_exec.lowering.registry import lowering
from ipu_exec.machine import Machine

# name -> (resized dimensions, taps a dimension)
MODES = {
    **{
        f"{tail}nearest{exact}{d}d": (d, 1)
        for d in (1, 2, 3)
        for tail, exact in (("upsample_", ""), ("_upsample_", "_exact"))
    },
    "upsample_linear1d": (1, 2),
    "upsample_bilinear2d": (2, 2),
    "upsample_trilinear3d": (3, 2),
    "upsample_bicubic2d": (2, 4),
    "_upsample_bilinear2d_aa": (2, 2),
    "_upsample_bicubic2d_aa": (2, 4),
}


def taps_of(name: str, source: tuple[int, ...], result: tuple[int, ...]) -> list[int]:
    """The number of neighbours added along each dimension whose extent changes."""
    dims, taps = MODES[name]
    pairs = [(a, b) for a, b in zip(source[-dims:], result[-dims:], strict=True) if a != b]
    if name.endswith("_aa"):
        return [taps * max(1, -(-a // b)) for a, b in pairs]
    return [taps] * len(pairs)


def _collect(build: Builder, index: int, arriving: np.ndarray, name: str = "neighbours") -> None:
    """Exchange ``arriving`` elements per tile of an operand, and hold them to the end."""
    source = build.place(index)
    nbytes = arriving * source.item_bytes
    sent = spread_of(folded(source), build.tiles).elements * source.item_bytes
    step = build.exchange(name, nbytes, sent, messages(nbytes, sent, 2))
    build.hold(name, nbytes, step)


def _covering(source: Operand, result: np.ndarray, total: int, taps: int) -> np.ndarray:
    """Elements of ``source`` for a tile's share of ``total``: its part and a row on each side."""
    part = ceil_div(result * source.elements, max(total, 1))
    border = source.shape[-1] * (taps - 1)
    return np.where(result > 0, np.minimum(part + border, source.elements), 0)


@lowering(*(f"aten.{name}" for name in MODES))
def resample(spec: OpSpec, machine: Machine) -> Plan:
    """(input, output size, ...): a linear result, whose tiles are sent the input that they read."""
    build, name = Builder(spec, machine), base_name(spec)
    source, out = build.place(0), spec.output
    spread = build.linear(out.elements, out.dtype)
    taps = taps_of(name, source.shape, out.shape)
    _collect(build, 0, _covering(source, spread.elements, out.elements, max(taps, default=1)))
    build.map("pick neighbours", "rearrange", spread.elements, out.dtype, flops=0)
    if sum(taps) > len(taps):
        build.hold("sums", spread.elements * out.item_bytes, build.next - 1)
        for dim, count in enumerate(taps):
            build.map(f"dimension {dim}/weigh", "scaled_add", spread.elements * count, out.dtype)
    return build.plan((spread.layout(out.dtype),))


@lowering(*(f"aten.{name}_backward" for name in MODES))
def resample_backward(spec: OpSpec, machine: Machine) -> Plan:
    """(gradient, output size, input size, ...): a weighted sum into the neighbours it came from."""
    # the result is linear; the gradients that contribute to a tile's share are sent to it
    build, name = Builder(spec, machine), base_name(spec).removesuffix("_backward")
    grad, out = build.place(0), spec.output
    spread = build.linear(out.elements, out.dtype)
    taps = taps_of(name, out.shape, grad.shape)
    arriving = _covering(grad, spread.elements, out.elements, max(taps, default=1))
    _collect(build, 0, arriving)
    build.map("zero", "fill", spread.elements, out.dtype, flops=0)
    share = apportion(grad.elements, spread.elements)
    for dim, count in enumerate(taps or [1]):
        build.map(f"dimension {dim}/add", "scaled_add", share * count, out.dtype)
    return build.plan((spread.layout(out.dtype),))


_NEAREST = 1  # torch's number of the mode


def _corners(spec: OpSpec, grid: Operand) -> int:
    """Neighbours of a point: 1 in all for nearest, 4 per dimension for bicubic, else 2."""
    mode = next((a for a in spec.args if isinstance(a, int) and not isinstance(a, bool)), 0)
    return 1 if mode == _NEAREST else (4 if mode == 2 else 2) ** grid.shape[-1]


def _pick(build: Builder, gathered: np.ndarray, lookups: np.ndarray) -> None:
    """Append the look-up of corners, one element a row."""
    cycles = slice_cycles(gathered, np.maximum(lookups, gathered), np.full_like(gathered, 4))
    build.compute("pick", "popops::MultiSlice<float>", cycles)


def _send(build: Builder, source: Operand, gathered: np.ndarray, wanted: np.ndarray) -> None:
    """Send corners to where they are ``wanted`` (elements)."""
    arriving = wanted * source.item_bytes
    step = build.exchange("corners", arriving, gathered * source.item_bytes)
    build.hold("arrived corners", arriving, step)


@lowering("aten.grid_sampler_2d", "aten.grid_sampler_3d")
def grid_sample(spec: OpSpec, machine: Machine) -> Plan:
    """(input[N, C, ...], grid[N, ..., d]): corners and weights, a gather of them, their sum."""
    # The selection depends on data: the coordinates go to the tiles that hold the input, which send
    # every corner of every point in all channels (docs/cycles.md#gather, one element a row).
    build = Builder(spec, machine)
    source, grid, out = build.place(0), build.place(1), spec.output
    corners, points = _corners(spec, grid), grid.elements // grid.shape[-1]
    where = build.spread(1)
    for kind in ("mul_scalar", "add_scalar", "round", "sub_"):
        build.map(f"coordinates/{kind}", kind, where.elements, grid.dtype)
    elements = spread_of(source, machine.tiles).elements
    # a tile holds a part of one sample's channels: only that sample's points concern it
    lookups = np.where(elements > 0, max(1, points // max(source.shape[0], 1)) * corners, 0)
    step = build.exchange(
        "coordinates", lookups * 4, apportion(points * corners, where.elements) * 4
    )
    build.hold("coordinates", lookups * 4, step, step + 1)
    spread = build.linear(out.elements, out.dtype)
    gathered = apportion(out.elements * corners, elements)
    _pick(build, gathered, lookups)
    build.hold("corners", gathered * source.item_bytes, build.next - 1, build.next)
    _send(build, source, gathered, spread.elements * corners)
    build.map("weigh", "scaled_add", spread.elements * corners, out.dtype)
    return build.plan((spread.layout(out.dtype),))


@lowering("aten.grid_sampler_2d_backward", "aten.grid_sampler_3d_backward")
def grid_sample_backward(spec: OpSpec, machine: Machine) -> Plan:
    """(gradient, input, grid, ...): weighted gradients are added on the corners' tiles."""
    # for the grid, the corners' differences times the gradients are summed over the channels
    build = Builder(spec, machine)
    source, grid = build.place(1), build.place(2)
    corners, points = _corners(spec, grid), grid.elements // grid.shape[-1]
    grad, spread = build.lead(0)
    elements = spread_of(source, machine.tiles).elements
    lookups = np.where(elements > 0, max(1, points // max(source.shape[0], 1)) * corners, 0)
    step = build.exchange("coordinates", lookups * 4, spread_of(grid, machine.tiles).elements * 4)
    build.hold("coordinates", lookups * 4, step)
    layouts: list[Layout | None] = [None, None]
    moved = apportion(grad.elements * corners, elements)
    into, over = spec.outputs
    if into is not None:
        build.map("weigh", "mul", spread.elements * corners, grad.dtype)
        sent = spread.elements * corners * grad.item_bytes
        step = build.exchange("weighed", moved * grad.item_bytes, sent)
        build.hold("weighed", moved * grad.item_bytes, step, step + 1)
        cycles = update_cycles(
            moved, np.maximum(lookups, moved), np.minimum(elements, 1), into.item_bytes
        )
        build.compute("add", "popops::MultiUpdateAdd<float,int>", cycles, grad.elements * corners)
        layouts[0] = spread_of(source, machine.tiles).layout(into.dtype)
    if over is not None:
        _pick(build, moved, lookups)
        _send(build, source, moved, spread.elements * corners)
        build.map("differences", "mul", spread.elements * corners, grad.dtype)
        to = build.linear(over.elements, over.dtype)
        partial = apportion(grad.elements * grid.shape[-1], to.elements) * 4
        step = build.exchange("sums", partial, spread.elements * grid.shape[-1] * 4)
        build.hold("sums", partial, step)
        build.map("add up", "add_", partial // 4, "float32")
        layouts[1] = to.layout(over.dtype)
    return build.plan(tuple(layouts))
