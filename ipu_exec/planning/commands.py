"""`ipu-run --plan`: its options, and what it does with the first call of a script."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn

from rich.console import Console

from ipu_exec import launch as launching
from ipu_exec.errors import Error
from ipu_exec.planning.asking import Asked, plan_call
from ipu_exec.planning.showing import as_csv, as_json, progress, show
from ipu_exec.session.executor import PoplarExecutor
from ipu_exec.session.first_call import FirstCall
from planner import save
from planner.question import FIXED, OBJECTIVES, QuestionError, parse_fixed, parse_seconds


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of a plan."""
    group = parser.add_argument_group(
        "plan", "the best mapping of the script's first model onto a pod (docs/plan.md)"
    )
    group.add_argument(
        "--plan", type=launching.count, metavar="N", help="find the best mapping onto N IPUs"
    )
    group.add_argument(
        "--global-batch",
        type=launching.count,
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
    group.add_argument(
        "--verify", type=launching.count, metavar="N", help="compile the best N in full"
    )
    group.add_argument(
        "--write", metavar="FILE", help="keep the plan: --placement FILE runs the script with it"
    )
    group.add_argument("--json", action="store_true", help="print it as JSON")
    group.add_argument("--csv", action="store_true", help="print a row a mapping as CSV")
    group.add_argument(
        "--workers", type=launching.count, metavar="N", help="processes that compile (default: 1)"
    )
    group.add_argument(
        "--ray", metavar="ADDRESS", help="compile on a Ray cluster, or 'local': on this machine"
    )


def check(args: argparse.Namespace) -> Asked:
    """What is asked. ValueError where that makes no sense."""
    parse_fixed(args.fix)
    return Asked(
        args.plan,
        args.global_batch or 0,
        _numbers("--micro-batches", args.micro_batches, int),
        _numbers("--proportions", args.proportions, float),
        tuple(args.fix),
        args.objective,
        parse_seconds(args.budget) if args.budget else 0.0,
        args.verify or 0,
        args.workers,
        args.ray,
    )


def _numbers(name: str, said: str | None, kind: Callable[[str], float]) -> tuple[int, ...]:
    try:
        numbers = tuple(kind(word) for word in said.split(",")) if said else ()
    except ValueError:
        raise QuestionError(f"{name} takes numbers with commas between, not {said!r}") from None
    if any(number <= 0 for number in numbers):
        raise QuestionError(f"{name} takes numbers above 0, not {said!r}")
    return numbers  # type: ignore[return-value]


@dataclass(frozen=True)
class Planning:
    """Plans the first model that a script calls, instead of compiling it."""

    asked: Asked
    args: argparse.Namespace
    words: tuple[str, ...]

    def take(self, call: FirstCall) -> NoReturn:
        """Plan it, and end there."""
        _planned(call, self.asked, self.args, shlex.join(self.words))
        raise SystemExit(0)


def plan_instead(asked: Asked, args: argparse.Namespace, words: Sequence[str]) -> None:
    """Have the first model that the script calls planned instead of compiled."""
    PoplarExecutor.first_call_taker = Planning(asked, args, tuple(words))


def _planned(call: FirstCall, asked: Asked, args: argparse.Namespace, command: str) -> None:
    console = Console(stderr=True)
    try:
        with progress(console) as told:
            made = plan_call(call, asked, told)
    except Error as error:
        print(f"ipu-run: --plan: {error}", file=sys.stderr)
        raise SystemExit(1) from None
    if args.json:
        print(as_json(made))
    elif args.csv:
        print(as_csv(made), end="")
    else:
        show(made, Console(width=None if sys.stdout.isatty() else 160))
    if args.write:
        path = save(made, args.write)
        print(
            f"the plan is {path}: ipu-run --placement {shlex.quote(str(path))} {command} runs the"
            f" script with it, ipu-report view {shlex.quote(str(path))} draws it",
            file=sys.stderr,
        )
