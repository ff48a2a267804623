"""Every exchange of numbers between the instances of one script.

`Instances` is a gloo process group for these exchanges alone, independent of the script's own
``torch.distributed`` groups and its default group.

Sums are taken in the order of the replicas, wherever they run: each instance gets a part of every
replica's gradients (an all-to-all), adds them one after another and hands its part of the sum to
the others (an all-gather). So the bits do not depend on how replicas are shared out. An instance
sends its replicas' gradients and one sum; in a ring it would send two sums.
"""

from __future__ import annotations

import os
import pickle
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import Any, TypeVar

import torch

from ipu_exec.errors import Error, UsageError
from ipu_exec.numerics.hung_instances import Watch

MEETING = timedelta(minutes=5)  # until the last instance has called: scripts load their data first
# One instance may compile, or write a checkpoint, while the others wait.
WAITING = timedelta(hours=2)
BUCKET_BYTES = 32 << 20  # of one replica's gradients that travel together: bounds the buffers
_ADDRESS = ("MASTER_ADDR", "MASTER_PORT")  # PyTorch's: where the processes meet
Given = TypeVar("Given")


class InstanceLost(Error):
    """Another instance went away in the middle of an exchange."""


@dataclass(frozen=True)
class Instances:
    """``size`` instances of one script, this one ``rank``; all call the methods in one order."""

    rank: int
    size: int
    group: Any  # torch.distributed.ProcessGroupGloo
    watch: Watch | None = None  # says for whom the others wait

    def gather(self, value: Given) -> list[Given]:
        """The value that each instance passed, by instance. It has to be picklable."""
        data = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)
        sizes = self.gather_tensors(torch.tensor([data.numel()]))
        padded = torch.zeros(int(torch.cat(sizes).max()), dtype=torch.uint8)
        padded[: data.numel()] = data
        rows = self.gather_tensors(padded)
        return [
            pickle.loads(bytes(row[: int(size)].numpy()))
            for row, size in zip(rows, sizes, strict=True)
        ]

    def gather_tensors(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """The tensor of each instance; all have the same shape and dtype."""
        data = _bytes(tensor)
        rows = [torch.empty_like(data) for _ in range(self.size)]
        self._wait(lambda: self.group.allgather([rows], [data]))
        return [row.view(tensor.dtype).view(tensor.shape) for row in rows]

    def broadcast(self, tensor: torch.Tensor, source: int = 0) -> None:
        """Give ``tensor`` the values that it has on instance ``source``."""
        data = _bytes(tensor)
        self._wait(lambda: self.group.broadcast(data, source))
        tensor.copy_(data.view(tensor.dtype).view(tensor.shape))

    def broadcast_object(self, value: Given, source: int = 0) -> Given:
        """The value that instance ``source`` passed."""
        return self.gather(value if self.rank == source else None)[source]  # type: ignore[return-value]

    def total(self, numbers: Sequence[int]) -> list[int]:
        """Whole numbers, each added up over the instances."""
        rows = self.gather_tensors(torch.tensor(list(numbers), dtype=torch.int64))
        return [int(number) for number in torch.stack(rows).sum(0)]

    def barrier(self) -> None:
        """Return when every instance has reached the barrier."""
        self.gather_tensors(torch.zeros(1, dtype=torch.uint8))

    def add_gradients(
        self, parameters: Sequence[torch.Tensor], replicas: Sequence[dict[Any, torch.Tensor]]
    ) -> dict[Any, torch.Tensor]:
        """Gradients summed over the replicas of all instances, in the order of the replicas.

        ``replicas``: each local replica's gradients by parameter that it used. All instances have
        the same parameters in the same order, and equally many replicas.
        """
        used = torch.tensor([[p in gradients for p in parameters] for gradients in replicas])
        if any(gradient.is_sparse for gradients in replicas for gradient in gradients.values()):
            raise UsageError(
                "sparse gradients are not added up over instances: make the embedding with"
                " sparse=False"
            )
        all_used = torch.cat(self.gather_tensors(used.view(len(replicas), len(parameters))))
        sums: dict[Any, torch.Tensor] = {}
        for bucket in _buckets(parameters, all_used):
            by_whom = all_used[:, bucket[0]]
            chosen = [parameters[index] for index in bucket]
            rows = [
                torch.cat([gradients[p].reshape(-1) for p in chosen])
                for gradients in replicas
                if chosen[0] in gradients
            ]
            like = chosen[0].dtype
            counts = by_whom.view(self.size, len(replicas)).sum(1).tolist()
            elements = sum(p.numel() for p in chosen)
            total = self._add_in_order(rows, counts, elements, like)
            parts = total.split([p.numel() for p in chosen])
            for parameter, part in zip(chosen, parts, strict=True):
                # strides as autograd gives them, so that norms add up alike
                gradient = torch.empty_like(parameter, requires_grad=False)
                sums[parameter] = gradient.copy_(part.view(parameter.shape))
        return sums

    def _add_in_order(
        self, rows: list[torch.Tensor], counts: list[int], elements: int, dtype: torch.dtype
    ) -> torch.Tensor:
        """The sum of all instances' rows of ``elements``; ``counts`` of them on each instance."""
        part = -(-elements // self.size)
        cut = torch.zeros(self.size, len(rows), part, dtype=dtype)
        for place, row in enumerate(rows):
            padded = torch.nn.functional.pad(row, (0, part * self.size - elements))
            cut[:, place] = padded.view(self.size, part)
        nbytes = part * cut.element_size()
        sent = _bytes(cut)
        slices = torch.empty(sum(counts) * nbytes, dtype=torch.uint8)
        sizes = [count * nbytes for count in counts], [len(rows) * nbytes] * self.size
        options = torch.distributed.AllToAllOptions()
        self._wait(lambda: self.group.alltoall_base(slices, sent, *sizes, options))
        summands = slices.view(dtype).view(sum(counts), part)
        total = summands[0].clone()
        for summand in summands[1:]:
            total = total + summand
        return torch.cat(self.gather_tensors(total))[:elements]

    def _wait(self, begin: Callable[[], Any]) -> None:
        """Run one of the group's exchanges."""
        try:
            with self.watch.exchange() if self.watch is not None else nullcontext():
                begin().wait()
        except RuntimeError as error:
            raise InstanceLost(
                f"instance {self.rank} of {self.size} lost another one while they exchanged"
                " numbers: it ended, or calls the model more seldom than this one. All instances"
                f" have to run the same script with as many batches ({_first_line(error)})"
            ) from error


@cache
def connect(rank: int, size: int) -> Instances:
    """Connect the instances at PyTorch's address variables, and wait for the last of them.

    UsageError without MASTER_ADDR and MASTER_PORT, Error if they do not connect.
    """
    from torch.distributed.distributed_c10d import PrefixStore, ProcessGroupGloo
    from torch.distributed.rendezvous import rendezvous

    missing = [name for name in _ADDRESS if not os.environ.get(name)]
    if missing:
        raise UsageError(
            f"this is process {rank} of {size} (Options.Distributed), and {' and '.join(missing)}"
            " do not say where they meet to exchange gradients. Start them with"
            f" `ipu-run --instances {size} script.py`, or set MASTER_ADDR and MASTER_PORT alike in"
            " each, or call Options.Distributed.disable() to train them apart"
        )
    place = ":".join(os.environ[name] for name in _ADDRESS)
    try:
        store, _, _ = next(rendezvous("env://", rank, size, timeout=MEETING))
        own = PrefixStore("ipuscope", store)
        own.set(f"here {rank}", "")
        own.wait([f"here {other}" for other in range(size)], MEETING)
        group = ProcessGroupGloo(own, rank, size, WAITING)
        return Instances(rank, size, group, Watch(own, rank, size))
    except (RuntimeError, ValueError, OSError) as error:
        if "EADDRINUSE" in str(error) or "address already in use" in str(error).lower():
            why = "that port is taken by another program: set MASTER_PORT to a free one"
        else:
            why = f"not all of them came ({_first_line(error)})"
        raise Error(f"process {rank} of {size} cannot meet the others at {place}: {why}") from error


def host_name() -> str:
    """The name of this machine."""
    return socket.gethostname()


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor's bytes: gloo has fewer dtypes than PyTorch, and copying needs none."""
    return tensor.detach().contiguous().view(-1).view(torch.uint8)


def _buckets(parameters: Sequence[torch.Tensor], used: torch.Tensor) -> Iterator[list[int]]:
    """Groups of parameters to send together: one dtype, same replicas, limited size."""
    open_ones: dict[tuple[Any, ...], list[int]] = {}
    sizes: dict[tuple[Any, ...], int] = {}
    for index, parameter in enumerate(parameters):
        by_whom = tuple(used[:, index].tolist())
        if not any(by_whom) or not parameter.numel():
            continue
        kind = (parameter.dtype, by_whom)
        open_ones.setdefault(kind, []).append(index)
        sizes[kind] = sizes.get(kind, 0) + parameter.numel() * parameter.element_size()
        if sizes[kind] >= BUCKET_BYTES:
            yield open_ones.pop(kind)
            del sizes[kind]
    yield from open_ones.values()


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
