"""`ipu-report rebalance --verify`: what was promised of a split, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from reports.cli import common

if TYPE_CHECKING:
    from profiler import Report
    from profiler.rebalance import Costs
    from reports.tables import Page


@dataclass(frozen=True)
class Promise:
    """Cycles and bytes that were predicted; ``stored``: in the placement file that was run."""

    cycles: int
    pipeline_cycle: int
    stage_cycles: Sequence[int]
    fullest: Sequence[int]
    micro_batches: int
    stored: bool

    @classmethod
    def of_file(cls, said: Any) -> Promise | None:
        """What a placement file promised, as the profile of its run has it; None: nothing."""
        if not isinstance(said, dict) or not said:
            return None
        try:
            return cls(
                int(said["cycles"]),
                int(said["pipeline_cycle"]),
                [int(cycles) for cycles in said["stage_cycles"]],
                [int(nbytes) for nbytes in said["fullest"]],
                int(said["micro_batches"]),
                stored=True,
            )
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise common.CommandError(
                f"the promise in the placement that was run makes no sense ({error})"
            ) from error

    @classmethod
    def predicted(cls, before: Costs, after: Costs) -> Promise:
        """What a profile predicts of another's split, stages saving memory as they do there."""
        from dataclasses import replace

        from profiler.rebalance import Assignment, what_if
        from profiler.rebalance.choice import Choice

        there = Assignment.of(after.stage.tolist(), after.ipus)
        choices = Choice.as_profiled(after, there.starts)
        prediction = what_if(before, replace(there, choices=choices))
        return cls(
            prediction.total,
            prediction.pipeline_cycle,
            prediction.stage_cycles.tolist(),
            prediction.fullest,
            before.micro_batches,
            stored=False,
        )


def page(report: Report, costs: Costs, after: Report, obtained: Costs) -> Page:
    """Promised and obtained, side by side. ``after`` is the profile of the split."""
    import pandas as pd

    from reports.tables import Column, Page, Table, say, text

    if obtained.names != costs.names:
        raise common.CommandError(
            f"{after.path} has other Blocks than {report.path}: not the same model"
        )
    promise = Promise.of_file(after.options.get("placementPromise"))
    if promise is None:
        try:
            promise = Promise.predicted(costs, obtained)
        except ValueError as error:
            raise common.CommandError(f"{after.path}: {error}") from error
    rows = _rows(promise, after, obtained)
    frame = pd.DataFrame(rows, columns=pd.Index(["what", "predicted", "obtained"]))
    frame["off"] = [
        f"{p / o - 1:+.2%}" if o else ""
        for p, o in zip(frame["predicted"], frame["obtained"], strict=True)
    ]
    columns = (
        Column("what", "cycles of; bytes of", text),
        Column("predicted", "promised" if promise.stored else "predicted"),
        Column("obtained", "obtained"),
        Column("off", "off by", str),
    )
    lines = [say(words) for words in _notes(promise, costs, obtained)]
    return Page(str(report.path), (Table("verify", frame, columns), *lines))


def _rows(promise: Promise, after: Report, obtained: Costs) -> list[tuple[str, int, int]]:
    from profiler import analysis

    turn = "a weight update" if obtained.training else "a device iteration"
    rows = [(turn, promise.cycles, int(analysis.pace(after).cycles))]
    cycles = after.pipeline_cycles(0, 0)
    if (cycles["phase"] == "steady").any():
        steady = int(cycles.loc[cycles["phase"] == "steady", "cycles"].max())
        rows.append(("a pipeline cycle, steady", promise.pipeline_cycle, steady))
    stages = after.stages["cycles"].tolist()
    rows += [
        (f"stage {k}", int(promised), int(cycles))
        for k, (promised, cycles) in enumerate(zip(promise.stage_cycles, stages, strict=False))
    ]
    rows += [
        (f"the fullest tile of IPU {ipu}, bytes", size, int(after.tiles(ipu)["total"].max()))
        for ipu, size in enumerate(promise.fullest)
        if ipu in obtained.ipus
    ]
    return rows


def _notes(promise: Promise, costs: Costs, obtained: Costs) -> list[str]:
    """Where the promise is from, and what was run otherwise than it says."""
    source = (
        "The promise is the one stored in the placement file that was run."
        if promise.stored
        else "No promise was stored: the first profile predicts this of the second's stages."
    )
    if promise.micro_batches == obtained.micro_batches:
        return [source]
    what = "gradient accumulation" if obtained.training else "device iterations"
    return [
        source,
        (
            f"It is for {what} of {promise.micro_batches}, and {obtained.micro_batches} were run:"
            " compare a pipeline cycle, not a whole turn."
        ),
    ]
