"""Weights that differ between replicas: PopTorch's ``replicaGrouping``.

The host's parameter has an additional first dimension: a value for each group of replicas (or
each replica). The model on a replica sees its group's value. Gradients are added up within a
group only; Mean divides them by all replicas, as PopART's loss scaling does.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ipu_exec.enums import CommGroupType, VariableRetrievalMode
from ipu_exec.errors import UsageError


@dataclass(frozen=True, slots=True)
class Grouping:
    """Groups of ``members`` of ``replicas``, ``stride`` apart, share a weight's value."""

    replicas: int
    members: int
    stride: int
    retrieval: VariableRetrievalMode

    @property
    def rows(self) -> int:
        """The number of values in the host's parameter."""
        one = self.retrieval is VariableRetrievalMode.OnePerGroup
        return self.replicas // self.members if one else self.replicas

    def group(self, replica: int) -> int:
        """The group of a replica, identified by its first."""
        return replica % self.stride if self.stride > 1 else replica // self.members

    def row(self, replica: int) -> int:
        """The index of a replica's value in the host's parameter; of all, its group's first."""
        group = self.group(replica)
        if self.retrieval is VariableRetrievalMode.OnePerGroup:
            return group
        return group if self.stride > 1 else group * self.members


Groupings = Mapping[str, Grouping]


def resolve(
    model: torch.nn.Module, asked: Mapping[str, tuple[Any, Any, Any]], replicas: int
) -> dict[str, Grouping]:
    """The groupings by parameter, from ``replicaGrouping``'s arguments; Error if impossible."""
    if not asked:
        return {}
    parameters = dict(model.named_parameters(remove_duplicate=False))
    # the first of a tied one
    names = {id(parameter): name for name, parameter in reversed(parameters.items())}
    groupings = {}
    for name, (kind, size, retrieval) in asked.items():
        if name not in parameters:
            raise UsageError(
                f"replicaGrouping: the model has no parameter {name!r}; it has"
                f" {', '.join(parameters)}"
            )
        if not isinstance(kind, CommGroupType) or not isinstance(retrieval, VariableRetrievalMode):
            raise UsageError(
                f"replicaGrouping of {name}: it takes a CommGroupType, the replicas of a group and"
                f" a VariableRetrievalMode, not {kind!r}, {size!r}, {retrieval!r}"
            )
        if kind is CommGroupType.All:
            continue
        members = 1 if kind is CommGroupType.NoGrouping else size
        if not isinstance(members, int) or members < 1 or replicas % members:
            raise UsageError(
                f"replicaGrouping of {name}: groups of {members!r} replicas do not divide"
                f" replicationFactor {replicas}"
            )
        stride = replicas // members if kind is CommGroupType.Orthogonal else 1
        grouping = Grouping(replicas, members, stride, retrieval)
        shape = tuple(parameters[name].shape)
        if shape[:1] != (grouping.rows,):
            what = "groups" if retrieval is VariableRetrievalMode.OnePerGroup else "replicas"
            raise UsageError(
                f"replicaGrouping of {name}: its shape is {shape}, and the first dimension is to be"
                f" {grouping.rows}, one value for each of the {what}. Stack the values along"
                " dimension 0"
            )
        groupings[names[id(parameters[name])]] = grouping
    return groupings


def check_optimiser(optimizer: torch.optim.Optimizer, groupings: Groupings) -> None:
    """Error for an update that mixes values of different replicas, such as a norm over them."""
    norms = type(optimizer).__name__ in ("LAMB", "LARS") or math.isfinite(
        getattr(optimizer, "max_grad_norm", None) or math.inf
    )
    if groupings and norms:
        raise UsageError(
            f"replicaGrouping of {next(iter(groupings))}: {type(optimizer).__name__} takes norms of"
            " whole tensors, which would mix the values of different replicas. Use SGD, Adam,"
            " AdamW or RMSprop, without max_grad_norm"
        )


def run(model: torch.nn.Module, groupings: Groupings, replica: int, args: Any, kwargs: Any) -> Any:
    """Call the model as ``replica`` has it; gradients reach the parameter of all replicas."""
    if not groupings:
        return model(*args, **kwargs)
    parameters = dict(model.named_parameters())
    own = {name: parameters[name][grouping.row(replica)] for name, grouping in groupings.items()}
    return torch.func.functional_call(model, own, args, kwargs)


def spread(model: torch.nn.Module, groupings: Groupings) -> None:
    """Set every replica's value to its group's, if the host reads all of them."""
    if not groupings:
        return
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name, grouping in groupings.items():
            if grouping.rows == grouping.replicas:
                rows = [grouping.row(replica) for replica in range(grouping.replicas)]
                parameters[name].copy_(parameters[name][rows])


@contextlib.contextmanager
def one_replica(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer | None, groupings: Groupings
) -> Iterator[None]:
    """Shrink model's and optimiser's grouped parameters to one replica's while compiling."""
    parameters = dict(model.named_parameters())
    small = {
        id(parameters[name]): torch.nn.Parameter(
            parameters[name].detach()[0], parameters[name].requires_grad
        )
        for name in groupings
    }
    slots = [(module, name) for module in model.modules() for name in module._parameters]
    before = [(module, name, module._parameters[name]) for module, name in slots]
    groups = optimizer.param_groups if optimizer is not None else []
    listed = [group["params"] for group in groups]
    try:
        for module, name, parameter in before:
            module._parameters[name] = small.get(id(parameter), parameter)
        for group in groups:
            group["params"] = [small.get(id(parameter), parameter) for parameter in group["params"]]
        yield
    finally:
        for module, name, parameter in before:
            module._parameters[name] = parameter
        for group, params in zip(groups, listed, strict=True):
            group["params"] = params


class GroupedParameter:
    """A parameter as a wrapped model returns it: the parameter itself, with `replicaGrouping`."""

    def __init__(
        self, asked: dict[str, tuple[Any, Any, Any]], name: str, parameter: torch.nn.Parameter
    ) -> None:
        """``asked`` records the arguments of `replicaGrouping`, by the parameter's name."""
        self._asked, self._name, self._parameter = asked, name, parameter

    def replicaGrouping(
        self,
        comm_group_type: CommGroupType,
        shards: int,
        variable_retrieval_mode: VariableRetrievalMode,
    ) -> None:
        """Give groups of ``shards`` replicas their own values, from the next compilation on."""
        self._asked[self._name] = (comm_group_type, shards, variable_retrieval_mode)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._parameter, name)

    def __repr__(self) -> str:
        return repr(self._parameter)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = torch.utils._pytree.tree_map(
            lambda item: item._parameter if isinstance(item, cls) else item, (args, kwargs or {})
        )
        return func(*args, **kwargs)
