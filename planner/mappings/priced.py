"""Costs of Blocks as one compile has them, and a replica of a pipeline with its place in a pod."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import numpy as np

from ipuscope.planner.costs.all_reduce import Rings, rings_of
from ipuscope.planner.costs.memory_choice import Choice
from ipuscope.planner.costs.profile_costs import Costs
from ipuscope.planner.mappings.mapping import Key, attached
from ipuscope.planner.mappings.question import RECOMPUTE, STATE, Question
from ipuscope.planner.search.split_search import one_an_ipu, returning
from ipuscope.profiler.confidence import likely
from ipuscope.profiler.enums import Direction
from ipuscope.profiler.lazy import cached_property
from ipuscope.profiler.report import Report
from ipuscope.profiler.timeline import closed_forms

_WORK = (Direction.FORWARD, Direction.BACKWARD)
_EXCHANGED = ("exchange", "sync")


_MOST_KNOWN = 8  # results of compiles that a worker keeps, each with its tables of memory


@dataclass(frozen=True)
class Priced:
    """The results of one compile.

    What another process gets twice is one object there: `Costs.tables` are made once in each.
    """

    key: Key
    costs: Costs
    exchange: float = 0.0  # share of the cycles in which Blocks run that tiles exchange and meet
    flops: int = 0  # of a micro-batch, forward and backward, on one of its shards
    doubt: str = ""  # how far cycles are likely off (`profiler.confidence.likely`)

    @classmethod
    def from_report(cls, report: Report, key: Key) -> Priced:
        """The costs of a profile, for any mapping."""
        ops = report.ops
        return cls(
            key,
            _for_any_mapping(Costs.from_report(report), report),
            _exchanged(report),
            int(ops["flops"][ops["direction"].isin(_WORK)].sum()),
            likely(report),
        )

    def __reduce__(self) -> tuple[Callable[[bytes], Priced], tuple[bytes]]:
        return _received, (self._sent,)

    @cached_property
    def _sent(self) -> bytes:
        values = tuple(getattr(self, one.name) for one in fields(self))
        return pickle.dumps(values, pickle.HIGHEST_PROTOCOL)


_known = dict[bytes, Priced]()  # the newest last


def _received(sent: bytes) -> Priced:
    priced = _known.pop(sent, None) or Priced(*pickle.loads(sent))
    for oldest in [*_known][: 1 - _MOST_KNOWN]:
        del _known[oldest]
    _known[sent] = priced
    return priced


def _for_any_mapping(costs: Costs, report: Report) -> Costs:
    """Another mapping's stages save memory in ways of their own.

    One stage alone sends off the chip what its Blocks save, if the script says so.
    """
    costs = replace(costs, choices=(), measured=False, alone_off_chip=False)
    off_chip = report.options.get("TensorLocations.locationActivation.onChipStorage") is False
    if not (off_chip and costs.pipelined and costs.training):
        return costs
    cycles, memory = costs.cycles, costs.memory
    both = costs.machine.offload_cycles(costs.saved_bytes, memory.saved_tensors)
    moved = np.rint(np.asarray(both) / 2).astype(np.int64)
    if len(report.stages) == 1:
        forward, backward = cycles.forward - moved, cycles.backward - moved
        cycles = replace(cycles, forward=forward, backward=backward)
    return replace(costs, cycles=cycles, moved_alone=moved)


def _exchanged(report: Report) -> float:
    """Share of the cycles of Blocks' steps in which tiles exchange and synchronise."""
    steps = report.steps_as_run()
    block_steps = steps[(steps["block"] >= 0) & steps["direction"].isin(_WORK)]
    cycles = block_steps.groupby("kind")["cycles"].sum()
    total = float(cycles.sum())
    return float(cycles.reindex(list(_EXCHANGED), fill_value=0).sum()) / total if total else 0.0


@dataclass(frozen=True)
class Place:
    """Costs, the IPU of each stage, the number of replicas, and micro-batches for each."""

    priced: Priced
    ipus: tuple[int, ...]
    replicas: int
    accumulation: int

    @property
    def pipeline(self) -> int:
        """p: IPUs of a replica, shards counted once."""
        return max(self.ipus) + 1

    @property
    def attached(self) -> int:
        """IPUs that it takes."""
        return self.priced.key.shards * attached(self.pipeline) * self.replicas

    @property
    def costs(self) -> Costs:
        """The costs of Blocks in this place."""
        key, costs = self.priced.key, self.priced.costs
        if len(self.ipus) > 1 and self.ipus[-1] == self.ipus[0]:  # where the first one's weight is
            costs = costs.with_ties_at_home
        costs = costs.of_micro_batches(self.accumulation).on_replicas(self.replicas, self.pipeline)
        return replace(costs, rings=self._rings_in_parts) if key.in_parts else costs

    @property
    def _rings_in_parts(self) -> Rings:
        """The rings of these replicas.

        State in parts scatters gradients and gathers weights: as many bytes as an all-reduce, in
        more steps, as small weights stay whole with their own all-reduce. How much longer is known
        from the compile.
        """
        key, costs = self.priced.key, self.priced.costs
        whole = rings_of(costs.machine, key.shards, self.pipeline, self.replicas)
        compiled = rings_of(costs.machine, key.shards, max(costs.ipus) + 1, key.in_parts)
        where = np.array(costs.ipus)[costs.stage]
        nbytes = np.bincount(where, weights=costs.gradients, minlength=max(costs.ipus) + 1)
        longer = costs.reduce - int(compiled.cycles(nbytes).max())
        return Rings(whole.base + longer, whole.rate)


def places(priced: Priced, question: Question) -> list[Place]:
    """Every place that is legal for these costs on at most the IPUs that are asked for.

    p from 1 on, one stage an IPU or, with tied weights, one that returns to the first
    (`ipuscope.planner.search.split_search.returning`), and every number of replicas that leaves a
    whole number of micro-batches, enough for the stages.
    """
    key, legal = priced.key, list[Place]()
    for ipus in [(0,)] if key.again else _stage_lists(priced.costs, question):
        for replicas in range(1, question.ipus // (key.shards * attached(max(ipus) + 1)) + 1):
            each, left = divmod(question.global_batch, key.micro_batch * replicas)
            place = Place(priced, ipus, replicas, each)
            if not left and _legal(place, question):
                legal.append(place)
    return legal


def _stage_lists(costs: Costs, question: Question) -> list[tuple[int, ...]]:
    most = min(len(costs), question.ipus)
    lists: list[tuple[int, ...]] = []
    for ipus in reversed(one_an_ipu(most)):
        back = returning(len(ipus), costs)[:1] if len(costs.cuts.ties) else []
        lists += [ipus, *back]
    return lists


def coming_back(place: Place, question: Question) -> list[Place]:
    """Places beyond `places`: a stage comes back to any IPU, of as many or of all attached."""
    costs = place.priced.costs
    back: list[Place] = []
    most = len(costs) - 1
    for count in sorted({min(place.pipeline, most), min(attached(place.pipeline), most)}):
        lists = returning(count, costs)
        if len(costs.cuts.ties):
            lists = lists[1:]
        back += [replace(place, ipus=ipus) for ipus in lists]
    return [one for one in back if _legal(one, question)]


def _legal(place: Place, question: Question) -> bool:
    key, fixed = place.priced.key, question.fixed
    stages = len(place.ipus)
    several = stages > 1 and place.priced.costs.pipelined
    least = closed_forms.pipeline_stages(stages, question.training) if several else 1
    values = {"p": place.pipeline, "r": place.replicas, "accumulation": place.accumulation}
    return (
        place.accumulation >= least
        and (place.accumulation > 1) == key.accumulates
        and (not key.in_parts or key.in_parts == place.replicas)
        and all(fixed.get(name, value) == value for name, value in values.items())
    )


def choices_of(place: Place, question: Question) -> tuple[Choice, ...]:
    """Ways in which a stage may save memory, cheapest first."""
    costs, fixed = place.priced.costs, question.fixed
    stashes = costs.training and len(place.ipus) > 1
    again = _allowed(fixed.get(RECOMPUTE), stashes)
    has_state = costs.training and bool(costs.memory.state.any())
    off = _allowed(fixed.get(STATE), has_state)
    return tuple(Choice(one, where) for one in again for where in off)


def _allowed(fixed: bool | None, matters: bool) -> tuple[bool, ...]:
    if not matters:
        return (False,)
    return (False, True) if fixed is None else (fixed,)


def keeps_are_cheapest(costs: Costs) -> bool:
    """Whether stages that keep what Blocks save are never slower than those that recompute.

    Then the quickest split with endless memory needs only the first choice.
    """
    if not costs.training:
        return True
    first, last = np.triu_indices(len(costs))
    keeping, recomputing = (
        costs.stash_cycles(first, last, recompute) for recompute in (False, True)
    )
    return bool((2 * keeping <= 2 * recomputing + costs.again_cycles(first, last)).all())


def is_legal(key: Key, question: Question) -> bool:
    """Whether any place may have these costs; without accumulation a micro-batch is all."""
    if key.accumulates:
        return True
    return any(
        key.micro_batch * replicas == question.global_batch
        for replicas in range(1, question.ipus // key.shards + 1)
    )


def lacking(place: Place) -> int:
    """Bytes that all tiles together lack, whatever the split; 0 or less: who knows.

    Weights, accumulators and code of each Block lie somewhere; optimiser state may not.
    """
    costs = place.priced.costs
    nbytes = int(costs.memory.always.sum())
    return nbytes - place.pipeline * costs.machine.tiles * costs.machine.bytes_per_tile
