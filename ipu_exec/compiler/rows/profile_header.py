"""The header of an executable's profile: the entries of its table ``meta``."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path
from typing import Any

from ipu_exec import machine
from ipu_exec.compiler.executable import Executable
from ipu_exec.compiler.placement.recompute import Recomputation, asked_for, by_block
from ipu_exec.compiler.rows.block_rows import update_blocks
from ipu_exec.compiler.schedule import phases_of
from ipu_exec.graph import OpNode
from ipu_exec.lowering.measured import class_of, confidence
from ipu_exec.lowering.operator_info import packet
from ipuscope.profiler.enums import Direction
from ipuscope.profiler.timeline import schedules
from ipuscope.profiler.timeline.schedules import BACKWARD, FORWARD


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
        "rules": rules(),
    }
    blocks = len(executable.graph.blocks)
    if blocks and options.training:
        entries["recomputation"] = _recomputation(executable)
        entries["choices"] = _choices(executable)
    if blocks:
        updated, ops = update_blocks(executable.graph), executable.graph.ops
        entries["code"] = executable.memory.code.by_block(
            blocks, lambda op: updated.get(op, ops[op].block)
        )
    return entries


@lru_cache(maxsize=1)
def rules() -> str:
    """Which rules compile: a digest of the sources that decide about cycles and bytes."""
    root, digest = Path(__file__).parents[2], hashlib.sha256()
    sources = [*root.glob("*.py"), Path(schedules.__file__)]
    for room in ("base", "capture", "compiler", "lowering"):
        sources += (root / room).rglob("*.py")
    for source in sorted(sources):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:12]


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
    """The likely error of the tiles' cycles, in all and by class of operator (the header's).

    Of a weight update: an optimiser runs once in it, everything else for each micro-batch.
    """
    cycles, micro_batches = executable.tree.op_cycles, executable.options.micro_batches
    classes_and_cycles = []
    for op in executable.graph.ops:
        runs = 1 if op.direction == Direction.UPDATE else micro_batches
        classes_and_cycles.append((class_of(op.aten, _groups(op)), runs * cycles.get(op.id, 0)))
    error = confidence(classes_and_cycles)
    classes = [
        {
            "class": one.name,
            "share": round(one.share, 4),
            "likely": round(one.likely, 4),
            "rows": one.rows,
        }
        for one in error.shares
        if one.share
    ]
    return {
        "likely": round(error.likely, 4),
        "unmeasured": round(error.unmeasured, 4),
        "classes": classes,
    }


def _groups(op: OpNode) -> int:
    """The groups of a convolution or of its gradient; 1 for other operators."""
    position = {"aten.convolution": 8, "aten.convolution_backward": 9}.get(packet(op.aten))
    if position is None or len(op.args) <= position:
        return 1
    return int(op.args[position])


def _choices(executable: Executable) -> list[list[bool]]:
    """Whether each stage recomputes, and whether its optimiser state is off the chip."""
    options, placement = executable.options, executable.placement
    usual = asked_for(options.recomputation, placement.pipelined) is not Recomputation.NONE
    choices = []
    for stage in placement.stages:
        recomputes = options.strategy.recomputes(stage.blocks)
        off_chip = options.strategy.keeps_state_off_chip(stage.blocks)
        choices.append(
            [
                usual if recomputes is None else recomputes,
                options.locations.state.off_chip if off_chip is None else off_chip,
            ]
        )
    return choices


def _recomputation(executable: Executable) -> dict[str, list[Any]]:
    """The cost of recomputation for each Block.

    It is that of the compiled model or, if that does not recompute, of a pipeline of the Blocks.
    """
    graph = executable.graph
    setting = executable.options.recomputation
    kind = asked_for(setting, executable.placement.pipelined) or Recomputation.PIPELINE
    ops = [op for op in graph.ops if not graph.only_aliases(op)]
    forward = [op for op in ops if op.direction == Direction.FORWARD]
    backward = [op for op in ops if op.direction == Direction.BACKWARD]
    return by_block(graph, forward, backward, kind, executable.tree.op_cycles)
