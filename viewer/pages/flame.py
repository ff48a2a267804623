"""Flame graph: cycles or bytes by module, operator and stage, of one profile or of two."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dash import ALL, Dash, Input, Output, ctx, dcc, html, no_update
from dash.exceptions import PreventUpdate

from ipuscope.profiler import Report
from ipuscope.profiler.analysis import hierarchy
from ipuscope.profiler.analysis.hierarchy import Look, Node, Path
from ipuscope.profiler.file import records
from ipuscope.viewer.figures import flame as figures
from ipuscope.viewer.figures import units
from ipuscope.viewer.figures.units import Clock
from ipuscope.viewer.pages import common, refused
from ipuscope.viewer.pages.common import Page, View
from ipuscope.viewer.profiles import Profiles

if TYPE_CHECKING:
    import pandas as pd

NAME = "flame"
_MOST_ROWS = 30
_ORDERS = (
    ("module", "module, operator, stage"),
    ("stage", "stage, module, operator"),
    ("block", "Block, module, operator"),
    ("aten", "ATen, module, operator"),
)


def layout(view: View) -> Any:
    """The page; its callbacks draw it."""
    measures = [("cycles", "cycles"), ("bytes", "bytes")]
    if not len(view.report.runs):
        measures = measures[1:]
    return [
        common.controls(
            view,
            common.switch(view, "measure", "of", measures, measures[0][0]),
            common.choice(view, "order", "over", _ORDERS, "module", wide=True),
            common.switch(
                view,
                "layers",
                "layers",
                (("each", "each"), ("together", "together")),
                "together"
                if view.report.columns_of(records.Op).rows > common.MANY_OPERATORS
                else "each",
            ),
            common.switch(
                view, "form", "as", (("flame", "flame graph"), ("treemap", "treemap")), "flame"
            ),
            common.other_switch(view, "difference to the other profile"),
            common.hidden(view, "at"),
        ),
        *common.predicted(view),
        common.figure_card(
            "Flame graph",
            "flame-graph",
            note="The largest first. Click a part to see it alone, its top to go back.",
            height=260,
            controls=[html.Div(id="flame-legend", className="legend")],
        ),
        common.card("What it is made of", common.filled("flame-parts")),
    ]


def leaves_of(
    profiles: Profiles, report: Report, measure: str, order: str, together: bool
) -> pd.DataFrame:
    """The cached leaves of a report's tree. None for cycles if there is no schedule."""

    def make() -> pd.DataFrame:
        if measure == "bytes" or not len(report.runs):
            return hierarchy.leaves_of_bytes(report, order, together)
        return hierarchy.leaves_of_cycles(report, order, together)

    return profiles.made(report, ("leaves", measure, order, together), make)


def tree_of(
    profiles: Profiles, report: Report, other: Report | None, *what: Any
) -> dict[Path, Node]:
    """The tree of a report, compared with that of another if one is given."""
    before = leaves_of(profiles, other, *what) if other is not None else None
    key = ("tree", None if before is None else id(before), *what)
    return profiles.made(
        report, key, lambda: hierarchy.tree(leaves_of(profiles, report, *what), before)
    )


# A click on a part shows it alone; on the top of what is shown, what it is in.
_CLICK = """
function(click, at) {
    const point = click && click.points && click.points[0];
    if (!point || point.id === undefined) { return window.dash_clientside.no_update; }
    const known = (id) => (id === 'all' || !id ? '' : String(id));
    return known(point.id) === (at || '') ? known(point.parent) : known(point.id);
}
"""


def register(app: Dash, profiles: Profiles) -> None:
    """Register the callbacks of the page."""
    app.clientside_callback(
        _CLICK,
        Output(common.param_id(NAME, "at"), "value"),
        Input("flame-graph", "clickData"),
        common.param_state(NAME, "at"),
        prevent_initial_call=True,
    )

    @app.callback(
        Output(common.param_id(NAME, "at"), "value", allow_duplicate=True),
        Input({"part": ALL}, "n_clicks"),
        prevent_initial_call=True,
    )
    def into(clicks: list[int | None]) -> Any:
        if not any(clicks) or not isinstance(ctx.triggered_id, dict):
            return no_update
        return ctx.triggered_id["part"]

    @app.callback(
        Output("flame-graph", "figure"),
        Output("flame-legend", "children"),
        Output("flame-parts", "children"),
        *common.param_input(NAME, "profile", "measure", "order", "layers", "form", "other", "at"),
        common.theme_state(),
    )
    def draw(
        profile: Any,
        measure: Any,
        order: Any,
        layers: Any,
        form: Any,
        other: Any,
        at: Any,
        where: Any,
    ) -> Any:
        report = profiles.get(common.whole(profile, 0))
        if order not in hierarchy.ORDERS:
            raise PreventUpdate
        bytes_of = measure == "bytes" or not len(report.runs)
        second = common.other_of(profiles, profile, other)
        what = ("bytes" if bytes_of else "cycles", order, layers == "together")
        here, lost = figures.path_of(str(at or "")), False
        if second is None and not here and what == ("cycles", "module", True):
            seen = profiles.made(report, "layers together", lambda: hierarchy.first_look(report))
        else:
            nodes = tree_of(profiles, report, second, *what)
            lost = bool(here) and here not in nodes
            here = () if lost else here
            seen = hierarchy.look(nodes, here)
        shown = seen.shown
        theme, clock = common.theme_of(where), Clock(report.target.clock_hz)
        words = units.size if bytes_of else clock.both
        which = form if form in figures.FORMS else figures.FORMS[0]
        compared = second is not None
        figure = figures.drawn(shown, here, which, words, theme, bytes_of, compared)
        legend = [] if compared else figures.legend(shown, theme, bytes_of)
        named = [html.Span([html.I(style={"background": fill}), name]) for name, fill in legend]
        parts = _parts(seen, here, words, compared)
        return figure, named, [*_lost(at, order, what[0]), *parts] if lost else parts


def _lost(at: Any, order: str, measure: str) -> list[Any]:
    """A message that the part asked for is not in the tree."""
    there = f"none over {dict(_ORDERS)[order]} has {measure} under this name"
    words = refused.refused("part", at, there, "All is shown; click a part to see it alone.")
    return [common.message(words, "warning")]


def _parts(seen: Look, at: Path, words: Any, compared: bool) -> Any:
    """The current node and its children, widest first; each is a button that opens it."""
    inside = seen.inside
    whole = max(1, seen.shown[len(at)].value)
    heads = ["", "this profile", "share", "the other", "difference"]
    heads = heads if compared else ["", "in sum", "share"]
    rows = []
    for node in inside[:_MOST_ROWS]:
        cells = [words(node.value), units.percent(node.value / whole)]
        if compared:
            cells += [words(node.before), figures.signed(node.value - node.before, words)]
        name = _button(node.path, node.path[-1]) if node.path in seen.opens else node.path[-1]
        rows.append(html.Tr([html.Td(name), *(html.Td(one, className="n") for one in cells)]))
    if len(inside) > _MOST_ROWS:
        rest = html.Td(f"and {len(inside) - _MOST_ROWS:,} smaller", colSpan=len(heads))
        rows.append(html.Tr([rest]))
    table = html.Table(
        [
            html.Thead(
                html.Tr([html.Th(word, className="n") if word else html.Td("") for word in heads])
            ),
            html.Tbody(rows),
        ],
        className="plain",
    )
    return [_trail(at), table, _operators(at)]


def _trail(at: Path) -> Any:
    """The path from the root to the current node."""
    steps: list[Any] = [_button((), "all")] if at else [html.B("all")]
    for depth in range(1, len(at) + 1):
        last = depth == len(at)
        name = at[depth - 1]
        steps += [f" {figures.SEPARATOR} ", html.B(name) if last else _button(at[:depth], name)]
    return html.P(steps, className="trail")


def _button(path: Path, name: str) -> Any:
    return html.Button(name, id={"part": figures.id_of(path)}, className="link", n_clicks=0)


def _operators(at: Path) -> Any:
    if not at or "*" in at[-1]:
        return None
    find = at[-1]
    href = f"/operations?{common.query(find=find)}"
    return html.P(dcc.Link(f"Operators with “{units.shortened(find, 40)}”", href=href))


PAGE = Page("/flame", "Flame graph", layout, register, "Where cycles and bytes are, by module")
