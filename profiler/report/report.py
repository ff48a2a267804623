"""`Report`: answers a profile's questions as pandas frames (docs/architecture.md lists them).

Opening reads the header; each frame is read on first use and cached. A returned frame is the
report's own: copy it before changing it. pandas is imported with the first frame, so that `import
profiler` stays light. What frames are made of, as numpy arrays, is in the four facets.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from ipuscope.profiler.file import integrity, records
from ipuscope.profiler.file.trace import Tasks
from ipuscope.profiler.lazy import cached, cached_property, recent
from ipuscope.profiler.report.frames import (
    bounds_of,
    columns_without,
    frame_columns,
    frame_of,
    frame_of_rows,
    looked_up,
    position_in,
    some_columns,
    texts_of,
)
from ipuscope.profiler.report.memory import Usage
from ipuscope.profiler.report.program import VECTORS_OF_STEPS, ProgramSequence
from ipuscope.profiler.report.runs import Trace
from ipuscope.profiler.report.tables import DAMAGED, ProfileFile
from ipuscope.profiler.timeline.liveness import resampled

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow

BATCH = 500_000  # of one Arrow batch
_OF_PROFILE = re.compile(r"(ipu-report \w+ )PROFILE\b")
# Columns of steps that are read together.
_FRAME_OF_STEPS = (
    *("id", "ipu", "position", "program", "body", "op", "name", "cycles"),
    *("tile_cycles", "bytes_in", "bytes_out", "tensor"),
)
_STEPS_IN_ORDER = (
    *("step", "ipu", "position", "name", "type", "kind", "purpose", "tensor", "direction"),
    *("stage", "block", "op", "cycles", "program"),
)


class Report:
    """An open profile. It is a context manager, and threads may share it.

    ``file`` reads its tables; on it, ``sequence`` has the program's steps, ``usage`` the memory and
    ``trace`` the runs.
    """

    # Displays of a report are above it, and put themselves here when they are imported.
    in_html: ClassVar[Callable[[Report], str]] = repr
    drawn: ClassVar[Callable[[Report], Any] | None] = None
    _opens: type[ProfileFile] = ProfileFile

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.file = self._opens(path)
        self.path: Path = self.file.path
        self.sequence = ProgramSequence(self.file)
        self.usage = Usage(self.file, self.sequence)
        self.trace = Trace(self.file, self.sequence)
        self._lock = self.file.lock

    def close(self) -> None:
        """Close the file; frames that were already read remain usable."""
        self.file.reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Report({str(self.path)!r})"

    @property
    def argument(self) -> str:
        """The profile in a shell's command: its directory, or its file if that has another name."""
        path = self.path
        return shlex.quote(str(path.parent if path.name == "profile.pop" else path))

    def with_path(self, words: str) -> str:
        """The words, in whose commands ``ipu-report ... PROFILE`` is this one.

        Answers about a profile serve its copies (`ipuscope.profiler.answers`): none has a path.
        """
        return _OF_PROFILE.sub(lambda command: command[1] + self.argument, words)

    @property
    def figures(self) -> Any:
        """The viewer's plotly figures of this report: `ipuscope.viewer.figures.of_report.Figures`.

        AttributeError unless `ipuscope.viewer`, which draws them, is imported.
        """
        draw = type(self).drawn
        if draw is None:
            raise AttributeError("the viewer draws the figures: import ipuscope.viewer first")
        return draw(self)

    def _repr_html_(self) -> str:
        """The report in a notebook."""
        return type(self).in_html(self)

    @property
    def meta(self) -> dict[str, Any]:
        """The header. For an unfinished run, ``warnings`` says what is missing from the file."""
        return self.file.meta

    @property
    def target(self) -> records.Target:
        """The modelled machine."""
        return self.file.target

    @property
    def options(self) -> dict[str, Any]:
        """The run's settings: a dict from dotted name to value."""
        return self.file.options

    @property
    def predicted(self) -> bool:
        """Whether no call was profiled; ``runs`` then has the one that the schedule predicts."""
        return self.trace.predicted

    @cached_property
    def stages(self) -> pd.DataFrame:
        """Stages: IPU, Blocks, cycles per micro-batch, memory; ``share``: of the slowest stage."""
        return frame_of(self.stage_columns)

    @cached_property
    def stage_columns(self) -> dict[str, np.ndarray]:
        """`stages` as arrays."""
        stage, block = self.file.table(records.Stage), self.file.table(records.Block)
        cycles = stage["forward_cycles"] + stage["backward_cycles"]
        names = [", ".join(block["name"][block["stage"] == id]) for id in stage["id"]]
        spent = (f"{one}_cycles" for one in ("forward", "backward", "recompute", "update"))
        return {
            "stage": stage["id"],
            "ipu": stage["ipu"],
            "blocks": np.array(names, dtype=object),
            **some_columns(stage, *spent),
            "cycles": cycles,
            "share": cycles / max(1, cycles.max(initial=0)),
            **some_columns(stage, "stash_depth", "stash_bytes", "weight_bytes", "copy_bytes"),
        }

    @cached_property
    def blocks(self) -> pd.DataFrame:
        """Blocks of the model and the cost of a micro-batch in each."""
        columns = self.file.table(records.Block)
        return frame_of({"block": columns["id"], **columns_without(columns, "id")})

    @cached_property
    def ops(self) -> pd.DataFrame:
        """Operators by id, with ``block_name``."""
        columns = self.file.table(records.Op)
        block = self.file.table(records.Block)
        names = looked_up(columns["block"], block["id"], block["name"], "")
        return frame_of(
            {**frame_columns(columns, [*columns][1:]), "block_name": names}, index=columns["id"]
        )

    @property
    def imported(self) -> bool:
        """Whether ``ipu-report import`` wrote it: no micro-batches, Blocks or pipeline cycles."""
        return bool(self.meta.get("strategy") == "imported")

    @property
    def notes(self) -> list[str]:
        """What every reader of the profile has to know: the header's warnings, and damage."""
        return [*map(str, self.meta["warnings"]), *([DAMAGED] if self.file.damaged else [])]

    @cached_property
    def program(self) -> pd.DataFrame:
        """The program tree, depth-first. Raises `ProfileError` if it is not a tree."""
        columns, order = self.file.table(records.Program), self.sequence.tree
        return frame_of({name: values[order] for name, values in columns.items()})

    @cached_property
    def bodies(self) -> pd.DataFrame:
        """Pieces of program that run as a unit; ``steps`` is their number of steps."""
        columns = self.file.table(records.Body)
        steps, _ = self.sequence.body_vectors
        count = np.array([len(ids) for ids in steps], dtype=np.int64)
        return frame_of(
            body=columns["id"],
            **columns_without(columns, "id", "starts", "steps"),
            steps=count,
        )

    @cached
    def program_steps(self, ipu: int | None = None) -> pd.DataFrame:
        """Program steps by IPU and position.

        ``cycles`` are those of one execution, ``times`` is how often its body runs a step (more
        than once in a loop). ``bytes_in``/``bytes_out`` are sums over tiles, ``tile_balance`` the
        mean over the maximum of all tiles' cycles (docs/libpva.md#execution), NaN without cycles of
        tiles.
        """
        frame = self._program_steps
        return frame if ipu is None else frame[frame["ipu"] == ipu].reset_index(drop=True)

    def steps_as_run(self, ipu: int | None = None) -> pd.DataFrame:
        """`program_steps` with each step as often as its body runs it, for sums over a body."""
        steps = self.program_steps(ipu)
        if (steps["times"] == 1).all():
            return steps
        return steps.loc[steps.index.repeat(steps["times"])].reset_index(drop=True)

    @cached_property
    def _program_steps(self) -> pd.DataFrame:
        steps = self.sequence
        steps.columns.read(*_FRAME_OF_STEPS)
        cycles, received, sent = (steps.in_order(steps.columns[name]) for name in VECTORS_OF_STEPS)
        total, largest, busy = steps.sums_of_steps(cycles)
        bytes_in, _, receivers = steps.sums_of_steps(received)
        bytes_out, _, senders = steps.sums_of_steps(sent)
        self.file.sound(integrity.of_sums("program_steps", total, bytes_in, bytes_out))
        with np.errstate(divide="ignore", invalid="ignore"):
            busy_share = np.where(largest > 0, total / (self.file.tile_count * largest), 1.0)
            balance = np.where(cycles < 0, np.nan, busy_share)
        return frame_of(
            **{name: self._of_steps(name) for name in _STEPS_IN_ORDER},
            bytes_in=bytes_in,
            bytes_out=bytes_out,
            active_tiles=np.where(cycles < 0, np.maximum(receivers, senders), busy),
            tile_balance=balance,
            times=steps.steps_in_order("times"),
        )

    def _of_steps(self, name: str) -> Any:
        """A column of `program_steps`; texts that recur are made once each."""
        if name not in ("type", "kind", "purpose", "direction"):
            return self.sequence.steps_in_order(name)
        code, texts = self.sequence.coded_in_order(name)
        return texts_of(np.array([*texts, ""], dtype=object), code)

    def _position_of(self, step: int) -> int:
        at = position_in(self.sequence.columns["id"], step)
        if at is None:
            raise KeyError(f"no program step {step} in {self.path}")
        return at

    def vertices(self, step: int) -> pd.DataFrame:
        """Vertices of a step's compute set, by type; bytes of code and state are over all tiles."""
        at = self._position_of(step)
        use, types = self.file.table(records.VertexUse), self.file.table(records.VertexType)
        compute_set = self.sequence.columns["compute_set"][at]
        here = np.flatnonzero((use["compute_set"] == compute_set) & (compute_set >= 0))
        count, _, tiles = self.file.vector_sums(use["count"][here])
        kind = use["vertex_type"][here]
        frame = frame_of(
            vertex_type=looked_up(kind, types["id"], types["name"], "unknown"),
            count=count,
            tiles=tiles,
            code_bytes=tiles * looked_up(kind, types["id"], types["code_bytes"], 0),
            state_bytes=count * looked_up(kind, types["id"], types["state_bytes"], 0),
        )
        return frame.sort_values("count", ascending=False, ignore_index=True)

    def tile_vertices(self, ipu: int, tile: int) -> pd.DataFrame:
        """Vertices on one tile, by type.

        ``vertex_type, compute_sets, count, state_bytes``, sorted by state, largest first.
        """
        use, types, steps = (
            self.file.table(records.VertexUse),
            self.file.table(records.VertexType),
            self.sequence.columns,
        )
        if not 0 <= tile < self.file.tile_count:
            raise IndexError(f"an IPU has tiles 0 to {self.file.tile_count - 1}, not {tile}")
        here = np.unique(steps["compute_set"][(steps["ipu"] == ipu) & (steps["compute_set"] >= 0)])
        rows = np.flatnonzero(np.isin(use["compute_set"], here))
        vectors = self.file.over_tiles(np.unique(use["count"][rows]))
        count = np.array([vectors[id][tile] for id in use["count"][rows].tolist()], dtype=np.int64)
        kind = use["vertex_type"][rows][count > 0]
        unique, which = np.unique(kind, return_inverse=True)
        number = np.bincount(which, weights=count[count > 0], minlength=len(unique)).astype(
            np.int64
        )
        frame = frame_of(
            vertex_type=looked_up(unique, types["id"], types["name"], "unknown"),
            compute_sets=np.bincount(which, minlength=len(unique)),
            count=number,
            state_bytes=number * looked_up(unique, types["id"], types["state_bytes"], 0),
        )
        return frame.sort_values("state_bytes", ascending=False, ignore_index=True)

    def step_tiles(self, step: int) -> dict[str, np.ndarray | None]:
        """``cycles``, ``bytes_in``, ``bytes_out`` of a step (by id) per tile; None if missing."""
        at = self._position_of(step)
        ids = {name: int(self.sequence.columns[name][at]) for name in VECTORS_OF_STEPS}
        return {
            name.removeprefix("tile_"): None if id < 0 else self.file.vector(id)
            for name, id in ids.items()
        }

    @cached_property
    def variables(self) -> pd.DataFrame:
        """Variables by id; a variable is live at the steps with ``start <= position < stop``."""
        columns = self.file.table(records.Variable)
        return frame_of(columns_without(columns, "id", "tile_bytes"), index=columns["id"])

    @cached
    def tiles(self, ipu: int) -> pd.DataFrame:
        """Bytes per tile, as defined by `ipuscope.profiler.timeline.tile_usage.tile_totals`."""
        return frame_of(self.usage.tile_columns(ipu))

    @cached
    def memory(self, ipu: int | None = None) -> pd.DataFrame:
        """Bytes by category and role, largest first.

        Counts the always-live variables and, of the others, those live at the step where the IPU is
        fullest; ``bytes`` add up to that peak.
        """
        ipus = range(self.target.ipus_per_replica) if ipu is None else [ipu]
        rows = [(i, *row) for i in ipus for row in self.usage.by_kind(i)]
        return frame_of_rows(rows, ipu=int, category=str, role=str, bytes=int, max_tile_bytes=int)

    @cached
    def liveness(self, ipu: int) -> pd.DataFrame:
        """Bytes live at each program step of an IPU, over all tiles and on the fullest; no gaps."""
        steps = self.sequence.steps_of_ipu(ipu, "position", "name", "op", "block", "direction")
        return frame_of({**steps, **self.usage.live_columns(ipu)})

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
        self.file.check_ipu(ipu)
        first, last = bounds_of(steps, int(self.sequence.steps_of_ipus[ipu]), "steps")
        left, right = bounds_of(tiles, self.file.tile_count, "tiles")
        if shape is not None and min(shape) < 1:
            raise ValueError(f"shape must be at least (1, 1), not {shape}")

        def make() -> np.ndarray:
            variables, here = self.usage.ipu_variables(ipu), slice(left, right)
            always = variables.always()[here] if what == "total" else None
            size = shape or (last - first, right - left)
            return resampled(variables.intervals.on_tiles(here), first, last, size, always)

        key = "liveness_map", ipu, first, last, left, right, shape, what
        return self.file.remember(key, make)

    def live_variables(self, ipu: int, step: int, tile: int | None = None) -> pd.DataFrame:
        """Variables live at a step (by position), largest first; bytes on a tile (None: on all)."""
        which, size = self.usage.live_at(ipu, step, tile)
        columns = {name: values[which] for name, values in self.usage.variables_of(ipu).items()}
        return frame_of(
            variable=columns["id"],
            name=self.file.names_of(records.Variable, columns["id"]),
            **some_columns(columns, "category", "role", "op", "block"),
            bytes=size,
        )

    @cached_property
    def runs(self) -> pd.DataFrame:
        """Profiled calls; ``start`` and ``end`` are on the clock shared by all runs.

        For a model that was only compiled, the call that its schedule predicts (``predicted``).
        """
        return frame_of(self.run_columns)

    @cached_property
    def run_columns(self) -> dict[str, np.ndarray]:
        """`runs` as arrays."""
        run, stored = self.trace.columns, self.file.table(records.Trace)
        missing = ~np.isin(run["trace"], stored["id"])
        if missing.any():
            raise self.file.reader.damaged(f"the trace of run {missing.argmax()} is missing")
        iterations = looked_up(run["trace"], stored["id"], stored["iterations"], 0)
        cycles = iterations * looked_up(run["trace"], stored["id"], stored["iteration_cycles"], 0)
        return {
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

    @cached_property
    def host_events(self) -> pd.DataFrame:
        """Events on the host, sorted by start.

        ``event, parent, process, thread, channel, label, start_us, end_us``. ``parent`` is the
        enclosing event, or -1. Times are on the clock of the runs' ``host_start_us``.
        """
        columns = self.file.table(records.HostEvent)
        order = np.lexsort((-columns["end_us"], columns["start_us"]))
        columns_in_order = {name: values[order] for name, values in columns.items()}
        return frame_of(
            {"event": columns_in_order["id"], **columns_without(columns_in_order, "id")}
        )

    @cached_property
    def host_values(self) -> pd.DataFrame:
        """Values over time on the host: ``process, graph, series, unit, time_us, value``."""
        return frame_of(columns_without(self.file.table(records.HostValue), "id"))

    @cached
    def pipeline_cycles(self, run: int = 0, iteration: int = 0) -> pd.DataFrame:
        """Pipeline cycles of a device iteration, on the clock shared by all runs."""
        offset = self.trace.offset(run, self.trace.iterations(run, iteration)[0])
        cycle, rows = self.file.table(records.PipelineCycle), self.trace.pipeline_rows(run)
        start, end = cycle["start"][rows] + offset, cycle["end"][rows] + offset
        return frame_of(
            position=cycle["position"][rows],
            phase=cycle["phase"][rows],
            start=start,
            end=end,
            cycles=end - start,
            slowest_ipu=cycle["slowest_ipu"][rows],
        )

    @recent
    def tasks(
        self, run: int = 0, ipu: int | None = None, iteration: int | None = None
    ) -> pd.DataFrame:
        """Executed tasks, one per body that ran, sorted by iteration, IPU and start."""
        tasks = self.trace.tasks(run, ipu, iteration)
        columns = self.trace.task_columns(run, tasks)
        body = self.file.table(records.Body)
        return frame_of(
            **some_columns(columns, "iteration", "pipeline_cycle", "phase", "ipu", "body"),
            name=texts_of(body["name"], tasks.body),
            kind=texts_of(body["kind"], tasks.body),
            task=texts_of(body["task"], tasks.body),
            **some_columns(columns, "direction", "stage", "micro_batch"),
            start=tasks.start,
            end=tasks.end,
            cycles=tasks.end - tasks.start,
            copy=False,
        )

    @recent
    def steps(
        self, run: int = 0, ipu: int | None = None, iteration: int | None = None
    ) -> pd.DataFrame:
        """Executed steps, sorted by iteration, IPU and start; ``step`` is -1 for waits."""
        return self._steps_of(run, self.trace.tasks(run, ipu, iteration))

    def _steps_of(self, run: int, tasks: Tasks) -> pd.DataFrame:
        slices = self.trace.slices(tasks)
        task, step_ids = slices.task, slices.step
        columns = self.trace.task_columns(run, tasks, task)
        body, op = self.file.table(records.Body), self.file.table(records.Op)
        step, row_of = self.sequence.columns, self.trace.rows_or_damaged
        # One list of texts and ids for both: a slice has those of its step, or else its body.
        steps, row = len(step["id"]), row_of(step_ids, step["id"], "a body has the step")
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
            **columns,
            step=step_ids,
            op=op_of[what],
            block=block_of[what],
            kind=texts_of(np.concatenate([self.sequence.kinds, kind_of_body]), kind),
            type=texts_of(np.concatenate([step["type"], no_text]), what),
            name=texts_of(np.concatenate([step["name"], body["name"]]), what),
            start=slices.start,
            end=slices.end,
            cycles=slices.end - slices.start,
            copy=False,
        )

    def iter_steps(
        self, run: int = 0, ipu: int | None = None, iteration: int | None = None
    ) -> Iterator[pyarrow.RecordBatch]:
        """`steps` of any number, as Arrow batches in their order, each of one device iteration.

        A batch has about `BATCH` rows, or those of one task. ImportError without pyarrow.
        """
        import pyarrow

        for one in self.trace.iterations(run, iteration).tolist():
            tasks = self.trace.tasks(run, ipu, one)
            part = np.cumsum(self.sequence.steps_of_bodies[tasks.body]) // BATCH
            for number in np.unique(part):
                frame = self._steps_of(run, tasks.where(part == number))
                yield pyarrow.RecordBatch.from_pandas(frame, preserve_index=False)

    @cached
    def cycle_proportions(self, run: int = 0) -> pd.DataFrame:
        """``ipu``, its cycles by `records.KINDS` over the whole run, and their ``total``."""
        return frame_of(self.proportion_columns(run))

    def proportion_columns(self, run: int = 0) -> dict[str, np.ndarray]:
        """`cycle_proportions` as arrays."""
        iterations = len(self.trace.iterations(run, None))
        spent = self.trace.cycles_by_kind(self.trace.tasks(run, None, 0)) * iterations
        columns = {kind: spent[:, at] for at, kind in enumerate(records.KINDS)}
        return {"ipu": np.arange(len(spent)), **columns, "total": spent.sum(axis=1)}
