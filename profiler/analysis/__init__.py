"""Analyses that combine several frames: functions from a report to frames."""

from __future__ import annotations

from profiler.analysis.balance import step_balance
from profiler.analysis.compare import compare, compare_ops, compare_waits, not_comparable
from profiler.analysis.host import host_tensors
from profiler.analysis.memory import fullest, fullest_tiles, held_at_peak, memory_peaks
from profiler.analysis.movement import movement, movement_of_ops
from profiler.analysis.operators import operators, roofline
from profiler.analysis.overflow import overflows
from profiler.analysis.pace import Pace, efficiency, pace, turn, waiting
from profiler.analysis.pipeline import Bubble, bubble, cycle_table
from profiler.analysis.pod import alike_ipus, link_loads, loads, pod, shards_of
from profiler.analysis.program import program_cycles
from profiler.analysis.stages import ipu_costs, slowest

__all__ = [
    "Bubble",
    "Pace",
    "alike_ipus",
    "bubble",
    "compare",
    "compare_ops",
    "compare_waits",
    "cycle_table",
    "efficiency",
    "fullest",
    "fullest_tiles",
    "held_at_peak",
    "host_tensors",
    "ipu_costs",
    "link_loads",
    "loads",
    "memory_peaks",
    "movement",
    "movement_of_ops",
    "not_comparable",
    "operators",
    "overflows",
    "pace",
    "pod",
    "program_cycles",
    "roofline",
    "shards_of",
    "slowest",
    "step_balance",
    "turn",
    "waiting",
]
