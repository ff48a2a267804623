"""The file of a report: its tables' columns, checked as they are read, and a cache."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ipuscope.profiler.file import from_json, integrity, records, seal
from ipuscope.profiler.file.bounds import Context, rows_of
from ipuscope.profiler.file.columns import Check, Columns
from ipuscope.profiler.file.lock import is_being_written
from ipuscope.profiler.file.reader import Reader
from ipuscope.profiler.lazy import cached_property
from ipuscope.profiler.report.frames import looked_up

T = TypeVar("T")
DAMAGED = (
    "Bytes of this file have changed since it was written, and not by SQLite: any answer may be"
    " wrong. ipu-report doctor says what it finds; run the model again"
)
_FEW_NAMES, _FEW_OF_NAMES = 4000, 8  # read one by one, or an eighth: all would take as long
_MOST_RECENT = 4  # frames of slices, which may be large
_META = {
    "format": 1,
    "writer": "",
    "created": "",
    "kind": "",
    "model": "",
    "state": "",
    "complete": False,
    "micro_batch": 0,
    "warnings": [],
}


class ProfileFile:
    """`Report.file`: tables by their records, names by ids, and what was computed from them."""

    _opens: type[Reader] = Reader

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.reader = self._opens(path)
        self.path: Path = self.reader.path
        # One lock, for columns and properties too: with several, two threads that each have one of
        # them could wait for each other for ever.
        self.lock = self._lock = threading.RLock()
        self._seal: Callable[[], seal.State] | None = None
        self._columns: dict[type[Any], Columns] = {}
        self._cached: dict[Any, Any] = {}
        self._making: dict[str, threading.RLock] = {}
        self._names_asked: dict[type[Any], int] = {}
        self._recent: OrderedDict[Any, Any] = OrderedDict()

    @cached_property
    def meta(self) -> dict[str, Any]:
        """The header. For an unfinished run, ``warnings`` says what is missing from the file."""
        meta: dict[str, Any] = {**_META, **self.reader.meta}
        self.sound(integrity.of_header(self.reader.meta))
        warnings = (
            list(meta["warnings"])
            if isinstance(meta["warnings"], list)
            else [str(meta["warnings"])]
        )
        if meta["complete"] is not True:
            meta["complete"] = False
            warnings.append(self._unfinished())
        return {**meta, "warnings": warnings}

    def _unfinished(self) -> str:
        """Whether the run is going on or was ended, and what is missing."""
        if is_being_written(self.path):
            return "A run is writing this profile now" + self._missing(" yet")
        return "This profile was not finished" + self._missing()

    def _missing(self, yet: str = "") -> str:
        parts = {
            "target": records.Target,
            "stages": records.Stage,
            "operators": records.Op,
            "program steps": records.Step,
            "variables": records.Variable,
            "runs": records.Run,
        }
        missing = [name for name, record in parts.items() if not self.reader.count(record)]
        return (
            f": it has no {', '.join(missing)}{yet}"
            if missing
            else "; what it has may be only a part"
        )

    @cached_property
    def target(self) -> records.Target:
        """The modelled machine."""
        columns = self.table(records.Target)
        return records.Target(**{name: values.item() for name, values in columns.items()})

    @cached_property
    def options(self) -> dict[str, Any]:
        """The run's settings: a dict from dotted name to value."""
        columns = self.table(records.Option)
        try:
            return {
                name: from_json.loads(value)
                for name, value in zip(columns["name"], columns["value"], strict=True)
            }
        except ValueError as error:
            raise self.reader.damaged(f"an option's value is not JSON ({error})") from error

    def names_at(self, record: type[Any], rows: np.ndarray) -> np.ndarray:
        """Names of some rows of a table; the others are not read for a small number of requests."""
        if self._all_names(record, len(rows)):
            return self.table(record)["name"][rows]
        return self._some_names(record, self.table(record)["id"][rows])

    def names_of(self, record: type[Any], ids: np.ndarray) -> np.ndarray:
        """`names_at`, by ids that the table has."""
        if self._all_names(record, len(ids)):
            return self.table(record)["name"][self.rows_of(record, ids)]
        return self._some_names(record, ids)

    def _all_names(self, record: type[Any], more: int) -> bool:
        """Whether to read all names of a table, as ``more`` are asked for."""
        columns = self.table(record)
        with self._lock:
            asked = self._names_asked.get(record, 0) + more
            self._names_asked[record] = asked
        return asked > max(_FEW_NAMES, columns.rows // _FEW_OF_NAMES) or columns.has("name")

    def _some_names(self, record: type[Any], ids: np.ndarray) -> np.ndarray:
        unique, which = np.unique(ids, return_inverse=True)
        texts = self.reader.texts(record, "name", unique.tolist())
        return np.array([*texts, None], dtype=object)[which]

    def rows_of(self, record: type[Any], ids: np.ndarray) -> np.ndarray:
        """Rows of a table by their ids, -1 if it has none: int64."""
        return rows_of(np.asarray(ids), self.table(record)["id"])

    def op_names(self, ids: np.ndarray) -> np.ndarray:
        """Names of operators by their ids, "" for others; of few, only these are read."""
        rows = self.rows_of(records.Op, ids)
        names = np.full(len(rows), "", dtype=object)
        names[rows >= 0] = self.names_at(records.Op, rows[rows >= 0])
        return names

    def block_names(self, ids: np.ndarray) -> np.ndarray:
        """Names of Blocks by their ids, "" for others."""
        columns = self.table(records.Block)
        return looked_up(np.asarray(ids), columns["id"], columns["name"], "")

    def once(self, key: str, make: Callable[[], T]) -> T:
        """The result of ``make``, computed only once. Callers must not modify it.

        Other threads read the report meanwhile, which may take seconds.
        """
        with self._lock:
            making = self._making.setdefault(key, threading.RLock())
        with making:
            if ("once", key) not in self._cached:
                self._cached["once", key] = make()
            return self._cached["once", key]

    @property
    def state(self) -> tuple[int, ...]:
        """What tells the opened file from a later one at its path; empty while a run writes it."""
        return () if self.reader.partial else self.reader.state

    @property
    def uri(self) -> str:
        """The URI by which SQLite opens the file as the report does: read-only, no extra files."""
        return self.reader.uri

    @cached_property
    def as_written(self) -> seal.State:
        """Whether the file's bytes are those that were written (`ipuscope.profiler.file.seal`)."""
        return (self._seal or self._sealed)()

    def _sealed(self) -> seal.State:
        try:
            return seal.state(self.path, self.reader.meta.get(seal.ENTRY))
        except (OSError, ValueError):  # it vanished, or is empty by now
            return seal.State.UNKNOWN

    def begin_check(self) -> None:
        """Compute `as_written`, which goes over every byte, in a thread meanwhile."""
        found: list[seal.State] = []
        thread = threading.Thread(target=lambda: found.append(self._sealed()))

        def ended() -> seal.State:
            thread.join()
            return found[0]

        thread.start()
        self._seal = ended

    @property
    def damaged(self) -> bool:
        """Whether bytes changed since it was written, other than by SQLite."""
        return self.as_written is seal.State.DAMAGED

    def table(self, record: type[Any]) -> Columns:
        """A table's columns, each read on first use; vectors as ids, -1 for none. Do not modify."""
        with self._lock:
            if record not in self._columns:
                check = self._check(record)
                self._columns[record] = Columns(self.reader, record, check, self._lock)
            return self._columns[record]

    def check(self, record: type[Any]) -> None:
        """Read all of a table, with its checks (`Columns.check`)."""
        self.table(record).check()

    def vector(self, id: int) -> np.ndarray:
        """A per-tile vector by its id, int64, read-only."""
        return self.over_tiles([id])[id]

    @property
    def tile_count(self) -> int:
        """Tiles of an IPU."""
        return self.target.tiles_per_ipu

    def _check(self, record: type[Any]) -> Check:
        """The check of a table's columns by `ipuscope.profiler.file.integrity`."""

        def check(columns: Columns, names: Iterable[str]) -> None:
            self.sound(integrity.of_table(record, columns, names, self.context))

        return check

    @cached_property
    def context(self) -> Context:
        """What checks of one table ask of others."""
        return Context(
            lambda: self.target.ipus_per_replica,
            lambda table: self.table(records.BY_TABLE[table])["id"],
            lambda: self.table(records.Step)["ipu"],
            self.meta["complete"],
        )

    def sound(self, wrong: str) -> None:
        """Raise `ProfileError` if `ipuscope.profiler.file.integrity` found a problem."""
        if wrong:
            raise self.reader.damaged(wrong)

    def over_tiles(self, ids: Iterable[int]) -> dict[int, np.ndarray]:
        """Per-tile vectors of cycles, bytes or counts, by id."""
        vectors = self.reader.vectors(ids, self.tile_count)
        for vector in vectors.values():
            self.sound(integrity.of_vector(vector))
        return vectors

    def vector_sums(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(sum, maximum, count of nonzeros) of each vector over tiles; 0 if there is none."""
        unique, where = np.unique(ids, return_inverse=True)
        total, largest, count = self.sums_of(unique)
        return total[where], largest[where], count[where]

    def sums_of(self, ids: np.ndarray) -> np.ndarray:
        """Sum, maximum and count of nonzeros of vectors over tiles, 0 of none: int64[3, id].

        ``ids``: ascending, each once.
        """
        sums = np.zeros((3, len(ids)), dtype=np.int64)
        stored = np.flatnonzero(ids >= 0)
        for at in range(0, len(stored), 128):  # fit the processor's cache
            here = stored[at : at + 128]
            rows = self.matrix(ids[here])
            sums[:, here] = rows.sum(axis=1), rows.max(axis=1), np.count_nonzero(rows, axis=1)
        return sums

    def check_ipu(self, ipu: int) -> None:
        """Raise IndexError unless there is such an IPU."""
        if not 0 <= ipu < self.target.num_ipus:
            raise IndexError(f"{self.path} has IPUs 0 to {self.target.num_ipus - 1}, not {ipu}")

    def matrix(self, ids: np.ndarray) -> np.ndarray:
        """Vectors over tiles by id, a row each: int64[id, tile], read-only."""
        vectors = self.reader.matrix(ids.tolist(), self.tile_count)
        self.sound(integrity.of_vector(vectors))
        vectors.flags.writeable = False
        return vectors

    def keep(self, key: Any, make: Callable[[], T]) -> T:
        """What ``make`` computes, cached under the key. Other threads wait meanwhile."""
        with self._lock:
            if key not in self._cached:
                self._cached[key] = make()
            return self._cached[key]

    def remember(self, key: Any, make: Callable[[], T]) -> T:
        """Like `_keep`, but for large results: only the most recent few are cached."""
        with self._lock:
            answer: T | None = self._recent.pop(key, None)
            if answer is None:
                answer = make()
            self._recent[key] = answer
            while len(self._recent) > _MOST_RECENT:
                self._recent.popitem(last=False)
            return answer
