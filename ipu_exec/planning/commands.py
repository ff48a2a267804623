"""`ipu-run --plan`: planning at the first call of a script."""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import FrameType
from typing import NoReturn, TextIO

from rich.console import Console

from ipu_exec.errors import Error
from ipu_exec.planning.first_call_plan import Asked, plan_call
from ipu_exec.planning.terminal import as_csv, as_json, progress, show
from ipu_exec.session.executor import PoplarExecutor
from ipu_exec.session.first_call import FirstCall
from ipuscope.planner.mappings import Plan, save
from ipuscope.planner.mappings.compile_search import INTERRUPTED
from ipuscope.planner.mappings.question import parse_seconds
from ipuscope.run_arguments import numbers

_WIDE = 160  # columns of a table that goes to no terminal


def asked_by(args: argparse.Namespace) -> Asked:
    """The question that the arguments ask."""
    return Asked(
        args.plan,
        args.global_batch or 0,
        numbers("--micro-batches", args.micro_batches, int),
        numbers("--proportions", args.proportions, float),
        tuple(args.fix),
        args.objective,
        parse_seconds(args.budget) if args.budget else 0.0,
        args.verify or 0,
        args.workers,
        args.ray,
    )


@dataclass(frozen=True)
class Planning:
    """Plans the first model that a script calls, instead of compiling it."""

    asked: Asked
    args: argparse.Namespace
    words: tuple[str, ...]
    out: TextIO

    def take(self, call: FirstCall) -> NoReturn:
        """Plan it, and end the script; 130 if Ctrl-C ended the search, 143 if SIGTERM did."""
        command = shlex.join(self.words)
        asked = replace(self.asked, command=command)
        with _ended_by_sigterm_too() as ending:
            best = _planned(call, asked, self.args, command, self.out, ending)
        raise SystemExit(ending.status if best.stopped == INTERRUPTED else 0)


@dataclass
class _Ending:
    """The signal that ends a search."""

    by: int = signal.SIGINT

    @property
    def status(self) -> int:
        """The exit status."""
        return 128 + self.by


@contextmanager
def _ended_by_sigterm_too() -> Iterator[_Ending]:
    """SIGTERM ends the search as Ctrl-C does, with what was found: batch systems send it first.

    Only the main thread may listen to signals.
    """
    ending = _Ending()

    def end(number: int, frame: FrameType | None) -> NoReturn:
        ending.by = number
        raise KeyboardInterrupt

    listens = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, end) if listens else None
    try:
        yield ending
    finally:
        if listens:
            signal.signal(signal.SIGTERM, before)


def plan_instead(args: argparse.Namespace, words: Sequence[str]) -> None:
    """Have the first model that the script calls planned instead of compiled.

    With ``--json`` and ``--csv`` standard output is the plan's alone; what the script prints goes
    to standard error.
    """
    planning = Planning(asked_by(args), args, tuple(words), sys.stdout)
    PoplarExecutor.first_call_taker = planning
    if args.json or args.csv:
        sys.stdout = sys.stderr


def _planned(
    call: FirstCall,
    asked: Asked,
    args: argparse.Namespace,
    command: str,
    out: TextIO,
    ending: _Ending,
) -> Plan:
    try:
        with progress() as told:
            best_plan = plan_call(call, asked, told)
    except Error as error:
        print(f"ipu-run: --plan: {error}", file=sys.stderr)
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        print("ipu-run: --plan: interrupted before any mapping was found", file=sys.stderr)
        raise SystemExit(ending.status) from None
    if args.json:
        print(as_json(best_plan), file=out)
    elif args.csv:
        print(as_csv(best_plan), end="", file=out)
    else:
        fits = out.isatty() or "COLUMNS" in os.environ
        show(best_plan, Console(file=out, width=None if fits else _WIDE))
    if args.write:
        path = save(best_plan, args.write)
        print(
            f"the plan is {path}: ipu-run --placement {shlex.quote(str(path))} {command} runs the"
            f" script with it, ipu-report view {shlex.quote(str(path))} draws it",
            file=sys.stderr,
        )
    return best_plan
