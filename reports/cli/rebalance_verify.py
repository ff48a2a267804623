"""`rebalance --verify`: predicted and compiled values of a split, or of the best N splits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ipuscope.reports.cli import common
from ipuscope.waiting import waiting

if TYPE_CHECKING:
    from ipuscope.planner.costs.profile_costs import Costs
    from ipuscope.planner.search.split_search import Split
    from ipuscope.planner.search.verified_splits import Verified
    from ipuscope.profiler import Report
    from ipuscope.reports.tables import Lines, Page, Table


@dataclass(frozen=True)
class Promise:
    """Predicted cycles and bytes; ``stored``: in the placement file that was run."""

    cycles: int
    pipeline_cycle: int
    stage_cycles: Sequence[int]
    fullest: Sequence[int]
    micro_batches: int
    stored: bool

    @classmethod
    def of_file(cls, promise: Any) -> Promise | None:
        """The prediction in a placement file, from the profile of its run; None if it has none."""
        if not isinstance(promise, dict) or not promise:
            return None
        try:
            return cls(
                int(promise["cycles"]),
                int(promise["pipeline_cycle"]),
                [int(cycles) for cycles in promise["stage_cycles"]],
                [int(nbytes) for nbytes in promise["fullest"]],
                int(promise["micro_batches"]),
                stored=True,
            )
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise common.CommandError(
                f"the promise in the placement that was run makes no sense ({error})"
            ) from error

    @classmethod
    def predicted(cls, before: Costs, after: Costs) -> Promise:
        """What a profile predicts for another's split, with that one's memory-saving stages."""
        from dataclasses import replace

        from ipuscope.planner.costs.memory_choice import Choice
        from ipuscope.planner.predict.what_if import Assignment, what_if

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


def page(report: Report, costs: Costs, after: Report, obtained: Costs, alone: bool = False) -> Page:
    """Promised and obtained values side by side.

    ``after``: the profile of the split; ``report``: the one before it, or, if ``alone``, the same,
    which then needs a promise of its own.
    """
    import pandas as pd

    from ipuscope.planner.search.verified_splits import rules_differ, rules_of
    from ipuscope.reports.tables import Column, Page, Table, say, text

    if obtained.names != costs.names:
        raise common.CommandError(
            f"{after.path} has other Blocks than {report.path}: not the same model"
        )
    promise = Promise.of_file(after.options.get("placementPromise"))
    if promise is None and alone:
        raise common.CommandError(
            f"{after.path} was not run with a placement file, which has the promise: give the"
            " profile that the split was proposed from too, --verify BEFORE AFTER",
            common.USAGE,
        )
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
    notes = _notes(promise, costs, obtained)
    if differ := rules_differ(report, rules_of(after)):
        notes.append(f"{differ}.")
    lines = [say(words) for words in notes]
    return Page(str(report.path), (Table("verify", frame, columns), *lines))


def _rows(promise: Promise, after: Report, obtained: Costs) -> list[tuple[str, int, int]]:
    from ipuscope.profiler import analysis
    from ipuscope.profiler.enums import PipelinePhase

    turn = "a weight update" if obtained.training else "a device iteration"
    rows = [(turn, promise.cycles, int(analysis.pace(after).cycles))]
    cycles = after.pipeline_cycles(0, 0)
    if (cycles["phase"] == PipelinePhase.STEADY).any():
        steady = int(cycles.loc[cycles["phase"] == PipelinePhase.STEADY, "cycles"].max())
        rows.append(("a pipeline cycle, steady", promise.pipeline_cycle, steady))
    stages = after.stages["cycles"].tolist()
    rows += [
        (f"stage {k}", int(promised), int(cycles))
        for k, (promised, cycles) in enumerate(zip(promise.stage_cycles, stages, strict=False))
    ]
    rows += [
        (f"the extent of IPU {ipu}, bytes", size, int(after.tiles(ipu)["total"].max()))
        for ipu, size in enumerate(promise.fullest)
        if ipu in obtained.ipus
    ]
    return rows


def _notes(promise: Promise, costs: Costs, obtained: Costs) -> list[str]:
    """The origin of the promise, and where the run differs from it."""
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


def quickest_compiled(
    report: Report,
    costs: Costs,
    split: Split,
    count: int,
    script: Sequence[str],
    maybe: Split | None = None,
) -> tuple[Split, tuple[Table | Lines, ...]]:
    """The quickest compiled of the best ``count`` splits, and the result of each.

    The profiled split, compiled already, is among them; so is ``maybe``, which is quicker if it
    fits. CommandError if none compiles and fits.
    """
    from dataclasses import replace

    from ipuscope.planner.search.verified_splits import (
        candidates,
        in_order,
        of_profile,
        rules_differ,
        verify,
    )
    from ipuscope.profiler.provenance import Provenance
    from ipuscope.reports.tables import say

    proposed = split.prediction.assignment
    also = [maybe.prediction.assignment] if maybe else []
    wanted = candidates(costs, proposed, count, also)
    compiled = verify(costs, wanted, script, Provenance.of(report), progress=_progress)
    splits = in_order([*of_profile(report, costs, proposed.ipus), *compiled])
    runs = [one for one in splits if not one.problem]
    if not runs:
        problems = "; ".join(dict.fromkeys(one.problem for one in splits))
        raise common.CommandError(
            f"none of {len(splits)} splits compiled and fits: {problems or 'there is no candidate'}"
        )
    best = runs[0]
    reasons = split.why
    if best.prediction.assignment != proposed:
        reasons = ("of the splits that were compiled this one is the quickest", *reasons)
    chosen = replace(
        split, prediction=best.prediction, bottleneck=best.prediction.bottleneck, why=reasons
    )
    table = _compiled_table(costs, splits)
    differ = next((rules_differ(report, one.rules) for one in compiled if one.rules), "")
    return chosen, (*table, say(f"{differ}.")) if differ else table


def _progress(came: Iterable[Verified], count: int) -> Iterator[Verified]:
    """What came, one after another, while standard error says how many."""
    with waiting("compiling") as say:
        for number, one in enumerate(came, 1):
            yield one
            say(f"{number} of {count}", number / count)


def _compiled_table(costs: Costs, verified: Sequence[Verified]) -> tuple[Table | Lines, ...]:
    import pandas as pd

    from ipuscope.reports.tables import Column, Table, kibibytes, say, sentence, text

    rows = []
    for one in verified:
        sizes = one.prediction.assignment.named(len(costs))
        off = f"{one.prediction.total / one.cycles - 1:+.2%}" if one.cycles else ""
        fullest = max(one.fullest, default=0)
        predicted = max(one.prediction.fullest)
        words = one.problem or "fits"
        rows.append((sizes, one.prediction.total, one.cycles, off, predicted, fullest, words))
    names = ["split", "predicted", "cycles", "off", "fullest_predicted", "fullest", "answer"]
    columns = (
        Column("split", "Blocks a stage", text),
        Column("predicted", "predicted"),
        Column("cycles", "compiled"),
        Column("off", "off by", str),
        Column("fullest_predicted", "extent\npredicted KiB", kibibytes),
        Column("fullest", "compiled\nKiB", kibibytes),
        Column("answer", "memory", sentence),
    )
    table = Table("verified", pd.DataFrame(rows, columns=pd.Index(names)), columns)
    winner = say(f"{rows[0][0]} Blocks a stage is the quickest of {len(rows)} that were compiled.")
    return table, winner
