"""The runs of a profile: tasks and steps in time, per run and device iteration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ipuscope.profiler.file import integrity, records, trace
from ipuscope.profiler.file.trace import Bodies, Tasks
from ipuscope.profiler.lazy import cached_property
from ipuscope.profiler.report.frames import (
    columns_without,
    frame_of,
    looked_up,
    position_in,
    some_columns,
    texts_of,
)
from ipuscope.profiler.report.program import ReportProgram
from ipuscope.profiler.timeline.executed_steps import Executed, Named, Names, Spent, spent
from ipuscope.profiler.timeline.merged_bodies import Merged, merged

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow

Ipus = Sequence[int] | np.ndarray
MAX_SLICES = 5_000_000  # of one frame: about 750 MB
BATCH = 500_000  # of one Arrow batch
PREDICTED = "one call, predicted"  # the run of a profile that was only compiled
PREDICTED_NOTE = "Predicted: no call was profiled; this is the compiled schedule of one."


class ReportRuns(ReportProgram):
    """A report's runs."""

    @cached_property
    def _run_columns(self) -> Mapping[str, np.ndarray]:
        """Columns of the runs' table.

        A model that was only compiled has its schedule as its only run, starting at cycle 0: large
        models are too slow to compute here, and cycles do not depend on data.
        """
        if not self.predicted:
            return self._table(records.Run)
        trace, zero = self._table(records.Trace)["id"][:1], np.zeros(1, dtype=np.int64)
        name = np.array([PREDICTED], dtype=object)
        run = {"id": zero, "name": name, "trace": trace, "cycle_start": zero}
        return {**run, "host_start_us": zero, "host_end_us": zero}

    @cached_property
    def runs(self) -> pd.DataFrame:
        """Profiled calls; ``start`` and ``end`` are on the clock shared by all runs.

        For a model that was only compiled, the call that its schedule predicts (``predicted``).
        """
        run, stored = self._run_columns, self._table(records.Trace)
        missing = ~np.isin(run["trace"], stored["id"])
        if missing.any():
            raise self._reader.damaged(f"the trace of run {missing.argmax()} is missing")
        iterations = looked_up(run["trace"], stored["id"], stored["iterations"], 0)
        cycles = iterations * looked_up(run["trace"], stored["id"], stored["iteration_cycles"], 0)
        return frame_of(
            {
                "run": np.arange(len(run["id"])),
                "name": run["name"],
                "iterations": iterations,
                "start": run["cycle_start"],
                "end": run["cycle_start"] + cycles,
                "cycles": cycles,
                "host_start_us": run["host_start_us"],
                "host_end_us": run["host_end_us"],
                "predicted": np.full(len(run["id"]), self.predicted),
            }
        )

    @cached_property
    def host_events(self) -> pd.DataFrame:
        """Events on the host, sorted by start.

        ``event, parent, process, thread, channel, label, start_us, end_us``. ``parent`` is the
        enclosing event, or -1. Times are on the clock of the runs' ``host_start_us``.
        """
        columns = self._table(records.HostEvent)
        order = np.lexsort((-columns["end_us"], columns["start_us"]))
        columns_in_order = {name: values[order] for name, values in columns.items()}
        return frame_of(
            {"event": columns_in_order["id"], **columns_without(columns_in_order, "id")}
        )

    @cached_property
    def host_values(self) -> pd.DataFrame:
        """Values over time on the host: ``process, graph, series, unit, time_us, value``."""
        return frame_of(columns_without(self._table(records.HostValue), "id"))

    def pipeline_cycles(self, run: int = 0, iteration: int = 0) -> pd.DataFrame:
        """Pipeline cycles of a device iteration, on the clock shared by all runs."""

        def make() -> pd.DataFrame:
            at = self._trace_of(run)
            offset = self._offset(run, self._iterations(run, iteration)[0])
            cycle = self._table(records.PipelineCycle)
            rows = np.flatnonzero(cycle["trace"] == self._table(records.Trace)["id"][at])
            rows = rows[np.argsort(cycle["position"][rows], kind="stable")]
            self._sound(integrity.of_run(run, len(rows), self.meta["complete"]))
            start, end = cycle["start"][rows] + offset, cycle["end"][rows] + offset
            return frame_of(
                {
                    "position": cycle["position"][rows],
                    "phase": cycle["phase"][rows],
                    "start": start,
                    "end": end,
                    "cycles": end - start,
                    "slowest_ipu": cycle["slowest_ipu"][rows],
                }
            )

        return self._keep(("pipeline_cycles", run, iteration), make)

    def tasks(
        self, run: int = 0, ipu: int | None = None, iteration: int | None = None
    ) -> pd.DataFrame:
        """Executed tasks, one per body that ran, sorted by iteration, IPU and start."""

        def make() -> pd.DataFrame:
            tasks = self._tasks(run, ipu, iteration)
            columns = self._task_columns(run, tasks)
            body = self._table(records.Body)
            return frame_of(
                {
                    **some_columns(columns, "iteration", "pipeline_cycle", "phase", "ipu", "body"),
                    "name": texts_of(body["name"], tasks.body),
                    "kind": texts_of(body["kind"], tasks.body),
                    "task": texts_of(body["task"], tasks.body),
                    **some_columns(columns, "direction", "stage", "micro_batch"),
                    "start": tasks.start,
                    "end": tasks.end,
                    "cycles": tasks.end - tasks.start,
                },
                copy=False,
            )

        return self._remember(("tasks", run, ipu, iteration), make)

    def step_count(
        self, run: int = 0, ipus: int | Ipus | None = None, iteration: int | None = None
    ) -> int:
        """The number of rows in `steps` of these IPUs (None: of all), which allows `MAX_SLICES`."""

        def make() -> int:
            tasks, times = self._tasks_of_iteration(run), len(self._iterations(run, iteration))
            body = tasks.body if ipus is None else tasks.body[np.isin(tasks.ipu, ipus)]
            return int(self._steps_of_bodies[body].sum()) * times

        some = None if ipus is None else tuple(np.atleast_1d(ipus).tolist())
        return self._keep(("step count", run, some, iteration), make)

    def steps(
        self, run: int = 0, ipu: int | None = None, iteration: int | None = None
    ) -> pd.DataFrame:
        """Executed steps, sorted by iteration, IPU and start; ``step`` is -1 for waits."""
        key = "steps", run, ipu, iteration
        return self._remember(key, lambda: self._steps_of(run, self._tasks(run, ipu, iteration)))

    def _steps_of(self, run: int, tasks: Tasks) -> pd.DataFrame:
        slices = self._slices(tasks)
        task, step_ids = slices.task, slices.step
        columns = self._task_columns(run, tasks, task)
        body, step, op = self._table(records.Body), self._steps, self._table(records.Op)
        # One list of texts and ids for both: a slice has those of its step, or else its body.
        steps, row = len(step["id"]), self._rows_of(step_ids, step["id"], "a body has the step")
        what = np.where(step_ids < 0, steps + tasks.body[task], row)
        whole = body["kind"] != "task"
        kind_of_body = np.where(whole, body["kind"], "compute").astype(object)
        uniform = (whole[tasks.body] if len(whole) else np.zeros(0, dtype=bool))[task]
        kind = np.where(uniform, steps + tasks.body[task], what)
        none = np.full(len(body["id"]), -1)
        op_of = np.concatenate([step["op"], none])
        block_of = np.concatenate([looked_up(step["op"], op["id"], op["block"], -1), none])
        no_text = np.full(len(none), "", dtype=object)
        return frame_of(
            {
                **columns,
                "step": step_ids,
                "op": op_of[what],
                "block": block_of[what],
                "kind": texts_of(np.concatenate([self._step_kinds, kind_of_body]), kind),
                "type": texts_of(np.concatenate([step["type"], no_text]), what),
                "name": texts_of(np.concatenate([step["name"], body["name"]]), what),
                "start": slices.start,
                "end": slices.end,
                "cycles": slices.end - slices.start,
            },
            copy=False,
        )

    def iter_steps(
        self, run: int = 0, ipu: int | None = None, iteration: int | None = None
    ) -> Iterator[pyarrow.RecordBatch]:
        """`steps` of any number, as Arrow batches in their order, each of one device iteration.

        A batch has about `BATCH` rows, or those of one task. ImportError without pyarrow.
        """
        import pyarrow

        for one in self._iterations(run, iteration).tolist():
            tasks = self._tasks(run, ipu, one)
            part = np.cumsum(self._steps_of_bodies[tasks.body]) // BATCH
            for number in np.unique(part):
                frame = self._steps_of(run, tasks.where(part == number))
                yield pyarrow.RecordBatch.from_pandas(frame, preserve_index=False)

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
        tasks = self._tasks(run, ipus, iteration)
        if window is not None and window != (-np.inf, np.inf):
            tasks = tasks.where((tasks.end > window[0]) & (tasks.start < window[1]))
        if finest <= 1:
            return Executed.of(tasks, self._slices(tasks), self._named)
        fewer = self.merged(finest)
        slices = self._slices(tasks, fewer.bodies)
        return Executed.of(tasks, slices, self._named.merged(fewer), finest)

    def executed_tasks(
        self, run: int = 0, ipus: Ipus | None = None, iteration: int | None = None
    ) -> Executed:
        """Tasks in the form of `executed`, named as their bodies, for when steps are too many."""
        tasks, body = self._tasks(run, ipus, iteration), self._table(records.Body)
        kind, kinds = body.coded("kind")
        none = np.zeros(0, dtype=np.int64)
        names = Names(len(kind), lambda rows: self.names_at(records.Body, rows))
        named = Named(names, tuple(kinds.tolist()), none, none)
        columns = (tasks.ipu, np.full(len(tasks), -1), tasks.body, kind[tasks.body])
        return Executed(*columns, tasks.start, tasks.end, named)

    def merged(self, finest: int) -> Merged:
        """`bodies_in_row` with the steps of fewer than ``finest`` cycles merged."""
        kind = self._named.kind_of_entry
        return self._keep(("merged", finest), lambda: merged(self.bodies_in_row, kind, finest))

    def ipus_with_io(self, run: int = 0) -> np.ndarray:
        """The IPUs whose I/O tiles overlap their other work."""
        of_body = self._table(records.Body)["kind"] == records.BESIDE
        tasks = self._tasks_of_iteration(run)
        return np.unique(tasks.ipu[of_body[tasks.body]]) if of_body.any() else tasks.ipu[:0]

    def extent(
        self, run: int = 0, ipus: Ipus | None = None, iteration: int | None = None
    ) -> tuple[int, int]:
        """The first and the last cycle of the tasks of IPUs; (0, 0) without any."""
        iterations = self._iterations(run, iteration)
        tasks = self._tasks_of_iteration(run)
        of = slice(None) if ipus is None else np.isin(tasks.ipu, ipus)
        start, end = tasks.start[of], tasks.end[of]
        if not len(start) or not len(iterations):
            return 0, 0
        first, last = (self._offset(run, int(one)) for one in iterations[[0, -1]])
        return int(start.min()) + first, int(end.max()) + last

    def executed_count(
        self,
        run: int,
        ipus: Ipus | None,
        iteration: int | None,
        window: tuple[float, float],
    ) -> int:
        """The number of slices of `executed` in a window."""
        tasks = self._tasks(run, ipus, iteration)
        tasks = tasks.where((tasks.end > window[0]) & (tasks.start < window[1]))
        return trace.slice_count(tasks, self.bodies_in_row)

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
        tasks = self._tasks(run, ipus, iteration)
        try:
            return spent(tasks, self.bodies_in_row, self._named, *window, without=records.BESIDE)
        except ValueError as error:
            raise self._reader.damaged(str(error)) from error

    @cached_property
    def _named(self) -> Named:
        """What bodies run: steps, then bodies, which name their waits."""
        body, step, bodies = self._table(records.Body), self._steps, self.bodies_in_row
        at = np.repeat(np.arange(len(bodies.count)), bodies.count)
        steps = len(step["id"])
        row = self._rows_of(bodies.step, step["id"], "a body has the step")
        own = steps + at
        whole, beside = body["kind"] != "task", body["kind"] == records.BESIDE
        kind_of_step, kinds = self._kinds_of_steps
        places = {name: place for place, name in enumerate(kinds)}
        of_body = np.where(whole, body["kind"], "compute").tolist()
        kind_of_body = np.array([places.setdefault(name, len(places)) for name in of_body])
        kind = np.concatenate([kind_of_step, kind_of_body]).astype(np.int64)
        what = np.where(bodies.step < 0, own, row)

        def names(some: np.ndarray) -> np.ndarray:
            texts, of_steps = np.empty(len(some), dtype=object), some < steps
            texts[of_steps] = self.names_at(records.Step, some[of_steps])
            texts[~of_steps] = body["name"][some[~of_steps] - steps]
            return texts

        return Named(
            Names(steps + len(body["id"]), names),
            tuple(places),
            what,
            kind[np.where(beside[at] if len(at) else False, own, what)],
        )

    def cycle_proportions(self, run: int = 0) -> pd.DataFrame:
        """``ipu``, its cycles by `records.KINDS` over the whole run, and their ``total``."""

        def make() -> pd.DataFrame:
            iterations = len(self._iterations(run, None))
            ipus = np.arange(self.target.num_ipus)
            spent = self._cycles_by_kind(self._tasks(run, None, 0)) * iterations
            columns = {kind: spent[:, at] for at, kind in enumerate(records.KINDS)}
            return frame_of({"ipu": ipus, **columns, "total": spent.sum(axis=1)})

        return self._keep(("cycle_proportions", run), make)

    def _cycles_by_kind(self, tasks: Tasks) -> np.ndarray:
        """Cycles of each IPU by `records.KINDS`, equal tasks unrolled once: int64[ipu, kind]."""
        spent = np.zeros((self.target.num_ipus, len(records.KINDS)), dtype=np.int64)
        if not len(tasks):
            return spent
        distinct, times = trace.distinct(tasks)
        slices = self._slices(distinct)
        task, step = slices.task, slices.step
        body, steps = self._table(records.Body), self._steps
        number = {kind: at for at, kind in enumerate(records.KINDS)}
        of_step = np.array([number.get(kind, -1) for kind in self._step_kinds], dtype=np.int64)
        of_body = np.array(
            [number.get("compute" if kind == "task" else kind, -1) for kind in body["kind"]]
        )
        whole = (body["kind"] == records.BESIDE)[distinct.body[task]]
        own = of_body[distinct.body[task]]
        row = self._rows_of(step, steps["id"], "a body has the step")
        theirs = of_step[row] if len(of_step) else own
        kind = np.where(whole | (step < 0), own, theirs)
        cycles = (slices.end - slices.start) * times[task]
        own = kind >= 0
        np.add.at(spent, (distinct.ipu[task][own], kind[own]), cycles[own])
        return spent

    def schedule(self) -> tuple[Tasks, trace.Slices, np.ndarray] | None:
        """Tasks of a call (one for all of equal body and duration), their slices, and their counts.

        From the first run or, if the model was only compiled, from the predicted run. Times are
        those of the first of each. None without a trace.
        """
        stored = self._table(records.Trace)
        if not len(stored["id"]):
            return None
        at = self._trace_of(0) if len(self._table(records.Run)["id"]) else 0
        tasks = self._keep(("trace", at), lambda: self._tasks_of_trace(at))
        if not len(tasks):
            return None
        distinct, times = trace.distinct(tasks)
        return distinct, self._slices(distinct), times * int(stored["iterations"][at])

    def _trace_of(self, run: int) -> int:
        """Row of the traces' table that a run executed."""
        runs = self._run_columns
        if not 0 <= run < len(runs["id"]):
            runs_of = (
                f"holds runs 0 to {len(runs['id']) - 1}" if len(runs["id"]) else "holds no run"
            )
            raise IndexError(f"{self.path} {runs_of}, not run {run}")
        at = position_in(self._table(records.Trace)["id"], int(runs["trace"][run]))
        if at is None:
            raise self._reader.damaged(f"the trace of run {run} is missing")
        return at

    def _iterations(self, run: int, iteration: int | None) -> np.ndarray:
        count = int(self._table(records.Trace)["iterations"][self._trace_of(run)])
        if not 0 <= count <= MAX_SLICES:
            raise self._reader.damaged(f"run {run} cannot have {count} device iterations")
        if iteration is None:
            return np.arange(count)
        if not 0 <= iteration < count:
            raise IndexError(
                f"run {run} of {self.path} has device iterations 0 to {count - 1}, not {iteration}"
            )
        return np.array([iteration])

    def _offset(self, run: int, iteration: int) -> int:
        cycles = int(self._table(records.Trace)["iteration_cycles"][self._trace_of(run)])
        return int(self._run_columns["cycle_start"][run]) + int(iteration) * cycles

    def _tasks(self, run: int, ipus: int | Ipus | None, iteration: int | None) -> Tasks:
        one = self._tasks_of_iteration(run)
        iterations = self._iterations(run, iteration)
        if ipus is not None:
            one = one.where(np.flatnonzero(np.isin(one.ipu, ipus)))
        self._check_size(len(one) * len(iterations))
        cycles = int(self._table(records.Trace)["iteration_cycles"][self._trace_of(run)])
        return one.repeated(iterations, cycles, self._offset(run, 0))

    def _tasks_of_iteration(self, run: int) -> Tasks:
        """The tasks of the first device iteration, from cycle 0."""
        at = self._trace_of(run)
        return self._keep(("trace", at), lambda: self._tasks_of_trace(at))

    def _tasks_of_trace(self, at: int) -> Tasks:
        """The device iteration in a row of the traces' table, from cycle 0, by IPU and start.

        Bodies are rows of their table.
        """
        stored = self._table(records.Trace)
        what = f"the trace {stored['id'][at]}"
        names = ("pipeline_cycle", "ipu", "body", "micro_batch", "start", "end")
        vectors = self._reader.vectors(stored[f"task_{name}"][at] for name in names)
        columns = {name: vectors[int(stored[f"task_{name}"][at])] for name in names}
        size = len(columns["start"])
        if any(len(values) != size for values in columns.values()):
            raise self._reader.damaged(f"{what} has columns of different lengths")
        body = self._table(records.Body)["id"]
        columns["body"] = self._rows_of(columns["body"], body, f"{what} has the body", waits=False)
        body_ipu = self._table(records.Body)["ipu"][columns["body"]]
        wrong = integrity.of_tasks(columns, body_ipu, self._context)
        self._sound(wrong and f"{what}: {wrong}")
        order = np.lexsort((columns["start"], columns["ipu"]))
        return Tasks(np.zeros(size, dtype=np.int64), *(columns[name][order] for name in names))

    def _rows_of(
        self, ids: np.ndarray, keys: np.ndarray, what: str, waits: bool = True
    ) -> np.ndarray:
        """Rows of ``keys`` with these ids, 0 for negative ids of ``waits``; else `ProfileError`."""
        rows = looked_up(ids, keys, np.arange(len(keys)), -1)
        wrong = (rows < 0) & ~((ids < 0) & waits)
        if wrong.any():
            raise self._reader.damaged(f"{what} {ids[wrong][0]}, which is missing")
        return np.maximum(rows, 0)

    def _slices(self, tasks: Tasks, bodies: Bodies | None = None) -> trace.Slices:
        bodies = bodies or self.bodies_in_row
        self._check_size(trace.slice_count(tasks, bodies))
        try:
            return trace.slices(tasks, bodies)
        except ValueError as error:
            raise self._reader.damaged(str(error)) from error

    def _check_size(self, rows: int) -> None:
        if rows > MAX_SLICES:
            raise ValueError(
                f"{rows} rows are too many for one frame: choose one iteration, or one ipu"
            )

    def _task_columns(
        self, run: int, tasks: Tasks, rows: np.ndarray | None = None
    ) -> dict[str, Any]:
        """Columns of the tasks, or of rows derived from them."""
        at = np.arange(len(tasks)) if rows is None else rows
        body = tasks.body[at]
        phase = np.full(len(tasks), len(records.PHASES))
        if len(tasks) and len(self.pipeline_cycles(run)):
            position, code = self._keep(("phases", run), lambda: self._phases_of(run))
            phase = looked_up(tasks.pipeline_cycle, position, code, len(records.PHASES))
        columns = self._table(records.Body)
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

    def _phases_of(self, run: int) -> tuple[np.ndarray, np.ndarray]:
        """Positions of a run's pipeline cycles, and each one's index in `records.PHASES`."""
        cycles = self.pipeline_cycles(run)
        codes = {name: i for i, name in enumerate(records.PHASES)}
        code = np.array([codes.get(name, len(codes)) for name in cycles["phase"].tolist()])
        return cycles["position"].to_numpy(), code
