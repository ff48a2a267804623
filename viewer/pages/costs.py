"""Costs: cycles or bytes by module, operator and stage, as a flame graph and as a tree table.

The table opens from modules to operators and program steps, or shows the program as it runs. The
server builds its visible rows (`cost_rows`) from the open nodes.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from dash import Dash, Input, Output, State, dcc, html, no_update

from ipuscope.profiler import Report, analysis
from ipuscope.profiler.analysis import hierarchy, regions, source
from ipuscope.profiler.analysis.hierarchy import Look, Node, Path
from ipuscope.profiler.analysis.peak import peak
from ipuscope.profiler.analysis.regions import Regions
from ipuscope.profiler.analysis.source import Margin
from ipuscope.profiler.answers import is_stored
from ipuscope.profiler.enums import Direction
from ipuscope.profiler.file import records
from ipuscope.viewer.figures import flame as figures
from ipuscope.viewer.figures import memory as memory_figures
from ipuscope.viewer.figures import peak as peak_figures
from ipuscope.viewer.figures import units
from ipuscope.viewer.figures.units import Clock
from ipuscope.viewer.pages import common, cost_rows, refused, tables, timespan
from ipuscope.viewer.pages.common import Page, View
from ipuscope.viewer.pages.details import step_details, step_row
from ipuscope.viewer.pages.tables import Column
from ipuscope.viewer.profiles import Profiles

if TYPE_CHECKING:
    from ipuscope.viewer.figures.theme import Theme

NAME = "costs"
_MOST_ROWS = 30
_HEIGHT = 480  # pixels: the highest the table may be
_ORDERS = (
    ("module", "module, operator, stage"),
    ("stage", "stage, module, operator"),
    ("block", "Block, module, operator"),
    ("aten", "ATen, module, operator"),
    ("source", "source file, line, operator"),
    ("stack", "call stack, line, operator"),
    (cost_rows.PROGRAM, "the program, as it runs"),
)
_ROOFLINE = "roofline"
_ALIKE = ("Blocks alike", "stages alike", "modules alike", "lines alike", "micro-batches")
_FORMS = (("flame", "flame graph"), (_ROOFLINE, "roofline"), *zip(regions.BY, _ALIKE, strict=True))
_DIRECTIONS = (Direction.FORWARD, Direction.BACKWARD, Direction.UPDATE)
_STEPS = (
    Column("position", "step", ",.0f", width=80),
    Column("name", "name"),
    Column("kind", "kind", width=110),
    Column("cycles", "cycles", ",.0f", width=100),
    Column("active_tiles", "tiles", ",.0f", width=90),
    Column("tile_balance", "balance", ".0%", width=100),
    Column("bytes_in", "bytes in", ",.0f", width=110),
)
_OF_FLAME = ("measure", "order", "layers", "form", "at")
_WHAT = ("profile", "order", "layers", "stage", "direction", "find", "sort", "at", "toggled")


def layout(view: View) -> Any:
    """The page; its callbacks draw it."""
    report = view.report
    measures = [("cycles", "cycles"), ("bytes", "bytes")]
    if not len(report.runs):
        measures = measures[1:]
    many = report.file.table(records.Op).rows > common.MANY_OPERATORS
    both = (("each", "each"), ("together", "together"))
    order = common.choice(view, "order", "over", _ORDERS, "module", wide=True)
    return [
        common.controls(
            view,
            order,
            common.switch(view, "layers", "layers", both, "together" if many else "each"),
            common.choice(view, "stage", "stage", _stages(report), "all"),
            common.choice(
                view, "direction", "for", [("all", "all"), *((d, d) for d in _DIRECTIONS)], "all"
            ),
            common.choice(view, "sort", "sorted by", cost_rows.SORTS, "total"),
            common.search(view, "find", "find by name"),
            common.other_switch(view, "difference to the other profile"),
            common.hidden(view, "at"),
            common.hidden(view, "toggled", check=_no_row),
            common.hidden(view, "op", check=refused.no_row(report, records.Op, "operator", _CLICK)),
            common.hidden(view, "node", check=_no_step(report)),
            compares=True,
        ),
        common.figure_card(
            "Costs by part",
            "flame-graph",
            note="Copies and streams too. Click a part to see it alone, its top to go back.",
            height=260,
            controls=[
                common.switch(view, "measure", "of", measures, measures[0][0]),
                common.choice(view, "form", "as", _FORMS, "flame"),
                html.Div(id="flame-legend", className="legend"),
            ],
            below=[html.Div(id="flame-parts"), dcc.Store(id="flame-first")],
        ),
        common.card(
            "Operators and steps",
            common.filled("costs-trail"),
            tables.table(
                "costs-grid",
                pd.DataFrame(columns=[one.name for one in cost_rows.COLUMNS]),
                cost_rows.COLUMNS,
                view.theme,
                height=_HEIGHT,
                row_id="id",
                sortable=False,
                filled_later=True,
            ),
            html.Div(
                html.Button("Save as CSV", id="costs-csv", className="quiet"), className="under"
            ),
            note=f"Of {analysis.turn(view.report)}, all executions; share: of operators' cycles.",
        ),
        common.drawer(("Chosen", common.filled("costs-chosen"))),
    ]


_CLICK = "Click one in the table."


def _no_step(report: Report) -> refused.Check:
    node = refused.no_row(report, records.Program, "node", _CLICK)

    def check(value: str) -> str:
        if (words := node(value)) or int(value) in report.sequence.steps_in_order("program"):
            return words
        return refused.refused("step at node", value, "it has others in it", "Click a step.")

    return check


def _no_row(value: str) -> str:
    bad = [one for one in value.split(",") if not re.fullmatch(r"[gon]\d{1,9}", one)]
    there = "there are groups g1, g2 and so on, operators o0, o1 and nodes n0, n1"
    return refused.refused("row", bad[0], there, _CLICK) if bad else ""


def _stages(report: Report) -> list[tuple[str, str]]:
    rows = units.rows_of(report.stages)
    return [("all", "all"), *((str(row.stage), f"{row.stage} on IPU {row.ipu}") for row in rows)]


def register(app: Dash, profiles: Profiles) -> None:
    """Register the callbacks of the page."""
    at, toggled = common.param_id(NAME, "at"), common.param_id(NAME, "toggled")
    clicked, row = Input("flame-graph", "clickData"), Input("costs-grid", "cellClicked")
    common.sets(app, NAME, "flamePart", ["at"], clicked, *common.param_state(NAME, "at"))
    common.sets(app, NAME, "rooflinePoint", ["op"], clicked, too=True)
    common.sets(app, NAME, "costRow", ["toggled", "op", "node"], row, State(toggled, "value"))
    app.clientside_callback(
        "function(order, layers) { return ['', '']; }",  # open rows do not exist in another tree
        Output(at, "value", allow_duplicate=True),
        Output(toggled, "value", allow_duplicate=True),
        *common.param_input(NAME, "order", "layers"),
        prevent_initial_call=True,
    )
    app.clientside_callback(
        "function(clicks) { return !!clicks; }",
        Output("costs-grid", "exportDataAsCsv"),
        Input("costs-csv", "n_clicks"),
        prevent_initial_call=True,
    )

    common.leads(app, NAME, "part")
    _register_flame(app, profiles)

    @app.callback(
        Output("costs-grid", "rowData"),
        Output("costs-grid", "columnDefs"),
        Output("costs-grid", "style"),
        Output("costs-trail", "children"),
        *common.param_input(NAME, *_WHAT, "other", "with"),
        common.theme_state(),
    )
    def rows(profile: Any, *values: Any) -> Any:
        *what, other, beside, where = values
        report, second = _reports(profiles, profile, other, beside)
        wanted = cost_rows.Wanted.of(*what)
        shown = cost_rows.rows_of(profiles, report, second, wanted)
        trail = [] if wanted.order == cost_rows.PROGRAM else [common.trail("part", wanted.at)]
        note = html.P(shown.note, className="note", role="status")
        height = {"width": "100%", "height": f"{tables.height_of(len(shown.rows), _HEIGHT)}px"}
        definitions = tables.definitions(shown.columns, window=timespan.width(where))
        return shown.rows, definitions, height, [*trail, note]

    @app.callback(
        Output("costs-chosen", "children"),
        *common.param_input(NAME, "profile", "op", "node"),
        common.theme_state(),
    )
    def chosen(profile: Any, op: Any, node: Any, where: Any) -> Any:
        report, theme = profiles.get(profile), common.theme_of(where)
        number, step = common.whole(op, -1), step_row(report, "program", common.whole(node, -1))
        if step is not None:
            return step_details(report, step, Clock(report.target.clock_hz), theme)
        if number < 0 or number not in report.ops.index:
            return common.message("Click an operator or a step in the table.")
        return operator_details(profiles, report, number, theme)


def _reports(profiles: Profiles, profile: Any, *other: Any) -> tuple[Report, Report | None]:
    return profiles.get(profile), common.other_of(profiles, profile, *other)


def leaves_of(
    profiles: Profiles, report: Report, measure: str, order: str, together: bool
) -> pd.DataFrame:
    """The cached leaves of a report's tree; no cycles without a schedule."""

    def make() -> pd.DataFrame:
        if measure == "bytes" or not len(report.runs):
            return hierarchy.leaves_of_bytes(report, order, together)
        return hierarchy.leaves_of_cycles(report, order, together)

    return profiles.made(report, ("leaves", measure, order, together), make)


def tree_of(
    profiles: Profiles, report: Report, other: Report | None, *what: Any
) -> dict[Path, Node]:
    """The tree of a report, compared with another's if given."""
    before = leaves_of(profiles, other, *what) if other is not None else None
    key = ("tree", None if before is None else id(before), *what)
    return profiles.made(
        report, key, lambda: hierarchy.tree(leaves_of(profiles, report, *what), before)
    )


_POINTS = html.P(
    "Operators that are alike are one point; click one to see it below.", className="note"
)


def _slower(repeats: Regions) -> list[Any]:
    """What of repeated things takes longer than the others, and why."""
    if not len(repeats.things):
        return []
    note, slow = html.P(repeats.words, className="note"), repeats.slow.head(_MOST_ROWS)
    rows = [(one.name, f"{one.ratio:.2%}", one.why) for one in units.rows_of(slow)]
    return [note, tables.small(rows, words=(0, 2))] if rows else [note]


def _register_flame(app: Dash, profiles: Profiles) -> None:
    asked = common.param_input(NAME, "profile", "other", "with", *_OF_FLAME)
    parts = (("flame-graph", "figure"), ("flame-legend", "children"), ("flame-parts", "children"))

    @app.callback(
        *(Output(*part) for part in parts),
        Output("flame-first", "data"),
        *asked,
        common.theme_state(),
    )
    def draw(*values: Any) -> Any:
        """The figure; of many operators first by direction, and then `follow` draws all of it."""
        report, second = _reports(profiles, *values[:3])
        many = report.file.table(records.Op).rows > common.MANY_OPERATORS
        first = second is None and values[3:][:5] == ("cycles", "module", "together", "flame", "")
        if not (first and many and len(report.runs)) or is_stored(report, hierarchy.first_look):
            return *whole(*values), False
        seen, clock = hierarchy.by_direction(report), Clock(report.target.clock_hz)
        return *_flame(seen, (), clock.both, common.theme_of(values[-1])), _FOLLOWS, True

    @app.callback(
        *(Output(*part, allow_duplicate=True) for part in parts),
        Input("flame-first", "data"),
        *(State(one.component_id, "value") for one in asked),
        common.theme_state(),
        prevent_initial_call=True,
    )
    def follow(first: Any, *values: Any) -> Any:
        return whole(*values) if first else (no_update,) * len(parts)

    def whole(profile: Any, other: Any, beside: Any, measure: Any, order: Any, *more: Any) -> Any:
        layers, form, at, where = more
        report, second = _reports(profiles, profile, other, beside)
        bytes_of = measure == "bytes" or not len(report.runs)
        over = order if order in hierarchy.ORDERS else "module"
        what = ("bytes" if bytes_of else "cycles", over, layers == "together")
        if form == _ROOFLINE and not bytes_of and peak(report):
            operators = cost_rows.operators_of(profiles, report)
            return peak_figures.roofline(report, operators, common.theme_of(where)), [], _POINTS
        if form in regions.BY:
            clock, theme = Clock(report.target.clock_hz), common.theme_of(where)
            alike = profiles.made(report, ("regions", form), lambda: regions.regions(report, form))
            return peak_figures.spread(alike, clock, theme), [], _slower(alike)
        here, lost = figures.path_of(str(at or "")), False
        if second is None and not here and what == ("cycles", "module", True):
            seen = profiles.made(report, "layers together", lambda: hierarchy.first_look(report))
        else:
            nodes = tree_of(profiles, report, second, *what)
            lost = bool(here) and here not in nodes
            here = () if lost else here
            seen = hierarchy.look(nodes, here)
        words = units.size if bytes_of else Clock(report.target.clock_hz).both
        drawn = _flame(seen, here, words, common.theme_of(where), bytes_of, second is not None)
        parts = _parts(seen, here, words) if here else []
        if over == "source" and not lost and not bytes_of:
            file = here[0] if here else ""
            listed = bool(file) and (report.ops["file"] == file).any()
            parts = file_listing(report, file) if listed else hottest(report)
        return *drawn, _lost(at, over, what[0]) if lost else parts


_FOLLOWS = html.P("By direction at first; modules and operators follow.", className="note")


def _flame(
    seen: Look, here: Path, words: Any, theme: Theme, bytes_of: bool = False, compared: bool = False
) -> tuple[Any, list[Any]]:
    """The figure of a tree, and its legend."""
    figure = figures.drawn(seen.shown, here, words, theme, bytes_of, compared)
    legend = [] if compared else figures.legend(seen.shown, theme, bytes_of)
    return figure, [html.Span([html.I(style={"background": fill}), name]) for name, fill in legend]


def _lost(at: Any, order: str, measure: str) -> Any:
    """A message that the part asked for is not in the tree."""
    there = f"none over {dict(_ORDERS)[order]} has {measure} under this name"
    words = refused.refused("part", at, there, "All is shown; click a part to see it alone.")
    return common.message(words, "warning")


def _parts(seen: Look, at: Path, words: Any) -> Any:
    """The parts of a part, widest first; one that has parts itself is a button that opens it."""
    whole = max(1, seen.shown[len(at)].value)
    rows: list[tuple[Any, ...]] = []
    for node in seen.inside[:_MOST_ROWS]:
        name: Any = node.path[-1]
        name = common.opens("part", node.path, name) if node.path in seen.opens else name
        rows.append((name, words(node.value), units.percent(node.value / whole)))
    if len(seen.inside) > _MOST_ROWS:
        rows.append((f"and {len(seen.inside) - _MOST_ROWS:,} smaller",))
    return tables.small(rows)


def operator_details(profiles: Profiles, report: Report, number: int, theme: Theme) -> list[Any]:
    """Details of an operator, and its balance over tiles."""
    clock = Clock(report.target.clock_hz)
    row: Any = cost_rows.operators_of(profiles, report).loc[number]
    steps = report.program_steps()
    steps = steps[steps["op"] == number]
    rows: list[tuple[str, Any]] = [
        ("operator", row["name"]),
        ("ATen", common.link(row["aten"], "costs", order="aten", find=row["aten"])),
        ("module", row["module"] or "none"),
        ("source", common.source_link(row["file"], row["line"])),
        (
            "where",
            [
                f"Block {row['block_name'] or 'none'}, ",
                common.link(f"stage {row['stage']}", "costs", stage=row["stage"]),
                f", IPU {row['ipu']}",
            ],
        ),
        ("cycles", clock.both(int(row["cycles"]))),
        ("times", f"{row['executions']:,}, {row['total_cycles']:,} cycles together"),
        ("recomputed", f"{row['recompute_cycles']:,} cycles beside these"),
        ("FLOPs", f"{row['flops']:,}"),
        ("plan", row["plan"] or "nothing to choose"),
    ]
    if context := around(report, str(row["file"]), int(row["line"])):
        rows.append(("line", context))
    if row["forward_op"] in report.ops.index:
        forward = int(row["forward_op"])
        name = str(report.ops.loc[forward, "name"])
        rows.append(("belongs to", common.link(name, "costs", op=forward)))
    if row["estimated"]:
        rows.append(("note", "an estimate: this operator has no lowering yet"))
    tiles = _tile_cycles(report, steps["step"].to_numpy())
    links = [common.link("in the timeline", "timeline", ipu=row["ipu"], find=row["name"])]
    if len(steps):
        at = steps["position"].iloc[0]
        links.append(common.link("variables live then", "memory", ipu=row["ipu"], step=at))
    balance = steps["tile_balance"].astype(object).where(steps["tile_balance"].notna(), None)
    shown = steps.assign(tile_balance=balance)
    figure = memory_figures.chip(tiles.astype(np.float32), 0.0, theme, "cycles")
    busy = units.percent(tiles.mean() / max(1, tiles.max())) if tiles.any() else "none"
    about = html.Div([common.facts(rows), html.P(common.separated(links))])
    note = html.P(f"Balance over tiles: {busy}", className="note")
    chip = html.Div([note, common.graph("costs-tiles", figure)])
    table = tables.table("costs-steps", shown, _STEPS, theme, height=300)
    return [html.Div([about, chip], className="row"), table]


def _tile_cycles(report: Report, steps: np.ndarray) -> np.ndarray:
    """Compute cycles of each tile, summed over these steps: int64[tiles]."""
    total = np.zeros(report.target.tiles_per_ipu, dtype=np.int64)
    for step in steps.tolist():
        cycles = report.step_tiles(int(step))["cycles"]
        if cycles is not None:
            total += cycles
    return total


PAGE = Page("/costs", "Costs", layout, register, "Cycles and bytes by module, operator and step")


HEADS = ("forward", "backward", "update", "again", "bytes", "IPU", "", "")
_MOST_LINES = 4000
_HOTTEST = 12
_AROUND = 3  # lines before and after an operator's


def hottest(report: Report) -> Any:
    """The lines with the most cycles; each leads to its operators."""
    rows = source.lines(report)
    shown = rows[rows["file"] != ""].head(_HOTTEST)
    places = zip(shown["file"].tolist(), shown["line"].tolist(), strict=True)
    entries = []
    for (file, line), row in zip(places, units.rows_of(shown), strict=True):
        there = common.link("in the timeline", "timeline", find=row.largest)
        text = html.Code(source.line_of(report, file, line))
        entries.append((row.share, [common.source_link(file, line), " ", text, " ", there]))
    note = html.P("Of the cycles of all operators, by the line that makes them:", className="note")
    return [note, common.shares(entries)]


def file_listing(report: Report, file: str) -> Any:
    """A file with the cost of each line; a line's number leads to its operators."""
    lines = source.listing(report, file)
    first = next((at for at, one in enumerate(lines) if one.costs is not None), 0)
    lines = lines[max(0, first - _AROUND) :]  # lines above cost nothing
    parts: list[Any] = [_source_table(file, lines[:_MOST_LINES])]
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
    return _source_table(file, lines, line)


def _source_table(file: str, lines: list[Margin], here: int = 0) -> Any:
    head = html.Tr([html.Th(name, className="n") for name in HEADS])
    rows = [
        html.Tr(_source_cells(file, one), className="here" * (one.number == here)) for one in lines
    ]
    return html.Table([html.Thead(head), html.Tbody(rows)], className="plain source")


def _source_cells(file: str, one: Margin) -> list[Any]:
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
