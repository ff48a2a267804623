"""Small builders of operands and operator specs for the lowering tests."""

from __future__ import annotations

from math import prod
from typing import Any

from ipu_exec.lowering.plan import Compute, Exchange, Layout, Operand, OpSpec, Plan
from ipu_exec.machine import TARGETS, Machine

MK2 = Machine(TARGETS["mk2"], 1472)


def tensor(
    *shape: int,
    dtype: str = "float32",
    role: str = "activation",
    layout: Layout | None = None,
    strides: tuple[int, ...] | None = None,
) -> Operand:
    """A dense operand, row-major unless strides are given."""
    if strides is None:
        strides = tuple(prod(shape[d + 1 :]) for d in range(len(shape)))
    return Operand(shape, dtype, strides, 0, prod(shape), layout, role)


def op(name: str, args: tuple[Any, ...], *outputs: Operand | None, **kwargs: Any) -> OpSpec:
    """A call of an operator."""
    return OpSpec(name, args, tuple(sorted(kwargs.items())), outputs)


def computes(plan: Plan) -> dict[str, Compute]:
    """The compute sets of a plan, by name."""
    return {step.name: step for step in plan.steps if isinstance(step, Compute)}


def exchanges(plan: Plan) -> dict[str, Exchange]:
    """The exchanges of a plan, by name."""
    return {step.name: step for step in plan.steps if isinstance(step, Exchange)}
