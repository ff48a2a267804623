"""Memory: bytes of each tile by purpose, what is live when, and a chosen tile and variable."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from dash import ALL, Dash, Input, Output, html

from ipuscope.profiler import Report, analysis
from ipuscope.profiler.file import records
from ipuscope.viewer.figures import memory as figures
from ipuscope.viewer.figures import units
from ipuscope.viewer.figures.lanes import FEW
from ipuscope.viewer.figures.theme import Theme
from ipuscope.viewer.pages import common, liveness, refused, tables
from ipuscope.viewer.pages.common import Page, View
from ipuscope.viewer.pages.liveness import described, name_of_step
from ipuscope.viewer.pages.tables import Column
from ipuscope.viewer.profiles import Profiles

NAME = "memory"
MOST_VARIABLES = 1000  # rows of the table
_VARIABLES = (
    Column("name", "variable"),
    Column("category", "category", width=175),
    Column("role", "role", width=140),
    Column("block_name", "Block", width=120),
    Column("region", "region", width=95),
    Column("live", "live at steps", width=170),
    Column("bytes", "bytes", ",.0f", width=100),
)

_VERTICES = (
    Column("vertex_type", "vertex"),
    Column("compute_sets", "compute sets", ",.0f", width=130),
    Column("count", "count", ",.0f", width=100),
    Column("state_bytes", "state, bytes", ",.0f", width=130),
)


def layout(view: View) -> Any:
    """The page; its callbacks draw the figures."""
    tiles = view.report.target.tiles_per_ipu
    fullest = view.profiles.made(
        view.report, "fullest", lambda: analysis.fullest_tiles(view.report)
    )
    # against a limit far above it all tiles would have one colour
    scaled = "limit" if 2 * fullest.max(initial=0) > view.report.target.bytes_per_tile else "data"
    too_full = view.report.meta["state"] == "out of memory"  # by the extent, gaps included
    return [
        common.controls(
            view,
            common.ipu_choice(view),
            common.number_field(view, "tile", "tile (empty: the fullest)", 0, tiles - 1),
            common.switch(
                view,
                "gaps",
                "count",
                (("without", "used"), ("with", "extent, with gaps")),
                "with" if too_full else "without",
            ),
            common.switch(
                view, "scale", "scale to", (("limit", "the limit"), ("data", "the data")), scaled
            ),
            *liveness.controls(view),
            common.other_switch(view),
            common.hidden(
                view,
                "variable",
                check=refused.no_row(view.report, records.Variable, "variable", "Click one."),
            ),
            compares=True,
        ),
        common.figure_card(
            "Bytes of each tile",
            "memory-tiles",
            note=(
                "A tile that uses region 1 counts the whole of region 0 besides: that is a gap."
                " Click a tile."
            ),
            height=300,
        ),
        html.Div(
            [
                common.figure_card(
                    "On the chip",
                    "memory-chip",
                    note="64 columns; the position of each tile is an assumption.",
                    height=320,
                ),
                common.figure_card(
                    "What it is for",
                    "memory-kinds",
                    note="At each IPU's fullest step; of many IPUs, the fullest.",
                    height=320,
                ),
            ],
            className="row",
        ),
        *liveness.cards(view),
        common.figure_card("By category on the chosen tile", "memory-tile-kinds", height=260),
        common.drawer(
            ("The chosen variable", common.filled("memory-variable")),
            ("The chosen tile", common.filled("memory-tile")),
            ("Variables on this tile", common.filled("memory-variables")),
            ("Live at the chosen point", common.filled("liveness-live")),
            ("Vertices on this tile", common.filled("memory-vertices")),
        ),
    ]


_CLICK = """
function(line, chip, variable) {
    const by = window.dash_clientside.callback_context.triggered[0];
    const at = by && by.value && by.value.points && by.value.points[0];
    if (!at) { return window.dash_clientside.no_update; }
    return at.customdata !== undefined ? at.customdata : Math.round(at.x);
}
"""


_CHOSEN = """
function(clicks) {
    const by = window.dash_clientside.callback_context.triggered[0];
    const none = window.dash_clientside.no_update;
    return by && by.value && by.value.rowId !== undefined ? String(by.value.rowId) : none;
}
"""


def register(app: Dash, profiles: Profiles) -> None:
    """Register the callbacks of the page."""
    liveness.register(app, profiles)
    app.clientside_callback(
        _CHOSEN,
        Output(common.param_id(NAME, "variable"), "value"),
        Input({"variables": ALL}, "cellClicked"),
        prevent_initial_call=True,
    )
    app.clientside_callback(
        _CLICK,
        Output(common.param_id(NAME, "tile"), "value"),
        Input("memory-tiles", "clickData"),
        Input("memory-chip", "clickData"),
        Input({"variable": ALL}, "clickData"),
        prevent_initial_call=True,
    )

    @app.callback(
        Output("memory-tiles", "figure"),
        Output("memory-chip", "figure"),
        Output("memory-kinds", "figure"),
        *common.param_input(NAME, "profile", "ipu", "tile", "gaps", "scale", "other", "with"),
        common.theme_state(),
    )
    def whole_ipu(profile: Any, ipu: Any, tile: Any, gaps: Any, scale: Any, *more: Any) -> Any:
        *other, where = more
        report, ipu = common.chosen(profiles, profile, ipu)
        limit, theme = report.target.bytes_per_tile, common.theme_of(where)
        by_tile = report.tiles(ipu)
        column = "total" if gaps == "with" else "total_excluding_gaps"
        kib = by_tile[column].to_numpy() / figures.KIB
        to_limit = scale != "data"
        second = common.other_of(profiles, profile, *other)
        beside = (
            second.tiles(ipu)
            if second is not None and ipu < second.target.ipus_per_replica
            else None
        )
        return (
            figures.tiles(
                by_tile, limit, theme, _tile(report, ipu, tile), gaps == "with", to_limit, beside
            ),
            figures.chip(kib, limit / figures.KIB, theme, to_limit=to_limit),
            figures.categories(_fullest(report.memory(), ipu), theme),
        )

    @app.callback(
        Output("memory-tile", "children"),
        Output("memory-tile-kinds", "figure"),
        Output("memory-variables", "children"),
        Output("memory-vertices", "children"),
        *common.param_input(NAME, "profile", "ipu", "tile"),
        common.theme_state(),
    )
    def one_tile(profile: Any, ipu: Any, tile: Any, where: Any) -> Any:
        report, ipu = common.chosen(profiles, profile, ipu)
        theme, on = common.theme_of(where), _tile(report, ipu, tile)
        vertices = tables.table(
            "memory-vertex-table", report.tile_vertices(ipu, on), _VERTICES, theme, height=360
        )
        return (
            _facts(report, ipu, on),
            _kinds(report, ipu, on, theme),
            _variables(report, ipu, on, theme),
            vertices,
        )

    @app.callback(
        Output("memory-variable", "children"),
        *common.param_input(NAME, "profile", "variable"),
        common.theme_state(),
    )
    def one_variable(profile: Any, variable: Any, where: Any) -> Any:
        report, number = profiles.get(profile), common.whole(variable, -1)
        row = int(report.rows_of(records.Variable, np.array([number]))[0]) if number >= 0 else -1
        if row < 0:
            return common.message("Click a variable in a table for its tiles and its lifetime.")
        return _variable(report, number, common.theme_of(where))


def _variable(report: Report, number: int, theme: Theme) -> Any:
    """Where a variable lies and when it lives, with links to its tiles, steps and operator."""
    row: Any = report.variables.loc[number]
    on_tiles, ipu = report.variable_tiles(number), int(row["ipu"])
    tile = int(on_tiles.argmax())
    count = int((on_tiles > 0).sum())
    steps: Any = "always"
    if not row["always_live"]:
        ends = (int(row["start"]), int(row["stop"]) - 1)
        each = [common.link(str(at), "memory", ipu=ipu, step=at, variable=number) for at in ends]
        steps = ["steps ", each[0], " to ", each[1]]
    there = common.link(f"tile {tile}", "memory", ipu=ipu, tile=tile, variable=number)
    rows = [
        ("variable", row["name"]),
        ("what", f"{row['category']}, {row['role']}"),
        ("on", f"IPU {ipu}: {units.size(int(on_tiles.sum()))} on {units.count(count, 'tile')}"),
        ("most", [there, f", {units.size(int(on_tiles.max()))}"]),
        ("live", steps),
    ]
    if row["op"] in report.ops.index:
        rows.append(
            ("made by", common.link(str(report.ops.loc[row["op"], "name"]), "costs", op=row["op"]))
        )
    chip = figures.chip(on_tiles.astype(np.float32), float(on_tiles.max()), theme, "bytes")
    graph = common.graph({"variable": number}, chip, scrollZoom=False)
    return html.Div([common.facts(rows), graph], className="row")


def _fullest(memory: pd.DataFrame, chosen: int) -> pd.DataFrame:
    """If there are many IPUs, the fullest and the chosen one."""
    totals = memory.groupby("ipu")["bytes"].sum().sort_values(ascending=False, kind="stable")
    if len(totals) <= FEW:
        return memory
    return memory[memory["ipu"].isin([*totals.index[: FEW - 1], chosen])]


def _tile(report: Report, ipu: int, tile: Any) -> int:
    by_tile = report.tiles(ipu)
    return common.whole(tile, analysis.fullest(report, ipu), 0, len(by_tile) - 1)


def _facts(report: Report, ipu: int, tile: int) -> Any:
    row = report.tiles(ipu).iloc[tile]
    target = report.target
    step = int(row["peak_step"])
    name = name_of_step(report, ipu, step)
    over = int(row["overflow"])
    regions = target.region0_bytes, target.bytes_per_tile - target.region0_bytes
    rows = [
        ("tile", f"{tile} of IPU {ipu}"),
        (
            "used",
            f"{units.size(int(row['peak']))} of {units.size(target.bytes_per_tile)}",
        ),
        ("always live", units.size(int(row["always_live"]))),
        ("not always live, at its peak", units.size(int(row["not_always_live_peak"]))),
        ("fullest at", f"step {step} ({name})"),
        ("free", units.size(int(row["free"]))),
        ("extent, including gaps", units.size(int(row["total"]))),
        *([("over the limit", units.size(over))] if over else []),
        ("region 0 / region 1", " / ".join(map(units.size, regions))),
    ]
    return common.facts(rows)


def _kinds(report: Report, ipu: int, tile: int, theme: Theme) -> Any:
    row = report.tiles(ipu).iloc[tile]
    which, size = report.live_at(ipu, int(row["peak_step"]), tile)
    columns = report.variables_of(ipu)
    return figures.tile_kinds(columns["category"][which], columns["role"][which], size, theme)


def _variables(report: Report, ipu: int, tile: int, theme: Theme) -> Any:
    size = report.bytes_of_variables(ipu, tile)
    there = np.flatnonzero(size > 0)
    there = there[np.argsort(-size[there], kind="stable")]
    every, rows = size[there], there[:MOST_VARIABLES]
    size = size[rows]
    columns = {name: values[rows] for name, values in report.variables_of(ipu).items()}
    lives = [
        "always" if forever else f"{start} to {stop - 1}"
        for forever, start, stop in zip(
            *(columns[name].tolist() for name in ("always_live", "start", "stop")),
            strict=True,
        )
    ]
    frame = pd.DataFrame(
        {
            "id": columns["id"],
            "name": report.names_of(records.Variable, columns["id"]),
            **{name: columns[name] for name in ("category", "role", "block", "op")},
            "bytes": size,
            "live": lives,
            "region": np.where(columns["interleaved"] != 0, "1", "0"),
        }
    )
    frame = described(report, frame)
    table = tables.table({"variables": "tile"}, frame, _VARIABLES, theme, height=360, row_id="id")
    if len(rows) == len(every):
        return table
    share = units.percent(float(size.sum() / every.sum()))
    words = (
        f"The {len(rows):,} largest of {len(every):,}, {share} of their bytes;"
        f" ipu-report tile --ipu {ipu} --tile {tile} --top 0 lists all."
    )
    return [html.P(words, className="note"), table]


PAGE = Page("/memory", "Memory", layout, register, "Bytes of each tile, and what they are for")
