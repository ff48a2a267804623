"""Updates of many tensors in one call: ``_foreach_*`` and ``_fused_*``.

The IPU does each tensor where it lies, all in one compute set a step of the update: a tile works
through its parts one after another. Updates of single tensors are in `elementwise`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ipu_exec.lowering.build import Builder
from ipu_exec.lowering.costs import KINDS
from ipu_exec.lowering.layouts import spread_of
from ipu_exec.lowering.operators.elementwise import BINARY, TERNARY, UNARY, base_name
from ipu_exec.lowering.operators.reduce import reduce_over
from ipu_exec.lowering.plan import Layout, Operand, OpSpec, Plan
from ipu_exec.lowering.registry import lowering
from ipu_exec.machine import Machine

_FOREACH = {
    **UNARY,
    **{name: kinds for name, kinds in BINARY.items() if "backward" not in name},
    **TERNARY,
    "zero": ("fill",),
    "copy": ("copy",),
}
# what a fused update does to each parameter, gradient at hand (weight decay included)
_ADAM = ("scaled_add", "mul", "scaled_add", "sqrt", "add_scalar", "div", "scaled_add")
_FUSED = {
    "sgd": ("scaled_add", "scaled_add", "scaled_add"),
    "adam": ("scaled_add", *_ADAM),
    "adamw": ("mul_scalar", *_ADAM),
    "adagrad": ("mul", "add_", "sqrt", "add_scalar", "div", "scaled_add"),
}


def _map_all(build: Builder, name: str, kind: str, tensors: list[Operand]) -> None:
    """One compute set with a vertex on each tile for each tensor that has elements there."""
    cycles, count, flops = np.zeros(build.tiles, np.int64), np.zeros(build.tiles, np.int64), 0
    dtype = "float32"
    for operand in tensors:
        elements = spread_of(operand, build.tiles).elements
        dtype = operand.dtype
        cycles = cycles + KINDS[kind].cycles(elements, dtype)
        count = count + (elements > 0)
        flops += int(elements.sum()) * KINDS[kind].flops
    build.compute(name, KINDS[kind].vertex_type(dtype), cycles, flops, count)


def _run(spec: OpSpec, machine: Machine, kinds: tuple[str, ...]) -> Plan:
    build = Builder(spec, machine)
    lists = (a for a in spec.args if isinstance(a, tuple) and a and isinstance(a[0], Operand))
    leaders = next(lists, ())
    placed = [build.place(index) for index in range(len(spec.operands))]
    tensors = placed[: len(leaders)]
    arrived = np.zeros(machine.tiles, np.int64)
    sent = np.zeros(machine.tiles, np.int64)
    for position, operand in enumerate(placed[len(leaders) :]):
        lead = tensors[position % len(tensors)] if tensors else operand
        if operand.shape == lead.shape and not operand.lies_with(lead):
            arrived += spread_of(lead, machine.tiles).elements * operand.item_bytes
            sent += spread_of(operand, machine.tiles).elements * operand.item_bytes
    step = build.exchange(f"{base_name(spec)}/operands", arrived, sent)
    build.hold("operands", arrived, step)
    for kind in kinds:
        _map_all(build, f"{base_name(spec)}/{kind}", kind, tensors)
    layouts: list[Layout | None] = []
    for position, out in enumerate(spec.outputs):
        like = tensors[position % len(tensors)] if tensors else None
        same = (
            like is not None
            and out is not None
            and like.shape == out.shape
            and like.layout is not None
        )
        if out is None:
            layouts.append(None)
        elif same and like is not None:
            layouts.append(spread_of(like, machine.tiles).layout(out.dtype))
        else:
            layouts.append(build.linear(out.elements, out.dtype).layout(out.dtype))
    return build.plan(tuple(layouts))


@lowering(*(f"aten._foreach_{name}{tail}" for name in _FOREACH for tail in ("", "_")))
def foreach(spec: OpSpec, machine: Machine) -> Plan:
    """The same elementwise operator on every tensor of a list."""
    name = base_name(spec).removeprefix("_foreach_").removesuffix("_")
    return _run(spec, machine, _FOREACH[name])


@lowering(*(f"aten._fused_{name}{tail}" for name in _FUSED for tail in ("", "_")))
def fused(spec: OpSpec, machine: Machine) -> Plan:
    """A whole optimiser update of every tensor of a list, as the single operators it is."""
    return _run(spec, machine, _FUSED[base_name(spec).removeprefix("_fused_").removesuffix("_")])


@lowering("aten._foreach_norm")
def norms(spec: OpSpec, machine: Machine) -> Plan:
    """The norm of each tensor, one reduction after another (gradient clipping)."""
    build = Builder(spec, machine)
    layouts: list[Any] = []
    for index, out in enumerate(spec.outputs):
        operand, spread = build.lead(index)
        dims = tuple(range(len(operand.shape)))
        reduced = reduce_over(build, operand, spread, dims, "SQUARE_ADD", f"norm {index}")
        build.map(f"norm {index}/sqrt", "sqrt", reduced.spread.elements, "float32")
        layouts.append(None if out is None else reduced.spread.layout(out.dtype))
    return build.plan(tuple(layouts))
