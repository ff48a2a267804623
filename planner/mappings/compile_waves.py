"""Which compiles come next: waves of costs, each of neighbours of what is near the best."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from ipuscope.planner.mappings.mapping import Key
from ipuscope.planner.mappings.mapping_search import free_in_parts, in_one_stage, look_into
from ipuscope.planner.mappings.plan import Candidate
from ipuscope.planner.mappings.priced import Place, Priced, lacking, places
from ipuscope.planner.mappings.question import PARTS, Question
from ipuscope.planner.mappings.search_state import State, split_at, too_late
from ipuscope.profiler.units import per_second

MOST_IN_PARTS = 6  # compiles of optimiser state in parts
_A_WAVE = 3  # of them at a time
_NEAR = 0.95  # of the best rate: what makes it worthwhile to go on there
# of a key
_RESPECTS = ("micro_batch", "proportion", "shards", "keeps", "in_parts", "accumulates", "again")


def keys_of(question: Question) -> list[Key]:
    """Every compile for costs that the question may want, the script's own first."""
    keys = [
        Key(shards, size, proportion, 0, accumulates, keeps)
        for keeps, proportion, shards, accumulates, size in product(
            question.keeps,
            question.proportions,
            question.shards,
            (True, False),
            question.micro_batches,
        )
    ]
    return [key for key in keys if question.global_batch % key.micro_batch == 0]


def price(state: State, keys: Sequence[Key]) -> None:
    """Compile for the costs of these keys, and look into what they give, in their order."""
    if keys and not too_late(state, keys):
        results = state.engine.price(keys)
        foresee(state, keys)
        look_at(state, keys, results)


def look_at(state: State, keys: Sequence[Key], results: Iterable[Priced | str]) -> None:
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
            state.leave_out(key, same.key)
            continue
        state.priced[key] = result
        _look(state, result)
        foresee(state, keys)
        if too_late(state, keys[number + 1 :]):
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


def _look(state: State, priced: Priced) -> None:
    state.some = priced.costs
    state.tell(str(priced.key))

    def add_new(candidate: Candidate) -> None:
        if any(candidate.mapping == one.mapping for one in state.candidates):
            return
        state.candidates.append(candidate)
        state.tell(str(priced.key))

    engine = state.engine
    outcome = look_into(priced, state.question, state.best, add_new, each=engine.each)
    state.open_rate = max(state.open_rate, outcome.open_rate)


def first_wave(question: Question, keys: Sequence[Key]) -> list[Key]:
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


def walk(state: State, keys: Sequence[Key], price: Callable[[State, Sequence[Key]], None]) -> None:
    """Compile suggested keys, one step of one respect from what is near the best, by ``price``."""
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
            else "no setting that needs less memory fits"
            if state.best is None
            else f"their neighbours are more than {1 - _NEAR:.0%} slower than the best; to try"
            " them, name them with --micro-batches and --proportions"
        )
        state.left_out.append(f"{len(left)} more ({_some(left)}): {why}")


def _beside(state: State, keys: Sequence[Key], near: Sequence[Key]) -> list[Key]:
    """Keys that nobody tried, next to one of these."""
    return [
        key
        for key in keys
        if key.accumulates
        and key not in state.tried
        and not _takes_more_than_fits(state, key)
        and any(_are_neighbours(state.question, key, one) for one in near)
    ]


def _takes_more_than_fits(state: State, key: Key) -> bool:
    """Whether nothing fits, not even by costs of a micro-batch and proportion that are smaller."""
    return state.best is None and any(
        one.micro_batch <= key.micro_batch
        and one.proportion <= key.proportion
        and one.shards == key.shards
        for one in state.priced
    )


def foresee(state: State, wave: Sequence[Key]) -> None:
    """Tell the engine what is likely asked for behind this wave; it may begin it.

    Neighbours of what is near the best, while that stays best; then what leads, in full. Anything
    else to come first is next to the best, so its neighbours are asked for.
    """
    if state.late():
        state.engine.ahead((), ())
        return
    near = [key for key in state.tried if _is_near(state, key)] or list(wave)
    quickest = sorted(near, key=lambda key: _quickest_of(state, key), reverse=True)
    next_to = [key for key in _beside(state, state.keys, quickest) if key not in wave]
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


def _is_near(state: State, key: Key) -> bool:
    """Whether the best mapping of these costs is near the best that was found by search."""
    candidates = [one for one in state.candidates if one.runs and not one.own]
    best = max((state.quick(one) for one in candidates), default=0.0)
    return _quickest_of(state, key) >= _NEAR * best


def _quickest_of(state: State, key: Key) -> float:
    """How quick the best mapping is that was found by search with these costs; 0: none."""
    candidates = [one for one in state.candidates if one.runs and not one.own]
    return max((state.quick(one) for one in candidates if one.mapping.key == key), default=0.0)


def at_once(state: State, keys: Sequence[Key]) -> None:
    """Compile without accumulation, where all Blocks must fit one IPU, unless that is ruled out."""
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
    price(state, wave)


def _lacks_at_once(state: State, key: Key) -> bool:
    """Whether a smaller or equal micro-batch does not fit one IPU, even without accumulators."""
    for tried in (*state.priced, *state.equal):
        smaller = tried.micro_batch <= key.micro_batch and tried.shards == key.shards
        if not smaller or tried.in_parts or tried.proportion != key.proportion:
            continue
        priced = state.priced[state.equal.get(tried, tried)]
        costs = priced.costs
        each = costs.gradients[:, None] // costs.machine.tiles
        always = np.maximum(0, costs.memory.always - each)
        alone = replace(costs, memory=replace(costs.memory, always=always))
        if priced.key not in state.alone:
            place = Place(replace(priced, costs=alone), (0,), 1, 1)
            state.alone[priced.key] = lacking(place) <= 0 and split_at(state, place) is not None
        return not state.alone[priced.key]
    return False


def _some(keys: Sequence[Key]) -> str:
    """The first of these in words."""
    return "; ".join(map(str, keys[:3])) + ("; ..." if len(keys) > 3 else "")


def price_again(state: State) -> None:
    """Compile one stage that recomputes, where it would be best if what it keeps fitted."""
    if not state.question.again or state.stopped or state.question.objective != "throughput":
        return
    rates = [
        (rate, replace(key, again=True))
        for priced in state.priced.values()
        if not (priced.key.in_parts or priced.key.again)
        for rate, key in in_one_stage(priced, state.question)
    ]
    least = state.best.rate if state.best is not None else 0.0
    promising = sorted({one for one in rates if one[0] > least * 1.001}, reverse=True)
    every = [key for _, key in promising]
    wave, left = every[:_A_WAVE], every[_A_WAVE:]
    if left:
        state.left_out.append(f"{len(left)} more ({_some(left)}): three that promise more were")
    state.wanted += len(wave)
    price(state, wave)


def price_state_in_parts(state: State) -> None:
    """Compile with optimiser state in parts, where that could be best; what is left stays open."""
    question, fixed = state.question, state.question.fixed.get(PARTS)
    if not question.training or fixed is False:
        return
    for _ in range(MOST_IN_PARTS // _A_WAVE):
        wave = _promising(state)[:_A_WAVE]
        if not wave or state.late():
            break
        state.wanted += len(wave)
        price(state, [key for _, key in wave])
    left = _promising(state)
    if left:
        state.open_rate = max(state.open_rate, left[0][0])
        state.left_out.append(
            f"{len(left)} ways to keep state in parts ({_some([key for _, key in left])}): at the"
            f" most {per_second(left[0][0])} samples/s"
        )


def _promising(state: State) -> list[tuple[float, Key]]:
    """Keys with state in parts that may win, by the samples a second that they may reach."""
    if state.question.objective != "throughput":
        return []
    in_parts = [
        (priced, replicas)
        for key, priced in state.priced.items()
        if not key.in_parts and priced.costs.memory.state.any()
        for replicas in sorted({one.replicas for one in places(priced, state.question)} - {1})
        if replace(key, in_parts=replicas) not in state.tried
    ]
    _bound_in_parts(state, in_parts)
    promising = []
    for priced, replicas in in_parts:
        rate = state.bounds[priced.key, replicas]
        if state.best is None or rate > state.best.rate * 1.001:
            promising.append((rate, replace(priced.key, in_parts=replicas)))
    return sorted(promising, reverse=True)


def _bound_in_parts(state: State, wanted: Sequence[tuple[Priced, int]]) -> None:
    """Find what each may reach with state in parts on so many replicas, where nobody did."""
    unknown = [(one, count) for one, count in wanted if (one.key, count) not in state.bounds]
    best = state.best
    arguments = [(one, count, state.question, best) for one, count in unknown]
    if unknown:
        state.tell(f"what optimiser state in parts could gain, {len(unknown)} ways")
    outcomes = state.engine.each(free_in_parts, arguments)
    for (priced, replicas), outcome in zip(unknown, outcomes, strict=True):
        reached = max((one.samples_per_second for one in outcome.candidates), default=0.0)
        state.bounds[priced.key, replicas] = reached
        if reached <= (best.rate if best is not None else 0.0):
            state.open_rate = max(state.open_rate, outcome.open_rate)
