"""Further answers of `ipu-report rebalance`: one table or a few sentences per option."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ipuscope.reports.cli import common

if TYPE_CHECKING:
    from ipuscope.planner.costs.memory_choice import Choice
    from ipuscope.planner.costs.profile_costs import Costs
    from ipuscope.planner.search.split_search import Split
    from ipuscope.profiler import Report
    from ipuscope.reports.tables import Facts, Lines, Table

    Part = Table | Facts | Lines
    Answer = Callable[[Report, Costs, Split, Sequence[Choice], argparse.Namespace], list[Part]]


AS_MEASURED = -1.0  # of --robust without a number


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that ask further questions about a split."""
    group = parser.add_argument_group("more answers")
    group.add_argument(
        "--pareto", action="store_true", help="splits that no other beats in both cycles and memory"
    )
    group.add_argument(
        "--inside",
        action="store_true",
        help="where to cut inside the longest Block, and what it gains",
    )
    group.add_argument(
        "--bubble",
        type=_percent,
        metavar="PERCENT",
        help="the accumulation with which ramps take at most this share",
    )
    group.add_argument(
        "--robust",
        type=_percent,
        nargs="?",
        const=AS_MEASURED,
        metavar="PERCENT",
        help="the split with the least regret if costs are off by this much (without a number: by"
        " as much as the profile says that parts of a model likely are)",
    )
    group.add_argument("--prove", action="store_true", help="why no split is quicker")
    group.add_argument(
        "--prices", action="store_true", help="what more memory or one more IPU would be worth"
    )
    group.add_argument(
        "--blame",
        action="store_true",
        help="which stages the others waited for in the profiled run, and why",
    )


def of_one_stage_an_ipu(args: argparse.Namespace) -> bool:
    """Whether an answer is asked for that is of splits with one stage an IPU alone."""
    return bool(args.pareto or args.inside or args.prove or args.prices or args.robust is not None)


def answers(
    report: Report, costs: Costs, split: Split, choices: Sequence[Choice], args: argparse.Namespace
) -> list[Part]:
    """The answers for all options given.

    Raises CommandError if one has no answer; beside a split that may or may not fit, that none is
    sure to is the answer.
    """
    from ipuscope.reports.tables import say

    wanted: list[tuple[str, object, Answer]] = [
        ("--pareto", args.pareto, _pareto),
        ("--inside", args.inside, _inside),
        ("--bubble", args.bubble is not None, _bubble),
        ("--robust", args.robust is not None, _robust),
        ("--prove", args.prove, _prove),
        ("--prices", args.prices, _prices),
        ("--blame", args.blame, _blame),
    ]
    parts: list[Part] = []
    for option, asked, answer in wanted:
        if not asked:
            continue
        try:
            parts += answer(report, costs, split, choices, args)
        except ValueError as error:
            if not split.prediction.notes:
                raise common.CommandError(f"{report.path}: {error}") from error
            parts.append(say(f"{option} has no answer of splits that are sure to fit: {error}."))
    return parts


def _percent(words: str) -> float:
    try:
        share = float(words.removesuffix("%")) / 100
    except ValueError:
        share = -1.0
    if not 0 < share < 1:
        raise argparse.ArgumentTypeError(f"{words!r} is not a percentage between 0 and 100")
    return share


def _stages(split: Split) -> int:
    return len(split.prediction.assignment.starts)


def _one_an_ipu(split: Split) -> None:
    ipus = split.prediction.assignment.ipus
    if len(set(ipus)) < len(ipus):
        raise common.CommandError(
            "this answer is of splits with one stage an IPU: leave --stage-ipus and --fewest out",
            common.USAGE,
        )


def _pareto(
    report: Report, costs: Costs, split: Split, choices: Sequence[Choice], args: argparse.Namespace
) -> list[Part]:
    import pandas as pd

    from ipuscope.planner.search.pareto import pareto
    from ipuscope.reports.tables import Column, Table, kibibytes, sentence, text

    _one_an_ipu(split)
    rows = [
        (
            point.assignment.sizes(len(costs)),
            point.bottleneck,
            point.fullest,
            "yes" if point.fullest <= costs.machine.bytes_per_tile else "no",
            saves(costs, point.assignment.choices),
        )
        for point in pareto(costs, _stages(split), choices)
    ]
    frame = pd.DataFrame(
        rows, columns=pd.Index(["split", "cycles", "fullest_tile", "fits", "saves"])
    )
    columns = [
        Column("split", "Blocks a stage", sentence),
        Column("cycles", "cycles of the\nslowest stage"),
        Column("fullest_tile", "extent\nKiB", kibibytes),
        Column("fits", "fits", text),
    ]
    if any(frame["saves"]):
        columns.append(Column("saves", "saves memory by", sentence))
    return [
        Table(
            "pareto",
            frame,
            tuple(columns),
            "cycles against memory: nothing is both shorter and smaller",
        )
    ]


def saves(costs: Costs, choices: Sequence[Choice]) -> str:
    """How stages save memory, in a few words, with equal stages grouped."""
    words = [
        " + ".join(
            [
                *(["recomputing"] if c.recompute else []),
                *(["state off the chip"] if c.offload else []),
            ]
        )
        or "-"
        for c in choices
    ]
    return (
        "; ".join(f"{k}: {word}" for k, word in enumerate(words))
        if len(set(words)) > 1
        else "".join(words[:1])
    )


def _inside(
    report: Report, costs: Costs, split: Split, choices: Sequence[Choice], args: argparse.Namespace
) -> list[Part]:
    from ipuscope.planner.search.block_splitting import best_block_cut
    from ipuscope.reports.tables import Fact, Facts, say

    _one_an_ipu(split)
    cut = best_block_cut(report, costs, _stages(split))
    block = costs.names[int((costs.cycles.work).argmax())]
    if cut is None:
        words = (
            f"No cut inside Block {block}, the longest, makes it quicker on {_stages(split)} IPUs."
        )
        return [Facts("inside", (Fact("block", block), Fact("after", ""))), say(words)]
    total, now = cut.split.prediction.total, split.prediction.total
    spans = cut.split.prediction.assignment.sizes(len(cut.costs))
    return [
        Facts(
            "inside",
            (
                Fact("block", block),
                Fact("after", cut.name),
                Fact("before", cut.before),
                Fact("bytes_over", cut.bytes_over),
                Fact("cycles", total),
                Fact("split", spans),
            ),
        ),
        say(
            f"Cut inside {block} before {cut.before}: {total:,} cycles instead of {now:,}"
            f" ({total / now - 1:+.1%}), {cut.bytes_over:,} bytes over the cut; then {spans}"
            " Blocks a stage."
        ),
    ]


def _bubble(
    report: Report, costs: Costs, split: Split, choices: Sequence[Choice], args: argparse.Namespace
) -> list[Part]:
    from ipuscope.planner.search.accumulation import least_accumulation
    from ipuscope.reports.tables import Fact, Facts, say

    least = least_accumulation(costs, split.prediction.assignment, args.bubble)
    name = "Gradient accumulation" if costs.training else "Device iterations"
    words = (
        f"{name} of {least.micro_batches} or more keeps ramps and weight update under"
        f" {args.bubble:.1%} of the time (it is {costs.micro_batches}): they take {least.lost:,}"
        f" cycles however many, a pipeline cycle {least.cycle:,}."
    )
    if least.micro_batch:
        words += (
            f" Of a batch of {costs.samples * costs.micro_batches:,} samples, micro-batches of "
            f"{least.micro_batch} over all replicas are {least.of_batch:,}."
        )
    facts = (
        Fact("share", args.bubble),
        Fact("micro_batches", least.micro_batches),
        Fact("lost_cycles", least.lost),
        Fact("pipeline_cycle", least.cycle),
        Fact("micro_batch", least.micro_batch),
    )
    return [Facts("bubble", facts), say(words)]


def _robust(
    report: Report, costs: Costs, split: Split, choices: Sequence[Choice], args: argparse.Namespace
) -> list[Part]:
    from ipuscope.planner.search.robust import least_regret
    from ipuscope.profiler import confidence
    from ipuscope.reports.tables import Fact, Facts, say

    _one_an_ipu(split)
    off = args.robust
    if off == AS_MEASURED:
        known = confidence.confidence(report)
        if known is None:
            raise common.CommandError(
                f"{report.path} does not say how far its cycles likely are off: compile it again,"
                " or say it, as in --robust 10"
            )
        off = known.spread
    robust = least_regret(costs, _stages(split), off)
    sizes = robust.assignment.sizes(len(costs))
    facts = (
        Fact("off", off),
        Fact("split", sizes),
        Fact("regret", robust.regret),
        Fact("regret_of_best", robust.regret_of_best),
        Fact("worst", robust.worst),
        Fact("exact", robust.exact),
    )
    distance = "never more than" if robust.exact else "about"
    at_most = "may be" if robust.exact else "may be about"
    estimate = "" if robust.exact else " An estimate, as stages recompute: more is possible."
    return [
        Facts("robust", facts),
        say(
            f"Where every Block's cycles may be off by {off:.0%}, the slowest stage with"
            f" {sizes} Blocks a stage takes {distance} {robust.regret:,} cycles a micro-batch more"
            " than the least possible; with the split whose slowest stage is shortest for the costs"
            f" as they are it {at_most} {robust.regret_of_best:,}. At worst it takes"
            f" {robust.worst:,}.{estimate}"
        ),
    ]


def _prove(
    report: Report, costs: Costs, split: Split, choices: Sequence[Choice], args: argparse.Namespace
) -> list[Part]:
    from dataclasses import asdict

    from ipuscope.planner.search.proof import prove
    from ipuscope.profiler import units
    from ipuscope.reports.tables import Fact, Facts, say

    _one_an_ipu(split)
    proof = prove(costs, _stages(split), split.least_bottleneck, split.lower_bound, choices)
    said = [say(f"{units.sentence(words)}.") for words in proof.sentences(costs.names)]
    return [Facts("proof", tuple(Fact(key, value) for key, value in asdict(proof).items())), *said]


def _prices(
    report: Report, costs: Costs, split: Split, choices: Sequence[Choice], args: argparse.Namespace
) -> list[Part]:
    import pandas as pd

    from ipuscope.planner.search.prices import prices
    from ipuscope.reports.tables import Column, Table, sentence

    _one_an_ipu(split)
    rows = [
        (price.what, price.now, price.then, price.worth)
        for price in prices(costs, _stages(split), choices)
    ]
    frame = pd.DataFrame(rows, columns=pd.Index(["what", "now", "then", "worth"]))
    columns = (
        Column("what", "what", sentence),
        Column("then", "slowest\nstage then"),
        Column("worth", "cycles a\nmicro-batch less"),
    )
    return [Table("prices", frame, columns, "what more of something would be worth")]


def _blame(
    report: Report, costs: Costs, split: Split, choices: Sequence[Choice], args: argparse.Namespace
) -> list[Part]:
    from ipuscope.planner.search.waiting_causes import CAUSES, waiting_causes
    from ipuscope.profiler.units import percent
    from ipuscope.reports.tables import Column, Table, identity

    common.check_run(report, 0)
    frame = waiting_causes(report)
    titles = {
        "tile imbalance": "uneven\ntiles",
        "exchange": "ex-\nchange",
        "recompute": "recom-\npute",
    }
    everything = max(1, int(frame["total"].sum()))
    columns = (
        Column("stage", "stage", identity),
        *(
            Column(cause, titles.get(cause, cause), lambda cycles: percent(cycles / everything))
            for cause in CAUSES
            if frame[cause].any()
        ),
        Column("total", "cycles"),
    )
    title = "cycles that all IPUs together waited, by the stage and the cause"
    return [Table("blame", frame, columns, title)]
