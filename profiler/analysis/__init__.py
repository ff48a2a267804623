"""Analyses that combine several frames: functions from a report to frames."""

from __future__ import annotations

from ipuscope.profiler.analysis.compare import (
    basis,
    caveats,
    compare,
    compare_classes,
    compare_ops,
    compare_paths,
    compare_waits,
    not_comparable,
    paired_ops,
)
from ipuscope.profiler.analysis.memory_hot_spots import (
    fullest,
    fullest_tiles,
    held_at_peak,
    overflows,
)
from ipuscope.profiler.analysis.movement import host_tensors, movement
from ipuscope.profiler.analysis.operators import operators, roofline
from ipuscope.profiler.analysis.pace import Pace, pace, turn, waiting
from ipuscope.profiler.analysis.pipeline import Bubble, bubble, cycle_table
from ipuscope.profiler.analysis.pod import (
    alike_ipus,
    link_loads,
    link_names,
    link_slices,
    link_traffic,
    loads,
    pod,
    shards_of,
)
from ipuscope.profiler.analysis.program import program_cycles
from ipuscope.profiler.analysis.stages import ipu_costs, slowest

__all__ = [
    "Bubble",
    "Pace",
    "alike_ipus",
    "basis",
    "bubble",
    "caveats",
    "compare",
    "compare_classes",
    "compare_ops",
    "compare_paths",
    "compare_waits",
    "cycle_table",
    "fullest",
    "fullest_tiles",
    "held_at_peak",
    "host_tensors",
    "ipu_costs",
    "link_loads",
    "link_names",
    "link_slices",
    "link_traffic",
    "loads",
    "movement",
    "not_comparable",
    "operators",
    "overflows",
    "pace",
    "paired_ops",
    "pod",
    "program_cycles",
    "roofline",
    "shards_of",
    "slowest",
    "turn",
    "waiting",
]
