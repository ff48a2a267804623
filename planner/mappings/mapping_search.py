"""The best splits of one compile's Blocks onto every place that could win.

Places are tried in order of a lower bound of their cycles, found without looking at stages. Each is
first split with endless memory: a bound for all ways to save memory, and the answer where it fits;
else it is split again under the memory, with every way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from ipuscope.planner.costs.memory_choice import Choice
from ipuscope.planner.costs.profile_costs import Costs
from ipuscope.planner.mappings.mapping import Key, Mapping, StagePlan
from ipuscope.planner.mappings.plan import SHARES, Candidate, worth
from ipuscope.planner.mappings.priced import (
    Place,
    Priced,
    choices_of,
    coming_back,
    keeps_are_cheapest,
    lacking,
    places,
)
from ipuscope.planner.mappings.question import Question
from ipuscope.planner.predict.interval_memory import with_margin
from ipuscope.planner.predict.memory_verdict import summary
from ipuscope.planner.predict.what_if import Assignment, Prediction, what_if
from ipuscope.planner.search.split_search import Split, best_split, fewest_stages, quickest
from ipuscope.planner.search.split_search import at_least as cycles_at_least
from ipuscope.planner.search.what_fits import or_close, quicker_if_it_fits
from ipuscope.profiler.timeline import schedule_types

_ENDLESS = 1 << 40  # bytes of a tile
# Of the speed: gained by what is predicted over a tile. With 0 instead, plans of the demo, an LSTM,
# a GPT, T5-small and a point cloud network onto 4 IPUs are the same, after as many compiles; only
# T5-small had such splits, six, 1.6 to 209 % quicker, of which one gains less than this
_WORTH_A_COMPILE = 0.05
_AT_ONCE = 3  # places that are split at a time, however many workers there are
_LOOKED_AT = 3  # places of each compile that are split even if they cannot be the best
Each = Callable[[Callable[..., Any], Iterable[tuple[Any, ...]]], Iterator[Any]]
_WORK = (schedule_types.FORWARD, schedule_types.BACKWARD, schedule_types.RECOMPUTE)


@dataclass(frozen=True)
class Failure:
    """A place that nothing fits, and the reason."""

    place: Place
    why: str


@dataclass(frozen=True)
class Outcome:
    """The result of the places of one compile."""

    candidates: tuple[Candidate, ...] = ()
    open_rate: float = 0.0  # samples/s that an unexamined split could reach; 0: none could win


Within = Callable[[Costs, Callable[[Costs], Split]], Split]


def strictly(costs: Costs, search: Callable[[Costs], Split]) -> Split:
    """The split that fits by what is predicted."""
    return search(costs)


def or_much_quicker(costs: Costs, search: Callable[[Costs], Split]) -> Split:
    """The same, or one that may be too large and is worth a compile: what leads is compiled."""
    try:
        split = search(costs)
    except ValueError:
        if not costs.memory.region0.may_be_beyond(costs.machine):
            raise  # by its bytes: what comes close is looked at where nothing else fits
        return or_close(costs, search)
    maybe = quicker_if_it_fits(costs, search, split)
    much = maybe and maybe.prediction.total * (1 + _WORTH_A_COMPILE) <= split.prediction.total
    return maybe if maybe and much else split


def one_by_one(function: Callable[..., Any], every: Iterable[tuple[Any, ...]]) -> Iterator[Any]:
    """`ipuscope.planner.mappings.engine.Engine.each` in this process."""
    return (function(*arguments) for arguments in every)


def look_into(
    priced: Priced,
    question: Question,
    best: Candidate | None = None,
    on_candidate: Callable[[Candidate], None] = lambda candidate: None,
    at_least: int = _LOOKED_AT,
    each: Each = one_by_one,
) -> Outcome:
    """The best split of every place of these costs that could be better than the best.

    ``best``: found before; ``on_candidate`` gets each candidate that is found. ``at_least`` so many
    promising places are split in any case, to compare with. ``each``
    (`ipuscope.planner.mappings.engine.Engine.each`) splits some at a time.
    """
    to_beat = worth(best, question.objective) if best is not None else None
    promised = [(_promise(place, question), place) for place in places(priced, question)]
    waiting = sorted(promised, key=_in_order, reverse=True)
    candidates: list[Candidate] = []
    open_rate = 0.0
    too_few = _TooFew(priced, question)
    while waiting:
        missing, beat = at_least - len(candidates), None
        if missing <= 0 and to_beat is not None:
            beat = to_beat
            waiting = [one for one in waiting if one[0] > to_beat]
        wave, waiting = _a_wave(waiting, too_few, missing if missing > 0 else _AT_ONCE)
        how = (False, False, or_much_quicker)
        outcomes = each(try_split, [(place, question, beat, *how) for place in wave])
        for place, outcome in zip(wave, outcomes, strict=True):
            if isinstance(outcome, Failure):
                too_few.add(place)
            elif outcome is not None:
                to_beat = max(to_beat or (), worth(outcome, question.objective))
                candidates.append(outcome)
                on_candidate(outcome)
                if not outcome.proven:
                    open_rate = max(open_rate, outcome.samples_per_second / (1 - outcome.gap))
    return Outcome(tuple(candidates), open_rate)


def beating(priced: Priced, question: Question, best: Candidate | None) -> Outcome:
    """The splits by these costs that are better than the best."""
    return look_into(priced, question, best, at_least=0)


def free_in_parts(
    priced: Priced, replicas: int, question: Question, best: Candidate | None
) -> Outcome:
    """What could beat the best with so many replicas if state took neither time nor memory."""
    only = replace(question, fixed={**question.fixed, "r": replicas})
    return beating(replace(priced, costs=priced.costs.with_free_state), only, best)


def in_one_stage(priced: Priced, question: Question) -> list[tuple[float, Key]]:
    """Samples a second of replicas of one stage each with endless memory, and their key.

    With accumulation and without, where a micro-batch is all.
    """
    endless = _where_code_has_room(priced.costs).with_tile_bytes(_ENDLESS)
    rates = []
    for several in {priced.key.accumulates, False}:
        key = replace(priced.key, accumulates=several)
        every = places(replace(priced, key=key), question)
        # without accumulation there are no accumulators, as large as gradients
        spared = 0 if several else int(priced.costs.gradients.sum())
        alone = [one for one in every if one.ipus == (0,) and lacking(one) <= spared]
        roomy = Priced(key, endless)
        outcomes = [try_split(replace(one, priced=roomy), question, None) for one in alone]
        rate = [one.samples_per_second for one in outcomes if isinstance(one, Candidate)]
        rates.append((max(rate, default=0.0), key))
    return rates


def _where_code_has_room(costs: Costs) -> Costs:
    """The costs without the end of region 0, of which only a compile is sure."""
    beyond = costs.memory.region0.may_be_beyond(costs.machine)
    return replace(costs, memory=costs.memory.without_code) if beyond else costs


_Promised = tuple[tuple[float, ...], Place]


def _a_wave(
    waiting: list[_Promised], too_few: _TooFew, most: int
) -> tuple[list[Place], list[_Promised]]:
    """Next places to split, one per number of IPUs (its failure rules out others), and the rest."""
    wave: list[Place] = []
    left: list[_Promised] = []
    for bound, place in waiting:
        if too_few.for_weights_of(place):
            continue
        if len(wave) < most and all(place.pipeline != one.pipeline for one in wave):
            wave.append(place)
        else:
            left.append((bound, place))
    return wave, left


def rebalanced(place: Place, question: Question, best: Candidate) -> tuple[Candidate, ...]:
    """The splits that the costs of a mapping's own compile promise there or on fewer IPUs.

    Those of `ipuscope.planner.search.split_search.quickest`, and of lists that come back to any
    IPU; other lists than the mapping's own only if they could be better than ``best``.
    """
    priced, to_beat = place.priced, worth(best, question.objective)
    fixed = {**question.fixed, "r": place.replicas, "accumulation": place.accumulation}
    here = replace(question, ipus=place.attached, fixed=fixed)
    others = [*places(priced, here), *coming_back(place, here)]
    others = [option for option in others if option.ipus != place.ipus]
    promised = [(_promise(option, question), option) for option in others]
    too_few = _TooFew(priced, here)
    candidates = list[Candidate]()
    for bound, option in [((), place), *sorted(promised, key=_in_order, reverse=True)]:
        own, apart = option is place, len(set(option.ipus)) == len(option.ipus)
        if not own and (bound <= to_beat or (apart and too_few.for_weights_of(option))):
            continue
        beat = None if own else to_beat
        outcome = try_split(option, question, beat, exact=own)
        if not own and isinstance(outcome, Candidate) and _may_beat(outcome, question, to_beat):
            outcome = try_split(option, question, beat, exact=True)
        if isinstance(outcome, Failure):
            too_few.add(option)
        elif outcome is not None:
            to_beat = max(to_beat, worth(outcome, question.objective))
            candidates.append(outcome)
    return tuple(candidates)


def best_of(priced: Priced, question: Question) -> Candidate | None:
    """What one compile's costs promise most, on as many replicas as they have or on others.

    The first is `ipuscope.planner.search.split_search.quickest`, so that a rebalance says the same;
    others are looked at where their bound is better. None: nothing fits.
    """
    costs, best = priced.costs, None
    try:
        split = quickest(costs)
        place = Place(priced, split.prediction.assignment.ipus, costs.replicas, costs.micro_batches)
        best = candidate_of(place, costs, split.prediction, split.proven, split.gap)
    except ValueError:
        pass
    for replicas in sorted({place.replicas for place in places(priced, question)}):
        if best is None or replicas != costs.replicas:
            only = replace(question, fixed={**question.fixed, "r": replicas})
            others = beating(priced, only, best).candidates
            found = (*((best,) if best else ()), *others)
            best = max(found, key=lambda one: worth(one, question.objective), default=None)
    if best is None or best.mapping.replicas == costs.replicas:
        return best
    ipus = tuple(stage.ipu for stage in best.mapping.stages)
    place = Place(priced, ipus, best.mapping.replicas, best.mapping.accumulation)
    back = rebalanced(place, question, best)
    return max((best, *back), key=lambda one: worth(one, question.objective))


def come_back(priced: Priced, question: Question) -> tuple[Candidate, ...]:
    """Splits for models that no `ipuscope.planner.mappings.priced.places` hold, ever quicker.

    Two small stages may fit on one IPU where one stage an IPU is too much for one of them. If none
    does, it is splits of which only a compile can tell whether they fit.
    """
    usual = places(priced, question)
    if _none_fits(priced.costs, max(usual, key=lambda one: len(one.ipus), default=None), question):
        return ()
    back = [one for place in usual for one in coming_back(place, question)]
    return _ever_quicker(priced, question, back, strictly) or _ever_quicker(
        priced, question, [*usual, *back], or_close
    )


def _none_fits(costs: Costs, longest: Place | None, question: Question) -> bool:
    """Whether a Block alone is surely more than an IPU holds, in company too."""
    if longest is None:
        return True
    roomy = costs.with_tile_bytes(with_margin(costs.machine.bytes_per_tile))
    return fewest_stages(roomy, choices_of(longest, question), in_company=True) > len(costs)


def _ever_quicker(
    priced: Priced, question: Question, every: list[Place], within: Within
) -> tuple[Candidate, ...]:
    once = {(option.ipus, option.replicas): option for option in every}
    promised = [(_promise(option, question), option) for option in once.values()]
    # memory does not depend on the number of replicas
    too_much = set[tuple[int, ...]]()
    candidates = list[Candidate]()
    to_beat: tuple[float, ...] = ()
    for bound, option in sorted(promised, key=_in_order, reverse=True):
        if option.ipus in too_much or bound <= to_beat:
            continue
        outcome = try_split(option, question, to_beat or None, within=within)
        if isinstance(outcome, Failure):
            too_much.add(option.ipus)
        elif outcome is not None:
            to_beat = max(to_beat, worth(outcome, question.objective))
            candidates.append(outcome)
    return tuple(candidates)


def _may_beat(candidate: Candidate, question: Question, to_beat: tuple[float, ...]) -> bool:
    """Whether a split within the gap of this one could be worth more."""
    left = 1 - candidate.gap
    rate, seconds = candidate.samples_per_second / left, candidate.seconds * left
    promised = replace(candidate, samples_per_second=rate, seconds=seconds)
    return not candidate.proven and worth(promised, question.objective) > to_beat


def try_split(
    place: Place,
    question: Question,
    beat: tuple[float, ...] | None,
    surely: bool = False,
    exact: bool = False,
    within: Within = strictly,
) -> Candidate | Failure | None:
    """`split_onto`, or why nothing fits."""
    try:
        return split_onto(place, question, beat, surely, exact, within)
    except ValueError as error:
        return Failure(place, str(error))


def _in_order(promised: _Promised) -> tuple[float, ...]:
    """The sort key of a place: its promise; of equal ones, the list with more stages is last."""
    bound, place = promised
    return (*bound, -len(place.ipus))


class _TooFew:
    """Numbers of IPUs that do not hold the model, on any replicas; each is found out once.

    There, a list that comes back is tried only where weights are tied: on one IPU they need no
    copy.
    """

    def __init__(self, priced: Priced, question: Question) -> None:
        self._priced, self._question = priced, question
        self._tied = len(priced.costs.cuts.ties) > 0
        self._numbers: set[int] = set()
        self._fewest = cache(self._fewest_stages)  # by whether they are in company

    def _fewest_stages(self, in_company: bool) -> int:
        some = places(self._priced, self._question)
        longest = max(some, key=lambda one: len(one.ipus), default=None)
        choices = choices_of(longest, self._question) if longest is not None else ()
        costs = _where_code_has_room(self._priced.costs)
        return fewest_stages(costs, choices, in_company) if choices else 1

    def for_weights_of(self, place: Place) -> bool:
        """Whether this place has too few."""
        pipeline = place.pipeline
        if self._tied and len(place.ipus) != pipeline:
            return len(place.ipus) < self._fewest(True)
        return pipeline < self._fewest(False) or pipeline in self._numbers

    def add(self, place: Place) -> None:
        """Record that nothing fits this place."""
        if len(place.ipus) == place.pipeline:
            self._numbers.add(place.pipeline)


def _promise(place: Place, question: Question) -> tuple[float, ...]:
    """An upper bound of the worth (`ipuscope.planner.mappings.plan.worth`)."""
    costs = place.costs
    cycles = max(1, cycles_at_least(costs, place.ipus, choices_of(place, question)))
    rate = question.global_batch * costs.machine.clock_hz / cycles
    if question.objective == "fewest-ipus":
        return (-place.attached, rate)
    if question.objective == "latency":
        once = cycles if question.training else int(costs.cycles.forward.sum())
        return (-once / costs.machine.clock_hz, rate)
    return (rate, -place.attached)


def split_onto(
    place: Place,
    question: Question,
    beat: tuple[float, ...] | None = None,
    surely: bool = False,
    exact: bool = False,
    within: Within = strictly,
) -> Candidate | None:
    """The quickest split onto a place. ValueError where none runs; it says why.

    None: not worth more than ``beat`` with endless memory. ``surely``: none that a compile may find
    too large. ``exact``: stages of a returning list look at every way of saving memory. ``within``:
    calls the search with what a tile has, or with the error of predicted bytes more.
    """
    if lacking(place) > 0:
        raise ValueError(f"weights and code alone take {lacking(place):,} bytes too many")
    costs, choices = place.costs, choices_of(place, question)
    if len(place.ipus) == 1 and not costs.recompute_alone:
        costs = replace(costs, recompute=False)
    endless = _where_code_has_room(costs).with_tile_bytes(_ENDLESS)
    # where a stage comes back, what is cheapest for it may not be so for its IPU, by a few cycles
    apart = len(set(place.ipus)) == len(place.ipus)
    exactly = exact and not apart
    if len(choices) == 1 or (keeps_are_cheapest(costs) and not exactly):
        free = best_split(endless, ipus=place.ipus, choices=choices[:1])
        here = what_if(costs, free.prediction.assignment)
        over = any(one.free < 0 for one in here.memory)  # only the compile knows: `within` decides
        if not here.problems and not over and not (surely and here.notes):
            return candidate_of(place, costs, here, free.proven, free.gap)
        if beat is not None and free.proven:
            promised = candidate_of(place, costs, here, free.proven, free.gap)
            if worth(promised, question.objective) <= beat:
                return None

    split = within(costs, lambda on_tiles: best_split(on_tiles, ipus=place.ipus, choices=choices))
    if split.prediction.problems:
        raise ValueError("; ".join(split.prediction.problems))
    return candidate_of(place, costs, split.prediction, split.proven, split.gap)


def candidate_of(
    place: Place, costs: Costs, prediction: Prediction, proven: bool, gap: float
) -> Candidate:
    """A prediction as a candidate of a plan."""
    clock = costs.machine.clock_hz
    cycles = prediction.total
    if not costs.training:
        cycles = len(place.ipus) * prediction.pipeline_cycle
    fullest = max(prediction.memory, key=lambda one: one.nbytes)
    return Candidate(
        mapping_of(place, costs, prediction.assignment),
        prediction.total,
        prediction.samples_per_second,
        cycles / clock,
        fullest.nbytes,
        fullest.limit,
        summary(prediction.memory),
        shares_of(prediction, place.priced.exchange),
        proven,
        gap,
        doubt=place.priced.doubt,
    )


def mapping_of(place: Place, costs: Costs, assignment: Assignment) -> Mapping:
    """The mapping of a split onto a place."""
    key = place.priced.key
    parts = assignment.parts(costs)
    final = len(parts) - 1
    stages = tuple(
        StagePlan(
            ipu,
            costs.names[part.first : part.last + 1],
            part.choice.recompute if costs.training and k < final else key.last_recomputes,
            costs.training and part.choice.offload,
        )
        for k, (part, ipu) in enumerate(zip(parts, assignment.ipus, strict=True))
    )
    return key.mapping(place.replicas, stages, place.accumulation, bool(key.in_parts))


def assignment_of(mapping: Mapping, costs: Costs) -> Assignment:
    """The split of a mapping, as the costs' predictions take it."""
    starts, at = [], 0
    for stage in mapping.stages:
        starts.append(at)
        at += len(stage.blocks)
    choices = tuple(Choice(bool(stage.recompute), stage.state_off_chip) for stage in mapping.stages)
    return Assignment(tuple(starts), tuple(stage.ipu for stage in mapping.stages), choices)


def predicted(
    priced: Priced, mapping: Mapping, proven: bool = False, gap: float = 0.0
) -> Candidate:
    """What the costs predict for a given mapping."""
    ipus = tuple(stage.ipu for stage in mapping.stages)
    place = Place(priced, ipus, mapping.replicas, mapping.accumulation)
    costs = place.costs
    return candidate_of(place, costs, what_if(costs, assignment_of(mapping, costs)), proven, gap)


def shares_of(prediction: Prediction, exchange: float) -> dict[str, float]:
    """What all IPUs' time goes into, by `SHARES`; ``exchange``: of the Blocks' own cycles."""
    schedule = prediction.schedule
    spent = np.bincount(
        schedule.kind, weights=schedule.end - schedule.start, minlength=len(schedule_types.TASKS)
    )
    work, idle = float(spent[list(_WORK)].sum()), spent[schedule_types.IDLE]
    for_host = idle if len(set(prediction.assignment.ipus)) == 1 else 0  # over I/O tiles
    by_name = {
        "compute": work * (1 - exchange),
        "exchange": work * exchange + spent[schedule_types.COPY] + spent[schedule_types.SYNC],
        "bubble": idle - for_host,
        "all-reduce": spent[schedule_types.REDUCE],
        "update": spent[schedule_types.UPDATE],
        "host": spent[schedule_types.STREAM_IN] + spent[schedule_types.STREAM_OUT] + for_host,
    }
    total = sum(by_name.values()) or 1.0
    return {name: float(by_name[name] / total) for name in SHARES}
