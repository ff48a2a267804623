"""The gain of the advisor's levers on the work itself, and of all of them together."""

from __future__ import annotations

from collections.abc import Iterator

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
from ipuscope.planner.insights.cycles import WORK
from ipuscope.planner.insights.finding import Insight, Waits
from ipuscope.planner.predict.memory_verdict import Answer
from ipuscope.planner.predict.what_if import Prediction
from ipuscope.profiler import units
from ipuscope.profiler.enums import PipelinePhase
from ipuscope.profiler.report import Report

_ELSEWHERE = ("micro_batches", "outputs", "split")  # have insights of their own, but in phases
_ON_LINKS = ("copy between IPUs", "host I/O")


def of_levers(basis: Basis, present: Prediction | Outlook) -> Iterator[Insight]:
    """The gain of each lever that has no other insight, and of all together.

    Gains are cycles on the present number of samples. Single levers may change the training (their
    sentences say so); all together keep its samples and its precision.
    """
    if present.problems:
        return
    advised = advise_on(basis, anything(basis))
    for one in advised.single:
        if not basis.can_split or not {*one.levers.pulled} <= {*_ELSEWHERE}:
            yield _single(basis, one, advised.present)
    if not basis.can_split:
        yield from _refused(basis, advised)
    keeping = advise_on(basis).together  # what a user may take without a thought for the training
    if keeping is not None:
        yield _together(basis, keeping, advised.present)


def gain(one: Advice, present: Advice) -> int:
    """Cycles saved on the samples of one present weight update."""
    return present.cycles - round(one.cycles * present.samples / max(1, one.samples))


def training_changes(one: Advice, present: Advice) -> str:
    """What an advice changes of the training itself; "" if it computes the same updates."""
    changes = ["half precision"] if one.levers.half else []
    if one.samples != present.samples:
        changes.append(f"{one.samples:,} samples an update instead of {present.samples:,}")
    return ", ".join(changes)


def _change(levers: Levers) -> dict[str, str]:
    return {"with": levers.argument}


def _where(basis: Basis) -> str:
    """The page that has all levers, where Blocks can be moved; else that of time."""
    return "/rebalance" if basis.can_split else "/timeline"


def _single(basis: Basis, one: Advice, present: Advice) -> Insight:
    title, detail, waits = _words(basis, one)
    estimate = " (an estimate)" if one.estimate else ""
    cycles = gain(one, present)
    changed = training_changes(one, present)
    detail += f" This changes the training: {changed}." if changed else ""
    return Insight(
        title,
        f"{detail} The same samples take {cycles:,} cycles less{estimate}.",
        "write this",
        _where(basis),
        cycles,
        change=_change(one.levers),
        estimate=one.estimate,
        waits=waits,
        code=one.code,
    )


def _words(basis: Basis, one: Advice) -> tuple[str, str, Waits]:
    """Title, detail and what it is about."""
    levers = one.levers
    if levers.half:
        return (
            "the weights are float32",
            "In float16 tiles multiply twice as fast, and half the bytes move.",
            Waits(causes=(*WORK, *_ON_LINKS)),
        )
    if levers.micro_batch:
        size = levers.micro_batch
        larger = size > basis.micro_batch
        detail = (
            f"With {size}, more samples share what each step takes to start and the weights that it"
            " moves."
            if larger
            else f"With {size}, less has to be held."
        )
        return (
            f"a micro-batch has {units.count(basis.micro_batch, 'sample')}",
            detail,
            Waits(causes=WORK),
        )
    if levers.micro_batches:
        return (
            f"{basis.turn} has {units.count(basis.costs.micro_batches, 'micro-batch')}",
            f"With {levers.micro_batches}, phases fill and drain{_and_update(basis)} less often.",
            Waits(phases=(PipelinePhase.UPDATE,)),
        )
    if levers.outputs:
        return (
            "outputs that nobody has to read go to the host",
            "Each keeps the IPUs waiting.",
            Waits(causes=("host I/O",)),
        )
    return _words_on_room(basis, one)


def _words_on_room(basis: Basis, one: Advice) -> tuple[str, str, Waits]:
    """The same of the levers that take room on the tiles or give it."""
    levers = one.levers
    if levers.recompute is not None:
        if levers.recompute:
            detail = "With recomputation less is kept for the backward."
            return "stages keep all their activations", detail, Waits(causes=("stash",))
        return (
            "stages run their forward again before the backward",
            _room(one, "to keep it all"),
            Waits(causes=WORK, directions=("recompute",)),
        )
    where = levers.state.replace("-", " ")
    return (
        f"optimiser state is {basis.state.replace('-', ' ')}",
        _room(one, f"for it {where}"),
        Waits(
            causes=("streaming memory", "collective over replicas"), phases=(PipelinePhase.UPDATE,)
        ),
    )


def _and_update(basis: Basis) -> str:
    return " and weights are updated" if basis.costs.training else ""


def _refused(basis: Basis, advised: Advised) -> Iterator[Insight]:
    """What would gain something as well, had the tiles room for it."""
    one = too_large(basis, [name for other in advised.single for name in other.levers.pulled])
    if one is None:
        return
    times = one.samples_per_second / max(1e-9, advised.present.samples_per_second)
    words = one.title.split(" instead of ")[0]
    yield Insight(
        f"{words} would be quicker, but does not fit",
        f"{times:.2f} times the samples a second{' (an estimate)' * one.estimate}; {one.memory}.",
        "Make room first: ipu-report tile says what the tile holds",
        f"/memory?ipu={one.ipu}",
    )


def _room(one: Advice, for_what: str) -> str:
    """Whether tiles have room for what a lever puts there."""
    extent = f"the largest extent is {units.size(one.fullest)} then"
    if one.memory == Answer.FITS:
        return f"There is room {for_what}: {extent}."
    return f"Whether there is room {for_what} is open ({one.memory}): {extent}."


def _together(basis: Basis, one: Advice, present: Advice) -> Insight:
    cycles = gain(one, present)
    how = "an estimate; " if one.estimate else ""
    return Insight(
        f"{len(one.levers.pulled)} levers together make it {one.gain:.2f} times as fast",
        f"{units.sentence(one.title)}: {units.per_second(one.samples_per_second)} samples a second"
        f" instead of {units.per_second(present.samples_per_second)}, {one.samples:,} samples"
        f" {basis.turn} instead of {present.samples:,}. The same samples take {cycles:,} cycles"
        f" less than the present {present.cycles:,} ({how}ipu-report advise --check compiles it).",
        "write this",
        _where(basis),
        cycles,
        change=_change(one.levers),
        estimate=one.estimate,
        code=one.code,
    )


def no_blocks(report: Report) -> Iterator[Insight]:
    """Without a Block there is nothing to split: how to get some."""
    if len(report.blocks):
        return
    yield Insight(
        "the model has no Blocks",
        "With one around each part, insights also say how to split it over IPUs.",
        "write this for each part before the model is wrapped",
        "/",
        code=('poptorch.BeginBlock(model.part, "part", ipu_id=0)',),
    )
