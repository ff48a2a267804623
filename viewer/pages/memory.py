"""Memory: bytes of each tile by purpose, what is live when, and a chosen tile and variable."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from dash import ALL, Dash, Input, Output, State, html, no_update

from ipuscope.profiler import Report, analysis
from ipuscope.profiler.enums import OUT_OF_MEMORY
from ipuscope.profiler.file import records
from ipuscope.viewer.figures import memory as figures
from ipuscope.viewer.figures import units
from ipuscope.viewer.figures.drawing import legend_above
from ipuscope.viewer.figures.lanes import FEW
from ipuscope.viewer.figures.theme import Theme
from ipuscope.viewer.pages import common, refused, tables, timespan
from ipuscope.viewer.pages.common import Page, View
from ipuscope.viewer.pages.tables import Column
from ipuscope.viewer.profiles import Profiles

NAME = "memory"
MOST_VARIABLES = 1000  # rows of the table
# What is asked first is seen without a scroll.
_SIZED = (Column("name", "variable"), Column("bytes", "bytes", ",.0f", width=100))
_KINDS = (
    Column("category", "category", width=120),
    Column("role", "role", width=130),
    Column("block_name", "Block", width=100),
)
_LIVE, _REGION = Column("live", "live at steps", width=150), Column("region", "region", width=80)
_OF_TILE = (*_SIZED, _LIVE, *_KINDS, _REGION)
_OF_POINT = (*_SIZED, *_KINDS, Column("op_name", "operator", width=220))

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
    too_full = view.report.meta["state"] == OUT_OF_MEMORY  # by the extent, gaps included
    return [
        common.controls(
            view,
            common.ipu_choice(view, int(fullest.argmax()) if len(fullest) else 0),
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
            *_live_controls(view),
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
        *_live_cards(view),
        common.figure_card("By category on the chosen tile", "memory-tile-kinds", height=260),
        common.drawer(
            ("The chosen variable", common.filled("memory-variable")),
            ("The chosen tile", common.filled("memory-tile")),
            ("Variables on this tile: click one", common.filled("memory-variables")),
            ("Live at the chosen point", common.filled("liveness-live")),
            ("Vertices on this tile", common.filled("memory-vertices")),
        ),
    ]


def register(app: Dash, profiles: Profiles) -> None:
    """Register the callbacks of the page."""
    _register_live(app, profiles)
    row = Input({"variables": ALL}, "cellClicked")
    common.sets(app, NAME, "variable", ["variable"], row)
    maps: list[Any] = ["memory-tiles", "memory-chip", {"variable": ALL}]
    common.sets(app, NAME, "tile", ["tile"], *(Input(one, "clickData") for one in maps))

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
        columns = 1 if timespan.width(where) < tables.NARROW else 2
        second = _other(profiles, profile, ipu, *other)
        beside = None if second is None else second.tiles(ipu)
        return (
            figures.tiles(
                by_tile, limit, theme, _tile(report, ipu, tile), gaps == "with", to_limit, beside
            ),
            figures.chip(kib, limit / figures.KIB, theme, to_limit=to_limit),
            figures.categories(_fullest(report.memory(), ipu), theme, columns),
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
        of = ("memory-vertex-table", report.tile_vertices(ipu, on), _VERTICES, theme)
        parts = (part(report, ipu, on, theme) for part in (_kinds, _variables))
        return _facts(report, ipu, on), *parts, tables.table(*of, height=360)

    @app.callback(
        Output("memory-variable", "children"),
        *common.param_input(NAME, "profile", "variable"),
        common.theme_state(),
    )
    def one_variable(profile: Any, variable: Any, where: Any) -> Any:
        report, number = profiles.get(profile), common.whole(variable, -1)
        row = (
            int(report.file.rows_of(records.Variable, np.array([number]))[0]) if number >= 0 else -1
        )
        if row < 0:
            return common.message("Click a variable in a table for its tiles and its lifetime.")
        return _variable(report, number, common.theme_of(where))


def _other(profiles: Profiles, profile: Any, ipu: int, *asked: Any) -> Report | None:
    """The profile to show beside this one, if it has such an IPU."""
    second = common.other_of(profiles, profile, *asked)
    return second if second is not None and ipu < second.target.ipus_per_replica else None


def _variable(report: Report, number: int, theme: Theme) -> Any:
    """Where a variable lies and when it lives, with links to its tiles, steps and operator."""
    row: Any = report.variables.loc[number]
    on_tiles, ipu = report.usage.variable_tiles(number), int(row["ipu"])
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
        ("used", f"{row['peak'] / 1024:,.1f} KiB of {units.size(target.bytes_per_tile)}"),
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
    which, size = report.usage.live_at(ipu, int(row["peak_step"]), tile)
    columns = report.usage.variables_of(ipu)
    return figures.tile_kinds(columns["category"][which], columns["role"][which], size, theme)


def _variables(report: Report, ipu: int, tile: int, theme: Theme) -> Any:
    size = report.usage.bytes_of_variables(ipu, tile)
    there = np.flatnonzero(size > 0)
    there = there[np.argsort(-size[there], kind="stable")]
    every, rows = size[there], there[:MOST_VARIABLES]
    size = size[rows]
    columns = {name: values[rows] for name, values in report.usage.variables_of(ipu).items()}
    lives = [
        "always" if forever else f"{start} to {stop - 1}"
        for forever, start, stop in zip(
            *(columns[name].tolist() for name in ("always_live", "start", "stop")), strict=True
        )
    ]
    frame = pd.DataFrame(
        {
            "id": columns["id"],
            "name": report.file.names_of(records.Variable, columns["id"]),
            **{name: columns[name] for name in ("category", "role", "block", "op")},
            "bytes": size,
            "live": lives,
            "region": np.where(columns["interleaved"] != 0, "1", "0"),
        }
    )
    frame = described(report, frame)
    table = tables.table({"variables": "tile"}, frame, _OF_TILE, theme, height=360, row_id="id")
    if len(rows) == len(every):
        return table
    share = units.percent(float(size.sum() / every.sum()))
    words = f"The {len(rows):,} largest of {len(every):,}, {share} of their bytes. All: "
    all_of_it = f"ipu-report tile --ipu {ipu} --tile {tile} --top 0 {report.argument}"
    return [html.P([words, html.Code(all_of_it)], className="note"), table]


PAGE = Page("/memory", "Memory", layout, register, "Bytes of each tile, and what they are for")


LIFETIMES = 24  # bars at the most


def _live_controls(view: View) -> list[Any]:
    """The controls of liveness: the step, the measure, and hidden ones of zooms."""
    counted = (("total", "all"), ("not_always_live", "not always live"))
    return [
        common.number_field(view, "step", "step (empty: the fullest)", 0, None),
        common.switch(view, "what", "live bytes of", counted, "total"),
        *(common.hidden(view, name) for name in ("first", "last", "low", "high")),
    ]


def _live_cards(view: View) -> list[Any]:
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
    if report.meta["state"] == OUT_OF_MEMORY:
        return "Without gaps, with which it does not fit: the bytes of each tile have both. "
    return "Gaps excluded. "


def _register_live(app: Dash, profiles: Profiles) -> None:
    common.zooms(app, NAME, "liveness-heat", "first", "last")
    common.zooms(app, NAME, "liveness-heat", "low", "high", "yaxis")
    common.sets(
        app,
        NAME,
        "livePoint",
        ["step", "tile"],
        Input("liveness-heat", "clickData"),
        Input("liveness-steps", "clickData"),
        too=True,
    )

    zoom = ("first", "last", "low", "high")

    @app.callback(
        Output("liveness-heat", "figure"),
        *common.param_input(NAME, "profile", "ipu", "what", "scale", *zoom),
        common.theme_state(),
    )
    def heat(profile: Any, ipu: Any, what: Any, scale: Any, *zoom: Any) -> Any:
        left, right, low, high, where = zoom
        report, ipu = common.chosen(profiles, profile, ipu)
        tile_count, count = report.target.tiles_per_ipu, int(report.sequence.steps_of_ipus[ipu])
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
        program = report.sequence.steps_of_ipu(ipu, "position", "direction")
        figure = figures.heat_map(
            values, steps, tiles, program, limit, common.theme_of(where), scale == "limit"
        )
        key = f"{ipu}{steps}{tiles}"
        common.zoomable(figure, NAME, y=tile_count, x=("first", "last"), end=count)
        axes = ("xaxis", "xaxis2", "yaxis", "yaxis2")
        figure.update_layout(uirevision="same", **{axis: {"uirevision": key} for axis in axes})
        return figure

    @app.callback(
        Output("liveness-said", "children"),
        *common.param_input(NAME, "profile", "ipu", "step", *zoom),
    )
    def note(profile: Any, ipu: Any, step: Any, left: Any, right: Any, low: Any, high: Any) -> Any:
        report, ipu = common.chosen(profiles, profile, ipu)
        count = int(report.sequence.steps_of_ipus[ipu])
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
        second = _other(profiles, profile, ipu, *other)
        beside = None if second is None else _live_steps(second, ipu)
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
        count = int(report.sequence.steps_of_ipus[ipu])
        if not count:
            return no_update
        on, at = point(report, ipu, tile, step)
        theme = common.theme_of(where)
        variables = described(report, report.live_variables(ipu, at, on))
        words = (
            f"IPU {ipu}, tile {on}, step {at} ({name_of_step(report, ipu, at)}):"
            f" {variables['bytes'].sum() / 1024:,.1f} KiB of"
            f" {units.size(report.target.bytes_per_tile)} are live,"
            f" in {len(variables):,} variables."
        )
        which, _ = report.usage.live_at(ipu, at, on)
        columns = report.usage.variables_of(ipu)
        both = variables.assign(
            start=columns["start"][which],
            stop=columns["stop"][which],
            always=columns["always_live"][which],
        )
        largest = both[both["always"] == 0].head(LIFETIMES)
        frame = variables.assign(id=variables["variable"])
        of = ({"variables": "point"}, frame, _OF_POINT, theme)
        lives = figures.lifetimes(largest, at, count, theme, timespan.width(where))
        return [html.P(words), tables.table(*of, height=320, row_id="id")], lives


def _no_step(asked: Any, ipu: int, steps: int) -> str:
    """A sentence if the program of the IPU has no step of that number."""
    if str(asked or 0) == "0" or common.whole(asked, -1, 0, steps - 1) >= 0:
        return ""
    there, then = refused.numbers(0, steps - 1), "This is the fullest."
    return refused.refused(f"program step {{}} of IPU {ipu}", asked, there, then)


def point(report: Report, ipu: int, tile: Any, step: Any) -> tuple[int, int]:
    """The chosen tile and step; by default the fullest tile, at its fullest step."""
    on, steps = _tile(report, ipu, tile), int(report.sequence.steps_of_ipus[ipu])
    usual = int(report.tiles(ipu)["peak_step"].iloc[on])
    return on, common.whole(step, usual, 0, max(0, steps - 1))


def _live_steps(report: Report, ipu: int) -> figures.LiveSteps:
    return figures.LiveSteps(
        report.usage.live_columns(ipu), partial(report.sequence.names_of_steps, ipu)
    )


def name_of_step(report: Report, ipu: int, position: int) -> str:
    """The name of a program step of an IPU, by position; "" if there is none."""
    there = np.arange(position, min(position + 1, int(report.sequence.steps_of_ipus[ipu])))
    names = report.sequence.names_of_steps(ipu, there).tolist()
    return str(names[0]) if names else ""


def described(report: Report, variables: pd.DataFrame) -> pd.DataFrame:
    """Variables with the names of their operators and Blocks."""
    return variables.assign(
        block_name=report.file.block_names(variables["block"].to_numpy()),
        op_name=report.file.op_names(variables["op"].to_numpy()),
    )


def _bounds(window: tuple[float, float] | None, size: int) -> tuple[int, int]:
    """A zoom as whole positions, with at least one in range."""
    if window is None:
        return 0, size
    first = int(np.clip(np.floor(window[0]), 0, max(0, size - 1)))
    return first, int(np.clip(np.ceil(window[1]), first + 1, max(size, first + 1)))
