"""Blocks for a model that opens none, and the micro-batches that their pipeline needs.

Where a plan is made for a model that opens none, each layer of its lists, and each other part with
weights, begins a Block of the module's name. The placement file has these names, so that the script
runs unchanged.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from math import gcd
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves

from ipu_exec.annotations import BeginBlock, PipelinedExecution, begins_block
from ipu_exec.compiler.placement.place import storage_bytes
from ipu_exec.errors import PipelineDepthError
from ipu_exec.graph import Graph
from ipu_exec.options import Options
from ipu_exec.placement_file import load_proposal
from ipuscope.planner.costs.without_blocks import block_line, whole_modules
from ipuscope.profiler.enums import Direction, Role
from ipuscope.profiler.timeline import closed_forms

logger = logging.getLogger("ipu_exec")

_LISTS = (torch.nn.ModuleList, torch.nn.Sequential, torch.nn.ModuleDict)
_GIVEN = (Role.WEIGHT, Role.BUFFER, Role.INPUT)  # no stage before computed them


def prepare(
    model: torch.nn.Module, options: Options, training: bool, inputs: Any
) -> Options | None:
    """Before a compile: the options for a placement file that was made for another model.

    A placement file may have modules that begin Blocks, and stages of a plan for the script's other
    model, in training or inference, which need micro-batches here. None where nothing changes.
    """
    if not options.placement:
        return None
    begin_blocks(model, load_proposal(options.placement))
    plan, kind = options.placement_mapping, "training" if training else "inference"
    stages = len(options.execution_strategy.stages)
    of_other = plan is not None and plan.kind != kind and stages
    if not of_other or options.execution_strategy.kind != PipelinedExecution.kind:
        return None
    tensors = [leaf for leaf in tree_leaves(inputs) if isinstance(leaf, torch.Tensor)]
    samples = gcd(*(tensor.shape[0] for tensor in tensors if tensor.dim())) or 1
    with contextlib.suppress(PipelineDepthError):
        least = closed_forms.pipeline_stages(stages, training)
        return deep_enough(options, training, least, samples)
    return options  # and the compile says what is missing


def is_for_another(options: Options, model: torch.nn.Module) -> bool:
    """Whether the options' placement has modules that begin Blocks, and this model none of them.

    A model may be a part of the one that was planned, or have it as a part.
    """
    proposed = load_proposal(options.placement) if options.placement else ()
    if not proposed:
        return False
    if "" in proposed:  # the whole model, by its class
        stages = options.execution_strategy.stages
        return not any(type(model).__name__ in stage.blocks for stage in stages)
    own = [f".{name}" for name, _ in model.named_modules() if name]
    return not any(
        name.endswith(one) or one.endswith(name)
        for name in map(".{}".format, proposed)
        for one in own
    )


def deep_enough(options: Options, training: bool, least: int, samples: int) -> Options:
    """The options, with a call's batch of ``samples`` in at least ``least`` micro-batches.

    The number of samples per weight update stays the same; PipelineDepthError if that cannot be.
    """
    group = options.Training if training else options
    name = "gradient_accumulation" if training else "device_iterations"
    method = "Training.gradientAccumulation" if training else "deviceIterations"
    now = int(getattr(group, name))
    if now >= least:
        return options
    others = options.input_replicas * (options.device_iterations if training else 1)
    each = samples // others  # of a weight update, a replica
    enough = next((count for count in range(least, each + 1) if each % count == 0), 0)
    if not enough:
        what = "gradient accumulation" if training else "device iterations"
        raise PipelineDepthError(
            f"so many stages need {what} of at least {least}; it is {now}, and the {each} samples"
            f" of a call cannot be cut into as many micro-batches. Give it {least} samples, or a"
            " multiple of that, or use fewer IPUs",
            least,
        )
    logger.warning(
        "to fill the pipeline, the %d samples of a call are cut into %d micro-batches rather than"
        " %d: options.%s(%d) says the same",
        *(each, enough, now, method, enough),
    )
    deeper = options.clone()
    (deeper.Training if training else deeper)._set(**{name: enough})
    deeper._freeze()
    return deeper


def begin_blocks(model: torch.nn.Module, modules: Sequence[str]) -> None:
    """Let each module that begins no Block begin one of its name; a compile reports others."""
    by_name = dict(model.named_modules())
    for name in modules:
        if name in by_name and not begins_block(by_name[name]):
            BeginBlock(by_name[name], name or type(model).__name__)


def propose(model: torch.nn.Module, graph: Graph, stages: int) -> tuple[str, ...]:
    """The modules that should begin Blocks, in the order in which the model calls them.

    If there are too few, they are cut inside, where no more bytes cross than before them. A model
    whose modules all run twice, or are no modules, is one Block: "".
    """
    first = _first_operators(graph)
    names = sorted((name for name in _layers(model, "") if name in first), key=first.__getitem__)
    crossing = _crossing_bytes(graph)
    while names and len(names) < stages:
        finer = [part for name in names for part in _cut(model, name, first, crossing)]
        if len(finer) == len(names):
            break
        names = sorted(finer, key=first.__getitem__)
    return tuple(names) or ("",)


def _layers(module: torch.nn.Module, name: str) -> Iterator[str]:
    """The layers of its lists (of layers), and its other parts with weights."""
    parts = _with_weights(module)
    for label, child in parts.items():
        path = f"{name}.{label}" if name else label
        layer = isinstance(module, _LISTS) and not isinstance(child, _LISTS)
        layer = layer and not _has_layers(child)
        wrapped = len(parts) == 1 and len(_with_weights(child)) > 1
        has_list = any(isinstance(part, _LISTS) for part in child.modules())
        if not layer and (has_list or wrapped):
            yield from _layers(child, path)
        else:
            yield path


def _with_weights(module: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """Its parts that have weights, by attribute name."""
    children = module.named_children()
    return {label: child for label, child in children if any(True for _ in child.parameters())}


def _has_layers(module: torch.nn.Module) -> bool:
    """Whether a list inside has layers: two or more of a class that have several parts each."""
    for part in module.modules():
        children = [child for _, child in part.named_children()] if isinstance(part, _LISTS) else []
        layers = [type(child) for child in children if len(_with_weights(child)) > 1]
        if len(layers) > len(set(layers)):
            return True
    return False


def _first_operators(graph: Graph) -> dict[str, int]:
    """The first forward operator of each module that runs once without interruption."""
    forward = [op for op in graph.ops if op.direction == Direction.FORWARD]
    whole = whole_modules(op.module for op in forward)
    return {path: forward[at].id for path, at in whole.items()}


def _cut(
    model: torch.nn.Module, name: str, first: dict[str, int], crossing: np.ndarray
) -> Iterator[str]:
    """The module, and its parts at whose beginning no more bytes cross than at its own."""
    begin = first[name]
    yield name
    for label in _with_weights(model.get_submodule(name)):
        path = f"{name}.{label}"
        at = first.get(path, begin)
        if at > begin and crossing[at] <= crossing[begin]:
            yield path


def _crossing_bytes(graph: Graph) -> np.ndarray:
    """Bytes computed before each operator that the forward reads from there on: int64[ops + 1]."""
    makers: dict[int, int] = {}
    until: dict[int, int] = {}
    for op in graph.ops:
        if op.direction != Direction.FORWARD:
            continue
        for value in op.inputs:
            until[graph.values[value].storage] = op.id
        for storage in graph.results(op):
            makers.setdefault(storage, op.id)
    change = np.zeros(len(graph.ops) + 2, dtype=np.int64)
    for storage, maker in makers.items():
        if storage in until and graph.storages[storage].role not in _GIVEN:
            change[maker + 1] += storage_bytes(graph, storage)
            change[until[storage] + 1] -= storage_bytes(graph, storage)
    return np.cumsum(change)[: len(graph.ops) + 1]


def script_lines(
    blocks: Sequence[str], ipus: Sequence[int], micro_batches: int, training: bool
) -> Iterator[str]:
    """Script lines that put the Blocks on their ``ipus``, for a model in the variable ``model``.

    ``micro_batches``: the accumulation (device iterations).
    """
    for name, ipu in zip(blocks, ipus, strict=True):
        yield block_line(name, ipu)
    if list(ipus) != sorted(ipus):  # a stage that returns to an IPU is one of its own
        stages = "poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement)"
        yield f"options.setExecutionStrategy({stages})"
    method = "Training.gradientAccumulation" if training else "deviceIterations"
    yield f"options.{method}({micro_batches})"
