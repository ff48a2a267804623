"""The search for the best mapping, compile by compile.

Costs come in waves, as what one finds rules out compiles of the next: the script's own micro-batch
and memory proportion, the others, optimiser state in parts; then the best mapping in full, until
what leads was compiled. A wave does not depend on the order of its results, so the answer is the
same for any number of workers. Idle ones begin what is likely asked for next (`foresee`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from ipuscope.planner.costs.profile_costs import Costs
from ipuscope.planner.mappings import plan_words
from ipuscope.planner.mappings.compile_waves import (
    at_once,
    first_wave,
    foresee,
    look_at,
    price,
    price_again,
    price_state_in_parts,
    walk,
)
from ipuscope.planner.mappings.engine import Engine, Settled
from ipuscope.planner.mappings.mapping import Key, Mapping
from ipuscope.planner.mappings.mapping_search import come_back, predicted
from ipuscope.planner.mappings.phased_costs import bytes_of_one_phase, equal_costs
from ipuscope.planner.mappings.phased_search import (
    basis_mapping,
    best_cuts,
    most_in_phases,
    predicted_in_phases,
)
from ipuscope.planner.mappings.plan import Obtained, Plan
from ipuscope.planner.mappings.priced import is_legal
from ipuscope.planner.mappings.question import PARTS, RECOMPUTE, STATE, Question
from ipuscope.planner.mappings.search_state import (
    INTERRUPTED,
    EngineLost,
    News,
    NoMapping,
    State,
    add,
    too_late,
)
from ipuscope.planner.mappings.settling import proportions_of_ipus, settle, take
from ipuscope.planner.one_thread import in_one_thread
from ipuscope.planner.predict.memory_verdict import Answer
from ipuscope.profiler.units import count

_SHOWN_OF_EACH = 4  # compile in phases, of the cuts that it promises


@in_one_thread
def plan(
    question: Question,
    engine: Engine,
    keys: Sequence[Key],
    on_news: Callable[[News], None] = lambda news: None,
) -> Plan:
    """The best mappings for the question. NoMapping where nothing fits.

    ``keys``: what to compile for costs, the script's own first. ``on_news`` gets how far it is. A
    KeyboardInterrupt or EngineLost ends the search with what was found, if anything was.
    """
    keys = [key for key in keys if is_legal(key, question)]
    state = State(question, engine, on_news, keys)
    try:
        own = engine.own()
        phased = own is not None and own.in_phases
        if own is None or not phased:
            _in_one_pipeline(state, keys, own)
        else:
            _in_phases(state, keys, own)
        settle(state)
        if state.best is None and state.priced:  # what was predicted to fit, did not
            _come_back(state)
            settle(state)
    except (KeyboardInterrupt, EngineLost) as error:
        if not state.candidates:
            raise
        state.stopped = str(error) if isinstance(error, EngineLost) else INTERRUPTED
    if state.best is None:
        if state.phased and not state.priced:
            raise NoMapping(plan_words.no_phases(state.phased.values(), question))
        not_own = [one for one in state.candidates if not one.own]
        if not_own:
            raise NoMapping(plan_words.none_runs(not_own, question))
        state.tell("nothing fits: which split comes nearest")
        raise NoMapping(
            plan_words.no_mapping(state.priced.values(), state.left_out, question, engine)
        )
    return _plan_of(state)


def _in_one_pipeline(state: State, keys: Sequence[Key], own: Mapping | None) -> None:
    """Search mappings without phases, beginning with the script's ``own``."""
    # it is a first answer while the other compiles run
    settled, first = _begin_own(state, own), first_wave(state.question, keys)
    state.wanted += len(first)
    costs = state.engine.price(first)
    foresee(state, first)
    _take_own(state, settled)
    if not too_late(state, first):
        look_at(state, first, costs)
    walk(state, keys, price)
    at_once(state, [key for key in keys if not key.accumulates])
    price_again(state)
    price_state_in_parts(state)
    proportions_of_ipus(state)
    _come_back(state)


def _come_back(state: State) -> None:
    """Where nothing fits, try what may fit, and stages that return (else `_rebalanced` does)."""
    if any(one.runs for one in state.candidates) or state.late():
        return
    arguments = [(one, state.question) for one in state.priced.values()]
    what = "nothing fits: stages that come back to an IPU"
    state.tell(f"{what}, by the costs of {count(len(arguments), 'compile')}")
    for number, candidates in enumerate(state.engine.each(come_back, arguments), 1):
        for candidate in candidates:
            add(state, candidate)
        state.tell(f"{what}, by the costs of {number} of {count(len(arguments), 'compile')}")


def _plan_of(state: State) -> Plan:
    """Best first; those that turned out not to run come last."""
    question = state.question
    ranked = sorted(state.candidates, key=state.worth, reverse=True)
    # what was not compiled, and may not fit, leads only where nothing else does
    unsure = [one for one in ranked if one.obtained is None and one.memory != Answer.FITS]
    ranked.sort(key=lambda one: not one.runs)
    best = next((one for one in ranked if one.runs and one not in unsure), ranked[0])
    ranked = [best, *(one for one in ranked if one is not best)]
    gap = 0.0
    if state.open_rate > best.rate:
        gap = 1 - best.rate / state.open_rate
    some = state.some
    assert some is not None
    draft = Plan(
        question,
        tuple(ranked),
        some.names,
        gap=gap,
        left_out=plan_words.by_reason(state.left_out),
        stopped=state.stopped,
        compiles=state.done,
        seconds=time.monotonic() - state.began,
        clock_hz=some.machine.clock_hz,
    )
    notes = plan_words.what_costs_say(draft, some) if isinstance(some, Costs) else ()
    return replace(draft, why=tuple(plan_words.why(draft)), notes=tuple(notes))


def allows(question: Question, mapping: Mapping) -> bool:
    """Whether the question leaves room for a mapping; proportions are the script's to say."""
    fixed = question.fixed
    # in phases all stages save memory as the script's options say
    early = mapping.stages[:-1] if question.training and not mapping.in_phases else ()
    fits = mapping.attached <= question.ipus and mapping.samples == question.global_batch
    values = {
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
        and all(fixed.get(name, value) == value for name, value in values.items())
        and all(stage.recompute == fixed.get(RECOMPUTE, stage.recompute) for stage in early)
        and all(
            stage.state_off_chip == fixed.get(STATE, stage.state_off_chip)
            for stage in mapping.stages
        )
    )


def _begin_own(state: State, mapping: Mapping | None) -> Iterator[Settled]:
    """The script's own mapping, compiled in full, if the question allows it."""
    if mapping is None or not allows(state.question, mapping):
        return iter(())
    state.wanted += 1
    state.tell("the script's own mapping")
    return iter(state.engine.settle([mapping]))


def _take_own(state: State, results: Iterator[Settled]) -> None:
    for settled in results:
        if settled.priced is None:
            state.done += 1
            state.left_out.append(f"the script's own mapping: {settled.obtained.problem}")
            continue
        state.some = settled.priced.costs
        own = predicted(settled.priced, settled.mapping)
        state.candidates.append(replace(own, own=True))
        take(state, state.candidates[-1], settled)


def _in_phases(state: State, keys: Sequence[Key], own: Mapping) -> None:
    """Search mappings in phases, beginning with the script's ``own``.

    A key's compile is a mapping too: one Block a stage, on pipelines as long as the script's.
    """
    several = [replace(key, keeps=False) for key in keys if key.accumulates]
    several = list(dict.fromkeys(several))
    allowed = allows(state.question, own)
    if allowed:
        state.wanted += 1
        state.tell("the script's own mapping")
        for settled in state.engine.settle([own]):
            _take_in_phases(state, settled, own=True)
    first = [key for key in first_wave(state.question, several) if key not in state.phased]

    def price(state: State, wave: Sequence[Key]) -> None:
        if too_late(state, wave):
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
    walk(state, several, price)


def _basis_in_phases(state: State, key: Key, own: Mapping) -> Mapping | None:
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
        state.left_out.append(f"{key} does not divide {state.question.global_batch} samples")
    return basis


def _take_in_phases(state: State, settled: Settled, own: bool = False) -> None:
    """A compile in phases: a candidate by itself, and costs for others."""
    state.done += 1
    mapping, costs = settled.mapping, settled.phased
    if costs is None:
        state.left_out.append(f"{mapping}: {settled.obtained.problem or 'no costs of Blocks'}")
        return
    state.some = costs
    key = mapping.key
    same = next((one for one in state.phased.values() if equal_costs(one, costs)), None)
    state.phased[key] = costs
    if same is not None:
        state.leave_out(key, same.key)
        return
    itself = replace(predicted_in_phases(costs, mapping), own=own)
    add(state, replace(itself, obtained=settled.obtained))
    best = state.best
    beat = best.rate if best is not None else 0.0
    for candidate in best_cuts(costs, state.question, beat)[:_SHOWN_OF_EACH]:
        add(state, candidate)
    state.open_rate = max(state.open_rate, most_in_phases(costs, state.question))
    state.tell(str(key))


def _fits_without_phases(state: State) -> bool:
    """Whether one pipeline over all IPUs might hold the model; False is said once."""
    if state.stopped or state.question.fixed.get("phases", 1) > 1:
        return False
    if state.question.objective == "fewest-ipus" and state.phased:
        return False
    for costs in state.phased.values():
        machine = costs.machine
        pod = machine.bytes_per_tile * machine.tiles * (state.question.ipus // machine.shards)
        nbytes = bytes_of_one_phase(costs)
        if nbytes > pod:
            state.left_out.append(
                "without phases: weights and accumulators alone take"
                f" {nbytes * machine.shards / 1e9:,.0f} GB, and the tiles of"
                f" {state.question.ipus} IPUs have {pod * machine.shards / 1e9:,.0f} GB"
            )
            return False
    return True


def verified(
    made: Plan, engine: Engine, count: int, on_news: Callable[[News], None] = lambda news: None
) -> Plan:
    """The plan with its first ``count`` candidates compiled in full, unless it was interrupted."""
    if made.stopped == INTERRUPTED:
        return made
    wanted = [one for one in made.candidates[:count] if one.obtained is None]
    came: dict[Mapping, Obtained] = {}
    for settled in engine.settle([one.mapping for one in wanted]):
        came[settled.mapping] = settled.obtained
        on_news(News(len(came), len(wanted), f"in full: {settled.mapping}", made.candidates[0]))
    candidates = [
        replace(one, obtained=came.get(one.mapping, one.obtained)) for one in made.candidates
    ]
    candidates.sort(key=lambda one: not one.runs)
    return replace(made, candidates=tuple(candidates), compiles=made.compiles + len(came))
