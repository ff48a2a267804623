"""`ipu-run`: run an unmodified PopTorch script on modelled IPUs.

Inside the process ``poptorch`` is `ipu_exec`, ``popart`` the values of its options
(`ipu_exec.popart`), and ``pva`` is `ipuscope.profiler.pva`; nothing else differs from ``python
script.py``: ``__main__``, ``sys.argv``, ``sys.path``, exit codes, and tracebacks that begin in the
script.
"""

from __future__ import annotations

import argparse
import atexit
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import NoReturn

from ipu_exec import machine
from ipu_exec.base.checks import count
from ipu_exec.base.stand_in import stand_in
from ipu_exec.base.user_tracebacks import hide
from ipu_exec.commands import launch as launching
from ipu_exec.commands.num_ipus import NOTHING_WRAPPED, placement_for
from ipu_exec.commands.program import Program, read
from ipu_exec.errors import Error
from ipu_exec.instances import tell_as_open_mpi
from ipu_exec.numerics.collectives import InstanceLost
from ipu_exec.options import (
    COMPILE_ONLY_VARIABLE,
    ENGINE_OPTIONS_VARIABLE,
    LENIENT_VARIABLE,
    LEVERS_VARIABLE,
    PLACEMENT_VARIABLE,
    TARGET_VARIABLE,
)
from ipu_exec.placement_file import load_stages
from ipu_exec.planning import arguments as plans
from ipu_exec.planning import sweep as sweeps
from ipu_exec.script_levers import parse as parse_levers
from ipuscope import __version__
from ipuscope.help_text import HelpText
from ipuscope.words import Parser

# What torchrun takes until it has noticed a dead instance and ends the others, and some more.
SECONDS_TO_BE_ENDED = 5

_EXAMPLES = """examples:
  ipu-run train.py --epochs 3
  ipu-run --profile-dir out train.py --epochs 3  and write out/training/profile.pop
  ipu-run --target bow train.py                  on Bow IPUs rather than mk2
  ipu-run --compile-only --profile-dir out train.py     only what it would cost: no training
  ipu-run --with half,micro-batch=8 --profile-dir out train.py     the same with levers pulled
  ipu-run --placement placement.json train.py           with the stages that rebalance proposed
  ipu-run --num-ipus 4 train.py                         with the quickest split of its Blocks
                                                        (of its layers, where it names none)
  ipu-run --plan 16 --write plan.json train.py          the best mapping onto 16 IPUs
  ipu-run -m pytest tests                               a module, as python -m runs it
  ipu-run --instances 4 --replicas 8 train.py           as 4 processes that share 8 replicas
then: ipu-report summary out/training"""


def main(argv: Sequence[str] | None = None, prog: str = "ipu-run") -> int:
    """Run a script; 1 where it raised, or wrapped no model though something of one was asked for.

    A ``SystemExit`` of the script goes through, but for one that says all is well where it is not.

    ``prog`` is the command's name in error messages.
    """
    parser = _parser(prog)
    args = parser.parse_args(argv)
    _check(parser, args)
    if args.module is not None:
        stand_in()  # finding a module imports the packages that it lies in
    try:
        program = read(_named(args))
        wanted = launching.wanted(args) if args.instances is not None else None
        plans.check(args)
        if args.sweep:
            return sweeps.sweep(args, [*program.words, *args.args])
        _set_environment(args, program)
    except OSError as error:
        parser.exit(2, f"{prog}: error: {args.script} cannot be read: {error.strerror}\n")
    except (ValueError, Error) as error:
        parser.exit(2, f"{prog}: error: {error}\n")
    if args.plan is not None:
        from ipu_exec.planning.commands import plan_instead

        plan_instead(args, [*program.words, *args.args])
    if wanted is None:
        stand_in()
        status = run_program(program, args.args, asked=_of_a_model(args))
        return _not_planned(program) if args.plan is not None and not status else status
    try:
        return launching.launch(wanted, program.words, args.args)
    except Error as error:
        parser.exit(2, f"{prog}: error: {error}\n")


def _of_a_model(args: argparse.Namespace) -> bool:
    """Whether an option asks for what only a wrapped model has, such as a profile."""
    asked = (args.profile_dir, args.placement, args.num_ipus, args.levers)
    return args.compile_only or any(one is not None for one in asked)


def _not_planned(program: Program) -> int:
    """Say that a script ended before `--plan` had a model; it would have ended the script."""
    print(f"ipu-run: --plan: {program} called no wrapped model to plan", file=sys.stderr)
    return 1


def run_instance(argv: Sequence[str]) -> int:
    """Run a program as one instance that torchrun started: its words, and its arguments.

    Where it stopped because another instance did, it waits to be ended, so that the traceback of
    the one that failed stands alone.
    """
    tell_as_open_mpi()
    stand_in()
    named = 2 if argv[0] == "-m" else 1
    program = read(list(argv[:named]))
    try:
        status = run_program(program, argv[named:], _wait_for_the_end)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return _leave(status)


def _leave(status: int) -> NoReturn:
    """End with this status, even if gloo's threads fail when another instance is gone already.

    Python's threads end and its exit handlers run; C++'s are skipped, because they may abort the
    process ("terminate called without an active exception").
    """
    if not status:
        threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _wait_for_the_end(error: BaseException) -> None:
    while error is not None:
        if isinstance(error, InstanceLost):
            time.sleep(SECONDS_TO_BE_ENDED)
            return
        error = error.__cause__ or error.__context__  # type: ignore[assignment]


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = Parser(
        prog=prog,
        description="Run a PopTorch script on modelled IPUs: its poptorch is ipu_exec.",
        epilog=_EXAMPLES,
        formatter_class=HelpText,
    )
    parser.add_argument(
        "--version",
        action="version",
        version=f"%(prog)s {__version__}",
        help="print the version and end",
    )
    parser.add_argument(
        "--profile-dir", metavar="DIR", help="write DIR/training/profile.pop and DIR/inference/..."
    )
    # its name of before, after the vendor's engine option
    parser.add_argument("--autoreport", dest="profile_dir", help=argparse.SUPPRESS)
    parser.add_argument(
        "--target", metavar="NAME", help="machine to model: mk1, mk2 (default), c600, bow"
    )
    parser.add_argument(
        "--placement",
        metavar="FILE",
        help="take the stages from this file (ipu-report rebalance -o), not from the script",
    )
    parser.add_argument(
        "--num-ipus",
        type=count,
        metavar="N",
        help=(
            "put the script's Blocks on N IPUs, split as is quickest, or its model's layers where"
            " it names none: the script is compiled once for their costs (it runs up to its first"
            " model twice)"
        ),
    )
    parser.add_argument("--ipus", help=argparse.SUPPRESS)  # of before
    parser.add_argument(
        "--compile-only",
        action="store_true",
        help=(
            "end when the first model is compiled and its profile written: no numbers are computed"
        ),
    )
    parser.add_argument(
        "--with",
        dest="levers",
        metavar="LEVERS",
        help=(
            "compile only, as if the script said so: half, float, micro-batch=N, micro-batches=N (a"
            " weight update), recompute=yes|no, outputs=all|final|loss,"
            " state=on-chip|off-chip|in-parts, with commas between"
        ),
    )
    parser.add_argument(
        "--lenient",
        action="store_true",
        help="let pass, with a warning, what PopTorch refuses and runs here all the same",
    )
    sweeps.add_arguments(parser)
    plans.add_arguments(parser)
    launching.add_arguments(parser)
    parser.add_argument(
        "-m",
        dest="module",
        nargs=argparse.REMAINDER,
        metavar="MODULE",
        help="run a module, as python -m does; the words behind it are its own",
    )
    parser.add_argument("script", nargs="?", help="the Python file")
    parser.add_argument("args", nargs=argparse.REMAINDER, help="the script's own arguments")
    return parser


def _check(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Exit with 2 if options cannot be combined."""
    if args.script is None and not args.module:
        parser.error("say what to run: a script, or -m and a module")
    if args.ipus is not None:
        parser.error(
            "--ipus meant a count here and a list in ipu-report rebalance: say --num-ipus"
            f" {args.ipus} for a count (and ipu-report rebalance --stage-ipus 0,1,2,0)"
        )
    if args.num_ipus is not None and args.placement is not None:
        parser.error(
            "--num-ipus chooses a placement, and --placement gives one: leave one of them out"
        )
    if args.plan is not None and (args.instances, args.placement, args.num_ipus) != (None,) * 3:
        parser.error("--plan goes without --instances, --placement and --num-ipus")
    alone = [name for name in plans.OF_A_PLAN if getattr(args, name)]
    if args.plan is None and alone:
        parser.error(f"--{alone[0].replace('_', '-')} goes with --plan N")
    if args.replicas is not None and args.instances is None:
        parser.error(
            "--replicas counts those of all instances: say --instances too, or set"
            " Options.replicationFactor in the script"
        )


def _named(args: argparse.Namespace) -> list[str]:
    """The words that name the program; its own arguments follow them."""
    if args.module is None:
        return [args.script]
    args.args = args.module[1:]
    return ["-m", args.module[0]]


def _set_environment(args: argparse.Namespace, program: Program) -> None:
    """What the script's options read. Error, ValueError or OSError where it cannot be."""
    if args.profile_dir is not None:
        _writable(args.profile_dir)
    if args.target is not None:
        os.environ[TARGET_VARIABLE] = machine.target(args.target).name
    if args.placement is not None:
        load_stages(args.placement)
        os.environ[PLACEMENT_VARIABLE] = os.path.abspath(args.placement)
    if args.levers is not None:
        parse_levers(args.levers)
        os.environ[LEVERS_VARIABLE] = args.levers
    if args.compile_only or args.levers is not None:
        os.environ[COMPILE_ONLY_VARIABLE] = "1"
    if args.lenient:
        os.environ[LENIENT_VARIABLE] = "1"
    if args.num_ipus is not None:  # its compile has the levers and the leniency from above
        os.environ[PLACEMENT_VARIABLE] = placement_for(args.num_ipus, program, args.args)
    if args.profile_dir is not None:
        os.environ[ENGINE_OPTIONS_VARIABLE] = _with_autoreport(args.profile_dir)


def _writable(directory: str) -> None:
    """Make the directory. Error where nothing can be written there: said before the training."""
    try:
        os.makedirs(directory, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        words = f"no profile can be written there ({error.strerror}); choose another --profile-dir"
        raise Error(f"{directory}: {words}") from error


def _with_autoreport(directory: str) -> str:
    """``POPLAR_ENGINE_OPTIONS`` of the environment, with autoReport to the directory added."""
    options = json.loads(os.environ.get(ENGINE_OPTIONS_VARIABLE, "").strip() or "{}")
    if not isinstance(options, dict):
        raise ValueError(f"{ENGINE_OPTIONS_VARIABLE} is no JSON object; unset it or make it one")
    return json.dumps({**options, "autoReport.all": "true", "autoReport.directory": directory})


def run_program(
    program: Program,
    arguments: Sequence[str],
    before_traceback: Callable[[BaseException], None] | None = None,
    asked: bool = False,
) -> int:
    """Run it as ``python script arguments``, or ``python -m module arguments``, would.

    Gives 1 where it raised, and prints the traceback, after ``before_traceback`` has seen the
    error. Where it wrapped no model it says so, and gives 1 if one was ``asked`` for.
    """
    main = program.enter(list(arguments))
    try:
        exec(compile(program.source, program.file, "exec"), main.__dict__)
    except SystemExit as end:
        if end.code or not _wrapped_nothing(asked):
            raise
    except Exception as error:
        if before_traceback is not None:
            before_traceback(error)
        error.__traceback__ = _within(error.__traceback__, program.file)
        hide(error)
        sys.excepthook(type(error), error, error.__traceback__)  # names what was probably meant
        return 1
    if not _wrapped_nothing(asked):
        return 0
    print(f"ipu-run: {program} {NOTHING_WRAPPED}", file=sys.stderr)
    return int(asked)


def _wrapped_nothing(asked: bool) -> bool:
    """Whether the script imported torch, or was to, but none of its models ran as on IPUs."""
    executor = sys.modules.get("ipu_exec.session.executor")
    wrapped = executor is not None and executor.PoplarExecutor.any_wrapped
    return (asked or "torch" in sys.modules) and not wrapped


def _within(trace: TracebackType | None, script: str) -> TracebackType | None:
    """The traceback from the script on, without the frames that started it."""
    while trace is not None and trace.tb_frame.f_code.co_filename != script:
        trace = trace.tb_next
    return trace


if __name__ == "__main__":
    sys.exit(main())
