"""float16 next to float32 in a model's forward: ``halfFloatCasting`` and running statistics.

PopTorch since 3.0 follows PyTorch by default: mixed operands are promoted, running statistics
have the model's dtype (graphcore/poptorch, python/options.py). It also promotes those of products
and norms and casts weights to their input's dtype, which PyTorch refuses (`Casting.promoted`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from ipu_exec.base.context import NOTHING
from ipu_exec.base.structures import tensors_in
from ipu_exec.enums import HalfFloatCastingBehavior
from ipu_exec.lowering.operator_info import Promotion, info

# Functions and methods of torch, not operators, that take a second tensor for its dtype or shape,
# or that set one.
_UNCAST = {
    "to",
    "type_as",
    "view_as",
    "expand_as",
    "result_type",
    "__set__",
    "__get__",
    "register_hook",
    "backward",
}
# A product by its operator, ``a @ b``.
_OPERATOR_METHODS = {"__matmul__": "matmul", "__rmatmul__": "rmatmul"}


class Casting(TorchFunctionMode):
    """While entered, a model computes in the options' dtypes; ``promoted``: `Promotion` applied."""

    def __init__(self, downcast: bool, float_statistics: bool | None) -> None:
        super().__init__()
        self._downcast, self._float_statistics = downcast, float_statistics
        self.promoted = False
        self._exact: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor]] = {}
        self.replica = 0  # whose running statistics the model has now

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.nn.functional.batch_norm:
            mixed = _has_mixed_parameters(*args, **kwargs)
            if mixed or self._downcast or self._float_statistics is not None:
                self.promoted |= mixed
                return self._batch_norm(*args, **kwargs)
        name = getattr(func, "__name__", "")
        in_place = name.endswith("_") and not name.endswith("__")
        downcasts = self._downcast and not in_place and name not in _UNCAST and "out" not in kwargs
        cast = _half if downcasts else _cast_of(name, args[0] if args else kwargs.get("input"))
        if cast is not None:
            dtypes = {tensor.dtype for tensor in tensors_in((args, kwargs))}
            if {torch.float16, torch.float32} <= dtypes:
                args, kwargs = tree_map(cast, (args, kwargs))
                self.promoted |= not downcasts
        return func(*args, **kwargs)

    def _batch_norm(
        self,
        input: torch.Tensor,
        running_mean: torch.Tensor | None,
        running_var: torch.Tensor | None,
        weight: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
        *rest: Any,
        **named: Any,
    ) -> torch.Tensor:
        """Batch norm with float32 statistics and parameters, stored as float32 or float16."""
        if self._downcast and weight is not None and weight.dtype is torch.float16:
            input = _half(input)
        halves = torch.float16 in {one.dtype for one in (input, running_mean) if one is not None}
        if running_mean is None or running_var is None or not halves:
            if input.dtype is torch.float32:
                weight, bias = _float(weight), _float(bias)
            return torch.nn.functional.batch_norm(
                input, running_mean, running_var, weight, bias, *rest, **named
            )
        before = (running_mean, running_var)
        in_float32 = (
            self._float_statistics
            if self._float_statistics is not None
            else running_mean.dtype is torch.float32
        )
        statistics = (
            [self._in_float32(tensor) for tensor in before]
            if in_float32
            else [tensor.float() for tensor in before]
        )
        # PyTorch takes float32 statistics with float32 parameters only
        normalised = torch.nn.functional.batch_norm(
            input, statistics[0], statistics[1], _float(weight), _float(bias), *rest, **named
        )
        with torch.no_grad():
            for tensor, statistic in zip(before, statistics, strict=True):
                if not in_float32 or tensor is not statistic:
                    tensor.copy_(statistic if in_float32 else statistic.half())
        return normalised

    def _in_float32(self, tensor: torch.Tensor) -> torch.Tensor:
        """The float32 statistic that ``tensor`` rounds, valid until the tensor is overwritten."""
        if tensor.dtype is torch.float32:
            return tensor
        if isinstance(tensor, FakeTensor):
            return tensor.float()
        _, exact = self._exact.get((id(tensor), self.replica), (tensor, tensor.float()))
        if not torch.equal(exact.half(), tensor):
            exact = tensor.float()
        # both are stored: an id is valid as long as its tensor
        self._exact[id(tensor), self.replica] = (tensor, exact)
        return exact


def _has_mixed_parameters(
    input: torch.Tensor,
    mean: torch.Tensor | None,
    var: torch.Tensor | None,
    weight: torch.Tensor | None = None,
    *rest: Any,
    **named: Any,
) -> bool:
    """Whether a norm has dtypes side by side that PyTorch refuses: it takes float16 with either."""
    own = {one.dtype for one in (mean, weight) if one is not None}
    mixed = len(own) == 2 or input.dtype is torch.float32
    return mixed and torch.float16 in {input.dtype, *own}


def _cast_of(function: str, first: Any) -> Callable[[Any], Any] | None:
    """PopTorch's cast of float operands of unequal dtypes. ``first``: the first operand."""
    promotion = info(f"aten.{_OPERATOR_METHODS.get(function, function)}").promotion
    if promotion is Promotion.OPERANDS:
        return _float
    if promotion is Promotion.PARAMETERS:
        return _float if first.dtype is torch.float32 else None
    if promotion is Promotion.INPUT:
        return _half if first.dtype is torch.float16 else _float
    return None


def _half(leaf: Any) -> Any:
    return leaf.half() if isinstance(leaf, torch.Tensor) and leaf.dtype is torch.float32 else leaf


def _float(leaf: Any) -> Any:
    return leaf.float() if isinstance(leaf, torch.Tensor) and leaf.dtype is torch.float16 else leaf


def casting(
    half_float: HalfFloatCastingBehavior, statistics: bool | None, promotes: bool
) -> contextlib.AbstractContextManager[Any]:
    """The mode that the options ask for; it does nothing if they ask for PyTorch's rules.

    ``statistics``: whether running statistics are always float32; None: as the model has them.
    ``promotes``: the model has, or may have, products or norms of float16 and float32.
    """
    downcast = half_float is HalfFloatCastingBehavior.FloatDowncastToHalf
    asked = downcast or statistics is not None or promotes
    return Casting(downcast, statistics) if asked else NOTHING
