"""Finds a model's equal layers: layers that run the same operators.

Members of a ``ModuleList`` or ``Sequential`` are equal if they have the same class, attributes,
submodules, and parameters and buffers but for their values. A layer that can tell which one it
is, or that does more than its forward, equals no other: one with hooks inside, with attributes
that are neither plain nor shared, or with weights that another module has too. An attribute that
is the layer's number in its list (Hugging Face's ``layer_idx``) may differ if it is not read
while the layers run (`unread_numbers`).
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Collection, Container, Hashable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, NoReturn

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
    """The paths of a group of equal layers in a model, in the order of their list."""

    paths: tuple[str, ...]
    # attributes that hold a layer's number: the submodule's path in the layer, the name
    numbers: frozenset[tuple[str, str]] = frozenset()

    @property
    def between(self) -> tuple[str, ...]:
        """All but the first and the last."""
        return self.paths[1:-1]


def find_equal_layers(model: torch.nn.Module) -> list[EqualLayers]:
    """A model's groups of equal layers, none nested in another."""
    shared = _shared_parameters(model)
    groups: list[EqualLayers] = []
    paths: set[str] = set()
    for path, module in model.named_modules():
        if isinstance(module, _LISTS) and not enclosing(path, paths):
            for group in _groups(path, module, shared):
                groups.append(group)
                paths.update(group.paths)
    return groups


def enclosing(path: str, modules: Container[str]) -> str:
    """The innermost of the modules that is or contains what is at ``path``; "" if none does."""
    while path and path not in modules:
        path = path.rpartition(".")[0]
    return path


def _groups(path: str, members: torch.nn.Module, shared: set[int]) -> Iterator[EqualLayers]:
    by_signature: dict[Hashable, list[str]] = {}
    numbers = _numbers(list(members.children()))
    for name, member in members.named_children():
        if "forward" in vars(member) or any(id(p) in shared for p in member.parameters()):
            continue
        signature = _signature(member, numbers, outermost=True)
        if signature is not None:
            child = f"{path}.{name}" if path else name
            by_signature.setdefault(signature, []).append(child)
    for paths in by_signature.values():
        if len(paths) >= _LEAST:
            yield EqualLayers(tuple(paths), numbers)


def _numbers(members: list[torch.nn.Module]) -> frozenset[tuple[str, str]]:
    """Attributes that hold each member's own number."""
    if len(members) < _LEAST:
        return frozenset()
    first, *others = (
        {
            (path, name)
            for path, module in member.named_modules()
            for name, value in vars(module).items()
            if name not in _OF_TORCH and type(value) is int and value == number
        }
        for number, member in enumerate(members)
    )
    return frozenset(first.intersection(*others))


@contextlib.contextmanager
def unread_numbers(
    layer: torch.nn.Module, numbers: Collection[tuple[str, str]], read: Callable[[str], NoReturn]
) -> Iterator[None]:
    """Inside, ``read`` is called if the layer's code reads an attribute that is its number."""
    names: dict[str, set[str]] = {}
    for path, name in numbers:
        names.setdefault(path, set()).add(name)
    watched = [(layer.get_submodule(path), mine) for path, mine in names.items()]
    before = [type(module) for module, _ in watched]
    for module, mine in watched:
        module.__class__ = _watching(type(module), mine, read)
    try:
        yield
    finally:
        for (module, _), own in zip(watched, before, strict=True):
            module.__class__ = own


def _watching(own: type, names: set[str], read: Callable[[str], NoReturn]) -> type:
    def getattribute(module: Any, name: str) -> Any:
        if name in names:
            read(name)
        return object.__getattribute__(module, name)

    return type(
        own.__name__, (own,), {"__getattribute__": getattribute, "__module__": own.__module__}
    )


def _shared_parameters(model: torch.nn.Module) -> set[int]:
    """Parameters that several modules have, by identity."""
    seen: set[int] = set()
    shared: set[int] = set()
    for module in model.modules():
        for parameter in module._parameters.values():
            if parameter is not None:
                (shared if id(parameter) in seen else seen).add(id(parameter))
    return shared


def _signature(
    module: torch.nn.Module,
    numbers: Collection[tuple[str, str]] = (),
    path: str = "",
    outermost: bool = False,
) -> Hashable:
    """A key that is equal for modules that run the same operators; None if it is unknown.

    ``numbers``: attributes that may differ. ``path``: the module's path in its layer.
    """
    own = vars(module)
    hooked = any(own.get(name) for name in _HOOKS)
    if isinstance(module, torch.jit.ScriptModule) or (hooked and not outermost):
        return None
    attributes = []
    for name in sorted(own.keys() - _OF_TORCH):
        attributes.append((name, None if (path, name) in numbers else _plain(own[name])))
    children = []
    for name, child in module._modules.items():
        inside = f"{path}.{name}" if path else name
        signature = None if child is None else _signature(child, numbers, inside)
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
    """All properties of a tensor except its values."""
    return (type(tensor), tensor.shape, tensor.stride(), tensor.dtype, tensor.requires_grad)


def _plain(value: Any) -> Hashable:
    """A key for an attribute: a plain value's own; any other object only equals itself."""
    if isinstance(value, _PLAIN):
        return (type(value), value)
    if isinstance(value, (tuple, list)):
        return (type(value), tuple(_plain(item) for item in value))
    if isinstance(value, dict):
        return (dict, tuple((key, _plain(item)) for key, item in value.items()))
    if isinstance(value, _FUNCTIONS):
        return (type(value), id(value))
    return ("object", id(value))
