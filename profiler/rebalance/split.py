"""The best contiguous split into a number of stages, and why it cannot be much better.

Interval dynamic programming finds the least bottleneck exactly for costs that depend on (stage, first Block, last
Block), under the memory of a tile; of the splits that reach it, those with the shortest copies; then neighbours of
the winner are tried with the whole schedule, since ramps and copies count too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from profiler.rebalance.costs import Costs
from profiler.rebalance.what_if import Assignment, Prediction, what_if
from profiler.schedules import stash_depth

_INFINITE = np.iinfo(np.int64).max // 4


@dataclass(frozen=True)
class Split:
    """A proposal: what it gives, what is there now, and sentences about why."""

    prediction: Prediction
    bottleneck: int  # cycles a micro-batch of the slowest stage
    lower_bound: int  # below which no split into as many stages gets
    why: tuple[str, ...]


def best_split(costs: Costs, stages: int | None = None) -> Split:
    """The best split into ``stages`` (default: as many as profiled), one an IPU.

    ValueError where there are fewer Blocks than stages, or no split fits.
    """
    count, wanted = len(costs), stages or len(costs.ipus)
    if not 1 <= wanted <= count:
        raise ValueError(f"{count} Blocks cannot fill {wanted} stages: ask for 1 to {count}, or name more Blocks")
    load, fits = intervals(costs, wanted)
    starts = least_bottleneck(np.where(fits, load, _INFINITE), np.maximum(costs.copy, costs.copy_back))
    if starts is None:
        raise ValueError(f"no split of {count} Blocks into {wanted} stages fits: " + _smallest_overflow(costs, wanted))
    assignment = _better_neighbours(costs, Assignment(starts, tuple(range(wanted))))
    prediction = what_if(costs, assignment)
    reached = int(prediction.stage_cycles.max())
    bound = lower_bound(costs, wanted)
    return Split(prediction, reached, bound, tuple(_reasons(costs, assignment, reached, bound)))


def intervals(costs: Costs, stages: int) -> tuple[np.ndarray, np.ndarray]:
    """(cycles, whether it fits) of every stage of Blocks first .. last: int64 and bool[stage, first, last]."""
    count = len(costs)
    forward, backward = (np.concatenate([[0], np.cumsum(part)]) for part in (costs.forward, costs.backward))
    own = forward[None, 1:] - forward[:-1, None]  # [first, last]
    rest = backward[None, 1:] - backward[:-1, None]
    stash = np.array([costs.stash_cycles(first) for first in range(count)])[:, None] if costs.pipelined else 0
    again = np.maximum(own + stash - costs.not_again, 0) if costs.recompute else 0
    early, final = own + stash + again + rest, own + rest
    possible = np.arange(count)[:, None] <= np.arange(count)[None, :]
    load = np.stack([np.where(possible, final if k == stages - 1 else early, _INFINITE) for k in range(stages)])
    fits = np.zeros_like(load, dtype=bool)
    for first in range(count):
        for last in range(first, count):
            room = [
                int(costs.tile_bytes(first, last, depth).max()) <= costs.bytes_per_tile
                for depth in _depths(costs, stages)
            ]
            fits[:, first, last] = room
    return load, fits & possible


def lower_bound(costs: Costs, stages: int) -> int:
    """No stage can be shorter than the largest Block, nor all of them than their share of the work."""
    work = costs.forward + costs.backward
    total = int(work.sum())
    again = int(costs.forward.sum() - costs.forward[-1]) if costs.recompute and stages > 1 else 0
    last_at_most = int(work.max())
    return max(last_at_most, -(-(total + max(0, again - _last_stage_saving(costs, stages))) // stages))


def _last_stage_saving(costs: Costs, stages: int) -> int:
    """Forward cycles that the last stage may hold at the most, which are not recomputed."""
    return int(costs.forward[stages - 1 :].sum()) if stages > 1 else 0


def _depths(costs: Costs, stages: int) -> list[int]:
    stashing = costs.training and costs.pipelined
    return [stash_depth(stages, k) if stashing else 0 for k in range(stages)]


def least_bottleneck(load: np.ndarray, crossing: np.ndarray) -> tuple[int, ...] | None:
    """First Blocks of the stages with the least maximum of ``load`` [stage, first, last]; None where none is finite.

    Among equals, the least maximum of ``crossing``, which is what goes over a cut behind each Block.
    """
    stages, count, _ = load.shape
    best = np.full((stages, count), _INFINITE)  # [stage, last]
    cut = np.full((stages, count), _INFINITE)
    came = np.zeros((stages, count), dtype=np.int64)
    best[0], cut[0] = load[0, 0], 0
    for k in range(1, stages):
        for last in range(k, count):
            first = np.arange(k, last + 1)
            worst = np.maximum(best[k - 1, first - 1], load[k, first, last])
            bytes_over = np.maximum(cut[k - 1, first - 1], crossing[first - 1])
            pick = np.lexsort((bytes_over, worst))[0]
            best[k, last], cut[k, last], came[k, last] = worst[pick], bytes_over[pick], first[pick]
    if best[-1, -1] >= _INFINITE:
        return None
    starts, last = [], count - 1
    for k in range(stages - 1, 0, -1):
        starts.append(int(came[k, last]))
        last = int(came[k, last]) - 1
    return (0, *reversed(starts))


def _better_neighbours(costs: Costs, assignment: Assignment) -> Assignment:
    """Move single cuts by one Block while that makes a weight update shorter, and it fits."""
    best, found = what_if(costs, assignment).total, assignment
    for _ in range(len(costs) * len(assignment.starts)):
        moved = False
        for k in range(1, len(found.starts)):
            for step in (-1, 1):
                starts = list(found.starts)
                starts[k] += step
                if not (starts[k - 1] < starts[k] < ([*starts, len(costs)])[k + 1]):
                    continue
                tried = Assignment(tuple(starts), found.ipus)
                prediction = what_if(costs, tried)
                fits = not any(size > costs.bytes_per_tile for size in prediction.fullest)
                if fits and prediction.total < best:
                    best, found, moved = prediction.total, tried, True
        if not moved:
            break
    return found


def _reasons(costs: Costs, assignment: Assignment, reached: int, bound: int) -> list[str]:
    largest = int((costs.forward + costs.backward).argmax())
    reasons = [f"the slowest stage takes {reached:,} cycles a micro-batch; no split gets below {bound:,}"]
    if bound == int((costs.forward + costs.backward).max()):
        reasons.append(
            f"Block {costs.names[largest]} alone takes {bound:,}: cutting inside it would be the way to get lower"
        )
    before = Assignment.of(costs.stage.tolist(), costs.ipus) if _contiguous(costs) else None
    if before is not None:
        was, now = before.stage_of(len(costs)), assignment.stage_of(len(costs))
        moves = [f"{n} to stage {b}" for n, a, b in zip(costs.names, was, now, strict=True) if a != b]
        reasons.append("moves " + ", ".join(moves) if moves else "this is the split that was profiled")
    return reasons


def _contiguous(costs: Costs) -> bool:
    stage = costs.stage.tolist()
    return stage == sorted(stage) and sorted(set(stage)) == list(range(len(costs.ipus)))


def _smallest_overflow(costs: Costs, stages: int) -> str:
    alone = [int(costs.tile_bytes(b, b, 0).max()) for b in range(len(costs))]
    largest = int(np.argmax(alone))
    over = alone[largest] - costs.bytes_per_tile
    if over > 0:
        return f"Block {costs.names[largest]} alone takes {over:,} bytes more than a tile has"
    return f"with {stages} stages some stage always overflows; more stages would make them smaller"
