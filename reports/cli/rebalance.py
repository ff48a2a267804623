"""The quickest split of a model's Blocks into stages, what is proven about it, and a file for it.

Costs are those of the profile; the schedule is the engine's own. ipu-run --placement runs the
unchanged script with the file, and ipu-report runs shows its prediction beside the outcome. The
cycles of a whole weight update are minimised within the tiles' memory: the proposal is proven to be
the best, or it says how much less another split could take at most.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ipuscope.reports.cli import common

if TYPE_CHECKING:
    from ipuscope.planner.costs.memory_choice import Choice
    from ipuscope.planner.costs.profile_costs import Costs
    from ipuscope.planner.predict.what_if import Assignment
    from ipuscope.planner.search.split_search import Split

HELP = "the quickest split into stages, and a placement file for it"
EXAMPLES = """  ipu-report rebalance demo/training     the quickest split, as many stages or fewer
  ipu-report rebalance --stages 2 demo/training -o placement.json
  ipu-run --placement placement.json --profile-dir after train.py
  ipu-report runs demo/training after                     predicted beside compiled
  ipu-report rebalance --fewest demo/training             the fewest IPUs that it fits
  ipu-report rebalance --stage-ipus 0,1,2,0 --together B1,B4 demo/training   stages revisit IPU 0
  ipu-report rebalance --recompute choose --offload choose demo/training   decided for each stage
"""
_LITTLE = 0.005  # of the cycles: a split that gains less does not help
_OTHER_LEVERS = "A split gains next to nothing; precision, micro-batch, outputs and more may"
_WAYS = ("profiled", "choose", "always", "never")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's arguments."""
    common.add_profiles(parser)
    common.add_number(parser, "--stages", "number of stages (default: fastest)")
    common.add_flag(parser, "--fewest", "the fewest IPUs on which the model fits")
    common.add_stage_ipus(parser, "the IPU of each stage; an IPU may appear more than once")
    parser.add_argument(
        "--together",
        action="append",
        default=[],
        metavar="BLOCK,BLOCK",
        help="Blocks that must be on one IPU (may be repeated); 'tied': all that share a weight",
    )
    for name, what in (
        ("recompute", "stages run their forward again"),
        ("offload", "optimiser state off the chip"),
    ):
        words = f"{what}: as some stages did (default), chosen for each, or the same for all"
        parser.add_argument(f"--{name}", choices=_WAYS, default="profiled", help=words)
    common.add_output(parser, "write the placement here")
    common.add_form(parser)


def run(args: argparse.Namespace) -> int:
    """Run the subcommand; the result is its exit code."""
    if sum([args.fewest, args.stage_ipus is not None, args.stages is not None]) > 1:
        raise common.CommandError(
            "--stages, --fewest and --stage-ipus each say how many stages: give one", common.USAGE
        )
    if args.output is not None:
        if len(args.profiles) != 1:
            raise common.CommandError("-o takes the placement of one profile", common.USAGE)
        args.profiles = [str(common.find_one(args.profiles[0]))]
    return common.each_profile(args, lambda report: _propose(report, args))


def best(
    costs: Costs,
    stages: int | None = None,
    *,
    choices: Sequence[Choice] = (),
    together: Sequence[Sequence[int]] = (),
) -> Split:
    """The best split into so many stages, or the quickest of all on at most the profiled IPUs."""
    from ipuscope.planner.search.split_search import best_split, quickest

    if stages is not None:
        return best_split(costs, stages, choices=choices, together=together)
    return quickest(costs, choices=choices, together=together)


def _wanted(costs: Costs, args: argparse.Namespace, choices: tuple[Choice, ...]) -> Split:
    from ipuscope.planner.search.split_search import best_split
    from ipuscope.planner.search.what_fits import fewest_ipus

    together = [group for words in args.together for group in _groups(costs, words)]
    if args.fewest:
        return fewest_ipus(costs, choices, together)
    if args.stage_ipus is not None:
        return best_split(costs, ipus=common.stage_ipus(args), together=together, choices=choices)
    return best(costs, args.stages, choices=choices, together=together)


def _wanted_or_nearest(
    report: common.Report, costs: Costs, args: argparse.Namespace, choices: tuple[Choice, ...]
) -> Split:
    """`_wanted`, or one that is too close to call if none is sure to fit.

    If none can fit, the ValueError says what comes nearest and what would help.
    """
    from ipuscope.planner.advice.relief import way_to_fit
    from ipuscope.planner.search.refusal import nearest_in_words
    from ipuscope.planner.search.what_fits import or_close

    try:
        return or_close(costs, lambda on_tiles: _wanted(on_tiles, args, choices))
    except ValueError as error:
        ipus = tuple(common.stage_ipus(args) or range(args.stages or 0) or costs.ipus)
        near = nearest_in_words(costs, ipus)
        way = f". {way_to_fit(report, len(set(ipus)))}" if near else ""
        raise ValueError(f"{error}{near}{way}") from error


def _groups(costs: Costs, words: str) -> list[list[int]]:
    """The Blocks to keep together, as given by the option."""
    if words.strip() == "tied" and "tied" not in costs.names:
        if not costs.cuts.ties:
            raise ValueError(
                "no weight is read by more than one Block: there is nothing to keep together"
            )
        return [list(blocks) for blocks in costs.cuts.ties.blocks]
    return [_blocks(costs, words)]


def _parted(costs: Costs, assignment: Assignment) -> list[str]:
    """Sentences about weights that are read on several IPUs."""
    ties = costs.cuts.ties
    parted = ties.parted([assignment.ipus[k] for k in assignment.stage_of(len(costs))])
    return [
        f"{ties.names[one]} is read by {', '.join(costs.names[k] for k in ties.blocks[one])}, which"
        " would be on different IPUs: it moves between them for every micro-batch (--together tied"
        " keeps them on one)"
        for one in parted
    ]


def _blocks(costs: Costs, words: str) -> list[int]:
    names = [name.strip() for name in words.split(",")]
    unknown = [name for name in names if name not in costs.names]
    if unknown:
        raise ValueError(f"{unknown[0]!r} is not a Block; they are {', '.join(costs.names)}")
    return [costs.names.index(name) for name in names]


def _choices(costs: Costs, args: argparse.Namespace) -> tuple[Choice, ...]:
    """The ways to save memory that the options allow, cheapest first."""
    from ipuscope.planner.search.split_search import ALL_CHOICES

    def allowed(way: str, own: set[bool]) -> set[bool]:
        return {"profiled": own, "choose": {False, True}, "always": {True}, "never": {False}}[way]

    ways = costs.own_choices
    recompute = allowed(args.recompute, {one.recompute for one in ways})
    offload = allowed(args.offload, {one.offload for one in ways})
    return tuple(
        one for one in ALL_CHOICES if one.recompute in recompute and one.offload in offload
    )


def _propose(report: common.Report, args: argparse.Namespace) -> common.Page:
    from ipuscope.planner.levers.compile_again import merged_placement
    from ipuscope.planner.predict.what_if import Assignment, placement_file, what_if
    from ipuscope.planner.search.what_fits import quicker_if_it_fits
    from ipuscope.profiler import confidence, units
    from ipuscope.profiler.provenance import Provenance
    from ipuscope.reports.cli.whatif import costs_of, stage_columns, stage_rows
    from ipuscope.reports.tables import Column, Facts, Table, say, sentence

    costs = costs_of(report)
    choices = _choices(costs, args)
    try:
        split = _wanted_or_nearest(report, costs, args, choices)
        maybe = quicker_if_it_fits(costs, lambda tiles: _wanted(tiles, args, choices), split)
        now = what_if(costs, Assignment.of(costs.stage.tolist(), costs.ipus))
    except ValueError as error:
        raise common.CommandError(f"{report.path}: {error}") from error
    wanted = split.prediction
    lines = [say(_gain(costs, now.total, wanted.total))]
    lines += [say(words) for words in confidence.of_two(report, "splits")]
    proof = Facts(
        "best",
        (
            units.Fact("cycles", wanted.total),
            units.Fact("proven", split.proven),
            units.Fact("gap", split.gap),
            units.Fact("least_cycles", split.least_total),
        ),
    )
    lines += [
        say(units.sentence(words) + ".") for words in (*split.why, *wanted.problems, *wanted.notes)
    ]
    lines += [say(words + ".") for words in _parted(costs, wanted.assignment)]
    lines += [say(words) for words in _may_fit(costs, maybe, wanted.total)]
    if report.imported:
        lines += common.mark(report)
    elif wanted.total > (1 - _LITTLE) * now.total:
        lines.append(say(f"{_OTHER_LEVERS}: ipu-report advise {report.argument}"))
    if args.output is not None:
        placed = merged_placement(
            Provenance.of(report).placement,
            placement_file(costs, wanted.assignment, sets_accumulation=False),
        )
        try:
            args.output.write_text(json.dumps(placed, indent=2) + "\n")
        except OSError as error:
            raise common.CommandError(
                f"{args.output}: cannot be written: {error.strerror}"
            ) from error
        lines.append(say(f"{args.output}: run it with ipu-run --placement {args.output} SCRIPT."))
    frame, columns = stage_rows(costs, wanted).drop(columns="memory"), stage_columns()
    if wanted.assignment.choices:
        *before, last = wanted.assignment.choices
        again = bool(costs.again_at_once(wanted.assignment.starts[-1], len(costs) - 1))
        frame["saves"] = [*map(_saves, before), _saves(replace(last, recompute=again))]
        columns = (*columns, Column("saves", "saves memory by", sentence))
        if args.output is None:
            lines.append(
                say("-o FILE writes the split and how stages save memory, for ipu-run --placement.")
            )
    return common.page(report, Table("rebalance", frame, columns), proof, *lines)


def _may_fit(costs: Costs, maybe: Split | None, total: int) -> list[str]:
    """The gain of a split that may not fit: only a compile can tell."""
    if maybe is None:
        return []
    less, sizes = 1 - maybe.prediction.total / total, maybe.prediction.assignment.sizes(len(costs))
    return [
        f"A split that may not fit would take {less:.1%} less ({sizes}). The viewer's Rebalance"
        " compiles such splits: ipu-report view --script 'FILE ARGS'."
    ]


def _saves(choice: Choice) -> str:
    """How a stage saves memory, in a few words."""
    ways = [("recomputing", choice.recompute), ("state off the chip", choice.offload)]
    return " + ".join(words for words, does in ways if does) or "-"


def _gain(costs: Costs, now: int, wanted: int) -> str:
    """Cycles before and after, with enough digits to show a difference."""
    turn = "weight update" if costs.training else "device iteration"
    if wanted == now:
        return f"Predicted: {wanted:,} cycles a {turn}, as many as now."
    change = wanted / now - 1 if now else 0.0
    share = f"{change:+.1%}" if abs(change) >= 5e-4 else f"{change:+.4%}"
    return f"Predicted: {wanted:,} cycles a {turn} instead of {now:,} ({share})."
