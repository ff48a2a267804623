"""Batch norm over replicas: those of a group wait for one another at each norm.

Each replica has a thread, and they take turns: one runs until a norm needs the others'
statistics, then the next does. Only one runs at a time, so there is no concurrent access; state
that replicas share (buffers, gradients, PyTorch's generator) is saved when another's turn begins.

Statistics are combined in the order of the replicas, so that the bits do not depend on how
instances share them. Means and squared deviations of parts are combined as in Chan, Golub and
LeVeque (1983), which does not lose digits if a mean is large.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ipu_exec.errors import UsageError
from ipu_exec.numerics.collectives import Instances


@dataclass(frozen=True, slots=True)
class Members:
    """Replicas that norm together: groups of ``size`` in a row; ``local`` ones from ``first``."""

    size: int
    local: int
    first: int
    together: Instances | None

    def exchange(self, mine: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """For each local replica the values of its group: [size, ...], in the order of replicas."""
        rows = torch.stack(list(mine))
        start = self.first
        if self.local % self.size and self.together is not None:  # groups span instances
            rows, start = torch.cat(self.together.gather_tensors(rows)), 0
        begins = [
            (replica // self.size) * self.size - start
            for replica in range(self.first, self.first + self.local)
        ]
        return [rows[begin : begin + self.size] for begin in begins]


class Abandoned(BaseException):
    """Another replica failed while this one waited for it."""


class Turns:
    """Runs one piece of work per local replica; they meet at `meet`.

    ``bring_back(replica)`` and ``put_away(replica)`` are called before and after its turns.
    """

    def __init__(
        self, members: Members, put_away: Callable[[int], None], bring_back: Callable[[int], None]
    ) -> None:
        self._members, self._put_away, self._bring_back = members, put_away, bring_back
        self._wake = [threading.Semaphore(0) for _ in range(members.local)]
        self._ended = [False] * members.local
        self._given: dict[int, torch.Tensor] = {}
        self._answers: list[torch.Tensor] = []
        self._error: BaseException | None = None

    def run(self, works: Sequence[Callable[[], None]]) -> None:
        """Run all of them, one per local replica; an error of one ends all and is raised here."""
        threads = [
            threading.Thread(target=self._one, args=(replica, work), daemon=True)
            for replica, work in enumerate(works)
        ]
        for thread in threads:
            thread.start()
        self._wake[0].release()
        for thread in threads:
            thread.join()
        if self._error is not None:
            raise self._error
        self._bring_back(0)

    def _one(self, replica: int, work: Callable[[], None]) -> None:
        self._wake[replica].acquire()
        if self._error is None:
            self._bring_back(replica)
            try:
                work()
            except Abandoned:
                pass
            except BaseException as error:
                self._error = self._error or error
        self._put_away(replica)
        self._ended[replica] = True
        if self._given and self._error is None and replica + 1 == len(self._ended):
            self._error = _parted()  # the others wait for one that will not come
        self._pass_on(replica)

    def meet(self, replica: int, value: torch.Tensor) -> torch.Tensor:
        """The values of the replica's group, [members, ...]; every local replica must call it."""
        if any(self._ended):
            raise _parted()
        self._given[replica] = value
        if len(self._given) == len(self._ended):
            self._answers = self._members.exchange([self._given[r] for r in sorted(self._given)])
            self._given = {}
        if len(self._ended) > 1:
            self._put_away(replica)
            self._pass_on(replica)
            self._wake[replica].acquire()
            if self._error is not None:
                raise Abandoned
            self._bring_back(replica)
        return self._answers[replica]

    def _pass_on(self, replica: int) -> None:
        """Pass the turn to the next replica that has not finished."""
        count = len(self._ended)
        following = ((replica + step) % count for step in range(1, count + 1))
        after = next((r for r in following if not self._ended[r]), None)
        if after is not None:
            self._wake[after].release()


def _parted() -> UsageError:
    return UsageError(
        "distributedBatchNormReplicaGroupSize: replicas came to different numbers of batch norms."
        " A model whose batch norms depend on the data cannot take their statistics over replicas"
    )


class ReplicaState:
    """State that all replicas have in the same place, saved during other replicas' turns."""

    def __init__(
        self,
        model: torch.nn.Module,
        parameters: Sequence[torch.Tensor],
        began: Callable[[int], object],
    ) -> None:
        """``began(replica)``: called whenever a replica's turn begins again."""
        self._model, self._parameters, self._began = model, parameters, began
        self._saved: dict[int, tuple[Any, ...]] = {}
        self._before = self._now()

    def _now(self) -> tuple[Any, ...]:
        buffers = [buffer.clone() for buffer in self._model.buffers()]
        gradients = [parameter.grad for parameter in self._parameters]
        return buffers, gradients, torch.get_rng_state()

    def put_away(self, replica: int) -> None:
        """Save the replica's buffers, gradients and generator state."""
        self._saved[replica] = self._now()

    def bring_back(self, replica: int) -> None:
        """Restore them; at first as they were before any replica ran."""
        buffers, gradients, drawn = self._saved.pop(replica, self._before)
        with torch.no_grad():
            for buffer, value in zip(self._model.buffers(), buffers, strict=True):
                buffer.copy_(value)
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            parameter.grad = gradient
        torch.set_rng_state(drawn)
        self._began(replica)


@contextlib.contextmanager
def norms_together(turns: Turns, replica: int) -> Iterator[None]:
    """Inside, batch norms in training take the statistics of the replica's group."""
    with _NormsTogether(lambda value: turns.meet(replica, value)):
        yield


class _NormsTogether(TorchFunctionMode):
    def __init__(self, meet: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self._meet = meet

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.nn.functional.batch_norm:
            return self._batch_norm(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def _batch_norm(
        self,
        data: torch.Tensor,
        mean: torch.Tensor | None,
        variance: torch.Tensor | None,
        weight: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> torch.Tensor:
        if not training:
            norm = torch.nn.functional.batch_norm
            return norm(data, mean, variance, weight, bias, training, momentum, eps)
        applied = _GroupNorm.apply(data, weight, bias, eps, self._meet)
        out, group_mean, group_variance, count = applied
        if mean is not None and variance is not None:
            with torch.no_grad():
                mean.lerp_(group_mean.to(mean.dtype), momentum)
                unbiased = group_variance * (count / (count - 1).clamp(min=1))
                variance.lerp_(unbiased.to(variance.dtype), momentum)
        return out


class _GroupNorm(torch.autograd.Function):
    """Batch norm with sums over the replicas of a group; float32 inside."""

    @staticmethod
    def forward(
        ctx: Any,
        data: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        eps: float,
        meet: Callable[[torch.Tensor], torch.Tensor],
    ) -> tuple[torch.Tensor, ...]:
        values = data.float()
        over = [d for d in range(data.dim()) if d != 1]
        variance, mean = torch.var_mean(values, over, correction=0)
        here = torch.full_like(mean, data.numel() / data.shape[1])
        counts, means, squares = meet(torch.stack([here, mean, variance * here])).unbind(1)
        count = _added(counts)
        mean = _added(counts * means) / count
        variance = _added(squares + counts * (means - mean).square()) / count
        inverse = torch.rsqrt(variance + eps)
        white = (values - _beside(mean, data)) * _beside(inverse, data)
        out = white if weight is None else white * _beside(weight.float(), data)
        out = out if bias is None else out + _beside(bias.float(), data)
        ctx.save_for_backward(data, weight, mean, inverse, count)
        ctx.meet, ctx.bias = meet, bias is not None
        ctx.mark_non_differentiable(mean, variance, count)
        return out.to(data.dtype), mean, variance, count

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        data, weight, mean, inverse, count = ctx.saved_tensors
        gradient = gradients[0].float()
        over = [d for d in range(data.dim()) if d != 1]
        white = (data.float() - _beside(mean, data)) * _beside(inverse, data)
        shift, scale = gradient.sum(over), (gradient * white).sum(over)
        shifts, scales = ctx.meet(torch.stack([shift, scale])).unbind(1)
        of_mean, of_white = (_beside(_added(rows) / count, data) for rows in (shifts, scales))
        inner = (gradient - of_mean - white * of_white) * _beside(inverse, data)
        if weight is not None:
            inner = inner * _beside(weight.float(), data)
        own_scale = None if weight is None else scale.to(weight.dtype)
        own_shift = shift.to(weight.dtype if weight is not None else data.dtype)
        return inner.to(data.dtype), own_scale, own_shift if ctx.bias else None, None, None


def _added(rows: torch.Tensor) -> torch.Tensor:
    """The sum over dimension 0, added row by row in the order of the replicas."""
    total = rows[0]
    for row in rows[1:]:
        total = total + row
    return total


def _beside(channels: torch.Tensor, data: torch.Tensor) -> torch.Tensor:
    """One value per channel, shaped to broadcast over ``data``."""
    return channels.view(1, -1, *([1] * (data.dim() - 2)))
