"""How others split a chain into stages, written anew from their description, over one weight a
Block.

None knows of recomputation, of what a cut costs, or of a tile's memory: that is what they are
compared for.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np

from ipuscope.planner.predict.what_if import Assignment


def filled(starts: Sequence[int], blocks: int) -> Assignment:
    """An assignment in which each stage has at least one Block, one stage per IPU."""
    firsts = [0]
    for k in range(1, len(starts)):
        firsts.append(min(max(starts[k], firsts[-1] + 1), blocks - (len(starts) - k)))
    return Assignment(tuple(firsts), tuple(range(len(starts))))


def uniform(blocks: int, stages: int) -> Assignment:
    """The same number of Blocks in every stage."""
    return Assignment(
        tuple(round(k * blocks / stages) for k in range(stages)), tuple(range(stages))
    )


def by_share(weight: np.ndarray, stages: int) -> Assignment:
    """Cut where the running sum passes each stage's share."""
    middle = np.cumsum(weight) - weight / 2
    stage = np.minimum((middle * stages / max(1, weight.sum())).astype(int), stages - 1)
    return filled([int(np.searchsorted(stage, k)) for k in range(stages)], len(weight))


def halved(weight: np.ndarray, stages: int) -> Assignment:
    """Cut in the middle of the weight, then cut the heavier half again."""
    parts = [(0, len(weight))]
    while len(parts) < stages:
        at = max(
            (k for k, (a, b) in enumerate(parts) if b - a > 1),
            key=lambda k: int(weight[slice(*parts[k])].sum()),
        )
        a, b = parts[at]
        running = np.cumsum(weight[a:b])
        middle = a + 1 + int(np.abs(running[:-1] - running[-1] / 2).argmin())
        parts[at : at + 1] = [(a, middle), (middle, b)]
    return Assignment(tuple(a for a, _ in parts), tuple(range(stages)))


def block_partition(weight: np.ndarray, stages: int) -> Assignment:
    """torchgpipe's balance: the block partition of Barany and Grinberg (arXiv 1308.2452).

    The unit is the heaviest Block over the lightest, from which weights count. From equally long
    parts on, the lightest part (the one next to the heaviest, of several) takes an element of its
    neighbour on the heaviest one's side, until the heaviest exceeds the lightest by one unit at the
    most.
    """
    count, unit = len(weight), int(np.ptp(weight))
    total = np.concatenate([[0], np.cumsum(weight - weight.min())]).tolist()
    ends = [count // stages * (k + 1) for k in range(stages - 1)] + [count]

    def sizes() -> list[int]:
        return [total[b] - total[a] for a, b in zip([0, *ends[:-1]], ends, strict=True)]

    while True:
        now = sizes()
        heaviest = now.index(max(now))
        limit = now[heaviest]
        while True:
            now = sizes()
            lightest = min(range(stages), key=lambda k: (now[k], abs(k - heaviest)))
            if limit <= now[lightest] + unit:
                return filled([0, *ends[:-1]], count)
            if heaviest < lightest:
                giver = lightest - 1
                ends[giver] -= 1
            else:
                giver = lightest + 1
                ends[lightest] += 1
            if giver == heaviest:
                break


def partition_balanced(weight: np.ndarray, stages: int) -> Assignment:
    """DeepSpeed's partition_balanced.

    Halve the range of the heaviest part, filling parts greedily to try one.
    """
    total = np.cumsum(weight).tolist()

    def try_most(most: float) -> list[int] | None:
        starts, at = [0], 0
        for _ in range(stages - 1):
            base = total[at - 1] if at else 0
            at = bisect_right(total, base + most, lo=at)
            starts.append(at)
        base = total[at - 1] if at else 0
        return starts if total[-1] - base <= most else None

    low, high = total[-1] / stages, float(total[-1])
    while high > low + 1e-3:
        middle = (low + high) / 2
        if try_most(middle) is None:
            low = middle
        else:
            high = middle
    return filled(try_most(high) or [0] * stages, len(weight))
