"""The best few splits, each compiled: predictions beside results."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from ipuscope.planner.costs.profile_costs import Costs
from ipuscope.planner.levers.compile_again import compile_again
from ipuscope.planner.predict.many_splits import assignment_cycles
from ipuscope.planner.predict.split_text import profiled
from ipuscope.planner.predict.what_if import Assignment, Prediction, placement_file, what_if
from ipuscope.profiler.analysis import pace
from ipuscope.profiler.analysis.memory_hot_spots import largest_extents
from ipuscope.profiler.provenance import Provenance
from ipuscope.profiler.report import open_report

_ROUNDS = 3  # of moves of a cut by one Block, from the best split


@dataclass(frozen=True)
class Verified:
    """A candidate and what its compile gave."""

    prediction: Prediction
    cycles: int = 0  # a weight update (a device iteration in inference); 0 if it did not compile
    fullest: tuple[int, ...] = ()  # bytes of each IPU's fullest tile; empty if it did not compile
    problem: str = ""  # why it did not compile, or does not fit


def candidates(
    costs: Costs, best: Assignment, count: int, also: Sequence[Assignment] = ()
) -> list[Assignment]:
    """``best`` and the quickest splits near it that the costs do not rule out, at most ``count``.

    Near it: cuts move by one Block, up to three times, also from ``also``. The profiled split,
    already compiled, is left out.
    """
    seen = newest = {best, *also}
    for _ in range(_ROUNDS):
        newest = {near for one in newest for near in one.neighbours(len(costs))} - seen
        seen = seen | newest
    own = profiled(costs) if costs.measured else None
    quickest = sorted(seen - {own}, key=lambda one: (assignment_cycles(costs, one), one.starts))
    chosen: list[Assignment] = []
    for one in quickest:
        if len(chosen) == count:
            break
        if not what_if(costs, one).problems:
            chosen.append(one)
    return chosen


def verify(
    costs: Costs,
    wanted: Sequence[Assignment],
    script: Sequence[str],
    made: Provenance,
    workers: int | None = None,
    progress: Callable[[Iterable[Verified], int], Iterable[Verified]] | None = None,
) -> list[Verified]:
    """Compile a script once for each split, and say what came: those that run, quickest first.

    ``script``: path and arguments. ``made``: how the costs' profile was made, for each compile to
    repeat. ``workers``: compiles at a time (default: one a processor). ``progress`` is given what
    comes and how many there are, and passes it on.
    """
    kind = "training" if costs.training else "inference"
    at_once = workers or max(1, min(len(wanted), (os.cpu_count() or 2) // 2))
    with TemporaryDirectory(prefix="ipu-report-") as folder, ThreadPoolExecutor(at_once) as pool:
        waiting = [
            pool.submit(_compiled, costs, one, script, kind, Path(folder) / str(number), made)
            for number, one in enumerate(wanted)
        ]
        came: Iterable[Verified] = (future.result() for future in as_completed(waiting))
        results = list(progress(came, len(waiting)) if progress is not None else came)
    return sorted(results, key=lambda one: (bool(one.problem), one.cycles, one.prediction.total))


def _compiled(
    costs: Costs,
    assignment: Assignment,
    script: Sequence[str],
    kind: str,
    folder: Path,
    made: Provenance,
) -> Verified:
    prediction = what_if(costs, assignment)
    # where --num-ipus cut a call's samples into micro-batches, it does so again
    stages = placement_file(costs, assignment, "proposed" not in made.placement)
    profile, why = compile_again(script, folder, made, kind, placement=stages)
    if profile is None:
        return Verified(prediction, problem=why)
    with open_report(profile) as report:
        fullest = tuple(largest_extents(report).tolist())
        over = max(fullest) > costs.machine.bytes_per_tile
        return Verified(
            prediction,
            int(pace(report).cycles),
            fullest[: max(assignment.ipus) + 1],
            "does not fit" if over else "",
        )
