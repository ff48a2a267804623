"""The runs of a profile as arrays: tasks and steps in time, per run and device iteration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ipuscope.profiler.enums import REMOTE, STREAMS
from ipuscope.profiler.file import integrity, records, trace
from ipuscope.profiler.file.bounds import rows_of
from ipuscope.profiler.file.trace import Bodies, Tasks
from ipuscope.profiler.lazy import cached, cached_property
from ipuscope.profiler.report.frames import looked_up, order_of, position_in, texts_of
from ipuscope.profiler.report.program import ProgramSequence
from ipuscope.profiler.report.tables import ProfileFile
from ipuscope.profiler.timeline.executed_steps import Executed, Named, Names, Spent, spent
from ipuscope.profiler.timeline.merged_bodies import Merged, merged

Ipus = Sequence[int] | np.ndarray
MAX_SLICES = 5_000_000  # of one frame: about 750 MB
_TASKS_AT_ONCE = 500  # whose steps are unrolled together
PREDICTED = "one call, predicted"  # the run of a profile that was only compiled
PREDICTED_NOTE = "Predicted: no call was profiled, so this is the compiled schedule of a call."


class Trace:
    """`Report.trace`: what the runs executed, and when."""

    def __init__(self, file: ProfileFile, sequence: ProgramSequence) -> None:
        self.file, self.sequence, self._lock = file, sequence, file.lock

    @cached_property
    def columns(self) -> Mapping[str, np.ndarray]:
        """Columns of the runs' table.

        A model that was only compiled has its schedule as its only run, starting at cycle 0: large
        models are too slow to compute here, and cycles do not depend on data.
        """
        if not self.predicted:
            return self.file.table(records.Run)
        trace, zero = self.file.table(records.Trace)["id"][:1], np.zeros(1, dtype=np.int64)
        name = np.array([PREDICTED], dtype=object)
        run = {"id": zero, "name": name, "trace": trace, "cycle_start": zero}
        return {**run, "host_start_us": zero, "host_end_us": zero}

    @cached_property
    def predicted(self) -> bool:
        """Whether no call was profiled; ``runs`` then has the one that the schedule predicts."""
        runs, traces = (self.file.table(one)["id"] for one in (records.Run, records.Trace))
        return not len(runs) and len(traces) > 0

    def step_count(
        self, run: int = 0, ipus: int | Ipus | None = None, iteration: int | None = None
    ) -> int:
        """The number of rows in `steps` of these IPUs (None: of all), which allows `MAX_SLICES`."""

        def make() -> int:
            tasks, times = self._tasks_of_iteration(run), len(self.iterations(run, iteration))
            body = tasks.body if ipus is None else tasks.body[np.isin(tasks.ipu, ipus)]
            return int(self.sequence.steps_of_bodies[body].sum()) * times

        some = None if ipus is None else tuple(np.atleast_1d(ipus).tolist())
        return self.file.keep(("step count", run, some, iteration), make)

    def executed(
        self,
        run: int = 0,
        ipus: Ipus | None = None,
        iteration: int | None = None,
        window: tuple[float, float] | None = None,
        finest: int = 0,
    ) -> Executed:
        """Executed steps as numbers, in the order of `steps`, much faster.

        ``ipus`` None: all. ``window``: only tasks that overlap these cycles, on the clock shared by
        all runs. ``finest``: steps of fewer cycles are merged with their neighbours (`merged`).
        """
        tasks = self.tasks(run, ipus, iteration)
        if window is not None and window != (-np.inf, np.inf):
            tasks = tasks.where((tasks.end > window[0]) & (tasks.start < window[1]))
        if finest <= 1:
            return Executed.of(tasks, self.slices(tasks), self._named)
        fewer = self.merged(finest)
        slices = self.slices(tasks, fewer.bodies)
        return Executed.of(tasks, slices, self._named.merged(fewer), finest)

    def executed_tasks(
        self, run: int = 0, ipus: Ipus | None = None, iteration: int | None = None
    ) -> Executed:
        """Tasks in the form of `executed`, named as their bodies, for when steps are too many."""
        tasks = self.tasks(run, ipus, iteration)
        kinds, kind = np.unique(self._body_kinds.astype(str), return_inverse=True)
        none = np.zeros(0, dtype=np.int64)
        names = Names(len(kind), lambda rows: self.file.names_at(records.Body, rows))
        named = Named(names, tuple(kinds.tolist()), none, none)
        columns = (tasks.ipu, np.full(len(tasks), -1), tasks.body, kind[tasks.body])
        return Executed(*columns, tasks.start, tasks.end, named)

    @cached
    def merged(self, finest: int) -> Merged:
        """`bodies_in_row` with the steps of fewer than ``finest`` cycles merged."""
        return merged(self.sequence.bodies_in_row, self._named.kind_of_entry, finest)

    def ipus_with_io(self, run: int = 0) -> np.ndarray:
        """The IPUs whose I/O tiles overlap their other work."""
        of_body = self.file.table(records.Body)["kind"] == records.BESIDE
        tasks = self._tasks_of_iteration(run)
        return np.unique(tasks.ipu[of_body[tasks.body]]) if of_body.any() else tasks.ipu[:0]

    def extent(
        self, run: int = 0, ipus: Ipus | None = None, iteration: int | None = None
    ) -> tuple[int, int]:
        """The first and the last cycle of the tasks of IPUs; (0, 0) without any."""
        iterations = self.iterations(run, iteration)
        tasks = self._tasks_of_iteration(run)
        of = slice(None) if ipus is None else np.isin(tasks.ipu, ipus)
        start, end = tasks.start[of], tasks.end[of]
        if not len(start) or not len(iterations):
            return 0, 0
        first, last = (self.offset(run, int(one)) for one in iterations[[0, -1]])
        return int(start.min()) + first, int(end.max()) + last

    def executed_count(
        self, run: int, ipus: Ipus | None, iteration: int | None, window: tuple[float, float]
    ) -> int:
        """The number of slices of `executed` in a window."""
        tasks = self.tasks(run, ipus, iteration)
        tasks = tasks.where((tasks.end > window[0]) & (tasks.start < window[1]))
        return trace.slice_count(tasks, self.sequence.bodies_in_row)

    def spent(
        self,
        run: int = 0,
        ipus: Ipus | None = None,
        iteration: int | None = None,
        window: tuple[float, float] = (-np.inf, np.inf),
    ) -> Spent:
        """Cycles of the executed steps of IPUs between two cycles, exactly, by step and kind.

        Without overlapped work of I/O tiles. Arguments as for `executed`.
        """
        tasks, bodies = self.tasks(run, ipus, iteration), self.sequence.bodies_in_row
        try:
            return spent(tasks, bodies, self._named, *window, without=records.BESIDES)
        except ValueError as error:
            raise self.file.reader.damaged(str(error)) from error

    @cached_property
    def _body_kinds(self) -> np.ndarray:
        """The kinds of bodies, where streaming memory has its own: object[body]."""
        body = self.file.table(records.Body)
        streams = np.isin(body["task"].astype(str), STREAMS)
        beside = body["kind"] == records.BESIDE
        names = np.where(beside, records.STREAMING_BESIDE, records.STREAMING)
        return np.where(streams, names, body["kind"])

    @cached_property
    def _named(self) -> Named:
        """What bodies run: steps, then bodies, which name their waits."""
        body, step = self.file.table(records.Body), self.sequence.columns
        bodies = self.sequence.bodies_in_row
        at = np.repeat(np.arange(len(bodies.count)), bodies.count)
        steps = len(step["id"])
        row = self.rows_or_damaged(bodies.step, step["id"], "a body has the step")
        own = steps + at
        whole, beside = body["kind"] != "task", body["kind"] == records.BESIDE
        kind_of_step, kinds = self.sequence.coded_kinds
        places = {name: place for place, name in enumerate(kinds)}
        purpose, purposes = step.coded("purpose")
        streams = np.isin(purposes.astype(str), REMOTE)[purpose]
        if streams.any():
            place = places.setdefault(records.STREAMING, len(places))
            kind_of_step = np.where(streams, place, kind_of_step)
        of_body = np.where(whole, self._body_kinds, "compute").tolist()
        kind_of_body = np.array([places.setdefault(name, len(places)) for name in of_body])
        kind = np.concatenate([kind_of_step, kind_of_body]).astype(np.int64)
        what = np.where(bodies.step < 0, own, row)

        def names(some: np.ndarray) -> np.ndarray:
            texts, of_steps = np.empty(len(some), dtype=object), some < steps
            texts[of_steps] = self.file.names_at(records.Step, some[of_steps])
            texts[~of_steps] = body["name"][some[~of_steps] - steps]
            return texts

        return Named(
            Names(steps + len(body["id"]), names),
            tuple(places),
            what,
            kind[np.where(beside[at] if len(at) else False, own, what)],
        )

    def cycles_by_kind(self, tasks: Tasks) -> np.ndarray:
        """Cycles of each IPU by `records.KINDS`, equal tasks unrolled once: int64[ipu, kind]."""
        spent = np.zeros((self.file.target.num_ipus, len(records.KINDS)), dtype=np.int64)
        if not len(tasks):
            return spent
        number = {kind: at for at, kind in enumerate(records.KINDS)}
        number[records.STREAMING] = number["host I/O"]
        places = np.array([number.get(kind, -1) for kind in self._named.kinds])
        of_entry = places[self._named.kind_of_entry]
        every, times_of_every = trace.distinct(tasks)
        for some in np.array_split(np.arange(len(every)), -(-len(every) // _TASKS_AT_ONCE)):
            distinct, times = every.where(some), times_of_every[some]
            slices = self.slices(distinct)
            kind, task = of_entry[slices.entry], slices.task
            cycles = (slices.end - slices.start) * times[task]
            own = kind >= 0
            np.add.at(spent, (distinct.ipu[task][own], kind[own]), cycles[own])
        return spent

    def schedule(self) -> tuple[Tasks, trace.Slices, np.ndarray] | None:
        """Tasks of a call (one for all of equal body and duration), their slices, and their counts.

        From the first run or, if the model was only compiled, from the predicted run. Times are
        those of the first of each. None without a trace.
        """
        stored = self.file.table(records.Trace)
        if not len(stored["id"]):
            return None
        at = self.trace_of(0) if len(self.file.table(records.Run)["id"]) else 0
        tasks = self._tasks_of_trace(at)
        if not len(tasks):
            return None
        distinct, times = trace.distinct(tasks)
        return distinct, self.slices(distinct), times * int(stored["iterations"][at])

    def trace_of(self, run: int) -> int:
        """Row of the traces' table that a run executed."""
        runs = self.columns
        if not 0 <= run < len(runs["id"]):
            runs_of = (
                f"holds runs 0 to {len(runs['id']) - 1}" if len(runs["id"]) else "holds no run"
            )
            raise IndexError(f"{self.file.path} {runs_of}, not run {run}")
        at = position_in(self.file.table(records.Trace)["id"], int(runs["trace"][run]))
        if at is None:
            raise self.file.reader.damaged(f"the trace of run {run} is missing")
        return at

    def iterations(self, run: int, iteration: int | None) -> np.ndarray:
        """The device iterations of a run, or the one; IndexError if the run has no such."""
        count = int(self.file.table(records.Trace)["iterations"][self.trace_of(run)])
        if not 0 <= count <= MAX_SLICES:
            raise self.file.reader.damaged(f"run {run} cannot have {count} device iterations")
        if iteration is None:
            return np.arange(count)
        if not 0 <= iteration < count:
            raise IndexError(
                f"run {run} of {self.file.path} has device iterations 0 to {count - 1},"
                f" not {iteration}"
            )
        return np.array([iteration])

    def offset(self, run: int, iteration: int) -> int:
        """The cycle at which a device iteration starts, on the clock shared by all runs."""
        cycles = int(self.file.table(records.Trace)["iteration_cycles"][self.trace_of(run)])
        return int(self.columns["cycle_start"][run]) + int(iteration) * cycles

    def tasks(self, run: int, ipus: int | Ipus | None, iteration: int | None) -> Tasks:
        """The tasks that IPUs ran, by iteration, IPU and start; bodies are rows of their table."""
        one = self._tasks_of_iteration(run)
        iterations = self.iterations(run, iteration)
        if ipus is not None:
            one = one.where(np.flatnonzero(np.isin(one.ipu, ipus)))
        self._check_size(len(one) * len(iterations))
        cycles = int(self.file.table(records.Trace)["iteration_cycles"][self.trace_of(run)])
        return one.repeated(iterations, cycles, self.offset(run, 0))

    def _tasks_of_iteration(self, run: int) -> Tasks:
        """The tasks of the first device iteration, from cycle 0."""
        return self._tasks_of_trace(self.trace_of(run))

    @cached
    def _tasks_of_trace(self, at: int) -> Tasks:
        """The device iteration in a row of the traces' table, from cycle 0, by IPU and start.

        Bodies are rows of their table.
        """
        stored = self.file.table(records.Trace)
        what = f"the trace {stored['id'][at]}"
        names = ("pipeline_cycle", "ipu", "body", "micro_batch", "start", "end")
        vectors = self.file.reader.vectors(stored[f"task_{name}"][at] for name in names)
        columns = {name: vectors[int(stored[f"task_{name}"][at])] for name in names}
        size = len(columns["start"])
        if any(len(values) != size for values in columns.values()):
            raise self.file.reader.damaged(f"{what} has columns of different lengths")
        body = self.file.table(records.Body)["id"]
        some_body = f"{what} has the body"
        columns["body"] = self.rows_or_damaged(columns["body"], body, some_body, waits=False)
        body_ipu = self.file.table(records.Body)["ipu"][columns["body"]]
        wrong = integrity.of_tasks(columns, body_ipu, self.file.context)
        self.file.sound(wrong and f"{what}: {wrong}")
        order = order_of(columns["ipu"], columns["start"])
        rows = slice(None) if order is None else order
        return Tasks(np.zeros(size, dtype=np.int64), *(columns[name][rows] for name in names))

    def rows_or_damaged(
        self, ids: np.ndarray, keys: np.ndarray, what: str, waits: bool = True
    ) -> np.ndarray:
        """Rows of ``keys`` with these ids, 0 for negative ids of ``waits``; else `ProfileError`."""
        rows = rows_of(ids, keys)
        wrong = (rows < 0) & ~((ids < 0) & waits)
        if wrong.any():
            raise self.file.reader.damaged(f"{what} {ids[wrong][0]}, which is missing")
        return np.maximum(rows, 0)

    def slices(self, tasks: Tasks, bodies: Bodies | None = None) -> trace.Slices:
        """The steps of tasks in time; ValueError beyond `MAX_SLICES`."""
        bodies = bodies or self.sequence.bodies_in_row
        self._check_size(trace.slice_count(tasks, bodies))
        try:
            return trace.slices(tasks, bodies)
        except ValueError as error:
            raise self.file.reader.damaged(str(error)) from error

    def _check_size(self, rows: int) -> None:
        if rows > MAX_SLICES:
            raise ValueError(
                f"{rows} rows are too many for one frame: choose one iteration, or one ipu"
            )

    def task_columns(
        self, run: int, tasks: Tasks, rows: np.ndarray | None = None
    ) -> dict[str, Any]:
        """Columns of the tasks, or of rows derived from them."""
        at = np.arange(len(tasks)) if rows is None else rows
        body, phase = tasks.body[at], self.phases(run, tasks)
        columns = self.file.table(records.Body)
        return {
            "iteration": tasks.iteration[at],
            "pipeline_cycle": tasks.pipeline_cycle[at],
            "phase": texts_of(np.array([*records.PHASES, ""], dtype=object), phase[at]),
            "ipu": tasks.ipu[at],
            "body": columns["id"][body],
            "stage": columns["stage"][body],
            "direction": texts_of(columns["direction"], body),
            "micro_batch": tasks.micro_batch[at],
        }

    def phases(self, run: int, tasks: Tasks) -> np.ndarray:
        """The phase of each task: its position in `records.PHASES`, or their number for none."""
        none = len(records.PHASES)
        if not len(tasks) or not len(self.pipeline_rows(run)):
            return np.full(len(tasks), none)
        position, code = self._phases_of(run)
        return looked_up(tasks.pipeline_cycle, position, code, none)

    @cached
    def _phases_of(self, run: int) -> tuple[np.ndarray, np.ndarray]:
        """Positions of a run's pipeline cycles, and each one's index in `records.PHASES`."""
        cycle, rows = self.file.table(records.PipelineCycle), self.pipeline_rows(run)
        codes = {name: i for i, name in enumerate(records.PHASES)}
        code = np.array([codes.get(name, len(codes)) for name in cycle["phase"][rows].tolist()])
        return cycle["position"][rows], code

    @cached
    def pipeline_rows(self, run: int) -> np.ndarray:
        """Rows of a run's pipeline cycles in their table, by position."""
        cycle = self.file.table(records.PipelineCycle)
        at = self.file.table(records.Trace)["id"][self.trace_of(run)]
        rows = np.flatnonzero(cycle["trace"] == at)
        rows = rows[np.argsort(cycle["position"][rows], kind="stable")]
        self.file.sound(integrity.of_run(run, len(rows), self.file.meta["complete"]))
        return rows
