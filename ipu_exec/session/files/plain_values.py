"""Values as JSON and plain numeric arrays, and back: no pickle, and nothing in a file is run.

A value is a table of nodes, each made of scalars and references to earlier nodes (sharing is
preserved, cycles are impossible), and a table of arrays. Classes are this project's dataclasses
and enumerations of the listed modules, by name; they are filled without their constructors, and
each field must match its annotation. Sizes are compared with the file's content before anything
is allocated.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
import math
import pkgutil
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from types import NoneType, UnionType
from typing import Any, get_args, get_origin

import numpy as np
import torch

# Where the classes of a compiled program are. Nothing else is imported for a file.
PACKAGES = (  # all their modules
    "ipu_exec.compiler",
    "ipu_exec.lowering",
    "ipuscope.planner.costs",
    "ipuscope.planner.predict",
    "ipuscope.planner.search",
)
MODULES = (
    "ipu_exec.graph",
    "ipu_exec.enums",
    "ipu_exec.machine",
    "ipu_exec.base.replica_groups",
    "ipu_exec.session.arguments",
    "ipuscope.planner.mappings.mapping",
    "ipuscope.planner.mappings.phased_costs",
    "ipuscope.planner.mappings.plan",
    "ipuscope.planner.mappings.priced",
    "ipuscope.profiler.enums",
    "ipuscope.profiler.timeline.phased_schedules",
    "ipuscope.profiler.file.records",
    "ipuscope.profiler.timeline.closed_forms",
    "ipuscope.profiler.timeline.schedule_types",
    "ipuscope.profiler.timeline.schedules",
)
_DTYPES = ("|b1", "|i1", "|u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f2", "<f4", "<f8")
_SCALARS = (NoneType, bool, int, float, str)

# A program of 12 encoder layers: 13 deep, 1 in a key, 0.4 checks a value.
MOST_DEPTH = 64
MOST_IN_KEY = 256  # nodes
MOST_CHECKS = 16  # a value, beyond a few
_FEW = 1 << 16
_LARGE, MOST_LARGE = 1 << 64, 256  # numbers among keys: of larger ones any may have the same hash
_LEAVES = ("record", "enum", "array")  # at which a check of a field ends

Node = list[Any]
Check = Callable[[Any], bool]


@dataclasses.dataclass
class Plain:
    """A flattened value: JSON nodes, arrays, and a root scalar or reference ([number])."""

    nodes: list[Node]
    arrays: list[np.ndarray]
    root: Any

    def table(self) -> list[list[Any]]:
        """[dtype, shape] of each array: JSON."""
        return [[array.dtype.str, list(array.shape)] for array in self.arrays]


# -- taking apart ---


def taken_apart(value: Any) -> Plain:
    """The value as nodes and arrays. TypeError if it contains something that cannot be stored."""
    parts = _Apart()
    root = parts.of(value)
    return Plain(parts.nodes, parts.arrays, root)


class _Apart:
    """Collects nodes; each object once, by identity."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.arrays: list[np.ndarray] = []
        self._references: dict[int, Any] = {}
        self._alive: list[Any] = []  # so that an id stays the object's
        self._open: set[int] = set()

    def of(self, value: Any) -> Any:
        if type(value) in _SCALARS:
            return value
        if id(value) in self._references:
            return self._references[id(value)]
        if id(value) in self._open:
            raise TypeError(f"a {type(value).__name__} holds itself")
        self._open.add(id(value))
        self.nodes.append(self._node(value))
        self._open.remove(id(value))
        self._alive.append(value)
        self._references[id(value)] = [len(self.nodes) - 1]
        return self._references[id(value)]

    def _node(self, value: Any) -> Node:
        kind = type(value)
        if dataclasses.is_dataclass(kind):
            parts = [self.of(getattr(value, item.name)) for item in dataclasses.fields(kind)]
            return ["record", _name(kind), *parts]
        if isinstance(value, enum.Enum):
            return ["enum", _name(kind), value.name]
        if isinstance(value, np.ndarray):
            return self._array(value)
        if isinstance(value, np.generic):
            return [*self._array(np.asarray(value)), "scalar"]
        return self._container(value)

    def _container(self, value: Any) -> Node:
        if isinstance(value, Mapping):
            return ["dict", *(self.of(part) for item in value.items() for part in item)]
        if isinstance(value, (slice, range)):
            return [type(value).__name__, value.start, value.stop, value.step]
        if isinstance(value, complex):
            return ["complex", value.real, value.imag]
        if isinstance(value, (set, frozenset)):
            return [type(value).__name__, *(self.of(part) for part in sorted(value, key=repr))]
        names: dict[type, str] = {torch.Size: "size", tuple: "tuple", list: "list"}
        name = names.get(type(value))
        if name is None:
            raise TypeError(f"a {type(value).__module__}.{type(value).__name__} cannot be stored")
        return [name, *(self.of(part) for part in value)]

    def _array(self, value: np.ndarray) -> Node:
        array = value.astype(value.dtype.newbyteorder("<"), order="C", copy=False)
        if array.dtype.str not in _DTYPES:
            raise TypeError(f"an array of {value.dtype} cannot be stored")
        self.arrays.append(array)
        return ["array", len(self.arrays) - 1]


def _name(kind: type) -> str:
    name = f"{kind.__module__}.{kind.__qualname__}"
    if _classes().get(name) is not kind:
        raise TypeError(f"a {name} cannot be stored: plain_values.MODULES lacks its module")
    return name


# -- putting together ---


def arrays_of(table: Any, content: memoryview) -> list[np.ndarray]:
    """The arrays that a table lists, as read-only views of ``content``; ValueError on mismatch."""
    arrays, at = [], 0
    for entry in _listed(table):
        dtype, shape = _listed(entry, 2)
        if dtype not in _DTYPES:
            raise ValueError(f"an array of {dtype!r}")
        sizes = [size for size in _listed(shape) if type(size) is int and size >= 0]
        if len(sizes) < len(shape) or len(sizes) > 32:
            raise ValueError(f"an array of the shape {shape!r}")
        length = math.prod(sizes) * np.dtype(dtype).itemsize
        if at + length > len(content):
            raise ValueError(f"its arrays take more than the {len(content):,} bytes that it has")
        arrays.append(np.frombuffer(content[at : at + length], dtype).reshape(sizes))
        at += length
    if at != len(content):
        raise ValueError(f"its arrays take {at:,} bytes of {len(content):,}")
    return arrays


def put_together(nodes: Any, arrays: Sequence[np.ndarray], root: Any) -> Any:
    """The value that nodes from an untrusted file describe. ValueError if they describe none.

    Time and memory follow the size of ``nodes`` and ``arrays``, checked before anything is made.
    """
    _check_cost(_listed(nodes))
    together = _Together([], arrays)
    for node in nodes:
        together.made.append(together.of(node))
    return together.part(root)


def _check_cost(nodes: list[Any]) -> None:
    """ValueError if nodes cost more than their number allows.

    An array is copied once. Nodes share others: a check of a field walks the containers in it, a
    hash everything in a key; both double with each level that is there twice.
    """
    depth: list[int] = []  # of each node
    whole: list[int] = []  # nodes in it, shared ones as often as met
    walked: list[int] = []  # ... of those that a check of a field walks
    copied: set[int] = set()
    checks = values = 0
    for node in nodes:
        kind, *parts = _listed(node)
        values += len(node)
        if kind == "array":
            if not 1 <= len(parts) <= 2 or type(parts[0]) is not int or parts[0] in copied:
                raise ValueError(f"an array refers to {str(parts)[:60]}, and not to one of its own")
            copied.add(parts[0])
        refers = [_listed(part, 1)[0] for part in parts if isinstance(part, list)]
        for at in refers:
            _at(depth, at)
        depth.append(1 + max((depth[at] for at in refers), default=0))
        whole.append(1 + sum(whole[at] for at in refers))
        inside = sum(walked[at] for at in refers)
        walked.append(1 if kind in _LEAVES else len(node) + inside)
        checks += inside if kind == "record" else 0
        keys = parts if kind in ("set", "frozenset") else parts[::2] if kind == "dict" else ()
        in_keys = max((whole[key[0]] for key in keys if isinstance(key, list)), default=0)
        large = sum(type(key) is int and abs(key) > _LARGE for key in keys)
        if depth[-1] > MOST_DEPTH or in_keys > MOST_IN_KEY or large > MOST_LARGE:
            raise ValueError(f"a {str(kind)[:60]} is too deep, or its keys take long to hash")
        if checks > MOST_CHECKS * (values + _FEW):
            raise ValueError("its fields hold the same values too often")


@dataclasses.dataclass(frozen=True)
class _Together:
    """The objects built so far, which later ones refer to."""

    made: list[Any]
    arrays: Sequence[np.ndarray]

    def part(self, stored: Any) -> Any:
        if type(stored) in _SCALARS:
            return stored
        (at,) = _listed(stored, 1)
        return _at(self.made, at)

    def parts(self, stored: Iterable[Any]) -> list[Any]:
        return [self.part(one) for one in stored]

    def of(self, node: Node) -> Any:
        kind, *rest = node
        if kind == "record":
            return self._record(rest)
        if kind == "enum":
            name, member = _listed(rest, 2)
            return _enumeration(name, member)
        if kind == "array":
            array = _at(self.arrays, rest[0])
            return array[()] if rest[1:] == ["scalar"] and array.ndim == 0 else array.copy()
        maker = _MAKERS.get(kind) if isinstance(kind, str) else None
        if maker is None:
            raise ValueError(f"it holds {kind!r}, which no compiled model has")
        try:
            return maker(self.parts(rest))
        except (TypeError, OverflowError) as error:
            raise ValueError(f"a {kind} cannot be made: {error}") from error

    def _record(self, stored: list[Any]) -> Any:
        name, *parts = stored
        kind = _classes().get(name) if isinstance(name, str) else None
        if kind is None or not dataclasses.is_dataclass(kind):
            raise ValueError(f"it holds {name!r}, which no compiled model has")
        items = dataclasses.fields(kind)
        if len(items) != len(parts):
            raise ValueError(f"{name} has {len(items)} fields, not {len(parts)}")
        instance: Any = object.__new__(kind)
        for item, check, value in zip(items, _checks(kind), self.parts(parts), strict=True):
            if not check(value):
                raise ValueError(f"{name}.{item.name} cannot be a {type(value).__name__}")
            object.__setattr__(instance, item.name, value)
        return instance


def _pairs(parts: list[Any]) -> dict[Any, Any]:
    return dict(zip(parts[::2], parts[1::2], strict=True))


def _numbers(kind: Callable[..., Any]) -> Callable[[list[Any]], Any]:
    def make(parts: list[Any]) -> Any:
        if not all(isinstance(part, (int, float, NoneType)) for part in parts):
            raise ValueError("its bounds are not numbers")
        return kind(*parts)

    return make


_MAKERS: dict[str, Callable[[list[Any]], Any]] = {
    "tuple": tuple,
    "list": list,
    "set": set,
    "frozenset": frozenset,
    "size": torch.Size,
    "dict": _pairs,
    "slice": _numbers(slice),
    "range": _numbers(range),
    "complex": _numbers(complex),
}


def _enumeration(name: Any, member: Any) -> Any:
    kind = _classes().get(name) if isinstance(name, str) else None
    if kind is None or not issubclass(kind, enum.Enum) or member not in kind.__members__:
        raise ValueError(f"it holds {name!r}, {member!r}, which no compiled model has")
    return kind[member]


def _at(items: Sequence[Any], at: Any) -> Any:
    if type(at) is not int or not 0 <= at < len(items):
        raise ValueError(f"it refers to {at!r}, of {len(items)}")
    return items[at]


def _listed(item: Any, length: int | None = None) -> list[Any]:
    if not isinstance(item, list) or (length is not None and len(item) != length):
        raise ValueError(f"a {type(item).__name__} is where a list belongs")
    return item


# -- classes and their annotations ---


@cache
def _classes() -> dict[str, type]:
    """Dataclasses and enumerations of `MODULES` and `PACKAGES` by their full names."""
    folders = {f"{one}.": importlib.import_module(one).__path__ for one in PACKAGES}
    found = (pkgutil.walk_packages(path, prefix) for prefix, path in folders.items())
    within = [module.name for modules in found for module in modules]
    classes = {}
    for name in (*MODULES, *within):
        for kind in vars(importlib.import_module(name)).values():
            if isinstance(kind, type) and kind.__module__ == name and _is_record(kind):
                classes[f"{name}.{kind.__qualname__}"] = kind
    return classes


def _is_record(kind: type) -> bool:
    return dataclasses.is_dataclass(kind) or issubclass(kind, enum.Enum)


@cache
def _checks(kind: type) -> tuple[Check, ...]:
    """For each field, a check that a value matches its annotation."""
    # What a module imports for annotations only is among the classes of all of them.
    names = {one.__name__: one for one in _classes().values()}
    names |= vars(importlib.import_module(kind.__module__))
    hints = typing.get_type_hints(kind, names)
    return tuple(_check(hints[item.name]) for item in dataclasses.fields(kind))


def _check(hint: Any) -> Check:
    """A check that a value matches an annotation; lists and tuples are interchangeable."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is not None:
        maker = _COMPOUND.get(origin)
        if maker is None and issubclass(origin, Mapping):
            maker = _check_mapping
        return maker(inner) if maker is not None else _check_items(origin, inner)
    if hint is Any or isinstance(hint, typing.TypeVar):
        return lambda value: True
    if hint is float:
        return lambda value: type(value) in (int, float)
    if issubclass(hint, (list, tuple)) and hint in (list, tuple):
        return lambda value: isinstance(value, (list, tuple))
    return lambda value: isinstance(value, hint)


def _check_union(inner: tuple[Any, ...]) -> Check:
    some = [_check(one) for one in inner]
    return lambda value: any(check(value) for check in some)


def _check_mapping(inner: tuple[Any, ...]) -> Check:
    key, item = map(_check, inner)
    return lambda value: (
        isinstance(value, dict) and all(key(k) and item(v) for k, v in value.items())
    )


def _check_items(origin: type, inner: tuple[Any, ...]) -> Check:
    every = _check(inner[0])
    kinds = (list, tuple) if issubclass(origin, Sequence) else (set, frozenset, list, tuple)
    return lambda value: isinstance(value, kinds) and all(every(one) for one in value)


def _check_tuple(inner: tuple[Any, ...]) -> Check:
    if len(inner) == 2 and inner[1] is Ellipsis:
        return _check_items(tuple, inner)
    some = [_check(one) for one in inner]
    return lambda value: (
        isinstance(value, (list, tuple))
        and len(value) == len(some)
        and all(check(one) for check, one in zip(some, value, strict=True))
    )


_COMPOUND: dict[Any, Callable[[tuple[Any, ...]], Check]] = {
    typing.Union: _check_union,
    UnionType: _check_union,
    typing.Literal: lambda inner: lambda value: value in inner,
    tuple: _check_tuple,
    np.ndarray: lambda inner: lambda value: isinstance(value, np.ndarray),
}
