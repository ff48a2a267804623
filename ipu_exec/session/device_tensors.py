"""The device's copies of a model's weights and buffers, where they differ from the host's.

PopTorch copies weights when it attaches to a device and on request, not at each call [POPTORCH,
python/_poplar_executor.py]: a script's later writes take effect with ``copyWeightsToDevice``. The
tensors here are copy-on-write clones: memory is copied once one of the two is written.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping

import torch

logger = logging.getLogger("ipu_exec")

Tensors = Mapping[str, torch.Tensor]


def tensors_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """A model's parameters and buffers by name, each once, without those with no host data."""
    named = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {name: tensor for name, tensor in named.items() if _plain(tensor)}


def _plain(tensor: torch.Tensor) -> bool:
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
    return plain and tensor.device.type == "cpu" and tensor.layout is torch.strided


def _clone(tensor: torch.Tensor) -> torch.Tensor:
    """A copy-on-write clone, or a plain one of memory that PyTorch did not allocate.

    Of a file, an array, other processes: writing to `torch.load`'s would end the process.
    """
    storage = tensor.untyped_storage()
    if not storage.resizable() or storage.is_shared():
        return tensor.detach().clone()
    return torch._lazy_clone(tensor.detach())


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether neither tensor was written since one was cloned from the other."""
    address = torch._C._data_address  # type: ignore[attr-defined]
    return bool(address(one) == address(other)) and one.dtype is other.dtype


class DeviceTensors:
    """Weights and buffers on the device, by name; empty without a device."""

    def __init__(self) -> None:
        self._tensors: dict[str, torch.Tensor] = {}
        self._lost: list[str] = []  # what the last warning named

    def copy_to_device(self, host: Tensors) -> None:
        """Copy the host's current tensors to the device."""
        self._tensors |= {name: _clone(tensor) for name, tensor in host.items()}

    def copy_to_host(self, host: Tensors) -> None:
        """Copy the device's tensors to the host's."""
        self._copy(self._differing(host))

    def _copy(self, differing: Tensors) -> None:
        with torch.no_grad():
            for name, tensor in differing.items():
                tensor.copy_(self._tensors[name])

    def release(self) -> None:
        """Drop all tensors: the device is detached."""
        self._tensors.clear()

    def _differing(self, host: Tensors) -> dict[str, torch.Tensor]:
        """The host's tensors that differ from the device's."""
        return {
            name: tensor
            for name, tensor in host.items()
            if name in self._tensors
            and tensor.shape == self._tensors[name].shape
            and not _same(tensor, self._tensors[name])
        }

    @contextlib.contextmanager
    def training(self, host: Tensors) -> Iterator[None]:
        """Run a training call from the device's tensors, and update the host's with the result.

        Values written to the host's tensors meanwhile are lost, as in PopTorch.
        """
        if not self._tensors:
            yield
            return
        differing = self._differing(host)
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
        differing = self._differing(host)
        host_data = {name: tensor.data for name, tensor in differing.items()}
        for name, tensor in differing.items():
            tensor.data = self._tensors[name]
        self._tensors.clear()
        before = {name: _clone(tensor) for name, tensor in buffers.items()}
        try:
            yield
        finally:
            self.copy_to_device(host)
            written = [name for name, old in before.items() if not _same(buffers[name], old)]
            with torch.no_grad():
                for name in written:
                    buffers[name].copy_(before[name])
            for name, data in host_data.items():
                host[name].data = data
