"""Analyses that combine several frames: functions from a report to frames."""

from __future__ import annotations

from ipuscope.profiler.analysis.compare import compare as compare
from ipuscope.profiler.analysis.compare import compare_classes as compare_classes
from ipuscope.profiler.analysis.compare import compare_ops as compare_ops
from ipuscope.profiler.analysis.compare import compare_paths as compare_paths
from ipuscope.profiler.analysis.compare import compare_waits as compare_waits
from ipuscope.profiler.analysis.compare import not_comparable as not_comparable
from ipuscope.profiler.analysis.compare import paired_ops as paired_ops
from ipuscope.profiler.analysis.memory_hot_spots import fullest as fullest
from ipuscope.profiler.analysis.memory_hot_spots import fullest_tiles as fullest_tiles
from ipuscope.profiler.analysis.memory_hot_spots import held_at_peak as held_at_peak
from ipuscope.profiler.analysis.memory_hot_spots import memory_peaks as memory_peaks
from ipuscope.profiler.analysis.memory_hot_spots import overflows as overflows
from ipuscope.profiler.analysis.movement import host_tensors as host_tensors
from ipuscope.profiler.analysis.movement import movement as movement
from ipuscope.profiler.analysis.movement import movement_of_ops as movement_of_ops
from ipuscope.profiler.analysis.operators import operators as operators
from ipuscope.profiler.analysis.operators import roofline as roofline
from ipuscope.profiler.analysis.pace import Pace as Pace
from ipuscope.profiler.analysis.pace import efficiency as efficiency
from ipuscope.profiler.analysis.pace import pace as pace
from ipuscope.profiler.analysis.pace import turn as turn
from ipuscope.profiler.analysis.pace import waiting as waiting
from ipuscope.profiler.analysis.pipeline import Bubble as Bubble
from ipuscope.profiler.analysis.pipeline import bubble as bubble
from ipuscope.profiler.analysis.pipeline import cycle_table as cycle_table
from ipuscope.profiler.analysis.pod import alike_ipus as alike_ipus
from ipuscope.profiler.analysis.pod import link_loads as link_loads
from ipuscope.profiler.analysis.pod import loads as loads
from ipuscope.profiler.analysis.pod import pod as pod
from ipuscope.profiler.analysis.pod import shards_of as shards_of
from ipuscope.profiler.analysis.program import program_cycles as program_cycles
from ipuscope.profiler.analysis.stages import ipu_costs as ipu_costs
from ipuscope.profiler.analysis.stages import slowest as slowest
from ipuscope.profiler.analysis.stages import step_balance as step_balance
