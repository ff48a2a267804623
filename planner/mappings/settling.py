"""What leads is compiled in full, until what was compiled leads."""

from __future__ import annotations

from dataclasses import replace

from ipuscope.planner.mappings.engine import Settled
from ipuscope.planner.mappings.mapping import Mapping
from ipuscope.planner.mappings.mapping_search import beating, predicted, rebalanced
from ipuscope.planner.mappings.memory_proportions import cheapest, groups, with_own_proportions
from ipuscope.planner.mappings.plan import Candidate
from ipuscope.planner.mappings.priced import Place, Priced
from ipuscope.planner.mappings.search_state import State, add, split_at

MOST_SETTLED = 6  # full compiles until what leads is what was compiled


def proportions_of_ipus(state: State) -> None:
    """Try splits whose IPUs have memory proportions of their own, of those that were compiled.

    A bound with each Block's cheapest costs finds what could win, and stays open where the IPUs'
    own are worse.
    """
    if state.late():
        return
    best = state.best
    some = groups(state.priced.values())
    arguments = [(cheapest(group), state.question, best) for group in some]
    if some:
        state.tell("memory proportions that differ by IPU")
    for group, outcome in zip(some, state.engine.each(beating, arguments), strict=True):
        for free in outcome.candidates:
            candidate = with_own_proportions(group, free.mapping)
            if candidate is not None:
                add(state, candidate)
            if candidate is None or candidate.cycles > free.cycles:
                state.open_rate = max(state.open_rate, free.samples_per_second)
        state.open_rate = max(state.open_rate, outcome.open_rate)
    if state.best is not None:
        _add_with_own_proportions(state, state.best.mapping)


def _add_with_own_proportions(state: State, mapping: Mapping) -> None:
    """Add the mapping with each IPU's quickest proportion of those that were compiled."""
    for group in groups(state.priced.values()):
        if any(mapping.key == one.key for one in group):
            own = with_own_proportions(group, mapping)
            if own is not None:
                add(state, own)


def settle(state: State) -> None:
    """Compile what leads in full until what leads was compiled and runs.

    A compile gives memory and Blocks' costs, a nearer basis to look for other splits once more: a
    plan is no worse than a rebalance of its own profile.
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
                take(state, leader, settled)


def _rebalanced(state: State, leader: Candidate) -> bool:
    """Whether the costs of the leader's own compile promise a better split than it."""
    place = state.there.pop(leader.mapping, None)
    if place is None:
        return False
    state.tell(f"other splits by the costs of {leader.mapping}")
    (candidates,) = state.engine.each(rebalanced, [(place, state.question, leader)])
    for candidate in candidates:
        if leader.mapping.mixes_proportions:
            _add_with_own_proportions(state, candidate.mapping)
        else:
            add(state, candidate)
    return state.best is not leader


def take(state: State, leader: Candidate, settled: Settled) -> None:
    """Put the result of a full compile in place of what was predicted."""
    state.done += 1
    at = state.candidates.index(leader)
    state.candidates[at] = replace(leader, obtained=settled.obtained)
    if leader.mapping.in_phases:
        _correct_phased_memory(state, state.candidates[at])
    elif settled.priced is not None:
        ipus = tuple(stage.ipu for stage in leader.mapping.stages)
        place = Place(settled.priced, ipus, leader.mapping.replicas, leader.mapping.accumulation)
        state.there[leader.mapping] = place
        if not leader.mapping.mixes_proportions:
            _correct_memory(state, leader.mapping, settled.priced)
            # of what leads, all splits are looked for at the end
            leads = not leader.own and state.best is state.candidates[at]
            again = None if leads else split_at(state, place)
            if again is not None:
                add(state, again)
            _leave_room(state, place, state.candidates[at])
    state.tell(f"in full: {leader.mapping}")


def _leave_room(state: State, place: Place, compiled: Candidate) -> None:
    """Where a compile overflowed a tile: the best split that leaves as many bytes free.

    Others that are predicted to fill the tile to its last bytes may lack as many.
    """
    over = compiled.obtained.fullest - compiled.limit if compiled.obtained is not None else 0
    if over <= 0:
        return
    priced, costs = place.priced, place.priced.costs
    tight = replace(priced, costs=costs.with_tile_bytes(compiled.limit - over))
    split = split_at(state, replace(place, priced=tight), surely=True)
    if split is not None:
        add(state, predicted(priced, split.mapping))


def _correct_phased_memory(state: State, compiled: Candidate) -> None:
    """Correct the memory of like mappings by as much as this one's was off."""
    off = compiled.off
    if off is None:
        return
    key, most = compiled.mapping.key, _most_blocks(compiled)
    for at, candidate in enumerate(state.candidates):
        alike = candidate.mapping.key == key and _most_blocks(candidate) == most
        if alike and candidate.obtained is None and candidate.mapping.in_phases:
            fullest = round(candidate.fullest / (1 + off[1]))
            state.candidates[at] = replace(candidate, fullest=fullest)


def _most_blocks(candidate: Candidate) -> int:
    return max(len(stage.blocks) for stage in candidate.mapping.stages)


def _correct_memory(state: State, compiled: Mapping, priced: Priced) -> None:
    """Predict the memory of like mappings from this compile, which is nearer than the first."""
    for at, candidate in enumerate(state.candidates):
        mapping = candidate.mapping
        alike = mapping.key == compiled.key and mapping.recomputation == compiled.recomputation
        alike = alike and not mapping.mixes_proportions
        if alike and candidate.obtained is None:
            here = predicted(priced, mapping)
            state.candidates[at] = replace(candidate, fullest=here.fullest, memory=here.memory)
