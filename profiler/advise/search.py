"""Which levers to pull: each alone, and the quickest combination within the memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from math import log2
from typing import Any

from profiler import from_plain, schedules
from profiler.advise.levers import STATES, Basis, Levers, code, title
from profiler.advise.phases import basis_of
from profiler.rebalance import Assignment, Costs
from profiler.rebalance.split import quickest
from profiler.rebalance.tied import back_home
from profiler.rebalance.verdict import Answer, Verdict
from profiler.report import Report

MORE = 32  # times as many samples a weight update are looked at, unless the caller says how many
_MORE_MICRO_BATCHES = 4
_RATIOS = (0.125, 0.25, 0.5, 2.0, 4.0, 8.0)  # farther off, an estimate says little
_A_DOUBLING = (
    0.03  # that twice the samples a weight update have to gain at the least: learning pays
)
_LEAST_GAIN = 0.005  # of the speed: a lever that gains less is left as it is
_FEW_STAGES = 16  # up to which another split is looked for


@dataclass(frozen=True)
class Advice:
    """Levers to pull, and what is predicted of it.

    ``samples_per_second`` over all replicas, ``gain`` their ratio to the present (0: it does not
    run now), ``samples``: of a weight update; ``fullest``: bytes of the fullest tile, on ``ipu``;
    ``memory``: whether it fits, in words. ``estimate``: costs of another precision or micro-batch
    are estimates (docs/advice.md#estimates); else they are the profile's. ``code``: the lines to
    write; ``argument``: for ``ipu-run --with``; ``problems``: why it would not run.
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


def advise(report: Report, samples: int = 0, splits: bool = True) -> Advised:
    """What to change, ranked by predicted samples a second under the memory.

    ``samples``: most of a weight update (0: `MORE` times the present). ``splits``: other splits
    are looked for. ValueError where the profile has no costs to predict from.
    """
    return advise_on(basis_of(report), samples, splits)


def advise_on(basis: Basis, samples: int = 0, splits: bool = True) -> Advised:
    """`advise` for a profile that was already read: worked out once for the report."""
    limit = samples or MORE * basis.costs.samples * basis.costs.micro_batches
    splits = splits and len(set(basis.present.ipus)) <= _FEW_STAGES
    if basis.can_split and basis.costs is not Costs.from_report(basis.report):
        return _advise_on(basis, limit, splits)
    name = _name(limit, splits)
    return basis.report.answered(name, _read, lambda: _advise_on(basis, limit, splits))


def worked_out(basis: Basis) -> dict[str, Any]:
    """`advise_on` as a profile holds it (`profiler.worked_out`), by its name there."""
    limit = MORE * basis.costs.samples * basis.costs.micro_batches
    splits = len(set(basis.present.ipus)) <= _FEW_STAGES
    return {_name(limit, splits): asdict(advise_on(basis))}


def _name(limit: int, splits: bool) -> str:
    return f"advice on at most {limit} samples, splits: {splits}"


def _read(said: Any) -> Advised | None:
    """From JSON; None where it is not what was written."""
    try:
        advised: Advised = from_plain.read(Advised, said)
    except (ValueError, TypeError):
        return None
    return advised


def _advise_on(basis: Basis, limit: int, splits: bool) -> Advised:
    present = predicted(basis, Levers())
    now = 0.0 if present.problems else present.samples_per_second
    levers = [*_single(basis, limit), *_splits(basis, splits)]
    alone = [
        predicted(basis, one, now) for one in levers if _speed(basis, one) > now * (1 + _LEAST_GAIN)
    ]
    gaining = [one for one in alone if _gains(one, now)]
    best = _together(basis, limit, splits and bool(now))
    together = predicted(basis, best, now)
    single = _best_of_each(gaining)
    several = len(best.pulled) > 1 and _gains(together, now)
    return Advised(present, tuple(single), together if several else None)


def predicted(basis: Basis, levers: Levers, now: float = 0.0) -> Advice:
    """The predicted effect of pulling these levers. ``now``: present samples a second."""
    costs, outlook = basis.costs_with(levers), basis.outlook(levers)
    fullest = max(outlook.memory, key=lambda one: one.nbytes - one.limit)
    rate = 0.0 if outlook.problems else outlook.samples_per_second
    return Advice(
        title(basis, levers) or "as profiled",
        levers,
        outlook.cycles,
        outlook.samples_per_second,
        rate / now if now else 0.0,
        costs.samples * costs.micro_batches,
        fullest.nbytes,
        fullest.ipu,
        _memory(outlook.memory),
        levers.half or bool(levers.micro_batch) or levers.state == STATES[2],
        code(basis, levers),
        levers.argument,
        outlook.problems,
    )


def _memory(ipus: Sequence[Verdict]) -> str:
    worst = min(ipus, key=lambda one: one.free)
    return str(worst) if worst.answer is Answer.FITS else f"IPU {worst.ipu}: {worst}"


def _gains(advice: Advice, now: float) -> bool:
    return not advice.problems and advice.samples_per_second > now * (1 + _LEAST_GAIN)


def _best_of_each(advices: Sequence[Advice]) -> list[Advice]:
    """The best setting of each lever, most samples a second first."""
    ranked = sorted(advices, key=lambda one: -one.samples_per_second)
    best: dict[tuple[str, ...], Advice] = {}
    for one in ranked:
        best.setdefault(one.levers.pulled, one)
    return list(best.values())


# -- settings of each lever ---


def _micro_batches(basis: Basis, limit: int) -> list[int]:
    """Numbers of micro-batches a weight update: the present, the least that is legal, and more."""
    costs = basis.costs
    stages = len(basis.present.starts)
    least = schedules.pipeline_stages(stages, costs.training) if costs.pipelined else 1
    most = max(costs.micro_batches, limit // costs.samples)
    more = [costs.micro_batches * 2, costs.micro_batches * _MORE_MICRO_BATCHES]
    wanted = {number for number in more if least <= number <= most}
    return sorted(wanted | ({least} if costs.micro_batches < least else set()))


def _sizes(basis: Basis, limit: int) -> list[int]:
    """Micro-batch sizes in samples, except the present one."""
    others = basis.costs.samples // basis.micro_batch
    sizes = [basis.micro_batch * ratio for ratio in _RATIOS]
    most = limit // (others * basis.costs.micro_batches)
    return [int(size) for size in sizes if size == int(size) and 1 <= size <= most]


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


def _single(basis: Basis, limit: int) -> Iterator[Levers]:
    if basis.sizes.halves:
        yield Levers(half=True)
    yield from (Levers(micro_batch=size) for size in _sizes(basis, limit))
    yield from (Levers(micro_batches=number) for number in _micro_batches(basis, limit))
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


def _together(basis: Basis, limit: int, splits: bool) -> Levers:
    """The quickest combination that fits: all settings that decide memory, then the split."""
    best = _best_on(basis, limit, basis.present)
    costs = basis.costs_with(best)
    for split in other_splits(costs, basis.present, splits) if basis.can_split else ():
        other = replace(best, split=split)
        if _rate(basis, other) > _rate(basis, best) * (1 + _LEAST_GAIN):
            best = other
    for name in best.pulled:  # what adds nothing beside the others is left as it is
        fewer = best.without(name)
        if _rate(basis, fewer) * (1 + _LEAST_GAIN) >= _rate(basis, best):
            best = fewer
    return best


def _best_on(basis: Basis, limit: int, split: Assignment) -> Levers:
    """The best of all settings on a split. More micro-batches, fewer outputs never cost memory."""
    outputs, others = _outputs(basis)[-1], basis.costs.samples // basis.micro_batch
    now = basis.costs.samples * basis.costs.micro_batches
    precisions = [False, True] if basis.sizes.halves else [False]
    sizes = [0, *_sizes(basis, limit)]
    worth: list[tuple[float, Levers]] = []
    for half, size, again, state in product(
        precisions, sizes, _recomputations(basis), _states(basis)
    ):
        samples = (size or basis.micro_batch) * others
        fitting = [n for n in _micro_batches(basis, limit) if n * samples <= limit]
        number = max(fitting, default=0)
        levers = Levers(half, size, number, again, outputs, state)
        doublings = log2(max(number, basis.costs.micro_batches) * samples / now)
        worth.append((_speed(basis, levers) * (1 - _A_DOUBLING) ** doublings, levers))
    # Most first: what is not worth more than what fits is never asked whether it fits.
    least = _rate(basis, Levers())
    for value, levers in sorted(worth, key=lambda one: -one[0]):
        if value <= least:
            break
        if _runs(basis, levers):
            return levers
    return Levers()


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
