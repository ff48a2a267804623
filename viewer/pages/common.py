"""The building blocks of pages: parameters in the address, cards, figures with tools, tables.

A control that belongs to a page's state has the id ``{"page": ..., "param": ...}`` and its state in
``value``: one browser-side callback writes all of them to the address, which restores the page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode

import plotly.graph_objects as go
from dash import ALL, ClientsideFunction, Dash, Input, Output, State, ctx, dcc, html, no_update

from ipuscope.profiler import Report, units
from ipuscope.viewer.figures import flame
from ipuscope.viewer.figures import theme as themes
from ipuscope.viewer.figures.drawing import Drawing
from ipuscope.viewer.figures.theme import Theme
from ipuscope.viewer.figures.units import Clock
from ipuscope.viewer.pages import refused
from ipuscope.viewer.profiles import Profiles

Children = Any
# Parameters that number something, in words.
_NOUNS = {
    "ipu": "IPU",
    "run": "call",
    "iteration": "device iteration",
    "follow": "micro-batch",
    "step": "program step",
    "stage": "stage",
    "profile": "profile",
}
MOST_PARAMETERS = 50  # of an address
_MOST_STAGES_NAMED = 4  # of an IPU in a choice
FEW_ROWS = 40  # operators: up to so many, groups are open at first
MANY_OPERATORS = 1500  # beyond so many, a page begins with groups of them
BARE_CONFIG: Any = {
    "displaylogo": False,
    "showSendToCloud": False,  # plotly's own button would upload a profile's figure
    "responsive": True,
}
GRAPH_CONFIG = {
    **BARE_CONFIG,
    "scrollZoom": False,  # assets/viewer.js asks the server at once
    "doubleClick": "autosize",
    "modeBarButtonsToRemove": ["select2d", "lasso2d", "autoScale2d", "toImage"],
}


@dataclass(frozen=True)
class View:
    """What a page is asked to show: the report and the parameters of the address."""

    profiles: Profiles
    page: str
    params: dict[str, str]
    theme: Theme
    refusals: dict[str, str] = field(default_factory=dict)  # refused parameters, and in what words

    @property
    def report(self) -> Report:
        """The report of the chosen profile."""
        return self.profiles.get(self.profile)

    @property
    def profile(self) -> str:
        """The key of the chosen profile."""
        keys = [*self.profiles.listed] or ["0"]
        return self.text("profile", keys[0], keys)

    @property
    def beside(self) -> str:
        """The key of the profile to compare with, "" if there is none."""
        asked = self.params.get("with", "")
        if asked and asked not in self.profiles.listed:
            there, then = refused.names([*self.profiles.listed]), "Choose one above."
            self.refuse("with", refused.refused("profile to compare with", asked, there, then))
        return self.profiles.beside(self.profile, asked)

    def text(
        self, name: str, default: str, allowed: Sequence[str] | None = None, label: str = ""
    ) -> str:
        """A parameter; the default if it is missing or, with a note on the page, not allowed.

        ``label``: the name of the control that lists the allowed values.
        """
        value = self.params.get(name, default)
        if allowed is None or value in allowed:
            return value
        noun, control = _NOUNS.get(name), f"“{label or name}”"
        there = refused.names([one for one in allowed if one != "none" or not noun])
        now = {"none": "None is chosen", "all": "All are shown"}.get(default, f"This is {default}")
        if noun is None:
            self.refuse(name, refused.refused(f"{{}} in {control}", value, there, f"{now}."))
        else:
            others = f"{now}; choose in {control}."
            self.refuse(name, refused.refused(noun, value, there, others))
        return default

    def refuse(self, name: str, words: str) -> None:
        """Note, above the page, why a parameter of the address is ignored."""
        self.refusals.setdefault(name, words)

    def number(
        self, name: str, default: int, low: int = 0, high: int = 1 << 40, none: str = ""
    ) -> int:
        """A whole number within bounds; otherwise the default, with a note on the page.

        ``none``: what is shown if the default, out of bounds, stands for no number.
        """
        word = self.params.get(name, "")
        number = whole(word, low - 1, low, high)
        if word and number < low:
            there = refused.numbers(low, high) if high < 1 << 40 else f"they begin with {low}"
            then = f"This is {default}." if default >= low else f"This is {none or 'none'}."
            self.refuse(name, refused.refused(_NOUNS.get(name, name), word, there, then))
        return default if number < low else number

    def clock(self) -> Clock:
        """Converts cycles to the chosen unit of time."""
        return Clock(self.report.target.clock_hz, self.text("unit", "cycles", ("cycles", "µs")))


def whole(value: object, default: int, low: int = 0, high: int = 1 << 40) -> int:
    """A whole number within bounds from untrusted browser input; otherwise the default."""
    try:
        number = float(str(value))
        exact = int(number)
    except (ValueError, OverflowError):
        return default
    return exact if exact == number and low <= exact <= high else default


@dataclass(frozen=True)
class Page:
    """A page: its address, its title, its layout and its callbacks."""

    path: str
    name: str
    layout: Callable[[View], Children]
    register: Callable[[Dash, Profiles], None] = field(default=lambda app, profiles: None)
    help: str = ""
    shown: Callable[[View], bool] = field(default=lambda view: True)  # in the list of pages


def parse(search: str | None) -> dict[str, str]:
    """The parameters of an address, the last value of each."""
    try:
        pairs = parse_qs((search or "").lstrip("?"), max_num_fields=MOST_PARAMETERS)
    except ValueError:
        return {}
    return {name: values[-1] for name, values in pairs.items()}


def param_id(page: str, name: str) -> dict[str, str]:
    """The id of a page's control, whose state goes into the address."""
    return {"page": page, "param": name}


def script(name: str) -> ClientsideFunction:
    """A function of assets/pages.js, for a callback in the browser."""
    return ClientsideFunction("pages", name)


def param_input(page: str, *names: str) -> list[Input]:
    """Callback inputs for the values of these controls."""
    return [Input(param_id(page, name), "value") for name in names]


def param_state(page: str, *names: str) -> list[State]:
    """Values of these controls as callback arguments that do not trigger the callback."""
    return [State(param_id(page, name), "value") for name in names]


def sets(
    app: Dash, page: str, name: str, params: Sequence[str], *given: Input | State, too: bool = False
) -> None:
    """Let a function of assets/pages.js set parameters of the page when an input changes.

    ``too``: other callbacks set them, too.
    """
    app.clientside_callback(
        script(name),
        *(Output(param_id(page, one), "value", allow_duplicate=too) for one in params),
        *given,
        prevent_initial_call=True,
    )


def query(**params: object) -> str:
    """The parameters as the query string of an address of this viewer."""
    return urlencode({name: value for name, value in params.items() if value is not None})


def hidden(
    view: View, name: str, default: str = "", check: refused.Check | None = None
) -> Children:
    """State without a control, such as a zoom; the default if ``check`` says why it is invalid."""
    value = view.params.get(name, default)
    if value != default and check is not None and (words := check(value)):
        view.refuse(name, words)
        value = default
    return dcc.Input(id=param_id(view.page, name), type="hidden", value=value)


def only(view: View, name: str, value: str) -> Children:
    """State of which there is one value; others are refused."""
    noun = _NOUNS.get(name, name)
    return hidden(
        view,
        name,
        value,
        lambda asked: refused.refused(noun, asked, refused.names([value]), f"This is {value}."),
    )


def choice(
    view: View,
    name: str,
    label: str,
    options: Sequence[tuple[str, str]],
    default: str,
    wide: bool = False,
) -> Children:
    """A dropdown for one of several. ``options`` are (value, label)."""
    value = view.text(name, default, [one for one, _ in options], label)
    many, look = len(options) > 12, "wide" if wide else ""
    field = _dropdown(view, name, options, value, clearable=False, searchable=many, className=look)
    return control(label, field)


def _dropdown(
    view: View, name: str, options: Sequence[tuple[str, str]], value: Any, **more: Any
) -> Children:
    shown = [{"value": one, "label": words} for one, words in options]
    return dcc.Dropdown(id=param_id(view.page, name), options=shown, value=value, **more)


def several(
    view: View, name: str, label: str, options: Sequence[tuple[str, str]], none: str
) -> Children:
    """A dropdown for any number of several; ``none`` is its placeholder."""
    allowed = {value: None for value, _ in options}
    asked = list(filter(None, view.params.get(name, "").split(",")))
    chosen = [one for one in asked if one in allowed]
    for one in asked:
        if one not in allowed:
            there, then = refused.names([*allowed]), "It is left out."
            view.refuse(name, refused.refused(f"{{}} in “{label}”", one, there, then))
    return control(label, _dropdown(view, name, options, chosen, multi=True, placeholder=none))


def switch(
    view: View, name: str, label: str, options: Sequence[tuple[str, str]], default: str
) -> Children:
    """One of a few, side by side."""
    return control(
        label,
        dcc.RadioItems(
            id=param_id(view.page, name),
            options=[{"value": value, "label": words} for value, words in options],
            value=view.text(name, default, [value for value, _ in options], label),
            className="switch",
            inline=True,
        ),
    )


def search(view: View, name: str, label: str, hint: str = "/") -> Children:
    """A field for words to search for; it takes effect when typing pauses."""
    field = dcc.Input(
        id=param_id(view.page, name),
        type="search",
        value=view.params.get(name, ""),
        debounce=0.4,
        placeholder=hint,
    )
    return control(label, field)


def number_field(view: View, name: str, label: str, low: int, high: int | None) -> Children:
    """A whole number, or nothing."""
    _, _, empty = label.rstrip(")").partition("(empty: ")
    value = view.number(name, low - 1, low, 1 << 40 if high is None else high, empty)
    field = dcc.Input(
        id=param_id(view.page, name),
        type="number",
        min=low,
        max=high,
        step=1,
        value=None if value < low else value,
        debounce=True,
    )
    return control(label, field)


def chosen(profiles: Profiles, profile: Any, ipu: Any) -> tuple[Report, int]:
    """The report and the IPU selected by two parameters."""
    report = profiles.get(profile)
    return report, whole(ipu, 0, 0, report.target.ipus_per_replica - 1)


def other_switch(view: View, label: str = "the other profile") -> Children:
    """With two profiles, whether the other one is shown beside the chosen one."""
    if not view.beside:
        return hidden(view, "other", "hide")
    return switch(view, "other", label, (("hide", "hide"), ("show", "show")), "hide")


def other_of(profiles: Profiles, profile: Any, other: Any, asked: Any) -> Report | None:
    """The profile ``asked`` for beside the chosen one, where it is to be shown."""
    beside = profiles.beside(profile, asked)
    return profiles.get(beside) if other == "show" and beside else None


def control(label: str, child: Children) -> Children:
    """A control with its label."""
    return html.Div([html.Span(label, className="label"), child], className="control")


def controls(view: View, *children: Children, compares: bool = False) -> Children:
    """A page's controls, first which profile it is of.

    ``compares``: then the one that it is compared with.
    """
    state = {"profile": view.profile, "with": view.beside}
    listed = names_of(view.profiles)
    which: list[Children] = []
    for name, value in state.items():
        if len(listed) < 2 or (name == "with" and not compares):
            which.append(dcc.Input(id=param_id(view.page, name), type="hidden", value=value))
            continue
        others = [one for one in listed.items() if name == "profile" or one[0] != view.profile]
        look: Any = {"placeholder": "none", "searchable": len(others) > 12, "className": "wide"}
        field = _dropdown(view, name, others, value or None, clearable=False, **look)
        which.append(control("compare with" if name == "with" else "profile", field))
    return html.Div([*which, *children], className="controls")


def more(*children: Children) -> Children:
    """Controls that few need, behind a button."""
    panel = html.Div(list(children), className="controls")
    return html.Details([html.Summary("More", className="quiet"), panel], className="more")


def names_of(profiles: Profiles) -> dict[str, str]:
    """The listed profiles by key: ``A: training``, or, where it was opened before, ``runs/old``."""
    listed = profiles.listed
    folders = apart([path.resolve().parent for path in listed.values()]) if listed else []
    two = len(profiles.named) == 2
    return {
        key: (f"{'AB'[int(key)]}: " if two and key in profiles.named else "") + name
        for key, name in zip(listed, folders, strict=True)
    }


def apart(folders: Sequence[Path]) -> list[str]:
    """The shortest ends of paths that differ: ``training`` or ``first/training``."""
    longest = max(len(folder.parts) for folder in folders)
    for length in range(1, longest + 1):
        ends = ["/".join(folder.parts[-length:]) for folder in folders]
        if len(set(ends)) == len(ends):
            return ends
    return [folder.name for folder in folders]


def unit_switch(view: View) -> Children:
    """The choice between cycles and seconds."""
    return switch(view, "unit", "time in", (("cycles", "cycles"), ("µs", "µs")), "cycles")


def ipu_choice(view: View, first: int) -> Children:
    """The choice of an IPU; ``first``: where none is asked for."""
    count = view.report.target.ipus_per_replica
    stages = view.report.stages
    options = []
    for ipu in range(count):
        here = [str(stage) for stage in stages.loc[stages["ipu"] == ipu, "stage"]]
        several = "stages" if len(here) > 1 else "stage"
        named = units.listed(here, _MOST_STAGES_NAMED)
        options.append((str(ipu), f"{ipu} · {several} {named}" if here else str(ipu)))
    return choice(view, "ipu", "IPU", options, str(first))


def run_choices(view: View) -> list[Children]:
    """Which profiled call, and which of its device iterations."""
    runs = view.report.runs
    names = [(str(row.run), str(row.name)) for row in runs.itertuples()]
    run = whole(view.params.get("run"), 0, 0, max(0, len(runs) - 1))
    iterations = int(runs["iterations"].iloc[run]) if len(runs) else 0
    if len(runs) < 2 and iterations < 2:
        return [only(view, "run", "0"), only(view, "iteration", "0")]
    name = f"device iteration (0 to {max(0, iterations - 1)})"
    return [
        choice(view, "run", "call", names or [("0", "none")], "0"),
        number_field(view, "iteration", name, 0, max(0, iterations - 1)),
    ]


def card(title: str, *children: Children, note: str = "", tools: bool = False) -> Children:
    """A titled part of a page. ``tools``: it has a figure, which can be saved."""
    head: list[Children] = [html.H2(title)]
    if note:
        head.append(html.P(note, className="note"))
    if tools:
        titles = {"Copy": "Copy this figure as a picture"}
        titles |= {form: f"Save this figure as {form}" for form in ("PNG", "SVG", "CSV")}
        buttons = [
            html.Button(form, className="tool", title=title, **_data("save", form.lower()))
            for form, title in titles.items()
        ]
        head.append(html.Div(buttons, className="tools"))
    return html.Section([html.Header(head), *children], className="card")


def _data(name: str, value: str) -> dict[str, Any]:
    return {f"data-{name}": value}


def graph(id: Any, figure: Any = None, height: int | None = None, **config: Any) -> Children:
    """A figure with the common tools. Without ``figure``, a callback draws it."""
    settings: Any = {**GRAPH_CONFIG, **config}
    empty = {"layout": {"height": height or 300, "xaxis": {"visible": False}}}
    return dcc.Loading(
        dcc.Graph(id=id, figure=empty if figure is None else figure, config=settings),
        delay_show=200,
        overlay_style={"visibility": "visible", "opacity": 0.8},
        parent_className="loading",  # which lets clicks and wheel through
    )


def link(words: Children, page: str, **params: object) -> Children:
    """A link to a place on a page of this viewer."""
    return dcc.Link(words, href=f"/{page}?{query(**params)}")


def source_link(file: Any, line: Any) -> Children:
    """A line of source, which leads to all operators that it makes."""
    where = f"{file}:{line}"
    return link(where, "costs", find=where) if file else "unknown"


def drawer(*parts: tuple[str, Children]) -> Children:
    """Details docked at the bottom of a page, each with a title."""
    named: Any = {"aria-label": "Height of the details", "aria-orientation": "horizontal"}
    named |= {"aria-valuemin": "38", "aria-valuenow": "280"}  # pixels; a drag changes them
    grip = html.Div(className="grip", role="separator", tabIndex="0", **named)
    sections = [html.Section([html.H2(title), html.Div(part)]) for title, part in parts]
    return html.Aside([grip, html.Div(sections, className="parts")], id="drawer")


def statements(code: Sequence[str]) -> Children:
    """Lines to write into a script; long ones scroll, by keyboard too."""
    return html.Pre("\n".join(code), tabIndex="0")


def filled(id: str, awaited: bool = False) -> Children:
    """An element that a callback fills, dimmed while that takes over 200 ms.

    ``awaited``: the page counts as drawn only when it is filled (`screenshots.settled`).
    """
    dimmed = {"visibility": "visible", "opacity": 0.5}
    return dcc.Loading(
        html.Div(id=id, className="awaited" if awaited else ""),
        delay_show=200,
        overlay_style=dimmed,
        parent_className="loading",
    )


def figure_card(
    title: str,
    id: Any,
    figure: Any = None,
    note: str = "",
    height: int | None = None,
    controls: Sequence[Children] = (),
    below: Sequence[Children] = (),
) -> Children:
    """A card with a title, a note, its own controls, a figure, and elements below it."""
    above = [html.Div(list(controls), className="controls")] if controls else []
    return card(title, *above, graph(id, figure, height), *below, note=note, tools=True)


def opens(kind: str, path: Sequence[str], name: str) -> Children:
    """A button with a part's name, which shows it (`leads`)."""
    return html.Button(name, id={kind: flame.id_of(tuple(path))}, className="link", n_clicks=0)


def leads(app: Dash, page: str, kind: str) -> None:
    """Let the buttons that `opens` makes set the parameter *at* of the page."""

    @app.callback(
        Output(param_id(page, "at"), "value", allow_duplicate=True),
        Input({kind: ALL}, "n_clicks"),
        prevent_initial_call=True,
    )
    def into(clicks: list[int | None]) -> Any:
        clicked = any(clicks) and isinstance(ctx.triggered_id, dict)
        return ctx.triggered_id[kind] if clicked else no_update


def trail(kind: str, at: Sequence[str], more: str = "") -> Children:
    """The parts from all down to the one that is shown, each a way back."""
    names = ["all", *at]
    steps = [opens(kind, at[:depth], name) for depth, name in enumerate(names[:-1])]
    here = [*steps, html.B(names[-1])]
    return html.P([*separated(here, f" {flame.SEPARATOR} "), more], className="trail")


def facts(rows: Sequence[tuple[str, Children]]) -> Children:
    """Names and values in two columns."""
    return html.Dl(
        [child for name, value in rows for child in (html.Dt(name), html.Dd(value))],
        className="facts",
    )


def shares(rows: Iterable[tuple[float, list[Children]]]) -> Children:
    """A list of what takes the time, each with its share of it."""
    entries = [html.Li([html.B(units.percent(share)), html.Span(what)]) for share, what in rows]
    return html.Ol(entries, className="waits")


def separated(links: Sequence[Children], between: str = " · ") -> list[Children]:
    """Links in a row, with separators."""
    parts: list[Children] = []
    for link in links:
        parts += [between, link] if parts else [link]
    return parts


def message(words: str, kind: str = "note") -> Children:
    """A paragraph of the CSS class ``kind``."""
    return html.Div(words, className=f"message {kind}", role="status")


def misfits(view: View) -> list[Children]:
    """What the page cannot show of the address, each until its parameter changes."""
    return [
        html.Div(words, className="message warning", role="status", **_data("refused", name))
        for name, words in view.refusals.items()
    ]


def failure(error: BaseException) -> Children:
    """Replaces a page that failed: the cause, no traceback."""
    return card("This cannot be shown", message(str(error), "error"))


def unit_of(unit: object) -> str:
    """The unit of time that a parameter says, as `Clock` has it."""
    return "µs" if unit == "µs" else "cycles"


def theme_state() -> State:
    """The page's theme, as a callback's argument; `themes.theme` of it."""
    return State("where", "data")


def theme_of(where: dict[str, Any] | None) -> Theme:
    """The theme that the address asks for."""
    return themes.theme((where or {}).get("theme"))


def zoomable(
    figure: go.Figure | Drawing,
    page: str,
    scale: float = 1.0,
    y: int | None = None,
    x: tuple[str, str] = ("from", "to"),
    end: int | None = None,
) -> None:
    """Tell the browser how to request another part of a figure.

    It needs the page, the parameters of the x-axis (``x``), its unit (``scale``) and length
    (``end``); ``y``: the length of the other axis, if that can be zoomed too.
    """
    meta: dict[str, Any] = {"page": page, "scale": scale, "x": list(x), "end": end}
    if y is not None:
        meta |= {"y": ["low", "high"], "high": y}
    figure.update_layout(meta=meta)


def zooms(
    app: Dash, page: str, graph_id: str, low: str = "from", high: str = "to", axis: str = "xaxis"
) -> None:
    """Keep the zoom of an axis of a graph in two hidden parameters."""
    zoom, figure = Input(graph_id, "relayoutData"), State(graph_id, "figure")
    sets(app, page, f"zoom_{axis[0]}", [low, high], zoom, figure)


def window(low: object, high: object, end: int) -> tuple[float, float] | None:
    """A zoom as cycles or positions within 0 .. end; None for everything."""
    most = 1 << 53
    ends = [whole(one, most + 1, -most, most) for one in (low, high)]
    if max(ends) > most:
        return None
    left, right = max(0, ends[0]), min(end, ends[1])
    return (float(left), float(right)) if right > left else None


def no_window(low: object, high: object, end: int, noun: str) -> str:
    """Why a zoom is not wholly shown, or "". ``noun``: what is counted, such as cycles."""
    asked = [str(one) if one not in (None, "") else "" for one in (low, high)]
    if not any(asked):
        return ""
    shown, there = window(low, high, end), refused.numbers(0, end, noun)
    ends = [whole(one, -1, 0, end) for one in asked]
    if shown is not None and shown == tuple(ends):
        return ""
    if shown is None and min(ends) >= 0:
        there = "it ends where it begins" if ends[0] == ends[1] else "it ends before it begins"
    then = "All is shown." if shown is None else f"This is {shown[0]:,.0f} to {shown[1]:,.0f}."
    return refused.refused("window from {} to {}", tuple(asked), there, then)
