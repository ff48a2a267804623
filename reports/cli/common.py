"""Shared by the subcommands: naming profiles, choosing an output form, a page per profile."""

from __future__ import annotations

import argparse
import glob
import itertools
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ipuscope.waiting import PATIENCE as PATIENCE
from ipuscope.waiting import waiting as waiting
from ipuscope.words import add_flag as add_flag
from ipuscope.words import add_number as add_number
from ipuscope.words import not_negative as not_negative
from ipuscope.words import one_line as one_line

if TYPE_CHECKING:
    import pandas as pd

    from ipuscope.profiler import Report as Report
    from ipuscope.reports.tables import Facts
    from ipuscope.reports.tables import Line as Line
    from ipuscope.reports.tables import Lines as Lines
    from ipuscope.reports.tables import Page as Page
    from ipuscope.reports.tables import Table as Table

DIRECTORIES_LOOKED_INTO = 2000  # for a profile to begin with
MOST_DIRECTORIES, MOST_BELOW = (
    20_000,
    100,
)  # looked into, and profiles, of a directory that is given
LEAST_WIDTH = 40  # columns: the least that --width takes
_A_FEW = 500  # directories between two reports of progress
# Exit codes.
OK, NOT_SO, USAGE, UNREADABLE = 0, 1, 2, 3
KINDS = ("training", "inference")  # directories as a run leaves them


class CommandError(Exception):
    """Ends a subcommand with an exit code and one line that gives the cause and the remedy."""

    def __init__(self, message: str, code: int = NOT_SO) -> None:
        super().__init__(message)
        self.code = code


def first_steps() -> str:
    """A suggestion for a call without arguments, with a profile from below where one is."""
    profile = next(_below(Path("."), most=DIRECTORIES_LOOKED_INTO), None)
    if profile is not None:
        return f"say what to ask. Begin with: ipu-report summary {profile.parent}"
    return (
        "say what to ask. Begin with: ipu-report summary PROFILE. To get a profile:"
        " ipu-run --profile-dir out script.py"
    )


def add_profiles(parser: argparse.ArgumentParser) -> None:
    """One or more PROFILE arguments."""
    parser.add_argument(
        "profiles", nargs="+", metavar="PROFILE", help="profile.pop, a directory, or a pattern"
    )


def add_profile(parser: argparse.ArgumentParser) -> None:
    """A single PROFILE argument; a directory with training and inference means the training."""
    parser.add_argument(
        "profiles", nargs=1, metavar="PROFILE", help="profile.pop, or a directory with one"
    )


def add_form(parser: argparse.ArgumentParser, top: int = 0) -> None:
    """--json and --csv, and --top if people see ``top`` rows by default."""
    if top:
        add_top(parser, top)
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "--json",
        dest="form",
        action="store_const",
        const="json",
        default="text",
        help="JSON for programs: a list with an object per profile; cycles and bytes unrounded",
    )
    words = "the (first) table as CSV, with the profile as its first column"
    form.add_argument("--csv", dest="form", action="store_const", const="csv", help=words)


def add_each(parser: argparse.ArgumentParser) -> None:
    """Add ``--each``, a row for each of many stages or IPUs."""
    add_flag(parser, "--each", "every IPU or stage, not one row for all that are alike")


def add_run(parser: argparse.ArgumentParser) -> None:
    """Add ``--run``, the position of a run."""
    words = "which of the profiled calls (default: 0, the first)"
    add_number(parser, "--run", words, type=not_negative, dest="which_run", default=0)


def add_iteration(parser: argparse.ArgumentParser) -> None:
    """Add ``--iteration``, a device iteration of the run."""
    words = "which device iteration of the run (default: 0)"
    add_number(parser, "--iteration", words, type=not_negative, default=0)


def _columns(text: str) -> int:
    """Columns to draw in; refuses fewer than the names of IPUs need."""
    number = not_negative(text)
    if number < LEAST_WIDTH:
        raise argparse.ArgumentTypeError(
            f"{number} is too narrow: a drawing takes {LEAST_WIDTH} columns or more"
        )
    return number


def add_drawing(parser: argparse.ArgumentParser) -> None:
    """--width and --ascii."""
    words = "columns to use instead of the terminal's width"
    parser.add_argument("--width", type=_columns, metavar="COLUMNS", help=words)
    add_flag(parser, "--ascii", "ASCII characters only")


def add_ipu(parser: argparse.ArgumentParser, default: int | None = None) -> None:
    """Add ``--ipu``, an IPU or, without a default, all."""
    words = "this IPU only (default: all)" if default is None else f"IPU (default: {default})"
    add_number(parser, "--ipu", words, type=not_negative, default=default)


def add_top(parser: argparse.ArgumentParser, default: int) -> None:
    """Add ``--top``, how many rows to print."""
    words = f"rows, 0 for all (default: {default} when printed, all with --json and --csv)"
    add_number(parser, "--top", words, type=not_negative)
    parser.set_defaults(top_for_people=default)


def add_output(
    parser: argparse.ArgumentParser, help: str, metavar: str = "FILE", **more: Any
) -> None:
    """Add ``--output``, what to write."""
    parser.add_argument("-o", "--output", type=Path, metavar=metavar, help=help, **more)


def add_stage_ipus(parser: argparse.ArgumentParser, help: str) -> None:
    """--stage-ipus: a list, an IPU a stage."""
    parser.add_argument("--stage-ipus", metavar="N,N,...", help=help)


def stage_ipus(args: argparse.Namespace) -> tuple[int, ...] | None:
    """The value of --stage-ipus as numbers, if it was given."""
    if args.stage_ipus is None:
        return None
    parts = [part.strip() for part in args.stage_ipus.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise CommandError(
            f"--stage-ipus takes whole numbers, one a stage: 0,1,2,0; not {args.stage_ipus!r}",
            USAGE,
        )
    return tuple(int(part) for part in parts)


def find_profiles(patterns: Iterable[str]) -> list[Path]:
    """The profiles named by files, directories and patterns, in order, without duplicates.

    A directory stands for its ``profile.pop``, else for those in its ``training`` and
    ``inference`` (and ``training-2``), else for all below it. A missing path is returned: opening
    it reports the error.
    """
    paths: list[Path] = []
    for pattern in patterns:
        argument = Path(pattern)
        named = (
            [argument]
            if argument.exists()
            else [Path(name) for name in sorted(glob.glob(pattern, recursive=True))]
        )
        if not named and glob.has_magic(pattern):
            raise CommandError(
                f"{pattern}: nothing matches. Give a profile.pop or a directory", UNREADABLE
            )
        for path in named or [argument]:
            paths += _within(path)
    return list(dict.fromkeys(paths))


def _within(path: Path) -> list[Path]:
    if not path.is_dir() or (path / "profile.pop").is_file():
        return [path / "profile.pop" if path.is_dir() else path]
    kinds = [path / kind / "profile.pop" for kind in KINDS]  # and of further models of a process
    kinds += [one for kind in KINDS for one in sorted(path.glob(f"{kind}-[0-9]*/profile.pop"))]
    return [kind for kind in kinds if kind.is_file()] or _all_below(path) or [path]


def _all_below(directory: Path) -> list[Path]:
    """Every profile below a directory. CommandError if it is too large to be meant."""
    paths: list[Path] = []
    many = ""
    with waiting(f"looking for profiles below {directory}") as say:
        for number, here in enumerate(_walked(directory), 1):
            paths += here
            if number % _A_FEW == 0:
                say(f"{number:,} directories, {len(paths):,} profiles")
            if len(paths) > MOST_BELOW:
                many = f"has more than {MOST_BELOW} profiles below it"
            elif number > MOST_DIRECTORIES:
                many = (
                    f"has more than {MOST_DIRECTORIES:,} directories; {len(paths)} profiles so far"
                )
            if many:
                some = f" ({', '.join(map(str, paths[:2]))}, ...)" if paths else ""
                raise CommandError(
                    f"{directory} {many}{some}. Name a directory nearer to those you mean, or give"
                    " a pattern",
                    USAGE,
                )
    return paths


def _below(directory: Path, most: int | None = None) -> Iterator[Path]:
    """Every ``profile.pop`` below a directory, of which at most ``most`` are searched."""
    return itertools.chain.from_iterable(itertools.islice(_walked(directory), most))


def _walked(directory: Path) -> Iterator[list[Path]]:
    """The profile of each directory below this one, except hidden ones (``.venv``, ``.git``)."""
    for here, folders, files in os.walk(directory):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield [Path(here) / "profile.pop"] if "profile.pop" in files else []


def find_one(pattern: str) -> Path:
    """The profile that an argument names, if possible training; CommandError for several runs."""
    return one_of(pattern, find_profiles([pattern]))


def one_of(pattern: str, paths: list[Path]) -> Path:
    """`find_one` of what `find_profiles` gave for the argument."""
    if len(runs_of(paths)) > 1:
        some = ", ".join(str(path) for path in paths[:3]) + (", ..." if len(paths) > 3 else "")
        raise CommandError(
            f"{pattern} stands for {len(paths)} profiles ({some}): this takes one of them", USAGE
        )
    return next((path for path in paths if path.parent.name == KINDS[0]), paths[0])


def runs_of(paths: Iterable[Path]) -> set[Path]:
    """The runs of profiles: training and inference of a run are one."""
    return {path.parent.parent if path.parent.name in KINDS else path for path in paths}


def open_one(args: argparse.Namespace) -> Report:
    """The one profile of a subcommand that takes one."""
    from ipuscope.profiler import open_report

    report = open_report(find_one(args.profiles[0]))
    say_damage(report)
    return report


def say_damage(report: Report) -> None:
    """Say on standard error that answers of this file may be wrong."""
    from ipuscope.profiler.report import DAMAGED

    if report.file.damaged:
        print(f"ipu-report: warning: {one_line(str(report.path))}: {DAMAGED}", file=sys.stderr)


def each_profile(
    args: argparse.Namespace, make: Callable[[Report], Page], says_itself: bool = False
) -> int:
    """Print a page for each profile.

    An unreadable one costs a line and exit code 3, a page that does not hold exit code 1; equal
    errors share a line.
    ``says_itself``: ``make`` reports its progress.
    """
    from ipuscope.profiler import ProfileError, open_report
    from ipuscope.reports.tables import print_pages

    failed = OK
    pages = []
    errors: dict[str, list[str]] = {}  # by their words without the path
    paths = find_profiles(args.profiles)
    with waiting("working", None if says_itself else PATIENCE) as say:
        for number, path in enumerate(paths, 1):
            if len(paths) > 1:
                say(f"{number} of {len(paths)}, {path}")
            try:
                with open_report(path) as report:
                    report.file.begin_check()
                    pages.append(make(report))
                    say_damage(report)
            except (ProfileError, CommandError) as error:
                words = str(error)
                bare = words.replace(str(path), "").replace(str(path.parent), "")  # of `argument`
                errors.setdefault(bare, []).append(words)
                failed = max(failed, getattr(error, "code", UNREADABLE))
    for first, *alike in errors.values():
        more = f" (The same holds for {len(alike):,} more of these profiles.)" if alike else ""
        print(f"ipu-report: error: {one_line(first)}{more}", file=sys.stderr)
    if pages:
        print_pages(pages, args.form, named=not _named(args.profiles, paths))
    return failed or (OK if all(page.holds for page in pages) else NOT_SO)


def _named(arguments: Iterable[str], paths: Iterable[Path]) -> bool:
    """Whether the arguments themselves say which profiles they stand for."""
    near = {
        Path(argument, *more)
        for argument in arguments
        for more in ((), ("profile.pop",), *((kind, "profile.pop") for kind in KINDS))
    }
    return near.issuperset(paths)


def none_such(
    report: Report, words: str, option: str, number: int, alike: str = ""
) -> CommandError:
    """The error of an option's value that is not below the number of such things."""
    has = f"It has {number:,}{alike}: --{option} 0 to {number - 1}"
    return CommandError(f"{report.path}: {words}. {has}")


def check_iteration(report: Report, run: int, iteration: int) -> None:
    """Raise CommandError if the run has no such device iteration."""
    check_run(report, run)
    iterations = int(report.runs["iterations"].iloc[run])
    if iteration >= iterations:
        raise none_such(report, f"run {run} has no iteration {iteration}", "iteration", iterations)


def check_run(report: Report, run: int) -> None:
    """Raise CommandError if the profile has no such run."""
    runs = len(report.trace.columns["id"])  # without pandas
    if run < runs:
        return
    if not runs:
        anew = "Compile the model anew: ipu-run --compile-only --profile-dir DIR script.py"
        if report.imported:
            anew = "Import a profile of a run: autoReport.outputExecutionProfile writes one"
        raise CommandError(
            f"{report.path}: it has neither a run nor a schedule (state: {report.meta['state']})."
            f" {anew}"
        )
    raise none_such(report, f"there is no run {run}", "run", runs)


def mark(report: Report, name: str = "") -> tuple[Lines, ...]:
    """A line if times are predicted or the profile was imported; ``name``: the profile's."""
    from ipuscope.profiler.analysis.pace import IMPORTED
    from ipuscope.profiler.report import PREDICTED_NOTE
    from ipuscope.reports.tables import say

    if report.imported:
        return (say(name + IMPORTED, "yellow"),)
    return (say(name + PREDICTED_NOTE, "yellow"),) if report.predicted else ()


def page(report: Report, *parts: Table | Facts | Lines, holds: bool = True) -> Page:
    """The output about a profile; ``holds``: as of `reports.tables.Page`."""
    from ipuscope.reports.tables import Page

    return Page(str(report.path), parts, holds)


def check_not_imported(report: Report) -> None:
    """CommandError for a profile of real IPUs, which lacks what the answer needs."""
    if report.imported:
        raise CommandError(
            f"{report.path} was imported: pipeline cycles, samples and flops are not in this"
            " profile. summary, why, ops, source, program, variables, memory, tile, liveness,"
            " compare and view answer for it; rebalance and whatif if Blocks are found in it"
        )


def check_ipu(report: Report, ipu: int) -> None:
    """Raise CommandError if the profile has no such IPU."""
    number, replicas = report.target.ipus_per_replica, report.target.num_replicas
    if not 0 <= ipu < number:
        alike = f" (of one replica: all {replicas} are alike)" if replicas > 1 else ""
        raise none_such(report, f"there is no IPU {ipu}", "ipu", number, alike)


def ipus(report: Report) -> list[int]:
    """The IPUs that have their own program."""
    return report.sequence.steps_of_ipus.nonzero()[0].tolist()


def top(args: argparse.Namespace) -> int | None:
    """--top as `reports.tables.Table` takes it: None for all. JSON and CSV have all by default."""
    asked = args.top_for_people if args.top is None and args.form == "text" else args.top
    return asked or None


def filtered(frame: pd.DataFrame, column: str, words: str | None) -> pd.DataFrame:
    """The rows whose name contains the words, ignoring case."""
    if not words:
        return frame
    return frame[frame[column].str.contains(words, case=False, regex=False)]
