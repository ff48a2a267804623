"""Losses and their gradients: NLL (and so cross-entropy), MSE, L1, binary cross-entropy."""

from __future__ import annotations

from typing import Any

import numpy as np

from ipu_exec.lowering.build import Builder
from ipu_exec.lowering.elementwise import base_name, bring, broadcast_need
from ipu_exec.lowering.layouts import (
    Spread,
    ceil_div,
    digest,
    is_contiguous,
    result_key,
)
from ipu_exec.lowering.operators import aten, describe
from ipu_exec.lowering.plan import Layout, Operand, OpSpec, Plan
from ipu_exec.lowering.reduce import reduce_over
from ipu_exec.lowering.registry import lowering
from ipu_exec.machine import Machine

WORKERS = 6
_END = 1 << 30
NONE, MEAN = 0, 1  # torch's numbers of reductions


def _rows(target: Operand, scores: Operand, spread: Spread) -> np.ndarray:
    """The number of targets that each tile's share of the scores belongs to.

    Classes are dimension 1, or 0 without a batch.
    """
    axis = 1 if len(scores.shape) > 1 else 0
    without = tuple(1 if d == axis else n for d, n in enumerate(scores.shape))
    column = Operand(without, target.dtype, (0,) * len(without))
    return (
        broadcast_need(column, scores, spread)
        if target.elements > 1
        else (spread.elements > 0).astype(np.int64)
    )


def _gather_cycles(rows: np.ndarray) -> np.ndarray:
    """Cycles of ``popops::SelectFromRowsInColumns``.

    A scalar load, compare and store per row, about 20 worker cycles.
    """
    return np.where(rows > 0, WORKERS * (26 + 20 * ceil_div(rows, WORKERS)), 0)


@lowering("aten.nll_loss_forward", "aten.nll_loss2d_forward", "aten.nll_loss", "aten.nll_loss2d")
def nll_loss(spec: OpSpec, machine: Machine) -> Plan:
    """Select each row's target score on the scores' tiles, and sum.

    A mean divides by the sum of weights.
    """
    build = Builder(spec, machine)
    scores, scores_spread = build.lead(0)
    target = build.place(1)
    rows = _rows(target, scores, scores_spread)
    step = build.fetch("targets", target, rows, broadcast=True)
    build.hold("targets", rows * target.item_bytes, step, _END)
    for index in range(2, len(spec.operands)):
        weight = build.place(index)
        need = np.minimum(scores_spread.elements, weight.elements)
        step = build.fetch("class weights", weight, need, broadcast=True)
        build.hold("class weights", need * weight.item_bytes, step, _END)
    step = build.compute(
        "pick", "popops::SelectFromRowsInColumns<float,int>", _gather_cycles(rows), int(rows.sum())
    )
    build.hold("picked", rows * 4, step, _END)
    out = spec.outputs[0]
    assert out is not None
    if out.elements > 1:  # no reduction
        picked = Operand(out.shape, out.dtype, out.strides, layout=None)
        reduced = reduce_over(
            build, scores, scores_spread, (1,) if len(scores.shape) > 1 else (0,), "ADD", "collect"
        )
        spread = (
            reduced.spread
            if picked.elements == int(reduced.spread.elements.sum())
            else build.linear(out.elements, out.dtype)
        )
    else:
        flat = Operand((int(rows.sum()),), "float32", (1,))
        reduced = reduce_over(
            build, flat, Spread(("rows", 0, scores_spread.key), rows), (0,), "ADD", "sum"
        )
        build.map("divide", "div_scalar", reduced.spread.elements, "float32")
        spread = reduced.spread
    layouts: list[Layout | None] = [
        None if o is None else build.linear(o.elements, o.dtype).layout(o.dtype)
        for o in spec.outputs
    ]
    layouts[0] = spread.layout(out.dtype)
    return build.plan(tuple(layouts))


@lowering("aten.nll_loss_backward", "aten.nll_loss2d_backward", unread=(1,))
def nll_loss_backward(spec: OpSpec, machine: Machine) -> Plan:
    """Zeros on the scores' tiles, then minus the incoming gradient at each row's target."""
    build = Builder(spec, machine)
    scores, spread = build.lead(1)
    out = spec.outputs[0]
    assert out is not None
    target = build.place(2)
    rows = _rows(target, scores, spread)
    for index, name in (
        (0, "gradient"),
        (2, "targets"),
        *((i, "weight") for i in range(3, len(spec.operands))),
    ):
        source = build.place(index)
        need = (
            np.minimum(rows, source.elements)
            if source.elements > 1
            else (spread.elements > 0).astype(np.int64)
        )
        step = build.fetch(name, source, need, broadcast=True)
        build.hold(name, need * source.item_bytes, step, _END)
    build.map("zero", "fill", spread.elements, out.dtype, flops=0)
    build.compute(
        "put", "popops::UpdateColumnsDEC<float,int>", _gather_cycles(rows), int(rows.sum())
    )
    key = (
        result_key(spread, scores, out)
        if is_contiguous(scores)
        else ("nll", spread.run, digest(spread.key))
    )
    return build.plan((Spread(key, spread.elements).layout(out.dtype),))


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
    """The reduction argument.

    The first plain integer after the tensors, or torch's default (mean) if there is none.
    """
    named = dict(spec.kwargs)
    if "reduction" in named:
        return named["reduction"]
    return next((a for a in spec.args if isinstance(a, int) and not isinstance(a, bool)), MEAN)


@lowering(*(f"aten.{name}" for name in _FORWARD))
def pointwise_loss(spec: OpSpec, machine: Machine) -> Plan:
    """A few maps on the prediction's tiles, then a sum over everything, and the mean's division."""
    build = Builder(spec, machine)
    operand, spread = build.lead(0)
    out = spec.outputs[0]
    assert out is not None
    for index in range(1, len(spec.operands)):
        bring(build, index, operand, spread)
    kinds = _FORWARD[base_name(spec)]
    for kind in kinds:
        build.map(f"{base_name(spec)}/{kind}", kind, spread.elements, operand.dtype)
    build.hold(
        "loss terms", spread.elements * operand.item_bytes, max(0, build.next - len(kinds)), _END
    )
    if _reduction(spec) == NONE and out.shape == operand.shape:
        return build.plan(
            (Spread(result_key(spread, operand, out), spread.elements).layout(out.dtype),)
        )
    total = reduce_over(build, operand, spread, tuple(range(len(operand.shape))), "ADD", "sum")
    build.map("divide", "mul_scalar", total.spread.elements, out.dtype)
    return build.plan((total.spread.layout(out.dtype),))


@lowering(*(f"aten.{name}" for name in _BACKWARD))
def pointwise_loss_backward(spec: OpSpec, machine: Machine) -> Plan:
    """The incoming gradient is broadcast to the prediction's tiles, followed by a few maps."""
    build = Builder(spec, machine)
    operand, spread = build.lead(1)
    out = spec.outputs[0]
    assert out is not None
    for index in range(len(spec.operands)):
        if index != 1:
            bring(build, index, operand, spread)
    for kind in _BACKWARD[base_name(spec)]:
        build.map(f"{base_name(spec)}/{kind}", kind, spread.elements, out.dtype)
    return build.plan(
        (Spread(result_key(spread, operand, out), spread.elements).layout(out.dtype),)
    )


describe(*aten("nll_loss_forward nll_loss nll_loss2d_forward nll_loss2d"), popart_name="Nll")
describe(*aten("nll_loss_backward nll_loss2d_backward"), popart_name="NllGrad")
