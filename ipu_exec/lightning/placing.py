"""How many IPUs a replica takes, from the Blocks of a step before it is compiled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ipu_exec.capture.control_flow import read_contents
from ipu_exec.capture.step import capture
from ipu_exec.compiler.placement import place
from ipu_exec.errors import ContentError
from ipu_exec.lightning.step import StepModule
from ipu_exec.options import Options
from ipu_exec.session.compile_options import strategy_options


def stages_of(model: torch.nn.Module, tensors: Sequence[torch.Tensor]) -> int:
    """The IPUs of a forward of ``model``, with the strategy of default options."""
    with torch.random.fork_rng(devices=[]):
        try:
            graph = capture(model, tuple(tensors), {})
        except ContentError:
            contents = read_contents(model, tuple(tensors), {}, False)
            graph = capture(model, tuple(tensors), {}, contents=contents)
    strategy = strategy_options(Options().execution_strategy)
    outside = place.begins_outside(graph)
    stages = place.resolve_stages(strategy, graph.blocks, outside)
    return len({stage.ipu for stage in stages})


def depth_of(module: Any, step: str, batch: Any) -> int:
    """The stages of a LightningModule's step, run on fake tensors like those of ``batch``."""
    model = StepModule.of(module, step)
    tensors = model.arguments((batch, 0), {})
    before, module._current_fx_name = module._current_fx_name, step  # it may log
    try:
        with model.compiling():
            return stages_of(model, tensors)
    finally:
        module._current_fx_name = before


def replicas_of(devices: int, stages: int) -> int:
    """Replicas on this many IPUs, each with its stages rounded up to a power of two.

    A model that needs more IPUs than there are has one replica: IPUs are modelled, and there are
    enough.
    """
    attached = 1 << (stages - 1).bit_length()
    return max(1, devices // attached)
