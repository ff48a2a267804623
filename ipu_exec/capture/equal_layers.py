"""Which layers of a model are equal, so that what one of them runs is what all of them run.

Equal are members of a ``ModuleList`` or ``Sequential`` of one class, with the same attributes,
submodules, parameters and buffers but for the values of the latter two. A layer whose code may see
which one it is, or that does more than its forward says, is equal to none: one with hooks inside,
with attributes that are no plain values and not shared with the others, or whose weights another
module has too.
"""

from __future__ import annotations

import types
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch

_LEAST = 4  # members: the first and the last run themselves
_LISTS = (torch.nn.ModuleList, torch.nn.Sequential)
_OF_TORCH = set(vars(torch.nn.Module())) - {"training"}
_HOOKS = tuple(name for name in _OF_TORCH if name.endswith("_hooks"))
_PLAIN = (
    *(bool, int, float, complex, str, bytes, type(None), Enum),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size),
)
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, type)


@dataclass(frozen=True, slots=True)
class EqualLayers:
    """The paths of equal layers in a model, in the order of their list."""

    paths: tuple[str, ...]

    @property
    def between(self) -> tuple[str, ...]:
        """All but the first and the last."""
        return self.paths[1:-1]


def find_equal_layers(model: torch.nn.Module) -> list[EqualLayers]:
    """The groups of equal layers of a model, none inside another."""
    shared = _shared_parameters(model)
    found: list[EqualLayers] = []
    taken: list[str] = []
    for path, module in model.named_modules():
        inside = any(path == other or path.startswith(f"{other}.") for other in taken)
        if inside or not isinstance(module, _LISTS):
            continue
        for group in _groups(path, module, shared):
            found.append(group)
            taken += group.paths
    return found


def _groups(path: str, members: torch.nn.Module, shared: set[int]) -> Iterator[EqualLayers]:
    by_signature: dict[Hashable, list[str]] = {}
    for name, member in members.named_children():
        if "forward" in vars(member) or any(id(p) in shared for p in member.parameters()):
            continue
        signature = _signature(member, outermost=True)
        if signature is not None:
            child = f"{path}.{name}" if path else name
            by_signature.setdefault(signature, []).append(child)
    for paths in by_signature.values():
        if len(paths) >= _LEAST:
            yield EqualLayers(tuple(paths))


def _shared_parameters(model: torch.nn.Module) -> set[int]:
    """Parameters that several modules have, by identity."""
    seen: set[int] = set()
    shared: set[int] = set()
    for module in model.modules():
        for parameter in module._parameters.values():
            if parameter is not None:
                (shared if id(parameter) in seen else seen).add(id(parameter))
    return shared


def _signature(module: torch.nn.Module, outermost: bool = False) -> Hashable:
    """Equal for modules that run the same; None: nothing can be said of this one."""
    own = vars(module)
    hooked = any(own.get(name) for name in _HOOKS)
    if isinstance(module, torch.jit.ScriptModule) or (hooked and not outermost):
        return None
    attributes = []
    for name in sorted(own.keys() - _OF_TORCH):
        attributes.append((name, _plain(own[name])))
    children = []
    for name, child in module._modules.items():
        signature = None if child is None else _signature(child)
        if child is not None and signature is None:
            return None
        children.append((name, signature))
    return (
        type(module),
        tuple(attributes),
        tuple(children),
        _tensors(module._parameters),
        _tensors(module._buffers),
    )


def _tensors(tensors: Mapping[str, torch.Tensor | None]) -> Hashable:
    return tuple(
        (name, tensor if tensor is None else _about(tensor)) for name, tensor in tensors.items()
    )


def _about(tensor: torch.Tensor) -> Hashable:
    """All of a tensor but its values."""
    return (type(tensor), tensor.shape, tensor.stride(), tensor.dtype, tensor.requires_grad)


def _plain(value: Any) -> Hashable:
    """A value that says what it is; anything else is equal to itself only."""
    if isinstance(value, _PLAIN):
        return (type(value), value)
    if isinstance(value, (tuple, list)):
        return (type(value), tuple(_plain(item) for item in value))
    if isinstance(value, dict):
        return (dict, tuple((key, _plain(item)) for key, item in value.items()))
    if isinstance(value, _FUNCTIONS):
        return (type(value), id(value))
    return ("object", id(value))
