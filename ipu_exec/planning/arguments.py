"""The options of `ipu-run --plan`, light to import."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from ipu_exec.base.checks import count
from ipuscope.planner.mappings.question import (
    FIXED,
    OBJECTIVES,
    QuestionError,
    parse_fixed,
    parse_seconds,
)

# options that mean nothing without --plan
OF_A_PLAN = ("global_batch", "micro_batches", "proportions", "fix", "budget", "verify", "write")


_ABOUT = """the best mapping of the script's first model onto a pod (docs/plan.md): how many IPUs
share a stage's tensors (t), are a pipeline (p) and are replicas (r), which Blocks
are a stage, micro-batch, accumulation, recomputation, and where state lies
  ipu-run --plan 16 train.py                              a table, and why the first is best
  ipu-run --plan 16 --fix p=4 --micro-batches 1,2 train.py    only pipelines of 4, and these
  ipu-run --plan 16 --verify 3 --write plan.json train.py     compile the best three; keep it
  ipu-run --placement plan.json train.py                      and run the script with it
Ctrl-C ends the search and prints what was found (exit status 130; SIGTERM: 143)"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of a plan."""
    group = parser.add_argument_group("plan", _ABOUT)
    group.add_argument("--plan", type=count, metavar="N", help="find the best mapping onto N IPUs")
    group.add_argument(
        "--global-batch",
        type=count,
        metavar="N",
        help="samples of a weight update, over all replicas (default: the script's)",
    )
    group.add_argument(
        "--micro-batches", metavar="N,N", help="micro-batches to try, in samples of one replica"
    )
    group.add_argument(
        "--proportions",
        metavar="X,X",
        help="proportions to try (default: its own, 0.2, 0.6)",
    )
    group.add_argument(
        "--fix",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help=f"what must be so: {', '.join(FIXED)} (may be repeated)",
    )
    group.add_argument(
        "--objective", choices=OBJECTIVES, default=OBJECTIVES[0], help="what counts as best"
    )
    group.add_argument("--budget", metavar="TIME", help="begin no compile after 90s, 5m or 1h")
    group.add_argument("--verify", type=count, metavar="N", help="compile the best N in full")
    group.add_argument(
        "--write", metavar="FILE", help="keep the plan: --placement FILE runs the script with it"
    )
    group.add_argument("--json", action="store_true", help="print it as JSON")
    group.add_argument("--csv", action="store_true", help="print a row a mapping as CSV")
    group.add_argument(
        "--workers", type=count, metavar="N", help="processes that compile (default: 1)"
    )
    group.add_argument(
        "--ray", metavar="ADDRESS", help="compile on a Ray cluster, or 'local': on this machine"
    )


def numbers(name: str, said: str | None, kind: Callable[[str], float]) -> tuple[int, ...]:
    """Numbers separated by commas. QuestionError for anything but numbers above 0."""
    try:
        values = tuple(kind(word) for word in said.split(",")) if said else ()
    except ValueError:
        raise QuestionError(f"{name} takes numbers with commas between, not {said!r}") from None
    if any(number <= 0 for number in values):
        raise QuestionError(f"{name} takes numbers above 0, not {said!r}")
    return values  # type: ignore[return-value]


def check(args: argparse.Namespace) -> None:
    """QuestionError where an option's value makes no sense."""
    parse_fixed(args.fix)
    numbers("--micro-batches", args.micro_batches, int)
    numbers("--proportions", args.proportions, float)
    if args.budget:
        parse_seconds(args.budget)
