"""What the example scripts share.

Their arguments, their options, and what they say of a model's speed.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import ipu_exec as poptorch
from ipuscope.profiler.units import per_second


def parser(
    description: str | None, *, stages: int, accumulation: int, steps: int = 10
) -> argparse.ArgumentParser:
    """Arguments that all examples take, with an example's defaults."""
    arguments = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = arguments.add_argument
    add(
        "--tiny",
        action="store_true",
        help="a toy version of the model, for tests and to try the script",
    )
    add(
        "--stages",
        type=int,
        default=stages,
        help="pipeline stages, one per IPU (default: %(default)s)",
    )
    add(
        "--accumulation",
        type=int,
        default=accumulation,
        help="micro-batches per weight update (default: %(default)s)",
    )
    add("--steps", type=int, default=steps, help="calls of the model (default: %(default)s)")
    add(
        "--target",
        default="mk2",
        help="machine to model: mk1, mk2, c600, bow (default: %(default)s)",
    )
    add(
        "--profile-dir",
        type=Path,
        metavar="DIR",
        help="write training/profile.pop (and inference/...) there",
    )
    add(
        "--compile-only",
        action="store_true",
        help="model the costs only: no numbers are computed",
    )
    return arguments


def options(args: argparse.Namespace, training: bool = True) -> poptorch.Options:
    """The options that the arguments ask for.

    A pipeline's micro-batches are accumulated, or iterated in inference.
    """
    opts = poptorch.Options().target(args.target).randomSeed(0).autoRoundNumIPUs(True)
    if training:
        opts.Training.gradientAccumulation(args.accumulation)
    else:
        opts.deviceIterations(max(args.stages, args.accumulation))
    if args.profile_dir is not None:
        opts.enableProfiling(args.profile_dir)
    return opts


def say_speed(model: poptorch.PoplarExecutor, samples: int, seconds: float | None = None) -> None:
    """Samples a second on the modelled machine, from the cycles of a call, and how long this
    computer takes for one.
    """
    target, cycles = model.executable.target, model.executable.cycles_per_call
    modelled = samples / target.seconds(cycles)
    here = "" if seconds is None else f"; this computer takes {seconds:.2f} s a call"
    print(
        f"{target.name}: {cycles:,} cycles a call of {samples} samples, {per_second(modelled)}"
        f" samples/s{here}"
    )


class Clock:
    """Mean seconds of the calls after the first, which compiles."""

    def __init__(self) -> None:
        self._marks = [time.perf_counter()]

    def tick(self) -> None:
        self._marks.append(time.perf_counter())

    @property
    def seconds(self) -> float | None:
        calls = len(self._marks) - 2
        return (self._marks[-1] - self._marks[1]) / calls if calls > 0 else None
