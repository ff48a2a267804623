"""Containers that PyTorch's pytree does not have: users' own classes, and subclasses of dict.

They are registered with pytree, which flattens, splits and joins nested inputs and outputs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils._pytree import (
    SUPPORTED_NODES,
    register_pytree_node,
    tree_flatten,
    tree_map,
    tree_unflatten,
)

from ipu_exec.errors import UsageError


class ICustomArgParser(ABC):
    """Flattens a user's structure into tensors and rebuilds it; see `registerCustomArgParser`."""

    @abstractmethod
    def yieldTensors(self, struct: Any) -> Iterable[torch.Tensor]:
        """The tensors of ``struct``, always in the same order."""

    @abstractmethod
    def reconstruct(self, original_structure: Any, tensor_iterator: Iterator[torch.Tensor]) -> Any:
        """A structure like ``original_structure`` with tensors in `yieldTensors`'s order."""


_PARSERS: dict[type, ICustomArgParser] = {}


def registerCustomArgParser(typename: type, parser: ICustomArgParser) -> None:
    """Accept instances of ``typename`` and its subclasses as inputs and outputs of models."""
    if not isinstance(typename, type) or not isinstance(parser, ICustomArgParser):
        raise UsageError(
            f"registerCustomArgParser takes a class and an ICustomArgParser, not {typename!r} and"
            f" {parser!r}"
        )
    _PARSERS[typename] = parser


def parser_of(value: object) -> ICustomArgParser | None:
    """The parser registered for the class of ``value`` or its nearest base class."""
    return next((_PARSERS[kind] for kind in type(value).__mro__ if kind in _PARSERS), None)


class _Like:
    """What a structure is rebuilt from; equal for one class, so that trees compare equal."""

    def __init__(self, structure: Any) -> None:
        self.structure = structure

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Like) and type(other.structure) is type(self.structure)

    def __hash__(self) -> int:
        return hash(type(self.structure))

    def __repr__(self) -> str:
        return type(self.structure).__name__


def learn(tree: Any) -> list[Any]:
    """Register the containers in ``tree`` that pytree treats as leaves but can be flattened.

    Returns the leaves.
    """
    if type(tree) is torch.Tensor:
        return [tree]
    leaves = leaves_of(tree)
    while unknown := [leaf for leaf in leaves if _can_be_taken_apart(leaf)]:
        _register(type(unknown[0]))
        leaves = leaves_of(tree)
    return leaves


# Most batches are lists, tuples and dicts of tensors. pytree takes longer for these than some
# operators: it only gets the others.
_LEAVES = frozenset((torch.Tensor, torch.nn.Parameter, type(None), bool, int, float, str))


def map_leaves(function: Callable[[Any], Any], tree: Any) -> Any:
    """A structure like ``tree`` with ``function`` of each of its leaves."""
    kind = type(tree)
    if kind in _LEAVES:
        return function(tree)
    if kind is tuple or kind is list:
        return kind([map_leaves(function, item) for item in tree])
    if kind is dict:
        return {name: map_leaves(function, item) for name, item in tree.items()}
    return tree_map(function, tree)


def leaves_of(tree: Any) -> list[Any]:
    """The leaves of ``tree``, in the order in which `map_leaves` takes them."""
    leaves: list[Any] = []
    map_leaves(leaves.append, tree)
    return leaves


def tensors_in(tree: Any) -> list[torch.Tensor]:
    """The tensors among the leaves of ``tree``."""
    return [leaf for leaf in leaves_of(tree) if isinstance(leaf, torch.Tensor)]


def taken_apart(tree: Any) -> tuple[list[Any], Callable[[Iterable[Any]], Any]]:
    """The leaves of ``tree``, and a function that puts leaves into a structure like ``tree``."""

    def together(leaves: Iterable[Any]) -> Any:
        remaining = iter(leaves)
        return map_leaves(lambda _: next(remaining), tree)

    return leaves_of(tree), together


def joined(trees: Sequence[Any], join: Callable[[tuple[Any, ...]], Any]) -> Any:
    """A structure like the first of ``trees``, of ``join`` of the leaves at each place."""
    flat = [tree_flatten(tree) for tree in trees]
    columns = zip(*(leaves for leaves, _ in flat), strict=True)
    return tree_unflatten([join(column) for column in columns], flat[0][1])


def _can_be_taken_apart(leaf: object) -> bool:
    if type(leaf) in _LEAVES or isinstance(leaf, torch.Tensor) or type(leaf) in SUPPORTED_NODES:
        return False
    return isinstance(leaf, dict) or parser_of(leaf) is not None


def _register(kind: type) -> None:
    def flatten(value: Any) -> tuple[list[Any], _Like]:
        parser = parser_of(value)
        if parser is not None:
            return list(parser.yieldTensors(value)), _Like(value)
        return list(value.values()), _Like(value)

    def unflatten(leaves: Iterable[Any], like: Any) -> Any:
        structure = like.structure
        parser = parser_of(structure)
        if parser is not None:
            return parser.reconstruct(structure, iter(leaves))
        assert isinstance(structure, Mapping)
        return kind(zip(structure, leaves, strict=True))

    register_pytree_node(kind, flatten, unflatten)
