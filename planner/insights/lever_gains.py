"""The gain of the advisor's levers on the work itself, and of all of them together."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

from ipuscope.planner.advice import (
    Advice,
    Advised,
    Basis,
    Levers,
    Outlook,
    advise_on,
    anything,
    too_large,
)
from ipuscope.planner.insights.finding import Insight, fewer, other_samples
from ipuscope.planner.levers.registry import argument, finding
from ipuscope.planner.predict.what_if import Prediction
from ipuscope.profiler import units
from ipuscope.profiler.provenance import Provenance
from ipuscope.profiler.report import Report

# have other insights, except in phases
_ELSEWHERE = ("micro_batches", "split")


def of_levers(basis: Basis, present: Prediction | Outlook) -> Iterator[Insight]:
    """The gain of each lever that has no other insight, and of all together.

    Gains are cycles on the present number of samples. Single levers may change the training, and
    say so, unless the same micro-batch is to be had with the present samples; all together keep
    its samples and its precision.
    """
    if present.problems:
        return
    advised = advise_on(basis, anything(basis))
    now = advised.present.samples
    with_samples_as_now = {one.levers.micro_batch for one in advised.single if one.samples == now}
    seen: list[Advice] = []
    for advice in advised.single:
        pulled = [one.levers.pulled for one in seen]
        seen.append(advice)
        if advice.levers.pulled in pulled:  # the setting that surely fits, which the first names
            continue
        twin = advice.samples != now and advice.levers.micro_batch in with_samples_as_now - {0}
        if not twin and (not basis.can_split or not {*advice.levers.pulled} <= {*_ELSEWHERE}):
            yield _single(basis, advised, advice)
    if not basis.can_split:
        yield from _refused(basis, advised)
    keeping = advise_on(basis)  # changes nothing in the training
    if keeping.together is not None:
        yield _together(basis, keeping, keeping.together)


def gain(advice: Advice, present: Advice) -> int:
    """Cycles saved on the samples of one present weight update."""
    return present.cycles - round(advice.cycles * present.samples / max(1, advice.samples))


def training_changes(advice: Advice, present: Advice) -> str:
    """What an advice changes in the training; "" if it computes the same updates."""
    changes = ["half precision"] if advice.levers.half else []
    if advice.samples != present.samples:
        changes.append(other_samples(present.samples, advice.samples))
    return ", ".join(changes)


def _change(levers: Levers) -> dict[str, Any]:
    split = levers.split
    stages = {"starts": list(split.starts), "ipus": list(split.ipus)} if split else {}
    return {"with": argument(levers), **stages}


def _where(basis: Basis) -> str:
    """The viewer's page with all levers if Blocks can move; else the timeline."""
    return "/rebalance" if basis.can_split else "/timeline"


def _instead(advised: Advised, advice: Advice) -> str:
    """The setting that is predicted to fit without doubt, where this one may not fit."""
    one = advised.instead_of(advice)
    if one is None:
        return ""
    return f" Predicted to fit without doubt: {one.title}, {one.rate} samples a second."


def _single(basis: Basis, advised: Advised, advice: Advice) -> Insight:
    present = advised.present
    title, detail, waits = finding(basis, advice.levers, lambda what: _room(advice, what))
    cycles = gain(advice, present)
    less = fewer(cycles, advice.estimate, _error(advice, present))
    changed = training_changes(advice, present)
    detail += f" This changes the training: {changed}." if changed else ""
    if advice.memory not in detail:
        detail += _is_open(advice)
    detail += _instead(advised, advice)
    return Insight(
        title,
        f"{detail} The same samples take {less}.",
        "write this",
        _where(basis),
        cycles,
        change=_change(advice.levers),
        estimate=advice.estimate,
        waits=waits,
        code=advice.code,
        changes_batch=advice.samples != present.samples,
    )


def _refused(basis: Basis, advised: Advised) -> Iterator[Insight]:
    """The lever that would gain but does not fit."""
    one = too_large(basis, [name for other in advised.single for name in other.levers.pulled])
    if one is None:
        return
    times = one.samples_per_second / max(1e-9, advised.present.samples_per_second)
    words = one.title.split(" instead of ")[0]
    yield Insight(
        f"{words} would be quicker, but does not fit",
        f"{times:.2f} times the samples a second{' (an estimate)' * one.estimate}; {one.memory}.",
        f"Make room first: ipu-report tile PROFILE --ipu {one.ipu} shows what the tile holds",
        f"/memory?ipu={one.ipu}",
    )


def _error(advice: Advice, present: Advice) -> str:
    """How far the rate may be off, and whether that is all that the advice gains."""
    least = advice.samples_per_second - advice.doubt
    nothing = advice.doubt and least <= present.samples_per_second
    return advice.error + ", so that it may gain nothing" * bool(nothing)


def _is_open(advice: Advice) -> str:
    return "" if advice.surely else f" It may not fit ({advice.memory})."


def _room(advice: Advice, for_what: str) -> str:
    """Whether there is room for what a lever adds."""
    extent = f"the largest extent would be {units.size(advice.fullest)}"
    if advice.surely:
        return f"There is room {for_what}: {extent}."
    return f"There may be no room {for_what} ({advice.memory}): {extent}."


def _together(basis: Basis, advised: Advised, advice: Advice) -> Insight:
    present = advised.present
    cycles = gain(advice, present)
    less = fewer(cycles, advice.estimate, _error(advice, present))
    samples = "as now" if advice.samples == present.samples else f"instead of {present.samples:,}"
    return Insight(
        f"{len(advice.levers.pulled)} levers together make it {advice.gain:.2f} times as fast",
        f"{units.sentence(advice.title)}: {advice.rate} samples a"
        f" second instead of {units.per_second(present.samples_per_second)}, {advice.samples:,}"
        f" samples {basis.turn} {samples}. The same samples take {less}, of"
        f" {present.cycles:,} at present. ipu-report advise PROFILE --check"
        f" {shlex.join(Provenance.of(basis.report).program)} compiles it."
        f"{_is_open(advice)}{_instead(advised, advice)}"
        f"{''.join(f' {one}' for one in advised.notes)}",
        "write this",
        _where(basis),
        cycles,
        change=_change(advice.levers),
        estimate=advice.estimate,
        code=advice.code,
        changes_batch=advice.samples != present.samples,
    )


def no_blocks(report: Report) -> Iterator[Insight]:
    """How to get Blocks: without one there is nothing to split."""
    if len(report.blocks):
        return
    yield Insight(
        "the model has no Blocks",
        "With a Block around each part, insights also say how to split it over IPUs. ipu-run --tune"
        " N SCRIPT finds the fastest mapping onto N IPUs without Blocks.",
        "write this for each part before the model is wrapped",
        "/",
        code=('poptorch.BeginBlock(model.part, "part", ipu_id=0)',),
    )
