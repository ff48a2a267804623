"""The search for the best mapping, compile by compile.

Costs come wave by wave, since what one wave found rules out compiles of the next: the script's own
micro-batch and memory proportion, then the others, then optimiser state in parts; at last the best
mapping itself, in full, until what leads is what was compiled. What is compiled in a wave does not
depend on the order in which its results come, so that the answer is the same for any number of
workers. Workers that would be idle begin what the search is likely to ask for next (`_foresee`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ipuscope.planner.costs.profile_costs import Costs
from ipuscope.planner.mappings import plan_words
from ipuscope.planner.mappings.engine import Engine, Settled
from ipuscope.planner.mappings.mapping import Key, Mapping
from ipuscope.planner.mappings.mapping_search import (
    Found,
    beating,
    come_back,
    free_in_parts,
    look_into,
    predicted,
    rebalanced,
    try_split,
)
from ipuscope.planner.mappings.memory_proportions import cheapest, groups, with_own_proportions
from ipuscope.planner.mappings.phased_costs import PhasedCosts, equal_costs, held_most
from ipuscope.planner.mappings.phased_search import (
    basis_mapping,
    best_cuts,
    most_in_phases,
    predicted_in_phases,
)
from ipuscope.planner.mappings.plan import Candidate, Obtained, Plan, worth
from ipuscope.planner.mappings.priced import Place, Priced, is_legal, lacking, places
from ipuscope.planner.mappings.question import PARTS, RECOMPUTE, STATE, Question
from ipuscope.profiler.units import per_second

MOST_IN_PARTS = 6  # compiles of optimiser state in parts
_A_WAVE = 3  # of them at a time
_SHOWN_OF_EACH = 4  # compile in phases, of the cuts that it promises
MOST_SETTLED = 6  # full compiles until what leads is what was compiled

_NEAR = 0.95  # of the best rate: what makes it worthwhile to go on there
# of a key
_RESPECTS = ("micro_batch", "proportion", "shards", "keeps", "in_parts", "accumulates")

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
    keys: Sequence[Key] = ()
    priced: dict[Key, Priced] = field(default_factory=dict)
    equal: dict[Key, Key] = field(default_factory=dict)  # of which Blocks cost what others' do
    tried: set[Key] = field(default_factory=set)
    alone: dict[Key, bool] = field(default_factory=dict)  # whether all Blocks fit an IPU
    found: dict[Key, Found] = field(default_factory=dict)
    there: dict[Mapping, Place] = field(default_factory=dict)  # with a full compile's costs
    phased: dict[Key, PhasedCosts] = field(default_factory=dict)
    some: Costs | PhasedCosts | None = None  # of any compile: the Blocks, and the machine
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

    def quick(self, candidate: Candidate) -> float:
        """How quick it is, in the sense of the objective: more is better."""
        if self.question.objective == "latency":
            return 1 / max(candidate.latency, 1e-12)
        return candidate.rate

    def late(self) -> bool:
        """Whether the time budget is used up."""
        budget = self.question.budget
        over = bool(budget) and time.monotonic() - self.began > budget
        if over:
            self.stopped = f"the budget of {budget:g} s is spent"
        return over

    def tell(self, what: str) -> None:
        self.told(News(self.done, self.wanted, what, self.best))


class EngineLost(Exception):
    """What compiles is gone; its text says how, and the way out."""


def plan(
    question: Question,
    engine: Engine,
    keys: Sequence[Key],
    told: Callable[[News], None] = lambda news: None,
    blocks: tuple[str, ...] = (),
) -> Plan:
    """The best mappings for the question. NoMapping where nothing fits.

    ``keys``: what may be compiled for costs, the script's own first. ``told`` how far it is. A
    KeyboardInterrupt or EngineLost ends the search with what was found, if anything was.
    """
    keys = [key for key in keys if is_legal(key, question)]
    state = _State(question, engine, told, keys)
    try:
        own = engine.own()
        phased = own is not None and own.in_phases
        if own is None or not phased:
            _in_one_pipeline(state, keys, own)
        else:
            _in_phases(state, keys, own)
        _settle(state)
    except (KeyboardInterrupt, EngineLost) as error:
        if not state.candidates:
            raise
        state.stopped = str(error) if isinstance(error, EngineLost) else INTERRUPTED
    if state.best is None:
        if state.phased and not state.priced:
            raise NoMapping(plan_words.no_phases(state.phased.values(), question, engine.rings))
        found = [one for one in state.candidates if not one.own]
        if found:
            raise NoMapping(plan_words.none_runs(found, question))
        raise NoMapping(
            plan_words.no_mapping(state.priced.values(), state.left_out, question, engine)
        )
    return _plan_of(state, blocks)


def _in_one_pipeline(state: _State, keys: Sequence[Key], own: Mapping | None) -> None:
    """Search mappings without phases, beginning with the script's ``own``."""
    # it is a first answer while the other compiles run
    settled, first = _begin_own(state, own), _first_wave(state.question, keys)
    state.wanted += len(first)
    costs = state.engine.price(first)
    _foresee(state, first)
    _take_own(state, settled)
    if not _too_late(state, first):
        _look_at(state, first, costs)
    _walk(state, keys, _price)
    _at_once(state, [key for key in keys if not key.accumulates])
    _in_parts(state)
    _proportions_of_ipus(state)
    _come_back(state)


def _come_back(state: _State) -> None:
    """Where nothing fits, try lists of IPUs in which a stage comes back to any of them.

    Elsewhere they are tried by the costs of what was compiled in full (`_rebalanced`).
    """
    if any(one.runs for one in state.candidates) or state.late():
        return
    asked = [(one, state.question, state.engine.rings) for one in state.priced.values()]
    for found in state.engine.each(come_back, asked):
        for candidate in found:
            _add(state, candidate)


def _plan_of(state: _State, blocks: tuple[str, ...]) -> Plan:
    """Best first; those that turned out not to run come last."""
    question = state.question
    ranked = sorted(state.candidates, key=state.worth, reverse=True)
    ranked.sort(key=lambda one: not one.runs)
    best = ranked[0]
    gap = 0.0
    if state.open_rate > best.rate:
        gap = 1 - best.rate / state.open_rate
    some = state.some
    assert some is not None
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
    return replace(draft, why=tuple(plan_words.why(draft)))


# -- the script's own mapping ---


def allows(question: Question, mapping: Mapping) -> bool:
    """Whether the question leaves room for a mapping; proportions are the script's to say."""
    fixed = question.fixed
    # in phases all stages save memory as the script's options say
    early = mapping.stages[:-1] if question.training and not mapping.in_phases else ()
    fits = mapping.attached <= question.ipus and mapping.samples == question.global_batch
    said = {
        "t": mapping.shards,
        "p": mapping.pipeline,
        "r": mapping.replicas,
        "accumulation": mapping.accumulation,
        "phases": mapping.phases,
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


def _begin_own(state: _State, mapping: Mapping | None) -> Iterator[Settled]:
    """The script's own mapping, compiled in full, if the question allows it."""
    if mapping is None or not allows(state.question, mapping):
        return iter(())
    state.wanted += 1
    state.tell("the script's own mapping")
    return iter(state.engine.settle([mapping]))


def _take_own(state: _State, results: Iterator[Settled]) -> None:
    for settled in results:
        if settled.priced is None:
            state.done += 1
            state.left_out.append(f"the script's own mapping: {settled.obtained.problem}")
            continue
        state.some = settled.priced.costs
        own = predicted(settled.priced, settled.mapping, state.engine.rings)
        state.candidates.append(replace(own, own=True))
        _take(state, state.candidates[-1], settled)


# -- costs ---


def _price(state: _State, keys: Sequence[Key]) -> None:
    """Compile for the costs of these keys, and look into what they give, in their order."""
    if keys and not _too_late(state, keys):
        results = state.engine.price(keys)
        _foresee(state, keys)
        _look_at(state, keys, results)


def _too_late(state: _State, keys: Sequence[Key]) -> bool:
    """Whether there is no time for these; then they are left out."""
    late = state.late()
    if late:
        state.left_out += [f"{key}: there was no time for it" for key in keys]
        state.tried.update(keys)
    return late


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
            state.equal[key] = same.key
            state.left_out.append(f"{key}: Blocks cost what they do with {same.key}")
            continue
        state.priced[key] = result
        _look(state, result)
        _foresee(state, keys)
        if _too_late(state, keys[number + 1 :]):
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
    state.some = priced.costs
    state.tell(str(priced.key))

    def told(candidate: Candidate) -> None:
        if any(candidate.mapping == one.mapping for one in state.candidates):
            return
        state.candidates.append(candidate)
        state.tell(str(priced.key))

    engine = state.engine
    outcome = look_into(priced, state.question, engine.rings, state.best, told, each=engine.each)
    state.found[priced.key] = outcome
    state.open_rate = max(state.open_rate, outcome.open_rate)


# -- which compiles ---


def _first_wave(question: Question, keys: Sequence[Key]) -> list[Key]:
    """What is compiled before anything is known: all that was asked for, or the script's own."""
    wave = [key for key in keys if key.accumulates]
    for name, values in _suggested(question).items():
        wave = [key for key in wave if getattr(key, name) == values[0]]
    return wave


def _suggested(question: Question) -> dict[str, tuple[float, ...]]:
    """Values, the script's own first, of what nobody asked for, by its name in a key."""
    values: dict[str, tuple[float, ...]] = {
        "micro_batch": question.micro_batches,
        "proportion": question.proportions,
        "shards": question.shards,
        "keeps": question.keeps,
    }
    return {name: values[name] for name in (*question.suggested, "keeps")}


def _walk(
    state: _State, keys: Sequence[Key], price: Callable[[_State, Sequence[Key]], None]
) -> None:
    """Compile for what was suggested, not asked for: neighbours of what is near the best so far.

    A neighbour differs in one respect, by one step of the values that are tried. ``price``
    compiles for costs and looks into them.
    """
    several = [key for key in keys if key.accumulates]
    while not state.stopped:
        wave = _beside(state, several, [key for key in state.tried if _is_near(state, key)])
        if not wave:
            break
        state.wanted += len(wave)
        price(state, wave)
    left = [key for key in several if key not in state.tried]
    if left:
        why = (
            "there was no time for them"
            if state.stopped
            else f"what is next to them is slower than the best by more than {1 - _NEAR:.0%};"
            " --micro-batches and --proportions try what they name"
        )
        state.left_out.append(f"{len(left)} more ({_some(left)}): {why}")


def _beside(state: _State, keys: Sequence[Key], near: Sequence[Key]) -> list[Key]:
    """Keys that nobody tried, next to one of these."""
    return [
        key
        for key in keys
        if key.accumulates
        and key not in state.tried
        and any(_are_neighbours(state.question, key, one) for one in near)
    ]


def _foresee(state: _State, wave: Sequence[Key]) -> None:
    """Tell the engine what is likely asked for behind this wave; it may begin it.

    Neighbours of what is near the best, as long as that stays the best; then what leads, in full.
    Whatever else comes first is next to the best found, so that its neighbours are asked for.
    """
    if state.late():
        state.engine.ahead((), ())
        return
    near = [key for key in state.tried if _is_near(state, key)] or list(wave)
    found = sorted(near, key=lambda key: _quickest_of(state, key), reverse=True)
    next_to = [key for key in _beside(state, state.keys, found) if key not in wave]
    leader = state.best
    settled = leader is None or leader.own or leader.obtained is not None
    state.engine.ahead(next_to, () if settled or leader is None else (leader.mapping,))


def _are_neighbours(question: Question, key: Key, other: Key) -> bool:
    """Whether they differ by one step of one suggested respect."""
    steps = 0
    for name, values in _suggested(question).items():
        ladder = sorted(set(values))
        mine, its = (ladder.index(getattr(one, name)) for one in (key, other))
        steps += abs(mine - its)
    respects = _suggested(question)
    apart = [name for name in _RESPECTS if getattr(key, name) != getattr(other, name)]
    return steps == 1 and all(name in respects for name in apart)


def _is_near(state: _State, key: Key) -> bool:
    """Whether the best mapping of these costs is near the best that was found by search."""
    found = [one for one in state.candidates if one.runs and not one.own]
    best = max((state.quick(one) for one in found), default=0.0)
    return _quickest_of(state, key) >= _NEAR * best


def _quickest_of(state: _State, key: Key) -> float:
    """How quick the best mapping is that was found by search with these costs; 0: none."""
    found = [one for one in state.candidates if one.runs and not one.own]
    return max((state.quick(one) for one in found if one.mapping.key == key), default=0.0)


def _at_once(state: _State, keys: Sequence[Key]) -> None:
    """Compile for mappings without accumulation, where a replica is one stage, unless ruled out.

    All Blocks have to fit one IPU, without accumulators.
    """
    if state.stopped:
        return
    wave = [key for key in keys if not _lacks_at_once(state, key)]
    hopeless = [key for key in keys if key not in wave]
    if hopeless:
        state.left_out.append(
            f"{len(hopeless)} without accumulation ({_some(hopeless)}): a replica is one stage"
            " then, and the whole model does not fit an IPU"
        )
    state.wanted += len(wave)
    _price(state, wave)


def _lacks_at_once(state: _State, key: Key) -> bool:
    """Whether a smaller or equal micro-batch does not fit one IPU, even without accumulators."""
    for tried in (*state.priced, *state.equal):
        smaller = tried.micro_batch <= key.micro_batch and tried.shards == key.shards
        if not smaller or tried.in_parts or tried.proportion != key.proportion:
            continue
        one = state.priced[state.equal.get(tried, tried)]
        costs = one.costs
        each = costs.gradients[:, None] // costs.machine.tiles
        always = np.maximum(0, costs.memory.always - each)
        alone = replace(costs, memory=replace(costs.memory, always=always))
        if one.key not in state.alone:
            place = Place(replace(one, costs=alone), (0,), 1, 1)
            state.alone[one.key] = lacking(place) <= 0 and _split(state, place) is not None
        return not state.alone[one.key]
    return False


def _split(state: _State, place: Place, surely: bool = False) -> Candidate | None:
    """The quickest split onto a place; None where nothing fits."""
    arguments = (place, state.question, state.engine.rings, None, 0, surely)
    (found,) = state.engine.each(try_split, [arguments])
    return found if isinstance(found, Candidate) else None


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
            f" most {per_second(left[0][0])} samples/s"
        )


def _promising(state: _State) -> list[tuple[float, Key]]:
    """Keys with state in parts that may win, by the samples a second that they may reach."""
    if state.question.objective != "throughput":
        return []
    known = [
        (priced, replicas)
        for key, priced in state.priced.items()
        if not key.in_parts and priced.costs.memory.state.any()
        for replicas in _several_replicas(priced, state.question)
        if replace(key, in_parts=replicas) not in state.tried
    ]
    _bound_in_parts(state, known)
    found = []
    for priced, replicas in known:
        rate = state.bounds[priced.key, replicas]
        if state.best is None or rate > state.best.rate * 1.001:
            found.append((rate, replace(priced.key, in_parts=replicas)))
    return sorted(found, reverse=True)


def _several_replicas(priced: Priced, question: Question) -> list[int]:
    return sorted({place.replicas for place in places(priced, question)} - {1})


def _bound_in_parts(state: _State, wanted: Sequence[tuple[Priced, int]]) -> None:
    """Find what each may reach with state in parts on so many replicas, where nobody did."""
    unknown = [(one, count) for one, count in wanted if (one.key, count) not in state.bounds]
    best, rings = state.best, state.engine.rings
    arguments = [(one, count, state.question, rings, best) for one, count in unknown]
    outcomes = state.engine.each(free_in_parts, arguments)
    for (priced, replicas), outcome in zip(unknown, outcomes, strict=True):
        reached = max((one.samples_per_second for one in outcome.candidates), default=0.0)
        state.bounds[priced.key, replicas] = reached
        if reached <= (best.rate if best is not None else 0.0):
            state.open_rate = max(state.open_rate, outcome.open_rate)


# -- memory proportions IPU by IPU ---


def _proportions_of_ipus(state: _State) -> None:
    """Try splits whose IPUs have memory proportions of their own, of those that were compiled.

    What could win is found with each Block's cheapest costs, whichever IPU has which; that is what
    stays open where its IPUs' own are worse.
    """
    if state.late():
        return
    best, rings = state.best, state.engine.rings
    some = groups(state.priced.values())
    arguments = [(cheapest(group), state.question, rings, best) for group in some]
    for group, found in zip(some, state.engine.each(beating, arguments), strict=True):
        for free in found.candidates:
            one = with_own_proportions(group, free.mapping, rings)
            if one is not None:
                _add(state, one)
            if one is None or one.cycles > free.cycles:
                state.open_rate = max(state.open_rate, free.samples_per_second)
        state.open_rate = max(state.open_rate, found.open_rate)
    if state.best is not None:
        _add_with_own_proportions(state, state.best.mapping)


def _add_with_own_proportions(state: _State, mapping: Mapping) -> None:
    """Add the mapping with each IPU's quickest proportion of those that were compiled."""
    for group in groups(state.priced.values()):
        if any(mapping.key == one.key for one in group):
            own = with_own_proportions(group, mapping, state.engine.rings)
            if own is not None:
                _add(state, own)


# -- phases ---


def _in_phases(state: _State, keys: Sequence[Key], own: Mapping) -> None:
    """Search mappings in phases, beginning with the script's ``own``.

    The compile for a key's costs is that of a mapping too: one Block a stage, on pipelines as long
    as the script's.
    """
    several = [replace(key, keeps=False) for key in keys if key.accumulates]
    several = list(dict.fromkeys(several))
    allowed = allows(state.question, own)
    if allowed:
        state.wanted += 1
        state.tell("the script's own mapping")
        for settled in state.engine.settle([own]):
            _take_in_phases(state, settled, own=True)
    first = [key for key in _first_wave(state.question, several) if key not in state.phased]

    def price(state: _State, wave: Sequence[Key]) -> None:
        if _too_late(state, wave):
            return
        bases = [_basis_in_phases(state, key, own) for key in wave]
        state.tried.update(wave)
        for settled in state.engine.settle([one for one in bases if one is not None]):
            _take_in_phases(state, settled)

    state.wanted += len(first)
    if first:
        price(state, first)
    if _fits_without_phases(state):
        _in_one_pipeline(state, keys, None)
    state.tried -= set(several)  # without phases, that was
    state.tried |= set(state.phased) | set(first)
    _walk(state, several, price)


def _basis_in_phases(state: _State, key: Key, own: Mapping) -> Mapping | None:
    """The mapping that a key's costs in phases are read off; None where there is none."""
    try:
        names = state.engine.names(key)
    except ValueError as error:
        state.wanted -= 1
        state.left_out.append(f"{key}: {error}")
        return None
    basis = basis_mapping(key, names, own, state.question)
    if basis is None:
        state.wanted -= 1
        state.left_out.append(f"{key}: {state.question.global_batch} samples cannot be cut so")
    return basis


def _take_in_phases(state: _State, settled: Settled, own: bool = False) -> None:
    """A compile in phases: a candidate by itself, and costs for others."""
    state.done += 1
    mapping, costs = settled.mapping, settled.phased
    if costs is None:
        state.left_out.append(f"{mapping}: {settled.obtained.problem or 'no costs of Blocks'}")
        return
    state.some = costs
    key, rings = mapping.key, state.engine.rings
    same = next((one for one in state.phased.values() if equal_costs(one, costs)), None)
    state.phased[key] = costs
    if same is not None:
        state.left_out.append(f"{key}: Blocks cost what they do with {same.key}")
        return
    itself = replace(predicted_in_phases(costs, mapping, rings), own=own)
    _add(state, replace(itself, obtained=settled.obtained))
    best = state.best
    beat = best.rate if best is not None else 0.0
    for candidate in best_cuts(costs, state.question, rings, beat)[:_SHOWN_OF_EACH]:
        _add(state, candidate)
    state.open_rate = max(state.open_rate, most_in_phases(costs, state.question))
    state.tell(str(key))


def _add(state: _State, candidate: Candidate) -> None:
    if all(candidate.mapping != one.mapping for one in state.candidates):
        state.candidates.append(candidate)


def _fits_without_phases(state: _State) -> bool:
    """Whether one pipeline over all IPUs might hold the model; False is said once."""
    if state.stopped or state.question.fixed.get("phases", 1) > 1:
        return False
    if state.question.objective == "fewest-ipus" and state.phased:
        return False
    for costs in state.phased.values():
        machine = costs.machine
        pod = machine.bytes_per_tile * machine.tiles * (state.question.ipus // machine.shards)
        held = held_most(costs)
        if held > pod:
            state.left_out.append(
                "without phases: weights and accumulators alone take"
                f" {held * machine.shards / 1e9:,.0f} GB, and the tiles of"
                f" {state.question.ipus} IPUs have {pod * machine.shards / 1e9:,.0f} GB"
            )
            return False
    return True


# -- the best, in full ---


def _settle(state: _State) -> None:
    """Compile what leads in full until what leads was compiled and runs.

    A compile says what memory it takes, and what its Blocks cost there: a nearer basis for other
    splits, which are then looked for once more: a plan is no worse than what a rebalance of its
    own profile gives.
    """
    compiled = 0
    while compiled < MOST_SETTLED and not state.late():
        leader = state.best
        if leader is None or (leader.obtained is not None and not _rebalanced(state, leader)):
            return
        if leader.obtained is None:
            compiled += 1
            state.wanted += 1
            for settled in state.engine.settle([leader.mapping]):
                _take(state, leader, settled)


def _rebalanced(state: _State, leader: Candidate) -> bool:
    """Whether the costs of the leader's own compile promise a better split than it."""
    place = state.there.pop(leader.mapping, None)
    if place is None:
        return False
    rings = state.engine.rings
    state.tell(f"other splits by the costs of {leader.mapping}")
    (found,) = state.engine.each(rebalanced, [(place, state.question, rings, leader)])
    for candidate in found:
        if leader.mapping.mixes_proportions:
            _add_with_own_proportions(state, candidate.mapping)
        else:
            _add(state, candidate)
    return state.best is not leader


def _take(state: _State, leader: Candidate, settled: Settled) -> None:
    state.done += 1
    at = state.candidates.index(leader)
    state.candidates[at] = replace(leader, obtained=settled.obtained)
    if leader.mapping.in_phases:
        _held_in_phases(state, state.candidates[at])
    elif settled.priced is not None:
        ipus = tuple(stage.ipu for stage in leader.mapping.stages)
        place = Place(settled.priced, ipus, leader.mapping.replicas, leader.mapping.accumulation)
        state.there[leader.mapping] = place
        if not leader.mapping.mixes_proportions:
            _held_there(state, leader.mapping, settled.priced)
            # of what leads, all splits are looked for at the end
            leads = not leader.own and state.best is state.candidates[at]
            again = None if leads else _split(state, place)
            if again is not None:
                _add(state, again)
            _leave_room(state, place, state.candidates[at])
    state.tell(f"in full: {leader.mapping}")


def _leave_room(state: _State, place: Place, compiled: Candidate) -> None:
    """Where the compile took more than a tile has: the best of the splits that leave it as much.

    Others that are predicted to fill the tile to its last bytes may lack as many.
    """
    over = compiled.obtained.fullest - compiled.limit if compiled.obtained is not None else 0
    if over <= 0:
        return
    priced, costs = place.priced, place.priced.costs
    tight = replace(priced, costs=costs.with_tile_bytes(compiled.limit - over))
    found = _split(state, replace(place, priced=tight), surely=True)
    if found is not None:
        _add(state, predicted(priced, found.mapping, state.engine.rings))


def _held_in_phases(state: _State, compiled: Candidate) -> None:
    """Correct the memory of like mappings by as much as this one's was off."""
    off = compiled.off
    if off is None:
        return
    key, most = compiled.mapping.key, _most_blocks(compiled)
    for at, one in enumerate(state.candidates):
        alike = one.mapping.key == key and _most_blocks(one) == most
        if alike and one.obtained is None and one.mapping.in_phases:
            fullest = round(one.fullest / (1 + off[1]))
            state.candidates[at] = replace(one, fullest=fullest)


def _most_blocks(candidate: Candidate) -> int:
    """The most Blocks that a stage has."""
    return max(len(stage.blocks) for stage in candidate.mapping.stages)


def _held_there(state: _State, compiled: Mapping, priced: Priced) -> None:
    """Predict the memory of like mappings from this compile, which is nearer than the first."""
    for at, one in enumerate(state.candidates):
        mapping = one.mapping
        alike = mapping.key == compiled.key and mapping.recomputation == compiled.recomputation
        alike = alike and not mapping.mixes_proportions
        if alike and one.obtained is None:
            here = predicted(priced, mapping, state.engine.rings)
            state.candidates[at] = replace(one, fullest=here.fullest, memory=here.memory)


def verified(
    made: Plan,
    engine: Engine,
    count: int,
    told: Callable[[News], None] = lambda news: None,
) -> Plan:
    """The plan with its first ``count`` candidates compiled in full, predicted beside obtained.

    As it is where somebody interrupted the search.
    """
    if made.stopped == INTERRUPTED:
        return made
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
