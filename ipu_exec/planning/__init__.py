"""The planner's engine: capturing a model, compiling it for costs, and reporting the plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from ipuscope.planner.mappings import Plan


def plan(model: torch.nn.Module, inputs: Any, ipus: int, **asked: Any) -> Plan:
    """The best mappings of a model onto so many IPUs, best first (docs/plan.md).

    ``asked``: ``options``, ``optimizer``, ``training``, ``global_batch``, ``micro_batches``,
    ``proportions``, ``fix``, ``objective``, ``budget``, ``verify``, ``workers``, ``ray`` and
    ``progress``: `ipu_exec.planning.first_call_plan.plan_model` says what they and the errors are.
    """
    from ipu_exec.planning.first_call_plan import plan_model

    return plan_model(model, inputs, ipus, **asked)
