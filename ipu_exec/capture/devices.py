"""The device "ipu" in a model's forward, and tensors there that are not on it.

PopTorch has a device of that name: tensors that torch's own functions make in a forward are made on
it, others are moved there by ``.to("ipu")``, and an operator that meets one on the CPU is refused.
Here all tensors are on the CPU, so that ``device="ipu"`` means that; what PopTorch would find on
the CPU is told from where a tensor comes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

IPU = "ipu"
_MOVES = ("to", "ipu", "type_as")  # of a tensor
_LEFT_ON_CPU = ("as_tensor", "from_numpy", "asarray")  # unlike torch.tensor [POPTORCH]


class Devices(TorchFunctionMode):
    """While entered, ``device="ipu"`` is a valid device. ``named``: whether the model used it."""

    def __init__(self) -> None:
        super().__init__()
        self.named = False
        self._running: list[str] = []  # torch's functions, the outermost first

    @property
    def makes_on_cpu(self) -> bool:
        """Whether the tensor being made is on PopTorch's CPU as no torch function makes it.

        ``torch.LongTensor([1, 0])`` calls a class, which PopTorch does not intercept.
        """
        return not self._running or self._running[-1] in _LEFT_ON_CPU

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        placed = name in _LEFT_ON_CPU and _is_anothers(kwargs.get("device"))
        self._running.append("tensor" if placed else name)
        try:
            if name in _MOVES:
                return self._moved(func, args, kwargs)
            if _is_ipu(kwargs.get("device")):
                self.named = True
                kwargs = {**kwargs, "device": "cpu"}
            return func(*args, **kwargs)
        finally:
            self._running.pop()

    def _moved(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The result of ``tensor.to`` and ``tensor.ipu``, all tensors being on the IPU already."""
        tensor, *others = args
        asked = [*others, *kwargs.values()]
        if func.__name__ != IPU and not any(map(_is_ipu, asked)):
            # Where another tensor is; only what a script brings is a plain tensor in a capture.
            scripts = type(tensor) is torch.Tensor and not _of_a_vmap(tensor)
            if scripts and any(map(_is_anothers, asked)):
                tensor = torch.ops.aten.lift_fresh.default(tensor)
            return func(tensor, *others, **kwargs)
        self.named = True
        # A constant that the capture meets from here on.
        moved = torch.ops.aten.lift_fresh.default(tensor)
        others = [item for item in others if not _is_ipu(item)]
        kwargs = {name: item for name, item in kwargs.items() if not _is_ipu(item)}
        return moved.to(*others, **kwargs) if others or kwargs else moved


def _of_a_vmap(tensor: torch.Tensor) -> bool:
    """Whether ``torch.vmap`` made it, of a tensor that the capture knows."""
    made: bool = torch._C._functorch.is_batchedtensor(tensor)
    return made


def _is_anothers(item: Any) -> bool:
    """Whether it says where another tensor is, which in PopTorch is the IPU.

    A device, rather than its name, is that of a tensor.
    """
    return isinstance(item, torch.Tensor | torch.device)


def _is_ipu(item: Any) -> bool:
    if isinstance(item, torch.device):
        return item.type == IPU
    return isinstance(item, str) and item.split(":")[0] == IPU
