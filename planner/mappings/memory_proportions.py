"""Memory proportions IPU by IPU: costs of compiles that differ by their proportion, put together.

Each compile has one for all IPUs. A stage may have another compile's: its Blocks then cost what
they do there, whatever other stages have.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ipuscope.planner.costs.code_memory import CodeMemory
from ipuscope.planner.costs.profile_costs import Costs
from ipuscope.planner.mappings.mapping import Key, Mapping
from ipuscope.planner.mappings.mapping_search import assignment_of, candidate_of
from ipuscope.planner.mappings.plan import Candidate
from ipuscope.planner.mappings.priced import Place, Priced
from ipuscope.planner.predict.what_if import Prediction, what_if

_CYCLES = ("forward", "backward", "update", "again", "again_end", "again_final")
# of `BlockMemory`, by Block
_BY_BLOCK = (
    *("always", "updating", "peak_of_backward", "peak_if_again", "peak_interleaved"),
    *("saved", "state", "state_once"),
)
_RESIDUALS = ("residual", "residual_at_home")
_BYTES = (*_BY_BLOCK, *_RESIDUALS, "peak", "peak_of_copies", "shared")

Group = tuple[Priced, ...]


def groups(every: Iterable[Priced]) -> list[Group]:
    """Compiles that differ by their memory proportion alone, where there are several."""
    by_key: dict[Key, list[Priced]] = {}
    for one in every:
        by_key.setdefault(replace(one.key, proportion=0.0), []).append(one)
    return [tuple(some) for some in by_key.values() if len(some) > 1]


def cheapest(group: Group) -> Priced:
    """Each Block's least time and bytes on each tile over all proportions: a bound of any split."""
    first, *others = (one.costs for one in group)
    cycles, memory = first.cycles, first.memory
    for other in others:
        cycles = replace(cycles, **_least(cycles, other.cycles, _CYCLES))
        memory = replace(memory, **_least(memory, other.memory, _BYTES))
    # which pieces of code two compiles have in common is not known: none of it is counted
    memory = replace(memory, code=memory.code[:0], code_users=memory.code_users[:0])
    return replace(group[0], costs=replace(first, cycles=cycles, memory=memory))


def _least(one: object, other: object, names: Sequence[str]) -> dict[str, Any]:
    return {name: np.minimum(getattr(one, name), getattr(other, name)) for name in names}


def mixed(group: Group, of_block: np.ndarray) -> Costs:
    """The costs where each Block has the proportion of that compile of the group: int64[Block]."""
    costs = group[0].costs
    cycles = {
        name: np.choose(of_block, [getattr(one.costs.cycles, name) for one in group])
        for name in _CYCLES
    }
    memories = [one.costs.memory for one in group]
    memory: dict[str, Any] = {}
    for name in _BY_BLOCK:
        each = np.stack([getattr(one, name) for one in memories])
        memory[name] = each[of_block, np.arange(len(of_block))]
    peaks = np.stack([one.peak for one in memories])
    memory["peak"] = np.moveaxis(peaks[of_block, :, np.arange(len(of_block))], 0, 1)
    # each compile's code and its IPUs' residuals, of the Blocks that are as they were there
    there = [of_block == number for number in range(len(memories))]
    memory["code_users"] = np.concatenate(
        [one.code_users & mine for one, mine in zip(memories, there, strict=True)]
    )
    memory["code"] = np.concatenate([one.code for one in memories])
    code = [one.region0 for one in memories]
    memory["region0"] = CodeMemory(
        np.stack([one.own for one in code])[of_block, np.arange(len(of_block))],
        memory["code_users"],
        np.concatenate([one.pieces for one in code]),
        np.maximum.reduce([one.besides for one in code]),
        code[0].ran,
    )
    before = np.cumsum([0, *(len(one.residual) for one in memories[:-1])])
    ran_by = np.stack(
        [one.residual_of + first for one, first in zip(memories, before, strict=True)]
    )
    memory["residual_of"] = ran_by[of_block, np.arange(len(of_block))]
    for name in _RESIDUALS:
        memory[name] = np.concatenate([getattr(one, name) for one in memories])
    return replace(
        costs, cycles=replace(costs.cycles, **cycles), memory=replace(costs.memory, **memory)
    )


def with_own_proportions(group: Group, mapping: Mapping, gap: float = 0.0) -> Candidate | None:
    """The split with each IPU's quickest proportion that fits; None where an IPU has none."""
    ipus = tuple(stage.ipu for stage in mapping.stages)
    places = [Place(one, ipus, mapping.replicas, mapping.accumulation) for one in group]
    predictions = []
    for place in places:
        costs = place.costs
        predictions.append(what_if(costs, assignment_of(mapping, costs)))
    chosen = _quickest_that_fit(predictions, ipus)
    if chosen is None:
        return None
    counts = [len(stage.blocks) for stage in mapping.stages]
    of_block = np.repeat([chosen[ipu] for ipu in ipus], counts)
    most = group[int(np.bincount(of_block, minlength=len(group)).argmax())]
    together = replace(most, costs=mixed(group, of_block))
    place = Place(together, ipus, mapping.replicas, mapping.accumulation)
    costs = place.costs
    prediction = what_if(costs, assignment_of(mapping, costs))
    if prediction.problems:
        return None
    candidate = candidate_of(place, costs, prediction, False, gap)
    return replace(candidate, mapping=_with_stage_proportions(candidate.mapping, group, chosen))


def _with_stage_proportions(mapping: Mapping, group: Group, chosen: Sequence[int]) -> Mapping:
    """The mapping with the proportions of the stages that differ from most."""
    shares = [group[chosen[stage.ipu]].key.proportion for stage in mapping.stages]
    stages = tuple(
        replace(stage, proportion=0.0 if share == mapping.proportion else share)
        for stage, share in zip(mapping.stages, shares, strict=True)
    )
    return replace(mapping, stages=stages)


def _quickest_that_fit(
    predictions: Sequence[Prediction], ipus: tuple[int, ...]
) -> list[int] | None:
    """Which prediction is quickest on each IPU, of those by which it fits; None: one has none."""
    chosen = []
    for ipu in range(max(ipus) + 1):
        stages = [number for number, one in enumerate(ipus) if one == ipu]
        fitting = [
            (sum(one.forward[k] + one.backward[k] for k in stages), number)
            for number, one in enumerate(predictions)
            if one.memory[ipu].free >= 0
        ]
        if not fitting:
            return None
        chosen.append(min(fitting)[1])
    return chosen
