"""Variables: as liveness counts them, and lowered to tiles (docs/libpva.md#variables)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from profiler.pva.lists import LazyList, Shown
from profiler.pva.model import CATEGORIES, OWN_NAME, Model


class VariableSize(Shown):
    """A variable and its bytes, where it was asked for: in all, on an IPU or on a tile.

    Two are equal where they are of the same variable, whatever their sizes. What is not the model's
    own (code and the like) goes by its category, all of it together.
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
    """Of variables by row and bytes.

    ``categories``: those that have their own entry even where nothing is in them.
    """
    grouped: dict[str, int] = dict.fromkeys(CATEGORIES, 0) if categories else {}
    for name in OWN_NAME:
        grouped.pop(name, None)
    found = []
    names, kinds = model.variables["name"], model.variables["category"]
    for row, taken in zip(rows.tolist(), size.tolist(), strict=True):
        if kinds[row] in OWN_NAME:
            found.append(VariableSize((id(model), row), str(names[row]), taken))
        else:
            grouped[str(kinds[row])] = grouped.get(str(kinds[row]), 0) + taken
    return [
        *found,
        *(VariableSize((id(model), name), name, taken) for name, taken in grouped.items()),
    ]


class Interval(Shown):
    """Steps ``start <= step < end`` of ``livenessProgramSteps``."""

    __slots__ = ("end", "start")
    _shown = ("start", "end")

    def __init__(self, start: int, end: int) -> None:
        self.start = start
        self.end = end


class EquivalenceClass(Shown):
    """The variables that live at the same steps."""

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
        """Half-open intervals of liveness steps in which it is live."""
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


class LoweredVariable(Shown):
    """What one tile holds of a variable.

    Ids are counted over all of the profile; tiles over the device.
    """

    __slots__ = ("_model", "_row", "bytes", "id", "tileId")
    _shown = ("id", "name", "bytes", "tileId")

    def __init__(self, model: Model, row: int, id: int, tile: int, bytes: int) -> None:
        self._model, self._row = model, row
        self.id = id
        self.tileId = tile
        self.bytes = bytes

    @property
    def _id(self) -> int:
        return self.id

    @property
    def name(self) -> str:
        """The name of the variable."""
        return str(self._model.variables["name"][self._row])

    @property
    def alwaysLive(self) -> bool:
        """Whether it is live throughout."""
        return bool(self._model.variables["always"][self._row])

    @property
    def equivalenceClass(self) -> EquivalenceClass:
        """Variables that are live at the same steps."""
        return EquivalenceClass(self._model, int(self._model.classes[1][self._row]))

    @property
    def hasUnloweredVar(self) -> bool:
        """Whether it is a piece of one that goes by its own name in the lists of what is live."""
        return self._model.variables["category"][self._row] in OWN_NAME

    @property
    def unloweredVar(self) -> VariableSize | None:
        """The variable it is a piece of, with the bytes of this piece, or None."""
        return (
            VariableSize((id(self._model), self._row), self.name, self.bytes)
            if self.hasUnloweredVar
            else None
        )

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, LoweredVariable)
            and self._model is other._model
            and self.id == other.id
        )

    def __hash__(self) -> int:
        return hash((id(self._model), self.id))


class LoweredVariables:
    """The variables of a replica as they lie on tiles."""

    def __init__(self, model: Model) -> None:
        self._model = model

    @property
    def allBriefVars(self) -> LazyList[LoweredVariable]:
        """All of them; made while walking, so that millions take no memory."""
        return lowered(self._model, range(len(self._model.variables["id"])))

    def forTile(self, tile: int) -> list[LoweredVariable]:
        """Those on a tile of the device."""
        model = self._model
        ipu, at = model.tile_of(tile)
        variables, rows = model.of_ipu[ipu]
        size = variables.vectors[variables.vector, at]
        rank = np.count_nonzero(variables.vectors[:, :at], axis=1)[variables.vector]
        here = np.flatnonzero(size > 0)
        ids = model.lowered_first[rows] + rank
        return [
            LoweredVariable(model, int(rows[i]), int(ids[i]), tile, int(size[i]))
            for i in here.tolist()
        ]

    def __repr__(self) -> str:
        return f"LoweredVariables(allBriefVars={self.allBriefVars!r})"


def lowered(model: Model, rows: range | list[int]) -> LazyList[LoweredVariable]:
    """The pieces of some variables, variable by variable and tile by tile."""
    first = model.lowered_first
    counts = np.array([first[row + 1] - first[row] for row in rows], dtype=np.int64)
    ends = np.cumsum(counts)

    def pieces(row: int) -> Iterator[LoweredVariable]:
        vector = model.vector_of(row)
        tiles = np.flatnonzero(vector)
        shift = int(model.variables["ipu"][row]) * model.tiles
        id = int(first[row])
        for rank, (tile, size) in enumerate(
            zip(tiles.tolist(), vector[tiles].tolist(), strict=True)
        ):
            yield LoweredVariable(model, row, id + rank, shift + tile, size)

    def walk() -> Iterator[LoweredVariable]:
        for row in rows:
            yield from pieces(row)

    def make(index: int) -> LoweredVariable:
        at = int(np.searchsorted(ends, index, side="right"))
        row, rank = rows[at], index - int(ends[at] - counts[at])
        vector = model.vector_of(row)
        tile = int(np.flatnonzero(vector)[rank])
        shift = int(model.variables["ipu"][row]) * model.tiles
        return LoweredVariable(model, row, int(first[row]) + rank, shift + tile, int(vector[tile]))

    return LazyList(int(ends[-1]) if len(ends) else 0, make, walk)
