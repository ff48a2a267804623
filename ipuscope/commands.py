"""Entry points of the commands: --help and Ctrl-C work before anything slow is imported."""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from types import FrameType

WITHOUT_TORCH = (
    "{name} computes with PyTorch, which is not installed here: pip install 'ipuscope[engine]'."
    " Profiles open without it: ipu-report view PROFILE"
)
INTERRUPTED = 128 + signal.SIGINT  # as a shell has it


def ipu_run(argv: Sequence[str] | None = None) -> int:
    """Run a script on modelled IPUs; the exit status."""
    return _interruptible("ipu-run", lambda: _run(argv, "ipu-run"))


def poprun(argv: Sequence[str] | None = None) -> int:
    """Run the instances of a script on modelled IPUs; the exit status."""

    def run() -> int:
        from ipuscope.poprun import as_ipu_run

        return _run(as_ipu_run(argv), "poprun")

    return _interruptible("poprun", run)


def ipu_report() -> int:
    """Ask a profile; the exit status."""

    def run() -> int:
        gc.set_threshold(100_000)  # imports make objects that stay: nothing to look for in them,
        atexit.register(gc.freeze)  # nor when everything ends
        with _ending_at_once("ipu-report"):
            from ipuscope.reports.cli import main
        return main()

    return _interruptible("ipu-report", run)


def _run(argv: Sequence[str] | None, name: str) -> int:
    with _ending_at_once(name):
        from ipuscope.run_arguments import parse

        args = parse(argv, name)
        if refused(name):
            return 2
        from ipuscope.waiting import waiting

        os.environ.pop("IPUSCOPE_CALIBRATION", None)  # compiles are the model's: so are predictions
        with waiting(f"{name}: loading PyTorch", after=0.2):  # it takes seconds
            from ipu_exec.commands.run import run
    return run(args, name)


def refused(command: str) -> bool:
    """Whether a command cannot run because PyTorch is missing; prints what to install."""
    if find_spec("torch") is not None:
        return False
    print(f"{command}: error: {WITHOUT_TORCH.format(name=command)}", file=sys.stderr)
    return True


def _interruptible(name: str, command: Callable[[], int]) -> int:
    """The command's status; after Ctrl-C it prints one line and returns the shells' status."""
    try:
        return command()
    except KeyboardInterrupt:
        return interrupted(name)


def interrupted(name: str, where: str = "") -> int:
    """Print that Ctrl-C ended the command and return its status; another one exits silently."""
    signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
    print(f"{name}: interrupted{where}", file=sys.stderr)
    return INTERRUPTED


@contextmanager
def _ending_at_once(name: str) -> Iterator[None]:
    """Exit at once on Ctrl-C: packages turn a KeyboardInterrupt in an import into other errors."""

    def end(number: int, frame: FrameType | None) -> None:
        os.write(2, f"{name}: interrupted\n".encode())
        os._exit(INTERRUPTED)

    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler:  # ignored, or the caller's
        yield
        return
    signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


if __name__ == "__main__":
    sys.exit({"ipu-run": ipu_run, "poprun": poprun, "ipu-report": ipu_report}[sys.argv.pop(1)]())
