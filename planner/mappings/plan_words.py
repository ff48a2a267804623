"""A plan in words and rows: why the first is best, its table, and the script's own command."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import pandas as pd

from ipuscope.planner.costs.profile_costs import Costs
from ipuscope.planner.mappings.engine import Engine
from ipuscope.planner.mappings.mapping import Mapping
from ipuscope.planner.mappings.phased_costs import PhasedCosts
from ipuscope.planner.mappings.phased_search import least_full
from ipuscope.planner.mappings.plan import SHARES, Candidate, Plan
from ipuscope.planner.mappings.priced import Place, Priced, choices_of, places
from ipuscope.planner.mappings.question import Question
from ipuscope.planner.predict.memory_verdict import Verdict
from ipuscope.planner.predict.what_if import memory_of
from ipuscope.planner.search.refusal import nearest
from ipuscope.planner.search.split_search import best_split
from ipuscope.planner.search.what_fits import too_large
from ipuscope.profiler.units import count, per_second

_KIB = 1024
_MUCH_HOST_IO = 0.05  # of the time
_LONG = 10  # seconds from which on milliseconds say nothing


def table(plan: Plan) -> pd.DataFrame:
    """One row a candidate, with the columns of ``--csv`` and of the table in the terminal."""
    rows = [_row(number, one) for number, one in enumerate(plan.candidates, 1)]
    return pd.DataFrame(rows)


def _row(rank: int, candidate: Candidate) -> dict[str, object]:
    mapping, came = candidate.mapping, candidate.obtained
    return {
        "rank": rank,
        "t": mapping.shards,
        "p": mapping.pipeline,
        "r": mapping.replicas,
        "ipus": mapping.attached,
        "split": mapping.split,
        "micro_batch": mapping.micro_batch,
        "accumulation": mapping.accumulation,
        "recompute": mapping.recomputation,
        "state": mapping.state,
        "proportion": mapping.memory_proportion,
        "rts": "yes" if mapping.in_parts else "no",
        "phases": mapping.phases,
        "samples_per_second": round(candidate.samples_per_second, 2),
        "cycles": candidate.cycles,
        "seconds": candidate.seconds,
        "fullest_bytes": candidate.fullest,
        "tile_bytes": candidate.limit,
        "memory": candidate.memory,
        **{name.replace("-", "_"): round(candidate.shares[name], 4) for name in SHARES},
        "proven": candidate.proven,
        "compiled_cycles": came.cycles if came else "",
        "compiled_fullest_bytes": came.fullest if came else "",
        "problem": came.problem if came else "",
    }


def asked(plan: Plan) -> str:
    """What the plan is for: ``32 samples a weight update, for throughput, with half``."""
    question, pulled = plan.question, plan.levers.replace(",", ", ")
    words = f"{question.global_batch:,} samples a {question.turn}, for {question.objective}"
    return f"{words}, with {pulled}" if pulled else words


def why(plan: Plan) -> Iterable[str]:
    """Sentences about the first candidate: its gain over others, and what is proven."""
    best = plan.best
    mapping = best.mapping
    yield (
        f"{count(mapping.attached, 'IPU')} as t={mapping.shards} x p={mapping.pipeline} x"
        f" r={mapping.replicas} (t to a stage, p in a pipeline, r replicas):"
        f" {per_second(best.rate)} samples/s,"
        f" {_percent(best.shares['compute'])} of the IPUs' time computes,"
        f" {_percent(best.shares['exchange'])} exchanges, {_percent(best.shares['bubble'])} waits"
    )
    if best.doubt:
        yield f"an IPU's cycles are {best.doubt} (docs/fidelity.md)"
    yield from _against_own(plan)
    yield from _against_others(plan)
    if mapping.attached < plan.question.ipus:
        left = plan.question.ipus - mapping.attached
        yield (
            f"{left} of the {plan.question.ipus} IPUs {'is' if left == 1 else 'are'} better left"
            " free: no mapping onto more of them is better"
        )
    recomputing = mapping.recomputation
    if recomputing != "none" and not mapping.in_phases:
        one = recomputing.isdecimal()
        stages = "all stages" if recomputing == "all" else f"stage{'s' * (not one)} {recomputing}"
        slower = any(other.runs and _keeps(other.mapping, mapping) for other in plan.candidates)
        reason = "is slower" if slower else "does not fit"
        yield f"{stages} recompute{'s' * one}: to keep everything {reason}"
    yield _proof(plan)


def _keeps(other: Mapping, mapping: Mapping) -> bool:
    """Whether it is that mapping but for recomputation, of which it has none."""
    same = [(replace(one, stages=()), one.split, one.state) for one in (other, mapping)]
    return same[0] == same[1] and other.recomputation == "none"


def _against_own(plan: Plan) -> Iterable[str]:
    """How much better than the script's own mapping it is."""
    own, best = plan.own, plan.best
    if own is None:
        return
    if own is best:
        yield "it is the script's own mapping: the search found nothing better"
    elif not own.runs:
        problem = own.obtained.problem if own.obtained is not None else ""
        yield f"the script's own mapping does not run: {problem}"
    else:
        times = best.rate / own.rate
        gain = f"{times - 1:.1%} more" if times < 2 else f"{times:.1f} times that"
        yield (
            f"the script's own mapping does {per_second(own.rate)} samples/s: this is {gain}"
            f" ({own.mapping})"
        )


def _shared(mapping: Mapping) -> str:
    shards = mapping.shards
    return f"tensors shared by {shards} IPUs" if shards > 1 else "tensors whole on an IPU"


# the respects that matter, as what a mapping has of each
_RESPECTS: tuple[Callable[[Mapping], str], ...] = (
    lambda one: f"pipelines of {count(one.pipeline, 'IPU')}",
    lambda one: count(one.replicas, "replica"),
    lambda one: f"a micro-batch of {one.micro_batch}",
    lambda one: (
        f"a memory proportion of {one.memory_proportion}"
        if one.proportion
        else "the script's memory proportion"
    ),
    _shared,
)


def _against_others(plan: Plan) -> Iterable[str]:
    """The best candidate that differs in one respect, for the respects that matter."""
    best, mapping = plan.best, plan.best.mapping
    for text in _RESPECTS:
        others = [one for one in plan.candidates if one.runs and text(one.mapping) != text(mapping)]
        if not others:
            continue
        other = max(others, key=lambda one: one.rate)
        less = 1 - other.rate / best.rate
        if less > 0:
            yield f"with {text(other.mapping)} the best is {less:.1%} slower ({other.mapping})"


def _proof(plan: Plan) -> str:
    if plan.stopped:
        return f"{plan.stopped}: this is the best of what was searched by then"
    if plan.exact:
        return (
            f"exact for the costs of {count(plan.compiles, 'compile')}: with one stage an IPU,"
            f" every split, p and r{_fixed(plan.question)} and every way to save memory was tried"
            " or ruled out by a lower bound"
        )
    return f"not proven: a mapping that is up to {plan.gap:.1%} quicker may exist"


def what_costs_say(plan: Plan, costs: Costs) -> Iterable[str]:
    """Sentences about weights and stages that come back to an IPU, and about host I/O."""
    host = plan.best.shares["host"]
    if host >= _MUCH_HOST_IO and costs.streams.waited_for:
        yield (
            f"the IPUs wait {_percent(host)} of the time for host I/O: --tune {plan.question.ipus}"
            " --allow overlap plans one stage a replica, where I/O tiles move it beside the work of"
            " another device iteration"
        )
    ties, stages = costs.cuts.ties, plan.best.mapping.stages
    for one in ties.parted([stage.ipu for stage in stages for _ in stage.blocks]):
        weight = f"{ties.names[one]} travels between IPUs: {ties.nbytes[one]:,} bytes"
        yield f"the tied weight {weight}"
    ipus = [stage.ipu for stage in stages]
    for stage, ipu in enumerate(ipus):
        if ipu in ipus[:stage]:
            names = ", ".join(ties.names)
            tied = f", with the tied weight {names}" if names else ""
            yield f"stage {stage} is on IPU {ipu} again{tied}, which is quicker"


def _percent(share: float) -> str:
    return f"{share:.0%}"


def kib(nbytes: int) -> str:
    """Bytes in the unit that the tools show."""
    return f"{nbytes / _KIB:,.0f} KiB"


def latency(seconds: float) -> str:
    """A time in milliseconds, or in seconds where it takes some."""
    return f"{seconds:,.1f} s" if seconds >= _LONG else f"{seconds * 1e3:,.3f} ms"


# -- nothing fits ---


def none_runs(candidates: Sequence[Candidate], question: Question) -> str:
    """Say that nothing runs that was thought to, and name the nearest."""
    nearest = min(candidates, key=lambda one: one.obtained.fullest if one.obtained else 0)
    problem = nearest.obtained.problem if nearest.obtained is not None else ""
    return (
        f"no mapping onto {count(question.ipus, 'IPU')} fits: the nearest is {nearest.mapping},"
        f" which was compiled: {problem}. More IPUs, smaller --micro-batches or lower --proportions"
        " take less of a tile"
    )


def by_reason(left_out: Iterable[str]) -> tuple[str, ...]:
    """What was not looked at, a line each reason."""
    by_why: dict[str, list[str]] = {}
    for what, colon, why in (one.partition(": ") for one in left_out):
        by_why.setdefault(f"{colon}{why}" or what, []).append(what if colon else "")
    return tuple(
        f"{what}{f' and {len(others)} more' if what and others else ''}{why}"
        for why, (what, *others) in by_why.items()
    )


def no_mapping(
    priced: Iterable[Priced], left_out: Iterable[str], question: Question, engine: Engine
) -> str:
    """Say that no mapping fits, by how many bytes and on what, and name the nearest that would."""
    every = list(priced)
    if not every:
        reasons = "; ".join(by_reason(left_out))
        return f"no mapping: nothing could be compiled for its costs ({reasons})"
    legal = [place for one in every for place in places(one, question)]
    if not legal:
        return _nothing_legal(every, question)
    fullest, place = _nearest(legal, question)
    text = (
        f"no mapping onto {count(question.ipus, 'IPU')} fits: the nearest needs"
        f" {-fullest.free:,} bytes more on tile {fullest.tile} of IPU {fullest.ipu}, most of it"
        f" {fullest.largest} ({fullest.largest_bytes:,} bytes); it is p={place.pipeline}"
        f" r={place.replicas} with a micro-batch of {place.priced.key.micro_batch}"
    )
    return f"{text}. {_enough_ipus(every, question)}"


def no_phases(every: Iterable[PhasedCosts], question: Question) -> str:
    """Say that no cut into phases fits, by how many bytes, and name the nearest."""
    tried = [(least_full(costs, question), costs) for costs in every]
    places = [(one, costs) for one, costs in tried if one is not None]
    text = f"no mapping in phases onto {count(question.ipus, 'IPU')} fits"
    if not places:
        return f"{text}: none divides {question.global_batch} samples. Raise --global-batch"
    (nbytes, place), costs = min(places, key=lambda one: one[0][0])
    over = nbytes - costs.machine.bytes_per_tile
    return (
        f"{text}: the nearest needs about {over:,} bytes more on its fullest tile, most of it"
        f" weights and accumulators of a stage; it is t={costs.key.shards} p={place.pipeline}"
        f" r={place.replicas} in {place.cut.phases} phases with a micro-batch of"
        f" {costs.key.micro_batch}. Cut Blocks smaller, share tensors by more IPUs (--fix t), or"
        " lower --micro-batches and --proportions"
    )


def _fixed(question: Question) -> str:
    """What must be so: " with p=1, r=4", or nothing."""
    fixed = ", ".join(f"{name}={value}" for name, value in question.fixed.items())
    return f" with {fixed}" if fixed else ""


def _nothing_legal(every: list[Priced], question: Question) -> str:
    sizes = ", ".join(dict.fromkeys(str(one.key.micro_batch) for one in every))
    least = "2p - 1" if question.training else "p"
    return (
        f"no mapping: {question.global_batch} samples of a {question.turn} cannot be cut into"
        f" micro-batches of {sizes} for a pipeline on at most {count(question.ipus, 'IPU')}"
        f"{_fixed(question)} (p stages need {least} micro-batches on each"
        " replica). Give --global-batch more samples, or fix less"
    )


def _nearest(legal: list[Place], question: Question) -> tuple[Verdict, Place]:
    """The fullest tile of the nearest split, with all saved that may be, and its place.

    The nearest (`ipuscope.planner.search.refusal.nearest`) of the longest pipelines of each
    compile.
    """
    tried = []
    for place in _longest(legal):
        saving = choices_of(place, question)[-1]
        costs = replace(place.costs, recompute=saving.recompute, offload=saving.offload, choices=())
        memory = memory_of(costs, nearest(costs, place.ipus))
        tried.append((min(memory, key=lambda one: one.free), place))
    return max(tried, key=lambda one: one[0].free)


def _longest(legal: list[Place]) -> list[Place]:
    """Places of each compile with the most IPUs to a replica, the fewest replicas first."""
    chosen: dict[object, Place] = {}
    for place in sorted(legal, key=lambda one: (-one.pipeline, one.replicas)):
        chosen.setdefault((place.priced.key, len(set(place.ipus)) == len(place.ipus)), place)
    return list(chosen.values())[:8]


def _enough_ipus(every: list[Priced], question: Question) -> str:
    """The fewest IPUs onto which one fits, doubling them."""
    ipus = question.ipus
    if "p" in question.fixed:  # where other Blocks share its IPU a Block alone is not known
        return f"Another p than the fixed {question.fixed['p']} may fit."
    while ipus < 256:
        ipus *= 2
        more = replace(question, ipus=ipus, fixed={})
        for place in _longest([place for one in every for place in places(one, more)]):
            costs = place.costs
            try:
                split = best_split(costs, ipus=place.ipus, choices=choices_of(place, more))
            except ValueError:
                continue
            if not split.prediction.problems:
                return f"On {ipus} IPUs one fits: p={place.pipeline}, --plan {ipus}"
    smaller = min(one.key.micro_batch for one in every)
    if smaller > 1:
        return f"A micro-batch under {smaller} takes less: --micro-batches 1"
    return too_large(every[0].costs)
