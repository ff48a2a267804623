"""The pipeline figure: one lane per IPU.

A lane draws its tasks large, with their steps as a strip below and the work of its I/O tiles as a
strip above.

Slices are drawn by activity (`slices`), so that the legend switches activities on and off. The
x-axis counts time from the start of what is shown (a device iteration or a run).
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ipuscope.profiler.analysis import critical_path
from ipuscope.profiler.analysis.critical_path import Chain, chain_through
from ipuscope.profiler.enums import Direction, PipelinePhase
from ipuscope.profiler.file import records
from ipuscope.profiler.report import Ipus, Report
from ipuscope.profiler.timeline.executed_steps import Executed, as_narrow
from ipuscope.viewer.figures import theme as themes
from ipuscope.viewer.figures.drawing import Drawing, above, beside, vertical
from ipuscope.viewer.figures.legend import legend_above
from ipuscope.viewer.figures.lod import FINEST, Pieces, Rows, inside, totals
from ipuscope.viewer.figures.slices import DRAWN, WIDE, Canvas, look
from ipuscope.viewer.figures.theme import ACTIVITIES, BY_DIRECTION, BY_KIND, COMPUTE, Theme
from ipuscope.viewer.figures.units import (
    Clock,
    ends_of,
    percent,
    plain,
    rows_of,
    shortened,
    text_of,
)

if TYPE_CHECKING:
    import pandas as pd

PIXELS = 1160  # columns of a figure as wide as a page of 1,440
MARGINS = 140  # pixels of it beside the lanes, about
_TASK, _STRIP, _BESIDE = (
    (-0.10, 0.56),
    (0.29, 0.13),
    (-0.44, 0.10),
)  # where in its lane, and how high
_SLOWEST_AT = 0.42
LANE = 74  # pixels
FEW = 16  # lanes that have room for their steps
MOST_STEPS = 2_000_000  # executed ones that are drawn at once: about 150 MB
_MOST_STAGES = 48  # of stages
_DIGIT = 7  # pixels
_BOLD, _SMALL = 8.0, 6.0  # pixels of a character in a lane's name, and in the lines below it
_APART = 8  # pixels between the numbers of neighbours, which would read as one
_WHOLE_LABELS = 0.3  # of the figure's width at most
_LINE, _TWO_LINES = 14, 34  # pixels of a lane's label
_JUDGED_BY, _MANY_SLICES = 4, 20_000  # of so many lanes one is drawn first, of so many slices
_ATTEMPTS = 3  # to find a level of detail that is light enough
_MOST_BARS = 1500  # of tasks
_MOST_SHADES = 4  # shapes; phased execution has a hundred
_MOST_HOPS = 160  # of the critical path between IPUs, as arrows


@dataclass(frozen=True)
class CriticalPath:
    """The chain of work that sets the length of what is shown, in time order without gaps.

    int64 arrays with one entry per piece; times are in cycles from the start of what is shown.
    """

    ipu: np.ndarray
    start: np.ndarray
    end: np.ndarray


def on_ipus(tasks: pd.DataFrame, chain: Chain) -> CriticalPath:
    """Where the chain runs (`critical_path.on_ipus`)."""
    return CriticalPath(*critical_path.on_ipus(tasks, chain))


@dataclass(frozen=True, slots=True)
class Lane:
    """A group of IPUs drawn as one: the IPU that is drawn, and all members.

    ``group`` is the IPU by which the lane is opened or closed again; -1 if it cannot be. ``shards``
    IPUs share the tensors of each member and do the same: a ``stacked`` lane is of all of them and
    can be opened, an opened one is of ``shard``.
    """

    shown: int
    members: np.ndarray
    group: int = -1
    pinned: bool = False
    shards: int = 1
    shard: int = -1
    stacked: bool = False

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
    """Executed steps as rows of slices, one for each of ``ipus``, in their order.

    ``beside``: those of their I/O tiles, which lie over others; rows of the same IPUs.
    """

    steps: Executed
    ipus: tuple[int, ...]
    rows: Rows
    beside: Rows

    @classmethod
    def of(cls, steps: Executed, ipus: Iterable[int]) -> StepRows:
        """The rows of the steps of these IPUs, which are told apart once."""
        ipus = tuple(int(ipu) for ipu in ipus)
        row = np.full(max([*ipus, int(steps.ipu.max(initial=0))]) + 1, -1)
        row[list(ipus)] = np.arange(len(ipus))
        code, beside = codes_of_steps(steps), beside_others(steps)
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
    lane: np.ndarray  # of each IPU
    names: tuple[str, ...]  # of the lanes, short
    shown: np.ndarray  # the IPU that each lane shows
    arranged: tuple[Lane, ...]
    again: np.ndarray  # which of `ipus` each lane is drawn from

    @property
    def ipus(self) -> list[int]:
        """The IPUs that lanes show, each once."""
        return list(dict.fromkeys(self.shown.tolist()))

    def with_steps(self, known: StepRows) -> Lanes:
        """The same lanes with the executed steps of `ipus` in their strips."""
        return replace(self, steps=known.steps, step_rows=known.rows.only(self.again))

    @property
    def end(self) -> int:
        """The number of cycles shown."""
        return int(self.tasks["end"].max()) - self.origin if len(self.tasks) else 0


def codes_of_steps(steps: Executed) -> np.ndarray:
    """Index into ``theme.ACTIVITIES`` of each executed step."""
    code = [BY_KIND.get(name, COMPUTE) for name in steps.named.kinds] or [0]
    return np.array(code, dtype=np.int8)[steps.kind]


def beside_others(steps: Executed) -> np.ndarray:
    """Mask of the executed steps of I/O tiles, which lie beside others."""
    of_kind = np.array([name == records.BESIDE for name in steps.named.kinds] or [False])
    return of_kind[steps.kind]


def codes(frame: pd.DataFrame, by_direction: bool) -> np.ndarray:
    """Index into ``theme.ACTIVITIES`` of each row of `Report.tasks` or `Report.steps`.

    The former with ``by_direction``.
    """
    if by_direction:
        return _by_body(frame, lambda tasks: _codes(tasks, by_direction))
    return _codes(frame, by_direction)


def _by_body(tasks: pd.DataFrame, of: Callable[[pd.DataFrame], np.ndarray]) -> np.ndarray:
    """``of`` tasks, found once for each body: all of its tasks are of its kind and direction."""
    if "body" not in tasks:
        return of(tasks)
    first, body = first_of_each(tasks["body"].to_numpy())
    return of(tasks.iloc[first])[body] if len(first) < len(tasks) else of(tasks)


def _lies_beside(tasks: pd.DataFrame) -> np.ndarray:
    """Mask of the tasks of I/O tiles, which lie over others."""
    return (tasks["kind"] == records.BESIDE).to_numpy()


def _codes(frame: pd.DataFrame, by_direction: bool) -> np.ndarray:
    kind, kinds = _factorised(frame["kind"])
    code = np.array([BY_KIND.get(name, COMPUTE) for name in kinds] or [0])[kind]
    if by_direction:
        direction, directions = _factorised(frame["direction"])
        of = np.array([BY_DIRECTION.get(name, -1) for name in directions] or [-1])[direction]
        moving = (frame["kind"] == "task").to_numpy() & (of >= 0)
        code = np.where(moving, of, code)
    return code


def first_of_each(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where each of some numbers, 0 or more, comes first, in order; and which of them each is."""
    first = np.full(int(values.max(initial=-1)) + 1, -1)
    first[values[::-1]] = np.arange(len(values))[::-1]  # the last that is written stays
    rows = np.sort(first[first >= 0])
    rank = np.zeros(len(first), dtype=np.int64)
    rank[values[rows]] = np.arange(len(rows))
    return rows, rank[values]


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
) -> Lanes:
    """From `Report.tasks`, `.executed`, `.pipeline_cycles` and `.stages` of a device iteration.

    ``steps`` may be empty: no strip then. ``fold``: replicas that do the same at the same time, and
    neighbours whose tasks take the same cycles, are one lane; it shows the one of them that is on
    the critical path for longest. ``opened``: IPUs whose lane is not folded; ``pinned``: IPUs with
    lanes of their own, above the others. ``path``: the chain through the tasks, where it is known.
    ``shards``: IPUs that share the tensors of a stage, which are one lane; it is opened by the
    number of its IPU after those of all IPUs.
    """
    count = int(tasks["ipu"].max()) + 1 if len(tasks) else 0
    code = codes(tasks, by_direction=True)
    beside = _by_body(tasks, _lies_beside)
    path = path or on_ipus(tasks, chain_through(tasks))
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
    shown = np.array([one.shown for one in arranged], dtype=np.int64)
    lane = np.zeros(count, dtype=np.int64)
    for at, one in reversed(list(enumerate(arranged))):
        lane[one.members] = at
    known = StepRows.of(steps, dict.fromkeys(shown.tolist()))
    return Lanes(
        tasks,
        steps,
        cycles,
        _rows(_times_of(tasks), code, row, ~beside).only(again),
        known.rows.only(again),
        tuple(lane_label(one, stages) for one in arranged),
        int(tasks["start"].min()) if len(tasks) else 0,
        _rows(_times_of(tasks), code, row, beside).only(again),
        path,
        lane,
        tuple(one.name for one in arranged),
        shown,
        tuple(arranged),
        again,
    )


def steps_of(report: Report, run: int, iteration: int | None, ipus: Ipus) -> int:
    """How many steps these IPUs execute in a device iteration (None: in the whole call)."""
    return report.step_count(run, ipus, iteration)


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
    """The lanes that each lane is drawn as: one, or one for each IPU that shares its tensors.

    A lane that another click opens or closes already stays as it is.
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
    """The lane of each IPU, and the IPU that each lane shows.

    ``cycles``: int64[ipu, activity]. Replicas fold where all is equal, neighbours where
    their work is, whatever they exchange and wait for.
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
        lines = [_stage(row, ": ", 24) for row in rows_of(here)]
    small = "".join(f"<br><span style='font-size:11px'>{line}</span>" for line in lines)
    return f"<b>{lane.name}</b>{small}"


def drawing(
    lanes: Lanes,
    clock: Clock,
    theme: Theme,
    window: tuple[float, float] | None = None,
    pixels: int = PIXELS,
    follow: int | None = None,
) -> Drawing:
    """The lanes between two cycles (default: all).

    ``follow``: a micro-batch to trace through the IPUs.
    """
    low, high = window or (0.0, float(max(1, lanes.end)))
    low, high = low + lanes.origin, high + lanes.origin
    layout = _layout(lanes, clock, theme, low, high, pixels + MARGINS)
    figure = Drawing(_traces(lanes, clock, theme, low, high, pixels), layout)
    view = (low - lanes.origin, high - lanes.origin)
    on_lanes = replace(lanes.path, ipu=lanes.lane[lanes.path.ipu])
    figure.data.extend(critical(on_lanes, clock, theme, view))
    if len(lanes.cycles):
        _phases(figure, lanes, clock, theme, low, high, pixels)
    if follow is not None:
        figure.data.extend(_path(lanes, clock, theme, follow))
    return legend_above(figure, pixels + MARGINS, below=38)


def task_at(lanes: Lanes, cycle: float, row: float) -> int | None:
    """The position in ``lanes.tasks`` of the task at a point of the figure; None if there is none.

    ``cycle`` counts from the start of what is shown, ``row`` as the figure counts lanes. Where the
    point is on the strip of the I/O tiles, their tasks come first.
    """
    lane = round(row)
    time = cycle + lanes.origin
    middle, height = _BESIDE
    on_strip = abs(row - lane - middle) <= height / 2
    order = (lanes.beside_rows, lanes.task_rows) if on_strip else (lanes.task_rows,)
    for rows in order:
        position = rows.at(lane, time)
        if position >= 0:
            return int(rows.source[position])
    return None


def busy(
    lanes: Lanes, clock: Clock, theme: Theme, window: tuple[float, float] | None = None
) -> Drawing:
    """How each IPU spent its cycles between two cycles (default: all), exactly, in per cent."""
    table = shares(lanes, window)
    span = table.sum(axis=1, keepdims=True).clip(1)
    y = list(lanes.names)
    layout = theme.frame(
        64 + 30 * max(1, len(table)),
        barmode="stack",
        bargap=0.25,
        margin={"l": 64, "r": 24, "t": 8, "b": 36},
        xaxis={"range": [0, 100], "ticksuffix": "%", "dtick": 20},
        yaxis={"autorange": "reversed", "type": "category", "showgrid": False},
        showlegend=False,
    )
    bars: list[dict[str, Any]] = []
    for code, activity in enumerate(ACTIVITIES):
        cycles = table[:, code]
        if not cycles.any():
            continue
        share = 100 * cycles / span[:, 0]
        bars.append(
            {
                "type": "bar",
                "name": activity.name,
                "x": share,
                "y": y,
                "orientation": "h",
                "marker": _marker(code, theme),
                "text": [f"{value:.0f}%" if value >= 4 else "" for value in share],
                "textposition": "inside",
                "constraintext": "none",  # as large in narrow parts
                "insidetextanchor": "middle",
                "textangle": 0,
                "textfont": {"color": _text_colour(code, theme), "size": 11},
                "customdata": [
                    f"{name}: {activity.name}<br>{percent(s / 100)} of the time, {clock.both(c)}"
                    for name, s, c in zip(y, share, cycles, strict=True)
                ],
                "hovertemplate": "%{customdata}<extra></extra>",
            }
        )
    return Drawing(bars, layout)


def shares(lanes: Lanes, window: tuple[float, float] | None = None) -> np.ndarray:
    """Cycles of each activity on each IPU between two cycles: int64[ipu, activity]."""
    low, high = window or (0.0, float(lanes.end))
    rows = lanes.task_rows
    table = np.zeros((len(rows), len(ACTIVITIES)), dtype=np.int64)
    for ipu in range(len(rows)):
        here = rows.of(ipu)
        part = totals(
            rows.start[here],
            rows.end[here],
            rows.code[here],
            low + lanes.origin,
            high + lanes.origin,
            len(ACTIVITIES),
        )
        table[ipu] = np.rint(part)
    return table


def _alike(stages: pd.DataFrame) -> pd.DataFrame:
    """Neighbouring stages of equal cycles as one row, ``stage`` being their range.

    With many such rows, all stages of equal cycles, ``stage`` being the first and how many more.
    """
    names = ["forward_cycles", "backward_cycles", "recompute_cycles"]
    costs = stages[names]
    part = (costs != costs.shift()).any(axis=1).cumsum()
    if len(part) and part.iloc[-1] > _MOST_STAGES:
        equal = stages.groupby(names, sort=False)
        firsts, counts = equal.first(), equal.size().to_numpy()
        words = [
            f"{stage} and {count - 1} alike" if count > 1 else str(stage)
            for stage, count in zip(firsts["stage"], counts, strict=True)
        ]
        return firsts.reset_index().assign(stage=words)
    ends = stages.groupby(part)["stage"].agg(["min", "max"])
    words = [
        str(low) if low == high else f"{low}–{high}"
        for low, high in zip(ends["min"], ends["max"], strict=True)
    ]
    blocks = stages.groupby(part)["blocks"].agg(", ".join)
    return stages.groupby(part).first().assign(stage=words, blocks=blocks)


def blocks_of(blocks: str, most: int) -> str:
    """The Blocks of a stage as the profile lists them, shortened to a number of characters."""
    return ends_of(blocks.split(", "), most)


def _stage(row: Any, between: str, most: int) -> str:
    """A stage and its Blocks, where it has any."""
    blocks = plain(blocks_of(row.blocks, most))
    return f"stage {row.stage}{between}{blocks}" if blocks else f"stage {row.stage}"


def stage_costs(stages: pd.DataFrame, clock: Clock, theme: Theme) -> Drawing:
    """Cycles of a micro-batch in each stage, which rebalancing should make equal.

    With many stages, adjacent ones of equal cycles share one bar.
    """
    mean = float(stages["cycles"].mean()) if len(stages) else 0.0
    if len(stages) > FEW:
        stages = _alike(stages)
    labels = [_stage(row, " · ", 26) for row in rows_of(stages)]
    layout = theme.frame(
        92 + 30 * max(1, len(labels)),
        barmode="stack",
        bargap=0.25,
        margin={"l": 64, "r": 88, "t": 46, "b": 44},
        xaxis={"title": {"text": f"{clock.unit} a micro-batch"}, "rangemode": "tozero"},
        yaxis={"autorange": "reversed", "type": "category", "showgrid": False},
    )
    bars: list[dict[str, Any]] = []
    parts = {
        Direction.FORWARD: "forward_cycles",
        Direction.RECOMPUTE: "recompute_cycles",
        Direction.BACKWARD: "backward_cycles",
    }
    total = stages["forward_cycles"].to_numpy() + stages["backward_cycles"].to_numpy()
    for name, column in parts.items():
        cycles = stages[column].to_numpy()
        if name == "backward":  # which contains the recomputation
            cycles = cycles - stages["recompute_cycles"].to_numpy()
        if not cycles.any():
            continue
        code = themes.NAMES.index(name)
        bars.append(
            {
                "type": "bar",
                "name": name,
                "x": cycles * clock.scale,
                "y": labels,
                "orientation": "h",
                "marker": _marker(code, theme),
                "customdata": [
                    f"{label}: {name}<br>{clock.both(c)}"
                    for label, c in zip(labels, cycles, strict=True)
                ],
                "hovertemplate": "%{customdata}<extra></extra>",
            }
        )
    figure = Drawing(bars, layout)
    if len(total):
        at, line = mean * clock.scale, {"color": theme.text, "dash": "dot", "width": 1}
        notes = [above(at, f"mean {clock.short(mean)}", theme.muted)]
        for label, cycles in zip(labels, total, strict=True):
            colour = theme.limit if cycles == total.max() > mean else theme.muted
            notes.append(beside(label, f"{cycles / mean if mean else 0:.2f} × mean", colour))
        legend = {
            "x": 1,
            "xanchor": "right",
            "y": 1,
            "yref": "container",
            "yanchor": "top",
            "traceorder": "normal",
        }
        figure.update_layout(legend=legend, shapes=[vertical(at, line)], annotations=notes)
    return figure


# -- the lanes' pieces ---


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


def _marker(code: int, theme: Theme) -> dict[str, Any]:
    activity = ACTIVITIES[code]
    marker: dict[str, Any] = {"color": activity.colour(theme), "line": {"width": 0}}
    if activity.edge(theme):
        marker["line"] = {"width": 1, "color": activity.edge(theme)}
    if activity.pattern:
        stroke = ACTIVITIES[themes.NAMES.index("forward")].colour(theme)
        marker["pattern"] = {
            "shape": activity.pattern,
            "fgcolor": stroke,
            "bgcolor": activity.colour(theme),
            "size": 6,
            "solidity": 0.25,
        }
    return marker


def _text_colour(code: int, theme: Theme) -> str:
    return themes.text_on(ACTIVITIES[code].colour(theme))


def _traces(
    lanes: Lanes, clock: Clock, theme: Theme, low: float, high: float, pixels: int
) -> list[dict[str, Any]]:
    """The tasks and, beneath them, the steps of all lanes."""
    finest = _likely_level(lanes, clock, low, high, pixels)
    tasks, steps = _drawn(lanes, clock, low, high, pixels, finest)
    for _ in range(_ATTEMPTS):
        coarser = max(tasks.coarser(finest, DRAWN), steps.coarser(finest, DRAWN))
        if coarser == finest:
            break
        finest = coarser
        tasks, steps = _drawn(lanes, clock, low, high, pixels, finest)
    looks = {code: look(code, _marker(code, theme), theme) for code in range(len(ACTIVITIES))}
    traces = tasks.traces(looks)
    named = {trace["name"] for trace in traces}
    for trace in steps.traces(looks):
        if trace["name"] in named:
            trace["showlegend"] = False
        traces.append(trace)
    order = {activity.name: code for code, activity in enumerate(ACTIVITIES)}
    return sorted(traces, key=lambda trace: order[trace["name"]])


def judged_by(rows: Sequence[int], count: int) -> Sequence[int]:
    """The rows that tell the level of detail: some of them, where they have very many slices."""
    few = len(rows) <= _JUDGED_BY or count < _MANY_SLICES
    return rows if few else rows[_JUDGED_BY // 2 :: _JUDGED_BY]


def _likely_level(lanes: Lanes, clock: Clock, low: float, high: float, pixels: int) -> float:
    """A level of detail that is light enough, judged by one of a few lanes where they have many."""
    finest, count = float(FINEST), len(lanes.task_rows)
    some = judged_by(range(count), len(lanes.step_rows.start))
    if len(some) == count:
        return finest
    canvases = _drawn(lanes, clock, low, high, pixels, finest, some)
    return max(canvas.coarser(finest, count / len(some)) for canvas in canvases)


def _drawn(
    lanes: Lanes,
    clock: Clock,
    low: float,
    high: float,
    pixels: int,
    finest: float,
    some: Iterable[int] | None = None,
) -> tuple[Canvas, Canvas]:
    """Tasks, steps and I/O tile work at a level of detail, of all lanes or of ``some``."""
    few = (
        _shown_tasks(lanes, low, high) <= _MOST_BARS
    )  # then narrow ones have their hatching and their numbers, too
    tasks = Canvas((high - low) / pixels, lanes.origin, clock.scale, 3 if few else WIDE)
    steps = Canvas((high - low) / pixels, lanes.origin, clock.scale)
    for lane in range(len(lanes.task_rows)) if some is None else some:
        rows = lanes.task_rows
        pieces, shown = rows.around(lane, low, high, pixels, finest=finest)
        wide = tasks.add(rows, pieces, lane + _TASK[0], _TASK[1])
        bars = pieces.where(wide)
        words = _numbers(lanes, bars, shown[wide], tasks.cycles_a_pixel)
        hover = _task_words(lanes, bars, clock, rows)
        tasks.add_bars(bars, lane + _TASK[0], _TASK[1], hover, words)
        rows = lanes.step_rows
        pieces, _ = rows.around(lane, low, high, pixels, finest=finest)
        bars = pieces.where(steps.add(rows, pieces, lane + _STRIP[0], _STRIP[1]))
        hover = _step_words(lanes, bars, clock)
        steps.add_bars(bars, lane + _STRIP[0], _STRIP[1], hover, [""] * len(bars))
        rows = lanes.beside_rows
        pieces, _ = rows.around(lane, low, high, pixels, finest=finest)
        bars = pieces.where(steps.add(rows, pieces, lane + _BESIDE[0], _BESIDE[1]))
        hover = _task_words(lanes, bars, clock, rows)
        steps.add_bars(bars, lane + _BESIDE[0], _BESIDE[1], hover, [""] * len(bars))
    return tasks, steps


def _shown_tasks(lanes: Lanes, low: float, high: float) -> int:
    rows = lanes.task_rows
    return sum(
        span.stop - span.start
        for span in (
            inside(rows.start[here], rows.end[here], low, high)
            for here in map(rows.of, range(len(rows)))
        )
    )


def _task_words(lanes: Lanes, found: Pieces, clock: Clock, rows_of_lanes: Rows) -> list[str]:
    at = rows_of_lanes.source[found.first]
    names = ("name", "micro_batch", "cycles", "pipeline_cycle", "phase")
    columns = (lanes.tasks[name].array.take(at).tolist() for name in names)
    lines = []
    for name, batch, cycles, cycle, phase in zip(*columns, strict=True):
        lines.append(
            text_of(
                [
                    f"<b>{plain(name)}</b>",
                    f"micro-batch {batch}" if batch >= 0 else "",
                    clock.both(cycles),
                    f"pipeline cycle {cycle}, {phase}" if phase else "",
                ]
            )
        )
    return lines


def _step_words(lanes: Lanes, found: Pieces, clock: Clock) -> list[str]:
    steps, named = lanes.steps, lanes.steps.named
    at = lanes.step_rows.source[found.first]
    names, kinds = named.name[steps.what[at]], [named.kinds[kind] for kind in steps.kind[at]]
    lengths = steps.end[at] - steps.start[at]
    lines = []
    for name, kind, length in zip(names.tolist(), kinds, lengths.tolist(), strict=True):
        label = plain(shortened(name or kind))
        lines.append(text_of([f"<b>{label}</b>", f"{kind}, {clock.both(length)}"]))
    return lines


def _numbers(lanes: Lanes, found: Pieces, shown: np.ndarray, cycles_a_pixel: float) -> list[str]:
    """Micro-batch numbers, where they fit into their bar."""
    batch = lanes.tasks["micro_batch"].to_numpy()[lanes.task_rows.source[found.first]]
    width = (found.end - found.start) / max(cycles_a_pixel, 1e-9)
    large = shown & (found.code < COMPUTE)  # what moves a micro-batch through its stage
    return [
        str(number) if show and number >= 0 and room >= _DIGIT * len(str(number)) + _APART else ""
        for number, room, show in zip(batch.tolist(), width.tolist(), large.tolist(), strict=True)
    ]


def critical(
    path: CriticalPath,
    clock: Clock,
    theme: Theme,
    window: tuple[float, float],
    below: float = _SLOWEST_AT,
) -> list[dict[str, Any]]:
    """The critical path between two cycles: a line below its current IPU, arrows between IPUs.

    With more than `_MOST_HOPS` arrows in view none are drawn: they would hide the lanes.
    """
    low, high = window
    margin = (high - low) / 2
    shown = inside(path.start, path.end, low - margin, high + margin)
    if shown.stop <= shown.start:
        return []
    start, end = path.start[shown] * clock.scale, path.end[shown] * clock.scale
    level = path.ipu[shown] + below
    gap = np.full(len(start), np.nan)
    hops = len(start) - 1
    drawn: list[dict[str, Any]] = [
        {
            "type": "scatter",
            "x": np.stack([start, end, gap], axis=1).ravel(),
            "y": np.repeat(level, 3),
            "mode": "lines",
            "line": {"color": theme.limit, "width": 3},
            "name": "critical path",
            "legendgroup": "critical path",
            "hoverinfo": "skip",
            "connectgaps": False,
        }
    ]
    if 0 < hops <= _MOST_HOPS:
        drawn.append(_hops(start[1:], level[:-1], level[1:], theme))
    return drawn


def _hops(x: np.ndarray, before: np.ndarray, after: np.ndarray, theme: Theme) -> dict[str, Any]:
    """Arrows from the IPU whose work ends to the one that waited for it."""
    return {
        "type": "scatter",
        "x": np.stack([x, x, np.full(len(x), np.nan)], axis=1).ravel(),
        "y": np.stack([before, after, np.full(len(x), np.nan)], axis=1).ravel(),
        "mode": "lines+markers",
        "line": {"color": theme.limit, "width": 1},
        "marker": {
            "symbol": "arrow",
            "angleref": "previous",
            "size": np.tile([0, 9, 0], len(x)),
            "color": theme.limit,
            "line": {"width": 0},  # else plotly draws one in the page's colour
        },
        "name": "critical path",
        "legendgroup": "critical path",
        "showlegend": False,
        "hoverinfo": "skip",
        "connectgaps": False,
    }


def _phases(
    figure: Drawing,
    lanes: Lanes,
    clock: Clock,
    theme: Theme,
    low: float,
    high: float,
    pixels: int,
) -> None:
    """Shade ramp-up and ramp-down; number the pipeline cycles and separate them by thin lines."""
    cycles = lanes.cycles
    phases, starts, stops = (cycles[name].tolist() for name in ("phase", "start", "end"))
    first = [at for at, phase in enumerate(phases) if not at or phase != phases[at - 1]]
    cycles_a_pixel = (high - low) / pixels
    shades, notes = list[tuple[float, float]](), []
    for at, behind in zip(first, [*first[1:], len(phases)], strict=True):
        phase, start, end = phases[at], starts[at], stops[behind - 1]
        left, right = (
            (max(start, low) - lanes.origin) * clock.scale,
            (min(end, high) - lanes.origin) * clock.scale,
        )
        if right <= left:
            continue
        if phase != PipelinePhase.STEADY:
            span = (start - lanes.origin) * clock.scale, (end - lanes.origin) * clock.scale
            if shades and shades[-1][1] == span[0]:  # one ends where the next begins
                span = shades.pop()[0], span[1]
            shades.append(span)
        room = (right - left) / clock.scale / cycles_a_pixel
        label = f"<b>{phase}</b> {clock.short(end - start)}"
        if room > 7 * (len(label) - 7):
            notes.append(_note((left + right) / 2, 1.0, label, theme.text, 22, 12))
        elif room > 7 * len(phase):
            notes.append(_note((left + right) / 2, 1.0, f"<b>{phase}</b>", theme.text, 22, 12))
    shapes = _rectangles(shades, theme.shade)
    shown = cycles[(cycles["end"] > low) & (cycles["start"] < high)]
    thin = {"color": theme.line, "width": 1}
    if len(shown) <= pixels // 24:
        for row in rows_of(shown):
            left, right = max(row.start, low) - lanes.origin, min(row.end, high) - lanes.origin
            if (right - left) / cycles_a_pixel >= _DIGIT * len(str(row.position)) + 4:
                notes.append(
                    _note(
                        (left + right) / 2 * clock.scale, 1.0, str(row.position), theme.muted, 6, 11
                    )
                )
            rule = vertical((row.start - lanes.origin) * clock.scale, thin)
            shapes.append({**rule, "layer": "below"})
    figure.update_layout(shapes=shapes, annotations=notes)


def _rectangles(spans: Sequence[tuple[float, float]], colour: str) -> list[dict[str, Any]]:
    """The shades of spans of time; of many, as one shape: plotly takes long for each."""
    style = {"yref": "paper", "fillcolor": colour, "line": {"width": 0}, "layer": "below"}
    if len(spans) <= _MOST_SHADES:
        return [
            {"type": "rect", "x0": left, "x1": right, "y0": 0, "y1": 1, **style}
            for left, right in spans
        ]
    path = " ".join(f"M{left},0V1H{right}V0Z" for left, right in spans)
    return [{"type": "path", "path": path, **style}]


def _note(x: float, y: float, words: str, colour: str, shift: int, size: int) -> dict[str, Any]:
    return {
        "x": x,
        "y": y,
        "yref": "paper",
        "yanchor": "middle",
        "yshift": shift,
        "text": words,
        "showarrow": False,
        "font": {"color": colour, "size": size},
    }


def _path(lanes: Lanes, clock: Clock, theme: Theme, micro_batch: int) -> list[dict[str, Any]]:
    """The path of one micro-batch: an arrow from the end of each task to the start of the next."""
    code = codes(lanes.tasks, by_direction=True)
    tasks = lanes.tasks[(lanes.tasks["micro_batch"] == micro_batch).to_numpy() & (code < COMPUTE)]
    tasks = tasks.sort_values(["iteration", "start"], kind="stable")
    times = tasks[["start", "end"]].to_numpy(np.float64).ravel() - lanes.origin
    first = np.arange(len(times)) % 2 == 0
    return [
        {
            "type": "scatter",
            "x": times * clock.scale,
            "y": np.repeat(lanes.lane[tasks["ipu"].to_numpy()], 2) + _TASK[0],
            "mode": "lines+markers",
            "line": {"color": theme.text, "width": 1.5},
            "marker": {
                "symbol": "arrow",
                "size": np.where(first & (np.arange(len(times)) > 0), 12, 0),
                "angleref": "previous",
                "color": theme.text,
                "line": {"width": 0},
            },
            "name": f"micro-batch {micro_batch}",
            "hoverinfo": "skip",
        }
    ]


def _label_width(labels: Sequence[str]) -> int:
    """About how wide the widest line in the lanes' labels is, in pixels."""
    widest = 6 * _BOLD
    for label in labels:
        for at, line in enumerate(label.split("<br>")):
            words = html.unescape(re.sub("<[^>]*>", "", line))
            widest = max(widest, len(words) * (_SMALL if at else _BOLD))
    return round(widest)


def _layout(
    lanes: Lanes, clock: Clock, theme: Theme, low: float, high: float, width: int
) -> dict[str, Any]:
    count = max(1, len(lanes.labels))
    scale = clock.scale
    height = max(3, min(LANE, 900 // count))
    whole = height >= _TWO_LINES and _label_width(lanes.labels) <= _WHOLE_LABELS * width
    names = lanes.labels if whole else lanes.names
    labels = [one.mark + name for one, name in zip(lanes.arranged, names, strict=True)]
    every = -(-_LINE // height)
    return theme.frame(
        # top: legend, phases, cycle numbers; bottom: the axis
        height * count + 160,
        barmode="overlay",
        margin={"l": 34 + _label_width(labels), "r": 16, "t": 104, "b": 48},
        xaxis={
            "range": [(low - lanes.origin) * scale, (high - lanes.origin) * scale],
            "title": {"text": clock.title},
            "showgrid": False,
            "ticks": "outside",
            "tickcolor": theme.line,
            "exponentformat": "SI",
        },
        yaxis={
            "range": [count - 0.45, -0.5],
            "tickvals": list(range(0, count, every)),
            "ticktext": labels[::every],
            "fixedrange": True,
            "showgrid": False,
            "zeroline": False,
            "automargin": False,
        },
    )
