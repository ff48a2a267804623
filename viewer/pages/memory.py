"""Memory: bytes of each tile by purpose, and the variables on a chosen tile."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from dash import Dash, Input, Output, html

from ipuscope.profiler import Report, analysis
from ipuscope.profiler.file import records
from ipuscope.viewer.figures import memory as figures
from ipuscope.viewer.figures import units
from ipuscope.viewer.figures.lanes import FEW
from ipuscope.viewer.figures.theme import Theme
from ipuscope.viewer.pages import common
from ipuscope.viewer.pages.common import Column, Page, View
from ipuscope.viewer.pages.liveness import described, name_of_step
from ipuscope.viewer.profiles import Profiles

NAME = "memory"
MOST_VARIABLES = 1000  # rows of the table
_VARIABLES = (
    Column("name", "variable"),
    Column("category", "category", width=175),
    Column("role", "role", width=140),
    Column("block_name", "Block", width=120),
    Column("region", "region", width=75),
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
    too_full = view.report.meta["state"] == "out of memory"  # by its extent, gaps included
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
            common.other_switch(view),
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
        html.Div(
            [
                common.card("The chosen tile", common.filled("memory-tile")),
                common.figure_card("By category on this tile", "memory-tile-kinds", height=260),
            ],
            className="row",
        ),
        common.card(
            "Variables on this tile",
            common.filled("memory-variables"),
            note="live at any time, largest first",
        ),
        common.card(
            "Vertices on this tile",
            common.filled("memory-vertices"),
            note="over all of its compute sets",
        ),
    ]


_CLICK = """
function(line, chip) {
    const by = window.dash_clientside.callback_context.triggered[0];
    const at = by && by.value && by.value.points && by.value.points[0];
    if (!at) { return window.dash_clientside.no_update; }
    return by.prop_id.startsWith('memory-chip') ? at.customdata : Math.round(at.x);
}
"""


def register(app: Dash, profiles: Profiles) -> None:
    """Register the callbacks of the page."""
    app.clientside_callback(
        _CLICK,
        Output(common.param_id(NAME, "tile"), "value"),
        Input("memory-tiles", "clickData"),
        Input("memory-chip", "clickData"),
        prevent_initial_call=True,
    )

    @app.callback(
        Output("memory-tiles", "figure"),
        Output("memory-chip", "figure"),
        Output("memory-kinds", "figure"),
        *common.param_input(NAME, "profile", "ipu", "tile", "gaps", "scale", "other"),
        common.theme_state(),
    )
    def whole_ipu(
        profile: Any, ipu: Any, tile: Any, gaps: Any, scale: Any, other: Any, where: Any
    ) -> Any:
        report, ipu = common.chosen(profiles, profile, ipu)
        limit, theme = report.target.bytes_per_tile, common.theme_of(where)
        by_tile = report.tiles(ipu)
        column = "total" if gaps == "with" else "total_excluding_gaps"
        kib = by_tile[column].to_numpy() / figures.KIB
        to_limit = scale != "data"
        second = common.other_of(profiles, profile, other)
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
        vertices = common.table(
            "memory-vertex-table", report.tile_vertices(ipu, on), _VERTICES, theme, height=360
        )
        return (
            _facts(report, ipu, on),
            _kinds(report, ipu, on, theme),
            _variables(report, ipu, on, theme),
            vertices,
        )


def _fullest(memory: pd.DataFrame, chosen: int) -> pd.DataFrame:
    """If there are many IPUs, those that hold the most and the chosen one."""
    held = memory.groupby("ipu")["bytes"].sum().sort_values(ascending=False, kind="stable")
    if len(held) <= FEW:
        return memory
    return memory[memory["ipu"].isin([*held.index[: FEW - 1], chosen])]


def _tile(report: Report, ipu: int, tile: Any) -> int:
    by_tile = report.tiles(ipu)
    return common.whole(tile, analysis.fullest(report, ipu), 0, len(by_tile) - 1)


def _facts(report: Report, ipu: int, tile: int) -> Any:
    row = report.tiles(ipu).iloc[tile]
    target = report.target
    step = int(row["peak_step"])
    name = name_of_step(report, ipu, step)
    over = int(row["overflow"])
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
        (
            "region 0 / region 1",
            (
                f"{units.size(target.region0_bytes)} / "
                f"{units.size(target.bytes_per_tile - target.region0_bytes)}"
            ),
        ),
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
            "name": report.names_of(records.Variable, columns["id"]),
            **{name: columns[name] for name in ("category", "role", "block", "op")},
            "bytes": size,
            "live": lives,
            "region": np.where(columns["interleaved"] != 0, "1", "0"),
        }
    )
    frame = described(report, frame)
    table = common.table("memory-variable-table", frame, _VARIABLES, theme, height=360)
    if len(rows) == len(every):
        return table
    share = units.percent(float(size.sum() / every.sum()))
    words = (
        f"The {len(rows):,} largest of {len(every):,}, {share} of their bytes;"
        f" ipu-report tile --ipu {ipu} --tile {tile} --top 0 lists all."
    )
    return [html.P(words, className="note"), table]


PAGE = Page("/memory", "Memory", layout, register, "Bytes of each tile, and what they are for")
