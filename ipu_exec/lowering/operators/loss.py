"""Losses and their gradients: NLL (and so cross-entropy), MSE, L1, binary cross-entropy."""

from __future__ import annotations

from math import ceil
from typing import Any

import numpy as np

from ipu_exec.lowering.build import Builder
from ipu_exec.lowering.layouts import Spread, digest, is_contiguous, result_spread, split_evenly
from ipu_exec.lowering.operator_info import describe_aten
from ipu_exec.lowering.operators.elementwise import along, base_name, bring, broadcast_need
from ipu_exec.lowering.operators.reduce import reduce_over
from ipu_exec.lowering.operators.reduce_vertices import VECTOR_BYTES
from ipu_exec.lowering.plan import Operand, OpSpec, Plan
from ipu_exec.lowering.registry import lowering
from ipu_exec.lowering.vertices import poplar_type
from ipu_exec.machine import Machine
from ipuscope.profiler.vertices import WORKERS

ENCODED = 100  # worker cycles of a target that is encoded
LEAST_VECTORS = 4  # of classes on a tile
NONE, MEAN = 0, 1  # torch's numbers of reductions


def _rows(target: Operand, scores: Operand, spread: Spread) -> np.ndarray:
    """How many targets a tile's scores belong to; classes: dimension 1, or 0 without a batch."""
    if target.elements <= 1:
        return (spread.elements > 0).astype(np.int64)
    axis = 1 if len(scores.shape) > 1 else 0
    axes = tuple(d for d in range(len(scores.shape)) if d != axis)
    return broadcast_need(along(scores, axes), scores, spread)


def _one_hot(build: Builder, target: Operand, scores: Operand, spread: Spread) -> None:
    """Append the encoding of the targets, as ones among zeros, where the scores lie."""
    # Whole vectors of targets go to as many tiles as there are, and those left share the classes,
    # four vectors at least. A vertex takes its targets one by one ([PL, lib/popops/Encoding.cpp],
    # encodeOneHotBase; a target that torch has as a signed number takes 100 worker cycles).
    classes = scores.shape[1] if len(scores.shape) > 1 else scores.shape[0]
    vector = max(1, VECTOR_BYTES // scores.item_bytes)
    vectors = ceil(target.elements / vector)
    per_tile = ceil(vectors / build.tiles) * vector
    groups = ceil(target.elements / per_tile)
    shared = max(1, build.tiles // groups)
    width = max(ceil(ceil(classes / vector) / shared), LEAST_VECTORS) * vector
    used = min(build.tiles, groups * ceil(classes / width))
    start = digest("one hot", target.elements, classes) % build.tiles
    places = (start + np.arange(used)) % build.tiles
    elements, labels = np.zeros(build.tiles, np.int64), np.zeros(build.tiles, np.int64)
    elements[places] = split_evenly(scores.elements, used)
    labels[places] = np.minimum(per_tile, target.elements)
    step = build.fetch("targets", target, labels, broadcast=True)
    build.hold("targets", labels * target.item_bytes, step, build.next + 1)
    build.map("zero", "fill", elements, scores.dtype, flops=0)
    kind = f"popops::EncodeOneHot<int,{poplar_type(scores.dtype)}>"
    cycles = np.where(labels > 0, WORKERS * ENCODED * labels, 0)
    build.compute("encode", kind, cycles, int(labels.sum()))
    nbytes = spread.elements * scores.item_bytes
    moved = build.exchange("one-hot", nbytes, elements * scores.item_bytes)
    build.hold("encoded", elements * scores.item_bytes, step + 1, moved)
    build.hold("one-hot", nbytes, moved)


def _mask(build: Builder, rows: np.ndarray, name: str) -> None:
    """Append what leaves out targets that are to be ignored: a comparison, a cast, a product."""
    for kind in ("compare", "cast", "mul_"):
        build.map(f"{name}/{kind}", kind, rows, "float32")


def _scaled_by_count(build: Builder, target: Operand, elements: np.ndarray, dtype: str) -> None:
    """Append the division by how many targets count."""
    # [POPART, willow/src/popx/op/nllx.cpp], applyScalingInPlaceForMeanReductionWithIgnoreIndex
    flat = Operand((target.elements,), "float32", (1,))
    labels = build.linear(target.elements, "float32")
    count = reduce_over(build, flat, labels, (0,), "ADD", "count")
    for kind in ("max", "div"):
        build.map(f"count/{kind}", kind, count.spread.elements, "float32")
    need = (elements > 0).astype(np.int64)
    build.exchange("count", need * 4, count.spread.elements * 4)
    build.map("mean", "mul_scalar", elements, dtype)


@lowering("aten.nll_loss_forward", "aten.nll_loss2d_forward", "aten.nll_loss", "aten.nll_loss2d")
def nll_loss(spec: OpSpec, machine: Machine) -> Plan:
    """Targets are encoded among zeros and multiplied by the scores, whose rows are summed."""
    # A mean leaves out what is ignored, divides by how many count, and sums once more ([POPART,
    # willow/src/popx/op/nllx.cpp], NllOpx::grow).
    build = Builder(spec, machine)
    scores, scores_spread = build.lead(0)
    target, out = build.place(1), spec.output
    _one_hot(build, target, scores, scores_spread)
    for index in range(2, len(spec.operands)):
        weight = build.place(index)
        need = np.minimum(scores_spread.elements, weight.elements)
        build.fetch_and_hold("class weights", weight, need, broadcast=True)
    build.map("select", "mul_", scores_spread.elements, scores.dtype)
    axis = (1,) if len(scores.shape) > 1 else (0,)
    reduced = reduce_over(build, scores, scores_spread, axis, "ADD", "rows")
    rows = reduced.spread.elements
    _mask(build, rows, "mask")
    if out.elements > 1:  # no reduction
        build.map("negate", "negate", rows, out.dtype)
        whole = int(rows.sum()) == out.elements
        spread = reduced.spread if whole else build.linear(out.elements, out.dtype)
    else:
        _mask(build, rows, "mask of the mean")
        _scaled_by_count(build, target, rows, "float32")
        flat = Operand((int(rows.sum()),), "float32", (1,))
        spread = reduce_over(build, flat, reduced.spread, (0,), "ADD", "sum").spread
    return build.plan((spread.layout(out.dtype), *build.linear_layouts(spec.outputs[1:])))


@lowering("aten.nll_loss_backward", "aten.nll_loss2d_backward", unread=(1,))
def nll_loss_backward(spec: OpSpec, machine: Machine) -> Plan:
    """Targets are encoded as minus one among zeros, masked, and scaled by the incoming gradient."""
    # [POPART, willow/src/popx/op/nllx.cpp], NllGradOpx::grow
    build = Builder(spec, machine)
    scores, spread = build.lead(1)
    out, target = spec.output, build.place(2)
    _one_hot(build, target, scores, spread)
    rows = _rows(target, scores, spread)
    # the last operand is torch's total weight, in place of which PopART counts targets again
    classes = range(3, len(spec.operands) - 1)
    for index, name in ((0, "gradient"), *((i, "weight") for i in classes)):
        source = build.place(index)
        need = (
            np.minimum(rows, source.elements)
            if source.elements > 1
            else (spread.elements > 0).astype(np.int64)
        )
        build.fetch_and_hold(name, source, need, broadcast=True)
    build.map("negate", "negate", spread.elements, out.dtype)
    labels = build.linear(target.elements, "float32").elements
    for kind in ("compare", "cast"):
        build.map(f"mask/{kind}", kind, labels, "float32")
    build.exchange("mask", rows * out.item_bytes, labels * out.item_bytes)
    build.map("mask/mul_", "mul_vector", spread.elements, out.dtype)
    _scaled_by_count(build, target, spread.elements, out.dtype)
    result = (
        result_spread(spread, scores, out)
        if is_contiguous(scores)
        else Spread(("nll", spread.run, digest(spread.key)), spread.elements)
    )
    return build.plan((result.layout(out.dtype),))


_FORWARD: dict[str, tuple[str, ...]] = {
    "mse_loss": ("sub", "square"),
    "l1_loss": ("sub", "absolute"),
    "smooth_l1_loss": ("sub", "absolute", "square", "compare_scalar", "select"),
    "huber_loss": ("sub", "absolute", "square", "compare_scalar", "select"),
    "soft_margin_loss": ("mul", "exp", "add_scalar", "log"),
    "kl_div": ("log", "sub_", "mul_"),
    "binary_cross_entropy": ("log", "add_scalar", "log", "mul", "mul", "add_"),
    "binary_cross_entropy_with_logits": (
        "absolute",
        "exp",
        "add_scalar",
        "log",
        "max",
        "mul",
        "sub_",
        "add_",
    ),
}
_BACKWARD: dict[str, tuple[str, ...]] = {
    "mse_loss_backward": ("sub", "mul_vector"),
    "smooth_l1_loss_backward": ("sub", "clamp", "mul_vector"),
    "huber_loss_backward": ("sub", "clamp", "mul_vector"),
    "binary_cross_entropy_backward": ("sub", "add_scalar", "mul", "div", "mul_vector"),
}


def _reduction(spec: OpSpec) -> Any:
    """The reduction argument: the first plain integer after the tensors; by default a mean."""
    named = dict(spec.kwargs)
    if "reduction" in named:
        return named["reduction"]
    return next((a for a in spec.args if isinstance(a, int) and not isinstance(a, bool)), MEAN)


@lowering(*(f"aten.{name}" for name in _FORWARD))
def pointwise_loss(spec: OpSpec, machine: Machine) -> Plan:
    """A few maps on the prediction's tiles, then a sum over everything, and the mean's division."""
    build = Builder(spec, machine)
    operand, spread = build.lead(0)
    out = spec.output
    for index in range(1, len(spec.operands)):
        bring(build, index, operand, spread)
    kinds = _FORWARD[base_name(spec)]
    for kind in kinds:
        build.map(f"{base_name(spec)}/{kind}", kind, spread.elements, operand.dtype)
    first = max(0, build.next - len(kinds))
    build.hold("loss terms", spread.elements * operand.item_bytes, first)
    if _reduction(spec) == NONE and out.shape == operand.shape:
        return build.plan((result_spread(spread, operand, out).layout(out.dtype),))
    total = reduce_over(build, operand, spread, tuple(range(len(operand.shape))), "ADD", "sum")
    build.map("divide", "mul_scalar", total.spread.elements, out.dtype)
    return build.plan((total.spread.layout(out.dtype),))


@lowering(*(f"aten.{name}" for name in _BACKWARD))
def pointwise_loss_backward(spec: OpSpec, machine: Machine) -> Plan:
    """The incoming gradient is broadcast to the prediction's tiles, followed by a few maps."""
    build = Builder(spec, machine)
    operand, spread = build.lead(1)
    out = spec.output
    for index in range(len(spec.operands)):
        if index != 1:
            bring(build, index, operand, spread)
    for kind in _BACKWARD[base_name(spec)]:
        build.map(f"{base_name(spec)}/{kind}", kind, spread.elements, out.dtype)
    return build.plan((result_spread(spread, operand, out).layout(out.dtype),))


describe_aten("nll_loss_forward nll_loss nll_loss2d_forward nll_loss2d", popart_name="Nll")
describe_aten("nll_loss_backward nll_loss2d_backward", popart_name="NllGrad")
