"""Bar charts without plotly, so that the first page need not wait for the browser to load it.

They show the figures of other pages (`ipuscope.viewer.figures`); assets/viewer.js saves them, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from html import unescape
from types import MappingProxyType
from typing import Any

import numpy as np
from dash import dcc, html

from ipuscope.viewer.figures import units
from ipuscope.viewer.figures.bars import SPACER
from ipuscope.viewer.figures.drawing import Drawing
from ipuscope.viewer.pages import common

_WORDS = 0.3  # of the width: a shorter bar has its text behind it
_TICKS = 6  # at the most


def bars_card(
    title: str,
    id: str,
    figure: Drawing,
    *more: Any,
    note: str = "",
    links: Mapping[str, str] = MappingProxyType({}),
) -> Any:
    """A card with a chart of horizontal, stacked bars. ``links``: addresses, by names of bars."""
    return common.card(title, bars(id, figure, links), *more, note=note, tools=True)


def bars(id: str, figure: Drawing, links: Mapping[str, str] = MappingProxyType({})) -> Any:
    """The horizontal bars of ``figure`` as elements of the page, with names and end labels.

    Vertical lines with an annotation at their place become marks; annotations at the right edge
    become the text behind each bar.
    """
    traces = [trace for trace in figure.data if trace["type"] == "bar"]
    labels = list(dict.fromkeys(label for trace in traces for label in trace["y"]))
    at = {label: position for position, label in enumerate(labels)}
    values = np.zeros((len(traces), len(labels)))
    for index, trace in enumerate(traces):
        values[index, [at[label] for label in trace["y"]]] = np.asarray(trace["x"], dtype=float)
    span = figure.layout["xaxis"].get("range")
    most = float(span[1]) if span else float(values.sum(axis=0).max(initial=0)) * 1.02
    ends = {note["y"]: note for note in _notes(figure) if note.get("xref") == "paper"}
    rows = []
    pieces_of: dict[str, list[Any]] = {label: [] for label in labels}
    for index, trace in enumerate(traces):
        for position, label in enumerate(trace["y"]):
            if (value := values[index, at[label]]) > 0:
                pieces_of[label].append(_piece(trace, position, value, most))
    alone = len(traces) == 1
    for label in labels:
        pieces = pieces_of[label]
        if alone and values[0, at[label]] < _WORDS * most:
            pieces = _outside(pieces)
        cells = [
            html.Span(
                dcc.Link(unescape(label), href=links[label]) if label in links else unescape(label),
                className="label",
                title=unescape(label),
            ),
            html.Div(pieces),
        ]
        if label in ends:
            cells.append(
                html.Span(
                    unescape(ends[label]["text"]),
                    className="end",
                    style={"color": ends[label]["font"]["color"]},
                )
            )
        rows.append(html.Div(cells, className="bar"))
    unit: Any = {"data-unit": _unit(figure)}
    names = [trace for trace in traces if trace.get("name")]
    legend = [
        html.Span([html.I(style=_fill(trace["marker"], 0)), trace["name"]]) for trace in names
    ]
    return html.Div(
        [
            html.Div(legend, className="legend"),
            html.Div([*_marks(figure, most), *rows, _axis(figure, most)], className="rows"),
        ],
        id=id,
        className="bar-chart with-ends" if ends else "bar-chart",
        **unit,
    )


def _outside(pieces: list[Any]) -> list[Any]:
    """A bar too short for its text, with the text behind it."""
    moved: list[Any] = []
    for piece in pieces:
        words = piece.children
        piece.children = None
        moved += [piece, html.Span(words.children, className="behind") if words else None]
    return moved


def _axis(figure: Drawing, most: float) -> Any:
    """Round numbers under the bars, with their unit."""
    axis = figure.layout["xaxis"]
    if not _unit(figure):
        return None
    step = 10.0 ** np.floor(np.log10(most / 2)) if most > 0 else 1.0
    step = next(step * times for times in (1, 2, 5, 10, 20) if most / (step * times) <= _TICKS)
    ticks = np.arange(0, most * 1.001, step)
    suffix = axis.get("ticksuffix", "")
    marks = [
        html.Span(
            f"{value:g}{suffix}"
            if suffix
            else units.cycles(value).replace(".00", "").replace(".0 ", " "),
            style={"left": f"{100 * value / most:.3f}%"},
        )
        for value in ticks.tolist()
    ]
    title = html.Span(axis["title"].get("text", ""), className="title")
    return html.Div([html.Span(), html.Div([html.Div(marks), title])], className="axis")


def _unit(figure: Drawing) -> str:
    axis = figure.layout["xaxis"]
    return str(axis["title"].get("text") or axis.get("ticksuffix", "")).strip()


def _piece(trace: dict[str, Any], position: int, value: float, most: float) -> Any:
    width = {"width": f"{100 * value / most:.4f}%"}
    if trace.get("meta") == SPACER:
        return html.Div(style=width)
    texts, marker = trace.get("text"), trace["marker"]
    hovers: Any = trace.get("customdata", texts)
    style = {**width, **_fill(marker, position)}
    fonts = (trace.get(font, {}).get("color") for font in ("textfont", "insidetextfont"))
    if colour := next(filter(None, fonts), None):
        style["color"] = colour
    words = unescape(texts[position]).strip() if texts is not None else ""
    data: Any = {"data-name": trace.get("name", ""), "data-value": f"{value:.10g}"}
    return html.Div(
        html.Span(words, style={"background": _colour(marker, position)}) if words else None,
        style=style,
        title=unescape(hovers[position]).strip().replace("<br>", "\n"),
        **data,
    )


def _colour(marker: dict[str, Any], position: int) -> str:
    colour = marker["color"]
    return str(colour if isinstance(colour, str) else colour[position])


def _fill(marker: dict[str, Any], position: int) -> dict[str, str]:
    colour, line = _colour(marker, position), marker.get("line", {})
    if line.get("width"):
        return {"background": colour, "boxShadow": f"inset 0 0 0 1px {line['color']}"}
    pattern = marker.get("pattern", {})
    if not pattern.get("shape"):
        return {"background": colour}
    stroke = pattern["fgcolor"]
    return {
        "background": f"repeating-linear-gradient(135deg, {stroke} 0 1.5px, {colour} 1.5px 6px)"
    }


def _marks(figure: Drawing, most: float) -> list[Any]:
    words = {note["x"]: note for note in _notes(figure) if note.get("yref") == "paper"}
    marks = []
    for shape in figure.layout.get("shapes", ()):
        share = 100 * float(shape["x0"]) / most
        note = words.get(shape["x0"])
        text = html.Span(
            unescape(note["text"]) if note else "", className="left" if share > 50 else ""
        )
        line = {
            "left": f"{share:.4f}%",
            "borderColor": shape["line"]["color"],
            "color": note["font"]["color"] if note else None,
        }
        marks.append(html.Div(html.Div(text, className="mark", style=line), className="marks"))
    return marks


def _notes(figure: Drawing) -> list[dict[str, Any]]:
    return figure.layout.get("annotations", [])
