"""What gradient accumulation adds to a profile with one micro-batch a weight update: estimates.

Such a program adds no gradients up: its weight update takes them as the backward made them. With
accumulators, a gradient goes to where its weight is, and is added to what is there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ipuscope.planner.costs.profile_columns import Variables
from ipuscope.profiler.enums import Direction, Role
from ipuscope.profiler.file import records
from ipuscope.profiler.report import Report


@dataclass(frozen=True)
class Accumulating:
    """Cycles of a micro-batch, int64[Block], and bytes of accumulators, int64[Block, tile]."""

    cycles: np.ndarray
    nbytes: np.ndarray

    @classmethod
    def from_report(cls, report: Report, blocks: int) -> Accumulating | None:
        """Adding takes what the least operator takes that brings a gradient for its update.

        None of a profile that has accumulators, and of inference.
        """
        roles = report.file.table(records.Variable)
        has = report.imported or roles.equals("role", Role.ACCUMULATOR).any()
        if has or report.meta["kind"] != "training":
            return None
        ops, steps = report.file.table(records.Op), report.sequence
        op, cycles, brought = map(steps.steps_in_order, ("op", "cycles", "bytes_in"))
        update = steps.steps_with("direction", Direction.UPDATE) & (op >= 0)
        count = int(ops["id"].max(initial=-1)) + 1
        spent = np.bincount(op[update], cycles[update], count)
        brings = np.bincount(op[update & (brought >= 0)], minlength=count) > 0
        least: dict[tuple[int, str], tuple[bool, float]] = {}
        rows = ops.equals("direction", Direction.UPDATE) & (ops["block"] >= 0)
        of_rows = (ops[name][rows].tolist() for name in ("id", "block", "name"))
        for number, block, name in zip(*of_rows, strict=True):
            weight = block, name.rpartition("/update/")[0]
            one = not brings[number], spent[number]
            least[weight] = min(one, least.get(weight, one))
        adds = np.zeros(blocks, dtype=np.int64)
        for (block, _), (_, needed) in least.items():
            adds[block] += int(needed)
        return cls(adds, _accumulators(report, blocks))


def _accumulators(report: Report, blocks: int) -> np.ndarray:
    """Where the weights that have gradients are, in float32."""
    variables, table = Variables.of(report), report.file.table(records.Variable)
    trained = variables.parameter[variables.role == Role.GRADIENT]
    chosen = (variables.role == Role.WEIGHT) & np.isin(variables.parameter, trained)
    weights = variables.where(chosen)
    halves = weights.where(np.isin(weights.id, table["id"][table.equals("dtype", "float16")]))
    return weights.bytes_by(weights.block, blocks) + halves.bytes_by(halves.block, blocks)
