"""Lower bounds on the cycles of a weight update, and the weights of what it consists of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ipuscope.planner.costs.memory_choice import Choice
from ipuscope.planner.costs.profile_costs import Costs
from ipuscope.planner.predict.interval_costs import INFINITE, interval_costs
from ipuscope.planner.predict.many_splits import copies_bound, counted_micro_batches
from ipuscope.profiler.timeline import schedules


@dataclass(frozen=True)
class PipelineWeights:
    """How many pipeline cycles last as long as each kind of stage.

    ``main``: at least as long as the longest stage; ``behind``: as the longest of a stage and those
    after it, for each stage but the first; ``ahead``: as the longest forward and the longest
    backward up to each stage but the last; ``each``: as syncs and copies.
    """

    main: int
    behind: int
    ahead: int
    each: int

    @classmethod
    def of(cls, costs: Costs, ipus: Sequence[int]) -> PipelineWeights:
        """For stages on these IPUs."""
        stages, count = len(ipus), counted_micro_batches(costs, len(ipus))
        if not costs.pipelined:
            order = [*ipus, *(reversed(ipus) if costs.training else ())]
            moves = sum(a != b for a, b in pairwise(order))
            return cls(0, 0, 0, count * moves)
        cycles = schedules.pipeline_cycles(stages, count, costs.training)
        if costs.training:
            return cls(count - 2 * stages + 2, 2, 1, cycles)
        return cls(count - stages + 1, 1, 1, cycles)


def fixed_cycles(costs: Costs, ipus: Sequence[int], choices: Sequence[Choice] = ()) -> int:
    """Cycles of every split onto these IPUs: syncs, the host's transfers, the weight update.

    ``choices``: ways of saving memory that stages may take (default: any).
    """
    streams, count = costs.streams, counted_micro_batches(costs, len(ipus))
    sync = costs.machine.sync if max(ipus) else 0

    def most(cycles: np.ndarray) -> int:
        largest = int(cycles.max(initial=0))
        return largest + streams.latency if largest else 0

    fixed = PipelineWeights.of(costs, ipus).each * sync
    if not costs.pipelined:
        fixed += count * int((costs.cycles.work if costs.training else costs.cycles.forward).sum())
    elif streams.sync not in ("alone", "sides"):
        fixed += count * most(streams.stream_in)
        fixed += 0 if streams.out_once else count * most(streams.stream_out)
    if streams.out_once:
        fixed += most(streams.stream_out)
    least = least_weight_update(costs, ipus, choices)
    return fixed + (costs.least_reduce(len(set(ipus))) + least if least else 0)


def least_weight_update(costs: Costs, ipus: Sequence[int], choices: Sequence[Choice] = ()) -> int:
    """A lower bound on the cycles of the busiest IPU's weight update, for any split onto these."""
    if not costs.training:
        return 0
    update = costs.cycles.update
    if choices and all(choice.offload for choice in choices):
        update = update + costs.moves
    share = -(-int(update.sum()) // len(set(ipus)))
    return max(share, int(update.max()))


def least_copies(costs: Costs, ipus: Sequence[int]) -> int:
    """A lower bound on the cycles of the exchange between these IPUs, for any split onto them.

    That is a micro-batch over the widest link, plus what crosses any cut over each IPU's own links.
    """
    stages, machine = len(ipus), costs.machine
    if stages < 2 or any(a == b for a, b in pairwise(ipus)):
        return 0
    spared = may_stay(costs, ipus)
    over = (costs.cuts.ahead, costs.cuts.back)
    ahead, back = (np.maximum(0, way - less)[:-1] for way, less in zip(over, spared, strict=True))
    crossed = np.sort(np.maximum(ahead, back))[stages - 2]
    least = int(copies_bound(costs, np.array([crossed]))[0])
    forward, backward = int(ahead.min()), int(back.min())
    if not forward + backward:
        return least
    rates = [machine.link_rate(a, b) for a, b in pairwise(ipus)]
    latencies = [machine.hop_latency(a, b) for a, b in pairwise(ipus)]
    for k in range(stages - 2):  # the IPUs between two others
        left, right = rates[k], rates[k + 1]
        ways = backward / left + forward / right, forward / left + backward / right
        latency = max(latencies[k], latencies[k + 1])
        least = max(least, int(np.ceil(latency + max(ways))))
    return least


def may_stay(costs: Costs, ipus: Sequence[int]) -> np.ndarray:
    """Bytes that may not have to cross a cut, forward and back: int64[2, Block].

    Where each stage has an IPU of its own, what Blocks share crosses all cuts to its last reader.
    """
    if len(set(ipus)) == len(ipus):
        return np.zeros((2, len(costs)), dtype=np.int64)
    return costs.cuts.may_stay


def longest_stage(
    costs: Costs,
    ipus: Sequence[int],
    choices: Sequence[Choice],
    most: int,
    together: Sequence[Sequence[int]],
    known: int,
) -> int:
    """Cycles that no stage exceeds in a split that takes less than ``known``: at most ``most``.

    With endless memory. The longer the longest stage, the more its main part alone takes; the rest
    takes at least what its ramps do where no stage is longer.
    """
    stages, weights = len(ipus), PipelineWeights.of(costs, ipus)
    if weights.main <= 0:
        return most
    table = interval_costs(costs, ipus, choices, most, together, memory=False)
    early = np.minimum.reduce([np.where(table.allowed, one, INFINITE) for one in table.early])
    final = np.where(table.allowed, table.final, INFINITE)
    fixed = fixed_cycles(costs, ipus, choices) + weights.each * least_copies(costs, ipus)
    while True:
        shorter = [np.where(one <= most, one, INFINITE) for one in (early, final)]
        ramps = ramps_at_least([shorter[0]] * (stages - 1) + [shorter[1]], weights)
        less = (known - fixed - ramps) // weights.main
        if less >= most - most // 64 or most <= 1:  # as good as it gets: no stage is shorter
            return most
        most = max(1, less)


def ramps_at_least(both: Sequence[np.ndarray], weights: PipelineWeights) -> int:
    """A lower bound on the cycles of a pipeline's ramps, over all splits.

    ``both``: forward and backward cycles of all stages k, int64[first, width]. Filling and flushing
    take at least the longest stage up to each, or the least that the longest up to there can be;
    likewise those behind it.
    """
    count, width = both[0].shape
    step = np.arange(width)[None, :]
    after = np.minimum(np.arange(count)[:, None] + step, count - 1) + 1
    first = np.arange(count)[:, None] - step  # of the stages that end with each Block
    stage = np.maximum(first, 0) * width + step

    def least_by_end(values: np.ndarray) -> np.ndarray:
        ends = np.where(first >= 0, values.ravel()[stage], INFINITE)
        return np.concatenate([[INFINITE], ends.min(axis=1)])

    end = np.full(count + 1, INFINITE)
    end[count] = 0
    slowest = [end]
    for one in reversed(both):
        least = np.maximum(one, slowest[0][after]).min(axis=1)
        slowest.insert(0, np.append(least, INFINITE))
    so_far, total = np.full((2, count + 1), INFINITE)
    so_far[0] = total[0] = 0
    for k, one in enumerate(both):
        ahead = np.maximum(one, so_far[:-1, None])
        behind = np.maximum(one, slowest[k + 1][after])
        each = weights.ahead * ahead * (k < len(both) - 1) + weights.behind * behind * (k > 0)
        each = np.minimum(INFINITE, np.minimum(each, INFINITE) + total[:-1, None])
        each = np.where(np.maximum(ahead, behind) < INFINITE, each, INFINITE)
        so_far, total = least_by_end(ahead), least_by_end(each)
    return int(total[count])
