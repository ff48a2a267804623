"""The time and memory of one search over random costs, in a process of its own without PyTorch.

``python -m benchmarks.rebalance.timed BLOCKS STAGES ACCUMULATION [all]`` prints a row of the last
table of docs/rebalance.md's first part; ``all``: stages choose how they save memory.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.rebalance.random_costs import random_costs
from ipuscope.planner.search.split_search import ALL_CHOICES, best_split

_ONCE = 3000  # Blocks, from which on a search is timed once


def timed(blocks: int, stages: int, accumulation: int, all_choices: bool) -> str:
    """The row: the best time of three, or of one where there are many Blocks."""
    costs = random_costs(
        np.random.default_rng(0),
        blocks,
        1472,
        stages=stages,
        full=1.6,
        micro_batches=accumulation,
        kind=np.int32,
    )
    choices = ALL_CHOICES if all_choices else (costs.own_choice,)
    took = []
    for _ in range(3 if blocks < _ONCE else 1):
        anew = replace(costs, memory=replace(costs.memory))  # which has no tables yet
        start = time.process_time()  # of this core, whoever else is at work
        best = best_split(anew, stages, choices=choices)
        took.append(time.process_time() - start)
    what = "each of four ways to save memory" if all_choices else "as profiled"
    above = best.least_bottleneck / best.lower_bound - 1
    most = int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) * 1024 / 1e6
    return (
        f"| {blocks:,} | {stages} | {accumulation} | {what} | {min(took):.2f} s | {most:,.0f} |"
        f" {best.gap:.2%} | {above:.1%} |"
    )


if __name__ == "__main__":
    print(timed(*map(int, sys.argv[1:4]), sys.argv[4:] == ["all"]))
