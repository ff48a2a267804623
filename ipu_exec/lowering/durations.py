"""How long a plan and its steps last on a machine, without other steps beside them."""

from __future__ import annotations

from ipu_exec.lowering.plan import Collective, Compute, Plan, Step
from ipu_exec.machine import SYNC_CYCLES, Machine, exchange_tile_cycles


def step_cycles(step: Step, machine: Machine) -> int:
    """Cycles of a step on its slowest tile; an exchange's include the sync before it."""
    if isinstance(step, Compute):
        return int(step.cycles.max(initial=0))
    if isinstance(step, Collective):
        return step.cycles
    tiles = exchange_tile_cycles(
        machine.target, step.bytes_in, step.bytes_out, step.fragments, step.shared_bus
    )
    return int(tiles.max(initial=0)) + SYNC_CYCLES


def plan_cycles(plan: Plan, machine: Machine) -> int:
    """Cycles of a plan's steps, one after another."""
    return sum(step_cycles(step, machine) for step in plan.steps)
