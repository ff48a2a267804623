"""Tensors that Blocks hand on, and where they wait, stage by stage.

On a stage a tensor is live from where it is made, or from the beginning of the IPU's turn if it
comes from another IPU, until its last use there, or until the end of the turn if another IPU gets
it. This module counts what waits while other Blocks run; what Blocks touch is in their own peaks
(`ipuscope.planner.costs.block_memory`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ipuscope.planner.costs.cuts import Shared, Ties
from ipuscope.planner.costs.profile_columns import Variables, no_rows, none
from ipuscope.planner.costs.tied_weights import TiedGradients
from ipuscope.profiler.enums import Direction, Role
from ipuscope.profiler.file.bounds import rows_of
from ipuscope.profiler.lazy import cached_property

_ROLES = (Role.ACTIVATION, Role.GRADIENT, Role.INPUT)


@dataclass(frozen=True)
class Carried:
    """Arrays over tensors: the Block that makes it, int64; ``back``: in its backward, bool.

    ``touched``, bool[tensor, Block], in the same direction, with the maker; ``nbytes``,
    int64[tensor, tile]; ``tied``, bool[tensor]: gradients of tied weights, which stay where they
    are made on the weight's IPU.
    """

    maker: np.ndarray = field(default_factory=none)
    back: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=bool))
    touched: np.ndarray = field(default_factory=lambda: np.zeros((0, 0), dtype=bool))
    nbytes: np.ndarray = field(default_factory=no_rows)
    tied: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=bool))

    def __len__(self) -> int:
        return len(self.maker)

    @classmethod
    def of(
        cls,
        variables: Variables,
        used: tuple[np.ndarray, np.ndarray, np.ndarray],
        blocks: int,
        tied: TiedGradients | None = None,
    ) -> Carried:
        """``used``: tensor, direction and Block of every use; ``tied`` go to the weight's Block."""
        if tied is not None and len(tied):
            goes = tied.tensor, np.full(len(tied), Direction.BACKWARD), tied.home
            used = tuple(np.concatenate(pair) for pair in zip(used, goes, strict=True))  # type: ignore[assignment]
        largest = _largest_of_tensors(variables)
        is_carried = (
            np.isin(used[0], variables.tensor[largest]) & (used[2] >= 0) & (used[2] < blocks)
        )
        tensor, direction, block = (column[is_carried] for column in used)
        tensors, row = np.unique(tensor, return_inverse=True)
        ahead = np.zeros((len(tensors), blocks), dtype=bool)
        behind = np.zeros_like(ahead)
        for way, uses in ((Direction.FORWARD, ahead), (Direction.BACKWARD, behind)):
            here = direction == way
            uses[row[here], block[here]] = True
        back: np.ndarray = np.array(~ahead.any(axis=1), dtype=bool)
        touched: np.ndarray = np.where(back[:, None], behind, ahead)
        handed_on = touched.sum(axis=1) > 1
        touched, back = touched[handed_on], back[handed_on]
        first, last = touched.argmax(axis=1), blocks - 1 - touched[:, ::-1].argmax(axis=1)
        at = largest[rows_of(tensors[handed_on], variables.tensor[largest])]
        nbytes = variables.vectors[variables.vector[at]]
        is_tied = np.isin(tensors[handed_on], tied.tensor if tied is not None else ())
        return cls(np.where(back, last, first), back, touched, nbytes, is_tied)

    def skips(self, ties: Ties) -> tuple[tuple[Shared, ...], tuple[Shared, ...]]:
        """Activations and gradients, but tied weights', that Blocks beyond the next one read."""
        ways: tuple[list[Shared], list[Shared]] = ([], [])
        tied = [*zip(map(set, ties.blocks), ties.nbytes, strict=True)]
        for row in np.flatnonzero(~self.direct & ~self.is_tied).tolist():
            back = bool(self.back[row])
            blocks = np.flatnonzero(self.touched[row]).tolist()
            nbytes = int(self.nbytes[row].sum())
            of_weight = any(size == nbytes and users.issuperset(blocks) for users, size in tied)
            if not (back and of_weight):
                away = tuple(reversed(blocks) if back else blocks)
                ways[back].append(Shared(away, nbytes))
        return tuple(ways[0]), tuple(ways[1])

    @cached_property
    def first(self) -> np.ndarray:
        """The first Block that touches each."""
        return self.touched.argmax(axis=1) if len(self) else self.maker

    @cached_property
    def last(self) -> np.ndarray:
        """The last Block that touches each."""
        count = self.touched.shape[1]
        return count - 1 - self.touched[:, ::-1].argmax(axis=1)

    @cached_property
    def touches_before(self) -> np.ndarray:
        """How many Blocks before each touch a tensor: int64[tensor, Block + 1]."""
        before = np.zeros((len(self), self.touched.shape[1] + 1), dtype=np.int64)
        np.cumsum(self.touched, axis=1, out=before[:, 1:])
        return before

    @cached_property
    def over_each_cut(self) -> tuple[np.ndarray, np.ndarray]:
        """Bytes handed only to the next Block, forward and back: int64[first Block, tile]."""
        totals = np.zeros((2, self.touched.shape[1], self.nbytes.shape[1]), dtype=np.int64)
        direct = self.direct
        ways = self.back[direct].astype(np.int64)
        np.add.at(totals, (ways, self.first[direct]), self.nbytes[direct])
        return totals[0], totals[1]

    def waiting_ones(self, back: bool) -> np.ndarray:
        """Which tensors may wait for Blocks that do not touch them, in the forward or backward."""
        return self._waiting_ones[back]

    @cached_property
    def _waiting_ones(self) -> tuple[np.ndarray, np.ndarray]:
        forward, backward = (np.flatnonzero(~self.direct & (self.back == b)) for b in (False, True))
        return forward, backward

    @cached_property
    def direct(self) -> np.ndarray:
        """Whether each tensor goes only from a Block to the next one."""
        return np.asarray(self.last - self.first == 1) & ~self.is_tied

    @property
    def is_tied(self) -> np.ndarray:
        """``tied``, or that none is where it is not known: bool[tensor]."""
        return self.tied if len(self.tied) else np.zeros(len(self), dtype=bool)

    def stays(
        self,
        some: np.ndarray,
        here: np.ndarray | None,
        first: np.ndarray,
        last: np.ndarray | None = None,
    ) -> np.ndarray:
        """Whether each of ``some`` is added where it is made: bool[tensor, stage].

        On an IPU that runs the Blocks ``here``, bool[Block], or else in stages of Blocks ``first ..
        last``; where neither is known, it is not.
        """
        home, maker = self.first[some, None], self.maker[some, None]
        if here is not None:
            together = here[maker] & here[home]
        elif last is not None:
            together = (first <= home) & (maker <= last)
        else:
            together = np.zeros_like(home, dtype=bool)
        return np.asarray(self.is_tied[some, None] & together)


def _largest_of_tensors(variables: Variables) -> np.ndarray:
    """Row of the largest variable of each tensor that Blocks may hand on."""
    roles = np.logical_or.reduce([variables.role == role for role in _ROLES])
    carried_rows = np.flatnonzero(roles & (variables.tensor >= 0))
    order = carried_rows[np.argsort(variables.nbytes[carried_rows], kind="stable")][::-1]
    _, first = np.unique(variables.tensor[order], return_index=True)
    return order[first]
