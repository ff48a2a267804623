"""Weights that Blocks share, as the tiles have them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from profiler.enums import Role
from profiler.rebalance.cuts import Ties
from profiler.rebalance.profile_columns import Variables


@dataclass(frozen=True)
class SharedWeight:
    """The Blocks that read a weight, the ids of its variables on all IPUs, its bytes by tile."""

    blocks: tuple[int, ...]
    variables: np.ndarray
    nbytes: np.ndarray

    @classmethod
    def all_of(cls, variables: Variables, ties: Ties | None) -> list[SharedWeight]:
        """Of a profile."""
        found = []
        pairs = zip(ties.blocks, ties.tensors, strict=True) if ties is not None else ()
        for blocks, tensor in pairs:
            mine = np.flatnonzero((variables.role == Role.WEIGHT) & (variables.tensor == tensor))
            largest = mine[variables.nbytes[mine].argmax()]
            vector = variables.vectors[variables.vector[largest]]
            found.append(cls(blocks, variables.id[mine], vector))
        return found


def copies_of_ties(variables: Variables, ties: Ties | None) -> np.ndarray:
    """The copies of tied weights on stages that read one of another IPU's, or pass it on.

    bool[variable]
    """
    tensors = ties.tensors if ties is not None else ()
    mine: np.ndarray = np.isin(variables.tensor, tensors)
    return mine & (variables.role == Role.WEIGHT) & ~variables.always
