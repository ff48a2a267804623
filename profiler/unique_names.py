"""Unique names, numbered as in the vendor's tools."""

from __future__ import annotations

from collections.abc import Iterable


def unique(names: Iterable[str]) -> list[str]:
    """The names, with a number on repeated ones: ``a, a, b, a`` become ``a, a/1, b, a/2``."""
    in_order = list(names)
    reserved = set(in_order)
    met: dict[str, int] = {}
    unique_names = []
    for name in in_order:
        number = met.get(name, -1) + 1
        numbered = name
        while number and (numbered := f"{name}/{number}") in reserved:
            number += 1
        met[name] = number
        reserved.add(numbered)
        unique_names.append(numbered)
    return unique_names


def popart_names(names: Iterable[str], kinds: Iterable[str]) -> list[str]:
    """Unique names as in PopART: a path from ``names``, then the word in ``kinds`` ("MatMul")."""
    paths = (name.rpartition("/")[0] for name in names)
    pairs = zip(paths, kinds, strict=True)
    return unique(f"{path}/{kind}" if path else kind for path, kind in pairs)
