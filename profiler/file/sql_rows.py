"""Vectors as rows, for plain SQL and for SQL written for the vendor's files.

SQL cannot open compressed vectors. The few that queries need (bytes of variables on tiles, the
steps of bodies, the tasks of traces) are therefore also stored as rows, each in its most compact
form; the views of `ipuscope.profiler.file.schema` unroll them. Our own reader never uses them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count, repeat
from operator import index
from typing import Any

import numpy as np

from ipuscope.profiler.file import records
from ipuscope.profiler.file.trace import step_kind, waits_as_syncs

Row = tuple[Any, ...]  # numbers of a table's row: there may be a million


def tile_runs(vectors: Sequence[tuple[int, Any]]) -> Iterator[Row]:
    """Runs of equal, non-zero bytes in vectors over tiles: rows of `records.TileRun`.

    ``vectors``: (id, values), in the order of their ids.
    """
    filled = sorted((id, np.asarray(values)) for id, values in vectors if len(values))
    if not filled:
        return
    lengths = [len(values) for _, values in filled]
    values = np.concatenate([values for _, values in filled])
    begins = np.cumsum(lengths) - lengths
    borders = np.append(True, values[1:] != values[:-1])
    borders[begins] = True
    first = np.flatnonzero(borders)
    last = np.append(first[1:], len(values)) - 1
    of = np.repeat(np.arange(len(filled)), lengths)[first]
    nonzero = np.flatnonzero(values[first])
    first, last, of = first[nonzero], last[nonzero], of[nonzero]
    ids = np.array([id for id, _ in filled])
    columns = (ids[of], first - begins[of], last - begins[of], values[first])
    yield from zip(*(column.tolist() for column in columns), strict=True)


def step_activity(steps: Iterable[records.Step]) -> Iterator[Row]:
    """Activity of each step from its vectors over tiles (an exchange's: that receive or send)."""
    # The rows keep their arrays alive: the same object is the same content.
    activity: dict[int, tuple[int, int, int, float, float]] = {}
    totals: dict[int, int] = {id(None): 0}
    moving: dict[tuple[int, int], int] = {}
    for step in steps:
        cycles = step.tile_cycles
        for moved in (step.bytes_in, step.bytes_out):
            if moved is not None and id(moved) not in totals:
                totals[id(moved)] = int(np.sum(moved))
        received, sent = totals[id(step.bytes_in)], totals[id(step.bytes_out)]
        number, lasts = index(step.id), index(step.cycles)
        if cycles is not None:
            if id(cycles) not in activity:
                activity[id(cycles)] = work(np.asarray(cycles))
            active, first, last, balance, of_active = activity[id(cycles)]
        else:
            both = id(step.bytes_in), id(step.bytes_out)
            if both not in moving:
                moving[both] = _moving_tiles(step)
            active = moving[both]
            first, last, balance, of_active = lasts, lasts, 1.0, 1.0
        yield number, active, first, last, balance, of_active, received, sent


def _moving_tiles(step: records.Step) -> int:
    moves = [np.asarray(one) > 0 for one in (step.bytes_in, step.bytes_out) if one is not None]
    if len({len(one) for one in moves}) > 1:
        raise ValueError(f"step {step.id}: bytes in and out are of different numbers of tiles")
    return int(np.logical_or.reduce(moves).sum()) if moves else 0


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


def body_steps(bodies: Iterable[records.Body], earlier: Earlier) -> Iterator[Row]:
    """The steps of each body in order, rows of `records.BodyStep`; a wait is an external sync."""
    for body in bodies:
        steps, starts = _columns(f"body {body.id}", body.steps, body.starts)
        if body.id in earlier.waits and not steps and body.ipu in earlier.external_sync:
            steps, starts = [earlier.external_sync[body.ipu]], [0]
        stops = [*starts[1:], -1][: len(starts)]
        yield from zip(repeat(body.id), count(), steps, starts, stops)


def tasks(trace: records.Trace, earlier: Earlier) -> Iterator[Row]:
    """A trace's tasks as rows of `records.Task`, with waits as syncs (`trace.waits_as_syncs`)."""
    columns = _columns(
        f"trace {trace.id}",
        trace.task_body,
        trace.task_ipu,
        trace.task_micro_batch,
        trace.task_pipeline_cycle,
        trace.task_start,
        trace.task_end,
    )
    stays, starts, waited = _waits(columns, earlier)
    columns[4] = starts
    first = 0
    for position, row in enumerate(zip(*columns, waited, strict=True)):
        if not stays[position]:
            continue
        steps = earlier.steps_of.get(row[0], 0)
        yield trace.id, position, first, steps, *row
        first += steps


def _waits(columns: list[list[int]], earlier: Earlier) -> tuple[list[bool], list[int], list[int]]:
    """For each task, whether it stays, its start, and its cycles of waiting."""
    body, ipu, _, _, start, end = (np.array(column, dtype=np.int64) for column in columns)
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
    stays[alone], start[alone], waited[alone] = syncs.stays, syncs.start, syncs.waited
    return stays.tolist(), start.tolist(), waited.tolist()


def _columns(what: str, *vectors: Any) -> list[list[int]]:
    columns: list[list[int]] = [np.asarray(vector, np.int64).tolist() for vector in vectors]
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

    def copy(self) -> Earlier:
        """An independent copy to return to after an error."""
        return Earlier(
            dict(self.steps_of),
            dict(self.traces),
            self.executed,
            dict(self.external_sync),
            set(self.waits),
            set(self.syncs),
            set(self.beside),
        )

    def add_steps(self, steps: Iterable[records.Step]) -> None:
        """Remember the first external sync of each IPU."""
        for step in steps:
            if step_kind(step.type, step.purpose) == "external sync":
                self.external_sync.setdefault(step.ipu, step.id)

    def add_bodies(self, bodies: Iterable[records.Body]) -> None:
        """Remember the kind and number of steps of each body, a wait's sync included."""
        for body in bodies:
            of_kind = {"idle": self.waits, "external sync": self.syncs, records.BESIDE: self.beside}
            if body.kind in of_kind:
                of_kind[body.kind].add(body.id)
            waits = body.kind == "idle" and body.ipu in self.external_sync
            self.steps_of[body.id] = len(body.steps) or int(waits)


@dataclass(frozen=True, slots=True)
class Derived:
    """What is stored beside rows: records, and for large tables their rows as tuples."""

    records: list[Any]
    tuples: dict[type[Any], list[Row]]


NOTHING = Derived([], {})  # for a profile without plain rows


def derived(rows: Iterable[Any], earlier: Earlier) -> Derived:
    """The plain rows to store beside ``rows``, except those of variables; updates ``earlier``.

    Only the writer has the ids of variables' vectors.
    """
    of: dict[type[Any], list[Any]] = {}
    for row in rows:
        of.setdefault(type(row), []).append(row)
    bodies, program_steps = of.get(records.Body, []), of.get(records.Step, [])
    earlier.add_steps(program_steps)
    earlier.add_bodies(bodies)
    plain_rows: list[Any] = []
    tuples: dict[type[Any], list[Row]] = {
        records.StepActivity: list(step_activity(program_steps)),
        records.BodyStep: list(body_steps(bodies, earlier)),
        records.Task: [],
    }
    for trace in of.get(records.Trace, ()):
        added = list(tasks(trace, earlier))
        tuples[records.Task] += added
        _, _, first, steps = added[-1][:4] if added else (0, 0, 0, 0)
        earlier.traces[trace.id] = trace.iterations, trace.iteration_cycles, first + steps
    for run in of.get(records.Run, ()):
        iterations, cycles, steps = earlier.traces.get(run.trace, (0, 0, 0))
        for i in range(iterations):
            start = run.cycle_start + i * cycles
            plain_rows.append(
                records.Iteration(run.id, i, run.trace, earlier.executed + i * steps, start)
            )
        earlier.executed += iterations * steps
    return Derived(plain_rows, tuples)
