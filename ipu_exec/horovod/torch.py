"""``horovod.torch`` on the host: tensors exchanged between the instances of a script, over gloo.

For initial weights, losses and metrics; a training call itself exchanges gradients on IPUs.
Without ``poprun`` or ``ipu-run --instances`` there is one instance, and nothing is exchanged.
Sums are in the order of the instances, so that all of them have the same bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any, TypeVar

import torch

from ipu_exec import popdist
from ipu_exec.errors import UsageError
from ipu_exec.numerics.collectives import Instances, connect

Given = TypeVar("Given")


class ReduceOp(Enum):
    """How the tensors of all instances are combined."""

    Average = 0
    Sum = 1
    Min = 3
    Max = 4


Average, Sum, Min, Max = ReduceOp.Average, ReduceOp.Sum, ReduceOp.Min, ReduceOp.Max


def init(*args: Any, **kwargs: Any) -> None:
    """Connect to the other instances; the arguments are Horovod's and are ignored here."""
    popdist.init()


def shutdown() -> None:
    """Do nothing: the connections end with the process."""


def is_initialized() -> bool:
    """True: instances connect when first needed."""
    return True


rank, size = popdist.getInstanceIndex, popdist.getNumInstances
local_rank, local_size = popdist.getLocalInstanceIndex, popdist.getNumLocalInstances
cross_size, barrier = popdist.getNumHosts, popdist.synchronize


def cross_rank() -> int:
    """The number of this host, if all hosts have equally many instances."""
    return rank() // local_size()


def broadcast(tensor: torch.Tensor, root_rank: int, name: str | None = None) -> torch.Tensor:
    """A copy of the tensor as instance ``root_rank`` has it."""
    return broadcast_(tensor.detach().clone(), root_rank)


def broadcast_(tensor: torch.Tensor, root_rank: int, name: str | None = None) -> torch.Tensor:
    """The tensor itself, with the values that it has on instance ``root_rank``."""
    together = _checked(root_rank)
    if together is not None:
        with torch.no_grad():
            together.broadcast(tensor, root_rank)
    return tensor


def broadcast_object(obj: Given, root_rank: int = 0, name: str | None = None) -> Given:
    """The object that instance ``root_rank`` passed, which has to be picklable."""
    together = _checked(root_rank)
    return obj if together is None else together.broadcast_object(obj, root_rank)


def broadcast_parameters(
    params: Mapping[str, Any] | Iterable[tuple[str, Any]], root_rank: int = 0
) -> None:
    """Give tensors (a ``state_dict`` or named parameters) the values of instance ``root_rank``."""
    named = params.items() if isinstance(params, Mapping) else params
    for _, tensor in named:
        if isinstance(tensor, torch.Tensor):
            broadcast_(tensor, root_rank)


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, root_rank: int = 0) -> None:
    """Give an optimiser the states and rates of instance ``root_rank``."""
    if size() > 1:
        optimizer.load_state_dict(broadcast_object(optimizer.state_dict(), root_rank))


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
) -> torch.Tensor:
    """The mean over the instances, or the operation of ``op``; ``average=False`` is the sum."""
    if average is not None and op is not None:
        raise UsageError("allreduce: say average or op, not both")
    wanted = op or (Average if average in (None, True) else Sum)
    together = _checked(0)
    if together is None:
        return tensor.detach().clone()
    rows = together.gather_tensors(tensor)
    if wanted is Min or wanted is Max:
        stacked = torch.stack(rows)
        return stacked.amin(0) if wanted is Min else stacked.amax(0)
    total = rows[0].clone()
    for row in rows[1:]:
        total = total + row
    if wanted is Sum:
        return total
    return total / size() if total.is_floating_point() else total // size()


def allreduce_(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """`allreduce` into the tensor itself."""
    with torch.no_grad():
        return tensor.copy_(allreduce(tensor, *args, **kwargs))


def allgather(tensor: torch.Tensor, name: str | None = None) -> torch.Tensor:
    """The tensors of all instances, joined along dimension 0, in which they may differ in size."""
    together = _checked(0)
    if together is None:
        return tensor.detach().clone()
    return torch.cat(together.gather(tensor.detach()))


def allgather_object(obj: Given, name: str | None = None) -> list[Given]:
    """The objects that the instances passed."""
    together = _checked(0)
    return [obj] if together is None else together.gather(obj)


def _checked(root_rank: int) -> Instances | None:
    """The instances; None if there is only one. UsageError if the named one does not exist."""
    if not 0 <= root_rank < size():
        raise UsageError(f"horovod: there is no instance {root_rank}: they are 0 to {size() - 1}")
    return connect(rank(), size()) if size() > 1 else None
