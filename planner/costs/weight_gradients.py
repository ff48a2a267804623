"""The part of each Block's backward that makes gradients of weights, and may wait."""

from __future__ import annotations

import numpy as np

from ipuscope.planner.costs.profile_columns import rows_of_uses, sum_by
from ipuscope.profiler.enums import Direction, Purpose, Role
from ipuscope.profiler.file import records
from ipuscope.profiler.file.bounds import rows_of
from ipuscope.profiler.report import Report

# Steps of an operator that makes both gradients, behind its name (lowering/products/conv.py).
_OF_WEIGHTS = ("/grad weight/", "/grad bias/")


def weight_gradient_cycles(report: Report, blocks: int) -> np.ndarray:
    """Cycles of a micro-batch's backward that only accumulators wait for: int64[Block].

    Backward operators that add to accumulators, and those of the same Block whose results only
    these read (all of the first Block's: nobody waits for its inputs' gradients); of an operator
    that makes gradients of inputs too, the steps that the lowering named so.
    """
    ops = report.file.table(records.Op)
    backward = ops.equals("direction", Direction.BACKWARD)
    late = _only_for_accumulators(report, ops["id"], backward)
    op, block, cycles = map(report.sequence.steps_in_order, ("op", "block", "spent"))
    row = rows_of(op, ops["id"])
    steps = report.sequence.steps_with("direction", Direction.BACKWARD) & (row >= 0)
    steps = steps & report.sequence.steps_with("purpose", Purpose.OPERATOR)
    convolves = np.array([name.endswith("convolution_backward.default") for name in ops["aten"]])
    at = np.flatnonzero(steps & convolves[row.clip(0)])
    names = report.sequence.steps_in_order("name")
    own = np.array([any(one in names[i] for one in _OF_WEIGHTS) for i in at.tolist()], dtype=bool)
    chosen = steps & late[row.clip(0)]
    chosen[at[own]] = True
    return sum_by(block[chosen], cycles[chosen], blocks)


def _only_for_accumulators(report: Report, ids: np.ndarray, backward: np.ndarray) -> np.ndarray:
    """Whether each operator is a backward one whose results reach only its Block's accumulators."""
    variables = report.file.table(records.Variable)
    variables.read("id", "op", "role", "tensor")
    used, by = rows_of_uses(report)
    adds = np.zeros(len(ids), dtype=bool)
    adds[by[variables.equals("role", Role.ACCUMULATOR)[used]]] = True
    adds &= backward
    ops = report.file.table(records.Op)
    cycles, block = ops["cycles"], ops["block"]
    gradient = variables.equals("role", Role.GRADIENT)[used]
    maker = rows_of(variables["op"], ids)[used]
    reads = gradient & (maker >= 0) & (maker != by) & (cycles[by] > 0)  # views read nothing
    readers: dict[int, list[int]] = {}
    for made, reader in zip(maker[reads].tolist(), by[reads].tolist(), strict=True):
        readers.setdefault(made, []).append(reader)
    late = adds.copy()
    for row in np.argsort(ids)[::-1].tolist():
        own = readers.get(row, []) if backward[row] else []
        late[row] |= bool(own) and all(late[one] and block[one] == block[row] for one in own)
    return late
