"""How much accumulation makes the ramps small, and which micro-batch that leaves."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

from ipuscope.planner.costs.profile_costs import Costs
from ipuscope.planner.predict.what_if import Assignment, what_if
from ipuscope.profiler.timeline import schedules


@dataclass(frozen=True)
class Accumulation:
    """The least gradient accumulation that keeps the ramps' share of the time.

    In inference it is the least number of device iterations.

    ``lost``: cycles that ramps and the weight update take, whatever the accumulation; ``cycle``: a
    pipeline cycle in steady state. ``micro_batch``: the largest that divides a batch of as many
    samples as were profiled and reaches it, with ``of_batch`` of them; 0 where none does.
    """

    micro_batches: int
    lost: int
    cycle: int
    micro_batch: int
    of_batch: int


def least_accumulation(costs: Costs, assignment: Assignment, share: float) -> Accumulation:
    """The least number G of micro-batches with at most ``share`` of a weight update lost to ramps.

    From as many as a pipeline needs on, an update takes G x cycle + lost: so G >= lost (1 - share)
    / (share cycle). A stage's imbalance is no ramp: it stays, whatever G. A smaller micro-batch is
    taken to cost each stage as much (an upper bound), so that of a batch only the number of
    micro-batches counts. ValueError unless 0 < share < 1, or where stages take turns.
    """
    if not 0 < share < 1:
        raise ValueError(f"a bubble is a share between 0 and 1, not {share}")
    if not costs.pipelined:
        raise ValueError("the stages take turns: there are no ramps to make small")
    least = schedules.pipeline_stages(len(assignment.starts), costs.training)
    one = what_if(replace(costs, micro_batches=least), assignment).total
    cycle = what_if(replace(costs, micro_batches=least + 1), assignment).total - one
    lost = one - least * cycle
    wanted = max(least, ceil(round(lost * (1 - share) / (share * max(1, cycle)), 9)))
    batch = costs.samples * costs.micro_batches
    largest = min(costs.samples, batch // wanted)
    size = next((size for size in range(largest, 0, -1) if batch % size == 0), 0)
    return Accumulation(wanted, lost, cycle, size, batch // size if size else 0)
