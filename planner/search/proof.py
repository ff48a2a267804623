"""Why a split cannot be better, or why none fits: the limiting factors, with numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ipuscope.planner.costs.memory_choice import Choice
from ipuscope.planner.costs.profile_costs import Costs
from ipuscope.planner.costs.tile_memory import Part, ipu_bytes, passing_alone
from ipuscope.planner.predict.interval_costs import (
    INFINITE,
    IntervalCosts,
    depth_of,
    interval_costs,
    memory_of_all,
)
from ipuscope.profiler import units


@dataclass(frozen=True)
class Proof:
    """Why no split into so many stages is quicker than ``least`` cycles a micro-batch.

    Bounds that hold without looking at splits: ``largest_block`` (whole, wherever it is),
    ``even_share`` (of all work). ``endless_memory``: the least where memory were no limit. With one
    cycle less than ``least``, stages filled as far as they go reach Block ``reached`` at the
    furthest (-1: not even the first); the next one is ``stuck``, and the stage that would have to
    take it is ``stage``.
    """

    least: int
    largest_block: int
    even_share: int
    endless_memory: int
    stage: int
    reached: int
    stuck: int

    def sentences(self, names: Sequence[str]) -> list[str]:
        """The proof in words."""
        sentences = [f"no split takes less than {self.least:,} cycles a micro-batch"]
        bounds = {
            "one Block alone takes": self.largest_block,
            "an even share of all work is": self.even_share,
            "with endless memory the least would be": self.endless_memory,
        }
        sentences += [f"{words} {cycles:,}" for words, cycles in bounds.items()]
        got = (
            f"get to Block {names[self.reached]} at the furthest"
            if self.reached >= 0
            else "hold not even the first"
        )
        sentences.append(
            f"with one cycle less, stages 0 to {self.stage} {got}: Block {names[self.stuck]} is"
            " over the limit there"
        )
        return sentences


def prove(
    costs: Costs, stages: int, least: int, endless_memory: int, choices: Sequence[Choice]
) -> Proof:
    """Prove that ``least`` is the least bottleneck; ValueError where a split with less does fit."""
    count = len(costs)
    table = interval_costs(costs, range(stages), choices, max(1, least - 1))
    reach = furthest(table, least - 1)
    if reach[-1][count - 1]:
        raise ValueError(f"a split with less than {least:,} cycles a micro-batch fits")
    # The first stage at which the furthest reach leaves too few stages for the Blocks behind it.
    stage = next((k for k in range(stages) if not reach[k].any()), stages - 1)
    before = reach[stage] if reach[stage].any() or not stage else reach[stage - 1]
    reached = int(np.flatnonzero(before).max(initial=-1))
    work = costs.cycles.work
    share = -(-int(work.sum()) // stages)
    return Proof(
        least, int(work.max()), share, endless_memory, stage, reached, min(reached + 1, count - 1)
    )


def furthest(table: IntervalCosts, most: int) -> list[np.ndarray]:
    """For each stage, the Blocks where it may end if no stage up to it exceeds ``most`` cycles.

    bool[Block] each.
    """
    count, width = table.final.shape
    last = np.arange(count)[:, None] + np.arange(width)[None, :]
    reach: list[np.ndarray] = []
    for k in range(table.stages):
        load = table.load(k)
        usable = (load <= most) & (load < INFINITE)
        begins = np.zeros(count, dtype=bool)
        if k == 0:
            begins[0] = True
        else:
            begins[1:] = reach[-1][:-1]
        ends = np.zeros(count, dtype=bool)
        ends[last[usable & begins[:, None]]] = True
        reach.append(ends)
    return reach


def does_not_fit(
    costs: Costs, stages: int, choices: Sequence[Choice], together: Sequence[Sequence[int]] = ()
) -> str:
    """A sentence about the first Blocks that no stage can hold.

    A single Block that overflows wherever it is; else how far each stage gets at the most from the
    one before, until Blocks are left over; else that Blocks which must be together are not.
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
            f"{lead}filled to the brim they reach Block {costs.names[came]}, and {left} is left:"
            " use more stages"
        )
    if together:
        return f"{lead}not with the Blocks together that must be on one IPU"
    return f"{lead}no cut that keeps the first stages small enough leaves so few Blocks to the last"
