"""Lists that create their entries on demand, and objects with a readable representation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar, Generic, TypeVar, dataclass_transform, overload

T = TypeVar("T")

# entries shown of a list: libpva's `Report.listPrintLength` sets it for all that is printed
_print_length = [10]


def set_print_length(entries: int) -> None:
    """Set how many entries of a list are shown when it is printed."""
    if entries < 0:
        raise ValueError(f"a list cannot show {entries} entries")
    _print_length[0] = entries


@dataclass_transform(eq_default=False)
def plain(cls: type[T]) -> type[T]:
    """A dataclass that is compared by identity, and that `Shown` prints."""
    return dataclass(repr=False, eq=False, slots=True)(cls)


class LazyList(Sequence[T], Generic[T]):
    """``length`` entries that ``make`` creates one by one; ``walk`` yields all in order, faster."""

    __slots__ = ("_length", "_make", "_walk")

    def __init__(
        self, length: int, make: Callable[[int], T], walk: Callable[[], Iterator[T]] | None = None
    ) -> None:
        self._length = length
        self._make = make
        self._walk = walk

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> list[T]: ...

    def __getitem__(self, index: int | slice) -> T | list[T]:
        if isinstance(index, slice):
            return [self._make(i) for i in range(*index.indices(self._length))]
        at = index + self._length if index < 0 else index
        if not 0 <= at < self._length:
            raise IndexError(f"a list of {self._length} has no entry {index}")
        return self._make(at)

    def __iter__(self) -> Iterator[T]:
        return self._walk() if self._walk is not None else map(self._make, range(self._length))

    def __repr__(self) -> str:
        shown = [repr(entry) for entry in islice(self, _print_length[0])]
        more = self._length - len(shown)
        return "[" + ", ".join([*shown, *([f"... {more} more"] if more else [])]) + "]"


class Shown:
    """Prints as its class's name and the attributes that ``_shown`` names, or else its fields."""

    __slots__ = ()
    _shown: ClassVar[tuple[str, ...]] = ()

    def __repr__(self) -> str:
        fields = [name for name in getattr(self, "__match_args__", ()) if name[0] != "_"]
        values = ", ".join(f"{name}={_text(getattr(self, name))}" for name in self._shown or fields)
        return f"{type(self).__name__}({values})"


def _text(value: Any) -> str:
    if isinstance(value, list) and len(value) > _print_length[0]:
        return repr(LazyList(len(value), value.__getitem__))
    return repr(value)
