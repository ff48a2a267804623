"""The search for the best mapping, compile by compile.

Costs come wave by wave, since what one wave found rules out compiles of the next: the script's own
micro-batch and memory proportion, then the others, then optimiser state in parts; at last the best
mapping itself, in full, until what leads is what was compiled. What is compiled in a wave does not
depend on the order in which its results come, so that the answer is the same for any number of
workers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from planner import words
from planner.engine import Engine, Settled
from planner.mapping import Key, Mapping
from planner.plan import Candidate, Obtained, Plan, worth
from planner.priced import Place, Priced, is_legal, lacking, places
from planner.question import PARTS, Question
from planner.search import Found, look_into, split_onto
from profiler.rebalance.split import at_least

MOST_IN_PARTS = 6  # compiles of optimiser state in parts
_A_WAVE = 3  # of them at a time
MOST_SETTLED = 6  # full compiles until what leads is what was compiled

INTERRUPTED = "interrupted"


class NoMapping(Exception):
    """Nothing fits; the message says by how many bytes, on what, and what would."""


@dataclass(frozen=True)
class News:
    """Progress: ``done`` of ``wanted`` compiles, and the best so far."""

    done: int
    wanted: int
    what: str
    best: Candidate | None


@dataclass
class _State:
    """The state of the search."""

    question: Question
    engine: Engine
    told: Callable[[News], None]
    priced: dict[Key, Priced] = field(default_factory=dict)
    found: dict[Key, Found] = field(default_factory=dict)
    candidates: list[Candidate] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    open_rate: float = 0.0
    done: int = 0
    wanted: int = 0
    began: float = field(default_factory=time.monotonic)
    stopped: str = ""

    @property
    def best(self) -> Candidate | None:
        running = [one for one in self.candidates if one.runs]
        return max(running, key=self.worth, default=None)

    def worth(self, candidate: Candidate) -> tuple[float, ...]:
        return worth(candidate, self.question.objective)

    def late(self) -> bool:
        """Whether the time budget is used up."""
        budget = self.question.budget
        over = bool(budget) and time.monotonic() - self.began > budget
        if over:
            self.stopped = f"the budget of {budget:g} s is spent"
        return over

    def tell(self, what: str) -> None:
        self.told(News(self.done, self.wanted, what, self.best))


def plan(
    question: Question,
    engine: Engine,
    keys: Sequence[Key],
    told: Callable[[News], None] = lambda news: None,
    blocks: tuple[str, ...] = (),
) -> Plan:
    """The best mappings for the question. NoMapping where nothing fits.

    ``keys``: what may be compiled for costs, the script's own first. ``told`` how far it is. A
    KeyboardInterrupt ends the search with what was found, if anything was.
    """
    state = _State(question, engine, told)
    keys = [key for key in keys if is_legal(key, question)]
    state.wanted = len(keys)
    try:
        _price(state, keys[:1])
        _price(state, _could_win(state, keys[1:]))
        _in_parts(state)
        _settle(state)
    except KeyboardInterrupt:
        if not state.candidates:
            raise
        state.stopped = INTERRUPTED
    if not state.candidates or state.best is None:
        raise NoMapping(words.no_mapping(state.priced.values(), state.left_out, question, engine))
    return _plan_of(state, blocks)


def _plan_of(state: _State, blocks: tuple[str, ...]) -> Plan:
    """Best first; those that turned out not to run come last."""
    question = state.question
    ranked = sorted(state.candidates, key=state.worth, reverse=True)
    ranked.sort(key=lambda one: not one.runs)
    best = ranked[0]
    gap = 0.0
    if state.open_rate > best.rate:
        gap = 1 - best.rate / state.open_rate
    some = next(iter(state.priced.values())).costs
    draft = Plan(
        question,
        tuple(ranked),
        blocks or some.names,
        gap=gap,
        left_out=tuple(state.left_out),
        stopped=state.stopped,
        compiles=state.done,
        seconds=time.monotonic() - state.began,
        clock_hz=some.machine.clock_hz,
    )
    return replace(draft, why=tuple(words.why(draft)))


# -- costs ---


def _price(state: _State, keys: Sequence[Key]) -> None:
    """Compile for the costs of these keys, and look into what they give, in their order."""
    if not keys or state.late():
        state.left_out += [f"{key}: there was no time for it" for key in keys]
        return
    results: Iterable[Priced | str] = state.engine.price(keys)
    for number, (key, result) in enumerate(zip(keys, results, strict=True)):
        state.done += 1
        if isinstance(result, str):
            state.left_out.append(f"{key}: {result}")
            state.tell(str(key))
            continue
        same = next((one for one in state.priced.values() if _equal(one, result)), None)
        if same is not None:
            state.left_out.append(f"{key}: Blocks cost what they do with {same.key}")
            continue
        state.priced[key] = result
        _look(state, result)
        if state.late():
            state.left_out += [f"{one}: there was no time for it" for one in keys[number + 1 :]]
            return


def _equal(one: Priced, other: Priced) -> bool:
    """Whether two memory proportions give the same costs."""
    if replace(one.key, proportion=0.0) != replace(other.key, proportion=0.0):
        return False
    pairs = [
        (getattr(one.costs.cycles, name), getattr(other.costs.cycles, name))
        for name in ("forward", "backward", "update")
    ]
    pairs += [
        (getattr(one.costs.memory, name), getattr(other.costs.memory, name))
        for name in ("always", "peak", "peak_interleaved", "saved")
    ]
    return all(np.array_equal(a, b) for a, b in pairs)


def _look(state: _State, priced: Priced) -> None:
    state.tell(str(priced.key))

    def told(candidate: Candidate) -> None:
        state.candidates.append(candidate)
        state.tell(str(priced.key))

    outcome = look_into(priced, state.question, state.engine.rings, state.best, told)
    state.found[priced.key] = outcome
    state.open_rate = max(state.open_rate, outcome.open_rate)


def _could_win(state: _State, keys: Sequence[Key]) -> list[Key]:
    """Keys that are not ruled out by memory and arithmetic alone.

    Without accumulation a replica is one stage, whose weights have to fit an IPU.

    All IPUs at their peak cannot process more samples a second than that over the operations of one
    sample, which are the same whatever the micro-batch and the memory proportion. They are counted
    on one shard.
    """
    best = state.best
    keys = [key for key in keys if key.accumulates or not _weights_lack(state, key)]
    if best is None or state.question.objective != "throughput":
        return list(keys)
    each = [one.flops / one.key.micro_batch * one.key.shards for one in state.priced.values()]
    operations = min(each, default=0.0)
    peak = state.question.ipus * state.engine.peak / operations if operations else np.inf
    if peak >= best.rate:
        return list(keys)
    state.left_out += [
        f"{key}: at the IPUs' peak it would do {peak:,.0f} samples/s" for key in keys
    ]
    return []


def _weights_lack(state: _State, key: Key) -> bool:
    """Whether all weights are too much for one IPU, by the compiles there are."""
    for one in state.priced.values():
        costs = one.costs
        held = int(costs.memory.always.sum() - costs.gradients.sum())
        if one.key.shards == key.shards:
            return held > costs.machine.tiles * costs.machine.bytes_per_tile
    return False


# -- optimiser state in parts ---


def _in_parts(state: _State) -> None:
    """Compile with optimiser state in parts, where that could be best; what is left stays open."""
    question, fixed = state.question, state.question.fixed.get(PARTS)
    if not question.training or fixed is False:
        return
    tried: set[Key] = set()
    for _ in range(MOST_IN_PARTS // _A_WAVE):
        wave = [key for _, key in _promising(state) if key not in tried][:_A_WAVE]
        if not wave:
            return
        tried.update(wave)
        state.wanted += len(wave)
        _price(state, wave)
    left = [(rate, key) for rate, key in _promising(state) if key not in tried]
    if left:
        state.open_rate = max(state.open_rate, left[0][0])
        names = ", ".join(str(key) for _, key in left[:3])
        state.left_out.append(
            f"{len(left)} ways to keep state in parts were not compiled ({names}"
            f"{', ...' if len(left) > 3 else ''}): at the most {left[0][0]:,.0f} samples/s"
        )


def _promising(state: _State) -> list[tuple[float, Key]]:
    """Keys with state in parts by the samples a second that no such mapping exceeds, if it may win.

    The update costs nothing in that bound, and memory is endless.
    """
    best = state.best
    beaten = best.rate if best is not None else 0.0
    bounds: dict[Key, float] = {}
    for key, priced in state.priced.items():
        if key.in_parts or not priced.costs.memory.state.any():
            continue
        for place in places(priced, state.question):
            if place.replicas == 1 or lacking(place) > 0:
                continue
            rate = _rate_without_update(place, state)
            parts = replace(key, in_parts=place.replicas)
            if rate > beaten * 1.001 and state.question.objective == "throughput":
                bounds[parts] = max(bounds.get(parts, 0.0), rate)
    return sorted(((rate, key) for key, rate in bounds.items()), reverse=True)


def _rate_without_update(place: Place, state: _State) -> float:
    costs = place.costs(state.engine.rings)
    free = replace(costs, cycles=replace(costs.cycles, update=np.zeros_like(costs.cycles.update)))
    cycles = max(1, at_least(free, place.ipus))
    return state.question.global_batch * costs.machine.clock_hz / cycles


# -- the best, in full ---


def _settle(state: _State) -> None:
    """Compile what leads in full until what leads was compiled and runs.

    A compile says what memory it takes, and what its Blocks cost there: a nearer basis for other
    splits onto the same place, which are then looked for once more.
    """
    for _ in range(MOST_SETTLED):
        leader = state.best
        if leader is None or leader.obtained is not None or state.late():
            return
        state.wanted += 1
        for settled in state.engine.settle([leader.mapping]):
            _take(state, leader, settled)


def _take(state: _State, leader: Candidate, settled: Settled) -> None:
    state.done += 1
    at = state.candidates.index(leader)
    state.candidates[at] = replace(leader, obtained=settled.obtained)
    if settled.priced is not None:
        ipus = tuple(stage.ipu for stage in leader.mapping.stages)
        place = Place(settled.priced, ipus, leader.mapping.replicas, leader.mapping.accumulation)
        try:
            again = split_onto(place, state.question, state.engine.rings)
        except ValueError:
            again = None
        known = {one.mapping for one in state.candidates}
        if again is not None and again.mapping not in known:
            state.candidates.append(again)
    state.tell(f"in full: {leader.mapping}")


def verified(
    made: Plan,
    engine: Engine,
    count: int,
    told: Callable[[News], None] = lambda news: None,
) -> Plan:
    """The plan with its first ``count`` candidates compiled in full, predicted beside obtained."""
    wanted = [one for one in made.candidates[:count] if one.obtained is None]
    came: dict[Mapping, Obtained] = {}
    for settled in engine.settle([one.mapping for one in wanted]):
        came[settled.mapping] = settled.obtained
        told(News(len(came), len(wanted), f"in full: {settled.mapping}", made.candidates[0]))
    candidates = [
        replace(one, obtained=came.get(one.mapping, one.obtained)) for one in made.candidates
    ]
    candidates.sort(key=lambda one: not one.runs)
    return replace(made, candidates=tuple(candidates), compiles=made.compiles + len(came))
