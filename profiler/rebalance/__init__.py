"""Where to place each Block: costs from a profile, what a split would give, and the best split."""

from __future__ import annotations

from profiler.rebalance.costs import Costs
from profiler.rebalance.parse import parse_assignment, profiled
from profiler.rebalance.split import Split, best_split
from profiler.rebalance.what_if import Assignment, Prediction, placement_file, what_if

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
