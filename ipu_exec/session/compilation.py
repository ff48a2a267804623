"""Compilation of a user's model and options for an executor, through the cache if it is on."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

import torch

from ipu_exec.base.context import NOTHING
from ipu_exec.base.replica_groups import Groupings
from ipu_exec.compiler import passes
from ipu_exec.compiler.executable import Executable
from ipu_exec.errors import OutOfMemoryError
from ipu_exec.options import Options
from ipu_exec.session.call_plan import samples_of
from ipu_exec.session.compile_options import compile_options
from ipu_exec.session.files.executable_file import from_cache
from ipuscope.profiler import ProfileError, open_report
from ipuscope.profiler.units import size

_ANY_RATE = 2.0**-10  # a learning rate that no operator is simpler with


def compile_step(
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    options: Options,
    optimizer: torch.optim.Optimizer | None,
    training: bool,
    progress: passes.Progress = passes.no_progress,
    contents: Sequence[bool | int | float] = (),
    groupings: Groupings = MappingProxyType({}),
) -> Executable:
    """Compile one micro-batch of ``model``.

    ``args`` and ``kwargs`` are a micro-batch's, ``contents`` what its forward reads off tensors
    (`ipu_exec.capture.control_flow`). ``groupings``: weights that differ between replicas. Error
    for an impossible placement, LoweringError for an operator without lowering. Running out of
    memory is an error later, of `Executable.check_memory`, once the profile was saved.
    """
    asked = compile_options(options, training, samples_of((args, kwargs)), groupings)
    progress(0.0, "capture")
    directory = options.executable_cache
    with _of_any_rate(optimizer) if directory and optimizer is not None else NOTHING:
        graph = passes.capture_model(
            *(model, args, kwargs, optimizer if training else None, contents, asked),
            options.tensor_sharding,
        )
    gc.collect(0)  # tensors and autograd's nodes are cycles; nothing later is
    compiled = partial(passes.compile_graph, graph, asked, progress)
    executable = from_cache(directory, graph, asked, compiled) if directory else compiled()
    return replace(executable, settings=options.flat(), contents=tuple(contents))


@contextmanager
def _of_any_rate(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Inside, each group has the same learning rate: it is no part of what a cache is asked for."""
    groups = [group for group in optimizer.param_groups if isinstance(group.get("lr"), float)]
    rates = [(group, group["lr"]) for group in groups]
    for group in groups:
        group["lr"] = _ANY_RATE
    try:
        yield
    finally:
        for group, rate in rates:
            group["lr"] = rate


# -- The error of a model that does not fit, with what would free most ---


def with_relief(error: OutOfMemoryError) -> OutOfMemoryError:
    """The error with a line for each change that frees memory, if its profile has any."""
    if not error.profile_path:
        return error
    from ipuscope.planner.advice.largest_modules import largest_modules
    from ipuscope.planner.advice.relief import in_words, relief, way_to_fit

    try:
        with open_report(error.profile_path) as report:
            lines, way = in_words(relief(report)), way_to_fit(report)
            modules = largest_modules(report)[["module", "total"]].to_numpy()
            large = [] if len(report.blocks) else modules[:4].tolist()
    except (ProfileError, ValueError):
        return error
    most = ["\n  ".join(["What frees most of that tile:", *lines])] if lines else []
    sizes = ", ".join(f"{name} {size(nbytes)}" for name, nbytes in large)
    most += [f"The largest of the model, each by itself: {sizes}."] if sizes else []
    return OutOfMemoryError("\n".join([str(error), *most, way]), profile_path=error.profile_path)
