"""From a model and a pod to the best mapping: the choices, their predictions and the best of them.

Without PyTorch: the engine (`ipu_exec.planning`) captures and compiles the model for costs.
"""

from __future__ import annotations

from ipuscope.planner.mappings.mapping import Key, Mapping, StagePlan
from ipuscope.planner.mappings.plan import Candidate, Obtained, Plan
from ipuscope.planner.mappings.plan_file import PlanError, load, save
from ipuscope.planner.mappings.question import Question

__all__ = [
    "Candidate",
    "Key",
    "Mapping",
    "Obtained",
    "Plan",
    "PlanError",
    "Question",
    "StagePlan",
    "load",
    "save",
]
