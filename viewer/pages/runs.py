"""Alternatives as lines and a table: the runs that are listed, or the mappings of a plan.

The page Runs has those of the directories named at the start; Rebalance also has the plans that
`ipu-run --plan --write` left beside its profile.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from dash import ALL, Dash, Input, Output, State, ctx, dcc, html, no_update

from ipuscope.planner.mappings import Candidate, Mapping, Plan, PlanError, load
from ipuscope.planner.mappings.plan import SHARES
from ipuscope.planner.mappings.plan_words import asked, latency, table
from ipuscope.profiler.analysis.runs import runs, settings_of
from ipuscope.profiler.units import count, per_second
from ipuscope.viewer.figures import bars as figures
from ipuscope.viewer.figures.theme import Theme
from ipuscope.viewer.pages import common, tables
from ipuscope.viewer.pages.common import Page, View
from ipuscope.viewer.pages.tables import Column
from ipuscope.viewer.profiles import Profiles

NAME = "runs"
RUNS = "runs"  # the listed profiles; other values of the parameter *rows* are a plan's file

_FIRST = (Column("rank", "", ",.0f", width=60), Column("place", "profile", width=170))
_MEASURES = (
    Column("samples_per_second", "samples/s", ",.2f", width=115),
    Column("cycles", "cycles", ",.0f", width=130),
    Column("fullest_bytes", "largest extent, KiB", ",.0f", width=155, scale=1024),
    Column("memory", "memory", width=140),
    Column("problem", "problem", least=160),
)
_AXIS = 150  # pixels of an axis and its name


@dataclass(frozen=True)
class Rows:
    """Alternatives: ``frame`` has `_MEASURES`, ``settings`` what differs between them.

    ``opened``: what a click on a row shows; ``first``: shown before one.
    """

    frame: pd.DataFrame
    settings: pd.DataFrame
    opened: Callable[[int], Any]
    first: Any = ()
    note: str = ""


def layout(view: View) -> Any:
    """The page of the runs that are listed."""
    if len(view.profiles.named) < 2:
        words = "One profile is open. Give several to see them as a table: ipu-report view DIR"
        return [common.controls(view), common.card("Runs", common.message(words))]
    return [
        common.controls(view, common.only(view, "rows", RUNS)),
        common.filled("runs-rows", awaited=True),
    ]


def part(view: View) -> list[Any]:
    """The same beside a profile: its plans, and the other runs; nothing without either."""
    files = [*beside(view.report.path)]
    options = [(file, f"plan {Path(file).name}") for file in files]
    options += [(RUNS, "runs")] if len(view.profiles.named) > 1 else []
    if not options:
        return []
    which = common.choice(view, "rows", "plans and runs", options, options[0][0])
    return [html.Div([which], className="controls"), common.filled("runs-rows", awaited=True)]


def rows_of(profiles: Profiles, profile: Any, which: Any) -> Rows:
    """The rows that the parameter *rows* asks for."""
    report = profiles.get(profile)
    plan = beside(report.path).get(str(which)) if which != RUNS else None
    return of_runs(profiles) if plan is None else of_plan(plan, str(which))


def of_plan(plan: Plan, path: str) -> Rows:
    """The mappings of a plan. ``path``: its file, for the commands."""
    opened = partial(mapping, plan, path=path)
    return Rows(*mappings(plan), opened, opened(0), lead(plan))


def of_runs(profiles: Profiles) -> Rows:
    """The profiles that were named at the start."""
    table = profiles.made(profiles.get(), RUNS, lambda: runs(profiles.named.values())[0])
    keys = {str(path): key for key, path in profiles.named.items()}
    settings, over = settings_of(table), int((~table["fits"]).sum())
    names = ", ".join(map(str, settings))
    note = f"{count(len(table), 'run')}; {f'{names} differ' if names else 'nothing differs'}"
    note += f"; {over} out of memory" if over else ""
    shown = table.assign(memory=["fits" if fits else "out of memory" for fits in table["fits"]])
    return Rows(shown, settings, lambda at: opened(table.iloc[at], keys), note=note)


def opened(run: Any, keys: dict[str, str]) -> Any:
    """What a click on a run shows: links to its profile, and the command that opens it alone."""
    path, key = Path(run["profile"]), keys.get(run["profile"])
    show = common.link(f"Open {run['place']}", "", profile=key)
    compare = common.link("compare with it", "compare", **{"with": key})
    return html.P(common.separated([show, compare, html.Code(f"ipu-report view {path}")]))


def cards(rows: Rows, theme: Theme) -> list[Any]:
    """Lines through settings and measures, and a table."""
    frame, settings = rows.frame, rows.settings
    # a dot in a field's name would be a path to AG Grid
    fields = {str(name): f"setting{number}" for number, name in enumerate(settings)}
    own = [column for column in _FIRST if column.name in frame]
    measures = [column for column in _MEASURES if column.name in frame]
    taken = [one.name for one in (*own, *measures)]
    own += [_column(fields[name], name, settings[name]) for name in fields]
    shown = settings.rename(columns=fields).join(frame.assign(id=range(len(frame)))[[*taken, "id"]])
    figure = figures.coordinates(frame, settings, theme)
    least = {"minWidth": f"{_AXIS * figures.axes(settings)}px"}
    lines = dcc.Graph(id="runs-lines", figure=figure, config=common.BARE_CONFIG, style=least)
    return [
        common.card(
            "Settings and what came of them",
            html.Div(lines, className="lines"),
            note=f"{rows.note}. One line per row of the table, the quicker the brighter. The"
            " table's filter applies here too; click a line to open it.",
        ),
        common.card(
            "All of them",
            tables.table("runs-table", shown, [*own, *measures], theme, 520, row_id="id"),
            html.Div(rows.first, id="runs-opened", role="status"),
            note="Sort by a heading, filter below it; click a row to open it.",
        ),
    ]


def _column(field: str, name: str, values: pd.Series) -> Column:
    numbers = pd.api.types.is_numeric_dtype(values)
    return Column(field, name, ",.6~g" if numbers else "", width=max(120, 9 * len(name) + 40))


_WHICH = tuple({"page": ALL, "param": name} for name in ("profile", "rows"))


def register(app: Dash, profiles: Profiles) -> None:
    """Register the callbacks of the page, and of the part of Rebalance."""

    @app.callback(
        Output("runs-rows", "children"),
        *(Input(one, "value") for one in _WHICH),
        common.theme_state(),
    )
    def fill(profile: Any, which: Any, where: Any) -> Any:
        return cards(rows_of(profiles, *_first(profile, which)), common.theme_of(where))

    register_rows(app, lambda *asked: rows_of(profiles, *_first(*asked)))


def _first(*values: list[Any]) -> list[Any]:
    return [(one or [RUNS])[0] for one in values]


def register_rows(app: Dash, rows_of: Callable[..., Rows]) -> None:
    """Register the callbacks of `cards`. ``rows_of``: rows by the values of `_WHICH`."""
    states = [State(one, "value") for one in _WHICH]

    @app.callback(
        Output("runs-opened", "children"),
        Input("runs-table", "cellClicked"),
        Input("runs-lines", "clickData"),
        *states,
        prevent_initial_call=True,
    )
    def open_run(cell: Any, click: Any, *which: Any) -> Any:
        by_line = ctx.triggered_id == "runs-lines"
        if not (click if by_line else cell):  # a change of theme redraws both
            return no_update
        number = click["points"][0]["customdata"] if by_line else cell.get("rowId")
        rows = rows_of(*which)
        position = common.whole(number, -1, 0, len(rows.frame) - 1)
        return no_update if position < 0 else rows.opened(position)

    @app.callback(
        Output("runs-lines", "figure"),
        Input("runs-table", "virtualRowData"),
        *states,
        common.theme_state(),
        prevent_initial_call=True,
    )
    def filtered(shown: Any, *which: Any) -> Any:
        *asked, where = which
        rows = rows_of(*asked)
        positions = [common.whole(row.get("id"), -1, 0, len(rows.frame) - 1) for row in shown or ()]
        some = rows.frame.iloc[sorted({one for one in positions if one >= 0})]
        return figures.coordinates(some, rows.settings, common.theme_of(where))


PAGE = Page(
    "/runs",
    "Runs",
    layout,
    register,
    "The runs of a directory, their settings and speed",
    lambda view: len(view.profiles.named) > 2,
)


_SETTINGS = (
    *("t", "p", "r", "phases", "split", "micro_batch", "accumulation"),
    *("recompute", "state", "proportion", "rts"),
)
_MOST_STAGES = 18  # that are named
_MOST_FILES, _MOST_BYTES = 20, 8 << 20  # that are looked at beside a profile, each


def beside(profile: Path) -> dict[str, Plan]:
    """The plans in a profile's directory and the one above, by their files' paths."""
    folders = (profile.resolve().parent, profile.resolve().parent.parent)
    plans = {}
    with suppress(OSError):
        files = [file for folder in folders for file in sorted(folder.glob("*.json"))]
        for file in files[:_MOST_FILES]:
            with suppress(PlanError, OSError):
                if file.stat().st_size <= _MOST_BYTES:
                    plans[str(file)] = load(file)
    return plans


def mappings(plan: Plan) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The mappings as rows, and the settings in which they differ."""
    frame = table(plan)
    settings = frame[[name for name in _SETTINGS if frame[name].nunique() > 1]]
    measures = frame[["rank", "cycles", "fullest_bytes", "memory", "problem"]].assign(
        samples_per_second=[one.rate for one in plan.candidates],
        fits=[one.runs for one in plan.candidates],
    )
    return measures, settings


def lead(plan: Plan) -> str:
    """What was asked, and how much was looked at."""
    compiles = plan.compiles + plan.cached
    return f"{asked(plan)}: {len(plan.candidates)} mappings from {compiles} compiles"


def why(plan: Plan) -> Any:
    """Why the first mapping is the best, as a card."""
    reasons = [html.Li(line) for line in (*plan.why, *plan.notes)]
    return common.card("Why the first is the best", html.Ul(reasons))


def mapping(plan: Plan, position: int, path: str) -> Any:
    """A mapping in full, and the command that runs it."""
    one = plan.candidates[position]
    copied = dcc.Clipboard(target_id="plan-command", title="Copy command", className="copied")
    return [
        html.H3(f"Mapping {position + 1}{', the script’s own' if one.own else ''}"),
        common.facts(facts_of(one)),
        html.Pre(command_of(plan, one, path), id="plan-command", tabIndex="0"),
        html.Div([copied, html.Span(" copy command", className="note")]),
    ]


def facts_of(one: Candidate) -> list[tuple[str, str]]:
    """The properties of a mapping and its results, name by name."""
    mapping, came = one.mapping, one.obtained
    rows = [
        ("samples a second", per_second(one.rate)),
        ("latency", latency(one.latency)),
        ("cycles", _cycles(one)),
        ("largest extent", _extent(one)),
        ("t x p x r", f"{mapping.shards} x {mapping.pipeline} x {mapping.replicas}"),
        *([("phases", f"{mapping.phases}: {mapping.split}")] if mapping.in_phases else []),
        ("micro-batch", f"{mapping.micro_batch} x {mapping.accumulation}"),
        ("memory proportion", mapping.memory_proportion),
        ("recompute", mapping.recomputation),
        ("optimiser state", mapping.state),
        ("time", ", ".join(f"{name} {one.shares[name]:.1%}" for name in SHARES)),
        ("stages", "; ".join(_stages(mapping))),
    ]
    return [*rows, ("problem", came.problem)] if came and came.problem else rows


def _extent(one: Candidate) -> str:
    """Compiled and predicted, of what a tile has."""
    came = one.obtained
    if came is None or not came.fullest:
        return f"{one.fullest:,} of {one.limit:,} bytes predicted ({one.memory})"
    return f"{came.fullest:,} of {one.limit:,} bytes compiled, {one.fullest:,} predicted"


def _stages(mapping: Mapping) -> list[str]:
    """Each stage in words; of many the first and the last."""
    stages = [
        f"{number}: IPU {stage.ipu}, {stage.blocks[0]}"
        + (f" … {stage.blocks[-1]}" if len(stage.blocks) > 1 else "")
        + (", recomputes" if stage.recompute else "")
        + (", state off chip" if stage.state_off_chip and not mapping.in_phases else "")
        for number, stage in enumerate(mapping.stages)
    ]
    if len(stages) <= _MOST_STAGES:
        return stages
    half = _MOST_STAGES // 2
    return [*stages[:half], f"… {len(stages) - 2 * half} more", *stages[-half:]]


def _cycles(one: Candidate) -> str:
    """Predicted, compiled, and how near an IPU's they likely are."""
    text = f"{one.cycles:,} predicted"
    if one.obtained is not None:
        text += f", {one.obtained.cycles:,} compiled"
    return f"{text}, {one.doubt}" if one.doubt else text


def command_of(plan: Plan, one: Candidate, path: str) -> str:
    """The command that runs the best candidate, or that plans another with its numbers fixed."""
    pulled = f"--with {shlex.quote(plan.levers)} " if plan.levers else ""
    script = f"{pulled}{plan.command or 'SCRIPT'}"
    if one == plan.best:
        return f"ipu-run --placement {shlex.quote(path)} {script}"
    mapping, batch = one.mapping, plan.question.global_batch
    fixed: dict[str, Any] = {"t": mapping.shards, "p": mapping.pipeline, "r": mapping.replicas}
    parts = {"rts": "yes" if mapping.in_parts else "no"}
    fixed |= {"phases": mapping.phases} if mapping.in_phases else parts
    words: Sequence[str] = [f"--fix {name}={value}" for name, value in fixed.items()]
    shares = sorted(set(mapping.proportions.values()))
    proportion = [f"--proportions {','.join(f'{one:g}' for one in shares)}"] if shares else []
    return " ".join(
        [
            f"ipu-run --plan {plan.question.ipus} --global-batch {batch}",
            f"--micro-batches {mapping.micro_batch}",
            *proportion,
            *words,
            f"--write other.json {script}",
        ]
    )
