"""Softmax and log-softmax, forward and backward (docs/cycles.md#compound-operators)."""

from __future__ import annotations

from ipu_exec.lowering.build import Builder
from ipu_exec.lowering.layouts import result_spread
from ipu_exec.lowering.operator_info import aten, describe_aten
from ipu_exec.lowering.operators.elementwise import bring
from ipu_exec.lowering.operators.reduce import broadcast_back, dims_of, reduce_over
from ipu_exec.lowering.plan import OpSpec, Plan
from ipu_exec.lowering.registry import lowering
from ipu_exec.machine import Machine


@lowering(*aten("_softmax _safe_softmax softmax _log_softmax log_softmax"))
def softmax(spec: OpSpec, machine: Machine) -> Plan:
    """reduce-max, subtract, exp, reduce-add, inverse, multiply; its log: ..., log, subtract."""
    log = "log_softmax" in spec.name
    build = Builder(spec, machine)
    operand, spread = build.lead(0)
    out = spec.output
    dims = dims_of(spec.args[1], len(operand.shape))
    most = reduce_over(build, operand, spread, dims, "MAX", "max")
    broadcast_back(build, most, "broadcast max", operand.item_bytes)
    shifted = build.map("subtract max", "sub_vector", spread.elements, out.dtype)
    build.hold("exponentials", spread.elements * out.item_bytes, shifted, shifted + 2)
    build.map("exp", "exp", spread.elements, out.dtype)
    total = reduce_over(build, operand, spread, dims, "ADD", "sum")
    of_sum = "log" if log else "inverse"
    build.map(of_sum, of_sum, total.spread.elements, "float32")
    broadcast_back(build, total, "broadcast sum")
    name, kind = ("subtract log sum", "sub_vector") if log else ("scale", "mul_vector")
    build.map(name, kind, spread.elements, out.dtype)
    return build.plan((result_spread(spread, operand, out).layout(out.dtype),))


@lowering("aten._softmax_backward_data", "aten._log_softmax_backward_data")
def softmax_backward(spec: OpSpec, machine: Machine) -> Plan:
    """Softmax: multiply, reduce, subtract, multiply; its log: reduce, exp, multiply, subtract."""
    build = Builder(spec, machine)
    operand, spread = build.lead(1)
    out = spec.output
    bring(build, 0, operand, spread)
    dims = dims_of(spec.args[2], len(operand.shape))
    log = "log_softmax" in spec.name
    if not log:
        step = build.map("multiply", "mul", spread.elements, out.dtype)
        build.hold("product", spread.elements * out.item_bytes, step)
    total = reduce_over(build, operand, spread, dims, "ADD", "sum")
    broadcast_back(build, total, "broadcast sum")
    if log:
        step = build.map("exp", "exp", spread.elements, out.dtype)
        build.hold("probabilities", spread.elements * out.item_bytes, step)
        build.map("scale", "mul_vector", spread.elements, out.dtype)
        build.map("subtract", "sub_", spread.elements, out.dtype)
    else:
        build.map("subtract", "sub_vector", spread.elements, out.dtype)
        build.map("multiply by output", "mul_", spread.elements, out.dtype)
    return build.plan((result_spread(spread, operand, out).layout(out.dtype),))


# PopART's variants that write over the operand (willow/include/popart/op/softmax.hpp).
describe_aten("softmax _softmax _log_softmax", in_place=True)
describe_aten("_softmax softmax _safe_softmax", popart_name="Softmax")
describe_aten("_log_softmax log_softmax", popart_name="LogSoftmax")
