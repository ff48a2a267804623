"""`rebalance --verify N`: the best N splits, predicted and compiled."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from ipuscope.reports.cli import common
from ipuscope.waiting import waiting

if TYPE_CHECKING:
    from ipuscope.planner.costs.profile_costs import Costs
    from ipuscope.planner.search.split_search import Split
    from ipuscope.planner.search.verified_splits import Verified
    from ipuscope.profiler import Report
    from ipuscope.reports.tables import Lines, Table


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
