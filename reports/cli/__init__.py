"""`ipu-report`: ask profiles from the shell. Each subcommand has a file.

Exit codes, for scripts: 0 success; 1 a check failed, or what was asked for is not there; 2 wrong
usage; 3 a profile cannot be read. Errors are one line on standard error.

Imports are deferred: an answer takes less than half a second, and neither torch nor (except for
`view`) Dash is loaded.
"""

from __future__ import annotations

import argparse
import errno
import io
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from keyword import iskeyword
from types import ModuleType
from typing import Any

from ipuscope.help_text import HelpText
from ipuscope.reports.cli import common
from ipuscope.reports.cli.common import CommandError, first_steps, one_line
from ipuscope.words import Parser, add_version

# In the order of --help: what newcomers need comes first.
COMMANDS = (
    *("summary", "insights", "advise", "why", "stages", "pipeline", "pod", "memory", "tile"),
    *("liveness", "ops", "source", "program", "variables", "rebalance", "whatif", "compare"),
    *("runs", "query", "doctor", "html", "export", "import", "view", "completion"),
)

_HELP = """Ask a profile.pop what a model did on its IPUs, and where it waited.

A PROFILE is a profile.pop, a directory that contains one, a directory with training/ and
inference/ as ipu-run --profile-dir leaves it, or one above any number of these; patterns work too
('runs/*/training')."""

_EXAMPLES = """begin with:
  ipu-report summary demo/training       the machine, the speed, the memory, what is odd
  ipu-report stages demo/training        which stage sets the pace, and by how much
  ipu-report pipeline demo/training      the pipeline as text, from ramp-up to ramp-down
  ipu-report view demo/training          the same and more, in the browser

  ipu-report stages --help               each subcommand has its own examples

exit codes:
  0  all is well
  1  what was asked does not hold, or a check failed
  2  usage
  3  a profile cannot be read"""


_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}  # of where the output goes


def _write_nothing_more() -> None:
    """Let Python's own end of standard output be no second error."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def file_of(command: str) -> ModuleType:
    """A subcommand's file, imported now: it has a `page` for each profile or a `run` of its own."""
    name = f"{command}_" if iskeyword(command) else command
    return import_module(f"ipuscope.reports.cli.{name}")


def make_parser(*only: str) -> argparse.ArgumentParser:
    """The parser of `ipu-report`; ``only``: of these subcommands, whose files alone are read."""
    parser = Parser(
        prog="ipu-report", description=_HELP, epilog=_EXAMPLES, formatter_class=HelpText
    )
    add_version(parser)
    commands = parser.add_subparsers(title="subcommands", metavar="SUBCOMMAND")
    for name in only or COMMANDS:
        module = file_of(name)
        command = commands.add_parser(
            name,
            help=module.HELP,
            description=(module.__doc__ or "").strip(),
            epilog=f"examples:\n{module.EXAMPLES.rstrip()}",
            formatter_class=HelpText,
            allow_abbrev=False,  # words behind --check are the script's
        )
        if paged := hasattr(module, "page"):
            common.add_profiles(command)
        if hasattr(module, "add_arguments"):
            module.add_arguments(command)
        if paged:
            common.add_form(command, getattr(module, "TOP", 0))
        run = partial(_pages, module.page) if paged else module.run
        command.set_defaults(run=run, whole_parser=make_parser)
    return parser


def _pages(page: Callable[..., Any], args: argparse.Namespace) -> int:
    """A page for each profile; the exit code."""
    return common.each_profile(args, lambda report: page(report, args))


def main(argv: Sequence[str] | None = None) -> int:
    """Run a subcommand and return its exit code; SystemExit on usage errors and --help."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # file names may be in any encoding
            stream.reconfigure(errors="backslashreplace")
    argv = sys.argv[1:] if argv is None else argv
    parser = make_parser(*(one for one in argv[:1] if one in COMMANDS))
    args = parser.parse_args(argv)
    if not hasattr(args, "run"):
        parser.error(first_steps())
    if "OMP_NUM_THREADS" not in os.environ:  # numpy's threads spin, and its products are small
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    return _run(args)


def _run(args: argparse.Namespace) -> int:
    """The exit code of a subcommand, what is wrong in one line."""
    from ipuscope.profiler import (
        ProfileError,  # after parsing: --help and usage errors need no numpy
    )

    try:
        code: int = args.run(args)
        if sys.stdout is not None:  # closed by the caller
            sys.stdout.flush()
        return code
    except (CommandError, ProfileError) as error:
        print(f"ipu-report: error: {one_line(str(error))}", file=sys.stderr)
        return error.code if isinstance(error, CommandError) else 3
    except BrokenPipeError:  # `| head` has seen enough
        _write_nothing_more()
        return 0
    except OSError as error:
        if error.errno not in _FULL:
            raise
        _write_nothing_more()
        print(f"ipu-report: error: the output ends here: {error.strerror}", file=sys.stderr)
        return 1
