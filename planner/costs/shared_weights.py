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
    """The Blocks that read a weight, the ids of its variables on all IPUs, its bytes by tile.

    ``ends``: IPU -> where its copy ends, within the operator that reads it last; none at home.
    """

    blocks: tuple[int, ...]
    variables: np.ndarray
    nbytes: np.ndarray
    ends: Mapping[int, int] = field(default_factory=dict)

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
