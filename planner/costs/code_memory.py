"""Code on the tiles of IPUs that run some Blocks: only region 0 can have it.

A tile whose code is beyond region 0 counts as if it were as far beyond the whole tile, so that one
number of a tile says whether it fits. The compiler's error, and `analysis.overflows`, name the
region.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ipuscope.planner.costs.machine_costs import MachineCosts


def extents(total: np.ndarray, beyond: np.ndarray, machine: MachineCosts) -> np.ndarray:
    """``total``, int64[IPU, tile], where no code is ``beyond`` region 0; else beyond the tile."""
    return np.where(beyond > 0, np.maximum(total, machine.bytes_per_tile + beyond), total)


def shared_again(users: np.ndarray) -> dict[int, list[tuple[int, int]]]:
    """Blocks and pieces that they share with an earlier Block, by how much earlier the last one is.

    ``users``, bool[piece, Block]. A stage with both Blocks has the piece once.
    """
    apart: dict[int, list[tuple[int, int]]] = {}
    for piece, which in enumerate(users):
        for before, block in pairwise(np.flatnonzero(which).tolist()):
            apart.setdefault(block - before, []).append((block, piece))
    return apart


@dataclass(frozen=True)
class CodeMemory:
    """Bytes of code, int64 over tiles; without rows, or of tiles unknown, none."""

    own: np.ndarray  # [Block, tile]: of it alone, and its calls
    users: np.ndarray  # bool[piece, Block]: who shares a piece
    pieces: np.ndarray  # [piece, tile]: once an IPU
    besides: np.ndarray  # [IPU, tile]: of no Block, as profiled
    ran: np.ndarray  # bool[IPU, Block], as profiled; other sets have the most of ``besides``
    growth: float = 1.0  # of operators that were not compiled: how many times as much it may be

    @classmethod
    def unknown(cls, blocks: int) -> CodeMemory:
        """Of Blocks whose code nobody asks for: no tiles."""
        nothing = np.zeros((blocks, 0), dtype=np.int64)
        none = np.zeros((0, blocks), dtype=bool)
        return cls(nothing, none, nothing[:0], nothing[:0], none)

    def on(self, runs: np.ndarray) -> np.ndarray:
        """Code of IPUs that run Blocks, bool[IPU, Block]: int64[IPU, tile]."""
        shared = (runs.astype(np.int64) @ self.users.T.astype(np.int64)) > 0
        code: np.ndarray = runs.astype(np.int64) @ self.own + shared.astype(np.int64) @ self.pieces
        same = (runs[:, None] == self.ran).all(axis=2)
        as_profiled = same.any(axis=1)
        code[as_profiled] += self.besides[same[as_profiled].argmax(axis=1)]
        code[~as_profiled] += self.besides.max(axis=0)
        return code

    def beyond(self, runs: np.ndarray, machine: MachineCosts) -> np.ndarray:
        """Code of IPUs that run Blocks, beyond region 0: int64[IPU, tile], all 0 where it fits."""
        if self._surely_fit(runs, machine).all():
            return np.zeros((len(runs), machine.tiles), dtype=np.int64)
        return np.maximum(0, self.on(runs) - machine.region0_bytes)

    def may_outgrow(self, runs: np.ndarray, room: np.ndarray, machine: MachineCosts) -> np.ndarray:
        """Whether `growth` may take code of IPUs that run Blocks beyond region 0 or the tile.

        ``room``, int64[IPU, tile]: free bytes, gaps included. bool[IPU].
        """
        most = machine.region0_bytes * (1 - 1 / self.growth)  # what fits then has grown by less
        surely = room.min() >= most and self._surely_fit(runs, machine, self.growth).all()
        if self.growth == 1 or surely:
            return np.zeros(len(runs), dtype=bool)
        code = self.on(runs)
        over = self.growth * code > np.minimum(machine.region0_bytes, code + room)
        return np.asarray(over.any(axis=1))

    def may_be_beyond(self, machine: MachineCosts) -> bool:
        """Whether the code of all Blocks together has no room in region 0."""
        return not self._surely_fit(np.ones((1, len(self.own)), dtype=bool), machine).all()

    def of_intervals(self, width: int, machine: MachineCosts, enough: int) -> np.ndarray:
        """`extents` of code alone, of Blocks ``first .. first + width``: int64[first, width].

        ``enough``: bytes of a tile; where all stages so long have more, longer ones count as these.
        """
        count = len(self.own)
        beyond = np.zeros((max(1, count), width), dtype=np.int64)
        if not self.may_be_beyond(machine):
            return beyond
        # a product of floats is BLAS's, and exact
        new = self.own + (self.users.T.astype(float) @ self.pieces.astype(float)).astype(np.int64)
        code, apart = np.tile(self.besides.max(axis=0), (count, 1)), shared_again(self.users)
        for step in range(min(width, count)):
            for block, piece in apart.get(step, ()):
                new[block] -= self.pieces[piece]
            code = code[: count - step]
            code += new[step:]
            more = code.max(axis=1) - machine.region0_bytes
            beyond[: len(code), step] = np.where(more > 0, machine.bytes_per_tile + more, 0)
            if machine.bytes_per_tile + int(more.min()) > enough:
                beyond[:, step + 1 :] = beyond[:, step, None]
                break
        return beyond

    def surely_beyond(self, blocks: slice, machine: MachineCosts) -> bool:
        """Whether code of these Blocks, with none of no Block, is beyond region 0."""
        shared = self.pieces[self.users[:, blocks].any(axis=1)].sum(axis=0)
        return bool((shared + self.own[blocks].sum(axis=0) > machine.region0_bytes).any())

    def _surely_fit(
        self, runs: np.ndarray, machine: MachineCosts, growth: float = 1.0
    ) -> np.ndarray:
        """Whether even the parts' fullest tiles together have room: bool[IPU]."""
        if not len(self.own):
            return np.ones(len(runs), dtype=bool)
        shared = (runs.astype(np.int64) @ self.users.T.astype(np.int64)) > 0
        most = self.besides.max(initial=0) + runs @ self.own.max(axis=1, initial=0)
        most = most + shared @ self.pieces.max(axis=1, initial=0)
        return most * growth <= machine.region0_bytes
