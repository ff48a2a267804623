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
from pathlib import Path
from types import FrameType
from typing import NoReturn, TextIO

from rich.console import Console

from ipu_exec.enums import OutputMode
from ipu_exec.errors import Error
from ipu_exec.option_groups.engine_options import KEEP_VARIABLE
from ipu_exec.options import Options
from ipu_exec.planning.first_call_plan import Asked, plan_call
from ipu_exec.planning.terminal import as_csv, as_json, progress, show, tuned
from ipu_exec.script_levers import asked as asked_levers
from ipu_exec.script_levers import changed_options, parse
from ipu_exec.session.applied_levers import with_levers
from ipu_exec.session.call_plan import FirstCall
from ipu_exec.session.executor import PoplarExecutor
from ipuscope.planner.levers.registry import argument
from ipuscope.planner.levers.settings import Levers
from ipuscope.planner.mappings import Plan, save
from ipuscope.planner.mappings.question import parse_seconds
from ipuscope.planner.mappings.search_state import INTERRUPTED
from ipuscope.run_arguments import CHANGES, changes, numbers

_DECIDED = {  # levers and options that a plan decides, and what fixes them
    "micro_batch": "--micro-batches",
    "micro_batches": "--fix accumulation=N",
    "replicas": "--fix r=N",
    "recompute": "--fix recompute=yes|no",
    "state": "--fix state=on-chip|off-chip",
    "Training.gradientAccumulation": "--fix accumulation=N",
    "deviceIterations": "--fix accumulation=N",
    "replicationFactor": "--fix r=N",
}
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


@dataclass
class Planning:
    """Plans a script's training, or its inference if it has none, instead of compiling it."""

    asked: Asked
    args: argparse.Namespace
    words: tuple[str, ...]
    out: TextIO
    keep: str = ""  # for --num-ipus, which leaves the script what it has
    passed_over: FirstCall | None = None

    def take(self, call: FirstCall) -> NoReturn:
        """Plan it, and end the script: with 1 if nothing fits; 130 after Ctrl-C, 143 SIGTERM."""
        with _ended_by_sigterm_too() as ending:
            try:
                made = [self._plan(call, asked_levers(), "", ending)]
            except Error as error:
                print(f"ipu-run: --plan: {error}", file=sys.stderr)
                raise SystemExit(1) from None
            changed, none = ",".join(CHANGES[name] for name in changes(self.args)), ""
            if changed and made[0].stopped != INTERRUPTED:
                levers = parse(f"{changed},{self.args.levers or ''}")
                try:
                    made.append(self._plan(call, levers, made[0].modules, ending))
                except Error as error:
                    none = f"With {changed.replace(',', ', ')}: {error}"
        if self.args.tune is not None or changed:
            for line in tuned(made, list(map(self._command, made)), none):
                print(line, file=self.out)
        raise SystemExit(ending.status if made[-1].stopped == INTERRUPTED else 0)

    def _plan(
        self, call: FirstCall, levers: Levers, modules: Sequence[str], ending: _Ending
    ) -> Plan:
        """A plan with the levers pulled; ``modules``: begin Blocks since a plan before it."""
        question = replace(self.asked, command=shlex.join(self.words))
        asked = argument(levers)
        if levers.overlap and call.options.execution_strategy.phases:
            raise Error("host I/O beside compute is planned on one stage a replica, not in phases")
        if self.keep:
            question, levers = _kept(question, call, levers, self.keep)
        else:
            _refuse(levers)
        best = _planned(with_levers(call, levers), question, self.args, ending)
        best = replace(best, modules=best.modules or tuple(modules), levers=asked)
        _shown(best, self.args, self.out)
        if self.args.write:
            path = save(best, self._file(best))
            does, file = ("compiles" if best.levers else "runs"), shlex.quote(str(path))
            print(
                f"the plan is {path}: {self._command(best)} {does} the script with it,"
                f" ipu-report view {file} draws it",
                file=sys.stderr,
            )
        return best

    def _file(self, best: Plan) -> str:
        """Where a plan goes: --write, with the names of what --allow changed before its ending."""
        path = Path(self.args.write)
        names = [word for word in best.levers.split(",") if word in CHANGES.values()]
        if not self.args.allow or not names:
            return str(path)
        return str(path.with_stem("-".join([path.stem, *(name.split("=")[0] for name in names)])))

    def _command(self, best: Plan) -> str:
        """What runs the script with a plan; with levers pulled it only compiles."""
        words = ["ipu-run"]
        words += ["--placement", self._file(best)] if self.args.write else []
        words += ["--with", best.levers] if best.levers else []
        return shlex.join([*words, *self.words])


def _refuse(levers: Levers) -> None:
    """Refuse levers that a plan decides itself: an option is never ignored."""
    for name in (*levers.pulled, *dict(levers.options)):
        if name in _DECIDED:
            words, instead = name.replace("_", "-"), _DECIDED[name]
            print(f"ipu-run: --with {words}: a plan decides it; use {instead}", file=sys.stderr)
            raise SystemExit(2)


def _kept(asked: Asked, call: FirstCall, levers: Levers, keep: str) -> tuple[Asked, Levers]:
    """The question with all fixed that the script has or ``--with`` says; levers that are left."""
    before, options = call.options, changed_options(call.options, levers, call.training)
    turns, now = (_turns(one, call.training) for one in (options, before))
    every_n, several = options.output_mode is OutputMode.EveryN, turns != now
    fixed: dict[str, object] = {}
    named = levers.replicas or "replicationFactor" in dict(levers.options)
    if named or options.replication_factor > 1 or keep != "alone" or every_n or several:
        fixed["r"] = options.replication_factor
    if every_n or several:
        fixed["accumulation"] = turns
    if levers.recompute is not None:
        fixed["recompute"] = "yes" if levers.recompute else "no"
    if levers.state == "in-parts":
        fixed["rts"] = "yes"
    elif levers.state:
        fixed["state"] = levers.state
    sizes = (levers.micro_batch,) if levers.micro_batch else asked.micro_batches
    words = tuple(f"{name}={value}" for name, value in fixed.items())
    return (
        replace(asked, fixed=(*asked.fixed, *words), micro_batches=sizes),
        replace(levers, micro_batch=0, micro_batches=0, replicas=0),
    )


def _turns(options: Options, training: bool) -> int:
    """Micro-batches of a weight update (device iteration in inference)."""
    return int(options.Training.gradient_accumulation if training else options.device_iterations)


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
    """SIGTERM ends the search as Ctrl-C does, with what was found: batch systems send it first."""
    # only the main thread may listen to signals
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


def plan_instead(args: argparse.Namespace, words: Sequence[str]) -> Planning:
    """Have the first training that the script calls planned instead of compiled.

    A script that wraps none has its first inference planned.
    """
    # with --json and --csv stdout is the plan's alone; what the script prints goes to stderr
    keep = os.environ.pop(KEEP_VARIABLE, "")
    planning = Planning(asked_by(args), args, tuple(words), sys.stdout, keep)
    PoplarExecutor.first_call_taker = planning
    if args.json or args.csv:
        sys.stdout = sys.stderr
    return planning


def _planned(call: FirstCall, asked: Asked, args: argparse.Namespace, ending: _Ending) -> Plan:
    try:
        with progress() as on_news:
            return plan_call(call, asked, on_news)
    except KeyboardInterrupt:
        print("ipu-run: --plan: interrupted before any mapping was found", file=sys.stderr)
        raise SystemExit(ending.status) from None


def _shown(best: Plan, args: argparse.Namespace, out: TextIO) -> None:
    if args.json:
        print(as_json(best), file=out)
    elif args.csv:
        print(as_csv(best), end="", file=out)
    else:
        fits = out.isatty() or "COLUMNS" in os.environ
        show(best, Console(file=out, width=None if fits else _WIDE))
