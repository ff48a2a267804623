"""Fake tensors for a model and its optimiser: true shapes and dtypes, but no memory."""

from __future__ import annotations

import collections
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from ipu_exec.base.optimiser_attributes import take_step

# of PyTorch's cache of operators by shape, 2 kB each, which grows with every model of a process
_MOST_ENTRIES = 4096

# -- What differs between the releases of PyTorch that are supported (docs/versions.md) ---


def fake_copy(mode: FakeTensorMode, tensor: torch.Tensor) -> torch.Tensor:
    """A fake tensor of the same shape, strides and dtype, in a storage of their extent.

    PyTorch's own copy of a slice (a micro-batch) has the whole's storage from 2.14 on.
    """
    fake = mode.from_tensor(tensor.detach())
    if fake.layout is not torch.strided or fake.untyped_storage().nbytes() <= _reach(fake):
        return fake
    with mode:
        return torch.empty_strided(fake.size(), fake.stride(), dtype=fake.dtype, device=fake.device)


def _reach(tensor: torch.Tensor) -> int:
    """Bytes from the first element of a strided tensor to its last."""
    if not tensor.numel():
        return 0
    ends = zip(tensor.shape, tensor.stride(), strict=True)
    return (1 + sum((size - 1) * stride for size, stride in ends)) * tensor.element_size()


def first_state(
    mode: FakeTensorMode, optimizer: torch.optim.Optimizer
) -> collections.defaultdict[torch.Tensor, dict[str, Any]]:
    """An optimiser's state before its first step: none, except for Adagrad before PyTorch 2.12."""
    state: collections.defaultdict[torch.Tensor, dict[str, Any]] = collections.defaultdict(dict)
    if not isinstance(optimizer, torch.optim.Adagrad) or not adagrad_begins_with_state():
        return state
    with mode:
        for group in optimizer.param_groups:
            start = group.get("initial_accumulator_value", 0)
            for parameter in group["params"]:
                step, total = torch.tensor(0.0), torch.full_like(parameter, start)
                state[parameter] = {"step": step, "sum": total.detach()}
    return state


@cache
def adagrad_begins_with_state() -> bool:
    """Whether a new Adagrad has state already."""
    return bool(torch.optim.Adagrad([torch.zeros(1)]).state)


_HOST = torch.device("cpu")
_TORCHS_LOG = logging.getLogger("torch._subclasses.fake_tensor")


@contextmanager
def unlogged() -> Iterator[None]:
    """Inside, PyTorch prints no traceback of an operator that fails on fake tensors.

    The error itself says what is wrong, and the operator may be one of an attempt.
    """
    was_off, _TORCHS_LOG.disabled = _TORCHS_LOG.disabled, True
    try:
        yield
    finally:
        _TORCHS_LOG.disabled = was_off


class FakeTensors:
    """Fake tensors for real ones, in one mode. Each weight or buffer has one for all its uses."""

    def __init__(self) -> None:
        if len(FakeTensorMode.cache) > _MOST_ENTRIES:
            FakeTensorMode.cache_clear()
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        self._of_state: dict[int, torch.Tensor] = {}
        self.shapes: Mapping[int, torch.Size] = {}  # of weights that are cut, by identity

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """A new fake tensor of the same shape, strides and dtype."""
        if tensor.device.type != "meta":
            return fake_copy(self.mode, tensor)
        # a model made on "meta", without weights in memory, is captured as if it had them
        return self.alike(tensor)

    def alike(self, tensor: torch.Tensor) -> torch.Tensor:
        """A new fake tensor on the host of the same shape, strides and dtype.

        `FakeTensorMode` does not see it, which takes an eighth of the time, for thousands of
        them.
        """
        with no_dispatch():
            content = torch.empty_strided(
                tensor.size(), tensor.stride(), dtype=tensor.dtype, device="meta"
            )
        return FakeTensor(self.mode, content, _HOST)

    def copies(self, tree: Any) -> Any:
        """``tree`` with a fake copy of every tensor."""
        return tree_map_only(torch.Tensor, self.copy, tree)

    def of_state(self, tensor: torch.Tensor) -> torch.Tensor:
        """The fake tensor of a weight or buffer; a parameter's is one too."""
        if id(tensor) not in self._of_state:
            copy = self._share(tensor) if id(tensor) in self.shapes else self.copy(tensor)
            if isinstance(tensor, torch.nn.Parameter):
                copy.requires_grad_(tensor.requires_grad)
                copy._is_param = True  # as Parameter marks a subclass's, after a detach
            self._of_state[id(tensor)] = copy
        return self._of_state[id(tensor)]

    def _share(self, weight: torch.Tensor) -> torch.Tensor:
        """This rank's part of a weight (`ipu_exec.capture.sharding`)."""
        return self.alike(torch.empty(self.shapes[id(weight)], dtype=weight.dtype, device="meta"))

    def optimizer(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """The same optimiser over the fake parameters, tensor by tensor, so each update is seen."""
        copy = object.__new__(type(optimizer))
        copy.__dict__.update(optimizer.__dict__)
        # a learning-rate scheduler's wrapper holds on to the real one
        copy.__dict__.pop("step", None)
        groups = []
        for group in optimizer.param_groups:
            fakes = [self._of_state[id(p)] for p in group["params"] if id(p) in self._of_state]
            single: dict[str, Any] = {key: False for key in ("foreach", "fused") if key in group}
            groups.append({**group, "params": fakes, **single})
        copy.param_groups = groups
        copy.state = first_state(self.mode, copy)
        return copy


def make_state(
    fakes: FakeTensors, optimizer: torch.optim.Optimizer, trained: dict[str, torch.Tensor]
) -> None:
    """Run one step of a fake optimiser to create the state that every later step finds.

    ``trained``: the parameters that it updates; their gradients are not changed.
    """
    gradients = {name: parameter.grad for name, parameter in trained.items()}
    for parameter in trained.values():
        parameter.grad = fakes.alike(parameter)
    with _ScalarsAsTwo():
        take_step(optimizer)
    for name, parameter in trained.items():
        parameter.grad = gradients[name]


class _ScalarsAsTwo(TorchDispatchMode):
    """Reads of a scalar give 2: an optimiser's step counter, where any step after 1 will do."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            return 2.0
        return func(*args, **(kwargs or {}))
