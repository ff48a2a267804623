"""Why a split cannot be better, and why none fits: what stands in the way, with numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from profiler.rebalance.bands import depth_of
from profiler.rebalance.costs import Costs
from profiler.rebalance.room import Choice, Part, ipu_bytes, room


def does_not_fit(costs: Costs, stages: int, choices: Sequence[Choice], together: Sequence[Sequence[int]] = ()) -> str:
    """A sentence about the first Blocks that no stage can hold.

    A single Block that overflows wherever it is; else how far each stage gets at the most from the one before, until
    Blocks are left over; else that Blocks which must be together are not.
    """
    count, limit = len(costs), costs.bytes_per_tile
    lead = f"no split of {count} Blocks into {stages} stages fits: "

    def over(first: int, last: int, depth: int) -> int:
        return min(int(ipu_bytes(costs, [Part(first, last, depth, choice)]).max()) for choice in choices) - limit

    last_depth = depth_of(costs, stages, stages - 1)
    alone = np.array([over(b, b, last_depth) for b in range(count)])
    if (alone > 0).any():
        block = int(alone.argmax())
        return f"{lead}Block {costs.names[block]} alone takes {alone[block]:,} bytes more than a tile has"
    # Blocks at which the stages so far may end, each stage as full as it may be.
    ends = np.zeros(count, dtype=bool)
    came = -1
    rooms = [room(costs, count, choice) for choice in choices]
    first, width = np.nonzero(np.arange(count)[:, None] + np.arange(count)[None, :] < count)
    for k in range(stages):
        depth = depth_of(costs, stages, k)
        fits = np.logical_or.reduce([one.fullest(depth) <= limit for one in rooms])[first, width]
        begins = first == 0 if k == 0 else ends[first - 1] & (first > 0)
        after = np.zeros(count, dtype=bool)
        after[(first + width)[fits & begins]] = True
        if not after.any():
            at = min(came + 1, count - 1)
            return (
                f"{lead}stage {k} can begin at Block {costs.names[at]} at the furthest, and overflows by "
                f"{max(0, over(at, at, depth)):,} bytes with that alone, as it stashes {depth} micro-batches: use "
                "fewer stages, or save memory (--recompute, --offload)"
            )
        ends, came = after, int(np.flatnonzero(after).max())
    if not ends[count - 1]:
        left = ", ".join(costs.names[came + 1 :][:3]) + (", ..." if count - came - 1 > 3 else "")
        return f"{lead}filled to the brim they reach Block {costs.names[came]}, and {left} is left: use more stages"
    if together:
        return f"{lead}not with the Blocks together that must be on one IPU"
    return f"{lead}no cut that keeps the first stages small enough leaves so few Blocks to the last"
