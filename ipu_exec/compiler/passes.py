"""The compiler: its passes in order, from the user's model to an `Executable`.

Each pass takes the frozen results of the passes before it and returns one of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from ipu_exec.base.sharding_plan import TensorSharding
from ipu_exec.capture import overlap
from ipu_exec.capture.loss import find_final_loss, frozen
from ipu_exec.capture.rewrites import patterns, pooled_maximum
from ipu_exec.capture.rewrites.casts import casting
from ipu_exec.capture.step import capture
from ipu_exec.compiler import schedule
from ipu_exec.compiler.emission.emit import emit
from ipu_exec.compiler.executable import Executable
from ipu_exec.compiler.lower import lower_graph
from ipu_exec.compiler.memory.tile_memory import tile_memory
from ipu_exec.compiler.options import CompileOptions, Execution
from ipu_exec.compiler.placement.machines import machines_of
from ipu_exec.compiler.placement.place import place_model
from ipu_exec.compiler.placement.placement_log import log_placement
from ipu_exec.compiler.placement.residency import decide
from ipu_exec.graph import Graph
from ipu_exec.machine import target

Progress = Callable[[float, str], None]


def no_progress(done: float, what: str) -> None:
    """Ignore reports of progress."""


def capture_model(
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    optimizer: torch.optim.Optimizer | None,
    contents: Sequence[bool | int | float],
    options: CompileOptions,
    sharding: TensorSharding | None = None,
) -> Graph:
    """The graph of one micro-batch, and of an update with an optimiser, on one of the shards."""
    graph = capture(
        model,
        args,
        kwargs,
        optimizer=optimizer,
        accumulate=options.training and options.micro_batches > 1,
        find_loss=partial(find_final_loss, frozen=frozen(model)),
        contents=contents,
        casting=casting(options.half_float_casting, options.float_statistics, promotes=True),
        sharding=sharding,
    )
    patterns.rewrite(graph, options.patterns)
    pooled_maximum.read_pooled(graph)
    overlap.check(
        graph,
        pipelined=options.strategy.execution is Execution.PIPELINED,
        explicit_ir=options.explicit_ir,
        io_tiles=options.io_tiles,
        mode=options.output_mode,
    )
    return graph


def compile_graph(
    graph: Graph, options: CompileOptions, progress: Progress = no_progress
) -> Executable:
    """Every pass after the capture. Errors: see `ipu_exec.session.compilation.compile_step`."""
    progress(0.3, "placement")
    placement = place_model(graph, options)
    log_placement(graph, placement, options.strategy)

    progress(0.4, "lowering")
    residency = decide(graph, placement, options)
    machines = machines_of(options, placement.num_ipus)
    mapping = lower_graph(graph, placement, residency, machines, options)
    tree = emit(mapping, options)

    progress(0.8, "memory")
    memory = tile_memory(graph, placement, tree, machines)

    progress(0.9, "schedule")
    timeline = schedule.timeline(placement, tree, options)
    progress(1.0, "done")
    device = target(options.target)
    return Executable(graph, placement, tree, memory, timeline, device, options)
