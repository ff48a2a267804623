"""Memory: live bytes over tiles and program steps, what lies in each IPU, and what is live at a chosen point."""

from __future__ import annotations

from typing import Any

import numpy as np
from dash import Dash, Input, Output, State, html, no_update

from viewer.figures import memory as figures
from viewer.figures import units
from viewer.pages import common
from viewer.pages.common import Column, Page, View
from viewer.profiles import Profiles

NAME = "memory"
_COLUMNS = (
    Column("name", "variable"),
    Column("category", "category", width=150),
    Column("role", "role", width=130),
    Column("block_name", "Block", width=110),
    Column("bytes", "bytes", ",.0f", width=110),
)


def layout(view: View) -> Any:
    """The page; the callbacks draw its figures."""
    return [
        common.controls(
            view,
            common.ipu_choice(view),
            common.switch(view, "what", "show", (("total", "all"), ("not_always_live", "not always live")), "total"),
            common.switch(view, "scale", "scale to", (("data", "the data"), ("limit", "the limit")), "data"),
            *(common.hidden(view, name) for name in ("from", "to", "low", "high", "step", "tile")),
        ),
        common.figure_card(
            "Live bytes over tiles and program steps",
            "memory-heat",
            note="Gaps excluded. Click a point for what is live there.",
            height=480,
        ),
        common.card("Live at the chosen point", html.Div(id="memory-live"), note="largest first"),
        common.figure_card("Live bytes over program steps", "memory-steps", height=440),
        common.figure_card(
            "Bytes of each tile",
            "memory-tiles",
            note="With gaps: a tile that uses region 1 counts the whole of region 0 besides.",
            height=300,
        ),
        html.Div(
            [
                common.figure_card(
                    "On the chip", "memory-chip", note="KiB a tile, gaps excluded. Which tile is where is assumed."
                ),
                common.figure_card("What it is for", "memory-kinds", note="At each IPU's fullest step."),
            ],
            className="row",
        ),
    ]


_CLICK = """
function(point) {
    const at = point && point.points && point.points[0];
    if (!at || at.curveNumber !== 0) { return [window.dash_clientside.no_update, window.dash_clientside.no_update]; }
    return [String(Math.floor(at.x)), String(Math.floor(at.y))];
}
"""


def register(app: Dash, profiles: Profiles) -> None:
    """Callbacks of the page."""
    common.zooms(app, NAME, "memory-heat")
    app.clientside_callback(
        common.ZOOM_Y,
        Output(common.param_id(NAME, "low"), "value"),
        Output(common.param_id(NAME, "high"), "value"),
        Input("memory-heat", "relayoutData"),
        prevent_initial_call=True,
    )
    app.clientside_callback(
        _CLICK,
        Output(common.param_id(NAME, "step"), "value"),
        Output(common.param_id(NAME, "tile"), "value"),
        Input("memory-heat", "clickData"),
        prevent_initial_call=True,
    )

    @app.callback(
        Output("memory-heat", "figure"),
        *common.param_input(NAME, "profile", "ipu", "what", "scale", "from", "to", "low", "high"),
        common.theme_state(),
    )
    def heat(
        profile: Any, ipu: Any, what: Any, scale: Any, left: Any, right: Any, low: Any, high: Any, where: Any
    ) -> Any:
        report = profiles.get(common.whole(profile, 0))
        ipu = common.whole(ipu, 0, 0, report.target.num_ipus - 1)
        program = report.program_steps(ipu)
        steps = _bounds(common.window(left, right, len(program)), len(program))
        tiles = _bounds(common.window(low, high, report.target.tiles_per_ipu), report.target.tiles_per_ipu)
        values = report.liveness_map(
            ipu,
            slice(*steps),
            slice(*tiles),
            shape=figures.HEAT_SHAPE,
            what="not_always_live" if what == "not_always_live" else "total",
        )
        limit = report.target.bytes_per_tile
        figure = figures.heat_map(values, steps, tiles, program, limit, common.theme_of(where), scale == "limit")
        key = f"{ipu}{steps}{tiles}"
        figure.update_layout(
            meta={"scale": 1},
            uirevision="same",
            **{axis: {"uirevision": key} for axis in ("xaxis", "xaxis2", "yaxis", "yaxis2")},
        )
        return figure

    @app.callback(
        Output("memory-steps", "figure"),
        Output("memory-tiles", "figure"),
        Output("memory-chip", "figure"),
        Output("memory-kinds", "figure"),
        *common.param_input(NAME, "profile", "ipu", "tile", "scale"),
        common.theme_state(),
    )
    def rest(profile: Any, ipu: Any, tile: Any, scale: Any, where: Any) -> Any:
        report = profiles.get(common.whole(profile, 0))
        ipu = common.whole(ipu, 0, 0, report.target.num_ipus - 1)
        limit, theme = report.target.bytes_per_tile, common.theme_of(where)
        chosen = common.whole(tile, -1, 0, report.target.tiles_per_ipu - 1)
        by_tile = report.tiles(ipu)
        kib = by_tile["total_excluding_gaps"].to_numpy() / figures.KIB
        return (
            figures.liveness(report.liveness(ipu), limit, theme, to_limit=scale == "limit"),
            figures.tiles(by_tile, limit, theme, chosen if chosen >= 0 else None),
            figures.chip(kib, limit / figures.KIB, theme, to_limit=scale == "limit"),
            figures.categories(report.memory(), theme),
        )

    @app.callback(
        Output("memory-live", "children"),
        *common.param_input(NAME, "profile", "ipu", "step", "tile"),
        State("where", "data"),
    )
    def live(profile: Any, ipu: Any, step: Any, tile: Any, where: Any) -> Any:
        report = profiles.get(common.whole(profile, 0))
        ipu = common.whole(ipu, 0, 0, report.target.num_ipus - 1)
        program = report.program_steps(ipu)
        if not len(program):
            return no_update
        by_tile = report.tiles(ipu)
        fullest = by_tile.iloc[int(by_tile["peak"].to_numpy().argmax())]
        at = common.whole(step, int(fullest["peak_step"]), 0, len(program) - 1)
        on = common.whole(tile, int(fullest["tile"]), 0, report.target.tiles_per_ipu - 1)
        found = report.live_variables(ipu, at, on)
        names = report.blocks.set_index("block")["name"]
        found = found.assign(block_name=found["block"].map(names).fillna(""))
        chosen = "" if str(step or "") else "The fullest tile at its fullest step: "
        words = (
            f"{chosen}IPU {ipu}, tile {on}, step {at} ({program['name'].iloc[at]}): "
            f"{units.size(int(found['bytes'].sum()))} of {units.size(report.target.bytes_per_tile)} are live, in "
            f"{len(found):,} variables."
        )
        return [html.P(words), common.table("memory-live-table", found, _COLUMNS, common.theme_of(where), height=300)]


def _bounds(window: tuple[float, float] | None, size: int) -> tuple[int, int]:
    """A zoom as whole positions, at least one of them."""
    if window is None:
        return 0, size
    first = int(np.clip(np.floor(window[0]), 0, max(0, size - 1)))
    return first, int(np.clip(np.ceil(window[1]), first + 1, max(size, first + 1)))


PAGE = Page("/memory", "Memory", layout, register, "Bytes over tiles and program steps")
