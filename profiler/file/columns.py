"""The columns of a table, each read on first use.

Most questions need few of a large table's columns, and texts cost the most to read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, ItemsView, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from threading import RLock
from typing import Any

import numpy as np

from ipuscope.profiler.file import schema
from ipuscope.profiler.file.packed_columns import split
from ipuscope.profiler.file.reader import Reader

Check = Callable[["Columns", Iterable[str]], None]  # raises where what was just read is wrong
Lock = AbstractContextManager[Any]


class Columns(Mapping[str, np.ndarray]):
    """Name -> values, an entry a row, in the order of the rows. Threads may share it.

    All columns have the rows that the table had at first: a file that is being written may get
    more.
    """

    def __init__(
        self, reader: Reader, record: type[Any], check: Check, lock: Lock | None = None
    ) -> None:
        """``lock``: the reentrant one under which ``check`` asks for columns of other tables."""
        self._reader, self._record, self._check = reader, record, check
        self._lock = lock or RLock()
        self._read: dict[str, np.ndarray] = {}
        self._coded: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        self._whole: set[str] = set()  # texts that `check` has seen
        self._names = tuple(column.name for column in schema.columns(record))
        columns = schema.columns(record)
        self._texts = {column.name: column.bound for column in columns if column.kind == "str"}
        self.rows = reader.count(record)

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._read:
            if name not in self._names:
                raise KeyError(name)
            self.read(name)
        return self._read[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def is_text(self, name: str) -> bool:
        """Whether a column has texts, in a table of which they are stored once each."""
        return self.rows >= schema.LEAST_PACKED and name in self._texts

    def has(self, name: str) -> bool:
        """Whether a column was already read."""
        return name in self._read

    def items(self) -> ItemsView[str, np.ndarray]:
        """All columns; those not yet read are read at once."""
        self.read()
        return super().items()

    def coded(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """A column of texts as the position of each row's among the distinct texts, and these.

        Much faster than the texts of all rows, if the file stores them so.
        """
        with self._lock:
            if name not in self._coded:
                packed = None if self.has(name) else self._packed(name)
                if packed is None:
                    self._coded[name] = _distinct(self[name])
                else:
                    self._coded[name] = packed[0], split(packed[1])
                    self._check_or_forget([name], self._coded)
            return self._coded[name]

    def to_check(self, name: str) -> np.ndarray:
        """The values of a column that has been read; of texts the distinct ones."""
        if name in self._coded:
            return self._coded[name][1]
        values = self._read[name]
        return np.array([*set(values.tolist())], dtype=object) if values.dtype == object else values

    def equals(self, name: str, *words: str) -> np.ndarray:
        """Which rows have one of these texts in a column."""
        places, texts = self.coded(name)
        return among(words, places, texts.tolist())

    def read(self, *names: str) -> None:
        """Read these columns (default: all) at once, faster than one after the other."""
        wanted = names or self._names
        with self._lock:
            missing = [name for name in wanted if name not in self._read]
            if not missing:
                return
            self._read.update(self._reader.some(self._record, missing, self.rows))
            self._check_or_forget(missing, self._read)

    def check(self) -> None:
        """Read all columns with their checks; texts only as the file packs them, where it does."""
        for name in filter(self.is_text, self._names):
            if name not in self._whole and (self._texts[name] or not self._packed(name)):
                self.coded(name)
            self._whole.add(name)
        self.read(*(name for name in self._names if name not in self._whole))

    def _packed(self, name: str) -> tuple[np.ndarray, bytes] | None:
        return self._reader.packed_texts(self._record, name, self.rows)

    def _check_or_forget(self, names: Iterable[str], read: dict[str, Any]) -> None:
        try:
            self._check(self, names)
        except BaseException:
            for name in names:
                read.pop(name, None)
            raise


def among(words: Collection[str], places: np.ndarray, texts: Iterable[str]) -> np.ndarray:
    """Which rows have one of these words: of ``texts``, those at the rows' places; -1: none."""
    wanted: np.ndarray = np.array([*(word in words for word in texts), False])
    return wanted[places]


def _distinct(texts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    places: dict[str, int] = {}
    of_rows = [places.setdefault(text, len(places)) for text in texts.tolist()]
    return np.array(of_rows, dtype=np.int64), np.array([*places], dtype=object)
