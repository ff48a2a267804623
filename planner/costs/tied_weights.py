"""Tied weights: which Block makes their gradients, and where the weight's IPU adds them.

At once if the Block that makes it is on that IPU, else after it has travelled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ipuscope.planner.costs.cuts import Ties
from ipuscope.planner.costs.profile_columns import Variables, none, rows_of_uses, sum_by
from ipuscope.profiler.enums import Direction, Role
from ipuscope.profiler.file import records
from ipuscope.profiler.file.bounds import rows_of
from ipuscope.profiler.report import Report

_STEPS_OF_ADDITION = 3  # the product's last, an exchange, the addition
_ADD = "aten.add_.Tensor"  # of rows to a table it is another operator, the embedding's own
_MADE = (Role.ACTIVATION, Role.GRADIENT)


@dataclass(frozen=True)
class TiedGradients:
    """One entry for each part of a gradient that is added by itself: int64[part]."""

    home: np.ndarray = field(default_factory=none)  # the Block that has the weight
    reader: np.ndarray = field(default_factory=none)  # the Block that makes the gradient
    tensor: np.ndarray = field(default_factory=none)  # id
    cycles: np.ndarray = field(default_factory=none)  # of its addition
    added_by: np.ndarray = field(default_factory=none)  # the Block that the profile counts it to

    def __len__(self) -> int:
        return len(self.home)

    @classmethod
    def from_report(cls, report: Report, ties: Ties) -> TiedGradients:
        """From the operators that write a tied weight's accumulator."""
        if not len(ties):
            return cls()
        ops, variables = map(report.file.table, (records.Op, records.Variable))
        row, op = rows_of_uses(report)
        home_of = dict(zip(ties.tensors, (blocks[0] for blocks in ties.blocks), strict=True))
        add = ops.equals("direction", Direction.BACKWARD) & ops.equals("aten", _ADD)
        adds = add[op] & variables.equals("role", Role.ACCUMULATOR)[row]
        adds &= np.isin(variables["parameter"][row], ties.tensors)
        weights = variables["parameter"][row[adds]].tolist()
        weight_of = dict(zip(op[adds].tolist(), weights, strict=True))
        block = variables["block"][row]
        made_as = np.logical_or.reduce([variables.equals("role", one) for one in _MADE])
        made = np.isin(op, list(weight_of)) & made_as[row] & (block >= 0)
        travels: dict[int, tuple[int, int, int]] = {}
        columns = (op[made], variables["tensor"][row[made]], block[made])
        for by, tensor, reader in zip(*(one.tolist() for one in columns), strict=True):
            home = home_of[weight_of[by]]
            if reader != home and tensor >= 0:
                travels[tensor] = home, reader, by
        if not travels:
            return cls()
        homes, readers, added = (np.array(column) for column in zip(*travels.values(), strict=True))
        spent = sum_by(
            rows_of(report.sequence.steps_in_order("op"), ops["id"]),
            report.sequence.steps_in_order("spent"),
            len(ops["id"]),
        )
        return cls(homes, readers, np.array(list(travels)), spent[added], ops["block"][added])

    def at_home(self, backward: np.ndarray) -> np.ndarray:
        """Cycles of the Blocks' backward, int64[Block], with additions in the weights' Blocks."""
        moved = backward.copy()
        np.subtract.at(moved, self.added_by, self.cycles)
        np.add.at(moved, self.home, self.cycles)
        return moved

    def elsewhere(self, variables: Variables, ipu_of: np.ndarray) -> np.ndarray:
        """bool[variable]: these gradients, on other IPUs than made them. ``ipu_of``: of Blocks."""
        row = rows_of(variables.tensor, self.tensor)
        made_on = ipu_of[self.reader[row.clip(0)]] if len(self) else variables.ipu
        return (row >= 0) & (variables.ipu != made_on)

    def added_at_once(self, variables: Variables) -> Variables:
        """The variables, each gradient only as long as it is until it is added on its own IPU."""
        ours = np.isin(variables.tensor, self.tensor)
        soon = np.minimum(variables.stop, variables.start + _STEPS_OF_ADDITION)
        return replace(variables, stop=np.where(ours, soon, variables.stop))

    def where_they_run(
        self, backward: Sequence[int], stage: Sequence[int], ipus: Sequence[int]
    ) -> tuple[int, ...]:
        """Cycles of stages' backward, where each adds its own gradients if on the weight's IPU.

        ``backward``: with additions in the weights' Blocks; ``stage``: of each Block; ``ipus``: of
        stages.
        """
        cycles = list(backward)
        columns = (self.home, self.reader, self.cycles)
        for home, reader, spent in zip(*(one.tolist() for one in columns), strict=True):
            if ipus[stage[home]] == ipus[stage[reader]]:
                cycles[stage[home]] -= spent
                cycles[stage[reader]] += spent
        return tuple(cycles)


# -- The weights, and their layout on the tiles ---


@dataclass(frozen=True)
class SharedWeight:
    """A weight that several Blocks share; its copy ends in the last operator that reads it."""

    blocks: tuple[int, ...]  # that read it
    variables: np.ndarray  # ids, on all IPUs
    nbytes: np.ndarray  # by tile
    ends: Mapping[int, int] = field(default_factory=dict)  # IPU -> end; none at home

    @classmethod
    def all_of(cls, variables: Variables, ties: Ties | None) -> list[SharedWeight]:
        """All shared weights of a profile."""
        weights = []
        pairs = zip(ties.blocks, ties.tensors, strict=True) if ties is not None else ()
        for blocks, tensor in pairs:
            copies = np.flatnonzero((variables.role == Role.WEIGHT) & (variables.tensor == tensor))
            largest = copies[variables.nbytes[copies].argmax()]
            vector = variables.vectors[variables.vector[largest]]
            ends: dict[int, int] = {}
            for row in copies[~variables.always[copies] & (variables.start[copies] == 0)].tolist():
                ipu, end = int(variables.ipu[row]), int(variables.stop[row])
                ends[ipu] = max(end, ends.get(ipu, 0))
            weights.append(cls(blocks, variables.id[copies], vector, ends))
        return weights


def copies_of_ties(variables: Variables, ties: Ties | None) -> np.ndarray:
    """bool[variable]: copies of tied weights on stages that read, or pass on, another IPU's."""
    tensors = ties.tensors if ties is not None else ()
    tied: np.ndarray = np.isin(variables.tensor, tensors)
    return tied & (variables.role == Role.WEIGHT) & ~variables.always
