"""The viewer of a plan: its candidates, two of them side by side, and the commands for them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dash import Dash, Input, Output, State, ctx, dcc, html, no_update

from ipuscope.planner.mappings import Candidate, Mapping, Plan
from ipuscope.planner.mappings.plan import SHARES
from ipuscope.planner.mappings.plan_words import latency, table
from ipuscope.profiler.units import per_second
from ipuscope.viewer import guard as guards
from ipuscope.viewer.alone import THEME, page_alone
from ipuscope.viewer.figures import plan as figures
from ipuscope.viewer.figures import theme as themes
from ipuscope.viewer.pages import common, tables
from ipuscope.viewer.pages.tables import Column

_RATE = Column("samples_per_second", "samples/s", ",.0f", width=110, tip="samples/s, predicted")
_COLUMNS = (
    Column("rank", "", ",.0f", width=60),
    _RATE,
    Column("fullest_bytes", "largest extent, KiB", ",.0f", width=180, scale=1024),
    Column("t", "t", ",.0f", width=60),
    Column("p", "p", ",.0f", width=60),
    Column("r", "r", ",.0f", width=60),
    Column("phases", "phases", ",.0f", width=90),
    Column("split", "Blocks a stage"),
    Column("micro_batch", "micro-batch", ",.0f", width=120),
    Column("accumulation", "accumulation", ",.0f", width=120),
    Column("recompute", "recompute"),
    Column("state", "optimiser state"),
    Column("proportion", "proportion"),
    Column("rts", "rts", width=70),
    Column("compute", "compute", ".0%", width=100),
    Column("bubble", "bubble", ".0%", width=100),
    Column("problem", "problem"),
)
_LETTER, _MARGIN = 7.6, 44  # pixels of a column of words
_WIDEST = 420


_MOST_STAGES = 18  # that are named
_WHOLE = 100  # samples a second from which on whole numbers say enough


def create_plan_app(plan: Plan, path: str, guard: guards.Guard | None = None) -> Dash:
    """The viewer of one plan. ``path``: its file, for the commands."""
    question = plan.question
    name = f"{plan.model or 'Plan'} on {question.ipus} IPUs"
    tried = (
        f"{question.global_batch:,} samples a {question.turn}, for {question.objective}:"
        f" {len(plan.candidates)} mappings from {plan.compiles + plan.cached} compiles"
    )
    app = page_alone(
        f"plan of {plan.model or path}",
        [html.H1(name), html.P(tried, className="note")],
        lambda theme: _body(plan, theme),
        guard,
        [dcc.Store(id="plan-chosen", data=first_chosen(plan))],
    )
    _register(app, plan, path)
    return app


def first_chosen(plan: Plan) -> list[int]:
    """The positions of the candidates that are side by side at first.

    The script's own, or the second where that is the best, and the best, which is last, so that it
    stays beside what is chosen first.
    """
    own = next((k for k, one in enumerate(plan.candidates) if one.own), 0)
    other = own or min(1, len(plan.candidates) - 1)
    return list(dict.fromkeys([other, 0]))


def _body(plan: Plan, theme: themes.Theme) -> Any:
    reasons = [html.Li(line) for line in (*plan.why, *plan.notes)]
    return [
        common.card("Why the first is the best", html.Ul(reasons)),
        common.card(
            "Samples a second over memory",
            dcc.Graph(
                id="plan-points",
                figure=figures.candidates(plan, theme, sorted(first_chosen(plan))),
                config=common.BARE_CONFIG,
            ),
            note="Hover for a mapping. Click two to have them side by side; a cross is a mapping"
            " that turned out not to run.",
        ),
        html.Div(
            id="plan-sides",
            style={
                "display": "grid",
                "gridTemplateColumns": "repeat(auto-fit, minmax(min(100%, 480px), 1fr))",
                "gap": "0 16px",
            },
        ),
        common.card(
            "All candidates",
            tables.table("plan-table", _rows(plan), _columns(plan), theme, 420, row_id="rank"),
            note="A click on a row chooses it, too.",
        ),
    ]


def _columns(plan: Plan) -> tuple[Column, ...]:
    """The table's columns; low rates have two digits behind the point.

    Words have as much room as they take; what nothing is said in is left out.
    """
    digits = 0 if plan.best.rate >= _WHOLE else 2
    rate = replace(_RATE, format=f",.{digits}f")
    shown = {column.name: column for column in _COLUMNS} | {_RATE.name: rate}
    frame = table(plan)
    if not any(one.mapping.in_phases for one in plan.candidates):
        shown.pop("phases")
    if not frame["problem"].any():
        shown.pop("problem")
    return tuple(
        column if column.width else replace(column, width=_width(column, frame[column.name]))
        for column in shown.values()
    )


def _width(column: Column, values: Any) -> int:
    """Pixels of a column of words."""
    longest = max(len(column.heading), int(values.astype(str).str.len().max()))
    return min(_WIDEST, round(_LETTER * longest) + _MARGIN)


def _rows(plan: Plan) -> Any:
    frame = table(plan)
    return frame[[column.name for column in _COLUMNS]]


def _register(app: Dash, plan: Plan, path: str) -> None:
    @app.callback(
        Output("plan-chosen", "data"),
        Input("plan-points", "clickData"),
        Input("plan-table", "cellClicked"),
        State("plan-chosen", "data"),
        prevent_initial_call=True,
    )
    def choose(click: Any, cell: Any, chosen: Any) -> Any:
        by_row = ctx.triggered_id == "plan-table"
        if not (cell if by_row else click):  # a change of theme makes both anew
            return no_update
        position = int(cell["rowId"]) - 1 if by_row else int(click["points"][0]["customdata"])
        return _with(position, chosen, len(plan.candidates))

    @app.callback(
        Output("plan-points", "figure"),
        Output("plan-sides", "children"),
        Input("plan-chosen", "data"),
        Input(THEME, "data"),
    )
    def draw(chosen: Any, name: Any) -> Any:
        positions = sorted(_with(-1, chosen, len(plan.candidates)))
        cards = [
            _side(name, plan, position, path)
            for name, position in zip("AB", positions, strict=False)
        ]
        return figures.candidates(plan, themes.theme(name), positions), cards


def _with(position: int, chosen: Any, count: int) -> list[int]:
    """The last two candidates that were chosen, of those that exist."""
    before = chosen if isinstance(chosen, list) else []
    known = [one for one in [*before, position] if isinstance(one, int) and 0 <= one < count]
    return list(dict.fromkeys(reversed(known)))[:2][::-1]


def _side(name: str, plan: Plan, position: int, path: str) -> Any:
    one = plan.candidates[position]
    command = command_of(plan, one, path)
    copied = f"plan-command-{name}"
    return common.card(
        f"{name}: mapping {position + 1}{', the script’s own' if one.own else ''}",
        common.facts(facts_of(one)),
        html.Pre(command, id=copied, tabIndex="0", style={"whiteSpace": "pre-wrap"}),
        html.Div(
            [
                dcc.Clipboard(
                    target_id=copied, title="Copy command", style={"display": "inline-block"}
                ),
                html.Span(" copy command", className="note"),
            ]
        ),
    )


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
    said = f"{one.cycles:,} predicted"
    if one.obtained is not None:
        said += f", {one.obtained.cycles:,} compiled"
    return f"{said}, likely within {one.error:.0%}" if one.error else said


def command_of(plan: Plan, one: Candidate, path: str) -> str:
    """The command that runs the best candidate, or that plans another with its numbers fixed."""
    script = plan.command or "SCRIPT"
    if one == plan.best:
        return f"ipu-run --placement {shlex.quote(path)} {script}"
    mapping, batch = one.mapping, plan.question.global_batch
    fixed = {
        "t": mapping.shards,
        "p": mapping.pipeline,
        "r": mapping.replicas,
        **({"phases": mapping.phases} if mapping.in_phases else {}),
        **({} if mapping.in_phases else {"rts": "yes" if mapping.in_parts else "no"}),
    }
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
