"""What replicas exchange before a weight update, for any split and any number of replicas.

A profile has it for its own number of replicas; others follow from Blocks' bytes and a ring.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ipuscope.planner.costs.machine_costs import MachineCosts
from ipuscope.planner.costs.profile_columns import sum_by
from ipuscope.profiler.enums import Direction, Purpose, Role
from ipuscope.profiler.file import records
from ipuscope.profiler.file.bounds import rows_of
from ipuscope.profiler.report import Report
from ipuscope.profiler.timeline.links import Span, cycles_of_levels


@dataclass(frozen=True)
class Rings:
    """The all-reduce of each IPU: ``base + rate x bytes`` cycles, rounded up."""

    base: np.ndarray  # float64[IPU]; of `ipuscope.profiler.timeline.links.ring_cycles`
    rate: np.ndarray  # float64[IPU]

    def cycles(self, nbytes: np.ndarray) -> np.ndarray:
        """All-reduce cycles of IPUs (the last axis) with this many bytes; 0 for no bytes."""
        ipus = nbytes.shape[-1]
        cycles = np.ceil(np.round(self.base[:ipus] + self.rate[:ipus] * nbytes, 6))
        return np.where(nbytes > 0, cycles, 0).astype(np.int64)

    def least(self, nbytes: np.ndarray, ipus: int) -> int:
        """A lower bound on the cycles of any split with these bytes onto this many IPUs."""
        share = max(-(-int(nbytes.sum()) // ipus), int(nbytes.max(initial=0)))
        if not share:
            return 0
        return int(np.ceil(np.round(self.base[:ipus].min() + self.rate[:ipus].min() * share, 6)))


@lru_cache(maxsize=1024)
def rings_of(machine: MachineCosts, shards: int, pipeline: int, replicas: int) -> Rings:
    """The all-reduce of gradients for each IPU of a replica (`links.ring_cycles`)."""
    apart = shards << (pipeline - 1).bit_length()  # a replica's IPUs are attached in powers of two
    spans = [Span(ipu * shards, apart, replicas) for ipu in range(pipeline)]
    unit = 1 << 30
    base, much = (
        np.array([sum(cycles_of_levels(machine, span, nbytes, 2)) for span in spans])
        for nbytes in (0, unit)
    )
    return Rings(base, (much - base) / unit)


def reduced_alone(report: Report, blocks: int) -> np.ndarray:
    """Of accumulators off the chip, which are reduced in their weights' updates: int64[3, Block].

    How many, their bytes, and the cycles of that as profiled.
    """
    variables, steps = report.file.table(records.Variable), report.sequence
    uses, ops = report.file.table(records.Use), report.file.table(records.Op)
    away = variables.equals("role", Role.ACCUMULATOR) & (variables["always_live"] == 0)
    row = rows_of(uses["variable"], variables["id"][away]) if away.any() else uses["op"] * 0 - 1
    row[~np.isin(uses["op"], ops["id"][ops.equals("direction", Direction.UPDATE)])] = -1
    read = np.flatnonzero(row >= 0)
    read = read[np.unique(variables["parameter"][away][row[read]], return_index=True)[1]]
    block = ops["block"][rows_of(uses["op"][read], ops["id"])]
    op, where, cycles = map(steps.steps_in_order, ("op", "block", "cycles"))
    alone = steps.steps_with("direction", Direction.UPDATE) & (op >= 0)
    alone &= steps.steps_with("purpose", Purpose.ALL_REDUCE)
    nbytes = variables["bytes"][away][row[read]]
    rows = (block, np.ones_like(block)), (block, nbytes), (where[alone], cycles[alone])
    return np.array([sum_by(group, values, blocks) for group, values in rows])


def gradient_bytes(report: Report, blocks: int) -> np.ndarray:
    """Bytes of each Block's weights that replicas reduce, on all tiles: int64[Block].

    These are the accumulators, or the gradients where an update has one micro-batch.
    """
    variables = report.file.table(records.Variable)
    block, nbytes = variables["block"], variables["bytes"]
    gradients = variables.equals("role", Role.ACCUMULATOR) & (block >= 0)
    if not gradients.any():
        gradients = variables.equals("role", Role.GRADIENT) & (block >= 0)
        uses, ops = report.file.table(records.Use), report.file.table(records.Op)
        updates = ops["id"][ops.equals("direction", Direction.UPDATE)]
        gradients &= np.isin(variables["id"], uses["variable"][np.isin(uses["op"], updates)])
    return sum_by(block[gradients], nbytes[gradients], blocks)
