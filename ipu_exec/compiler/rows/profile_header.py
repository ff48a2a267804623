"""The header of an executable's profile: the entries of its table ``meta``."""

from __future__ import annotations

from collections import Counter
from typing import Any

from ipu_exec import machine
from ipu_exec.base.sources import fingerprint
from ipu_exec.compiler.batch_norms import any_over_samples
from ipu_exec.compiler.emission.bodies import dynamic_slice_cycles
from ipu_exec.compiler.executable import Executable
from ipu_exec.compiler.placement.place import written_buffers
from ipu_exec.compiler.placement.recompute import Recomputation, asked_for, by_block
from ipu_exec.compiler.rows.block_rows import cut_tiles, update_blocks
from ipu_exec.compiler.schedule import phases_of
from ipu_exec.graph import Graph, OpNode
from ipu_exec.lowering.measured import (
    FEW,
    FULLEST,
    INFERENCE,
    SMALL,
    SMALL_CYCLES,
    TRAINING,
    Bar,
    Share,
    bar,
    class_of,
    shares,
    together,
)
from ipu_exec.lowering.operator_info import packet
from ipu_exec.lowering.plan import ITEM_BYTES
from ipuscope.profiler.enums import Direction
from ipuscope.profiler.timeline.schedule_types import BACKWARD, FORWARD


def header(executable: Executable) -> dict[str, Any]:
    """The profile header of an executable."""
    options, target, placement = executable.options, executable.target, executable.placement
    execution = "pipelined" if placement.pipelined else "sharded"
    entries: dict[str, Any] = {
        "kind": "training" if options.training else "inference",
        "micro_batch": options.micro_batch,
        "num_instances": options.instances,
        "num_hosts": options.hosts,
        "tensor_sharding": options.shards,
        "strategy": "phased" if placement.phases else execution,
        **machine.header(target),
        "host_latency": round(options.host_latency * target.clock_hz),
        "across": executable.timeline.costs.across,
        "phases": _phases(executable) if placement.phases else {},
        "cycle_error": cycle_error(executable),
        "byte_error": {"low": bar(FULLEST).low, "high": bar(FULLEST).high},
        "rules": fingerprint()[:12],
        "batch_norms": any_over_samples(executable.graph),
        "written_buffers": {
            name: rows for name, (_, rows) in written_buffers(executable.graph).items()
        },
    }
    blocks = len(executable.graph.blocks)
    if blocks and options.training:
        entries["recomputation"] = _recomputation(executable)
        entries["choices"] = _choices(executable)
    if blocks:
        entries["cut_tiles"] = cut_tiles(executable)
        updated, ops = update_blocks(executable.graph), executable.graph.ops
        entries["code"] = executable.memory.code.by_block(
            blocks, lambda op: updated.get(op, ops[op].block)
        )
    return entries


def _phases(executable: Executable) -> dict[str, Any]:
    """What the schedule of phases needs besides the cycles of bodies, by direction."""
    placement = executable.placement
    phases = phases_of(placement, executable.tree, executable.options)
    kinds = {FORWARD: Direction.FORWARD, BACKWARD: Direction.BACKWARD}
    return {
        "of_stage": list(phases.of_stage),
        "pipelined": placement.pipelined,
        "parallel": phases.parallel,
        "load": {name: list(phases.load[kind]) for kind, name in kinds.items()},
        "store": {name: list(phases.store[kind]) for kind, name in kinds.items()},
        "needs": [[kinds[kind], stage, other] for kind, stage, other in sorted(phases.needs)],
    }


def cycle_error(executable: Executable) -> dict[str, Any]:
    """How far the speed of a weight update (or an iteration) likely is from the truth.

    Four in five measurements lie between the factors ``low`` and ``high`` of the predicted speed,
    by whole programs like it, and by its operators' bars if most are of kinds that nobody
    measured. ``likely``: the largest share by which its time is off. An optimiser runs once in an
    update.
    """
    micro_batches = executable.options.micro_batches
    cycles: Counter[str] = Counter()
    types: Counter[str] = Counter()
    classes = []
    for op in executable.graph.ops:
        runs = 1 if op.direction == Direction.UPDATE else micro_batches
        taken = runs * executable.tree.op_cycles.get(op.id, 0)
        classes.append(class_of(op.aten, *_channels(executable.graph, op)))
        cycles[classes[-1]] += taken
        types[_type(executable.graph, op)] += taken
    target = executable.target.name.partition(" ")[0]  # a narrower one is called "mk2 with ..."
    dtype = max(types, key=lambda name: types[name], default="")
    parts = shares(cycles, target, dtype)
    unmeasured = sum(one.share for one in parts if not one.bar.rows)
    place = {one.name: at for at, one in enumerate(parts)}
    total = whole = _of_programs(executable, target, dtype)
    if unmeasured > 0.5:  # whole models that were measured are of other operators
        made_up = together(parts)
        total = Bar(min(whole.low, made_up.low), max(whole.high, made_up.high))
    return {
        "likely": round(total.likely, 4),
        "low": round(total.low, 4),
        "high": round(total.high, 4),
        "unmeasured": round(unmeasured, 4),
        "models": whole.rows,
        "classes": [_class(one) for one in parts],
        "operators": [place.get(name, -1) for name in classes],
    }


def _of_programs(executable: Executable, target: str, dtype: str) -> Bar:
    """The bar of whole programs like this one."""
    options = executable.options
    runs = options.micro_batches * options.iterations
    kind = TRAINING if options.training else INFERENCE
    if executable.cycles_per_call < SMALL_CYCLES * runs:
        kind = SMALL
    return bar(kind, target, dtype)


def _class(one: Share) -> dict[str, Any]:
    """A kind of operators, as the header has it."""
    return {
        "class": one.name,
        "share": round(one.share, 4),
        "likely": round(one.bar.likely, 4),
        "low": one.bar.low,
        "high": one.bar.high,
        "rows": one.bar.rows,
        "estimates": one.bar.estimates,
    }


_WEIGHT_AND_GROUPS = {"aten.convolution": (1, 8), "aten.convolution_backward": (2, 9)}


def _channels(graph: Graph, op: OpNode) -> tuple[int, int]:
    """The input channels of a group, and the groups, of a convolution or its gradient."""
    weight, groups = _WEIGHT_AND_GROUPS.get(packet(op.aten), (0, 0))
    if not weight or len(op.args) <= groups:
        return FEW + 1, 1
    return graph.values[op.args[weight].id].shape[1], int(op.args[groups])


_FLOATS = {"float16": "fp16", "float32": "fp32"}


def _type(graph: Graph, op: OpNode) -> str:
    """The type of an operator's first operand, as the rows of benchmarks name it."""
    first = graph.values[op.inputs[0]].dtype if op.inputs else ""
    return _FLOATS.get(first.removeprefix("torch."), "")


def _choices(executable: Executable) -> list[list[bool]]:
    """Whether each stage recomputes, and whether its optimiser state is off the chip."""
    options, placement = executable.options, executable.placement
    usual = asked_for(options.recomputation, placement.pipelined) is not Recomputation.NONE
    choices = []
    for stage in placement.stages:
        recomputes = options.strategy.recomputes(stage.blocks)
        off_chip = options.strategy.keeps_state_off_chip(stage.blocks)
        if off_chip is None:
            off_chip = options.locations.state.off_chip
        choices.append([usual if recomputes is None else recomputes, off_chip])
    return choices


def _recomputation(executable: Executable) -> dict[str, list[Any]]:
    """The cost of recomputation for each Block: as compiled, or else in a pipeline."""
    graph = executable.graph
    setting = executable.options.recomputation
    kind = asked_for(setting, executable.placement.pipelined) or Recomputation.PIPELINE
    forward, backward = (
        [op for op in graph.ops if op.direction == direction and not graph.only_aliases(op)]
        for direction in (Direction.FORWARD, Direction.BACKWARD)
    )
    layouts = {storage: one for (storage, _), one in reversed([*executable.tree.layouts.items()])}
    costs: dict[tuple[int, str], list[int]] = {}  # equal layers share their vectors

    def stash(storage: int) -> list[int]:
        if storage not in layouts:
            return [0, 0]
        nbytes, dtype = layouts[storage].bytes, graph.storages[storage].dtype
        key = id(nbytes), dtype
        if key not in costs:
            item, most = ITEM_BYTES[dtype], nbytes.max()
            costs[key] = [int(dynamic_slice_cycles(most // item, item)), int(most)]
        return costs[key]

    return by_block(graph, forward, backward, kind, executable.tree.op_cycles, stash)
