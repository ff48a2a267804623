"""What fits: splits that are too close to call, the fewest IPUs, a Block that no IPU holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from ipuscope.planner.costs.memory_choice import Choice
from ipuscope.planner.costs.profile_costs import Costs
from ipuscope.planner.costs.tile_memory import stages_of
from ipuscope.planner.predict.memory_verdict import ABOVE, Answer
from ipuscope.planner.predict.split_text import profiled
from ipuscope.planner.predict.what_if import Assignment, memory_of, what_if
from ipuscope.planner.search.split_search import ALL_CHOICES, Split, best_split

UNSURE = (
    f"no split is sure to fit, and this one is up to {ABOVE:.0%} over a tile: compile to know"
    " (ipu-run --placement)"
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
    more, splits = int(costs.machine.bytes_per_tile * share), []
    roomy = costs.with_tile_bytes(costs.machine.bytes_per_tile + more)
    every = [replace(roomy, too_full=_surely_too_full(costs))]
    if costs.memory.region0.may_be_beyond(costs.machine):  # where code ends counts, not the tile
        machine = replace(roomy.machine, region0_bytes=roomy.machine.region0_bytes + more)
        every.append(replace(every[0], machine=machine))
    for one in every:
        with suppress(ValueError):
            split = search(one)
            prediction = what_if(costs, split.prediction.assignment)
            if not prediction.problems:
                splits.append(replace(split, prediction=prediction, why=(UNSURE, *split.why)))
    return min(splits, key=lambda one: one.prediction.total, default=None)


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


def fewest_ipus(
    costs: Costs, choices: Sequence[Choice] = (), together: Sequence[Sequence[int]] = ()
) -> Split:
    """The best split onto the fewest IPUs that can run; ValueError, the last one's, if none can.

    All numbers are tried from 1 on: more stages, each stashing for all that follow, may not fit.
    """
    problem = ""
    for stages in range(1, len(costs) + 1):
        try:
            split = best_split(costs, stages, choices=choices, together=together)
        except ValueError as error:
            problem = str(error)
            continue
        if not split.prediction.problems:
            return split
        problem = "; ".join(split.prediction.problems)
    raise ValueError(f"no number of IPUs is enough: {problem}")


def too_large(costs: Costs) -> str:
    """Names the Block that takes most of an IPU of its own, and the way out."""
    if len(costs) == 1:
        return "The model is one Block, and more than an IPU holds: its parts may fit on more IPUs."
    every = range(len(costs))
    saving = (ALL_CHOICES[-1] if costs.training else costs.own_choice,) * len(costs)
    alone = memory_of(costs, Assignment((*every,), (*every,), saving))
    block = costs.names[min(every, key=lambda k: alone[k].free)]
    return (
        f"Block {block} alone is more than an IPU holds, whatever is saved: cut its tensors over"
        " several IPUs (Options.tensorSharding), or make it more Blocks."
    )
