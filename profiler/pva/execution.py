"""``report.execution`` (docs/libpva.md#execution)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ipuscope.profiler.file import records
from ipuscope.profiler.file.bounds import rows_of
from ipuscope.profiler.file.trace import waits_as_syncs
from ipuscope.profiler.lazy import cached_property
from ipuscope.profiler.pva.lists import LazyList, Shown, plain
from ipuscope.profiler.pva.model import Model
from ipuscope.profiler.pva.programs import ComputeSet, OnTileExecuteProgram, Program, make_program

_EXCHANGE, _SYNC = "global exchange", "external sync"  # joint work of IPUs is one step
_STREAMS = ("StreamCopyBegin", "StreamCopyMid", "StreamCopyEnd")


@dataclass(frozen=True, slots=True)
class Iteration:
    """The executed steps of a device iteration, in order of time.

    Step s has the parts ``first[s] : first[s + 1]``, one for each IPU that takes part: ``ipu``,
    ``step`` (index in ``Model.steps``), ``start`` and ``end`` (cycles).
    """

    first: np.ndarray
    ipu: np.ndarray
    step: np.ndarray
    start: np.ndarray
    end: np.ndarray

    def __len__(self) -> int:
        return len(self.first) - 1


def iteration_of(model: Model, run: int) -> Iteration:
    """The first device iteration of a run.

    Waiting counts as time of an external sync: the next one, or one that consists only of waiting
    (`ipuscope.profiler.file.trace.waits_as_syncs`).
    """
    frame = model.report.steps(run, iteration=0)
    kind = frame["kind"].to_numpy(dtype=object)
    ipu, start, end = (frame[name].to_numpy() for name in ("ipu", "start", "end"))
    rows = rows_of(frame["step"].to_numpy(), model.steps["id"])
    step = np.where(kind == "idle", model.external_sync[ipu], rows)  # -1: there is no external sync
    alone = np.flatnonzero(kind != records.BESIDE)
    waits = waits_as_syncs(
        ipu[alone], start[alone], end[alone], kind[alone] == "idle", kind[alone] == _SYNC
    )
    stays, begins = step >= 0, start.copy()
    stays[alone] &= waits.stays
    begins[alone] = waits.start
    ipu, step, start, end = (values[stays] for values in (ipu, step, begins, end))
    return _steps_together(model.steps["kind"][step], ipu, step, start, end)


def _steps_together(
    kind: np.ndarray, ipu: np.ndarray, step: np.ndarray, start: np.ndarray, end: np.ndarray
) -> Iteration:
    """Combine parts on single IPUs into steps, in order of time.

    Exchanges between IPUs that start at the same time are one step, and so are external syncs that
    end at the same time: no IPU continues before the last one has arrived, and the step counts from
    that moment.
    """
    exchange, sync = kind == _EXCHANGE, kind == _SYNC
    what = np.where(exchange, 1, np.where(sync, 2, 0))
    moment = np.where(exchange, start, end)
    alone = np.arange(len(step))  # a key of its own for each part of a single IPU
    key = np.stack([what, np.where(what > 0, moment, alone)], axis=1)
    _, group = np.unique(key, axis=0, return_inverse=True)
    group = group.ravel()
    last = np.full(group.max(initial=-1) + 1, np.iinfo(np.int64).min)
    np.maximum.at(last, group, start)
    order = np.lexsort((ipu, group, what == 1, what > 0, last[group]))
    group, ipu, step, start, end = (values[order] for values in (group, ipu, step, start, end))
    first = np.flatnonzero(np.diff(group, prepend=-1))
    return Iteration(np.append(first, len(step)), ipu, step, start, end)


@plain
class Cycles(Shown):
    """When the first and the last tile were active, on the clock that all IPUs and runs share."""

    min: int
    max: int


@plain
class CycleRange(Shown):
    """When the tiles started and when they finished."""

    cyclesFrom: Cycles
    cyclesTo: Cycles


class StepOnIpu(Shown):
    """A step's part on one IPU.

    An IPU that takes no part has 0 cycles, starting and ending at the start of the step or, for an
    external sync, whose parts start when their IPUs begin to wait, at its end.
    """

    __slots__ = ("_end", "_model", "_start", "_step")
    _shown = ("cycles", "activeCycles", "dataIn", "dataOut", "tileBalance", "activeTileBalance")

    def __init__(self, model: Model, step: int | None, start: int, end: int) -> None:
        self._model, self._step, self._start, self._end = model, step, start, end

    @property
    def cycles(self) -> int:
        """Cycles from the start of the step to its end."""
        return self._end - self._start

    @property
    def activeCycles(self) -> CycleRange:
        """When the first and the last working tile start and finish."""
        early = self._end
        if self._step is not None and self._model.steps["tile_cycles"][self._step] >= 0:
            early = min(early, self._start + int(self._model.activity["first"][self._step]))
        return CycleRange(Cycles(self._start, self._start), Cycles(early, self._end))

    @property
    def allCycles(self) -> CycleRange:
        """When the first and the last tile start and finish."""
        return CycleRange(Cycles(self._start, self._start), Cycles(self._end, self._end))

    @property
    def dataIn(self) -> int:
        """Bytes received by its tiles."""
        return int(self._of(self._model.steps["received"]))

    @property
    def dataOut(self) -> int:
        """Bytes sent by its tiles."""
        return int(self._of(self._model.steps["sent"]))

    @property
    def tileBalance(self) -> float:
        """Mean work over maximum work, for all tiles."""
        return float(self._of(self._model.activity["balance"]))

    @property
    def activeTileBalance(self) -> float:
        """Mean work over maximum work, for the tiles that work."""
        return float(self._of(self._model.activity["active_balance"]))

    def _of(self, column: np.ndarray) -> Any:
        return 0 if self._step is None else column[self._step]


class ExecutedComputeSet(Shown):
    """A compute set as executed by a step."""

    __slots__ = ("_set", "_step")
    _shown = ("name",)

    def __init__(self, set: ComputeSet, step: ExecutionStep) -> None:
        self._set, self._step = set, step

    @property
    def name(self) -> str:
        """The name of the compute set."""
        return self._set.name

    @property
    def cyclesByTile(self) -> list[int]:
        """Cycles of each tile."""
        return self._step.cyclesByTile

    @property
    def estimatedCyclesByTile(self) -> list[int]:
        """Estimated cycles of each tile; in the model all cycles are estimates."""
        return self._set.estimatedCyclesByTile


class ExecutionStep(Shown):
    """A program step as it was executed."""

    __slots__ = ("_at", "_iteration", "_model", "_shift")
    _shown = ("program", "ipus")

    def __init__(self, model: Model, iteration: Iteration, at: int, shift: int) -> None:
        self._model, self._iteration, self._at, self._shift = model, iteration, at, shift

    @property
    def _parts(self) -> range:
        return range(int(self._iteration.first[self._at]), int(self._iteration.first[self._at + 1]))

    @property
    def program(self) -> Program:
        """The program that ran."""
        step = int(self._iteration.step[self._parts[0]])
        return make_program(self._model, int(self._model.steps["node"][step]))

    @property
    def _is_sync(self) -> bool:
        step = int(self._iteration.step[self._parts[0]])
        return bool(self._model.steps["kind"][step] == _SYNC)

    @property
    def cyclesByTile(self) -> list[int]:
        """Cycles on each tile of the device; 0 on tiles that take no part."""
        cycles = {}
        for part in self._parts:
            step, ipu = int(self._iteration.step[part]), int(self._iteration.ipu[part])
            spent = int(self._iteration.end[part] - self._iteration.start[part])
            cycles[ipu] = self._model.cycles_by_tile(step, spent)
        return self._model.over_device(cycles)

    @property
    def computeSets(self) -> list[ExecutedComputeSet]:
        """The compute set that an OnTileExecute ran; otherwise empty."""
        program = self.program
        if not isinstance(program, OnTileExecuteProgram):
            return []
        return [ExecutedComputeSet(program.computeset, self)]

    @property
    def ipus(self) -> list[StepOnIpu]:
        """Its part on every IPU of the device; replicas do the same as the modelled IPUs."""
        iteration, parts = self._iteration, self._parts
        ends = iteration.end if self._is_sync else iteration.start
        start = int(ends[parts[0]]) + self._shift
        one = [StepOnIpu(self._model, None, start, start) for _ in range(self._model.ipus)]
        for part in parts:
            begin, end = (int(at[part]) + self._shift for at in (iteration.start, iteration.end))
            step = int(iteration.step[part])
            one[int(iteration.ipu[part])] = StepOnIpu(self._model, step, begin, end)
        return one * (self._model.target.num_ipus // self._model.ipus)

    @property
    def allCycles(self) -> CycleRange:
        """Cycles over all IPUs that take part."""
        parts = slice(self._parts.start, self._parts.stop)
        moments = (at[parts] + self._shift for at in (self._iteration.start, self._iteration.end))
        return CycleRange(*(Cycles(int(at.min()), int(at.max())) for at in moments))


@plain
class Microseconds(Shown):
    """Start and end of a run in microseconds, on the modelled chip's clock."""

    start: int
    end: int


class Run(Shown):
    """A run of the engine: a call of the model."""

    _shown = ("name", "microseconds")

    def __init__(self, model: Model, run: int) -> None:
        self._model, self._run = model, run

    def _of(self, name: str) -> int:
        return int(self._model.report.runs[name].iloc[self._run])

    @property
    def name(self) -> str:
        """The name of the run."""
        return str(self._model.report.runs["name"].iloc[self._run])

    @property
    def microseconds(self) -> Microseconds:
        """When it ran on the modelled device, by its cycles and clock: at least one microsecond.

        The time the host took to compute the numbers says nothing about an IPU.
        """
        clock = self._model.target.clock_hz
        start, end = (round(self._of(name) / clock * 1e6) for name in ("start", "end"))
        return Microseconds(start, max(end, start + 1))

    @property
    def cycles(self) -> int:
        """Cycles from the start of the first step to the end of the last."""
        return self._of("cycles")

    @property
    def cyclesByIpu(self) -> list[int]:
        """Cycles in which each IPU of the device did not wait."""
        frame = self._model.report.cycle_proportions(self._run)
        busy = (frame["total"] - frame["idle"]).to_numpy()[: self._model.ipus]
        return np.tile(busy, self._model.target.num_ipus // self._model.ipus).tolist()

    @cached_property
    def _iteration(self) -> Iteration:
        return iteration_of(self._model, self._run)

    @property
    def steps(self) -> LazyList[ExecutionStep]:
        """The executed steps in order of time, over all device iterations of the run."""
        one, iterations = self._iteration, self._of("iterations")
        cycles = self._of("cycles") // max(1, iterations)
        count = len(one)

        def make(index: int) -> ExecutionStep:
            return ExecutionStep(self._model, one, index % count, index // count * cycles)

        return LazyList(count * iterations, make)


class TotalCycles(int):
    """A number of cycles; libpva puts it in an attribute."""

    @property
    def total(self) -> int:
        """Cycles of all runs together; 0 if nothing ran."""
        return int(self)


@plain
class Block(Shown):
    """A tile's activity in a step, as lightweight profiling would record it."""

    program: Program
    tile: int
    cyclesFrom: int
    cyclesTo: int
    isCommon = isOverflow = isBlockFlush = False

    @property
    def isStreamCopy(self) -> bool:
        """Whether its program copies from or to the host."""
        return self.program.type.name in _STREAMS


class ExecutionReport(Shown):
    """The results of execution.

    A model that was only compiled has one run, predicted by its schedule; the run's name says so.
    Without a schedule it has no runs.
    """

    _shown = ("runs", "totalCycles")

    def __init__(self, model: Model) -> None:
        self._model = model

    @cached_property
    def _runs(self) -> list[Run]:
        return [Run(self._model, run) for run in range(len(self._model.report.runs))]

    @property
    def runs(self) -> list[Run]:
        """The runs that were profiled, in order."""
        return list(self._runs)

    @property
    def steps(self) -> LazyList[ExecutionStep]:
        """The steps of all runs, one run after the other."""
        lists = [run.steps for run in self._runs]
        ends = np.cumsum([len(steps) for steps in lists], dtype=np.int64)

        def make(index: int) -> ExecutionStep:
            run = int(np.searchsorted(ends, index, side="right"))
            return lists[run][index - int(ends[run]) + len(lists[run])]

        return LazyList(int(ends[-1]) if len(ends) else 0, make)

    @property
    def totalCycles(self) -> TotalCycles:
        """The total cycles of all runs."""
        return TotalCycles(sum(run.cycles for run in self._runs))

    def blocks(self, tile: int) -> list[Block]:
        """The activity of one tile of the device, without the steps in which it does nothing."""
        ipu, at = self._model.tile_of(tile)
        return [block for run in self._runs for block in self._blocks(run, ipu, at, tile)]

    def _blocks(self, run: Run, ipu: int, at: int, tile: int) -> Iterator[Block]:
        model, cycles_of = self._model, dict[int, int]()
        for executed in run.steps:
            for part in executed._parts:
                iteration = executed._iteration
                if iteration.ipu[part] != ipu:
                    continue
                step = int(iteration.step[part])
                duration = int(iteration.end[part] - iteration.start[part])
                if step not in cycles_of:
                    cycles_of[step] = int(model.cycles_by_tile(step, -1)[at])
                cycles = duration if cycles_of[step] < 0 else cycles_of[step]
                if cycles:
                    start = int(iteration.start[part]) + executed._shift
                    yield Block(
                        make_program(model, int(model.steps["node"][step])),
                        tile,
                        start,
                        start + cycles,
                    )
