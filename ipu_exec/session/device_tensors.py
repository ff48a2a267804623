"""The device's copies of a model's weights and buffers, where they differ from the host's.

PopTorch copies weights when it attaches to a device and on request, not at each call [POPTORCH,
python/_poplar_executor.py]: a script's later writes take effect with ``copyWeightsToDevice``. The
tensors here are copy-on-write clones: memory is copied once one of the two is written.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from operator import attrgetter, is_, methodcaller
from typing import Any

import torch

logger = logging.getLogger("ipu_exec")

Tensors = Mapping[str, torch.Tensor]
_address = torch._C._data_address  # type: ignore[attr-defined]
_contained = attrgetter("_parameters", "_buffers", "_modules")
_values, _kind = methodcaller("values"), attrgetter("dtype", "shape", "requires_grad")


class Listed:
    """A model's tensors, listed again where a module has others: a listing takes long.

    ``host``: parameters and buffers by name, each once, without those with no host data.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._model, self.modules = model, [model]
        self._contents: list[Any] = [model]  # not yet of the modules
        self.update()

    def update(self) -> Listed:
        """List them again if a module has others; returns itself."""
        if alike(contents(self.modules), self._contents):
            return self
        self.modules = list(self._model.modules())
        self._contents = contents(self.modules)
        self.parameters = list(self._model.parameters())
        self.buffers: Tensors = dict(self._model.named_buffers())
        named = {**dict(self._model.named_parameters()), **self.buffers}
        self.host: Tensors = {name: tensor for name, tensor in named.items() if _plain(tensor)}
        return self


def contents(modules: Iterable[torch.nn.Module]) -> list[Any]:
    """The names and values of all that the modules hold themselves."""
    groups: list[Any] = [*filter(None, chain.from_iterable(map(_contained, modules)))]
    return [*chain.from_iterable(groups), *chain.from_iterable(map(_values, groups))]


def places(tensors: Iterable[torch.Tensor]) -> list[Any]:
    """Where tensors are in memory: elsewhere after one that has a clone was written."""
    return [*map(_address, tensors), *map(_kind, tensors)]


def alike(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Whether both have the same objects."""
    return len(one) == len(other) and all(map(is_, one, other))


def _plain(tensor: torch.Tensor) -> bool:
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
    return plain and tensor.device.type == "cpu" and tensor.layout is torch.strided


def _clones(tensors: Tensors) -> dict[str, torch.Tensor]:
    """Copy-on-write clones, or plain ones of memory that PyTorch did not allocate.

    Of a file, an array, other processes: writing to `torch.load`'s would end the process.
    """
    clones = {}
    with torch.set_grad_enabled(False):
        for name, tensor in tensors.items():
            storage = tensor.untyped_storage()
            plain = not storage.resizable() or storage.is_shared()
            clones[name] = tensor.clone() if plain else torch._lazy_clone(tensor)
    return clones


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether neither tensor was written since one was cloned from the other."""
    return bool(_address(one) == _address(other)) and one.dtype is other.dtype


class DeviceTensors:
    """Weights and buffers on the device, by name; empty without a device."""

    def __init__(self) -> None:
        self._tensors: dict[str, torch.Tensor] = {}
        self.state = object()  # another one when they are others
        self._lost: list[str] = []  # what the last warning named

    def copy_to_device(self, host: Tensors) -> None:
        """Copy the host's current tensors to the device."""
        self._tensors |= _clones(host)
        self.state = object()

    def copy_to_host(self, host: Tensors) -> None:
        """Copy the device's tensors to the host's."""
        self._copy(self.differing(host))

    def _copy(self, differing: Tensors) -> None:
        for name, tensor in differing.items():
            with torch.no_grad():
                tensor.copy_(self._tensors[name])

    def release(self) -> None:
        """Drop all tensors: the device is detached."""
        self._tensors.clear()
        self.state = object()

    def differing(self, host: Tensors) -> dict[str, torch.Tensor]:
        """The host's tensors that differ from the device's."""
        differing = {}
        for name, tensor in host.items():
            own = self._tensors.get(name)
            if own is not None and not _same(own, tensor) and own.shape == tensor.shape:
                differing[name] = tensor
        return differing

    @contextlib.contextmanager
    def training(self, host: Tensors) -> Iterator[None]:
        """Run a training call from the device's tensors, and update the host's with the result.

        Values written to the host's tensors meanwhile are lost, as in PopTorch.
        """
        if not self._tensors:
            yield
            return
        differing = self.differing(host)
        self._warn_of_lost(
            [one for one, new in differing.items() if not torch.equal(new, self._tensors[one])]
        )
        self._copy(differing)
        self._tensors.clear()  # alone, a tensor is written without being copied
        try:
            yield
        finally:
            self.copy_to_device(host)

    def _warn_of_lost(self, names: list[str]) -> None:
        """Once for the same tensors: another model that trains them changes them at every call."""
        if names and names != self._lost:
            more = f" and {len(names) - 1} more were" if len(names) > 1 else " was"
            logger.warning(
                "%s changed on the host, and the device has not seen it: call"
                " copyWeightsToDevice() after changing weights (where another wrapped model trains"
                " them, its copyWeightsToHost() first). The change is lost",
                names[0] + more,
            )
        self._lost = names or self._lost

    @contextlib.contextmanager
    def inference(self, host: Tensors, buffers: Tensors) -> Iterator[None]:
        """Run an inference call with the device's tensors; ``buffers``: those it may write."""
        if not self._tensors:
            yield
            return
        differing = self.differing(host)
        host_data = {name: tensor.data for name, tensor in differing.items()}
        for name, tensor in differing.items():
            tensor.data = self._tensors[name]
        self._tensors.clear()
        before = _clones(buffers) if buffers else {}
        try:
            yield
        finally:
            self.take(host, buffers, before)
            for name, data in host_data.items():
                host[name].data = data

    def take(self, host: Tensors, buffers: Tensors, before: Tensors | None = None) -> None:
        """Take over what inference wrote; the host's buffers get back what they had ``before``."""
        before = before or dict(self._tensors)
        self.copy_to_device(host)
        for name in buffers:
            if name in before and not _same(buffers[name], before[name]):
                with torch.no_grad():
                    buffers[name].copy_(before[name])
