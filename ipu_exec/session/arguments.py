"""The arguments of a compiled model: its inputs by the names of ``forward``, and their check.

An executable is compiled for inputs of certain structure, shapes and dtypes. `check` refuses
others, as PopTorch does, naming what it expected and what it got.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MethodType
from typing import Any

import torch

from ipu_exec.base.structures import parser_of, tensors_in
from ipu_exec.capture.loss import WITH_LOSS
from ipu_exec.errors import Error, UsageError

_WAY_OUT = (
    "An executable runs inputs like those it was compiled for: wrap the model again for others, or"
    " call destroy() and let it compile anew"
)

_UNEVEN = (
    "A last batch that is smaller: torch.utils.data.DataLoader(..., drop_last=True) leaves it out,"
    " as poptorch.DataLoader does. Else: "
)
NO_GPU = (
    'Modules and inputs stay on the host, device "cpu": the call of a wrapped model brings them to'
    ' the IPUs. Delete .to("cuda") and .cuda()'
)


@dataclass(frozen=True, slots=True)
class TensorLike:
    """Shape and dtype of a tensor."""

    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StructureLike:
    """A user's structure, as flattened by its parser."""

    kind: str
    tensors: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Plain:
    """Any other value, which is part of the program."""

    kind: str
    value: str


def bind(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], training: bool = False
) -> inspect.BoundArguments:
    """The arguments by the names of ``model.forward``, with defaults filled in.

    UsageError if there are too many, one is missing, one is unknown, or a tensor is on a GPU.
    """
    for tensor in tensors_in((args, kwargs)):
        if tensor.device.type == "cuda":
            place = f"an input of shape {tuple(tensor.shape)} is on {tensor.device}"
            raise UsageError(f"{place}. {NO_GPU}")
    try:
        signature = _signature(model.forward)
    except ValueError:  # a builtin without a signature
        every = inspect.Parameter
        signature = inspect.Signature(
            [every("args", every.VAR_POSITIONAL), every("kwargs", every.VAR_KEYWORD)]
        )
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        missing = _missing(signature, args, kwargs)
        more = f". {WITH_LOSS}" if training and "too many" in str(error) else ""
        raise UsageError(
            f"{missing}{type(model).__name__}.forward{signature} cannot be called so: {error}{more}"
        ) from None
    bound.apply_defaults()
    return bound


def _signature(forward: Callable[..., Any]) -> inspect.Signature:
    if not isinstance(forward, MethodType):
        return inspect.signature(forward)
    return _of_method(forward.__func__)


@lru_cache(maxsize=16)  # it takes longer than some models
def _of_method(function: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(MethodType(function, function))  # bound to anything


def _missing(signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """PopTorch's message for a missing parameter without a default; "" for other errors."""
    try:
        bound = signature.bind_partial(*args, **kwargs).arguments
    except TypeError:
        return ""
    varying = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    for name, parameter in signature.parameters.items():
        wanted = parameter.default is parameter.empty and parameter.kind not in varying
        if wanted and name not in bound:
            return f"Mandatory parameter {name} missing. "
    return ""


def describe(value: Any) -> Any:
    """The value, with shapes and dtypes for tensors, on which an executable depends."""
    if isinstance(value, torch.Tensor):
        return TensorLike(str(value.dtype), tuple(value.shape))
    parser = parser_of(value)
    if parser is not None:
        return StructureLike(
            type(value).__name__, tuple(describe(tensor) for tensor in parser.yieldTensors(value))
        )
    if isinstance(value, Mapping):
        return {str(key): describe(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [describe(item) for item in value]
        return items if isinstance(value, list) else tuple(items)
    return Plain(type(value).__name__, repr(value))


def in_the_users_numbers(error: Exception, inputs: inspect.BoundArguments, count: int) -> None:
    """Add to an error of the model's own code which of ``count`` micro-batches it ran on."""
    if isinstance(error, Error) or count == 1:
        return
    sizes = {
        name: value.shape
        for name, value in inputs.arguments.items()
        if isinstance(value, torch.Tensor) and value.dim()
    }
    if not sizes:
        return
    passed = ", ".join(f"{name} {tuple(shape)}" for name, shape in sizes.items())
    samples = {name: shape[0] for name, shape in sizes.items()}
    differ = ", ".join(f"{name} {number}" for name, number in samples.items())
    if len(set(samples.values())) > 1:
        error.add_note(f"The inputs of the call differ in their number of samples: {differ}")
    error.add_note(
        f"The model ran on one of {count} micro-batches: each input of the call is cut into as"
        f" many along dimension 0. They are {passed}"
    )


def check(
    expected: Mapping[str, Any], given: Mapping[str, Any], signature: inspect.Signature
) -> None:
    """UsageError if the ``given`` inputs, by name, differ from the ``expected`` ones.

    Both as `describe` returns them. ``signature``: that of the model's forward.
    """
    if expected == given:
        return
    _check_keys("the inputs", expected, given)
    _check_number(expected, given, signature)
    for name, item in expected.items():
        _check(name, item, given[name])


def _check_number(
    expected: Mapping[str, Any], given: Mapping[str, Any], signature: inspect.Signature
) -> None:
    """Check the number of positional arguments if the forward takes any number of them."""
    names = list(signature.parameters)
    for place, (name, parameter) in enumerate(signature.parameters.items()):
        if parameter.kind is parameter.VAR_POSITIONAL:
            before = sum(one in expected for one in names[:place])
            numbers = before + len(expected[name]), before + len(given[name])
            if numbers[0] != numbers[1]:
                what = "Number of positional arguments mismatch"
                _refuse(what, f"{numbers[0]} arguments", numbers[1])


def _check(name: str, expected: Any, given: Any) -> None:
    if _kind(expected) != _kind(given):
        _refuse(f"Type mismatch for {name}", _kind(expected), _kind(given))
    if isinstance(expected, TensorLike):
        _check_tensor(name, expected, given)
    elif isinstance(expected, dict):
        _check_keys(name, expected, given)
        for key, item in expected.items():
            _check(str(key) if name == "kwargs" else f"{name}[{key}]", item, given[key])
    elif isinstance(expected, (list, tuple, StructureLike)):
        _check_items(name, _items(expected), _items(given))
    elif expected != given:
        _refuse(f"Value mismatch for {name}", expected.value, given.value)


def _check_tensor(name: str, expected: TensorLike, given: TensorLike) -> None:
    if expected.dtype != given.dtype:
        _refuse(f"Data type mismatch for {name}", expected.dtype, given.dtype)
    if expected.shape != given.shape:
        uneven = expected.shape[1:] == given.shape[1:] and given.shape[:1] < expected.shape[:1]
        sizes = torch.Size(expected.shape), torch.Size(given.shape)
        _refuse(f"Shape mismatch for {name}", *sizes, _UNEVEN if uneven else "")


def _check_items(name: str, expected: tuple[Any, ...], given: tuple[Any, ...]) -> None:
    if len(expected) != len(given):
        _refuse(f"Length mismatch for {name}", f"{len(expected)} elements", len(given))
    for index, (item, other) in enumerate(zip(expected, given, strict=True)):
        _check(f"{name}[{index}]", item, other)


def _check_keys(name: str, expected: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    extra, missing = sorted(set(given) - set(expected)), sorted(set(expected) - set(given))
    parts = [f"Unexpected arguments: {', '.join(extra)}."] if extra else []
    parts += [f"Missing arguments: {', '.join(missing)}."] if missing else []
    if parts:
        raise UsageError(f"Keys mismatch for {name}. {' '.join(parts)} {_WAY_OUT}")


def _items(value: Any) -> tuple[Any, ...]:
    return value.tensors if isinstance(value, StructureLike) else tuple(value)


def _kind(value: Any) -> str:
    if isinstance(value, TensorLike):
        return "Tensor"
    return value.kind if isinstance(value, (StructureLike, Plain)) else type(value).__name__


def _refuse(what: str, expected: Any, given: Any, before: str = "") -> None:
    raise UsageError(f"{what}: expected {expected} but got {given}. {before}{_WAY_OUT}")
