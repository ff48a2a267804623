"""The fewest IPUs that a model fits, one stage each."""

from __future__ import annotations

from collections.abc import Sequence

from ipuscope.planner.costs.memory_choice import Choice
from ipuscope.planner.costs.profile_costs import Costs
from ipuscope.planner.search.split_search import Split, best_split


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
