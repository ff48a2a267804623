"""The search for the best mapping, compile by compile.

Costs come wave by wave, since what one wave found rules out compiles of the next: the script's own
micro-batch and memory proportion, then the others, then optimiser state in parts; at last the best
mapping itself, in full, until what leads is what was compiled. What is compiled in a wave does not
depend on the order in which its results come, so that the answer is the same for any number of
workers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from planner import words
from planner.engine import Engine, Settled
from planner.mapping import Key, Mapping
from planner.plan import Candidate, Obtained, Plan, worth
from planner.priced import Place, Priced, is_legal, lacking, places
from planner.question import PARTS, RECOMPUTE, STATE, Question
from planner.search import Found, look_into, predicted, split_onto

MOST_IN_PARTS = 6  # compiles of optimiser state in parts
_A_WAVE = 3  # of them at a time
MOST_SETTLED = 6  # full compiles until what leads is what was compiled

_NEAR = 0.95  # of the best rate: what makes it worthwhile to go on there
_OTHERS = ("shards", "proportion")  # than micro-batches
_DIMENSIONS = {"micro_batch": "micro_batches", "proportion": "proportions", "shards": "shards"}

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
    tried: set[Key] = field(default_factory=set)
    found: dict[Key, Found] = field(default_factory=dict)
    candidates: list[Candidate] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    open_rate: float = 0.0
    bounds: dict[tuple[Key, int], float] = field(default_factory=dict)  # with state in parts
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
    try:
        # the script's own mapping is a first answer while the other compiles run
        own, first = _begin_own(state), _first_wave(question, keys)
        state.wanted += len(first)
        costs = state.engine.price(first)
        _take_own(state, own)
        _look_at(state, first, costs)
        _walk(state, keys)
        _at_once(state, [key for key in keys if not key.accumulates])
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


# -- the script's own mapping ---


def _allows(question: Question, mapping: Mapping) -> bool:
    """Whether the question leaves room for a mapping; proportions are the script's to say."""
    fixed = question.fixed
    early = mapping.stages[:-1] if question.training else ()
    fits = mapping.attached <= question.ipus and mapping.samples == question.global_batch
    said = {
        "t": mapping.shards,
        "p": mapping.pipeline,
        "r": mapping.replicas,
        "accumulation": mapping.accumulation,
        "proportion": mapping.proportion,
        PARTS: mapping.in_parts,
    }
    return (
        fits
        and mapping.micro_batch in question.micro_batches
        and all(fixed.get(name, value) == value for name, value in said.items())
        and all(stage.recompute == fixed.get(RECOMPUTE, stage.recompute) for stage in early)
        and all(
            stage.state_off_chip == fixed.get(STATE, stage.state_off_chip)
            for stage in mapping.stages
        )
    )


def _begin_own(state: _State) -> Iterator[Settled]:
    """The script's own mapping, compiled in full, if the question allows it."""
    mapping = state.engine.own()
    if mapping is None or not _allows(state.question, mapping):
        return iter(())
    state.wanted += 1
    state.tell("the script's own mapping")
    return iter(state.engine.settle([mapping]))


def _take_own(state: _State, results: Iterator[Settled]) -> None:
    for settled in results:
        state.done += 1
        if settled.priced is None:
            state.left_out.append(f"the script's own mapping: {settled.obtained.problem}")
            continue
        own = predicted(settled.priced, settled.mapping, state.engine.rings)
        state.candidates.append(replace(own, obtained=settled.obtained, own=True))
        state.tell("the script's own mapping")


# -- costs ---


def _price(state: _State, keys: Sequence[Key]) -> None:
    """Compile for the costs of these keys, and look into what they give, in their order."""
    if not keys:
        return
    if state.late():
        state.left_out += [f"{key}: there was no time for it" for key in keys]
        state.tried.update(keys)
        return
    _look_at(state, keys, state.engine.price(keys))


def _look_at(state: _State, keys: Sequence[Key], results: Iterable[Priced | str]) -> None:
    """Look into costs as they come, in their order, until time is up."""
    for number, (key, result) in enumerate(zip(keys, results, strict=True)):
        state.done += 1
        state.tried.add(key)
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
            state.tried.update(keys)
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
        if any(candidate.mapping == one.mapping for one in state.candidates):
            return
        state.candidates.append(candidate)
        state.tell(str(priced.key))

    outcome = look_into(priced, state.question, state.engine.rings, state.best, told)
    state.found[priced.key] = outcome
    state.open_rate = max(state.open_rate, outcome.open_rate)


# -- which compiles ---


def _first_wave(question: Question, keys: Sequence[Key]) -> list[Key]:
    """What is compiled before anything is known: all that was asked for, or the script's own."""
    several = [key for key in keys if key.accumulates]
    firsts = {
        "micro_batch": question.micro_batches[:1],
        "proportion": question.proportions[:1],
        "shards": question.shards[:1],
    }
    for name, plural in _DIMENSIONS.items():
        if plural in question.suggested:
            several = [key for key in several if getattr(key, name) in firsts[name]]
    return several


def _walk(state: _State, keys: Sequence[Key]) -> None:
    """Compile for what was suggested, not asked for: from the script's own, while it gets better.

    Micro-batches up and down; then other memory proportions, and other numbers of shards, for those
    that came near the best.
    """
    several = [key for key in keys if key.accumulates]
    if "micro_batches" in state.question.suggested:
        _walk_sizes(state, several)
    for name in ("proportion", "shards"):
        if _DIMENSIONS[name] not in state.question.suggested:
            continue
        near = [replace(key, **{name: 0}) for key in state.priced if _promises(state, key)]
        wave = [
            key for key in several if key not in state.tried and replace(key, **{name: 0}) in near
        ]
        state.wanted += len(wave)
        _price(state, wave)
    left = [key for key in several if key not in state.tried]
    if left:
        state.left_out.append(
            f"{len(left)} more ({_some(left)}): those next to them are worse than the best by more"
            f" than {1 - _NEAR:.0%}; --micro-batches and --proportions try what they name"
        )


def _walk_sizes(state: _State, several: Sequence[Key]) -> None:
    """Micro-batches next to the first, and on from those that came near the best."""
    sizes = sorted(set(state.question.micro_batches))
    shards, proportions = ({getattr(key, name) for key in state.tried} for name in _OTHERS)
    alike = [key for key in several if key.shards in shards and key.proportion in proportions]
    first = sizes.index(state.question.micro_batches[0])
    reached = {-1: first, 1: first}
    while reached:
        reached = {way: at + way for way, at in reached.items() if 0 <= at + way < len(sizes)}
        wave = {
            way: [key for key in alike if key.micro_batch == sizes[at]]
            for way, at in reached.items()
        }
        keys = [key for some in wave.values() for key in some]
        state.wanted += len(keys)
        _price(state, keys)
        going = [way for way, some in wave.items() if any(_promises(state, key) for key in some)]
        reached = {way: reached[way] for way in going if not state.stopped}


def _promises(state: _State, key: Key) -> bool:
    """Whether the best mapping of these costs comes near the best of all, or there is none yet."""
    best = state.best
    if best is None:
        return True
    own = [one.rate for one in state.candidates if one.mapping.key == key and one.runs]
    return max(own, default=0.0) >= _NEAR * best.rate


def _at_once(state: _State, keys: Sequence[Key]) -> None:
    """Compile for mappings without accumulation, where a replica is one stage, unless ruled out.

    All Blocks have to fit one IPU, without accumulators.
    """
    wave = [key for key in keys if not _lacks_at_once(state, key)]
    state.wanted += len(wave)
    _price(state, wave)


def _lacks_at_once(state: _State, key: Key) -> bool:
    """Whether a smaller or equal micro-batch does not fit one IPU, even without accumulators."""
    for one in state.priced.values():
        smaller = one.key.micro_batch <= key.micro_batch and one.key.shards == key.shards
        if not smaller or one.key.in_parts or one.key.proportion != key.proportion:
            continue
        costs = one.costs
        each = costs.gradients[:, None] // costs.machine.tiles
        always = np.maximum(0, costs.memory.always - each)
        alone = replace(costs, memory=replace(costs.memory, always=always))
        place = Place(replace(one, costs=alone), (0,), 1, 1)
        if lacking(place) > 0:
            return True
        try:
            split_onto(place, state.question, state.engine.rings)
        except ValueError as error:
            state.left_out.append(f"{key}: a replica is one stage then, and {error}")
            return True
        return False
    return False


def _some(keys: Sequence[Key]) -> str:
    """The first of these in words."""
    return "; ".join(map(str, keys[:3])) + ("; ..." if len(keys) > 3 else "")


# -- optimiser state in parts ---


def _in_parts(state: _State) -> None:
    """Compile with optimiser state in parts, where that could be best; what is left stays open."""
    question, fixed = state.question, state.question.fixed.get(PARTS)
    if not question.training or fixed is False:
        return
    for _ in range(MOST_IN_PARTS // _A_WAVE):
        wave = _promising(state)[:_A_WAVE]
        if not wave or state.late():
            break
        state.wanted += len(wave)
        _price(state, [key for _, key in wave])
    left = _promising(state)
    if left:
        state.open_rate = max(state.open_rate, left[0][0])
        state.left_out.append(
            f"{len(left)} ways to keep state in parts ({_some([key for _, key in left])}): at the"
            f" most {left[0][0]:,.0f} samples/s"
        )


def _promising(state: _State) -> list[tuple[float, Key]]:
    """Keys with state in parts that may win, by the samples a second that they may reach."""
    if state.question.objective != "throughput":
        return []
    found = [
        (rate, replace(key, in_parts=replicas))
        for key, priced in state.priced.items()
        if not key.in_parts and priced.costs.memory.state.any()
        for replicas in _several_replicas(priced, state.question)
        if replace(key, in_parts=replicas) not in state.tried
        and (rate := _rate_in_parts(state, priced, replicas))
    ]
    return sorted(found, reverse=True)


def _several_replicas(priced: Priced, question: Question) -> list[int]:
    return sorted({place.replicas for place in places(priced, question)} - {1})


def _rate_in_parts(state: _State, priced: Priced, replicas: int) -> float:
    """What state in parts may reach with so many replicas; 0: it cannot beat the best.

    Its parts take neither time nor memory in this bound.
    """
    key = priced.key, replicas
    best = state.best
    if key not in state.bounds:
        costs = priced.costs
        free = replace(
            costs,
            cycles=replace(costs.cycles, update=np.zeros_like(costs.cycles.update)),
            memory=replace(costs.memory, state=np.zeros_like(costs.memory.state)),
        )
        fixed = {**state.question.fixed, "r": replicas}
        only = replace(state.question, fixed=fixed)
        outcome = look_into(replace(priced, costs=free), only, state.engine.rings, best, at_least=0)
        reached = max((one.samples_per_second for one in outcome.candidates), default=0.0)
        state.bounds[key] = reached
        if reached <= (best.rate if best is not None else 0.0):
            state.open_rate = max(state.open_rate, outcome.open_rate)
    rate = state.bounds[key]
    return rate if best is None or rate > best.rate * 1.001 else 0.0


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
