"""Blocks in their stages, and a predicted schedule drawn as a pipeline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ipuscope.planner.costs.profile_costs import Costs
from ipuscope.planner.predict.what_if import Assignment, Prediction
from ipuscope.profiler.enums import Direction
from ipuscope.profiler.file import records
from ipuscope.profiler.report.frames import first_of_each
from ipuscope.profiler.timeline import schedule_types
from ipuscope.profiler.timeline.executed_steps import Executed
from ipuscope.profiler.timeline.schedule_types import Schedule
from ipuscope.viewer.figures.drawing import NAMES_DOWN, Drawing, above, axis, bar, vertical
from ipuscope.viewer.figures.lanes import FEW, CriticalPath, Lanes, lanes
from ipuscope.viewer.figures.lanes import spans as on_ipus
from ipuscope.viewer.figures.theme import Theme, text_on
from ipuscope.viewer.figures.units import Clock, as_array, plain, shortened

if TYPE_CHECKING:
    import pandas as pd

_SHADES = {"light": ("#0072b2", "#3a93c9"), "dark": ("#3d9be0", "#3f83b5")}  # neighbours apart
_DIRECTION = {
    schedule_types.FORWARD: Direction.FORWARD,
    schedule_types.BACKWARD: Direction.BACKWARD,
    schedule_types.UPDATE: Direction.UPDATE,
    schedule_types.RECOMPUTE: Direction.RECOMPUTE,
}
_KIND = {
    schedule_types.COPY: "global exchange",
    schedule_types.REDUCE: "global exchange",
    schedule_types.SYNC: "external sync",
    schedule_types.IDLE: "idle",
    schedule_types.STREAM_IN: "host I/O",
    schedule_types.STREAM_OUT: "host I/O",
    schedule_types.LOAD: records.BESIDE,
    schedule_types.UNLOAD: records.BESIDE,
}


def stages(
    costs: Costs, prediction: Prediction, profiled: int, clock: Clock, theme: Theme
) -> Drawing:
    """One bar per stage, made of its Blocks; costs of no Block (stash, recomputation) at its end.

    Of many stages, adjacent ones whose Blocks take equal cycles share a bar. ``profiled``: cycles
    of the slowest profiled stage, a line where it sets the pace.
    """
    spans = prediction.assignment.spans(len(costs))
    shown = _alike(costs, prediction) if len(spans) > FEW else [[k] for k in range(len(spans))]
    labels = [_label(prediction, group) for group in shown]
    # a trace a shade, not one a Block: plotly takes a millisecond for each
    bars: tuple[list[Any], ...] = ([], [])
    rests = []
    own = costs.cycles.work
    for label, group in zip(labels, shown, strict=True):
        k, (first, last) = group[0], spans[group[0]]
        done = 0
        for block in range(first, last + 1):
            cycles = int(own[block])
            hover = (
                f"<b>{plain(_name(costs, spans, group, block, 60))}</b><br>"
                f"forward {costs.cycles.forward[block]:,},"
                f" backward {costs.cycles.backward[block]:,} cycles"
            )
            name = plain(_name(costs, spans, group, block))
            bars[block % 2].append((label, cycles, done, name, hover))
            done += cycles
        rest = int(prediction.stage_cycles[k]) - done
        if rest > 0:
            hover = f"recomputation and stash<br>{clock.both(rest)}"
            rests.append((label, rest, done, "", hover))
    looks: list[tuple[dict[str, Any], str]] = [
        ({"color": one, "line": {"width": 1, "color": theme.card}}, text_on(one))
        for one in _SHADES[theme.name]
    ]
    hatch = {"shape": "/", "fgcolor": theme.muted, "bgcolor": theme.line, "size": 6}
    frame = {"width": 0.5, "color": theme.muted}
    hatched = {"color": theme.line, "pattern": {**hatch, "solidity": 0.2}, "line": frame}
    looks.append((hatched, ""))
    drawn = [
        _bars(several, marker, clock, colour)
        for several, (marker, colour) in zip([*bars, rests], looks, strict=True)
        if several
    ]
    top = max(profiled, int(prediction.stage_cycles.max())) * 1.04 * clock.scale
    layout = theme.frame(
        104 + 40 * len(labels),
        barmode="overlay",
        bargap=0.22,
        uniformtext={"minsize": 9, "mode": "hide"},
        margin={"l": 64, "r": 16, "t": 46, "b": 44},  # the toolbar above the line's name
        xaxis=axis(f"{clock.unit} a micro-batch", range=[0, top]),
        yaxis={**NAMES_DOWN, "categoryorder": "array", "categoryarray": labels},
    )
    if costs.pipelined:
        at, line = profiled * clock.scale, {"color": theme.limit, "dash": "dash", "width": 1.5}
        words = f"slowest as profiled {clock.short(profiled)}"
        note = above(at, words, theme.limit, xanchor="right")
        layout |= {"shapes": [vertical(at, line)], "annotations": [note]}
    return Drawing(drawn, layout)


def _bars(
    bars: list[tuple[str, int, int, str, str]], marker: dict[str, Any], clock: Clock, colour: str
) -> dict[str, Any]:
    """Bars of one look: label, cycles, begin, text on them (of ``colour``, if any), hover text."""
    labels, cycles, begin, text, hover = zip(*bars, strict=True)
    written = {
        "text": as_array(text),
        "textposition": "inside",
        "insidetextanchor": "middle",
        "textangle": 0,
        "textfont": {"color": colour, "size": 12},
    }
    look = {"marker": marker, "showlegend": False, **(written if colour else {})}
    at = {"base": np.array(begin) * clock.scale}
    return bar(as_array(labels), np.array(cycles) * clock.scale, as_array(hover), **at, **look)


def _alike(costs: Costs, prediction: Prediction) -> list[list[int]]:
    """Runs of adjacent stages whose Blocks, one by one, take the same cycles."""
    work, whole = costs.cycles.work, prediction.stage_cycles
    groups: list[list[int]] = []
    before: tuple[int, ...] = ()
    for k, (first, last) in enumerate(prediction.assignment.spans(len(costs))):
        cycles = (int(whole[k]), *work[first : last + 1].tolist())
        if groups and cycles == before:
            groups[-1].append(k)
        else:
            groups.append([k])
        before = cycles
    return groups


def _label(prediction: Prediction, group: list[int]) -> str:
    ipus = sorted({prediction.assignment.ipus[k] for k in group})
    which = f"{group[0]}–{group[-1]}" if len(group) > 1 else str(group[0])
    return f"stage {which} · {on_ipus(np.array(ipus))}"


def _name(
    costs: Costs, spans: list[tuple[int, int]], group: list[int], block: int, most: int = 18
) -> str:
    """The range of Blocks from one of a group's first stage to its counterpart in the last."""
    last = spans[group[-1]][0] + block - spans[group[0]][0]
    name = costs.names[block]
    return shortened(name if block == last else f"{name} … {costs.names[last]}", most)


def predicted_lanes(
    costs: Costs, prediction: Prediction, path: CriticalPath | None = None
) -> Lanes:
    """A predicted schedule for `pipeline.drawing`; equal lanes of many fold; ``path``: if known."""
    return schedule_lanes(costs, prediction.assignment, prediction.schedule, path)


def schedule_lanes(
    costs: Costs, assignment: Assignment, schedule: Schedule, path: CriticalPath | None = None
) -> Lanes:
    """The same for any schedule of stages, such as `ipuscope.planner.schedules` has."""
    import pandas as pd

    tasks, cycles = frames_of(schedule)
    blocks = [
        ", ".join(costs.names[first : last + 1]) for first, last in assignment.spans(len(costs))
    ]
    where = pd.DataFrame({"stage": range(len(blocks)), "ipu": assignment.ipus, "blocks": blocks})
    fold = len(set(assignment.ipus)) > FEW
    return lanes(tasks, Executed.nothing(), cycles, where, fold, path=path)


def frames_of(schedule: Schedule) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Tasks and pipeline cycles of a schedule, as `Report.tasks` and `Report.pipeline_cycles`."""
    import pandas as pd

    # what tasks of one kind and stage are: as the bodies of a profile
    stages = int(schedule.stage.max(initial=-1)) + 2
    part = np.zeros_like(schedule.kind) if schedule.part is None else schedule.part
    first, body = first_of_each((schedule.kind * 2 + part) * stages + schedule.stage + 1)
    of_body = [(int(schedule.kind[row]), int(schedule.stage[row]), int(part[row])) for row in first]
    kind = [_KIND.get(code, "task") for code, _, _ in of_body]
    direction = [_DIRECTION.get(code, "") for code, _, _ in of_body]
    names = [
        f"stage {k} {'gradients of weights' if late else d}" if d and k >= 0 else (d or what)
        for (_, k, late), d, what in zip(of_body, direction, kind, strict=True)
    ]
    kinds, directions, named = (
        pd.array([*words, ""], dtype="str").take(body) for words in (kind, direction, names)
    )
    phase = pd.array([*schedule.phases, ""], dtype="str")
    tasks = pd.DataFrame(
        {
            "iteration": 0,
            "pipeline_cycle": schedule.cycle,
            "phase": phase.take(schedule.cycle),
            "ipu": schedule.ipu,
            "body": body,
            "name": named,
            "kind": kinds,
            "direction": directions,
            "stage": schedule.stage,
            "micro_batch": schedule.micro_batch,
            "start": schedule.start,
            "end": schedule.end,
            "cycles": schedule.end - schedule.start,
        }
    )
    cycles = pd.DataFrame(
        {
            "position": np.arange(len(schedule.phases)),
            "phase": list(schedule.phases),
            "start": schedule.cycle_start,
            "end": schedule.cycle_end,
            "slowest_ipu": schedule.slowest_ipu,
        }
    )
    return tasks, cycles
