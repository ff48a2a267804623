"""Tables that are sorted and filtered in the browser."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import dash_ag_grid as dag
import pandas as pd
from dash import html

from ipuscope.viewer.figures.theme import Theme

_ROW, _HEADER, _SCROLLBAR = 30, 34, 18  # pixels of a table
_ROOM_FOR_A_BUTTON = 150
_LETTER, _PADDING = 7, 34  # pixels of a heading
_NAMES = 360  # pixels of a column of names, before all columns are fitted to the table
_DIGIT, _AROUND = 7.6, 34  # of a number with commas, and what a cell leaves empty
_PATHS = {"name", "op_name", "vertex_type", "source"}  # both ends tell them apart
_NARROW_TABLE, _LEAST_NAME = 760, 150  # what a window of 1024 pixels leaves; of a column of names

NARROW = 560  # pixels, as in assets/style.css


@dataclass(frozen=True, slots=True)
class Column:
    """A column: name in the frame, heading, and d3's number format ("" for text)."""

    name: str
    heading: str
    format: str = ""
    width: int = 0
    scale: float = 1.0
    tip: str = ""
    least: int = 240  # pixels, of a column that takes the rest
    need: int = 0  # pixels, of its longest number


def table(
    id: Any,
    frame: pd.DataFrame,
    columns: Sequence[Column],
    theme: Theme,
    height: int | None = None,
    row_id: str = "",
    sortable: bool = True,
    filled_later: bool = False,
) -> Any:
    """A table that can be sorted and filtered.

    ``height``, in pixels, shrinks to few rows unless the table is ``filled_later``. Numbers are
    divided by their column's ``scale``. ``row_id``: the column that identifies rows, if clicks
    matter. Rows whose order has a meaning are not ``sortable``.
    """
    columns = [_of_numbers(column, frame) if column.format else column for column in columns]
    fitted = sum(map(_narrowest, columns)) <= _NARROW_TABLE  # else the table scrolls
    filters = sortable and height is not None and height >= 300
    names = [column.name for column in columns]
    extra = [name for name in ("id", "step") if name in frame.columns and name not in names]
    fields = [*names, *extra]
    cells = [frame[name].tolist() for name in fields]  # many times as fast as to_dict
    rows = [dict(zip(fields, row, strict=True)) for row in zip(*cells, strict=True)]
    options: dict[str, Any] = {
        "rowHeight": _ROW,
        "headerHeight": _HEADER,
        "tooltipShowDelay": 300,
        "animateRows": False,
        "enableCellTextSelection": True,
        "rowSelection": {"mode": "singleRow", "checkboxes": False, "enableClickSelection": True},
    }
    if height is None:
        options["domLayout"] = "autoHeight"
    elif not filled_later:  # no higher than its rows, at least three: an empty table says so
        height = height_of(len(rows), height, filters)
    more: dict[str, Any] = {"getRowId": f"params.data.{row_id} + ''"} if row_id else {}
    if fitted:  # at first, and with every width of the window (assets/viewer.js)
        options["autoSizeStrategy"] = {"type": "fitGridWidth", "columnLimits": _limits(columns)}
        more |= {"eventListeners": {"gridSizeChanged": ["fitted(params)"]}}
    return dag.AgGrid(
        id=id,
        **more,
        rowData=rows,
        columnDefs=definitions(columns, fitted),
        defaultColDef={
            "sortable": sortable,
            "resizable": True,
            "suppressHeaderMenuButton": True,
            "suppressHeaderFilterButton": True,
            "floatingFilter": filters,
        },
        dashGridOptions=options,
        className=f"ag-theme-quartz{'-dark' if theme.name == 'dark' else ''}",
        style={"width": "100%", "height": f"{height}px" if height else None},
    )


def small(
    rows: Iterable[Sequence[Any]], heads: Sequence[str] = (), words: Collection[int] = (0,)
) -> Any:
    """A short table that is not sorted: cells by row; all columns but ``words`` are numbers."""

    def cells(kind: type, row: Sequence[Any]) -> Any:
        kinds = (html.Td if one == "" else kind for one in row)
        each = enumerate(zip(kinds, row, strict=True))
        return html.Tr([of(one, className="n" * (at not in words)) for at, (of, one) in each])

    body = html.Tbody([cells(html.Td, row) for row in rows])
    parts = [html.Thead(cells(html.Th, heads)), body] if heads else [body]
    return html.Table(parts, className="plain")


def height_of(rows: int, most: int, filters: bool = False) -> int:
    """Pixels of a table of so many rows, at the most ``most``."""
    return min(most, _HEADER * (2 if filters else 1) + _ROW * max(3, rows) + _SCROLLBAR)


def definitions(
    columns: Sequence[Column], fitted: bool = False, window: int = NARROW
) -> list[dict[str, Any]]:
    """Columns for AG Grid; ``fitted``: the table sets their widths.

    In a narrow ``window`` (pixels) the first stays while numbers are scrolled past it.
    """
    narrow = window < NARROW
    definitions = []
    for column in columns:
        definition: dict[str, Any] = {
            "field": column.name,
            "headerName": column.heading,
            "headerTooltip": column.tip or column.heading,
            "filter": "agNumberColumnFilter" if column.format else "agTextColumnFilter",
        }
        if column.format:
            shown = f"params.value / {column.scale}" if column.scale != 1 else "params.value"
            formatted = f"d3.format('{column.format}')({shown})"
            if column.format[0] == "+":  # d3 has it before 0, too
                formatted = f"params.value ? {formatted} : '0'"
            definition |= {
                "type": "rightAligned",
                "valueFormatter": {"function": f"params.value == null ? '' : {formatted}"},
            }
        else:
            definition |= {"tooltipField": column.name}
            definition |= {"cellRenderer": "ends"} if column.name in _PATHS else {}
        if column.width:
            # a narrow column has no room for a field beside its button
            definition |= {
                "width": _narrowest(column) if narrow else column.width,
                "suppressFloatingFilterButton": column.width < _ROOM_FOR_A_BUTTON,
            }
        else:
            least = _narrowest(column) if fitted else column.least
            # all are narrowed in proportion, down to their least: names are the last to be cut
            definition |= {"minWidth": least} | ({"width": _NAMES} if fitted else {"flex": 1})
        definitions.append(definition)
    if narrow:
        definitions[0] |= {"pinned": "left", "minWidth": 0, "width": _LEAST_NAME, "flex": None}
    return definitions


def _narrowest(column: Column) -> int:
    """The least pixels of a column: numbers are whole, words may be cut."""
    if not column.width:
        return min(column.least, _LEAST_NAME)
    least = max(_LETTER * len(column.heading) + _PADDING, column.need)
    return min(column.width, max(least, round(column.width * (0.8 if column.format else 0.6))))


def _of_numbers(column: Column, frame: pd.DataFrame) -> Column:
    """The column with the width of its longest number, which is never cut."""
    if not len(frame) or column.format.endswith("s"):  # three digits, whatever they are
        return column
    values = pd.to_numeric(frame[column.name], errors="coerce") / column.scale
    ends = (f"{one:{column.format.replace('~', '')}}" for one in (values.min(), values.max()))
    longest = max(map(len, ends))
    need = round(_DIGIT * longest) + _AROUND
    return replace(column, width=max(column.width, need), need=need)


def _limits(columns: Sequence[Column]) -> list[dict[str, Any]]:
    """Least and largest widths so that all columns fit; names get the rest."""
    limits = []
    for column in columns:
        limit = {"colId": column.name, "minWidth": _narrowest(column)}
        limits.append(limit | ({"maxWidth": column.width} if column.width else {}))
    return limits
