"""From a model and a pod to the best mapping: the choices, their predictions and the best of them.

Without PyTorch: the engine (`ipu_exec.planning`) captures and compiles the model for costs.
"""

from __future__ import annotations

from ipuscope.planner.mappings.mapping import Key as Key
from ipuscope.planner.mappings.mapping import Mapping as Mapping
from ipuscope.planner.mappings.mapping import StagePlan as StagePlan
from ipuscope.planner.mappings.plan import Candidate as Candidate
from ipuscope.planner.mappings.plan import Obtained as Obtained
from ipuscope.planner.mappings.plan import Plan as Plan
from ipuscope.planner.mappings.plan_file import PlanError as PlanError
from ipuscope.planner.mappings.plan_file import load as load
from ipuscope.planner.mappings.plan_file import save as save
from ipuscope.planner.mappings.question import Question as Question
