"""Operators that make a new order of elements: cat, stack, pad, repeat, roll, flip, triangles.

On the IPU they are copies between tiles; what arrives is put in place on the tile (facts/cycles.md 8).
"""

from __future__ import annotations

import numpy as np

from ipu_exec.lowering.build import Builder, folded, messages, row_major
from ipu_exec.lowering.elementwise import base_name
from ipu_exec.lowering.layouts import Spread, apportion, digest, is_contiguous, spread_of
from ipu_exec.lowering.matmul import Sides, multiply
from ipu_exec.lowering.plan import Layout, Operand, OpSpec, Plan
from ipu_exec.lowering.registry import lowering
from ipu_exec.machine import Machine

_MIRRORS = tuple(f"{kind}_pad{d}d" for kind in ("reflection", "replication") for d in (1, 2, 3))


def _gather_linear(build: Builder, out: Operand, sources: list[int]) -> Spread:
    """Exchange the operands to a linear layout of ``out`` and put them in order there."""
    lies = build.linear(out.elements, out.dtype)
    total = np.zeros(build.tiles, np.int64)
    sent = np.zeros(build.tiles, np.int64)
    moved = 0
    for index in sources:
        source = folded(build.place(index))
        sent += spread_of(source, build.tiles).elements * source.item_bytes
        moved += build.spec.operands[index].elements
    repeats = max(1, -(-out.elements // max(moved, 1)))
    moved = min(out.elements, moved * repeats)
    total = apportion(moved, lies.elements) * out.item_bytes
    if sent.sum() > total.sum():  # what is dropped (a narrower result) is not sent
        sent = apportion(int(total.sum()), sent)
    step = build.exchange(base_name(build.spec), total, sent, messages(total, sent, 2))
    build.hold("arriving", total, step, build.next)
    return lies


@lowering("aten.cat", "aten.stack", "aten.concat", "aten.hstack", "aten.vstack", "aten.concatenate")
def concatenate(spec: OpSpec, machine: Machine) -> Plan:
    """Joining tensors moves nothing: each part stays on its tiles, and the result is where its parts are.

    The vendor's graph does the same (concat is a view of variables); ours makes one storage: an on-tile copy.
    """
    build = Builder(spec, machine)
    out = spec.outputs[0]
    assert out is not None
    elements = np.zeros(machine.tiles, np.int64)
    keys = []
    for index, operand in enumerate(spec.operands):
        if operand.elements:
            lies = build.spread(index)
            elements = elements + lies.elements
            keys.append(lies.key)
    build.map(base_name(spec), "copy", elements, out.dtype, flops=0)
    run = min((k[1] for k in keys if isinstance(k, tuple) and isinstance(k[1], int) and k[1]), default=0)
    key = ("joined", run, digest(tuple(keys), out.shape, tuple(o.shape for o in spec.operands), spec.args[1:]))
    return build.plan((Spread(key, elements).layout(out.dtype),))


@lowering("aten.constant_pad_nd", "aten.pad", *(f"aten.{pad}" for pad in _MIRRORS))
def pad(spec: OpSpec, machine: Machine) -> Plan:
    """The result lies linearly; the input comes to it and the border is filled."""
    build = Builder(spec, machine)
    out = spec.outputs[0]
    assert out is not None
    lies = _gather_linear(build, out, [0])
    if "constant" in spec.name and out.elements > spec.operands[0].elements:
        border = apportion(out.elements - spec.operands[0].elements, lies.elements)
        build.map("fill border", "fill", border, out.dtype, flops=0)
    build.map("place", "copy", lies.elements, out.dtype, flops=0)
    return build.plan((lies.layout(out.dtype),))


@lowering(*(f"aten.{pad}_backward" for pad in _MIRRORS))
def pad_backward(spec: OpSpec, machine: Machine) -> Plan:
    """(gradient, input, padding): the inner part comes to a linear result, the border to what it mirrors and is added.

    What a tile receives of the border goes by its share of the result.
    """
    build = Builder(spec, machine)
    out, grad = spec.outputs[0], build.place(0)
    assert out is not None
    lies = build.linear(out.elements, out.dtype)
    border = apportion(max(0, grad.elements - out.elements), lies.elements)
    inner = apportion(min(grad.elements, out.elements), lies.elements)  # negative padding cut off the rest
    arriving = (inner + border) * grad.item_bytes
    sent = spread_of(folded(grad), machine.tiles).elements * grad.item_bytes
    step = build.exchange("gradient", arriving, sent, messages(arriving, sent, 2))
    build.hold("gradient", arriving, step, step + 2)
    build.map("place", "copy", lies.elements, out.dtype, flops=0)
    if border.any():
        build.map("add border", "add_", border, out.dtype)
    return build.plan((lies.layout(out.dtype),))


@lowering(
    "aten.repeat", "aten.tile", "aten.roll", "aten.flip", "aten.repeat_interleave", "aten.rot90", "aten.expand_copy",
    "aten.slice_backward", "aten.select_backward", "aten.slice_scatter", "aten.select_scatter", "aten.permute_copy",
    "aten.unfold_copy", "aten.unfold_backward", "aten.as_strided_scatter", "aten.im2col", "aten.col2im",
    "aten.pixel_shuffle", "aten.pixel_unshuffle", "aten.channel_shuffle", "aten.diagonal_backward",
    "aten.transpose_copy", "aten.t_copy", "aten.slice_copy", "aten.diag_embed",
    "aten.constant_pad_nd_backward",
)  # fmt: skip
def rearranged(spec: OpSpec, machine: Machine) -> Plan:
    """The result lies linearly; elements come to it and are put in order on the tile; what nobody wrote is zero."""
    build = Builder(spec, machine)
    out = spec.outputs[0]
    assert out is not None
    if base_name(spec).endswith("_backward") and out.elements > spec.operands[0].elements:
        build.map("zero", "fill", build.linear(out.elements, out.dtype).elements, out.dtype, flops=0)
    lies = _gather_linear(build, out, list(range(len(spec.operands))))
    build.map("rearrange", "rearrange", lies.elements, out.dtype, flops=0)
    return build.plan((lies.layout(out.dtype),))


@lowering("aten.tril", "aten.triu", "aten.tril_", "aten.triu_")
def triangle(spec: OpSpec, machine: Machine) -> Plan:
    """A select against a constant mask, where the input lies."""
    build = Builder(spec, machine)
    operand, lies = build.lead(0)
    out = spec.outputs[0]
    assert out is not None
    build.map(base_name(spec), "select", lies.elements, out.dtype)
    key = lies.key if is_contiguous(operand) else ("triangle", lies.run, digest(lies.key, operand.strides))
    return build.plan((Spread(key, lies.elements).layout(out.dtype),))


@lowering("aten.cumsum")
def cumulative_sum(spec: OpSpec, machine: Machine) -> Plan:
    """The product with a triangle of ones, a constant (graphcore/popart, willow/src/popx/op/cumsumx.cpp).

    A triangle that would take over a quarter of the memory, and integers, which no AMP unit multiplies, are scanned.
    """
    out = spec.outputs[0]
    assert out is not None
    rank = len(out.shape)
    dim = int(spec.args[1]) % max(rank, 1)
    extent = out.shape[dim] if rank else 1
    size = extent * extent * out.item_bytes
    if (
        "float" not in spec.operands[0].dtype
        or not out.elements
        or size > machine.tiles * machine.target.bytes_per_tile // 4
    ):
        return scan(spec, machine)
    build = Builder(spec, machine)
    lies = build.linear(extent * extent, out.dtype).layout(out.dtype)
    triangle = row_major((extent, extent), out.dtype, lies)
    stride = spec.operands[0].strides[dim] if rank else 1
    sides = Sides(0, triangle, 1, out.elements // extent, extent, extent, stride, extent)
    done = multiply(build, "cumsum", sides, out.dtype)
    constants = done.worklists + lies.bytes
    return build.plan((done.outputs.layout(out.dtype),), constants=constants, note=str(done.splits))


@lowering("aten.cumprod", "aten.cummax", "aten.cummin", "aten.logcumsumexp")
def scan(spec: OpSpec, machine: Machine) -> Plan:
    """Each tile scans its share, the last values are exchanged and scanned, and added to what follows them."""
    build = Builder(spec, machine)
    out = spec.outputs[0]
    assert out is not None
    lies = _gather_linear(build, out, [0])
    build.map("scan on tile", "generic", lies.elements, out.dtype)
    tiles = (lies.elements > 0).astype(np.int64)
    last = tiles * int(tiles.sum())
    build.exchange("carry", last * 4, tiles * 4)
    build.map("scan carries", "generic", last, out.dtype)
    build.map("add carry", "add_scalar", lies.elements, out.dtype)
    layouts: list[Layout | None] = [None if o is None else lies.layout(o.dtype) for o in spec.outputs]
    return build.plan(tuple(layouts))


@lowering("aten.topk", "aten.sort", "aten.argsort", "aten.kthvalue", "aten.median", "aten.nanmedian", "aten.mode")
def sort(spec: OpSpec, machine: Machine) -> Plan:
    """A bitonic sort: log2(n) (log2(n) + 1) / 2 compare-and-swap steps, those across tiles with an exchange before."""
    build = Builder(spec, machine)
    operand, lies = build.lead(0)
    dim = dict(spec.kwargs).get("dim", -1)
    extent = operand.shape[dim] if operand.shape else 1
    levels = max(1, int(np.ceil(np.log2(max(extent, 2)))))
    on_tile = int(np.log2(max(2, int(lies.elements.max(initial=1)))))
    local = np.where(lies.elements > 0, lies.elements * min(levels, on_tile) * (min(levels, on_tile) + 1) // 2, 0)
    build.map("sort on tile", "generic", local, operand.dtype)
    nbytes = lies.elements * (operand.item_bytes + 4)
    for level in range(on_tile, levels):
        step = build.exchange(f"swap {level}", nbytes, nbytes)
        build.hold(f"partners {level}", nbytes, step, build.next)
        build.map(f"compare {level}", "generic", lies.elements * (level + 1), operand.dtype)
    layouts: list[Layout | None] = []
    for out in spec.outputs:
        if out is None:
            layouts.append(None)
            continue
        key = ("sorted", lies.run, digest(lies.key, operand.shape, out.shape))
        layouts.append(Spread(key, apportion(out.elements, lies.elements)).layout(out.dtype))
    return build.plan(tuple(layouts))
