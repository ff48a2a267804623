"""Variables: as counted by liveness, and lowered to tiles (docs/libpva.md#variables)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import chain, count, repeat
from typing import Any, NamedTuple

import numpy as np

from ipuscope.profiler.lazy import cached_property
from ipuscope.profiler.pva.lists import LazyList, Shown, plain
from ipuscope.profiler.pva.model import CATEGORIES, OWN_NAME, Model


class VariableSize(Shown):
    """A variable and its bytes in the scope of the query: in total, on an IPU or on a tile.

    Two are equal if they are of the same variable, whatever their sizes. Bytes that are not the
    model's (code and the like) are one entry per category.
    """

    __slots__ = ("_key", "name", "size")
    _shown = ("name", "size")

    def __init__(self, key: tuple[int, int | str], name: str, size: int) -> None:
        self._key = key
        self.name = name
        self.size = size

    def __eq__(self, other: object) -> bool:
        return isinstance(other, VariableSize) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


def sizes(
    model: Model, rows: np.ndarray, size: np.ndarray, categories: bool = False
) -> list[VariableSize]:
    """The sizes of variables given by row and bytes; ``categories``: list empty ones too."""
    grouped: dict[str, int] = dict.fromkeys(CATEGORIES, 0) if categories else {}
    for name in OWN_NAME:
        grouped.pop(name, None)
    counts = []
    names, kinds = model.variables["name"], model.variables["category"]
    for row, nbytes in zip(rows.tolist(), size.tolist(), strict=True):
        if kinds[row] in OWN_NAME:
            counts.append(VariableSize((id(model), row), str(names[row]), nbytes))
        else:
            grouped[str(kinds[row])] = grouped.get(str(kinds[row]), 0) + nbytes
    return [
        *counts,
        *(VariableSize((id(model), name), name, nbytes) for name, nbytes in grouped.items()),
    ]


@plain
class Interval(Shown):
    """Steps of ``livenessProgramSteps`` with ``start <= step < end``."""

    start: int
    end: int


class EquivalenceClass(Shown):
    """The variables that are live at the same steps."""

    __slots__ = ("_model", "id")
    _shown = ("id", "steps")

    def __init__(self, model: Model, id: int) -> None:
        self._model = model
        self.id = id

    @property
    def _id(self) -> int:
        return self.id

    @property
    def steps(self) -> list[Interval]:
        """Half-open intervals of liveness steps at which its variables are live."""
        first, last = self._model.classes[0][self.id].tolist()
        return [Interval(first, last)] if last > first else []

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, EquivalenceClass)
            and self._model is other._model
            and self.id == other.id
        )

    def __hash__(self) -> int:
        return hash((id(self._model), self.id))


class _Unlowered:
    """A variable of the model, shared by its pieces on tiles."""

    __slots__ = ("model", "row")

    def __init__(self, model: Model, row: int) -> None:
        self.model = model
        self.row = row


class _Piece(NamedTuple):
    id: int
    bytes: int
    tileId: int
    equivalenceClass: EquivalenceClass
    variable: _Unlowered


class LoweredVariable(_Piece):
    """The part of a variable on one tile.

    Ids are unique over the whole profile, tiles are numbered over the device. ``equivalenceClass``:
    when it is live. It is a tuple because a large model has millions of them, and clients iterate
    over them all.
    """

    __slots__ = ()
    _id = _Piece.id

    @property
    def name(self) -> str:
        """The name of the variable."""
        return str(self.variable.model.variables["name"][self.variable.row])

    @property
    def alwaysLive(self) -> bool:
        """Whether it is live all the time."""
        return bool(self.variable.model.variables["always"][self.variable.row])

    @property
    def hasUnloweredVar(self) -> bool:
        """Whether it is a piece of a variable with its own entry in the liveness lists."""
        return self.variable.model.variables["category"][self.variable.row] in OWN_NAME

    @property
    def unloweredVar(self) -> VariableSize | None:
        """The variable of which it is a piece, with the bytes of this piece, or None."""
        if not self.hasUnloweredVar:
            return None
        key = (id(self.variable.model), self.variable.row)
        return VariableSize(key, self.name, self.bytes)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, LoweredVariable)
            and self.variable.model is other.variable.model
            and self.id == other.id
        )

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((id(self.variable.model), self.id))

    def __repr__(self) -> str:
        return (
            f"LoweredVariable(id={self.id}, name={self.name!r}, bytes={self.bytes},"
            f" tileId={self.tileId})"
        )


_make_piece = partial(tuple.__new__, LoweredVariable)


class LoweredVariables:
    """The variables of a replica as they are placed on tiles."""

    def __init__(self, model: Model) -> None:
        self._model = model

    @cached_property  # clients ask for it anew for each entry
    def allBriefVars(self) -> LazyList[LoweredVariable]:
        """All lowered variables; created during iteration, so that millions take no memory."""
        return lowered(self._model, range(len(self._model.variables["id"])))

    def forTile(self, tile: int) -> list[LoweredVariable]:
        """The lowered variables on a tile of the device."""
        model = self._model
        ipu, at = model.tile_of(tile)
        variables, rows = model.of_ipu[ipu]
        size = variables.vectors[variables.vector, at]
        rank = model.rank_on_tiles(ipu)[variables.vector, at]
        here = np.flatnonzero(size > 0)
        ids = model.lowered_first[rows] + rank
        return [_piece(model, int(rows[i]), int(ids[i]), tile, int(size[i])) for i in here.tolist()]

    def __repr__(self) -> str:
        return f"LoweredVariables(allBriefVars={self.allBriefVars!r})"


def _piece(model: Model, row: int, id: int, tile: int, size: int) -> LoweredVariable:
    equivalence = EquivalenceClass(model, int(model.classes[1][row]))
    return LoweredVariable(id, size, tile, equivalence, _Unlowered(model, row))


class _Pieces(NamedTuple):
    """A variable's entries ``begin <= index < end`` of a list; their ids are index + ``shift``."""

    begin: int
    end: int
    shift: int
    tiles: list[int]
    size: list[int]
    equivalence: Any
    variable: Any


_NONE = _Pieces(0, 0, 0, [], [], None, None)


def lowered(model: Model, rows: range | list[int]) -> LazyList[LoweredVariable]:
    """The pieces of some variables, variable by variable and tile by tile."""
    chosen = np.asarray(rows, dtype=np.int64)
    first = model.lowered_first
    counts = first[chosen + 1] - first[chosen]
    ends = np.cumsum(counts)

    def walk() -> Iterator[LoweredVariable]:
        # iterators in C only: a generator would take as long as making the entry
        begins, classes = first[chosen].tolist(), model.classes[1][chosen].tolist()
        class_of = {number: EquivalenceClass(model, number) for number in set(classes)}

        def pieces(row: int, begin: int, number: int) -> Iterator[LoweredVariable]:
            tiles, size = model.pieces_of(row)
            same = repeat(class_of[number]), repeat(_Unlowered(model, row))
            return map(_make_piece, zip(count(begin), size, tiles, *same, strict=False))

        return chain.from_iterable(map(pieces, chosen.tolist(), begins, classes))

    last = _NONE  # the variable of the last request: its pieces come one after another

    def make(index: int) -> LoweredVariable:
        nonlocal last
        if not last.begin <= index < last.end:
            at = int(np.searchsorted(ends, index, side="right"))
            row, end = int(chosen[at]), int(ends[at])
            same = EquivalenceClass(model, int(model.classes[1][row])), _Unlowered(model, row)
            shift = int(first[row]) - (end - int(counts[at]))
            last = _Pieces(end - int(counts[at]), end, shift, *model.pieces_of(row), *same)
        rank = index - last.begin
        tile, size = last.tiles[rank], last.size[rank]
        return LoweredVariable(index + last.shift, size, tile, last.equivalence, last.variable)

    return LazyList(int(ends[-1]) if len(ends) else 0, make, walk)
