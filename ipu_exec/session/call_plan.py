"""The plan of a call by the options: how its batch is cut, its gradients and its outputs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

import torch
from torch.utils._pytree import tree_leaves

from ipu_exec.base.replica_groups import Groupings
from ipu_exec.enums import OutputMode
from ipu_exec.errors import UsageError
from ipu_exec.numerics.call import CallPlan
from ipu_exec.options import Options


def plan_call(options: Options, training: bool) -> CallPlan:
    """The plan by ``options``; Error if EveryN does not divide a replica's micro-batches."""
    mode = options.output_mode
    if mode is OutputMode.Default:
        mode = OutputMode.Final if training else OutputMode.All
    plan = CallPlan(
        device_iterations=options.device_iterations,
        accumulation=options.Training.gradient_accumulation,
        replicas=options.replication_factor,
        input_replicas=options.input_replicas,
        input_group_type=options.input_group_type,
        output_mode=mode,
        output_period=options.output_return_period,
        outputs_as_one=options.outputs_as_one_replica,
        reduction=options.Training.accumulation_and_replication_reduction_type,
        strategy=options.Training.mean_accumulation_and_replication_reduction_strategy,
        instance=options.Distributed.processId,
        instances=options.Distributed.numProcesses,
        norm_group=int(options.Training.batch_norm_replicas) if training else 1,
    )
    if plan.total_replicas % plan.norm_group:
        raise UsageError(
            f"distributedBatchNormReplicaGroupSize({plan.norm_group}): groups of"
            f" {plan.norm_group} replicas do not divide the {plan.total_replicas} there are"
            f" (replicationFactor {plan.replicas} x {plan.instances} instances)"
        )
    count = plan.device_iterations * plan.accumulation
    if mode is OutputMode.EveryN and count % plan.output_period:
        raise UsageError(
            f"outputMode(OutputMode.EveryN, {plan.output_period}): a call has {count} micro-batches"
            f" a replica (deviceIterations {plan.device_iterations} x gradientAccumulation"
            f" {plan.accumulation}), which is not a multiple of {plan.output_period}"
        )
    return plan


def samples_of(micro_batch: Any) -> int:
    """The samples of a micro-batch: the first dimension of its first tensor."""
    tensors = [leaf for leaf in tree_leaves(micro_batch) if isinstance(leaf, torch.Tensor)]
    return int(tensors[0].shape[0]) if tensors and tensors[0].dim() else 1


# -- What the first call of a model would compile ---


@dataclass(frozen=True)
class FirstCall:
    """A model and one micro-batch of its inputs, args and kwargs.

    ``samples``: of a weight update (a device iteration in inference), over all replicas.
    ``prepared()``: inside, the model is ready for a capture.
    """

    model: torch.nn.Module
    options: Options
    optimizer: torch.optim.Optimizer | None
    training: bool
    samples: int
    micro_batch: tuple[tuple[Any, ...], dict[str, Any]]
    groupings: Groupings
    prepared: Callable[[], AbstractContextManager[None]]
    trainer: str = ""  # whose loop runs the model (`Provenance.trainer`)


class Taker(Protocol):
    """Whoever has the first call instead of a compile.

    ``passed_over``: an evaluation that came before the training.
    """

    passed_over: FirstCall | None

    def take(self, call: FirstCall) -> NoReturn:
        """Use it, and end the script."""
