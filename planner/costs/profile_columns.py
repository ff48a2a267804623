"""The variables and program steps of a profile as columns, for all its IPUs together."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np

from ipuscope.profiler.enums import Role
from ipuscope.profiler.file import records
from ipuscope.profiler.file.bounds import rows_of
from ipuscope.profiler.report import Report
from ipuscope.profiler.report.frames import summed
from ipuscope.profiler.timeline import liveness
from ipuscope.profiler.timeline.tile_usage import CODE

Rows = int | np.ndarray


def none() -> np.ndarray:
    """No entries, int64: what a field has that is not known."""
    return np.zeros(0, dtype=np.int64)


def no_rows() -> np.ndarray:
    """No rows over tiles, int64[0, 0]."""
    return np.zeros((0, 0), dtype=np.int64)


# Columns of the tables that rebalancing needs: read at once they take least.
COLUMNS_OF_STEPS = ("id", "ipu", "position", "body", "op", "type", "cycles", "purpose", "tensor")
COLUMNS_OF_VARIABLES = (
    *("id", "ipu", "role", "tensor", "parameter", "op", "block", "stage", "start", "stop"),
    *("bytes", "always_live", "interleaved", "tile_bytes", "category"),
)


@dataclass(frozen=True)
class Variables:
    """One entry a variable, stashes excluded; ``vector`` is a row of ``vectors`` [vector, tile]."""

    id: np.ndarray
    ipu: np.ndarray
    role: np.ndarray
    tensor: np.ndarray
    parameter: np.ndarray
    op: np.ndarray
    block: np.ndarray
    stage: np.ndarray
    nbytes: np.ndarray
    always: np.ndarray  # bool: always live
    code: np.ndarray  # bool: must lie in region 0
    interleaved: np.ndarray  # bool
    start: np.ndarray
    stop: np.ndarray
    vector: np.ndarray
    vectors: np.ndarray

    def __len__(self) -> int:
        return len(self.id)

    @classmethod
    def of(cls, report: Report) -> Variables:
        """In the order of the profile's table."""
        table = report.file.table(records.Variable)
        same = ("id", "ipu", "role", "tensor", "parameter", "op", "block", "stage", "start", "stop")
        table.read(*COLUMNS_OF_VARIABLES)
        vector, vectors = report.usage.variable_vectors
        every = cls(
            **{name: table[name] for name in same},
            nbytes=table["bytes"],
            always=table["always_live"] != 0,
            code=np.logical_or.reduce([table["category"] == one for one in CODE]),
            interleaved=table["interleaved"] != 0,
            vector=vector,
            vectors=vectors,
        )
        return every.where(table["role"] != Role.STASH)

    def where(self, mask: np.ndarray) -> Variables:
        """The variables selected by a mask, or by rows in their order."""
        columns = {one.name: getattr(self, one.name) for one in fields(self)}
        del columns["vectors"]
        return replace(self, **{name: values[mask] for name, values in columns.items()})

    def rows_of(self, ids: np.ndarray) -> np.ndarray:
        """Row of each id, -1 where it is none of these."""
        return rows_of(ids, self.id)

    def bytes_by(self, group: np.ndarray, count: int) -> np.ndarray:
        """Bytes by tile of groups' variables: int64[group, tile]; equal groups are summed once."""
        order = np.lexsort((self.vector, group))
        vector = self.vector[order]
        edges = np.searchsorted(group[order], np.arange(count + 1))
        totals = np.zeros((count, self.vectors.shape[1]), dtype=np.int64)
        cached: dict[bytes, np.ndarray] = {}
        for number in np.flatnonzero(np.diff(edges)).tolist():
            members = vector[edges[number] : edges[number + 1]]
            key = members.tobytes()
            if key not in cached:
                cached[key] = liveness.total(self.vectors, members)
            totals[number] = cached[key]
        return totals


@dataclass(frozen=True)
class Steps:
    """Program steps by IPU and position; ``begin``: each IPU's first, then the end."""

    ipu: np.ndarray
    op: np.ndarray  # this and the next as in `Report.program_steps`
    direction: np.ndarray
    purpose: np.ndarray
    stage: np.ndarray
    block: np.ndarray
    begin: np.ndarray

    def __len__(self) -> int:
        return len(self.ipu)

    @classmethod
    def of(cls, report: Report) -> Steps:
        """The steps of all IPUs."""
        report.file.table(records.Step).read(*COLUMNS_OF_STEPS)
        names = ("ipu", "op", "direction", "purpose", "stage", "block")
        columns = {name: report.sequence.steps_in_order(name) for name in names}
        begin = np.searchsorted(columns["ipu"], np.arange(report.target.ipus_per_replica + 1))
        return cls(**columns, begin=begin)

    def at(self, ipu: np.ndarray, position: np.ndarray) -> np.ndarray:
        """Row of each IPU's step at a position, -1 where it has none there."""
        row = self.begin[ipu] + position
        inside = (position >= 0) & (row < self.begin[ipu + 1])
        return np.where(inside, row, -1)


def rows_of_uses(report: Report) -> tuple[np.ndarray, np.ndarray]:
    """The rows of variable and operator of each use whose both are in the profile."""
    names = (records.Use, records.Variable, records.Op)
    uses, variables, ops = (report.file.table(record) for record in names)
    variable, op = rows_of(uses["variable"], variables["id"]), rows_of(uses["op"], ops["id"])
    listed = (variable >= 0) & (op >= 0)
    return variable[listed], op[listed]


def sums_between(values: np.ndarray, first: Rows, last: Rows) -> np.ndarray:
    """The sum of the values from each ``first`` to its ``last``, which broadcast."""
    total = np.concatenate([[0], np.cumsum(values)])
    return total[np.asarray(last) + 1] - total[first]


def sum_by(group: np.ndarray, values: np.ndarray, count: int) -> np.ndarray:
    """Sums of whole numbers by group, int64[count]; groups beyond ``count`` are left out."""
    inside = (group >= 0) & (group < count)
    return summed(values[inside], group[inside], count)
