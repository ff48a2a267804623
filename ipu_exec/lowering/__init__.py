"""Operators over tiles: each becomes compute sets, exchanges and temporaries.

``lower(spec, machine)`` gives an operator's `Plan`. To add one, write and register a function::

    from ipu_exec.lowering import Builder, lowering

    @lowering("mylib::scale")
    def scale(spec, machine):
        build = Builder(spec, machine)
        spread = build.spread(0)
        build.map("scale", "mul_scalar", spread.elements, spec.outputs[0].dtype)
        return build.plan((spread.layout(spec.outputs[0].dtype),))
"""

from __future__ import annotations

from dataclasses import replace

from ipu_exec.lowering.build import Builder
from ipu_exec.lowering.layouts import linear_layout
from ipu_exec.lowering.operator_info import OperatorInfo, describe, info, is_view, popart_name
from ipu_exec.lowering.operators import (  # noqa: F401  (importing them registers their operators)
    attention,
    collectives,
    ctc,
    distance,
    elementwise,
    gather,
    loss,
    norm,
    optimisers,
    pooling,
    random,
    reduce,
    resample,
    rnn,
    search,
    shape,
    softmax,
)
from ipu_exec.lowering.plan import OpSpec, Plan
from ipu_exec.lowering.plan_cache import PlanCache
from ipu_exec.lowering.products import conv, matmul, multi_conv  # noqa: F401  (importing them registers their operators)
from ipu_exec.lowering.registry import find, lowering, registered
from ipu_exec.lowering.vertices import vertex_info
from ipu_exec.machine import Machine

__all__ = [
    "Builder",
    "OperatorInfo",
    "describe",
    "generic",
    "info",
    "is_view",
    "linear_layout",
    "lower",
    "lowering",
    "popart_name",
    "registered",
    "vertex_info",
]


def lower(spec: OpSpec, machine: Machine) -> Plan:
    """How ``spec`` runs on ``machine``; equal calls give the same object.

    Views give an empty plan. Raises LoweringError for an operator that nobody registered.
    """
    if is_view(spec.name):
        return Plan((), output_layouts=(None,) * len(spec.outputs))
    function = find(spec.name)
    # the function is part of the key, so that registering another lowering later is seen
    return _PLANS.get((spec, machine, function), lambda: function(spec, machine))


_PLANS = PlanCache(limit=32 << 20)  # about 160 kB a plan; GPT-3 on 256 IPUs has 243


def generic(spec: OpSpec, machine: Machine) -> Plan:
    """A guess for an operator that nobody lowered, marked ``estimated``."""
    # in a linear layout; a C++ vertex takes 20 worker cycles an element, docs/cycles.md#elementwise
    build = Builder(spec, machine)
    outputs = [out for out in spec.outputs if out is not None]
    tensors = [*spec.operands, *outputs]
    most = max(tensors, key=lambda t: t.elements, default=None)
    if most is None:
        return Plan((), output_layouts=(None,) * len(spec.outputs), estimated=True)
    share = build.linear(most.elements, most.dtype)
    for index, operand in enumerate(spec.operands):
        source = build.place(index)
        need = build.linear(operand.elements, operand.dtype).elements
        build.fetch_and_hold(f"operand {index}", source, need)
    build.map(spec.name, "generic", share.elements, most.dtype)
    layouts = tuple(build.linear_layouts(spec.outputs))
    plan = build.plan(layouts, note="nobody lowered this operator: estimated")
    return replace(plan, estimated=True)
