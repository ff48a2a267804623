"""The quickest cuts of one compile's Blocks into phases, on every place that could win.

Stages take the next Blocks within a limit of cycles and their tiles, phases the next stages. Limits
are tried from the longest Block on, and first phases with fewer stages, after which all may be
alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from ipuscope.planner.costs.all_reduce import rings_of
from ipuscope.planner.mappings.mapping import Key, Mapping, StagePlan, attached
from ipuscope.planner.mappings.phased_costs import (
    Cut,
    PhasedCosts,
    PhasedPrediction,
    fullest_tile,
    predict,
    shares,
)
from ipuscope.planner.mappings.plan import Candidate, worth
from ipuscope.planner.mappings.question import Question

LIMITS = 8  # of a stage's cycles that are tried
MARGIN = 0.02  # of a tile: what is predicted beyond it is not compiled
# Where Blocks have other neighbours than in the compile: their code of loads and receipts differs.
OTHER_NEIGHBOURS = 0.12
_AT_LEAST = 3  # of each compile, that are laid out even if they cannot be the best
_MOST_BLOCKS = 16  # of a stage


@dataclass(frozen=True)
class PhasedPlace:
    """Costs, a cut of their Blocks, replicas, and micro-batches for each."""

    costs: PhasedCosts
    cut: Cut
    replicas: int
    micro_batches: int

    @property
    def pipeline(self) -> int:
        """p: IPUs of a replica, shards counted once."""
        return int(self.cut.ipus.max()) + 1

    @property
    def attached(self) -> int:
        """IPUs that it takes."""
        return self.costs.key.shards * attached(self.pipeline) * self.replicas

    @property
    def predicted(self) -> PhasedPrediction:
        """What it costs."""
        of_all = rings_of(self.costs.machine, self.costs.key.shards, self.pipeline, self.replicas)
        return predict(self.costs, self.cut, self.replicas, self.micro_batches, of_all)


def best_cuts(costs: PhasedCosts, question: Question, beat: float = 0.0) -> list[Candidate]:
    """The best cut of each (p, r, stages) that is predicted to fit, as candidates.

    ``beat``: samples a second that others reach; what cannot do more is not laid out.
    """
    promised = []
    for place in places(costs, question):
        prediction = place.predicted
        rate = _rate(place, prediction.at_least())
        promised.append((rate, place, prediction))
    promised.sort(key=lambda one: -one[0])
    by_place: dict[tuple[int, int, int], Candidate] = {}
    for rate, place, prediction in promised:
        quickest = max((one.samples_per_second for one in by_place.values()), default=0.0)
        if len(by_place) >= _AT_LEAST and rate <= max(beat, quickest):
            break
        where = place.pipeline, place.replicas, len(place.cut.starts)
        best = by_place.get(where)
        if best is not None and best.samples_per_second >= rate:
            continue
        fullest = fullest_tile(costs, place.cut, place.replicas)
        if fullest > (1 + MARGIN) * costs.machine.bytes_per_tile:
            continue
        candidate = candidate_of(place, prediction, fullest)
        if best is None or candidate.samples_per_second > best.samples_per_second:
            by_place[where] = candidate
    return sorted(by_place.values(), key=lambda one: worth(one, question.objective), reverse=True)


def _rate(place: PhasedPlace, cycles: int) -> float:
    samples = place.costs.key.micro_batch * place.micro_batches * place.replicas
    return samples * place.costs.machine.clock_hz / max(1, cycles)


def least_full(costs: PhasedCosts, question: Question) -> tuple[int, PhasedPlace] | None:
    """Bytes of the fullest tile where it is predicted to be least, and the place; None: none."""
    every = [(fullest_tile(costs, one.cut, one.replicas), one) for one in places(costs, question)]
    return min(every, key=lambda one: one[0], default=None)


def most_in_phases(costs: PhasedCosts, question: Question) -> float:
    """Samples a second that no cut into phases exceeds.

    All IPUs always compute; what waits for the backward goes to streaming memory and back once.
    """
    key, machine = costs.key, costs.machine
    once = 2 * costs.saved_bytes() / machine.streaming_bytes_per_cycle
    cycles = (float(costs.work.sum()) + once) / key.micro_batch * key.shards / question.ipus
    return machine.clock_hz / cycles


def basis_mapping(
    key: Key, names: tuple[str, ...], own: Mapping, question: Question
) -> Mapping | None:
    """One Block a stage, on pipelines as long as ``own``'s, or what is fixed; None: not legal."""
    fixed = question.fixed.get("p", own.pipeline)
    longest = min(fixed, question.ipus // key.shards, len(names))
    for pipeline in (longest, *(1 << n for n in reversed(range(longest.bit_length())))):
        each = key.shards * attached(pipeline)
        legal = [
            number
            for number in range(1, question.ipus // each + 1)
            if question.global_batch % (key.micro_batch * number) == 0
            and question.fixed.get("r", number) == number
        ]
        if legal:
            break
    else:
        return None
    replicas = legal[-1]
    first = next(len(list(run)) for _, run in groupby(own.stages, key=lambda one: one.phase))
    cut = _cut(tuple(range(len(names))), min(first, pipeline), pipeline)
    stages = tuple(
        StagePlan(ipu, (name,), None, own.stages[0].state_off_chip, phase)
        for ipu, name, phase in zip(cut.ipus.tolist(), names, cut.phase, strict=True)
    )
    accumulation = question.global_batch // (key.micro_batch * replicas)
    return key.mapping(replicas, stages, accumulation, own.in_parts, cut.phases)


def predicted_in_phases(costs: PhasedCosts, mapping: Mapping) -> Candidate:
    """What the costs predict for a given mapping in phases."""
    counts = [len(stage.blocks) for stage in mapping.stages]
    starts = tuple(np.cumsum([0, *counts[:-1]]).tolist())
    cut = Cut(starts, tuple(stage.phase for stage in mapping.stages))
    place = PhasedPlace(costs, cut, mapping.replicas, mapping.accumulation)
    return candidate_of(place, place.predicted, fullest_tile(costs, cut, mapping.replicas))


def places(costs: PhasedCosts, question: Question) -> Iterator[PhasedPlace]:
    """Every legal place that is tried."""
    key, fixed = costs.key, question.fixed
    cuts: dict[int, list[Cut]] = {}
    most = min(len(costs), question.ipus // key.shards)
    for pipeline in _numbers(most, fixed.get("p")):
        for replicas in _replicas(costs, question, pipeline):
            each = question.global_batch // (key.micro_batch * replicas)
            if (each > 1) != key.accumulates or fixed.get("accumulation", each) != each:
                continue
            if pipeline not in cuts:
                cuts[pipeline] = [
                    cut
                    for cut in cuts_onto(costs, pipeline)
                    if cut.phases > 1 and fixed.get("phases", cut.phases) == cut.phases
                ]
            for cut in cuts[pipeline]:
                yield PhasedPlace(costs, cut, replicas, each)


def _numbers(most: int, fixed: int | None) -> list[int]:
    """Lengths of pipelines that are tried: all up to 8, and then what attaches no idle IPU."""
    if fixed is not None:
        return [fixed] if fixed <= most else []
    return [number for number in range(1, most + 1) if number <= 8 or attached(number) == number]


def _replicas(costs: PhasedCosts, question: Question, pipeline: int) -> list[int]:
    """Numbers of replicas; where speed counts the largest, since all of them do the same."""
    each = costs.key.shards * attached(pipeline)
    legal = [
        number
        for number in range(1, question.ipus // each + 1)
        if question.global_batch % (costs.key.micro_batch * number) == 0
        and question.fixed.get("r", number) == number
    ]
    return legal if question.objective == "fewest-ipus" else legal[-1:]


def cuts_onto(costs: PhasedCosts, pipeline: int) -> list[Cut]:
    """Cuts into phases of at most so many stages."""
    cuts: dict[Cut, None] = {}
    for limit in _limits(costs):
        starts = _stages(costs, limit)
        for first in range(1, min(pipeline, len(starts)) + 1):
            cuts[_cut(starts, first, pipeline)] = None
    return list(cuts)


def _cut(starts: tuple[int, ...], first: int, pipeline: int) -> Cut:
    """Phases of ``pipeline`` stages behind a first one of ``first``."""
    number = np.arange(len(starts))
    phase = np.where(number < first, 0, 1 + (number - first) // pipeline)
    return Cut(starts, tuple(phase.tolist()))


def _limits(costs: PhasedCosts) -> list[float]:
    """Cycles of a stage that are tried: what runs of Blocks take, from the longest Block on."""
    of_block = costs.work.sum(axis=0)
    longest = float(of_block.max())
    ends = np.append(0, np.cumsum(of_block))
    runs = {
        int(ends[first + count] - ends[first])
        for count in range(1, min(_MOST_BLOCKS, len(costs)) + 1)
        for first in range(len(costs) - count + 1)
    }
    longer = sorted({round(run / longest, 2) for run in runs if run >= longest})
    chosen = (
        longer
        if len(longer) <= LIMITS
        else [longer[at] for at in np.linspace(0, len(longer) - 1, LIMITS).astype(int).tolist()]
    )
    return [0.0, *(share * longest * 1.006 for share in chosen)]


def _stages(costs: PhasedCosts, limit: float) -> tuple[int, ...]:
    """First Blocks of stages that take no longer than the limit; 0: a stage has one Block."""
    tiles, machine = costs.tiles, costs.machine
    room = machine.bytes_per_tile * machine.tiles
    nbytes, cycles = tiles.resident.max(axis=(0, 1)).sum(axis=1)[tiles.kind], costs.work.sum(axis=0)
    starts, spent, there = [0], 0, 0
    for block in range(len(costs)):
        fits = spent + cycles[block] <= limit and there + nbytes[block] <= room
        if block and not (fits and block - starts[-1] < _MOST_BLOCKS):
            starts.append(block)
            spent, there = 0, 0
        spent, there = spent + cycles[block], there + nbytes[block]
    return tuple(starts)


def candidate_of(place: PhasedPlace, prediction: PhasedPrediction, fullest: int) -> Candidate:
    """A prediction as a candidate of a plan."""
    costs = place.costs
    total = prediction.schedule().total
    machine = costs.machine
    over = fullest - machine.bytes_per_tile
    alike = (len(place.cut.starts), place.pipeline) == (len(costs), len(costs.tiles.code.others))
    doubt = MARGIN if alike else OTHER_NEIGHBOURS
    memory = (
        "fits"
        if fullest <= (1 - doubt) * machine.bytes_per_tile
        else (
            f"within {doubt:.0%}: compile to know"
            if over <= doubt * machine.bytes_per_tile
            else f"does not fit by {over:,} bytes"
        )
    )
    return Candidate(
        mapping_of(place),
        total,
        _rate(place, total),
        total / machine.clock_hz,
        fullest,
        machine.bytes_per_tile,
        memory,
        shares(prediction, costs),
        False,
        0.0,
        doubt=costs.doubt,
    )


def mapping_of(place: PhasedPlace) -> Mapping:
    """The mapping of a place."""
    costs, cut = place.costs, place.cut
    ends, ipus = (*cut.starts[1:], len(costs)), cut.ipus.tolist()
    stages = tuple(
        StagePlan(ipu, costs.names[first:end], None, costs.off_chip, phase)
        for ipu, first, end, phase in zip(ipus, cut.starts, ends, cut.phase, strict=True)
    )
    micro_batches, parts = place.micro_batches, costs.in_parts
    return costs.key.mapping(place.replicas, stages, micro_batches, parts, cut.phases)
