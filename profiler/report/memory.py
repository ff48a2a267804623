"""The memory of a profile as arrays: variables, bytes of tiles, and what is live when."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from ipuscope.profiler.file import integrity, records
from ipuscope.profiler.lazy import cached, cached_property
from ipuscope.profiler.report.frames import frame_columns, frame_of
from ipuscope.profiler.report.program import ProgramSequence
from ipuscope.profiler.report.tables import ProfileFile
from ipuscope.profiler.timeline import liveness
from ipuscope.profiler.timeline.liveness import Peaks, Totals
from ipuscope.profiler.timeline.tile_usage import IpuVariables, by_kind, tile_totals

if TYPE_CHECKING:
    import pandas as pd

_MEMORY_OF_VARIABLES = (
    *("id", "ipu", "category", "role", "tile_bytes", "interleaved", "always_live"),
    *("start", "stop"),
)
_OF_VARIABLES = (
    *("id", "op", "block", "always_live", "start", "stop", "interleaved", "category", "role"),
)


class Usage:
    """`Report.usage`: the bytes of variables and tiles."""

    def __init__(self, file: ProfileFile, sequence: ProgramSequence) -> None:
        self.file, self.sequence, self._lock = file, sequence, file.lock

    def variables_with(self, *names: str) -> pd.DataFrame:
        """Selected columns of `variables`; only these are read."""
        columns = self.file.table(records.Variable)
        return frame_of(frame_columns(columns, names), index=columns["id"])

    def variable_name(self, id: int) -> str:
        """Name of a variable, without reading the others; `ProfileError` if there is none."""
        return self.file.reader.texts(records.Variable, "name", [id])[0]

    def variable_tiles(self, id: int) -> np.ndarray:
        """Bytes of a variable per tile."""
        at = self._variable_at.get(id)
        if at is None:
            raise KeyError(f"no variable {id} in {self.file.path}")
        return self.vectors[1][self._vector_of_variables[at]]

    @cached_property
    def _variable_at(self) -> dict[int, int]:
        """Row of each variable in its table, by id."""
        ids = self.file.table(records.Variable)["id"].tolist()
        return dict(zip(ids, range(len(ids)), strict=True))

    def tile_columns(self, ipu: int) -> dict[str, np.ndarray]:
        """The columns of `tiles`: int64[tile] each. Callers must not modify them."""

        def peaks(region: bool | None) -> Peaks:
            """`IpuVariables.peaks`, without ``max_tile`` and ``max_tile_bytes``."""
            every = np.ones(len(variables.id), dtype=bool)
            chosen = every if region is None else variables.interleaved == region
            return self._some_peaks(variables, chosen)

        def make() -> dict[str, np.ndarray]:
            target = self.file.target
            return tile_totals(
                variables,
                target.region0_bytes,
                target.bytes_per_tile,
                peaks,
            )

        self.file.check_ipu(ipu)
        variables = self.ipu_variables(ipu)
        return self.file.keep(("tile columns", variables.alike), make)

    def by_kind(self, ipu: int) -> list[tuple[str, str, int, int]]:
        """`tile_usage.by_kind` at the IPU's peak step, computed once for equal IPUs."""
        variables = self.ipu_variables(ipu)

        def make() -> list[tuple[str, str, int, int]]:
            total = self.live_bytes(ipu)
            return by_kind(variables, int(total.argmax()) if len(total) else 0)

        names = tuple(variables.category.tolist()), tuple(variables.role.tolist())
        return self.file.keep(("by kind", variables.alike, names), make)

    @cached
    def live_columns(self, ipu: int) -> dict[str, np.ndarray]:
        """The numeric columns of `liveness`, without reading the steps."""
        total, of = self.live_bytes(ipu), self.ipu_variables(ipu)
        fullest = liveness.fullest_of_steps(of.intervals, of.steps, of.always())
        always = np.full(len(total), self.tile_columns(ipu)["always_live"].sum())
        return {
            "always_live": always,
            "not_always_live": total - always,
            "total": total,
            **dict(zip(("max_tile", "max_tile_bytes"), fullest, strict=True)),
        }

    @cached
    def live_bytes(self, ipu: int) -> np.ndarray:
        """``total`` of `liveness` alone, without reading any tile: int64[step], bytes."""
        variables, sums = self.ipu_variables(ipu), self.vectors[2]
        moving = variables.intervals
        lives = moving.start < moving.stop
        size = sums[moving.vector[lives]]
        changes = np.zeros(variables.steps + 1, dtype=np.int64)
        np.add.at(changes, moving.start[lives].clip(0, variables.steps), size)
        np.add.at(changes, moving.stop[lives].clip(0, variables.steps), -size)
        return variables.always().sum() + np.cumsum(changes[:-1])

    def live_at(
        self, ipu: int, step: int, tile: int | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Positions in `variables_of` and bytes of `live_variables`, in its order."""
        size = self.bytes_of_variables(ipu, tile)
        steps = int(self.sequence.steps_of_ipus[ipu])
        if not 0 <= step < max(1, steps):
            raise IndexError(f"IPU {ipu} has steps 0 to {steps - 1}, not {step}")
        columns = self.variables_of(ipu)
        start, stop = columns["start"], columns["stop"]
        live = (columns["always_live"] != 0) | ((start <= step) & (step < stop))
        there = np.flatnonzero(live & (size > 0))
        there = there[np.argsort(-size[there], kind="stable")]
        return there, size[there]

    @cached
    def variables_of(self, ipu: int) -> dict[str, np.ndarray]:
        """Columns of an IPU's variables, in the order of their table. Callers must not modify them.

        ``id, op, block, always_live, start, stop, interleaved, category, role``.
        """
        self.file.check_ipu(ipu)
        columns = self.file.table(records.Variable)
        columns.read("ipu", *_OF_VARIABLES)
        rows = self._rows_of_ipus.get(ipu, np.zeros(0, dtype=np.int64))
        return {name: columns[name][rows] for name in _OF_VARIABLES}

    def bytes_of_variables(self, ipu: int, tile: int | None = None) -> np.ndarray:
        """Bytes of an IPU's variables on a tile (None: on all); reads only their vectors."""
        self.file.check_ipu(ipu)
        if tile is not None and not 0 <= tile < self.file.tile_count:
            raise IndexError(f"an IPU has tiles 0 to {self.file.tile_count - 1}, not {tile}")
        rows = self._rows_of_ipus.get(ipu, np.zeros(0, dtype=np.int64))
        ids, vectors = self._vectors_of(ipu)
        size = vectors.sum(axis=1) if tile is None else vectors[:, tile]
        of_rows: np.ndarray = size[
            np.searchsorted(ids, self.file.table(records.Variable)["tile_bytes"][rows])
        ]
        self.file.sound(integrity.of_sums("variables", of_rows))
        return of_rows

    @cached
    def _vectors_of(self, ipu: int) -> tuple[np.ndarray, np.ndarray]:
        """Sorted ids of the distinct vectors of an IPU's variables, and the vectors."""
        if "vectors" in self.__dict__:
            return self.vectors[:2]
        rows = self._rows_of_ipus.get(ipu, np.zeros(0, dtype=np.int64))
        unique = np.unique(self.file.table(records.Variable)["tile_bytes"][rows])
        return unique, self.file.matrix(unique)

    @cached
    def ipu_variables(self, ipu: int) -> IpuVariables:
        """The variables of an IPU as columns."""
        self.file.check_ipu(ipu)
        columns = self.file.table(records.Variable)
        columns.read(*_MEMORY_OF_VARIABLES)
        rows = self._rows_of_ipus.get(ipu, np.zeros(0, dtype=np.int64))
        names = ("id", "category", "role", "start", "stop")
        _, vectors, sums = self.vectors
        row = self._vector_of_variables[rows]
        self.file.sound(integrity.of_sums("variables", sums[row]))
        return IpuVariables(
            **{name: columns[name][rows] for name in names},
            ipu=ipu,
            steps=int(self.sequence.steps_of_ipus[ipu]),
            interleaved=columns["interleaved"][rows] != 0,
            always_live=columns["always_live"][rows] != 0,
            vector=row,
            vectors=vectors,
            totals=self._totals,
        )

    def peaks_of(self, ipu: int, chosen: np.ndarray) -> Peaks:
        """Peaks of ``chosen`` variables of an IPU (bool), without the fullest tile of each step."""
        return self._some_peaks(self.ipu_variables(ipu), chosen)

    def _some_peaks(self, variables: IpuVariables, chosen: np.ndarray) -> Peaks:
        """Peaks of the variables that ``chosen`` marks.

        Temporary variables are summed once for all IPUs on which they are the same, as with equal
        layers; the always-live ones are added for each IPU.
        """
        moving = variables.intervals_of(chosen)
        parts = (moving.start, moving.stop, moving.vector)
        key = (variables.steps, *(part.tobytes() for part in parts))
        none = np.zeros(self.file.tile_count, dtype=np.int64)
        one = self.file.keep(
            ("moving", key),
            lambda: liveness.peaks(moving, variables.steps, none, self.vectors[2]),
        )
        always = variables.always(chosen)
        return replace(
            one, step_total=one.step_total + always.sum(), tile_peak=one.tile_peak + always
        )

    @cached_property
    def _totals(self) -> Totals:
        return Totals(self.vectors[1])

    @cached_property
    def vectors(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Sorted ids of all variables' distinct vectors, the vectors, and their sums.

        int64[vector, tile]. Equal tensors of equal layers share a vector, so there are few.
        """
        tile_bytes = self.file.table(records.Variable)["tile_bytes"]
        unique = np.unique(tile_bytes, return_counts=True)[0]  # without it numpy imports numpy.ma
        vectors = self.file.matrix(unique)
        return unique, vectors, vectors.sum(axis=1)

    @cached_property
    def _vector_of_variables(self) -> np.ndarray:
        """For each row of the variables' table, the row of `vectors` that it uses."""
        return np.searchsorted(self.vectors[0], self.file.table(records.Variable)["tile_bytes"])

    @property
    def variable_vectors(self) -> tuple[np.ndarray, np.ndarray]:
        """The distinct vectors of variables' bytes, and each variable's row in them.

        int64[variable] (first) and int64[vector, tile]; callers must not modify them.
        """
        return self._vector_of_variables, self.vectors[1]

    @cached_property
    def _rows_of_ipus(self) -> dict[int, np.ndarray]:
        """Rows of each IPU's variables, in the order of the table."""
        ipu = self.file.table(records.Variable)["ipu"]
        order = np.argsort(ipu, kind="stable")
        ipus, first = np.unique(ipu[order], return_index=True)
        edges = [*first.tolist(), len(order)]
        return {
            int(one): order[begin:end]
            for one, (begin, end) in zip(ipus, pairwise(edges), strict=True)
        }
