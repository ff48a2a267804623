"""Ways to free memory of the worst tile: what to move, to recompute, or to keep elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import combinations
from math import ceil

from ipuscope.planner.advice.largest_modules import too_large_alone
from ipuscope.planner.costs.memory_choice import Choice
from ipuscope.planner.costs.profile_costs import Costs
from ipuscope.planner.levers.compile_again import command_line
from ipuscope.planner.levers.levers import Basis, has_open_code, surely_fit
from ipuscope.planner.levers.phased import basis_of
from ipuscope.planner.levers.registry import argument, cuts, pulled, title
from ipuscope.planner.levers.settings import STATES, Levers
from ipuscope.planner.mappings.mapping import attached
from ipuscope.planner.predict.memory_verdict import Answer, Verdict, verdicts
from ipuscope.planner.predict.split_text import in_address
from ipuscope.planner.predict.what_if import Assignment
from ipuscope.planner.search.split_search import ALL_CHOICES, Split, best_split, fewest_stages
from ipuscope.planner.search.what_fits import too_large
from ipuscope.profiler.provenance import Provenance
from ipuscope.profiler.report import Report
from ipuscope.profiler.units import count, size

_WORTH = 1024  # bytes of the tile: what frees less is not offered


@dataclass(frozen=True)
class Relief:
    """A change that frees memory of the fullest tile of an IPU.

    ``freed``: bytes of it; ``fits``: whether every IPU then fits, in words (`Answer`, and the
    fullest IPU if not); ``cycles``: what a weight update takes more (negative: less); ``command``:
    asks for its effect; ``where``: the viewer's page; ``estimate``: see
    `ipuscope.planner.advice.Advice`.
    """

    title: str
    freed: int
    fits: str
    cycles: int
    command: str
    where: str
    estimate: bool


def relief(report: Report, ipu: int | None = None) -> list[Relief]:
    """What takes most off an IPU's largest extent (default: the worst IPU's), most bytes first.

    Empty if nothing does. ValueError if the profile has no costs of Blocks.
    """
    every = relief_on(basis_of(report), ipu)
    return [replace(one, command=report.with_path(one.command)) for one in every]


def relief_on(basis: Basis, ipu: int | None = None) -> list[Relief]:
    """`relief` for a profile that was already read; PROFILE stands for its path."""
    fullest = [one.nbytes for one in _verdicts(basis, Levers())]
    worst = max(range(len(fullest)), key=fullest.__getitem__) if ipu is None else ipu
    now = basis.cycles_with(Levers())
    reliefs = []
    for words, levers in _candidates(basis, worst):
        after = _verdicts(basis, levers)
        freed = fullest[worst] - (after[worst].nbytes if worst < len(after) else 0)
        if freed < _WORTH:
            continue
        samples = basis.costs_with(levers).samples / basis.costs.samples
        cycles = round(basis.cycles_with(levers) / samples) - now
        command, where = _command_and_page(basis, levers)
        estimate = any(lever.estimate(basis, value) for lever, value in pulled(levers))
        reliefs.append(Relief(words, freed, _fits(after), cycles, command, where, estimate))
    return sorted(reliefs, key=lambda one: -one.freed)


def fewest_changes(basis: Basis, ipus: int = 0, surely: bool = True) -> Levers | None:
    """The smallest combination of levers with which every IPU fits; None if none of up to three.

    By the profile's costs: a compile decides. ``surely``: without doubt. ``ipus``: onto so many,
    with the quickest split of their Blocks (default: the profiled stages; another split if none of
    these fits). Of combinations of as many levers the quickest, half precision only if no other.
    """
    single = [*_with_these_stages(basis), *_smaller(basis)[1:]]
    for number in range(4):
        fitting = []
        for some in combinations(single, number):
            if len({name for one in some for name in one.pulled}) < number:
                continue
            levers = reduce(Levers.over, some, Levers())
            found = _that_fits_with(basis, levers, ipus, surely)
            if found is not None:
                fitting.append((bool(levers.half), *found, levers))
        if fitting:
            _, _, split, levers = min(fitting, key=lambda one: one[:2])
            return replace(levers, split=split)
    return None


def way_to_fit(
    report: Report, ipus: int = 0, compiled: Callable[[Levers], bool] | None = None
) -> str:
    """What would make it fit, in sentences: `fewest_changes`, or the IPUs that it needs as it is.

    ``compiled``: compiles with levers, and says whether it then fits; without, this is a
    prediction. ValueError if the profile has no costs of Blocks.
    """
    basis = basis_of(report)
    changes = _changes_in_words(basis, ipus, compiled)
    if changes:
        return changes
    where = f" on {count(ipus, 'IPU')}" if ipus else ""
    words = f"No combination of up to three levers is predicted to fit{where}."
    if any(one.of_code for one in basis.memory_with(Levers())):
        others = [argument(one) for one in _with_these_stages(basis) if one.half or one.micro_batch]
        words = (
            f"Its code is too large{where}. Only a compile shows how much code other settings need"
        )
        words += f" (try ipu-run --with {' or --with '.join(others)})." if others else "."
    if not basis.can_split:
        return words
    choices = ALL_CHOICES if basis.costs.training else (basis.costs.own_choice,)
    least = fewest_stages(basis.costs, choices)
    if least <= len(basis.costs):
        more = attached(max(least, ipus + 1))
        words += f" With the present settings it needs at least {count(least, 'IPU')}."
    elif not len(report.blocks) and (why := too_large_alone(report)):
        return f"{words} {why}"
    elif len(basis.costs) == 1:
        more = attached(
            max(ipus + 1, ceil(max(one.nbytes / one.limit for one in _verdicts(basis, Levers()))))
        )
        words += " The model is one Block: its parts may fit on more IPUs."
    else:
        return f"{words} {too_large(basis.costs)}"
    command = command_line(Provenance.of(basis.report), "", more)
    return f"{words} This compiles mappings until one fits: {command}"


def _changes_in_words(basis: Basis, ipus: int, compiled: Callable[[Levers], bool] | None) -> str:
    """`fewest_changes` without doubt, and fewer with which it is open; "" if there are none."""
    made, said = Provenance.of(basis.report), ""
    sure, fewer = (
        basis.report.file.once(
            f"fewest changes onto {ipus}, {one}", partial(fewest_changes, basis, ipus, one)
        )
        for one in (True, False)
    )
    if fewer and sure and len(fewer.pulled) >= len(sure.pulled) and fewer.half == sure.half:
        fewer = None
    how = "Predicted to fit without doubt, with the fewest changes"
    if compiled is not None:
        tried = [one for one in (fewer, sure) if one is not None]
        came = next(filter(compiled, tried), None)
        how = "It compiles with the fewest changes" if came else f"{how}, but it does not compile"
        sure, fewer = came or sure, None
    for one, words in (sure, how), (fewer, "Fewer may do" if sure else "It may do"):
        if one is not None:
            number = len(set(one.split.ipus)) if one.split is not None else made.num_ipus
            tells = "This shows whether it fits" if one is fewer else "This compiles them"
            command = command_line(made, argument(one), number)
            said += f" {words}: {title(basis, one)}. {tells}: {command}"
    return said.lstrip()


def _that_fits_with(
    basis: Basis, levers: Levers, ipus: int, surely: bool
) -> tuple[float, Assignment | None] | None:
    """Cycles a sample, and another split where the profiled one does not do; None: none fits."""
    costs = basis.costs_with(levers)
    samples = costs.samples * costs.micro_batches
    doubt = basis.doubt_of_memory(levers)

    def fits(memory: Sequence[Verdict]) -> bool:
        if surely:
            return surely_fit(memory, doubt)
        over = any(one.answer is Answer.OVER for one in memory)
        return not over and not has_open_code(memory)

    if not ipus and fits(basis.memory_with(levers)):
        return basis.cycles_with(levers) / samples, None
    stages = ipus or max(costs.ipus) + 1
    if not basis.can_split or len(costs) < (ipus or 2):
        return None
    again, off = bool(levers.recompute), bool(levers.state)
    own = costs.own_choices
    ways = dict.fromkeys(Choice(again or one.recompute, off or one.offload) for one in own)
    choices = (*ways,) if costs.training else ()
    split = basis.report.file.once(
        f"with {argument(levers)} onto {stages} of {ipus}", partial(_best, costs, stages, choices)
    )
    if split is None or not fits(split.prediction.memory) or split.prediction.problems:
        return None
    return split.prediction.total / samples, split.prediction.assignment


def _best(costs: Costs, stages: int, choices: Sequence[Choice]) -> Split | None:
    try:
        return best_split(costs, stages, choices=choices)
    except ValueError:
        return None


def _verdicts(basis: Basis, levers: Levers) -> Sequence[Verdict]:
    """Every split as an estimate, the profiled one too, so that freed bytes compare alike."""
    if not basis.can_split:
        return basis.memory_with(levers)
    costs, assignment = basis.costs_with(levers), basis.assignment_with(levers)
    return verdicts(costs, assignment.parts(costs), assignment.ipus)


def _fits(ipus: Sequence[Verdict]) -> str:
    worst = min(ipus, key=lambda one: one.free)
    over = f" by {size(-worst.free)}" if worst.answer is Answer.OVER else ""
    where = "" if worst.answer is Answer.FITS else f"IPU {worst.ipu} "
    return f"{where}{worst.answer.value}{over}"


def _candidates(basis: Basis, ipu: int) -> Iterator[tuple[str, Levers]]:
    """Words and levers of changes that may free memory there."""
    costs = basis.costs
    for words, split in _moves(basis, ipu) if basis.can_split else ():
        yield words, Levers(split=split)
    if basis.can_split and len(set(costs.ipus)) == len(costs.ipus) > 1:
        best = _best(costs, len(costs.ipus), ALL_CHOICES if costs.training else ())
        if best is not None and not best.prediction.problems:
            yield "the quickest split that fits", Levers(split=best.prediction.assignment)
    for levers in _with_these_stages(basis):
        words = "recomputation instead of keeping activations" if levers.recompute else ""
        state = levers.state and f"optimiser state {levers.state.replace('-', ' ')}"
        yield words or state or ("half precision" if levers.half else title(basis, levers)), levers


def _with_these_stages(basis: Basis) -> Iterator[Levers]:
    """Changes that may free memory of any IPU."""
    costs = basis.costs
    if costs.training and costs.pipelined and not costs.recompute:
        yield Levers(recompute=True)
    if basis.keeps_state and basis.state == STATES[0]:
        yield from (Levers(state=one) for one in STATES[1 : 3 if basis.replicas > 1 else 2])
    if basis.sizes.halves:
        yield Levers(half=True)
    yield from _smaller(basis)[:1]


def _smaller(basis: Basis) -> list[Levers]:
    """Micro-batches of half, a quarter and one sample, or next below, with the present samples."""
    now = basis.micro_batch
    sizes = [one for one in cuts(basis) if 0 < one[0] < now]
    if not basis.one_size and now > 1:
        sizes.insert(0, (1, now * basis.costs.micro_batches))
    below = [max(one for one in sizes if one[0] <= max(1, now // n)) for n in (2, 4, now) if sizes]
    return [Levers(micro_batch=size, micro_batches=count) for size, count in dict.fromkeys(below)]


def _moves(basis: Basis, ipu: int) -> Iterator[tuple[str, Assignment]]:
    """Moves of each stage's first and last Block there to the neighbouring stage."""
    costs, present = basis.costs, basis.present
    spans = present.spans(len(costs))
    for stage, (first, last) in enumerate(spans):
        if present.ipus[stage] != ipu or first == last:
            continue
        starts = present.starts
        if stage > 0:
            later = (*starts[:stage], first + 1, *starts[stage + 1 :])
            words = f"Block {costs.names[first]} to stage {stage - 1}"
            yield words, replace(present, starts=later)
        if stage + 1 < len(spans):
            sooner = (*starts[: stage + 1], last, *starts[stage + 2 :])
            words = f"Block {costs.names[last]} to stage {stage + 1}"
            yield words, replace(present, starts=sooner)


def _command_and_page(basis: Basis, levers: Levers) -> tuple[str, str]:
    """The command that predicts its effect, and the viewer's page."""
    if levers.split is None:
        return command_line(Provenance.of(basis.report), argument(levers)), "/memory"
    where = f"/rebalance?starts={in_address(levers.split)}"
    if levers.split.choices:
        return "ipu-report rebalance PROFILE --recompute choose --offload choose", where
    return f"ipu-report whatif PROFILE --assign {levers.split.sizes(len(basis.costs))}", where


def in_words(reliefs: list[Relief], most: int = 4) -> list[str]:
    """A line for each of those that free most: what, how much, whether it fits, the command."""
    return [
        f"{'about ' if one.estimate else ''}{size(one.freed)}: {one.title} ({one.fits}):"
        f" {one.command}"
        for one in reliefs[:most]
    ]
