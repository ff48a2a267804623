"""What to change so that the model runs faster, over all levers, with the lines to write.

Micro-batch, accumulation, recomputation, outputs returned, where optimiser state lies and the
split: each alone, and all together, ranked by predicted samples a second under the memory. The
samples of a weight update and the precision stay as they are unless --allow names them.
'~' marks estimates, '±' (or '-' and '+') their possible error. --check SCRIPT compiles the script
with each of them and reports the results; ipu-run --tune N SCRIPT compiles on until nothing gains.
The script itself is not changed.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ipuscope.reports.cli import common

if TYPE_CHECKING:
    from ipuscope.planner.advice import Advice, Advised, Allowed, Basis, Levers

_CHANGES = ("half", "samples")  # of the training, that --allow takes
_ADVICE = "advice"  # folders of --check's compiles, numbered as printed
HELP = "what to change, over all levers, with the gain and the lines to write"
EXAMPLES = """  ipu-report advise demo/training
  ipu-report advise --allow half,samples demo/training     precision and samples may change
  ipu-report advise demo/training --check train.py --epochs 3      compile each advice
  ipu-report advise -o tried demo/training --check train.py        and keep their profiles
  ipu-report advise --json demo/training | jq '.[0].advice[0].code'
"""


class _Check(argparse.Action):
    """--check takes all that follows it: the profile comes before."""

    def __call__(self, parser: Any, namespace: Any, values: Any, *_: object) -> None:
        if not namespace.profiles:
            parser.error(
                f"--check took {shlex.join(values) or 'nothing'}, as it takes all that follows it:"
                " PROFILE comes before it: ipu-report advise PROFILE --check SCRIPT"
            )
        namespace.check = values


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `ipu-report advise`."""
    common.add_profile(parser)
    parser.add_argument(
        "--allow",
        default="",
        metavar="CHANGES",
        help="what may change in the training: half (the precision), samples (up to 32 times as"
        " many a weight update), or both: half,samples. By default neither changes",
    )
    common.add_number(parser, "--samples", "allow up to N samples a weight update", default=0)
    common.add_top(parser, 8)
    common.add_output(parser, "keep the profiles of --check here", "DIR")
    common.add_form(parser)
    parser.add_argument(
        "--check",
        action=_Check,
        nargs=argparse.REMAINDER,
        metavar="SCRIPT",
        help="the script of the profile with its arguments, last: compile it with each advice",
    )


def run(args: argparse.Namespace) -> int:
    """Print what to change; 1 if --check was given and nothing that was compiled gains."""
    if args.check is not None and not args.check:
        raise common.CommandError("--check takes the script and its arguments, last", common.USAGE)
    if args.check:
        _there(args.check[0])
        _writable(args.output)
    return common.each_profile(args, lambda report: _page(report, args), bool(args.check))


def _there(script: str) -> None:
    """Refuse a missing script before anything is compiled; ``-m module`` is looked up."""
    if script != "-m" and not Path(script).is_file():
        raise common.CommandError(
            f"there is no script {script} to compile: --check takes its path, its arguments and"
            " whatever follows",
            common.USAGE,
        )


def _writable(folder: Path | None) -> None:
    """Refuse an output folder that cannot be made, before anything is compiled."""
    if folder is None:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise common.CommandError(
            f"{folder}: no folder can be made there: {error.strerror}. Give --output another place",
            common.USAGE,
        ) from error


def _page(report: common.Report, args: argparse.Namespace) -> common.Page:
    common.check_not_imported(report)
    from ipuscope.planner.advice import advise_on, basis_of
    from ipuscope.planner.advice.search import NO_GAIN
    from ipuscope.reports.tables import say

    try:
        basis = basis_of(report)
        allowed = _allowed(basis, args)
        advised = advise_on(basis, allowed)
    except ValueError as error:
        raise common.CommandError(str(error)) from error
    advices = advised.every[: common.top(args)]
    now = _now(basis, advised)
    if advised.present.problems:
        now = f"{now} {_way_to_fit(report, args, basis)}"
    more = _with_everything(basis, advised, allowed)
    more += [*map(say, advised.notes), *_tune(report)]
    if not advices:
        return common.page(report, _table(advices), say(now), say(NO_GAIN), *more)
    if args.check is None:
        lines = (say(now), *more, *_lines(advices))
        return common.page(report, _table(advices), *lines)
    outcomes = _checked(args, basis, advices)
    errors = [say(words) for words in _errors(advices, outcomes)]
    verdict = [say(words) for words in _verdict(args, basis, advised, advices, outcomes)]
    lines = (say(now), *_lines(advices), *errors, *verdict, *_tune(report))
    gains = max(one.samples_per_second for one in outcomes) > _present(advised)
    return common.page(report, _table(advices, outcomes), *lines, holds=gains)


def _way_to_fit(report: common.Report, args: argparse.Namespace, basis: Basis) -> str:
    """What would make it fit: compiled, with --check, else predicted."""
    from ipuscope.planner.advice import way_to_fit

    if args.check is None:
        return way_to_fit(report)

    def fits(levers: Levers) -> bool:
        with tempfile.TemporaryDirectory(prefix="ipu-report-") as scratch:
            folder = (args.output or Path(scratch)) / "fewest"
            return compiled(args.check, folder, levers, basis).fits

    return way_to_fit(report, compiled=fits)


@dataclass(frozen=True)
class Outcome:
    """A compile's samples a second, bytes of the fullest tile, and whether it fits, or its error.

    ``error`` is one line.
    """

    samples_per_second: float
    fullest: int
    fits: bool
    error: str = ""


def compiled(script: Sequence[str], folder: Path, levers: Levers, basis: Basis) -> Outcome:
    """The outcome of a compile with the profile's settings and the levers, into the folder.

    ``script``: its path and arguments.
    """
    from ipuscope.planner.levers.compile_again import compile_again
    from ipuscope.planner.levers.registry import argument
    from ipuscope.planner.predict.what_if import placement_file
    from ipuscope.profiler import analysis, open_report
    from ipuscope.profiler.analysis.memory_hot_spots import largest_extents
    from ipuscope.profiler.enums import OUT_OF_MEMORY
    from ipuscope.profiler.provenance import Provenance

    stages, made = None, Provenance.of(basis.report)
    if levers.split is not None:
        assignment = basis.assignment_with(levers)
        stages = placement_file(basis.costs_with(levers), assignment, sets_accumulation=False)
    kind = str(basis.report.meta["kind"])
    profile, why = compile_again(script, folder, made, kind, argument(levers), stages)
    if profile is None:
        return Outcome(0.0, 0, False, why)
    with open_report(profile) as report:
        fits = report.meta["state"] != OUT_OF_MEMORY
        rate = analysis.pace(report).samples_per_second if fits else 0.0
        return Outcome(rate, int(largest_extents(report).max()), fits)


def _allowed(basis: Basis, args: argparse.Namespace) -> Allowed:
    """What may change of the training, as the options say."""
    from ipuscope.planner.advice import Allowed, anything

    names = [name for name in (part.strip() for part in args.allow.split(",")) if name]
    for name in names:
        if name not in _CHANGES:
            raise common.CommandError(
                f"--allow {name!r}: there are {' and '.join(_CHANGES)}", common.USAGE
            )
    most = anything(basis).samples if "samples" in names else 0
    return Allowed("half" in names, args.samples or most)


def _with_everything(basis: Basis, advised: Advised, allowed: Allowed) -> list[common.Lines]:
    """The best advice if the training may change too; nothing if it is no better."""
    from ipuscope.planner.advice import advise_on, anything
    from ipuscope.planner.insights.lever_gains import training_changes
    from ipuscope.reports.tables import say

    everything = anything(basis)
    if allowed == everything:
        return []
    best = _best(advise_on(basis, everything))
    here = _best(advised)
    changes = training_changes(best, advised.present) if best else ""
    if best is None or not changes or (here and here.gain >= best.gain):
        return []
    return [
        say(
            f"This leaves the training as it is. If it may change ({changes}), the best would be"
            f" {best.rate} samples a second: --allow half,samples shows it."
        )
    ]


def _tune(report: common.Report) -> list[common.Lines]:
    """The command that compiles what the costs of one profile do not price."""
    from ipuscope.profiler.analysis import shards_of
    from ipuscope.profiler.provenance import Provenance
    from ipuscope.reports.tables import say

    made, shards = Provenance.of(report), shards_of(report)
    words = ["ipu-run", "--tune", str(report.target.num_ipus * shards), *made.program]
    what = "Only compiles can compare memory proportions and how each stage saves memory"
    return [say(f"{what}: {shlex.join(words)}")]


def _best(advised: Advised) -> Advice | None:
    return advised.together or next(iter(advised.single), None)


def _present(advised: Advised) -> float:
    return 0.0 if advised.present.problems else advised.present.samples_per_second


def _per_second(samples: float) -> str:
    from ipuscope.profiler.units import per_second

    return per_second(samples)


def _now(basis: Basis, advised: Advised) -> str:
    from ipuscope.profiler import units

    present = advised.present
    if present.problems:
        return f"As profiled it does not run: {'; '.join(present.problems)}."
    return (
        f"As profiled: {_per_second(present.samples_per_second)} samples a second,"
        f" {present.samples:,} samples {basis.turn}, {units.size(present.fullest)} of extent on a"
        " tile."
    )


def _checked(args: argparse.Namespace, basis: Basis, advices: list[Advice]) -> list[Outcome]:
    outcomes = []
    with tempfile.TemporaryDirectory(prefix="ipu-report-") as scratch:
        for number, one in enumerate(advices, 1):
            folder = (args.output or Path(scratch)) / f"{_ADVICE}{number}"
            outcomes.append(compiled(args.check, folder, one.levers, basis))
            if sys.stderr.isatty():
                rate = f"{_per_second(outcomes[-1].samples_per_second)} samples a second"
                came = outcomes[-1].error or rate
                print(common.one_line(f"{one.title}: {came}"), file=sys.stderr)
    return outcomes


def _table(advices: list[Advice], outcomes: list[Outcome] | None = None) -> common.Table:
    import pandas as pd

    from ipuscope.planner.advice import Advice
    from ipuscope.reports.tables import Column, Table, kibibytes, sentence, whole_text

    names = [name for name in Advice.__dataclass_fields__ if name not in ("levers", "problems")]
    values = [[getattr(one, name) for name in names] for one in advices]
    rows = [[list(one) if isinstance(one, tuple) else one for one in row] for row in values]
    frame = pd.DataFrame(rows, columns=pd.Index(names))
    frame["rate"] = [one.rate for one in advices]
    frame["times"] = [f"{one.gain:.2f}" if one.gain else "" for one in advices]
    columns = [Column("rate", "samples/s", str), Column("times", "times\nnow", str)]
    if outcomes is not None:
        frame["compiled"] = [outcome.samples_per_second for outcome in outcomes]
        frame["compiled_fullest"] = [outcome.fullest for outcome in outcomes]
        frame["came"] = [_came(outcome) for outcome in outcomes]
        columns.append(Column("came", "compiled", whole_text))
    columns += [
        Column("samples", "samples\nan update"),
        Column("fullest", "extent\nKiB", kibibytes),
        Column("memory", "memory", sentence),
        Column("title", "change", sentence),
    ]
    return Table("advice", frame, tuple(columns) if advices else ())


def _came(outcome: Outcome) -> str:
    if outcome.error:
        return "does not compile"
    return _per_second(outcome.samples_per_second) if outcome.fits else "out of memory"


def _errors(advices: list[Advice], outcomes: list[Outcome]) -> list[str]:
    """Why compiles failed: each reason once, with the numbers of the advice that it stopped."""
    numbers: dict[str, list[str]] = {}
    for number, outcome in enumerate(outcomes, 1):
        if outcome.error:
            numbers.setdefault(outcome.error, []).append(str(number))
    if len(numbers) == 1 and len(next(iter(numbers.values()))) == len(advices) > 1:
        return [f"None of them compiles: {next(iter(numbers))}"]
    return [f"{', '.join(whose)}: {error}" for error, whose in numbers.items()]


def _lines(advices: list[Advice]) -> list[common.Lines]:
    """Each piece of advice with its lines below it."""
    from ipuscope.profiler import units
    from ipuscope.reports.tables import with_code

    return [
        with_code(f"{number}. {units.sentence(one.title)}:", one.code)
        for number, one in enumerate(advices, 1)
    ]


def _verdict(
    args: argparse.Namespace,
    basis: Basis,
    advised: Advised,
    advices: list[Advice],
    outcomes: list[Outcome],
) -> list[str]:
    """The rate of the fastest compile, and the command that compiles it."""
    rates = [one.samples_per_second for one in outcomes]
    number, rate, now = rates.index(max(rates)), max(rates), _present(advised)
    if rate <= now:
        return ["None of the compiles in the table is faster than the profile."]
    times = f", {rate / now:.2f} times the profile's {_per_second(now)}" if now else ""
    words = f"The fastest compile reaches {_per_second(rate)} samples a second{times}"
    command = _command(args, basis, advices[number].levers, f"{_ADVICE}{number + 1}")
    return [f"{words}: that is advice {number + 1}.", command]


def _command(args: argparse.Namespace, basis: Basis, pulled: Levers, folder: str) -> str:
    """The fastest by `ipu-run`, the script unchanged."""
    from ipuscope.planner.levers.compile_again import PLACEMENT, command_line, merged
    from ipuscope.planner.levers.registry import argument
    from ipuscope.profiler.provenance import Provenance

    made, levers = Provenance.of(basis.report), argument(pulled)
    if pulled.split is None and not made.placement:
        return f"To compile so, the script unchanged: {command_line(made, levers, 0, args.check)}"
    if args.output is not None:
        words = ["ipu-run", "--placement", str(args.output / folder / PLACEMENT)]
        words += ["--with", both] if (both := merged(made.levers, levers)) else []
        return f"To compile so, the script unchanged: {shlex.join([*words, *args.check])}"
    keep = "-o DIR keeps its placement file, with which `ipu-run` runs the script unchanged."
    if pulled.split is not None or not made.num_ipus:
        return keep
    return f"{keep} To plan again: {command_line(made, levers, 0, args.check)}"
