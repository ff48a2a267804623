"""The fewest IPUs that a model fits, one stage each."""

from __future__ import annotations

from collections.abc import Sequence

from ipuscope.planner.costs.memory_choice import Choice
from ipuscope.planner.costs.profile_costs import Costs
from ipuscope.planner.predict.what_if import Assignment, memory_of
from ipuscope.planner.search.split_search import ALL_CHOICES, Split, best_split


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
    saving = (ALL_CHOICES[-1] if costs.training else Choice.profiled(costs),) * len(costs)
    alone = memory_of(costs, Assignment((*every,), (*every,), saving))
    block = costs.names[min(every, key=lambda k: alone[k].free)]
    return (
        f"Block {block} alone is more than an IPU holds, whatever is saved: cut its tensors over"
        " several IPUs (Options.tensorSharding), or make it more Blocks."
    )
