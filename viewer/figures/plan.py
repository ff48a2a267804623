"""A plan: samples per second over the largest extent for every candidate, and the Pareto front."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from ipuscope.planner.mappings import Candidate, Plan
from ipuscope.planner.mappings.plan import SHARES
from ipuscope.profiler.units import per_second
from ipuscope.viewer.figures.theme import Theme

KIB = 1024
_HEIGHT = 460
# of numbers of IPUs in a replica; Okabe and Ito's colours, which the colour-blind tell apart
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#B0A000", "#808080")


def candidates(plan: Plan, theme: Theme, chosen: Sequence[int] = ()) -> go.Figure:
    """One point per candidate; ``chosen`` ones are ringed and named A and B.

    The ``customdata`` of a point is its position in the plan.
    """
    figure = go.Figure()
    pipelines = sorted({one.mapping.pipeline for one in plan.candidates})
    for number, pipeline in enumerate(pipelines):
        positions = [k for k, one in enumerate(plan.candidates) if one.mapping.pipeline == pipeline]
        figure.add_scatter(
            x=[_fullest(plan.candidates[k]) for k in positions],
            y=[plan.candidates[k].rate for k in positions],
            mode="markers",
            name=f"p = {pipeline}",
            customdata=positions,
            text=[hover(plan.candidates[k], k) for k in positions],
            hovertemplate="%{text}<extra></extra>",
            marker={
                "size": 11,
                "color": _COLOURS[number % len(_COLOURS)],
                "symbol": [_symbol(plan.candidates[k], number) for k in positions],
                "line": {"width": 1, "color": theme.card},
            },
        )
    front = pareto(plan.candidates)
    figure.add_scatter(
        x=[_fullest(plan.candidates[k]) for k in front],
        y=[plan.candidates[k].rate for k in front],
        mode="lines",
        name="Pareto front",
        hoverinfo="skip",
        line={"color": theme.muted, "width": 1, "dash": "dot", "shape": "vh"},
    )
    own = next((k for k, one in enumerate(plan.candidates) if one.own), None)
    for name, aside, k in zip("AB", (-16, 16), chosen, strict=False):
        also = " the script’s own" if k == own else ""
        figure.add_annotation(_label(plan.candidates[k], f"<b>{name}</b>{also}", aside))
    if own is not None and own not in chosen:
        figure.add_annotation(_label(plan.candidates[own], "the script’s own", 14))
    limit = plan.candidates[0].limit / KIB
    figure.add_vline(x=limit, line={"color": theme.limit, "width": 1, "dash": "dash"})
    figure.add_annotation(
        x=limit,
        y=0.02,
        yref="paper",
        xanchor="right",
        yanchor="bottom",
        text="all of a tile",
        showarrow=False,
        font={"color": theme.limit, "size": 12},
    )
    figure.update_layout(
        theme.layout(
            _HEIGHT,
            xaxis={"title": {"text": "largest extent of a tile, KiB"}},
            yaxis={"title": {"text": "samples a second"}, "rangemode": "tozero"},
            clickmode="event",
        )
    )
    return figure


def _label(one: Candidate, text: str, aside: int) -> dict[str, Any]:
    """An annotation above a point, so many pixels to its right or, below 0, to its left."""
    return {
        "x": _fullest(one),
        "y": one.rate,
        "text": text,
        "arrowwidth": 1,
        "ax": aside,
        "ay": -26,
        "xanchor": "left" if aside > 0 else "right",
    }


def _symbol(one: Candidate, number: int) -> str:
    """A cross for a candidate that does not run; another shape when colours repeat."""
    if not one.runs:
        return "x"
    return ("circle", "square", "diamond")[number // len(_COLOURS) % 3]


def _fullest(one: Candidate) -> float:
    nbytes = one.obtained.fullest if one.obtained is not None else one.fullest
    return (nbytes or one.fullest) / KIB


def pareto(every: Sequence[Candidate]) -> list[int]:
    """Positions of the candidates on the Pareto front of speed and memory, sorted by memory."""
    front: list[int] = []
    running = [k for k, one in enumerate(every) if one.runs]
    for k in sorted(running, key=lambda k: (_fullest(every[k]), -every[k].rate)):
        if not front or every[k].rate > every[front[-1]].rate:
            front.append(k)
    return front


def hover(one: Candidate, position: int) -> str:
    """The hover text that describes a point's mapping."""
    mapping = one.mapping
    shares = ", ".join(f"{name} {one.shares[name]:.0%}" for name in SHARES if one.shares[name])
    lines = [
        f"<b>{position + 1}: {per_second(one.rate)} samples/s</b>"
        f"{', compiled in full' if one.obtained is not None else ''}",
        f"t={mapping.shards} p={mapping.pipeline} r={mapping.replicas}, {mapping.attached} IPUs"
        + (f", {mapping.phases} phases" if mapping.in_phases else ""),
        f"Blocks {_short(mapping.split)}",
        f"micro-batch {mapping.micro_batch} x {mapping.accumulation}",
        f"recompute {mapping.recomputation}; state {mapping.state}",
        shares,
    ]
    return "<br>".join(lines[:1] + [html.escape(line) for line in lines[1:]])


def _short(words: str, most: int = 60) -> str:
    return words if len(words) <= most else f"{words[: most - 1]}…"
