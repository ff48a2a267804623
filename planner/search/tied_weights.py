"""Moving the readers of tied weights to the IPU that has the weight."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ipuscope.planner.costs.profile_costs import Costs
from ipuscope.planner.predict.what_if import Assignment


def back_home(costs: Costs, present: Assignment) -> Iterator[Assignment]:
    """For each tied weight that travels, the split that reads it on the IPU that has it."""
    for blocks in costs.cuts.ties.blocks:
        together = with_reader_home(present, costs.stage.tolist(), blocks[0], blocks[-1])
        if together is not None:
            yield together


def with_reader_home(
    present: Assignment, stage: list[int], home: int, reader: int
) -> Assignment | None:
    """The split with a stage from ``reader`` on at ``home``; None: it is there, or not last."""
    ipu = present.ipus[stage[home]]
    if stage[reader] != len(present.starts) - 1 or present.ipus[-1] == ipu:
        return None
    if reader == present.starts[-1]:
        return replace(present, ipus=(*present.ipus[:-1], ipu), choices=())
    starts, ipus = (*present.starts, reader), (*present.ipus, ipu)
    return replace(present, starts=starts, ipus=ipus, choices=())
