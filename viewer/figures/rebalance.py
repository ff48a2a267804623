"""Blocks in their stages, and a predicted schedule as a pipeline picture."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import plotly.graph_objects as go

from profiler import records, schedules
from profiler.enums import Direction
from profiler.rebalance import Costs, Prediction
from viewer.figures.pipeline import Lanes, lanes
from viewer.figures.theme import Theme, text_on
from viewer.figures.units import Clock, plain, shortened

if TYPE_CHECKING:
    import pandas as pd

_SHADES = {"light": ("#0072b2", "#3a93c9"), "dark": ("#3d9be0", "#3f83b5")}  # neighbours apart
_DIRECTION = {
    schedules.FORWARD: Direction.FORWARD,
    schedules.BACKWARD: Direction.BACKWARD,
    schedules.UPDATE: Direction.UPDATE,
    schedules.RECOMPUTE: Direction.RECOMPUTE,
}
_KIND = {
    schedules.COPY: "global exchange",
    schedules.REDUCE: "global exchange",
    schedules.SYNC: "external sync",
    schedules.IDLE: "idle",
    schedules.STREAM_IN: "host I/O",
    schedules.STREAM_OUT: "host I/O",
    schedules.LOAD: records.BESIDE,
    schedules.UNLOAD: records.BESIDE,
}


def stages(
    costs: Costs, prediction: Prediction, profiled: int, clock: Clock, theme: Theme
) -> go.Figure:
    """A bar a stage, made of its Blocks; what is no Block's (stash, recomputation) at its end.

    ``profiled``: cycles of the slowest stage as it was profiled, drawn as a line.
    """
    spans = prediction.assignment.spans(len(costs))
    labels = [f"stage {k} · IPU {ipu}" for k, ipu in enumerate(prediction.assignment.ipus)]
    figure = go.Figure()
    own = costs.cycles.work
    for k, (first, last) in enumerate(spans):
        done = 0
        for block in range(first, last + 1):
            cycles = int(own[block])
            figure.add_bar(
                y=[labels[k]],
                x=[cycles * clock.scale],
                base=[done * clock.scale],
                orientation="h",
                marker={
                    "color": _SHADES[theme.name][block % 2],
                    "line": {"width": 1, "color": theme.card},
                },
                text=[plain(shortened(costs.names[block], 18))],
                textposition="inside",
                insidetextanchor="middle",
                textangle=0,
                textfont={"color": text_on(_SHADES[theme.name][block % 2]), "size": 12},
                hovertemplate=(
                    f"<b>{plain(costs.names[block])}</b><br>"
                    f"forward {costs.cycles.forward[block]:,},"
                    f" backward {costs.cycles.backward[block]:,} cycles<extra></extra>"
                ),
                showlegend=False,
            )
            done += cycles
        rest = int(prediction.stage_cycles[k]) - done
        if rest > 0:
            figure.add_bar(
                y=[labels[k]],
                x=[rest * clock.scale],
                base=[done * clock.scale],
                orientation="h",
                marker={
                    "color": theme.line,
                    "pattern": {
                        "shape": "/",
                        "fgcolor": theme.muted,
                        "bgcolor": theme.line,
                        "size": 6,
                    },
                },
                hovertemplate=f"recomputation and stash<br>{clock.both(rest)}<extra></extra>",
                showlegend=False,
            )
    figure.add_vline(
        x=profiled * clock.scale,
        line={"color": theme.limit, "dash": "dash", "width": 1.5},
        annotation={
            "text": f"slowest as profiled {clock.short(profiled)}",
            "font": {"size": 11, "color": theme.limit},
            "yanchor": "bottom",
            "xanchor": "right",
        },
    )
    top = max(profiled, int(prediction.stage_cycles.max())) * 1.04 * clock.scale
    figure.update_layout(
        theme.layout(
            84 + 40 * len(labels),
            barmode="overlay",
            bargap=0.22,
            margin={"l": 64, "r": 16, "t": 26, "b": 44},
            xaxis={
                "title": {"text": f"{clock.unit} a micro-batch (hatched: recomputation and stash)"},
                "range": [0, top],
            },
            yaxis={"autorange": "reversed", "type": "category", "showgrid": False},
        )
    )
    return figure


def predicted_lanes(costs: Costs, prediction: Prediction) -> Lanes:
    """A predicted schedule, ready for `viewer.figures.pipeline.pipeline`."""
    import pandas as pd

    schedule = prediction.schedule
    phases = np.array([*schedule.phases, ""], dtype=object)
    kind = [_KIND.get(code, "task") for code in schedule.kind.tolist()]
    direction = [_DIRECTION.get(code, "") for code in schedule.kind.tolist()]
    stage = schedule.stage.tolist()
    names = [
        f"stage {k} {d}" if d and k >= 0 else (d or what)
        for k, d, what in zip(stage, direction, kind, strict=True)
    ]
    tasks = pd.DataFrame(
        {
            "iteration": 0,
            "pipeline_cycle": schedule.cycle,
            "phase": phases[schedule.cycle],
            "ipu": schedule.ipu,
            "name": names,
            "kind": kind,
            "direction": direction,
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
    blocks = [
        ", ".join(costs.names[first : last + 1])
        for first, last in prediction.assignment.spans(len(costs))
    ]
    where = pd.DataFrame(
        {"stage": range(len(blocks)), "ipu": prediction.assignment.ipus, "blocks": blocks}
    )
    return lanes(tasks, _no_steps(tasks), cycles, where)


def _no_steps(tasks: pd.DataFrame) -> pd.DataFrame:
    return tasks.iloc[:0].assign(step=-1)
