"""Which levers to pull: each alone, and the quickest combination within the memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import log2
from typing import Any

from ipuscope.planner.costs.profile_costs import Costs
from ipuscope.planner.levers.levers import Basis, has_open_code, memory_in_words, surely_fit
from ipuscope.planner.levers.phased import basis_of
from ipuscope.planner.levers.registry import (
    KEEP,
    LEVERS,
    RATIOS,
    Allowed,
    anything,
    argument,
    code,
    counts,
    cuts,
    not_priced,
    pulled,
    singles,
    title,
)
from ipuscope.planner.levers.settings import IO_TILES, STATES, Levers
from ipuscope.planner.mappings.mapping import Key, attached
from ipuscope.planner.mappings.mapping_search import assignment_of, best_of
from ipuscope.planner.mappings.plan import Candidate
from ipuscope.planner.mappings.priced import Priced
from ipuscope.planner.mappings.question import RECOMPUTE, STATE, Question
from ipuscope.planner.one_thread import in_one_thread
from ipuscope.planner.search.returning_stages import back_home
from ipuscope.profiler.answers import answer_of, name_of
from ipuscope.profiler.provenance import LIGHTNING, Provenance
from ipuscope.profiler.report import Report
from ipuscope.profiler.timeline import closed_forms
from ipuscope.profiler.units import listed, per_second, rounded

_A_DOUBLING = 0.03  # least gain for twice the samples a weight update, which slow learning
LEAST_GAIN = 0.005  # of the speed: a lever that gains less is left as it is
NO_GAIN = f"No lever gains {LEAST_GAIN:.1%} or more by the costs of this profile."
_FEW_STAGES = 16  # with more, no other split is searched
_NAMED = 4  # micro-batches
_ROUNDS = 3  # settings for a split, then a split for the settings


@dataclass(frozen=True)
class Advice:
    """Levers to pull, and the prediction for them.

    ``samples_per_second`` over all replicas, ``gain`` its ratio to the present (0: does not run
    now), ``samples`` of a weight update; ``fullest``: bytes of the fullest tile, on ``ipu``;
    ``memory``: whether it fits, in words; ``surely``: without doubt. ``estimate``: the costs are
    estimates (another precision or micro-batch, docs/advice.md#estimates), up to ``doubt`` samples
    a second too many and ``quicker`` too few; else they are the profile's. ``code``: lines to
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
    surely: bool
    estimate: bool
    doubt: float
    quicker: float
    code: tuple[str, ...]
    argument: str
    problems: tuple[str, ...]

    @property
    def rate(self) -> str:
        """Samples a second in words; of an estimate three digits and its error: '~745 -4% +9%'."""
        if not self.estimate:
            return per_second(self.samples_per_second)
        return f"~{per_second(rounded(self.samples_per_second))} {self.error}".rstrip()

    @property
    def error(self) -> str:
        """``doubt`` and ``quicker`` as shares of the rate: '±4%', '-4% +9%'; "" without."""
        rate = max(1e-9, self.samples_per_second)
        less, more = (
            f"{one / rate:.{int(one / rate < 0.01)}%}" for one in (self.doubt, self.quicker)
        )
        if not self.doubt and not self.quicker:
            return ""
        return f"±{less}" if less == more else f"-{less} +{more}"


@dataclass(frozen=True)
class Advised:
    """The present, levers that gain alone (most first), and the best combination of two or more.

    Where it is open whether a lever's best setting fits, ``single`` has the best that surely does,
    too; ``surely``: the same of ``together``. ``notes``: sentences on what was not looked at.
    """

    present: Advice
    single: tuple[Advice, ...]
    together: Advice | None
    surely: Advice | None = None
    notes: tuple[str, ...] = ()

    @property
    def every(self) -> list[Advice]:
        """All of them: combinations first."""
        return [*filter(None, (self.together, self.surely)), *self.single]

    def instead_of(self, advice: Advice) -> Advice | None:
        """The best setting of the same levers that surely fits, where this may not."""
        if advice.surely:
            return None
        some = [self.surely] if advice is self.together else self.single
        alike = (one for one in some if one and one.levers.pulled == advice.levers.pulled)
        return next((one for one in alike if one.surely), None)


def advise(report: Report, allowed: Allowed = KEEP) -> Advised:
    """What to change, ranked by predicted samples a second within the memory.

    ``allowed``: what may change in the training; by default samples a weight update and precision
    stay. ValueError if the profile has no costs to predict from.
    """
    return advise_on(basis_of(report), allowed)


def advise_on(basis: Basis, allowed: Allowed = KEEP) -> Advised:
    """`advise` for a profile that was already read; computed once for the report, and stored."""
    if basis.can_split and basis.costs is not Costs.from_report(basis.report):
        return _advise_on(basis, allowed)
    name = f"{__name__}.{name_of(repr(allowed))}"

    def answer(report: Report) -> Advised:
        return _advise_on(basis, allowed)

    return basis.report.file.once(name, lambda: answer_of(basis.report, name, answer))


@in_one_thread
def _advise_on(basis: Basis, allowed: Allowed) -> Advised:
    present = predicted(basis, Levers())
    now = 0.0 if present.problems else present.samples_per_second
    levers = [*singles(basis, allowed), *_splits(basis, Levers())]
    alone = [
        predicted(basis, one, now) for one in levers if _speed(basis, one) > now * (1 + LEAST_GAIN)
    ]
    single = _best_of_each(basis, [one for one in alone if _gains(one, now)])
    together = _several(basis, allowed, single, now)
    surely = None
    if together is not None and not together.surely:
        sure = [one for one in single if one.surely]
        surely = _several(replace(basis, surely=True), allowed, sure, now)
    return Advised(present, tuple(single), together, surely, tuple(_notes(basis)))


def _notes(basis: Basis) -> Iterator[str]:
    """What is not priced of micro-batches, and why."""
    if basis.one_size:
        yield f"The micro-batch stays: {basis.one_size}."
    sizes = not_priced(basis)
    if sizes:
        sizes.sort(key=lambda size: abs(log2(size / basis.micro_batch)))
        size, count = min(sizes), basis.micro_batch * basis.costs.micro_batches // min(sizes)
        joins = Provenance.of(basis.report).trainer == LIGHTNING and size < basis.micro_batch
        how = argument(Levers(micro_batch=size, micro_batches=count))
        how = f"--with {how}; --tune only joins the loader's batches" if joins else "--tune"
        these, are = ("Micro-batches", "are") if len(sizes) > 1 else ("A micro-batch", "is")
        yield (
            f"{these} of {listed([f'{size:,}' for size in sizes], _NAMED)} {are} more than"
            f" {RATIOS[-1]:g} times larger or smaller than the profile's {basis.micro_batch:,}, too"
            f" far to estimate: compile to know (ipu-run {how})."
        )


def _several(basis: Basis, allowed: Allowed, single: Sequence[Advice], now: float) -> Advice | None:
    """The best combination of two or more levers; None where a single one is as quick."""
    best = _together(basis, allowed, single)
    together = predicted(basis, best, now)
    most = single[0].samples_per_second if single else 0.0
    # a micro-batch traded for accumulation is one lever, and among the single ones
    several = len(best.pulled) > 1 and best not in [one.levers for one in single]
    several = several and together.samples_per_second >= most and _gains(together, now)
    return together if several else None


def predicted(basis: Basis, levers: Levers, now: float = 0.0) -> Advice:
    """The predicted effect of the levers. ``now``: present samples a second."""
    costs, outlook = basis.costs_with(levers), basis.outlook(levers)
    fullest = max(outlook.memory, key=lambda one: one.nbytes - one.limit)
    rate = 0.0 if outlook.problems else outlook.samples_per_second
    slower, quicker = _doubts(basis, levers, outlook.samples_per_second)
    doubt_of_memory = basis.doubt_of_memory(levers)
    return Advice(
        title(basis, levers) or "as profiled",
        levers,
        outlook.total,
        outlook.samples_per_second,
        rate / now if now else 0.0,
        costs.samples * costs.micro_batches,
        fullest.nbytes,
        fullest.ipu,
        memory_in_words(outlook.memory, doubt_of_memory),
        surely_fit(outlook.memory, doubt_of_memory),
        any(lever.estimate(basis, value) for lever, value in pulled(levers)),
        slower,
        quicker,
        code(basis, levers),
        argument(levers),
        outlook.problems,
    )


def _doubts(basis: Basis, levers: Levers, rate: float) -> tuple[float, float]:
    """Samples a second by which an estimate may be too many, and too few."""
    estimates = [lever for lever, value in pulled(levers) if lever.estimate(basis, value)]
    doubt = slower = quicker = 0.0
    for one in estimates:
        bounds = basis.bounds(levers) if one.name in ("micro_batch", "half") else ()
        if bounds:
            slower, quicker = (max(0.0, rate - bounds[0]), max(0.0, bounds[1] - rate))
        if bounds and one.name == "micro_batch":
            continue
        gain = abs(rate - _speed(basis, levers.without(one.name)))
        doubt += max(one.least_doubt * rate, one.doubt * gain)
    if levers.overlap:  # I/O tiles compute nothing
        doubt += rate * IO_TILES / basis.report.target.tiles_per_ipu
    return slower + doubt, quicker + doubt


def too_large(basis: Basis, excluded: Sequence[str] = ()) -> Advice | None:
    """Of quicker settings that do not fit, the one nearest to fitting; no ``excluded`` levers."""
    now = basis.outlook(Levers()).samples_per_second
    others = (one for one in singles(basis, anything(basis)) if not {*one.pulled} & {*excluded})
    quicker = [one for one in others if _speed(basis, one) > now * (1 + LEAST_GAIN)]
    refused = [predicted(basis, one, now) for one in quicker if not basis.fits(one)]
    return min(refused, key=lambda one: one.fullest, default=None)


def _gains(advice: Advice, now: float) -> bool:
    return not advice.problems and advice.samples_per_second > now * (1 + LEAST_GAIN)


def _best_of_each(basis: Basis, advices: Sequence[Advice]) -> list[Advice]:
    """The best setting of each lever, most samples a second first, with open code last.

    Behind one that may not fit also the best that surely does.
    """

    def last(one: Advice) -> tuple[bool, float]:
        return has_open_code(basis.memory_with(one.levers)), -one.samples_per_second

    ranked = sorted(advices, key=last)
    best, sure = set[tuple[str, ...]](), set[tuple[str, ...]]()
    kept = []
    for advice in ranked:
        lever, fits = advice.levers.pulled, advice.surely
        if lever not in best or (fits and lever not in sure):
            kept.append(advice)
        best.add(lever)
        sure |= {lever} if fits else set()
    return kept


# -- settings of each lever ---


def _batches(
    basis: Basis, allowed: Allowed, stages: int = 0, replicas: int = 0
) -> list[tuple[int, int]]:
    """(micro-batch size, number of micro-batches) to try; 0: as now."""
    per_update = replicas or basis.replicas
    now = cuts(basis, stages, per_update)
    batches = [*([] if replicas else [(0, 0)]), *now]
    if allowed.samples:
        for size in (0, *LEVERS["micro_batch"].settings(basis, allowed)):
            samples = (size or basis.micro_batch) * per_update
            some = counts(basis, allowed.samples, stages)
            fitting = [count for count in some if count * samples <= allowed.samples]
            batches.append((size, max(fitting, default=0)))
    return list(dict.fromkeys(batches))


def _splits(basis: Basis, levers: Levers) -> Iterator[Levers]:
    """The levers with splits worth trying: tied weights at home, and what a plan answers."""
    if not basis.can_split:
        return
    costs, present = basis.costs_with(levers), basis.present
    if not levers.replicas:
        yield from (replace(levers, split=one) for one in back_home(costs, present))
    if len(set(present.ipus)) > _FEW_STAGES:
        return
    key = replace(levers, split=None, replicas=0), _samples(basis, levers)
    if key not in basis.plans:
        basis.plans[key] = _of_a_plan(basis, *key)
    best = basis.plans[key]
    if best is None:
        return
    mapping, split = best.mapping, assignment_of(best.mapping, costs)
    split = split if costs.choices else replace(split, choices=())
    if mapping.replicas != basis.replicas:
        count = mapping.accumulation
        yield replace(levers, split=split, replicas=mapping.replicas, micro_batches=count)
    elif not levers.replicas and (split.starts, split.ipus) != (present.starts, present.ipus):
        yield replace(levers, split=split)


def _of_a_plan(basis: Basis, levers: Levers, samples: int) -> Candidate | None:
    """What the search of ``ipu-run --plan`` finds on as many IPUs, by the costs with the levers.

    Replicas, splits and the accumulation that follows, at so many samples.
    """
    costs = basis.same_costs_with(levers)
    size, shards = costs.samples // max(1, costs.replicas), costs.machine.shards
    in_parts = costs.replicas if STATES[2] in (basis.state, levers.state) else 0
    key = Key(shards, size, in_parts=in_parts, accumulates=costs.micro_batches > 1)
    fixed: dict[str, Any] = (
        {} if costs.choices else {RECOMPUTE: costs.recompute, STATE: costs.offload}
    )
    if basis.written_buffers and basis.report.options.get("broadcastBuffers") is not False:
        fixed["r"] = 1  # PopTorch refuses others
    if not size or samples % size:
        return None
    question = Question(
        shards * _ipus(basis), samples, (size,), fixed=fixed, training=costs.training
    )
    return best_of(Priced(key, costs), question)


# -- all together ---


def _together(basis: Basis, allowed: Allowed, single: Sequence[Advice]) -> Levers:
    """The quickest combination that fits, never slower than the best of the ``single`` levers.

    The search starts from the present, from the best other split, and from the best single lever,
    which then stays.
    """
    by_split = [one.levers for one in single if one.levers.split is not None]
    starts = dict.fromkeys((Levers(), *by_split[:1], *(one.levers for one in single[:1])))
    candidates = [_climbed(basis, allowed, start) for start in starts]
    best = max(candidates, key=lambda one: _worth(basis, one))
    least = single[0].samples_per_second if single else 0.0
    if _rate(basis, best) < least:  # more samples a weight update, which that lever takes alone
        best = max(candidates, key=lambda one: _rate(basis, one))
    for name in best.pulled:  # drop what adds nothing beside the others
        fewer = best.without(name)
        enough = max(least, _rate(basis, best) / (1 + LEAST_GAIN))
        if _is_allowed(basis, allowed, fewer) and _rate(basis, fewer) >= enough:
            best = fewer
    return best


def _is_allowed(basis: Basis, allowed: Allowed, levers: Levers) -> bool:
    """Whether a weight update has as many samples as now, or at most the allowed number."""
    then, split = _samples(basis, levers), levers.split or basis.present
    replicas = levers.replicas or basis.replicas
    if attached(max(split.ipus) + 1) * replicas > _ipus(basis):
        return False
    if not allowed.samples:
        return then == _samples(basis, Levers())
    return then <= allowed.samples


def _ipus(basis: Basis) -> int:
    """IPUs that are attached now; shards count once."""
    return attached(max(basis.present.ipus) + 1) * basis.replicas


def _samples(basis: Basis, levers: Levers) -> int:
    """Samples of a weight update, over all replicas."""
    count = levers.micro_batches or basis.costs.micro_batches
    return count * (levers.micro_batch or basis.micro_batch) * (levers.replicas or basis.replicas)


def _climbed(basis: Basis, allowed: Allowed, fixed: Levers) -> Levers:
    """Settings beside the ``fixed`` ones, then a split for them, for as long as either gains."""
    best = _best_beside(basis, allowed, fixed)
    for _ in range(_ROUNDS if basis.can_split else 0):
        others = list(_splits(basis, best))
        other = max(others, key=lambda one: _worth(basis, one), default=best)
        if _worth(basis, other) <= _worth(basis, best) * (1 + LEAST_GAIN):
            return best
        around = replace(fixed, split=other.split, replicas=other.replicas)
        best = _best_beside(basis, allowed, around)
        best = best if _is_allowed(basis, allowed, best) else other
    return best


def _best_beside(basis: Basis, allowed: Allowed, fixed: Levers) -> Levers:
    """The best of all settings not ``fixed``; only the fewest outputs, which never cost memory."""
    halves = basis.sizes.halves and allowed.half and not fixed.half
    precisions = [None, True] if halves else [fixed.half]
    stages = len((fixed.split or basis.present).starts)
    batches = _batches(basis, allowed, stages, fixed.replicas)
    if fixed.micro_batch:
        batches = [one for one in batches if one[0] == fixed.micro_batch]
    if fixed.micro_batches:
        batches = [one for one in batches if one[1] == fixed.micro_batches]
    batches = batches or [(fixed.micro_batch, fixed.micro_batches)]
    ways = _values_of(basis, allowed, fixed, "recompute")
    states = _values_of(basis, allowed, fixed, "state")
    outputs = fixed.outputs or ["", *LEVERS["outputs"].settings(basis, allowed)][-1]
    ranked: list[tuple[float, Levers]] = []
    beside = _values_of(basis, allowed, fixed, "overlap")
    for half, (size, count), again, state, over in product(
        precisions, batches, ways, states, beside
    ):
        pulled = (half, size, count, fixed.replicas, again, outputs, state, over)
        levers = Levers(*pulled, fixed.split)
        ranked.append((_speed(basis, levers) * _worth_of_samples(basis, levers), levers))
    # Best first: a setting worth less than one that fits is never asked whether it fits.
    least = _worth(basis, fixed) if _is_allowed(basis, allowed, fixed) else 0.0
    for value, levers in sorted(ranked, key=lambda one: -one[0]):
        if value <= least:
            break
        if basis.fits(levers):
            return levers
    return fixed


def _values_of(basis: Basis, allowed: Allowed, fixed: Levers, name: str) -> list[Any]:
    """The fixed value of this lever, or the profiled one and all others."""
    if name in fixed.pulled:
        return [getattr(fixed, name)]
    return [getattr(Levers(), name), *LEVERS[name].settings(basis, allowed)]


def _worth(basis: Basis, levers: Levers) -> float:
    """Samples a second, less what more samples a weight update cost learning; 0: does not run."""
    return _rate(basis, levers) * _worth_of_samples(basis, levers)


def _worth_of_samples(basis: Basis, levers: Levers) -> float:
    """The worth of a sample beside a present one: less when an update has more of them."""
    more = _samples(basis, levers) / _samples(basis, Levers())
    worth: float = (1 - _A_DOUBLING) ** max(0.0, log2(more))
    return worth


def _rate(basis: Basis, levers: Levers) -> float:
    """Samples a second; 0 if it does not run."""
    speed = _speed(basis, levers)
    return speed if speed and basis.fits(levers) else 0.0


def _speed(basis: Basis, levers: Levers) -> float:
    """Samples a second, whatever the memory; 0 with fewer micro-batches than stages need."""
    costs, stages = basis.costs_with(levers), len(basis.assignment_with(levers).starts)
    least = closed_forms.pipeline_stages(stages, costs.training) if costs.pipelined else 1
    unpriced = stages == 1 and costs.alone_off_chip
    if costs.micro_batches < least or (levers.overlap and stages > 1) or unpriced:
        return 0.0
    total = basis.cycles_with(levers)
    return costs.samples * costs.micro_batches * costs.machine.clock_hz / max(1, total)
