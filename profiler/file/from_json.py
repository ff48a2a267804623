"""JSON that may be a stranger's, and dataclasses of it (as `dataclasses.asdict` gave them)."""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

MOST_DEPTH = 100  # of lists and objects in each other: whatever walks them afterwards can, too


def loads(words: str | bytes) -> Any:
    """The value that a text describes. ValueError where it is no JSON, or nested too deep."""
    try:
        value = json.loads(words)
    except RecursionError:
        raise ValueError(f"it is nested deeper than {MOST_DEPTH}") from None
    inside, depth = [value], 0
    while inside:
        if depth > MOST_DEPTH:
            raise ValueError(f"it is nested deeper than {MOST_DEPTH}")
        lists = [one for one in inside if isinstance(one, list)]
        dicts = [one for one in inside if isinstance(one, dict)]
        inside = [part for one in lists for part in one if isinstance(part, (list, dict))]
        inside += [part for one in dicts for part in one.values() if isinstance(part, (list, dict))]
        depth += 1
    return value


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
