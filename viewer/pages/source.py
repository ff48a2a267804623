"""The user's files with costs in the margin: under the flame graph, and beside an operator."""

from __future__ import annotations

from typing import Any

from dash import html

from ipuscope.profiler import Report
from ipuscope.profiler.analysis import source
from ipuscope.profiler.analysis.source import Margin
from ipuscope.viewer.figures import units
from ipuscope.viewer.pages import common

HEADS = ("forward", "backward", "update", "again", "bytes", "IPU", "", "")
_MOST_LINES = 4000
_HOTTEST = 12
_AROUND = 3  # lines before and after an operator's


def hottest(report: Report) -> Any:
    """The lines with the most cycles; each leads to its operators."""
    rows = source.lines(report)
    shown = rows[rows["file"] != ""].head(_HOTTEST)
    places = zip(shown["file"].tolist(), shown["line"].tolist(), strict=True)
    entries = [
        html.Li(
            [
                html.B(units.percent(row.share)),
                html.Span(
                    [
                        common.source_link(file, line),
                        " ",
                        html.Code(source.line_of(report, file, line)),
                        " ",
                        common.link("in the timeline", "timeline", find=row.largest),
                    ]
                ),
            ]
        )
        for (file, line), row in zip(places, units.rows_of(shown), strict=True)
    ]
    note = html.P("Of the cycles of all operators, by the line that makes them:", className="note")
    return [note, html.Ol(entries, className="waits")]


def file_listing(report: Report, file: str) -> Any:
    """A file with the cost of each line; a line's number leads to its operators."""
    lines = source.listing(report, file)
    first = next((at for at, one in enumerate(lines) if one.costs is not None), 0)
    lines = lines[max(0, first - _AROUND) :]  # lines above cost nothing
    parts: list[Any] = [_table(file, lines[:_MOST_LINES])]
    if file not in source.texts(report):
        words = "The profile has no text of this file: its compile could not read it or left it out"
        parts.insert(0, common.message(f"{words} (--no-source)."))
    if len(lines) > _MOST_LINES:
        parts.append(html.P(f"and {len(lines) - _MOST_LINES:,} lines more", className="note"))
    return html.Div(parts, className="listing")


def around(report: Report, file: str, line: int) -> Any:
    """A line in its context; nothing if the profile does not have its text."""
    if file not in source.texts(report):
        return None
    lines = source.listing(report, file)[max(0, line - 1 - _AROUND) : line + _AROUND]
    return _table(file, lines, line)


def _table(file: str, lines: list[Margin], here: int = 0) -> Any:
    head = html.Tr([html.Th(name, className="n") for name in HEADS])
    rows = [html.Tr(_cells(file, one), className="here" * (one.number == here)) for one in lines]
    return html.Table([html.Thead(head), html.Tbody(rows)], className="plain source")


def _cells(file: str, one: Margin) -> list[Any]:
    row = one.costs
    margin = [""] * (len(HEADS) - 2)
    if row is not None:
        cycles = (row.forward_cycles, row.backward_cycles, row.update_cycles, row.recompute_cycles)
        margin = [units.cycles(many) if many else "" for many in cycles]
        margin += [units.size(row.bytes) if row.bytes else "", row.ipus]
    number: Any = str(one.number)
    if row is not None:
        number = common.link(number, "costs", order="source", find=f"{file}:{one.number}")
    heat = {"--heat": f"{100 * row.share:.1f}%"} if row is not None else None
    cells: list[Any] = [html.Td(words, className="n") for words in margin]
    return [*cells, html.Td(number, className="n"), html.Td(html.Code(one.text), style=heat)]
