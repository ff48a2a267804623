"""Which levers to pull: each alone, and the quickest combination within the memory."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import log2

from ipuscope.planner.costs.profile_costs import Costs
from ipuscope.planner.levers.levers import STATES, Basis, Levers, code, title
from ipuscope.planner.levers.phased import basis_of
from ipuscope.planner.predict.memory_verdict import Answer, Verdict
from ipuscope.planner.predict.what_if import Assignment
from ipuscope.planner.search.split_search import quickest
from ipuscope.planner.search.tied_weights import back_home
from ipuscope.profiler.report import Report
from ipuscope.profiler.timeline import schedules

MORE = 32  # times as many samples a weight update, where more are allowed without a number
_MORE_MICRO_BATCHES = 4
_RATIOS = (0.125, 0.25, 0.5, 2.0, 4.0, 8.0)  # farther off, an estimate says little
_A_DOUBLING = (
    0.03  # that twice the samples a weight update have to gain at the least: learning pays
)
LEAST_GAIN = 0.005  # of the speed: a lever that gains less is left as it is
# How far estimates are off at the most, of the gain and of a tile (docs/advice.md#estimates).
_DOUBT_OF_PRECISION = 0.2
_DOUBT_OF_SIZE = 0.4
_DOUBT_OF_MEMORY = 0.12
_FEW_STAGES = 16  # up to which another split is looked for
_ROUNDS = 3  # of settings for a split, and a split for the settings


@dataclass(frozen=True)
class Allowed:
    """What an advice may change of the training itself.

    ``half``: the precision. ``samples``: the most of a weight update, over all replicas; 0: as many
    as now, cut into other micro-batches.
    """

    half: bool = False
    samples: int = 0


KEEP = Allowed()


def anything(basis: Basis) -> Allowed:
    """Half precision, and up to `MORE` times the samples of a weight update."""
    return Allowed(True, MORE * basis.costs.samples * basis.costs.micro_batches)


@dataclass(frozen=True)
class Advice:
    """Levers to pull, and what is predicted of it.

    ``samples_per_second`` over all replicas, ``gain`` their ratio to the present (0: it does not
    run now), ``samples``: of a weight update; ``fullest``: bytes of the fullest tile, on ``ipu``;
    ``memory``: whether it fits, in words. ``estimate``: costs of another precision or micro-batch
    are estimates (docs/advice.md#estimates), ``doubt`` samples a second off either way; else they
    are the profile's. ``code``: the lines to write; ``argument``: for ``ipu-run --with``;
    ``problems``: why it would not run.
    """

    title: str
    levers: Levers
    cycles: int
    samples_per_second: float
    gain: float
    samples: int
    fullest: int
    ipu: int
    memory: str
    estimate: bool
    doubt: float
    code: tuple[str, ...]
    argument: str
    problems: tuple[str, ...]


@dataclass(frozen=True)
class Advised:
    """The present, the levers that gain something alone, most first, and the best combination.

    ``together`` is None where no two of them gain.
    """

    present: Advice
    single: tuple[Advice, ...]
    together: Advice | None


def advise(report: Report, allowed: Allowed = KEEP, splits: bool = True) -> Advised:
    """What to change, ranked by predicted samples a second under the memory.

    ``allowed``: what may change of the training; by default its samples a weight update and its
    precision stay. ``splits``: other splits are looked for. ValueError where the profile has no
    costs to predict from.
    """
    return advise_on(basis_of(report), allowed, splits)


def advise_on(basis: Basis, allowed: Allowed = KEEP, splits: bool = True) -> Advised:
    """`advise` for a profile that was already read: worked out once for the report."""
    splits = splits and _usual_splits(basis)
    if basis.can_split and basis.costs is not Costs.from_report(basis.report):
        return _advise_on(basis, allowed, splits)
    name = f"advice with {allowed}, splits: {splits}"
    return basis.report.once(name, lambda: _advise_on(basis, allowed, splits))


def _usual_splits(basis: Basis) -> bool:
    """Whether other splits are looked for where the caller does not say."""
    return len(set(basis.present.ipus)) <= _FEW_STAGES


def _advise_on(basis: Basis, allowed: Allowed, splits: bool) -> Advised:
    present = predicted(basis, Levers())
    now = 0.0 if present.problems else present.samples_per_second
    levers = [*_single(basis, allowed), *_splits(basis, splits)]
    alone = [
        predicted(basis, one, now) for one in levers if _speed(basis, one) > now * (1 + LEAST_GAIN)
    ]
    single = _best_of_each([one for one in alone if _gains(one, now)])
    best = _together(basis, allowed, splits and bool(now), single)
    together = predicted(basis, best, now)
    most = single[0].samples_per_second if single else 0.0
    several = len(best.pulled) > 1 and together.samples_per_second >= most
    return Advised(present, tuple(single), together if several and _gains(together, now) else None)


def predicted(basis: Basis, levers: Levers, now: float = 0.0) -> Advice:
    """The predicted effect of pulling these levers. ``now``: present samples a second."""
    costs, outlook = basis.costs_with(levers), basis.outlook(levers)
    fullest = max(outlook.memory, key=lambda one: one.nbytes - one.limit)
    rate = 0.0 if outlook.problems else outlook.samples_per_second
    known = replace(levers, half=False, micro_batch=0)
    estimated = outlook.samples_per_second - _speed(basis, known) if known != levers else 0.0
    doubt = _doubt(levers) * abs(estimated)
    return Advice(
        title(basis, levers) or "as profiled",
        levers,
        outlook.cycles,
        outlook.samples_per_second,
        rate / now if now else 0.0,
        costs.samples * costs.micro_batches,
        fullest.nbytes,
        fullest.ipu,
        _memory(outlook.memory, bool(levers.micro_batch)),
        levers.half or bool(levers.micro_batch) or levers.state == STATES[2],
        doubt,
        code(basis, levers),
        levers.argument,
        outlook.problems,
    )


def too_large(basis: Basis, known: Sequence[str] = ()) -> Advice | None:
    """Of the settings that would be quicker and that tiles do not hold, the one nearest to fitting.

    ``known``: names of levers that are left out.
    """
    now = basis.outlook(Levers()).samples_per_second
    others = (one for one in _single(basis, anything(basis)) if not {*one.pulled} & {*known})
    quicker = [one for one in others if _speed(basis, one) > now * (1 + LEAST_GAIN)]
    refused = [predicted(basis, one, now) for one in quicker if not basis.fits(one)]
    return min(refused, key=lambda one: one.fullest, default=None)


def _doubt(levers: Levers) -> float:
    """The share of the gain that an estimate may be off."""
    if levers.micro_batch:
        return _DOUBT_OF_SIZE
    return _DOUBT_OF_PRECISION if levers.half else 0.0


def _memory(ipus: Sequence[Verdict], other_size: bool) -> str:
    """Whether all IPUs hold it, in words; ``other_size``: with micro-batches of another size."""
    worst = min(ipus, key=lambda one: one.free)
    if worst.answer is not Answer.FITS:
        return f"IPU {worst.ipu}: {worst}"
    close = other_size and worst.free < _DOUBT_OF_MEMORY * worst.limit
    return (
        f"IPU {worst.ipu}: within {_DOUBT_OF_MEMORY:.0%}: compile to know" if close else str(worst)
    )


def _gains(advice: Advice, now: float) -> bool:
    return not advice.problems and advice.samples_per_second > now * (1 + LEAST_GAIN)


def _best_of_each(advices: Sequence[Advice]) -> list[Advice]:
    """The best setting of each lever, most samples a second first."""
    ranked = sorted(advices, key=lambda one: -one.samples_per_second)
    best: dict[tuple[str, ...], Advice] = {}
    for one in ranked:
        best.setdefault(one.levers.pulled, one)
    return list(best.values())


# -- settings of each lever ---


def _least(basis: Basis, stages: int = 0) -> int:
    """The fewest micro-batches that a pipeline of these stages takes (0: of the present's)."""
    stages, costs = stages or len(basis.present.starts), basis.costs
    return schedules.pipeline_stages(stages, costs.training) if costs.pipelined else 1


def _counts(basis: Basis, limit: int, stages: int = 0) -> list[int]:
    """Numbers of micro-batches a weight update: the least that is legal, and more."""
    costs, least = basis.costs, _least(basis, stages)
    most = max(costs.micro_batches, limit // costs.samples)
    more = [costs.micro_batches * 2, costs.micro_batches * _MORE_MICRO_BATCHES]
    wanted = {number for number in more if least <= number <= most}
    return sorted(wanted | ({least} if costs.micro_batches < least else set()))


def _sizes(basis: Basis, limit: int) -> list[int]:
    """Micro-batch sizes in samples, except the present one, with as many micro-batches."""
    others = basis.costs.samples // basis.micro_batch
    sizes = [basis.micro_batch * ratio for ratio in _RATIOS]
    most = limit // max(1, others * basis.costs.micro_batches)  # 0: a file that contradicts itself
    return [int(size) for size in sizes if size == int(size) and 1 <= size <= most]


def _cuts(basis: Basis, stages: int = 0) -> list[tuple[int, int]]:
    """Other sizes of micro-batches, and how many of them have the present's samples."""
    samples = basis.micro_batch * basis.costs.micro_batches
    near = [basis.micro_batch * ratio for ratio in (_RATIOS[0], _RATIOS[-1])]
    least, cuts = _least(basis, stages), []
    for size in range(max(1, math.ceil(near[0])), min(samples, int(near[1])) + 1):
        if size != basis.micro_batch and samples % size == 0 and samples // size >= least:
            cuts.append((size, samples // size))
    return cuts


def _batches(basis: Basis, allowed: Allowed, stages: int = 0) -> list[tuple[int, int]]:
    """What is tried of a micro-batch's size and of how many there are; 0: as now."""
    batches = [(0, 0), *_cuts(basis, stages)]
    if allowed.samples:
        others = basis.costs.samples // basis.micro_batch
        for size in (0, *_sizes(basis, allowed.samples)):
            samples = (size or basis.micro_batch) * others
            counts = _counts(basis, allowed.samples, stages)
            fitting = [count for count in counts if count * samples <= allowed.samples]
            batches.append((size, max(fitting, default=0)))
    return list(dict.fromkeys(batches))


def _recomputations(basis: Basis) -> list[bool | None]:
    costs = basis.costs
    stages = costs.training and costs.pipelined and len(basis.present.starts) > 1
    return [None, not costs.recompute] if stages else [None]


def _states(basis: Basis) -> list[str]:
    if not basis.costs.training or not basis.keeps_state:
        return [""]
    present = basis.state
    possible = STATES if basis.replicas > 1 else STATES[:2]
    if present == STATES[2]:  # what whole state would cost, a profile of its parts does not say
        return [""]
    return ["", *(state for state in possible if state != present)]


def _outputs(basis: Basis) -> list[str]:
    costs = basis.costs
    if not costs.training or not costs.streams.stream_out.any():
        return [""]
    final = [] if costs.streams.out_once or costs.micro_batches == 1 else ["final"]
    return ["", *final, *(["loss"] if basis.returned else [])]


def _single(basis: Basis, allowed: Allowed) -> Iterator[Levers]:
    if basis.sizes.halves and allowed.half:
        yield Levers(half=True)
    yield from (Levers(micro_batch=size, micro_batches=count) for size, count in _cuts(basis))
    if allowed.samples:
        yield from (Levers(micro_batch=size) for size in _sizes(basis, allowed.samples))
        yield from (Levers(micro_batches=count) for count in _counts(basis, allowed.samples))
    yield from (Levers(recompute=way) for way in _recomputations(basis)[1:])
    yield from (Levers(outputs=outputs) for outputs in _outputs(basis)[1:])
    yield from (Levers(state=state) for state in _states(basis)[1:])


def _splits(basis: Basis, splits: bool) -> Iterator[Levers]:
    if basis.can_split:
        yield from (Levers(split=one) for one in other_splits(basis.costs, basis.present, splits))


def other_splits(costs: Costs, present: Assignment, thorough: bool) -> Iterator[Assignment]:
    """Splits worth trying: tied weights at home, and the quickest where stages are few."""
    yield from back_home(costs, present)
    most = len(set(present.ipus))
    if not thorough or most > _FEW_STAGES or len(costs) < 2:
        return
    try:
        best = quickest(costs)
    except ValueError:
        return
    assignment = best.prediction.assignment
    if (assignment.starts, assignment.ipus) != (present.starts, present.ipus):
        yield replace(assignment, choices=())


# -- all together ---


def _together(basis: Basis, allowed: Allowed, splits: bool, single: Sequence[Advice]) -> Levers:
    """The quickest combination that fits, never slower than the best of the ``single`` levers.

    Looked for from the present, from the best other split, and from the best single lever, which is
    then held.
    """
    by_split = [one.levers for one in single if one.levers.split is not None]
    starts = dict.fromkeys((Levers(), *by_split[:1], *(one.levers for one in single[:1])))
    found = [_climbed(basis, allowed, splits, start) for start in starts]
    best = max(found, key=lambda one: _worth(basis, one))
    least = single[0].samples_per_second if single else 0.0
    if _rate(basis, best) < least:  # more samples a weight update, which that lever takes alone
        best = max(found, key=lambda one: _rate(basis, one))
    for name in best.pulled:  # what adds nothing beside the others is left as it is
        fewer = best.without(name)
        if _rate(basis, fewer) >= max(least, _rate(basis, best) / (1 + LEAST_GAIN)):
            best = fewer
    return best


def _climbed(basis: Basis, allowed: Allowed, splits: bool, held: Levers) -> Levers:
    """All other settings beside the ``held``, then the split for them, while either gains."""
    best = _best_beside(basis, allowed, held)
    for _ in range(_ROUNDS if basis.can_split else 0):
        costs = basis.costs_with(best)
        others = [replace(best, split=one) for one in other_splits(costs, basis.present, splits)]
        other = max(others, key=lambda one: _worth(basis, one), default=best)
        if _worth(basis, other) <= _worth(basis, best) * (1 + LEAST_GAIN):
            return best
        best = _best_beside(basis, allowed, replace(held, split=other.split))
    return best


def _best_beside(basis: Basis, allowed: Allowed, held: Levers) -> Levers:
    """The best of all settings that are not ``held``.

    Of outputs only the fewest: they never cost memory.
    """
    halves = basis.sizes.halves and allowed.half and not held.half
    precisions = [False, True] if halves else [held.half]
    batches = _batches(basis, allowed, len((held.split or basis.present).starts))
    if held.micro_batch:
        batches = [one for one in batches if one[0] == held.micro_batch]
    if held.micro_batches:
        batches = [one for one in batches if one[1] == held.micro_batches]
    batches = batches or [(held.micro_batch, held.micro_batches)]
    ways = _recomputations(basis) if held.recompute is None else [held.recompute]
    states = [held.state] if held.state else _states(basis)
    outputs = held.outputs or _outputs(basis)[-1]
    ranked: list[tuple[float, Levers]] = []
    for half, (size, count), again, state in product(precisions, batches, ways, states):
        levers = Levers(half, size, count, again, outputs, state, held.split)
        ranked.append((_speed(basis, levers) * _worth_of_samples(basis, levers), levers))
    # Most first: what is not worth more than what fits is never asked whether it fits.
    least = _worth(basis, held)
    for value, levers in sorted(ranked, key=lambda one: -one[0]):
        if value <= least:
            break
        if _runs(basis, levers):
            return levers
    return held


def _worth(basis: Basis, levers: Levers) -> float:
    """Samples a second, less what more samples a weight update cost learning; 0: does not run."""
    return _rate(basis, levers) * _worth_of_samples(basis, levers)


def _worth_of_samples(basis: Basis, levers: Levers) -> float:
    """What a sample is worth beside one of the present's: less with more of them an update."""
    larger = (levers.micro_batch or basis.micro_batch) / basis.micro_batch
    more = (levers.micro_batches or basis.costs.micro_batches) / basis.costs.micro_batches
    worth: float = (1 - _A_DOUBLING) ** max(0.0, log2(larger * more))
    return worth


def _rate(basis: Basis, levers: Levers) -> float:
    """Samples a second; 0 where it does not run."""
    speed = _speed(basis, levers)
    return speed if speed and _runs(basis, levers) else 0.0


def _runs(basis: Basis, levers: Levers) -> bool:
    """Whether tiles hold it, or it is too close to call."""
    return basis.fits(levers)


def _speed(basis: Basis, levers: Levers) -> float:
    """Samples a second, whatever the memory; 0 with fewer micro-batches than stages need."""
    costs, stages = basis.costs_with(levers), len(basis.assignment_with(levers).starts)
    least = schedules.pipeline_stages(stages, costs.training) if costs.pipelined else 1
    if costs.micro_batches < least:
        return 0.0
    total = basis.cycles_with(levers)
    return costs.samples * costs.micro_batches * costs.machine.clock_hz / max(1, total)
