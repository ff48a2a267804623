"""Vectors as rows, for plain SQL and for SQL written for the vendor's files.

SQL cannot open compressed vectors. The few that queries need (bytes of variables on tiles, the
steps of bodies, the tasks of traces) are therefore also stored as rows, each in its most compact
form; the views of `ipuscope.profiler.file.schema` unroll them. Our own reader never uses them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, fields
from itertools import count, repeat
from typing import Any

import numpy as np

from ipuscope.profiler.enums import Purpose
from ipuscope.profiler.file import records
from ipuscope.profiler.file.trace import step_kind, waits_as_syncs

Row = tuple[Any, ...]  # numbers of a table's row: there may be a million
Columns = Mapping[str, Sequence[Any]]  # of a record's rows, by name


_AT_ONCE = 256  # vectors whose runs are in memory together


def tile_runs(vectors: Sequence[tuple[int, Any]]) -> Iterator[Row]:
    """Runs of equal, non-zero bytes in vectors over tiles: rows of `records.TileRun`.

    ``vectors``: (id, values), in the order of their ids.
    """
    filled = sorted((id, np.asarray(values)) for id, values in vectors if len(values))
    for at in range(0, len(filled), _AT_ONCE):  # of a large model there are many millions
        some_ids, some = zip(*filled[at : at + _AT_ONCE], strict=True)
        lengths = [len(values) for values in some]
        values = np.concatenate(some)
        begins = np.cumsum(lengths) - lengths
        borders = np.append(True, values[1:] != values[:-1])
        borders[begins] = True
        first = np.flatnonzero(borders)
        last = np.append(first[1:], len(values)) - 1
        of = np.repeat(np.arange(len(some)), lengths)[first]
        nonzero = np.flatnonzero(values[first])
        first, last, of = first[nonzero], last[nonzero], of[nonzero]
        columns = (np.array(some_ids)[of], first - begins[of], last - begins[of], values[first])
        yield from zip(*(column.tolist() for column in columns), strict=True)


_VECTORS = ("tile_cycles", "bytes_in", "bytes_out")  # of a step


def activities(steps: Columns, columns: Columns, earlier: Earlier) -> Iterator[Row]:
    """Rows of `records.Activity` for ``steps`` with vectors that no earlier step has together.

    ``columns``: theirs, with ids of vectors.
    """
    firsts: dict[Row, int] = {}
    for at, ids in enumerate(zip(*(columns[name] for name in _VECTORS), strict=True)):
        firsts.setdefault(ids, at)
    for ids, at in firsts.items():
        if ids not in earlier.activities:
            earlier.activities.add(ids)
            vectors = (steps[name][at] for name in _VECTORS)
            yield *(-1 if id is None else id for id in ids), *activity(steps["id"][at], *vectors)


def activity(step: int, tile_cycles: Any, bytes_in: Any, bytes_out: Any) -> Row:
    """The columns of `records.Activity` after its key (an exchange's tiles receive or send)."""
    received, sent = (0 if of is None else int(np.sum(of)) for of in (bytes_in, bytes_out))
    if tile_cycles is not None:
        return *work(np.asarray(tile_cycles)), received, sent
    moves = [np.asarray(one) > 0 for one in (bytes_in, bytes_out) if one is not None]
    if len({len(one) for one in moves}) > 1:
        raise ValueError(f"step {step}: bytes in and out are of different numbers of tiles")
    moving = int(np.logical_or.reduce(moves).sum()) if moves else 0
    return moving, -1, -1, 1.0, 1.0, received, sent


def work(cycles: np.ndarray) -> tuple[int, int, int, float, float]:
    """How evenly tiles work, from cycles over tiles.

    The number of tiles that work, the cycles until the first and the last of them has finished, and
    the mean over the most work, of all tiles and of those that work.
    """
    busy = cycles[cycles > 0]
    most = int(cycles.max(initial=0))
    if not most:
        return 0, 0, 0, 1.0, 1.0
    return len(busy), int(busy.min()), most, float(cycles.mean() / most), float(busy.mean() / most)


def body_patterns(bodies: Iterable[records.Body], earlier: Earlier) -> tuple[list[Row], list[Row]]:
    """Rows of `records.BodyPattern`, and `records.PatternStep` of patterns that no earlier one has.

    A body that waits has an external sync.
    """
    of_bodies: list[Row] = []
    of_patterns: list[Row] = []
    for body in bodies:
        if body.id in earlier.waits and not len(body.steps) and body.ipu in earlier.external_sync:
            steps, starts = np.array([earlier.external_sync[body.ipu]]), np.zeros(1, np.int64)
        else:
            steps, starts = _columns(f"body {body.id}", body.steps, body.starts)
        first = int(steps[0]) if len(steps) else 0
        offsets = steps - first
        key = offsets.tobytes(), starts.tobytes()
        pattern = earlier.patterns.get(key)
        if pattern is None:
            pattern = earlier.patterns[key] = len(earlier.patterns)
            columns = offsets, starts, np.append(starts[1:], -1)
            of_patterns.extend(zip(repeat(pattern), count(), *(one.tolist() for one in columns)))
        of_bodies.append((body.id, pattern, first))
    return of_bodies, of_patterns


def tasks(trace: records.Trace, earlier: Earlier) -> list[Row]:
    """A trace's tasks as rows of `records.Task`, with waits as syncs (`trace.waits_as_syncs`)."""
    body, ipu, micro_batch, cycle, start, end = _columns(
        f"trace {trace.id}",
        trace.task_body,
        trace.task_ipu,
        trace.task_micro_batch,
        trace.task_pipeline_cycle,
        trace.task_start,
        trace.task_end,
    )
    stays, start, waited = _waits(body, ipu, start, end, earlier)
    of = body, ipu, micro_batch, cycle, start, end, waited
    steps = np.array([earlier.steps_of.get(one, 0) for one in body[stays].tolist()], dtype=np.int64)
    columns = np.flatnonzero(stays), np.cumsum(steps) - steps, steps, *(one[stays] for one in of)
    return list(zip(repeat(trace.id), *(column.tolist() for column in columns)))


def _waits(
    body: np.ndarray, ipu: np.ndarray, start: np.ndarray, end: np.ndarray, earlier: Earlier
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For each task, whether it stays, its start, and its cycles of waiting."""
    alone = np.flatnonzero(~np.isin(body, list(earlier.beside)))  # one after the other on an IPU
    alone = alone[np.lexsort((start[alone], ipu[alone]))]
    syncs = waits_as_syncs(
        ipu[alone],
        start[alone],
        end[alone],
        np.isin(body[alone], list(earlier.waits)),
        np.isin(body[alone], list(earlier.syncs)),
    )
    stays, waited = np.ones(len(body), dtype=bool), np.zeros(len(body), dtype=np.int64)
    start = start.copy()
    stays[alone], start[alone], waited[alone] = syncs.stays, syncs.start, syncs.waited
    return stays, start, waited


def _columns(what: str, *vectors: Any) -> list[np.ndarray]:
    columns = [np.asarray(vector, np.int64) for vector in vectors]
    if len({len(column) for column in columns}) > 1:
        raise ValueError(
            f"{what}: its vectors have {', '.join(str(len(column)) for column in columns)} entries"
        )
    return columns


@dataclass(slots=True)
class Earlier:
    """Facts about earlier rows that later rows need."""

    steps_of: dict[int, int] = field(default_factory=dict)  # body -> its steps
    # trace -> its iterations, their cycles and steps
    traces: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    executed: int = 0  # steps of the runs so far
    external_sync: dict[int, int] = field(default_factory=dict)  # IPU -> its first such step
    # bodies that are waits, that are external syncs, and that overlap the others
    waits: set[int] = field(default_factory=set)
    syncs: set[int] = field(default_factory=set)
    beside: set[int] = field(default_factory=set)
    patterns: dict[Any, int] = field(default_factory=dict)  # of bodies: offsets and starts -> id
    activities: set[Row] = field(default_factory=set)  # ids of vectors that steps have together

    def copy(self) -> Earlier:
        """An independent copy to return to after an error."""
        return Earlier(*(copy(getattr(self, one.name)) for one in fields(self)))

    def add(self, steps: Columns, bodies: Iterable[records.Body]) -> None:
        """Remember each IPU's first external sync, and each body's kind and number of steps.

        The sync of a body that waits is one of its steps.
        """
        of_steps = (steps.get(name, ()) for name in ("id", "ipu", "type", "purpose"))
        for id, ipu, type, purpose in zip(*of_steps, strict=True):
            if purpose == Purpose.EXTERNAL_SYNC and step_kind(type, purpose) == "external sync":
                self.external_sync.setdefault(ipu, id)
        for body in bodies:
            of_kind = {"idle": self.waits, "external sync": self.syncs, records.BESIDE: self.beside}
            if body.kind in of_kind:
                of_kind[body.kind].add(body.id)
            waits = body.kind == "idle" and body.ipu in self.external_sync
            self.steps_of[body.id] = len(body.steps) or int(waits)


def derived(
    of: Mapping[type[Any], list[Any]],
    cells: Mapping[type[Any], Columns],
    columns: Mapping[type[Any], Columns],
    earlier: Earlier,
) -> dict[type[Any], list[Row]]:
    """The plain rows to store beside records, by type; ``cells``: of their columns.

    ``columns``: the same with ids of vectors. Updates ``earlier``. Those of variables (`tile_runs`)
    are the writer's.
    """
    bodies, steps = of.get(records.Body, []), columns.get(records.Step, {})
    earlier.add(steps, bodies)
    of_bodies, of_patterns = body_patterns(bodies, earlier)
    tuples: dict[type[Any], list[Row]] = {
        records.Activity: list(activities(cells[records.Step], steps, earlier) if steps else ()),
        records.BodyPattern: of_bodies,
        records.PatternStep: of_patterns,
        records.Task: [],
        records.Iteration: [],
    }
    for trace in of.get(records.Trace, ()):
        added = tasks(trace, earlier)
        tuples[records.Task] += added
        executed = sum(added[-1][2:4]) if added else 0  # steps before the last task, and its own
        earlier.traces[trace.id] = trace.iterations, trace.iteration_cycles, executed
    for run in of.get(records.Run, ()):
        iterations, cycles, executed = earlier.traces.get(run.trace, (0, 0, 0))
        for i in range(iterations):
            begun = earlier.executed + i * executed, run.cycle_start + i * cycles
            tuples[records.Iteration].append((run.id, i, run.trace, *map(int, begun)))
        earlier.executed += iterations * executed
    return tuples
