"""Weights that several Blocks share, and their layout on the tiles."""

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
        """All shared weights of a profile."""
        weights = []
        pairs = zip(ties.blocks, ties.tensors, strict=True) if ties is not None else ()
        for blocks, tensor in pairs:
            copies = np.flatnonzero((variables.role == Role.WEIGHT) & (variables.tensor == tensor))
            largest = copies[variables.nbytes[copies].argmax()]
            vector = variables.vectors[variables.vector[largest]]
            weights.append(cls(blocks, variables.id[copies], vector))
        return weights


def copies_of_ties(variables: Variables, ties: Ties | None) -> np.ndarray:
    """Copies of tied weights on stages that read another IPU's weight, or pass it on.

    bool[variable]
    """
    tensors = ties.tensors if ties is not None else ()
    tied: np.ndarray = np.isin(variables.tensor, tensors)
    return tied & (variables.role == Role.WEIGHT) & ~variables.always
