"""The mappings of a plan (`ipu-run --plan --write`): rows, their facts, and their commands."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd
from dash import dcc, html

from ipuscope.planner.mappings import Candidate, Mapping, Plan, PlanError, load
from ipuscope.planner.mappings.plan import SHARES
from ipuscope.planner.mappings.plan_words import latency, table
from ipuscope.profiler.units import per_second
from ipuscope.viewer.pages import common

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


def rows(plan: Plan) -> tuple[pd.DataFrame, pd.DataFrame]:
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
    question = plan.question
    return (
        f"{question.global_batch:,} samples a {question.turn}, for {question.objective}:"
        f" {len(plan.candidates)} mappings from {plan.compiles + plan.cached} compiles"
    )


def why(plan: Plan) -> Any:
    """Why the first mapping is the best, as a card."""
    reasons = [html.Li(line) for line in (*plan.why, *plan.notes)]
    return common.card("Why the first is the best", html.Ul(reasons))


def opened(plan: Plan, position: int, path: str) -> Any:
    """A mapping in full, and the command that runs it."""
    one = plan.candidates[position]
    copied = dcc.Clipboard(
        target_id="plan-command", title="Copy command", style={"display": "inline-block"}
    )
    return [
        html.H3(f"Mapping {position + 1}{', the script’s own' if one.own else ''}"),
        common.facts(facts_of(one)),
        html.Pre(
            command_of(plan, one, path),
            id="plan-command",
            tabIndex="0",
            style={"whiteSpace": "pre-wrap"},
        ),
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
    return f"{text}, likely within {one.error:.0%}" if one.error else text


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
