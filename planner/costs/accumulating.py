"""What accumulators take, of which a weight update of one micro-batch has none: estimates.

Such a program adds no gradients up: each operator of its weight update that reads one brings it to
where its weight is. With accumulators, a gradient goes there once, and is added to what is there.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from ipuscope.planner.costs.all_reduce import gradient_bytes
from ipuscope.planner.costs.machine_costs import MachineCosts
from ipuscope.planner.costs.profile_columns import Variables, sum_by
from ipuscope.profiler.enums import Direction, Purpose, Role
from ipuscope.profiler.file import records
from ipuscope.profiler.file.bounds import rows_of
from ipuscope.profiler.report import Report

_ADDS, _CLEARS = "aten.add_.Tensor", "aten.zero_.default"


@dataclass(frozen=True)
class Accumulating:
    """What changes from one micro-batch on, or back to one.

    Cycles of a backward and of the update, int64[Block], and bytes, int64[Block, tile].
    """

    backward: np.ndarray
    update: np.ndarray
    nbytes: np.ndarray
    has: bool  # the profile has accumulators

    @classmethod
    def from_report(cls, report: Report, blocks: int) -> Accumulating | None:
        """None of inference."""
        if report.imported or report.meta["kind"] != "training":
            return None
        roles = report.file.table(records.Variable)
        has = roles.equals("role", Role.ACCUMULATOR).any()
        return cls._taken_off(report, blocks) if has else cls._put_on(report, blocks)

    @classmethod
    def _put_on(cls, report: Report, blocks: int) -> Accumulating:
        """Adding takes what the least operator takes that brings a gradient for its update.

        Clearing takes what the shortest computes. Off the chip, accumulators come and go each time.
        """
        ops, steps = report.file.table(records.Op), report.sequence
        op, cycles = map(steps.steps_in_order, ("op", "cycles"))
        of_update = steps.steps_with("direction", Direction.UPDATE) & (op >= 0)
        of_update &= steps.steps_with("purpose", Purpose.OPERATOR)
        computes = steps.steps_with("kind", "compute")
        count = int(ops["id"].max(initial=-1)) + 1
        kinds = of_update & computes, of_update & ~computes
        works, brings = (np.bincount(op[some], cycles[some], count) for some in kinds)
        by_weight: dict[tuple[int, str], list[tuple[float, float]]] = {}
        rows = ops.equals("direction", Direction.UPDATE) & (ops["block"] >= 0)
        of_rows = (ops[name][rows].tolist() for name in ("id", "block", "name"))
        for number, block, name in zip(*of_rows, strict=True):
            weight = block, name.rpartition("/update/")[0]
            by_weight.setdefault(weight, []).append((works[number], brings[number]))
        backward, update = np.zeros((2, blocks), dtype=np.int64)
        for (block, _), each in by_weight.items():
            bringing = [one for one in each if one[1]]
            backward[block] += int(min(map(sum, bringing or each)))
            update[block] += int(min(each)[0] - sum(brought for _, brought in bringing))
        if report.options.get("TensorLocations.locationAccumulator.onChipStorage") is not False:
            return cls(backward, update, _accumulators(report, blocks), has=False)
        number = np.bincount([block for block, _ in by_weight], minlength=blocks)
        machine, nbytes = MachineCosts.from_report(report), gradient_bytes(report, blocks)
        moved = np.rint(machine.offload_cycles(nbytes, number)).astype(np.int64)
        return cls(backward + moved, update + moved, np.zeros((blocks, 1), int), has=False)

    @classmethod
    def _taken_off(cls, report: Report, blocks: int) -> Accumulating:
        """Adding, clearing, and moves off the chip, which gradients need not; as many bytes.

        What brought a gradient to be added brings it to each operator of the update.
        """
        ops, steps = report.file.table(records.Op), report.sequence
        uses, variables = report.file.table(records.Use), report.file.table(records.Variable)
        chosen = variables.equals("role", Role.ACCUMULATOR)
        row = rows_of(uses["variable"], variables["id"][chosen])
        weights = variables["parameter"][chosen][row[row >= 0]].tolist()
        users = dict(zip(uses["op"][row >= 0].tolist(), weights, strict=True))
        of_update, clears, adds = (
            ops.equals(*one)
            for one in (("direction", Direction.UPDATE), ("aten", _CLEARS), ("aten", _ADDS))
        )
        reading = np.intersect1d(ops["id"][of_update & ~clears], [*users]).tolist()
        readers = Counter(users[op] for op in reading)
        op, block, cycles, tensor = map(steps.steps_in_order, ("op", "block", "spent", "tensor"))
        backward = steps.steps_with("direction", Direction.BACKWARD)
        moves = steps.steps_with("purpose", Purpose.REMOTE_LOAD, Purpose.REMOTE_STORE)
        gone = np.intersect1d(ops["id"][np.where(of_update, clears, adds)], [*users])
        theirs = np.isin(op, gone) & ~moves
        computes = theirs & steps.steps_with("kind", "compute")

        def of(mask: np.ndarray, times: ArrayLike = 1) -> np.ndarray:
            return sum_by(block[mask], cycles[mask] * times, blocks)

        brings = theirs & ~computes & backward
        more = [readers[users[one]] - 1 for one in op[brings].tolist()]
        moved = of(moves & backward & np.isin(tensor, variables["tensor"][chosen]))  # twice
        update = of(brings, more) - of(computes & ~backward) - moved
        backward_of = -of(computes & backward) - moved
        return cls(backward_of, update, np.zeros((blocks, 1), int), has=True)


def _accumulators(report: Report, blocks: int) -> np.ndarray:
    """Where the weights that have gradients are, in float32."""
    variables, table = Variables.of(report), report.file.table(records.Variable)
    trained = variables.parameter[variables.role == Role.GRADIENT]
    chosen = (variables.role == Role.WEIGHT) & np.isin(variables.parameter, trained)
    weights = variables.where(chosen)
    halves = weights.where(np.isin(weights.id, table["id"][table.equals("dtype", "float16")]))
    return weights.bytes_by(weights.block, blocks) + halves.bytes_by(halves.block, blocks)
