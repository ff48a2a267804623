"""Where no split fits: the nearest one, and the first Blocks that no stage can hold."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import partial

import numpy as np

from ipuscope.planner.costs.memory_choice import Choice
from ipuscope.planner.costs.profile_costs import Costs
from ipuscope.planner.costs.tile_memory import Part, ipu_bytes, passing_alone
from ipuscope.planner.predict.interval_costs import Rows, depth_of, least_maximum, memory_of_all
from ipuscope.planner.predict.memory_verdict import Answer
from ipuscope.planner.predict.what_if import Assignment, memory_of
from ipuscope.profiler import units

_ROUNDS = 200  # of moves of one cut by one Block
_ROOM = (1.1, 1.5, 4.0, 1e6)  # times a tile, up to which the smallest split is looked for


class NoneFits(ValueError):
    """No split fits; its argument says why, which is worked out where somebody reads it."""

    def __str__(self) -> str:
        return str(self.args[0]())


def surely_none_fits(costs: Costs, stages: int, choices: Sequence[Choice]) -> bool:
    """Whether stages of their own IPUs are full of what is always there before all Blocks have one.

    Each stage gets as many Blocks as it can have at most, so that no table of stages is needed.
    """
    count, memory, machine = len(costs), costs.memory, costs.machine
    always = memory.always if any(one.offload for one in choices) else memory.always + memory.state
    total = np.concatenate([np.zeros_like(always[:1]), np.cumsum(always, axis=0)])
    room = machine.bytes_per_tile - memory.shared - memory.least_residual

    def full(first: int, end: int) -> bool:
        too_much = bool((total[end] - total[first] > room).any())
        return too_much or memory.region0.surely_beyond(slice(first, end), machine)

    end = 0
    for _ in range(stages):
        first = end
        end += bisect_left(range(first + 1, count + 1), True, key=partial(full, first))
        if end == count:
            return False
    return True


def nearest(costs: Costs, ipus: Sequence[int]) -> Assignment:
    """The split over these IPUs with the smallest fullest tile that was found.

    One stage an IPU, it is the smallest of all with memory saved as profiled. Where IPUs come
    again, cuts of equal numbers of Blocks move by one while the fullest tile shrinks (a local
    search).
    """
    count, stages = len(costs), len(ipus)
    if not 1 <= stages <= count:
        raise ValueError(f"{count} Blocks cannot fill {stages} stages")
    even = tuple(k * count // stages for k in range(stages))
    starts = [even]
    if tuple(ipus) == costs.ipus and costs.measured:
        starts.append(tuple(costs.stage.tolist().index(k) for k in range(stages)))
    if len(set(ipus)) == stages:
        starts.append(_least_full(costs, stages))
    best = min((Assignment(start, tuple(ipus)) for start in starts), key=lambda a: _full(costs, a))
    for _ in range(_ROUNDS):
        near = _with_other_fullest(costs, best)
        moved = min(near, key=lambda a: _full(costs, a), default=best)
        if _full(costs, moved) >= _full(costs, best):
            break
        best = moved
    return best


def _with_other_fullest(costs: Costs, now: Assignment) -> list[Assignment]:
    """With a cut moved by a Block, of those around stages of the fullest IPU: that has to fall."""
    worst = max(memory_of(costs, now), key=lambda one: one.nbytes).ipu
    there = np.array([*now.ipus, -1]) == worst
    cuts = np.flatnonzero(there[:-1] | np.roll(there, 1)[:-1])
    starts = np.array(now.starts)
    return [
        one
        for one in now.neighbours(len(costs))
        if (np.array(one.starts)[cuts] != starts[cuts]).any()
    ]


def _least_full(costs: Costs, stages: int) -> tuple[int, ...]:
    """Where stages begin so that the fullest tile of all is smallest, one stage an IPU."""
    limit = costs.machine.bytes_per_tile
    for more in _ROOM:
        roomy = costs.with_tile_bytes(int(limit * more))
        memory = memory_of_all(roomy, costs.own_choice)
        sizes = [memory.fullest(depth_of(costs, stages, k)) for k in range(stages)]

        def fullest(k: int, rows: Rows, sizes: list[np.ndarray] = sizes) -> np.ndarray:
            return sizes[k][rows]

        best = least_maximum(fullest, stages)
        # what holds more than the roomy tile has was not all looked at
        if best is not None and (best[0] <= roomy.machine.bytes_per_tile or more == _ROOM[-1]):
            return best[1]
    raise AssertionError  # every split has a fullest tile


def nearest_in_words(costs: Costs, ipus: Sequence[int]) -> str:
    """The nearest split, where and by how much it does not fit: the end of a sentence.

    Empty where memory is not the obstacle. `ipuscope.planner.advice.relief.way_to_fit` says what
    would make it fit.
    """
    if not 1 <= len(ipus) <= len(costs):
        return ""
    near = nearest(costs, ipus)
    worst = min(memory_of(costs, near), key=lambda one: one.free)
    if worst.answer is not Answer.OVER:
        return ""
    return f". The nearest, {units.folded(near.named(len(costs)))}: IPU {worst.ipu} {worst}"


def _full(costs: Costs, assignment: Assignment) -> int:
    return max(one.nbytes for one in memory_of(costs, assignment))


def does_not_fit(
    costs: Costs, stages: int, choices: Sequence[Choice], together: Sequence[Sequence[int]] = ()
) -> str:
    """A sentence about the first Blocks that no stage can hold.

    A single Block that overflows anywhere; else how far each stage gets at most from the one
    before, until Blocks are left over; else that Blocks which must be together are not.
    """
    count, limit = len(costs), costs.machine.bytes_per_tile
    lead = f"no split of {count} Blocks into {units.count(stages, 'stage')} fits: "

    def over(first: int, last: int, depth: int) -> int:
        (passing,) = passing_alone(costs, np.array([first]), np.array([last]))
        parts = [Part(first, last, depth, choice) for choice in choices]
        return min(int(ipu_bytes(costs, [part], passing).max()) for part in parts) - limit

    last_depth = depth_of(costs, stages, stages - 1)
    alone = np.array([over(b, b, last_depth) for b in range(count)])
    if (alone > 0).any():
        block = int(alone.argmax())
        return (
            f"{lead}Block {costs.names[block]} alone takes {alone[block]:,} bytes more than a"
            " tile has"
        )
    # Blocks at which the stages so far may end, each stage as full as it may be.
    ends = np.zeros(count, dtype=bool)
    came = -1
    memories = [memory_of_all(costs, choice) for choice in choices]
    first, width = np.nonzero(np.arange(count)[:, None] + np.arange(count)[None, :] < count)
    for k in range(stages):
        depth = depth_of(costs, stages, k)
        fits = np.logical_or.reduce([one.fullest(depth) <= limit for one in memories])[first, width]
        begins = first == 0 if k == 0 else ends[first - 1] & (first > 0)
        after = np.zeros(count, dtype=bool)
        after[(first + width)[fits & begins]] = True
        if not after.any():
            at = min(came + 1, count - 1)
            return (
                f"{lead}stage {k} can begin at Block {costs.names[at]} at the furthest, and"
                f" overflows by {max(0, over(at, at, depth)):,} bytes with that alone, as it"
                f" stashes {depth} micro-batches: use fewer stages, or save memory (--recompute,"
                " --offload)"
            )
        ends, came = after, int(np.flatnonzero(after).max())
    if not ends[count - 1]:
        left = ", ".join(costs.names[came + 1 :][:3]) + (", ..." if count - came - 1 > 3 else "")
        return (
            f"{lead}filled to their limit they reach Block {costs.names[came]}, without room for"
            f" {left}: use more stages"
        )
    if together:
        return f"{lead}not with the Blocks together that must be on one IPU"
    return f"{lead}no cut that keeps the first stages small enough leaves so few Blocks to the last"
