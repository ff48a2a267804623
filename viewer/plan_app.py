"""The viewer of a plan: its candidates, two of them side by side, and the commands for them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dash import Dash, Input, Output, State, ctx, dcc, html

from planner import Candidate, Plan
from planner.plan import SHARES
from planner.words import table
from viewer import guard as guards
from viewer.app import INDEX
from viewer.figures import plan as figures
from viewer.figures import theme as themes
from viewer.pages import common
from viewer.pages.common import Column

_COLUMNS = (
    Column("rank", "", ",.0f", width=60),
    Column("t", "t", ",.0f", width=60),
    Column("p", "p", ",.0f", width=60),
    Column("r", "r", ",.0f", width=60),
    Column("split", "Blocks a stage", width=230),
    Column("micro_batch", "micro-batch", ",.0f", width=110),
    Column("accumulation", "accumulation", ",.0f", width=120),
    Column("recompute", "recompute", width=110),
    Column("state", "optimiser state", width=150),
    Column("proportion", "proportion", ".3g", width=110),
    Column("samples_per_second", "samples/s, predicted", ",.0f", width=160),
    Column("fullest_bytes", "fullest tile, KiB", ",.0f", width=140, scale=1024),
    Column("compute", "compute", ".0%", width=100),
    Column("bubble", "bubble", ".0%", width=100),
    Column("problem", "problem", width=160),
)


def create_plan_app(plan: Plan, path: str, guard: guards.Guard | None = None) -> Dash:
    """The viewer of one plan. ``path``: its file, for the commands."""
    app = guards.GuardedDash(
        "viewer",
        assets_folder=str(Path(__file__).parent / "assets"),
        assets_ignore=r"viewer\.js|timeline\.js",
        title=f"IPUscope · plan of {plan.model or path}",
        update_title="",
    )
    app.index_string = INDEX.replace("@@STYLE@@", themes.stylesheet())
    app.layout = lambda: _page(plan, path, themes.theme("light"))
    guards.protect(app, guard or guards.Guard())
    _register(app, plan, path)
    return app


def _page(plan: Plan, path: str, theme: themes.Theme) -> Any:
    question = plan.question
    return html.Div(
        html.Main(
            [
                html.Div(
                    [
                        html.H1(f"{plan.model or 'Plan'} on {question.ipus} IPUs"),
                        html.P(
                            f"{question.global_batch:,} samples a {question.turn}, for"
                            f" {question.objective}: {len(plan.candidates)} mappings from"
                            f" {plan.compiles + plan.cached} compiles",
                            className="note",
                        ),
                    ],
                    className="head",
                ),
                common.card("Why the first is the best", html.Ul([html.Li(w) for w in plan.why])),
                common.card(
                    "Samples a second over memory",
                    dcc.Graph(id="plan-points", figure=figures.candidates(plan, theme, (0,))),
                    dcc.Store(id="plan-chosen", data=[0]),
                    note="Hover for a mapping. Click two to have them side by side; a cross is a"
                    " mapping that turned out not to run.",
                ),
                html.Div(id="plan-sides", className="row"),
                common.card(
                    "All candidates",
                    common.table("plan-table", _rows(plan), _COLUMNS, theme, row_id="rank"),
                    note="A click on a row chooses it, too.",
                ),
            ],
            id="main",
        ),
        className="shell plan",
        style={"display": "block", "maxWidth": "1440px", "margin": "0 auto", "padding": "0 24px"},
    )


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
        if ctx.triggered_id == "plan-table":
            position = int(cell["rowId"]) - 1
        else:
            position = int(click["points"][0]["customdata"])
        return _with(position, chosen, len(plan.candidates))

    @app.callback(
        Output("plan-points", "figure"),
        Output("plan-sides", "children"),
        Input("plan-chosen", "data"),
    )
    def draw(chosen: Any) -> Any:
        positions = _with(-1, chosen, len(plan.candidates))
        cards = [
            _side(name, plan, position, path)
            for name, position in zip("AB", positions, strict=False)
        ]
        return figures.candidates(plan, themes.theme("light"), positions), cards


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
        f"{name}: mapping {position + 1}",
        common.facts(facts_of(one)),
        html.Div(
            [
                html.Pre(command, id=copied, tabIndex="0", style={"whiteSpace": "pre-wrap"}),
                dcc.Clipboard(target_id=copied, title="Copy command"),
                html.Span(" copy command", className="note"),
            ]
        ),
    )


def facts_of(one: Candidate) -> list[tuple[str, str]]:
    """The properties of a mapping and its results, name by name."""
    mapping, came = one.mapping, one.obtained
    stages = [
        f"{number}: IPU {stage.ipu}, {stage.blocks[0]}"
        + (f" … {stage.blocks[-1]}" if len(stage.blocks) > 1 else "")
        + (", recomputes" if stage.recompute else "")
        + (", state off chip" if stage.state_off_chip else "")
        for number, stage in enumerate(mapping.stages)
    ]
    rows = [
        ("samples a second", f"{one.rate:,.0f}"),
        ("latency", f"{one.latency * 1e3:,.3f} ms"),
        ("cycles", f"{one.cycles:,} predicted" + (f", {came.cycles:,} compiled" if came else "")),
        ("fullest tile", f"{one.fullest:,} of {one.limit:,} bytes ({one.memory})"),
        ("t x p x r", f"{mapping.shards} x {mapping.pipeline} x {mapping.replicas}"),
        ("micro-batch", f"{mapping.micro_batch} x {mapping.accumulation}"),
        ("memory proportion", f"{mapping.proportion:g}" if mapping.proportion else "the script's"),
        ("recompute", mapping.recomputation),
        ("optimiser state", mapping.state),
        ("time", ", ".join(f"{name} {one.shares[name]:.1%}" for name in SHARES)),
        ("stages", "; ".join(stages)),
    ]
    return [*rows, ("problem", came.problem)] if came and came.problem else rows


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
        "rts": "yes" if mapping.in_parts else "no",
    }
    words: Sequence[str] = [f"--fix {name}={value}" for name, value in fixed.items()]
    proportion = [f"--proportions {mapping.proportion:g}"] if mapping.proportion else []
    return " ".join(
        [
            f"ipu-run --plan {plan.question.ipus} --global-batch {batch}",
            f"--micro-batches {mapping.micro_batch}",
            *proportion,
            *words,
            f"--write other.json {script}",
        ]
    )
