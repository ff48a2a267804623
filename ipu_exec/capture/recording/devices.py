"""The device "ipu" in a model's forward, and tensors there that are not on it.

In PopTorch, torch's own functions in a forward make tensors on that device, ``.to("ipu")`` moves
others there, and an operator that meets one on the CPU is refused. Here all tensors are on the
CPU, ``device="ipu"`` too; where a tensor comes from tells what PopTorch would find on the CPU.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ipu_exec.capture.recording.origins import source_line
from ipu_exec.errors import Error

IPU = "ipu"
_MOVES = ("to", "ipu", "type_as")  # of a tensor
_DEVICE_OF = torch.Tensor.device.__get__  # what reading ``tensor.device`` calls
_LEFT_ON_CPU = ("as_tensor", "from_numpy", "asarray")  # unlike torch.tensor [POPTORCH]


class Devices(TorchFunctionMode):
    """While entered, ``device="ipu"`` is a valid device. ``named``: whether the model used it."""

    def __init__(self) -> None:
        super().__init__()
        self.named = False
        self._running: list[str] = []  # torch's functions, the outermost first
        self._asked: dict[int, torch.Tensor] = {}

    @property
    def makes_on_cpu(self) -> bool:
        """Whether PopTorch makes this tensor on the CPU: in no torch function.

        ``torch.LongTensor([1, 0])`` calls a class, which PopTorch does not intercept.
        """
        return not self._running or self._running[-1] in _LEFT_ON_CPU

    def was_asked(self, tensor: torch.Tensor) -> bool:
        """Whether the model read where a tensor is, to move it: PopTorch answers otherwise."""
        return id(tensor) in self._asked

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func == _DEVICE_OF and type(args[0]) is torch.Tensor:
            self._asked[id(args[0])] = args[0]
        name = getattr(func, "__name__", "")
        placed = name in _LEFT_ON_CPU and _is_anothers(kwargs.get("device"))
        self._running.append("tensor" if placed else name)
        try:
            if name in _MOVES:
                return self._moved(func, args, kwargs)
            if name == "cuda" or _is_gpu(kwargs.get("device")):
                _refuse_gpu()
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
        if any(map(_is_gpu, asked)):
            _refuse_gpu()
        if func.__name__ != IPU and not any(map(_is_ipu, asked)):
            # Where another tensor is; only what a script brings is a plain tensor in a capture.
            if type(tensor) is torch.Tensor and any(map(_is_anothers, asked)):
                tensor = _lifted(tensor)
            return func(tensor, *others, **kwargs)
        self.named = True
        moved = _lifted(tensor)
        others = [item for item in others if not _is_ipu(item)]
        kwargs = {name: item for name, item in kwargs.items() if not _is_ipu(item)}
        return moved.to(*others, **kwargs) if others or kwargs else moved


def _lifted(tensor: torch.Tensor) -> torch.Tensor:
    """A constant that the capture meets from here on.

    Inside `torch.vmap`, as in Hugging Face's attention masks, arguments wrap tensors of the
    capture: those are met already, and vmap has no rule for lifting them.
    """
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return tensor
    return torch.ops.aten.lift_fresh.default(tensor)


def _is_anothers(item: Any) -> bool:
    """Whether it says where another tensor (PopTorch: the IPU) is: a device, not its name."""
    return isinstance(item, torch.Tensor | torch.device)


def _is_ipu(item: Any) -> bool:
    return _kind(item) == IPU


def _is_gpu(item: Any) -> bool:
    return _kind(item) in ("cuda", "mps", "xpu")


def _kind(device: Any) -> str:
    if isinstance(device, torch.device):
        return device.type
    return device.split(":")[0] if isinstance(device, str) else ""


def _refuse_gpu() -> None:
    raise Error(
        'the model\'s forward names a GPU, and runs on IPUs: delete .cuda() and .to("cuda"), and'
        " make new tensors with device=x.device of an input x",
        location=str(source_line()),
    )
