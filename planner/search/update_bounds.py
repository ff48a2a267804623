"""Lower bounds on the cycles of a weight update, and the weights of what it consists of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ipuscope.planner.costs.memory_choice import Choice
from ipuscope.planner.costs.profile_costs import Costs
from ipuscope.planner.predict.many_splits import copies_bound
from ipuscope.planner.predict.what_if import counted_micro_batches
from ipuscope.profiler.timeline import closed_forms


@dataclass(frozen=True)
class PipelineWeights:
    """How many pipeline cycles last as long as each kind of stage."""

    main: int  # at least as the longest stage
    behind: int  # as the longest of a stage and those after it, for each but the first
    ahead: int  # as the longest forward and the longest backward up to each stage but the last
    each: int  # as syncs and copies

    @classmethod
    def of(cls, costs: Costs, ipus: Sequence[int]) -> PipelineWeights:
        """For stages on these IPUs."""
        stages, count = len(ipus), counted_micro_batches(costs, len(ipus))
        if not costs.pipelined:
            order = [*ipus, *(reversed(ipus) if costs.training else ())]
            moves = sum(a != b for a, b in pairwise(order))
            return cls(0, 0, 0, count * moves)
        cycles = closed_forms.pipeline_cycles(stages, count, costs.training)
        if costs.training:
            return cls(count - 2 * stages + 2, 2, 1, cycles)
        return cls(count - stages + 1, 1, 1, cycles)


def ramps_of_longest(stages: int, training: bool) -> tuple[int, int]:
    """(lost, times): a pipeline takes at least (G - lost) c + times x the work of all stages.

    G: micro-batches, c: cycles of the longest of K stages. In training
    (`ipuscope.profiler.timeline.closed_forms.training_cycles`) the main part takes (G - 2K + 2) c.
    Let stage j be longest, S the work before it, S' behind it. Each cycle of the ramp-up up to
    stage k < j takes what that one does, and c from j on: S + (K - 1 - j) c; ramp-down, twice each:
    2 j c and 2 S'. As S is at most j c, that is least where it is as much: (K - 3) c + twice the
    whole. Inference has each once.
    """
    return (stages + 1, 2) if training else (1, 1)


def made_again(costs: Costs, choices: Sequence[Choice]) -> np.ndarray:
    """The least forward cycles that each Block recomputes if other stages follow."""
    recompute = bool(choices) and all(choice.recompute for choice in choices)
    if not (costs.training and recompute):
        return np.zeros(len(costs), dtype=np.int64)
    least: np.ndarray = np.minimum(costs.cycles.again, costs.cycles.again_end) * costs.goes_back
    return np.maximum(0, least)


def longest_within(costs: Costs, ipus: Sequence[int], total: int, choices: Sequence[Choice]) -> int:
    """The most cycles of a stage in splits onto these IPUs that take less than ``total``."""
    count = counted_micro_batches(costs, len(ipus))
    most = total // count  # all its work is done one after the other
    lost, times = ramps_of_longest(len(ipus), costs.training)
    if costs.pipelined and len(set(ipus)) == len(ipus) and count > lost:
        work = costs.cycles.work if costs.training else costs.cycles.forward
        again = made_again(costs, choices)
        final = np.cumsum(work[::-1])[::-1] <= most  # what the last stage may have
        whole = int(work.sum()) + int(again[~final].sum())
        each = PipelineWeights.of(costs, ipus).each * least_copies(costs, ipus)
        left = total - fixed_cycles(costs, ipus, choices) - each - times * whole
        most = min(most, left // (count - lost))
    return max(1, most)


def fixed_cycles(costs: Costs, ipus: Sequence[int], choices: Sequence[Choice] = ()) -> int:
    """Least cycles of syncs, host transfers and weight update of splits with any of ``choices``."""
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

    A micro-batch over the widest link, plus what crosses any cut over each IPU's own links.
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

    With an IPU for each stage, what Blocks share crosses all cuts to its last reader.
    """
    if len(set(ipus)) == len(ipus):
        return np.zeros((2, len(costs)), dtype=np.int64)
    return costs.cuts.may_stay
