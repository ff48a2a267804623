"""Small builders of operands and operator specs for the lowering tests."""

from __future__ import annotations

from math import prod
from typing import Any

from ipu_exec.lowering.plan import (
    Collective,
    Compute,
    Exchange,
    Layout,
    Operand,
    OpSpec,
    Plan,
    Step,
)
from ipu_exec.machine import SYNC_CYCLES, TARGETS, Machine, exchange_tile_cycles

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


def step_cycles(step: Step, machine: Machine) -> int:
    """How long a step lasts, with the sync before an exchange."""
    if isinstance(step, Compute):
        return int(step.cycles.max())
    if isinstance(step, Collective):
        return step.cycles
    tiles = exchange_tile_cycles(
        machine.target, step.bytes_in, step.bytes_out, step.fragments, step.shared_bus
    )
    return int(tiles.max()) + SYNC_CYCLES


def plan_cycles(plan: Plan, machine: Machine) -> int:
    """How long a plan lasts."""
    return sum(step_cycles(step, machine) for step in plan.steps)


def computes(plan: Plan) -> dict[str, Compute]:
    """The compute sets of a plan, by name."""
    return {step.name: step for step in plan.steps if isinstance(step, Compute)}


def exchanges(plan: Plan) -> dict[str, Exchange]:
    """The exchanges of a plan, by name."""
    return {step.name: step for step in plan.steps if isinstance(step, Exchange)}
