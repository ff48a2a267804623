"""Liveness: live bytes over program steps and tiles, and the variables live at a chosen point."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from dash import Dash, Input, Output, State, html, no_update

from ipuscope.profiler import Report, analysis
from ipuscope.viewer.figures import memory as figures
from ipuscope.viewer.figures import units
from ipuscope.viewer.figures.legend import legend_above
from ipuscope.viewer.pages import common, refused, tables, timespan
from ipuscope.viewer.pages.common import View
from ipuscope.viewer.pages.tables import Column
from ipuscope.viewer.profiles import Profiles

if TYPE_CHECKING:
    import pandas as pd

NAME = "memory"
LIFETIMES = 24  # bars at the most
COLUMNS = (
    Column("name", "variable"),
    Column("category", "category", width=165),
    Column("role", "role", width=140),
    Column("op_name", "operator", width=220),
    Column("block_name", "Block", width=110),
    Column("bytes", "bytes", ",.0f", width=110),
)


def controls(view: View) -> list[Any]:
    """The controls of liveness: the step, the measure, and hidden ones of zooms."""
    counted = (("total", "all"), ("not_always_live", "not always live"))
    return [
        common.number_field(view, "step", "step (empty: the fullest)", 0, None),
        common.switch(view, "what", "live bytes of", counted, "total"),
        *(common.hidden(view, name) for name in ("first", "last", "low", "high")),
    ]


def cards(view: View) -> list[Any]:
    """The figures over steps and time; `register`'s callbacks draw them."""
    return [
        html.Div(id="liveness-said"),
        common.figure_card(
            "Live bytes over tiles and program steps",
            "liveness-heat",
            note=_gaps(view.report) + "Click a point to see what is live there.",
            height=480,
        ),
        common.figure_card("Live bytes over program steps", "liveness-steps", height=440),
        common.figure_card(
            "How long they live",
            "liveness-lives",
            note=(
                f"Variables live at the chosen point but not always: at most the {LIFETIMES}"
                " largest. The line is the chosen step."
            ),
            height=260,
        ),
    ]


def _gaps(report: Report) -> str:
    """What is not counted; of a model that does not fit, where that is."""
    if report.meta["state"] == "out of memory":
        return "Without gaps, with which it does not fit: the bytes of each tile have both. "
    return "Gaps excluded. "


_CLICK = """
function(heat, steps) {
    const none = [window.dash_clientside.no_update, window.dash_clientside.no_update];
    const by = window.dash_clientside.callback_context.triggered[0];
    const at = by && by.value && by.value.points && by.value.points[0];
    if (!at) { return none; }
    if (by.prop_id.startsWith('liveness-steps')) { return [Math.floor(at.x), none[1]]; }
    return at.curveNumber === 0 ? [Math.floor(at.x), Math.floor(at.y)] : none;
}
"""


def register(app: Dash, profiles: Profiles) -> None:
    """Register the callbacks of liveness."""
    common.zooms(app, NAME, "liveness-heat", "first", "last")
    common.zooms(app, NAME, "liveness-heat", "low", "high", "yaxis")
    app.clientside_callback(
        _CLICK,
        Output(common.param_id(NAME, "step"), "value"),
        Output(common.param_id(NAME, "tile"), "value", allow_duplicate=True),
        Input("liveness-heat", "clickData"),
        Input("liveness-steps", "clickData"),
        prevent_initial_call=True,
    )

    @app.callback(
        Output("liveness-heat", "figure"),
        *common.param_input(
            NAME, "profile", "ipu", "what", "scale", "first", "last", "low", "high"
        ),
        common.theme_state(),
    )
    def heat(
        profile: Any,
        ipu: Any,
        what: Any,
        scale: Any,
        left: Any,
        right: Any,
        low: Any,
        high: Any,
        where: Any,
    ) -> Any:
        report, ipu = common.chosen(profiles, profile, ipu)
        tile_count, count = report.target.tiles_per_ipu, int(report.steps_of_ipus[ipu])
        steps = _bounds(common.window(left, right, count), count)
        tiles = _bounds(common.window(low, high, tile_count), tile_count)
        values = report.liveness_map(
            ipu,
            slice(*steps),
            slice(*tiles),
            shape=figures.HEAT_SHAPE,
            what="not_always_live" if what == "not_always_live" else "total",
        )
        limit = report.target.bytes_per_tile
        program = report.steps_of_ipu(ipu, "position", "direction")
        figure = figures.heat_map(
            values, steps, tiles, program, limit, common.theme_of(where), scale == "limit"
        )
        key = f"{ipu}{steps}{tiles}"
        common.zoomable(figure, NAME, y=tile_count, x=("first", "last"), end=count)
        axes = ("xaxis", "xaxis2", "yaxis", "yaxis2")
        figure.update_layout(uirevision="same", **{axis: {"uirevision": key} for axis in axes})
        return figure

    zoom = ("first", "last", "low", "high")

    @app.callback(
        Output("liveness-said", "children"),
        *common.param_input(NAME, "profile", "ipu", "step", *zoom),
    )
    def note(profile: Any, ipu: Any, step: Any, left: Any, right: Any, low: Any, high: Any) -> Any:
        report, ipu = common.chosen(profiles, profile, ipu)
        count = int(report.steps_of_ipus[ipu])
        words = (
            _no_step(step, ipu, count),
            common.no_window(left, right, count, "steps"),
            common.no_window(low, high, report.target.tiles_per_ipu, "tiles"),
        )
        return [common.message(one, "warning") for one in words if one]

    @app.callback(
        Output("liveness-steps", "figure"),
        *common.param_input(NAME, "profile", "ipu", "tile", "scale", "other", "with"),
        common.theme_state(),
    )
    def over_steps(profile: Any, ipu: Any, tile: Any, scale: Any, *more: Any) -> Any:
        *other, where = more
        report, ipu = common.chosen(profiles, profile, ipu)
        on = common.whole(tile, -1, 0, report.target.tiles_per_ipu - 1)
        one = None
        if on >= 0:
            one = on, report.liveness_map(ipu, tiles=slice(on, on + 1))[:, 0]
        limit = report.target.bytes_per_tile
        second = common.other_of(profiles, profile, *other)
        beside = (
            _live_steps(second, ipu)
            if second is not None and ipu < second.target.ipus_per_replica
            else None
        )
        steps, theme = _live_steps(report, ipu), common.theme_of(where)
        figure = figures.liveness(steps, limit, theme, one, scale == "limit", beside)
        return legend_above(figure, timespan.width(where), below=6)

    @app.callback(
        Output("liveness-live", "children"),
        Output("liveness-lives", "figure"),
        *common.param_input(NAME, "profile", "ipu", "step", "tile"),
        State("where", "data"),
    )
    def live(profile: Any, ipu: Any, step: Any, tile: Any, where: Any) -> Any:
        report, ipu = common.chosen(profiles, profile, ipu)
        count = int(report.steps_of_ipus[ipu])
        if not count:
            return no_update
        on, at = point(report, ipu, tile, step)
        theme = common.theme_of(where)
        variables = described(report, report.live_variables(ipu, at, on))
        words = (
            f"IPU {ipu}, tile {on}, step {at} ({name_of_step(report, ipu, at)}):"
            f" {units.size(int(variables['bytes'].sum()))} of"
            f" {units.size(report.target.bytes_per_tile)} are live,"
            f" in {len(variables):,} variables."
        )
        which, _ = report.live_at(ipu, at, on)
        columns = report.variables_of(ipu)
        both = variables.assign(
            start=columns["start"][which],
            stop=columns["stop"][which],
            always=columns["always_live"][which],
        )
        largest = both[both["always"] == 0].head(LIFETIMES)
        return (
            [
                html.P(words),
                tables.table(
                    {"variables": "point"},
                    variables.assign(id=variables["variable"]),
                    COLUMNS,
                    theme,
                    height=320,
                    row_id="id",
                ),
            ],
            figures.lifetimes(largest, at, count, theme, timespan.width(where)),
        )


def _no_step(asked: Any, ipu: int, steps: int) -> str:
    """A sentence if the program of the IPU has no step of that number."""
    if str(asked or 0) == "0" or common.whole(asked, -1, 0, steps - 1) >= 0:
        return ""
    there, then = refused.numbers(0, steps - 1), "This is the fullest."
    return refused.refused(f"program step {{}} of IPU {ipu}", asked, there, then)


def point(report: Report, ipu: int, tile: Any, step: Any) -> tuple[int, int]:
    """The chosen tile and step; by default the fullest tile, at its fullest step."""
    by_tile = report.tiles(ipu)
    on = common.whole(tile, analysis.fullest(report, ipu), 0, len(by_tile) - 1)
    steps = int(report.steps_of_ipus[ipu])
    return on, common.whole(step, int(by_tile["peak_step"].iloc[on]), 0, max(0, steps - 1))


def _live_steps(report: Report, ipu: int) -> figures.LiveSteps:
    return figures.LiveSteps(report.live_columns(ipu), partial(report.names_of_steps, ipu))


def name_of_step(report: Report, ipu: int, position: int) -> str:
    """The name of a program step of an IPU, by position; "" if there is none."""
    there = np.arange(position, min(position + 1, int(report.steps_of_ipus[ipu])))
    names = report.names_of_steps(ipu, there).tolist()
    return str(names[0]) if names else ""


def described(report: Report, variables: pd.DataFrame) -> pd.DataFrame:
    """Variables with the names of their operators and Blocks."""
    return variables.assign(
        block_name=report.block_names(variables["block"].to_numpy()),
        op_name=report.op_names(variables["op"].to_numpy()),
    )


def _bounds(window: tuple[float, float] | None, size: int) -> tuple[int, int]:
    """A zoom as whole positions, with at least one in range."""
    if window is None:
        return 0, size
    first = int(np.clip(np.floor(window[0]), 0, max(0, size - 1)))
    return first, int(np.clip(np.ceil(window[1]), first + 1, max(size, first + 1)))
