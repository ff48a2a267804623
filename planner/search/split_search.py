"""The quickest contiguous split into stages, and a lower bound for any split.

Dynamic programming over intervals of Blocks finds the least bottleneck exactly, within a tile's
memory. From there `partial_splits` finds the least cycles of a whole weight update, and proves them
least or reports the gap; without a proof, neighbouring splits are tried.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from ipuscope.planner.costs.memory_choice import Choice
from ipuscope.planner.costs.profile_costs import Costs
from ipuscope.planner.one_thread import in_one_thread
from ipuscope.planner.predict.interval_costs import (
    INFINITE,
    IntervalCosts,
    cycles_of_intervals,
    interval_costs,
    least_maximum,
    memory_of_all,
)
from ipuscope.planner.predict.many_splits import cycles_of_assignments, cycles_of_starts
from ipuscope.planner.predict.what_if import (
    Assignment,
    Prediction,
    counted_micro_batches,
    holds,
    what_if,
)
from ipuscope.planner.search.partial_splits import MOST_APART, LeastUpdate, Search, least_update
from ipuscope.planner.search.refusal import NoneFits, does_not_fit, surely_none_fits
from ipuscope.planner.search.returning_stages import TooManyWays, least_bottleneck_revisiting
from ipuscope.planner.search.update_bounds import (
    fixed_cycles,
    least_copies,
    made_again,
    ramps_of_longest,
)
from ipuscope.profiler.timeline import closed_forms
from ipuscope.profiler.units import listed

# Blocks x stages up to which neighbours are tried by laying out their schedules
_WHOLE_SCHEDULES = 400
_ROUNDS = 60  # of neighbours, of larger ones, in which up to so many cuts move at once:
_MOVED = 5
_FEW_IPUS = 4  # up to which stages come back to each of them
_MOST_NAMED = 6  # moves
_TRIED = 1_000  # ways at a time, where not all are looked at
_WIDER = 8  # where nothing fits under a bottleneck, an eighth more is tried

# In order of preference at equal cycles: what costs nothing, then what costs update cycles.
ALL_CHOICES = (Choice(False, False), Choice(False, True), Choice(True, False), Choice(True, True))


@dataclass(frozen=True)
class Split:
    """A proposed split, its predicted cost, and sentences that explain it.

    ``bottleneck``: cycles of its busiest IPU per micro-batch; ``least_bottleneck``: the least
    within the memory; ``lower_bound``: with unlimited memory, both exact for these costs.
    ``least_total``: no split onto these IPUs takes fewer cycles per weight update (a device
    iteration in inference).
    """

    prediction: Prediction
    bottleneck: int
    least_bottleneck: int
    lower_bound: int
    least_total: int
    why: tuple[str, ...]

    @property
    def proven(self) -> bool:
        """Whether no split is quicker, for these costs."""
        return self.prediction.total <= self.least_total

    @property
    def gap(self) -> float:
        """The largest share of its cycles that a quicker split could save; 0 if it is the best."""
        total = self.prediction.total
        return max(0.0, 1 - self.least_total / total) if total else 0.0

    @property
    def verdict(self) -> str:
        """What has been proven about it, as half a sentence."""
        if self.proven:
            return "no split onto these IPUs is quicker by these costs: all were tried or ruled out"
        gap = f"{self.gap:.1%}" if self.gap >= 0.001 else f"{self.gap:.3%}"
        return f"not proven to be the quickest: a split that takes up to {gap} less may exist"


@in_one_thread
def best_split(
    costs: Costs,
    stages: int | None = None,
    *,
    ipus: Sequence[int] | None = None,
    together: Sequence[Sequence[int]] = (),
    choices: Sequence[Choice] = (),
) -> Split:
    """Find the quickest split into ``stages`` (default: as many as profiled).

    ``ipus``: the IPU of each stage, which may repeat (default: one each). ``together``: groups of
    Blocks for one IPU, such as those that share a weight. ``choices``: ways of saving memory that
    stages may take (default: those of the profile's stages). Raises ValueError if there are fewer
    Blocks than stages, or if no split fits.
    """
    count, wanted = len(costs), len(ipus) if ipus is not None else stages or len(costs.ipus)
    if not 1 <= wanted <= count:
        raise ValueError(
            f"{count} Blocks cannot fill {wanted} stages: ask for 1 to {count}, or name more Blocks"
        )
    where = tuple(ipus) if ipus is not None else tuple(range(wanted))
    allowed = tuple(choices) or costs.own_choices
    if len(set(where)) < len(where):
        free, least, assignment = _revisiting(costs, where, together, allowed)
    else:
        free, _ = least_bottleneck(costs, wanted, allowed, together, memory=False)
        least, assignment = least_bottleneck(costs, wanted, allowed, together, at_least=free)
        assignment = replace(assignment, ipus=where)
    searched = least_update(costs, assignment, allowed, together, least)
    if searched.bound < searched.total:
        better = _better_neighbours(costs, searched.assignment, together)
        searched = replace(searched, assignment=better)
    prediction = what_if(costs, searched.assignment)
    bound = min(prediction.total, max(searched.bound, at_least(costs, where, allowed)))
    split = Split(prediction, prediction.bottleneck, least, free, bound, ())
    pace = _pace(costs, prediction, least, free) if costs.pipelined else _in_turns(prediction)
    return replace(split, why=(split.verdict, *pace, *_what_moves(costs, prediction)))


def one_an_ipu(most: int) -> list[tuple[int, ...]]:
    """Stage lists with one stage per IPU, the longest first."""
    return [tuple(range(count)) for count in range(most, 0, -1)]


def returning(most: int, costs: Costs) -> list[tuple[int, ...]]:
    """Stage lists onto this many IPUs in which one IPU has two stages.

    The last stage may be on an earlier one's IPU, as in public BERT's 0, 1, 2, 3, 0: the head
    beside the embedding whose weight it reads. On few IPUs, any may have two stages, and any stage
    may return (0, 1, 0, 2).
    """
    if not 1 < most < len(costs):
        return []
    ends = [(*range(most), back) for back in range(most - 1 if most <= _FEW_IPUS else 1)]
    if most > _FEW_IPUS:
        return ends
    between = [
        (*range(after + 1), back, *range(after + 1, most))
        for after in range(1, most - 1)
        for back in range(after)
    ]
    return [*ends, *between]


def quickest(
    costs: Costs, *, together: Sequence[Sequence[int]] = (), choices: Sequence[Choice] = ()
) -> Split:
    """The quickest split onto the profiled number of IPUs, or fewer; ValueError if none can run.

    One stage per IPU, a list in which one IPU returns, or the profiled list; one search for all.
    """
    key = "quickest", tuple(map(tuple, together)), tuple(choices)
    if key not in costs.cache:
        costs.cache[key] = _quickest(costs, together, choices)
    return costs.cache[key]


def _quickest(costs: Costs, together: Sequence[Sequence[int]], choices: Sequence[Choice]) -> Split:
    most = len(set(costs.ipus))
    back = returning(min(most, len(costs) - 1), costs)  # of as many IPUs as there are Blocks for
    lists = [*one_an_ipu(most)[:1], *back, *one_an_ipu(most)[1:]]
    if len(costs.ipus) > most:
        lists.append(costs.ipus)
    return quickest_split(costs, lists, choices=choices, together=together)


def quickest_split(
    costs: Costs,
    lists: Sequence[Sequence[int]],
    *,
    together: Sequence[Sequence[int]] = (),
    choices: Sequence[Choice] = (),
) -> Split:
    """The quickest split that can run on any of these lists of stages' IPUs.

    The earliest list's of equally quick ones. Lists that promise most come first; those that cannot
    beat the best so far are skipped. ValueError if none can run, with the reason for the profiled
    list, or for the first.
    """
    allowed = tuple(choices) or costs.own_choices
    bounds = {
        at: at_least(costs, ipus, allowed)
        for at, ipus in enumerate(lists)
        if len(ipus) <= len(costs)
        and counted_micro_batches(costs, len(ipus)) <= costs.micro_batches
    }
    problems: dict[int, ValueError] = {}

    def tried(ipus: Sequence[int]) -> Split | ValueError:
        """The best split, or why none can run."""
        try:
            split = best_split(costs, ipus=ipus, choices=choices, together=together)
        except ValueError as error:
            return error
        problem = "; ".join(split.prediction.problems)
        return ValueError(problem) if problem else split

    best: tuple[int, int, Split] | None = None
    fewest = 0  # stages, one an IPU, that hold all Blocks
    for at in sorted(bounds, key=bounds.__getitem__):
        ipus = lists[at]
        apart = len(set(ipus)) == len(ipus)
        if (best is not None and (bounds[at], at) > best[:2]) or (apart and len(ipus) < fewest):
            continue
        split = tried(ipus)
        if isinstance(split, ValueError):
            problems[at] = split
            fewest = fewest or (fewest_stages(costs, allowed) if apart else 0)
        elif best is None or (split.prediction.total, at) < best[:2]:
            best = split.prediction.total, at, split
    if best is None:
        at = next((at for at, ipus in enumerate(lists) if tuple(ipus) == costs.ipus), 0)
        why = problems.get(at) or tried(lists[at]) if lists else "there is none"
        raise ValueError(f"no split can run: {why}")
    return best[2]


def fewest_stages(costs: Costs, choices: Sequence[Choice], in_company: bool = False) -> int:
    """No split into fewer stages, one an IPU (``in_company``: any), fits, even without stashes."""
    count, limit = len(costs), costs.machine.bytes_per_tile
    tables = (memory_of_all(costs, choice, in_company=in_company) for choice in choices)
    fits = np.logical_or.reduce([table.fullest(0) <= limit for table in tables])
    first, width = np.nonzero(fits)
    ends = np.zeros(count + 1, dtype=bool)  # Blocks before which the stages so far may end
    ends[0] = True
    for stages in range(1, count + 1):
        after = np.zeros(count + 1, dtype=bool)
        after[(first + width + 1)[ends[first]]] = True
        if after[count]:
            return stages
        if not after.any():
            break
        ends = after
    return count + 1


def at_least(costs: Costs, ipus: Sequence[int], choices: Sequence[Choice] = ()) -> int:
    """A lower bound on the cycles of any split onto these IPUs, without examining stages.

    ``choices``: ways of saving memory (default: any). A pipeline's busiest IPU does its work for
    each micro-batch; ramps grow with all stages' work (`_at_least_with_ramps`).
    """
    count = counted_micro_batches(costs, len(ipus))
    work = costs.cycles.work if costs.training else costs.cycles.forward
    whole = int(work.sum())
    if not costs.pipelined:
        return count * whole
    fixed = fixed_cycles(costs, ipus, choices)
    share = -(-whole // len(set(ipus)))
    if len(set(ipus)) < len(ipus):
        return count * max(share, int(work.max())) + fixed
    slowest = _even_as_can_be(work, work + made_again(costs, choices), len(ipus))
    cycles = closed_forms.pipeline_cycles(len(ipus), count, costs.training)
    ramps = _at_least_with_ramps(slowest, whole, len(ipus), count, costs.training)
    return ramps + cycles * least_copies(costs, ipus) + fixed


def _at_least_with_ramps(slowest: int, whole: int, stages: int, count: int, training: bool) -> int:
    """A lower bound on the cycles of a pipeline's work.

    ``slowest``: a lower bound on the cycles of the longest stage; ``whole``: on those of all
    stages, per micro-batch. With a longest stage of c cycles it is at least G c, the work of one
    IPU; `ramps_of_longest` has the other bound.
    """
    lost, times = ramps_of_longest(stages, training)
    return max(count * slowest, (count - lost) * slowest + times * whole)


def _even_as_can_be(last: np.ndarray, early: np.ndarray, stages: int) -> int:
    """Least work of the largest stage; of Blocks in the ``last`` stage, and ``early`` in others."""
    total = [0, *np.cumsum(early).tolist()]
    behind = [*np.cumsum(last[::-1])[::-1].tolist(), 0]
    low, high = max(int(last.max()), -(-behind[0] // stages)), total[-1]

    def enough(most: int) -> bool:
        at = 0
        for _ in range(stages - 1):
            at = bisect_right(total, total[at] + most) - 1
        return behind[at] <= most

    return low + bisect_left(range(low, high), True, key=enough)


def least_bottleneck(
    costs: Costs,
    stages: int,
    choices: Sequence[Choice],
    together: Sequence[Sequence[int]] = (),
    *,
    memory: bool = True,
    at_least: int = 0,
) -> tuple[int, Assignment]:
    """Least cycles per micro-batch of the slowest stage, one per IPU, and a split with them; exact.

    ``memory`` False: unlimited. ``at_least``: where to begin. Raises ValueError if no split fits.
    """
    reached: list[tuple[IntervalCosts, tuple[int, ...]]] = []

    def try_most(most: int) -> int | None:
        table = interval_costs(costs, range(stages), choices, most, together, memory)
        split = least_maximum(table.load, stages, table.begins)
        if split is None:
            return None
        reached[:] = [(table, split[1])]
        return split[0]

    work = costs.cycles.work
    begin = max(at_least, int(work.max()), -(-int(work.sum()) // stages))
    none = memory and surely_none_fits(costs, stages, choices)
    bottleneck = None if none else widened(begin, longest(costs), try_most)
    if bottleneck is None:
        raise NoneFits(partial(does_not_fit, costs, stages, choices, together))
    ((table, starts),) = reached
    spans = zip(starts, [*(start - 1 for start in starts[1:]), len(costs) - 1], strict=True)
    chosen = tuple(table.choice(k, first, last) for k, (first, last) in enumerate(spans))
    return bottleneck, Assignment(starts, table.ipus, costs.named_choices(chosen))


def widened(most: int, end: int, try_most: Callable[[int], int | None]) -> int | None:
    """The first result of ``try_most``, the least value up to a limit, as the limit grows."""
    most += most // (4 * _WIDER)
    while True:
        least = try_most(most)
        if least is not None and least <= most:
            return least
        if most > end:
            return None
        most += most // _WIDER + 1


def longest(costs: Costs) -> int:
    """A bound that no stage's cycles exceed."""
    stash = costs.stash.most_cycles()
    return 2 * int(costs.cycles.work.sum()) + 4 * stash * costs.training


def _revisiting(
    costs: Costs,
    ipus: tuple[int, ...],
    together: Sequence[Sequence[int]],
    choices: Sequence[Choice],
) -> tuple[int, int, Assignment]:
    """(least bottleneck with unlimited memory, least bottleneck within the memory, its split)."""
    splits: list[tuple[int, Assignment]] = []

    def try_most(most: int, memory: bool) -> int | None:
        best = least_bottleneck_revisiting(costs, ipus, choices, most, together, memory)
        splits[:] = [best] if best is not None else []
        return best[0] if best is not None else None

    work = costs.cycles.work
    start = max(int(work.max()), -(-int(work.sum()) // len(set(ipus))))
    end = len(ipus) * longest(costs)
    lead = f"no split of {len(costs)} Blocks onto IPUs {', '.join(map(str, ipus))}"
    try:
        free = widened(start, end, lambda most: try_most(most, False))
    except TooManyWays:
        return start, start, _somewhere(costs, ipus, together, lead)
    if free is None:
        raise ValueError(f"{lead} keeps together the Blocks that must be on one IPU")
    if holds(costs, splits[0][1]):
        return free, free, splits[0][1]
    fewest = fewest_stages(costs, choices, in_company=True)
    if fewest > len(costs):
        raise ValueError(f"{lead} fits: a Block alone is more than a tile holds")
    if fewest > len(ipus):
        raise ValueError(f"{lead} fits: even with an IPU each they need {fewest} stages")
    # stages that are longer than any that fits add nothing to what is looked at
    end = min(end, max(map(ipus.count, ipus)) * _longest_that_fits(costs, choices))
    least = widened(free, end, lambda most: try_most(most, True))
    if least is None and fewest > len(set(ipus)):
        raise ValueError(f"{lead} fits: with a stage each they need {fewest} IPUs or more")
    if least is None:
        raise ValueError(f"{lead} fits: all were looked at, or ruled out")
    assignment = splits[0][1]
    if not holds(costs, assignment):
        assignment = _one_that_fits(costs, assignment, together, choices, least, lead)
    return free, least, assignment


def _one_that_fits(
    costs: Costs,
    like: Assignment,
    together: Sequence[Sequence[int]],
    choices: Sequence[Choice],
    bottleneck: int,
    lead: str,
) -> Assignment:
    """A split that fits onto the IPUs of ``like``, which does not as tied weights pass some IPUs.

    ``bottleneck``: a lower bound for all splits. ValueError: none, or too many to look at.
    """
    table = interval_costs(costs, like.ipus, choices, longest(costs))
    search = Search(costs, table, like.ipus, together, bottleneck)
    few = search.few(MOST_APART // len(like.ipus))
    unknown = LeastUpdate(like, INFINITE, 0)
    most = MOST_APART // len(like.ipus) if few else _TRIED
    result = search.run(unknown, most, INFINITE)
    if result.total < INFINITE:
        return result.assignment
    if few:
        raise ValueError(f"{lead} fits, with the tied weights that pass some of them")
    raise ValueError(f"{lead} was found that fits: there are too many to look at all of them")


def _somewhere(
    costs: Costs, ipus: tuple[int, ...], together: Sequence[Sequence[int]], lead: str
) -> Assignment:
    """Where to begin if not all ways onto these IPUs can be looked at.

    The profiled split, or one with even work in each stage; ValueError if that does not fit.
    """
    if ipus == costs.ipus and costs.in_order:
        begin = Assignment.of(costs.stage.tolist(), costs.ipus)
    else:
        done = np.cumsum(costs.cycles.work) - costs.cycles.work
        even = np.searchsorted(done, done[-1] * np.arange(len(ipus)) / len(ipus))
        least = np.arange(len(ipus))
        starts = np.maximum.accumulate(np.maximum(even - least, 0)) + least
        begin = Assignment(tuple(np.minimum(starts, len(costs) - len(ipus) + least).tolist()), ipus)
    if not _united(costs, begin, together) or not _fits(costs, begin, range(len(ipus))):
        raise ValueError(f"{lead} was found that fits: there are too many to look at all of them")
    return begin


def _longest_that_fits(costs: Costs, choices: Sequence[Choice]) -> int:
    """The most cycles of a stage that an IPU may hold, with others or without."""
    most = 0
    for choice in choices:
        table = memory_of_all(costs, choice, in_company=True)
        fits = table.fullest(0) <= costs.machine.bytes_per_tile
        early, final = cycles_of_intervals(costs, (choice,), fits.shape[1])
        for cycles in (*early, final):
            most = max(most, int(np.where(fits & (cycles < INFINITE), cycles, 0).max(initial=0)))
    return most


def _better_neighbours(
    costs: Costs, assignment: Assignment, together: Sequence[Sequence[int]]
) -> Assignment:
    """Move neighbouring cuts by a Block, the best move first, while that shortens and fits."""
    count, stages = len(costs), len(assignment.starts)
    small = count * stages <= _WHOLE_SCHEDULES
    several = stages if small else _MOVED
    runs = [(a, b) for a in range(1, stages) for b in range(a, min(stages, a + several))]
    at = np.arange(stages)
    moves = np.array([step * ((a <= at) & (at <= b)) for a, b in runs for step in (-1, 1)])
    current, (best,) = assignment, cycles_of_assignments(costs, [assignment]).tolist()
    for _ in range(count * stages if small else _ROUNDS):
        starts = np.array(current.starts) + moves.reshape(-1, stages)
        starts = starts[(np.diff(starts, axis=1, append=count) > 0).all(axis=1)]
        totals = cycles_of_starts(costs, current, starts)
        for row in np.argsort(totals, kind="stable").tolist():
            one = replace(current, starts=tuple(starts[row].tolist()))
            if totals[row] >= best:
                return current
            moved = np.flatnonzero(starts[row] != current.starts)
            if _united(costs, one, together) and _fits(costs, one, {*moved, *(moved - 1)}):
                current, best = one, int(totals[row])
                break
        else:
            return current
    return current


def _united(costs: Costs, assignment: Assignment, together: Sequence[Sequence[int]]) -> bool:
    stage = assignment.stage_of(len(costs)) if together else []
    return all(len({assignment.ipus[stage[block]] for block in group}) <= 1 for group in together)


def _fits(costs: Costs, assignment: Assignment, stages: Iterable[int]) -> bool:
    """Whether these stages fit on their IPUs."""
    apart = len(set(assignment.ipus)) == len(assignment.ipus)
    if not apart and len(costs.cuts.ties):  # a tied weight may pass other IPUs than it did
        return holds(costs, assignment)
    return holds(costs, assignment, {assignment.ipus[k] for k in stages})


def _in_turns(prediction: Prediction) -> list[str]:
    """Of sharded execution: what a micro-batch takes, of which a split changes the second part."""
    work = int(prediction.stage_cycles.sum())
    rest = prediction.pipeline_cycle - work
    return [
        f"IPUs take turns: a micro-batch takes the work of all stages, {work:,} cycles however even"
        f" they are, and {rest:,} for copies between IPUs, their syncs and the host"
    ]


def _pace(costs: Costs, prediction: Prediction, least: int, free: int) -> list[str]:
    """Of a pipeline: what the slowest stage takes, and why no split gets lower."""
    reached = prediction.bottleneck
    largest = int(costs.cycles.work.argmax())
    who = (
        "IPU" if len(set(prediction.assignment.ipus)) < len(prediction.assignment.ipus) else "stage"
    )
    bound = f"no split into as many stages gets below {least:,}"
    if least == reached:
        bound = "no split into as many stages gets below that"
    reasons = [f"the slowest {who} takes {reached:,} cycles a micro-batch; {bound}"]
    if free < least:
        reasons.append(
            f"with unlimited memory it would take {free:,}: memory costs {least - free:,} cycles"
        )
    stages = prediction.assignment.stage_of(len(costs))
    if prediction.stage_cycles[stages[largest]] == reached and stages.count(stages[largest]) == 1:
        again = " or no recomputation" if reached > costs.cycles.work[largest] else ""
        reasons.append(
            f"Block {costs.names[largest]} is a stage of its own and takes that: only a cut inside"
            f" it{again} gets lower"
        )
    return reasons


def _what_moves(costs: Costs, prediction: Prediction) -> list[str]:
    """Blocks that get another stage, and stages that get another IPU."""
    stages = prediction.assignment.stage_of(len(costs))
    before = Assignment.of(costs.stage.tolist(), costs.ipus) if costs.in_order else None
    if before is None:
        return []
    was = before.stage_of(len(costs))
    moves = [
        f"{n} to stage {b}" for n, a, b in zip(costs.names, was, stages, strict=True) if a != b
    ]
    if len(before.ipus) == len(prediction.assignment.ipus):
        pairs = zip(before.ipus, prediction.assignment.ipus, strict=True)
        moves += [f"stage {k} to IPU {b}" for k, (a, b) in enumerate(pairs) if a != b]
    if moves:
        return [f"moves {listed(moves, _MOST_NAMED)}"]
    same = prediction.assignment.parts(costs) == before.parts(costs)
    return [f"this is the split that was profiled{'' if same else ', memory is saved otherwise'}"]
