"""`ipu-run`: run an unmodified PopTorch script on modelled IPUs.

In the process ``poptorch`` is `ipu_exec`, ``popart`` is `ipu_exec.popart`, ``pva`` is
`ipuscope.profiler.pva`. All else is as with ``python script.py``: ``__main__``, ``sys.argv``,
``sys.path``, exit codes, and tracebacks that begin in the script.
"""

from __future__ import annotations

import argparse
import atexit
import json
import os
import re
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn

from ipu_exec import machine
from ipu_exec.base.stand_in import stand_in
from ipu_exec.base.user_tracebacks import hide
from ipu_exec.commands import launch as launching
from ipu_exec.commands.num_ipus import placement_for
from ipu_exec.commands.program import (
    NOTHING_WRAPPED,
    Program,
    anything_wrapped,
    at_the_first_step_of_training,
    read,
)
from ipu_exec.errors import Error
from ipu_exec.instances import silence_unless_asked, tell_as_open_mpi
from ipu_exec.numerics.collectives import InstanceLost
from ipu_exec.option_groups.engine_options import (
    COMMAND_VARIABLE,
    COMPILE_ONLY_VARIABLE,
    ENGINE_OPTIONS_VARIABLE,
    LENIENT_VARIABLE,
    LEVERS_VARIABLE,
    NO_SOURCE_VARIABLE,
    PLACEMENT_VARIABLE,
    TARGET_VARIABLE,
)
from ipu_exec.placement_file import load_stages
from ipu_exec.planning import sweep as sweeps
from ipu_exec.script_levers import parse as parse_levers
from ipu_exec.session.arguments import NO_GPU
from ipuscope.commands import INTERRUPTED, interrupted
from ipuscope.run_arguments import parse
from ipuscope.waiting import waiting_for_output

if TYPE_CHECKING:
    from ipu_exec.planning.commands import Planning

_NO_GPU = re.compile("not compiled with CUDA|NVIDIA driver|CUDA GPUs|CUDA error")
# What torchrun takes until it has noticed a dead instance and ends the others, and some more.
SECONDS_TO_BE_ENDED = 5


def main(argv: Sequence[str] | None = None, prog: str = "ipu-run") -> int:
    """Read the command line and `run` it; ``prog`` is the command's name in error messages."""
    return run(parse(argv, prog), prog)


def run(args: argparse.Namespace, prog: str) -> int:
    """Run a script; 1 if it raised, or an option needs a wrapped model and it wrapped none.

    The script's ``SystemExit`` passes through, unless it says that all is well and it is not.
    """
    if args.module is not None:
        stand_in()  # finding a module imports the packages that it lies in
    try:
        program = read(_named(args))
        wanted = launching.wanted(args) if args.instances is not None else None
        if args.sweep:
            return sweeps.sweep(args, [*program.words, *args.args])
        _set_environment(args, program)
    except OSError as error:
        return _refused(prog, f"{args.script} cannot be read: {error.strerror}")
    except (ValueError, Error) as error:
        return _refused(prog, str(error))
    planning = None
    if args.plan is not None:
        from ipu_exec.planning.commands import plan_instead

        planning = plan_instead(args, [*program.words, *args.args])
    if wanted is None:
        stand_in()
        asked = (args.profile_dir, args.placement, args.num_ipus, args.levers)
        of_a_model = args.compile_only or any(one is not None for one in asked)
        status = run_program(program, args.args, asked=of_a_model)
        return status if planning is None or status else _not_planned(program, planning)
    try:
        return launching.launch(wanted, program.words, args.args)
    except Error as error:
        return _refused(prog, str(error))


def _refused(prog: str, why: str) -> int:
    print(f"{prog}: error: {why}", file=sys.stderr)
    return 2


def _not_planned(program: Program, planning: Planning) -> int:
    """The script ended, which `--plan` would have: no training came; plan its inference, if any."""
    if planning.passed_over is not None:
        planning.take(planning.passed_over)
    print(f"ipu-run: --plan: {program} called no wrapped model to plan", file=sys.stderr)
    return 1


def run_instance(argv: Sequence[str]) -> int:
    """Run a program as one instance that torchrun started: its words, and its arguments.

    If another instance failed, it waits to be ended, so that only that one's traceback shows.
    """
    tell_as_open_mpi()
    silence_unless_asked()
    stand_in()
    named = 2 if argv[0] == "-m" else 1
    program = read(list(argv[:named]))
    status = run_program(program, argv[named:], _wait_for_the_end)
    return status if status == INTERRUPTED else _leave(status)


def _leave(status: int) -> NoReturn:
    """End with this status, even if gloo's threads fail because another instance is gone.

    Python's threads and exit handlers run; C++'s are skipped, as they may abort the process.
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


def _named(args: argparse.Namespace) -> list[str]:
    """The words that name the program; its own arguments follow them."""
    if args.module is None:
        return [args.script]
    args.args = args.module[1:]
    return ["-m", args.module[0]]


def _set_environment(args: argparse.Namespace, program: Program) -> None:
    """What the script's options read. Error, ValueError or OSError where it cannot be."""
    made = {"command": args.command, "num_ipus": args.num_ipus or 0}
    os.environ[COMMAND_VARIABLE] = json.dumps(made)
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
    if args.no_source:
        os.environ[NO_SOURCE_VARIABLE] = "1"
    if args.lenient:
        os.environ[LENIENT_VARIABLE] = "1"
    if args.num_ipus is not None:  # its compile has the levers and the leniency from above
        os.environ[PLACEMENT_VARIABLE] = placement_for(
            args.num_ipus, program, args.args, args.instances is None
        )
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

    Returns 1 if it raised, after ``before_traceback`` and the traceback. If it wrapped no model
    it says so, and returns 1 if one was ``asked`` for.
    """
    main = program.enter(list(arguments))
    at_the_first_step_of_training(str(program))
    try:
        with waiting_for_output(
            f"ipu-run: {program} runs and has wrapped no model yet", anything_wrapped
        ):
            exec(compile(program.source, program.file, "exec"), main.__dict__)
    except SystemExit as end:
        if end.code or not _wrapped_nothing(asked):
            raise
    except KeyboardInterrupt as error:
        return interrupted("ipu-run", _where(error, program.file))
    except Exception as error:
        if before_traceback is not None:
            before_traceback(error)
        error.__traceback__ = _within(error.__traceback__, program.file)
        if _NO_GPU.search(str(error)):
            error.add_note(NO_GPU)
        hide(error)
        sys.excepthook(type(error), error, error.__traceback__)  # names what was probably meant
        return 1
    if not _wrapped_nothing(asked):
        return 0
    print(f"ipu-run: {program} {NOTHING_WRAPPED}", file=sys.stderr)
    return int(asked)


def _wrapped_nothing(asked: bool) -> bool:
    """Whether the script imported torch, or should have, but none of its models ran on IPUs."""
    return (asked or "torch" in sys.modules) and not anything_wrapped()


def _where(error: BaseException, script: str) -> str:
    """`` at FILE:LINE``, the line of the script that was running."""
    trace = _within(error.__traceback__, script)
    return f" at {script}:{trace.tb_lineno}" if trace is not None else ""


def _within(trace: TracebackType | None, script: str) -> TracebackType | None:
    """The traceback from the script on, without the frames that started it."""
    while trace is not None and trace.tb_frame.f_code.co_filename != script:
        trace = trace.tb_next
    return trace


if __name__ == "__main__":
    sys.exit(main())
