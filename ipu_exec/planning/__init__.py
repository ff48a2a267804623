"""The planner's engine: capturing a model, compiling it for costs, and reporting the plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from ipuscope.planner.mappings import Plan


def plan(model: torch.nn.Module, inputs: Any, ipus: int, **asked: Any) -> Plan:
    """The best mappings of a model onto so many IPUs, best first (docs/plan.md).

    ``model``: a module that returns its loss last, or a wrapped model; ``inputs``: what a call
    takes, whose first dimension counts the samples of a weight update. ``asked``: ``options``,
    ``optimizer``, ``training``, ``global_batch``, ``micro_batches``, ``proportions``, ``fix``
    (("p=4",)), ``objective``, ``budget`` (seconds), ``verify``, ``workers``, ``ray`` and
    ``progress``, as `ipu_exec.planning.first_call_plan.plan_model` has them.

    Error where nothing fits, no Blocks can be proposed, or inputs have no batch dimension.
    """
    from ipu_exec.planning.first_call_plan import plan_model

    return plan_model(model, inputs, ipus, **asked)
