"""`ipu-run`: run an unmodified PopTorch script on modelled IPUs.

Inside the process ``poptorch`` is `ipu_exec`, and ``pva`` is `profiler.pva`; nothing else differs from
``python script.py``: ``__main__``, ``sys.argv``, ``sys.path``, exit codes, and tracebacks that begin in the script.
"""

from __future__ import annotations

import argparse
import builtins
import importlib
import importlib.util
import io
import json
import os
import sys
import traceback
from collections.abc import Sequence
from types import ModuleType, TracebackType

from ipu_exec import machine
from ipu_exec.accessor import STAND_IN_VARIABLE
from ipu_exec.errors import Error
from ipu_exec.options import COMPILE_ONLY_VARIABLE, ENGINE_OPTIONS_VARIABLE, PLACEMENT_VARIABLE, TARGET_VARIABLE
from ipu_exec.placements import load_stages

_STANDS_FOR = {"poptorch": "ipu_exec", "pva": "profiler.pva"}

_EXAMPLES = """examples:
  ipu-run train.py --epochs 3
  ipu-run --autoreport out train.py --epochs 3   and write out/training/profile.pop
  ipu-run --target bow train.py                  on Bow IPUs rather than mk2
  ipu-run --compile-only --autoreport out train.py      only what it would cost: no training
  ipu-run --placement placement.json train.py           with the stages that ipu-report rebalance proposed
then: ipu-report summary out/training"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a script; 1 where it raised. A ``SystemExit`` of the script goes through."""
    parser = argparse.ArgumentParser(
        prog="ipu-run",
        description="Run a PopTorch script on modelled IPUs: in it, poptorch is ipu_exec.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--autoreport", metavar="DIR", help="write DIR/training/profile.pop and DIR/inference/...")
    parser.add_argument("--target", metavar="NAME", help="machine to model: mk1, mk2 (default), c600, bow")
    parser.add_argument(
        "--placement", metavar="FILE", help="stages from this file (ipu-report rebalance -o) instead of the script's"
    )
    parser.add_argument(
        "--compile-only",
        action="store_true",
        help="end when the first model is compiled and its profile written: no numbers are computed",
    )
    parser.add_argument("script", help="the Python file")
    parser.add_argument("args", nargs=argparse.REMAINDER, help="the script's own arguments")
    args = parser.parse_args(argv)
    try:
        with io.open_code(os.path.abspath(args.script)) as file:
            source = file.read()
        if args.target is not None:
            os.environ[TARGET_VARIABLE] = machine.target(args.target).name
        if args.placement is not None:
            load_stages(args.placement)
            os.environ[PLACEMENT_VARIABLE] = os.path.abspath(args.placement)
        if args.compile_only:
            os.environ[COMPILE_ONLY_VARIABLE] = "1"
        if args.autoreport is not None:
            os.environ[ENGINE_OPTIONS_VARIABLE] = _with_autoreport(args.autoreport)
    except OSError as error:
        parser.exit(2, f"ipu-run: error: {args.script} cannot be read: {error.strerror}\n")
    except (ValueError, Error) as error:
        parser.exit(2, f"ipu-run: error: {error}\n")
    stand_in()
    return run_script(args.script, source, args.args)


def _with_autoreport(directory: str) -> str:
    """``POPLAR_ENGINE_OPTIONS`` as it is, and autoReport to the directory."""
    options = json.loads(os.environ.get(ENGINE_OPTIONS_VARIABLE, "").strip() or "{}")
    if not isinstance(options, dict):
        raise ValueError(f"{ENGINE_OPTIONS_VARIABLE} is no JSON object; unset it or make it one")
    return json.dumps({**options, "autoReport.all": "true", "autoReport.directory": directory})


def stand_in() -> None:
    """Make our packages answer to the vendor's names, each module under both, so that its classes exist once.

    Processes that load data are told by the environment to do so too.
    """
    os.environ[STAND_IN_VARIABLE] = "1"
    for theirs, ours in _STANDS_FOR.items():
        if importlib.util.find_spec(ours) is None:
            continue
        importlib.import_module(ours)
        for name, module in list(sys.modules.items()):
            if name == ours or name.startswith(f"{ours}."):
                sys.modules[theirs + name[len(ours) :]] = module


def run_script(script: str, source: bytes, arguments: Sequence[str]) -> int:
    """Run the source as ``python script arguments`` would. Gives 1 where it raised, and prints the traceback."""
    module = ModuleType("__main__")
    module.__dict__.update(__file__=script, __builtins__=builtins, __cached__=None)
    sys.modules["__main__"] = module  # for good: what runs at exit, and pickles, look for it there
    sys.argv = [script, *arguments]
    sys.path[0] = os.path.dirname(os.path.abspath(script))
    try:
        exec(compile(source, script, "exec"), module.__dict__)
    except Exception as error:
        traceback.print_exception(error.with_traceback(_within(error.__traceback__, script)))
        return 1
    return 0


def _within(trace: TracebackType | None, script: str) -> TracebackType | None:
    """The traceback from the script on: how it was started is of no use to its author."""
    while trace is not None and trace.tb_frame.f_code.co_filename != script:
        trace = trace.tb_next
    return trace


if __name__ == "__main__":
    sys.exit(main())
