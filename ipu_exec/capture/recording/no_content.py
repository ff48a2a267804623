"""Python's reads of a tensor's content while a model is captured, when it has none.

PyTorch's own copy, pickle or conversion to NumPy of a fake tensor would be a tensor on memory
that does not exist, or an error without the user's line. Inside, copies are clones, a pickle has
shape and dtype, and a constant of the forward, whose content is known, is returned in full.
Anything else is an Error with the user's line.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from ipu_exec.capture.recording.origins import source_line
from ipu_exec.errors import Error

_CONSTANT = "_ipu_exec_constant"  # what a fake tensor was made of, and its version then


def note_constant(tensor: torch.Tensor, content: torch.Tensor) -> None:
    """Note that ``tensor`` is a constant of the forward with that content."""
    setattr(tensor, _CONSTANT, (content, tensor._version))


def _constant(tensor: FakeTensor) -> torch.Tensor | None:
    """The content of a constant that nothing has written to."""
    content, version = getattr(tensor, _CONSTANT, (tensor.constant, tensor._version))
    return content if version == tensor._version else None


@contextlib.contextmanager
def without_content() -> Iterator[None]:
    """Inside, Python's reads of tensors are answered as described above."""
    before = [(kind, name, getattr(kind, name)) for kind, name, _ in _METHODS]
    for (kind, name, method), (*_, apart) in zip(_METHODS, before, strict=True):
        setattr(kind, name, method(apart))
    try:
        yield
    finally:
        for kind, name, apart in before:
            setattr(kind, name, apart)


def _copied(apart: Callable[..., Any]) -> Callable[..., Any]:
    """``copy.deepcopy`` as a clone; metrics (torchmetrics) and ``self.log`` copy tensors so."""

    def clone(tensor: torch.Tensor, memo: dict[int, Any]) -> Any:
        if id(tensor) not in memo:
            if not tensor.is_leaf:
                return apart(tensor, memo)  # which says why it cannot be
            with torch.no_grad():
                copied = tensor.clone().requires_grad_(tensor.requires_grad)
            memo[id(tensor)] = copied
        return memo[id(tensor)]

    return clone


def _pickled(apart: Callable[..., Any]) -> Callable[..., Any]:
    def reduced(tensor: torch.Tensor, protocol: Any) -> Any:
        if not isinstance(tensor, FakeTensor):
            return apart(tensor, protocol)
        content = _constant(tensor)
        if content is not None:
            with _disable_current_modes():
                return _remade, (content.tolist(), content.dtype)
        like = tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype, tensor.requires_grad
        return _unpickled, like

    return reduced


def _unpickled(
    shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype, requires_grad: bool
) -> torch.Tensor:
    """A tensor with the shape and dtype of the pickled one; its content is undefined."""
    tensor = torch.empty_strided(shape, stride, dtype=dtype)
    return tensor.requires_grad_() if requires_grad else tensor


def _remade(values: Any, dtype: torch.dtype) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype)


def _of_constants(apart: Callable[..., Any]) -> Callable[..., Any]:
    """``tensor.numpy()`` and ``tolist()`` of constants; otherwise an Error with the user's line."""
    of_real = getattr(torch.Tensor, apart.__name__)

    def given(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(tensor, FakeTensor):
            return apart(tensor, *args, **kwargs)
        content = _constant(tensor)
        if content is not None:
            with _disable_current_modes():
                return of_real(content, *args, **kwargs)
        raise Error(
            "the model hands a tensor's content to the host (numpy(), tolist()) in its forward,"
            " which is compiled before the tensor has content. Return the tensor, or let the host"
            " compute with it: ipu_exec.CPU",
            location=str(source_line()),
        )

    return given


def _written(apart: Callable[..., Any]) -> Callable[..., Any]:
    """``f"{tensor:.3f}"``: nan if the content is unknown."""

    def text(tensor: torch.Tensor, spec: str) -> str:
        if not isinstance(tensor, FakeTensor) or not spec:
            return str(apart(tensor, spec))
        content = _constant(tensor)
        with _disable_current_modes():
            return format(math.nan if content is None else content.item(), spec)

    return text


_METHODS: tuple[tuple[type, str, Callable[..., Any]], ...] = (
    (torch.Tensor, "__deepcopy__", _copied),
    (torch.Tensor, "__reduce_ex__", _pickled),
    (torch.Tensor, "__format__", _written),
    (torch.Tensor, "numpy", _of_constants),
    (FakeTensor, "tolist", _of_constants),
)
