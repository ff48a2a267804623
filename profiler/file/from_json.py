"""Dataclasses from what JSON has of them (`dataclasses.asdict`): it may be a stranger's."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints


def read(kind: Any, said: Any) -> Any:
    """A value of a type: a dataclass, an enum's, a tuple, dict, union or plain type.

    ValueError where ``said`` is anything else.
    """
    origin, parts = get_origin(kind), get_args(kind)
    if is_dataclass(kind):
        return _dataclass(kind, said)
    if origin is tuple and isinstance(said, list):
        return tuple(read(parts[0], one) for one in said)
    if origin is dict and isinstance(said, dict):
        return said
    if origin in (Union, UnionType):  # with None
        (other,) = set(parts) - {NoneType}
        return None if said is None else read(other, said)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(said)
    if type(said) is not kind:
        raise ValueError(f"{str(said)[:60]!r} is no {getattr(kind, '__name__', kind)}")
    return said


def _dataclass(kind: Any, said: Any) -> Any:
    names = {one.name for one in fields(kind) if one.init}
    if not isinstance(said, dict) or set(said) != names:
        raise ValueError(f"this is no {kind.__name__}")
    hints = get_type_hints(kind)
    return kind(**{name: read(hints[name], said[name]) for name in said})
