"""Splits whose memory is too close to call, where none is sure to fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ipuscope.planner.costs.memory_choice import Choice
from ipuscope.planner.costs.profile_costs import Costs
from ipuscope.planner.costs.tile_memory import stages_of
from ipuscope.planner.predict.memory_verdict import ABOVE, Answer
from ipuscope.planner.predict.split_text import profiled
from ipuscope.planner.predict.what_if import what_if
from ipuscope.planner.search.split_search import Split

UNSURE = (
    f"no split is sure to fit, and this one is up to {ABOVE:.0%} over a tile: compile to know"
    " (--verify N --script 'FILE ARGS')"
)
_STEPS = 3  # from a tile's end to the margin: the nearer to the end, the likelier it fits


def or_close(costs: Costs, search: Callable[[Costs], Split]) -> Split:
    """What ``search`` finds, or a split of which only a compile can tell whether it fits.

    ValueError, as ``search`` raises where nothing fits, if nothing is within the margin either.
    """
    try:
        return search(costs)
    except ValueError as error:
        for step in range(1, _STEPS + 1):
            split = _with_more(costs, search, ABOVE * step / _STEPS)
            if split is not None:
                return split
        raise error


def quicker_if_it_fits(
    costs: Costs, search: Callable[[Costs], Split], split: Split
) -> Split | None:
    """A split quicker than ``split`` that is too close to call, or None.

    It is looked for only where memory is what keeps the slowest stage of ``split`` long.
    """
    if UNSURE in split.why or split.lower_bound >= split.least_bottleneck:
        return None
    other = _with_more(costs, search, ABOVE)
    return other if other and other.prediction.total < split.prediction.total else None


def _with_more(costs: Costs, search: Callable[[Costs], Split], share: float) -> Split | None:
    """What is found with so much more on a tile, where that is not sure to be too much."""
    nbytes = int(costs.machine.bytes_per_tile * (1 + share))
    roomy = replace(costs.with_tile_bytes(nbytes), too_full=_surely_too_full(costs))
    try:
        split = search(roomy)
    except ValueError:
        return None
    prediction = what_if(costs, split.prediction.assignment)
    if prediction.problems:
        return None
    return replace(split, prediction=prediction, why=(UNSURE, *split.why))


def _surely_too_full(costs: Costs) -> frozenset[tuple[tuple[int, int, Choice], ...]]:
    """The stages of IPUs that do not fit as they were profiled, of which nothing is too close."""
    if not costs.measured:
        return frozenset()
    own = what_if(costs, profiled(costs))
    parts, ipus = own.assignment.parts(costs), own.assignment.ipus
    over = [one.ipu for one in own.memory if one.answer is Answer.OVER]
    return frozenset(
        stages_of([part for part, where in zip(parts, ipus, strict=True) if where == ipu])
        for ipu in over
    )
