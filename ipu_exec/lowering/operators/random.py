"""Random numbers and dropout in hardware: 4 worker cycles a vector (docs/cycles.md#elementwise)."""

from __future__ import annotations

from ipu_exec.lowering.build import Builder
from ipu_exec.lowering.layouts import result_spread, spread_of
from ipu_exec.lowering.operator_info import describe_aten, words
from ipu_exec.lowering.operators.elementwise import base_name, bring
from ipu_exec.lowering.plan import OpSpec, Plan
from ipu_exec.lowering.registry import lowering
from ipu_exec.machine import Machine


@lowering("aten.native_dropout", "aten.dropout", "aten.alpha_dropout", "aten.feature_dropout")
def dropout(spec: OpSpec, machine: Machine) -> Plan:
    """One vertex makes mask and scaled result, where the input lies."""
    build = Builder(spec, machine)
    operand, spread = build.lead(0)
    build.map("dropout", "dropout", spread.elements, operand.dtype)
    return build.plan(
        tuple(
            None if out is None else result_spread(spread, operand, out).layout(out.dtype)
            for out in spec.outputs
        )
    )


@lowering("aten.native_dropout_backward", unread=(1,))
def dropout_backward(spec: OpSpec, machine: Machine) -> Plan:
    """(gradient, mask, scale): draws the same numbers again from the seed, so no mask is kept."""
    # only the same tiles draw the same (poprand's reference tensor): the gradient comes to them
    build = Builder(spec, machine)
    mask, spread = build.lead(1)
    out = spec.output
    bring(build, 0, mask, spread)
    build.map("dropout", "dropout", spread.elements, out.dtype)
    return build.plan((result_spread(spread, mask, out).layout(out.dtype),))


_RANDOM = words(
    """
        bernoulli bernoulli_ rand randn randint rand_like randn_like randint_like uniform uniform_
        normal normal_ randperm random_ exponential_ log_normal_ geometric_ cauchy_
        normal_functional
    """
)


@lowering(*(f"aten.{name}" for name in _RANDOM))
def random(spec: OpSpec, machine: Machine) -> Plan:
    """Random numbers, made where the result lies: like an operand of its shape, else linearly."""
    build = Builder(spec, machine)
    out = spec.output
    like = next(
        (i for i, o in enumerate(spec.operands) if o.shape == out.shape and o.layout is not None),
        None,
    )
    if out.layout is not None:
        spread = spread_of(out, machine.tiles)
    elif like is not None:
        source = build.spread(like)
        spread = result_spread(source, spec.operands[like], out)
    else:
        spread = build.linear(out.elements, out.dtype)
    build.map(base_name(spec), "random", spread.elements, out.dtype)
    return build.plan((spread.layout(out.dtype), *(None,) * (len(spec.outputs) - 1)))


describe_aten("rand_like randn_like randint_like", unread=(0,))
describe_aten("native_dropout dropout", popart_name="Dropout")
describe_aten("native_dropout_backward", popart_name="DropoutGrad")
