"""The memory of a profile: variables, tiles and liveness."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ipuscope.profiler.file import integrity, records
from ipuscope.profiler.lazy import cached_property
from ipuscope.profiler.report.frames import (
    bounds_of,
    columns_without,
    frame_of,
    frame_of_rows,
    some_columns,
)
from ipuscope.profiler.report.program import ReportProgram
from ipuscope.profiler.timeline import liveness
from ipuscope.profiler.timeline.liveness import Peaks, Totals, resampled
from ipuscope.profiler.timeline.tile_usage import (
    IpuVariables,
    by_kind,
    tile_totals,
)

if TYPE_CHECKING:
    import pandas as pd

_MEMORY_OF_VARIABLES = (
    *("id", "ipu", "category", "role", "tile_bytes", "interleaved", "always_live"),
    *("start", "stop"),
)
_OF_VARIABLES = (
    *("id", "op", "block", "always_live", "start", "stop", "interleaved", "category", "role"),
)


class ReportMemory(ReportProgram):
    """A report's memory."""

    @cached_property
    def variables(self) -> pd.DataFrame:
        """Variables by id; a variable is live at the steps with ``start <= position < stop``."""
        columns = self._table(records.Variable)
        return frame_of(columns_without(columns, "id", "tile_bytes"), index=columns["id"])

    def variables_with(self, *names: str) -> pd.DataFrame:
        """Selected columns of `variables`; only these are read."""
        columns = self._table(records.Variable)
        columns.read("id", *names)
        return frame_of({name: columns[name] for name in names}, index=columns["id"])

    def variable_name(self, id: int) -> str:
        """Name of a variable, without reading the others; `ProfileError` if there is none."""
        return self._reader.text(records.Variable, "name", id)

    def variable_tiles(self, id: int) -> np.ndarray:
        """Bytes of a variable per tile."""
        at = self._variable_at.get(id)
        if at is None:
            raise KeyError(f"no variable {id} in {self.path}")
        vector: np.ndarray = self._variable_vectors[1][self._vector_of_variables[at]]
        return vector

    @cached_property
    def _variable_at(self) -> dict[int, int]:
        """Row of each variable in its table, by id."""
        ids = self._table(records.Variable)["id"].tolist()
        return dict(zip(ids, range(len(ids)), strict=True))

    def tiles(self, ipu: int) -> pd.DataFrame:
        """Bytes per tile, as defined by `ipuscope.profiler.timeline.tile_usage.tile_totals`."""
        return self._keep(("tiles", ipu), lambda: frame_of(self.tile_columns(ipu)))

    def tile_columns(self, ipu: int) -> dict[str, np.ndarray]:
        """The columns of `tiles`: int64[tile] each. Callers must not modify them."""

        def make() -> dict[str, np.ndarray]:
            target = self.target
            return tile_totals(
                variables,
                target.region0_bytes,
                target.bytes_per_tile,
                lambda region: self._tile_peaks(variables, region),
            )

        self._check_ipu(ipu)
        variables = self.ipu_variables(ipu)
        return self._keep(("tile columns", variables.alike), make)

    def memory(self, ipu: int | None = None) -> pd.DataFrame:
        """Bytes by category and role, largest first.

        Counts the always-live variables and, of the others, those live at the step where the IPU is
        fullest; ``bytes`` add up to that peak.
        """

        def make() -> pd.DataFrame:
            rows = [(i, *row) for i in self._all_ipus(ipu) for row in self._by_kind(i)]
            return frame_of_rows(
                rows, ipu=int, category=str, role=str, bytes=int, max_tile_bytes=int
            )

        return self._keep(("memory", ipu), make)

    def _by_kind(self, ipu: int) -> list[tuple[str, str, int, int]]:
        """`tile_usage.by_kind` at the IPU's peak step, computed once for equal IPUs."""
        variables = self.ipu_variables(ipu)

        def make() -> list[tuple[str, str, int, int]]:
            total = self.live_bytes(ipu)
            return by_kind(variables, int(total.argmax()) if len(total) else 0)

        names = tuple(variables.category.tolist()), tuple(variables.role.tolist())
        return self._keep(("by kind", variables.alike, names), make)

    def liveness(self, ipu: int) -> pd.DataFrame:
        """Bytes live at each program step of an IPU, over all tiles and on the fullest; no gaps."""

        def make() -> pd.DataFrame:
            steps = self.steps_of_ipu(ipu, "position", "name", "op", "block", "direction")
            return frame_of({**steps, **self.live_columns(ipu)})

        return self._keep(("liveness", ipu), make)

    def live_columns(self, ipu: int) -> dict[str, np.ndarray]:
        """The numeric columns of `liveness`, without reading the steps."""

        def make() -> dict[str, np.ndarray]:
            total = self.live_bytes(ipu)
            max_tile, max_tile_bytes = self._fullest_of_steps(ipu)
            always = np.full(len(total), self.tile_columns(ipu)["always_live"].sum())
            return {
                "always_live": always,
                "not_always_live": total - always,
                "total": total,
                "max_tile": max_tile,
                "max_tile_bytes": max_tile_bytes,
            }

        return self._keep(("live columns", ipu), make)

    def names_of_steps(self, ipu: int, positions: np.ndarray) -> np.ndarray:
        """Names of program steps of an IPU by their positions; of few, only these are read."""
        ids = self.steps_of_ipu(ipu, "step")["step"][positions]
        return self.names_of(records.Step, ids)

    def _fullest_of_steps(self, ipu: int) -> tuple[np.ndarray, np.ndarray]:
        """The fullest tile at each step of an IPU, and its bytes."""
        variables = self.ipu_variables(ipu)
        return liveness.fullest_of_steps(variables.intervals, variables.steps, variables.always())

    def liveness_map(
        self,
        ipu: int,
        steps: slice | None = None,
        tiles: slice | None = None,
        shape: tuple[int, int] | None = None,
        what: str = "total",
    ) -> np.ndarray:
        """Live bytes, int64[step, tile], without gaps.

        ``steps`` and ``tiles`` (slices without a step) choose a rectangle; ``shape`` resamples it
        by maximum to at most that size. ``what``: "total", or "not_always_live".
        """
        if what not in ("total", "not_always_live"):
            raise ValueError(f"what must be 'total' or 'not_always_live', not {what!r}")
        self._check_ipu(ipu)
        first, last = bounds_of(steps, int(self.steps_of_ipus[ipu]), "steps")
        left, right = bounds_of(tiles, self._tiles, "tiles")
        if shape is not None and min(shape) < 1:
            raise ValueError(f"shape must be at least (1, 1), not {shape}")

        def make() -> np.ndarray:
            variables, here = self.ipu_variables(ipu), slice(left, right)
            always = variables.always()[here] if what == "total" else None
            size = shape or (last - first, right - left)
            return resampled(variables.intervals.on_tiles(here), first, last, size, always)

        return self._remember(("liveness_map", ipu, first, last, left, right, shape, what), make)

    def live_bytes(self, ipu: int) -> np.ndarray:
        """``total`` of `liveness` alone, without reading any tile: int64[step], bytes."""

        def make() -> np.ndarray:
            sums = self._variable_vectors[2]
            moving = variables.intervals
            lives = moving.start < moving.stop
            size = sums[moving.vector[lives]]
            changes = np.zeros(variables.steps + 1, dtype=np.int64)
            np.add.at(changes, moving.start[lives].clip(0, variables.steps), size)
            np.add.at(changes, moving.stop[lives].clip(0, variables.steps), -size)
            total: np.ndarray = variables.always().sum() + np.cumsum(changes[:-1])
            return total

        self._check_ipu(ipu)
        variables = self.ipu_variables(ipu)
        return self._keep(("live bytes", ipu), make)

    def live_variables(self, ipu: int, step: int, tile: int | None = None) -> pd.DataFrame:
        """Variables live at a step (by position), largest first; bytes on a tile (None: on all)."""
        which, size = self.live_at(ipu, step, tile)
        columns = {name: values[which] for name, values in self.variables_of(ipu).items()}
        return frame_of(
            {
                "variable": columns["id"],
                "name": self.names_of(records.Variable, columns["id"]),
                **some_columns(columns, "category", "role", "op", "block"),
                "bytes": size,
            }
        )

    def live_at(
        self, ipu: int, step: int, tile: int | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Positions in `variables_of` and bytes of `live_variables`, in its order."""
        size = self.bytes_of_variables(ipu, tile)
        steps = int(self.steps_of_ipus[ipu])
        if not 0 <= step < max(1, steps):
            raise IndexError(f"IPU {ipu} has steps 0 to {steps - 1}, not {step}")
        columns = self.variables_of(ipu)
        start, stop = columns["start"], columns["stop"]
        live = (columns["always_live"] != 0) | ((start <= step) & (step < stop))
        there = np.flatnonzero(live & (size > 0))
        there = there[np.argsort(-size[there], kind="stable")]
        return there, size[there]

    def variables_of(self, ipu: int) -> dict[str, np.ndarray]:
        """Columns of an IPU's variables, in the order of their table. Callers must not modify them.

        ``id, op, block, always_live, start, stop, interleaved, category, role``.
        """

        def make() -> dict[str, np.ndarray]:
            columns = self._table(records.Variable)
            columns.read("ipu", *_OF_VARIABLES)
            rows = self._rows_of_ipus.get(ipu, np.zeros(0, dtype=np.int64))
            return {name: columns[name][rows] for name in _OF_VARIABLES}

        self._check_ipu(ipu)
        return self._keep(("variables of", ipu), make)

    def bytes_of_variables(self, ipu: int, tile: int | None = None) -> np.ndarray:
        """Bytes of an IPU's variables on a tile (None: on all); reads only their vectors."""
        self._check_ipu(ipu)
        if tile is not None and not 0 <= tile < self._tiles:
            raise IndexError(f"an IPU has tiles 0 to {self._tiles - 1}, not {tile}")
        rows = self._rows_of_ipus.get(ipu, np.zeros(0, dtype=np.int64))
        ids, vectors = self._keep(("vectors of", ipu), lambda: self._vectors_of(rows))
        size = vectors.sum(axis=1) if tile is None else vectors[:, tile]
        of_rows: np.ndarray = size[
            np.searchsorted(ids, self._table(records.Variable)["tile_bytes"][rows])
        ]
        self._sound(integrity.of_sums("variables", of_rows))
        return of_rows

    def _vectors_of(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Sorted ids of the distinct vectors of some variables, and the vectors."""
        if "_variable_vectors" in self.__dict__:
            return self._variable_vectors[:2]
        unique = np.unique(self._table(records.Variable)["tile_bytes"][rows])
        return unique, self._matrix(unique)

    def ipu_variables(self, ipu: int) -> IpuVariables:
        """The variables of an IPU as columns."""
        self._check_ipu(ipu)
        return self._keep(("ipu", ipu), lambda: self._load_ipu(ipu))

    def _load_ipu(self, ipu: int) -> IpuVariables:
        columns = self._table(records.Variable)
        columns.read(*_MEMORY_OF_VARIABLES)
        rows = self._rows_of_ipus.get(ipu, np.zeros(0, dtype=np.int64))
        names = ("id", "category", "role", "interleaved", "always_live", "start", "stop")
        here = {name: columns[name][rows] for name in names}
        steps = int(self.steps_of_ipus[ipu])
        always = here["always_live"] != 0
        _, vectors, sums = self._variable_vectors
        row = self._vector_of_variables[rows]
        self._sound(integrity.of_sums("variables", sums[row]))
        return IpuVariables(
            ipu,
            steps,
            here["id"],
            here["category"],
            here["role"],
            here["interleaved"] != 0,
            always,
            here["start"],
            here["stop"],
            row,
            vectors,
            self._totals,
        )

    def peaks_of(self, ipu: int, chosen: np.ndarray) -> Peaks:
        """Peaks of ``chosen`` variables of an IPU (bool), without the fullest tile of each step."""
        return self._some_peaks(self.ipu_variables(ipu), chosen)

    def _tile_peaks(self, variables: IpuVariables, region: bool | None) -> Peaks:
        """`IpuVariables.peaks`, without ``max_tile`` and ``max_tile_bytes``."""
        chosen = np.ones(len(variables.id), dtype=bool)
        if region is not None:
            chosen = variables.interleaved == region
        return self._some_peaks(variables, chosen)

    def _some_peaks(self, variables: IpuVariables, chosen: np.ndarray) -> Peaks:
        """Peaks of the variables that ``chosen`` marks.

        Temporary variables are summed once for all IPUs on which they are the same, as with equal
        layers; the always-live ones are added for each IPU.
        """
        moving = variables.intervals_of(chosen)
        parts = (moving.start, moving.stop, moving.vector)
        key = (variables.steps, *(part.tobytes() for part in parts))
        none = np.zeros(self._tiles, dtype=np.int64)
        one = self._keep(
            ("moving", key),
            lambda: liveness.peaks(moving, variables.steps, none, fullest_tiles=False),
        )
        always = variables.always(chosen)
        return replace(
            one, step_total=one.step_total + always.sum(), tile_peak=one.tile_peak + always
        )

    @cached_property
    def _totals(self) -> Totals:
        return Totals(self._variable_vectors[1])
