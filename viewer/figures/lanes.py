"""The lanes of a pipeline: which IPUs are one lane, their tasks, and their steps as rows."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ipuscope.profiler.analysis.critical_path import chain_through, on_ipus
from ipuscope.profiler.enums import STREAMS
from ipuscope.profiler.file import records
from ipuscope.profiler.report import Ipus, Report
from ipuscope.profiler.report.frames import first_of_each
from ipuscope.profiler.timeline.executed_steps import Executed, as_narrow
from ipuscope.viewer.figures.lod import Rows
from ipuscope.viewer.figures.theme import ACTIVITIES, BY_DIRECTION, BY_KIND, COMPUTE
from ipuscope.viewer.figures.units import ends_of, plain, rows_of

if TYPE_CHECKING:
    import pandas as pd

FEW = 16  # lanes that have room for their steps
MOST_STEPS = 2_000_000  # executed ones that are drawn at once: about 150 MB
TASK, STRIP, BESIDE = ((-0.10, 0.56), (0.29, 0.13), (-0.44, 0.10))  # where in a lane, how high


@dataclass(frozen=True)
class CriticalPath:
    """The chain of work that sets the length of what is shown, in time order without gaps."""

    ipu: np.ndarray  # int64, an entry a piece, as the others
    start: np.ndarray  # cycles from the start of what is shown
    end: np.ndarray


@dataclass(frozen=True, slots=True)
class Lane:
    """A group of IPUs drawn as one: the IPU that is drawn, and all members."""

    shown: int
    members: np.ndarray
    group: int = -1  # the IPU by which the lane is opened or closed again; -1 if it cannot be
    pinned: bool = False
    shards: int = 1  # IPUs that share the tensors of each member and do the same
    shard: int = -1  # the one of them that an opened lane shows
    stacked: bool = False  # it is of all shards, and can be opened

    @property
    def openable(self) -> bool:
        """Whether the lane stands for several IPUs."""
        return len(self.members) > 1 or self.stacked

    def opened(self) -> list[Lane]:
        """A lane for each of the IPUs that share the tensors of its only member."""
        return [replace(self, shard=shard, stacked=False) for shard in range(self.shards)]

    @property
    def name(self) -> str:
        """``IPU 3``, of several ``IPU 3–5``; ``× 8`` of those that share its tensors."""
        if self.shard >= 0:
            return f"IPU {self.shown} / {self.shard}"
        return spans(self.members) + (f" × {self.shards}" if self.shards > 1 else "")

    @property
    def mark(self) -> str:
        """The mark before the name: a click opens or closes the lane, or the lane is pinned."""
        opened = "" if self.group < 0 else "▾ "
        return "▸ " if self.openable else "▴ " if self.pinned else opened


@dataclass(frozen=True)
class StepRows:
    """Executed steps as rows of slices, a row of each of ``ipus``, in their order."""

    steps: Executed
    ipus: tuple[int, ...]
    rows: Rows
    beside: Rows  # those of their I/O tiles, which lie over others; rows of the same IPUs

    @classmethod
    def of(cls, steps: Executed, ipus: Iterable[int]) -> StepRows:
        """The rows of the steps of these IPUs, which are told apart once."""
        ipus = tuple(int(ipu) for ipu in ipus)
        row = np.full(max([*ipus, int(steps.ipu.max(initial=0))]) + 1, -1)
        row[list(ipus)] = np.arange(len(ipus))
        code, beside = of_steps(steps)
        slices = steps.ipu, steps.start, steps.end
        rows = (_rows(slices, code, row, wanted) for wanted in (~beside, beside))
        return cls(steps, ipus, *rows)


@dataclass(frozen=True)
class Lanes:
    """A device iteration (or a run) prepared for drawing: built once, drawn at every zoom level."""

    tasks: pd.DataFrame
    steps: Executed
    cycles: pd.DataFrame  # pipeline cycles
    task_rows: Rows
    step_rows: Rows
    labels: tuple[str, ...]
    origin: int  # cycles; 0 on the x-axis
    beside_rows: Rows  # of the tasks that lie over others
    path: CriticalPath
    lane: np.ndarray  # of each IPU, -1 where it has none
    names: tuple[str, ...]  # of the lanes, short
    shown: np.ndarray  # the IPU that each lane shows
    arranged: tuple[Lane, ...]
    again: np.ndarray  # which of `ipus` each lane is drawn from

    @property
    def ipus(self) -> list[int]:
        """The IPUs that lanes show, each once."""
        return list(dict.fromkeys(self.shown.tolist()))

    def with_steps(self, executed: StepRows) -> Lanes:
        """The same lanes with the executed steps of `ipus` in their strips."""
        return replace(self, steps=executed.steps, step_rows=executed.rows.only(self.again))

    @property
    def end(self) -> int:
        """The number of cycles shown."""
        return int(self.tasks["end"].max()) - self.origin if len(self.tasks) else 0


def of_steps(steps: Executed) -> tuple[np.ndarray, np.ndarray]:
    """Index into ``theme.ACTIVITIES`` of each executed step; whether it lies beside others.

    Those of I/O tiles do.
    """
    code = [BY_KIND.get(name, COMPUTE) for name in steps.named.kinds] or [0]
    beside = np.array([name in records.BESIDES for name in steps.named.kinds] or [False])
    return np.array(code, dtype=np.int8)[steps.kind], beside[steps.kind]


def codes(tasks: pd.DataFrame) -> np.ndarray:
    """Index into ``theme.ACTIVITIES`` of `Report.tasks`."""
    return _by_body(tasks, _codes)


def codes_of_steps(steps: pd.DataFrame, streaming: np.ndarray | Sequence[int]) -> np.ndarray:
    """The same of `Report.steps`; ``streaming``: ids of streaming memory's."""
    streams = np.isin(steps["step"].to_numpy(), streaming)
    return np.where(streams, BY_KIND[records.STREAMING], _by_kind(steps))


def _by_kind(frame: pd.DataFrame) -> np.ndarray:
    kind, kinds = _factorised(frame["kind"])
    return np.array([BY_KIND.get(name, COMPUTE) for name in kinds] or [0])[kind]


def _by_body(tasks: pd.DataFrame, of: Callable[[pd.DataFrame], np.ndarray]) -> np.ndarray:
    """``of`` tasks, found once for each body: all of its tasks are of its kind and direction."""
    if "body" not in tasks:
        return of(tasks)
    first, body = first_of_each(tasks["body"].to_numpy())
    return of(tasks.iloc[first])[body] if len(first) < len(tasks) else of(tasks)


def _codes(tasks: pd.DataFrame) -> np.ndarray:
    direction, directions = _factorised(tasks["direction"])
    of = np.array([BY_DIRECTION.get(name, -1) for name in directions] or [-1])[direction]
    moving = (tasks["kind"] == "task").to_numpy() & (of >= 0)
    beside = _by_kind(tasks)
    if "task" in tasks:
        streams = tasks["task"].isin(STREAMS).to_numpy()
        beside = np.where(streams, BY_KIND[records.STREAMING], beside)
    return np.where(moving, of, beside)


def lanes(
    tasks: pd.DataFrame,
    steps: Executed,
    cycles: pd.DataFrame,
    stages: pd.DataFrame,
    fold: bool = False,
    opened: Collection[int] = (),
    pinned: Sequence[int] = (),
    path: CriticalPath | None = None,
    shards: int = 1,
    named: str = "",
) -> Lanes:
    """From `Report.tasks`, `.executed`, `.pipeline_cycles` and `.stages` of a device iteration.

    ``steps``: empty for no strip. ``fold``: replicas that do the same at the same time, and
    neighbours whose tasks take the same cycles, are one lane; it shows the one longest on the
    critical path. ``opened``: IPUs whose lane is not folded; ``pinned``: IPUs with lanes of their
    own, above the others. ``path``: the chain through the tasks, if known. ``shards``: IPUs that
    share a stage's tensors, one lane; it is opened by the number of its IPU after those of all
    IPUs. ``named``: only lanes with one of these words (`has_name`); all if none has.
    """
    count = int(tasks["ipu"].max()) + 1 if len(tasks) else 0
    code = codes(tasks)
    # those of I/O tiles lie over others
    beside = _by_body(tasks, lambda some: (some["kind"] == records.BESIDE).to_numpy())
    path = path or CriticalPath(*on_ipus(tasks["ipu"].to_numpy(), chain_through(tasks)))
    together = [Lane(ipu, np.array([ipu])) for ipu in range(count)]
    if fold and count:
        per_replica = int(stages["ipu"].max()) + 1 if len(stages) else count
        lane, shown = folded(_totals(tasks, code, count), path, per_replica)
        together = [
            Lane(int(ipu), np.flatnonzero(lane == at), int(ipu)) for at, ipu in enumerate(shown)
        ]
    arranged = _arranged(together, set(opened), [ipu for ipu in pinned if 0 <= ipu < count])
    of_each = _shards_of_each(arranged, set(opened), count, shards)
    again = np.repeat(np.arange(len(arranged)), [len(one) for one in of_each])
    row = np.full(count, -1)
    row[[one.shown for one in arranged]] = np.arange(len(arranged))
    arranged = [one for several in of_each for one in several]
    labels = [lane_label(one, stages) for one in arranged]
    chosen = [at for at, one in enumerate(arranged) if has_name(one, stages, named)]
    if named and chosen:
        again = again[chosen]
        arranged, labels = [arranged[at] for at in chosen], [labels[at] for at in chosen]
    shown = np.array([one.shown for one in arranged], dtype=np.int64)
    lane = np.full(count, -1)
    for at, one in reversed(list(enumerate(arranged))):
        lane[one.members] = at
    if len(path.ipu) and named:
        there = lane[path.ipu] >= 0
        path = CriticalPath(path.ipu[there], path.start[there], path.end[there])
    of_steps = first_of_each(shown)[1]
    executed = StepRows.of(steps, dict.fromkeys(shown.tolist()))
    return Lanes(
        tasks,
        steps,
        cycles,
        _rows(_times_of(tasks), code, row, ~beside).only(again),
        executed.rows.only(of_steps),
        tuple(labels),
        int(tasks["start"].min()) if len(tasks) else 0,
        _rows(_times_of(tasks), code, row, beside).only(again),
        path,
        lane,
        tuple(one.name for one in arranged),
        shown,
        tuple(arranged),
        of_steps,
    )


def steps_of(report: Report, run: int, iteration: int | None, ipus: Ipus) -> int:
    """How many steps these IPUs execute in a device iteration (None: in the whole call)."""
    return report.trace.step_count(run, ipus, iteration)


def drawable(report: Report, run: int, iteration: int | None, ipus: Ipus) -> bool:
    """Whether all steps of these IPUs are drawn at once, in the viewer as in the HTML report."""
    return len(ipus) <= FEW and steps_of(report, run, iteration, ipus) <= MOST_STEPS


def _arranged(together: list[Lane], opened: set[int], pinned: list[int]) -> list[Lane]:
    """The pinned IPUs, then the lanes without them; each member of an opened lane by itself."""
    arranged = [Lane(ipu, np.array([ipu]), pinned=True) for ipu in dict.fromkeys(pinned)]
    for lane in together:
        rest = lane.members[~np.isin(lane.members, pinned)]
        if not len(rest):
            continue
        if lane.openable and not opened.isdisjoint(lane.members.tolist()):
            arranged += [Lane(int(ipu), np.array([ipu]), lane.group) for ipu in rest]
        else:
            shown = lane.shown if lane.shown in rest else int(rest[0])
            arranged.append(Lane(shown, rest, lane.group if lane.openable else -1))
    return arranged


def _shards_of_each(
    arranged: list[Lane], opened: set[int], count: int, shards: int
) -> list[list[Lane]]:
    """The lanes that each is drawn as: one, or one for each IPU that shares its tensors.

    A lane that another click opens or closes stays as it is.
    """
    if shards == 1:
        return [[one] for one in arranged]
    of_each = []
    for lane in arranged:
        alone = len(lane.members) == 1 and not lane.pinned and lane.group < 0
        by = count + lane.shown if alone else lane.group
        one = replace(lane, shards=shards, group=by, stacked=alone)
        of_each.append(one.opened() if alone and by in opened else [one])
    return of_each


def folded(
    cycles: np.ndarray, path: CriticalPath, per_replica: int
) -> tuple[np.ndarray, np.ndarray]:
    """The lane of each IPU, and the IPU that each lane shows; ``cycles``: int64[ipu, activity].

    Replicas fold where all is equal, neighbours where work is, whatever they exchange or wait for.
    """
    ipu = np.arange(len(cycles))
    first = ipu % max(1, per_replica)
    same = (cycles == cycles[first]).all(axis=1)
    own = np.flatnonzero(~same | (ipu == first))
    work = cycles[own][:, :COMPUTE]  # what moves a micro-batch on, and the weight update
    apart = (np.diff(own) > 1) | (own[1:] % per_replica == 0)
    differs = (work[1:] != work[:-1]).any(axis=1) | apart
    lane_of_own = np.cumsum(np.append([False], differs))
    lane = np.zeros(len(cycles), dtype=np.int64)
    lane[own] = lane_of_own
    lane[same] = lane[first[same]]
    weight = np.bincount(path.ipu, weights=path.end - path.start, minlength=len(cycles))
    order = np.lexsort((own, -weight[own], lane_of_own))
    _, at = np.unique(lane_of_own[order], return_index=True)
    return lane, own[order][at]


def _totals(tasks: pd.DataFrame, code: np.ndarray, count: int) -> np.ndarray:
    """Cycles of each activity on each IPU: int64[ipu, activity]."""
    at = tasks["ipu"].to_numpy() * len(ACTIVITIES) + code
    table = np.bincount(at, weights=tasks["cycles"], minlength=count * len(ACTIVITIES))
    return table.astype(np.int64).reshape(count, len(ACTIVITIES))


def spans(ipus: np.ndarray) -> str:
    """``IPU 3``, ``IPU 4–9``, ``IPU 4–9, 68–73``, or how many, where the ranges are many."""
    breaks = np.flatnonzero(np.diff(ipus) > 1)
    first, last = ipus[np.append([0], breaks + 1)], ipus[np.append(breaks, len(ipus) - 1)]
    parts = [
        str(low) if low == high else f"{low}–{high}"
        for low, high in zip(first.tolist(), last.tolist(), strict=True)
    ]
    more = f" +{len(parts) - 1} replicas" if len(parts) > 2 else ""
    return "IPU " + (parts[0] + more if more else ", ".join(parts))


def has_name(lane: Lane, stages: pd.DataFrame, words: str) -> bool:
    """Whether a lane's IPUs, stages or Blocks have one of some words, which "|" separates.

    A word that ends in a number is a whole number's: ``IPU 1`` is none of IPU 12.
    """
    here = stages[stages["ipu"].isin(lane.members % max(1, int(stages["ipu"].max()) + 1))]
    of_stages = [f"stage {row.stage}: {row.blocks}" for row in rows_of(here)]
    names = "; ".join([lane.name, *(f"IPU {ipu}" for ipu in lane.members), *of_stages]).lower()
    asked = [word.strip().lower() for word in words.split("|") if word.strip()]
    ends = [
        rf"{re.escape(word)}(?!\d)" if word[-1].isdigit() else re.escape(word) for word in asked
    ]
    return any(re.search(one, names) for one in ends)


def lane_label(lane: Lane, stages: pd.DataFrame) -> str:
    """``IPU 1``, and the stages and Blocks that are on it; of several, which one is drawn."""
    if len(lane.members) > 1:
        words = f"{len(lane.members)} of equal work, drawn: IPU {lane.shown}"
        return f"<b>{lane.name}</b><br><span style='font-size:11px'>{words}</span>"
    if lane.shard > 0:  # the first has the stages
        return f"<b>{lane.name}</b>"
    here = stages[stages["ipu"] == lane.shown]
    if len(here) > 2:
        lines = [f"stages {ends_of([str(stage) for stage in here['stage']], 24)}"]
    else:
        lines = [stage_label(row, ": ", 24) for row in rows_of(here)]
    small = "".join(f"<br><span style='font-size:11px'>{line}</span>" for line in lines)
    return f"<b>{lane.name}</b>{small}"


def task_at(lanes: Lanes, cycle: float, row: float) -> int | None:
    """Position in ``lanes.tasks`` of the task at a point of the figure, or None.

    ``cycle``: from the start of what is shown; ``row``: as the figure counts lanes. On the strip of
    I/O tiles, their tasks come first.
    """
    lane = round(row)
    time = cycle + lanes.origin
    middle, height = BESIDE
    on_strip = abs(row - lane - middle) <= height / 2
    order = (lanes.beside_rows, lanes.task_rows) if on_strip else (lanes.task_rows,)
    for rows in order:
        position = rows.at(lane, time)
        if position >= 0:
            return int(rows.source[position])
    return None


def _factorised(column: pd.Series) -> tuple[np.ndarray, list[str]]:
    import pandas as pd

    code, names = pd.factorize(column)
    return code, list(names)


def _times_of(tasks: pd.DataFrame) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    ipu, start, end = (tasks[name].to_numpy() for name in ("ipu", "start", "end"))
    return ipu, start, end


def _rows(
    slices: tuple[np.ndarray, np.ndarray, np.ndarray],
    code: np.ndarray,
    row: np.ndarray,
    wanted: np.ndarray,
) -> Rows:
    """``slices``: IPU, start and end of each; ``row`` of each IPU, -1 if it has none."""
    ipu, start, end = slices
    rows = int(row.max(initial=-1)) + 1
    if not wanted.any():
        return Rows.make(ipu[:0], start[:0], end[:0], code[:0], rows)
    at = as_narrow(row)[ipu]
    if not wanted.all():
        at = np.where(wanted, at, -1)
    return Rows.make(at, start, end, code, rows)


def stage_label(row: Any, between: str, most: int) -> str:
    """A stage and its Blocks, where it has any."""
    blocks = plain(ends_of(row.blocks.split(", "), most))
    return f"stage {row.stage}{between}{blocks}" if blocks else f"stage {row.stage}"
