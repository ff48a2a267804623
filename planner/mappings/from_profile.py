"""The mappings that the costs of one profile promise: a plan's search, without its compiles."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ipuscope.planner.costs.profile_costs import Costs
from ipuscope.planner.levers.levers import Basis, Levers
from ipuscope.planner.mappings.compile_search import plan
from ipuscope.planner.mappings.compile_waves import keys_of
from ipuscope.planner.mappings.engine import Settled
from ipuscope.planner.mappings.mapping import Key, Mapping, attached
from ipuscope.planner.mappings.mapping_search import candidate_of, one_by_one
from ipuscope.planner.mappings.plan import Candidate, Obtained, Plan
from ipuscope.planner.mappings.priced import Place, Priced, RingsOf
from ipuscope.planner.mappings.question import PARTS, Question
from ipuscope.planner.mappings.search_state import News, NoMapping
from ipuscope.planner.predict.memory_verdict import Answer
from ipuscope.planner.search.near_fits import or_close
from ipuscope.planner.search.split_search import Split, best_split, quickest_split, returning

_SURE = 0.9  # of the best rate: what was profiled and surely fits comes first from there on
_ROOM = 0.75  # of a tile: what estimates may fill, since an LSTM took 27 % more than its estimate


@dataclass(frozen=True)
class OneProfile:
    """`ipuscope.planner.mappings.engine.Engine` over a profile: it prices, and compiles nothing.

    Costs of another micro-batch, or of one without accumulators, are estimates.
    """

    basis: Basis
    present: Priced
    rings: RingsOf
    peak: float = 0.0

    def own(self) -> Mapping | None:
        """None: what was profiled may be deeper than what the script has."""
        return None

    def names(self, key: Key) -> tuple[str, ...]:
        """The profile's Blocks."""
        return self.basis.costs.names

    def price(self, keys: Sequence[Key]) -> Iterator[Priced | str]:
        """What the profile promises for each key."""
        return map(self._price, keys)

    def settle(self, mappings: Sequence[Mapping]) -> Iterator[Settled]:
        """The same costs once more, for other splits of what leads; nothing was obtained."""
        for mapping in mappings:
            priced = self._price(mapping.key)
            yield Settled(mapping, Obtained(), None if isinstance(priced, str) else priced)

    def each(self, function: Callable[..., Any], every: Iterable[tuple[Any, ...]]) -> Iterator[Any]:
        """One by one, here."""
        return one_by_one(function, every)

    def ahead(self, keys: Sequence[Key], mappings: Sequence[Mapping]) -> None:
        """Nothing is begun ahead."""

    def _price(self, key: Key) -> Priced | str:
        own, costs = self.present.key, self.present.costs
        if key == own:
            return self.present
        like_own = replace(key, micro_batch=own.micro_batch, accumulates=own.accumulates) == own
        if not like_own or (key.accumulates and not own.accumulates):
            return "only a compile has its costs"
        if key.micro_batch != own.micro_batch:
            costs = self.basis.costs_with(Levers(micro_batch=key.micro_batch))
        if key.accumulates != own.accumulates:
            accumulators = costs.gradients[:, None] // costs.machine.tiles
            always = np.maximum(0, costs.memory.always - accumulators)
            costs = replace(costs, memory=replace(costs.memory, always=always))
        room = int(costs.machine.bytes_per_tile * _ROOM)
        costs = replace(costs.with_tile_bytes(room), choices=(), measured=False)
        return replace(self.present, key=key, costs=costs)


def best_by_profile(
    basis: Basis,
    ipus: int,
    rings: RingsOf,
    sizes: Sequence[int],
    fixed: dict[str, Any],
    on_news: Callable[[News], None] = lambda news: None,
) -> Plan:
    """The mappings onto that many IPUs that a profile promises, best first.

    The samples of a weight update stay. ``sizes``: micro-batches to try beside the profiled;
    ``fixed``: `Question.fixed`. What was profiled and surely fits comes before estimates and what
    may not fit, unless these are much quicker. Where nothing is sure, or stages are no pipeline, it
    is one split, as `ipuscope.planner.search.near_fits.or_close` finds it; ValueError where nothing
    fits or runs.
    """
    costs, several = basis.costs, basis.costs.micro_batches > 1
    key = Key(costs.machine.shards, basis.micro_batch, accumulates=several)
    engine = OneProfile(basis, Priced.from_report(basis.report, key), rings)
    question = Question(
        attached(ipus) * key.shards * costs.replicas,
        costs.samples * costs.micro_batches,
        (basis.micro_batch, *sizes),
        shards=(key.shards,),
        fixed={PARTS: False, **fixed},
        training=costs.training,
        suggested=("micro_batch",),
    )
    if costs.pipelined:
        try:
            return _surest_first(plan(question, engine, keys_of(question), on_news), engine)
        except NoMapping:
            pass
    split = or_close(costs, lambda on_tiles: _quickest(on_tiles, ipus))
    if split.prediction.problems:
        raise ValueError("; ".join(split.prediction.problems))
    ipus_of = split.prediction.assignment.ipus
    place = Place(engine.present, ipus_of, costs.replicas, costs.micro_batches)
    only = candidate_of(place, costs, split.prediction, split.proven, split.gap)
    return Plan(question, (only,), costs.names, gap=split.gap, clock_hz=costs.machine.clock_hz)


def _surest_first(made: Plan, engine: OneProfile) -> Plan:
    """The plan with the surest of its quickest first. NoMapping if none is sure at all."""
    best = max(made.candidates, key=lambda one: one.rate * _trust(one, engine))
    if not _trust(best, engine):
        raise NoMapping
    return replace(made, candidates=(best, *(one for one in made.candidates if one is not best)))


def _trust(candidate: Candidate, engine: OneProfile) -> float:
    """A factor on its rate; 0 for an estimate that may not fit, and for what hardly does."""
    sure, profiled = candidate.memory == Answer.FITS, candidate.mapping.key == engine.present.key
    if sure and profiled:
        return 1.0
    return _SURE if sure or (profiled and candidate.fullest <= candidate.limit) else 0.0


def _quickest(costs: Costs, ipus: int) -> Split:
    """The fastest split onto that many IPUs, one stage each or with one that comes back."""
    lists = [tuple(range(ipus)), *returning(ipus, costs)]
    try:
        return quickest_split(costs, lists)
    except ValueError:
        return best_split(costs, ipus)  # why one stage an IPU does not fit, or cannot run
