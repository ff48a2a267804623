"""How many micro-batches a call of the model has, and what becomes of their outputs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from ipu_exec.base.replica_groups import Groupings
from ipu_exec.base.structures import learn, leaves_of, map_leaves, taken_apart
from ipu_exec.enums import CommGroupType, MeanReductionStrategy, OutputMode, ReductionType
from ipu_exec.errors import Error

_ON_IPU = {torch.int64: torch.int32, torch.float64: torch.float32}


@dataclass(frozen=True, slots=True)
class CallPlan:
    """How many micro-batches a call has and what becomes of their gradients and outputs."""

    device_iterations: int
    accumulation: int
    replicas: int
    input_replicas: int
    input_group_type: CommGroupType
    output_mode: OutputMode
    output_period: int
    reduction: ReductionType
    strategy: MeanReductionStrategy
    groupings: Groupings = field(default_factory=dict)
    instance: int = 0  # which of the processes that share the replicas this is
    instances: int = 1
    norm_group: int = 1  # replicas over which a batch norm in training takes its statistics
    outputs_as_one: bool = False  # Final and Sum: as of a script that knows of no replicas

    @property
    def total_replicas(self) -> int:
        """Replicas of all instances; ``replicas`` counts this instance's."""
        return self.replicas * self.instances

    @property
    def first_replica(self) -> int:
        """The number of this instance's first replica among all replicas."""
        return self.instance * self.replicas

    @property
    def factor(self) -> int:
        """Micro-batches of a call."""
        return self.device_iterations * self.accumulation * self.input_replicas

    @property
    def mean_divisor(self) -> int:
        """Mean's divisor of summed gradients: accumulation steps x replicas."""
        return self.accumulation * self.total_replicas

    def micro_batch_index(self, iteration: int, step: int, replica: int) -> int:
        """Position of a micro-batch along dimension 0, in micro-batches."""
        if self.input_group_type is CommGroupType.Orthogonal:
            source = replica % self.input_replicas
        else:
            source = replica // (self.replicas // self.input_replicas)
        return (iteration * self.accumulation + step) * self.input_replicas + source


class Outputs:
    """Stores the micro-batches' outputs that the output mode returns, and joins them.

    Final: the last micro-batch. All: every one. EveryN: the N-th, 2N-th, ... Sum: the sum of all.
    Each replica's are concatenated along dimension 0, replicas innermost; ``outputs_as_one``: Final
    is the last replica's, which has the last samples, and Sum is over all replicas. Several scalars
    become a vector, one stays a scalar. As on an IPU, int64 and float64 become int32 and float32.
    """

    def __init__(self, plan: CallPlan) -> None:
        self._accumulation, mode = plan.accumulation, plan.output_mode
        self._period = plan.output_period if mode is OutputMode.EveryN else 1
        if mode is OutputMode.Final:
            self._period = plan.device_iterations * plan.accumulation
        self._sums = mode is OutputMode.Sum
        self._as_one = plan.outputs_as_one and mode in (OutputMode.Final, OutputMode.Sum)
        # (micro-batch, replica) -> what the model returned
        self.returned: dict[tuple[int, int], Any] = {}

    def add(self, returned: Any, iteration: int, step: int, replica: int) -> None:
        """Add the model's result for one micro-batch."""
        index = iteration * self._accumulation + step
        if (index + 1) % self._period:
            return
        copied = copy_of(returned)
        if self._as_one:
            replica = 0  # one after another: the last one's stay
        index = 0 if self._sums else index
        if self._sums and (0, replica) in self.returned:
            leaves, together = taken_apart(copied)
            so_far = leaves_of(self.returned[0, replica])
            copied = together([_add(a, b) for a, b in zip(so_far, leaves, strict=True)])
        self.returned[index, replica] = copied

    def result(self) -> Any:
        """The call's result, in the structure that the model returned."""
        return result_of([self.returned[key] for key in sorted(self.returned)])


def result_of(returned: list[Any]) -> Any:
    """The result of a call by what the micro-batches returned, in its structure."""
    if {*map(type, returned)} == {torch.Tensor}:
        return _as_output(_join(returned) if len(returned) > 1 else returned[0])
    if len(returned) == 1:
        return map_leaves(_as_output, returned[0])
    joined = map(_join, zip(*map(leaves_of, returned), strict=True))
    return map_leaves(lambda _: _as_output(next(joined)), returned[-1])


def copy_of(returned: Any) -> Any:
    """A copy of what a model returned."""
    if type(returned) is torch.Tensor:
        return _copied(returned)
    learn(returned)
    return map_leaves(_copied, returned)


def _copied(leaf: Any) -> Any:
    """A copy: the leaf may be a buffer or an input, which the next micro-batch changes in place."""
    if not isinstance(leaf, torch.Tensor):
        return leaf
    return leaf.detach().clone() if leaf.requires_grad else leaf.clone()


def _as_output(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    output = leaf.to(_ON_IPU[leaf.dtype]) if leaf.dtype in _ON_IPU else leaf
    output.backward = refuse_backward  # type: ignore[method-assign]
    output.__getstate__ = lambda: None  # type: ignore[method-assign]  # saved, it is a plain tensor
    return output


def _add(total: Any, leaf: Any) -> Any:
    return total + leaf if isinstance(total, torch.Tensor) else leaf


def _join(leaves: Any) -> Any:
    if not isinstance(leaves[0], torch.Tensor):
        return leaves[-1]
    return torch.stack(leaves) if leaves[0].dim() == 0 else torch.cat(leaves)


def refuse_backward(*args: Any, **kwargs: Any) -> None:
    """The ``backward`` of an output: an Error."""
    raise Error(
        "backward() cannot be called explicitly on outputs of a PopTorch model. If you're using a"
        " trainingModel, the backwards pass is performed automatically when invoking the model. If"
        " you're using an inferenceModel, you should use a trainingModel instead."
    )
