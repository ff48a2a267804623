"""Where to place each Block: costs from a profile, what a split would give, and the best split."""

from __future__ import annotations

from ipuscope.planner.costs.profile_costs import Costs
from ipuscope.planner.predict.split_text import parse_assignment, profiled
from ipuscope.planner.predict.what_if import Assignment, Prediction, placement_file, what_if
from ipuscope.planner.search.split_search import Split, best_split

__all__ = [
    "Assignment",
    "Costs",
    "Prediction",
    "Split",
    "best_split",
    "parse_assignment",
    "placement_file",
    "profiled",
    "what_if",
]
