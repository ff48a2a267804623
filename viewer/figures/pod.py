"""A map of a pod: racks side by side, a row an IPU-Machine, a cell an IPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import plotly.graph_objects as go

from ipuscope.viewer.figures.drawing import above, colour_bar
from ipuscope.viewer.figures.memory import colours_to
from ipuscope.viewer.figures.theme import Theme, between, text_on
from ipuscope.viewer.figures.units import as_array, percent, rows_of, shortened, size

if TYPE_CHECKING:
    import pandas as pd

_ROW, _ABOVE, _BELOW = 26, 46, 40  # pixels
_GAP = 0.3  # cells: to the next rack
_LETTER, _BESIDE_WORDS = 6.2, 14  # pixels: of the words left of a rack, and around them
_MOST_NUMBERS = 512  # IPUs with their number in the cell
_BESIDE = 102  # pixels beside the map: margins and the colours' bar
_LEAST_CELL = 24  # pixels: narrower ones have no room for a number


def pod_map(
    ipus: pd.DataFrame, share: np.ndarray, title: str, theme: Theme, pixels: int = 1000
) -> go.Figure:
    """Cells coloured by ``share`` (0 to 1, an entry an IPU); replicas are outlined.

    ``ipus``: `ipuscope.profiler.analysis.pod`. Left of a machine: replica (r), place in the
    pipeline (p) and shard (t) of its first IPU. What has no room in ``pixels`` is shown on
    hovering.
    """
    per_machine = int(ipus.groupby("machine").size().max())
    first_machine = ipus.groupby("rack")["machine"].transform("min")
    row = (ipus["machine"] - first_machine).to_numpy()
    place = ipus.groupby("machine").cumcount().to_numpy()
    rows = int(row.max()) + 1
    racks = int(ipus["rack"].max()) + 1
    names = _names(ipus)
    beside = _LETTER * max(map(len, names)) + _BESIDE_WORDS
    rack = (pixels - _BESIDE) / racks
    cell = (rack - beside) / (per_machine + _GAP)
    named = cell >= _LEAST_CELL
    if not named:
        cell = rack / (per_machine + 2 * _GAP)
    left = beside / cell if named else _GAP
    width = left + per_machine + _GAP
    x = ipus["rack"].to_numpy() * width + left + place + 0.5
    figure = go.Figure(
        layout=theme.frame(
            _ABOVE + _BELOW + _ROW * max(4, rows),
            margin={"l": 12, "r": _BESIDE - 12, "t": _ABOVE, "b": 12},
            xaxis={"visible": False, "range": [0, width * racks]},
            yaxis={"visible": False, "range": [rows + 0.05, -0.05]},
            showlegend=False,
            hovermode="closest",
            annotations=[
                above(one * width + left, f"<b>rack {one}</b>", theme.text, size=13, xanchor="left")
                for one in range(racks)
            ],
        )
    )
    fills = _cells(figure, ipus, share, x, row, title)
    if len(ipus) <= _MOST_NUMBERS and cell >= _LEAST_CELL:
        # in per cent, black or white as is more readable on the cell's fill
        font = {"size": 12, "color": [text_on(fill) for fill in fills]}
        _words(figure, x, row + 0.5, as_array([f"{100 * one:.0f}" for one in share]), font)
    if named:
        firsts = ipus.assign(row=row).drop_duplicates("machine")
        left_of = firsts["rack"] * width + left - 6 / cell
        font = {"size": 11, "color": theme.muted}
        _words(figure, left_of, firsts["row"] + 0.5, names, font, textposition="middle left")
    _outlines(figure, ipus, x, row, theme)
    return figure


def _cells(
    figure: go.Figure,
    ipus: pd.DataFrame,
    share: np.ndarray,
    x: np.ndarray,
    row: np.ndarray,
    title: str,
) -> list[str]:
    """The IPUs, as a heat map over a grid with gaps; the colour of each."""
    columns, at = np.unique(x, return_inverse=True)
    # gaps between racks are columns of their own, without values
    edges = np.unique(np.round(np.concatenate([columns - 0.5, columns + 0.5]), 6))
    column = np.searchsorted(edges, np.round(columns - 0.5, 6))[at]
    shape = (int(row.max()) + 1, len(edges) - 1)
    most = max(1.0, float(share.max(initial=0)))  # of memory it may be more than all of it
    colours = colours_to(most, 1.0)
    values = np.full(shape, np.nan)
    about = np.full((*shape, 2), "", dtype=object)
    values[row, column] = 100 * share
    about[row, column, 0] = [_about(one) for one in rows_of(ipus)]
    about[row, column, 1] = ipus["number"].to_numpy()
    figure.add_heatmap(
        x=edges,
        y=np.arange(shape[0] + 1),
        z=values,
        customdata=about,
        hovertemplate="%{customdata[0]}<extra></extra>",
        hoverongaps=False,
        colorscale=colours,
        zmin=0,
        zmax=100 * most,
        xgap=2,
        ygap=2,
        colorbar=colour_bar(title, "right", tickfont={"size": 11}, ticksuffix="%", thickness=12),
    )
    shades = {one: between(colours, one / most) for one in set(share.tolist())}  # IPUs are alike
    return [shades[one] for one in share.tolist()]


def _words(
    figure: go.Figure, x: Any, y: Any, words: Any, font: dict[str, Any], **more: Any
) -> None:
    """Texts at places of the map."""
    figure.add_scatter(x=x, y=y, text=words, mode="text", textfont=font, hoverinfo="skip", **more)


def _about(ipu: Any) -> str:
    """What hovering says of an IPU."""
    return (
        f"<b>IPU {ipu.number} of the pod</b><br>rack {ipu.rack}, machine {ipu.machine}<br>"
        f"replica r{ipu.replica}, in the pipeline p{ipu.ipu}, shard t{ipu.shard}<br>"
        f"stages {shortened(ipu.stages, 40)}<br>busy {percent(ipu.busy)},"
        f" fullest tile {percent(ipu.memory)}<br>{size(ipu.link_bytes)} over links"
    )


def _names(ipus: pd.DataFrame) -> list[str]:
    """Names of the machines, by their first IPUs."""
    spans = ipus["shard"].nunique() > ipus.groupby("machine")["shard"].nunique().max()
    return [
        f"r{one.replica} p{one.ipu}" + (f" t{one.shard}" if spans else "")
        for one in rows_of(ipus.drop_duplicates("machine"))
    ]


def _outlines(
    figure: go.Figure, ipus: pd.DataFrame, x: np.ndarray, row: np.ndarray, theme: Theme
) -> None:
    """A frame around each replica's machines, where machines have one replica."""
    placed = ipus.assign(x=x, row=row)
    if placed.groupby("machine")["replica"].nunique().max() > 1 or placed["replica"].nunique() < 2:
        return
    ends = placed.groupby(["rack", "replica"]).agg(
        left=("x", "min"), right=("x", "max"), top=("row", "min"), bottom=("row", "max")
    )
    figure.update_layout(
        shapes=[
            {
                "type": "rect",
                "x0": one.left - 0.5,
                "x1": one.right + 0.5,
                "y0": one.top,
                "y1": one.bottom + 1,
                "line": {"color": theme.text, "width": 1.5},
            }
            for one in rows_of(ends)
        ]
    )
