"""`Report`: answers a profile's questions as pandas frames (docs/architecture.md lists them).

Opening reads the header; each frame is read on first use and cached. A returned frame is the
report's own: copy it before changing it. pandas is imported with the first frame, so that `import
profiler` stays light.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

import numpy as np

from ipuscope.profiler.file import from_json, integrity, records, seal, trace
from ipuscope.profiler.file.bounds import MOST_MICRO_BATCHES, Known
from ipuscope.profiler.file.columns import Check, Columns, among
from ipuscope.profiler.file.lock import is_being_written
from ipuscope.profiler.file.reader import Reader
from ipuscope.profiler.file.trace import Bodies, Tasks
from ipuscope.profiler.lazy import cached_property
from ipuscope.profiler.timeline import liveness
from ipuscope.profiler.timeline.executed_steps import Executed, Named, Names, Spent, spent
from ipuscope.profiler.timeline.liveness import Peaks, Totals, resampled
from ipuscope.profiler.timeline.merged_bodies import Merged, merged
from ipuscope.profiler.timeline.tile_usage import (
    IpuVariables,
    by_kind,
    tile_totals,
)

if TYPE_CHECKING:
    import pandas as pd

T = TypeVar("T")
Ipus = Sequence[int] | np.ndarray

DAMAGED = (
    "Bytes of this file have changed since it was written, and not by SQLite: any answer may be"
    " wrong. ipu-report doctor says what it finds; run the model again"
)
MAX_SLICES = 5_000_000  # of one frame: about 750 MB
# Columns of steps and variables that are asked for together.
_FRAME_OF_STEPS = (
    *("id", "ipu", "position", "program", "body", "op", "type", "name", "cycles"),
    *("tile_cycles", "bytes_in", "bytes_out", "purpose", "tensor"),
)
_STEPS_IN_ORDER = (
    *("step", "ipu", "position", "name", "type", "kind", "purpose", "tensor", "direction"),
    *("stage", "block", "op", "cycles", "program"),
)
_VECTORS_OF_STEPS = ("tile_cycles", "bytes_in", "bytes_out")
_MEMORY_OF_VARIABLES = (
    *("id", "ipu", "category", "role", "tile_bytes", "interleaved", "always_live"),
    *("start", "stop"),
)
_OF_VARIABLES = (
    *("id", "op", "block", "always_live", "start", "stop", "interleaved", "category", "role"),
)
_FEW_NAMES, _FEW_OF_NAMES = 4000, 8  # that are read one by one, or an eighth: all take as long
_KEPT_FRAMES = 4  # frames of slices, which may be large
PREDICTED = "one call, predicted"  # the run of a profile that was only compiled
PREDICTED_NOTE = "Predicted: no call was profiled; this is the compiled schedule of one."
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


def open_report(path: str | os.PathLike[str]) -> Report:
    """Open a ``profile.pop``, a ``profile.pop.partial`` or a directory that contains one.

    Raises `ProfileError` if there is none, or none in a format this version reads.
    """
    return Report(path)


def number(said: Mapping[str, Any], key: str, default: float) -> float:
    """Return an entry of a profile's header or options if it is a number that can be.

    The file may come from an untrusted source.
    """
    value = said.get(key, default)
    known = isinstance(value, (int, float)) and not isinstance(value, bool)
    return value if known and 0 <= value <= MOST_MICRO_BATCHES else default


class Report:
    """An open profile. It is a context manager and may be used from several threads."""

    _opens: type[Reader] = Reader
    # What shows a report is above it, and puts itself here when it is imported.
    in_html: ClassVar[Callable[[Report], str]] = repr
    drawn: ClassVar[Callable[[Report], Any] | None] = None

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._reader = self._opens(path)
        self.path: Path = self._reader.path
        # One lock, for columns and properties too: with several, who has one of them and who has
        # another wait for each other for ever.
        self._lock = threading.RLock()
        self._seal: Future[seal.State] | None = None
        self._columns: dict[type[Any], Columns] = {}
        self._kept: dict[Any, Any] = {}
        self._names_asked: dict[type[Any], int] = {}
        self._recent: OrderedDict[Any, Any] = OrderedDict()

    def close(self) -> None:
        """Close the file; frames that were already read remain usable."""
        self._reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def figures(self) -> Any:
        """The viewer's plotly figures of this report: `ipuscope.viewer.figures.of_report.Figures`.

        Raises AttributeError unless `ipuscope.viewer` is imported, which draws them.
        """
        draw = type(self).drawn
        if draw is None:
            raise AttributeError("the viewer draws the figures: import ipuscope.viewer first")
        return draw(self)

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return type(self).in_html(self)

    def __repr__(self) -> str:
        return f"Report({str(self.path)!r})"

    # -- the run ---

    @cached_property
    def meta(self) -> dict[str, Any]:
        """The header. For an unfinished run, ``warnings`` says what is missing from the file."""
        meta: dict[str, Any] = {**_META, **self._reader.meta}
        self._sound(integrity.of_header(meta))
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
        """Whether the run goes on or was ended, and what is missing."""
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
        missing = [name for name, record in parts.items() if not self._reader.count(record)]
        return (
            f": it has no {', '.join(missing)}{yet}"
            if missing
            else "; what it has may be only a part"
        )

    @cached_property
    def target(self) -> records.Target:
        """The modelled machine."""
        columns = self._table(records.Target)
        return records.Target(**{name: values.item() for name, values in columns.items()})

    @cached_property
    def options(self) -> dict[str, Any]:
        """The run's settings: a dict from dotted name to value."""
        columns = self._table(records.Option)
        try:
            return {
                name: from_json.loads(value)
                for name, value in zip(columns["name"], columns["value"], strict=True)
            }
        except ValueError as error:
            raise self._reader.damaged(f"an option's value is no JSON ({error})") from error

    # -- stages, blocks, operators ---

    @cached_property
    def stages(self) -> pd.DataFrame:
        """Stages: IPU, Blocks, cycles per micro-batch, memory.

        ``share`` is relative to the slowest stage's cycles.
        """
        stage, block = self._table(records.Stage), self._table(records.Block)
        cycles = stage["forward_cycles"] + stage["backward_cycles"]
        names = [", ".join(block["name"][block["stage"] == id]) for id in stage["id"]]
        return _frame(
            {
                "stage": stage["id"],
                "ipu": stage["ipu"],
                "blocks": np.array(names, dtype=object),
                "forward_cycles": stage["forward_cycles"],
                "backward_cycles": stage["backward_cycles"],
                "recompute_cycles": stage["recompute_cycles"],
                "update_cycles": stage["update_cycles"],
                "cycles": cycles,
                "share": cycles / max(1, cycles.max(initial=0)),
                "stash_depth": stage["stash_depth"],
                "stash_bytes": stage["stash_bytes"],
                "weight_bytes": stage["weight_bytes"],
                "copy_bytes": stage["copy_bytes"],
            }
        )

    @cached_property
    def blocks(self) -> pd.DataFrame:
        """Blocks of the model and the cost of a micro-batch in each."""
        columns = self._table(records.Block)
        return _frame({"block": columns["id"], **_without(columns, "id")})

    @cached_property
    def ops(self) -> pd.DataFrame:
        """Operators by id, with ``block_name``."""
        columns = self._table(records.Op)
        block = self._table(records.Block)
        names = _lookup(columns["block"], block["id"], block["name"], "")
        return _frame({**_without(columns, "id"), "block_name": names}, index=columns["id"])

    # -- the program ---

    @cached_property
    def program(self) -> pd.DataFrame:
        """The program tree, depth-first. Raises `ProfileError` if it is not a tree."""
        columns = self._table(records.Program)
        order = _depth_first(columns["id"], columns["parent"], columns["position"])
        if order is None:
            raise self._reader.damaged("the program tree has a cycle or a parent that is not there")
        return _frame({name: values[order] for name, values in columns.items()})

    @cached_property
    def bodies(self) -> pd.DataFrame:
        """Pieces of program that run as a unit; ``steps`` is their number of steps."""
        columns = self._table(records.Body)
        steps, _ = self._body_vectors
        count = np.array([len(ids) for ids in steps], dtype=np.int64)
        return _frame(
            {"body": columns["id"], **_without(columns, "id", "starts", "steps"), "steps": count}
        )

    def program_steps(self, ipu: int | None = None) -> pd.DataFrame:
        """Program steps by IPU and position.

        ``cycles`` are those of one execution, ``times`` says how often its body runs a step: those
        of a loop several times. ``bytes_in``/``bytes_out`` are sums over tiles, ``tile_balance``
        the mean over the maximum of all tiles' cycles (docs/libpva.md#execution), NaN where no
        tile's cycles are known.
        """
        return self._keep(("program_steps", ipu), lambda: self._of_ipu(self._program_steps, ipu))

    def steps_as_run(self, ipu: int | None = None) -> pd.DataFrame:
        """`program_steps` with each step as often as its body runs it, for sums over a body."""
        steps = self.program_steps(ipu)
        if (steps["times"] == 1).all():
            return steps
        return steps.loc[steps.index.repeat(steps["times"])].reset_index(drop=True)

    @cached_property
    def _program_steps(self) -> pd.DataFrame:
        self._steps.read(*_FRAME_OF_STEPS)
        cycles, received, sent = (
            self._in_order(self._steps[name]) for name in ("tile_cycles", "bytes_in", "bytes_out")
        )
        total, largest, busy = self._sums_of_steps(cycles)
        bytes_in, _, receivers = self._sums_of_steps(received)
        bytes_out, _, senders = self._sums_of_steps(sent)
        self._sound(integrity.of_sums("program_steps", total, bytes_in, bytes_out))
        with np.errstate(divide="ignore", invalid="ignore"):
            balance = np.where(
                cycles < 0, np.nan, np.where(largest > 0, total / (self._tiles * largest), 1.0)
            )
        return _frame(
            {
                **{name: self.steps_in_order(name) for name in _STEPS_IN_ORDER},
                "bytes_in": bytes_in,
                "bytes_out": bytes_out,
                "active_tiles": np.where(cycles < 0, np.maximum(receivers, senders), busy),
                "tile_balance": balance,
                "times": self.steps_in_order("times"),
            }
        )

    def steps_in_order(self, name: str) -> np.ndarray:
        """One column of `program_steps` that needs no sums over tiles; only that column is read."""
        return self._keep(("steps in order", name), lambda: self._in_order(self._step_column(name)))

    def steps_with(self, name: str, *words: str) -> np.ndarray:
        """Which steps have one of these texts in such a column: `steps_in_order` of it, compared.

        Many times as quick: the texts are compared once each, not for each step.
        """

        def make() -> np.ndarray:
            if name == "kind":
                chosen = among(words, *self._kinds_of_steps)
            elif name == "direction":
                body = self._table(records.Body)
                of_body = body.equals(name, *words)
                chosen = _lookup(self._steps["body"], body["id"], of_body, False)
            else:
                chosen = self._steps.equals(name, *words)
            return self._in_order(chosen)

        return self._keep(("steps with", name, words), make)

    def steps_of_ipu(self, ipu: int, *names: str) -> dict[str, np.ndarray]:
        """`steps_in_order` of one IPU: several columns by name, of its steps by position."""
        self._check_ipu(ipu)
        end = int(self.steps_of_ipus[: ipu + 1].sum())
        here = slice(end - int(self.steps_of_ipus[ipu]), end)
        return {name: self.steps_in_order(name)[here] for name in names}

    def activity_of_steps(self, ipu: int) -> tuple[np.ndarray, np.ndarray]:
        """Active tiles of each of an IPU's steps, and the bytes that they send together."""
        columns = self.steps_of_ipu(ipu, *_VECTORS_OF_STEPS)
        cycles, received, sent = (columns[name] for name in _VECTORS_OF_STEPS)
        bytes_out, _, senders = self._sums_of_steps(sent)
        _, _, receivers = self._sums_of_steps(received)
        _, _, busy = self._sums_of_steps(cycles)
        self._sound(integrity.of_sums("program_steps", bytes_out))
        return np.where(cycles < 0, np.maximum(receivers, senders), busy), bytes_out

    def _in_order(self, of_steps: np.ndarray) -> np.ndarray:
        order = self._program_order
        return of_steps if order is None else of_steps[order]

    def _step_column(self, name: str) -> np.ndarray:
        """Column of the steps' table, in the order of the table."""
        step = self._steps
        if name == "kind":
            return self._step_kinds
        if name == "block":
            op = self._table(records.Op)
            return _lookup(step["op"], op["id"], op["block"], -1)
        if name == "times":
            return self._times
        if name == "spent":  # in a run of its body
            return step["cycles"] * self._times
        if name in ("direction", "stage"):
            body = self._table(records.Body)
            none = "" if name == "direction" else -1
            return _lookup(step["body"], body["id"], body[name], none)
        return step["id" if name == "step" else name]

    @cached_property
    def _program_order(self) -> np.ndarray | None:
        """Rows of the steps by IPU and position; None where the file has them so, as ours."""
        columns = self._table(records.Step)
        columns.read("id", "ipu", "position")
        ipu, position = columns["ipu"], columns["position"]
        later, same = ipu[1:] > ipu[:-1], ipu[1:] == ipu[:-1]
        if (later | (same & (position[1:] >= position[:-1]))).all():
            return None
        return np.lexsort((position, ipu))

    @cached_property
    def body_steps(self) -> pd.DataFrame:
        """The steps of all bodies, body by body.

        ``body, task, ipu, stage, direction`` describe the body; ``step, op, tensor, kind, purpose,
        name`` the step, or the body where it has no step (-1); ``start`` counts cycles from the
        start of the body.
        """
        return self.body_steps_at(np.arange(len(self._bodies.step)))

    def body_steps_at(self, entries: np.ndarray) -> pd.DataFrame:
        """Some rows of `body_steps`, by their numbers: these alone are made."""
        body, step, bodies = self._table(records.Body), self._steps, self._bodies
        at = np.searchsorted(bodies.first, entries, side="right") - 1
        steps = bodies.step[entries]
        row = _lookup(steps, step["id"], np.arange(len(step["id"])), 0)
        what = np.where(steps < 0, len(step["id"]) + at, row)  # of steps, then of bodies

        def of_step(values: np.ndarray, otherwise: np.ndarray) -> Any:
            both = np.concatenate([values, otherwise])
            return _texts(both, what) if both.dtype == object else both[what]

        none = np.full(len(body["id"]), -1)
        no_text = np.full(len(body["id"]), "", dtype=object)
        return _frame(
            {
                "body": body["id"][at],
                "task": _texts(body["task"], at),
                "ipu": body["ipu"][at],
                "stage": body["stage"][at],
                "direction": _texts(body["direction"], at),
                "step": steps,
                "kind": of_step(self._step_kinds, body["kind"]),
                "op": of_step(step["op"], none),
                "tensor": of_step(step["tensor"], none),
                "purpose": of_step(step["purpose"], no_text),
                "name": of_step(step["name"], body["name"]),
                "start": bodies.start[entries],
            }
        )

    @property
    def bodies_in_row(self) -> Bodies:
        """The steps of all bodies as numbers, in the order of `bodies` and `body_steps`."""
        return self._bodies

    @cached_property
    def moved_tensors(self) -> pd.DataFrame:
        """Tensors that steps move on or off a chip.

        ``step, tensor, name, source, target`` (IPUs of the replica; -1: the host or streaming
        memory; the same IPU twice: between replicas) and ``bytes``. Empty for older profiles.
        """
        return _frame(self._table(records.MovedTensor))

    def step_tiles(self, step: int) -> dict[str, np.ndarray | None]:
        """``cycles``, ``bytes_in`` and ``bytes_out`` of a step (by id), per tile.

        None where the profile has no such vector.
        """
        at = _position(self._steps["id"], step)
        if at is None:
            raise KeyError(f"no program step {step} in {self.path}")
        ids = {
            name: int(self._steps[name][at]) for name in ("tile_cycles", "bytes_in", "bytes_out")
        }
        return {
            name.removeprefix("tile_"): None if id < 0 else self.vector(id)
            for name, id in ids.items()
        }

    def vertices(self, step: int) -> pd.DataFrame:
        """Vertices of a step's compute set, by type.

        ``code_bytes`` and ``state_bytes`` are sums over tiles.
        """
        at = _position(self._steps["id"], step)
        if at is None:
            raise KeyError(f"no program step {step} in {self.path}")
        use, types = self._table(records.VertexUse), self._table(records.VertexType)
        compute_set = self._steps["compute_set"][at]
        here = np.flatnonzero((use["compute_set"] == compute_set) & (compute_set >= 0))
        count, _, tiles = self._vector_sums(use["count"][here])
        kind = use["vertex_type"][here]
        frame = _frame(
            {
                "vertex_type": _lookup(kind, types["id"], types["name"], "unknown"),
                "count": count,
                "tiles": tiles,
                "code_bytes": tiles * _lookup(kind, types["id"], types["code_bytes"], 0),
                "state_bytes": count * _lookup(kind, types["id"], types["state_bytes"], 0),
            }
        )
        return frame.sort_values("count", ascending=False, ignore_index=True)

    def tile_vertices(self, ipu: int, tile: int) -> pd.DataFrame:
        """Vertices on one tile, by type.

        ``vertex_type, compute_sets, count, state_bytes``, sorted by state, largest first.
        """
        use, types, steps = (
            self._table(records.VertexUse),
            self._table(records.VertexType),
            self._steps,
        )
        if not 0 <= tile < self._tiles:
            raise IndexError(f"an IPU has tiles 0 to {self._tiles - 1}, not {tile}")
        here = np.unique(steps["compute_set"][(steps["ipu"] == ipu) & (steps["compute_set"] >= 0)])
        rows = np.flatnonzero(np.isin(use["compute_set"], here))
        vectors = self._over_tiles(np.unique(use["count"][rows]))
        count = np.array([vectors[id][tile] for id in use["count"][rows].tolist()], dtype=np.int64)
        kind = use["vertex_type"][rows][count > 0]
        unique, which = np.unique(kind, return_inverse=True)
        number = np.bincount(which, weights=count[count > 0], minlength=len(unique)).astype(
            np.int64
        )
        frame = _frame(
            {
                "vertex_type": _lookup(unique, types["id"], types["name"], "unknown"),
                "compute_sets": np.bincount(which, minlength=len(unique)),
                "count": number,
                "state_bytes": number * _lookup(unique, types["id"], types["state_bytes"], 0),
            }
        )
        return frame.sort_values("state_bytes", ascending=False, ignore_index=True)

    # -- execution ---

    @cached_property
    def predicted(self) -> bool:
        """Whether no call was profiled; ``runs`` then has the one that the schedule predicts."""
        return not len(self._table(records.Run)["id"]) and len(self._table(records.Trace)["id"]) > 0

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
        iterations = _lookup(run["trace"], stored["id"], stored["iterations"], 0)
        cycles = iterations * _lookup(run["trace"], stored["id"], stored["iteration_cycles"], 0)
        return _frame(
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
        return _frame({"event": columns_in_order["id"], **_without(columns_in_order, "id")})

    @cached_property
    def host_values(self) -> pd.DataFrame:
        """Values over time on the host: ``process, graph, series, unit, time_us, value``."""
        return _frame(_without(self._table(records.HostValue), "id"))

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
            return _frame(
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
            return _frame(
                {
                    **_pick(columns, "iteration", "pipeline_cycle", "phase", "ipu", "body"),
                    "name": _texts(body["name"], tasks.body),
                    "kind": _texts(body["kind"], tasks.body),
                    "task": _texts(body["task"], tasks.body),
                    **_pick(columns, "direction", "stage", "micro_batch"),
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
        """The number of rows that `steps` of these IPUs would have (None: of all).

        `steps` refuses more than `MAX_SLICES`.
        """

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

        def make() -> pd.DataFrame:
            tasks = self._tasks(run, ipu, iteration)
            slices = self._slices(tasks)
            task, step_ids = slices.task, slices.step
            columns = self._task_columns(run, tasks, task)
            body, step, op = self._table(records.Body), self._steps, self._table(records.Op)
            # Texts and ids that a slice takes from its step, or from its body where it has none:
            # one list for both.
            order = np.argsort(step["id"], kind="stable")
            row = (
                order[self._found(step_ids, step["id"], order, "a body has the step")]
                if len(order)
                else 0
            )
            waits = step_ids < 0
            what = np.where(waits, len(order) + tasks.body[task], row)
            whole = body["kind"] != "task"
            kind_of_body = np.where(whole, body["kind"], "compute").astype(object)
            uniform = (whole[tasks.body] if len(whole) else np.zeros(0, dtype=bool))[task]
            kind = np.where(uniform, len(order) + tasks.body[task], what)
            none = np.full(len(body["id"]), -1)
            op_of = np.concatenate([step["op"], none])
            block_of = np.concatenate([_lookup(step["op"], op["id"], op["block"], -1), none])
            no_text = np.full(len(none), "", dtype=object)
            return _frame(
                {
                    **_pick(
                        columns,
                        "iteration",
                        "pipeline_cycle",
                        "phase",
                        "ipu",
                        "body",
                        "stage",
                        "direction",
                    ),
                    "micro_batch": columns["micro_batch"],
                    "step": step_ids,
                    "op": op_of[what],
                    "block": block_of[what],
                    "kind": _texts(np.concatenate([self._step_kinds, kind_of_body]), kind),
                    "type": _texts(np.concatenate([step["type"], no_text]), what),
                    "name": _texts(np.concatenate([step["name"], body["name"]]), what),
                    "start": slices.start,
                    "end": slices.end,
                    "cycles": slices.end - slices.start,
                },
                copy=False,
            )

        return self._remember(("steps", run, ipu, iteration), make)

    def executed(
        self,
        run: int = 0,
        ipus: Ipus | None = None,
        iteration: int | None = None,
        window: tuple[float, float] | None = None,
        finest: int = 0,
    ) -> Executed:
        """Executed steps as numbers, in the order of `steps`, many times as fast.

        ``ipus`` None: all. ``window``: only tasks that are not over before its first cycle and
        begin before its last, on the clock shared by all runs. ``finest``: steps of fewer cycles
        are merged with their neighbours (`merged`).
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
        """Tasks in the form of `executed`, named as their bodies, for where steps are too many."""
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
        return self._keep(("merged", finest), lambda: merged(self._bodies, kind, finest))

    def ipus_with_io(self, run: int = 0) -> np.ndarray:
        """The IPUs whose I/O tiles run something beside their other work."""
        of_body = self._table(records.Body)["kind"] == records.BESIDE
        tasks = self._tasks_of_iteration(run)
        return np.unique(tasks.ipu[of_body[tasks.body]]) if of_body.any() else tasks.ipu[:0]

    def extent(
        self, run: int = 0, ipus: Ipus | None = None, iteration: int | None = None
    ) -> tuple[int, int]:
        """The first and the last cycle of the tasks of IPUs; (0, 0) where there are none."""
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
        """The number of slices that `executed` would give of a window."""
        tasks = self._tasks(run, ipus, iteration)
        tasks = tasks.where((tasks.end > window[0]) & (tasks.start < window[1]))
        return trace.slice_count(tasks, self._bodies)

    def spent(
        self,
        run: int = 0,
        ipus: Ipus | None = None,
        iteration: int | None = None,
        window: tuple[float, float] = (-np.inf, np.inf),
    ) -> Spent:
        """Cycles of the executed steps of IPUs between two cycles, exactly, by step and kind.

        Without what I/O tiles run beside other work. Arguments as for `executed`.
        """
        tasks = self._tasks(run, ipus, iteration)
        try:
            return spent(tasks, self._bodies, self._named, *window, without=records.BESIDE)
        except ValueError as error:
            raise self._reader.damaged(str(error)) from error

    @cached_property
    def _named(self) -> Named:
        """What bodies run: steps, then bodies, which a wait is named by."""
        body, step, bodies = self._table(records.Body), self._steps, self._bodies
        at = np.repeat(np.arange(len(bodies.count)), bodies.count)
        steps = len(step["id"])
        order = np.argsort(step["id"], kind="stable")
        row = self._found(bodies.step, step["id"], order, "a body has the step")
        row = order[row] if steps else row
        own = steps + at
        whole, beside = body["kind"] != "task", body["kind"] == records.BESIDE
        kind_of_step, kinds = self._kinds_of_steps
        places = {name: place for place, name in enumerate(kinds)}
        of_body = np.where(whole, body["kind"], "compute").tolist()
        kind_of_body = np.array([places.setdefault(name, len(places)) for name in of_body])
        kind = np.concatenate([kind_of_step, kind_of_body]).astype(np.int64)
        what = np.where(bodies.step < 0, own, row)

        def names(some: np.ndarray) -> np.ndarray:
            found, of_steps = np.empty(len(some), dtype=object), some < steps
            found[of_steps] = self.names_at(records.Step, some[of_steps])
            found[~of_steps] = body["name"][some[~of_steps] - steps]
            return found

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
            return _frame({"ipu": ipus, **columns, "total": spent.sum(axis=1)})

        return self._keep(("cycle_proportions", run), make)

    def _cycles_by_kind(self, tasks: Tasks) -> np.ndarray:
        """Cycles of each IPU by `records.KINDS`: int64[ipu, kind].

        Tasks of one body with equal duration are unrolled once, however often they ran.
        """
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
        order = np.argsort(steps["id"], kind="stable")
        row = self._found(step, steps["id"], order, "a body has the step")
        theirs = of_step[order[row]] if len(order) else own
        kind = np.where(whole | (step < 0), own, theirs)
        cycles = (slices.end - slices.start) * times[task]
        known = kind >= 0
        np.add.at(spent, (distinct.ipu[task][known], kind[known]), cycles[known])
        return spent

    def schedule(self) -> tuple[Tasks, trace.Slices, np.ndarray] | None:
        """Tasks of a call (one for all of equal body and duration), their slices, and their counts.

        Taken from the first run or, where the model was only compiled, from the predicted run.
        Times are those of the first of each. None without a trace.
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

    # -- memory ---

    @cached_property
    def variables(self) -> pd.DataFrame:
        """Variables by id; a variable is live at the steps with ``start <= position < stop``."""
        columns = self._table(records.Variable)
        return _frame(_without(columns, "id", "tile_bytes"), index=columns["id"])

    def variables_with(self, *names: str) -> pd.DataFrame:
        """Selected columns of `variables`; only these are read."""
        columns = self._table(records.Variable)
        columns.read("id", *names)
        return _frame({name: columns[name] for name in names}, index=columns["id"])

    def variable_name(self, id: int) -> str:
        """Name of a variable, without reading the others. `ProfileError` if there is none."""
        return self._reader.text(records.Variable, "name", id)

    def variable_tiles(self, id: int) -> np.ndarray:
        """Bytes of a variable per tile."""
        at = self._variable_at.get(id)
        if at is None:
            raise KeyError(f"no variable {id} in {self.path}")
        vector: np.ndarray = self._variable_vectors[1][self._vector_of_variables[at]]
        return vector

    @cached_property
    def _vector_of_variables(self) -> np.ndarray:
        """For each row of the variables' table, the row of `_variable_vectors` that it uses."""
        return np.searchsorted(
            self._variable_vectors[0], self._table(records.Variable)["tile_bytes"]
        )

    @cached_property
    def _variable_at(self) -> dict[int, int]:
        """Row of each variable in its table, by id."""
        ids = self._table(records.Variable)["id"].tolist()
        return dict(zip(ids, range(len(ids)), strict=True))

    def tiles(self, ipu: int) -> pd.DataFrame:
        """Bytes per tile, as defined by `ipuscope.profiler.timeline.tile_usage.tile_totals`."""
        return self._keep(("tiles", ipu), lambda: _frame(self.tile_columns(ipu)))

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
        variables = self._ipu(ipu)
        return self._keep(("tile columns", variables.alike), make)

    def memory(self, ipu: int | None = None) -> pd.DataFrame:
        """Bytes by category and role, largest first.

        Counts the always-live variables and, of the others, those live at the step where the IPU
        holds the most; ``bytes`` add up to that peak.
        """

        def make() -> pd.DataFrame:
            rows = [(i, *row) for i in self._all_ipus(ipu) for row in self._by_kind(i)]
            return _frame_of_rows(
                rows, ipu=int, category=str, role=str, bytes=int, max_tile_bytes=int
            )

        return self._keep(("memory", ipu), make)

    def _by_kind(self, ipu: int) -> list[tuple[str, str, int, int]]:
        """`tile_usage.by_kind` at the IPU's peak step, computed once for equal IPUs."""
        variables = self._ipu(ipu)

        def make() -> list[tuple[str, str, int, int]]:
            total = self.live_bytes(ipu)
            return by_kind(variables, int(total.argmax()) if len(total) else 0)

        names = tuple(variables.category.tolist()), tuple(variables.role.tolist())
        return self._keep(("by kind", variables.alike, names), make)

    def liveness(self, ipu: int) -> pd.DataFrame:
        """Bytes live at each program step of an IPU.

        Sums over tiles, and the value of the fullest tile, both without gaps.
        """

        def make() -> pd.DataFrame:
            steps = self.steps_of_ipu(ipu, "position", "name", "op", "block", "direction")
            return _frame({**steps, **self.live_columns(ipu)})

        return self._keep(("liveness", ipu), make)

    def live_columns(self, ipu: int) -> dict[str, np.ndarray]:
        """The columns of `liveness` that are numbers of bytes and tiles; of steps none is read."""

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
        variables = self._ipu(ipu)
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
        by maximum to at most that size. ``what``: "total", or "not_always_live" to leave out what
        is live all the time.
        """
        if what not in ("total", "not_always_live"):
            raise ValueError(f"what must be 'total' or 'not_always_live', not {what!r}")
        self._check_ipu(ipu)
        first, last = _bounds(steps, int(self.steps_of_ipus[ipu]), "steps")
        left, right = _bounds(tiles, self._tiles, "tiles")
        if shape is not None and min(shape) < 1:
            raise ValueError(f"shape must be at least (1, 1), not {shape}")

        def make() -> np.ndarray:
            variables, here = self._ipu(ipu), slice(left, right)
            always = variables.always()[here] if what == "total" else None
            size = shape or (last - first, right - left)
            return resampled(variables.intervals.on_tiles(here), first, last, size, always)

        return self._remember(("liveness_map", ipu, first, last, left, right, shape, what), make)

    def live_bytes(self, ipu: int) -> np.ndarray:
        """``total`` of `liveness` alone, without a look at any tile: int64[step], bytes."""

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
        variables = self._ipu(ipu)
        return self._keep(("live bytes", ipu), make)

    def live_variables(self, ipu: int, step: int, tile: int | None = None) -> pd.DataFrame:
        """Variables live at a program step (by position), largest first.

        ``bytes`` counts the given tile, or the sum over all tiles.
        """
        which, size = self.live_at(ipu, step, tile)
        columns = {name: values[which] for name, values in self.variables_of(ipu).items()}
        return _frame(
            {
                "variable": columns["id"],
                "name": self.names_of(records.Variable, columns["id"]),
                **_pick(columns, "category", "role", "op", "block"),
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
        """Columns of an IPU's variables, in the order of their table.

        ``id, op, block, always_live, start, stop, interleaved, category, role``. Callers must not
        modify them.
        """

        def make() -> dict[str, np.ndarray]:
            columns = self._table(records.Variable)
            columns.read("ipu", *_OF_VARIABLES)
            rows = self._rows_of_ipus.get(ipu, np.zeros(0, dtype=np.int64))
            return {name: columns[name][rows] for name in _OF_VARIABLES}

        self._check_ipu(ipu)
        return self._keep(("variables of", ipu), make)

    def bytes_of_variables(self, ipu: int, tile: int | None = None) -> np.ndarray:
        """Bytes of an IPU's variables (`variables_of`) on a tile (None: on all).

        Only the vectors of these are read.
        """
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

    def names_at(self, record: type[Any], rows: np.ndarray) -> np.ndarray:
        """Names of some rows of a table; while few were asked for, the others are not read."""
        if self._all_names(record, len(rows)):
            return self._table(record)["name"][rows]
        return self._some_names(record, self._table(record)["id"][rows])

    def names_of(self, record: type[Any], ids: np.ndarray) -> np.ndarray:
        """`names_at`, by ids that the table has."""
        if self._all_names(record, len(ids)):
            return self._table(record)["name"][self.rows_of(record, ids)]
        return self._some_names(record, ids)

    def _all_names(self, record: type[Any], more: int) -> bool:
        """Whether to read all names of a table, as ``more`` are asked for."""
        columns = self._table(record)
        with self._lock:
            asked = self._names_asked.get(record, 0) + more
            self._names_asked[record] = asked
        return asked > max(_FEW_NAMES, columns.rows // _FEW_OF_NAMES) or columns.has("name")

    def _some_names(self, record: type[Any], ids: np.ndarray) -> np.ndarray:
        unique, which = np.unique(ids, return_inverse=True)
        texts = self._reader.texts(record, "name", unique.tolist())
        named: np.ndarray = np.array([*texts, None], dtype=object)[which]
        return named

    def rows_of(self, record: type[Any], ids: np.ndarray) -> np.ndarray:
        """Rows of a table by their ids, -1 where it has none: int64."""
        known = self._table(record)["id"]
        return _lookup(np.asarray(ids), known, np.arange(len(known)), -1)

    def op_names(self, ids: np.ndarray) -> np.ndarray:
        """Names of operators by their ids, "" of what is none; of few, only these are read."""
        rows = self.rows_of(records.Op, ids)
        names = np.full(len(rows), "", dtype=object)
        names[rows >= 0] = self.names_at(records.Op, rows[rows >= 0])
        return names

    def block_names(self, ids: np.ndarray) -> np.ndarray:
        """Names of Blocks by their ids, "" of what is none."""
        columns = self._table(records.Block)
        return _lookup(np.asarray(ids), columns["id"], columns["name"], "")

    # -- columns behind the frames, for the rest of this package ---

    def once(self, key: str, make: Callable[[], T]) -> T:
        """The result of ``make``, computed only once. Callers must not modify it."""
        return self._keep(("once", key), make)

    @property
    def state(self) -> tuple[int, ...]:
        """What tells the file as it was opened from what is at its path later, for `answers`.

        Empty while a run writes it.
        """
        return () if self._reader.partial else self._reader.state

    @property
    def uri(self) -> str:
        """The URI by which SQLite opens the file as the report does: read-only, no extra files."""
        return self._reader.uri

    @cached_property
    def as_written(self) -> seal.State:
        """Whether the file's bytes are those that were written (`ipuscope.profiler.file.seal`)."""
        return self._seal.result() if self._seal is not None else self._sealed()

    def _sealed(self) -> seal.State:
        try:
            return seal.state(self.path, self._reader.meta.get(seal.ENTRY))
        except (OSError, ValueError):  # it vanished, or is empty by now
            return seal.State.UNKNOWN

    def begin_check(self) -> None:
        """Have `as_written` be found in a thread, while others read: it goes over every byte."""
        pool = ThreadPoolExecutor(1)
        self._seal = pool.submit(self._sealed)
        pool.shutdown(wait=False)

    @property
    def notes(self) -> list[str]:
        """What whoever reads the profile has to know: the header's warnings, and damage."""
        return [*map(str, self.meta["warnings"]), *([DAMAGED] if self.damaged else [])]

    @property
    def damaged(self) -> bool:
        """Whether bytes changed since it was written, other than by SQLite."""
        return self.as_written is seal.State.DAMAGED

    def packed_amiss(self, record: type[Any]) -> list[str]:
        """Columns of a table that the file holds packed otherwise than in its rows."""
        return self._reader.packed_amiss(record)

    def columns_of(self, record: type[Any]) -> Columns:
        """A table by column, with its rows in order; vectors as ids, -1 where there is none.

        Each column is read on first use. Callers must not modify it.
        """
        return self._table(record)

    def vector(self, id: int) -> np.ndarray:
        """A per-tile vector by its id, int64, read-only."""
        return self._over_tiles([id])[id]

    def ipu_variables(self, ipu: int) -> IpuVariables:
        """The variables of an IPU as columns."""
        return self._ipu(ipu)

    @property
    def variable_vectors(self) -> tuple[np.ndarray, np.ndarray]:
        """A row of vectors for each row of the variables' table, and the distinct vectors of bytes.

        int64[variable] and int64[vector, tile]; callers must not modify them.
        """
        return self._vector_of_variables, self._variable_vectors[1]

    @property
    def _tiles(self) -> int:
        return self.target.tiles_per_ipu

    def _table(self, record: type[Any]) -> Columns:
        with self._lock:
            if record not in self._columns:
                check = self._check(record)
                self._columns[record] = Columns(self._reader, record, check, self._lock)
            return self._columns[record]

    def _check(self, record: type[Any]) -> Check:
        """The function with which `ipuscope.profiler.file.integrity` checks columns of a table."""

        def check(columns: Columns, names: Iterable[str]) -> None:
            self._sound(integrity.of_table(record, columns, names, self._known))

        return check

    @cached_property
    def _known(self) -> Known:
        return Known(
            lambda: self.target.ipus_per_replica,
            lambda table: self._table(records.BY_TABLE[table])["id"],
            lambda: self._table(records.Step)["ipu"],
            self.meta["complete"],
        )

    def _sound(self, wrong: str) -> None:
        """Raise `ProfileError` if `ipuscope.profiler.file.integrity` found a problem."""
        if wrong:
            raise self._reader.damaged(wrong)

    def _over_tiles(self, ids: Iterable[int]) -> dict[int, np.ndarray]:
        """Per-tile vectors of cycles, bytes or counts, by id."""
        vectors = self._reader.vectors(ids, self._tiles)
        for vector in vectors.values():
            self._sound(integrity.of_vector(vector))
        return vectors

    @cached_property
    def _steps(self) -> Columns:
        """The program steps; their positions on each IPU must be 0, 1, 2, ..."""
        columns = self._table(records.Step)
        columns.read("id", "ipu", "position")
        ipu, position = self._in_order(columns["ipu"]), self._in_order(columns["position"])
        first = np.searchsorted(ipu, ipu)
        if (position != np.arange(len(ipu)) - first).any():
            raise self._reader.damaged(
                "the positions of an IPU's program steps do not count from 0 on"
            )
        return columns

    @cached_property
    def _times(self) -> np.ndarray:
        """How often a body runs each step, in the order of the table; 1 for a step of none."""
        ids, steps = self._steps["id"], self._bodies.step
        if (ids == np.arange(len(ids))).all():  # as the engine counts them
            return np.maximum(1, np.bincount(steps[steps >= 0], minlength=len(ids))[: len(ids)])
        known, runs = np.unique(steps, return_counts=True)
        return np.maximum(1, _lookup(ids, known, runs, 1))

    @cached_property
    def _step_kinds(self) -> np.ndarray:
        kind, kinds = self._kinds_of_steps
        of_steps: np.ndarray = np.array([*kinds, None], dtype=object)[kind]
        return of_steps

    @cached_property
    def _kinds_of_steps(self) -> tuple[np.ndarray, tuple[str, ...]]:
        """The kind of each step, as a position among those that there are; these."""
        (type, types), (purpose, purposes) = map(self._steps.coded, ("type", "purpose"))
        pairs = [trace.step_kind(one, other) for one in types for other in purposes]
        kinds = tuple(dict.fromkeys(pairs))
        code = np.array([kinds.index(pair) for pair in pairs] or [0])
        return code[type * len(purposes) + purpose], kinds

    @cached_property
    def _body_vectors(self) -> tuple[list[np.ndarray], list[np.ndarray]]:
        columns = self._table(records.Body)
        vectors = self._reader.vectors(np.concatenate([columns["steps"], columns["starts"]]))
        steps = [vectors[id] for id in columns["steps"].tolist()]
        stored = self._table(records.Step)
        self._sound(integrity.of_bodies(steps, columns["ipu"], stored["id"], stored["ipu"]))
        return steps, [vectors[id] for id in columns["starts"].tolist()]

    @cached_property
    def _steps_of_bodies(self) -> np.ndarray:
        """How many entries `_bodies` has of each body, without reading them: int64[body]."""
        if "_bodies" in self.__dict__:
            return self._bodies.count
        lengths = self._reader.lengths(self._table(records.Body)["steps"])
        return np.maximum(1, lengths)  # a wait has one

    @cached_property
    def _bodies(self) -> Bodies:
        try:
            return Bodies.make(*self._body_vectors)
        except ValueError as error:
            raise self._reader.damaged(str(error)) from error

    def _vector_sums(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(sum, maximum, count of nonzeros) of each vector over tiles; 0 if there is none."""
        unique, where = np.unique(ids, return_inverse=True)
        total, largest, count = self._sums_of(unique)
        return total[where], largest[where], count[where]

    def _sums_of(self, ids: np.ndarray) -> np.ndarray:
        """Sum, maximum and count of nonzeros of vectors over tiles, 0 of none: int64[3, id]."""
        sums = np.zeros((3, len(ids)), dtype=np.int64)
        for at in range(0, len(ids), 1000):  # not all in memory at once
            vectors = self._over_tiles(ids[at : at + 1000])
            for i, id in enumerate(ids[at : at + 1000].tolist(), at):
                if id >= 0:
                    sums[:, i] = vectors[id].sum(), vectors[id].max(), np.count_nonzero(vectors[id])
        return sums

    def _sums_of_steps(self, ids: np.ndarray) -> np.ndarray:
        """`_vector_sums` of vectors of the program steps: int64[3, id]."""
        known, sums = self.sums_over_tiles
        found: np.ndarray = sums[:, np.searchsorted(known, ids)]
        return found

    @cached_property
    def sums_over_tiles(self) -> tuple[np.ndarray, np.ndarray]:
        """Ids of all vectors of program steps, sorted, -1 among them where a step lacks one.

        And of each the sum, the maximum and the count of nonzeros: int64[3, id].
        """
        wanted = np.unique(np.concatenate([self._steps[name] for name in _VECTORS_OF_STEPS]))
        return wanted, self._sums_of(wanted)

    # -- runs ---

    def _trace_of(self, run: int) -> int:
        """Row of the traces' table that a run executed."""
        runs = self._run_columns
        if not 0 <= run < len(runs["id"]):
            held = f"holds runs 0 to {len(runs['id']) - 1}" if len(runs["id"]) else "holds no run"
            raise IndexError(f"{self.path} {held}, not run {run}")
        at = _position(self._table(records.Trace)["id"], int(runs["trace"][run]))
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
        """Those of the first device iteration, from cycle 0."""
        at = self._trace_of(run)
        return self._keep(("trace", at), lambda: self._tasks_of_trace(at))

    def _tasks_of_trace(self, at: int) -> Tasks:
        """The device iteration in a row of the traces' table, from cycle 0, by IPU and start.

        Bodies are given as rows of their table.
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
        by_id = np.argsort(body, kind="stable")
        columns["body"] = by_id[
            self._found(columns["body"], body, by_id, f"{what} has the body", waits=False)
        ]
        body_ipu = self._table(records.Body)["ipu"][columns["body"]]
        wrong = integrity.of_tasks(columns, body_ipu, self._known)
        self._sound(wrong and f"{what}: {wrong}")
        order = np.lexsort((columns["start"], columns["ipu"]))
        return Tasks(np.zeros(size, dtype=np.int64), *(columns[name][order] for name in names))

    def _found(
        self, ids: np.ndarray, known: np.ndarray, order: np.ndarray, what: str, waits: bool = True
    ) -> Any:
        """Positions of ``ids`` in ``known[order]``; 0 for negative ids where these are allowed.

        Raises `ProfileError` for other unknown ids.
        """
        if len(known) and (known == np.arange(len(known))).all():  # as the engine counts them
            fits = (ids >= 0) & (ids < len(known))
            at = np.where(fits, ids, 0)
        else:
            at = np.searchsorted(known, ids, sorter=order)
            at[at == len(known)] = 0
            fits = known[order][at] == ids if len(known) else np.zeros(len(ids), dtype=bool)
        wrong = ~(fits | ((ids < 0) & waits))
        if wrong.any():
            raise self._reader.damaged(f"{what} {ids[wrong][0]}, which is missing")
        return at

    def _slices(self, tasks: Tasks, bodies: Bodies | None = None) -> trace.Slices:
        bodies = bodies or self._bodies
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
            phase = _lookup(tasks.pipeline_cycle, position, code, len(records.PHASES))
        columns = self._table(records.Body)
        return {
            "iteration": tasks.iteration[at],
            "pipeline_cycle": tasks.pipeline_cycle[at],
            "phase": _texts(np.array([*records.PHASES, ""], dtype=object), phase[at]),
            "ipu": tasks.ipu[at],
            "body": columns["id"][body],
            "direction": _texts(columns["direction"], body),
            "stage": columns["stage"][body],
            "micro_batch": tasks.micro_batch[at],
        }

    def _phases_of(self, run: int) -> tuple[np.ndarray, np.ndarray]:
        """Positions of a run's pipeline cycles, and of each its place in `records.PHASES`."""
        cycles = self.pipeline_cycles(run)
        codes = {name: i for i, name in enumerate(records.PHASES)}
        code = np.array([codes.get(name, len(codes)) for name in cycles["phase"].tolist()])
        return cycles["position"].to_numpy(), code

    # -- IPUs ---

    def _all_ipus(self, ipu: int | None) -> Iterable[int]:
        return range(self.target.ipus_per_replica) if ipu is None else [ipu]

    def _of_ipu(self, frame: pd.DataFrame, ipu: int | None) -> pd.DataFrame:
        return frame if ipu is None else frame[frame["ipu"] == ipu].reset_index(drop=True)

    def _check_ipu(self, ipu: int) -> None:
        if not 0 <= ipu < self.target.num_ipus:
            raise IndexError(f"{self.path} has IPUs 0 to {self.target.num_ipus - 1}, not {ipu}")

    def _ipu(self, ipu: int) -> IpuVariables:
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
        """Peaks of selected variables of an IPU, without ``max_tile`` and ``max_tile_bytes``.

        ``chosen``: a mask over `ipu_variables`.
        """
        return self._some_peaks(self._ipu(ipu), chosen)

    def _tile_peaks(self, variables: IpuVariables, region: bool | None) -> Peaks:
        """`IpuVariables.peaks`, without ``max_tile`` and ``max_tile_bytes``."""
        chosen = np.ones(len(variables.id), dtype=bool)
        if region is not None:
            chosen = variables.interleaved == region
        return self._some_peaks(variables, chosen)

    def _some_peaks(self, variables: IpuVariables, chosen: np.ndarray) -> Peaks:
        """Peaks of the variables that ``chosen`` marks.

        Temporary variables are summed once for all IPUs on which they are the same, as on IPUs with
        equal layers; the always-live ones are added for each IPU.
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
    def steps_of_ipus(self) -> np.ndarray:
        """Program steps of each IPU: int64[IPU], 0 for those of the replicas after the first."""
        return np.bincount(self._steps["ipu"], minlength=self.target.num_ipus)

    @cached_property
    def _rows_of_ipus(self) -> dict[int, np.ndarray]:
        """Rows of each IPU's variables, in the order of the table."""
        ipu = self._table(records.Variable)["ipu"]
        order = np.argsort(ipu, kind="stable")
        ipus, first = np.unique(ipu[order], return_index=True)
        edges = [*first.tolist(), len(order)]
        return {
            int(one): order[begin:end]
            for one, (begin, end) in zip(ipus, pairwise(edges), strict=True)
        }

    @cached_property
    def _variable_vectors(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Sorted ids of all variables' distinct vectors, the vectors, and their sums.

        int64[vector, tile]. Equal tensors of equal layers share a vector, so there are few.
        """
        unique = np.unique(self._table(records.Variable)["tile_bytes"])
        vectors = self._matrix(unique)
        return unique, vectors, vectors.sum(axis=1)

    def _matrix(self, ids: np.ndarray) -> np.ndarray:
        """Vectors over tiles by id, a row each: int64[id, tile], read-only."""
        vectors = self._reader.matrix(ids.tolist(), self._tiles)
        self._sound(integrity.of_vector(vectors))
        vectors.flags.writeable = False
        return vectors

    @cached_property
    def _totals(self) -> Totals:
        return Totals(self._variable_vectors[1])

    # -- what is kept ---

    def _keep(self, key: Any, make: Callable[[], T]) -> T:
        with self._lock:
            if key not in self._kept:
                self._kept[key] = make()
            answer: T = self._kept[key]
            return answer

    def _remember(self, key: Any, make: Callable[[], T]) -> T:
        """Like `_keep`, but for large results: only the most recent few are cached."""
        with self._lock:
            answer: T | None = self._recent.pop(key, None)
            if answer is None:
                answer = make()
            self._recent[key] = answer
            while len(self._recent) > _KEPT_FRAMES:
                self._recent.popitem(last=False)
            return answer


# -- small helpers ---


def _frame(
    columns: Mapping[str, Any], index: np.ndarray | None = None, copy: bool = True
) -> pd.DataFrame:
    """A frame; ``copy=False`` is twice as fast for a large one if nobody else holds the arrays."""
    import pandas as pd

    return pd.DataFrame(
        {name: _series(values) for name, values in columns.items()},
        index=None if index is None else pd.Index(index, name="id"),
        copy=copy,
    )


def _series(values: Any) -> Any:
    import pandas as pd

    if isinstance(values, np.ndarray) and values.dtype == object:
        return pd.array(values, dtype="str")
    return getattr(values, "array", values)


def _texts(names: np.ndarray, which: np.ndarray) -> Any:
    """``names[which]`` as text, checked once per name instead of once per row."""
    import pandas as pd

    array = pd.array(names, dtype="str")
    return array.take(which) if len(names) else array


def _frame_of_rows(rows: list[tuple[Any, ...]], **columns: type) -> pd.DataFrame:
    values = zip(*rows, strict=True) if rows else ((),) * len(columns)
    return _frame(
        {
            name: np.array(cells, dtype=object if kind is str else np.int64)
            for (name, kind), cells in zip(columns.items(), values, strict=True)
        }
    )


def _without(columns: Mapping[str, np.ndarray], *names: str) -> dict[str, np.ndarray]:
    return {name: values for name, values in columns.items() if name not in names}


def _pick(columns: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: columns[name] for name in names}


def _position(ids: np.ndarray, id: int) -> int | None:
    at = np.flatnonzero(ids == id)
    return int(at[0]) if len(at) else None


def _lookup(ids: np.ndarray, known: np.ndarray, values: np.ndarray, default: Any) -> np.ndarray:
    """``values`` where ``known`` contains the id, ``default`` elsewhere."""
    values_of = np.full(len(ids), default, dtype=values.dtype)
    if len(known) and (known == np.arange(len(known))).all():  # as the engine counts them
        fits = (ids >= 0) & (ids < len(known))
        values_of[fits] = values[ids[fits]]
    elif len(known):
        order = np.argsort(known, kind="stable")
        at = np.minimum(np.searchsorted(known, ids, sorter=order), len(known) - 1)
        fits = known[order][at] == ids
        values_of[fits] = values[order][at[fits]]
    return values_of


def _bounds(part: slice | None, size: int, name: str) -> tuple[int, int]:
    first, last, step = (part or slice(None)).indices(size)
    if step != 1:
        raise ValueError(f"{name} must be a slice without a step; use shape to see less detail")
    return first, max(first, last)


def _depth_first(ids: np.ndarray, parents: np.ndarray, positions: np.ndarray) -> np.ndarray | None:
    """Rows of a tree, parents before children, siblings by position; None if it is not a tree."""
    by_id = np.argsort(ids, kind="stable")
    at = np.minimum(np.searchsorted(ids, parents, sorter=by_id), max(0, len(ids) - 1))
    above = np.where(parents == -1, -1, np.where(ids[by_id[at]] == parents, by_id[at], -2))
    siblings = np.lexsort((ids, positions, above))
    sorted_above = above[siblings]
    levels = [siblings[sorted_above == -1]]
    reached = len(levels[0])
    # A node has one parent, so that each is met once; those of a cycle are never met.
    while len(levels[-1]):
        first, last = (
            np.searchsorted(sorted_above, levels[-1], side) for side in ("left", "right")
        )
        levels.append(siblings[_ranges(first, last - first)])
        reached += len(levels[-1])
    if reached < len(ids):
        return None
    size = np.ones(len(ids), dtype=np.int64)
    for level in reversed(levels[1:]):
        np.add.at(size, above[level], size[level])
    place = np.zeros(len(ids), dtype=np.int64)
    for level in levels:
        before = np.cumsum(size[level]) - size[level]
        _, first, which = np.unique(above[level], return_index=True, return_inverse=True)
        within = before - before[first][which]
        place[level] = within + np.where(above[level] < 0, 0, place[above[level]] + 1)
    order = np.empty_like(place)
    order[place] = np.arange(len(ids))
    return order


def _ranges(first: np.ndarray, count: np.ndarray) -> np.ndarray:
    """``first[i], first[i] + 1, ...``, ``count[i]`` of them, for one i after the other."""
    behind = np.cumsum(count)
    ranges: np.ndarray = np.arange(int(count.sum())) + np.repeat(first - (behind - count), count)
    return ranges
