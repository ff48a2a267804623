"""Splits whose stages come back to an IPU, like public BERT's 0, 1, 2, 3, 0.

An IPU's cycles are then those of all its stages, and its memory holds them all, so that a split is
no chain of independent stages. The search goes stage by stage and remembers, besides where it is,
the stages of IPUs that will be met again: of ways that agree in these only the best goes on, which
is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from profiler.rebalance.costs import Costs
from profiler.rebalance.interval_costs import depth_of
from profiler.rebalance.tile_memory import Choice, Part, ipu_bytes
from profiler.rebalance.what_if import Assignment, stage_cycles


@dataclass(frozen=True)
class _Way:
    """A split of the first Blocks: ``worst`` of the IPUs that are done, and the stages so far."""

    worst: int
    parts: tuple[Part, ...]


def least_bottleneck_returning(
    costs: Costs,
    ipus: Sequence[int],
    choices: Sequence[Choice],
    most: int,
    together: Sequence[Sequence[int]] = (),
    memory: bool = True,
) -> tuple[int, Assignment] | None:
    """The least cycles of the busiest IPU per micro-batch, and a split that has them.

    Only if they are at most ``most``.

    ``ipus``: of each stage. ``together``: groups of Blocks that must be on one IPU. None where
    there is none.
    """
    count, stages = len(costs), len(ipus)
    fits: dict[tuple[Part, ...], bool] = {}
    length: dict[tuple[Part, bool], int] = {}
    # What is open: for each IPU that comes again, its stages so far.
    Open = tuple[tuple[int, tuple[Part, ...]], ...]
    ways: dict[tuple[int, Open], _Way] = {(0, ()): _Way(0, ())}

    def cycles(part: Part, final: bool) -> int:
        if (part, final) not in length:
            length[part, final] = sum(stage_cycles(costs, part, final))
        return length[part, final]

    def holds(parts: tuple[Part, ...]) -> bool:
        if not memory:
            return True
        if parts not in fits:
            fits[parts] = int(ipu_bytes(costs, parts).max()) <= costs.bytes_per_tile
        return fits[parts]

    def whole(parts: tuple[Part, ...]) -> bool:
        """Groups are on this IPU with all of their Blocks, or with none."""
        return all(
            sum(part.first <= block <= part.last for part in parts for block in set(group))
            in (0, len(set(group)))
            for group in together
        )

    for k, ipu in enumerate(ipus):
        again, final = ipu in ipus[k + 1 :], k == stages - 1
        after: dict[tuple[int, Open], _Way] = {}
        depth = depth_of(costs, stages, k)
        for (begin, opened), way in ways.items():
            earlier = next((parts for where, parts in opened if where == ipu), ())
            spent = sum(cycles(part, False) for part in earlier)
            others = tuple(item for item in opened if item[0] != ipu)
            ends = [count - 1] if final else range(begin, count - (stages - 1 - k))
            for choice in choices:
                for last in ends:
                    part = Part(begin, last, depth, choice)
                    total = spent + cycles(part, final)
                    if total > most:
                        break
                    mine = (*earlier, part)
                    if again:
                        key = (
                            last + 1,
                            tuple(sorted((*others, (ipu, mine)), key=lambda item: item[0])),
                        )
                        worst = way.worst
                    else:
                        if total >= _worst(after.get((last + 1, others))) or not whole(mine):
                            continue
                        key, worst = (last + 1, others), max(way.worst, total)
                    if worst < _worst(after.get(key)) and holds(mine):
                        after[key] = _Way(worst, (*way.parts, part))
        ways = after
    done = ways.get((count, ()))
    if done is None:
        return None
    chosen = tuple(part.choice for part in done.parts)
    own = (Choice.profiled(costs),) * stages
    starts = tuple(part.first for part in done.parts)
    return done.worst, Assignment(starts, tuple(ipus), () if chosen == own else chosen)


def _worst(way: _Way | None) -> int:
    return way.worst if way is not None else int(np.iinfo(np.int64).max)
