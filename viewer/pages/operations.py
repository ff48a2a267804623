"""Operations: what each operator costs, how well it uses the tiles, and its steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from dash import Dash, Input, Output, State, dcc, html

from ipuscope.profiler import Report, analysis
from ipuscope.profiler.analysis.operators import by_aten, grouped, named
from ipuscope.profiler.enums import Direction
from ipuscope.profiler.file import records
from ipuscope.viewer.figures import tiles as tile_figures
from ipuscope.viewer.figures import units
from ipuscope.viewer.figures.theme import Theme
from ipuscope.viewer.figures.units import Clock
from ipuscope.viewer.pages import common, refused
from ipuscope.viewer.pages.common import Column, Page, View
from ipuscope.viewer.profiles import Profiles

if TYPE_CHECKING:
    import pandas as pd

NAME = "operations"
MOST_ROWS = common.MANY_OPERATORS  # half a megabyte
_SHOWN = (Direction.FORWARD, Direction.BACKWARD, Direction.UPDATE)
_TIMES = "executions in a weight update, or in a device iteration"
_SHARE = "of the totals of all operators"
_AGAIN = "what recomputing it for the backward pass takes, beside the total"
_COLUMNS = (
    Column("name", "operator", least=300),
    Column("aten", "ATen", width=190),
    Column("direction", "for", width=100),
    Column("stage", "stage", ",.0f", width=80),
    Column("block_name", "Block", width=110),
    Column("cycles", "cycles", ",.0f", width=105, tip="cycles of one execution, all its steps"),
    Column("executions", "times", ",.0f", width=85, tip=_TIMES),
    Column("total_cycles", "total", ",.0f", width=120, tip="cycles of all executions together"),
    Column("share", "share", ".2%", width=90, tip=_SHARE),
    Column("recompute_cycles", "again", ",.0f", width=120, tip=_AGAIN),
    Column("flops", "FLOPs", ".3s", width=90),
    Column("flops_per_cycle", "FLOPs a cycle", ",.0f", width=135),
    Column(
        "utilisation",
        "of peak",
        ".1%",
        width=95,
        tip="FLOPs against what all matrix units could do in its cycles",
    ),
    Column(
        "bound",
        "bound by",
        width=105,
        tip="by the roofline: its FLOPs (compute) or the bytes received (exchange)",
    ),
    Column(
        "exchanged", "bytes in", ".3s", width=95, tip="bytes received in its exchanges, all tiles"
    ),
    Column(
        "balance", "balance", ".0%", width=95, tip="mean over slowest tile, of its compute cycles"
    ),
    Column("tiles", "tiles", ",.0f", width=80, tip="tiles at work in its widest step"),
    Column("source", "source", width=200),
)
_OTHER = (
    Column(
        "other_cycles",
        "total, other",
        ",.0f",
        width=125,
        tip="of the operator of that name in the other profile",
    ),
    Column("other_difference", "other − this", "+,.0f", width=125),
)
_TOTAL = 1 + [column.name for column in _COLUMNS].index("total_cycles")
_NO_OPERATOR = ("operator", "Click one in the table.")
_GROUPS = (
    ("none", "nothing"),
    ("aten", "ATen"),
    ("module", "module"),
    ("block_name", "Block"),
    ("stage", "stage"),
)
_GROUPED = (
    Column("operators", "operators", ",.0f", width=110),
    Column("executions", "times", ",.0f", width=110, tip=_TIMES),
    Column("total_cycles", "total", ",.0f", width=150, tip="cycles of all executions together"),
    Column("share", "share", ".2%", width=100, tip=_SHARE),
    Column("recompute_cycles", "again", ",.0f", width=140, tip=_AGAIN),
    Column("flops", "FLOPs", ".3s", width=110, tip="of all executions"),
    Column("exchanged", "bytes in", ".3s", width=110, tip="of all executions"),
)
_STEPS = (
    Column("position", "step", ",.0f", width=80),
    Column("name", "name"),
    Column("kind", "kind", width=110),
    Column("cycles", "cycles", ",.0f", width=100),
    Column("active_tiles", "tiles", ",.0f", width=90),
    Column("tile_balance", "balance", ".0%", width=100),
    Column("bytes_in", "bytes in", ",.0f", width=110),
)


def layout(view: View) -> Any:
    """The page."""
    return [
        common.controls(
            view,
            common.choice(
                view,
                "direction",
                "for",
                [
                    ("all", "all"),
                    *((str(d), str(d)) for d in _SHOWN),
                ],
                "all",
            ),
            common.choice(view, "stage", "stage", _stages(view.report), "all"),
            common.choice(view, "group", "grouped by", _GROUPS, _group_default(view)),
            common.search(view, "find", "find by name"),
            common.other_switch(view),
            common.hidden(view, "op", check=refused.no_row(view.report, records.Op, *_NO_OPERATOR)),
            common.hidden(view, "within"),
        ),
        common.card(
            "Operators",
            common.filled("operations-table"),
            html.Div(
                [html.Button("Save as CSV", id="operations-csv", className="quiet")],
                className="under",
            ),
            note=(
                "The most cycles of a weight update first: those of one execution times"
                " executions. Click an operator for its steps, a group for its operators."
            ),
        ),
        common.card("The chosen operator", common.filled("operations-chosen")),
    ]


def _register_clicks(app: Dash) -> None:
    """A click on a row, on the way back to all groups, and on the button that saves."""
    app.clientside_callback(
        """function(rows, group) {
            const none = window.dash_clientside.no_update, row = (rows || [])[0];
            if (!row) { return [none, none]; }
            return row.id === undefined ? [none, String(row[group])] : [String(row.id), none];
        }""",
        Output(common.param_id(NAME, "op"), "value"),
        Output(common.param_id(NAME, "within"), "value"),
        Input("operations-grid", "selectedRows"),
        State(common.param_id(NAME, "group"), "value"),
        prevent_initial_call=True,
    )
    app.clientside_callback(
        """function(clicks) { return clicks ? '' : window.dash_clientside.no_update; }""",
        Output(common.param_id(NAME, "within"), "value", allow_duplicate=True),
        Input("operations-groups", "n_clicks"),
        prevent_initial_call=True,
    )
    app.clientside_callback(
        """function(group) { return ''; }""",  # what is open is no group of another kind
        Output(common.param_id(NAME, "within"), "value", allow_duplicate=True),
        Input(common.param_id(NAME, "group"), "value"),
        prevent_initial_call=True,
    )
    app.clientside_callback(
        """function(clicks) { return !!clicks; }""",
        Output("operations-grid", "exportDataAsCsv"),
        Input("operations-csv", "n_clicks"),
        prevent_initial_call=True,
    )


def register(app: Dash, profiles: Profiles) -> None:
    """Register the callbacks of the page."""
    _register_clicks(app)

    @app.callback(
        Output("operations-table", "children"),
        *common.param_input(
            NAME, "profile", "direction", "find", "other", "stage", "group", "within"
        ),
        common.theme_state(),
    )
    def table(
        profile: Any,
        direction: Any,
        find: Any,
        other: Any,
        stage: Any,
        group: Any,
        within: Any,
        where: Any,
    ) -> Any:
        report = profiles.get(common.whole(profile, 0))
        second, words = common.other_of(profiles, profile, other), str(find or "").strip()
        fewer = direction in _SHOWN or common.whole(stage, -1) >= 0 or words or within
        if group == "aten" and second is None and not fewer:
            groups = by_aten(report)
            if len(groups):
                columns: tuple[Column, ...] = (_group_column(group), *_GROUPED)
                return _rows(groups, columns, common.theme_of(where))
        frame = _operators(profiles, report)
        columns = _COLUMNS
        if second is not None:
            frame = _beside(frame, _operators(profiles, second))
            columns = (*_COLUMNS[:_TOTAL], *_OTHER, *_COLUMNS[_TOTAL:])
        frame = _filtered(frame, direction, common.whole(stage, -1), words)
        if not len(frame):
            return common.message(
                "No operator has that name." if words else "There are no operators.", "warning"
            )
        return _table(frame, columns, group, str(within or ""), common.theme_of(where))

    @app.callback(
        Output("operations-chosen", "children"),
        *common.param_input(NAME, "profile", "op"),
        common.theme_state(),
    )
    def chosen(profile: Any, op: Any, where: Any) -> Any:
        report = profiles.get(common.whole(profile, 0))
        number = common.whole(op, -1)
        if number < 0 or number not in report.ops.index:
            return common.message("Click an operator in the table.")
        theme, clock = common.theme_of(where), Clock(report.target.clock_hz)
        row: Any = _operators(profiles, report).loc[number]
        steps = report.program_steps()
        steps = steps[steps["op"] == number]
        rows: list[tuple[str, Any]] = [
            ("operator", row["name"]),
            ("ATen", row["aten"]),
            ("module", row["module"] or "none"),
            ("source", f"{row['file']}:{row['line']}" if row["file"] else "unknown"),
            (
                "where",
                f"Block {row['block_name'] or 'none'}, stage {row['stage']}, IPU {row['ipu']}",
            ),
            ("cycles", clock.both(int(row["cycles"]))),
            ("times", f"{row['executions']:,}, {row['total_cycles']:,} cycles together"),
            ("recomputed", f"{row['recompute_cycles']:,} cycles beside these"),
            ("FLOPs", f"{row['flops']:,}"),
            ("plan", row["plan"] or "nothing to choose"),
        ]
        if row["forward_op"] in report.ops.index:
            rows.append(("belongs to", report.ops.loc[row["forward_op"], "name"]))
        if row["estimated"]:
            rows.append(("note", "an estimate: nobody lowered this operator"))
        tiles = _tile_cycles(report, steps["step"].to_numpy())
        links = html.P(common.separated(_links(row, steps)))
        table = common.table("operations-steps", _shown(steps), _STEPS, theme, height=300)
        figure = common.graph(
            "operations-tiles", tile_figures.histogram(tiles, "compute cycles", theme)
        )
        busy = units.percent(tiles.mean() / max(1, tiles.max())) if tiles.any() else "none"
        return [
            html.Div(
                [
                    html.Div([common.facts(rows), links]),
                    html.Div([html.P(f"Balance over tiles: {busy}", className="note"), figure]),
                ],
                className="row",
            ),
            table,
        ]


def _operators(profiles: Profiles, report: Report) -> pd.DataFrame:
    made: pd.DataFrame = profiles.made(report, "operators", lambda: analysis.operators(report))
    return made


def _table(
    frame: pd.DataFrame, columns: tuple[Column, ...], group: str, within: str, theme: Theme
) -> list[Any]:
    """The operators, or their groups, or those of the group that is open."""
    trail: list[Any] = []
    if group in dict(_GROUPS[1:]):
        one = named(frame, group) == within
        if one.any():
            frame, trail = frame[one], [_trail(group, within)]
        else:
            frame, columns = grouped(frame, group), (_group_column(group), *_GROUPED)
    if within and not trail:
        trail = [common.message(_no_group(group, within, len(frame)), "warning")]
    return [*trail, *_rows(frame, columns, theme)]


def _no_group(group: str, within: str, count: int) -> str:
    """That a group is not there to be opened."""
    by = dict(_GROUPS[1:]).get(group)
    there = "nothing is grouped" if by is None else f"there are {count:,} by {by}"
    return refused.refused("group", within, there, "All is shown.")


def _rows(frame: pd.DataFrame, columns: tuple[Column, ...], theme: Theme) -> list[Any]:
    """The table, of as many rows as it has room for."""
    trail, rows = [], frame.head(MOST_ROWS)
    if len(rows) < len(frame):
        words = (
            f"The {len(rows):,} of most cycles, of {len(frame):,}: choose a stage, a group or"
            " a name for others."
        )
        trail.append(html.P(words, className="note"))
    return [*trail, common.table("operations-grid", rows, columns, theme, height=460)]


def _links(op: Any, steps: pd.DataFrame) -> list[Any]:
    """Links from an operator to its slices in the trace, to liveness, and to similar operators."""
    trace = common.query(ipu=op["ipu"], find=op["name"])
    alike = common.query(find=op["aten"])
    links = [
        dcc.Link("in the trace", href=f"/trace?{trace}"),
        dcc.Link(f"others of {op['aten']}", href=f"/operations?{alike}"),
    ]
    if len(steps):
        live = common.query(ipu=op["ipu"], step=steps["position"].iloc[0])
        links.append(dcc.Link("variables live then", href=f"/liveness?{live}"))
    return links


def _filtered(frame: pd.DataFrame, direction: Any, stage: int, words: str) -> pd.DataFrame:
    """Operators of a direction and a stage (-1: all), with these words in name, ATen or source."""
    if direction in _SHOWN:
        frame = frame[frame["direction"] == direction]
    if stage >= 0:
        frame = frame[frame["stage"] == stage]
    if words:
        columns = (frame[name].str for name in ("name", "aten", "source"))
        matches = [column.contains(words, case=False, regex=False) for column in columns]
        frame = frame[matches[0] | matches[1] | matches[2]]
    return frame


def _stages(report: Report) -> list[tuple[str, str]]:
    rows = units.rows_of(report.stages)
    return [("all", "all"), *((str(row.stage), f"{row.stage} on IPU {row.ipu}") for row in rows)]


def _group_default(view: View) -> str:
    """More operators than a table has are grouped, unless some of them are asked for."""
    asked = any(view.params.get(name) for name in ("stage", "find", "op"))
    many = view.report.columns_of(records.Op).rows > MOST_ROWS
    return "aten" if many and not asked else "none"


def _trail(group: str, within: str) -> Any:
    """The group that is open, and the way back to all of them."""
    back = html.Button(f"all by {dict(_GROUPS)[group]}", id="operations-groups", className="link")
    return html.P([back, " › ", html.B(within)], className="trail")


def _group_column(group: str) -> Column:
    return Column(group, dict(_GROUPS)[group])


def _beside(frame: pd.DataFrame, other: pd.DataFrame) -> pd.DataFrame:
    """Operators with the total cycles of their counterparts in another profile.

    Counterparts have the same name, direction and occurrence.
    """
    keys = ["name", "direction"]
    other = other.sort_index()
    theirs = other.assign(turn=other.groupby(keys).cumcount()).set_index([*keys, "turn"])
    numbered = frame.sort_index().assign(turn=lambda f: f.groupby(keys).cumcount()).loc[frame.index]
    index: Any = list(zip(numbered["name"], numbered["direction"], numbered["turn"], strict=True))
    cycles = theirs["total_cycles"].reindex(index).set_axis(frame.index)
    columns = {"other_cycles": cycles, "other_difference": cycles - frame["total_cycles"]}
    return frame.assign(
        **{
            name: values.astype(object).where(values.notna(), None)
            for name, values in columns.items()
        }
    )


def _tile_cycles(report: Report, steps: np.ndarray) -> np.ndarray:
    """Compute cycles of each tile, summed over these steps: int64[tiles]."""
    total = np.zeros(report.target.tiles_per_ipu, dtype=np.int64)
    for step in steps.tolist():
        cycles = report.step_tiles(int(step))["cycles"]
        if cycles is not None:
            total += cycles
    return total


def _shown(steps: pd.DataFrame) -> pd.DataFrame:
    """The steps for a table, in which a missing tile balance is None."""
    return steps.assign(
        tile_balance=steps["tile_balance"].astype(object).where(steps["tile_balance"].notna(), None)
    )


PAGE = Page("/operations", "Operations", layout, register, "What each operator costs")
