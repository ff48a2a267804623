"""Run a model and leave it as it was: its buffers and Python attributes.

Models run once more for a capture, or to find what they read off tensors; what the forward
appends or counts then must not remain. Not every model can be copied instead (LightningModule).
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

_OF_TORCH = ("_parameters", "_modules")  # the forward does not change which there are
_Undo = Callable[[], Any]


@contextlib.contextmanager
def unchanged(model: torch.nn.Module) -> Iterator[None]:
    """Inside, the model may run; then its modules' attributes and buffers are restored.

    Lists, dicts, sets, deques and tensors get their contents back, other objects (and tensors in
    lists) only their places. A forward does not change weights.
    """
    undo = [_attributes(module) for module in model.modules()]
    try:
        yield
    finally:
        for put_back in undo:
            put_back()


@contextlib.contextmanager
def tensors_unchanged(model: torch.nn.Module) -> Iterator[None]:
    """Inside, the model may be captured; other tensors than its buffers are restored.

    So are attributes that the forward set to a fake tensor. PyTorch computes with real ones.
    """
    before = [(vars(module), dict(vars(module))) for module in model.modules()]
    beside = [value for module in model.modules() for value in vars(module).values()]
    undo = [
        _tensor(value) for value in beside if _plain_tensor(value) and value.device.type == "cpu"
    ]
    try:
        yield
    finally:
        for put_back in undo:
            put_back()
        for own, earlier in before:
            for name in [name for name, value in own.items() if isinstance(value, FakeTensor)]:
                del own[name]
                own.update({name: earlier[name]} if name in earlier else {})


def _attributes(module: torch.nn.Module) -> _Undo:
    own = vars(module)
    copied = detect_fake_mode() is None  # else buffers are fake ones
    undo = {
        name: _tensor(value) if _plain_tensor(value) else _state(value)
        for name, value in own.items()
        if name not in _OF_TORCH
    }
    buffers = [
        _tensor(buffer) for buffer in own["_buffers"].values() if copied and buffer is not None
    ]

    def put_back() -> None:
        replaced = {name: own[name] for name in _OF_TORCH if name in own}
        own.clear()
        own.update(replaced | {name: restore() for name, restore in undo.items()})
        for restore in buffers:
            restore()

    return put_back


def _state(value: Any) -> _Undo:
    """What gives ``value`` back as it is now."""
    if isinstance(value, dict):
        return _mapping(value)
    if isinstance(value, list | set | deque):
        return _collection(value)
    return lambda: value


def _plain_tensor(value: object) -> bool:
    tensor = isinstance(value, torch.Tensor) and not isinstance(value, torch.nn.Parameter)
    return tensor and not isinstance(value, FakeTensor)


def _tensor(tensor: torch.Tensor) -> _Undo:
    # Also while fake tensors stand for the others: of real ones alone PyTorch computes for real.
    with _disable_current_modes():
        content = tensor.detach().clone()

    def put_back() -> torch.Tensor:
        with _disable_current_modes(), torch.no_grad():
            if not torch.equal(tensor, content):  # a batch norm does not count its version up
                tensor.copy_(content)
        return tensor

    return put_back


def _mapping(mapping: dict[Any, Any]) -> _Undo:
    items = {key: _state(value) for key, value in mapping.items()}

    def put_back() -> dict[Any, Any]:
        restored = {key: restore() for key, restore in items.items()}
        same = restored.keys() == mapping.keys()
        if not same or any(mapping[key] is not restored[key] for key in mapping):
            mapping.clear()
            mapping.update(restored)
        return mapping

    return put_back


def _collection(collection: Any) -> _Undo:
    items = [_state(value) for value in collection]

    def put_back() -> Any:
        restored = [restore() for restore in items]
        collection.clear()
        (collection.update if isinstance(collection, set) else collection.extend)(restored)
        return collection

    return put_back
