"""Operators that reorder elements: cat, stack, pad, repeat, roll, flip, triangles.

On the IPU they are copies between tiles; what arrives is rearranged there (docs/cycles.md#copies).
"""

from __future__ import annotations

import numpy as np

from ipu_exec.lowering.build import Builder, folded, messages, row_major
from ipu_exec.lowering.costs import copy_cycles
from ipu_exec.lowering.layouts import (
    Spread,
    apportion,
    ceil_div,
    digest,
    in_proportion,
    is_contiguous,
    spread_of,
)
from ipu_exec.lowering.operator_info import aten, describe, describe_aten
from ipu_exec.lowering.operators.elementwise import base_name
from ipu_exec.lowering.operators.reduce_vertices import FLOAT_BYTES
from ipu_exec.lowering.plan import Operand, OpSpec, Plan
from ipu_exec.lowering.products.matmul import Sides, multiply
from ipu_exec.lowering.registry import lowering
from ipu_exec.machine import Machine

_MIRRORS = tuple(f"{kind}_pad{d}d" for kind in ("reflection", "replication") for d in (1, 2, 3))


def _gather_linear(build: Builder, out: Operand, sources: list[int]) -> Spread:
    """Exchange the operands to a linear layout of ``out`` and rearrange them there."""
    spread = build.linear(out.elements, out.dtype)
    total = np.zeros(build.tiles, np.int64)
    sent = np.zeros(build.tiles, np.int64)
    moved = 0
    for index in sources:
        source = folded(build.place(index))
        sent += spread_of(source, build.tiles).elements * source.item_bytes
        moved += build.spec.operands[index].elements
    repeats = max(1, -(-out.elements // max(moved, 1)))
    moved = min(out.elements, moved * repeats)
    total = apportion(moved, spread.elements) * out.item_bytes
    if sent.sum() > total.sum():  # what is dropped (a narrower result) is not sent
        sent = apportion(int(total.sum()), sent)
    step = build.exchange(base_name(build.spec), total, sent, messages(total, sent, 2))
    build.hold("arriving", total, step, build.next)
    return spread


@lowering("aten.cat", "aten.stack", "aten.concat", "aten.hstack", "aten.vstack", "aten.concatenate")
def concatenate(spec: OpSpec, machine: Machine) -> Plan:
    """Concatenation moves nothing: each part stays on its tiles, which the result shares."""
    # in the vendor's graph it is a view of variables; here a new storage, with an on-tile copy
    build = Builder(spec, machine)
    out = spec.output
    elements = np.zeros(machine.tiles, np.int64)
    keys = []
    for index, operand in enumerate(spec.operands):
        if operand.elements:
            spread = build.spread(index)
            elements = elements + spread.elements
            keys.append(spread.key)
    build.map(base_name(spec), "copy", elements, out.dtype, flops=0)
    run = min(
        (k[1] for k in keys if isinstance(k, tuple) and isinstance(k[1], int) and k[1]), default=0
    )
    key = (
        "joined",
        run,
        digest(tuple(keys), out.shape, tuple(o.shape for o in spec.operands), spec.args[1:]),
    )
    return build.plan((Spread(key, elements).layout(out.dtype),))


@lowering("aten.constant_pad_nd", "aten.pad", *(f"aten.{pad}" for pad in _MIRRORS))
def pad(spec: OpSpec, machine: Machine) -> Plan:
    """The result is linear; the input is sent to it and the border is filled."""
    build = Builder(spec, machine)
    out = spec.output
    spread = _gather_linear(build, out, [0])
    if "constant" in spec.name and out.elements > spec.operands[0].elements:
        border = apportion(out.elements - spec.operands[0].elements, spread.elements)
        build.map("fill border", "fill", border, out.dtype, flops=0)
    build.map("place", "copy", spread.elements, out.dtype, flops=0)
    return build.plan((spread.layout(out.dtype),))


@lowering(*(f"aten.{pad}_backward" for pad in _MIRRORS), unread=(1,))
def pad_backward(spec: OpSpec, machine: Machine) -> Plan:
    """(gradient, input, padding): the inner part goes to a linear result, the border is added."""
    # each tile is sent the border elements that its share mirrors, in proportion to that share
    build = Builder(spec, machine)
    out, grad = spec.output, build.place(0)
    spread = build.linear(out.elements, out.dtype)
    border = apportion(max(0, grad.elements - out.elements), spread.elements)
    inner = apportion(
        min(grad.elements, out.elements), spread.elements
    )  # negative padding cut off the rest
    arriving = (inner + border) * grad.item_bytes
    sent = spread_of(folded(grad), machine.tiles).elements * grad.item_bytes
    step = build.exchange("gradient", arriving, sent, messages(arriving, sent, 2))
    build.hold("gradient", arriving, step, step + 2)
    build.map("place", "copy", spread.elements, out.dtype, flops=0)
    if border.any():
        build.map("add border", "add_", border, out.dtype)
    return build.plan((spread.layout(out.dtype),))


@lowering(
    *aten(
        "repeat tile roll flip repeat_interleave rot90 expand_copy slice_backward select_backward "
        "slice_scatter select_scatter permute_copy unfold_copy unfold_backward as_strided_scatter "
        "im2col col2im pixel_shuffle pixel_unshuffle channel_shuffle diagonal_backward "
        "transpose_copy t_copy slice_copy diag_embed constant_pad_nd_backward"
    )
)
def rearranged(spec: OpSpec, machine: Machine) -> Plan:
    """Elements go to a linear result and are rearranged on the tile; those not written are zero."""
    build = Builder(spec, machine)
    out = spec.output
    if base_name(spec).endswith("_backward") and out.elements > spec.operands[0].elements:
        build.map(
            "zero", "fill", build.linear(out.elements, out.dtype).elements, out.dtype, flops=0
        )
    spread = _gather_linear(build, out, list(range(len(spec.operands))))
    build.map("rearrange", "rearrange", spread.elements, out.dtype, flops=0)
    return build.plan((spread.layout(out.dtype),))


@lowering("aten.tril", "aten.triu", "aten.tril_", "aten.triu_")
def triangle(spec: OpSpec, machine: Machine) -> Plan:
    """A select against a constant mask, on the input's tiles."""
    build = Builder(spec, machine)
    operand, spread = build.lead(0)
    out = spec.output
    build.map(base_name(spec), "select", spread.elements, out.dtype)
    key = (
        spread.key
        if is_contiguous(operand)
        else ("triangle", spread.run, digest(spread.key, operand.strides))
    )
    return build.plan((Spread(key, spread.elements).layout(out.dtype),))


@lowering("aten.cumsum")
def cumulative_sum(spec: OpSpec, machine: Machine) -> Plan:
    """The product with a constant triangle of ones [POPART, willow/src/popx/op/cumsumx.cpp]."""
    # If the triangle would take over a sixteenth of the memory, and for integers, which no AMP unit
    # multiplies, a scan is used.
    out = spec.output
    rank = len(out.shape)
    dim = int(spec.args[1]) % max(rank, 1)
    extent = out.shape[dim] if rank else 1
    size = extent * extent * out.item_bytes
    if (
        "float" not in spec.operands[0].dtype
        or not out.elements
        or size > machine.tiles * machine.target.bytes_per_tile // 16
    ):
        return scan(spec, machine)
    build = Builder(spec, machine)
    spread = build.linear(extent * extent, out.dtype).layout(out.dtype)
    triangle = row_major((extent, extent), out.dtype, spread)
    stride = spec.operands[0].strides[dim] if rank else 1
    sides = Sides(0, triangle, 1, out.elements // extent, extent, extent, stride, extent)
    done = multiply(build, "cumsum", sides, out.dtype)
    constants = done.worklists + spread.bytes
    return build.plan((done.outputs.layout(out.dtype),), constants=constants, note=str(done.splits))


@lowering("aten.cumprod", "aten.cummax", "aten.cummin", "aten.logcumsumexp")
def scan(spec: OpSpec, machine: Machine) -> Plan:
    """Scan each tile's share, exchange and scan the last values, and add them."""
    build = Builder(spec, machine)
    out = spec.output
    spread = _gather_linear(build, out, [0])
    build.map("scan on tile", "generic", spread.elements, out.dtype)
    tiles = (spread.elements > 0).astype(np.int64)
    last = tiles * int(tiles.sum())
    build.exchange("carry", last * 4, tiles * 4)
    build.map("scan carries", "generic", last, out.dtype)
    build.map("add carry", "add_scalar", spread.elements, out.dtype)
    return build.plan(spread.layouts(spec.outputs))


# Worker cycles of a pair of keys and values (estimate: generic C++, docs/cycles.md#elementwise).
COMPARE_AND_SWAP = 20


def bitonic_steps(extent: int, most: int) -> list[tuple[int, int]]:
    """The steps of popops::topK: (elements left of a row, distance compared).

    Sequences of k' = ``most`` rounded up to a power of two are sorted, then merged in pairs, of
    which the better k' remain [PL, lib/popops/BitonicTopK.cpp]. With k' no less than ``extent`` it
    is a bitonic sort, of log2(n) (log2(n) + 1) / 2 steps.
    """
    log_most, rounded = (most - 1).bit_length(), 1 << (most - 1).bit_length()
    steps = []
    for merge in range((extent - 1).bit_length()):
        distance = min(merge, log_most)
        steps.append((extent, 1 << distance))
        if merge >= log_most and extent > rounded:
            extent = extent // (2 * rounded) * rounded + min(extent % (2 * rounded), rounded)
        steps += [(extent, 1 << (distance - 1 - step)) for step in range(distance)]
    return steps


def _sorted(spec: OpSpec) -> tuple[int, int]:
    """(extent of the sorted dimension, number of its elements that are returned)."""
    name, shape, named = base_name(spec), spec.operands[0].shape, dict(spec.kwargs)
    counted = name in ("topk", "kthvalue")
    position = 2 if counted else 1
    dim = named.get("dim", spec.args[position] if len(spec.args) > position else None)
    if not isinstance(dim, int) or isinstance(dim, bool):
        dim = None if name.endswith("median") else -1
    extent = spec.operands[0].elements if dim is None else shape[dim] if shape else 1
    return extent, min(int(spec.args[1]), extent) if counted else extent


@lowering(*aten("topk sort argsort kthvalue median nanmedian mode"))
def sort(spec: OpSpec, machine: Machine) -> Plan:
    """Compare-and-swap steps over all tiles, with an exchange before each."""
    # keys are sorted in fp32, with their positions; pairs that are on one tile are copied there
    build = Builder(spec, machine)
    operand, spread = build.lead(0)
    extent, most = _sorted(spec)
    rows = operand.elements // max(extent, 1)
    if operand.item_bytes < FLOAT_BYTES:
        build.map("cast keys", "cast", spread.elements, operand.dtype, flops=0)
    pair_bytes = 2 * 2 * FLOAT_BYTES  # two keys and two values
    pairs = np.zeros(machine.tiles, np.int64)
    for number, (present, distance) in enumerate(bitonic_steps(extent, most) if rows else ()):
        total = present // 2 * rows
        share = int(ceil_div(total, machine.tiles))
        pairs = np.clip(total - share * np.arange(machine.tiles, dtype=np.int64), 0, share)
        nbytes = pairs * pair_bytes
        if share < distance * rows or number == 0:
            step = build.exchange(f"step {number}/exchange", nbytes, nbytes)
        else:
            step = build.compute(
                f"step {number}/copy", "poplar_rt::Memcpy64BitSupervisor", copy_cycles(nbytes)
            )
        build.hold(f"step {number}", 2 * nbytes, step, build.next)
        cycles = np.where(pairs > 0, 6 * (17 + COMPARE_AND_SWAP * ceil_div(pairs, 6)), 0)
        kind = "popops::CompareAndSwapAtDistanceKeyVal<float,unsigned int,false>"
        build.compute(f"step {number}/compare", kind, cycles, total)
    if not build.steps:  # one element a row
        build.map("copy", "copy", spread.elements, operand.dtype, flops=0)
    received = pairs if pairs.any() else spread.elements
    key = ("sorted", 0, digest(spread.key, operand.shape, extent, most))
    layouts = in_proportion(key, received, spec.outputs)
    return build.plan(layouts, note=f"{len(bitonic_steps(extent, most))} steps")


describe_aten("cat stack slice_backward select_backward", moves=True)
describe("aten.topk", compares=True)
describe_aten("cat concat concatenate", popart_name="Concat")
describe_aten("topk", popart_name="TopK")
describe_aten("cumsum", popart_name="CumSum")
describe_aten("constant_pad_nd pad", popart_name="Pad")


# -- views ---
# Operators that no tile computes: views, and questions that the host answers while capturing.


# Free on the IPU: a view is another way to index the same elements, and the compiler resolves it.
describe_aten(
    """view _unsafe_view _reshape_alias reshape t transpose swapaxes permute movedim expand
    expand_as view_as slice select narrow split split_with_sizes chunk unsafe_split unsafe_chunk
    unsafe_split_with_sizes unbind squeeze unsqueeze detach detach_ alias as_strided unfold
    flatten unflatten diagonal view_as_real view_as_complex lift_fresh lift numpy_T mT
    resolve_conj resolve_neg real transpose_ squeeze_ unsqueeze_ t_ as_strided_ set_ _conj
    hsplit vsplit tensor_split""",
    view=True,
)
describe_aten(
    "lift_fresh.default _assert_async.msg _local_scalar_dense.default promote_types.default",
    on_host=True,
)
describe_aten("view _unsafe_view reshape", popart_name="Reshape")
describe_aten("t transpose permute", popart_name="Transpose")
describe_aten("slice select", popart_name="Slice")
describe_aten("slice split narrow", makes_different=True)
