"""Weights that several Blocks share, and their layout on the tiles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from ipuscope.planner.costs.cuts import Ties
from ipuscope.planner.costs.profile_columns import Variables
from ipuscope.profiler.enums import Role


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
