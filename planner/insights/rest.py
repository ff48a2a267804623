"""The parts of the critical path that no other insight covers, by cause."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ipuscope.planner.costs.cuts import Cuts
from ipuscope.planner.costs.profile_costs import Costs
from ipuscope.planner.insights.finding import Insight, covered
from ipuscope.planner.levers.waits import WORK, Waits
from ipuscope.planner.predict.what_if import Prediction, what_if
from ipuscope.profiler.units import percent

if TYPE_CHECKING:
    import pandas as pd

_WORTH = 0.01  # of the path: smaller causes are not mentioned

_ACTION = {
    "compute": (
        "Only more hardware or less work shortens it: more replicas for more samples a second, more"
        " IPUs with smaller stages, or smaller operators"
    ),
    "exchange on chip": (
        "Larger micro-batches move weights less often; availableMemoryProportion lets products"
        " exchange in fewer steps"
    ),
    "sync": "Use fewer, larger steps: larger micro-batches or fewer stages",
    "stash": "Keep less between forward and backward: fewer stages, or checkpoints in other places",
    "copy between IPUs": (
        "Begin stages where less data crosses, or put the stages that exchange most on one IPU"
    ),
    "collective over replicas": "Use more gradient accumulation, or fewer replicas",
    "collective over shards": (
        "Use fewer shards (one IPU-Machine has four IPUs), or a plan whose styles need fewer"
        " collectives: colwise, then rowwise"
    ),
    "host I/O": "Make inputs and outputs smaller, or fewer",
    "streaming memory": (
        "Keep optimiser state or weights on the chip where they fit, or in parts on the replicas;"
        " larger gradient accumulation moves them less often"
    ),
}


def rest(
    path: pd.DataFrame,
    spoken_of: list[Waits],
    turn: str,
    costs: Costs | None = None,
    present: Prediction | None = None,
) -> Iterator[Insight]:
    """An insight on each cause that still has much of the path, with what shortens it.

    Its share is of the whole path, as in `ipu-report why`. The gain is a bound: from the schedule
    without that cause or, if there is none to ask, what other insights do not cover. ``turn``: a
    device iteration, in words.
    """
    left = path[~covered(path, spoken_of)]
    total = int(path["cycles"].sum())
    for cause, pieces in left.groupby("cause", sort=False):
        cycles = int(pieces["cycles"].sum())
        if cycles < _WORTH * total or str(cause) not in _ACTION:
            continue
        whole = int(path.loc[path["cause"] == cause, "cycles"].sum())
        others = f"; other insights cover {whole - cycles:,}" if whole > cycles else ""
        yield Insight(
            f"{_what(str(cause))} takes {percent(whole / total)} of {turn}",
            f"That is {whole:,} cycles of the critical path{others}. Of"
            f" {'the rest' if others else 'them'}, {_most(pieces)}.",
            _ACTION[str(cause)],
            "/timeline",
            _bound(str(cause), cycles, costs, present),
            at_most=True,
            remainder=True,
            waits=Waits(causes=(str(cause),)),
        )


def _what(cause: str) -> str:
    return {
        "compute": "computing",
        "sync": "synchronising",
        "stash": "stashing",
        "copy between IPUs": "copying between IPUs",
        "collective over replicas": "exchange between the replicas",
        "collective over shards": "exchange between the IPUs that share tensors",
    }.get(cause, cause)


def _most(rows: pd.DataFrame) -> str:
    of_ipu = rows["cycles"].groupby(rows["ipu"]).sum()
    first = rows.iloc[0]
    share = of_ipu.max() / max(1, of_ipu.sum())
    shortly = str(first["name"]).removesuffix("/mid")  # the part of a stream copy that moves bytes
    return f"{percent(share)} are on IPU {of_ipu.idxmax()}, the longest in {shortly}"


def _bound(cause: str, cycles: int, costs: Costs | None, present: Prediction | None) -> int:
    if costs is None or present is None or cause in WORK[:2]:
        return cycles
    without = what_if(_without(costs, cause), present.assignment)
    return max(0, min(cycles, present.total - without.total)) or cycles


def _without(costs: Costs, cause: str) -> Costs:
    none = np.zeros(len(costs), dtype=np.int64)
    if cause == "copy between IPUs":
        return replace(costs, cuts=Cuts(none, none))
    if cause == "collective over replicas":
        return replace(costs, reduce=0)
    if cause == "stash":
        return replace(costs, stash=costs.stash.free)
    if cause == "sync":
        return replace(costs, machine=replace(costs.machine, sync=0))
    return costs
