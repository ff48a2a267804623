"""Layer, group, batch and instance norm, both ways (docs/cycles.md#compound-operators)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from ipu_exec.lowering.build import Builder
from ipu_exec.lowering.layouts import Spread, result_spread
from ipu_exec.lowering.operator_info import Promotion, aten, describe_aten
from ipu_exec.lowering.operators.elementwise import along, bring, broadcast_need
from ipu_exec.lowering.operators.reduce import Reduced, broadcast_back, reduce_over
from ipu_exec.lowering.plan import Layout, Operand, OpSpec, Plan
from ipu_exec.lowering.registry import lowering
from ipu_exec.machine import Machine


def _affine(
    build: Builder, index: int, lead: Operand, spread: Spread, axes: tuple[int, ...]
) -> None:
    """Send a scale or shift (a vector along ``axes``) to the tiles of ``lead``."""
    source = build.place(index)
    need = np.minimum(broadcast_need(along(lead, axes), lead, spread), source.elements)
    build.fetch_and_hold(f"operand {index}", source, need, broadcast=True)


def _statistics(build: Builder, lead: Operand, spread: Spread, dims: tuple[int, ...]) -> Reduced:
    """Append mean and inverse standard deviation over ``dims``, sent back to ``lead``'s tiles."""
    # The stable version computes the mean first and subtracts it before squaring. In the other one
    # the variance is the mean of squares minus the squared mean ([POPART,
    # willow/include/popart/sessionoptions.hpp], enableStableNorm).
    mean = reduce_over(build, lead, spread, dims, "ADD", "mean")
    if build.machine.stable_norm:
        broadcast_back(build, mean, "broadcast mean")
        step = build.map("centre", "sub_vector", spread.elements, lead.dtype)
        square = reduce_over(build, lead, spread, dims, "SQUARE_ADD", "variance")
        build.hold("centred", spread.elements * lead.item_bytes, step, build.next - 1)
        for kind in ("mul_scalar", "add_scalar", "rsqrt"):
            build.map(f"variance/{kind}", kind, square.spread.elements, "float32")
        broadcast_back(build, square, "broadcast inverse deviation")
        return square
    square = reduce_over(build, lead, spread, dims, "SQUARE_ADD", "mean of squares")
    for kind in ("mul_scalar", "square", "sub_", "add_scalar", "rsqrt"):
        build.map(f"variance/{kind}", kind, square.spread.elements, "float32")
    broadcast_back(build, mean, "broadcast mean")
    broadcast_back(build, square, "broadcast inverse deviation")
    return square


def _tensor(value: object) -> bool:
    return isinstance(value, Operand)


def _index(spec: OpSpec, position: int) -> int:
    """Operand index of a tensor argument."""
    return sum(_tensor(a) for a in spec.args[:position])


def _whiten(
    build: Builder,
    lead: Operand,
    spread: Spread,
    affine: list[int],
    axes: tuple[int, ...],
    dtype: str,
) -> None:
    """Append (x - mean) / deviation, then scale and shift."""
    step = build.map("whiten/subtract", "sub_vector", spread.elements, dtype)
    build.hold("whitened", spread.elements * lead.item_bytes, step)
    build.map("whiten/scale", "mul_vector", spread.elements, dtype)
    for index, kind in zip(affine, ("mul_vector", "add_vector"), strict=False):
        _affine(build, index, lead, spread, axes)
        build.map("affine/" + kind.split("_")[0], kind, spread.elements, dtype)


def _forward(
    spec: OpSpec,
    machine: Machine,
    dims: tuple[int, ...],
    axes: tuple[int, ...],
    affine: list[int],
    lead: Operand | None = None,
    training: bool = True,
) -> Plan:
    """A norm over ``dims``, scale and shift along ``axes``; ``lead``: the input, if regrouped."""
    build = Builder(spec, machine)
    operand, spread = build.lead(0)
    out = spec.output
    statistics = build.linear(
        prod(n for d, n in enumerate(operand.shape) if d not in dims), "float32"
    )
    if training:
        statistics = _statistics(build, lead or operand, spread, dims).spread
    _whiten(build, operand, spread, affine, axes, out.dtype)
    layouts: list[Layout | None] = [result_spread(spread, operand, out).layout(out.dtype)]
    for statistic in spec.outputs[1:]:
        same = statistic is not None and statistic.elements == int(statistics.elements.sum())
        layouts += statistics.layouts([statistic]) if same else build.linear_layouts([statistic])
    return build.plan(tuple(layouts))


def _affine_indices(spec: OpSpec, first: int) -> list[int]:
    return [
        _index(spec, p) for p in (first, first + 1) if len(spec.args) > p and _tensor(spec.args[p])
    ]


def _grouped(operand: Operand, groups: int) -> Operand:
    """[N, C, ...] viewed as [N, groups, C/groups, ...]."""
    n, c, *rest = operand.shape
    s_n, s_c, *s_rest = operand.strides
    inner = c // groups
    shape, strides = (n, groups, inner, *rest), (s_n, s_c * inner, s_c, *s_rest)
    return replace(operand, shape=shape, strides=strides)


@lowering("aten.native_layer_norm", "aten.layer_norm", norm=True)
def layer_norm(spec: OpSpec, machine: Machine) -> Plan:
    """Norm over the last dimensions, with scale and shift of their shape."""
    rank, normalised = len(spec.operands[0].shape), spec.args[1]
    count = len(normalised) if isinstance(normalised, tuple) else 1
    dims = tuple(range(rank - count, rank))
    return _forward(spec, machine, dims, dims, _affine_indices(spec, 2))


@lowering("aten._fused_rms_norm", "aten.rms_norm", norm=True)
def rms_norm(spec: OpSpec, machine: Machine) -> Plan:
    """One reduction (sum of squares), inverse root, scale."""
    build = Builder(spec, machine)
    operand, spread = build.lead(0)
    out = spec.output
    count = len(spec.args[1]) if isinstance(spec.args[1], tuple) else 1
    dims = tuple(range(len(operand.shape) - count, len(operand.shape)))
    square = reduce_over(build, operand, spread, dims, "SQUARE_ADD", "mean of squares")
    build.map("inverse root", "rsqrt", square.spread.elements, "float32")
    broadcast_back(build, square, "broadcast inverse root")
    build.map("scale", "mul_vector", spread.elements, out.dtype)
    for index in range(1, len(spec.operands)):
        _affine(build, index, operand, spread, dims)
        build.map("affine/mul", "mul_vector", spread.elements, out.dtype)
    layout = result_spread(spread, operand, out).layout(out.dtype)
    return build.plan((layout, *square.spread.layouts(spec.outputs[1:])))


@lowering("aten.native_group_norm", "aten.group_norm", norm=True)
def group_norm(spec: OpSpec, machine: Machine) -> Plan:
    """(input, weight, bias, N, C, HxW, groups, eps): over a group of channels and the field."""
    grouped = _grouped(spec.operands[0], int(spec.args[6]))
    dims = tuple(range(2, len(grouped.shape)))
    return _forward(spec, machine, dims, (1,), _affine_indices(spec, 1), grouped)


_BATCH_NORMS = (
    "native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_functional"
    " cudnn_batch_norm _batch_norm_with_update _batch_norm_no_update"
    " _native_batch_norm_legit_no_training miopen_batch_norm batch_norm"
)


def takes_statistics(name: str, args: Sequence[Any]) -> bool:
    """Whether ``name`` with these arguments is a batch norm in training."""
    flags = [a for a in args if isinstance(a, bool)]
    return bool(flags[0] if flags else "no_training" not in name) and "no_update" not in name


@lowering(*aten(_BATCH_NORMS), norm=True)
def batch_norm(spec: OpSpec, machine: Machine) -> Plan:
    """Norm over batch and field; training also updates the running statistics (a few elements)."""
    training = takes_statistics(spec.name, spec.args)
    rank = len(spec.operands[0].shape)
    dims = (0, *range(2, rank))
    return _forward(spec, machine, dims, (1,), _affine_indices(spec, 1), training=training)


def _backward(
    spec: OpSpec,
    machine: Machine,
    data: int,
    weight: int | None,
    dims: tuple[int, ...],
    affine_dims: tuple[int, ...],
    lead: Operand | None = None,
) -> Plan:
    """Two reductions for the input's gradient, one each for scale and shift (``affine_dims``)."""
    build = Builder(spec, machine)
    operand, spread = build.lead(data)
    seen = lead or operand
    axes = tuple(d for d in range(len(operand.shape)) if d not in affine_dims)
    bring(build, 0, operand, spread)
    dtype = operand.dtype
    # means and the like over ``dims``, and how many each tile's share needs
    statistics = along(seen, tuple(d for d in range(len(seen.shape)) if d not in dims))
    need = broadcast_need(statistics, seen, spread)
    for index in range(len(spec.operands)):
        if index not in (0, data, weight) and spec.operands[index].elements == statistics.elements:
            source = build.place(index)
            build.fetch_and_hold(f"statistics {index}", source, need, broadcast=True)
    _whiten(build, operand, spread, [], (), dtype)
    layouts: list[Layout | None] = [None] * len(spec.outputs)
    product_step = build.map("gradient times whitened", "mul", spread.elements, dtype)
    build.hold("products", spread.elements * operand.item_bytes, product_step)
    for position, name in ((1, "scale"), (2, "shift")):
        out = spec.outputs[position] if len(spec.outputs) > position else None
        if out is not None:
            reduced = reduce_over(build, operand, spread, affine_dims, "ADD", f"grad {name}")
            layouts[position] = reduced.spread.layout(out.dtype)
    out = spec.outputs[0]
    if out is not None:
        if weight is not None:
            _affine(build, weight, operand, spread, axes)
            build.map("gradient times scale", "mul_vector", spread.elements, dtype)
        if set(dims) != set(affine_dims) or seen is not operand or spec.outputs[1:] == (None, None):
            first = reduce_over(build, seen, spread, dims, "ADD", "sum of gradients")
            second = reduce_over(build, seen, spread, dims, "ADD", "sum of products")
            broadcast_back(build, first, "broadcast sum of gradients")
            broadcast_back(build, second, "broadcast sum of products")
        else:  # the sums are the gradients of scale and shift, which only have to come back
            for name, layout in (("scale", layouts[1]), ("shift", layouts[2])):
                if layout is not None:
                    step = build.exchange(f"broadcast grad {name}", need * 4, layout.bytes)
                    build.hold(f"broadcast grad {name}", need * 4, step, build.next)
        build.map("scale whitened", "mul_vector", spread.elements, dtype)
        build.map("subtract products", "sub_", spread.elements, dtype)
        build.map("subtract mean", "add_vector", spread.elements, dtype)
        build.map("times inverse deviation", "mul_vector", spread.elements, dtype)
        layouts[0] = result_spread(spread, operand, out).layout(out.dtype)
    return build.plan(tuple(layouts))


@lowering("aten.native_layer_norm_backward")
def layer_norm_backward(spec: OpSpec, machine: Machine) -> Plan:
    """(grad, input, shape, mean, rstd, weight, bias, mask)."""
    rank, count = len(spec.operands[1].shape), len(spec.args[2])
    dims = tuple(range(rank - count, rank))
    weight = _index(spec, 5) if _tensor(spec.args[5]) else None
    return _backward(spec, machine, 1, weight, dims, tuple(range(rank - count)))


@lowering("aten.native_group_norm_backward")
def group_norm_backward(spec: OpSpec, machine: Machine) -> Plan:
    """(grad, input, mean, rstd, weight, N, C, HxW, groups, mask)."""
    data = spec.operands[1]
    grouped = _grouped(data, int(spec.args[8]))
    weight = _index(spec, 4) if _tensor(spec.args[4]) else None
    over = (0, *range(2, len(data.shape)))
    return _backward(spec, machine, 1, weight, tuple(range(2, len(grouped.shape))), over, grouped)


@lowering("aten.native_batch_norm_backward", "aten.batch_norm_backward")
def batch_norm_backward(spec: OpSpec, machine: Machine) -> Plan:
    """(grad, input, weight, running mean, running variance, mean, rstd, training, eps, mask)."""
    dims = (0, *range(2, len(spec.operands[1].shape)))
    weight = _index(spec, 2) if _tensor(spec.args[2]) else None
    return _backward(spec, machine, 1, weight, dims, dims)


# A norm of float16 may have parameters in float32.
describe_aten("layer_norm group_norm", promotion=Promotion.PARAMETERS)
describe_aten(
    "native_layer_norm layer_norm native_group_norm group_norm",
    popart_name="GroupNormalization",
)
describe_aten(
    "native_layer_norm_backward native_group_norm_backward",
    popart_name="GroupNormalizationGrad",
)
describe_aten(
    "native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_functional batch_norm",
    popart_name="BatchNormalization",
)
describe_aten(f"{_BATCH_NORMS} native_batch_norm_backward batch_norm_backward", over_batch=True)
describe_aten(
    "native_batch_norm_backward batch_norm_backward", popart_name="BatchNormalizationGrad"
)
