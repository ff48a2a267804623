"""The split with the least cycles of a whole weight update, and a bound for all others.

`partial_splits` keeps all splits apart where they are few. Where they are more, the gap between the
best split found and the bound is narrowed box by box (`boxes`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ipuscope.planner.costs.memory_choice import Choice
from ipuscope.planner.costs.profile_costs import Costs
from ipuscope.planner.predict.interval_costs import interval_costs
from ipuscope.planner.predict.many_splits import assignment_cycles, counted_micro_batches
from ipuscope.planner.predict.what_if import Assignment
from ipuscope.planner.search.boxes import Boxes, effort_of
from ipuscope.planner.search.partial_splits import LeastUpdate, Search
from ipuscope.planner.search.update_bounds import longest_stage

_WAYS = (1_000, 20_000)  # kept at a time where they are many: first few, then more
_CELLS = 4_000_000  # of way x stage x Block that are looked at where more are kept
_QUICK_CELLS = 1_000_000  # ... before boxes, which such a look often proves needless
MOST_APART = 400_000  # ways x stages up to which none need go on as one
_NEAR = 5e-4  # a gap that is small enough not to look further


def least_update(
    costs: Costs,
    known: Assignment,
    choices: Sequence[Choice],
    together: Sequence[Sequence[int]] = (),
    bottleneck: int = 0,
    narrow: int | None = None,
) -> LeastUpdate:
    """The quickest split found onto the IPUs of ``known`` that fits, with a bound on all others.

    ``choices``: ways of saving memory that each stage may take; ``together``: groups of Blocks that
    must be on one IPU; ``bottleneck``: a lower bound on the cycles of the busiest IPU, over all
    splits; ``narrow``: cells (`boxes`) to look at where a gap is left, as in `split.best_split`.
    """
    least = LeastUpdate(known, assignment_cycles(costs, known), 0)
    # one stage too many Blocks in a better split: all its work is done one after the other
    most = max(1, least.total // counted_micro_batches(costs, len(known.ipus)))
    apart = len(set(known.ipus)) == len(known.ipus)
    keep = together if apart else ()
    boxed = narrow != 0 and narrows(costs, known)
    if boxed:
        most = longest_stage(costs, known.ipus, choices, most, keep, least.total)
    table = interval_costs(costs, known.ipus, choices, most, keep)
    search = Search(costs, table, known.ipus, together, bottleneck)
    width = table.final.shape[1]
    for ways in (MOST_APART // len(known.ipus), *_WAYS):
        many = ways > _WAYS[0]
        if many and ways * width * len(known.ipus) > _CELLS and not search.few(ways):
            continue
        if boxed and not many and ways * width * len(known.ipus) > _QUICK_CELLS:
            continue
        found = search.run(least, ways, search.everything, least.total).update
        least = replace(found, bound=max(least.bound, found.bound))
        if least.total - least.bound <= _NEAR * least.total * (least.bound < least.total):
            return least
    if not boxed:
        return least
    return Boxes(search, least).narrowed(effort_of(costs, table) if narrow is None else narrow)


def narrows(costs: Costs, split: Assignment) -> bool:
    """Whether a gap can be narrowed box by box: a pipeline's, whose ramps leave it."""
    return costs.pipelined and len(split.ipus) > 2
