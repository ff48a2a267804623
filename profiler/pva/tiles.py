"""The contents of tiles (docs/libpva.md#tiles)."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from ipuscope.profiler.file import records
from ipuscope.profiler.pva.enums import Architecture
from ipuscope.profiler.pva.lists import LazyList, Shown, plain
from ipuscope.profiler.pva.model import CATEGORIES, Model
from ipuscope.profiler.pva.programs import VertexType

_ALL = tuple(name for name in records.CATEGORIES if name not in CATEGORIES)


@plain
class Gaps(Shown):
    """Bytes with and without what is lost to regions and alignment."""

    includingGaps: int
    excludingGaps: int


@plain
class RegionBytes(Shown):
    """Bytes of a category in a region: always live, sharing memory (at the worst step), total."""

    nonOverlapped: int
    overlapped: int

    @property
    def total(self) -> int:
        """Bytes in all."""
        return self.nonOverlapped + self.overlapped


class CategoryBytes(Shown):
    """Bytes of a category on a tile."""

    __slots__ = ("_at", "_model", "_name")
    _shown = ("total",)

    def __init__(self, model: Model, at: tuple[int, int], name: str) -> None:
        self._model, self._at, self._name = model, at, name

    @property
    def total(self) -> int:
        """Bytes in all."""
        return self.nonInterleaved.total + self.interleaved.total

    @property
    def nonInterleaved(self) -> RegionBytes:
        """Bytes in the region that is not interleaved."""
        return self._region(False)

    @property
    def interleaved(self) -> RegionBytes:
        """Bytes in the interleaved region."""
        return self._region(True)

    def _region(self, interleaved: bool) -> RegionBytes:
        ipu, tile = self._at
        always, packed = self._model.category(ipu, self._name, interleaved)
        return RegionBytes(int(always[tile]), int(packed[tile]))


class Categories:
    """A category by its name as an attribute: ``tile.memory.category.vertexCode.total``."""

    __slots__ = ("_at", "_model")

    def __init__(self, model: Model, at: tuple[int, int]) -> None:
        self._model, self._at = model, at

    def __getattr__(self, name: str) -> CategoryBytes:
        if name not in CATEGORIES and name not in _ALL:
            raise AttributeError(
                f"no category {name!r}: there are {', '.join((*CATEGORIES, *_ALL))}"
            )
        return CategoryBytes(self._model, self._at, name)

    def __dir__(self) -> list[str]:
        return [*CATEGORIES, *_ALL]

    def __repr__(self) -> str:
        return (
            f"Categories({', '.join(f'{name}={getattr(self, name).total}' for name in CATEGORIES)})"
        )


@plain
class TileVertex(Shown):
    """A type of vertex on a tile, and the bytes of its code."""

    type: VertexType
    codeBytes: int


class TileMemory(Shown):
    """The bytes of a tile; ``alwaysLiveBytes + notAlwaysLiveBytes`` is ``total.excludingGaps``."""

    __slots__ = ("_at", "_model")
    _shown = ("total", "alwaysLiveBytes", "notAlwaysLiveBytes", "overflowed")

    def __init__(self, model: Model, at: tuple[int, int]) -> None:
        self._model, self._at = model, at

    @property
    def total(self) -> Gaps:
        """Bytes in use, with and without gaps."""
        return Gaps(self._of("total"), self._of("total_excluding_gaps"))

    @property
    def overflowed(self) -> Gaps:
        """Bytes beyond the tile; more than 0: out of memory."""
        most = self._model.target.bytes_per_tile
        return Gaps(self._of("overflow"), max(0, self._of("total_excluding_gaps") - most))

    @property
    def alwaysLiveBytes(self) -> int:
        """Bytes of what is always live."""
        return self._of("always_live")

    @property
    def notAlwaysLiveBytes(self) -> int:
        """Bytes of the other variables when they share memory as well as possible."""
        return self._of("total_excluding_gaps") - self._of("always_live")

    @property
    def category(self) -> Categories:
        """Bytes by storage category."""
        return Categories(self._model, self._at)

    @property
    def vertices(self) -> list[TileVertex]:
        """Vertex types with their bytes of code."""
        ipu, tile = self._at
        names, code = self._model.vertex_code(ipu)
        size = self._model.vertex_sizes
        return [
            TileVertex(VertexType(names[i], size.get(names[i], 0)), int(code[i, tile]))
            for i in np.flatnonzero(code[:, tile]).tolist()
        ]

    def _of(self, name: str) -> int:
        ipu, tile = self._at
        return int(self._model.totals(ipu)[name][tile])


class Tile(Shown):
    """A tile of the device: its ``memory``, and its number, counted over the device."""

    __slots__ = ("id", "memory")
    _shown = ("id", "memory")

    def __init__(self, model: Model, tile: int) -> None:
        self.id, self.memory = tile, TileMemory(model, model.tile_of(tile))


class IPU(Shown):
    """A chip of the device: its ``tiles``."""

    Architecture: ClassVar[type[Architecture]] = Architecture
    __slots__ = ("_model", "id")
    _shown = ("id",)

    def __init__(self, model: Model, ipu: int) -> None:
        self._model = model
        self.id = ipu

    @property
    def tiles(self) -> LazyList[Tile]:
        """The tiles of this IPU."""
        first = self.id * self._model.tiles
        return LazyList(self._model.tiles, lambda i: Tile(self._model, first + i))
